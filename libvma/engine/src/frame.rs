//! Frames: the buffers that the protocols and the devices both speak of.
//!
//! A [`Frame`] is a move-only handle; the bytes stay with the device that owns the memory. A
//! packet that does not fit one buffer is a chain of frames, linked inside the [`Pool`], so that a
//! handle stays four bytes and queues of packets never allocate. No memory access happens here.

use alloc::vec;
use alloc::vec::Vec;

/// One buffer, or the head of a chain of buffers. Whoever holds it owns it; it goes back with
/// [`Pool::release`]. There is no Clone: using a frame twice does not compile.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame(u32);

impl Frame {
    /// The number of the buffer in its pool.
    #[inline]
    pub fn index(&self) -> u32 {
        self.0
    }
}

const NONE: u32 = u32::MAX;

/// Where the bytes of a frame lie within the memory of its device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Byte offset of the first byte in the device's memory.
    pub offset: u64,
    pub len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    extent: Extent,
    next: u32,
}

/// The frames of one ring: which are free, where the others lie, how they are chained.
pub struct Pool {
    free: Vec<u32>,
    entries: Vec<Entry>,
}

impl Pool {
    pub fn new(frames: u32) -> Pool {
        Pool {
            free: (0..frames).rev().collect(),
            entries: vec![Entry { extent: Extent::default(), next: NONE }; frames as usize],
        }
    }

    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        self.free.pop().map(Frame)
    }

    /// Makes the handle of a buffer that comes back from the device. `None` for a number that the
    /// pool never had: the device's word is checked, not believed.
    #[inline]
    pub fn reclaim(&mut self, index: u32, extent: Extent) -> Option<Frame> {
        let entry = self.entries.get_mut(index as usize)?;
        *entry = Entry { extent, next: NONE };
        Some(Frame(index))
    }

    /// Gives the buffer's number to the device; it comes back through [`Pool::reclaim`].
    #[inline]
    pub fn surrender(frame: Frame) -> u32 {
        frame.0
    }

    #[inline]
    pub fn extent(&self, frame: &Frame) -> Extent {
        self.entries.get(frame.0 as usize).map_or(Extent::default(), |entry| entry.extent)
    }

    /// Says where the bytes of frame number `index` lie.
    #[inline]
    pub fn set_extent_at(&mut self, index: u32, extent: Extent) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.extent = extent;
        }
    }

    /// Appends `tail` to the chain whose last frame is number `last`; returns the new last number.
    pub fn append(&mut self, last: u32, tail: Frame) -> u32 {
        let number = tail.0;
        if let Some(entry) = self.entries.get_mut(last as usize) {
            entry.next = number;
        }
        number
    }

    /// The extents of a chain, in order.
    #[inline]
    pub fn extents(&self, head: &Frame) -> Extents<'_> {
        Extents { pool: self, next: head.0 }
    }

    /// Frees a chain.
    #[inline]
    pub fn release(&mut self, head: Frame) {
        let mut next = head.0;
        while let Some(entry) = self.entries.get_mut(next as usize) {
            self.free.push(next);
            next = core::mem::replace(&mut entry.next, NONE);
        }
    }

    /// Takes the head off a chain: the head, and the rest.
    pub fn split(&mut self, head: Frame) -> (Frame, Option<Frame>) {
        let rest = self
            .entries
            .get_mut(head.0 as usize)
            .map_or(NONE, |entry| core::mem::replace(&mut entry.next, NONE));
        (head, (rest != NONE).then_some(Frame(rest)))
    }

    pub fn available(&self) -> usize {
        self.free.len()
    }

    pub fn capacity(&self) -> usize {
        self.entries.len()
    }
}

pub struct Extents<'a> {
    pool: &'a Pool,
    next: u32,
}

impl Iterator for Extents<'_> {
    type Item = Extent;
    #[inline]
    fn next(&mut self) -> Option<Extent> {
        let entry = self.pool.entries.get(self.next as usize)?;
        self.next = entry.next;
        Some(entry.extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_chain_returns_every_frame() {
        let mut pool = Pool::new(4);
        let head = pool.allocate().expect("frame");
        let second = pool.allocate().expect("frame");
        let third = pool.allocate().expect("frame");
        let last = pool.append(head.index(), second);
        pool.append(last, third);
        assert_eq!(pool.available(), 1);
        assert_eq!(pool.extents(&head).count(), 3);
        pool.release(head);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn split_walks_a_chain() {
        let mut pool = Pool::new(2);
        let head = pool.allocate().expect("frame");
        let tail = pool.allocate().expect("frame");
        pool.append(head.index(), tail);
        let (head, rest) = pool.split(head);
        let (_, end) = pool.split(rest.expect("second frame"));
        assert!(end.is_none());
        assert_eq!(pool.extents(&head).count(), 1);
    }

    #[test]
    fn a_number_outside_the_pool_is_refused() {
        let mut pool = Pool::new(2);
        assert!(pool.reclaim(2, Extent::default()).is_none());
    }
}
