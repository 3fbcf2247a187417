//! Readiness: who is told when a socket becomes readable.
//!
//! A *sleeper* is a thread about to sleep in a system call; its waker is one of the descriptors it
//! sleeps on. It registers with each socket, or with the readiness set, that it waits for. Whoever
//! delivers a datagram (any thread that polls the rings) wakes them. A *set* is what an epoll
//! instance knows of offloaded sockets: the ones that became readable since they were last looked
//! at, so that a wait costs what is ready, not what is watched.

use std::collections::VecDeque;

use super::{SocketId, State};
use crate::sys::wait::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleeperId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetId(u32);

pub(super) struct Sleeper {
    waker: Waker,
    in_use: bool,
    /// Its waker was written to since it registered.
    woken: bool,
}

/// One set's interest in a socket.
pub(super) struct Watch {
    pub set: SetId,
    /// Already in the set's list.
    listed: bool,
}

#[derive(Default)]
pub(super) struct Set {
    readable: VecDeque<SocketId>,
    sleepers: Vec<SleeperId>,
}

impl<S> State<S> {
    /// A sleeper for the calling thread; None if no descriptor can be had.
    pub fn new_sleeper(&mut self) -> Option<(SleeperId, i32)> {
        let free = self.sleepers.iter().position(|sleeper| !sleeper.in_use);
        let index = match free {
            Some(index) => index,
            None => {
                let waker = Waker::new().ok()?;
                self.sleepers.push(Sleeper { waker, in_use: false, woken: false });
                self.sleepers.len() - 1
            }
        };
        let sleeper = self.sleepers.get_mut(index)?;
        sleeper.in_use = true;
        sleeper.woken = false;
        Some((SleeperId(index as u32), sleeper.waker.raw()))
    }

    /// Ends a sleeper; it must have left every socket and set.
    pub fn end_sleeper(&mut self, id: SleeperId) {
        if let Some(sleeper) = self.sleepers.get_mut(id.0 as usize) {
            if sleeper.woken {
                sleeper.waker.clear();
            }
            sleeper.in_use = false;
        }
    }

    pub fn sleep_on(&mut self, socket: SocketId, sleeper: SleeperId) {
        if let Some((endpoint, _)) = self.socket(socket) {
            endpoint.sleepers.push(sleeper);
        }
    }

    pub fn leave(&mut self, socket: SocketId, sleeper: SleeperId) {
        if let Some((endpoint, _)) = self.socket(socket) {
            endpoint.sleepers.retain(|other| *other != sleeper);
        }
    }

    pub fn sleep_on_set(&mut self, set: SetId, sleeper: SleeperId) {
        if let Some(set) = self.set_mut(set) {
            set.sleepers.push(sleeper);
        }
    }

    pub fn leave_set(&mut self, set: SetId, sleeper: SleeperId) {
        if let Some(set) = self.set_mut(set) {
            set.sleepers.retain(|other| *other != sleeper);
        }
    }

