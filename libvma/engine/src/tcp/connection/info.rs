//! What can be asked of a connection: TCP_INFO, statistics, and what the kernel must know to take
//! it over.

use core::time::Duration;

use super::timers::Timer;
use super::{Connection, Counters, State, own_mss, stamp_clock};
use crate::tcp::seq::Seq;
use crate::time::Instant;

/// A peer repeats its FIN after 200 ms at the earliest, and a round trip later that has arrived.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// More than a window without scaling (Linux: tcp_twsk_unique).
const BEYOND: u32 = 65_537;

/// TCP_INFO (tcp(7)), as far as it is known here.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub state: State,
    pub is_recovering: bool,
    pub retransmits: u32,
    pub probes: u8,
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    /// A segment came with the field set.
    pub ecn_seen: bool,
    pub snd_scale: u8,
    pub rcv_scale: u8,
    pub window_scaling: bool,
    pub rto: Duration,
    pub srtt: Option<Duration>,
    pub rttvar: Duration,
    pub min_rtt: Option<Duration>,
    pub snd_mss: u32,
    /// The largest segment received.
    pub rcv_mss: u32,
    pub advertised_mss: u32,
    /// In sequence numbers.
    pub unacknowledged: u32,
    /// Reported by the peer; without SACK as far as duplicate acknowledgments tell.
    pub sacked: u32,
    pub to_retransmit: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub path_mtu: u32,
    pub unsent: u32,
    pub since_sent: Duration,
    pub since_received: Duration,
    pub receive_limit: u32,
    pub counters: Counters,
}

/// What makes up an established connection, for a transplant into the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Transplant {
    pub state: State,
    pub snd_una: Seq,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    pub snd_wnd: u32,
    pub snd_wl1: Seq,
    pub max_snd_wnd: u32,
    pub rcv_wnd: u32,
    pub peer_mss: u32,
    /// Ours and the peer's shift counts: sending, receiving.
    pub scales: Option<(u8, u8)>,
    pub sack: bool,
    /// The time stamp that a segment would carry now.
    pub timestamp: Option<u32>,
    /// TS.Recent.
    pub recent_timestamp: u32,
    pub peer_closed: bool,
    pub writing_ended: bool,
    pub fin_sent: bool,
    /// Our SYN was acknowledged.
    pub was_established: bool,
}

impl<B> Connection<B> {
    pub fn info(&self, now: Instant) -> Info {
        // What the peer agrees to is not known yet.
        let agreed = self.state != State::SynSent;
        let stamps = if self.stamps.enabled { super::TIMESTAMPS_LEN } else { 0 };
        Info {
            state: self.state,
            is_recovering: self.phase.repairs(),
            retransmits: self.rtt.timeouts(),
            probes: self.probes,
            timestamps: agreed && self.stamps.enabled,
            sack: agreed && self.sack,
            ecn: agreed && self.ecn.enabled,
            ecn_seen: self.ecn.seen,
            snd_scale: self.snd_scale,
            rcv_scale: self.rcv_scale,
            window_scaling: self.snd_scale != 0 || self.rcv_scale != 0,
            rto: self.rto(),
            srtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min_rtt(),
            snd_mss: if agreed { self.mss } else { self.mss.saturating_sub(stamps) },
            rcv_mss: self.announced.segment(),
            advertised_mss: own_mss(self.path, &self.settings),
            unacknowledged: self.snd_nxt.since(self.snd_una),
            sacked: self
                .board
                .sacked()
                .saturating_add(self.duplicate_credit.min(self.board.in_flight())),
            to_retransmit: self.board.to_retransmit(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            snd_wnd: self.snd_wnd,
            rcv_wnd: self.announced.edge.ahead_of(self.rcv_nxt),
            path_mtu: self.path.mtu,
            unsent: self.data_end().ahead_of(self.snd_nxt),
            since_sent: now.saturating_duration_since(self.last_sent),
            since_received: now.saturating_duration_since(self.last_received),
            receive_limit: self.tuning.limit(),
            counters: self.counters,
        }
    }

    /// Bytes written and not acknowledged (SIOCOUTQ); the FIN counts as one. As on Linux a connection that has failed still
    /// tells: so much may not have reached the peer.
    pub fn unacknowledged(&self) -> u32 {
        if self.state == State::Closed {
            return self.probe_flight;
        }
        let fin = self.fin_queued && self.snd_una <= self.data_end();
        (self.buffer.len() as u32).saturating_add(u32::from(fin))
    }

    /// Bytes written and not sent (SIOCOUTQNSD); the FIN counts as one.
    pub fn unsent(&self) -> u32 {
        let fin = self.fin_queued && !self.fin_sent();
        self.data_end().ahead_of(self.snd_nxt).saturating_add(u32::from(fin))
    }

    pub fn transplant(&self, now: Instant) -> Transplant {
        Transplant {
            state: self.state,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            snd_wnd: self.snd_wnd,
            snd_wl1: self.snd_wl1,
            max_snd_wnd: self.max_snd_wnd,
            rcv_wnd: self.announced.edge.ahead_of(self.rcv_nxt),
            peer_mss: self.peer_mss,
            scales: (self.snd_scale != 0 || self.rcv_scale != 0)
                .then_some((self.snd_scale, self.rcv_scale)),
            sack: self.sack,
            timestamp: self.stamps.enabled.then(|| stamp_clock(now, self.stamps.offset)),
            recent_timestamp: self.stamps.recent,
            peer_closed: self.peer_closed,
            writing_ended: self.fin_queued,
            fin_sent: self.fin_sent(),
            was_established: self.snd_una != self.iss,
        }
    }

    /// Where a connection that takes the place of this one begins, and its time stamps (Linux:
    /// tcp_twsk_unique): beyond what the peer has seen.
    pub fn successor(&self) -> (Seq, u32) {
        (self.snd_nxt.plus(BEYOND), self.stamps.offset)
    }

    /// TIME-WAIT has begun, or was asked for the last acknowledgment again, so lately that the peer may
    /// lack it and repeat its FIN.
    pub fn may_be_asked_again(&self, now: Instant) -> bool {
        let Some(end) = self.timers.get(Timer::End).filter(|_| self.state == State::TimeWait)
        else {
            return false;
        };
        let wait = Duration::from_millis(u64::from(self.settings.time_wait_millis));
        let passed = wait.saturating_sub(end.saturating_duration_since(now));
        passed < LEAST_PATIENCE.max(self.rto().saturating_mul(2))
    }

    /// The bytes that were written and not acknowledged, in order: sent ones first, then the others.
    pub fn unacknowledged_bytes(&self) -> ([&[u8]; 2], [&[u8]; 2]) {
        let sent = self.snd_nxt.min(self.data_end()).ahead_of(self.buffer_start) as usize;
        let all = self.buffer.len();
        (self.buffer.slices(0, sent), self.buffer.slices(sent, all.saturating_sub(sent)))
    }
}
