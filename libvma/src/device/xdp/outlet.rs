//! How frames leave: through the rings of an AF_XDP socket, or, where another process has the interface's
//! queue, through a packet socket. Both take descriptors of frames in the memory that the ring sends from,
//! and give the addresses of those that have left.

use std::collections::VecDeque;
use std::io::IoSlice;

use libvma_engine::frame::Extent;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ring::{CONTINUED, Cursor, Descriptor};
use super::super_frame::{LinkAddress, enable, roomy};
use super::tx_rings::TxRings;
use super::umem::{CHUNK, Umem};
use crate::sys::Fd;
use crate::sys::wait::raw_syscall;

/// PACKET_QDISC_BYPASS of <linux/if_packet.h>: as AF_XDP sends, by no queueing discipline.
const QDISC_BYPASS: libc::c_int = 20;

/// Frames that one call sends.
const BATCH: usize = 32;
/// Pieces of the largest frame: 64 KiB behind an Ethernet header.
const PIECES: usize = (65_535_usize + 14).div_ceil(CHUNK as usize);

pub enum Outlet {
    /// The AF_XDP socket's own, and others that share its completion ring.
    Rings {
        tx: TxRings,
        completion: Cursor<u64>,
    },
    Packets(Packets),
}

impl Outlet {
    /// Takes a piece of a frame, with room for as many as the ring has frames to send.
    #[inline]
    pub fn produce(&mut self, piece: Descriptor) {
        match self {
            Outlet::Rings { tx, .. } => tx.produce(piece),
            Outlet::Packets(packets) => packets.waiting.push_back(piece),
        }
    }

    /// Takes back the piece that came last, if it waits for a kick, and is one that others of its packet follow or not,
    /// as `continued` says.
    pub fn take_back(&mut self, continued: bool) -> Option<Descriptor> {
        let wanted = |piece: &Descriptor| (piece.options & CONTINUED != 0) == continued;
        match self {
            Outlet::Rings { tx, .. } => tx.take_back(continued),
            Outlet::Packets(packets) => {
                packets.waiting.back().filter(|last| wanted(last))?;
                packets.waiting.pop_back()
            }
        }
    }

    /// Pieces that wait for a kick.
    #[inline]
    pub fn unsent(&self) -> u32 {
        match self {
            Outlet::Rings { tx, .. } => tx.unsent(),
            Outlet::Packets(packets) => packets.waiting.len() as u32,
        }
    }

    /// Has everything left that was kicked?
    #[inline]
    pub fn is_drained(&mut self) -> bool {
        match self {
            Outlet::Rings { tx, .. } => tx.are_drained(),
            Outlet::Packets(packets) => packets.waiting.is_empty(),
        }
    }

    /// The address of a piece that has left.
    #[inline]
    pub fn take_sent(&mut self) -> Option<u64> {
        match self {
            Outlet::Rings { completion, .. } => completion.consume(),
            Outlet::Packets(packets) => packets.sent.pop_front(),
        }
    }

    /// After a number of [`Outlet::take_sent`].
    #[inline]
    pub fn settle(&mut self) {
        if let Outlet::Rings { completion, .. } = self
            && completion.unpublished() > 0
        {
            completion.publish();
        }
    }
}

/// Frames on their way out through a packet socket.
pub struct Packets {
    waiting: VecDeque<Descriptor>,
    sent: VecDeque<u64>,
    /// Frames that the kernel has thrown away.
    pub lost: u64,
    /// The frames are written to a TAP, one by one.
    by_tap: bool,
}

