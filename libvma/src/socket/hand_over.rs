//! Datagrams of ours to the kernel's socket, when other processes are about to read there.

use super::{Shard, Socket, Stack, WhyOs, attach};
use crate::process::inherit;
use crate::shard::hand_over::Queue;
use crate::shard::{Flow, RingId, SocketId};
use crate::sys::shadow;

/// What is queued on a socket goes to its shadow, and what the rings have for it, too.
pub(super) fn queue(state: &mut Shard, id: SocketId, shadow: i32, flows: &[(RingId, Flow)]) {
    state.catch_up();
    state.end_filter(id);
    let Some((endpoint, socket)) = state.socket(id) else { return };
    let Some(local) = socket.local else { return };
    let (datagrams, (_, bytes)) = (endpoint.datagrams(), endpoint.waiting());
    if datagrams == 0 || socket.stream.is_some() || shadow < 0 {
        return;
    }
    let queue = Queue {
        socket: id,
        port: local.port(),
        steered: !socket.flows.is_empty(),
        ring: flows.first().map(|(ring, _)| *ring),
        shares_groups: shares_port(state, id, local.port()),
    };
    // Of these the kernel charges a page for each fragment, so that less of them find room.
    let room = shadow::int_option(shadow, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
    let more = datagrams.saturating_mul(2 * PAGE).saturating_add(bytes.saturating_mul(4));
    set_room(shadow, room.saturating_add(i32::try_from(more).unwrap_or(i32::MAX)));
    let any = state.hand_over_queue(queue);
    // If these filled the former room, datagrams that come next would be lost: it stays larger then, which SO_RCVBUF tells.
    if charged(shadow) <= room / 2 {
        set_room(shadow, room);
    }
    if any && let Some((_, socket)) = state.socket(id) {
        socket.order.note_readable();
    }
}

/// Has another UDP socket of the process the same port?
fn shares_port(state: &mut Shard, id: SocketId, port: u16) -> bool {
    let has = |socket: &Socket| {
        socket.stream.is_none() && socket.local.is_some_and(|local| local.port() == port)
    };
    let others = state.ids().into_iter().filter(|other| *other != id);
    others.into_iter().any(|other| state.socket(other).is_some_and(|(_, socket)| has(socket)))
}

/// The bytes that a socket's receive queue counts as (SK_MEMINFO_RMEM_ALLOC of <linux/sock_diag.h>).
fn charged(shadow: i32) -> i32 {
    let mut info = [0u8; 9 * 4];
    shadow::option(shadow, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info);
    info.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

const PAGE: u64 = 4096;

/// In the kernel's units, of which the option takes half. Without CAP_NET_ADMIN nothing happens, and what
/// comes by a link does not need it.
fn set_room(shadow: i32, room: i32) {
    shadow::set_int_option(shadow, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, room / 2);
}

/// Sockets that get packets of the same flows.
pub(super) fn siblings(state: &mut Shard, id: SocketId, flows: &[(RingId, Flow)]) -> Vec<SocketId> {
    let mut ids = state.ids();
    ids.retain(|other| {
        let shares = |socket: &Socket| socket.flows.iter().any(|flow| flows.contains(flow));
        *other != id && state.socket(*other).is_some_and(|(_, socket)| shares(socket))
    });
    ids
}

/// Does another process have the socket, too, as far as we know?
pub(super) fn is_shared(socket: &Socket) -> bool {
    socket.forks != inherit::forks()
}

/// The process ends: what it has not read is its children's.
pub fn shared_queues(stack: &Stack) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let mut ids = state.ids();
    ids.retain(|id| {
        let shared = |socket: &Socket| socket.stream.is_none() && is_shared(socket);
        state.socket(*id).is_some_and(|(_, socket)| shared(socket))
    });
    drop(state);
    for id in ids {
        attach::un_offload(stack, id, WhyOs::ProcessEnds);
    }
}

/// Another process has the socket and may put it to a use of its own: sockets that are bound to its port
/// from now on, beside it, are the kernel's. It chooses which of them gets what.
pub fn note_passed(stack: &Stack, id: SocketId) {
    let local = stack.shard.lock().ok().and_then(|mut state| state.socket(id)?.1.local);
    if let Some(local) = local
        && let Ok(mut passed) = stack.passed.lock()
    {
        passed.insert(local.port());
    }
}

/// Does a process that got a socket from this one share the port?
pub(super) fn is_beside_passed(stack: &Stack, shadow: i32, port: u16) -> bool {
    let Ok(mut passed) = stack.passed.lock() else { return false };
    if !passed.contains(&port) {
        return false;
    }
    let is_set = |name| shadow::int_option(shadow, libc::SOL_SOCKET, name) == Some(1);
    let shares = is_set(libc::SO_REUSEADDR) || is_set(libc::SO_REUSEPORT);
    if !shares {
        // Nobody has the port any more, or it could not be bound.
        passed.remove(&port);
    }
    shares
}

/// As [`attach::un_offload`], for a socket that another process gets.
pub fn pass(stack: &Stack, id: SocketId, why: WhyOs) {
    note_passed(stack, id);
    attach::un_offload(stack, id, why);
}

#[cfg(test)]
mod tests;
