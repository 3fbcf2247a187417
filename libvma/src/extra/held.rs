//! Packets that are the program's: held by a callback, or lent by recvfrom_zcopy(). They outlive their sockets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::{Buffer, Pool};
use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// Numbers are told as pointers, so they are none that a program could have by chance.
const FIRST: u64 = 0x5650_0000_0000_0010;
const STEP: u64 = 16;

#[derive(Default)]
pub struct Held {
    given: AtomicU64,
    packets: Lock<Packets>,
    /// The memory of packets.
    pub pool: Pool,
}

#[derive(Default)]
struct Packets {
    kept: HashMap<u64, Packet>,
    /// Those that callbacks have in hand. One may tell another thread of its packet, which gives it back before the callback
    /// has returned.
    judged: Vec<Judged>,
}

struct Judged {
    number: u64,
    origin: Origin,
    len: usize,
    given_back: bool,
}

struct Packet {
    origin: Origin,
    bytes: Buffer,
    /// So many of them are the packet's.
    len: usize,
}

/// Packets that a program has, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub packets: u64,
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, other: Amount) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// The socket of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub socket: SocketId,
    /// The number that the socket had.
    pub descriptor: i32,
    pub is_stream: bool,
}

/// The socket whose packets are given back, by its number: packets of a former socket of that number are among them, for
/// nobody else can give them back.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub descriptor: i32,
    /// None: there is no such socket any more.
    pub socket: Option<SocketId>,
}

impl Held {
    fn next_number(&self) -> u64 {
        FIRST + STEP * self.given.fetch_add(1, Ordering::Relaxed)
    }

    /// The packet, the first `len` of the bytes, is the program's from now on. Returns its number.
    pub fn lend(&self, origin: Origin, bytes: Buffer, len: usize) -> u64 {
        let number = self.next_number();
        if let Ok(mut packets) = self.packets.lock() {
            packets.kept.insert(number, Packet { origin, bytes, len });
        }
        number
    }

    /// A callback gets a packet of so many bytes. Returns its number.
    pub fn begin_to_judge(&self, origin: Origin, len: usize) -> u64 {
        let number = self.next_number();
        if let Ok(mut packets) = self.packets.lock() {
            packets.judged.push(Judged { number, origin, len, given_back: false });
        }
        number
    }

    /// The callback has returned; it may hold the packet, whose memory this is.
    pub fn end_of_judging(&self, number: u64, bytes: Buffer, holds: bool) {
        if let Ok(mut packets) = self.packets.lock() {
            let at = packets.judged.iter().position(|judged| judged.number == number);
            let judged = at.map(|at| packets.judged.swap_remove(at));
            if let Some(Judged { origin, len, given_back: false, .. }) = judged.filter(|_| holds) {
                packets.kept.insert(number, Packet { origin, bytes, len });
                return;
            }
        }
        self.pool.give(bytes);
    }

    /// The number of packets that the program has.
    pub fn count(&self) -> usize {
        self.packets.lock().map_or(0, |packets| packets.kept.len() + packets.judged.len())
    }

    /// The amount that the program has in all, also of sockets that are closed, and of each socket. For statistics: it takes as long as
    /// there are packets.
    pub fn amounts(&self) -> (Amount, HashMap<SocketId, Amount>) {
        let (mut all, mut of_sockets) = (Amount::default(), HashMap::<SocketId, Amount>::new());
        if let Ok(packets) = self.packets.lock() {
            let kept = packets.kept.values().map(|packet| (packet.origin.socket, packet.len));
            let judged = packets.judged.iter().filter(|judged| !judged.given_back);
            for (socket, len) in kept.chain(judged.map(|one| (one.origin.socket, one.len))) {
                let one = Amount { packets: 1, bytes: len as u64 };
                all.add(one);
                of_sockets.entry(socket).or_default().add(one);
            }
        }
        (all, of_sockets)
    }

    /// The program gives a packet back. None: it has none of this number and owner.
    pub fn free(&self, number: u64, owner: Owner) -> Option<Origin> {
        let mut packets = self.packets.lock().ok()?;
        if let Some(judged) = packets.judged.iter_mut().find(|judged| judged.number == number) {
            let free =
                owner.has(judged.origin) && !core::mem::replace(&mut judged.given_back, true);
            return free.then_some(judged.origin);
        }
        let origin = packets.kept.get(&number)?.origin;
        if !owner.has(origin) {
            return None;
        }
        let packet = packets.kept.remove(&number)?;
        drop(packets);
        self.pool.give(packet.bytes);
        Some(origin)
    }
}

