//! Bells of their own for threads that wait for certain connections (`device/xdp/ingress/own_bells.rs`).
//!
//! A sleeper's number, counted from 1, is that of its bells, one on each ring. What is known of who takes what
//! comes on a connection is learnt when a thread sleeps on it, and for an epoll instance when its thread is
//! woken. A thread is said to be alone with a connection only as long as nobody else can wait for it: then
//! nobody is woken while that thread runs.

use std::net::SocketAddrV4;

use rustix::fd::{AsFd, AsRawFd};

use super::{SetId, Sleeper, SleeperId};
use crate::device::Ring;
use crate::device::shm::{Arming, COMMON, Reader};
use crate::device::xdp::Taker;
use crate::shard::{SocketId, State};

/// A set whose thread has changed so often is one that several threads wait at.
const CHANGES: u8 = 3;

fn number(sleeper: SleeperId) -> usize {
    sleeper.0 as usize + 1
}

/// The threads that wait at a set.
#[derive(Default)]
pub(super) struct Waiters {
    last: Option<SleeperId>,
    changes: u8,
}

impl Waiters {
    /// True if it is another one than before.
    fn change(&mut self, sleeper: SleeperId) -> bool {
        let before = self.last.replace(sleeper);
        let changed = before.is_some_and(|before| before != sleeper) && self.changes < CHANGES;
        self.changes += u8::from(changed);
        changed
    }

    /// Is it this thread's, and will another one's next sleep there be noticed?
    fn is_only(&self, sleeper: SleeperId) -> bool {
        self.changes < CHANGES && self.last == Some(sleeper)
    }
}

impl<S> State<S> {
    /// With one thread that sleeps there is nobody to be spared the detour.
    fn has_several(&self) -> bool {
        self.sleepers.len() > 1
    }

    /// The sleeper has begun to wait for a socket by itself.
    pub(super) fn expect_on(&mut self, socket: SocketId, sleeper: SleeperId) {
        if !self.has_several() {
            return;
        }
        let Some((endpoint, _)) = self.socket(socket) else { return };
        let taker = match (endpoint.sleepers.len(), endpoint.watches.len()) {
            (1, 0) => Taker::Alone(number(sleeper)),
            (1, _) => Taker::First(number(sleeper)),
            _ => Taker::Anybody,
        };
        self.tell_taker(socket, taker, Some(sleeper));
    }

    /// News of a socket came for those who wait at a set.
    pub(super) fn expect_at(&mut self, id: SetId, socket: SocketId) {
        if !self.has_several() {
            return;
        }
        let Some((endpoint, _)) = self.socket(socket) else { return };
        let is_only_way = endpoint.watches.len() == 1 && endpoint.sleepers.is_empty();
        let Some(set) = self.set_mut(id) else { return };
        let Some(sleeper) = set.sleepers.first().copied().or(set.waiters.last) else { return };
        // Another thread that sleeps there, too, has changed hands but a few times.
        let is_one = set.waiters.is_only(sleeper) && set.sleepers.len() < 2;
        let taker = match is_one && is_only_way {
            true => Taker::Alone(number(sleeper)),
            false => Taker::First(number(sleeper)),
        };
        self.tell_taker(socket, taker, Some(sleeper));
    }

    /// The sleeper waits at a set. If it was another one's, nothing that was learnt holds.
    pub(super) fn note_waiter(&mut self, id: SetId, sleeper: SleeperId) {
        let Some(set) = self.set_mut(id) else { return };
        if !set.waiters.change(sleeper) {
            return;
        }
        for member in self.members(id) {
            self.expect_anybody(member);
        }
    }

    /// Another thread may wait for the socket from now on, or for another connection of its addresses.
    pub(in crate::shard) fn expect_anybody(&mut self, socket: SocketId) {
        if self.has_several() {
            self.tell_taker(socket, Taker::Anybody, None);
        }
    }

    fn tell_taker(&mut self, socket: SocketId, taker: Taker, sleeper: Option<SleeperId>) {
        let Some(connection) = self.connection(socket) else {
            return self.tell_reader(socket, taker, sleeper);
        };
        let key = connection.key();
        let taker = match taker {
            // The next acknowledgment makes data leave, and must be read while the thread computes, too.
            Taker::Alone(number) if connection.holds_data() => Taker::First(number),
            taker => taker,
        };
        if let Some(sleeper) = sleeper
            && let Some(entry) = self.sleepers.get_mut(sleeper.0 as usize)
        {
            entry.has_bells = true;
        }
        let (peer, own) = (key.remote_endpoint(), SocketAddrV4::new(key.local, key.local_port));
        for ring in &mut self.rings {
            if let Ring::Xdp(ring) = ring {
                ring.expect(peer, own, taker);
            }
        }
    }

