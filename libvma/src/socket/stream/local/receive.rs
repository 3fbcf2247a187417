//! recv() and its kin: from the pipe, or from the kernel where it is its turn.

use std::io::IoSliceMut;

use super::super::receive::{Reader, withholds};
use super::super::wait::{Call, Ended, Manner, Step, Watches, failed, until_or_partly};
use super::super::{Guard, Outcome, Stack, View, WhyOs};
use super::{Shard, shadow};
use crate::shard::pipe::{Pipe, Turn};
use crate::shard::{Direction, SocketId};
use crate::sys::wait::{PollFd, ppoll};
use crate::sys::{cancel, user};

/// What one look came to.
enum Look {
    Took(usize),
    Nothing,
    /// What comes next is somewhere else now.
    Again,
    End,
    Failed(i32),
    /// The buffers are no memory that can be written. Nothing was taken.
    NoMemory,
}

/// Where the bytes go.
struct Target<'a, 'b> {
    buffers: &'a mut [IoSliceMut<'b>],
    room: usize,
    copied: usize,
    flags: i32,
}

impl Target<'_, '_> {
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    fn discards(&self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }
}

/// One receive call. `room` is how much it takes, whether there are buffers for it or not
/// (MSG_TRUNC).
pub fn receive(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    view: &View,
    (buffers, room): (&mut [IoSliceMut<'_>], usize),
    flags: i32,
    reader: Reader,
) -> Outcome<usize> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // What there is of either is the kernel's.
        return Outcome::Os(WhyOs::Arguments);
    }
    let Some((_, socket)) = state.socket(id) else { return Outcome::Os(WhyOs::NotOurs) };
    let timeout = socket.options.receive_timeout;
    let low_water = socket.stream.as_ref().map_or(1, |stream| stream.low_water);
    let low_water = (low_water as usize).min(super::MOST_LOW_WATER);
    let blocking = !view.nonblocking && flags & libc::MSG_DONTWAIT == 0;
    let (watches, call) = (Watches::Pipe { writing: false }, Call::Receive);
    let manner = Manner { blocking, timeout, watches, call };
    // How much ends the wait (SO_RCVLOWAT, MSG_WAITALL).
    let enough = match flags & libc::MSG_WAITALL {
        0 => low_water.min(room).max(1),
        _ => room.max(1),
    };
    state.use_pipe(id);
    if state.pipe(id).is_some_and(|pipe| pipe.turn() != Turn::Pipe) {
        state.poll();
    }
    let mut target = Target { buffers, room, copied: 0, flags };
    let by = (reader, view.shadow);
    let mut ended = fill(stack, state, id, manner, by, (&mut target, enough));
    let is_empty = target.copied == 0 && room > 0;
    if ended == Err(Ended::WouldBlock) && is_empty && reader == Reader::Program {
        ended = fill_with_given(stack, id, manner, by, (&mut target, enough));
    }
    if ended == Err(Ended::Departed) && target.copied > 0 && !target.peeks() {
        go_on_by_kernel(view.shadow, &mut target, enough);
    }
    let copied = target.copied;
    match ended {
        Ok(Ok(())) => Outcome::Ours(copied),
        _ if copied > 0 => Outcome::Ours(copied),
        Ok(Err(errno)) => failed(stack, id, Call::Receive, errno),
        Err(Ended::Departed) => Outcome::Os(WhyOs::Passed),
        Err(Ended::TimedOut | Ended::Interrupted) if room == 0 => Outcome::Ours(0),
        Err(ended) => Outcome::Errno(ended.errno()),
    }
}

