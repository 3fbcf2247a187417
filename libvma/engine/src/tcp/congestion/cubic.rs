//! CUBIC (RFC 9438): the window as a function of the time since the last congestion, a cubic that
//! is flat where congestion was met and steep far from there. Without floating point.

use core::time::Duration;

use super::hystart::{HyStart, Pace};
use super::{INFINITE_SSTHRESH, MAX_CWND, Window};
use crate::tcp::rtt::RttEstimator;
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// The unit of the curve's time: 1/1024 s. Its cube is then 2^-30 s^3, and shifts suffice.
const TICKS_PER_SECOND: u64 = 1 << 10;

/// The curve is cut this far (512 s) from its flat part, which keeps its cube in 57 bits. 0.4 * 512^3
/// segments are beyond any window.
const MAX_TICKS: u64 = 1 << 19;

/// What CUBIC adds to a window.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    curve: Curve,
    /// The curve before the congestion episode (RFC 9438 4.9).
    prior: Curve,
    hystart: HyStart,
    /// Bytes acknowledged times 17 alpha, since the Reno-friendly estimate last grew.
    estimate_credit: u64,
    /// Bytes acknowledged times the distance to the target, less the windows they bought: the
    /// fraction of a byte that is owed.
    growth_credit: u32,
}

/// One acknowledgement, as [`Congestion::on_ack`](super::Congestion::on_ack) has it.
pub(super) struct Ack<'a> {
    pub now: Instant,
    pub acked_bytes: u32,
    pub in_flight_before: u32,
    pub rtt: &'a RttEstimator,
    pub is_cwnd_limited: bool,
}

/// One congestion avoidance stage. Windows are in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    clock: Clock,
    /// Where the curve is flat: W_max. Zero when undefined, before the first congestion and after
    /// a timeout.
    w_max: u32,
    /// When it is flat: K, in ticks since the stage began.
    k: u32,
    /// What Reno would have by now: W_est (RFC 9438 4.3).
    estimate: u32,
    /// The window when the threshold was last set: cwnd_prior.
    cwnd_prior: u32,
}

/// The time since the stage began, less that in which the window was not used (RFC 9438 5.8).
#[derive(Clone, Copy, Debug, Default)]
enum Clock {
    /// The stage begins with the next ACK in congestion avoidance.
    #[default]
    NotStarted,
    Running {
        since: Instant,
    },
    Paused {
        nanos: u64,
    },
}

impl Cubic {
    #[inline]
    pub(super) fn on_ack(&mut self, window: &mut Window, ack: &Ack<'_>) {
        let mut acked_bytes = ack.acked_bytes;
        if window.is_slow_start() {
            acked_bytes = self.slow_start(window, ack);
        } else if !ack.is_cwnd_limited {
            self.curve.clock.pause(ack.now);
        }
        if acked_bytes != 0 && ack.is_cwnd_limited && !window.is_slow_start() {
            self.avoid_congestion(window, acked_bytes, ack);
        }
    }

    /// RFC 9438 4.6. `flight` is in bytes.
    pub(super) fn reduce(&mut self, window: &mut Window, flight: u32) {
        let cwnd = window.cwnd;
        self.curve.cwnd_prior = cwnd;
        // Fast convergence (4.7): a flow that has to give way a second time before it was back
        // leaves room for a new one.
        self.curve.w_max = if cwnd < self.curve.w_max { fraction(cwnd, 17, 20) } else { cwnd };
        self.curve.clock = Clock::NotStarted;
        window.set_ssthresh(fraction(flight, 7, 10));
    }

    /// RFC 9438 4.8: the next stage starts flat, where slow start ends.
    pub(super) fn on_timeout(&mut self) {
        self.curve.w_max = 0;
        self.curve.clock = Clock::NotStarted;
    }

    /// To be called before the first reduction of an episode.
    pub(super) fn remember(&mut self) {
        self.prior = self.curve;
    }

    pub(super) fn undo(&mut self) {
        self.curve = self.prior;
    }

    /// Idle time is not time on the curve (RFC 9438 5.8). A window that shrank on top of it has a
    /// slow start to do and then another stage.
    pub(super) fn after_idle(&mut self, now: Instant, idle: Duration, shrinks: bool) {
        if shrinks {
            self.curve.clock = Clock::NotStarted;
        } else if let Clock::Running { since } = self.curve.clock {
            let since = since.saturating_add(idle).min(now);
            self.curve.clock = Clock::Running { since };
        }
    }

    /// Gives back the bytes that are for congestion avoidance.
    #[inline]
    fn slow_start(&mut self, window: &mut Window, ack: &Ack<'_>) -> u32 {
        let pace = if window.ssthresh == INFINITE_SSTHRESH {
            self.hystart.on_ack(ack.acked_bytes, ack.in_flight_before, ack.rtt)
        } else {
            // RFC 9406 4.3: later slow starts know where to stop.
            Pace::Full
        };
        match (pace, ack.is_cwnd_limited) {
            (Pace::Exit, _) => {
                window.set_ssthresh(window.cwnd);
                self.curve.cwnd_prior = window.cwnd;
                ack.acked_bytes
            }
            (_, false) => 0,
            (Pace::Quarter, true) => window.slow_start(ack.acked_bytes >> 2),
            (Pace::Full, true) => window.slow_start(ack.acked_bytes),
        }
    }

