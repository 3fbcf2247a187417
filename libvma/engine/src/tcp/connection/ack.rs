//! What an acknowledgment says of the data we sent (RFC 9293 section 3.10.7.4, fifth).

use super::input::Arrival;
use super::timers::Timer;
use super::{BlackHole, Connection, Phase, State};
use crate::tcp::rack::DUPLICATE_THRESHOLD;
use crate::tcp::scoreboard::Sent;
use crate::tcp::seq::Seq;
use crate::tcp::{Events, Link, Outgoing, reset_for};
use crate::time::Instant;
use crate::wire::tcp::Flags;

/// The least time that a peer has to acknowledge what it reported.
const LEAST_RENEGING_NANOS: u64 = 10_000_000;

/// What one acknowledgment delivered.
#[derive(Default)]
struct Delivery {
    /// Sequence numbers newly reported, cumulatively or selectively.
    delivered: u32,
    /// When the oldest of those that were sent once left.
    oldest: Option<Instant>,
    /// Something sent more than once was delivered.
    retransmitted: bool,
}

impl<B> Connection<B> {
    /// Nothing is lost or suspected: acknowledgments mean nothing but themselves.
    #[inline]
    pub(super) fn is_flowing(&self) -> bool {
        self.phase == Phase::Open
            && self.board.sacked() == 0
            && self.duplicate_credit == 0
            && self.probe_end.is_none()
    }

    /// The acknowledgment of a predicted segment, or of our SYN.
    #[inline(always)]
    pub(super) fn acknowledged_plainly(&mut self, arrival: &Arrival<'_>) -> Events {
        let repeats = self.is_repetition(arrival);
        self.note_window(arrival);
        if arrival.ack == self.snd_una {
            if repeats && !self.sack {
                self.count_duplicate();
            }
            return Events::NONE;
        }
        let before = self.board.in_flight();
        let delivery = self.advance(arrival);
        self.sample_rtt(arrival, &delivery);
        let limited = self.is_cwnd_limited;
        self.congestion.on_ack(arrival.now, delivery.delivered, before, &self.rtt, limited);
        self.after_advance(arrival)
    }

    /// Fifth: the ACK field. Err: the segment goes no further.
    pub(super) fn arrive_ack(
        &mut self,
        arrival: &Arrival<'_>,
        link: &mut impl Link<B>,
    ) -> Result<Events, Events> {
        let mut events = Events::NONE;
        if self.state == State::SynReceived {
            if arrival.ack <= self.snd_una || arrival.ack > self.snd_nxt {
                self.reset_stray(arrival, link);
                return Err(Events::NONE);
            }
            self.snd_wl1 = arrival.seq.minus(1);
            self.establish(arrival.now);
            events.insert(Events::ESTABLISHED.union(Events::WRITABLE));
        }
        if arrival.ack > self.snd_nxt || arrival.ack < self.oldest_acknowledgment() {
            // RFC 5961 section 5.
            self.challenge(arrival.now, false);
            return Err(events);
        }
        self.note_arrival(arrival);
        if arrival.has(Flags::CWR) && arrival.ack >= self.snd_una && self.ecn.enabled {
            // RFC 3168 section 6.1.3: also if it had to come again.
            self.ecn.echo = false;
            // The peer's window may be a single segment now (Linux: tcp_ecn_accept_cwr).
            self.announced.due |= arrival.len > 0 && self.state.may_receive();
        }
        let repeats = self.is_repetition(arrival);
        let una = self.snd_una;
        let is_pure = self.repeats_all(arrival);
        self.note_window(arrival);
        if self.board.is_empty() {
            self.snd_una = self.snd_una.max(arrival.ack);
            if self.probe_end.is_some() {
                let duplicate = self.take_blocks(arrival, una, &mut Delivery::default());
                self.answer_probe(arrival, duplicate, is_pure);
            }
            return Ok(events);
        }
        let before = self.pipe();
        let outstanding = self.snd_nxt.since(una);
        let mut delivery =
            if arrival.ack > una { self.advance(arrival) } else { Delivery::default() };
        let mut duplicate = false;
        if self.sack {
            duplicate = self.take_blocks(arrival, una, &mut delivery);
        }
        self.sample_rtt(arrival, &delivery);
        self.answer_probe(arrival, duplicate, is_pure);
        self.answer_congestion_echo(arrival, before, outstanding);
        if self.phase.repairs()
            && self.snd_una > una
            && delivery.retransmitted
            && self.is_echo_early(arrival)
        {
            self.undo_reduction(arrival.now);
        }
        let lost = self.find_losses(arrival, una, repeats, delivery.delivered);
        if self.duplicate_credit > 0 && self.snd_una > una {
            delivery.delivered = self.cover_duplicates(delivery.delivered);
        }
        // Without SACK every duplicate says that a segment has left (RFC 6582).
        if !self.sack && self.snd_una == una {
            delivery.delivered = if repeats { self.mss } else { 0 };
        }
        self.react(arrival.now, before, delivery.delivered, self.snd_una > una, lost);
        if self.snd_una > una {
            events.insert(self.after_advance(arrival));
            self.note_reneging(arrival.now);
        } else if delivery.delivered > 0 {
            // A report of what left before the first segment was repeated says nothing against the
            // repetition: the timer starts over (Linux: tcp_clean_rtx_queue).
            let head = self.board.first().map(|sent| sent.at);
            let is_older = delivery.oldest.is_some_and(|at| head.is_some_and(|head| at < head));
            self.arm_for_flight(arrival.now, is_older);
        }
        Ok(events)
    }

