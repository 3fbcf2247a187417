//! The arrival of a segment, in the order of RFC 9293 section 3.10.7.

use core::time::Duration;

use super::timers::Timer;
use super::window::Announcement;
use super::{Connection, State};
use crate::tcp::seq::Seq;
use crate::tcp::{EcnField, Error, Events, Link, Piece, sequence_len};
use crate::time::Instant;
use crate::translation::default_mss;
use crate::wire::tcp::{Flags, Header};

/// At most one answer to unacceptable segments in this time (RFC 5961 section 7; Linux:
/// tcp_invalid_ratelimit).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// How long the peer has for the end of an old connection before our SYN comes again (Linux:
/// TCP_TIMEOUT_MIN).
const AFTER_STRAY: Duration = Duration::from_millis(2);
/// A stamp may be older by so much (Linux: TCP_PAWS_WINDOW).
const STAMP_TOLERANCE: u32 = 1;
/// A tick of the peer's clock, as it is here.
const TICK_NANOS: u64 = 1_000_000;
/// After so long TS.Recent says nothing any more (RFC 7323 section 5.5).
const STAMP_LIFE: Duration = Duration::from_secs(24 * 24 * 3600);

#[cfg(test)]
std::thread_local! {
    /// Off: every segment takes the long way, in and out, which must change nothing.
    pub static PREDICTS: core::cell::Cell<bool> = const { core::cell::Cell::new(true) };
}

/// A received segment as the steps of the arrival see it.
pub(super) struct Arrival<'a> {
    pub header: &'a Header,
    pub seq: Seq,
    pub ack: Seq,
    /// SEG.LEN: payload, SYN and FIN.
    pub len: u32,
    /// The sequence number after the segment.
    pub end: Seq,
    pub now: Instant,
}

impl<'a> Arrival<'a> {
    #[inline]
    fn new(header: &'a Header, payload: u32, now: Instant) -> Arrival<'a> {
        let seq = Seq::new(header.seq);
        let len = sequence_len(header, payload);
        Arrival { header, seq, ack: Seq::new(header.ack), len, end: seq.plus(len), now }
    }

    #[inline]
    pub fn has(&self, flag: Flags) -> bool {
        self.header.flags.contains(flag)
    }
}

impl<B> Connection<B> {
    /// A segment of this connection has arrived, with this field in its IP header. The payload is kept or given back. [`Connection::output`] sends what follows.
    #[inline(always)]
    pub fn input(
        &mut self,
        now: Instant,
        header: &Header,
        piece: Option<Piece<B>>,
        ecn: EcnField,
        link: &mut impl Link<B>,
    ) -> Events {
        self.counters.segments_in = self.counters.segments_in.wrapping_add(1);
        let payload = piece.as_ref().map_or(0, |piece| piece.len);
        let arrival = Arrival::new(header, payload, now);
        if self.is_predicted(&arrival, ecn) {
            self.arrive_predicted(&arrival, piece, link)
        } else {
            self.arrive_unpredicted(now, header, piece, ecn, link)
        }
    }

    /// The long way. It makes its own [`Arrival`], so that the short one's can stay in registers.
    #[inline(never)]
    fn arrive_unpredicted(
        &mut self,
        now: Instant,
        header: &Header,
        piece: Option<Piece<B>>,
        ecn: EcnField,
        link: &mut impl Link<B>,
    ) -> Events {
        let payload = piece.as_ref().map_or(0, |piece| piece.len);
        let arrival = Arrival::new(header, payload, now);
        match self.state {
            State::Closed => {
                // Section 3.10.7.1. Segments of one batch reach a connection that the first of them ended.
                give_back(piece, link);
                self.reset_stray(&arrival, link);
                Events::NONE
            }
            State::SynSent => self.arrive_in_syn_sent(&arrival, piece, link),
            _ => self.arrive(&arrival, piece, ecn, link),
        }
    }

