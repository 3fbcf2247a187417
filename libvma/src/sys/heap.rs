//! The library's own memory, apart from the program's malloc().
//!
//! Socket calls are async-signal-safe (signal-safety(7)): a handler that interrupted malloc() may call send() or
//! close(). Were the memory for it libc's, it would wait for a lock that its own thread holds. So all memory of the
//! library comes from a heap of its own, whose lock is one of ours: handlers do not run above it
//! ([`sys::lock`](super::lock)). The program's allocator, be it libc's or another one, never sees the library.
//!
//! The heap itself is dlmalloc. Here stand the lock, fork(), and what happens should a handler get through after
//! all: the memory comes from a small reserve then, which is never given back. Large chunks are mappings of their
//! own, without the lock: dlmalloc would write zeros to a table of which a few pages are ever used.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

use super::lock::{Guard, Lock, Reentered};
use super::thread;

/// Chunks of so many bytes are mappings.
const LARGE: usize = 256 * 1024;
/// Mappings are aligned so.
const PAGE: usize = 4096;

pub struct Heap {
    chunks: Lock<Dlmalloc>,
    /// The lock is held by a thread that forks, which may use the heap meanwhile: handlers of pthread_atfork() run.
    forking: AtomicBool,
    /// By this guard.
    held: UnsafeCell<Option<Guard<'static, Dlmalloc>>>,
    reserve: Reserve,
}

// SAFETY: `held` is touched only by the thread that holds the lock of `chunks`; Reserve says why it may be shared.
unsafe impl Sync for Heap {}

impl Heap {
    pub const fn empty() -> Heap {
        Heap {
            chunks: Lock::new(Dlmalloc::new()),
            forking: AtomicBool::new(false),
            held: UnsafeCell::new(None),
            reserve: Reserve::new(),
        }
    }

    /// Before a fork: no other thread is in the middle of the heap when it is copied. Not to be called twice without
    /// [`release`](Heap::release) in between.
    pub fn hold(&'static self) {
        let Ok(guard) = self.chunks.lock() else { return };
        // SAFETY: this thread has the lock.
        unsafe { *self.held.get() = Some(guard) };
        self.forking.store(true, Ordering::Relaxed);
    }

    /// After a fork, in the parent and in the child, by the thread that has called [`hold`](Heap::hold).
    pub fn release(&'static self) {
        if self.forking.swap(false, Ordering::Relaxed) {
            // SAFETY: `forking` was set, so this is the thread that holds the lock.
            drop(unsafe { (*self.held.get()).take() });
        }
    }

    /// None: this thread is in the middle of the heap already, below a handler.
    fn with<R>(&self, work: impl FnOnce(&mut Dlmalloc) -> R) -> Option<R> {
        match self.chunks.lock() {
            Ok(mut chunks) => Some(work(&mut chunks)),
            Err(Reentered) if self.forking.load(Ordering::Relaxed) => {
                // SAFETY: this thread has the lock, by the guard in `held`. Handlers are put off, so nothing
                // of it is in the middle of `work`.
                let held = unsafe { (*self.held.get()).as_mut() };
                held.map(|chunks| work(chunks))
            }
            Err(Reentered) => None,
        }
    }
}

// SAFETY: dlmalloc returns chunks as GlobalAlloc wants them, and is entered by one thread at a time; pieces of the
// reserve overlap neither each other nor a chunk, and never go back to dlmalloc.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        thread::count_allocation();
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the size is not 0, and the alignment a power of two, as the caller promises.
        let chunk = self.with(|chunks| unsafe { chunks.malloc(layout.size(), layout.align()) });
        chunk.unwrap_or_else(|| self.reserve.take(layout))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        thread::count_allocation();
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: as in `alloc`.
        let chunk = self.with(|chunks| unsafe { chunks.calloc(layout.size(), layout.align()) });
        chunk.unwrap_or_else(|| self.reserve.take(layout))
    }

    unsafe fn dealloc(&self, chunk: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            // SAFETY: mapped by `map`, with this size, for such chunks come from nowhere else; nobody uses it any more, as
            // the caller promises.
            let unmapped = unsafe { munmap(chunk.cast(), layout.size()) };
            debug_assert!(unmapped.is_ok());
        } else if !self.reserve.has(chunk) {
            // A chunk that a handler gives back in the middle of the heap is lost.
            // SAFETY: of this heap and of that layout, as the caller promises, and not of the reserve.
            self.with(|chunks| unsafe { chunks.free(chunk, layout.size(), layout.align()) });
        }
    }

    unsafe fn realloc(&self, chunk: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is not 0 and fits the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let mapped = (is_mapped(layout), is_mapped(new));
        if mapped == (true, true) {
            thread::count_allocation();
            // SAFETY: a whole mapping of that size, which the caller alone uses.
            let moved = unsafe { mremap(chunk.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
            return moved.map_or(ptr::null_mut(), |moved| moved.cast());
        }
        if mapped == (false, false) && !self.reserve.has(chunk) {
            thread::count_allocation();
            let (old, align) = (layout.size(), layout.align());
            // SAFETY: as in `dealloc`; the new size is not 0, as the caller promises.
            let moved = self.with(|chunks| unsafe { chunks.realloc(chunk, old, align, size) });
            if let Some(moved) = moved {
                return moved;
            }
        }
        // SAFETY: the size is not 0, as the caller promises.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both have at least so many bytes, and they do not overlap.
            unsafe { ptr::copy_nonoverlapping(chunk, moved, layout.size().min(size)) };
            // SAFETY: as the caller promises of `chunk`.
            unsafe { self.dealloc(chunk, layout) };
        }
        moved
    }
}

