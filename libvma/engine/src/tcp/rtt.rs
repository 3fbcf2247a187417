//! The round-trip time and the retransmission timeout made of it (RFC 6298). Which measurements
//! are valid (Karn's rule, RFC 7323 section 4.1) is the caller's business, as are the timers.

use core::time::Duration;

use crate::time::Instant;

/// The timeout before the first measurement (RFC 6298 2.1).
#[doc(alias = "TCP_TIMEOUT_INIT")]
pub const INITIAL_RTO: Duration = Duration::from_secs(1);

/// The timeout data starts with when the SYN was lost and nothing was measured (RFC 6298 5.7).
#[doc(alias = "TCP_TIMEOUT_FALLBACK")]
pub const INITIAL_RTO_AFTER_SYN_LOSS: Duration = Duration::from_secs(3);

/// What the timeout exceeds the round-trip time by, at least: Linux's reading of the minimum of
/// RFC 6298 2.4, which would otherwise be a whole second.
#[doc(alias = "TCP_RTO_MIN")]
pub const MIN_VARIANCE: Duration = Duration::from_millis(200);

/// RFC 6298 2.5 allows any ceiling of 60 s or more; this is Linux's.
#[doc(alias = "TCP_RTO_MAX")]
pub const MAX_RTO: Duration = Duration::from_secs(120);

/// How long a minimum is remembered at most: Linux's default.
#[doc(alias = "tcp_min_rtt_wlen")]
pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

const HALF_MIN_RTT_WINDOW: Duration = Duration::from_secs(MIN_RTT_WINDOW.as_secs() / 2);

/// Measures the path. Times are kept in nanoseconds: two sockets of one host are about 2 us apart.
///
/// With time stamps every ACK brings a sample, and the plain formulas of RFC 6298 would then forget
/// a variation within a fraction of a round trip (RFC 7323 appendix G). So the deviation is smoothed
/// per sample, but the timeout follows the largest deviation of a round trip, at once upwards and by
/// a quarter per round trip downwards.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    /// Zero before the first sample, at least one after it.
    smoothed: u64,
    latest: u64,
    minimum: u64,
    /// The minimum of the half window before the one that ends at `half_window_end`.
    earlier_minimum: u64,
    half_window_end: Instant,
    round_end: Instant,
    /// The smoothed mean deviation; saturates at 4.29 s.
    deviation: u32,
    /// The largest `deviation` of this round trip.
    peak_deviation: u32,
    /// RTTVAR of RFC 6298.
    variation: u32,
    backoffs: u8,
    /// Timeouts since an acknowledgment of new data.
    timeouts: u8,
    /// Counts samples, modulo 256: tells a reader of `latest` whether it is new.
    samples: u8,
    syn_lost: bool,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self::new()
    }
}

impl RttEstimator {
    pub const fn new() -> Self {
        Self {
            smoothed: 0,
            latest: 0,
            minimum: u64::MAX,
            earlier_minimum: u64::MAX,
            half_window_end: Instant::from_nanos(0),
            round_end: Instant::from_nanos(0),
            deviation: 0,
            peak_deviation: 0,
            variation: 0,
            backoffs: 0,
            timeouts: 0,
            samples: 0,
            syn_lost: false,
        }
    }

    /// Goes on with what another stack has measured.
    pub fn resume(
        smoothed: Duration,
        variation: Duration,
        minimum: Option<Duration>,
        now: Instant,
    ) -> Self {
        let smoothed = nanos(smoothed).clamp(1, nanos(MAX_RTO));
        let minimum = minimum.map_or(smoothed, nanos).clamp(1, smoothed);
        let variation = saturate(nanos(variation));
        Self {
            smoothed,
            latest: smoothed,
            minimum,
            half_window_end: now.saturating_add(HALF_MIN_RTT_WINDOW),
            round_end: now.plus_nanos(smoothed),
            deviation: variation,
            peak_deviation: variation,
            variation,
            ..Self::new()
        }
    }

    /// Takes in one valid measurement, which ends all [`backoff`](Self::backoff) (RFC 6298 5.7's
    /// note: only a new measurement may collapse the timeout again).
    pub fn sample(&mut self, rtt: Duration, now: Instant) {
        self.sample_nanos(nanos(rtt), now);
    }

