//! One AF_XDP socket, bound to one receive queue of an interface, with its rings: four, or the two that
//! send. Where another process has the queue, and frames come in without it, a packet socket sends.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::ingress::Ingress;
use super::inlet::Inlet;
use super::outlet::{Outlet, Packets};
use super::program::{Program, Rival, SHORT_PATIENCE_NANOS};
use super::ring::Cursor;
use super::tx_rings::{self, TxRings};
use super::umem::{CHUNK, Umem};
use crate::device::OpenError;
use crate::sys::{Fd, thread, time};

/// The kernel releases the pool of a dead process asynchronously: bind answers EBUSY for some
/// 50 ms after the last holder is gone.
const BIND_PATIENCE_NANOS: u64 = 300_000_000;

pub struct Queue {
    pub inlet: Inlet,
    pub outlet: Outlet,
    /// The AF_XDP socket, or the packet socket that sends in its place.
    pub socket: Fd,
    /// Frames that are the kernel's to receive into, or wait to be consumed.
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

/// How many of an interface's or a queue's frames are posted: a power of two. Less than two batches
/// would not take a super-frame while one of them is used up.
pub fn ring_size(wanted: u32, frames: u32) -> u32 {
    let size = wanted.clamp(1, frames).next_power_of_two().max(2 * super::BATCH);
    if size > frames { (frames / 2 + 1).next_power_of_two() } else { size }
}

/// A receive queue of an interface.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub interface: u32,
    pub queue: u32,
    /// Which program steers to it.
    pub program: &'a Program,
    /// How long to wait for a process that is alive to give it up.
    pub patience_nanos: u64,
}

impl Queue {
    /// `owner` is the socket that registered the UMEM, or None if this one shall. With `ingress` the
    /// socket only sends.
    pub fn open(
        place: Place<'_>,
        umem: &Umem,
        owner: Option<&Fd>,
        sizes: Sizes,
        ingress: Option<Ingress>,
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
        if ingress.is_none() {
            set_xdp_rx_ring_size(&socket, sizes.rx).map_err(system("setsockopt(XDP_RX_RING)"))?;
        }
        set_xdp_tx_ring_size(&socket, sizes.tx).map_err(system("setsockopt(XDP_TX_RING)"))?;

        let offsets = xdp_mmap_offsets(&socket).map_err(system("getsockopt(XDP_MMAP_OFFSETS)"))?;
        let mapped = system("mmap of an AF_XDP ring");
        let tx = Cursor::producer(&socket, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, sizes.tx)
            .map_err(&mapped)?;
        let completion =
            Cursor::consumer(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, sizes.tx)
                .map_err(&mapped)?;

        let receives = ingress.is_none();
        let rings = match receives {
            false => None,
            true => {
                let at = libc::XDP_PGOFF_RX_RING as u64;
                let rx = Cursor::consumer(&socket, at, &offsets.rx, sizes.rx).map_err(&mapped)?;
                let at = libc::XDP_UMEM_PGOFF_FILL_RING;
                let fill = Cursor::producer(&socket, at, &offsets.fr, sizes.rx).map_err(&mapped)?;
                Some(Inlet::Rings { rx, fill })
            }
        };
        let bound = bind(&socket, place, owner, receives);
        let inlet = match (rings, ingress) {
            (Some(rings), _) => rings,
            (None, Some(ingress)) if matches!(bound, Err(OpenError::Busy)) => {
                return Queue::beside_another(place, sizes, ingress);
            }
            (None, Some(ingress)) => Inlet::Ingress(ingress),
            (None, None) => return Err(OpenError::Busy),
        };
        let at = tx_rings::Place { interface: place.interface, queue: place.queue, size: sizes.tx };
        let outlet = Outlet::Rings { tx: TxRings::new(at, tx), completion };
        Ok(Queue { inlet, outlet, socket, posted: 0, kicks: 0, takes_chains: bound? })
    }

    /// Another process sends through the queue, and only one can: what comes in does so by the steering
    /// program, and what goes out by a packet socket.
    fn beside_another(
        place: Place<'_>,
        sizes: Sizes,
        ingress: Ingress,
    ) -> Result<Queue, OpenError> {
        let (socket, packets) =
            Packets::open(place.interface, sizes.tx).map_err(system("socket(AF_PACKET)"))?;
        Ok(Queue {
            inlet: Inlet::Ingress(ingress),
            outlet: Outlet::Packets(packets),
            socket,
            posted: 0,
            kicks: 0,
            takes_chains: true,
        })
    }

