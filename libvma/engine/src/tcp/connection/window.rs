//! The receiver's side: which window is announced, when an acknowledgment is due, and how the
//! receive buffer grows with the flow.

use super::{Connection, State};
use crate::tcp::seq::Seq;
use crate::tcp::settings::Buffer;
use crate::time::Instant;

use super::timers::Timer;

/// Data that is sent so soon after a segment answers it (Linux: TCP_DELACK_MIN).
const ANSWER_NANOS: u64 = 40_000_000;
/// The program that connects sends its first data so soon, if it is one of those that speak first.
const FIRST_WORD_NANOS: u64 = 20_000_000;
/// A tick of the time stamps.
const TICK_NANOS: u64 = 1_000_000;
/// Segments acknowledged at once while a flow starts, so that its sender's window opens (Linux:
/// TCP_MAX_QUICKACKS).
const QUICK_ACKS: u8 = 16;

/// What a sender may send in its first round trip (RFC 6928), and a receiver expects.
const INITIAL_SPACE: u32 = 14_600;

/// The opening of a connection, for the acknowledgments that wait for a segment to ride on
/// ([`crate::tcp::Settings::first_ack_waits`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opening {
    /// It has passed, without anything special.
    #[default]
    Over,
    /// The peer has answered our SYN; nobody has sent data.
    Quiet,
    /// The first data of the peer are to come, and the program will answer them or close.
    Awaited,
    /// The first data are there and not acknowledged.
    Asked,
}

/// What the peer was told last.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    /// The right edge of the window; it never moves left (RFC 9293 section 3.8.6).
    pub edge: Seq,
    /// RCV.NXT of the last acknowledgment: Last.ACK.sent of RFC 7323.
    pub acknowledged: Seq,
    /// An acknowledgment is due now.
    pub due: bool,
    /// More than one, for a peer that counts them (RFC 5681 section 3.2).
    pub repeats: u8,
    /// Segments still to be acknowledged at once.
    quick: u8,
    /// The program answers what it receives: its data carries the acknowledgments.
    interactive: bool,
    /// Segments since the last acknowledgment that seem to be the end of what the peer wrote, 2 at
    /// most (Linux: ICSK_ACK_PUSHED and ICSK_ACK_PUSHED2).
    pushed: u8,
    opening: Opening,
    /// The program that connected sent the first data, and soon.
    has_spoken: bool,
    /// The largest segment received: two of them are acknowledged at once.
    segment: u32,
    /// When data was received last; long ago if never.
    received: Instant,
}

impl Announcement {
    pub fn new(next: Seq, window: u32) -> Announcement {
        Announcement {
            edge: next.plus(window),
            acknowledged: next,
            quick: QUICK_ACKS,
            ..Announcement::default()
        }
    }

    pub fn await_request(&mut self) {
        self.opening = Opening::Awaited;
    }

    pub fn is_quiet(&self) -> bool {
        self.opening == Opening::Quiet
    }

    /// The peer's first data wait for what the program does.
    pub fn is_asked(&self) -> bool {
        self.opening == Opening::Asked
    }

    pub fn on_delay_over(&mut self) {
        self.due = true;
        self.opening = Opening::Over;
        // The program does not answer after all.
        self.interactive = false;
    }

    /// TCP_QUICKACK. Switched off, it only says that the program answers: what is left of the
    /// acknowledgments at once comes back when it does not (Linux: __tcp_sock_set_quickack).
    pub fn set_quick(&mut self, quick: bool) {
        self.interactive = !quick;
        if quick {
            self.quick = QUICK_ACKS;
            self.opening = Opening::Over;
        }
    }

    /// The peer repeats what has arrived: after a timeout it waits for the acknowledgment of each segment (Linux:
    /// tcp_enter_quickack_mode).
    #[cold]
    pub fn on_repetition(&mut self) {
        self.interactive = false;
        self.quick = QUICK_ACKS;
    }

    /// The peer may wait for the acknowledgments of two segments.
    #[cold]
    pub fn hurry(&mut self) {
        self.interactive = false;
        self.quick = self.quick.max(2);
    }

    pub fn is_quick(&self) -> bool {
        !self.interactive
    }

    pub fn forget(&mut self) {
        self.due = false;
        self.repeats = 0;
        self.pushed = 0;
    }

    /// The program has read all there is: does the peer perhaps wait for the acknowledgment before it
    /// sends more (Nagle)? One such segment may be a request, whose answer carries it; two are not.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.pushed > u8::from(self.interactive)
    }

    pub fn segment(&self) -> u32 {
        self.segment
    }
}