impl Owner {
    fn has(self, origin: Origin) -> bool {
        origin.descriptor == self.descriptor || Some(origin.socket) == self.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(number: u64) -> SocketId {
        SocketId::from_bits(1 << 32 | number).expect("a generation")
    }

    fn keep(held: &Held, socket: SocketId, descriptor: i32, is_stream: bool) -> u64 {
        held.lend(Origin { socket, descriptor, is_stream }, held.pool.take(3), 3)
    }

    #[test]
    fn a_packet_is_given_back_once_and_by_its_owner() {
        let held = Held::default();
        let (first, second) = (keep(&held, socket(1), 5, false), keep(&held, socket(2), 6, true));
        let owner = Owner { descriptor: 5, socket: Some(socket(1)) };
        assert_eq!(held.count(), 2);
        assert!(held.free(second, owner).is_none());
        assert!(held.free(first + 1, owner).is_none() && held.free(0, owner).is_none());
        assert!(held.free(first, owner).is_some_and(|origin| !origin.is_stream));
        assert!(held.free(first, owner).is_none());
        // The socket of the other one is closed.
        let closed = |descriptor| Owner { descriptor, socket: None };
        assert!(held.free(second, closed(5)).is_none());
        assert!(held.free(second, closed(6)).is_some_and(|origin| origin.is_stream));
        assert_eq!(held.count(), 0);
    }

    #[test]
    fn a_packet_outlives_the_use_of_its_number_by_another_socket() {
        let held = Held::default();
        let old = keep(&held, socket(1), 5, false);
        let new = keep(&held, socket(2), 5, false);
        let owner = Owner { descriptor: 5, socket: Some(socket(2)) };
        assert!(held.free(old, owner).is_some() && held.free(new, owner).is_some());
        // A duplicate of the socket's descriptor does as well.
        let third = keep(&held, socket(2), 5, false);
        assert!(held.free(third, Owner { descriptor: 9, socket: Some(socket(1)) }).is_none());
        assert!(held.free(third, Owner { descriptor: 9, socket: Some(socket(2)) }).is_some());
    }

    #[test]
    fn a_packet_may_be_given_back_before_its_callback_returns() {
        let held = Held::default();
        let owner = Owner { descriptor: 5, socket: None };
        let origin = Origin { socket: socket(1), descriptor: 5, is_stream: false };
        for (early, holds) in [(true, true), (true, false), (false, false), (false, true)] {
            let number = held.begin_to_judge(origin, 3);
            let stranger = Owner { descriptor: 6, socket: None };
            assert!(held.free(number, stranger).is_none());
            assert_eq!(held.count(), 1);
            if early {
                assert!(held.free(number, owner).is_some() && held.free(number, owner).is_none());
            }
            assert_eq!(held.amounts().0.packets, u64::from(!early));
            held.end_of_judging(number, held.pool.take(3), holds);
            assert_eq!(held.amounts().0.packets, u64::from(holds && !early));
            assert_eq!(held.free(number, owner).is_some(), holds && !early);
            assert_eq!(held.count(), 0);
        }
    }

    #[test]
    fn what_the_program_has_is_counted_by_socket() {
        let held = Held::default();
        let lend = |socket_number, len| {
            let origin = Origin { socket: socket(socket_number), descriptor: 5, is_stream: false };
            held.lend(origin, held.pool.take(len), len)
        };
        let first = lend(1, 100);
        lend(1, 50);
        lend(2, 0);
        let origin = Origin { socket: socket(2), descriptor: 5, is_stream: false };
        held.begin_to_judge(origin, 7);
        let amount = |packets, bytes| Amount { packets, bytes };
        let (all, of_sockets) = held.amounts();
        assert_eq!(all, amount(4, 157));
        assert_eq!(of_sockets[&socket(1)], amount(2, 150));
        assert_eq!(of_sockets[&socket(2)], amount(2, 7));
        let owner = Owner { descriptor: 5, socket: None };
        assert!(held.free(first, owner).is_some());
        assert_eq!(held.amounts().1[&socket(1)], amount(1, 50));
    }
}
