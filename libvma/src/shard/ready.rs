//! Readiness: who is told when something happens to a socket.
//!
//! A *sleeper* is a thread about to sleep in a system call; its waker is one of the descriptors it
//! sleeps on. It registers with each socket, or with the readiness set, that it waits for. Whoever
//! delivers a packet (any thread that polls the rings) wakes them. A [`set`] is what an epoll
//! instance knows of offloaded sockets.

mod own_bells;
mod set;

pub use set::{Interest, Registration, SetId};
pub(super) use set::{Set, Watch};

use libvma_engine::tcp::Events;
pub use libvma_engine::tcp::Readiness;

use super::{SocketId, State};
use crate::sys::wait::Waker;
use crate::sys::{errand, thread};

/// So many threads keep a sleeper of their own while they are awake.
const KEPT: usize = 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleeperId(u32);

pub(super) struct Sleeper {
    waker: Waker,
    in_use: bool,
    /// Its waker was written to since it registered.
    woken: bool,
    /// Writes to its waker that have not been read. Some may be still to come: who wakes it writes without
    /// the lock.
    due: u64,
    /// It has waited for a connection: it gets bells of its own.
    has_bells: bool,
    /// It sleeps, and is woken by what comes on any ring and is for nobody in particular.
    hears_all: bool,
    /// The thread waits for a socket of ours: it hears of what the rings bring, by its own look or by the sleeper that guards them.
    listens: bool,
    /// The number of the thread.
    thread: u32,
}

impl<S> State<S> {
    /// A sleeper for the calling thread; None if no descriptor can be had.
    pub fn new_sleeper(&mut self) -> Option<(SleeperId, i32)> {
        let thread = thread::cached_id();
        let index = match self.free_sleeper(thread) {
            Some(index) => index,
            None => {
                let waker = Waker::new().ok()?;
                self.sleepers.push(Sleeper {
                    waker,
                    in_use: false,
                    woken: false,
                    due: 0,
                    has_bells: false,
                    hears_all: false,
                    listens: false,
                    thread,
                });
                self.sleepers.len() - 1
            }
        };
        let sleeper = self.sleepers.get_mut(index)?;
        sleeper.in_use = true;
        sleeper.woken = false;
        sleeper.listens = false;
        let is_anothers = core::mem::replace(&mut sleeper.thread, thread) != thread;
        let (has_bells, waker) = (sleeper.has_bells, sleeper.waker.raw());
        let id = SleeperId(index as u32);
        if is_anothers && has_bells && self.forget_own_bells(id) {
            self.wake_any();
        }
        Some((id, waker))
    }

    /// The sleeper that the thread had before, or that another thread had if there are many.
    fn free_sleeper(&self, thread: u32) -> Option<usize> {
        let mut free = self.sleepers.iter().enumerate().filter(|(_, sleeper)| !sleeper.in_use);
        let own = free.clone().find(|(_, sleeper)| sleeper.thread == thread);
        let any = || free.next().filter(|_| self.sleepers.len() >= KEPT);
        own.or_else(any).map(|(index, _)| index)
    }

    /// Ends a sleeper; it must have left every socket and set.
    pub fn end_sleeper(&mut self, id: SleeperId) {
        if let Some(sleeper) = self.sleepers.get_mut(id.0 as usize) {
            if sleeper.due > 0 {
                sleeper.due = sleeper.due.saturating_sub(sleeper.waker.clear());
            }
            sleeper.in_use = false;
        }
        self.disarm_own_bells(id);
        if self.driver == Some(id) {
            self.driver = None;
            self.silence_common_bell();
        }
    }

