//! Where received payload lies: in place in a ring's memory, or copied out.

use std::io::IoSliceMut;

use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::frame::Frame;
use libvma_engine::tcp::Piece;

use crate::device::Ring;
use crate::shard::RingId;
use crate::shard::receive::skipping;

/// Received payload, as the engine queues it.
#[derive(Debug)]
pub enum Body {
    /// In place: a chain of frames, `offset` bytes of headers included.
    Frames { ring: RingId, frame: Frame, offset: u16 },
    /// Copied out: reassembled from fragments, or so that small segments or a slow reader do not
    /// hold frames.
    Heap(Vec<u8>),
}

/// A payload below this size is not worth a frame while others wait before it.
const SMALL: u32 = 512;
/// The most bytes that are gathered in one allocation.
pub(super) const HEAP: usize = 64 * 1024;
/// Allocations kept for the next slow reader.
const SPARE: usize = 16;

/// Allocations that go round.
#[derive(Default)]
pub(super) struct Heaps(Vec<Vec<u8>>);

impl Heaps {
    pub fn take(&mut self, room: usize) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(room))
    }

    fn give(&mut self, mut heap: Vec<u8>) {
        if self.0.len() < SPARE && heap.capacity() >= SMALL as usize {
            heap.clear();
            self.0.push(heap);
        }
    }
}

/// Gives received payload back.
pub(super) fn release(rings: &mut [Ring], heaps: &mut Heaps, body: Body) {
    match body {
        Body::Frames { ring, frame, .. } => {
            if let Some(ring) = rings.get_mut(ring.index()) {
                ring.release(frame);
            }
        }
        Body::Heap(heap) => heaps.give(heap),
    }
}

/// Moves `next` behind `tail` into one allocation if that is better than to keep its frames: both
/// are small, or the ring runs short of frames.
pub(super) fn coalesce(
    rings: &mut [Ring],
    heaps: &mut Heaps,
    tail: &mut Piece<Body>,
    next: Piece<Body>,
) -> Option<Piece<Body>> {
    let short = match &next.body {
        Body::Frames { ring, .. } => rings.get(ring.index()).is_some_and(Ring::is_short_of_frames),
        Body::Heap(_) => false,
    };
    if next.len >= SMALL && !short {
        return Some(next);
    }
    let end = tail.offset as usize + tail.len as usize;
    match &mut tail.body {
        // A tail that was cut has bytes behind its end that are not of the stream.
        Body::Heap(heap) if heap.len() == end && heap.len() + next.len as usize <= HEAP => {
            append(rings, heap, &next);
        }
        Body::Frames { .. } if tail.len < SMALL || short => {
            let mut heap = heaps.take((tail.len + next.len) as usize * 2);
            append(rings, &mut heap, tail);
            append(rings, &mut heap, &next);
            let old = core::mem::replace(&mut tail.body, Body::Heap(heap));
            tail.offset = 0;
            release(rings, heaps, old);
        }
        Body::Heap(_) | Body::Frames { .. } => return Some(next),
    }
    tail.len += next.len;
    release(rings, heaps, next.body);
    None
}

/// Copies a piece out of a ring that runs short of frames.
pub(super) fn hold(rings: &mut [Ring], heaps: &mut Heaps, piece: Piece<Body>) -> Piece<Body> {
    let short = match &piece.body {
        Body::Frames { ring, .. } => rings.get(ring.index()).is_some_and(Ring::is_short_of_frames),
        Body::Heap(_) => false,
    };
    if short { copied(rings, heaps, piece) } else { piece }
}

/// The same for a piece out of order. A small one is not worth a frame: nobody may ever fill the gap
/// before it.
pub(super) fn stash(rings: &mut [Ring], heaps: &mut Heaps, piece: Piece<Body>) -> Piece<Body> {
    let in_place = matches!(piece.body, Body::Frames { .. });
    if in_place && piece.len < SMALL {
        return copied(rings, heaps, piece);
    }
    hold(rings, heaps, piece)
}

fn copied(rings: &mut [Ring], heaps: &mut Heaps, mut piece: Piece<Body>) -> Piece<Body> {
    let mut heap = heaps.take(piece.len as usize);
    append(rings, &mut heap, &piece);
    let old = core::mem::replace(&mut piece.body, Body::Heap(heap));
    piece.offset = 0;
    release(rings, heaps, old);
    piece
}

pub(super) fn append(rings: &[Ring], heap: &mut Vec<u8>, piece: &Piece<Body>) {
    each(rings, piece, 0, |bytes| {
        heap.extend_from_slice(bytes);
        true
    });
}

