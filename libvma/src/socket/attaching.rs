//! Interfaces that are to be attached in the background: which, and when.
//!
//! Attaching a program to an interface takes the kernel 10 to 40 ms (it waits for a grace period of RCU), and
//! detaching it at the end 10 ms. Meanwhile the kernel serves the sockets; a program that ends before the
//! interface is attached pays for neither. The work itself is `process::attaching`'s. For a socket that a
//! server binds or listens on, the interface is attached at once (`attach::open_rings`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::config::Config;
use crate::sys::time::monotonic_nanos;

/// How long after the first socket needed it an interface is attached: twice what attaching and detaching cost,
/// so that a program loses at most half as much again by ending at the wrong moment. Name queries, single
/// downloads and parents that fork their servers are over by then.
const DELAY_NANOS: u64 = 100_000_000;

const NOT_DUE: u64 = u64::MAX;

/// For the sake of what an interface is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Of a connection: it is to be taken over, unless a fork makes it the kernel's for good.
    Connection,
    /// Of a socket that goes on needing it.
    Socket,
}

/// When the internal thread is to look at [`Wanted`].
pub struct Schedule {
    due_nanos: AtomicU64,
    /// There is an internal thread to do it.
    is_served: AtomicBool,
    /// How many interfaces have been attached.
    attached: AtomicU32,
    /// A ring that the daemon had granted has ended, and nobody has looked yet.
    is_loss: AtomicBool,
    /// So did one at any time: the daemon may be about to come back.
    was_loss: AtomicBool,
    losses: AtomicU32,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            due_nanos: AtomicU64::new(NOT_DUE),
            is_served: AtomicBool::new(false),
            attached: AtomicU32::new(0),
            is_loss: AtomicBool::new(false),
            was_loss: AtomicBool::new(false),
            losses: AtomicU32::new(0),
        }
    }
}

impl Schedule {
    /// The internal thread was started, or could not be.
    pub fn set_served(&self, served: bool) {
        self.is_served.store(served, Ordering::Release);
    }

    /// Without an internal thread the call that needs an interface attaches it. Once the daemon was gone there may be something
    /// to wait for, whatever the configuration says.
    pub fn is_in_background(&self, config: &Config) -> bool {
        let wanted = config.attaches_in_background || self.was_loss();
        wanted && self.is_served.load(Ordering::Acquire)
    }

    /// Notes that a socket needs an interface. True if that is news to the internal thread.
    pub fn want(&self, wanted: &mut Wanted, interface: u32, need: Need) -> bool {
        let due = monotonic_nanos().saturating_add(DELAY_NANOS);
        let is_new = wanted.note(interface, due, need);
        if is_new {
            self.due_nanos.fetch_min(due, Ordering::AcqRel);
        }
        is_new
    }

