//! News of the shadows that are beside rings and pipes: data that came another way, errors, ends.
//!
//! One epoll instance of the library watches these shadows. The internal thread waits on it and wakes the program's
//! waiting threads. A call with a timeout of zero is not woken, so it reads the news itself.

use rustix::event::{Timespec, epoll};

use super::block::Guard;
use super::{Stack, lost_rings, stream};
use crate::shard::SocketId;

/// Takes all news. The internal thread calls it when the instance is readable.
pub fn hear(stack: &Stack) {
    if let Ok(mut state) = stack.shard.lock() {
        attend(stack, &mut state);
    }
}

/// Takes all news if the process has connections with a pipe. Returns whether there was any.
#[inline]
pub fn hear_of_pipes(stack: &Stack) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.has_pipes() && attend(stack, &mut state)
}

/// Marks each socket whose shadow has news, and wakes the threads that wait for it. The lock of the shard covers the
/// system call: epoll reports an edge once, so the thread that finds none must see the effect of the one that another thread found.
fn attend(stack: &Stack, state: &mut Guard<'_>) -> bool {
    let Some(watcher) = &stack.shadows else { return false };
    let mut events = [const { core::mem::MaybeUninit::uninit() }; 64];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok((events, _)) = epoll::wait(watcher, &mut events, Some(&now)) else { return false };
    let is_news = !events.is_empty();
    for event in events {
        let data = event.data;
        if data.u64() == lost_rings::NEWS {
            stack.attaching.note_loss();
            stack.wake_internal_thread();
            continue;
        }
        let Some(id) = SocketId::from_bits(data.u64()) else { continue };
        let flags = event.flags;
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
            if flags.contains(epoll::EventFlags::ERR) {
                socket.order.note_error();
            }
        }
        if stream::local::has_pipe(state, id) {
            stream::local::flush(state, id);
            state.announce_change(id);
        } else {
            state.announce(id);
        }
    }
    is_news
}

#[cfg(test)]
mod tests;
