//! The runs of the prober that go on at the same time. A prober sleeps for 95 % of its time, so several of one test
//! take turns well, unless one of them spins.

use std::sync::Mutex;

use crate::harness::at_once;
use crate::prober::Run;

/// Probers at the same time.
const AT_ONCE: usize = 3;

/// In a process of several tests, as cargo test has them, one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Does `work` for each item. If `apart`, nothing of this process runs meanwhile.
pub fn each<T: Sync>(items: &[T], apart: bool, work: impl Fn(&T) + Sync) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    at_once(if apart { 1 } else { AT_ONCE }, items, work);
}

/// Does a run want the processors for itself?
pub fn is_apart(run: &Run<'_>) -> bool {
    run.apart || run.environment.contains(&("VMA_RX_POLL", "-1"))
}