    /// [`sample`](Self::sample) of so many nanoseconds.
    #[inline(always)]
    pub(in crate::tcp) fn sample_nanos(&mut self, rtt: u64, now: Instant) {
        let rtt = rtt.clamp(1, nanos(MAX_RTO));
        self.backoffs = 0;
        self.latest = rtt;
        self.samples = self.samples.wrapping_add(1);
        self.keep_minimum(rtt, now);
        if self.smoothed == 0 {
            // RFC 6298 2.2.
            self.smoothed = rtt;
            self.deviation = saturate(rtt >> 1);
            self.peak_deviation = self.deviation;
            self.variation = self.deviation;
            self.round_end = now.plus_nanos(rtt);
            return;
        }
        self.keep_deviation(rtt);
        // RFC 6298 2.3 with alpha = 1/8; the deviation above was taken from the old average.
        self.smoothed = if rtt >= self.smoothed {
            self.smoothed.saturating_add(rtt.saturating_sub(self.smoothed) >> 3)
        } else {
            self.smoothed.saturating_sub(self.smoothed.saturating_sub(rtt) >> 3)
        };
        if now >= self.round_end {
            let fall = self.variation.saturating_sub(self.peak_deviation);
            self.variation = self.variation.saturating_sub(fall >> 2);
            self.peak_deviation = 0;
            self.round_end = now.plus_nanos(self.smoothed);
        }
    }

    /// How long to wait for an ACK, backoff included.
    #[doc(alias = "icsk_rto")]
    #[inline]
    pub fn rto(&self) -> Duration {
        Duration::from_nanos(self.rto_within(nanos(MIN_VARIANCE), nanos(MAX_RTO)))
    }

    /// [`rto`](Self::rto) with other limits than [`MIN_VARIANCE`] and [`MAX_RTO`], all in nanoseconds.
    #[inline]
    pub(in crate::tcp) fn rto_within(&self, least_margin: u64, ceiling: u64) -> u64 {
        let base = match (self.smoothed, self.syn_lost) {
            (0, false) => nanos(INITIAL_RTO),
            (0, true) => nanos(INITIAL_RTO_AFTER_SYN_LOSS),
            (smoothed, _) => {
                let margin = (u64::from(self.variation) << 2).max(least_margin);
                smoothed.saturating_add(margin)
            }
        };
        // The base is below 2^38 ns, so twenty doublings lose no bit; they reach the ceiling from 0.2 ms on.
        let doubled = base << self.backoffs.min(20);
        doubled.min(ceiling)
    }

    /// Doubles the timeout (RFC 6298 5.5), up to [`MAX_RTO`].
    pub fn backoff(&mut self) {
        self.backoffs = self.backoffs.saturating_add(1);
        self.timeouts = self.timeouts.saturating_add(1);
    }

    /// Takes all doublings back: the timeout turned out to be spurious, or a zero-window probe was
    /// answered.
    pub fn reset_backoff(&mut self) {
        self.backoffs = 0;
        self.timeouts = 0;
    }

    /// New data was acknowledged. The timeout stays doubled until something is measured: what was acknowledged may have
    /// left twice (Karn).
    pub(in crate::tcp) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    /// Doublings since the last measurement.
    #[doc(alias = "icsk_backoff")]
    pub fn backoffs(&self) -> u32 {
        u32::from(self.backoffs)
    }

    /// Timeouts since new data was acknowledged.
    #[doc(alias = "icsk_retransmits")]
    pub fn timeouts(&self) -> u32 {
        u32::from(self.timeouts)
    }

    /// To be called when the handshake is complete and its SYN was sent more than once: without a
    /// measurement, data starts with a timeout of 3 s (RFC 6298 5.7). The doublings of the SYN are
    /// forgotten.
    pub fn after_syn_loss(&mut self) {
        self.syn_lost = true;
        self.reset_backoff();
    }

