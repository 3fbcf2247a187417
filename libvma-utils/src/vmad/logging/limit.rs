//! So many messages of one kind in a while, and the number of those left out: what others can cause at
//! will must not fill the disk.

use std::time::{Duration, Instant};

pub struct Limit {
    burst: u32,
    period: Duration,
    /// Start of the current period; none before the first message.
    start: Option<Instant>,
    passed: u32,
    left_out: u64,
}

impl Limit {
    /// `burst` messages in each `period`.
    pub fn new(burst: u32, period: Duration) -> Limit {
        Limit { burst, period, start: None, passed: 0, left_out: 0 }
    }

    /// Whether one more message passes now. [`Limit::due`] is to be asked before.
    pub fn pass(&mut self, now: Instant) -> bool {
        if self.start.is_none_or(|start| now.duration_since(start) >= self.period) {
            self.start = Some(now);
            self.passed = 0;
        }
        if self.passed < self.burst {
            self.passed += 1;
            return true;
        }
        self.left_out += 1;
        false
    }

    /// How many were left out in a period that is over; told once.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        if self.deadline()? > now {
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }

    /// When [`Limit::due`] will have something to tell.
    pub fn deadline(&self) -> Option<Instant> {
        if self.left_out == 0 { None } else { Some(self.start? + self.period) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_the_burst_is_counted_and_told_when_the_period_is_over() {
        let mut limit = Limit::new(2, Duration::from_secs(5));
        let start = Instant::now();
        assert_eq!(limit.deadline(), None);
        let passed = (0..5).filter(|_| limit.pass(start)).count();
        assert_eq!(passed, 2);
        assert_eq!(limit.due(start + Duration::from_secs(4)), None);
        let end = start + Duration::from_secs(5);
        assert_eq!(limit.deadline(), Some(end));
        assert_eq!(limit.due(end), Some(3));
        assert_eq!((limit.due(end), limit.deadline()), (None, None));
        assert!(limit.pass(end));
    }
}
