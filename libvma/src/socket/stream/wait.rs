//! How the calls on a stream wait, by `socket::block`: what they look at, and what they count.

use super::{Guard, local};
use crate::shard::{Endpoint, SleeperId, SocketId};
use crate::socket::block::{Look, Over, Round, Source, block};
use crate::socket::receive::note_shadow;
use crate::socket::wait::{Patience, Wait};
use crate::socket::{Outcome, Stack, State};
use crate::sys::thread;
use crate::sys::wait::{PollFd, PollSet};

/// How a call waits.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// Else there is one look.
    pub blocking: bool,
    /// Nanoseconds; None for ever.
    pub timeout: Option<u64>,
    /// What else may end the wait.
    pub watches: Watches,
    pub call: Call,
}

/// Which of a socket's counters a call counts in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Receive,
    Send,
    Other,
}

impl Call {
    fn note_thread(self, endpoint: &mut Endpoint, thread: u32) {
        match self {
            Call::Receive => endpoint.rx_thread = thread,
            Call::Send => endpoint.tx_thread = thread,
            Call::Other => {}
        }
    }

    /// It polled in vain, and now blocks its thread or says EAGAIN.
    fn count_miss(self, state: &mut Guard<'_>, id: SocketId) {
        if self == Call::Receive
            && let Some((endpoint, _)) = state.socket(id)
        {
            endpoint.counters.rx_poll_misses += 1;
        }
    }

    /// The call says EAGAIN.
    fn count_eagain(self, state: &mut Guard<'_>, id: SocketId) {
        if let Some((endpoint, _)) = state.socket(id) {
            match self {
                Call::Receive => endpoint.counters.rx_eagain += 1,
                Call::Send => endpoint.counters.tx_eagain += 1,
                Call::Other => {}
            }
        }
    }
}

/// Whether the shadow may end a wait, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watches {
    Nothing,
    /// A listener's, which has connections of its own.
    Listener,
    /// Of a connection with a process of this host.
    Pipe {
        writing: bool,
    },
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    WouldBlock,
    TimedOut,
    Interrupted,
    /// The socket was closed by another thread.
    Gone,
    /// It is the kernel's now: the call goes on there.
    Departed,
    /// In a signal handler above our own lock.
    Reentered,
}

impl Ended {
    pub fn errno(self) -> i32 {
        match self {
            Ended::WouldBlock | Ended::TimedOut | Ended::Reentered => libc::EAGAIN,
            Ended::Interrupted => libc::EINTR,
            Ended::Gone | Ended::Departed => libc::EBADF,
        }
    }
}

/// A call fails, and that is counted.
#[cold]
pub(super) fn failed<T>(stack: &Stack, id: SocketId, call: Call, errno: i32) -> Outcome<T> {
    if let Ok(mut state) = stack.shard.lock()
        && let Some((endpoint, _)) = state.socket(id)
    {
        match call {
            Call::Receive => endpoint.counters.rx_errors += 1,
            Call::Send => endpoint.counters.tx_errors += 1,
            Call::Other => {}
        }
    }
    Outcome::Errno(errno)
}

/// Calls `check` until it gives something, polling the rings in between.
pub(super) fn until<T>(
    stack: &Stack,
    id: SocketId,
    manner: Manner,
    mut check: impl FnMut(&mut Guard<'_>) -> Option<T>,
) -> Result<T, Ended> {
    let state = stack.shard.lock().map_err(|_| Ended::Reentered)?;
    until_or_partly(stack, state, id, manner, |state| match check(state) {
        Some(result) => Step::Done(result),
        None => Step::Nothing,
    })
}

/// What a look found.
pub(super) enum Step<T> {
    Done(T),
    /// Part of what is waited for has been done: any signal handler ends the wait now, SA_RESTART or
    /// not.
    Part,
    Nothing,
}

/// As [`until`], for calls that can do a part of their work, and that hold the lock already.
pub(super) fn until_or_partly<'a, T>(
    stack: &'a Stack,
    state: Guard<'a>,
    id: SocketId,
    manner: Manner,
    check: impl FnMut(&mut Guard<'_>) -> Step<T>,
) -> Result<T, Ended> {
    let (handled, own_number) = thread::interruptions_and_id(false);
    let mut calling =
        Calling { id, manner, check, held: Some(state), handled, own_number, partly: false };
    match block(stack, &mut calling, None) {
        Ok(found) => found,
        Err(Over::TimedOut) => {
            if !calling.partly
                && let Ok(mut state) = stack.shard.lock()
            {
                manner.call.count_eagain(&mut state, id);
            }
            Err(Ended::TimedOut)
        }
        Err(Over::Interrupted) => Err(Ended::Interrupted),
    }
}

/// A call under way.
struct Calling<'a, C> {
    id: SocketId,
    manner: Manner,
    check: C,
    /// The lock, as the caller had it.
    held: Option<Guard<'a>>,
    /// Signal handlers that had run when the call began.
    handled: u32,
    own_number: u32,
    partly: bool,
}

