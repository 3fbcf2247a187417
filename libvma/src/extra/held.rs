//! Packets that are the program's: held by a callback, or lent by recvfrom_zcopy(). They outlive their sockets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// Numbers are told as pointers, so they are none that a program could have by chance.
const FIRST: u64 = 0x5650_0000_0000_0010;
const STEP: u64 = 16;

#[derive(Default)]
pub struct Held {
    given: AtomicU64,
    packets: Lock<HashMap<u64, Packet>>,
}

struct Packet {
    socket: SocketId,
    /// The number that the socket had.
    descriptor: i32,
    /// The memory that the program reads. It does not move.
    _bytes: Box<[u8]>,
}

/// The socket whose packets are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Socket(SocketId),
    /// A socket that is no more and had this number.
    Descriptor(i32),
}

impl Held {
    /// The number of the next packet.
    pub fn next_number(&self) -> u64 {
        FIRST + STEP * self.given.fetch_add(1, Ordering::Relaxed)
    }

    /// The packet is the program's from now on.
    pub fn keep(&self, number: u64, socket: SocketId, descriptor: i32, bytes: Box<[u8]>) {
        if let Ok(mut packets) = self.packets.lock() {
            packets.insert(number, Packet { socket, descriptor, _bytes: bytes });
        }
    }

    /// How many packets of this owner the program has.
    pub fn count(&self, owner: Owner) -> usize {
        let Ok(packets) = self.packets.lock() else { return 0 };
        packets.values().filter(|packet| packet.is_of(owner)).count()
    }

    /// The program gives a packet back. False: it has none of this number and owner.
    pub fn free(&self, number: u64, owner: Owner) -> bool {
        let Ok(mut packets) = self.packets.lock() else { return false };
        if !packets.get(&number).is_some_and(|packet| packet.is_of(owner)) {
            return false;
        }
        let packet = packets.remove(&number);
        drop(packets);
        packet.is_some()
    }
}

impl Packet {
    fn is_of(&self, owner: Owner) -> bool {
        match owner {
            Owner::Socket(socket) => self.socket == socket,
            Owner::Descriptor(descriptor) => self.descriptor == descriptor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(number: u64) -> SocketId {
        SocketId::from_bits(1 << 32 | number).expect("a generation")
    }

    #[test]
    fn a_packet_is_given_back_once_and_by_its_owner() {
        let held = Held::default();
        let (first, second) = (held.next_number(), held.next_number());
        held.keep(first, socket(1), 5, Box::from(*b"one"));
        held.keep(second, socket(2), 6, Box::from(*b"two"));
        let owner = Owner::Socket(socket(1));
        assert_eq!(held.count(owner), 1);
        assert!(!held.free(second, owner));
        assert!(!held.free(first + 1, owner) && !held.free(0, owner));
        assert!(held.free(first, owner));
        assert!(!held.free(first, owner));
        assert_eq!(held.count(owner), 0);
        // The socket of the other one is closed.
        assert!(!held.free(second, Owner::Descriptor(5)));
        assert!(held.free(second, Owner::Descriptor(6)));
    }
}
