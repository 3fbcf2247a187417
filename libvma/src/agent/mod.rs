//! The library's side of the agent protocol: `vmad` is told which TCP connections this process has, so
//! that it can reset their peers when the process dies without a word.
//!
//! `session` is what is done when, `link` the socket, `files` what lies in the directory, `notice`
//! what is said without a daemon; the messages are `libvma_dev::agent`'s. Nothing here knows a socket
//! or a connection: they are a [`Source`].
//!
//! The internal thread does nearly everything ([`Agent::prepare`], [`Agent::attend`]) and never waits
//! for the daemon. Other threads come only when a connection is given away ([`Agent::settle`]), and at
//! the end. An agent's lock is taken before the shard's: a source takes that.

mod files;
mod link;
mod notice;
mod session;
pub mod wards;

use std::collections::VecDeque;
use std::path::Path;

use libvma_dev::agent::{SOCKET, State};

use self::session::{Session, Settled};
use self::wards::{Ward, Wards};
use crate::log::log_line;
use crate::sys::lock::Lock;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::{PollFd, PollSet, ppoll};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// How long a daemon is waited for that does not read.
const PATIENCE: u64 = 200 * MILLISECOND;

/// Where the states of the process's connections come from.
pub trait Source {
    /// Are there any that the daemon might want to know?
    fn has_connections(&self) -> bool;
    /// Has any changed since they were taken, or was there a first one?
    fn has_news(&self) -> bool;
    /// The news were seen.
    fn note_news(&mut self);
    /// Changes are kept from now on, and every connection is new.
    fn listen(&mut self);
    /// Nobody takes changes any more.
    fn stop(&mut self);
    /// Some of the changes, those of connections that are over first; none if there are none. False:
    /// there was no room for all, so begin anew.
    fn take(&mut self, process: i32, into: &mut VecDeque<State>) -> bool;
    /// Are there connections that are over and not taken?
    fn has_ended(&self) -> bool;
}

/// The process whose internal thread is to be woken after [`Agent::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The parent's.
    Parent,
    /// This process's, which calls the daemon.
    Daemon,
    /// None: the guard was asked before, or there is none.
    Already,
}

/// The process, as far as the daemon is concerned; or the parent, in a child that it cares for.
pub struct Agent {
    session: Option<Lock<Session>>,
    /// The memory by which a forked child asks its parent.
    wards: Option<&'static Wards>,
    /// Once it has.
    ward: Lock<Option<Ward>>,
}

impl Agent {
    /// With files in this directory; an empty name is none, and then no daemon is told anything. In a forked child
    /// without a daemon the parent's wards are told.
    pub fn new(directory: &str, wards: Option<&'static Wards>) -> Agent {
        Agent::of_daemon(directory, Path::new(SOCKET), wards)
    }

    fn of_daemon(directory: &str, daemon: &Path, wards: Option<&'static Wards>) -> Agent {
        let wanted = !directory.is_empty();
        Agent {
            session: wanted.then(|| Lock::new(Session::new(directory, daemon))),
            wards: wards.filter(|_| !wanted || link::find(daemon).is_none()),
            ward: Lock::new(None),
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.session.is_some() || self.wards.is_some()
    }

    /// If the process is killed, does `vmad` or the parent tell the peers of its connections? Each of both ends those over
    /// IPv4; the original's `vmad` ends no others.
    pub fn is_guarded(&self, is_ipv6: bool) -> bool {
        let session = self.session.as_ref().and_then(|lock| lock.lock().ok());
        session.is_some_and(|session| session.is_heard(is_ipv6))
            || self.ward(|ward| ward.is_granted()) == Some(true)
    }

    /// Asks for a guard before there is a connection: the parent where it takes the daemon's place, else the daemon.
    pub fn ask(&self) -> Asked {
        let Some(wards) = self.wards else {
            let session = self.session.as_ref().and_then(|lock| lock.lock().ok());
            let is_news = session.is_some_and(|mut session| session.want());
            return if is_news { Asked::Daemon } else { Asked::Already };
        };
        let Ok(mut ward) = self.ward.lock() else { return Asked::Already };
        if ward.is_none() {
            *ward = Ward::new(wards);
            if ward.is_some() {
                return Asked::Parent;
            }
        }
        Asked::Already
    }

    /// Does something with the ward, if the parent takes the daemon's place.
    fn ward<T>(&self, with: impl FnOnce(&mut Ward) -> T) -> Option<T> {
        self.wards?;
        let mut ward = self.ward.lock().ok()?;
        ward.as_mut().filter(|ward| ward.is_granted()).map(with)
    }

    /// Before the internal thread sleeps: what it is to wait for, always one entry, and how long,
    /// in nanoseconds.
    pub fn prepare(&self, source: &impl Source, set: &mut PollSet) -> Option<u64> {
        let none = PollFd { fd: -1, events: 0, revents: 0 };
        if let Some(due) = self.ward(|ward| ward.due(source)) {
            set.add(none);
            return Some(due?.saturating_sub(monotonic_nanos()));
        }
        let session = self.session.as_ref().and_then(|lock| lock.lock().ok());
        set.add(session.as_ref().map_or(none, |session| session.awaits()));
        let due = session?.due(source)?;
        Some(due.saturating_sub(monotonic_nanos()))
    }

    /// Does what is due; in the internal thread. The daemon has said something if `readable`.
    pub fn attend(&self, readable: bool, source: &mut impl Source) {
        if self.ward(|ward| ward.attend(source)).is_some() {
            return;
        }
        if let Some(mut session) = self.session.as_ref().and_then(|lock| lock.lock().ok()) {
            session.attend(readable, source);
        }
    }

    /// Has the daemon know of all connections that are over before this returns, unless it does not
    /// read for too long: then it is told as soon as it does. In whatever thread.
    pub fn settle(&self, source: &mut impl Source) {
        if self.ward(|ward| ward.settle(source)).is_some() {
            return;
        }
        let Some(lock) = &self.session else { return };
        let patience = monotonic_nanos().saturating_add(PATIENCE);
        loop {
            let settled = lock.lock().map(|mut session| session.settle(source));
            let Ok(Settled::Not(entry)) = settled else { return };
            let left = patience.saturating_sub(monotonic_nanos());
            if left == 0 {
                log_line!(Debug, "vmad does not read what it is told");
                // The next one does not wait for it again.
                if let Ok(mut session) = lock.lock() {
                    session.lose_patience();
                }
                return;
            }
            // Should the internal thread close it meanwhile, the wait ends at its time.
            let _ = ppoll(&mut [entry], Some(left), None);
        }
    }

    /// Another program may be about to take the process over. The daemon forgets the process, before
    /// its connections become the kernel's.
    pub fn withdraw(&self, source: &mut impl Source) {
        if self.ward(|ward| ward.end(source)).is_some() {
            return;
        }
        if let Some(mut session) = self.session.as_ref().and_then(|lock| lock.lock().ok()) {
            session.withdraw(source);
        }
    }

    /// The process ends. The daemon forgets it, before its connections become the kernel's.
    pub fn end(&self, source: &mut impl Source) {
        if self.ward(|ward| ward.end(source)).is_some() {
            return;
        }
        if let Some(mut session) = self.session.as_ref().and_then(|lock| lock.lock().ok()) {
            session.end(source);
        }
    }
}

#[cfg(test)]
mod tests;
