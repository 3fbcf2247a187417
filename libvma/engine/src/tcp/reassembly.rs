//! Segments received out of order, and the SACK blocks that report them (RFC 2018).

use super::seq::Seq;
use super::{Link, Piece};
use crate::alloc;
use crate::wire::tcp::SackBlock;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// More pieces than this are not kept: a peer that sends every other byte would hold a buffer for
/// each. Far beyond what a window of full segments takes.
const MOST_PIECES: usize = 8192;
/// How many ranges are remembered as recent; an option holds four blocks.
const RECENT: usize = 4;

#[derive(Debug)]
struct Waiting<B> {
    start: Seq,
    piece: Piece<B>,
}

impl<B> Waiting<B> {
    fn end(&self) -> Seq {
        self.start.plus(self.piece.len)
    }
}

/// A run of consecutive bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: Seq,
    end: Seq,
}

#[derive(Debug)]
pub struct Reassembly<B> {
    /// Disjoint, in the order of sequence numbers.
    pieces: VecDeque<Waiting<B>>,
    /// What the pieces cover: disjoint, not even touching, in order.
    ranges: Vec<Range>,
    /// A byte of each of the ranges that grew last, the latest first.
    recent: [Seq; RECENT],
    recent_count: u8,
    bytes: u32,
}

impl<B> Default for Reassembly<B> {
    fn default() -> Self {
        Reassembly {
            pieces: VecDeque::new(),
            ranges: Vec::new(),
            recent: [Seq::default(); RECENT],
            recent_count: 0,
            bytes: 0,
        }
    }
}

impl<B> Reassembly<B> {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The first run of what waits.
    pub fn first(&self) -> Option<(Seq, Seq)> {
        self.ranges.first().map(|range| (range.start, range.end))
    }

    /// The end of all that waits.
    pub fn end(&self) -> Option<Seq> {
        self.ranges.last().map(|range| range.end)
    }

    /// Bytes that wait.
    #[cfg(test)]
    pub fn len(&self) -> u32 {
        self.bytes
    }

    /// Keeps a piece that starts at `start`, beyond what is received in order. What is there
    /// already stays. Returns the part that was there, for D-SACK (RFC 2883).
    pub fn insert(
        &mut self,
        start: Seq,
        mut piece: Piece<B>,
        link: &mut impl Link<B>,
    ) -> Option<SackBlock> {
        let mut start = start;
        let whole = Range { start, end: start.plus(piece.len) };
        let mut at = self.pieces.partition_point(|waiting| waiting.start <= start);
        let before = at.checked_sub(1).and_then(|before| self.pieces.get(before));
        let duplicate = self.overlap(whole);
        if let Some(before) = before
            && before.end() > start
        {
            let overlap = before.end().since(start).min(piece.len);
            piece.trim_front(overlap);
            start = start.plus(overlap);
        }
        // What lies behind and is covered whole makes room; what is covered in part is kept.
        while let Some(next) = self.pieces.get(at) {
            let end = start.plus(piece.len);
            if piece.len == 0 || next.start >= end {
                break;
            }
            if next.end() > end {
                piece.truncate(next.start.since(start));
                break;
            }
            if let Some(covered) = self.pieces.remove(at) {
                self.bytes = self.bytes.saturating_sub(covered.piece.len);
                link.release(covered.piece.body);
            }
        }
        if piece.len == 0 || self.pieces.len() >= MOST_PIECES {
            link.release(piece.body);
            if duplicate.is_some() {
                self.note_recent(whole.start);
            }
            return duplicate;
        }
        self.add_range(Range { start, end: start.plus(piece.len) });
        self.note_recent(start);
        self.bytes = self.bytes.saturating_add(piece.len);
        let before = at.checked_sub(1).and_then(|before| self.pieces.get_mut(before));
        let piece = match before {
            Some(before) if before.end() == start => link.coalesce(&mut before.piece, piece),
            _ => Some(piece),
        };
        if let Some(piece) = piece {
            at = at.min(self.pieces.len());
            self.pieces.insert(at, Waiting { start, piece: link.stash(piece) });
        }
        duplicate
    }