/// Receive-buffer tuning (dynamic right-sizing, as Linux does it): the buffer is to hold twice what
/// the program reads in a round trip, and eight times what it has read at all.
///
/// The latter is for a program that reads at once and then not for a while, because its own peer writes on
/// before it reads: each of its reads was small. Linux comes to as much by the bursts that interrupts and
/// its scheduler make.
#[derive(Debug)]
pub(super) struct Tuning {
    /// What the program has read of the connection.
    total: u32,
    /// What the program has read since `since`.
    read: u32,
    since: Instant,
    /// The most it read in one round trip so far.
    space: u32,
    /// The limit as tuned.
    limit: u32,
}

impl Tuning {
    pub fn new(limit: u32, now: Instant) -> Tuning {
        let space = INITIAL_SPACE.min(limit.wrapping_shr(1));
        Tuning { total: 0, read: 0, since: now, space, limit }
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The buffer is to hold so much more.
    #[inline]
    pub fn raise(&mut self, count: u32, buffer: &Buffer) {
        let raised = self.limit.saturating_add(count).min(buffer.most);
        self.limit = self.limit.max(raised);
    }

    #[inline]
    fn on_read(&mut self, count: u32, now: Instant, round_trip: u64, mss: u32, buffer: &Buffer) {
        self.read = self.read.saturating_add(count);
        if !buffer.automatic {
            self.limit = buffer.limit;
            return;
        }
        self.total = self.total.saturating_add(count);
        let proven = self.total.saturating_mul(8).max(buffer.limit);
        self.limit = self.limit.max(proven.min(buffer.most));
        if self.read <= self.space && self.read < self.limit {
            // Cheap while the flow does not grow: the clock is not even looked at.
            if now.nanos_since(self.since) > round_trip {
                self.read = 0;
                self.since = now;
            }
            return;
        }
        if now.nanos_since(self.since) < round_trip {
            return;
        }
        // Twice what was read, because the sender may double it; and twice by how much it has grown,
        // because what is seen now is a round trip old.
        let wanted = self.read.saturating_mul(2).saturating_add(mss.saturating_mul(16));
        let growth = u64::from(wanted)
            .saturating_mul(u64::from(self.read.saturating_sub(self.space)))
            .checked_div(u64::from(self.space))
            .unwrap_or(0);
        let wanted = u64::from(wanted).saturating_add(growth.saturating_mul(2));
        self.space = self.read;
        self.limit = self.limit.max(wanted.min(u64::from(buffer.most)) as u32);
        self.read = 0;
        self.since = now;
    }
}

impl<B> Connection<B> {
    /// Data in order has arrived: when is it acknowledged?
    #[inline]
    pub(super) fn note_data(&mut self, len: u32, pushed: bool, now: Instant) {
        let full = self.mss;
        let announced = &mut self.announced;
        announced.received = now;
        announced.segment = announced.segment.max(len.min(full));
        let is_end = pushed || len < announced.segment;
        if is_end {
            announced.pushed = announced.pushed.saturating_add(1).min(2);
        }
        let is_request = announced.opening == Opening::Awaited && is_end;
        announced.opening = if is_request { Opening::Asked } else { Opening::Over };
        let unacknowledged = self.rcv_nxt.since(announced.acknowledged);
        // RFC 9293 section 3.8.6.3: at least every second full segment.
        let due = unacknowledged > announced.segment
            || !announced.interactive && announced.quick > 0 && !is_request
            || self.settings.always_quick_ack
            || self.ecn.echo
            || !self.reassembly.is_empty();
        if due {
            announced.quick = announced.quick.saturating_sub(1);
            announced.due = true;
        } else if !announced.due && !self.timers.is_set(Timer::DelayedAck) {
            self.timers.set(Timer::DelayedAck, now.saturating_add(self.settings.ack_delay()));
        }
    }

    /// The peer has answered our SYN. The handshake's third segment leaves at once, unless data follows it so closely that it
    /// carries the acknowledgment (tcp(7), TCP_QUICKACK): data that is there already, or that is expected.
    pub(super) fn note_handshake(&mut self, now: Instant) {
        self.announced.opening = Opening::Quiet;
        if !self.settings.first_ack_waits || self.ecn.enabled {
            self.announced.due = true;
            return;
        }
        self.announced.acknowledged = self.irs;
        self.timers.set(Timer::DelayedAck, now.plus_nanos(FIRST_WORD_NANOS));
    }

    /// Did the program connect, and send the first data soon after?
    pub fn spoke_first(&self) -> bool {
        self.announced.has_spoken
    }

    /// Is nothing to be sent but the acknowledgment of the peer's first data, which the program has read, and may answer next?
    #[inline]
    pub fn may_answer(&self) -> bool {
        self.announced.is_asked()
            && self.announced.due
            && self.snd_nxt == self.data_end()
            && !self.fin_queued
    }

    /// The program sends the first data.
    #[inline]
    pub(super) fn note_answer(&mut self, now: Instant) {
        if self.announced.is_quiet() {
            self.announced.has_spoken = now.nanos_since(self.last_received) < FIRST_WORD_NANOS;
            let is_awaited = self.announced.has_spoken && self.settings.first_ack_waits;
            self.announced.opening = if is_awaited { Opening::Awaited } else { Opening::Over };
        }
    }

