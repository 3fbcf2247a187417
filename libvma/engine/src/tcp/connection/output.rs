//! What leaves, and when: lost segments first, then new data as the windows allow, then
//! acknowledgments that nothing has carried.

use super::timers::{CORK, TRIM, Timer, persist_nanos};
use super::{Connection, Phase, State};
use crate::tcp::Link;
use crate::tcp::seq::Seq;
use crate::time::Instant;
use crate::wire::tcp::Flags;

impl<B> Connection<B> {
    /// Would [`Connection::output`] send something, as far as that can be said cheaply?
    #[inline]
    pub fn wants_output(&self) -> bool {
        self.announced.due
            || self.reset_due
            || self.board.to_retransmit() > 0
            || self.snd_nxt < self.data_end()
            || self.fin_queued && !self.fin_sent()
            || matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// Does the next acknowledgment, or something else of the peer's, make something leave?
    #[inline]
    pub fn holds_data(&self) -> bool {
        self.snd_nxt < self.sending_end() && !self.board.is_empty()
    }

    /// Is an acknowledgment due that nothing has carried yet?
    #[inline]
    pub fn owes_acknowledgment(&self) -> bool {
        self.announced.due
    }

    /// Sends what may be sent now.
    #[inline]
    pub fn output(&mut self, now: Instant, link: &mut impl Link<B>) {
        if !self.is_plain_write(now) {
            self.output_step_by_step(now, link);
        } else if !self.send_write(now, link) {
            self.finish_output(false, now, link);
        }
    }

    /// What an interactive program sends: a write of a segment or less, nothing special about it, for
    /// which both windows have room. The counterpart of header prediction; nothing here that the steps
    /// below would not do, too.
    #[inline(always)]
    fn is_plain_write(&self, now: Instant) -> bool {
        #[cfg(test)]
        if !super::PREDICTS.get() {
            return false;
        }
        // Huge once a FIN was sent, and so no segment.
        let unsent = self.data_end().since(self.snd_nxt);
        let in_flight = self.board.in_flight();
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        let idle = now.nanos_since(self.last_received.max(self.last_sent));
        unsent.wrapping_sub(1) < self.mss
            && self.state == State::Established
            && self.is_flowing()
            && self.board.to_retransmit() == 0
            && self.reassembly.is_empty()
            && self.duplicate.is_none()
            && self.fin_waiting.is_none()
            && self.snd_up.is_none()
            && !self.ecn.reduced
            && self.settings.nodelay
            && !self.settings.cork
            && !self.more_follows
            && unsent <= offered
            && in_flight.saturating_add(unsent) <= self.congestion.cwnd()
            && (in_flight > 0 || idle <= self.settings.least_rto_nanos())
            && !self.queue.is_oversized()
    }

    /// Sends it. False: it could not leave.
    #[inline(always)]
    fn send_write(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let (start, end) = (self.snd_nxt, self.data_end());
        let len = end.since(start);
        if !self.send_bytes(start, len, (Flags::ACK.with(Flags::PSH), 0), true, now, link) {
            return false;
        }
        self.board.push(start, end, now);
        self.snd_nxt = end;
        self.note_answered(now);
        self.is_cwnd_limited = false;
        if len < self.mss {
            self.small_end = end;
        }
        self.timers.stop(Timer::Persist);
        self.timers.stop(Timer::Cork);
        self.arm_for_flight(now, false);
        true
    }

    #[inline(never)]
    fn output_step_by_step(&mut self, now: Instant, link: &mut impl Link<B>) {
        if !self.state.is_synchronized() {
            return self.output_unsynchronized(now, link);
        }
        // Data carries acknowledgments, but no blocks: those need a segment of their own, or a peer
        // that is sent data all the time would never learn what is missing (RFC 2018 section 4).
        let waits = !self.reassembly.is_empty() || self.fin_waiting.is_some();
        let unordered = waits || self.duplicate.is_some();
        let report = self.announced.due && self.sack && unordered;
        if self.board.to_retransmit() > 0 {
            self.retransmit_lost(now, link);
        }
        if self.snd_nxt <= self.data_end() && self.state != State::TimeWait {
            self.send_new(now, link);
        }
        self.finish_output(report, now, link);
    }

    /// What follows data, or what there is instead: acknowledgments that none has carried, of which one
    /// has something to `report`, and a timer for memory that nothing needs.
    fn finish_output(&mut self, report: bool, now: Instant, link: &mut impl Link<B>) {
        if self.announced.due || report {
            // Each acknowledgment takes back that others are due.
            let mut repeats = self.announced.repeats;
            while self.send_ack(now, link) && repeats > 0 {
                repeats = repeats.saturating_sub(1);
            }
        }
        let oversized =
            self.buffer.is_oversized() || self.board.is_oversized() || self.queue.is_oversized();
        if oversized && !self.timers.is_set(Timer::Trim) {
            self.timers.set(Timer::Trim, now.saturating_add(TRIM));
        }
    }

    #[cold]
    fn output_unsynchronized(&mut self, now: Instant, link: &mut impl Link<B>) {
        if self.state == State::Closed {
            if self.reset_due {
                self.send_reset(now, link);
            }
            return;
        }
        if self.snd_nxt == self.iss {
            if self.send_syn(now, link) {
                self.snd_nxt = self.iss.plus(1);
                self.board.push(self.iss, self.snd_nxt, now);
                self.arm_for_flight(now, true);
            } else if !self.timers.is_set(Timer::Retransmission) {
                // The way to the peer is not known yet; that wait ends, too.
                self.timers.set(Timer::Retransmission, self.timeout(now));
            }
            return;
        }
        if self.board.to_retransmit() > 0 {
            self.repeat_syn(now, link);
        } else if self.announced.due && self.send_syn(now, link) {
            self.board.retransmit(self.iss, self.iss.plus(1), now);
            self.announced.due = false;
        }
    }

    /// Sends the SYN again that was lost.
    fn repeat_syn(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        if !self.send_syn(now, link) {
            return false;
        }
        self.counters.retransmissions = self.counters.retransmissions.wrapping_add(1);
        self.syn_retransmissions = self.syn_retransmissions.saturating_add(1);
        self.board.retransmit(self.iss, self.iss.plus(1), now);
        self.announced.due = false;
        true
    }

    /// What may be in flight.
    #[inline]
    fn congestion_room(&self) -> u32 {
        self.congestion.cwnd().saturating_sub(self.pipe())
    }

    /// What is in flight (pipe of RFC 6675). Without SACK duplicate acknowledgments say what has left,
    /// which makes limited transmit of it (RFC 3042).
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        self.board.in_flight().saturating_sub(self.duplicate_credit)
    }

