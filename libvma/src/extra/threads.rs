//! Threads whose sockets are to be served, or not, whatever `VMA_OFFLOADED_SOCKETS` says.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::lock::Lock;

/// A thread is known by its `pthread_t`. A thread that is over stays in the list: the C library may use its number again,
/// and the wish is for that thread then, as it always was.
#[derive(Default)]
pub struct Threads {
    /// Some thread has a wish.
    any: AtomicBool,
    wishes: Lock<Vec<(usize, bool)>>,
}

impl Threads {
    /// Sockets that the thread makes from now on are served, or are not.
    pub fn set(&self, thread: usize, served: bool) {
        let Ok(mut wishes) = self.wishes.lock() else { return };
        match wishes.iter_mut().find(|(known, _)| *known == thread) {
            Some(wish) => wish.1 = served,
            None => wishes.push((thread, served)),
        }
        self.any.store(true, Ordering::Release);
    }

    /// The wish of the calling thread, whose number `thread` tells.
    pub fn wish(&self, thread: impl FnOnce() -> usize) -> Option<bool> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let thread = thread();
        let wishes = self.wishes.lock().ok()?;
        wishes.iter().find(|(known, _)| *known == thread).map(|(_, served)| *served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_wish_of_a_thread_counts() {
        let threads = Threads::default();
        assert_eq!(threads.wish(|| unreachable!("nobody has a wish")), None);
        threads.set(7, false);
        threads.set(9, true);
        threads.set(7, true);
        threads.set(9, false);
        assert_eq!(threads.wish(|| 7), Some(true));
        assert_eq!(threads.wish(|| 9), Some(false));
        assert_eq!(threads.wish(|| 8), None);
    }
}
