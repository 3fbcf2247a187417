//! Bells of threads that wait for certain connections alone.
//!
//! One thread guards the ring and wakes the others. Where many threads wait, each for an answer on a
//! connection of its own, that is two wake-ups for an answer. So each of them gets a bell, which the steering
//! program rings when a frame of such a connection comes (`waiters` in `bpf/ingress.bpf.c`). What the program
//! knows of the threads is a hint: the thread that is woken reads all frames, and wakes other threads for
//! theirs. Frames of connections that no sleeping thread is known to wait for ring the common bell.
//!
//! The bells are packet sockets of one fanout group, the common one first: a frame's mark says which of them
//! gets it, and the kernel runs one filter, whatever their number.

use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::bell::{self, Bell};
use super::{Line, Mapping};
use crate::sys::Fd;

/// As in the program; the first one is the common bell.
const BELLS: usize = 32;
const WAITERS_BITS: u32 = 12;
const ALONE: u64 = 1 << 31;
/// The protocol's number.
const TCP: u32 = 6;

/// The words that the program shares.
struct Shared {
    _bells: Mapping,
    _waiters: Mapping,
    /// [`BELLS`] of them: does a thread sleep until this one rings?
    bells: *const Line<AtomicU32>,
    /// `1 << WAITERS_BITS` of them.
    waiters: *const AtomicU64,
}

// SAFETY: the pointers go into mappings that the value owns; nothing in them belongs to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn map(bells: &Fd, waiters: &Fd) -> Result<Shared, Errno> {
        let bells = Mapping::shared(bells, 0, BELLS * size_of::<Line<AtomicU32>>())?;
        let waiters = Mapping::shared(waiters, 0, size_of::<AtomicU64>() << WAITERS_BITS)?;
        Ok(Shared {
            bells: bells.at::<Line<AtomicU32>>(0).cast_const(),
            waiters: waiters.at::<AtomicU64>(0).cast_const(),
            _bells: bells,
            _waiters: waiters,
        })
    }

    fn asleep(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the remainder keeps the number below the count that was mapped.
        let line = unsafe { self.bells.add(number % BELLS) };
        // SAFETY: atomic words, for which any bits will do, mapped as long as `self`.
        &unsafe { &*line }.0
    }

    fn waiter(&self, place: u32) -> &AtomicU64 {
        let place = place & ((1 << WAITERS_BITS) - 1);
        // SAFETY: the mask keeps the place below the count that was mapped.
        let word = unsafe { self.waiters.add(place as usize) };
        // SAFETY: as in `asleep`.
        unsafe { &*word }
    }
}

struct OwnBell {
    packets: Fd,
    /// Packets that rang it and were not taken from the socket yet.
    owed: u32,
    /// A sleep ended otherwise: there may be an error of the interface to be taken, which makes the socket
    /// readable, too.
    is_unsure: bool,
}

pub struct OwnBells {
    shared: Shared,
    interface: u32,
    open: Vec<OwnBell>,
    /// The fanout group; None before the first own bell.
    group: Option<u16>,
    /// The kernel has refused one: no more tries.
    is_refused: bool,
}

impl OwnBells {
    pub fn new(bells: &Fd, waiters: &Fd, interface: u32) -> Result<OwnBells, Errno> {
        let shared = Shared::map(bells, waiters)?;
        Ok(OwnBells { shared, interface, open: Vec::new(), group: None, is_refused: false })
    }

    /// Is there a bell of this number (1 and up)? Opens those up to it. The second value is true if the common
    /// bell may have missed a ring meanwhile.
    pub fn provide(&mut self, number: usize, common: &Bell) -> (bool, bool) {
        let mut missed = false;
        while self.open.len() < number && number < BELLS && !self.is_refused {
            match self.open_next(common, &mut missed) {
                Ok(next) => self.open.push(next),
                Err(_) => self.is_refused = true,
            }
        }
        (number > 0 && number <= self.open.len(), missed)
    }

    fn open_next(&mut self, common: &Bell, missed: &mut bool) -> Result<OwnBell, Errno> {
        let group = match self.group {
            Some(group) => group,
            None => {
                *missed = true;
                *self.group.insert(bell::found_group(common)?)
            }
        };
        let number = self.open.len() as u32 + 1;
        let packets = bell::listen(self.interface, common.mark() + number)?;
        bell::join_group(&packets, group)?;
        Ok(OwnBell { packets, owed: 0, is_unsure: false })
    }