    /// The segment that a flow consists of: the next one in order, nothing special about it (RFC
    /// 7323 section 4.3 and Van Jacobson's header prediction).
    #[inline(always)]
    fn is_predicted(&self, arrival: &Arrival<'_>, ecn: EcnField) -> bool {
        #[cfg(test)]
        if !PREDICTS.get() {
            return false;
        }
        self.is_next(arrival)
            && arrival.ack >= self.snd_una
            && arrival.ack <= self.snd_nxt
            && self.is_flowing()
            && self.is_usual(arrival.len, ecn)
            && !self.reading_ended
            && !self.orphan
    }

    /// The segment that Linux expects: its fast path takes it, unless it has more to acknowledge.
    #[inline(always)]
    fn is_next(&self, arrival: &Arrival<'_>) -> bool {
        let header = arrival.header;
        let timely = match header.options.timestamps {
            Some(stamps) => self.stamps.enabled && is_not_older(stamps.value, self.stamps.recent),
            None => !self.stamps.enabled,
        };
        self.state == State::Established
            && header.flags.without(Flags::PSH) == Flags::ACK
            && arrival.seq == self.rcv_nxt
            && arrival.end <= self.announced.edge
            && timely
            && header.options.sack().is_empty()
            && self.reassembly.is_empty()
            && self.fin_waiting.is_none()
            && self.urgent.mark.is_none()
    }

    /// Nothing but data, which answers nothing: Linux's fast path (tcp_rcv_established) then sends nothing that waits.
    #[inline(always)]
    fn brings_only_data(&self, arrival: &Arrival<'_>) -> bool {
        arrival.len > 0
            && arrival.ack == self.snd_una
            && self.scaled_window(arrival) == self.snd_wnd
    }

    #[inline(always)]
    fn arrive_predicted(
        &mut self,
        arrival: &Arrival<'_>,
        piece: Option<Piece<B>>,
        link: &mut impl Link<B>,
    ) -> Events {
        if !self.brings_only_data(arrival) {
            self.end_more();
        }
        self.note_arrival(arrival);
        let mut events = self.acknowledged_plainly(arrival);
        match piece {
            Some(piece) if piece.len > 0 => {
                self.counters.bytes_received =
                    self.counters.bytes_received.wrapping_add(u64::from(piece.len));
                self.rcv_nxt = arrival.end;
                self.queue.push(piece, link);
                self.note_data(arrival.len, arrival.has(Flags::PSH), arrival.now);
                events.insert(Events::READABLE);
            }
            piece => give_back(piece, link),
        }
        events
    }

    /// Sections 3.10.7.3: SYN-SENT.
    fn arrive_in_syn_sent(
        &mut self,
        arrival: &Arrival<'_>,
        piece: Option<Piece<B>>,
        link: &mut impl Link<B>,
    ) -> Events {
        give_back(piece, link);
        let has_ack = arrival.has(Flags::ACK);
        if has_ack && (arrival.ack <= self.iss || arrival.ack > self.snd_nxt) {
            // Not an answer to our SYN: an old connection of the peer's. The caller's RST rule
            // applies, the connection stays.
            self.reset_stray(arrival, link);
            if self.rtt.timeouts() == 0 {
                // That connection has ended, or the reset ends it, so the SYN is worth another try (as on
                // Linux).
                self.timers.set(Timer::Retransmission, arrival.now.saturating_add(AFTER_STRAY));
            }
            return Events::NONE;
        }
        if has_ack && !self.is_echo_possible(arrival) {
            self.reset_stray(arrival, link);
            return Events::NONE;
        }
        if arrival.has(Flags::RST) {
            return if has_ack { self.fail(Error::Refused) } else { Events::NONE };
        }
        if !arrival.has(Flags::SYN) {
            return Events::NONE;
        }
        self.take_syn(arrival);
        if !has_ack {
            // Simultaneous open (figure 7): SYN and ACK answer it.
            self.agree_upon_ecn(arrival.has(Flags::ECE) && arrival.has(Flags::CWR));
            self.state = State::SynReceived;
            self.announced.due = true;
            return Events::NONE;
        }
        self.agree_upon_ecn(arrival.has(Flags::ECE) && !arrival.has(Flags::CWR));
        let mut events = self.acknowledged_plainly(arrival);
        self.establish(arrival.now);
        self.note_handshake(arrival.now);
        events.insert(Events::ESTABLISHED.union(Events::WRITABLE));
        events
    }

