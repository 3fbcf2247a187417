//! HyStart++ (RFC 9406): leaves the first slow start when the round-trip time rises, before the
//! overshoot that would end it by losses.

use crate::tcp::rtt::RttEstimator;

/// The rise that counts is an eighth of the round-trip time, within these bounds (RFC 9406 4.3).
const MIN_RTT_THRESHOLD: u32 = 4_000_000;
const MAX_RTT_THRESHOLD: u32 = 16_000_000;
const MIN_RTT_DIVISOR: u32 = 8;

/// Samples a round needs to be judged.
const SAMPLES: u8 = 8;

/// Rounds of conservative slow start before a rise is believed.
const CONSERVATIVE_ROUNDS: u8 = 5;

/// By how much slow start may grow the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// By all that was acknowledged.
    Full,
    /// By a quarter of it: conservative slow start (CSS).
    Quarter,
    /// Not at all: congestion avoidance begins.
    Exit,
}

/// The rounds of a slow start. Round-trip times are in nanoseconds, `u32::MAX` (4.29 s) meaning
/// none: a path that slow gains nothing from this.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// Bytes still to be acknowledged in this round. Stands for windowEnd of the RFC: what was out
    /// when the round began.
    remaining: u32,
    last_minimum: u32,
    current_minimum: u32,
    /// The round-trip time that was taken for a rise. `u32::MAX` outside of CSS.
    baseline: u32,
    samples: u8,
    conservative_rounds: u8,
    /// Which measurement of the estimator was seen last.
    seen: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            remaining: 0,
            last_minimum: u32::MAX,
            current_minimum: u32::MAX,
            baseline: u32::MAX,
            samples: 0,
            conservative_rounds: 0,
            seen: 0,
        }
    }
}

