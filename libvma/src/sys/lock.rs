//! The one lock of the data path: a spin lock that knows its owner.
//!
//! Socket calls are async-signal-safe (signal-safety(7)): a handler may call `send()`, or leave by
//! longjmp, while the interrupted code of the same thread holds the lock. So a handler never runs
//! above a lock: the program's handlers are wrapped, and the wrapper puts a signal off that arrives
//! while [`thread::holds_locks`]; dropping the guard lets it in. Should a handler get through
//! unwrapped, [`Lock::lock`] tells it instead of waiting for its own thread.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{errand, thread};

pub struct Lock<T> {
    /// 0, or what [`thread::enter_lock`] gave the holder.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only reached through a Guard, of which one exists at a time: `owner` leaves 0
// by compare-exchange only. T moves between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Lock<T> {}

/// This thread holds the lock already, below a signal handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reentered;

/// Spins this often before giving the CPU away: the holder may have been preempted.
const SPINS: u32 = 200;
const YIELDS: u32 = 20;

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Lock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
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
        for round in 0u32.. {
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
            if round < YIELDS {
                thread::yield_now();
            } else {
                // The holder may wait for the very CPU that a real-time thread spins on.
                thread::nap_micros(50);
            }
        }
        Err(Reentered)
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
