//! Bytes on their way out: from SND.UNA to the last one the program wrote. A ring that grows with
//! need. Sequence numbers and what was sent are known elsewhere.

use crate::alloc;
use crate::bulk_copy::bulk_copy;
use alloc::vec::Vec;

/// A connection that waits keeps at most this much.
const KEPT: usize = 1024;
const LEAST: usize = 256;

/// A ring of bytes; its capacity is a power of two, or 0.
#[derive(Debug, Default)]
pub struct SendBuffer {
    bytes: Vec<u8>,
    /// Where the first byte lies.
    head: usize,
    len: usize,
}

impl SendBuffer {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends all of `data`. Grows the ring if it must: no allocation in a steady flow.
    #[inline]
    pub fn append(&mut self, data: &[u8]) {
        if data.len() > self.bytes.len().saturating_sub(self.len) {
            self.grow(data.len());
        }
        let mask = self.bytes.len().wrapping_sub(1);
        let tail = self.head.wrapping_add(self.len) & mask;
        match self.bytes.get_mut(tail..tail.saturating_add(data.len())) {
            Some(room) => bulk_copy(room, data),
            None => self.append_around(tail, data),
        }
        self.len = self.len.saturating_add(data.len());
    }

    /// Copies `data` to `tail` and, behind the ring's end, to its beginning.
    #[inline(never)]
    fn append_around(&mut self, tail: usize, data: &[u8]) {
        let first = data.len().min(self.bytes.len().saturating_sub(tail));
        let (start, wrapped) = data.split_at_checked(first).unwrap_or((data, &[]));
        copy(&mut self.bytes, tail, start);
        copy(&mut self.bytes, 0, wrapped);
    }

    /// Drops `count` bytes at the front: they are acknowledged.
    #[inline]
    pub fn release(&mut self, count: usize) {
        let count = count.min(self.len);
        self.len = self.len.saturating_sub(count);
        let mask = self.bytes.len().wrapping_sub(1);
        // An empty ring starts over, so that small messages stay in the same cache lines.
        self.head = if self.len == 0 { 0 } else { self.head.wrapping_add(count) & mask };
    }

    /// The bytes `offset .. offset + len` from the front, in two pieces.
    #[inline]
    pub fn slices(&self, offset: usize, len: usize) -> [&[u8]; 2] {
        let len = len.min(self.len.saturating_sub(offset));
        let mask = self.bytes.len().wrapping_sub(1);
        let start = self.head.wrapping_add(offset) & mask;
        if let Some(whole) = self.bytes.get(start..start.saturating_add(len)) {
            return [whole, &[]];
        }
        let first = len.min(self.bytes.len().saturating_sub(start));
        let get = |from: usize, count: usize| {
            self.bytes.get(from..from.saturating_add(count)).unwrap_or_default()
        };
        [get(start, first), get(0, len.saturating_sub(first))]
    }

    /// Does the ring hold memory that a connection at rest should not?
    pub fn is_oversized(&self) -> bool {
        self.len == 0 && self.bytes.len() > KEPT
    }

    /// Gives the memory back, if nothing is in it.
    pub fn trim(&mut self) {
        if self.is_oversized() {
            self.bytes = Vec::new();
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let needed = self.len.saturating_add(more).max(LEAST);
        let capacity = needed.checked_next_power_of_two().unwrap_or(needed);
        let mut bytes = alloc::vec![0; capacity];
        let mut at = 0;
        for piece in self.slices(0, self.len) {
            copy(&mut bytes, at, piece);
            at = at.saturating_add(piece.len());
        }
        self.bytes = bytes;
        self.head = 0;
    }
}

#[inline]
fn copy(to: &mut [u8], at: usize, from: &[u8]) {
    if let Some(room) = to.get_mut(at..at.saturating_add(from.len())) {
        bulk_copy(room, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    fn contents(buffer: &SendBuffer, offset: usize, len: usize) -> Vec<u8> {
        buffer.slices(offset, len).concat()
    }

    #[test]
    fn memory_goes_back_when_nothing_is_in_it() {
        let mut buffer = SendBuffer::default();
        buffer.append(&[1; 5000]);
        buffer.trim();
        assert_eq!(contents(&buffer, 4999, 10), [1]);
        buffer.release(5000);
        assert!(buffer.is_oversized());
        buffer.trim();
        assert!(!buffer.is_oversized());
        buffer.append(b"abc");
        assert_eq!(contents(&buffer, 0, 3), b"abc");
    }

    proptest! {
        #[test]
        fn behaves_as_a_queue(steps in prop::collection::vec((any::<bool>(), 0usize..700), 0..60)) {
            let mut buffer = SendBuffer::default();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (append, count) in steps {
                if append {
                    let data: Vec<u8> = (0..count).map(|n| next.wrapping_add(n as u8)).collect();
                    next = next.wrapping_add(count as u8);
                    buffer.append(&data);
                    model.extend(data);
                } else {
                    buffer.release(count);
                    model.drain(..count.min(model.len()));
                }
                prop_assert_eq!(buffer.len(), model.len());
                let all: Vec<u8> = model.iter().copied().collect();
                prop_assert_eq!(contents(&buffer, 0, usize::MAX), all.clone());
                let middle = all.len() / 2;
                prop_assert_eq!(contents(&buffer, middle, 9), &all[middle..all.len().min(middle + 9)]);
            }
        }
    }
}
