//! Readiness: who is told when something happens to a socket.
//!
//! A *sleeper* is a thread about to sleep in a system call; its waker is one of the descriptors it
//! sleeps on. It registers with each socket, or with the readiness set, that it waits for. Whoever
//! delivers a packet (any thread that polls the rings) wakes them. A [`set`] is what an epoll
//! instance knows of offloaded sockets.

mod set;

pub use set::{Interest, Registration, SetId};
pub(super) use set::{Set, Watch};

pub use crate::net::tcp::Readiness;

use super::{SocketId, State};
use crate::net::tcp::Events;
use crate::sys::thread;
use crate::sys::wait::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleeperId(u32);

pub(super) struct Sleeper {
    waker: Waker,
    in_use: bool,
    /// Its waker was written to since it registered.
    woken: bool,
    /// The number of the thread.
    thread: u32,
}

impl<S> State<S> {
    /// A sleeper for the calling thread; None if no descriptor can be had.
    pub fn new_sleeper(&mut self) -> Option<(SleeperId, i32)> {
        let free = self.sleepers.iter().position(|sleeper| !sleeper.in_use);
        let index = match free {
            Some(index) => index,
            None => {
                let waker = Waker::new().ok()?;
                self.sleepers.push(Sleeper { waker, in_use: false, woken: false, thread: 0 });
                self.sleepers.len() - 1
            }
        };
        let sleeper = self.sleepers.get_mut(index)?;
        sleeper.in_use = true;
        sleeper.woken = false;
        sleeper.thread = thread::cached_id();
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
        if self.driver == Some(id) {
            self.driver = None;
        }
    }

    /// Before a sleep. One sleeper guards the rings, whose descriptors `each` gets, takes what comes,
    /// and wakes those for whom it is; it wakes at the time returned, too, to run TCP's timers. The
    /// others sleep until it wakes them, or else every packet would wake all of them; but a timer that
    /// was set since it fell asleep is for the next one that does.
    pub fn guard_rings(&mut self, sleeper: SleeperId, each: impl FnMut(i32)) -> Option<u64> {
        let thread = |id: SleeperId| self.sleepers.get(id.0 as usize).map(|entry| entry.thread);
        // A thread of which another sleep is registered is in a signal handler, or has left it by longjmp.
        if self.driver.is_some_and(|driver| thread(driver) != thread(sleeper)) {
            let deadline = self.tcp_deadline().map(|deadline| deadline.as_nanos());
            return deadline.filter(|deadline| *deadline < self.driver_until);
        }
        self.driver = Some(sleeper);
        self.sleep_on_rings(each);
        let deadline = self.tcp_deadline().map(|deadline| deadline.as_nanos());
        self.driver_until = deadline.unwrap_or(u64::MAX);
        deadline
    }

    /// A thread that has slept goes back to the program: somebody else has to listen. One that is awake
    /// already listens before it sleeps again, or calls this.
    pub fn hand_over_rings(&mut self) {
        let is_awake = |sleeper: &Sleeper| sleeper.in_use && sleeper.woken;
        if self.driver.is_none() && !self.sleepers.iter().any(is_awake) {
            self.wake_any();
        }
    }

    /// For the internal thread, which has found packets that the listener should have taken: it may be
    /// gone (longjmp out of a signal handler). Without a listener one that seems to be awake, and would
    /// be the next, may be gone, too.
    pub fn replace_listener(&mut self) {
        match self.driver.take() {
            Some(_) => self.wake_any(),
            None => self.wake_all(),
        }
    }

    fn wake_any(&mut self) {
        let asleep = |sleeper: &Sleeper| sleeper.in_use && !sleeper.woken;
        if let Some(index) = self.sleepers.iter().position(asleep) {
            self.wake(SleeperId(index as u32));
        }
    }

    /// Does a thread of the program sleep, and drives what the rings bring when it wakes?
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.in_use)
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

    /// Something to read came, or something else happened that a reader must see.
    #[inline]
    pub fn announce(&mut self, socket: SocketId) {
        self.announce_news(socket, Events::READABLE);
    }

    /// The socket is in another state now: that concerns everyone, whatever they wait for.
    pub fn announce_change(&mut self, socket: SocketId) {
        self.announce_news(socket, Events::CLOSED);
    }

    /// Tells all who wait on the socket for such news.
    #[inline]
    pub fn announce_news(&mut self, socket: SocketId, news: Events) {
        let Some((endpoint, _)) = self.socket(socket) else { return };
        if endpoint.sleepers.is_empty() && endpoint.watches.is_empty() {
            return;
        }
        self.announce_to_waiters(socket, news);
    }

    #[cold]
    fn announce_to_waiters(&mut self, socket: SocketId, news: Events) {
        let mut at = 0;
        while let Some(sleeper) =
            self.socket(socket).and_then(|(endpoint, _)| endpoint.sleepers.get(at).copied())
        {
            self.wake(sleeper);
            at += 1;
        }
        self.announce_to_sets(socket, news);
    }

    /// The socket goes: whoever sleeps on it wakes, and no set watches it any more.
    /// Wakes everybody who sleeps, to look around again.
    pub fn wake_all(&mut self) {
        for index in 0..self.sleepers.len() {
            if self.sleepers.get(index).is_some_and(|sleeper| sleeper.in_use) {
                self.wake(SleeperId(index as u32));
            }
        }
    }

    /// Wakes a thread wherever it sleeps.
    pub fn wake_thread(&mut self, thread: u32) {
        for index in 0..self.sleepers.len() {
            let sleeper = self.sleepers.get(index);
            if sleeper.is_some_and(|sleeper| sleeper.in_use && sleeper.thread == thread) {
                self.wake(SleeperId(index as u32));
            }
        }
    }

    pub(super) fn wake_sleepers_of(&mut self, socket: SocketId) {
        let sleepers = self.socket(socket).map(|(endpoint, _)| endpoint.sleepers.clone());
        for sleeper in sleepers.unwrap_or_default() {
            self.wake(sleeper);
        }
        self.leave_sets(socket);
    }

    fn wake(&mut self, id: SleeperId) {
        if let Some(sleeper) = self.sleepers.get_mut(id.0 as usize)
            && !core::mem::replace(&mut sleeper.woken, true)
        {
            sleeper.waker.wake();
        }
    }
}
