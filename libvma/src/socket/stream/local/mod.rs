//! TCP sockets whose peer is a process of this host that has the library, too: the kernel has the
//! connection, a pipe (`shard::pipe`) has the bytes.
//!
//! `connect` and `accept` are the two ways to a pipe, `send` and `receive` move bytes through it or,
//! where it is the kernel's turn, through the shadow; `ready` is what poll(2) sees; `end` is
//! shutdown, close, and giving the connection back, `half` the kernel's half of it where the socket is closed; `shadow` asks the kernel.
//!
//! The shadow is a connected socket here. It has bytes before the pipe is agreed upon and after it
//! is given up, and it tells when the peer dies. Until then its ends stay open: what the program
//! shuts down is told by the pipe, and told to the kernel when the pipe is given up.

pub mod accept;
pub mod connect;
pub mod end;
pub mod half;
mod promise;
pub mod ready;
pub mod receive;
pub mod send;
mod shadow;

use super::Stack;
use crate::shard::pipe::{LARGEST_WINDOW, Turn, Way};
use crate::shard::{self, Direction, SocketId};
use crate::socket::Socket;
use crate::sys::loopback_end;

type Shard = shard::State<Socket>;

/// Does the socket have a pipe?
#[inline]
pub fn has_pipe(state: &mut Shard, id: SocketId) -> bool {
    state.pipe(id).is_some()
}

/// Is its peer a process of this host that has the library?
pub fn is_local(stack: &Stack, id: SocketId) -> bool {
    stack.shard.lock().is_ok_and(|mut state| has_pipe(&mut state, id))
}

/// No reader waits for more than may lie unread.
const MOST_LOW_WATER: usize = LARGEST_WINDOW as usize / 2;

/// How much the program lets lie unread: all that there may be, unless it has set SO_RCVBUF.
fn limit(socket: &Socket) -> u64 {
    let buffer = socket.stream.as_ref().map(|stream| stream.settings.receive_buffer);
    match buffer {
        // The settings have half of what the kernel says.
        Some(buffer) if !buffer.automatic => u64::from(buffer.limit) * 2,
        _ => LARGEST_WINDOW,
    }
}

/// SO_RCVBUF was set.
pub fn after_buffer_change(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some(limit) = state.socket(id).map(|(_, socket)| limit(socket)) else { return };
    state.limit_pipe(id, limit);
}

/// A sleep of a call that reads or writes: what the shadow may wake it for; None if nothing.
pub(super) fn wakes(state: &mut Shard, id: SocketId, writing: bool) -> Option<(i32, i16)> {
    let shadow = state.socket(id)?.1.shadow();
    let pipe = state.pipe(id)?;
    let events = match writing {
        true if matches!(pipe.way(), Way::Kernel) || !pipe.backlog().is_empty() => libc::POLLOUT,
        false if matches!(pipe.turn(), Turn::Kernel { .. }) => libc::POLLIN,
        // Bytes that the peer has not told of: the link was full.
        false if pipe.would_tell_its_end() => libc::POLLIN | libc::POLLRDHUP,
        _ if pipe.would_tell_its_end() => libc::POLLRDHUP,
        // Errors are told in any case.
        _ => 0,
    };
    Some((shadow, events))
}

/// A handshake that is under way: has it ended well meanwhile?
fn settle_handshake(state: &mut Shard, id: SocketId) {
    let Some(descriptor) = state.socket(id).map(|(_, socket)| socket.shadow()) else { return };
    if let Some(pipe) = state.pipe(id)
        && !pipe.is_established()
        && shadow::is_connected(descriptor)
    {
        establish(state, id);
    }
}

/// The client's handshake has ended well.
fn establish(state: &mut Shard, id: SocketId) {
    let Some(pipe) = state.pipe(id) else { return };
    if !pipe.is_established() {
        pipe.set_established();
        // The shadow tells of it as well, but of a fresh connection that is no news.
        state.announce_change(id);
    }
}

/// Is it connected, or was it?
pub fn is_established(state: &mut Shard, id: SocketId) -> bool {
    settle_handshake(state, id);
    state.pipe(id).is_some_and(|pipe| pipe.is_established())
}

/// Is it connected, and has the program sent nothing yet? That the kernel's socket has room is no news then: it has some
/// when the connection is made, and whoever waits for edges would be told twice. Later it may be what a refused send
/// waits for.
pub fn is_fresh(state: &mut Shard, id: SocketId) -> bool {
    let is_connected = is_established(state, id)
        && state.pipe(id).is_some_and(|pipe| matches!(pipe.way(), Way::Pipe | Way::Kernel));
    is_connected
        && state.socket(id).is_some_and(|(endpoint, _)| {
            let sent = &endpoint.counters;
            let was_refused = sent.tx_eagain != 0
                || sent.tx_os_eagain != 0
                || sent.tx_errors != 0
                || sent.tx_os_errors != 0;
            sent.tx_packets == 0 && sent.tx_os_packets == 0 && !was_refused
        })
}

