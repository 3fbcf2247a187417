//! What was sent and is not acknowledged: when each segment left, and whether the peer reported
//! it (RFC 2018), or it is lost (RFC 8985), or on its way again. What follows from that is decided
//! elsewhere.

use super::seq::Seq;
use crate::alloc;
use crate::time::Instant;
use alloc::collections::VecDeque;

/// A connection that waits keeps room for this many records.
const KEPT: usize = 8;

/// A run of sequence numbers that left together. SYN and FIN are records of one number each.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub start: Seq,
    pub end: Seq,
    /// When it left last.
    pub at: Instant,
    /// The peer has it (SACK).
    pub sacked: bool,
    /// Taken for lost.
    pub lost: bool,
    /// On its way again, and not lost again.
    pub retransmitted: bool,
    /// Was ever sent again: an acknowledgment does not tell which one arrived (Karn).
    pub ever_retransmitted: bool,
}

impl Sent {
    #[inline]
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// What it adds to the data in flight (SetPipe of RFC 6675).
    #[inline]
    fn in_flight(&self) -> u32 {
        if self.sacked || self.lost && !self.retransmitted { 0 } else { self.len() }
    }
}

#[derive(Debug, Default)]
pub struct Scoreboard {
    sent: VecDeque<Sent>,
    in_flight: u32,
    sacked: u32,
    /// Lost and not sent again.
    to_retransmit: u32,
    /// No record before this one waits for its retransmission.
    hint: usize,
}

impl Scoreboard {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Sequence numbers in flight: pipe of RFC 6675.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Sequence numbers that the peer reported beyond SND.UNA.
    #[inline]
    pub fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Sequence numbers that wait for their retransmission.
    #[inline]
    pub fn to_retransmit(&self) -> u32 {
        self.to_retransmit
    }

