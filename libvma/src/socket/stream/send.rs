//! send() and its kin: bytes into the send buffer, and out as far as they may.

use std::io::IoSlice;

use libvma_engine::tcp::{SendFlags, State as TcpState};

use super::wait::{Call, Ended, Manner, Step, Watches, failed, until, until_or_partly};
use super::{Guard, Outcome, Phase, Stack, WhyOs, errno, local, pending_error, view};
use crate::shard::SocketId;
use crate::sys::user::Copied;

/// Sends without a look at the rings in between: one that only sends would not see the peer close.
const BLIND: u32 = 16;

/// Sends what it can. `Errno(EPIPE)`: the caller raises SIGPIPE unless MSG_NOSIGNAL.
pub fn send(stack: &Stack, id: SocketId, data: &[IoSlice<'_>], flags: i32) -> Outcome<usize> {
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
    if stack.config.rx_poll_on_tx_tcp {
        state.poll();
    }
    let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
    if matches!(view.phase, Phase::Fresh | Phase::Listening { .. }) {
        // The shadow, which is in the same state, says what is wrong.
        return pending_error(&mut state, id).map_or(Outcome::Os(WhyOs::Unbound), Outcome::Errno);
    }
    if view.has_pipe {
        return local::send::send(stack, state, id, &view, data, flags);
    }
    let (mut timeout, mut looks) = (None, false);
    if let Some(stream) = state.socket(id).and_then(|(_, socket)| socket.stream.as_mut()) {
        timeout = stream.send_timeout;
        stream.sends = stream.sends.wrapping_add(1);
        looks = stream.sends.is_multiple_of(BLIND);
    }
    let blocking = !view.nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let manner = Manner { blocking, timeout, watches: Watches::Nothing, call: Call::Send };
    let total: usize = data.iter().map(|piece| piece.len()).sum();
    let engine_flags =
        SendFlags { more: flags & libc::MSG_MORE != 0, urgent: flags & libc::MSG_OOB != 0 };
    let (mut sent, mut unattended) = (0, false);
    let ended = until_or_partly(stack, state, id, manner, |state| {
        match state.connection(id).map(|connection| connection.state()) {
            Some(TcpState::SynSent | TcpState::SynReceived) => return Step::Nothing,
            // The peer sends no more. If it has closed, what came after that was answered by a reset.
            Some(TcpState::CloseWait) => looks = true,
            _ => {}
        }
        if core::mem::take(&mut looks) {
            state.poll();
        }
        if sent > 0 && has_failed(state, id) {
            // The next call tells why; asking here would use that up.
            return Step::Done(Err(libc::EPIPE));
        }
        let queued = state.stream_send(id, data, sent, engine_flags);
        unattended |= state.take_unattended();
        match queued {
            None => return Step::Done(Err(libc::EPIPE)),
            Some(Err(error)) => return Step::Done(Err(errno(error))),
            Some(Ok(Copied { bytes, fault })) => {
                count_sent(state, id, bytes);
                sent += bytes;
                if fault {
                    return Step::Done(Err(libc::EFAULT));
                }
            }
        }
        match sent {
            _ if sent == total => Step::Done(Ok(())),
            0 => Step::Nothing,
            _ => Step::Part,
        }
    });
    if unattended {
        // Without the lock, or it would find that taken.
        stack.wake_internal_thread();
    }
    outcome(stack, id, ended, sent)
}

/// What a call that has sent so many bytes returns. They count now, an error on the next call.
pub(super) fn outcome(
    stack: &Stack,
    id: SocketId,
    ended: Result<Result<(), i32>, Ended>,
    sent: usize,
) -> Outcome<usize> {
    match ended {
        Ok(Ok(())) => Outcome::Ours(sent),
        _ if sent > 0 => Outcome::Ours(sent),
        Ok(Err(errno)) => failed(stack, id, Call::Send, errno),
        Err(Ended::Departed) => Outcome::Os(WhyOs::Passed),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}

/// Will the next call report an error? A call that has done something stops ahead of it.
pub fn is_failed(stack: &Stack, id: SocketId) -> bool {
    stack.shard.lock().is_ok_and(|mut state| has_failed(&mut state, id))
}

fn has_failed(state: &mut Guard<'_>, id: SocketId) -> bool {
    match state.connection(id) {
        Some(connection) => connection.has_error(),
        None => state.pipe(id).is_some_and(|pipe| pipe.is_reset()),
    }
}

/// How much a send call would take now; waits until that is something.
pub fn wait_for_room(stack: &Stack, id: SocketId) -> Outcome<usize> {
    let blocking = {
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
        let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
        if matches!(view.phase, Phase::Fresh | Phase::Listening { .. }) {
            return Outcome::Os(WhyOs::Unbound);
        }
        if view.has_pipe {
            drop(state);
            return local::send::wait_for_room(stack, id, view.nonblocking);
        }
        !view.nonblocking
    };
    let manner = Manner { blocking, timeout: None, watches: Watches::Nothing, call: Call::Other };
    let ended = until(stack, id, manner, |state| {
        let Some(connection) = state.connection(id) else { return Some(Err(libc::EPIPE)) };
        if matches!(connection.state(), TcpState::SynSent | TcpState::SynReceived) {
            return None;
        }
        if let Err(error) = connection.may_write() {
            return Some(Err(errno(error)));
        }
        let room = connection.send_room();
        (room > 0).then_some(Ok(room))
    });
    match ended {
        Ok(Ok(room)) => Outcome::Ours(room),
        Ok(Err(errno)) => Outcome::Errno(errno),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}

fn count_sent(state: &mut Guard<'_>, id: SocketId, sent: usize) {
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.tx_bytes += sent as u64;
    }
}

#[cfg(test)]
mod tests;
