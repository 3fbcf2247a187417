//! Our end of the AF_XDP rings: producing (fill, TX) and consuming (RX, completion).
//!
//! A ring is an array of a power of two of entries and two free-running indices. Each index
//! has one writer; who advances it releases the entries before it to the other side:
//!
//! 1. the producer writes entries, then stores its index with release ordering; the consumer
//!    loads that index with acquire ordering, then reads the entries;
//! 2. the consumer reads entries, then stores its index with release ordering; the producer
//!    loads that index with acquire ordering before it writes the entries again.
//!
//! Both ends keep a copy of both indices and look at the shared ones only when the copies say
//! full or empty, so a burst costs one cache miss.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingOffset};

/// The end that writes entries.
pub struct Producer<T> {
    ring: Ring<T>,
    next: u32,
    limit: u32, // the consumer's index, as last seen, plus the size
}

impl<T: Entry> Producer<T> {
    pub fn new(ring: Ring<T>) -> Self {
        let next = ring.producer().load(Ordering::Relaxed);
        let limit = ring.consumer().load(Ordering::Acquire).wrapping_add(ring.size());
        Self { ring, next, limit }
    }

    /// Writes an entry, which the other side sees after [`submit`](Self::submit). False when
    /// the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if self.next == self.limit {
            self.limit =
                self.ring.consumer().load(Ordering::Acquire).wrapping_add(self.ring.size());
            if self.next == self.limit {
                return false;
            }
        }
        self.ring.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    #[inline]
    pub fn submit(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }
}

/// The end that reads entries.
pub struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    limit: u32, // the producer's index, as last seen
}

impl<T: Entry> Consumer<T> {
    pub fn new(ring: Ring<T>) -> Self {
        let next = ring.consumer().load(Ordering::Relaxed);
        Self { ring, next, limit: next }
    }

    /// Reads an entry. Entries are given back to the producer when the burst is used up.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.next == self.limit {
            self.limit = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.limit {
                return None;
            }
        }
        let entry = self.ring.read(self.next);
        self.next = self.next.wrapping_add(1);
        if self.next == self.limit {
            self.ring.consumer().store(self.next, Ordering::Release);
        }
        Some(entry)
    }
}

/// What a ring holds.
///
/// # Safety
///
/// Every bit pattern must be a value: the kernel writes entries.
pub unsafe trait Entry: Copy {}

// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers, in `repr(C)`, without padding; the flags keep unknown bits.
unsafe impl Entry for XdpDesc {}

/// The shared memory of one ring.
pub struct Ring<T> {
    mapping: NonNull<c_void>,
    length: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

impl<T: Entry> Ring<T> {
    /// Maps a ring of `size` entries of an AF_XDP socket. `page` says which ring; `T` must be
    /// its kind of entry: `u64` for fill and completion, `XdpDesc` for RX and TX.
    pub fn map(
        socket: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> Result<Self> {
        assert!(size.is_power_of_two());
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: the kernel chooses the address (null), so no existing mapping is replaced.
        let mapping = unsafe { mmap(ptr::null_mut(), length, protection, flags, socket, page) }
            .context("map an AF_XDP ring")?;
        let at = |offset: u64| {
            let field: *mut u8 = mapping.cast::<u8>().wrapping_add(offset as usize);
            NonNull::new(field).context("an AF_XDP ring is mapped at address 0")
        };
        Ok(Self {
            mapping: at(0)?.cast(),
            length,
            producer: at(offsets.producer)?.cast(),
            consumer: at(offsets.consumer)?.cast(),
            entries: at(offsets.desc)?.cast(),
            mask: size - 1,
        })
    }

    fn size(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the kernel's offset of an aligned 32-bit index inside the mapping, which
        // lives as long as `self`; the other side accesses it as an atomic, too.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        let entry = self.entry(index);
        // SAFETY: `entry` is inside the mapping, and by `Entry` whatever the kernel wrote
        // there is a value.
        unsafe { entry.read_volatile() }
    }

    #[inline]
    fn write(&mut self, index: u32, entry: T) {
        let place = self.entry(index);
        // SAFETY: `place` is inside the mapping, and writable: the mapping is.
        unsafe { place.write_volatile(entry) }
    }

    /// The place of entry `index`, always inside the mapping: the mask is ours, not the
    /// kernel's, and `map` mapped `mask + 1` entries.
    #[inline]
    fn entry(&self, index: u32) -> *mut T {
        self.entries.as_ptr().wrapping_add((index & self.mask) as usize)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the very mapping that `map` made; only `self` points into it, and `self`
        // ends here.
        let unmapped = unsafe { munmap(self.mapping.as_ptr(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// Both ends of one ring, over a memfd in the kernel's place.
    fn pair(size: u32) -> (Producer<u64>, Consumer<u64>) {
        let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: None };
        let memory = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 128 + u64::from(size) * 8).unwrap();
        let end = || Ring::map(memory.as_fd(), 0, &offsets, size).unwrap();
        (Producer::new(end()), Consumer::new(end()))
    }

    #[test]
    fn entries_arrive_in_order_after_submit() {
        let (mut producer, mut consumer) = pair(4);
        assert!(producer.push(7));
        assert_eq!(consumer.pop(), None);
        assert!(producer.push(8));
        producer.submit();
        assert_eq!(consumer.pop(), Some(7));
        assert_eq!(consumer.pop(), Some(8));
        assert_eq!(consumer.pop(), None);
    }

    #[test]
    fn a_full_ring_takes_more_when_its_burst_was_consumed() {
        let (mut producer, mut consumer) = pair(4);
        for round in 0..10_u64 {
            for entry in 0..4 {
                assert!(producer.push(4 * round + entry));
            }
            assert!(!producer.push(99));
            producer.submit();
            for entry in 0..4 {
                assert_eq!(consumer.pop(), Some(4 * round + entry));
            }
        }
    }
}
