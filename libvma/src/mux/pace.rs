//! Decides whether polling pays on an epoll instance, or in calls of poll and select: not while the events are the kernel's and follow
//! each other quickly.
//!
//! A server of short connections within the host waits for its listener and for sockets that stay the kernel's.
//! Polling in user space finds nothing of them, and takes the CPU from the clients that the server waits for, so the
//! kernel serves such a wait best. Kernel events that are far apart do not stop the polling: the CPU
//! is free then, and a packet that comes by a ring in between is served at once.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::shard::clock;

/// The kernel's events come at once if a wait for them takes less, in nanoseconds.
const AT_ONCE: u64 = 100_000;
/// A share of one.
const WHOLE: u32 = 1 << 16;
/// Each wait moves the share by this part of the way.
const PART: u32 = 16;

/// The share of the last waits that the kernel's events ended at once.
#[derive(Default)]
pub struct Pace(AtomicU32);

impl Pace {
    /// Is it better to leave the wait to the kernel?
    pub fn is_kernels(&self) -> bool {
        self.0.load(Ordering::Relaxed) > WHOLE / 4 * 3
    }

    /// A wait has found this. `waiting_since` on the shard's clock, unless events were there already.
    pub fn note(&self, ours: usize, kernels: usize, waiting_since: Option<u64>) {
        let share = self.0.load(Ordering::Relaxed);
        if share == 0 && ours > 0 {
            return;
        }
        let at_once = ours == 0 && kernels > 0 && waiting_since.is_none_or(is_recent);
        let next = share - share / PART + if at_once { WHOLE / PART } else { 0 };
        // One too many or too few does not matter: threads that wait at once.
        self.0.store(next, Ordering::Relaxed);
    }
}

fn is_recent(nanos: u64) -> bool {
    clock::now().as_nanos().saturating_sub(nanos) < AT_ONCE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels_at_once(pace: &Pace, times: usize) {
        (0..times).for_each(|_| pace.note(0, 3, None));
    }

    #[test]
    fn a_row_of_the_kernels_events_leaves_waits_to_it_until_others_come() {
        let pace = Pace::default();
        kernels_at_once(&pace, 15);
        assert!(!pace.is_kernels(), "a burst is not enough");
        kernels_at_once(&pace, 100);
        assert!(pace.is_kernels());
        (0..8).for_each(|_| pace.note(1, 2, None));
        assert!(!pace.is_kernels(), "ours come, too");
        kernels_at_once(&pace, 10_000);
        (0..10_000).for_each(|_| pace.note(1, 0, None));
        assert_eq!(pace.0.load(Ordering::Relaxed) * 100 / WHOLE, 0);
    }

    #[test]
    fn now_and_then_one_of_ours_changes_nothing_and_one_in_three_does() {
        let pace = Pace::default();
        for at in 0..1000 {
            pace.note(usize::from(at % 8 == 0), 1, None);
            assert!(at < 100 || pace.is_kernels());
        }
        for at in 0..1000 {
            pace.note(usize::from(at % 3 == 0), 1, None);
            assert!(at < 100 || !pace.is_kernels());
        }
    }

    #[test]
    fn events_that_let_a_wait_last_are_none_to_leave_it_for() {
        let pace = Pace::default();
        let long_ago = clock::now().as_nanos().saturating_sub(2 * AT_ONCE);
        (0..1000).for_each(|_| pace.note(0, 1, Some(long_ago)));
        assert!(!pace.is_kernels());
        kernels_at_once(&pace, 100);
        (0..8).for_each(|_| pace.note(0, 0, Some(long_ago)));
        assert!(!pace.is_kernels(), "nothing came");
    }
}
