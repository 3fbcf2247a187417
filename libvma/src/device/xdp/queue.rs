//! One AF_XDP socket, bound to one receive queue of an interface, with its four rings.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::ring::{Cursor, Descriptor};
use super::umem::{CHUNK, Umem};
use crate::device::OpenError;
use crate::sys::{Fd, thread, time};

/// The kernel releases the pool of a dead process asynchronously: bind answers EBUSY for some
/// 50 ms after the last holder is gone. The attachment of the program has shown before that no
/// living process holds the interface.
const BIND_PATIENCE_NANOS: u64 = 300_000_000;

/// A transmit call handles at most this many frames in copy mode, then says EAGAIN.
const KICKS_PER_FLUSH: u32 = 64;

pub struct Queue {
    pub rx: Cursor<Descriptor>,
    pub tx: Cursor<Descriptor>,
    pub fill: Cursor<u64>,
    pub completion: Cursor<u64>,
    pub socket: Fd,
    /// Frames that the kernel has: in the fill ring or in the RX ring.
    pub posted: u32,
    /// System calls made to send.
    pub kicks: u64,
    /// Packets longer than a chunk arrive as chains (Linux 6.6); else the kernel drops them.
    pub takes_chains: bool,
}

/// Ring sizes, powers of two.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub rx: u32,
    pub tx: u32,
}

impl Queue {
    /// `owner` is the socket that registered the UMEM, or None if this one shall.
    pub fn open(
        interface: u32,
        queue: u32,
        umem: &Umem,
        owner: Option<&Fd>,
        sizes: Sizes,
    ) -> Result<Queue, OpenError> {
        let socket = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(system("socket(AF_XDP)"))?;
        let socket = Fd::adopt(socket).map_err(system("fcntl(F_DUPFD_CLOEXEC)"))?;

        if owner.is_none() {
            let registration = XdpUmemReg {
                addr: umem.address(),
                len: umem.len(),
                chunk_size: CHUNK,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            };
            set_xdp_umem_reg(&socket, registration).map_err(system("setsockopt(XDP_UMEM_REG)"))?;
        }
        set_xdp_umem_fill_ring_size(&socket, sizes.rx)
            .map_err(system("setsockopt(XDP_UMEM_FILL_RING)"))?;
        set_xdp_umem_completion_ring_size(&socket, sizes.tx)
            .map_err(system("setsockopt(XDP_UMEM_COMPLETION_RING)"))?;
        set_xdp_rx_ring_size(&socket, sizes.rx).map_err(system("setsockopt(XDP_RX_RING)"))?;
        set_xdp_tx_ring_size(&socket, sizes.tx).map_err(system("setsockopt(XDP_TX_RING)"))?;

        let offsets = xdp_mmap_offsets(&socket).map_err(system("getsockopt(XDP_MMAP_OFFSETS)"))?;
        let mapped = system("mmap of an AF_XDP ring");
        let rx = Cursor::consumer(&socket, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, sizes.rx)
            .map_err(&mapped)?;
        let tx = Cursor::producer(&socket, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, sizes.tx)
            .map_err(&mapped)?;
        let fill = Cursor::producer(&socket, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizes.rx)
            .map_err(&mapped)?;
        let completion =
            Cursor::consumer(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, sizes.tx)
                .map_err(&mapped)?;

        let takes_chains = bind(&socket, interface, queue, owner)?;
        Ok(Queue { rx, tx, fill, completion, socket, posted: 0, kicks: 0, takes_chains })
    }

    /// Lets the kernel send what is in the TX ring. One system call per 32 frames in copy mode.
    pub fn kick(&mut self) {
        self.tx.publish();
        let mut calls = 0;
        while !self.tx.drained() && self.tx.needs_wakeup() && calls < KICKS_PER_FLUSH {
            calls += 1;
            self.kicks += 1;
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                // EAGAIN: its batch is full, frames remain. EBUSY: the device is, try again.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => {}
                // No memory for a packet now, link down ...: the frames stay queued for the next.
                Err(_) => break,
            }
        }
    }

    /// While nothing comes: starts to fetch what another processor is about to write, the next
    /// descriptor and its packet. They are then here together with the index that tells of them. The
    /// kernel takes chunks in the order of the fill ring, mostly; the other case costs time, no more.
    #[inline]
    pub fn expect_next(&self, umem: &Umem) {
        self.rx.prefetch_next();
        umem.prefetch_expected(self.fill.glance(self.rx.index()));
    }

    /// Lets a driver that waits for it take the fill ring.
    pub fn wake_receive(&mut self) {
        if self.fill.needs_wakeup() {
            let mut none = [0u8; 0];
            let _ = rustix::net::recv(&self.socket, &mut none[..], RecvFlags::DONTWAIT);
        }
    }
}

/// Tells whether chains are taken. A socket that shares a UMEM does as its owner does.
fn bind(socket: &Fd, interface: u32, queue: u32, owner: Option<&Fd>) -> Result<bool, OpenError> {
    // SG first: packets longer than a chunk arrive as chains instead of being dropped.
    let flags = [
        SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | SocketAddrXdpFlags::XDP_USE_SG,
        SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP,
    ];
    let deadline = time::monotonic_nanos() + BIND_PATIENCE_NANOS;
    let mut last = Errno::INVAL;
    for flags in flags {
        loop {
            let result = match owner {
                None => rustix::net::bind(socket, &SocketAddrXdp::new(flags, interface, queue)),
                Some(owner) => rustix::net::bind(
                    socket,
                    &SocketAddrXdpWithSharedUmem {
                        addr: SocketAddrXdp::new(
                            SocketAddrXdpFlags::XDP_SHARED_UMEM,
                            interface,
                            queue,
                        ),
                        shared_umem_fd: owner.as_fd(),
                    },
                ),
            };
            match result {
                Ok(()) => return Ok(flags.contains(SocketAddrXdpFlags::XDP_USE_SG)),
                Err(Errno::BUSY) if time::monotonic_nanos() < deadline => thread::nap_millis(5),
                Err(Errno::BUSY) => return Err(OpenError::Busy),
                Err(errno) => {
                    last = errno;
                    break;
                }
            }
        }
    }
    Err(system("bind(AF_XDP)")(last))
}

fn system(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}