    /// RFC 5961 section 5: an acknowledgment is old by MAX.SND.WND at most; and no older than the connection, whose ISS the
    /// peer has acknowledged.
    fn oldest_acknowledgment(&self) -> Seq {
        let acknowledged = u32::try_from(self.counters.bytes_acked).unwrap_or(u32::MAX);
        self.snd_una.minus(self.max_snd_wnd.min(acknowledged).max(1))
    }

    /// SND.UNA moves.
    #[inline(always)]
    fn advance(&mut self, arrival: &Arrival<'_>) -> Delivery {
        let ack = arrival.ack;
        let delivery = match self.take_only_record(ack) {
            Some(sent) => {
                // Whether the echo is early matters only for what was sent again, and this was not.
                self.rack.on_delivered(&sent, arrival.now, false, &self.rtt);
                Delivery { delivered: sent.len(), oldest: Some(sent.at), retransmitted: false }
            }
            None => self.take_off_board(arrival),
        };
        let released = ack.min(self.data_end()).ahead_of(self.buffer_start);
        self.buffer.release(released as usize);
        self.buffer_start = self.buffer_start.plus(released);
        self.counters.bytes_acked = self.counters.bytes_acked.wrapping_add(u64::from(released));
        self.snd_una = ack;
        self.duplicate_acks = 0;
        // Marks of the past must not become the future after 2^31 bytes.
        self.small_end = self.small_end.max(ack);
        if !self.phase.repairs() {
            self.recover = self.recover.max(ack.minus(1));
        }
        if self.snd_up.is_some_and(|up| ack >= up) {
            self.snd_up = None;
        }
        delivery
    }

    /// The record of a flow of single segments, off the board. Not where something else is to be learnt
    /// from it.
    #[inline(always)]
    fn take_only_record(&mut self, ack: Seq) -> Option<Sent> {
        #[cfg(test)]
        if !super::PREDICTS.get() {
            return None;
        }
        if self.black_hole == BlackHole::Unsuspected { self.board.take_only(ack) } else { None }
    }

    /// The same for any number of records, whatever is known of them.
    #[inline(never)]
    fn take_off_board(&mut self, arrival: &Arrival<'_>) -> Delivery {
        let echo_early = self.is_echo_early(arrival);
        let (rack, rtt) = (&mut self.rack, &self.rtt);
        let mut delivery = Delivery::default();
        let mut full = None;
        let doubted = self.black_hole != BlackHole::Unsuspected;
        self.board.acknowledge(arrival.ack, |sent| {
            note_delivered(&mut delivery, sent);
            if doubted && !sent.ever_retransmitted {
                full = Some((sent.start, sent.len()));
            }
            if !sent.sacked {
                rack.on_delivered(sent, arrival.now, echo_early, rtt);
            }
        });
        if let Some((start, len)) = full {
            self.deny_black_hole(start, len);
        }
        delivery
    }

