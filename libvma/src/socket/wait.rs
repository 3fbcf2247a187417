//! Waiting for something to happen on offloaded sockets: first polling, then sleeping.
//!
//! While polling, nothing tells that a signal handler ran except the count kept by
//! `preload::signal`; while sleeping, the kernel does. A handler that runs between the two wakes the
//! thread by its own waker.

use std::sync::atomic::{AtomicBool, Ordering};

use super::contention::{self, Advice};
use crate::shard::clock;
use crate::sys::load::Load;
use crate::sys::wait::{PollSet, ppoll_set};
use crate::sys::{cancel, thread};

/// Polls between two looks at the clock and at signals.
const STRIDE: u32 = 32;
/// The poll after which a wait looks whether others want the CPU: some five microseconds, in which what
/// comes soon has come. It looks again after twice as many, and so on up to the longest interval.
const FIRST_LOOK: u64 = 12;
const LOOKS: u64 = 128;
/// Polls between two times that it lets others run, though there seem to be CPUs enough.
const THOROUGH_LOOKS: u64 = 4096;

/// Whoever is polled for may be another process that needs this very CPU.
static YIELDING: AtomicBool = AtomicBool::new(false);

/// From now on, who polls for long lets others run now and then.
pub fn yield_while_polling() {
    YIELDING.store(true, Ordering::Relaxed);
}

/// How long a blocking call polls before it sleeps.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    Loops(u64),
    Nanos(u64),
    Endless,
}

impl Patience {
    /// `VMA_RX_POLL`: loops, -1 for ever.
    pub fn loops(value: i64) -> Patience {
        u64::try_from(value).map_or(Patience::Endless, Patience::Loops)
    }

    /// `VMA_SELECT_POLL`: microseconds, -1 for ever.
    pub fn micros(value: i64) -> Patience {
        let nanos = |micros: u64| Patience::Nanos(micros.saturating_mul(1000));
        u64::try_from(value).map_or(Patience::Endless, nanos)
    }

    /// No ring can bring the event that the call waits for: it looks once, then sleeps.
    pub fn without_polling(self) -> Patience {
        if self.is_endless() { self } else { Patience::Loops(0) }
    }

    /// Will the wait sleep as soon as nothing comes?
    pub fn sleeps_soon(self) -> bool {
        matches!(self, Patience::Loops(0))
            || !self.is_endless() && contention::advice() == Advice::Sleep
    }

    fn is_endless(self) -> bool {
        matches!(self, Patience::Endless)
    }
}

/// What a polling call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    PollAgain,
    Sleep,
    TimedOut,
    Interrupted,
}

/// One blocking call's wait.
pub struct Wait {
    patience: Patience,
    /// Nanoseconds on the shard's clock.
    deadline: Option<u64>,
    polling_since: u64,
    loops: u64,
    /// Handlers with SA_RESTART do not end the call (signal(7)).
    restartable: bool,
    interruptions: u32,
    /// Others may run between polls (`VMA_RX_POLL_YIELD`).
    yields: bool,
    owes: Owes,
    /// The count of polls at which it looks at others next.
    look_at: u64,
    /// Others want the CPU: no more polls, but for those between their turns.
    is_crowded: bool,
    turns: u8,
    /// Sleeps of this call that ended without what it waits for.
    sleeps_in_vain: u8,
}

/// After so many sleeps in vain the wait polls no more: the thread wakes for what other threads wait for.
const SLEEPS_IN_VAIN: u8 = 4;
/// Turns that it gives others before it sleeps.
const TURNS: u8 = 8;
/// One that nobody took counts as so many.
const EMPTY_TURN: u8 = 4;

/// What a wait does as soon as it holds no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owes {
    Nothing,
    Yield,
    Turn,
    Look,
}

impl Wait {
    /// `timeout` in nanoseconds, None is for ever. `restartable` for receive calls without a
    /// timeout; poll and its kin end with any handler.
    pub fn new(patience: Patience, timeout: Option<u64>, restartable: bool) -> Wait {
        let timed = timeout.is_some() || matches!(patience, Patience::Nanos(_));
        let now = if timed { clock::now().as_nanos() } else { 0 };
        let interruptions = thread::interruptions(restartable);
        Wait {
            patience,
            deadline: timeout.map(|nanos| now.saturating_add(nanos)),
            polling_since: now,
            loops: 0,
            restartable,
            interruptions,
            yields: false,
            owes: Owes::Nothing,
            look_at: FIRST_LOOK,
            is_crowded: false,
            turns: TURNS,
            sleeps_in_vain: 0,
        }
    }

    /// A handler that ran since the thread had counted so many ends the wait.
    pub fn since(mut self, interruptions: u32) -> Wait {
        self.interruptions = interruptions;
        self
    }

    /// When it began, on the shard's clock.
    #[inline]
    pub fn began(&self) -> u64 {
        if self.polling_since > 0 { self.polling_since } else { clock::now().as_nanos() }
    }

    /// Lets others run now and then while it polls.
    pub fn yielding(mut self, yields: bool) -> Wait {
        self.yields = yields;
        self
    }