    /// Data has left: if that answers something, acknowledgments ride on answers. Only data can be answered: what comes to
    /// somebody who only sends is acknowledgments. Data that the peer's window holds back answers nothing.
    #[inline]
    pub(super) fn note_answered(&mut self, now: Instant) {
        if now.nanos_since(self.announced.received) < ANSWER_NANOS {
            self.announced.interactive = true;
        }
    }

    /// The window for the next segment (scaled), and moves the right edge to it.
    #[inline]
    pub(super) fn announce(&mut self) -> u16 {
        let current = self.announced.edge.ahead_of(self.rcv_nxt);
        let possible = self.possible_window();
        // RFC 9293 section 3.8.6.2.2: the edge moves by a worthwhile amount or not at all.
        let worth = self.worthwhile();
        let window = if possible >= current.saturating_add(worth) { possible } else { current };
        let scale = u32::from(self.rcv_scale);
        // Rounded down (RFC 7323 section 2.4): rounding up would open a full buffer by a unit with
        // every segment. What was announced before is taken all the same, up to `edge`.
        let units = window.wrapping_shr(scale).min(u32::from(u16::MAX));
        // A buffer that was made smaller than a unit would stay closed for ever.
        let is_open = window > 0 && window >= self.receive_limit().wrapping_shr(1);
        let units = units.max(u32::from(is_open));
        let edge = self.rcv_nxt.plus(units.wrapping_shl(scale));
        self.announced.edge = self.announced.edge.max(edge);
        self.announced.acknowledged = self.rcv_nxt;
        self.announced.due = false;
        self.announced.repeats = 0;
        self.announced.pushed = 0;
        if self.announced.is_asked() {
            self.announced.opening = Opening::Over;
        }
        self.timers.stop(Timer::DelayedAck);
        units as u16
    }

    /// The window of a SYN, which is never scaled.
    pub(super) fn announce_in_syn(&mut self) -> u16 {
        let window = self.possible_window().min(u32::from(u16::MAX));
        self.announced.edge = self.announced.edge.max(self.rcv_nxt.plus(window));
        window as u16
    }

    /// RCV.BUFF less what waits for the program.
    #[inline]
    fn possible_window(&self) -> u32 {
        self.receive_limit().saturating_sub(self.queue.len())
    }

    /// RCV.BUFF, as far as windows can and may tell of it.
    #[inline]
    fn receive_limit(&self) -> u32 {
        let limit = self.settings.window_clamp.min(self.tuning.limit());
        limit.min(u32::from(u16::MAX).wrapping_shl(u32::from(self.rcv_scale)))
    }

    /// By how much the window's edge must move, at least (RFC 9293 section 3.8.6.2.2).
    #[inline]
    fn worthwhile(&self) -> u32 {
        let unit = 1u32.wrapping_shl(u32::from(self.rcv_scale));
        self.mss.max(unit).min(self.receive_limit().wrapping_shr(1))
    }

    /// The program has read: the buffer may grow, the window open.
    pub(super) fn note_read(&mut self, count: u32, now: Instant) {
        // With no round trip known, a tick of the time stamps.
        let round_trip = match self.rtt.srtt_nanos() {
            0 => TICK_NANOS,
            known => known,
        };
        let mss = self.mss;
        self.tuning.on_read(count, now, round_trip, mss, &self.settings.receive_buffer);
        if self.queue.is_empty() && self.announced.is_awaited() && count > 0 {
            self.announced.due = true;
        }
        if !self.state.may_receive() || self.state == State::Closed {
            return;
        }
        let offered = self.announced.edge.ahead_of(self.rcv_nxt);
        let possible = self.possible_window();
        // As Linux: an update is worth a segment if it doubles what the peer knows of.
        let worth = self.worthwhile();
        if possible >= offered.saturating_mul(2) && possible.saturating_sub(offered) >= worth {
            self.announced.due = true;
        }
    }

    /// The program has accepted the connection: the whole receive buffer is its window now. A peer that may send no
    /// segment is told at once if that is much, because the program may wait for more than the first window before it
    /// reads (SO_RCVLOWAT).
    pub fn begin_service(&mut self, now: Instant) {
        self.retune(now);
        let is_closed = self.announced.edge.ahead_of(self.rcv_nxt) < self.mss;
        let is_much = self.possible_window() >= self.receive_limit().wrapping_shr(1);
        if is_closed && is_much && self.state.may_receive() && self.state != State::Closed {
            self.announced.due = true;
        }
    }

    /// The limit changed by an option.
    pub(super) fn retune(&mut self, now: Instant) {
        let buffer = self.settings.receive_buffer;
        let limit =
            if buffer.automatic { buffer.limit.max(self.tuning.limit) } else { buffer.limit };
        self.tuning = Tuning::new(limit, now);
    }
}
