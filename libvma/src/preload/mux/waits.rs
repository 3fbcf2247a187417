//! Threads that wait in the kernel for an epoll instance that has no socket of ours so far.
//!
//! If it gets one they must come back, because the kernel tells nothing of that socket: see
//! [`call_back`].

use core::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering, fence};

use crate::preload::real;
use crate::sys::thread::{self, nap_millis};
use crate::sys::wait::Waker;

/// Threads that wait in the kernel right now: the epoll descriptor above the thread's number. A thread that is cancelled
/// leaves its entry behind.
static KERNEL_WAITS: [AtomicU64; 64] = [const { AtomicU64::new(FREE) }; 64];
const FREE: u64 = u64::MAX;
/// Threads that found no place in the list.
static UNLISTED_WAITS: AtomicI32 = AtomicI32::new(0);

/// A thread's wait, for as long as it lives.
pub struct KernelWait(Option<&'static AtomicU64>);

impl KernelWait {
    pub fn on(epfd: c_int) -> KernelWait {
        let entry = u64::from(epfd as u32) << 32 | u64::from(thread::cached_id());
        let place = KERNEL_WAITS.iter().find(|place| {
            place.compare_exchange(FREE, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if place.is_none() {
            UNLISTED_WAITS.fetch_add(1, Ordering::AcqRel);
        }
        // Before the thread looks (again) whether the instance has a socket of ours: either it sees
        // that, or whoever adds the socket sees the wait.
        fence(Ordering::SeqCst);
        KernelWait(place)
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        match self.0 {
            Some(place) => place.store(FREE, Ordering::Release),
            None => {
                UNLISTED_WAITS.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// In a fresh child, in which nobody waits.
pub fn after_fork() {
    KERNEL_WAITS.iter().for_each(|place| place.store(FREE, Ordering::Relaxed));
    UNLISTED_WAITS.store(0, Ordering::Relaxed);
}

fn waiting_in_kernel(epfd: c_int) -> bool {
    fence(Ordering::SeqCst);
    UNLISTED_WAITS.load(Ordering::Acquire) > 0
        || KERNEL_WAITS.iter().any(|place| waits(place, epfd))
}

fn waits(place: &AtomicU64, epfd: c_int) -> bool {
    let entry = place.load(Ordering::Acquire);
    if entry == FREE || (entry >> 32) as u32 != epfd as u32 {
        return false;
    }
    if thread::is_thread(entry as u32) {
        return true;
    }
    let _ = place.compare_exchange(entry, FREE, Ordering::AcqRel, Ordering::Relaxed);
    false
}

/// What names the event that calls a thread back: no program has this address among its data.
static CALL: u8 = 0;

fn call_data() -> u64 {
    core::ptr::from_ref(&CALL).expose_provenance() as u64
}

const YIELDS: u32 = 20;
const PATIENCE_MILLIS: u32 = 50;

/// Makes the threads that wait for an instance in the kernel return, with an event that only
/// [`strip`] sees. False if some did not.
#[cold]
pub fn call_back(epfd: c_int) -> bool {
    if !waiting_in_kernel(epfd) {
        return true;
    }
    let Ok(waker) = Waker::new() else { return false };
    waker.wake();
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: call_data() };
    // SAFETY: `event` is an event that outlives the call.
    if unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, waker.raw(), &mut event) } != 0 {
        return false;
    }
    for _ in 0..YIELDS {
        std::thread::yield_now();
    }
    let mut waiting = waiting_in_kernel(epfd);
    for _ in 0..PATIENCE_MILLIS {
        if !waiting {
            break;
        }
        nap_millis(1);
        waiting = waiting_in_kernel(epfd);
    }
    // SAFETY: as above.
    unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, waker.raw(), &mut event) };
    !waiting
}

/// Takes the event of a call back out of the kernel's; returns how many are left, or None if there
/// was none.
pub fn strip(events: &mut [libc::epoll_event]) -> Option<usize> {
    let at = events.iter().position(|event| { event.u64 } == call_data())?;
    events.get_mut(at..)?.rotate_left(1);
    Some(events.len() - 1)
}
