//! A connection that another stack has led so far: the inverse of [`Connection::transplant`].
//!
//! The other stack tells the state between two segments, not when it sent what. So everything in
//! flight counts as sent now, and as sent more than once: its acknowledgment gives no round-trip
//! time (Karn's rule) unless the echoed time stamp does (RFC 7323 section 4.1). What the peer has
//! reported by SACK is reported again by its next acknowledgment (RFC 2018 section 4); segments
//! that the other stack received out of order are gone, as RFC 2018 section 8 allows.

use core::time::Duration;

use super::timers::Timer;
use super::window::{Announcement, Tuning};
use super::{Connection, Counters, State};
use crate::tcp::congestion::Congestion;
use crate::tcp::isn::timestamp_clock;
use crate::tcp::lookup::FlowKey;
use crate::tcp::rtt::RttEstimator;
use crate::tcp::seq::Seq;
use crate::tcp::{Link, Path, Piece, Settings};
use crate::time::Instant;

/// An established connection between two segments, and what the other stack has learnt of the path.
#[derive(Clone, Copy, Debug)]
pub struct Resumed<'a> {
    /// ESTABLISHED or CLOSE-WAIT. Any other state counts as ESTABLISHED.
    pub state: State,
    pub snd_una: Seq,
    /// In CLOSE-WAIT the peer's FIN counts for one.
    pub rcv_nxt: Seq,
    pub snd_wnd: u32,
    pub snd_wl1: Seq,
    pub max_snd_wnd: u32,
    /// What is left of the window that the peer was told of, counted from RCV.NXT.
    pub rcv_wnd: u32,
    pub peer_mss: u32,
    /// The shift counts, if both sides sent the option: sending, receiving.
    pub scales: Option<(u8, u8)>,
    pub sack: bool,
    /// The time stamp that a segment would carry now, at least as large as any that was sent; None
    /// without the option.
    pub timestamp: Option<u32>,
    /// TS.Recent; 0 if it is not known: the peer's next segment tells it.
    pub recent_timestamp: u32,
    /// Both sides have agreed to ECN (RFC 3168).
    pub ecn: bool,
    /// The peer may not have an acknowledgment of everything before RCV.NXT.
    pub owes_acknowledgment: bool,
    /// The round-trip time as it was measured; None before the first measurement.
    pub srtt: Option<Duration>,
    pub rttvar: Duration,
    pub min_rtt: Option<Duration>,
    /// In bytes.
    pub cwnd: Option<u32>,
    /// In bytes; None before any congestion.
    pub ssthresh: Option<u32>,
    /// What was counted so far.
    pub counters: Counters,
    /// Bytes sent and not acknowledged. SND.NXT is behind them.
    pub unacknowledged: [&'a [u8]; 2],
    /// Bytes never sent.
    pub unsent: [&'a [u8]; 2],
}

impl<B> Connection<B> {
    /// A connection that goes on where `parts` ends. It has sent nothing yet:
    /// [`Connection::output`] sends what follows. Before that, [`Connection::resume_unread`] puts
    /// in what was received and not read.
    pub fn resume(
        key: FlowKey,
        parts: &Resumed<'_>,
        path: Path,
        settings: Settings,
        now: Instant,
    ) -> Connection<B> {
        // As if the SYN were the number before SND.UNA, so that the first byte of the buffer is
        // the first one of the stream.
        let iss = parts.snd_una.minus(1);
        let offset = parts.timestamp.unwrap_or(0).wrapping_sub(timestamp_clock(now));
        let mut connection = Connection::new(key, iss, offset, path, settings, now);
        let closing = parts.state == State::CloseWait;
        connection.state = if closing { State::CloseWait } else { State::Established };
        connection.peer_closed = closing;
        connection.peer_mss = parts.peer_mss;
        connection.sack = parts.sack;
        connection.stamps.enabled = parts.timestamp.is_some();
        connection.stamps.recent = parts.recent_timestamp;
        connection.stamps.recent_at = now;
        connection.ecn.enabled = parts.ecn;
        connection.counters = parts.counters;
        if let Some((send, receive)) = parts.scales {
            connection.set_scales(Some(send), receive);
        }
        connection.resume_sending(parts, now);
        connection.resume_receiving(parts, now);
        connection.arm_keep_alive(now);
        connection
    }

    fn resume_sending(&mut self, parts: &Resumed<'_>, now: Instant) {
        self.snd_una = parts.snd_una;
        self.snd_wnd = parts.snd_wnd;
        self.max_snd_wnd = parts.max_snd_wnd.max(parts.snd_wnd);
        self.snd_wl1 = parts.snd_wl1;
        parts.unacknowledged.iter().for_each(|bytes| self.buffer.append(bytes));
        self.snd_nxt = self.data_end();
        parts.unsent.iter().for_each(|bytes| self.buffer.append(bytes));

        self.update_mss();
        self.congestion = Congestion::new(self.settings.congestion, self.mss);
        self.congestion.resume(parts.cwnd, parts.ssthresh);
        if let Some(srtt) = parts.srtt {
            self.rtt = RttEstimator::resume(srtt, parts.rttvar, parts.min_rtt, now);
        }
        let in_flight = self.snd_nxt.since(self.snd_una);
        self.small_end = self.snd_una;
        if in_flight > 0 {
            self.board.push(self.snd_una, self.snd_nxt, now);
            self.board.retransmit(self.snd_una, self.snd_nxt, now);
            self.timers.set(Timer::Retransmission, self.timeout(now));
            if in_flight.checked_rem(self.mss) != Some(0) {
                self.small_end = self.snd_nxt;
            }
        }
    }

    fn resume_receiving(&mut self, parts: &Resumed<'_>, now: Instant) {
        self.rcv_nxt = parts.rcv_nxt;
        self.irs = parts.rcv_nxt.minus(1);
        self.announced = Announcement::new(parts.rcv_nxt, parts.rcv_wnd);
        self.announced.due = parts.owes_acknowledgment;
        let buffer = &self.settings.receive_buffer;
        if buffer.automatic {
            // As large as the other stack had made it: the window, and what is unread.
            let limit = parts.rcv_wnd.min(buffer.most).max(buffer.limit);
            self.tuning = Tuning::new(limit, now);
        }
    }

    /// Adds `len` bytes, which `body` begins with, to what was received and not read: in the order
    /// of the stream, up to RCV.NXT.
    pub fn resume_unread(&mut self, body: B, len: u32, link: &mut impl Link<B>) {
        let buffer = &self.settings.receive_buffer;
        if buffer.automatic {
            self.tuning.raise(len, buffer);
        }
        self.queue.push(Piece { body, offset: 0, len }, link);
    }
}