/// The answer depends on nothing else, so that it is the same when the chunk is given back.
#[inline]
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// Zeroed; null if there is no memory.
#[cold]
fn map(size: usize) -> *mut u8 {
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let mapping = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    mapping.map_or(ptr::null_mut(), |mapping| mapping.cast())
}

const RESERVE: usize = 64 * 1024;

/// Memory that takes no lock: each piece is handed out once.
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE]>,
    used: AtomicUsize,
}

impl Reserve {
    const fn new() -> Reserve {
        Reserve { bytes: UnsafeCell::new([0; RESERVE]), used: AtomicUsize::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Zeroed; null if there is not so much left.
    fn take(&self, layout: Layout) -> *mut u8 {
        let start = self.start().addr();
        let mut taken = None;
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let first = (start + used).next_multiple_of(layout.align()) - start;
            let end = first.checked_add(layout.size())?;
            taken = (end <= RESERVE).then_some(first);
            taken.map(|_| end)
        });
        taken.map_or(ptr::null_mut(), |first| self.start().wrapping_add(first))
    }

    fn has(&self, piece: *mut u8) -> bool {
        piece.addr().wrapping_sub(self.start().addr()) < RESERVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn filled(heap: &Heap, layout: Layout, byte: u8) -> *mut u8 {
        // SAFETY: the size is not 0.
        let chunk = unsafe { heap.alloc(layout) };
        assert!(!chunk.is_null() && chunk.addr() % layout.align() == 0);
        // SAFETY: so many bytes have just been allocated.
        unsafe { chunk.write_bytes(byte, layout.size()) };
        chunk
    }

    fn holds(chunk: *mut u8, len: usize, byte: u8) -> bool {
        // SAFETY: the tests ask of what they have allocated and written.
        unsafe { std::slice::from_raw_parts(chunk, len) }.iter().all(|each| *each == byte)
    }

    #[test]
    fn chunks_keep_their_bytes_and_alignment_as_they_come_and_go() {
        let heap = Heap::empty();
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut kept: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for round in 0..20_000 {
            if kept.len() < 100 {
                let new = layout(1 + random(5000), 1 << random(10));
                kept.push((filled(&heap, new, round as u8), new, round as u8));
                continue;
            }
            let (chunk, old, byte) = kept.swap_remove(random(100));
            assert!(holds(chunk, old.size(), byte));
            // Some cross the limit of mappings in either direction.
            let size =
                if round % 50 == 0 { LARGE - 5000 + random(10_000) } else { 1 + random(9000) };
            // SAFETY: allocated with this layout, and the size is not 0.
            let moved = unsafe { heap.realloc(chunk, old, size) };
            assert!(holds(moved, size.min(old.size()), byte));
            let (old, least) = (layout(size, old.align()), size.min(old.size()));
            let size = 1 + size / 2 + random(size * 2);
            // SAFETY: as above.
            let moved = unsafe { heap.realloc(moved, old, size) };
            assert!(holds(moved, least.min(size), byte));
            // SAFETY: allocated with this layout.
            unsafe { heap.dealloc(moved, layout(size, old.align())) };
        }
    }

    #[test]
    fn zeroed_memory_is_zero_also_where_other_bytes_were() {
        let heap = Heap::empty();
        for size in [1, 100, 5000, 300_000] {
            let used = filled(&heap, layout(size, 8), 0xff);
            // SAFETY: allocated with this layout.
            unsafe { heap.dealloc(used, layout(size, 8)) };
            // SAFETY: the size is not 0.
            let zeroed = unsafe { heap.alloc_zeroed(layout(size, 8)) };
            assert!(holds(zeroed, size, 0));
        }
    }

    #[test]
    fn a_handler_in_the_middle_of_the_heap_gets_memory_of_the_reserve() {
        let heap = Heap::empty();
        let ordinary = filled(&heap, layout(100, 8), 1);
        let in_the_middle = heap.chunks.lock().expect("free");
        let first = filled(&heap, layout(100, 64), 2);
        let second = filled(&heap, layout(1000, 8), 3);
        assert!(heap.reserve.has(first) && heap.reserve.has(second));
        // SAFETY: allocated with this layout; it is lost, because the heap cannot be entered.
        unsafe { heap.dealloc(ordinary, layout(100, 8)) };
        // SAFETY: the size is not 0.
        assert!(unsafe { heap.alloc(layout(RESERVE, 8)) }.is_null(), "more than there is");
        drop(in_the_middle);
        assert!(holds(first, 100, 2) && holds(second, 1000, 3));
        // SAFETY: allocated with this layout, and the size is not 0.
        let moved = unsafe { heap.realloc(second, layout(1000, 8), 2000) };
        assert!(!heap.reserve.has(moved) && holds(moved, 1000, 3));
    }

    #[test]
    fn a_thread_that_forks_may_allocate_and_the_others_wait() {
        static HEAP: Heap = Heap::empty();
        static DONE: AtomicBool = AtomicBool::new(false);
        HEAP.hold();
        let other = std::thread::spawn(|| {
            let chunk = filled(&HEAP, layout(100, 8), 4);
            DONE.store(true, Ordering::Release);
            chunk.addr()
        });
        for _ in 0..1000 {
            let chunk = filled(&HEAP, layout(100, 8), 5);
            assert!(!HEAP.reserve.has(chunk), "the heap itself");
            std::thread::yield_now();
        }
        assert!(!DONE.load(Ordering::Acquire));
        HEAP.release();
        other.join().unwrap();
        let chunk = filled(&HEAP, layout(100, 8), 6);
        assert!(!HEAP.reserve.has(chunk));
    }
}