    #[cfg(test)]
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.sent.iter()
    }

    #[inline]
    pub fn first(&self) -> Option<&Sent> {
        self.sent.front()
    }

    pub fn last(&self) -> Option<&Sent> {
        self.sent.back()
    }

    /// New data left.
    #[inline]
    pub fn push(&mut self, start: Seq, end: Seq, now: Instant) {
        self.in_flight = self.in_flight.saturating_add(end.since(start));
        self.sent.push_back(Sent {
            start,
            end,
            at: now,
            sacked: false,
            lost: false,
            retransmitted: false,
            ever_retransmitted: false,
        });
    }

    /// Everything before `una` is acknowledged. `each` sees the records that are gone, or the part
    /// of one that is.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq, mut each: impl FnMut(&Sent)) {
        let is_plain = |front: &mut Sent| front.end <= una && !front.sacked && !front.lost;
        while let Some(gone) = self.sent.pop_front_if(is_plain) {
            self.in_flight = self.in_flight.saturating_sub(gone.len());
            self.hint = self.hint.saturating_sub(1);
            each(&gone);
        }
        if self.sent.front().is_some_and(|front| front.start < una) {
            self.acknowledge_others(una, &mut each);
        }
    }

    /// Takes off the only record, if `una` acknowledges all of it and nothing is known of it but that
    /// it was sent: what a flow of single segments has.
    #[inline(always)]
    pub fn take_only(&mut self, una: Seq) -> Option<Sent> {
        let only = *self.sent.front().filter(|_| self.sent.len() == 1)?;
        if only.end > una || only.sacked || only.lost || only.ever_retransmitted {
            return None;
        }
        // The next one takes the same place, which the cache has.
        self.sent.clear();
        self.in_flight = 0;
        self.hint = 0;
        Some(only)
    }

    /// The rest of [`Scoreboard::acknowledge`]: records that were reported or lost before, and a part of
    /// one at the end.
    #[cold]
    fn acknowledge_others(&mut self, una: Seq, each: &mut impl FnMut(&Sent)) {
        while let Some(front) = self.sent.front_mut() {
            if front.start >= una {
                break;
            }
            let gone = Sent { end: front.end.min(una), ..*front };
            self.in_flight = self.in_flight.saturating_sub(gone.in_flight());
            if gone.sacked {
                self.sacked = self.sacked.saturating_sub(gone.len());
            }
            if gone.lost && !gone.retransmitted {
                self.to_retransmit = self.to_retransmit.saturating_sub(gone.len());
            }
            let whole = front.end <= una;
            front.start = gone.end;
            each(&gone);
            if !whole {
                break;
            }
            self.sent.pop_front();
            self.hint = self.hint.saturating_sub(1);
        }
    }

    /// The peer reports `left .. right`. `each` sees the records it had not reported before.
    /// Returns how many sequence numbers those are.
    ///
    /// Of a record that was several segments whole ones count only: a receiver reports what it
    /// got, and a peer that reports single bytes must not make a record of each.
    pub fn sack(&mut self, left: Seq, right: Seq, mss: u32, mut each: impl FnMut(&Sent)) -> u32 {
        let mut newly = 0u32;
        let mut at = self.sent.partition_point(|sent| sent.end <= left);
        while let Some(sent) = self.sent.get(at).copied() {
            if sent.start >= right {
                break;
            }
            if sent.sacked {
                at = at.saturating_add(1);
                continue;
            }
            let (left, right) = whole_segments(&sent, left, right, mss);
            if left >= right {
                at = at.saturating_add(1);
                continue;
            }
            if sent.start < left {
                self.split(at, left);
                at = at.saturating_add(1);
            }
            if sent.end > right {
                self.split(at, right);
            }
            let Some(sent) = self.sent.get_mut(at) else { break };
            let before = *sent;
            sent.sacked = true;
            sent.lost = false;
            let len = before.len();
            self.in_flight = self.in_flight.saturating_sub(before.in_flight());
            self.sacked = self.sacked.saturating_add(len);
            if before.lost && !before.retransmitted {
                self.to_retransmit = self.to_retransmit.saturating_sub(len);
            }
            newly = newly.saturating_add(len);
            each(&before);
            at = at.saturating_add(1);
        }
        newly
    }

    /// Takes for lost what `is_lost` says, of the records that are in flight and not reported.
    /// Returns how many sequence numbers those are.
    pub fn mark_lost(&mut self, mut is_lost: impl FnMut(&Sent) -> bool) -> u32 {
        let mut marked = 0u32;
        for (at, sent) in self.sent.iter_mut().enumerate() {
            if sent.in_flight() == 0 || !is_lost(sent) {
                continue;
            }
            let len = sent.len();
            self.in_flight = self.in_flight.saturating_sub(len);
            self.to_retransmit = self.to_retransmit.saturating_add(len);
            self.hint = self.hint.min(at);
            sent.lost = true;
            sent.retransmitted = false;
            marked = marked.saturating_add(len);
        }
        marked
    }

    /// Takes for lost what lies before `end`, the first record or its beginning. Returns how many
    /// sequence numbers are newly lost.
    pub fn lose_front(&mut self, end: Seq) -> u32 {
        let Some(front) = self.sent.front().copied() else { return 0 };
        if front.in_flight() == 0 || end <= front.start {
            return 0;
        }
        if front.end > end {
            self.split(0, end);
        }
        let start = front.start;
        self.mark_lost(|sent| sent.start == start)
    }

    /// The first record that waits for its retransmission.
    pub fn next_lost(&mut self) -> Option<Sent> {
        if self.to_retransmit == 0 {
            return None;
        }
        while let Some(sent) = self.sent.get(self.hint) {
            if sent.lost && !sent.retransmitted && !sent.sacked {
                return Some(*sent);
            }
            self.hint = self.hint.saturating_add(1);
        }
        None
    }

    /// Joins the record of [`Scoreboard::next_lost`] with those behind it that wait as well, as far as all of them are `most` long.
    pub fn join_lost(&mut self, most: u32) -> Option<Sent> {
        let mut joined = self.next_lost()?;
        let behind = self.hint.saturating_add(1);
        let mut stop = behind;
        while let Some(next) = self.sent.get(stop) {
            let waits = next.lost && !next.retransmitted && !next.sacked;
            if !waits || joined.len().saturating_add(next.len()) > most {
                break;
            }
            joined.end = next.end;
            joined.ever_retransmitted |= next.ever_retransmitted;
            stop = stop.saturating_add(1);
        }
        if stop > behind {
            self.sent.drain(behind..stop);
            if let Some(sent) = self.sent.get_mut(self.hint) {
                *sent = joined;
            }
        }
        Some(joined)
    }

    /// The numbers from `start` to `end`, all of a record or a part of it, left again. The rest of the
    /// record stays as it was.
    pub fn retransmit(&mut self, start: Seq, end: Seq, now: Instant) {
        let mut at = self.sent.partition_point(|sent| sent.end <= start);
        if self.sent.get(at).is_some_and(|sent| sent.start < start) {
            self.split(at, start);
            at = at.saturating_add(1);
        }
        if self.sent.get(at).is_some_and(|sent| sent.end > end) {
            self.split(at, end);
        }
        let Some(sent) = self.sent.get_mut(at) else { return };
        let before = sent.in_flight();
        if sent.lost && !sent.retransmitted {
            self.to_retransmit = self.to_retransmit.saturating_sub(sent.len());
        }
        sent.retransmitted = true;
        sent.ever_retransmitted = true;
        sent.at = now;
        let after = sent.in_flight();
        self.in_flight = self.in_flight.saturating_sub(before).saturating_add(after);
    }

    /// The peer took back what it had reported (RFC 2018 section 8), or the reports are void after a
    /// timeout.
    pub fn forget_sacks(&mut self) {
        let mut in_flight = 0u32;
        for sent in &mut self.sent {
            sent.sacked = false;
            in_flight = in_flight.saturating_add(sent.in_flight());
        }
        self.in_flight = in_flight;
        self.sacked = 0;
    }

    /// Nothing is lost after all: what waits for its retransmission counts as in flight again.
    pub fn forget_losses(&mut self) {
        for sent in &mut self.sent {
            if sent.lost && !sent.retransmitted {
                self.in_flight = self.in_flight.saturating_add(sent.len());
            }
            sent.lost = false;
        }
        self.to_retransmit = 0;
    }

    /// Does the board hold memory that a connection at rest should not?
    #[inline]
    pub fn is_oversized(&self) -> bool {
        self.sent.is_empty() && self.sent.capacity() > KEPT
    }

    /// Gives the memory back, if nothing is in flight.
    pub fn trim(&mut self) {
        if self.is_oversized() {
            self.sent.shrink_to(KEPT);
        }
    }

    pub fn clear(&mut self) {
        *self = Scoreboard::default();
    }

    fn split(&mut self, at: usize, middle: Seq) {
        let Some(sent) = self.sent.get_mut(at) else { return };
        let tail = Sent { start: middle, ..*sent };
        sent.end = middle;
        let next = at.saturating_add(1).min(self.sent.len());
        self.sent.insert(next, tail);
    }
}