    /// An interface is attached: connections over it may be taken over.
    pub fn count_attached(&self) {
        self.attached.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub fn attached(&self) -> u32 {
        self.attached.load(Ordering::Acquire)
    }

    /// A ring has ended that the daemon had granted.
    #[cold]
    pub fn note_loss(&self) {
        self.was_loss.store(true, Ordering::Release);
        self.is_loss.store(true, Ordering::Release);
    }

    /// How many have been given up so, with this one.
    pub fn count_loss(&self) -> u32 {
        self.losses.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Has one since the last time?
    pub fn take_loss(&self) -> bool {
        self.is_loss.load(Ordering::Acquire) && self.is_loss.swap(false, Ordering::AcqRel)
    }

    pub fn was_loss(&self) -> bool {
        self.was_loss.load(Ordering::Acquire)
    }

    /// Nanoseconds until the next interface is due; None if none is wanted.
    pub fn patience(&self) -> Option<u64> {
        match self.due_nanos.load(Ordering::Acquire) {
            NOT_DUE => None,
            due => Some(due.saturating_sub(monotonic_nanos())),
        }
    }

    /// The interfaces that are due now; they are under way from here on.
    pub fn take_due(&self, wanted: &mut Wanted) -> Vec<u32> {
        let due = wanted.take_due(monotonic_nanos());
        self.due_nanos.store(wanted.next().unwrap_or(NOT_DUE), Ordering::Release);
        due
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits {
        due_nanos: u64,
        /// Nothing else needs it so far.
        is_for_connections: bool,
    },
    UnderWay {
        /// Whoever needed it has given it up for a child's sake.
        is_given_up: bool,
    },
}

/// Per interface that is wanted and has no ring yet: how far that is.
#[derive(Default)]
pub struct Wanted(HashMap<u32, Stage>);

impl Wanted {
    fn note(&mut self, interface: u32, due_nanos: u64, need: Need) -> bool {
        let new = Stage::Waits { due_nanos: NOT_DUE, is_for_connections: true };
        match self.0.entry(interface).or_insert(new) {
            Stage::Waits { due_nanos: due, is_for_connections } => {
                *is_for_connections &= need == Need::Connection;
                let is_new = *due == NOT_DUE;
                if is_new {
                    *due = due_nanos;
                }
                is_new
            }
            Stage::UnderWay { is_given_up } => {
                *is_given_up = false;
                false
            }
        }
    }

    fn take_due(&mut self, now_nanos: u64) -> Vec<u32> {
        let mut all = Vec::new();
        for (interface, stage) in &mut self.0 {
            if let Stage::Waits { due_nanos, .. } = *stage
                && due_nanos <= now_nanos
            {
                *stage = Stage::UnderWay { is_given_up: false };
                all.push(*interface);
            }
        }
        all
    }

    fn next(&self) -> Option<u64> {
        let waits = |stage: &Stage| match stage {
            Stage::Waits { due_nanos, .. } => Some(*due_nanos),
            Stage::UnderWay { .. } => None,
        };
        self.0.values().filter_map(waits).min()
    }

    /// Is no interface wanted, or on its way?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The caller attaches the interface itself, at once. False if a thread is at it already.
    pub fn take(&mut self, interface: u32) -> bool {
        match self.0.get(&interface) {
            Some(Stage::UnderWay { .. }) => false,
            Some(Stage::Waits { .. }) => self.0.remove(&interface).is_some(),
            None => true,
        }
    }

    /// The interface is attached, or was refused. True if it was given up meanwhile.
    pub fn finish(&mut self, interface: u32) -> bool {
        self.0.remove(&interface) == Some(Stage::UnderWay { is_given_up: true })
    }

    /// Connections will not be taken over any more.
    pub fn give_up_connections(&mut self) {
        self.0.retain(|_, stage| !matches!(stage, Stage::Waits { is_for_connections: true, .. }));
    }

    /// A process that is about to fork gives up what it needed for its children's sake. Whoever still needs
    /// an interface asks again.
    pub fn give_up(&mut self) {
        self.0.retain(|_, stage| matches!(stage, Stage::UnderWay { .. }));
        for stage in self.0.values_mut() {
            *stage = Stage::UnderWay { is_given_up: true };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Need::{Connection, Socket};
    use super::*;

    #[test]
    fn an_interface_is_due_once_and_after_its_delay() {
        let mut wanted = Wanted::default();
        assert!(wanted.is_empty());
        assert!(wanted.note(3, 100, Socket) && !wanted.note(3, 50, Socket));
        assert!(!wanted.is_empty());
        assert_eq!((wanted.next(), wanted.take_due(99)), (Some(100), vec![]));
        assert_eq!(wanted.take_due(100), [3]);
        assert_eq!((wanted.next(), wanted.take_due(200)), (None, vec![]));
        assert!(!wanted.note(3, 300, Socket) && !wanted.take(3), "it is under way");
        assert!(!wanted.finish(3), "it is needed");
        assert!(wanted.note(3, 300, Socket));
        assert!(wanted.take(3) && wanted.next().is_none(), "somebody cannot wait");
    }

    #[test]
    fn what_is_given_up_under_way_may_be_asked_for_again() {
        let mut wanted = Wanted::default();
        wanted.note(1, 10, Socket);
        wanted.note(2, 20, Connection);
        assert_eq!(wanted.take_due(10), [1]);
        wanted.give_up();
        assert_eq!(wanted.next(), None);
        assert!(wanted.note(2, 30, Connection));
        assert!(wanted.finish(1), "nobody asked again");
        wanted.note(4, 10, Socket);
        assert_eq!(wanted.take_due(10), [4]);
        wanted.give_up();
        wanted.note(4, 40, Socket);
        assert!(!wanted.finish(4));
    }

    #[test]
    fn what_only_connections_need_is_given_up_with_them() {
        let mut wanted = Wanted::default();
        wanted.note(1, 10, Connection);
        wanted.note(2, 10, Connection);
        wanted.note(2, 10, Socket);
        wanted.note(3, 10, Connection);
        wanted.take(3);
        wanted.give_up_connections();
        assert_eq!(wanted.take_due(10), [2]);
        wanted.give_up_connections();
        assert!(!wanted.finish(2), "it was under way");
        assert!(wanted.note(1, 20, Connection), "a later connection asks again");
        assert_eq!(wanted.take_due(20), [1]);
    }

    #[test]
    fn the_schedule_tells_when_to_look() {
        let (schedule, mut wanted) = (Schedule::default(), Wanted::default());
        assert_eq!(schedule.patience(), None);
        assert!(schedule.want(&mut wanted, 7, Socket));
        assert!(schedule.patience().is_some_and(|left| left <= DELAY_NANOS));
        assert!(schedule.take_due(&mut wanted).is_empty());
        assert!(schedule.patience().is_some(), "it is still to come");
    }

    #[test]
    fn without_an_internal_thread_nothing_is_attached_in_the_background() {
        let config = Config::new(&crate::config::settings::Settings::read([]));
        let schedule = Schedule::default();
        assert!(!schedule.is_in_background(&config));
        schedule.set_served(true);
        assert!(schedule.is_in_background(&config));
    }
}