    /// Of a ring that the daemon has granted: frames come in by the steering program, and leave by a TAP.
    pub fn behind_tap(tap: Fd, tx: u32, ingress: Ingress) -> Queue {
        Queue {
            inlet: Inlet::Ingress(ingress),
            outlet: Outlet::Packets(Packets::by_tap(tx)),
            socket: tap,
            posted: 0,
            kicks: 0,
            takes_chains: true,
        }
    }

    /// Lets the kernel send what waits in the outlet: `memory` is that of the frames. One system call per 32
    /// frames in copy mode.
    pub fn kick(&mut self, memory: &Umem) {
        let tx = match &mut self.outlet {
            Outlet::Rings { tx, .. } => tx,
            Outlet::Packets(packets) => {
                self.kicks += packets.send(&self.socket, memory);
                return;
            }
        };
        self.kicks += tx.kick(&self.socket);
    }

    /// Sends all that waits, and waits for other threads that send here. False if the kernel has no room for it.
    #[inline]
    pub fn drain(&mut self, memory: &Umem) -> bool {
        self.outlet.is_drained() || self.finish(memory)
    }

    #[cold]
    fn finish(&mut self, memory: &Umem) -> bool {
        match &mut self.outlet {
            Outlet::Rings { tx, .. } => self.kicks += tx.finish(&self.socket),
            Outlet::Packets(_) => self.kick(memory),
        }
        self.outlet.is_drained()
    }

    /// Notes the kick as an errand. False if it must be made now.
    #[cold]
    pub fn put_off_kick(&mut self) -> bool {
        let Outlet::Rings { tx, .. } = &mut self.outlet else { return false };
        let (noted, all) = tx.put_off_kick(&self.socket);
        self.kicks += noted;
        all
    }

    /// What is given to the outlet from now on is of this flow.
    #[inline]
    pub fn aim(&mut self, flow: u32) {
        if let Outlet::Rings { tx, .. } = &mut self.outlet {
            tx.aim(flow, &self.socket);
        }
    }

    /// Gives the sockets free, but not their numbers.
    pub fn retire(self) {
        if let Outlet::Rings { mut tx, .. } = self.outlet {
            tx.retire();
        }
        self.socket.retire();
    }

    /// Offers what was given to the inlet to the kernel. A driver that waits for it is woken.
    pub fn publish_offers(&mut self) {
        if self.inlet.publish_offers() {
            let mut none = [0u8; 0];
            let _ = rustix::net::recv(&self.socket, &mut none[..], RecvFlags::DONTWAIT);
        }
    }
}

/// Tells whether chains are taken. A socket that shares a UMEM does as its owner does.
fn bind(
    socket: &Fd,
    place: Place<'_>,
    owner: Option<&Fd>,
    receives: bool,
) -> Result<bool, OpenError> {
    let Place { interface, queue, program, patience_nanos } = place;
    // Without an XDP program beside it, a driver that would move frames without a copy sends nothing.
    let copy = if receives { SocketAddrXdpFlags::empty() } else { SocketAddrXdpFlags::XDP_COPY };
    let flags = copy | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    // SG first: packets longer than a chunk arrive as chains instead of being dropped.
    let flags = [flags | SocketAddrXdpFlags::XDP_USE_SG, flags];
    let began = time::monotonic_nanos();
    let mut freed_by = 0;
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
                Err(Errno::BUSY) => {
                    // Asked again each time: what a dead process has left goes meanwhile.
                    let now = time::monotonic_nanos();
                    let patience = match program.rival() {
                        Rival::Leaving => {
                            // The queue may come free after the program has gone.
                            let end = began + BIND_PATIENCE_NANOS;
                            freed_by = end.min(now + SHORT_PATIENCE_NANOS);
                            BIND_PATIENCE_NANOS
                        }
                        // Nothing to wait for: there is another way to send.
                        Rival::Living if !receives => 0,
                        Rival::Living => patience_nanos,
                        Rival::Nameless => patience_nanos.max(SHORT_PATIENCE_NANOS),
                        Rival::Possible => SHORT_PATIENCE_NANOS,
                        Rival::None => BIND_PATIENCE_NANOS,
                    };
                    if now >= freed_by.max(began + patience) {
                        return Err(OpenError::Busy);
                    }
                    thread::nap_millis(5);
                }
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