    #[cold]
    fn retransmit_lost(&mut self, now: Instant, link: &mut impl Link<B>) {
        let head = self.board.first().map(|sent| sent.start);
        if self.snd_una == self.iss {
            // The SYN of a simultaneous open, before the FIN that its closed program has behind it.
            let is_lost = self.board.next_lost().is_some_and(|lost| Some(lost.start) == head);
            if is_lost && self.repeat_syn(now, link) {
                self.timeout_due = false;
                self.arm_for_flight(now, true);
            }
            return;
        }
        let mut repeats_head = false;
        while let Some(lost) = self.board.next_lost() {
            let room = self.congestion_room();
            // One always leaves: after a timeout, and as the answer to the loss itself.
            let held = room < self.mss.min(lost.len()) && self.board.in_flight() > 0;
            if held && !self.timeout_due {
                break;
            }
            let lost = self.board.join_lost(self.most_joined(lost.start, room)).unwrap_or(lost);
            let most = self.most_at_once(room.max(self.mss));
            let end = lost.end.min(lost.start.plus(most));
            if !self.retransmit(lost.start, end, now, link) {
                break;
            }
            self.timeout_due = false;
            repeats_head |= head == Some(lost.start);
        }
        // The timer is that of the first segment, which left now (Linux: tcp_xmit_retransmit_queue). After
        // a partial acknowledgment without SACK it goes on (RFC 6582 section 3.2 step 3).
        let restart = repeats_head && (self.sack || !self.partial_ack_seen);
        self.arm_for_flight(now, restart);
    }

    /// Small segments leave again as one (Linux: tcp_retrans_try_collapse), as far as there is room for it and the peer's window
    /// goes; an urgent one does not.
    fn most_joined(&self, start: Seq, room: u32) -> u32 {
        let room = if self.timeout_due { self.mss } else { room };
        let edge = self.snd_una.plus(self.snd_wnd).ahead_of(start);
        if self.snd_up.is_some() { 0 } else { self.mss.min(room).min(edge) }
    }

    /// Sends `start .. end` again, the beginning or the tail of a record.
    pub(super) fn retransmit(
        &mut self,
        start: Seq,
        end: Seq,
        now: Instant,
        link: &mut impl Link<B>,
    ) -> bool {
        let before = self.snd_nxt;
        if !self.send_range(start, end, false, now, link) {
            return false;
        }
        debug_assert_eq!(before, self.snd_nxt);
        let stamp = super::stamp_clock(now, self.stamps.offset);
        self.retransmission_stamp.get_or_insert(stamp);
        self.counters.retransmissions = self.counters.retransmissions.wrapping_add(1);
        self.board.retransmit(start, end, now);
        if self.phase.reduces() {
            self.prr.on_sent(end.since(start));
        }
        true
    }