    /// Whether the time stamp that answers our SYN is one that a SYN had (Linux: tcp_rcv_synsent_state_process). Some peers echo 0.
    fn is_echo_possible(&self, arrival: &Arrival<'_>) -> bool {
        let Some(stamps) = arrival.header.options.timestamps.filter(|_| self.stamps.enabled) else {
            return true;
        };
        let first = self.stalled_since.or(self.board.first().map(|sent| sent.at));
        let first = super::stamp_clock(first.unwrap_or(arrival.now), self.stamps.offset);
        let now = super::stamp_clock(arrival.now, self.stamps.offset);
        stamps.echo == 0 || stamps.echo.wrapping_sub(first) <= now.wrapping_sub(first)
    }

    /// RFC 3168 section 6.1.1: the peer's SYN grants ECN, or it does not.
    fn agree_upon_ecn(&mut self, granted: bool) {
        self.ecn.enabled &= granted;
        self.ecn.reduced &= granted;
    }

    /// What the peer's SYN says.
    fn take_syn(&mut self, arrival: &Arrival<'_>) {
        let options = &arrival.header.options;
        self.irs = arrival.seq;
        self.rcv_nxt = arrival.seq.plus(1);
        self.announced = Announcement::new(self.rcv_nxt, self.announced.edge.since(Seq::default()));
        self.snd_wl1 = arrival.seq;
        self.snd_wnd = u32::from(arrival.header.window);
        self.peer_mss = options.mss.unwrap_or_else(|| default_mss(self.key.remote)).into();
        self.sack &= options.sack_permitted;
        let peer_scale = options.window_scale.filter(|_| self.settings.window_scaling);
        self.set_scales(peer_scale, self.own_scale);
        match options.timestamps.filter(|_| self.stamps.enabled) {
            Some(stamps) => {
                self.stamps.recent = stamps.value;
                self.stamps.recent_at = arrival.now;
            }
            None => self.stamps.enabled = false,
        }
        self.update_mss();
    }

    pub(super) fn establish(&mut self, now: Instant) {
        self.state = if self.fin_queued { State::FinWait1 } else { State::Established };
        self.last_received = now;
        self.probes = 0;
        if self.syn_retransmissions > 0 {
            // RFC 6298 section 5.7.
            self.rtt.after_syn_loss();
        }
        if self.syn_retransmissions > 1 {
            // RFC 5681 section 3.1; a single one may have been spurious (RFC 6928 section 2).
            self.congestion.set_cwnd(self.mss);
        }
        self.arm_keep_alive(now);
    }

    /// Sections 3.10.7.4: all other states.
    fn arrive(
        &mut self,
        arrival: &Arrival<'_>,
        piece: Option<Piece<B>>,
        ecn: EcnField,
        link: &mut impl Link<B>,
    ) -> Events {
        if let Err(events) = self.check(arrival, link) {
            give_back(piece, link);
            return events;
        }
        let keeps_more =
            self.more_follows && self.is_next(arrival) && self.brings_only_data(arrival);
        let mut events = match self.arrive_ack(arrival, link) {
            Ok(events) => events,
            Err(events) => {
                give_back(piece, link);
                return events;
            }
        };
        self.note_congestion(arrival, ecn);
        if arrival.has(Flags::SYN) {
            // Of a simultaneous open. What else it carries comes again.
            self.announced.due = true;
            give_back(piece, link);
            return events;
        }
        if self.state == State::TimeWait {
            // Section 3.10.7.4, eighth: a FIN again restarts the wait.
            if arrival.has(Flags::FIN) {
                self.announced.due = true;
                self.arm_time_wait(arrival.now);
            }
            give_back(piece, link);
            return events;
        }
        events.insert(self.arrive_urgent(arrival, link));
        events.insert(self.arrive_text(arrival, piece, link));
        if !keeps_more {
            self.end_more();
        }
        events
    }