impl<'a, T, C: FnMut(&mut Guard<'_>) -> Step<T>> Source<'a> for Calling<'a, C> {
    type Found = Result<T, Ended>;

    /// A program may hold locks of its own around a send that its callback takes.
    fn lets_judge(&self, _state: &mut Guard<'_>) -> bool {
        self.manner.call == Call::Receive
    }

    #[inline]
    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, Result<T, Ended>> {
        let Calling { id, manner, .. } = *self;
        let mut state = match self.held.take() {
            Some(state) => state,
            None => match stack.shard.lock() {
                Ok(state) => state,
                Err(_) => return Look::Found(Err(Ended::Reentered)),
            },
        };
        match state.socket(id) {
            Some((_, socket)) if matches!(socket.state, State::Os(_)) => {
                return Look::Found(Err(Ended::Departed));
            }
            Some((endpoint, _)) => manner.call.note_thread(endpoint, self.own_number),
            None => {
                let departed = state.has_departed(id);
                return Look::Found(Err(if departed { Ended::Departed } else { Ended::Gone }));
            }
        }
        if round == Round::First {
            state.begin();
            if let Step::Done(result) = (self.check)(&mut state) {
                return Look::Found(Ok(result));
            }
            match manner.call {
                Call::Receive => state.poll_for_reader(id),
                Call::Send | Call::Other => state.poll(),
            };
        } else {
            match manner.call {
                Call::Receive => state.poll_patiently_for_reader(id),
                Call::Send | Call::Other => state.poll_patiently(),
            }
        }
        if state.take_returned() {
            local::flush_all(&mut state);
        }
        self.partly = match (self.check)(&mut state) {
            Step::Done(result) => return Look::Found(Ok(result)),
            Step::Part => true,
            Step::Nothing => false,
        };
        if !manner.blocking {
            if !self.partly {
                manner.call.count_miss(&mut state, id);
                manner.call.count_eagain(&mut state, id);
            }
            return Look::Found(Err(Ended::WouldBlock));
        }
        if self.partly && thread::interruptions(false) != self.handled {
            return Look::Found(Err(Ended::Interrupted));
        }
        Look::Nothing(Some(state))
    }

    fn wait(&mut self, stack: &Stack, state: Option<&mut Guard<'_>>) -> Wait {
        // Where no packets of ours can come, polling is of no use.
        let live = stack.shard.is_live() && state.is_some_and(|state| state.may_polling_pay());
        let patience = Patience::loops(if live { stack.config.rx_poll } else { 0 });
        // signal(7): a call with a timeout is not restarted.
        let timeout = self.manner.timeout;
        Wait::new(patience, timeout, timeout.is_none()).yielding(stack.config.rx_poll_yield)
    }

    fn enlist(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &mut PollSet) -> bool {
        let Calling { id, manner, .. } = *self;
        manner.call.count_miss(state, id);
        state.sleep_on(id, sleeper);
        let (shadow, events) = match manner.watches {
            // While another thread accepts from it, that one wakes this one.
            Watches::Listener => {
                state.socket(id).map_or((-1, 0), |(_, socket)| match &socket.stream {
                    Some(stream) if stream.os_accepting => (-1, 0),
                    _ => (socket.shadow(), libc::POLLIN),
                })
            }
            Watches::Pipe { writing } => local::wakes(state, id, writing).unwrap_or((-1, 0)),
            Watches::Nothing => (-1, 0),
        };
        fds.add(PollFd { fd: shadow, events, revents: 0 });
        true
    }

    fn leave(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &[PollFd]) {
        state.leave(self.id, sleeper);
        note_shadow(state, self.id, fds);
    }
}

#[cfg(test)]
mod tests;
