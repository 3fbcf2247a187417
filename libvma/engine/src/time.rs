//! Time as the protocol modules see it: a nanosecond count handed in by the caller. No clock is
//! read here.

use core::time::Duration;

/// A point on the shard's monotonic clock, in nanoseconds since an origin only that clock knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// 584 years of nanoseconds fit, so no arithmetic below saturates in the life of a process.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    pub const fn saturating_add(self, duration: Duration) -> Self {
        let nanos = duration.as_nanos();
        if nanos > u64::MAX as u128 {
            return Self(u64::MAX);
        }
        Self(self.0.saturating_add(nanos as u64))
    }

    /// The same by a count of nanoseconds, for arithmetic on every packet: a [`Duration`] costs
    /// divisions.
    #[inline]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The nanoseconds since `earlier`; 0 if that is later.
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Zero when `earlier` is later than `self`, as happens when two threads read the clock out of
    /// order.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_saturates() {
        let late = Instant::from_nanos(u64::MAX - 1);
        assert_eq!(late.saturating_add(Duration::from_secs(1)).as_nanos(), u64::MAX);
        assert_eq!(Instant::default().saturating_add(Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(
            Instant::from_nanos(5).saturating_add(Duration::from_micros(1)).as_nanos(),
            1005
        );
    }

    #[test]
    fn difference_is_never_negative() {
        let (a, b) = (Instant::from_nanos(10), Instant::from_nanos(30));
        assert_eq!(b.saturating_duration_since(a), Duration::from_nanos(20));
        assert_eq!(a.saturating_duration_since(b), Duration::ZERO);
    }
}