    /// What follows once SND.UNA has moved: timers, room for the program, our FIN.
    #[inline(always)]
    fn after_advance(&mut self, arrival: &Arrival<'_>) -> Events {
        self.rtt.on_progress();
        self.stalled_since = None;
        self.soft_error = None;
        // RFC 6582 section 3.2 step 3: the first partial acknowledgment restarts the timer, the others
        // do not. One segment a round trip is slow where many are lost; slow start then is faster.
        let is_partial = self.phase == Phase::Recovery && !self.sack;
        self.arm_for_flight(arrival.now, !(is_partial && self.partial_ack_seen));
        self.partial_ack_seen = is_partial;
        let mut events = Events::NONE;
        if self.wants_room && self.is_writable() {
            self.wants_room = false;
            events.insert(Events::WRITABLE);
        }
        if self.fin_queued && self.snd_una > self.data_end() {
            events.insert(self.fin_acknowledged(arrival.now));
        }
        events
    }

    /// The peer reported what follows SND.UNA, and does not acknowledge it: it may have taken the report
    /// back (RFC 2018 section 8). Half a round trip is time enough for it to say so (Linux:
    /// tcp_check_sack_reneging); the timeout after that makes all reports void.
    fn note_reneging(&mut self, now: Instant) {
        if self.board.first().is_some_and(|first| first.sacked) {
            let patience = (self.rtt.srtt_nanos().wrapping_shr(1)).max(LEAST_RENEGING_NANOS);
            self.timers.set(Timer::Retransmission, now.plus_nanos(patience));
        }
    }

