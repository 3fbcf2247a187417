//! Cancellation of threads: pthread_cancel(3).
//!
//! The C library ends a thread by unwinding its stack, which must not happen in the middle of a call of ours: it may
//! hold a lock or be registered as a sleeper. So a wait ends, as by a signal, when its thread is cancelled, and the
//! exported function acts upon it when everything is undone (`preload::cancel`). The C library has no function that
//! tells of a cancellation without acting upon it; `pthread_cancel` is therefore interposed, and notes the threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::lock::Lock;
use super::thread;

/// How often pthread_cancel() was called, and once more if a thread has chosen to be cancelled anywhere.
static CANCELS: AtomicU32 = AtomicU32::new(0);

/// Threads that were cancelled, by their number. Those that have ended are taken out now and then.
static CANCELLED: Lock<Vec<u32>> = Lock::new(Vec::new());
const MANY: usize = 64;

struct Local {
    /// The value of [`CANCELS`] up to which the thread has looked.
    seen: AtomicU32,
    /// A wait of the thread ended because the thread is cancelled.
    due: AtomicBool,
}

thread_local! {
    static LOCAL: Local = const { Local { seen: AtomicU32::new(0), due: AtomicBool::new(false) } };
}

const DISABLE: i32 = 1;
const DEFERRED: i32 = 0;
const ASYNCHRONOUS: i32 = 1;

unsafe extern "C" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// The kernel's number of a thread, from the clock that counts its time: bits 3 and above are the number,
/// inverted (linux/posix-timers.h).
pub fn number_of(thread: libc::pthread_t) -> Option<u32> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: a thread that may be joined, by the contract of pthread_cancel(); `clock` outlives the call.
    let found = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) } == 0;
    found.then_some(!(clock >> 3) as u32)
}

/// A thread was cancelled: its waits will find that they are to end.
pub fn note(number: u32) {
    if let Ok(mut cancelled) = CANCELLED.lock() {
        if cancelled.len() >= MANY {
            cancelled.retain(|thread| thread::is_thread(*thread));
        }
        if !cancelled.contains(&number) {
            cancelled.push(number);
        }
    }
    raise_count();
}

/// A thread wants to be cancelled anywhere.
pub fn note_asynchronous() {
    raise_count();
}

fn raise_count() {
    // 0 means that there was none.
    if CANCELS.fetch_add(1, Ordering::AcqRel) == u32::MAX {
        CANCELS.store(1, Ordering::Release);
    }
}

/// Has any thread been cancelled?
#[inline]
pub fn was_ever() -> bool {
    CANCELS.load(Ordering::Relaxed) != 0
}

/// For a wait: is its thread cancelled, and the wait to end?
#[inline]
pub fn is_due() -> bool {
    was_ever() && look()
}

#[cold]
fn look() -> bool {
    let now = CANCELS.load(Ordering::Acquire);
    let changed = LOCAL.with(|local| local.seen.swap(now, Ordering::Relaxed) != now);
    if changed && is_noted() && is_enabled() {
        LOCAL.with(|local| local.due.store(true, Ordering::Relaxed));
    }
    LOCAL.with(|local| local.due.load(Ordering::Relaxed))
}

/// Is the calling thread among those that were cancelled?
fn is_noted() -> bool {
    let own = thread::cached_id();
    CANCELLED.lock().is_ok_and(|cancelled| cancelled.contains(&own))
}

fn is_enabled() -> bool {
    disabled(|state| state != DISABLE)
}

/// Calls code of the program that a cancellation must not end, because it would unwind through calls of ours: the thread ends
/// afterwards. `code` is told whether the thread could be cancelled before.
pub fn disabled<T>(code: impl FnOnce(i32) -> T) -> T {
    let mut state = DISABLE;
    // SAFETY: `state` outlives the call.
    unsafe { pthread_setcancelstate(DISABLE, &mut state) };
    let result = code(state);
    // SAFETY: a state that the call above returned; no old one is asked for.
    unsafe { pthread_setcancelstate(state, core::ptr::null_mut()) };
    result
}

/// Did a wait of this thread end because of a cancellation? Tells it once.
#[inline]
pub fn take_due() -> bool {
    was_ever() && LOCAL.with(|local| local.due.swap(false, Ordering::Relaxed))
}

/// At a cancellation point, with nothing of ours held: does not return if the thread is cancelled.
#[cold]
#[inline(never)]
pub fn act() {
    LOCAL.with(|local| {
        // First: a cancellation after this one is found by the wait.
        local.seen.store(CANCELS.load(Ordering::Acquire), Ordering::Relaxed);
        local.due.store(false, Ordering::Relaxed);
    });
    // SAFETY: it may leave by unwinding. No frame of the library has anything to drop here, and a library that is
    // compiled with panic=abort has no landing pads: the unwinder passes its frames as longjmp() would.
    unsafe { pthread_testcancel() };
}

/// Is this the kind of cancellation that may happen anywhere?
pub fn is_asynchronous(kind: i32) -> bool {
    kind == ASYNCHRONOUS
}

/// The kind of cancellation during a call of ours.
pub const DURING_A_CALL: i32 = DEFERRED;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_number_is_found() {
        // SAFETY: takes nothing.
        let own = unsafe { libc::pthread_self() };
        assert_eq!(number_of(own), Some(thread::thread_id() as u32));
    }

    #[test]
    fn only_a_noted_threads_wait_ends_and_once() {
        std::thread::spawn(|| {
            assert!(!is_due());
            note(thread::cached_id() + 1_000_000);
            assert!(!is_due());
            note(thread::cached_id());
            assert!(is_due() && is_due());
            assert!(take_due() && !take_due());
            // Until somebody is cancelled again there is nothing new to find.
            assert!(!is_due());
        })
        .join()
        .unwrap();
    }
}
