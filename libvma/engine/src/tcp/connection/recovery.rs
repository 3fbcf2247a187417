//! What follows from losses: fast recovery (RFC 6675, RFC 6937), timeouts (RFC 6298, RFC 5681),
//! and taking it back when nothing was lost (RFC 4015).

use super::timers::Timer;
use super::{BlackHole, Connection, Phase};
use crate::tcp::prr::Prr;
use crate::tcp::seq::Seq;
use crate::time::Instant;

/// Timeouts in a row before a black hole is suspected (Linux: tcp_retries1).
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// Segments that may leave at once at the end of a recovery: an initial window.
const BURST: u32 = 10;
/// What nearly every path carries (RFC 4821 section 7.2).
const BLACK_HOLE_BASE: u32 = 1024;
/// What every path carries (RFC 1122 section 3.3.3: an MTU of 576).
const BLACK_HOLE_MSS: u32 = 524;

impl<B> Connection<B> {
    /// Looks for losses by time (RFC 8985), when an acknowledgment reported so much, or none did. Returns
    /// how much was newly found.
    pub(super) fn detect_losses(&mut self, now: Instant, delivered: u32) -> u32 {
        if !self.sack || self.board.is_empty() {
            return 0;
        }
        let recovering = self.phase.repairs();
        let found = self.rack.detect(&mut self.board, now, &self.rtt, self.mss, recovering);
        match found.look_again {
            Some(at) => self.timers.set(Timer::Reordering, at),
            None => self.timers.stop(Timer::Reordering),
        }
        if found.lost > 0 && !self.phase.repairs() {
            self.enter_recovery(now, found.lost.saturating_add(delivered));
        }
        found.lost
    }

    /// An acknowledgment has been digested: the congestion window follows.
    pub(super) fn react(
        &mut self,
        now: Instant,
        in_flight_before: u32,
        delivered: u32,
        advanced: bool,
        lost: u32,
    ) {
        if !self.sack && lost > 0 && !self.phase.repairs() {
            self.enter_recovery(now, lost.saturating_add(self.mss));
        }
        if self.phase.repairs() && self.snd_una >= self.recover && advanced {
            self.leave_recovery(now);
        }
        match self.phase {
            Phase::Reduction | Phase::Recovery => {
                let in_flight = self.pipe();
                let progress = advanced && lost == 0;
                let allowed = self.prr.on_ack(delivered, in_flight, self.mss, progress);
                self.congestion.set_cwnd(in_flight.saturating_add(allowed));
            }
            // Selective reports alone do not open the window (RFC 5681 section 3.1, RFC 3042; Linux:
            // tcp_may_raise_cwnd).
            Phase::Open | Phase::Loss if !advanced => {}
            Phase::Open | Phase::Loss => {
                let limited = self.is_cwnd_limited || self.phase == Phase::Loss;
                self.congestion.on_ack(now, delivered, in_flight_before, &self.rtt, limited);
            }
        }
    }

    /// `left` is what the acknowledgment took out of the data in flight, as delivered or lost: it was
    /// outstanding when the recovery began (RecoverFS of RFC 9937 section 6.1).
    fn enter_recovery(&mut self, now: Instant, left: u32) {
        if self.ecn.until.is_some_and(|until| self.snd_una >= until) {
            // That of a former window is over, and this one has its own.
            self.leave_reduction(now);
        }
        // A reduction that is under way goes on: there is one in a round trip (RFC 3168 section 6.1.2).
        if self.phase == Phase::Open {
            let in_flight = self.pipe().saturating_add(left);
            let outstanding = self.snd_nxt.since(self.snd_una);
            self.congestion.on_loss(now, outstanding);
            self.prr = Prr::start(in_flight, self.congestion.ssthresh());
            self.confirm_reduction();
        }
        self.phase = Phase::Recovery;
        self.ecn.until = None;
        self.recover = self.snd_nxt;
        self.retransmission_stamp = None;
        self.probe_end = None;
        self.timers.stop(Timer::LossProbe);
    }

    /// The probe has repaired a loss of what was outstanding when it left: the window shrinks, nothing
    /// else.
    pub(super) fn enter_reduction(&mut self, now: Instant) {
        if self.phase == Phase::Open {
            self.congestion.on_repaired_loss(now, self.probe_flight);
            self.confirm_reduction();
        }
    }

    /// RFC 3168 section 6.1.2: the peer echoes congestion. As on Linux (tcp_enter_cwr) the window shrinks over a round
    /// trip, as it does for a loss.
    pub(super) fn answer_echo(&mut self, now: Instant, in_flight: u32, outstanding: u32) {
        self.phase = Phase::Reduction;
        self.ecn.until = Some(self.snd_nxt);
        self.congestion.on_echo(now, outstanding);
        self.prr = Prr::start(in_flight, self.congestion.ssthresh());
        self.confirm_reduction();
    }

