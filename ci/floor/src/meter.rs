//! Counts numbered messages as they arrive: how many, how many are missing, how fast.

use std::fmt;
use std::time::{Duration, Instant};

/// A receiver that never runs dry looks at the clock after this many messages.
pub const MESSAGES_PER_TICK: u64 = 64;

/// How long a receiver waits for the first message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Silence after which the sender is taken to have finished.
const SILENCE: Duration = Duration::from_millis(400);

/// A receiver calls [`message`](Self::message) for each arrival, which reads no clock, and
/// [`tick`](Self::tick) when it finds nothing to receive, or after [`MESSAGES_PER_TICK`].
pub struct Meter {
    run: Duration,
    received: u64,
    lowest: u64,
    highest: u64,
    opened: Instant,
    first: Option<Mark>,
    last: Mark,
}

/// How many messages had been received when.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    received: u64,
}

impl Meter {
    /// A meter that runs for `run` from the first message.
    pub fn new(run: Duration, now: Instant) -> Self {
        Self {
            run,
            received: 0,
            lowest: u64::MAX,
            highest: 0,
            opened: now,
            first: None,
            last: Mark { at: now, received: 0 },
        }
    }

    #[inline]
    pub fn message(&mut self, sequence: u64) {
        self.received += 1;
        self.lowest = self.lowest.min(sequence);
        self.highest = self.highest.max(sequence);
    }

    /// Takes note of the time; true while the run goes on.
    #[inline]
    pub fn tick(&mut self, now: Instant) -> bool {
        if self.received != self.last.received {
            self.last = Mark { at: now, received: self.received };
        }
        match self.first {
            None if self.received > 0 => {
                self.first = Some(self.last);
                true
            }
            None => now - self.opened < PATIENCE,
            Some(first) => now - first.at < self.run && now - self.last.at < SILENCE,
        }
    }

    /// Messages per second between the first and the last look at the clock that found news.
    fn rate(&self) -> f64 {
        let Some(first) = self.first else { return 0.0 };
        let span = (self.last.at - first.at).as_secs_f64();
        if span == 0.0 { 0.0 } else { (self.last.received - first.received) as f64 / span }
    }

    /// Sequence numbers between the lowest and the highest seen that never came.
    fn lost(&self) -> u64 {
        if self.received == 0 {
            0
        } else {
            (self.highest - self.lowest + 1).saturating_sub(self.received)
        }
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "received={} lost={} {}", self.received, self.lost(), shown(self.rate()))
    }
}

/// What a sender reports.
pub fn sent(messages: u64, time: Duration) -> String {
    let rate = messages as f64 / time.as_secs_f64();
    format!("sent={messages} {}", shown(rate))
}

fn shown(rate: f64) -> String {
    format!("rate={rate:.0} mpps={:.4}", rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_what_came_after_the_first_look_at_the_clock() {
        let start = Instant::now();
        let mut meter = Meter::new(Duration::from_secs(9), start);
        meter.message(100);
        assert!(meter.tick(start + Duration::from_secs(1)));
        for sequence in [101, 102, 105] {
            meter.message(sequence);
        }
        assert!(meter.tick(start + Duration::from_secs(2)));
        assert!(!meter.tick(start + Duration::from_secs(3)), "silence ends the run");
        assert_eq!(meter.to_string(), "received=4 lost=2 rate=3 mpps=0.0000");
    }

    #[test]
    fn without_a_message_the_run_ends_when_patience_does() {
        let start = Instant::now();
        let mut meter = Meter::new(Duration::from_secs(1), start);
        assert!(meter.tick(start + Duration::from_secs(2)));
        assert!(!meter.tick(start + PATIENCE));
        assert_eq!(meter.to_string(), "received=0 lost=0 rate=0 mpps=0.0000");
    }
}
