//! Pages that a process shares with the children it forks.

use core::marker::PhantomData;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// A `T` in shared memory; the mapping lives as long as any process has it. All-zero bytes must be
/// a valid `T`, and `T` must be usable by several processes at once: atomics.
pub struct SharedPage<T: 'static> {
    at: *const T,
    _content: PhantomData<T>,
}

// SAFETY: only `&T` is handed out, and the constructor asks for `T: Sync`.
unsafe impl<T: Sync> Sync for SharedPage<T> {}
// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl<T: Sync> Send for SharedPage<T> {}

impl<const N: usize> SharedPage<[core::sync::atomic::AtomicU64; N]> {
    /// Atomic words, all zero. Memory is used from the first word of a page on that is not.
    pub fn of_words() -> rustix::io::Result<Self> {
        // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
        let at = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                N * size_of::<core::sync::atomic::AtomicU64>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        Ok(SharedPage { at: at.cast_const().cast(), _content: PhantomData })
    }

    pub fn get(&self) -> &'static [core::sync::atomic::AtomicU64; N] {
        // SAFETY: the mapping is page-aligned, zeroed (a valid array of atomics), as large as one, and
        // never unmapped.
        unsafe { &*self.at }
    }
}