    /// The piece that continues the stream at `next` (RCV.NXT), trimmed to it; older ones are given
    /// back.
    pub fn take(&mut self, next: Seq, link: &mut impl Link<B>) -> Option<Piece<B>> {
        loop {
            let front = self.pieces.front()?;
            if front.start > next {
                return None;
            }
            let mut waiting = self.pieces.pop_front()?;
            self.bytes = self.bytes.saturating_sub(waiting.piece.len);
            let end = waiting.end();
            if let Some(range) = self.ranges.first_mut() {
                range.start = range.start.max(end);
                if range.start >= range.end {
                    self.ranges.remove(0);
                }
            }
            if end > next {
                waiting.piece.trim_front(next.since(waiting.start));
                return Some(waiting.piece);
            }
            link.release(waiting.piece.body);
        }
    }

    /// The blocks to report, the range that grew last first (RFC 2018 section 4).
    pub fn blocks(&self) -> impl Iterator<Item = SackBlock> {
        let recent = self.recent.get(..usize::from(self.recent_count)).unwrap_or_default();
        let ranges = recent.iter().map(|seq| self.range_of(*seq));
        ranges.enumerate().filter_map(move |(at, range)| {
            let range = range?;
            // Two remembered bytes may lie in one range by now.
            let told = recent.get(..at)?.iter().any(|seq| self.range_of(*seq) == Some(range));
            (!told).then(|| block(range.start, range.end))
        })
    }

    pub fn clear(&mut self, link: &mut impl Link<B>) {
        while let Some(waiting) = self.pieces.pop_front() {
            link.release(waiting.piece.body);
        }
        *self = Reassembly::default();
    }

    /// The part of the range that is there already, up to the first hole.
    fn overlap(&self, new: Range) -> Option<SackBlock> {
        let first = self.ranges.partition_point(|range| range.end <= new.start);
        let range = self.ranges.get(first).filter(|range| range.start < new.end)?;
        Some(block(range.start.max(new.start), range.end.min(new.end)))
    }

    fn range_of(&self, seq: Seq) -> Option<Range> {
        let at = self.ranges.partition_point(|range| range.start <= seq).checked_sub(1)?;
        self.ranges.get(at).copied().filter(|range| seq < range.end)
    }

    fn add_range(&mut self, new: Range) {
        // The ranges that touch or overlap the new one are replaced by their union.
        let from = self.ranges.partition_point(|range| range.end < new.start);
        let to = self.ranges.partition_point(|range| range.start <= new.end);
        let touched = self.ranges.get(from..to).unwrap_or_default();
        let union = touched.iter().fold(new, |union, range| Range {
            start: union.start.min(range.start),
            end: union.end.max(range.end),
        });
        if let Some(first) = self.ranges.get_mut(from).filter(|_| from < to) {
            *first = union;
            self.ranges.drain(from.saturating_add(1)..to);
        } else {
            self.ranges.insert(from.min(self.ranges.len()), union);
        }
    }

    fn note_recent(&mut self, seq: Seq) {
        let range = self.range_of(seq);
        let count = usize::from(self.recent_count);
        // The place of an older note of the same range, or the oldest one.
        let known = self.recent.get(..count).unwrap_or_default();
        let same = known.iter().position(|old| range.is_some() && self.range_of(*old) == range);
        let place = match same {
            Some(place) => place,
            None if count < RECENT => {
                self.recent_count = self.recent_count.saturating_add(1);
                count
            }
            None => RECENT.saturating_sub(1),
        };
        if let Some(moved) = self.recent.get_mut(..=place) {
            moved.rotate_right(1);
            if let Some(first) = moved.first_mut() {
                *first = seq;
            }
        }
    }
}