    pub fn new_set(&mut self) -> SetId {
        let index = match self.sets.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.sets.push(None);
                self.sets.len() - 1
            }
        };
        if let Some(slot) = self.sets.get_mut(index) {
            *slot = Some(Set::default());
        }
        SetId(index as u32)
    }

    pub fn end_set(&mut self, id: SetId) {
        let sleepers = self.set_mut(id).map(|set| core::mem::take(&mut set.sleepers));
        for sleeper in sleepers.unwrap_or_default() {
            self.wake(sleeper);
        }
        // The number will name another set.
        for slot in &mut self.slots {
            if let Some((endpoint, _)) = slot.content.as_mut() {
                endpoint.watches.retain(|watch| watch.set != id);
            }
        }
        if let Some(slot) = self.sets.get_mut(id.0 as usize) {
            *slot = None;
        }
    }

    /// The set wants to know when the socket becomes readable; if it is now, it is listed at once.
    pub fn watch(&mut self, set: SetId, socket: SocketId) {
        let Some((endpoint, _)) = self.socket(socket) else { return };
        if !endpoint.is_watched_by(set) {
            endpoint.watches.push(Watch { set, listed: false });
        }
        if endpoint.is_readable() {
            self.relist(set, socket);
        }
    }

    pub fn unwatch(&mut self, set: SetId, socket: SocketId) {
        if let Some((endpoint, _)) = self.socket(socket) {
            endpoint.watches.retain(|watch| watch.set != set);
        }
        if let Some(set) = self.set_mut(set) {
            set.readable.retain(|other| *other != socket);
        }
    }

    /// The next socket in the set's list, taken out of it.
    pub fn next_listed(&mut self, set: SetId) -> Option<SocketId> {
        let socket = self.set_mut(set)?.readable.pop_front()?;
        if let Some((endpoint, _)) = self.socket(socket)
            && let Some(watch) = endpoint.watches.iter_mut().find(|watch| watch.set == set)
        {
            watch.listed = false;
        }
        Some(socket)
    }

    /// How many sockets the set lists now.
    pub fn listed(&self, set: SetId) -> usize {
        let slot = self.sets.get(set.0 as usize);
        slot.and_then(Option::as_ref).map_or(0, |set| set.readable.len())
    }

    /// Puts a socket (back) at the end of the set's list.
    pub fn relist(&mut self, set: SetId, socket: SocketId) {
        let Some((endpoint, _)) = self.socket(socket) else { return };
        let Some(watch) = endpoint.watches.iter_mut().find(|watch| watch.set == set) else {
            return;
        };
        if !core::mem::replace(&mut watch.listed, true)
            && let Some(set) = self.set_mut(set)
        {
            set.readable.push_back(socket);
        }
    }

    /// The kernel reported some descriptor of an epoll instance, and its answer does not say which:
    /// every watched socket asks its shadow once before it says EAGAIN.
    pub fn raise_os_doubt(&mut self) {
        self.os_doubt += 1;
    }

    /// Must the socket's shadow be asked? Asking settles it.
    pub fn take_os_doubt(&mut self, socket: SocketId) -> bool {
        let doubt = self.os_doubt;
        self.socket(socket)
            .is_some_and(|(endpoint, _)| core::mem::replace(&mut endpoint.os_doubt, doubt) != doubt)
    }

    /// A datagram was queued, or something else happened that a waiter must see.
    #[inline]
    pub fn announce(&mut self, socket: SocketId) {
        let Some((endpoint, _)) = self.socket(socket) else { return };
        if endpoint.sleepers.is_empty() && endpoint.watches.is_empty() {
            return;
        }
        self.announce_to_waiters(socket);
    }

    #[cold]
    fn announce_to_waiters(&mut self, socket: SocketId) {
        let mut at = 0;
        while let Some(sleeper) =
            self.socket(socket).and_then(|(endpoint, _)| endpoint.sleepers.get(at).copied())
        {
            self.wake(sleeper);
            at += 1;
        }
        let mut at = 0;
        while let Some(set) =
            self.socket(socket).and_then(|(endpoint, _)| endpoint.watches.get(at).map(|w| w.set))
        {
            self.relist(set, socket);
            let mut member = 0;
            while let Some(sleeper) =
                self.set_mut(set).and_then(|set| set.sleepers.get(member).copied())
            {
                self.wake(sleeper);
                member += 1;
            }
            at += 1;
        }
    }

    pub(super) fn wake_sleepers_of(&mut self, socket: SocketId) {
        let sleepers = self.socket(socket).map(|(endpoint, _)| endpoint.sleepers.clone());
        for sleeper in sleepers.unwrap_or_default() {
            self.wake(sleeper);
        }
    }

    fn wake(&mut self, id: SleeperId) {
        if let Some(sleeper) = self.sleepers.get_mut(id.0 as usize)
            && !core::mem::replace(&mut sleeper.woken, true)
        {
            sleeper.waker.wake();
        }
    }

    fn set_mut(&mut self, id: SetId) -> Option<&mut Set> {
        self.sets.get_mut(id.0 as usize)?.as_mut()
    }
}
