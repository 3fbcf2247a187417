//! One blocking call: look, poll, sleep, until what it waits for is there, its time is up, or a signal came.
//!
//! What all of them do is here. What a call looks at, and what ends its sleep, is its [`Source`]: datagrams
//! (`socket::receive`), streams (`socket::stream::wait`), poll and select (`mux::poll`), epoll_wait
//! (`mux::epoll`). How long it polls, and when it lets others run, is [`Wait`]'s.

use super::wait::{Next, Wait};
use super::{Socket, Stack, filter};
use crate::shard::{self, SleeperId};
use crate::sys::lock;
use crate::sys::thread;
use crate::sys::wait::{PollFd, PollSet};

pub type Guard<'a> = lock::Guard<'a, shard::State<Socket>>;

/// What a blocking call waits for.
pub trait Source<'a> {
    /// What the call comes to.
    type Found;

    /// Looks at the rings, and at what the call waits for.
    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, Self::Found>;

    /// May receive callbacks of the program judge what has come, now, in this call? Asked before a look and before a sleep.
    fn lets_judge(&self, _state: &mut Guard<'_>) -> bool {
        true
    }

    /// How the call waits. Asked once, after the first look.
    fn wait(&mut self, stack: &Stack, state: Option<&mut Guard<'_>>) -> Wait;

    /// The call is about to sleep: registers `sleeper` with what may end that, and adds the descriptors that
    /// may, besides those of the rings. False: there is news already.
    fn enlist(
        &mut self,
        state: &mut Guard<'_>,
        sleeper: SleeperId,
        descriptors: &mut PollSet,
    ) -> bool;

    /// May what the rings bring end the wait? If not, the sleep leaves them to others.
    fn listens(&self, _state: &mut Guard<'_>) -> bool {
        true
    }

    /// The sleep is over: takes the registrations back. `descriptors` begins with those that the source added.
    fn leave(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, descriptors: &[PollFd]);
}

/// Which look it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    First,
    /// After one that found nothing.
    Again,
    /// After a sleep.
    Woken,
}

/// What a look came to.
pub enum Look<'a, T> {
    Found(T),
    /// Nothing. With the lock, if the source has it: nothing comes between the look and the sleep then.
    Nothing(Option<Guard<'a>>),
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    TimedOut,
    Interrupted,
}

/// Waits for what `source` looks at. `mask` is the signal mask that the program gave for the wait, if any.
#[inline]
pub fn block<'a, S: Source<'a>>(
    stack: &'a Stack,
    source: &mut S,
    mask: Option<&libc::sigset_t>,
) -> Result<S::Found, Over> {
    let mut shift = Shift::new(stack);
    let mut wait: Option<Wait> = None;
    let mut round = Round::First;
    loop {
        if stack.extra.callbacks.are_any() {
            judge(stack, source);
        }
        // The only call of it, so that it becomes part of this loop.
        let mut state = match source.look(stack, round) {
            Look::Found(found) => {
                if let Some(wait) = &wait {
                    wait.found();
                }
                return Ok(found);
            }
            Look::Nothing(state) => state,
        };
        let wait = match &mut wait {
            Some(wait) => wait,
            none => none.insert(source.wait(stack, state.as_mut())),
        };
        let next = match wait.after_miss(&stack.load, || shares_cpu(stack, state.as_mut())) {
            Next::PollAgain => {
                drop(state);
                wait.settle(&stack.load);
                round = Round::Again;
                continue;
            }
            Next::Sleep => sleep(&mut shift, source, state, wait, mask),
            // The mask may let a signal through that is pending.
            Next::TimedOut if mask.is_some() => {
                match sleep(&mut shift, source, state, wait, mask) {
                    Next::Interrupted => Next::Interrupted,
                    _ => Next::TimedOut,
                }
            }
            over => over,
        };
        match next {
            Next::PollAgain | Next::Sleep => round = Round::Woken,
            Next::TimedOut => return Err(Over::TimedOut),
            Next::Interrupted => return Err(Over::Interrupted),
        }
    }
}

#[cold]
fn judge<'a, S: Source<'a>>(stack: &Stack, source: &S) {
    // A call that comes with the lock looks first; callbacks are asked before its next look.
    if thread::holds_locks() {
        return;
    }
    if stack.shard.lock().is_ok_and(|mut state| source.lets_judge(&mut state)) {
        filter::judge(stack);
    }
}

/// Does a process that this one waits for need the same CPU?
fn shares_cpu(stack: &Stack, state: Option<&mut Guard<'_>>) -> bool {
    match state {
        Some(state) => state.shares_cpu(),
        None => stack.shard.lock().is_ok_and(|mut state| state.shares_cpu()),
    }
}

fn sleep<'a, S: Source<'a>>(
    shift: &mut Shift<'a>,
    source: &mut S,
    state: Option<Guard<'a>>,
    wait: &mut Wait,
    mask: Option<&libc::sigset_t>,
) -> Next {
    let stack = shift.begin();
    let Some(mut state) = state.or_else(|| stack.shard.lock().ok()) else {
        return Next::PollAgain;
    };
    let Some((sleeper, waker)) = state.new_sleeper() else {
        // No descriptor for a waker: poll on, gently.
        drop(state);
        thread::nap_millis(1);
        return Next::PollAgain;
    };
    let mut descriptors = PollSet::default();
    let may_sleep = source.enlist(&mut state, sleeper, &mut descriptors)
        && !(stack.extra.callbacks.are_any()
            && source.lets_judge(&mut state)
            && filter::is_due(stack, &mut state));
    descriptors.add_waker(waker);
    // What came between the last poll and now is in the rings, so their descriptors are readable.
    // Each waiting thread calls receive callbacks, whatever it waits for.
    let bound = match source.listens(&mut state) || stack.extra.callbacks.are_any() {
        true => state.guard_rings(sleeper, |fd| descriptors.add_readable(fd)),
        false => None,
    };
    let lacks_bells = state.lacks_bells();
    drop(state);
    if lacks_bells {
        super::local::want_bells(stack);
    }
    let next = match may_sleep {
        true => wait.sleep(&mut descriptors, mask, bound),
        false => Next::PollAgain,
    };
    if let Ok(mut state) = stack.shard.lock() {
        source.leave(&mut state, sleeper, descriptors.as_mut_slice());
        state.end_sleeper(sleeper);
        state.run_tcp();
    }
    next
}

/// What a blocking call owes to others that sleep, if it has slept itself: when it ends, another one has to
/// listen to the rings. To be declared before any guard of the lock.
struct Shift<'a> {
    stack: &'a Stack,
    has_slept: bool,
}

impl<'a> Shift<'a> {
    #[inline]
    fn new(stack: &'a Stack) -> Shift<'a> {
        Shift { stack, has_slept: false }
    }

    /// The call sleeps.
    fn begin(&mut self) -> &'a Stack {
        self.has_slept = true;
        self.stack
    }
}

impl Drop for Shift<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_slept
            && let Ok(mut state) = self.stack.shard.lock()
        {
            state.hand_over_rings();
        }
    }
}

#[cfg(test)]
mod tests;
