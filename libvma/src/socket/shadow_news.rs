//! What the kernel has to say of shadows: data that came another way than by our rings and pipes, errors, ends.
//!
//! One epoll instance watches them all, for the internal thread. A call that waits is woken by that; one that only looks
//! hears it here itself, or it would say that there is nothing when the kernel knows better.

use rustix::event::{Timespec, epoll};

use super::block::Guard;
use super::{Stack, stream};
use crate::shard::SocketId;

/// For the internal thread.
pub fn hear(stack: &Stack) {
    if let Ok(mut state) = stack.shard.lock() {
        attend(stack, &mut state);
    }
}

/// For a call that looks for connections with a pipe, and does not wait. Returns whether there was any news.
#[inline]
pub fn hear_of_pipes(stack: &Stack) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.has_pipes() && attend(stack, &mut state)
}

/// Whose shadow has news must look, and whoever waits for it. With the shard locked: news is told once, so who finds
/// none must see what another thread has made of it.
fn attend(stack: &Stack, state: &mut Guard<'_>) -> bool {
    let Some(watcher) = &stack.shadows else { return false };
    let mut events = [const { core::mem::MaybeUninit::uninit() }; 64];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok((events, _)) = epoll::wait(watcher, &mut events, Some(&now)) else { return false };
    let is_news = !events.is_empty();
    for event in events {
        let data = event.data;
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