    /// The most payload of one segment, or of several that the device cuts.
    #[inline]
    fn most_at_once(&self, room: u32) -> u32 {
        let limit = self.path.segmentation_limit;
        if limit <= self.mss || self.snd_up.is_some() {
            return self.mss;
        }
        let segments = limit.min(room.max(self.mss)).checked_div(self.mss).unwrap_or(1).max(1);
        segments.saturating_mul(self.mss)
    }

    /// Sends new data and the FIN.
    #[inline]
    fn send_new(&mut self, now: Instant, link: &mut impl Link<B>) {
        if self.snd_nxt < self.data_end() || self.fin_queued {
            self.restart_after_idle(now);
        }
        let first = self.snd_nxt;
        if self.send_whole_segments(now, link) {
            self.send_segments(now, link);
        }
        if self.snd_nxt != first {
            if first < self.data_end() {
                self.note_answered(now);
            }
            self.timers.stop(Timer::Persist);
            self.timers.stop(Timer::Cork);
            self.arm_for_flight(now, false);
        } else if self.board.is_empty() && self.snd_nxt < self.sending_end() {
            self.arm_persist(now);
        }
    }

    /// What is new, by one segment at a time, or as many as the device cuts.
    #[inline]
    fn send_segments(&mut self, now: Instant, link: &mut impl Link<B>) {
        loop {
            let data_end = self.data_end();
            let unsent = data_end.ahead_of(self.snd_nxt);
            let fin = self.fin_queued && self.snd_nxt <= data_end;
            if unsent == 0 && !fin {
                break;
            }
            let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
            let allowed = self.congestion_room();
            let usable = offered.min(allowed);
            // A segment or less, as most are, is spared the divisions: they take longer than all else.
            let most = if unsent <= self.mss { self.mss } else { self.most_at_once(usable) };
            let mut len = unsent.min(usable).min(most);
            if len > self.mss && len < unsent {
                // Whole segments; the rest follows with the next ones.
                len = len.saturating_sub(len.checked_rem(self.mss).unwrap_or(0));
            }
            self.is_cwnd_limited = allowed < unsent.min(offered).min(self.mss.max(len));
            if len < self.mss && !self.may_send_partial(len, unsent, offered, allowed, fin, now) {
                break;
            }
            if self.should_defer(len, unsent) {
                self.is_cwnd_limited |= allowed <= offered;
                break;
            }
            // Its number needs room in the peer's window, too (RFC 9293 section 3.4).
            let with_fin = fin && len == unsent && offered > len;
            let end = self.snd_nxt.plus(len).plus(u32::from(with_fin));
            let start = self.snd_nxt;
            if !self.send_range(start, end, true, now, link) {
                break;
            }
            self.board.push(start, end, now);
            self.snd_nxt = end;
            let is_small = if len <= self.mss {
                len > 0 && len < self.mss
            } else {
                len.checked_rem(self.mss).unwrap_or(0) != 0
            };
            if is_small {
                self.small_end = end;
            }
            if self.phase.reduces() {
                self.prr.on_sent(len);
            }
            if with_fin {
                break;
            }
        }
    }

    /// The full segments before the last one of a transfer that meets nothing special, without the
    /// questions that have one answer for all of them. What is left is for the steps above. False: the
    /// device takes no more.
    #[inline(always)]
    fn send_whole_segments(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        #[cfg(test)]
        if !super::PREDICTS.get() {
            return true;
        }
        let unsent = self.data_end().ahead_of(self.snd_nxt);
        if unsent <= self.mss
            || self.path.segmentation_limit > self.mss
            || self.snd_up.is_some()
            || self.ecn.reduced
            || !self.is_flowing()
        {
            return true;
        }
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        let mut room = offered.min(self.congestion_room()).min(unsent.saturating_sub(1));
        while room >= self.mss {
            let (start, end) = (self.snd_nxt, self.snd_nxt.plus(self.mss));
            self.is_cwnd_limited = false;
            if !self.send_bytes(start, self.mss, (Flags::ACK, 0), true, now, link) {
                return false;
            }
            self.board.push(start, end, now);
            self.snd_nxt = end;
            room = room.saturating_sub(self.mss);
        }
        true
    }

