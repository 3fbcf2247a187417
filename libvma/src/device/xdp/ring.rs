//! The four rings of an AF_XDP socket: single-producer, single-consumer, shared with the kernel.
//!
//! One cursor for both directions. The kernel's documentation (af_xdp.rst) gives the protocol: the
//! producer writes entries, then publishes its index with release order; the consumer reads that
//! index with acquire order, then the entries, then publishes its own. Our index is kept here and
//! never read back from the mapping, so whatever else writes there cannot move it.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

use super::umem::prefetch;

/// Set by the kernel in the flags word when it wants a system call to go on
/// (XDP_RING_NEED_WAKEUP).
const NEED_WAKEUP: u32 = 1;

/// `struct xdp_desc`: an entry of the RX and TX rings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub options: u32,
}

/// In `options`: more descriptors of the same packet follow (XDP_PKT_CONTD).
pub const CONTINUED: u32 = 1;

/// In the upper half of a received descriptor's options, which mean nothing to AF_XDP: the bytes of each
/// datagram of a train.
pub const SEGMENT_SHIFT: u32 = 16;

/// Memory shared with the kernel. Not inherited over fork: a child that kept it would keep the socket,
/// and with it the parent's traffic, alive.
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to the value, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// What the kernel and we write.
    pub fn shared(file: impl AsFd, offset: u64, len: usize) -> rustix::io::Result<Mapping> {
        // SAFETY: a null hint asks for a new mapping, so no existing memory is touched.
        let base = unsafe {
            mmap(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                offset,
            )
        }?;
        // SAFETY: `base` is the mapping of `len` bytes made above.
        let marked = unsafe { madvise(base, len, Advice::LinuxDontFork) };
        let mapping = Mapping { base: base.cast(), len };
        marked.map(|()| mapping)
    }

    /// A pointer to a `T` at `offset`.
    pub fn at<T>(&self, offset: u64) -> *mut T {
        let offset = offset as usize;
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of a mapping that only this value refers to.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Our end of one ring; `T` is the entry: [`Descriptor`] (RX, TX) or `u64` (fill, completion).
pub struct Cursor<T> {
    _mapping: Mapping,
    ours: *const AtomicU32,
    theirs: *const AtomicU32,
    flags: *const AtomicU32,
    entries: *mut T,
    size: u32,
    /// Our index, published by [`Cursor::publish`].
    index: u32,
    /// The other side's index as last read.
    seen: u32,
    _entry: PhantomData<T>,
}

// SAFETY: the pointers go into a mapping that the value owns; nothing in it belongs to a thread.
unsafe impl<T: Send> Send for Cursor<T> {}

impl<T: Copy> Cursor<T> {
    /// Maps a ring that we produce into (fill, TX).
    pub fn producer(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> rustix::io::Result<Cursor<T>> {
        Self::map(socket, page_offset, offsets, size, true)
    }

    /// Maps a ring that we consume from (RX, completion).
    pub fn consumer(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> rustix::io::Result<Cursor<T>> {
        Self::map(socket, page_offset, offsets, size, false)
    }

    fn map(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
        producing: bool,
    ) -> rustix::io::Result<Cursor<T>> {
        debug_assert!(size.is_power_of_two());
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let mapping = Mapping::shared(socket, page_offset, len)?;
        let producer = mapping.at::<AtomicU32>(offsets.producer).cast_const();
        let consumer = mapping.at::<AtomicU32>(offsets.consumer).cast_const();
        // Before Linux 5.4 there is no flags word, and binding fails for want of need_wakeup: the
        // producer index only stands in until then.
        let flags = mapping.at::<AtomicU32>(offsets.flags.unwrap_or(offsets.producer)).cast_const();
        let entries = mapping.at::<T>(offsets.desc);
        let (ours, theirs) = if producing { (producer, consumer) } else { (consumer, producer) };
        Ok(Cursor {
            _mapping: mapping,
            ours,
            theirs,
            flags,
            entries,
            size,
            index: 0,
            seen: 0,
            _entry: PhantomData,
        })
    }

    /// Entries that can be produced now. At most `size`, whatever the mapping says.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let free = self.size.saturating_sub(self.index.wrapping_sub(self.seen));
        if free >= wanted {
            return free;
        }
        self.seen = self.load_theirs();
        self.size.saturating_sub(self.index.wrapping_sub(self.seen))
    }

    /// Writes an entry; the caller has asked [`Cursor::room`] before.
    #[inline]
    pub fn produce(&mut self, entry: T) {
        let slot = self.slot(self.index);
        // SAFETY: `slot` is valid and aligned; between `seen` and `seen + size` the kernel does
        // not touch entries until they are published.
        unsafe { slot.write_volatile(entry) };
        self.index = self.index.wrapping_add(1);
    }

    /// The entry that was produced last, if it is not published yet.
    pub fn last_unpublished(&self) -> Option<T> {
        (self.unpublished() > 0).then(|| self.glance(self.index.wrapping_sub(1)))
    }

    /// Takes back the entry that [`Cursor::last_unpublished`] tells.
    pub fn unproduce(&mut self) {
        if self.unpublished() > 0 {
            self.index = self.index.wrapping_sub(1);
        }
    }

    /// The next entry to consume, if there is one.
    #[inline]
    pub fn consume(&mut self) -> Option<T> {
        if self.index == self.seen {
            let theirs = self.load_theirs();
            // More than `size` ahead is impossible in a sane ring: take it as empty.
            if theirs.wrapping_sub(self.index) > self.size || theirs == self.index {
                return None;
            }
            self.seen = theirs;
        }
        let slot = self.slot(self.index);
        // SAFETY: `slot` is valid and aligned, and published by the kernel (acquire load above).
        let entry = unsafe { slot.read_volatile() };
        self.index = self.index.wrapping_add(1);
        Some(entry)
    }

    /// Starts to fetch the entry that comes next, for a caller that polls for it: it then comes
    /// together with the index that tells of it, not after that.
    #[inline]
    pub fn prefetch_next(&self) {
        prefetch(self.slot(self.index).cast());
    }

    /// The index of the next entry to produce or to consume.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What lies at an index, for hints: it need not be an entry of now.
    #[inline]
    pub fn glance(&self, index: u32) -> T {
        // SAFETY: the slot is valid and aligned; any bits are a descriptor or a number.
        unsafe { self.slot(index).read_volatile() }
    }

    /// Makes what was produced visible, or gives back what was consumed.
    #[inline]
    pub fn publish(&mut self) {
        // SAFETY: `ours` points into the mapping, see `map`.
        unsafe { &*self.ours }.store(self.index, Ordering::Release);
    }

    /// Entries consumed or produced but not yet published.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        // SAFETY: as in `publish`; only we write this word.
        self.index.wrapping_sub(unsafe { &*self.ours }.load(Ordering::Relaxed))
    }

    /// Entries that wait to be consumed.
    pub fn waiting(&self) -> u32 {
        self.load_theirs().wrapping_sub(self.index).min(self.size)
    }

    /// Does the kernel want a system call before it goes on with this ring?
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        // SAFETY: `flags` points into the mapping, see `map`.
        unsafe { &*self.flags }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Has the kernel taken everything that was produced?
    #[inline]
    pub fn drained(&mut self) -> bool {
        self.seen = self.load_theirs();
        self.seen == self.index
    }

    #[inline]
    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: the mask keeps the position below `size`, so inside the mapped entries.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }

    #[inline]
    fn load_theirs(&self) -> u32 {
        // SAFETY: `theirs` points into the mapping, see `map`.
        unsafe { &*self.theirs }.load(Ordering::Acquire)
    }
}