impl Packets {
    /// A packet socket that sends on an interface and receives nothing, and the pieces on their way there:
    /// at most so many.
    pub fn open(interface: u32, most: u32) -> Result<(Fd, Packets), Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let socket = Fd::adopt(socket)?;
        enable(&socket, QDISC_BYPASS)?;
        roomy(&socket);
        // Protocol 0: nothing is received.
        rustix::net::bind(&socket, &LinkAddress { interface, protocol: 0 })?;
        Ok((socket, Packets::new(most, false)))
    }

    /// The same by a TAP.
    pub fn by_tap(most: u32) -> Packets {
        Packets::new(most, true)
    }

    fn new(most: u32, by_tap: bool) -> Packets {
        let most = most as usize;
        let (waiting, sent) = (VecDeque::with_capacity(most), VecDeque::with_capacity(most));
        Packets { waiting, sent, lost: 0, by_tap }
    }

    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what waits, as far as the kernel takes it now: the number of calls.
    pub fn send(&mut self, socket: &Fd, memory: &Umem) -> u64 {
        let mut calls = 0;
        while !self.waiting.is_empty() {
            calls += 1;
            let sent = match self.by_tap {
                true => self.write_first(socket, memory),
                false => self.send_batch(socket, memory),
            };
            match sent {
                Ok(0) => break,
                Ok(frames) => self.leave(frames),
                Err(Errno::INTR) => {}
                // No room or no memory for a packet now, interface down: the frames stay for the next kick.
                Err(Errno::AGAIN | Errno::NOMEM | Errno::NETDOWN | Errno::NXIO) => break,
                // A frame that the link has not taken: its carrier is off, its other end takes no frame so
                // long or has no room (ENOBUFS). It is lost, as it is where AF_XDP sends, and those behind it
                // may be for another peer.
                Err(_) => {
                    self.lost += 1;
                    self.leave(1);
                }
            }
        }
        calls
    }

    /// The first frames have left.
    fn leave(&mut self, frames: usize) {
        for _ in 0..frames {
            while let Some(piece) = self.waiting.pop_front() {
                self.sent.push_back(piece.address);
                if piece.options & CONTINUED == 0 {
                    break;
                }
            }
        }
    }

    /// Writes the first frame to the TAP.
    fn write_first(&self, tap: &Fd, memory: &Umem) -> Result<usize, Errno> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let mut used = 0;
        for (place, piece) in pieces.iter_mut().zip(&self.waiting) {
            *place = IoSlice::new(memory.bytes(Extent { offset: piece.address, len: piece.len }));
            used += 1;
            if piece.options & CONTINUED == 0 {
                break;
            }
        }
        rustix::io::writev(tap, pieces.get(..used).unwrap_or_default()).map(|_| 1)
    }

    /// How many frames the kernel has taken.
    fn send_batch(&self, socket: &Fd, memory: &Umem) -> Result<usize, Errno> {
        let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut pieces = [none; BATCH + PIECES];
        // SAFETY: zeros are a message without address, data and control data.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { core::mem::zeroed() };
        let (mut frames, mut first, mut used) = (0, 0, 0);
        for piece in &self.waiting {
            let (Some(place), Some(message)) = (pieces.get_mut(used), messages.get_mut(frames))
            else {
                break;
            };
            let bytes = memory.bytes(Extent { offset: piece.address, len: piece.len });
            *place =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            used += 1;
            if piece.options & CONTINUED == 0 {
                message.msg_hdr.msg_iovlen = used - first;
                first = used;
                frames += 1;
            }
        }
        let mut at = pieces.as_mut_ptr();
        for message in messages.iter_mut().take(frames) {
            message.msg_hdr.msg_iov = at;
            at = at.wrapping_add(message.msg_hdr.msg_iovlen);
        }
        let arguments = [
            socket.raw() as usize,
            messages.as_mut_ptr().expose_provenance(),
            frames,
            libc::MSG_DONTWAIT as usize,
            0,
            0,
        ];
        // SAFETY: so many messages, whose vectors lie in `pieces`, whose bytes are those of frames that wait
        // here and that nobody writes to; all of it outlives the call, which reads the bytes and writes the
        // messages' lengths.
        let result = unsafe { raw_syscall(libc::SYS_sendmmsg, arguments) };
        if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
    }
}
