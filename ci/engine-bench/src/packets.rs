//! The link of the two contestants written in Rust: packets in pooled memory, first in, first out.

use std::collections::VecDeque;

/// A packet in a buffer of the pool: one word, as a device's frame is, so that nobody pays for moving it.
#[derive(Debug)]
pub struct Packet(Box<Buffer>);

#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
}

impl Packet {
    #[cold]
    fn new(buffer_len: usize) -> Packet {
        Packet(Box::new(Buffer { bytes: vec![0; buffer_len].into_boxed_slice(), len: 0 }))
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes[..self.0.len]
    }

    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0.bytes[..self.0.len]
    }
}

/// Packets that are free; the one given back last is taken first, while the cache still has it.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Packet>,
    buffer_len: usize,
}

impl Pool {
    pub fn new(buffer_len: usize) -> Pool {
        Pool { free: Vec::new(), buffer_len }
    }

    /// A packet of `len` bytes, whatever was in them.
    #[inline(always)]
    pub fn take(&mut self, len: usize) -> Packet {
        assert!(len <= self.buffer_len, "a packet of {len} bytes, beyond the MTU");
        let mut packet = self.free.pop().unwrap_or_else(|| Packet::new(self.buffer_len));
        packet.0.len = len;
        packet
    }

    pub fn give_back(&mut self, packets: &mut Vec<Packet>) {
        while let Some(packet) = packets.pop() {
            self.free.push(packet);
        }
    }
}

/// Packets on their way in one direction. Boxed: handing them over moves one word.
pub type Queue = Box<VecDeque<Packet>>;

/// What was sent arrives: the other end has taken all that came before.
pub fn deliver(sent: &mut Queue, received: &mut Queue) {
    assert!(received.is_empty(), "packets were left behind");
    core::mem::swap(sent, received);
}
