//! RACK (RFC 8985 section 6): a segment is lost if one that left later was delivered, and enough
//! time has passed for it to be merely late.

use super::rtt::RttEstimator;
use super::scoreboard::{Scoreboard, Sent};
use super::seq::Seq;
use crate::time::Instant;

/// DupThresh of RFC 5681.
pub const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries for which a wider reordering window lasts (RFC 8985 section 6.2 step 4).
const PERSISTENCE: u8 = 16;

#[derive(Debug)]
pub struct Rack {
    /// When the most recently sent segment among the delivered ones left, and its end.
    sent_at: Instant,
    end: Seq,
    /// Its round-trip time, in nanoseconds.
    rtt: u64,
    /// RACK.fack: the highest sequence number delivered.
    forward: Seq,
    reordering_seen: bool,
    window_factor: u8,
    window_persistence: u8,
    /// A D-SACK was counted; the next one counts once this number is acknowledged.
    round: Option<Seq>,
}

/// What a pass over the scoreboard found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Sequence numbers newly taken for lost.
    pub lost: u32,
    /// When to look again.
    pub look_again: Option<Instant>,
}

impl Rack {
    pub fn new(iss: Seq) -> Rack {
        Rack {
            sent_at: Instant::default(),
            end: iss,
            rtt: 0,
            forward: iss,
            reordering_seen: false,
            window_factor: 1,
            window_persistence: 0,
            round: None,
        }
    }

    /// A segment was delivered, cumulatively or selectively (section 6.2 steps 1 to 3). `echo_early`
    /// says that the peer echoed a time stamp older than the retransmission.
    #[inline]
    pub fn on_delivered(
        &mut self,
        sent: &Sent,
        now: Instant,
        echo_early: bool,
        rtt: &RttEstimator,
    ) {
        let elapsed = now.nanos_since(sent.at);
        if sent.ever_retransmitted && (echo_early || elapsed < rtt.min_nanos()) {
            // The original arrived, not what was sent again.
            return;
        }
        if is_after(sent.at, sent.end, self.sent_at, self.end) {
            self.sent_at = sent.at;
            self.end = sent.end;
            self.rtt = elapsed;
        }
        if sent.end > self.forward {
            self.forward = sent.end;
        } else if sent.end < self.forward && !sent.ever_retransmitted {
            self.reordering_seen = true;
        }
    }

    /// The peer got something twice (D-SACK): retransmissions were early, so the window widens,
    /// once per round trip.
    pub fn on_duplicate(&mut self, una: Seq, snd_nxt: Seq) {
        if self.round.is_none_or(|round| una >= round) {
            self.round = Some(snd_nxt);
            self.window_factor = self.window_factor.saturating_add(1);
            self.window_persistence = PERSISTENCE;
        }
    }

    /// A recovery is over.
    pub fn on_recovery_exit(&mut self) {
        self.window_persistence = self.window_persistence.saturating_sub(1);
        if self.window_persistence == 0 {
            self.window_factor = 1;
        }
    }

    /// Marks what is lost by now (section 6.2 step 5).
    pub fn detect(
        &mut self,
        board: &mut Scoreboard,
        now: Instant,
        rtt: &RttEstimator,
        mss: u32,
        is_recovering: bool,
    ) -> Found {
        let window = self.window(board, rtt, mss, is_recovering);
        let mut look_again: Option<Instant> = None;
        let lost = board.mark_lost(|sent| {
            if !is_after(self.sent_at, self.end, sent.at, sent.end) {
                return false;
            }
            let due = sent.at.plus_nanos(self.rtt.saturating_add(window));
            if due <= now {
                return true;
            }
            look_again = Some(look_again.map_or(due, |known| known.max(due)));
            false
        });
        Found { lost, look_again }
    }

    /// At a retransmission timeout: the first segment, and what is older than a round trip
    /// (section 6.3).
    pub fn detect_on_timeout(
        &mut self,
        board: &mut Scoreboard,
        now: Instant,
        rtt: &RttEstimator,
        mss: u32,
    ) -> u32 {
        let window = self.window(board, rtt, mss, true);
        let first = board.first().map(|sent| sent.start);
        let patience = rtt.srtt_nanos().max(self.rtt).saturating_add(window);
        board.mark_lost(|sent| Some(sent.start) == first || sent.at.plus_nanos(patience) <= now)
    }

    /// The reordering window, in nanoseconds (section 6.2 step 4).
    fn window(&self, board: &Scoreboard, rtt: &RttEstimator, mss: u32, is_recovering: bool) -> u64 {
        if !self.reordering_seen
            && (is_recovering || board.sacked() >= mss.saturating_mul(DUPLICATE_THRESHOLD))
        {
            return 0;
        }
        let quarter = rtt.min_nanos().wrapping_shr(2);
        quarter.saturating_mul(u64::from(self.window_factor)).min(rtt.srtt_nanos())
    }
}

/// RACK_sent_after() of section 6.2: sequence numbers decide between segments of one instant.
#[inline]
fn is_after(at: Instant, end: Seq, other_at: Instant, other_end: Seq) -> bool {
    at > other_at || at == other_at && end > other_end
}