impl HyStart {
    /// To be called for every ACK of the first slow start, whether the window grows or not.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        acked_bytes: u32,
        in_flight_before: u32,
        rtt: &RttEstimator,
    ) -> Pace {
        // Without time stamps most ACKs bring no measurement, and the last one counts once.
        if rtt.samples() != self.seen {
            self.seen = rtt.samples();
            self.samples = self.samples.saturating_add(1);
            let latest = u32::try_from(rtt.latest_nanos()).unwrap_or(u32::MAX);
            self.current_minimum = self.current_minimum.min(latest);
            if self.samples >= SAMPLES {
                self.judge();
            }
        }
        // The ACK that ends a round is for data of that round, so it was judged with it.
        if acked_bytes < self.remaining {
            self.remaining = self.remaining.saturating_sub(acked_bytes);
        } else {
            self.remaining = in_flight_before.saturating_sub(acked_bytes);
            if !self.start_round() {
                return Pace::Exit;
            }
        }
        if self.is_conservative() { Pace::Quarter } else { Pace::Full }
    }

    /// False when conservative slow start has lasted its rounds; the partial one it began in counts
    /// (RFC 9406 4.2).
    #[inline]
    fn start_round(&mut self) -> bool {
        self.last_minimum = self.current_minimum;
        self.current_minimum = u32::MAX;
        self.samples = 0;
        if self.is_conservative() {
            self.conservative_rounds = self.conservative_rounds.saturating_add(1);
        }
        self.conservative_rounds < CONSERVATIVE_ROUNDS
    }

    /// Has the round-trip time risen, as far as this round's samples say?
    #[inline(never)]
    fn judge(&mut self) {
        if self.is_conservative() {
            // The rise was jitter.
            if self.current_minimum < self.baseline {
                self.baseline = u32::MAX;
                self.conservative_rounds = 0;
            }
            return;
        }
        let threshold =
            (self.last_minimum / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
        // Never true while a minimum is u32::MAX, "infinity": the sum saturates there.
        let limit = self.last_minimum.saturating_add(threshold);
        if self.current_minimum >= limit && limit != u32::MAX {
            self.baseline = self.current_minimum;
        }
    }

    #[inline]
    fn is_conservative(&self) -> bool {
        self.baseline != u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::tcp::congestion::tests::{Flow, MSS};
    use crate::tcp::congestion::{Algorithm, INFINITE_SSTHRESH};
    use crate::time::Instant;

    /// Rounds of sixteen ACKs with one round-trip time each; the paces of the last ACKs.
    fn paces(rounds: &[u64]) -> Vec<Pace> {
        let mut hystart = HyStart::default();
        let mut rtt = RttEstimator::new();
        // The first ACK of a connection opens the first round.
        rtt.sample(Duration::from_millis(rounds[0]), Instant::from_nanos(0));
        hystart.on_ack(MSS, 17 * MSS, &rtt);
        let mut paces = Vec::new();
        for millis in rounds {
            let mut last = Pace::Full;
            for _ in 0..16 {
                rtt.sample(Duration::from_millis(*millis), Instant::from_nanos(0));
                // Sixteen segments stay out, so that the next round has sixteen ACKs too.
                last = hystart.on_ack(MSS, 17 * MSS, &rtt);
                if last == Pace::Exit {
                    break;
                }
            }
            paces.push(last);
        }
        paces
    }

    #[test]
    fn a_steady_path_stays_in_slow_start() {
        assert!(paces(&[50; 20]).iter().all(|pace| *pace == Pace::Full));
    }

    #[test]
    fn a_small_rise_does_not_count() {
        // An eighth of 50 ms is 6.25 ms; of 10 ms, less than the minimum of 4 ms.
        assert!(paces(&[50, 50, 56, 62, 68]).iter().all(|pace| *pace == Pace::Full));
        assert!(paces(&[10, 13, 16, 19]).iter().all(|pace| *pace == Pace::Full));
        // Of 400 ms, more than the maximum of 16 ms.
        assert!(paces(&[400, 400, 417]).contains(&Pace::Quarter));
    }

    #[test]
    fn a_rise_that_lasts_ends_slow_start_after_five_rounds() {
        let paces = paces(&[50, 50, 60, 60, 60, 60, 60, 60, 60]);
        assert_eq!(paces.iter().position(|pace| *pace == Pace::Quarter), Some(2));
        assert_eq!(paces.iter().position(|pace| *pace == Pace::Exit), Some(6));
    }

    #[test]
    fn a_rise_that_was_jitter_resumes_slow_start() {
        let paces = paces(&[50, 50, 60, 60, 50, 50, 50, 50, 50, 50]);
        assert_eq!(paces[3], Pace::Quarter);
        assert!(paces[5..].iter().all(|pace| *pace == Pace::Full));
    }

    #[test]
    fn a_path_without_measurements_is_not_judged() {
        let (mut hystart, mut rtt) = (HyStart::default(), RttEstimator::new());
        rtt.sample(Duration::from_millis(50), Instant::from_nanos(0));
        for _ in 0..1000 {
            assert_eq!(hystart.on_ack(MSS, 17 * MSS, &rtt), Pace::Full);
        }
        assert!(hystart.samples <= 1);
    }

    // covers: NET-36
    #[test]
    fn cubic_leaves_slow_start_when_the_delay_rises() {
        let mut flow = Flow::new(Algorithm::Cubic, 50_000);
        for _ in 0..4 {
            flow.round();
        }
        assert_eq!(flow.congestion.cwnd(), 160 * MSS);
        flow.rtt_micros = 60_000;
        let mut rounds = 0;
        while flow.congestion.is_slow_start() {
            flow.round();
            rounds += 1;
        }
        assert!((5..=7).contains(&rounds), "{rounds}");
        assert_ne!(flow.congestion.ssthresh(), INFINITE_SSTHRESH);
        // A plain slow start would be at 160 * 2^rounds.
        assert!(flow.congestion.cwnd() < 160 * MSS * 8);
    }
}
