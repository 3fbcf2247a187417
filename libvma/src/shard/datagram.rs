//! A received datagram in a socket's queue, and how much of the receive buffer it takes.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use libvma_engine::frame::Frame;

use super::RingId;

/// Where the payload is.
pub enum Body {
    /// In place, in the ring's memory: a chain of frames, headers included.
    Frames { ring: RingId, frame: Frame, offset: u16 },
    /// Copied out: reassembled, for several sockets, or because the ring ran short of frames.
    Heap(Arc<[u8]>),
}

/// Datagrams that came as one packet, from a sender with UDP_SEGMENT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Train {
    /// Bytes of each, but perhaps the last one; 0: it is no train.
    pub segment: u16,
    /// The receiver gets all in one message (UDP_GRO).
    pub whole: bool,
}

impl Train {
    /// The bytes that a receive call gets, of `len` that are left.
    #[inline]
    pub fn next(self, len: u32) -> u32 {
        if self.segment == 0 || self.whole { len } else { len.min(self.segment.into()) }
    }

    /// How many datagrams `len` bytes are.
    #[inline]
    pub fn count(self, len: u32) -> u32 {
        if self.segment == 0 { 1 } else { len.div_ceil(self.segment.into()).max(1) }
    }

    /// What is charged for `len` bytes.
    #[inline]
    pub fn charge(self, len: usize) -> usize {
        if self.segment == 0 || self.whole { charge(len) } else { self.charge_of_each(len) }
    }

    #[cold]
    fn charge_of_each(self, len: usize) -> usize {
        let segment = usize::from(self.segment);
        let rest = if len.is_multiple_of(segment) { 0 } else { charge(len % segment) };
        len / segment * charge(segment) + rest
    }
}

pub struct Datagram {
    pub body: Body,
    pub len: u32,
    /// Bytes of the body's payload before these: of a train, what was received already.
    pub skip: u32,
    pub train: Train,
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
        self.train.charge(self.len as usize)
    }

    /// Takes a train's next datagram off, if a receive call gets no more than that: what is left
    /// of the train.
    #[inline]
    pub fn uncouple(&mut self) -> Option<Rest> {
        let next = self.train.next(self.len);
        (next < self.len).then(|| Rest { left: core::mem::replace(&mut self.len, next) - next })
    }

    /// Undoes [`Datagram::uncouple`].
    pub fn couple(&mut self, rest: Rest) {
        self.len += rest.left;
    }

    /// The first datagram of the train was received.
    pub fn move_up(&mut self, rest: Rest) {
        // The others by the kernel come before the first one.
        let first = self.len;
        self.len += rest.left;
        self.pass(first);
    }

    /// So many bytes of the train have left it.
    pub fn pass(&mut self, bytes: u32) {
        self.skip += bytes;
        self.len = self.len.saturating_sub(bytes);
        self.after_kernel = 0;
    }

    /// The ring that it lies in.
    pub fn ring(&self) -> Option<RingId> {
        match self.body {
            Body::Frames { ring, .. } => Some(ring),
            Body::Heap(_) => None,
        }
    }
}

/// The bytes of a train behind its first datagram.
pub struct Rest {
    left: u32,
}

/// What the kernel would charge SO_RCVBUF for a datagram of `len` bytes: `skb->truesize`, that is
/// the descriptor and a buffer with room for headers, headroom and the shared info, one of 576
/// bytes or of a power of two (Linux 6.3 and later). The headroom is that of a datagram of IPv4 which the kernel sends over veth or loopback
/// (`__ip_append_data()`), the smallest of all. A receive buffer so holds no fewer datagrams than on kernel sockets.
pub fn charge(len: usize) -> usize {
    const DESCRIPTOR: usize = 256;
    const HEADERS: usize = 20 + 8;
    const HEADROOM_AND_SHARED_INFO: usize = 16 + 15 + 320;
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
        assert_eq!((charge(64), charge(197), charge(198)), (832, 832, 1280));
        assert_eq!((charge(645), charge(646)), (1280, 2304));
        assert_eq!(charge(1472), 2304);
    }

    #[test]
    fn a_train_is_charged_as_it_is_received() {
        let cut = Train { segment: 1472, whole: false };
        assert_eq!(cut.charge(2 * 1472), 2 * charge(1472));
        assert_eq!(cut.charge(2 * 1472 + 1), 2 * charge(1472) + charge(1));
        let whole = Train { whole: true, ..cut };
        assert_eq!(whole.charge(2 * 1472), charge(2 * 1472));
        assert_eq!(
            (cut.count(2 * 1472 + 1), whole.count(2 * 1472), Train::default().count(9)),
            (3, 2, 1)
        );
    }
}
