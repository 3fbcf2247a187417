//! recv() and its kin: bytes from the receive queue into the program's buffers, copied once.

use std::io::IoSliceMut;

use libvma_engine::tcp::State as TcpState;

use super::wait::{Call, Ended, Manner, Step, Watches, failed, until, until_or_partly};
use super::{Guard, Outcome, Phase, Stack, Stream, WhyOs, errno, local, pending_error, view};
use crate::shard::SocketId;
use crate::shard::tcp::Taken;
use crate::socket::filter::{self, Judgement};
use crate::sys::user;

/// One receive call.
pub fn receive(
    stack: &Stack,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> Outcome<usize> {
    let room = buffers.iter().map(|buffer| buffer.len()).sum();
    if stack.extra.callbacks.are_any() {
        return receive_judged(stack, id, buffers, room, flags);
    }
    receive_up_to(stack, id, buffers, room, flags)
}

/// One receive call whose bytes are thrown away (MSG_TRUNC).
pub fn discard(stack: &Stack, id: SocketId, room: usize, flags: i32) -> Outcome<usize> {
    match stack.extra.callbacks.are_any() {
        true => receive_judged(stack, id, &mut [], room, flags),
        false => receive_up_to(stack, id, &mut [], room, flags),
    }
}

/// As [`receive_up_to`], if any socket has a receive callback: that of this one is asked first.
#[cold]
fn receive_judged(
    stack: &Stack,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    room: usize,
    flags: i32,
) -> Outcome<usize> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Neither is among the bytes that are judged, nor waits for them.
        return receive_up_to(stack, id, buffers, room, flags);
    }
    if let Ok(mut state) = stack.shard.lock() {
        filter::forget_held_news(&mut state, id);
    }
    filter::judge(stack);
    let (withholds, manner) = {
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
        let Some((endpoint, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
        let Some(stream) = &socket.stream else { return Outcome::Os(WhyOs::NotOurs) };
        let withholds = is_withheld(stream);
        if stream.judgement == Judgement::None {
            drop(state);
            return receive_up_to(stack, id, buffers, room, flags);
        }
        let watches = match endpoint.has_pipe() {
            true => Watches::Pipe { writing: false },
            false => Watches::Nothing,
        };
        let blocking = !socket.nonblocking && flags & libc::MSG_DONTWAIT == 0;
        let timeout = socket.options.receive_timeout;
        let manner = Manner { blocking, timeout, watches, call: Call::Receive };
        (withholds, manner)
    };
    if withholds {
        let passed = until(stack, id, manner, |state| {
            let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
            stream.is_none_or(|stream| !stream.judgement.withholds()).then_some(())
        });
        match passed {
            Ok(()) => {}
            Err(Ended::Departed) => return Outcome::Os(WhyOs::Passed),
            Err(ended) => return Outcome::Errno(ended.errno()),
        }
    }
    let outcome = receive_up_to(stack, id, buffers, room, flags);
    filter::after_read(stack, id);
    outcome
}

/// Reads for the receive callback of the socket, past [`Judgement::withholds`] and the program's SO_RCVLOWAT and
/// SO_PEEK_OFF. Takes what is there, and no error: that is for the program. With MSG_TRUNC so many bytes are thrown away.
#[cold]
pub fn read_as_judge(
    stack: &Stack,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    room: usize,
    flags: i32,
) -> usize {
    let Ok(mut state) = stack.shard.lock() else { return 0 };
    let Some(view) = view(&mut state, id) else { return 0 };
    if view.has_pipe {
        let flags = flags | libc::MSG_DONTWAIT;
        let whole = (buffers, room);
        return match local::receive::receive(stack, state, id, &view, whole, flags, Reader::Judge) {
            Outcome::Ours(len) => len,
            Outcome::Errno(_) | Outcome::Os(_) => 0,
        };
    }
    if state.connection(id).is_none() {
        return 0;
    }
    // The buffer is ours, and there.
    let count = read(&mut state, id, buffers, (0, 0), room, flags).unwrap_or(0);
    if flags & libc::MSG_PEEK == 0 {
        count_received(&mut state, id, count);
    }
    count
}

/// The reader of a stream's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Program,
    /// The receive callback's: the bytes are withheld for it.
    Judge,
}

/// Has the receive callback to judge first what there is? Of a stream that is neither connected nor about to be there is only
/// an error to tell.
fn is_withheld(stream: &Stream) -> bool {
    let connected = matches!(stream.phase, Phase::Connecting | Phase::Connected);
    connected && stream.judgement.withholds()
}