    /// The smoothed round-trip time, `None` before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        (self.smoothed != 0).then(|| Duration::from_nanos(self.smoothed))
    }

    /// The variation, without the minimum that [`rto`](Self::rto) applies.
    pub fn rttvar(&self) -> Duration {
        Duration::from_nanos(u64::from(self.variation))
    }

    /// The smallest measurement of the last 150 to 300 s.
    #[inline]
    pub fn min_rtt(&self) -> Option<Duration> {
        (self.smoothed != 0).then(|| Duration::from_nanos(self.minimum.min(self.earlier_minimum)))
    }

    /// The last measurement.
    pub fn latest(&self) -> Option<Duration> {
        (self.smoothed != 0).then(|| Duration::from_nanos(self.latest))
    }

    /// [`srtt`](Self::srtt) in nanoseconds, zero before the first measurement: for arithmetic
    /// done on every ACK.
    pub(in crate::tcp) fn srtt_nanos(&self) -> u64 {
        self.smoothed
    }

    /// [`min_rtt`](Self::min_rtt) in nanoseconds, zero before the first measurement.
    #[inline]
    pub(in crate::tcp) fn min_nanos(&self) -> u64 {
        if self.smoothed == 0 { 0 } else { self.minimum.min(self.earlier_minimum) }
    }

    /// [`latest`](Self::latest) in nanoseconds.
    pub(in crate::tcp) fn latest_nanos(&self) -> u64 {
        self.latest
    }

    /// A number that changes with every measurement.
    pub(in crate::tcp) fn samples(&self) -> u8 {
        self.samples
    }

    /// Two half windows, the older dropped as a whole: exact enough, and one comparison a sample.
    fn keep_minimum(&mut self, rtt: u64, now: Instant) {
        if now < self.half_window_end {
            self.minimum = self.minimum.min(rtt);
            return;
        }
        let is_recent = now.saturating_duration_since(self.half_window_end) < HALF_MIN_RTT_WINDOW;
        self.earlier_minimum = if is_recent { self.minimum } else { u64::MAX };
        self.minimum = rtt;
        self.half_window_end = now.saturating_add(HALF_MIN_RTT_WINDOW);
    }

    #[inline(always)]
    fn keep_deviation(&mut self, rtt: u64) {
        let error = saturate(rtt.abs_diff(self.smoothed));
        if error <= self.deviation {
            let fall = self.deviation.saturating_sub(error) >> 2;
            self.deviation = self.deviation.saturating_sub(fall);
        } else {
            let rise = error.saturating_sub(self.deviation) >> 2;
            // A path that became faster is no reason to wait longer, as the formula of RFC 6298 2.3
            // would: such an error counts an eighth.
            let rise = if rtt < self.smoothed { rise >> 3 } else { rise };
            self.deviation = self.deviation.saturating_add(rise);
        }
        self.peak_deviation = self.peak_deviation.max(self.deviation);
        self.variation = self.variation.max(self.peak_deviation);
    }
}

const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