    fn fin_acknowledged(&mut self, now: Instant) -> Events {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.orphan {
                    return self.wait_for_fin(now);
                }
                Events::WRITABLE
            }
            State::Closing => {
                self.enter_time_wait(now);
                Events::WRITABLE
            }
            State::LastAck => {
                self.finish();
                Events::CLOSED
            }
            _ => Events::NONE,
        }
    }

    /// An orphan in FIN-WAIT-2 does not wait for ever (tcp(7): TCP_LINGER2).
    pub(super) fn wait_for_fin(&mut self, now: Instant) -> Events {
        match self.settings.fin_timeout {
            Some(timeout) => {
                self.timers.set(Timer::End, now.saturating_add(timeout));
                Events::NONE
            }
            None => {
                self.reset_due = true;
                self.finish();
                Events::CLOSED
            }
        }
    }

    pub(super) fn enter_time_wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.board.clear();
        self.timers.stop(Timer::Retransmission);
        self.timers.stop(Timer::LossProbe);
        self.timers.stop(Timer::Reordering);
        self.timers.stop(Timer::Persist);
        self.timers.stop(Timer::KeepAlive);
        self.arm_time_wait(now);
    }

    #[inline]
    pub(super) fn scaled_window(&self, arrival: &Arrival<'_>) -> u32 {
        // RFC 7323 section 2.2: the window of a SYN is not scaled.
        let scale = if arrival.has(Flags::SYN) { 0 } else { u32::from(self.snd_scale) };
        u32::from(arrival.header.window).wrapping_shl(scale)
    }

    /// Takes the window of a segment that is newer than what we have. RFC 9293 section 3.10.7.4, but
    /// as Linux has it: what acknowledges more is newer, even if it repeats old data, or an old window
    /// would be added to the new SND.UNA; and of the windows of one acknowledgment the larger one is
    /// newer, as no window shrinks, unless it is closed.
    #[inline(always)]
    fn note_window(&mut self, arrival: &Arrival<'_>) {
        if arrival.ack >= self.snd_una && self.brings_window(arrival) {
            self.set_window(arrival, self.scaled_window(arrival));
        }
    }

    /// Is the window of the segment newer?
    #[inline(always)]
    pub(super) fn brings_window(&self, arrival: &Arrival<'_>) -> bool {
        let offered = self.scaled_window(arrival);
        arrival.ack > self.snd_una
            || self.snd_wl1 < arrival.seq
            || self.snd_wl1 == arrival.seq && (offered > self.snd_wnd || offered == 0)
    }

    #[inline]
    fn set_window(&mut self, arrival: &Arrival<'_>, offered: u32) {
        if offered > self.snd_wnd && self.timers.is_set(Timer::Persist) {
            // It has opened: the backoff was for the probes.
            self.timers.stop(Timer::Persist);
            self.rtt.reset_backoff();
        }
        self.snd_wnd = offered;
        self.max_snd_wnd = self.max_snd_wnd.max(offered);
        self.snd_wl1 = arrival.seq;
    }

    /// RFC 6298 section 3 with Karn's rule; for retransmissions the echoed time stamp tells (RFC
    /// 7323 section 4).
    #[inline(always)]
    fn sample_rtt(&mut self, arrival: &Arrival<'_>, delivery: &Delivery) {
        if let Some(oldest) = delivery.oldest
            && !delivery.retransmitted
        {
            return self.rtt.sample_nanos(arrival.now.nanos_since(oldest), arrival.now);
        }
        if delivery.delivered > 0
            && self.stamps.enabled
            && let Some(stamps) = arrival.header.options.timestamps
            && stamps.echo != 0
        {
            let ticks =
                super::stamp_clock(arrival.now, self.stamps.offset).wrapping_sub(stamps.echo);
            if ticks < u32::MAX >> 1 {
                let rtt = super::STAMP_TICK.saturating_mul(ticks.max(1));
                self.rtt.sample(rtt, arrival.now);
            }
        }
    }

    /// Eifel (RFC 3522): the echoed stamp is older than the first retransmission, so this
    /// acknowledges the original.
    pub(super) fn is_echo_early(&self, arrival: &Arrival<'_>) -> bool {
        let stamps = arrival.header.options.timestamps.filter(|_| self.stamps.enabled);
        match (self.retransmission_stamp, stamps) {
            (Some(first), Some(stamps)) => (stamps.echo.wrapping_sub(first) as i32) < 0,
            _ => false,
        }
    }

    /// SACK blocks (RFC 2018, RFC 6675 section 4). True if the first one was a D-SACK.
    fn take_blocks(
        &mut self,
        arrival: &Arrival<'_>,
        una_before: Seq,
        delivery: &mut Delivery,
    ) -> bool {
        let blocks = arrival.header.options.sack();
        let mut was_duplicate = false;
        let mut is_probe = false;
        if let Some(first) = blocks.first() {
            let (left, right) = (Seq::new(first.left), Seq::new(first.right));
            // RFC 2883 section 4: below the cumulative acknowledgment, or inside the second block.
            let inside = blocks.get(1).is_some_and(|second| {
                left >= Seq::new(second.left) && right <= Seq::new(second.right)
            });
            was_duplicate = left < right
                && (right <= arrival.ack || inside)
                && left >= una_before.minus(self.max_snd_wnd.max(1));
            // A probe is sent without knowing; that it arrived twice says nothing of reordering.
            is_probe = self.probe_end == Some(right);
        }
        if was_duplicate && !is_probe {
            self.rack.on_duplicate(self.snd_una, self.snd_nxt);
        }
        let echo_early = self.is_echo_early(arrival);
        // In the order of their numbers: what one acknowledgment reports has not overtaken each other.
        let mut ranges = [(Seq::default(), Seq::default()); 4];
        let mut count = 0usize;
        for (range, block) in ranges.iter_mut().zip(blocks.iter().skip(usize::from(was_duplicate)))
        {
            *range = (Seq::new(block.left), Seq::new(block.right));
            count = count.saturating_add(1);
        }
        let ranges = ranges.get_mut(..count).unwrap_or_default();
        ranges.sort_unstable_by_key(|(left, _)| left.since(self.snd_una));
        for (left, right) in ranges.iter().copied() {
            if left >= right || left <= self.snd_una || right > self.snd_nxt {
                continue;
            }
            let (rack, rtt) = (&mut self.rack, &self.rtt);
            self.board.sack(left, right, self.mss, |sent| {
                note_delivered(delivery, sent);
                rack.on_delivered(sent, arrival.now, echo_early, rtt);
            });
        }
        was_duplicate
    }

    /// A duplicate acknowledgment of RFC 5681 section 2: the same again, without data or news. To be
    /// asked before the window is taken.
    #[inline(always)]
    fn is_repetition(&self, arrival: &Arrival<'_>) -> bool {
        arrival.len == 0
            && arrival.ack == self.snd_una
            && !self.board.is_empty()
            && self.scaled_window(arrival) == self.snd_wnd
    }

    /// Does the segment say the same as one before: no data, no report, no other window?
    fn repeats_all(&self, arrival: &Arrival<'_>) -> bool {
        arrival.len == 0
            && arrival.ack == self.snd_una
            && arrival.header.options.sack().is_empty()
            && self.scaled_window(arrival) == self.snd_wnd
    }

    fn count_duplicate(&mut self) {
        self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        let credit = self.duplicate_credit.saturating_add(self.mss);
        self.duplicate_credit = credit.min(self.board.in_flight());
    }

    /// So much was acknowledged: a hole, and behind it what duplicates stood for. Returns what is
    /// newly known to have arrived.
    fn cover_duplicates(&mut self, delivered: u32) -> u32 {
        let known = self.duplicate_credit.min(delivered.saturating_sub(self.mss));
        let left = self.duplicate_credit.saturating_sub(known);
        self.duplicate_credit = left.min(self.board.in_flight());
        delivered.saturating_sub(known)
    }

    fn find_losses(
        &mut self,
        arrival: &Arrival<'_>,
        una: Seq,
        repeats: bool,
        delivered: u32,
    ) -> u32 {
        if self.sack {
            return self.detect_losses(arrival.now, delivered);
        }
        // Without SACK: RFC 5681 section 3.2, and RFC 6582 for partial acknowledgments.
        if self.snd_una == una {
            if repeats {
                self.count_duplicate();
            }
            // RFC 6582 section 3.2 step 2: up to `recover` they may come from our own repetitions.
            let threshold = u32::from(self.duplicate_acks) == DUPLICATE_THRESHOLD
                && self.snd_una > self.recover;
            return if threshold && !self.phase.repairs() { self.lose_first() } else { 0 };
        }
        if self.phase == Phase::Recovery && self.snd_una < self.recover {
            return self.lose_first();
        }
        0
    }

    fn lose_first(&mut self) -> u32 {
        let first = self.snd_una;
        let mss = self.mss;
        // One segment of it: a record may be a run of several.
        let end = self.board.first().map_or(first, |sent| sent.end.min(first.plus(mss)));
        self.board.lose_front(end)
    }

    /// The answer to a loss probe (RFC 8985 section 7.4.2).
    fn answer_probe(&mut self, arrival: &Arrival<'_>, duplicate: bool, is_pure: bool) {
        let Some(end) = self.probe_end else { return };
        if arrival.ack < end {
            return;
        }
        if duplicate || self.is_echo_early(arrival) {
            // The peer got the original, too: nothing was lost.
            self.probe_end = None;
        } else if arrival.ack > end {
            // The original was lost, the probe repaired it: that loss counts. An acknowledgment of just
            // the probe does not tell: that of the original may only be late.
            self.probe_end = None;
            self.enter_reduction(arrival.now);
        } else if is_pure {
            // The second acknowledgment: the original and the probe arrived.
            self.probe_end = None;
        }
    }

    /// RFC 3168 section 6.1.2: once per window. `in_flight` and `outstanding` are from before this
    /// acknowledgment.
    fn answer_congestion_echo(&mut self, arrival: &Arrival<'_>, in_flight: u32, outstanding: u32) {
        if self.ecn.until.is_some_and(|until| self.snd_una > until) {
            self.leave_reduction(arrival.now);
        }
        if self.ecn.enabled && arrival.has(Flags::ECE) && self.phase == Phase::Open {
            self.answer_echo(arrival.now, in_flight, outstanding);
        }
    }

    /// RFC 9293 section 3.10.7.2 and .3: a RST for a segment that acknowledges what was never sent,
    /// and the connection stays. False if the RST could not leave.
    pub(super) fn reset_stray(&mut self, arrival: &Arrival<'_>, link: &mut impl Link<B>) -> bool {
        let payload = arrival.len.saturating_sub(super::super::sequence_len(arrival.header, 0));
        let Some(header) = reset_for(self.key, arrival.header, payload) else { return true };
        let payload = [&[][..], &[][..]];
        let segment_size = u32::MAX;
        link.emit(&Outgoing { header, payload, segment_size, ecn_capable: false })
    }
}

#[inline]
fn note_delivered(delivery: &mut Delivery, sent: &Sent) {
    if sent.sacked {
        // Counted when it was reported.
        return;
    }
    delivery.delivered = delivery.delivered.saturating_add(sent.len());
    if sent.ever_retransmitted {
        delivery.retransmitted = true;
    } else {
        delivery.oldest = Some(delivery.oldest.map_or(sent.at, |oldest| oldest.min(sent.at)));
    }
}
