//! How long clients wait that come between listen() and the first thread that waits for them.
//!
//! A server that forks its workers right after listen() must have no connection of ours by then: one that it has
//! not accepted cannot be given to a worker, and would be reset when the server ends. So the internal thread does
//! not shake hands for a moment. A thread that waits for connections ends it, and so does a fork, which leaves the
//! clients to the kernel.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::time::monotonic_nanos;

/// Some ten times what a server takes from listen() to its first fork. A client that comes to a server that does
/// neither waits no longer.
const LONGEST: u64 = 50_000_000;

#[derive(Default)]
pub struct Hold {
    /// Nanoseconds of CLOCK_MONOTONIC; 0: there is none.
    until: AtomicU64,
}

impl Hold {
    pub fn begin(&self) {
        self.until.store(monotonic_nanos().saturating_add(LONGEST), Ordering::Relaxed);
    }

    #[inline]
    pub fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Has it begun and not been ended, however long ago that was?
    #[cfg(test)]
    pub fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Nanoseconds that are left of it.
    pub fn left(&self) -> Option<u64> {
        match self.until.load(Ordering::Relaxed) {
            0 => None,
            until => until.checked_sub(monotonic_nanos()).filter(|left| *left > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_by_itself_and_by_a_waiter() {
        let hold = Hold::default();
        assert_eq!(hold.left(), None);
        hold.begin();
        assert!(hold.left().is_some_and(|left| left <= LONGEST));
        hold.end();
        assert_eq!(hold.left(), None);
        hold.until.store(monotonic_nanos() - 1, Ordering::Relaxed);
        assert_eq!(hold.left(), None);
    }
}
