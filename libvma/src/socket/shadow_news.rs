//! News of the shadows that are beside rings and pipes: data that came another way, errors, ends.
//!
//! Two epoll instances of the library watch these shadows. The internal thread waits on them and wakes the program's
//! waiting threads. A call with a timeout of zero is not woken, so it reads the news of pipes itself.
//!
//! Every datagram that comes by the kernel is an edge, and whoever sleeps for a UDP socket watches its shadow as well. So
//! UDP sockets have an instance of their own, and the internal thread lets it rest after each look
//! ([`DATAGRAMS_REST`]): otherwise it would wake as often as the program that the kernel serves. A call that polls asks the kernel
//! itself now and then; if it is not to (`VMA_RX_UDP_POLL_OS_RATIO=0`), the thread does not rest.

use std::os::fd::AsFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::block::Guard;
use super::{Stack, lost_rings, stream};
use crate::shard::SocketId;
use crate::sys::Fd;
use crate::sys::fd;

/// Nanoseconds in which the internal thread hears no news of UDP sockets, after it has heard some. What came meanwhile is
/// heard at their end.
pub const DATAGRAMS_REST: u64 = 2_000_000;

/// The kind of sockets that an instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP sockets, and the rings that a daemon has granted.
    Streams,
    /// UDP sockets.
    Datagrams,
}

/// The instances. Without one nothing is told of its sockets.
#[derive(Default)]
pub struct Shadows {
    streams: Option<Fd>,
    datagrams: Option<Fd>,
}

impl Shadows {
    pub fn open() -> Shadows {
        let instance = || epoll::create(CreateFlags::CLOEXEC).and_then(Fd::adopt).ok();
        Shadows { streams: instance(), datagrams: instance() }
    }

    /// The descriptor that is readable while there are news; -1 if there is none.
    pub fn raw(&self, kind: Kind) -> i32 {
        self.instance(kind).map_or(-1, Fd::raw)
    }

    /// From now on these events of the descriptor are news of the socket.
    pub fn watch(&self, kind: Kind, descriptor: i32, id: SocketId, events: EventFlags) {
        let Some(instance) = self.instance(kind) else { return };
        let data = EventData::new_u64(id.to_bits());
        fd::with_borrowed(descriptor, |shadow| {
            if epoll::add(instance, shadow, data, events) == Err(Errno::EXIST) {
                let _ = epoll::modify(instance, shadow, data, events);
            }
        });
    }

    /// The end of the connection that a granted ring lasts with is news.
    pub(super) fn watch_ring(&self, connection: impl AsFd) -> Result<(), Errno> {
        let flags = EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(lost_rings::NEWS);
        self.streams.as_ref().map_or(Ok(()), |it| epoll::add(it, connection, data, flags))
    }

    /// Nothing of the descriptor is news any more. While epoll looks at a descriptor it holds the file: without this its port could
    /// still be taken when close() has returned.
    pub fn forget(&self, kind: Kind, descriptor: i32) {
        let Some(instance) = self.instance(kind) else { return };
        fd::with_borrowed(descriptor, |shadow| {
            let _ = epoll::delete(instance, shadow);
        });
    }

    fn instance(&self, kind: Kind) -> Option<&Fd> {
        match kind {
            Kind::Streams => self.streams.as_ref(),
            Kind::Datagrams => self.datagrams.as_ref(),
        }
    }
}

/// Takes all news. The internal thread calls it when the instance is readable.
pub fn hear(stack: &Stack, kind: Kind) {
    loop {
        // Others may have the lock between two portions.
        let Ok(mut state) = stack.shard.lock() else { return };
        if attend(stack, &mut state, kind) < PORTION {
            return;
        }
    }
}

/// So much news is taken at once.
const PORTION: usize = 64;

/// Takes all news if the process has connections with a pipe. Returns whether there was any.
#[inline]
pub fn hear_of_pipes(stack: &Stack) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.has_pipes() && attend(stack, &mut state, Kind::Streams) > 0
}

/// Marks each socket whose shadow has news, a [`PORTION`] of them at most, and wakes the threads that wait for it. The lock of the shard covers the
/// system call: epoll reports an edge once, so the thread that finds none must see the effect of the one that another thread found.
fn attend(stack: &Stack, state: &mut Guard<'_>, kind: Kind) -> usize {
    let Some(watcher) = stack.shadows.instance(kind) else { return 0 };
    let mut events = [const { core::mem::MaybeUninit::uninit() }; PORTION];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok((events, _)) = epoll::wait(watcher, &mut events, Some(&now)) else { return 0 };
    let count = events.len();
    for event in events {
        let data = event.data;
        if data.u64() == lost_rings::NEWS {
            stack.attaching.note_loss();
            stack.wake_internal_thread();
            continue;
        }
        let Some(id) = SocketId::from_bits(data.u64()) else { continue };
        let flags = event.flags;
        let only_writable = flags == EventFlags::OUT;
        if let Some((_, socket)) = state.socket(id).filter(|_| !only_writable) {
            socket.order.note_readable();
            if flags.contains(EventFlags::ERR) {
                socket.order.note_error();
            }
        }
        if stream::local::has_pipe(state, id) {
            stream::local::flush(state, id);
            if !(only_writable && stream::local::is_fresh(state, id)) {
                state.announce_change(id);
            }
        } else {
            state.announce(id);
        }
    }
    count
}

#[cfg(test)]
mod tests;