    #[inline(never)]
    fn avoid_congestion(&mut self, window: &mut Window, acked_bytes: u32, ack: &Ack<'_>) {
        let elapsed = match self.curve.clock.resume(ack.now) {
            Some(nanos) => nanos,
            None => {
                self.curve.start(ack.now, window);
                self.estimate_credit = 0;
                self.growth_credit = 0;
                0
            }
        };
        self.advance_estimate(window, acked_bytes);
        if self.curve.window_at(elapsed, window.mss) < self.curve.estimate {
            // The Reno-friendly region (4.3).
            window.set(window.cwnd.max(self.curve.estimate));
            return;
        }
        // 4.4 and 4.5: where the curve will be a round trip from now, but no more than half a
        // window away.
        let cwnd = window.cwnd;
        let target = self
            .curve
            .window_at(elapsed.saturating_add(ack.rtt.srtt_nanos()), window.mss)
            .clamp(cwnd, cwnd.saturating_add(cwnd >> 1));
        let distance = u64::from(target.saturating_sub(cwnd));
        let credit = u64::from(acked_bytes)
            .saturating_mul(distance)
            .saturating_add(u64::from(self.growth_credit));
        let step = credit.checked_div(u64::from(cwnd)).unwrap_or(0);
        let rest = credit.checked_rem(u64::from(cwnd)).unwrap_or(0);
        self.growth_credit = u32::try_from(rest).unwrap_or(0);
        window.grow(u32::try_from(step).unwrap_or(u32::MAX));
    }

    /// Reno's window with a decrease of 0.7 grows by alpha = 3 (1 - 0.7) / (1 + 0.7) = 9/17 of a
    /// segment a round trip to be fair to the real one, and by a whole segment once it is back where
    /// the congestion was (4.3).
    fn advance_estimate(&mut self, window: &Window, acked_bytes: u32) {
        let alpha = if self.curve.estimate < self.curve.cwnd_prior { 9 } else { 17 };
        let price = u64::from(window.cwnd).saturating_mul(17);
        self.estimate_credit =
            self.estimate_credit.saturating_add(u64::from(acked_bytes).saturating_mul(alpha));
        if self.estimate_credit >= price {
            self.estimate_credit = self.estimate_credit.saturating_sub(price).min(price);
            self.curve.estimate = self.curve.estimate.saturating_add(window.mss).min(MAX_CWND);
        }
    }
}

impl Curve {
    /// Begins a congestion avoidance stage with the present window (RFC 9438 4.2).
    fn start(&mut self, now: Instant, window: &Window) {
        self.clock = Clock::Running { since: now };
        self.estimate = window.cwnd;
        // Without a W_max ahead of the window the curve starts flat (4.8, 4.10).
        self.w_max = self.w_max.max(window.cwnd);
        let distance = u64::from(self.w_max.saturating_sub(window.cwnd));
        // K^3 = distance / (mss * C) s^3, with C = 2/5; in ticks^3. Fits: 30 + 29 bits times 5.
        let cube = (distance << 29).saturating_mul(5).checked_div(u64::from(window.mss));
        self.k = cube_root(cube.unwrap_or(0));
    }

    /// W_cubic(t) = C (t - K)^3 + W_max in bytes, `elapsed` being nanoseconds.
    fn window_at(&self, elapsed: u64, mss: u32) -> u32 {
        let (ticks, k) = (ticks(elapsed), u64::from(self.k));
        let away = ticks.abs_diff(k).min(MAX_TICKS);
        // Bits: 57 - 14, times an MSS of 16 and 1 more; 16 of the 30 fraction bits remain.
        let cube = away.saturating_mul(away).saturating_mul(away) >> 14;
        let bytes = (cube.saturating_mul(u64::from(mss) << 1) / 5) >> 16;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if ticks < k {
            self.w_max.saturating_sub(bytes)
        } else {
            self.w_max.saturating_add(bytes).min(MAX_CWND)
        }
    }
}

impl Clock {
    fn pause(&mut self, now: Instant) {
        if let Self::Running { since } = *self {
            let nanos = now.as_nanos().saturating_sub(since.as_nanos());
            *self = Self::Paused { nanos };
        }
    }

    /// The nanoseconds on the curve, and lets them run. `None` when the stage has not begun.
    fn resume(&mut self, now: Instant) -> Option<u64> {
        match *self {
            Self::NotStarted => None,
            Self::Running { since } => Some(now.as_nanos().saturating_sub(since.as_nanos())),
            Self::Paused { nanos } => {
                let since = Instant::from_nanos(now.as_nanos().saturating_sub(nanos));
                *self = Self::Running { since };
                Some(nanos)
            }
        }
    }
}

fn ticks(nanos: u64) -> u64 {
    nanos.saturating_mul(TICKS_PER_SECOND) / 1_000_000_000
}

fn fraction(bytes: u32, numerator: u64, denominator: u64) -> u32 {
    let part = u64::from(bytes).saturating_mul(numerator).checked_div(denominator).unwrap_or(0);
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// The integer part of the cube root, a bit at a time from the top: once per congestion, so no
/// cleverness.
fn cube_root(value: u64) -> u32 {
    let mut root = 0u64;
    for bit in (0..22).rev() {
        let candidate = root | 1 << bit;
        // A cube of more than 64 bits is too large for any value.
        let cube = candidate.checked_mul(candidate).and_then(|it| it.checked_mul(candidate));
        if cube.is_some_and(|cube| cube <= value) {
            root = candidate;
        }
    }
    u32::try_from(root).unwrap_or(u32::MAX)
}