    /// A thread is about to sleep until this bell rings. A fence and a look at the ring must follow.
    pub fn arm(&mut self, number: usize) -> Option<BorrowedFd<'_>> {
        let bell = self.open.get_mut(number.checked_sub(1)?)?;
        while bell.owed > 0 || bell.is_unsure {
            let mut none = [0u8; 0];
            match rustix::net::recv(&bell.packets, &mut none[..], RecvFlags::DONTWAIT) {
                // Nothing, or it is still on its way.
                Err(Errno::AGAIN) => break,
                Ok(_) | Err(_) => bell.owed = bell.owed.saturating_sub(1),
            }
        }
        bell.is_unsure = false;
        self.shared.asleep(number).store(1, Ordering::Relaxed);
        Some(bell.packets.as_fd())
    }

    /// It sleeps no more.
    pub fn disarm(&mut self, number: usize) {
        if let Some(bell) = number.checked_sub(1).and_then(|at| self.open.get_mut(at)) {
            match self.shared.asleep(number).swap(0, Ordering::Relaxed) {
                // The kernel may have had no memory for a packet, which never comes then.
                0 => bell.owed = (bell.owed + 1).min(4),
                _ => bell.is_unsure = true,
            }
        }
    }

    /// Was it rung since it was armed?
    pub fn is_rung(&self, number: usize) -> bool {
        self.shared.asleep(number).load(Ordering::Relaxed) == 0
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.open.len() as u32
    }

    /// The threads that read the frames which this peer sends to this own address, by TCP.
    pub fn expect(&mut self, peer: SocketAddrV4, own: SocketAddrV4, taker: Taker) {
        let (number, alone) = match taker {
            Taker::Anybody => (0, false),
            Taker::First(number) => (number, false),
            Taker::Alone(number) => (number, true),
        };
        if self.open.is_empty() {
            return;
        }
        let word = match number <= self.open.len() {
            true => number as u64 | if alone { ALONE } else { 0 },
            // It has no bell, and what was said of another thread holds no more.
            false => 0,
        };
        let (place, tag) = hashes(peer, own);
        self.shared.waiter(place).store(u64::from(tag) << 32 | word, Ordering::Relaxed);
    }

    /// The bell of this number is another thread's from now on.
    pub fn forget(&mut self, number: usize) {
        if number > self.open.len() {
            return;
        }
        for place in 0..1 << WAITERS_BITS {
            let waiter = self.shared.waiter(place);
            if waiter.load(Ordering::Relaxed) as usize % BELLS == number {
                waiter.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// The threads that read what comes on a connection, by the numbers of their bells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    Anybody,
    /// This thread, and perhaps others.
    First(usize),
    /// This thread and no other.
    Alone(usize),
}

/// The place of a connection and its second hash, as in the program, which reads addresses and ports as they
/// lie in the packet.
fn hashes(peer: SocketAddrV4, own: SocketAddrV4) -> (u32, u32) {
    let [from, to] = [peer, own].map(|end| u32::from_ne_bytes(end.ip().octets()));
    let ports = u32::from(peer.port().to_be()) << 16 | u32::from(own.port().to_be());
    let place = (from ^ ports).wrapping_mul(0x9e37_79b1) >> (32 - WAITERS_BITS);
    let rest = to.wrapping_add(TCP).wrapping_mul(0xc2b2_ae35);
    (place, from.wrapping_add(ports.wrapping_mul(0x85eb_ca6b)).wrapping_add(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use std::collections::HashSet;

    #[test]
    fn connections_of_one_peer_spread_over_the_places() {
        let address = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), port);
        let peer = address(1, 80);
        assert_ne!(hashes(peer, address(2, 7)).1, hashes(peer, address(3, 7)).1);
        let hashes = |port| hashes(peer, address(2, port));
        let (places, tags): (HashSet<u32>, HashSet<u32>) = (40_000..40_256).map(hashes).unzip();
        assert!(places.iter().all(|place| *place < 1 << WAITERS_BITS));
        assert!(places.len() > 200, "{}", places.len());
        assert_eq!(tags.len(), 256);
    }
}