    /// Before a sleep. One sleeper guards the rings, whose descriptors `each` gets, takes what comes,
    /// and wakes those for whom it is; it wakes at the time returned, too, to run TCP's timers. The
    /// others sleep until it wakes them, or else every packet would wake all of them; but a timer that
    /// was set since it fell asleep is for the next one that does.
    pub fn guard_rings(&mut self, sleeper: SleeperId, mut each: impl FnMut(i32)) -> Option<u64> {
        if let Some(entry) = self.sleepers.get_mut(sleeper.0 as usize) {
            entry.listens = true;
        }
        self.leave_outer_sleeps(sleeper);
        self.arm_own_bells(sleeper, &mut each);
        let thread = |id: SleeperId| self.sleepers.get(id.0 as usize).map(|entry| entry.thread);
        // A thread of which another sleep is registered is in a signal handler, or has left it by longjmp.
        if self.driver.is_some_and(|driver| thread(driver) != thread(sleeper)) {
            if self.has_unseen() {
                self.wake_any();
            }
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
        // The internal thread looks after the rings while nobody listens.
        self.rouse();
        let listens = |sleeper: &Sleeper| {
            sleeper.in_use && sleeper.listens && (sleeper.woken || sleeper.hears_all)
        };
        if self.driver.is_some() {
            // The bell of this thread, or of one before it, may have rung for what another one waits for.
            if self.has_unseen() {
                self.wake_any();
            }
            return;
        }
        // A common bell that a replaced guard has armed would wake no thread.
        self.silence_common_bell();
        // Something may have come for which this thread was woken and which it has not taken.
        if !self.sleepers.iter().any(listens) || self.has_waiting() {
            return self.wake_any();
        }
        // The timers are for the next one that falls asleep.
        self.driver_until = u64::MAX;
    }

    #[cfg(test)]
    pub fn sleeping(&self) -> usize {
        self.sleepers.iter().filter(|sleeper| sleeper.in_use).count()
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

    pub(super) fn wake_any(&mut self) {
        let asleep = |sleeper: &Sleeper| sleeper.in_use && sleeper.listens && !sleeper.woken;
        if let Some(index) = self.sleepers.iter().position(asleep) {
            self.wake(SleeperId(index as u32));
        }
    }

    /// Does a thread of the program sleep, and drives what the rings bring when it wakes?
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.iter().any(|sleeper| sleeper.in_use && sleeper.listens)
    }

    pub fn sleep_on(&mut self, socket: SocketId, sleeper: SleeperId) {
        if let Some((endpoint, _)) = self.socket(socket) {
            endpoint.sleepers.push(sleeper);
        }
        self.expect_on(socket, sleeper);
    }

    pub fn leave(&mut self, socket: SocketId, sleeper: SleeperId) {
        if let Some((endpoint, _)) = self.socket(socket) {
            endpoint.sleepers.retain(|other| *other != sleeper);
        }
    }

    /// The kernel reported some descriptor of an epoll instance, and its answer does not say which:
    /// every watched socket asks its shadow once before it says EAGAIN, and so does one that was watched then
    /// (programs take a socket out of the instance before they read it).
    pub fn raise_os_doubt(&mut self) {
        self.os_doubt += 1;
    }

    /// Must the socket's shadow be asked? Asking settles it.
    pub fn take_os_doubt(&mut self, socket: SocketId) -> bool {
        let doubt = self.os_doubt;
        let Some((endpoint, _)) = self.socket(socket) else { return false };
        let is_watched = endpoint.is_watched();
        let was_watched = core::mem::replace(&mut endpoint.was_watched, is_watched);
        was_watched && core::mem::replace(&mut endpoint.os_doubt, doubt) != doubt
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
            self.wake_for_news(sleeper);
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

    /// Something came for the sleeper. A packet may have woken it already.
    pub(super) fn wake_for_news(&mut self, id: SleeperId) {
        if !self.is_rung_for(id) {
            self.wake(id);
        }
    }

    fn wake(&mut self, id: SleeperId) {
        if let Some(sleeper) = self.sleepers.get_mut(id.0 as usize)
            && !core::mem::replace(&mut sleeper.woken, true)
        {
            sleeper.due += 1;
            if !errand::note_wake(sleeper.waker.raw()) {
                sleeper.waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Interest, State};
    use crate::shard::Shard;
    use crate::sys::wait::{PollFd, Waker, ppoll};

    fn is_woken(fd: i32) -> bool {
        ppoll(&mut [PollFd { fd, events: libc::POLLIN, revents: 0 }], Some(0), None) == Ok(1)
    }

    #[test]
    fn who_polls_or_ends_a_sleep_wakes_the_internal_thread_once() {
        let shard = Shard::<()>::default();
        let mut state = shard.lock().unwrap();
        let waker = Arc::new(Waker::new().unwrap());
        let acts: [fn(&mut State<()>); 2] = [|state| _ = state.poll(), State::hand_over_rings];
        for act in acts {
            state.doze(Arc::clone(&waker));
            assert!(!is_woken(waker.raw()));
            act(&mut state);
            act(&mut state);
            assert_eq!(waker.clear(), 1);
            // It has awoken by itself.
            state.doze(Arc::clone(&waker));
            state.end_doze();
            act(&mut state);
            assert!(!is_woken(waker.raw()));
        }
    }

    #[test]
    fn who_waits_for_nothing_of_ours_is_left_alone() {
        let shard: Shard<()> = Shard::default();
        let mut state = shard.lock().unwrap();
        let (_, idle) = state.new_sleeper().unwrap();
        assert!(!state.has_sleepers(), "the internal thread drives");
        // A thread that guarded the rings leaves: one of the sleepers takes over.
        state.hand_over_rings();
        let (sleeper, waiting) = state.new_sleeper().unwrap();
        state.guard_rings(sleeper, |_| ());
        assert!(state.has_sleepers());
        state.driver = None;
        state.hand_over_rings();
        drop(state);
        assert_eq!((is_woken(idle), is_woken(waiting)), (false, true));
    }

    #[test]
    fn the_first_socket_of_a_set_wakes_who_waits_at_it() {
        let shard: Shard<()> = Shard::default();
        let mut state = shard.lock().unwrap();
        let socket = state.attach((), 9);
        let another = state.attach((), 9);
        let set = state.new_set(9);
        let (sleeper, waker) = state.new_sleeper().unwrap();
        state.sleep_on_set(set, sleeper);
        assert!(!state.watches_any(set));
        let interest = Interest {
            descriptor: 3,
            events: libc::EPOLLIN as u32,
            data: 0,
            spent: false,
            in_kernel: false,
            news: false,
            about: 0,
        };
        state.watch(set, socket, interest);
        assert!(state.watches_any(set));
        drop(state);
        assert!(is_woken(waker), "it does not listen to the rings");
        let mut state = shard.lock().unwrap();
        state.leave_set(set, sleeper);
        state.end_sleeper(sleeper);
        let (sleeper, waker) = state.new_sleeper().unwrap();
        state.sleep_on_set(set, sleeper);
        state.watch(set, another, interest);
        drop(state);
        assert!(!is_woken(waker));
    }

    #[test]
    fn wake_ups_that_come_after_the_sleep_do_not_end_later_ones() {
        let shard: Shard<()> = Shard::default();
        let mut state = shard.lock().unwrap();
        // Noted under the lock, and written when it is given back: both sleeps are over by then.
        for _ in 0..2 {
            let (sleeper, _) = state.new_sleeper().unwrap();
            state.wake_all();
            state.end_sleeper(sleeper);
        }
        drop(state);
        let mut state = shard.lock().unwrap();
        let mut ends_at_once = || {
            let (sleeper, fd) = state.new_sleeper().unwrap();
            let ready =
                ppoll(&mut [PollFd { fd, events: libc::POLLIN, revents: 0 }], Some(0), None);
            state.end_sleeper(sleeper);
            ready == Ok(1)
        };
        assert!(ends_at_once());
        assert!(!ends_at_once());
    }
}