/// What of a record lies between `left` and `right`, in whole segments of it.
fn whole_segments(sent: &Sent, left: Seq, right: Seq, mss: u32) -> (Seq, Seq) {
    let mss = mss.max(1);
    let skipped = left.ahead_of(sent.start).div_ceil(mss).saturating_mul(mss);
    let end = if right >= sent.end {
        sent.end
    } else {
        let covered = right.ahead_of(sent.start);
        sent.start.plus(covered.saturating_sub(covered.checked_rem(mss).unwrap_or(0)))
    };
    (sent.start.plus(skipped.min(sent.len())), end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn now() -> Instant {
        Instant::from_nanos(1)
    }

    fn board(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        for n in 0..segments {
            board.push(Seq::new(n * 100), Seq::new(n * 100 + 100), now());
        }
        board
    }

    #[test]
    fn a_partial_report_splits_a_record() {
        let mut board = board(3);
        assert_eq!(board.sack(Seq::new(150), Seq::new(250), 50, |_| ()), 100);
        assert_eq!((board.in_flight(), board.sacked()), (200, 100));
        let starts: Vec<u32> = board.records().map(|sent| sent.start.raw()).collect();
        assert_eq!(starts, [0, 100, 150, 200, 250]);
        assert_eq!(board.sack(Seq::new(150), Seq::new(250), 50, |_| ()), 0);
    }

    #[test]
    fn a_tail_that_leaves_again_is_a_record_of_its_own() {
        let mut board = board(2);
        let later = Instant::from_nanos(5);
        board.retransmit(Seq::new(150), Seq::new(200), later);
        let records: Vec<_> = board.records().map(|sent| (sent.start.raw(), sent.at)).collect();
        assert_eq!(records, [(0, now()), (100, now()), (150, later)]);
        assert_eq!(board.in_flight(), 200);
    }

    #[test]
    fn reports_of_single_bytes_make_no_records() {
        let mut board = board(3);
        for byte in (1..300).step_by(2) {
            board.sack(Seq::new(byte), Seq::new(byte + 1), 50, |_| ());
        }
        assert_eq!((board.records().count(), board.sacked()), (3, 0));
        assert_eq!(board.sack(Seq::new(130), Seq::new(300), 50, |_| ()), 150);
        assert_eq!(board.records().count(), 4);
    }

    #[test]
    fn the_only_record_goes_at_once_unless_there_is_more_to_know_of_it() {
        let mut one = board(1);
        assert!(one.take_only(Seq::new(99)).is_none());
        let taken = one.take_only(Seq::new(100)).map(|sent| (sent.start.raw(), sent.len()));
        assert_eq!((taken, one.in_flight(), one.is_empty()), (Some((0, 100)), 0, true));
        assert!(one.take_only(Seq::new(100)).is_none());

        assert!(board(2).take_only(Seq::new(200)).is_none());
        let mut lost = board(1);
        lost.mark_lost(|_| true);
        assert!(lost.take_only(Seq::new(100)).is_none());
        lost.retransmit(Seq::new(0), Seq::new(100), now());
        lost.forget_losses();
        assert!(lost.take_only(Seq::new(100)).is_none());
        let mut reported = board(1);
        reported.sack(Seq::new(0), Seq::new(100), 100, |_| ());
        assert!(reported.take_only(Seq::new(100)).is_none());
    }

    #[test]
    fn lost_records_are_sent_again_in_order() {
        let mut board = board(3);
        board.mark_lost(|sent| sent.start != Seq::new(100));
        assert_eq!((board.in_flight(), board.to_retransmit()), (100, 200));
        assert_eq!(board.next_lost().map(|sent| sent.start.raw()), Some(0));
        board.retransmit(Seq::new(0), Seq::new(40), now());
        assert_eq!(board.next_lost().map(|sent| sent.start.raw()), Some(40));
        board.retransmit(Seq::new(40), Seq::new(100), now());
        board.retransmit(Seq::new(200), Seq::new(300), now());
        assert!(board.next_lost().is_none());
        assert_eq!(board.in_flight(), 300);
    }

    proptest! {
        /// The counters are what the records say, whatever happens.
        #[test]
        fn counters_agree_with_the_records(
            steps in prop::collection::vec((0u8..6, 0u32..2000, 1u32..400), 1..100)
        ) {
            let mut board = Scoreboard::default();
            let (mut una, mut next) = (Seq::new(0), Seq::new(0));
            for (what, at, len) in steps {
                match what {
                    0 => {
                        board.push(next, next.plus(len), now());
                        next = next.plus(len);
                    }
                    1 => {
                        una = una.plus(at.min(next.since(una)));
                        if len % 2 == 0 || board.take_only(una).is_none() {
                            board.acknowledge(una, |_| ());
                        }
                    }
                    2 => {
                        let left = una.plus(1 + at);
                        let right = left.plus(len).min(next);
                        if left < right {
                            board.sack(left, right, 1 + len % 90, |_| ());
                        }
                    }
                    3 => {
                        board.mark_lost(|sent| sent.start.raw() % 400 < at % 400);
                    }
                    4 => {
                        let most = if at % 2 == 0 { 0 } else { 500 };
                        if let Some(sent) = board.join_lost(most) {
                            board.retransmit(sent.start, sent.end.min(sent.start.plus(len)), now());
                        }
                    }
                    _ => {
                        if at % 2 == 0 { board.forget_sacks() } else { board.forget_losses() }
                    }
                }
                let sum = |what: fn(&Sent) -> bool| -> u32 {
                    board.records().filter(|sent| what(sent)).map(Sent::len).sum()
                };
                prop_assert_eq!(board.in_flight(), sum(|sent| sent.in_flight() > 0));
                prop_assert_eq!(board.sacked(), sum(|sent| sent.sacked));
                let waiting = |sent: &Sent| sent.lost && !sent.retransmitted && !sent.sacked;
                prop_assert_eq!(board.to_retransmit(), sum(waiting));
                prop_assert_eq!(board.next_lost().is_some(), board.to_retransmit() > 0);
                let mut at = una;
                for sent in board.records() {
                    prop_assert_eq!(sent.start, at);
                    prop_assert!(sent.end > sent.start);
                    at = sent.end;
                }
                prop_assert_eq!(at, next);
            }
        }
    }
}