/// Takes bytes until there are enough for the call.
#[inline]
fn fill(
    stack: &Stack,
    state: Guard<'_>,
    id: SocketId,
    manner: Manner,
    (reader, shadow): (Reader, i32),
    (target, enough): (&mut Target<'_, '_>, usize),
) -> Result<Result<(), i32>, Ended> {
    let mut polls = 0u32;
    until_or_partly(stack, state, id, manner, |state| {
        if reader == Reader::Program && stack.extra.callbacks.are_any() && withholds(state, id) {
            return if target.copied == 0 { Step::Nothing } else { Step::Part };
        }
        polls = polls.wrapping_add(1);
        loop {
            if target.peeks() {
                target.copied = 0;
                gather(state, id, shadow);
            }
            match look(state, id, target, polls) {
                Look::Took(count) => {
                    target.copied += count;
                    let all = target.copied == target.room
                        || is_at_kernel(state, id)
                            && (target.copied >= enough || has_urgent(state, id));
                    if all || target.peeks() && target.copied >= enough {
                        return Step::Done(Ok(()));
                    }
                    if target.peeks() {
                        let ended = state.pipe(id).is_none_or(|pipe| pipe.is_finished());
                        return if ended { Step::Done(Ok(())) } else { Step::Part };
                    }
                }
                Look::Again => {}
                Look::End => return Step::Done(Ok(())),
                Look::NoMemory => return Step::Done(Err(libc::EFAULT)),
                Look::Failed(errno) => {
                    if target.copied > 0 || reader == Reader::Judge {
                        // The next call tells of it.
                        match state.pipe(id) {
                            Some(pipe) if errno == libc::ECONNRESET => pipe.keep_reset(),
                            _ => super::keep_error(state, id, errno),
                        }
                    }
                    return Step::Done(Err(errno));
                }
                Look::Nothing if target.copied >= enough => return Step::Done(Ok(())),
                Look::Nothing if target.copied == 0 => return Step::Nothing,
                Look::Nothing => return Step::Part,
            }
        }
    })
}

/// How long a call waits for bytes that have been given back.
pub(super) const GIVEN_NANOS: u64 = 100_000_000;

/// The program may have been told of bytes that its end has given back since then. They are about to come again, by the
/// kernel: a call that must not wait takes them all the same, as on Linux, where they would still be here.
#[cold]
fn fill_with_given(
    stack: &Stack,
    id: SocketId,
    manner: Manner,
    by: (Reader, i32),
    to: (&mut Target<'_, '_>, usize),
) -> Result<Result<(), i32>, Ended> {
    let Ok(mut state) = stack.shard.lock() else { return Err(Ended::Reentered) };
    let may_wait = |pipe: &mut Pipe| pipe.lacks_bytes() && !pipe.is_dead() && pipe.may_wait();
    if !state.pipe(id).is_some_and(may_wait) {
        return Err(Ended::WouldBlock);
    }
    let manner = Manner { blocking: true, timeout: Some(GIVEN_NANOS), ..manner };
    match fill(stack, state, id, manner, by, to) {
        Err(Ended::TimedOut) => {
            // The peer is stopped, perhaps: a program that looks at many connections is not held up again.
            if let Ok(mut state) = stack.shard.lock()
                && let Some(pipe) = state.pipe(id)
            {
                pipe.note_wait_in_vain();
            }
            Err(Ended::WouldBlock)
        }
        Err(Ended::Interrupted) => Err(Ended::WouldBlock),
        ended => ended,
    }
}

/// Each look that peeks sees everything from the first byte on, in one queue.
fn gather(state: &mut Shard, id: SocketId, shadow: i32) {
    super::attend_to_shadow(state, id);
    if state.pipe(id).is_some_and(|pipe| pipe.has_bytes_behind()) {
        super::prefetch(state, id, shadow);
    }
}

/// A read does not cross the mark of an urgent byte, however much it wants.
fn has_urgent(state: &mut Shard, id: SocketId) -> bool {
    let descriptor = state.socket(id).map_or(-1, |(_, socket)| socket.shadow());
    shadow::events(descriptor) & libc::POLLPRI != 0
}

/// There a second look could take an error, or cross an urgent mark.
fn is_at_kernel(state: &mut Shard, id: SocketId) -> bool {
    state.pipe(id).is_some_and(|pipe| matches!(pipe.turn(), Turn::Kernel { .. }))
}

/// Takes what there is now.
#[inline]
fn look(state: &mut Shard, id: SocketId, target: &mut Target<'_, '_>, polls: u32) -> Look {
    let Some(pipe) = state.pipe(id) else { return Look::Failed(libc::ENOTCONN) };
    match pipe.turn() {
        Turn::Pipe => {
            let there = pipe.readable();
            if there > 0 {
                let count = there.min(target.room - target.copied);
                if !target.discards() && !user::all_take(target.buffers, target.copied, count) {
                    return Look::NoMemory;
                }
                return Look::Took(take(state, id, target, there));
            }
            look_beside(state, id)
        }
        Turn::Kernel { most } => look_at_kernel(state, id, target, most, polls),
        Turn::End => super::take_kept(state, id).map_or(Look::End, Look::Failed),
    }
}

