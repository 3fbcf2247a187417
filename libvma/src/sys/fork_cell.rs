//! A pointer that a forked child finds empty again.
//!
//! After `fork()` the child owns copies of memory that describe rings and a thread which it does
//! not have. The kernel gives the cell's page to a child zeroed (`MADV_WIPEONFORK`), also after a
//! raw `clone()` that no fork handler sees, so the child starts afresh at its first socket. A
//! `vfork()` child shares the page and still sees the parent's value: see `preload::fork`.

use super::thread;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const PAGE: usize = 4096;

/// What lies at the start of the page.
struct Contents<T> {
    value: AtomicPtr<T>,
    /// [`EMPTY`], [`READY`], or the thread that is making the value.
    state: AtomicU32,
    /// Somebody has waited in vain: nobody does again.
    in_vain: AtomicU32,
}

const EMPTY: u32 = 0;
/// No thread has this number.
const READY: u32 = u32::MAX;
/// The longest that a thread waits for another to make the value.
const PATIENCE_MILLIS: u32 = 2000;

pub struct ForkCell<T: 'static> {
    page: AtomicPtr<Contents<T>>,
}

impl<T: Sync> ForkCell<T> {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use is meant to be a new cell")]
    pub const EMPTY: Self = ForkCell { page: AtomicPtr::new(std::ptr::null_mut()) };

    /// The value, if this very process (not an ancestor) has set it. Two loads.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let page = self.page.load(Ordering::Acquire);
        if page.is_null() {
            return None;
        }
        // SAFETY: a non-null `page` was mapped by `page()`, is aligned, large enough, never
        // unmapped, and all-zero bytes are valid atomics.
        let contents = unsafe { &*page };
        let value = contents.value.load(Ordering::Acquire);
        // SAFETY: `value` is null or came from Box::leak in `get_or_init`, so it lives for ever.
        unsafe { value.as_ref() }
    }

    /// The value; made by the first caller, for whom others wait. `None` while this very thread,
    /// further down its stack or under a signal handler, is still making it, or if that takes too
    /// long: the caller then treats its socket as the kernel's.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> Option<&'static T> {
        if let Some(value) = self.get() {
            return Some(value);
        }
        let contents = self.page()?;
        let own = thread::cached_id();
        if let Err(maker) =
            contents.state.compare_exchange(EMPTY, own, Ordering::AcqRel, Ordering::Acquire)
        {
            for _ in 0..PATIENCE_MILLIS {
                let in_vain = contents.in_vain.load(Ordering::Relaxed) != 0;
                if maker == own || in_vain || contents.state.load(Ordering::Acquire) == READY {
                    return self.get();
                }
                thread::nap_millis(1);
            }
            contents.in_vain.store(1, Ordering::Relaxed);
            return self.get();
        }
        let value: &'static T = Box::leak(Box::new(make()));
        contents.value.store(std::ptr::from_ref(value).cast_mut(), Ordering::Release);
        contents.state.store(READY, Ordering::Release);
        Some(value)
    }

    fn page(&self) -> Option<&'static Contents<T>> {
        let mut page = self.page.load(Ordering::Acquire);
        if page.is_null() {
            let fresh = map_wiped_page()?.cast::<Contents<T>>();
            page = match self.page.compare_exchange(
                std::ptr::null_mut(),
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => fresh,
                Err(winner) => {
                    // SAFETY: `fresh` is a mapping of PAGE bytes made above that nobody else saw.
                    let _ = unsafe { rustix::mm::munmap(fresh.cast(), PAGE) };
                    winner
                }
            };
        }
        // SAFETY: as in `get`.
        Some(unsafe { &*page })
    }
}

/// A reference to something that lives for ever, in memory that a child inherits: unlike a
/// [`ForkCell`], a child finds what its parent had.
pub struct LeakedRef<T: 'static>(AtomicPtr<T>);

impl<T: Sync> LeakedRef<T> {
    pub const fn none() -> Self {
        LeakedRef(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub fn set(&self, value: &'static T) {
        self.0.store(std::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }

    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a reference for ever, by `set`; a child has its own copy of the value.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

fn map_wiped_page() -> Option<*mut core::ffi::c_void> {
    // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
    let page = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: `page` is the mapping of exactly PAGE bytes made above.
    if unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // Linux before 4.14: without the mark a child would use its parent's rings.
        // SAFETY: as above, and nobody else knows the mapping.
        let _ = unsafe { rustix::mm::munmap(page, PAGE) };
        return None;
    }
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_initialisation_returns_the_first_value() {
        let cell: ForkCell<u32> = ForkCell::EMPTY;
        assert!(cell.get().is_none());
        assert_eq!(cell.get_or_init(|| 7).copied(), Some(7));
        assert_eq!(cell.get_or_init(|| 8).copied(), Some(7));
    }

    #[test]
    fn re_entry_while_starting_yields_none() {
        let cell: ForkCell<u32> = ForkCell::EMPTY;
        let outer = cell.get_or_init(|| {
            assert!(cell.get_or_init(|| 1).is_none());
            2
        });
        assert_eq!(outer.copied(), Some(2));
    }

    #[test]
    fn threads_that_come_together_get_the_same_value() {
        let cell: ForkCell<u32> = ForkCell::EMPTY;
        let barrier = std::sync::Barrier::new(8);
        let make = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            thread::cached_id()
        };
        let values: Vec<Option<u32>> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                cell.get_or_init(make).copied()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(
            values[0].is_some() && values.iter().all(|value| *value == values[0]),
            "{values:?}"
        );
    }

    #[test]
    fn a_forked_child_finds_the_cell_empty() {
        static CELL: ForkCell<u32> = ForkCell::EMPTY;
        assert_eq!(CELL.get_or_init(|| 3).copied(), Some(3));
        // SAFETY: the child only reads an atomic and calls _exit, both async-signal-safe.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = if CELL.get().is_none() { 0 } else { 1 };
            // SAFETY: _exit ends the child without running the parent's handlers.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `pid` is our child and `status` outlives the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(CELL.get().copied(), Some(3));
    }
}