    /// Call after each fruitless poll. `crowded` says whether whom it waits for needs this very CPU.
    #[inline]
    pub fn after_miss(&mut self, load: &Load, crowded: impl FnOnce() -> bool) -> Next {
        self.loops += 1;
        if self.sleeps_in_vain >= SLEEPS_IN_VAIN && !self.patience.is_endless() {
            return self.look_around(true);
        }
        let spent = matches!(self.patience, Patience::Loops(most) if self.loops >= most);
        if self.loops == 1 && !spent && contention::advice() == Advice::Poll {
            return Next::PollAgain;
        }
        let due = spent || self.is_crowded || self.loops == 1 || self.loops >= self.look_at;
        if !due && !self.loops.is_multiple_of(u64::from(STRIDE)) {
            // No pause instruction: on recent processors it takes longer than a poll.
            return Next::PollAgain;
        }
        let next = match self.look_around(spent) {
            Next::PollAgain if crowded() => Next::Sleep,
            Next::PollAgain => self.consider_others(),
            next => next,
        };
        if next == Next::PollAgain && !thread::holds_locks() {
            self.settle(load);
        }
        next
    }

    /// Who was told to poll for ever does that.
    fn consider_others(&mut self) -> Next {
        if self.patience.is_endless() {
            return self.owe_yield();
        }
        if self.is_crowded {
            return self.give_turn();
        }
        if self.loops == 1 {
            match contention::advice() {
                Advice::Sleep => return self.give_turn(),
                Advice::LookFirst => self.owes = Owes::Look,
                Advice::Poll => {}
            }
            return Next::PollAgain;
        }
        if self.loops >= self.look_at {
            self.look_at = self.loops + self.loops.min(LOOKS);
            self.owes = Owes::Look;
            return Next::PollAgain;
        }
        self.owe_yield()
    }

    fn give_turn(&mut self) -> Next {
        if self.turns == 0 || !contention::may_take_turns() {
            return Next::Sleep;
        }
        self.is_crowded = true;
        self.turns -= 1;
        self.owes = Owes::Turn;
        Next::PollAgain
    }

    /// Says whether the turns that the wait gave paid, if it gave any.
    #[inline]
    fn end_turns(&self, in_vain: bool) {
        if self.turns < TURNS {
            contention::note_end_of_turns(in_vain);
        }
    }

    /// To be called when the wait has what it waits for.
    #[inline]
    pub fn found(&self) {
        self.end_turns(false);
    }

    fn owe_yield(&mut self) -> Next {
        if self.yields || YIELDING.load(Ordering::Relaxed) {
            self.owes = Owes::Yield;
        }
        Next::PollAgain
    }

    /// Lets others run, or looks whether they want to, if it is time to: for a caller that has just given
    /// up the lock, which they may wait for.
    #[inline]
    pub fn settle(&mut self, load: &Load) {
        if self.owes != Owes::Nothing {
            self.settle_now(load);
        }
    }

    #[cold]
    fn settle_now(&mut self, load: &Load) {
        match core::mem::replace(&mut self.owes, Owes::Nothing) {
            Owes::Look => {
                let round = self.loops % THOROUGH_LOOKS;
                let thorough = round < LOOKS && self.loops > 1;
                self.is_crowded = contention::look(load, thorough);
            }
            Owes::Yield => thread::yield_now(),
            // More threads than CPUs, and nobody wants this one: who sleeps lets the scheduler spread them.
            Owes::Turn if !contention::give_turn(load) => {
                self.turns = self.turns.saturating_sub(EMPTY_TURN - 1);
            }
            Owes::Turn => {}
            Owes::Nothing => {}
        }
    }

    fn look_around(&self, spent: bool) -> Next {
        if self.is_interrupted() {
            return Next::Interrupted;
        }
        let timed = self.deadline.is_some() || matches!(self.patience, Patience::Nanos(_));
        let now = if timed { clock::now().as_nanos() } else { 0 };
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Next::TimedOut;
        }
        match self.patience {
            Patience::Nanos(most) if now.saturating_sub(self.polling_since) >= most => Next::Sleep,
            _ if spent => Next::Sleep,
            _ => Next::PollAgain,
        }
    }

    /// By a signal handler, or because the thread is cancelled.
    pub fn is_interrupted(&self) -> bool {
        thread::interruptions(self.restartable) != self.interruptions || cancel::is_due()
    }

    /// Sleeps until a descriptor is ready, the deadline, a signal, or `bound` (nanoseconds on the shard's
    /// clock), which is no timeout: a connection has something to do then. `mask` is the signal mask that
    /// the application gave for the wait, if any.
    pub fn sleep(
        &mut self,
        fds: &mut PollSet,
        mask: Option<&libc::sigset_t>,
        bound: Option<u64>,
    ) -> Next {
        self.end_turns(true);
        let interrupted = thread::set_alarm(fds.waker());
        let mut by_timer = false;
        let next = if self.is_interrupted() {
            Next::Interrupted
        } else {
            let now = clock::now().as_nanos();
            let first = [self.deadline, bound].into_iter().flatten().min();
            let left = first.map(|deadline| deadline.saturating_sub(now));
            let bounded = first != self.deadline;
            match ppoll_set(fds.as_mut_slice(), left, mask) {
                Ok(0) if bounded => {
                    by_timer = true;
                    Next::PollAgain
                }
                Ok(0) => Next::TimedOut,
                Ok(_) => Next::PollAgain,
                Err(libc::EINTR) if self.is_interrupted() || !self.restartable => Next::Interrupted,
                // A handler with SA_RESTART ran: the kernel goes on with the call, so do we.
                Err(_) => Next::PollAgain,
            }
        };
        thread::end_alarm(interrupted);
        // After a wake-up a little polling pays: answers come in bursts. Not after a timer's.
        if !by_timer {
            self.sleeps_in_vain = self.sleeps_in_vain.saturating_add(1);
            self.loops = 0;
            self.look_at = FIRST_LOOK;
        }
        self.is_crowded = false;
        self.turns = TURNS;
        next
    }
}

#[cfg(test)]
mod tests;
