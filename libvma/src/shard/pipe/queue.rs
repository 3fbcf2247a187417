//! Bytes that came by a pipe and are not read yet: in place, or copied when the ring runs short.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::frame::Frame;

use super::Carrier;
use crate::device::Received;

enum Body {
    Frame(Frame),
    Heap(Vec<u8>),
}

struct Piece {
    body: Body,
    /// What of it has been taken.
    taken: usize,
    len: usize,
}

#[derive(Default)]
pub struct Queue {
    pieces: VecDeque<Piece>,
    len: usize,
}

/// Small messages are copied together into pieces of this size.
const TOGETHER: usize = 16 * 1024;

impl Queue {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a received payload over.
    #[inline]
    pub fn push(&mut self, carrier: &mut impl Carrier, received: Received) {
        let Received { frame, len, .. } = received;
        let len = len as usize;
        if len == 0 {
            return carrier.release(frame);
        }
        if carrier.is_short_of_frames() {
            return self.push_copy(carrier, frame, len);
        }
        self.len += len;
        self.pieces.push_back(Piece { body: Body::Frame(frame), taken: 0, len });
    }

    #[cold]
    fn push_copy(&mut self, carrier: &mut impl Carrier, frame: Frame, len: usize) {
        let before = self.len;
        let mut left = len;
        for piece in carrier.pieces(&frame) {
            let piece = piece.get(..left).unwrap_or(piece);
            left -= piece.len();
            self.push_bytes(piece);
        }
        carrier.release(frame);
        debug_assert_eq!(self.len, before + len);
    }

    /// Appends a copy.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        if let Some(Piece { body: Body::Heap(last), len, .. }) = self.pieces.back_mut()
            && last.len() + bytes.len() <= TOGETHER
        {
            last.extend_from_slice(bytes);
            *len += bytes.len();
            return;
        }
        let piece = Piece { body: Body::Heap(bytes.to_vec()), taken: 0, len: bytes.len() };
        self.pieces.push_back(piece);
    }

    /// Calls `each` with the pieces behind the first `skip` bytes, as long as it wants more.
    #[inline]
    fn visit(&self, carrier: &impl Carrier, mut skip: usize, mut each: impl FnMut(&[u8]) -> bool) {
        for piece in &self.pieces {
            let left = piece.len - piece.taken;
            if skip >= left {
                skip -= left;
                continue;
            }
            // The chunks of a frame may be longer than the message.
            let (mut start, mut most) = (piece.taken + skip, left - skip);
            skip = 0;
            let mut visit_one = |bytes: &[u8]| {
                if start >= bytes.len() {
                    start -= bytes.len();
                    return true;
                }
                let bytes = bytes.get(start..).unwrap_or_default();
                let bytes = bytes.get(..most).unwrap_or(bytes);
                (start, most) = (0, most - bytes.len());
                bytes.is_empty() || each(bytes)
            };
            let more = match &piece.body {
                Body::Heap(bytes) => visit_one(bytes),
                Body::Frame(frame) => carrier.pieces(frame).all(visit_one),
            };
            if !more {
                return;
            }
        }
    }

    /// Copies bytes from `skip` on into the buffers, of which `filled` bytes are in use; at most
    /// `most`. Returns how many. They stay.
    #[inline]
    pub fn copy_out(
        &self,
        carrier: &impl Carrier,
        skip: usize,
        out: &mut [IoSliceMut<'_>],
        filled: usize,
        most: usize,
    ) -> usize {
        let mut buffers = out.iter_mut();
        let mut before = filled;
        let mut next = move || -> Option<&mut [u8]> {
            loop {
                let buffer = buffers.next()?;
                let here = before.min(buffer.len());
                before -= here;
                let room = buffer.get_mut(here..)?;
                if !room.is_empty() {
                    return Some(room);
                }
            }
        };
        let Some(mut room) = next() else { return 0 };
        let mut copied = 0;
        self.visit(carrier, skip, |bytes| {
            let mut bytes = bytes.get(..most - copied).unwrap_or(bytes);
            while !bytes.is_empty() {
                if room.is_empty() {
                    match next() {
                        Some(buffer) => room = buffer,
                        None => return false,
                    }
                }
                let count = bytes.len().min(room.len());
                let (target, rest) = core::mem::take(&mut room).split_at_mut(count);
                let (source, left) = bytes.split_at(count);
                bulk_copy(target, source);
                (room, bytes) = (rest, left);
                copied += count;
            }
            copied < most
        });
        copied
    }

    /// Fills a buffer with the first bytes, which stay.
    pub fn fill(&self, carrier: &impl Carrier, out: &mut [u8]) -> usize {
        let most = out.len();
        self.copy_out(carrier, 0, &mut [IoSliceMut::new(out)], 0, most)
    }

    /// Takes bytes off the front.
    #[inline]
    pub fn consume(&mut self, carrier: &mut impl Carrier, count: usize) {
        let mut count = count.min(self.len);
        self.len -= count;
        while let Some(first) = self.pieces.front_mut() {
            let left = first.len - first.taken;
            if count < left {
                first.taken += count;
                return;
            }
            count -= left;
            if let Some(Piece { body: Body::Frame(frame), .. }) = self.pieces.pop_front() {
                carrier.release(frame);
            }
        }
    }

    /// Appends all of another queue.
    pub fn append(&mut self, other: &mut Queue) {
        self.pieces.append(&mut other.pieces);
        self.len += core::mem::take(&mut other.len);
    }

    pub fn clear(&mut self, carrier: &mut impl Carrier) {
        self.consume(carrier, self.len);
    }
}