    /// The same for a connection within the host.
    fn tell_reader(&mut self, socket: SocketId, taker: Taker, sleeper: Option<SleeperId>) {
        let Some(index) = self.socket(socket).and_then(|(endpoint, _)| endpoint.pipe) else {
            return;
        };
        let Some(link) = self.pipes.get(index).map(|pipe| pipe.link) else { return };
        if let Some(sleeper) = sleeper
            && let Some(entry) = self.sleepers.get_mut(sleeper.0 as usize)
        {
            entry.has_bells = true;
        }
        let reader = match taker {
            Taker::Anybody => Reader::Unknown,
            Taker::First(number) => Reader::First(number as u32),
            Taker::Alone(number) => Reader::Alone(number as u32),
        };
        if self.local_ring().is_some_and(|ring| ring.set_reader(link, index, reader)) {
            self.wake_any();
        }
    }

    /// The sleeper is another thread's from now on. True if something may have been left to the former one.
    pub(super) fn forget_own_bells(&mut self, sleeper: SleeperId) -> bool {
        let mut was_left = false;
        for ring in &mut self.rings {
            match ring {
                Ring::Xdp(ring) => ring.forget_own_bell(number(sleeper)),
                Ring::Shm(ring) => was_left |= ring.forget_own_bell(number(sleeper)),
            }
        }
        was_left
    }

    /// The thread sleeps anew, in a signal handler, or after it has left one by longjmp: what rings the bells of a
    /// sleep that it was in before would wake nobody.
    pub(super) fn leave_outer_sleeps(&mut self, sleeper: SleeperId) {
        let thread = self.sleepers.get(sleeper.0 as usize).map(|entry| entry.thread);
        for index in 0..self.sleepers.len() {
            let outer = SleeperId(index as u32);
            let is_outer = |entry: &Sleeper| entry.in_use && Some(entry.thread) == thread;
            if outer != sleeper
                && let Some(entry) = self.sleepers.get_mut(index)
                && is_outer(entry)
            {
                let listened = core::mem::take(&mut entry.listens);
                self.disarm_own_bells(outer);
                // It may be about to sleep, behind a handler that ran just before.
                if listened {
                    self.wake(outer);
                }
            }
        }
    }

    /// Before a sleep: `each` gets the sleeper's bells.
    pub(super) fn arm_own_bells(&mut self, sleeper: SleeperId, each: &mut impl FnMut(i32)) {
        let Some(entry) = self.sleepers.get_mut(sleeper.0 as usize) else { return };
        if !entry.has_bells {
            return;
        }
        entry.hears_all = true;
        for ring in self.rings.iter_mut().filter(|ring| ring.is_live()) {
            let Arming { hears_all, is_quiet } = match ring {
                Ring::Xdp(ring) => match ring.arm_own_bell(number(sleeper)) {
                    Some((bell, is_quiet)) => {
                        each(bell.as_raw_fd());
                        Arming { hears_all: true, is_quiet }
                    }
                    None => Arming { hears_all: false, is_quiet: true },
                },
                Ring::Shm(ring) => {
                    ring.arm_own_bell(number(sleeper), |bell| each(bell.as_fd().as_raw_fd()))
                }
            };
            entry.hears_all &= hears_all;
            if !is_quiet && !core::mem::replace(&mut entry.woken, true) {
                entry.due += 1;
                entry.waker.wake();
            }
        }
    }

    /// Has a packet rung a bell for the sleeper already, so that it is about to wake?
    pub(super) fn is_rung_for(&self, sleeper: SleeperId) -> bool {
        let Some(entry) = self.sleepers.get(sleeper.0 as usize) else { return false };
        let guards = self.driver == Some(sleeper);
        let is_rung = |ring: &Ring| match ring {
            Ring::Xdp(ring) => {
                guards && ring.is_common_bell_rung()
                    || entry.hears_all && ring.is_own_bell_rung(number(sleeper))
            }
            Ring::Shm(ring) => {
                guards && ring.has_rung(COMMON as usize) || ring.has_rung(number(sleeper))
            }
        };
        self.rings.iter().any(is_rung)
    }

    /// No thread guards the rings any more: the steering program rings a sleeping thread's own bell instead.
    pub(super) fn silence_common_bell(&mut self) {
        for ring in &mut self.rings {
            match ring {
                Ring::Xdp(ring) => ring.silence_common_bell(),
                Ring::Shm(ring) => ring.silence_common_bell(),
            }
        }
    }

    /// Has an interface's ring something to read?
    pub(super) fn has_waiting(&self) -> bool {
        self.rings.iter().any(|ring| match ring {
            Ring::Xdp(ring) => ring.has_waiting(),
            Ring::Shm(ring) => ring.has_waiting(),
        })
    }

    /// Has a thread's bell rung for something that is still there, and that nobody has looked at?
    pub(super) fn has_unseen(&self) -> bool {
        self.rings.iter().any(|ring| matches!(ring, Ring::Shm(ring) if ring.has_unseen()))
    }

    pub(super) fn disarm_own_bells(&mut self, sleeper: SleeperId) {
        let Some(entry) = self.sleepers.get_mut(sleeper.0 as usize) else { return };
        if !entry.has_bells {
            return;
        }
        entry.hears_all = false;
        for ring in &mut self.rings {
            match ring {
                Ring::Xdp(ring) => ring.disarm_own_bell(number(sleeper)),
                Ring::Shm(ring) => ring.disarm_own_bell(number(sleeper)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
