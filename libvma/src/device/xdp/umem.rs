//! The memory that frames live in, shared with the kernel: a UMEM, or an array of the steering program.

use core::ptr::NonNull;

use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use libvma_engine::frame::Extent;

/// A chunk holds a whole frame at the usual MTU; larger packets arrive as chains. Twice as many
/// of these fit into the same memory as of 4096 byte chunks, which would take super-frames of 64 KiB
/// only some 4 % faster.
pub const CHUNK: u32 = 2048;

/// Bytes of a cache line.
const LINE: usize = 64;
/// The headers and a small payload.
const PREFETCHED: usize = 4 * LINE;
/// A packet begins so many bytes into its chunk (XDP_PACKET_HEADROOM).
const KERNEL_HEADROOM: u64 = 256;
/// Of a packet that has not come yet: headers with timestamps, and 64 bytes or more.
const EXPECTED: u32 = 3 * LINE as u32;

pub struct Umem {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the value, not to a thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Memory of a BPF map, for a steering program that writes to it itself.
    pub fn of_map(map: impl AsFd, chunks: u32) -> rustix::io::Result<Umem> {
        let len = chunks as usize * CHUNK as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
        let base =
            unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, map, 0) }?;
        // SAFETY: `base` is the mapping of `len` bytes made above.
        let marked = unsafe { madvise(base, len, Advice::LinuxDontFork) };
        let umem = Umem { base: NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?, len };
        marked.map(|()| umem)
    }

    pub fn new(chunks: u32) -> rustix::io::Result<Umem> {
        let len = chunks as usize * CHUNK as usize;
        // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
        let base = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        // The kernel pins these pages. A child must neither inherit them nor, by copy-on-write,
        // leave the parent with pages that the kernel no longer writes to.
        // SAFETY: `base` is the mapping of `len` bytes made above.
        let marked = unsafe { madvise(base, len, Advice::LinuxDontFork) };
        // Whole huge pages where there are any: registering pins page by page. Not a condition.
        // SAFETY: as above.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        let umem = Umem { base: NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?, len };
        marked.map(|()| umem)
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// The bytes of an extent; empty if it does not lie within the memory.
    ///
    /// The kernel and the steering program write only to chunks that were offered and have not come
    /// back, and read only those in the TX ring. The caller holds the `Frame` of the chunk, so it is in none of them.
    #[inline]
    pub fn bytes(&self, extent: Extent) -> &[u8] {
        match self.checked(extent) {
            // SAFETY: `checked` proved offset + len <= self.len; the memory is initialised
            // (an anonymous mapping, or a BPF array) and, by the ownership rule above, not written while borrowed.
            Some((start, len)) => unsafe { core::slice::from_raw_parts(start, len) },
            None => &[],
        }
    }

    /// The bytes of an extent, to write into.
    #[inline]
    pub fn bytes_mut(&mut self, extent: Extent) -> &mut [u8] {
        match self.checked(extent) {
            // SAFETY: as in `bytes`; `&mut self` keeps every other borrow of the memory away.
            Some((start, len)) => unsafe { core::slice::from_raw_parts_mut(start, len) },
            None => &mut [],
        }
    }

    /// Starts to fetch the beginning of an extent into the cache: another processor wrote it, and
    /// the lines come one after the other otherwise, each when it is read first.
    #[inline]
    pub fn prefetch(&self, extent: Extent) {
        if let Some((start, len)) = self.checked(extent) {
            for at in (0..len.min(PREFETCHED)).step_by(LINE) {
                prefetch(start.wrapping_add(at).cast_const());
            }
        }
    }

    /// Where AF_XDP puts a packet in a chunk that begins here.
    #[inline]
    pub fn packet_in(chunk: u64) -> u64 {
        chunk.saturating_add(KERNEL_HEADROOM)
    }

    /// As [`Umem::prefetch`], for a packet that has not come yet.
    #[inline]
    pub fn prefetch_expected(&self, offset: u64) {
        self.prefetch(Extent { offset, len: EXPECTED });
    }

    #[inline]
    fn checked(&self, extent: Extent) -> Option<(*mut u8, usize)> {
        let end = extent.offset.checked_add(u64::from(extent.len))?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: offset <= end <= len, so the result stays inside the mapping.
        let start = unsafe { self.base.as_ptr().add(extent.offset as usize) };
        Some((start, extent.len as usize))
    }
}

/// Starts to fetch a cache line.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing that the program sees, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping, which nothing refers to any more: the
        // queues that registered it are dropped first (field order in `Ring`).
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_outside_the_memory_is_empty() {
        let umem = Umem::new(2).expect("memory");
        assert_eq!(umem.bytes(Extent { offset: 4096, len: 1 }).len(), 0);
        assert_eq!(umem.bytes(Extent { offset: u64::MAX, len: 2 }).len(), 0);
        assert_eq!(umem.bytes(Extent { offset: 4095, len: 1 }).len(), 1);
    }
}
