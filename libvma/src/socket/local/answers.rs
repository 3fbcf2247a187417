//! Threads that wait in connect() for another process's answer.
//!
//! They poll the descriptor that the internal thread polls, too, and the first reader takes the answer off it. The
//! kernel then puts the other threads back to sleep, because the descriptor is no longer readable. Hence each of
//! them has a waker of its own, which is rung with every answer.

use std::sync::Arc;

use super::Local;
use crate::sys::wait::Waker;

/// A thread that waits, until this is dropped.
pub(super) struct Waiting<'a> {
    local: &'a Local,
    waker: Arc<Waker>,
}

impl<'a> Waiting<'a> {
    /// Call it while the finder is locked: an answer that is read from then on wakes. None if there is no descriptor to
    /// be had.
    pub(super) fn begin(local: &'a Local) -> Option<Waiting<'a>> {
        let waker = Arc::new(Waker::new().ok()?);
        local.waiting.lock().ok()?.push(Arc::clone(&waker));
        Some(Waiting { local, waker })
    }

    pub(super) fn raw(&self) -> i32 {
        self.waker.raw()
    }

    /// Call it while the finder is locked, and look at the answers afterwards.
    pub(super) fn clear(&self) {
        self.waker.clear();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Ok(mut waiting) = self.local.waiting.lock() {
            waiting.retain(|waker| !Arc::ptr_eq(waker, &self.waker));
        }
    }
}

/// An answer has been read.
pub(super) fn wake_all(local: &Local) {
    if let Ok(waiting) = local.waiting.lock() {
        waiting.iter().for_each(|waker| waker.wake());
    }
}