    /// Less than a full segment: does it leave? Silly-window avoidance (RFC 9293 section
    /// 3.8.6.2.1) and Nagle's algorithm (section 3.7.4), as modified by Minshall.
    #[inline]
    fn may_send_partial(
        &mut self,
        len: u32,
        unsent: u32,
        offered: u32,
        allowed: u32,
        fin: bool,
        now: Instant,
    ) -> bool {
        if len == unsent {
            if fin {
                // A lone FIN takes no room of the congestion window.
                return len > 0 || offered > 0 && self.state.may_send();
            }
            if len == 0 {
                return false;
            }
            // As on Linux nothing waits with urgent data.
            if (self.settings.cork || self.more_follows) && self.snd_up.is_none() {
                if !self.timers.is_set(Timer::Cork) {
                    self.timers.set(Timer::Cork, now.saturating_add(CORK));
                }
                return false;
            }
            let small_in_flight = self.small_end > self.snd_una && !self.board.is_empty();
            return self.settings.nodelay || !small_in_flight || self.snd_up.is_some();
        }
        // A window cuts it short. The peer's: half of the largest it ever offered is worth it. The
        // congestion window: acknowledgments make room.
        offered <= allowed && len > 0 && len >= self.max_snd_wnd.wrapping_shr(1)
    }

    /// A device that cuts segments is used well only by long runs: while acknowledgments are on
    /// their way, wait for room for a third of the window (Linux: tcp_tso_win_divisor).
    #[inline]
    fn should_defer(&self, len: u32, unsent: u32) -> bool {
        let cuts = self.path.segmentation_limit > self.mss;
        // While something may be lost every acknowledgment lets a segment go (RFC 3042, RFC 6937). Without
        // it the acknowledgments that a recovery lives on would not come.
        if !cuts || len >= unsent || self.board.is_empty() || !self.is_flowing() {
            return false;
        }
        let window = self.congestion.cwnd().min(self.snd_wnd);
        let target = self.path.segmentation_limit.min(window.checked_div(3).unwrap_or(0));
        len < target.saturating_sub(self.mss)
    }

    /// RFC 5681 section 4.1: after an idle time the window is not trusted.
    #[inline]
    fn restart_after_idle(&mut self, now: Instant) {
        if !self.board.is_empty() {
            return;
        }
        let since = self.last_sent.max(self.last_received);
        let idle = now.nanos_since(since);
        if idle > self.settings.least_rto_nanos() && idle > self.rto_nanos() {
            if self.phase == Phase::Reduction {
                // All that was out when the peer echoed congestion is acknowledged.
                self.leave_reduction(now);
            }
            let idle = now.saturating_duration_since(since);
            self.congestion.after_idle(now, idle, self.rto());
        }
    }

    #[cold]
    fn arm_persist(&mut self, now: Instant) {
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        let waits_for_window = offered < self.sending_end().since(self.snd_nxt).min(self.mss);
        if waits_for_window && !self.timers.is_set(Timer::Persist) {
            let pause =
                persist_nanos(self.rto_nanos(), self.rtt.timeouts(), self.settings.most_rto);
            self.timers.set(Timer::Persist, now.plus_nanos(pause));
        }
    }

    /// RFC 9293 section 3.8.6.2.1: after the override timeout, whatever fits. True if there was a
    /// window at all.
    pub(super) fn send_against_silly_window(
        &mut self,
        now: Instant,
        link: &mut impl Link<B>,
    ) -> bool {
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        self.send_some(offered.min(self.mss), now, link)
    }

    /// TCP_CORK's time is over.
    pub(super) fn push_corked(&mut self, now: Instant, link: &mut impl Link<B>) {
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        let room = offered.min(self.congestion_room()).min(self.mss);
        // A part of it would be silly (RFC 9293 section 3.8.6.2.1).
        let fits = room >= self.mss.min(self.data_end().ahead_of(self.snd_nxt));
        if fits && self.state.is_synchronized() {
            self.send_some(room, now, link);
        }
    }

    fn send_some(&mut self, most: u32, now: Instant, link: &mut impl Link<B>) -> bool {
        let len = most.min(self.data_end().ahead_of(self.snd_nxt));
        if len == 0 {
            return false;
        }
        let start = self.snd_nxt;
        let end = start.plus(len);
        if self.send_range(start, end, true, now, link) {
            self.board.push(start, end, now);
            self.snd_nxt = end;
            self.note_answered(now);
            if len < self.mss {
                self.small_end = end;
            }
            self.arm_for_flight(now, false);
        }
        true
    }
}
