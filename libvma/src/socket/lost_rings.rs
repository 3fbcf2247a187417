//! Rings that the daemon had granted, when it is gone: their sockets are served by the kernel until it is back.

use super::attaching::Need;
use super::{Plane, Shard, Stack, WhyOs, attach};
use crate::log::log_line;
use crate::shard::{RingId, is_daemon_there};
use crate::sys::thread;

/// The data of the epoll instance of `shadow_news` for the connection that a ring lasts with; no socket has this number.
pub const NEWS: u64 = 1;

/// The internal thread shall hear of the end of a ring that was granted.
pub(super) fn watch(stack: &Stack, ring: RingId) {
    let Ok(state) = stack.shard.lock() else { return };
    let Some(connection) = state.ring(ring).and_then(|ring| ring.grant()) else { return };
    if let Err(errno) = stack.shadows.watch_ring(connection) {
        log_line!(Warning, "a ring's end will not be noticed: {errno}");
    }
}

/// A ring that is one of the plane's from now on may have ended before.
pub fn check(stack: &Stack, ring: RingId) {
    let is_lost = |state: &Shard| state.ring(ring).is_some_and(|ring| ring.is_lost());
    if stack.shard.lock().is_ok_and(|state| is_lost(&state)) {
        stack.attaching.note_loss();
        stack.wake_internal_thread();
    }
}

/// Is a ring of the plane one that has ended, and nobody has looked yet?
pub(super) fn are_any(state: &Shard, plane: &Plane) -> bool {
    let is_lost = |ring: &RingId| state.ring(*ring).is_some_and(|ring| ring.is_lost());
    plane.rings.values().flatten().any(is_lost)
}

/// Gives up the rings that have ended, and has their interfaces attached anew. Their sockets keep what the rings hold.
pub fn leave(stack: &Stack) {
    if !stack.attaching.take_loss() {
        return;
    }
    let Ok(mut slot) = stack.plane.lock() else { return };
    let Some(plane) = slot.as_mut() else { return };
    let mut lost = Vec::new();
    if let Ok(mut state) = stack.shard.lock() {
        // Datagrams that the rings have received are read first.
        state.catch_up();
        for (interface, ring) in &plane.rings {
            if let Ok(ring) = ring
                && let Some(ring) = state.ring_mut(*ring)
                && ring.is_lost()
            {
                log_line!(
                    Warning,
                    "{}: vmad is gone, the kernel serves it until it is back",
                    ring.interface().name
                );
                ring.shut();
                lost.push(*interface);
            }
        }
    }
    for interface in &lost {
        if stack.attaching.count_loss() > MOST_LOSSES {
            log_line!(
                Warning,
                "vmad was gone {MOST_LOSSES} times, the kernel serves what it granted from now on"
            );
            plane.rings.insert(*interface, Err(WhyOs::RingRefused));
            continue;
        }
        plane.rings.remove(interface);
        let _ = stack.attaching.want(&mut plane.wanted, *interface, Need::Socket);
    }
    // Their flows are no flows any more, and what they send goes by the kernel.
    let _ = attach::reconsider(stack, plane);
    if let Ok(mut state) = stack.shard.lock() {
        state.next_epoch();
    }
}

/// Before an interface is attached again: waits for a daemon that is being started again.
pub fn await_daemon(stack: &Stack) {
    let steps = if stack.attaching.was_loss() { PATIENCE_MILLIS / STEP_MILLIS } else { 0 };
    for _ in 0..steps {
        if is_daemon_there() {
            return;
        }
        thread::nap_millis(STEP_MILLIS);
    }
}

/// The memory of a ring is kept, for what sockets have not read of it.
const MOST_LOSSES: u32 = 16;

/// As long as a service manager takes to start a daemon again, and some.
const PATIENCE_MILLIS: u64 = 10_000;
const STEP_MILLIS: u64 = 50;