#[inline]
fn take(state: &mut Shard, id: SocketId, target: &mut Target<'_, '_>, there: usize) -> usize {
    let count = if target.discards() {
        let count = there.min(target.room - target.copied);
        if !target.peeks() {
            state.pipe_discard(id, count);
        }
        count
    } else {
        let peek = target.peeks().then_some(target.copied);
        let count = state.pipe_read(id, target.buffers, target.copied, peek);
        if state.is_captured() && peek.is_none() {
            let pieces = target.buffers.iter().map(|buffer| &buffer[..]);
            super::capture(state, id, Direction::In, pieces, target.copied, count);
        }
        count
    };
    if let Some((endpoint, _)) = state.socket(id)
        && !target.peeks()
    {
        let counters = &mut endpoint.counters;
        counters.rx_bytes += count as u64;
        counters.rx_poll_hits += 1;
        // What waits grows until it is read: the most of it is seen here.
        counters.rx_ready_bytes_max = counters.rx_ready_bytes_max.max(there as u32);
    }
    count
}

/// The pipe has nothing: has something else happened?
#[inline]
fn look_beside(state: &mut Shard, id: SocketId) -> Look {
    let Some((_, socket)) = state.socket(id) else { return Look::Nothing };
    let shut = socket.stream.as_ref().is_some_and(|stream| stream.reading_shut);
    if socket.order.may_be_readable() {
        super::attend_to_shadow(state, id);
        if state.pipe(id).is_some_and(|pipe| matches!(pipe.turn(), Turn::Kernel { .. })) {
            return Look::Again;
        }
    }
    if shut { Look::End } else { Look::Nothing }
}

/// Between looks at the kernel's socket that nothing gives reason for.
const STRIDE: u32 = 64;

#[cold]
fn look_at_kernel(
    state: &mut Shard,
    id: SocketId,
    target: &mut Target<'_, '_>,
    most: u64,
    polls: u32,
) -> Look {
    super::flush(state, id);
    super::settle_handshake(state, id);
    if let Some(errno) = super::take_kept(state, id) {
        return Look::Failed(errno);
    }
    let Some((_, socket)) = state.socket(id) else { return Look::Nothing };
    if polls > 2 && !polls.is_multiple_of(STRIDE) && !socket.order.may_be_readable() {
        return Look::Nothing;
    }
    let descriptor = socket.shadow();
    let most = match before_switch(state, id, descriptor, most) {
        Ok(most) => most,
        Err(look) => return look,
    };
    match receive_from_kernel(descriptor, target, most) {
        Ok(0) if target.room > target.copied => {
            // An end counts when all that came before it by the link has been seen.
            end_of_kernel(state, id, Look::End)
        }
        Ok(count) if target.peeks() => {
            // What comes behind it is in the pipe.
            match count as u64 == most && !target.discards() {
                true => peek_behind(state, id, target, count),
                false => Look::Took(count),
            }
        }
        Ok(count) => {
            if let Some(pipe) = state.pipe(id) {
                pipe.kernel_read(count as u64);
            }
            if let Some((endpoint, _)) = state.socket(id) {
                endpoint.counters.rx_os_packets += 1;
                endpoint.counters.rx_os_bytes += count as u64;
            }
            Look::Took(count)
        }
        Err(libc::EAGAIN) => {
            if let Some((_, socket)) = state.socket(id) {
                socket.order.note_empty();
            }
            Look::Nothing
        }
        Err(libc::EFAULT) => Look::NoMemory,
        Err(errno) => end_of_kernel(state, id, Look::Failed(errno)),
    }
}

/// Peeks at what comes in the pipe behind so many of the kernel's bytes.
fn peek_behind(state: &mut Shard, id: SocketId, target: &mut Target<'_, '_>, count: usize) -> Look {
    let there = state.pipe(id).map_or(0, |pipe| pipe.readable());
    let behind = there.min(target.room.saturating_sub(count));
    if behind > 0 && !user::all_take(target.buffers, count, behind) {
        return Look::NoMemory;
    }
    Look::Took(count + state.pipe_read(id, target.buffers, count, Some(0)))
}

