//! How much one user may have the daemon do: a ring takes some 40 ms of a processor, a flow 0.2 ms.

use std::time::{Duration, Instant};

/// Costs, in flows.
pub const OF_RING: u32 = 50;
pub const OF_CALL: u32 = 5;
pub const OF_FLOW: u32 = 1;
/// The cost that is free at once, and per second from then on.
const BURST: f64 = 2000.0;
const RATE: f64 = 500.0;
/// A thread has other things to do as well, and the process waits for 500 ms.
const LONGEST: Duration = Duration::from_millis(200);

/// Of one user.
pub struct Pace {
    left: f64,
    at: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Pace {
        Pace { left: BURST, at: now }
    }

    /// How long to wait before something of this cost is done.
    pub fn take(&mut self, now: Instant, cost: u32) -> Duration {
        self.left = self.left_at(now) - f64::from(cost);
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / RATE).min(LONGEST)
    }

    /// Has it nothing to wait for?
    pub fn is_rested(&self, now: Instant) -> bool {
        self.left_at(now) >= BURST
    }

    fn left_at(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        // A user that did not wait long enough owes no more than a burst.
        (self.left + since * RATE).clamp(-BURST, BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_there_is_a_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for _ in 0..40 {
            assert_eq!(pace.take(start, OF_RING), Duration::ZERO);
        }
        assert_eq!(pace.take(start, OF_RING), Duration::from_millis(100));
        assert_eq!(pace.take(start, OF_FLOW), Duration::from_millis(102));
        let later = start + Duration::from_millis(202);
        assert_eq!(pace.take(later, OF_RING), Duration::ZERO);
        assert!(!pace.is_rested(later));
        assert!(pace.is_rested(later + Duration::from_secs(5)));
    }

    #[test]
    fn nobody_waits_long_and_debts_do_not_grow() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for _ in 0..10_000 {
            assert!(pace.take(start, OF_RING) <= LONGEST);
        }
        assert!(pace.is_rested(start + Duration::from_secs(9)));
    }
}