/// The shadow may have something to tell while the pipe is in use: the end of a peer that had no
/// time to say so. What it sent before is in the link.
fn attend_to_shadow(state: &mut Shard, id: SocketId) {
    let Some((_, socket)) = state.socket(id) else { return };
    if !socket.order.may_be_readable() {
        return;
    }
    let descriptor = socket.shadow();
    let is_alive = |state: &mut Shard| state.pipe(id).is_some_and(|pipe| pipe.would_tell_its_end());
    if !is_alive(state) {
        return;
    }
    if let Some((_, socket)) = state.socket(id) {
        socket.order.note_empty();
    }
    find_bytes(state, id, descriptor);
    if shadow::is_at_end(descriptor) {
        // If not all of the link has been taken, another look will tell.
        if state.catch_up() && is_alive(state) {
            state.cut_pipe(id);
        }
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
        }
    }
}

/// Has the kernel's socket bytes that the peer sent because the link was full, and has not told of yet? They
/// come after what is in the link.
fn find_bytes(state: &mut Shard, id: SocketId, descriptor: i32) {
    let there = shadow::unread(descriptor);
    if there == 0 {
        return;
    }
    if !state.catch_up() {
        // Not all of it has been taken: another look will tell.
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
        }
        return;
    }
    if let Some(pipe) = state.pipe(id) {
        pipe.find_bytes(there);
    }
}

/// Reads the kernel's bytes between those of the pipe, so that all are in one queue.
#[cold]
fn prefetch(state: &mut Shard, id: SocketId, descriptor: i32) {
    let mut failed = None;
    if let Some(pipe) = state.pipe(id) {
        pipe.prefetch(|room| match shadow::receive(descriptor, room, 0) {
            Ok(count) => count,
            Err(errno) => {
                failed = Some(errno);
                0
            }
        });
    }
    if let Some(errno) = failed {
        keep_error(state, id, errno);
    }
}

/// The kernel has told of an error, which it does once, where the program cannot be told: its next call is. An errno that
/// says nothing of the connection is no error.
#[cold]
fn keep_error(state: &mut Shard, id: SocketId, errno: i32) {
    if shadow::is_passing(errno) || [libc::EFAULT, libc::EPIPE].contains(&errno) {
        return;
    }
    if errno == libc::ECONNRESET {
        if let Some(pipe) = state.pipe(id) {
            // Unless the program knows by the pipe.
            pipe.note_reset();
        }
    } else if let Some((_, socket)) = state.socket(id) {
        socket.pending_error = errno;
    }
    state.announce_change(id);
}

/// The error that was kept, or that the pipe knows of.
fn take_kept(state: &mut Shard, id: SocketId) -> Option<i32> {
    if state.pipe(id).is_some_and(|pipe| pipe.take_reset()) {
        return Some(libc::ECONNRESET);
    }
    let (_, socket) = state.socket(id)?;
    Some(core::mem::take(&mut socket.pending_error)).filter(|errno| *errno != 0)
}

/// Hands bytes in that the program has read from a pipe, or sent by it: `count` of the pieces behind the first
/// `skip`.
#[cold]
#[inline(never)]
fn capture<'a>(
    state: &mut Shard,
    id: SocketId,
    direction: Direction,
    pieces: impl Iterator<Item = &'a [u8]>,
    skip: usize,
    count: usize,
) {
    let Some(descriptor) = state.socket(id).map(|(_, socket)| socket.shadow()) else { return };
    let ask = || Some((loopback_end::local(descriptor)?, loopback_end::peer(descriptor)?));
    state.capture_stream(id, direction, ask, pieces, skip, count);
}

/// Sends what came back to anybody.
#[cold]
pub fn flush_all(state: &mut Shard) {
    for id in state.pipe_owners() {
        flush(state, id);
    }
}

/// Sends what came back by the kernel, and afterwards tells it of an end that it did not know. For
/// everyone who comes by.
pub fn flush(state: &mut Shard, id: SocketId) {
    let Some(descriptor) = state.socket(id).map(|(_, socket)| socket.shadow()) else { return };
    if state.pipe(id).is_some_and(|pipe| pipe.wants_prefetch()) {
        prefetch(state, id, descriptor);
        state.settle_pipe(id);
    }
    if state.pipe(id).is_some_and(|pipe| pipe.wants_arming()) {
        shadow::set_linger(descriptor, Some(0));
        state.arm_pipe(id);
    }
    let Some(pipe) = state.pipe(id) else { return };
    if !pipe.is_end_the_kernels() {
        return;
    }
    while !pipe.backlog().is_empty() {
        match shadow::send(descriptor, pipe.backlog(), 0) {
            Ok(count) => pipe.backlog_gone(count),
            Err(errno) if shadow::is_passing(errno) => {
                // However the process ends now, the peer must not see an end.
                if pipe.arm(true) {
                    shadow::set_linger(descriptor, Some(0));
                }
                return;
            }
            Err(_) => {
                pipe.lose_backlog();
                // The connection is over, or a forked child has shut it down.
                if shadow::has_peer(descriptor) {
                    shadow::reset(descriptor);
                }
            }
        }
    }
    let disarmed = pipe.arm(false);
    if pipe.is_shut() && pipe.take_untold_end() {
        shadow::shutdown(descriptor, libc::SHUT_WR);
    }
    if disarmed {
        let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
        shadow::set_linger(descriptor, stream.and_then(|stream| stream.linger_seconds()));
    }
}

#[cfg(test)]
mod tests;