/// The bytes of a piece from `from` on, in order, as long as `with` takes all of them.
#[inline]
fn each(rings: &[Ring], piece: &Piece<Body>, from: usize, mut with: impl FnMut(&[u8]) -> bool) {
    let skip = piece.offset as usize + from;
    let mut left = (piece.len as usize).saturating_sub(from);
    match &piece.body {
        Body::Heap(heap) => {
            with(heap.get(skip..skip + left).unwrap_or_default());
        }
        Body::Frames { ring, frame, offset } => {
            let Some(ring) = rings.get(ring.index()) else { return };
            for bytes in skipping(ring.pieces(frame), usize::from(*offset) + skip) {
                let bytes = bytes.get(..left).unwrap_or(bytes);
                left -= bytes.len();
                if !with(bytes) || left == 0 {
                    return;
                }
            }
        }
    }
}

/// The program's buffers, filled in order.
struct Room<'a, 'b> {
    buffers: &'a mut [IoSliceMut<'b>],
    /// The buffer that is being filled, and its bytes in use.
    at: usize,
    used: usize,
}

impl Room<'_, '_> {
    fn skip(&mut self, mut count: usize) {
        while let Some(buffer) = self.buffers.get(self.at).filter(|buffer| count > buffer.len()) {
            count -= buffer.len();
            self.at += 1;
        }
        self.used = count;
    }

    /// Returns how many bytes found room.
    #[inline]
    fn put(&mut self, mut bytes: &[u8]) -> usize {
        let mut copied = 0;
        while !bytes.is_empty() {
            let Some(buffer) = self.buffers.get_mut(self.at) else { break };
            let room = buffer.get_mut(self.used..).unwrap_or_default();
            if room.is_empty() {
                self.at += 1;
                self.used = 0;
                continue;
            }
            let count = room.len().min(bytes.len());
            let (source, left) = bytes.split_at(count);
            let (target, _) = room.split_at_mut(count);
            bulk_copy(target, source);
            self.used += count;
            copied += count;
            bytes = left;
        }
        copied
    }
}

/// Copies at most `len` bytes of the pieces, from `from` on, into the buffers behind their first
/// `filled` bytes; returns how many.
#[inline]
pub(super) fn copy_out<'p>(
    rings: &[Ring],
    pieces: impl Iterator<Item = &'p Piece<Body>>,
    (mut from, len): (usize, usize),
    out: &mut [IoSliceMut<'_>],
    filled: usize,
) -> usize {
    let mut room = Room { buffers: out, at: 0, used: 0 };
    room.skip(filled);
    let mut copied = 0;
    for piece in pieces {
        if copied == len {
            break;
        }
        let skip = from.min(piece.len as usize);
        from -= skip;
        let mut full = false;
        each(rings, piece, skip, |bytes| {
            let bytes = bytes.get(..len - copied).unwrap_or(bytes);
            let count = room.put(bytes);
            copied += count;
            full = count < bytes.len();
            !full && copied < len
        });
        if full {
            break;
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(bytes: &[u8], offset: u32, len: u32) -> Piece<Body> {
        Piece { body: Body::Heap(bytes.to_vec()), offset, len }
    }

    #[test]
    fn copying_goes_across_pieces_and_buffers() {
        let pieces = [heap(b"xabc", 1, 3), heap(b"defgh", 0, 4)];
        let (mut a, mut b) = ([0u8; 2], [0u8; 9]);
        let mut out = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        assert_eq!(copy_out(&[], pieces.iter(), (1, 5), &mut out, 0), 5);
        assert_eq!((&a, &b), (b"bc", b"def\0\0\0\0\0\0"));
        let mut small = [0u8; 3];
        let mut out = [IoSliceMut::new(&mut small)];
        assert_eq!(copy_out(&[], pieces.iter(), (0, 7), &mut out, 0), 3);
        assert_eq!(&small, b"abc");
    }

    #[test]
    fn small_pieces_are_gathered() {
        let mut heaps = Heaps::default();
        let mut tail = heap(b"ab", 0, 2);
        assert!(coalesce(&mut [], &mut heaps, &mut tail, heap(b"cd", 1, 1)).is_none());
        assert_eq!(tail.len, 3);
        let mut out = [0u8; 3];
        copy_out(&[], [&tail].into_iter(), (0, 3), &mut [IoSliceMut::new(&mut out)], 0);
        assert_eq!(&out, b"abd");
    }
}
