//! The one lock of the data path: a spin lock that knows its owner.
//!
//! Socket calls are async-signal-safe (signal-safety(7)): a handler may call `send()`, or leave by
//! longjmp, while the interrupted code of the same thread holds the lock. So a handler never runs
//! above a lock: the program's handlers are wrapped, and the wrapper puts a signal off that arrives
//! while [`thread::holds_locks`]; dropping the guard lets it in. Should a handler get through
//! unwrapped, [`Lock::lock`] tells it instead of waiting for its own thread.
//!
//! A thread that does not get the lock within some microseconds sleeps: the holder has lost its CPU then, perhaps
//! to this very thread. It does not give its CPU away by sched_yield(2), for which the scheduler (EEVDF) takes
//! the rest of its slice: milliseconds, on a machine whose CPUs are all wanted.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::thread::futex;

use super::{errand, thread};

#[derive(Default)]
pub struct Lock<T> {
    /// 0, or what [`thread::enter_lock`] gave the holder.
    owner: AtomicUsize,
    /// Is a release to wake somebody? The word that threads sleep on.
    bell: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only reached through a Guard, of which one exists at a time: `owner` leaves 0
// by compare-exchange only. T moves between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// This thread holds the lock already, below a signal handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reentered;

/// Spins this often before it sleeps: the holder may have been preempted.
const SPINS: u32 = 200;
/// A sleep ends after this time at the latest. A holder looks at the bell after it has given the lock back,
/// without a barrier between the two, which each release would pay for: it may miss a sleeper.
const LONGEST_SLEEP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 50_000 };

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Lock {
            owner: AtomicUsize::new(0),
            bell: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub fn lock(&self) -> Result<Guard<'_, T>, Reentered> {
        let me = thread::enter_lock();
        if self.take(me) {
            return Ok(Guard { lock: self });
        }
        self.lock_contended(me).inspect_err(|_| thread::leave_lock())
    }

    /// The lock if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.take(thread::enter_lock()) {
            return Some(Guard { lock: self });
        }
        thread::leave_lock();
        None
    }

    #[inline]
    fn take(&self, me: usize) -> bool {
        self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_contended(&self, me: usize) -> Result<Guard<'_, T>, Reentered> {
        errand::note_contention();
        loop {
            for _ in 0..SPINS {
                let owner = self.owner.load(Ordering::Relaxed);
                if owner == me {
                    return Err(Reentered);
                }
                if owner == 0 && self.take(me) {
                    return Ok(Guard { lock: self });
                }
                core::hint::spin_loop();
            }
            self.sleep(&LONGEST_SLEEP);
        }
    }

    /// Until the lock is given back, or for this time. It may end sooner: the caller looks again.
    fn sleep(&self, longest: &futex::Timespec) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.bell.store(1, Ordering::SeqCst);
        if self.owner.load(Ordering::SeqCst) != 0 {
            let _ = futex::wait(&self.bell, futex::Flags::PRIVATE, 1, Some(longest));
        }
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1 {
            // The release that woke this thread has taken the bell down for all.
            self.bell.store(1, Ordering::SeqCst);
        }
    }

    #[cold]
    fn wake(&self) {
        if self.bell.swap(0, Ordering::SeqCst) != 0 {
            let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 1);
        }
    }
}

pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (see Lock's Sync), so no `&mut T` exists elsewhere.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one and is borrowed mutably, so no other reference exists.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
        if self.lock.bell.load(Ordering::Relaxed) != 0 {
            self.lock.wake();
        }
        thread::leave_lock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_told_instead_of_waiting_for_itself() {
        let lock = Lock::new(1);
        let held = lock.lock().expect("free");
        assert_eq!(lock.lock().err(), Some(Reentered));
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn a_release_wakes_one_sleeper_and_that_one_the_next() {
        let long = futex::Timespec { tv_sec: 30, tv_nsec: 0 };
        let lock = Lock::new(());
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            let held = lock.lock().expect("free");
            for _ in 0..2 {
                scope.spawn(|| {
                    lock.sleep(&long);
                    drop(lock.lock());
                });
            }
            while lock.sleepers.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            // The second one may be about to look whether the lock is taken: it does not sleep then.
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(held);
        });
        assert!(began.elapsed().as_secs() < 15, "slept on: {:?}", began.elapsed());
        assert_eq!(lock.sleepers.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn threads_exclude_each_other() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock().expect("not re-entered") += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock().expect("free"), 40_000);
    }
}
