//! Which calls of the program are at work on a connection of the kernel's that may be taken over
//! (`stream::take_over`): it can be taken over only while none is.
//!
//! A gate lies with the counters of a socket of the kernel's, is never freed, and costs one load for a
//! socket that is no candidate.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys::thread;

/// The connection may be taken over.
const CANDIDATE: u32 = 1 << 31;
/// A thread is about to take it over: calls that come now wait for the outcome.
const CLOSED: u32 = 1 << 30;

/// So many calls on a connection must have ended before it is worth taking over. A connection that lives
/// for one request ends before.
const FIRST_TRY: u32 = 8;

#[derive(Default)]
pub struct Gate {
    /// The two bits above, and how many calls are inside.
    word: AtomicU32,
    /// Calls that have ended.
    calls: AtomicU32,
    /// When the next attempt is due, in calls.
    next_try: AtomicU32,
    /// How many interfaces had been attached at the last attempt.
    attached: AtomicU32,
    /// Attempts ask for the interface: it is not wanted before.
    wants: AtomicBool,
}

/// What a call finds at the gate.
pub enum Entry<'a> {
    /// The socket is no candidate: nothing is to be kept.
    Free,
    /// To be kept until the call has ended.
    Inside(Inside<'a>),
    /// It is being taken over: wait, and find out what the descriptor is then.
    Closed,
}

/// A call at work.
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.word.fetch_sub(1, Ordering::Release);
    }
}

/// The right to take the connection over. Dropped, it lets calls in again.
pub struct Exclusive<'a>(&'a Gate);

impl Exclusive<'_> {
    /// The connection is not the kernel's any more.
    pub fn end(self) {
        self.0.word.fetch_and(!CANDIDATE, Ordering::Relaxed);
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_and(!CLOSED, Ordering::Release);
    }
}

impl Gate {
    /// Makes the socket a candidate. `wants`: its attempts ask for the interface.
    pub fn open(&self, wants: bool) {
        self.calls.store(0, Ordering::Relaxed);
        self.next_try.store(FIRST_TRY, Ordering::Relaxed);
        self.attached.store(0, Ordering::Relaxed);
        self.wants.store(wants, Ordering::Relaxed);
        self.word.fetch_or(CANDIDATE, Ordering::Release);
    }

    /// The socket stays the kernel's for good.
    pub fn retire(&self) {
        self.word.fetch_and(!CANDIDATE, Ordering::Relaxed);
    }

    #[inline]
    pub fn enter(&self) -> Entry<'_> {
        match self.word.load(Ordering::Relaxed) & (CANDIDATE | CLOSED) {
            0 => Entry::Free,
            _ => self.enter_candidate(),
        }
    }

    #[cold]
    fn enter_candidate(&self) -> Entry<'_> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            // Also if it has ceased to be a candidate: too late for the thread that is at it.
            if word & CLOSED != 0 {
                return Entry::Closed;
            }
            if word & CANDIDATE == 0 {
                return Entry::Free;
            }
            let more = self.word.compare_exchange_weak(
                word,
                word + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match more {
                Ok(_) => return Entry::Inside(Inside(self)),
                Err(now) => word = now,
            }
        }
    }

    /// Waits until the thread that takes the connection over has done so, or given up: some ten system calls.
    #[cold]
    pub fn wait(&self) {
        while self.word.load(Ordering::Acquire) & CLOSED != 0 {
            thread::yield_now();
        }
    }

    /// Keeps calls out. None while one is inside, or another thread is at it.
    pub fn close(&self) -> Option<Exclusive<'_>> {
        let closed = CANDIDATE | CLOSED;
        let done =
            self.word.compare_exchange(CANDIDATE, closed, Ordering::Acquire, Ordering::Relaxed);
        // Not then_some(): an Exclusive that is made in vain would open the gate of the thread that is at it.
        done.is_ok().then(|| Exclusive(self))
    }

    /// Is an attempt due? `attached`: how many interfaces have been attached so far; until the first one
    /// an attempt can only ask for one, and does so again if the last one did not come to it. Each interface makes a new
    /// attempt due.
    pub fn is_due(&self, attached: u32) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        if calls < FIRST_TRY || (attached == 0 && !self.wants.load(Ordering::Relaxed)) {
            return false;
        }
        let is_new = self.attached.swap(attached, Ordering::Relaxed) != attached;
        let due = is_new || calls >= self.next_try.load(Ordering::Relaxed);
        if due {
            // What stands in the way once may do so for long.
            self.next_try.store(calls.saturating_mul(2), Ordering::Relaxed);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(gate: &Gate) -> Inside<'_> {
        match gate.enter() {
            Entry::Inside(inside) => inside,
            Entry::Free | Entry::Closed => panic!("the gate is open"),
        }
    }

    #[test]
    fn nobody_takes_over_while_a_call_is_at_work() {
        let gate = Gate::default();
        assert!(matches!(gate.enter(), Entry::Free) && gate.close().is_none());
        gate.open(false);
        let calls = [inside(&gate), inside(&gate)];
        assert!(gate.close().is_none());
        drop(calls);
        let taking = gate.close().unwrap();
        assert!(matches!(gate.enter(), Entry::Closed) && gate.close().is_none());
        gate.retire();
        assert!(matches!(gate.enter(), Entry::Closed), "too late for the taker");
        gate.open(false);
        drop(taking);
        drop(inside(&gate));
        gate.close().unwrap().end();
        assert!(matches!(gate.enter(), Entry::Free));
    }

    #[test]
    fn a_retired_candidate_forgets_no_call() {
        let gate = Gate::default();
        gate.open(false);
        let call = inside(&gate);
        gate.retire();
        assert!(matches!(gate.enter(), Entry::Free));
        // The place is another socket's by now: the old call still keeps it from being taken over.
        gate.open(false);
        assert!(gate.close().is_none());
        drop(call);
        assert!(gate.close().is_some());
    }

    #[test]
    fn attempts_may_be_for_the_interface() {
        let gate = Gate::default();
        gate.open(true);
        // The first attempt may have found no guard, and so not have asked.
        for _ in 0..2 {
            (0..FIRST_TRY).for_each(|_| drop(inside(&gate)));
            assert!(gate.is_due(0));
            assert!(!gate.is_due(0), "it is wanted, and not there");
        }
        assert!(gate.is_due(1));
    }

    #[test]
    fn attempts_become_rarer_until_another_interface_is_there() {
        let gate = Gate::default();
        gate.open(false);
        let call = |times: u32| (0..times).for_each(|_| drop(inside(&gate)));
        call(FIRST_TRY - 1);
        assert!(!gate.is_due(1));
        call(1);
        assert!(!gate.is_due(0), "no interface is attached");
        assert!(gate.is_due(1) && !gate.is_due(1));
        call(FIRST_TRY - 1);
        assert!(!gate.is_due(1));
        call(1);
        assert!(gate.is_due(1) && !gate.is_due(1) && gate.is_due(2));
    }

    #[test]
    fn calls_and_takers_exclude_each_other() {
        let (gate, taken) = (Gate::default(), AtomicBool::new(false));
        gate.open(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        match gate.enter() {
                            Entry::Free => break,
                            Entry::Closed => gate.wait(),
                            Entry::Inside(_inside) => assert!(!taken.load(Ordering::Relaxed)),
                        }
                    }
                });
            }
            let mut rounds = 0;
            while rounds < 1000 {
                let Some(exclusive) = gate.close() else { continue };
                taken.store(true, Ordering::Relaxed);
                rounds += 1;
                taken.store(false, Ordering::Relaxed);
                if rounds == 1000 {
                    exclusive.end();
                }
            }
        });
    }
}