    /// First to fourth: sequence number, RST, SYN. Err: the segment goes no further.
    fn check(&mut self, arrival: &Arrival<'_>, link: &mut impl Link<B>) -> Result<(), Events> {
        let is_reset = arrival.has(Flags::RST);
        let told = Flags::ACK.with(Flags::RST).with(Flags::SYN);
        if !arrival.header.flags.intersects(told) && self.state != State::TimeWait {
            // As Linux: no peer sends it, and so none needs the answer.
            return Err(Events::NONE);
        }
        if !is_reset && self.is_old_duplicate(arrival) {
            if arrival.len == 0 && arrival.seq < self.rcv_nxt {
                // An acknowledgment that others have overtaken, which is common, and not worth an answer (Linux:
                // tcp_disordered_ack_check).
                return Err(Events::NONE);
            }
            // PAWS (RFC 7323 section 5.3).
            let is_data = arrival.len > 0 && !arrival.has(Flags::SYN);
            if is_data && arrival.seq < self.rcv_nxt {
                self.note_duplicate(arrival.seq, arrival.end.min(self.rcv_nxt));
                self.announced.on_repetition();
            }
            self.challenge(arrival.now, is_data);
            return Err(Events::NONE);
        }
        if !self.is_acceptable(arrival) {
            if is_reset {
                let resets = self.is_reset_behind_fin(arrival);
                return Err(if resets { self.arrive_reset(arrival) } else { Events::NONE });
            }
            if arrival.has(Flags::SYN) && self.is_repeated_syn(arrival) {
                self.announced.due = true;
                return Err(Events::NONE);
            }
            if arrival.len > 0 && arrival.seq < self.rcv_nxt && !arrival.has(Flags::SYN) {
                return Err(self.arrive_again(arrival, link));
            } else {
                // Answers to data do not answer each other for ever (Linux: tcp_oow_rate_limited).
                let is_data = arrival.len > 0 && !arrival.has(Flags::SYN);
                self.challenge(arrival.now, is_data);
            }
            return Err(Events::NONE);
        }
        if is_reset {
            return Err(self.arrive_reset(arrival));
        }
        if arrival.has(Flags::SYN) {
            if self.is_crossing_syn(arrival) {
                return Ok(());
            }
            if self.is_repeated_syn(arrival) {
                self.announced.due = true;
            } else {
                // RFC 5961 section 4: whatever its number.
                self.challenge(arrival.now, false);
            }
            return Err(Events::NONE);
        }
        if !arrival.has(Flags::ACK) {
            return Err(Events::NONE);
        }
        Ok(())
    }

    /// All of the segment was received before: it is reported (RFC 2883) and acknowledged at once. Its own acknowledgment may be
    /// new all the same. If that is impossible, the segment is from nowhere, and the answer to it is rare (RFC 5961 section 5).
    fn arrive_again(&mut self, arrival: &Arrival<'_>, link: &mut impl Link<B>) -> Events {
        let told = self.announced.acknowledged.min(self.rcv_nxt);
        let mut events = Events::NONE;
        if arrival.has(Flags::ACK) && arrival.end >= told {
            events = match self.arrive_ack(arrival, link) {
                Ok(events) => events,
                Err(events) => return events,
            };
            self.end_more();
        }
        self.note_duplicate(arrival.seq, arrival.end.min(self.rcv_nxt));
        self.announced.on_repetition();
        self.announced.due = true;
        if self.state == State::TimeWait && arrival.has(Flags::FIN) {
            self.arm_time_wait(arrival.now);
        }
        events
    }

    /// The peer's SYN again, because our answer to it was lost: in SYN-RECEIVED (where it also
    /// completes a simultaneous open).
    fn is_repeated_syn(&self, arrival: &Arrival<'_>) -> bool {
        self.state == State::SynReceived && arrival.seq == self.irs && !arrival.has(Flags::ACK)
    }

    /// The SYN of a simultaneous open (figure 7), with the acknowledgment of ours.
    fn is_crossing_syn(&self, arrival: &Arrival<'_>) -> bool {
        self.state == State::SynReceived
            && arrival.seq == self.irs
            && arrival.has(Flags::SYN.with(Flags::ACK))
    }

