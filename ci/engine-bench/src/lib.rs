//! Two endpoints of one TCP, joined by a link in memory: libvma's engine, smoltcp and lwIP behind
//! one small trait, so that one runner measures them alike.
//!
//! Alike means: the same buffers and window, IPv4 and TCP headers on the wire, no Nagle algorithm; the
//! program writes from one buffer and reads into another; a packet is copied once on its way, as DMA would;
//! memory of packets is pooled. Without checksums nobody makes or verifies one, that of IP included, but
//! for lwIP's own IP headers: its build fixes that, some twenty additions a packet. libvma sends with every
//! write and acknowledges within a batch, as in a shard; the others send once the buffer is full, which is
//! at least as fast for them. What stands around the engines is as short as could be for each: libvma's has
//! what a shard does with a segment, smoltcp's interface is its own, lwIP's is in C.
//!
//! There is one connection with traffic, and one segment in flight in round trips: what is made for that
//! (header prediction, the guess at the flow) is right each time.
//!
//! `Copies` is no TCP: it makes the copies and nothing else. Where those are most of the work, as at MTU
//! 65535, it says by how much anybody could win.

mod copies;
mod libvma;
mod lwip;
mod packets;
mod smoltcp;

pub use copies::Copies;
pub use libvma::Libvma;
pub use lwip::Lwip;
pub use smoltcp::Smoltcp;

/// The size of a message of a round trip.
pub const MESSAGE_LEN: usize = 64;

/// How much a program writes and reads with one call in a bulk transfer.
pub const CHUNK_LEN: usize = 64 << 10;

/// What both endpoints have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Of IP packets.
    pub mtu: u16,
    /// The size of send buffer, receive buffer and window.
    pub window: u32,
    /// Whether the endpoints generate and verify checksums, or leave them to the "device".
    pub checksums: bool,
    /// Timestamps in every segment (RFC 7323). lwIP as Debian builds it has none.
    pub timestamps: bool,
    /// How many more connections are open between the endpoints, without traffic.
    pub idle: usize,
}

/// A connection between two endpoints of one implementation.
pub trait Contestant {
    fn open(setup: &Setup) -> Self
    where
        Self: Sized;

    /// Sends `message` one way, the same bytes back, and returns what arrived in the end.
    fn round_trip(&mut self, message: &[u8; MESSAGE_LEN]) -> [u8; MESSAGE_LEN];

    /// The same `count` times.
    fn round_trips(&mut self, message: &[u8; MESSAGE_LEN], count: u64) {
        for _ in 0..count {
            assert_eq!(self.round_trip(message), *message);
        }
    }

    /// Sends `total` bytes one way, `source` over and over, and reads them into `sink`, over and
    /// over as well.
    fn bulk(&mut self, source: &[u8], sink: &mut [u8], total: u64);
}

/// A place in a buffer that is used over and over.
struct Cycle {
    position: usize,
    len: usize,
    left: u64,
}

impl Cycle {
    fn new(len: usize, total: u64) -> Cycle {
        Cycle { position: 0, len, left: total }
    }

    /// The part of the buffer that is next, at most `most` bytes; empty at the end.
    fn next(&self, most: usize) -> core::ops::Range<usize> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        self.position..self.position + most.min(self.len - self.position).min(left)
    }

    fn advance(&mut self, count: usize) {
        self.position = (self.position + count) % self.len;
        self.left -= count as u64;
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }
}
