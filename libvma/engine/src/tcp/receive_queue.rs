//! Bytes received in order that the program has not read: pieces of bodies, in place.

use super::{Link, Piece};
use crate::alloc;
use alloc::collections::VecDeque;

/// A connection that waits keeps room for this many pieces.
const KEPT: usize = 16;

#[derive(Debug)]
pub struct ReceiveQueue<B> {
    pieces: VecDeque<Piece<B>>,
    len: u32,
}

impl<B> Default for ReceiveQueue<B> {
    fn default() -> Self {
        ReceiveQueue { pieces: VecDeque::new(), len: 0 }
    }
}

impl<B> ReceiveQueue<B> {
    /// Bytes in the queue.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &Piece<B>> {
        self.pieces.iter()
    }

    /// The piece, if there is exactly one.
    #[inline]
    pub fn only_piece(&self) -> Option<&Piece<B>> {
        if self.pieces.len() == 1 { self.pieces.front() } else { None }
    }

    /// Appends a piece; an empty one is given back.
    #[inline(always)]
    pub fn push(&mut self, piece: Piece<B>, link: &mut impl Link<B>) {
        if piece.len == 0 {
            return link.release(piece.body);
        }
        self.len = self.len.saturating_add(piece.len);
        let piece = match self.pieces.back_mut() {
            Some(tail) => match link.coalesce(tail, piece) {
                Some(piece) => piece,
                None => return,
            },
            None => piece,
        };
        let piece = link.hold(piece);
        self.pieces.push_back(piece);
    }

    /// Drops `count` bytes at the front: they were read.
    #[inline]
    pub fn consume(&mut self, count: u32, link: &mut impl Link<B>) {
        let mut left = count.min(self.len);
        self.len = self.len.saturating_sub(left);
        while left > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            if front.len > left {
                front.trim_front(left);
                break;
            }
            left = left.saturating_sub(front.len);
            if let Some(piece) = self.pieces.pop_front() {
                link.release(piece.body);
            }
        }
    }

    /// Takes the first piece off.
    #[inline]
    pub fn take_piece(&mut self) -> Option<Piece<B>> {
        let piece = self.pieces.pop_front()?;
        self.len = self.len.saturating_sub(piece.len);
        Some(piece)
    }

    pub fn clear(&mut self, link: &mut impl Link<B>) {
        self.consume(u32::MAX, link);
    }

    /// Does the queue hold memory that a connection at rest should not?
    #[inline]
    pub fn is_oversized(&self) -> bool {
        self.pieces.is_empty() && self.pieces.capacity() > KEPT
    }

    /// Gives the memory back, if nothing is in it.
    pub fn trim(&mut self) {
        if self.is_oversized() {
            self.pieces.shrink_to(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outgoing;
    use super::*;
    use alloc::vec::Vec;

    /// Counts what comes back; merges pieces of up to 4 bytes.
    #[derive(Default)]
    struct Counting(Vec<u32>);

    impl Link<u32> for Counting {
        fn emit(&mut self, _: &Outgoing<'_>) -> bool {
            true
        }
        fn release(&mut self, body: u32) {
            self.0.push(body);
        }
    }

    #[test]
    fn reading_gives_bodies_back_in_order() {
        let mut link = Counting::default();
        let mut queue = ReceiveQueue::default();
        for body in 0..3 {
            queue.push(Piece { body, offset: 5, len: 10 }, &mut link);
        }
        queue.push(Piece { body: 9, offset: 0, len: 0 }, &mut link);
        assert_eq!(link.0, [9]);
        queue.consume(15, &mut link);
        assert_eq!((queue.len(), &link.0[..]), (15, &[9, 0][..]));
        let front = queue.pieces().next().unwrap();
        assert_eq!((front.body, front.offset, front.len), (1, 10, 5));
        assert!(queue.only_piece().is_none());
        let taken = queue.take_piece().unwrap();
        assert_eq!((taken.body, taken.len, queue.len()), (1, 5, 10));
        assert_eq!(queue.only_piece().map(|piece| piece.body), Some(2));
        queue.clear(&mut link);
        assert!(queue.is_empty() && queue.take_piece().is_none() && queue.only_piece().is_none());
        assert_eq!(link.0, [9, 0, 2]);
    }
}