/// How much may be read from the kernel's socket while the peer has not said where the kernel's bytes end.
fn before_switch(state: &mut Shard, id: SocketId, descriptor: i32, most: u64) -> Result<u64, Look> {
    let is_early = |state: &mut Shard| state.pipe(id).is_some_and(|pipe| pipe.may_have_switched());
    if !is_early(state) {
        return Ok(most);
    }
    let mut there = shadow::unread(descriptor);
    if there == 0 {
        let ended = shadow::is_at_end(descriptor);
        if !ended {
            if let Some((_, socket)) = state.socket(id) {
                socket.order.note_empty();
            }
            return Err(Look::Nothing);
        }
        // No more can come.
        there = shadow::unread(descriptor);
    }
    if !state.catch_up() {
        return Err(Look::Nothing);
    }
    match is_early(state) {
        true if there == 0 => Ok(most),
        true => Ok(most.min(there)),
        false => Err(Look::Again),
    }
}

fn end_of_kernel(state: &mut Shard, id: SocketId, end: Look) -> Look {
    state.catch_up();
    let reading_shut = state
        .socket(id)
        .and_then(|(_, socket)| socket.stream.as_ref())
        .is_some_and(|stream| stream.reading_shut);
    let Some(pipe) = state.pipe(id) else { return end };
    if matches!(pipe.turn(), Turn::Kernel { .. }) {
        if matches!(end, Look::End) && pipe.lacks_bytes() && !reading_shut {
            pipe.note_loss();
            return Look::Again;
        }
        return match end {
            Look::Failed(libc::ECONNRESET) => {
                pipe.tell_kernels_reset().map_or(Look::End, Look::Failed)
            }
            end => end,
        };
    }
    // It is the pipe's turn after all.
    if let Look::Failed(errno) = end {
        // The kernel tells of an error once.
        super::keep_error(state, id, errno);
    }
    Look::Again
}

const LOOK_AROUND_NANOS: u64 = 50_000_000;

/// The socket became the kernel's in the middle of a call that wants more (MSG_WAITALL).
#[cold]
fn go_on_by_kernel(descriptor: i32, target: &mut Target<'_, '_>, enough: usize) {
    while target.copied < enough {
        if shadow::unread(descriptor) == 0 && shadow::events(descriptor) & libc::POLLERR != 0 {
            // The next call tells of it.
            return;
        }
        match receive_from_kernel(descriptor, target, u64::MAX) {
            Ok(0) => return,
            Ok(count) => target.copied += count,
            Err(libc::EAGAIN) => {
                let mut wait = [PollFd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
                // Not for ever at once: nobody wakes it when its thread is cancelled.
                if ppoll(&mut wait, Some(LOOK_AROUND_NANOS), None).is_err() || cancel::is_due() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Reads into the buffers from `copied` on.
fn receive_from_kernel(
    descriptor: i32,
    target: &mut Target<'_, '_>,
    most: u64,
) -> Result<usize, i32> {
    if target.room == 0 {
        // It waits all the same.
        let there = shadow::events(descriptor) & libc::POLLIN != 0;
        return if there { Ok(0) } else { Err(libc::EAGAIN) };
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let flags = target.flags & libc::MSG_PEEK;
    let left = most.min(target.room - target.copied);
    if target.discards() {
        let mut scratch = [0u8; 16 * 1024];
        let len = left.min(scratch.len());
        return shadow::receive(descriptor, scratch.get_mut(..len).unwrap_or_default(), flags);
    }
    let mut skip = target.copied;
    let mut got = 0;
    for buffer in target.buffers.iter_mut() {
        let here = skip.min(buffer.len());
        skip -= here;
        let Some(room) = buffer.get_mut(here..).filter(|room| !room.is_empty()) else { continue };
        let len = room.len().min(left - got);
        let room = room.get_mut(..len).unwrap_or_default();
        if got > 0 && shadow::unread(descriptor) == 0 {
            // A look would take an error that the next call is to tell of.
            break;
        }
        match shadow::receive(descriptor, room, flags) {
            Ok(count) => {
                got += count;
                // A second look would see the same bytes again.
                if count < len || got == left || flags != 0 {
                    break;
                }
            }
            Err(errno) if got == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(got)
}