    /// Section 3.4, as Linux judges it: some of it may be new, and it begins inside the window.
    fn is_acceptable(&self, arrival: &Arrival<'_>) -> bool {
        if self.is_crossing_syn(arrival) {
            return true;
        }
        let edge = self.announced.edge.max(self.rcv_nxt);
        arrival.seq <= edge
            && arrival.end >= self.announced.acknowledged.min(self.rcv_nxt)
            && (arrival.len == 0 || arrival.end > self.rcv_nxt)
    }

    fn is_old_duplicate(&self, arrival: &Arrival<'_>) -> bool {
        let Some(stamps) = arrival.header.options.timestamps.filter(|_| self.stamps.enabled) else {
            return false;
        };
        let age = arrival.now.saturating_duration_since(self.stamps.recent_at);
        let value = stamps.value.wrapping_add(STAMP_TOLERANCE);
        if is_not_older(value, self.stamps.recent) || age >= STAMP_LIFE {
            return false;
        }
        // Linux (tcp_disordered_ack): pure acknowledgments may overtake each other, by a timeout at most, if they say nothing new.
        let lag_nanos = u64::from(self.stamps.recent.wrapping_sub(stamps.value)) * TICK_NANOS;
        let is_overtaken = arrival.len == 0
            && arrival.seq == self.rcv_nxt
            && arrival.ack == self.snd_una
            && !self.brings_window(arrival)
            && lag_nanos <= self.rto_nanos().saturating_mul(6) / 5;
        !is_overtaken
    }

    /// A segment of the peer's, and of nobody else: its numbers say so, the acknowledged one included (RFC 5961 section
    /// 5). One that somebody else made up must not make the peer's own look old (RFC 7323 section 5.3).
    #[inline]
    pub(super) fn note_arrival(&mut self, arrival: &Arrival<'_>) {
        self.note_stamps(arrival);
        self.last_received = arrival.now;
        self.probes = 0;
    }

    /// RFC 7323 section 4.3 (2). An old acknowledgment is easy to guess, so the stamp beside it is not trusted (Linux: tcp_ack).
    #[inline]
    fn note_stamps(&mut self, arrival: &Arrival<'_>) {
        let Some(stamps) = arrival.header.options.timestamps else { return };
        if self.stamps.enabled
            && arrival.ack >= self.snd_una
            && arrival.seq <= self.announced.acknowledged
            && is_not_older(stamps.value, self.stamps.recent)
        {
            self.stamps.recent = stamps.value;
            self.stamps.recent_at = arrival.now;
        }
    }

    /// Nothing that [`Connection::note_congestion`] would note: of data only.
    #[inline(always)]
    pub(in crate::tcp) fn is_usual(&self, len: u32, ecn: EcnField) -> bool {
        let is_usual_of_data = match ecn {
            EcnField::NotCapable => !self.ecn.seen,
            EcnField::Capable => self.ecn.seen || !self.ecn.enabled,
            EcnField::Congestion => false,
        };
        len == 0 || is_usual_of_data
    }

    /// RFC 3168 section 6.1.3.
    fn note_congestion(&mut self, arrival: &Arrival<'_>, ecn: EcnField) {
        if arrival.len == 0 || !self.ecn.enabled || !self.state.may_receive() {
            return;
        }
        match ecn {
            // Section 6.1.5: of a retransmission, whose sender waits (Linux: tcp_data_ecn_check).
            EcnField::NotCapable if self.ecn.seen => self.announced.hurry(),
            EcnField::NotCapable => {}
            EcnField::Capable => self.ecn.seen = true,
            EcnField::Congestion => {
                self.ecn.seen = true;
                self.ecn.echo = true;
                self.announced.due = true;
            }
        }
    }

    /// Some peers do not count the FIN that they have sent (Linux: tcp_reset_check).
    fn is_reset_behind_fin(&self, arrival: &Arrival<'_>) -> bool {
        arrival.seq == self.rcv_nxt.minus(1)
            && matches!(self.state, State::CloseWait | State::LastAck | State::Closing)
    }

