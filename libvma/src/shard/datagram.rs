//! A received datagram in a socket's queue, and how much of the receive buffer it takes.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use super::RingId;
use crate::frame::Frame;

/// Where the payload is.
pub enum Body {
    /// In place, in the ring's memory: a chain of frames, headers included.
    Frames { ring: RingId, frame: Frame, offset: u16 },
    /// Copied out: reassembled, for several sockets, or because the ring ran short of frames.
    Heap(Arc<[u8]>),
}

pub struct Datagram {
    pub body: Body,
    pub len: u32,
    pub source: SocketAddrV4,
    pub destination: Ipv4Addr,
    /// The interface it came in by; 0 if the socket did not want to know then (IP_PKTINFO), which
    /// is what the kernel tells later.
    pub interface: u32,
    pub ttl: u8,
    pub tos: u8,
    /// Its sender sent so many others by the kernel before it, which come first; u16::MAX: all that
    /// are there.
    pub after_kernel: u16,
    /// It came by a link, whose sender tells of what goes by the kernel.
    pub by_link: bool,
    /// CLOCK_REALTIME nanoseconds of its arrival; 0 if the socket wanted no stamp then.
    pub stamp: u64,
    /// The socket's drop count when it was queued (SO_RXQ_OVFL).
    pub drops_before: u32,
}

impl Datagram {
    pub fn charge(&self) -> usize {
        charge(self.len as usize)
    }

    /// The ring that it lies in.
    pub fn ring(&self) -> Option<RingId> {
        match self.body {
            Body::Frames { ring, .. } => Some(ring),
            Body::Heap(_) => None,
        }
    }
}

/// What the kernel would charge SO_RCVBUF for a datagram of `len` bytes: `skb->truesize`, that is
/// the descriptor and a buffer with room for headers, headroom and the shared info, one of 576
/// bytes or of a power of two (Linux 6.18). A receive buffer so holds as many datagrams as it holds on kernel sockets.
pub fn charge(len: usize) -> usize {
    const DESCRIPTOR: usize = 256;
    const HEADERS: usize = 14 + 20 + 8;
    const HEADROOM_AND_SHARED_INFO: usize = 64 + 320;
    const SMALL: usize = 576;
    let needed = len + HEADERS + HEADROOM_AND_SHARED_INFO;
    DESCRIPTOR + if needed <= SMALL { SMALL } else { needed.next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_those_of_the_kernel() {
        assert_eq!(charge(0), 832);
        assert_eq!(charge(64), 832);
        assert_eq!(charge(1472), 2304);
    }
}
