//! Blocking: look, poll the rings, look again, sleep.

use super::{Guard, local};
use crate::shard::{Endpoint, SocketId};
use crate::socket::wait::{Next, Patience, Shift, Wait};
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
    mut check: impl FnMut(&mut Guard<'_>) -> Step<T>,
) -> Result<T, Ended> {
    let mut shift = Shift::new(stack);
    let mut wait: Option<Wait> = None;
    let (handled, own_number) = thread::interruptions_and_id(false);
    let mut held = Some(state);
    loop {
        let mut state = match held.take() {
            Some(state) => state,
            None => stack.shard.lock().map_err(|_| Ended::Reentered)?,
        };
        match state.socket(id) {
            Some((_, socket)) if matches!(socket.state, State::Os(_)) => {
                return Err(Ended::Departed);
            }
            Some((endpoint, _)) => manner.call.note_thread(endpoint, own_number),
            None => {
                let departed = state.has_departed(id);
                return Err(if departed { Ended::Departed } else { Ended::Gone });
            }
        }
        if wait.is_some() {
            match manner.call {
                Call::Receive => state.poll_patiently_for_reader(id),
                Call::Send | Call::Other => state.poll_patiently(),
            }
        } else {
            state.begin();
            if let Step::Done(result) = check(&mut state) {
                return Ok(result);
            }
            match manner.call {
                Call::Receive => state.poll_for_reader(id),
                Call::Send | Call::Other => state.poll(),
            };
        }
        if state.take_returned() {
            local::flush_all(&mut state);
        }
        let partly = match check(&mut state) {
            Step::Done(result) => return Ok(result),
            Step::Part => true,
            Step::Nothing => false,
        };
        if !manner.blocking {
            if !partly {
                manner.call.count_miss(&mut state, id);
                manner.call.count_eagain(&mut state, id);
            }
            return Err(Ended::WouldBlock);
        }
        if partly && thread::interruptions(false) != handled {
            return Err(Ended::Interrupted);
        }
        // signal(7): a call with a timeout is not restarted.
        let wait = wait.get_or_insert_with(|| {
            // Where no packets of ours can come, polling is of no use.
            let live = stack.shard.is_live() && state.may_polling_pay();
            let patience = Patience::loops(if live { stack.config.rx_poll } else { 0 });
            Wait::new(patience, manner.timeout, manner.timeout.is_none())
                .yielding(stack.config.rx_poll_yield)
        });
        let next = match wait.after_miss(&stack.load, || state.shares_cpu()) {
            Next::Sleep => {
                manner.call.count_miss(&mut state, id);
                sleep(&mut shift, state, id, manner, wait)
            }
            other => {
                drop(state);
                wait.settle(&stack.load);
                other
            }
        };
        match next {
            Next::PollAgain | Next::Sleep => {}
            Next::TimedOut => {
                if !partly && let Ok(mut state) = stack.shard.lock() {
                    manner.call.count_eagain(&mut state, id);
                }
                return Err(Ended::TimedOut);
            }
            Next::Interrupted => return Err(Ended::Interrupted),
        }
    }
}

fn sleep(
    shift: &mut Shift<'_>,
    mut state: Guard<'_>,
    id: SocketId,
    manner: Manner,
    wait: &mut Wait,
) -> Next {
    let Some((sleeper, waker)) = state.new_sleeper() else {
        // No descriptor for a waker: poll on, gently.
        drop(state);
        crate::sys::thread::nap_millis(1);
        return Next::PollAgain;
    };
    let stack = shift.begin();
    state.sleep_on(id, sleeper);
    let mut fds = PollSet::default();
    fds.add_waker(waker);
    let (shadow, events) = match manner.watches {
        // While another thread accepts from it, that one wakes this one.
        Watches::Listener => state.socket(id).map_or((-1, 0), |(_, socket)| match &socket.stream {
            Some(stream) if stream.os_accepting => (-1, 0),
            _ => (socket.shadow(), libc::POLLIN),
        }),
        Watches::Pipe { writing } => local::wakes(&mut state, id, writing).unwrap_or((-1, 0)),
        Watches::Nothing => (-1, 0),
    };
    fds.add(PollFd { fd: shadow, events, revents: 0 });
    let bound = state.guard_rings(sleeper, |fd| fds.add_readable(fd));
    drop(state);
    let next = wait.sleep(&mut fds, None, bound);
    let shadow_fired = fds.as_mut_slice().get(1).is_some_and(|entry| entry.revents != 0);
    if let Ok(mut state) = stack.shard.lock() {
        state.leave(id, sleeper);
        state.end_sleeper(sleeper);
        state.run_tcp();
        if shadow_fired && let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
        }
    }
    next
}

#[cfg(test)]
mod tests;