    /// RFC 5961 section 3: only the very next sequence number resets; or the one behind all that has arrived, if something
    /// before it was lost, as on Linux: that is the peer's next number, and our reports have told it that we know.
    fn is_reset(&self, arrival: &Arrival<'_>) -> bool {
        let fin = self.fin_waiting.map(|fin| fin.plus(1));
        let ends = [fin, self.reassembly.end()].into_iter().flatten();
        let end = ends.reduce(Seq::max).filter(|_| self.sack);
        arrival.seq == self.rcv_nxt || end == Some(arrival.seq) || self.is_reset_behind_fin(arrival)
    }

    fn arrive_reset(&mut self, arrival: &Arrival<'_>) -> Events {
        if !self.is_reset(arrival) {
            // Linux, tcp_timewait_state_process: nothing is left in TIME-WAIT to be protected.
            if self.state != State::TimeWait {
                self.challenge(arrival.now, false);
            }
            return Events::NONE;
        }
        match self.state {
            State::TimeWait => {
                // RFC 1337 would have it stay, which Linux does if told. The peer that resets has a new
                // connection that we do not let begin.
                if self.settings.rfc_1337 {
                    return Events::NONE;
                }
                self.finish();
                Events::CLOSED
            }
            // As Linux (tcp_reset), also while our FIN is on its way.
            State::CloseWait => self.fail(Error::BrokenPipe),
            _ => self.fail(Error::Reset),
        }
    }

    /// An acknowledgment that tells the peer where we are, at a bounded rate. Repetitions of data
    /// are always answered: the peer may have missed the acknowledgment.
    pub(super) fn challenge(&mut self, now: Instant, always: bool) {
        let recent = self.last_challenge != Instant::default()
            && now.saturating_duration_since(self.last_challenge) < CHALLENGE_INTERVAL;
        if always || !recent {
            self.announced.due = true;
            if !always {
                self.last_challenge = now;
            }
        }
    }

    pub(super) fn arm_time_wait(&mut self, now: Instant) {
        self.timers.set(
            Timer::End,
            now.plus_nanos(u64::from(self.settings.time_wait_millis).saturating_mul(1_000_000)),
        );
    }

    /// May a new connection take this one's place (RFC 6191; RFC 9293 section 3.10.7.4)? Its SYN
    /// must be newer, by its time stamp or its sequence number. If so: drop this connection, and
    /// treat the SYN as one for LISTEN. A connection that an earlier segment of the same batch has ended
    /// gives way to any SYN.
    #[inline]
    pub fn may_be_replaced_by(&self, header: &Header, now: Instant) -> bool {
        match self.state {
            State::TimeWait => self.is_older_than(header, now),
            State::Closed => header.is_opening(),
            _ => false,
        }
    }

    #[cold]
    fn is_older_than(&self, header: &Header, now: Instant) -> bool {
        if !header.is_opening() {
            return false;
        }
        let is_beyond = Seq::new(header.seq) > self.rcv_nxt;
        match header.options.timestamps.filter(|_| self.stamps.enabled) {
            Some(stamps) if stamps.value == self.stamps.recent => is_beyond,
            Some(stamps) if is_not_older(stamps.value, self.stamps.recent) => true,
            // An old duplicate (PAWS), whatever its number.
            Some(_) => {
                let age = now.saturating_duration_since(self.stamps.recent_at);
                age >= STAMP_LIFE && is_beyond
            }
            None => is_beyond,
        }
    }
}

pub(super) fn give_back<B>(piece: Option<Piece<B>>, link: &mut impl Link<B>) {
    if let Some(piece) = piece {
        link.release(piece.body);
    }
}

/// Modular order of time stamps (RFC 7323 section 5.2). A TS.Recent of 0 is unknown, as on Linux
/// (`tcp_paws_check`): any time stamp may follow it.
#[inline]
fn is_not_older(value: u32, recent: u32) -> bool {
    value.wrapping_sub(recent) as i32 >= 0 || recent == 0
}