fn saturate(nanos: u64) -> u32 {
    u32::try_from(nanos).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn fits_a_cache_line() {
        assert!(size_of::<RttEstimator>() <= 64);
    }

    #[test]
    fn knows_nothing_at_first() {
        let rtt = RttEstimator::new();
        assert_eq!((rtt.srtt(), rtt.min_rtt(), rtt.latest()), (None, None, None));
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        assert_eq!(rtt.backoffs(), 0);
    }

    #[test]
    fn the_first_sample_is_the_average_and_half_of_it_the_variation() {
        let mut rtt = RttEstimator::new();
        rtt.sample(millis(400), at(1000));
        assert_eq!(rtt.srtt(), Some(millis(400)));
        assert_eq!(rtt.rttvar(), millis(200));
        assert_eq!(rtt.rto(), millis(400 + 4 * 200));
    }

    #[test]
    fn the_floor_applies_to_the_variance_part() {
        let mut rtt = RttEstimator::new();
        rtt.sample(Duration::from_micros(2), at(1));
        assert_eq!(rtt.rto(), millis(200) + Duration::from_micros(2));
        assert_eq!(rtt.rttvar(), Duration::from_micros(1));
    }

    #[test]
    fn one_sample_a_round_trip_follows_rfc_6298() {
        // An error larger than the deviation: beta = 1/4, alpha = 1/8, exactly as in the RFC.
        let mut rtt = RttEstimator::new();
        rtt.sample(millis(800), at(1000));
        rtt.sample(millis(1600), at(1600));
        assert_eq!(rtt.srtt(), Some(millis(900)));
        assert_eq!(rtt.rttvar(), millis(400 * 3 / 4 + 800 / 4));
        assert_eq!(rtt.rto(), millis(900 + 4 * 500));
    }

    #[test]
    fn converges_on_a_steady_path() {
        let mut rtt = RttEstimator::new();
        rtt.sample(millis(10), at(0));
        for round in 1..200 {
            rtt.sample(millis(80), at(round * 80));
        }
        let srtt = rtt.srtt().unwrap();
        assert!(srtt > millis(79) && srtt <= millis(80), "{srtt:?}");
        assert!(rtt.rttvar() < Duration::from_micros(10), "{:?}", rtt.rttvar());
    }

    #[test]
    fn many_samples_a_round_trip_do_not_wash_a_variation_out() {
        // A hundred samples a round trip of 100 ms, one of them 100 ms late.
        let mut rtt = RttEstimator::new();
        rtt.sample(millis(100), at(0));
        let mut now = 0;
        for _ in 0..20 {
            for sample in 0..100 {
                now += 1;
                rtt.sample(millis(if sample == 50 { 200 } else { 100 }), at(now));
            }
        }
        assert!(rtt.rttvar() > millis(20), "{:?}", rtt.rttvar());
    }

    #[test]
    fn a_faster_path_hardly_raises_the_timeout() {
        let mut rtt = RttEstimator::new();
        for round in 0..300 {
            rtt.sample(millis(1000), at(round * 1000));
        }
        let before = rtt.rttvar();
        rtt.sample(millis(200), at(300_000));
        assert!(rtt.rttvar() <= before + millis(800 / 32));
    }

    #[test]
    fn backoff_doubles_up_to_the_ceiling_and_a_sample_ends_it() {
        let mut rtt = RttEstimator::new();
        rtt.backoff();
        assert_eq!(rtt.rto(), Duration::from_secs(2));
        rtt.backoff();
        assert_eq!((rtt.rto(), rtt.backoffs()), (Duration::from_secs(4), 2));
        for _ in 0..300 {
            rtt.backoff();
        }
        assert_eq!(rtt.rto(), MAX_RTO);
        rtt.reset_backoff();
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        rtt.backoff();
        rtt.sample(millis(1), at(5));
        assert_eq!((rtt.rto(), rtt.backoffs()), (millis(201), 0));
        for _ in 0..10 {
            rtt.backoff();
        }
        assert_eq!(rtt.rto(), MAX_RTO);
    }

    #[test]
    fn data_waits_three_seconds_after_a_lost_syn() {
        let mut rtt = RttEstimator::new();
        rtt.backoff();
        rtt.after_syn_loss();
        assert_eq!((rtt.rto(), rtt.backoffs()), (Duration::from_secs(3), 0));
        rtt.sample(millis(100), at(2000));
        assert_eq!(rtt.rto(), millis(100 + 200));
    }

    #[test]
    fn the_minimum_is_forgotten_within_the_window() {
        let mut rtt = RttEstimator::new();
        rtt.sample(millis(10), at(0));
        for second in 1..=150 {
            rtt.sample(millis(30), at(second * 1000));
        }
        assert_eq!(rtt.min_rtt(), Some(millis(10)));
        for second in 151..=300 {
            rtt.sample(millis(20), at(second * 1000));
        }
        assert_eq!(rtt.min_rtt(), Some(millis(20)));
        // After a long silence nothing old counts.
        rtt.sample(millis(50), at(3_000_000));
        assert_eq!((rtt.min_rtt(), rtt.latest()), (Some(millis(50)), Some(millis(50))));
    }

    proptest! {
        #[test]
        fn stays_in_bounds(
            samples in prop::collection::vec((any::<u64>(), any::<u32>()), 1..100),
        ) {
            let mut rtt = RttEstimator::new();
            let mut now = Instant::from_nanos(0);
            for (sample, pause) in samples {
                now = now.saturating_add(Duration::from_nanos(u64::from(pause)));
                rtt.sample(Duration::from_nanos(sample), now);
                let srtt = rtt.srtt().unwrap();
                prop_assert!(!srtt.is_zero() && srtt <= MAX_RTO);
                prop_assert!(rtt.min_rtt().unwrap() <= rtt.latest().unwrap());
                prop_assert!(rtt.rto() >= (srtt + MIN_VARIANCE).min(MAX_RTO));
                prop_assert!(rtt.rto() <= MAX_RTO);
            }
        }
    }
}
