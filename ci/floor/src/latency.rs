//! Round-trip times, collected without allocating and reported as percentiles.

use std::fmt;
use std::time::Duration;

/// Round-trip times in nanoseconds.
pub struct Latencies {
    round_trips: Vec<u32>,
}

impl Latencies {
    /// Makes room for `capacity` round trips and touches the memory, so that `record` never
    /// takes a page fault.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut round_trips = vec![u32::MAX; capacity];
        round_trips.clear();
        Self { round_trips }
    }

    pub fn record(&mut self, round_trip: Duration) {
        let nanoseconds = u32::try_from(round_trip.as_nanos()).unwrap_or(u32::MAX);
        self.round_trips.push(nanoseconds);
    }

    /// Percentiles of **half** the round trip; `None` when nothing was recorded.
    pub fn half_round_trip(mut self) -> Option<Percentiles> {
        self.round_trips.sort_unstable();
        let last = self.round_trips.len().checked_sub(1)?;
        let at =
            |fraction: f64| f64::from(self.round_trips[(last as f64 * fraction) as usize]) / 2e3;
        Some(Percentiles {
            rounds: self.round_trips.len(),
            min: at(0.0),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        })
    }
}

/// Microseconds.
#[derive(Debug, PartialEq)]
pub struct Percentiles {
    pub rounds: usize,
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, min, p50, p99, p999, max } = self;
        write!(
            f,
            "rounds={rounds} min={min:.3} p50={p50:.3} p99={p99:.3} p99.9={p999:.3} max={max:.3}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_half_the_round_trip() {
        let mut latencies = Latencies::with_capacity(1001);
        for microseconds in (0..=1000).rev() {
            latencies.record(Duration::from_micros(microseconds * 2));
        }
        let expected = Percentiles {
            rounds: 1001,
            min: 0.0,
            p50: 500.0,
            p99: 990.0,
            p999: 999.0,
            max: 1000.0,
        };
        assert_eq!(latencies.half_round_trip(), Some(expected));
    }

    #[test]
    fn nothing_recorded_has_no_percentiles() {
        assert_eq!(Latencies::with_capacity(1).half_round_trip(), None);
    }
}