    /// More is acknowledged than what was out when the peer echoed congestion.
    pub(super) fn leave_reduction(&mut self, now: Instant) {
        self.phase = Phase::Open;
        self.ecn.until = None;
        self.congestion.on_recovery_exit(now);
    }

    /// RFC 3168 section 6.1.2: whatever the window shrinks for, the next new data says so.
    fn confirm_reduction(&mut self) {
        self.ecn.reduced |= self.ecn.enabled;
    }

    /// The retransmission timer has expired (RFC 5681 section 3.1).
    pub(super) fn enter_loss(&mut self, now: Instant) {
        self.confirm_reduction();
        if !self.state.is_synchronized() {
            // A lost SYN says nothing of the threshold (RFC 5681 section 3.1); the window follows when the
            // connection is established.
            self.board.mark_lost(|_| true);
            return;
        }
        let first = self.phase != Phase::Loss;
        let outstanding = self.snd_nxt.since(self.snd_una);
        if first {
            self.retransmission_stamp = None;
        }
        let is_reduced = self.ecn.until.is_some_and(|until| self.snd_una < until);
        self.phase = Phase::Loss;
        self.ecn.until = None;
        self.recover = self.snd_nxt;
        self.probe_end = None;
        self.timers.stop(Timer::LossProbe);
        self.timers.stop(Timer::Reordering);
        if self.board.first().is_some_and(|sent| sent.sacked) {
            // The peer took back what it had reported (RFC 2018 section 8).
            self.board.forget_sacks();
        }
        self.duplicate_credit = 0;
        self.timeout_due = true;
        let reduces = first && !is_reduced && self.rtt.timeouts() == 0;
        self.congestion.on_rto(now, outstanding, reduces);
        if self.sack {
            self.rack.detect_on_timeout(&mut self.board, now, &self.rtt, self.mss);
        } else {
            self.board.mark_lost(|_| true);
        }
        if self.board.to_retransmit() == 0 {
            self.board.mark_lost(|_| true);
        }
        self.suspect_black_hole();
    }

    /// Full segments that never arrive while nobody says why: a smaller path MTU that is not told of
    /// looks like this (RFC 2923 section 2.1). Smaller segments, then (RFC 4821 section 7.7).
    fn suspect_black_hole(&mut self) {
        let size = self.board.first().map_or(0, |sent| sent.len().min(self.mss));
        if size <= BLACK_HOLE_MSS || self.rtt.timeouts() < BLACK_HOLE_TIMEOUTS {
            return;
        }
        let smaller = if size > BLACK_HOLE_BASE { BLACK_HOLE_BASE } else { BLACK_HOLE_MSS };
        self.mss = smaller;
        self.congestion.set_mss(self.mss);
        self.black_hole = match self.black_hole {
            BlackHole::Unsuspected | BlackHole::Suspected => BlackHole::Suspected,
            BlackHole::Doubted(_) | BlackHole::Known => BlackHole::Known,
        };
    }

    /// Smaller segments got through: was it their size?
    fn doubt_black_hole(&mut self) {
        if self.black_hole == BlackHole::Suspected {
            self.update_mss();
            self.black_hole = BlackHole::Doubted(self.snd_nxt);
        }
    }

    /// A segment was acknowledged that did not have to be sent again.
    #[cold]
    pub(super) fn deny_black_hole(&mut self, sent: Seq, len: u32) {
        if let BlackHole::Doubted(since) = self.black_hole
            && sent >= since
            && len >= self.mss
        {
            self.black_hole = BlackHole::Unsuspected;
        }
    }

    fn leave_recovery(&mut self, now: Instant) {
        self.phase = Phase::Open;
        self.retransmission_stamp = None;
        self.duplicate_acks = 0;
        self.duplicate_credit = 0;
        self.rack.on_recovery_exit();
        self.doubt_black_hole();
        self.congestion.on_recovery_exit(now);
        // RFC 6582 section 3.2 step 3: what was in flight may have drained, where the peer's window or
        // the program kept it so, and a whole window at once would be lost again. Slow start leads
        // back to the threshold.
        let calm = self.pipe().saturating_add(self.mss.saturating_mul(BURST));
        if self.congestion.cwnd() > calm {
            self.congestion.set_cwnd(calm);
        }
    }

    /// The acknowledgment proves that the retransmission was not needed (RFC 4015).
    pub(super) fn undo_reduction(&mut self, now: Instant) {
        self.board.forget_losses();
        self.duplicate_credit = 0;
        // That the window shrank for an echo of congestion stands.
        if self.congestion.undo() {
            self.ecn.reduced = false;
        }
        self.phase = Phase::Open;
        self.retransmission_stamp = None;
        self.congestion.on_recovery_exit(now);
    }
}