fn block(left: Seq, right: Seq) -> SackBlock {
    SackBlock { left: left.raw(), right: right.raw() }
}

#[cfg(test)]
mod tests {
    use super::super::Outgoing;
    use super::*;
    use proptest::prelude::*;

    /// Bodies are the stream's bytes themselves.
    struct Discard;

    impl Link<Vec<u8>> for Discard {
        fn emit(&mut self, _: &Outgoing<'_>) -> bool {
            true
        }
        fn release(&mut self, _: Vec<u8>) {}
    }

    /// The byte at a place of the stream.
    fn byte(at: u32) -> u8 {
        (at.wrapping_mul(31) >> 3) as u8
    }

    fn piece(start: u32, len: u32) -> Piece<Vec<u8>> {
        Piece { body: (start..start + len).map(byte).collect(), offset: 0, len }
    }

    fn base() -> Seq {
        Seq::new(u32::MAX - 50)
    }

    fn blocks(queue: &Reassembly<Vec<u8>>) -> Vec<(u32, u32)> {
        let relative = |seq: u32| Seq::new(seq).since(base());
        queue.blocks().map(|block| (relative(block.left), relative(block.right))).collect()
    }

    #[test]
    fn the_latest_range_is_reported_first() {
        let mut queue = Reassembly::default();
        for start in [10, 30, 50, 70, 90] {
            assert_eq!(queue.insert(base().plus(start), piece(start, 5), &mut Discard), None);
        }
        assert_eq!(blocks(&queue), [(90, 95), (70, 75), (50, 55), (30, 35)]);
        queue.insert(base().plus(55), piece(55, 15), &mut Discard);
        assert_eq!(blocks(&queue), [(50, 75), (90, 95), (30, 35)]);
    }

    #[test]
    fn what_was_there_is_told() {
        let mut queue = Reassembly::default();
        queue.insert(base().plus(10), piece(10, 10), &mut Discard);
        let told = queue.insert(base().plus(12), piece(12, 4), &mut Discard);
        let expected = block(base().plus(12), base().plus(16));
        assert_eq!(told, Some(expected));
        assert_eq!(queue.len(), 10);
    }

    proptest! {
        #[test]
        fn any_order_gives_the_stream_once(
            segments in prop::collection::vec((0u32..300, 1u32..40), 1..80)
        ) {
            let mut queue = Reassembly::default();
            let mut next = 0u32;
            let mut have = [false; 400];
            for (start, len) in segments {
                for at in start..start + len {
                    have[at as usize] = true;
                }
                if start + len > next {
                    let skip = next.saturating_sub(start);
                    let mut piece = piece(start, len);
                    piece.trim_front(skip);
                    if start + skip > next {
                        queue.insert(base().plus(start + skip), piece, &mut Discard);
                    } else {
                        next += piece.len;
                    }
                }
                while let Some(piece) = queue.take(base().plus(next), &mut Discard) {
                    let from = piece.offset as usize;
                    for (n, got) in piece.body[from..from + piece.len as usize].iter().enumerate() {
                        prop_assert_eq!(*got, byte(next + n as u32));
                    }
                    next += piece.len;
                }
                let expected = have.iter().position(|have| !have).unwrap() as u32;
                prop_assert_eq!(next, expected);
                // The ranges are what is there beyond the stream's end.
                let mut ranges = Vec::new();
                let mut at = next;
                while at < 400 {
                    if have[at as usize] {
                        let end = (at..400).find(|n| !have[*n as usize]).unwrap_or(400);
                        ranges.push(Range { start: base().plus(at), end: base().plus(end) });
                        at = end;
                    } else {
                        at += 1;
                    }
                }
                prop_assert_eq!(&queue.ranges, &ranges);
                let total: u32 = ranges.iter().map(|range| range.end.since(range.start)).sum();
                prop_assert_eq!(queue.len(), total);
            }
        }
    }
}