/// For each look of a call: another thread may judge what has come since the last one.
#[inline]
pub fn withholds(state: &mut Guard<'_>, id: SocketId) -> bool {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    stream.is_some_and(|stream| is_withheld(stream))
}

/// As [`receive`]; with MSG_TRUNC the bytes are thrown away, and need no buffers.
fn receive_up_to(
    stack: &Stack,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    room: usize,
    flags: i32,
) -> Outcome<usize> {
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Os(WhyOs::Reentered) };
    let Some(view) = view(&mut state, id) else { return Outcome::Os(WhyOs::NotOurs) };
    if matches!(view.phase, Phase::Fresh | Phase::Listening { .. }) {
        return pending_error(&mut state, id).map_or(Outcome::Os(WhyOs::Unbound), Outcome::Errno);
    }
    if view.has_pipe {
        let whole = (buffers, room);
        return local::receive::receive(stack, state, id, &view, whole, flags, Reader::Program);
    }
    let Some((_, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    let timeout = socket.options.receive_timeout;
    let stream = socket.stream.as_ref();
    let low_water = stream.map_or(1, |stream| stream.low_water as usize);
    let peek_offset = stream.and_then(|stream| stream.peek_offset);
    let blocking = !view.nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let manner = Manner { blocking, timeout, watches: Watches::Nothing, call: Call::Receive };
    if flags & libc::MSG_ERRQUEUE != 0 {
        // Nothing of ours puts anything there.
        return Outcome::Errno(libc::EAGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        return urgent(state, id, buffers, flags);
    }
    // How much ends the wait (SO_RCVLOWAT, MSG_WAITALL).
    let target = match flags & libc::MSG_WAITALL {
        0 => low_water.min(room).max(1),
        _ => room.max(1),
    };
    // A call with no room waits all the same, for something to be there.
    let plain = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0 && room > 0;
    let mut copied = 0;
    let start = peek_offset.unwrap_or(0) as usize;
    let ended = until_or_partly(stack, state, id, manner, |state| {
        if stack.extra.callbacks.are_any() && withholds(state, id) {
            return if copied == 0 { Step::Nothing } else { Step::Part };
        }
        // Nearly always one short look is all: nothing yet, or one whole segment.
        if plain
            && copied == 0
            && let Some(buffer) = buffers.first_mut()
        {
            match state.stream_take(id, buffer, target) {
                Taken::Nothing => return Step::Nothing,
                Taken::All(count) => {
                    copied = count;
                    return Step::Done(Ok(()));
                }
                Taken::Unusual => {}
            }
        }
        look(state, id, buffers, &mut copied, &Wanted { start, target, room, flags })
    });
    if copied > 0 && peek_offset.is_some() {
        move_peek_offset(stack, id, copied, flags & libc::MSG_PEEK != 0);
    }
    match ended {
        Ok(Ok(())) => Outcome::Ours(copied),
        _ if copied > 0 => Outcome::Ours(copied),
        Ok(Err(errno)) => failed(stack, id, Call::Receive, errno),
        Err(Ended::Departed) => Outcome::Os(WhyOs::Passed),
        // It has waited, and got all that it wanted.
        Err(Ended::TimedOut | Ended::Interrupted) if room == 0 => Outcome::Ours(0),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}

/// The wishes of a receive call.
struct Wanted {
    /// Behind so many bytes of the queue (SO_PEEK_OFF).
    start: usize,
    /// So many bytes end the wait (SO_RCVLOWAT, MSG_WAITALL).
    target: usize,
    /// And so many at the most.
    room: usize,
    flags: i32,
}

/// One look of any receive call, which may have a part already.
fn look(
    state: &mut Guard<'_>,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    copied: &mut usize,
    &Wanted { start, target, room, flags }: &Wanted,
) -> Step<Result<(), i32>> {
    let idle = state.connection(id).is_some_and(|connection| {
        connection.queued() == 0 && !connection.is_at_end() && !connection.has_error()
    });
    if idle && room > 0 {
        return if *copied == 0 { Step::Nothing } else { Step::Part };
    }
    note_waiting(state, id);
    let Some(count) = read(state, id, buffers, (start, *copied), room, flags) else {
        return Step::Done(Err(libc::EFAULT));
    };
    *copied += count;
    if flags & libc::MSG_PEEK == 0 {
        count_received(state, id, count);
    }
    if *copied >= target {
        return Step::Done(Ok(()));
    }
    let Some(connection) = state.connection(id) else {
        return Step::Done(Err(libc::ENOTCONN));
    };
    // A call with no room waits all the same.
    let full = room == 0 && connection.queued() > 0;
    if connection.is_at_end() || full {
        return Step::Done(Ok(()));
    }
    let peeked = flags & libc::MSG_PEEK != 0
        && (connection.is_receiving_ended() || connection.bytes_to_mark().is_some())
        && start + *copied >= connection.readable() as usize;
    if *copied > 0 && (connection.has_error() || connection.is_at_hidden_mark() || peeked) {
        // These bytes are told now, the error by the next call.
        return Step::Done(Ok(()));
    }
    if let Some(error) = connection.take_error() {
        return Step::Done(Err(errno(error)));
    }
    match *copied {
        // After an error that was told already.
        _ if connection.state() == TcpState::Closed => Step::Done(Ok(())),
        0 => Step::Nothing,
        _ => Step::Part,
    }
}

/// Takes what there is; returns how much. None: the buffers are no memory that can be written.
fn read(
    state: &mut Guard<'_>,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    (start, copied): (usize, usize),
    room: usize,
    flags: i32,
) -> Option<usize> {
    let peek = flags & libc::MSG_PEEK != 0;
    if let Some(connection) = state.connection(id)
        && connection.is_at_hidden_mark()
        && connection.queued() > 0
    {
        if copied > 0 {
            // A read does not cross the mark.
            return Some(0);
        }
        if !peek {
            state.stream_consume(id, 1);
        }
    }
    if flags & libc::MSG_TRUNC != 0 {
        // tcp(7): the bytes are thrown away.
        let from = if peek { start + copied } else { 0 };
        let there = state.connection(id).map_or(0, |connection| connection.readable() as usize);
        let len = there.saturating_sub(from).min(room - copied);
        if len > 0 && !peek {
            state.stream_consume(id, len);
        }
        return Some(len);
    }
    let from = peek.then_some(start + copied);
    match state.connection(id) {
        Some(_) => state.stream_read(id, buffers, copied, from),
        None => Some(0),
    }
}

/// The urgent byte (MSG_OOB), as Linux's tcp_recv_urg().
fn urgent(
    mut state: Guard<'_>,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    flags: i32,
) -> Outcome<usize> {
    state.poll();
    let Some(connection) = state.connection(id) else { return Outcome::Errno(libc::EINVAL) };
    let inline = connection.settings().urgent_inline;
    if inline || !connection.has_urgent() {
        return Outcome::Errno(libc::EINVAL);
    }
    let ended = connection.is_at_end();
    let Some(distance) = connection.bytes_to_mark() else { return Outcome::Errno(libc::EINVAL) };
    match state.stream_byte_at(id, distance as usize) {
        Some(byte) => {
            if flags & libc::MSG_PEEK == 0
                && let Some(connection) = state.connection(id)
            {
                connection.take_urgent();
            }
            if !user::all_take(buffers, 0, 1) {
                // It is taken all the same.
                return Outcome::Errno(libc::EFAULT);
            }
            let place = buffers.iter_mut().find_map(|buffer| buffer.first_mut());
            Outcome::Ours(usize::from(place.map(|place| *place = byte).is_some()))
        }
        None if ended => Outcome::Ours(0),
        // It was announced but has not arrived.
        None => Outcome::Errno(libc::EAGAIN),
    }
}

/// SO_PEEK_OFF: peeking goes on where it stopped, reading takes what is before it.
fn move_peek_offset(stack: &Stack, id: SocketId, copied: usize, peeked: bool) {
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
        && let Some(stream) = socket.stream.as_mut()
        && let Some(offset) = &mut stream.peek_offset
    {
        let copied = u32::try_from(copied).unwrap_or(u32::MAX);
        *offset =
            if peeked { offset.saturating_add(copied) } else { offset.saturating_sub(copied) };
    }
}

/// What waits grows until it is read: the most of it is seen here.
fn note_waiting(state: &mut Guard<'_>, id: SocketId) {
    let waiting = state.connection(id).map_or(0, |connection| connection.queued());
    if let Some((endpoint, _)) = state.socket(id) {
        let most = &mut endpoint.counters.rx_ready_bytes_max;
        *most = waiting.max(*most);
    }
}

fn count_received(state: &mut Guard<'_>, id: SocketId, copied: usize) {
    if let Some((endpoint, _)) = state.socket(id) {
        let counters = &mut endpoint.counters;
        counters.rx_bytes += copied as u64;
        counters.rx_poll_hits += u64::from(copied > 0);
    }
}

#[cfg(test)]
mod tests;
