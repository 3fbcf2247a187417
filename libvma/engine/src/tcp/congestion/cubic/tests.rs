//! CUBIC against the formulas of RFC 9438 in floating point.

use proptest::prelude::*;

use super::*;
use crate::tcp::congestion::Algorithm;
use crate::tcp::congestion::tests::{Flow, MSS};

const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// RFC 9438 section 4 as it is written: segments and seconds, one ACK at a time.
struct Reference {
    cwnd: f64,
    w_max: f64,
    k: f64,
    estimate: f64,
    cwnd_prior: f64,
    time: f64,
}

impl Reference {
    /// After a loss at `w_max` segments.
    fn new(w_max: f64) -> Self {
        let cwnd = w_max * BETA;
        let k = ((w_max - cwnd) / C).cbrt();
        Self { cwnd, w_max, k, estimate: cwnd, cwnd_prior: w_max, time: 0.0 }
    }

    fn curve(&self, time: f64) -> f64 {
        C * (time - self.k).powi(3) + self.w_max
    }

    fn ack(&mut self, rtt: f64) {
        let alpha =
            if self.estimate < self.cwnd_prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.estimate += alpha / self.cwnd;
        if self.curve(self.time) < self.estimate {
            self.cwnd = self.cwnd.max(self.estimate);
        } else {
            let target = self.curve(self.time + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd;
        }
    }
}

fn cubic(flow: &Flow) -> &Cubic {
    let super::super::State::Cubic(cubic) = &flow.congestion.state else { panic!("not CUBIC") };
    cubic
}

/// Runs both for `rounds` round trips after a loss at `w_max` segments, and compares after each.
fn compare(w_max: u32, rtt_micros: u64, rounds: u32) {
    let mut flow = Flow::new(Algorithm::Cubic, rtt_micros);
    flow.lose_at(w_max * MSS);
    let mut reference = Reference::new(f64::from(w_max));
    let rtt = rtt_micros as f64 / 1e6;
    // The first ACK starts the clock of the stage.
    let mut start = None;
    for round in 0..rounds {
        let acks = flow.congestion.cwnd() / MSS;
        for _ in 0..acks {
            let pause = Duration::from_nanos(rtt_micros * 1000 / u64::from(acks));
            flow.now = flow.now.saturating_add(pause);
            flow.ack(MSS);
            let start = *start.get_or_insert(flow.now);
            reference.time = flow.now.saturating_duration_since(start).as_secs_f64();
            reference.ack(rtt);
        }
        let cwnd = f64::from(flow.congestion.cwnd()) / f64::from(MSS);
        let difference = (cwnd - reference.cwnd).abs();
        // The estimate grows by whole segments, hence one; the rest is rounding.
        assert!(
            difference <= 1.1 + reference.cwnd * 0.005,
            "round {round} of {w_max} at {rtt} s: {cwnd} is not {}",
            reference.cwnd
        );
    }
}

// covers: NET-36
#[test]
fn follows_the_curve_of_the_rfc() {
    // Large product of bandwidth and delay: concave, flat, convex.
    compare(500, 100_000, 200);
    compare(2000, 50_000, 300);
    compare(100, 200_000, 100);
    // Small: Reno-friendly throughout.
    compare(30, 1000, 300);
    compare(50, 100, 500);
    // In between.
    compare(200, 20_000, 500);
}

#[test]
fn is_back_at_w_max_after_k() {
    let mut flow = Flow::new(Algorithm::Cubic, 100_000);
    flow.lose_at(1000 * MSS);
    assert_eq!(flow.congestion.cwnd(), 700 * MSS);
    // K = cbrt(300 / 0.4) = 9.086 s: 91 round trips.
    let mut windows = Vec::new();
    for _ in 0..120 {
        flow.round();
        windows.push(f64::from(flow.congestion.cwnd()) / f64::from(MSS));
    }
    let k = f64::from(cubic(&flow).curve.k) / 1024.0;
    assert!((k - 9.086).abs() < 0.002, "{k}");
    assert!((windows[91] - 1000.0).abs() < 2.0, "{}", windows[91]);
    // Concave before, convex after: steps shrink, then grow.
    assert!(windows[10] - windows[9] > 3.0 * (windows[60] - windows[59]));
    assert!(windows[119] - windows[118] > 3.0 * (windows[95] - windows[94]));
}

#[test]
fn a_loss_before_w_max_converges_fast() {
    let mut flow = Flow::new(Algorithm::Cubic, 100_000);
    flow.lose_at(1000 * MSS);
    assert_eq!(cubic(&flow).curve.w_max, 1000 * MSS);
    flow.lose_at(800 * MSS);
    assert_eq!(cubic(&flow).curve.w_max, 680 * MSS);
    assert_eq!(flow.congestion.cwnd(), 560 * MSS);
    flow.lose_at(900 * MSS);
    assert_eq!(cubic(&flow).curve.w_max, 900 * MSS);
}

#[test]
fn at_small_products_it_is_as_fast_as_reno() {
    // Between hosts of one rack the curve is flat for seconds, while Reno gains a segment in 100 us.
    let mut flow = Flow::new(Algorithm::Cubic, 100);
    flow.lose_at(100 * MSS);
    let mut rounds = 0;
    while flow.congestion.cwnd() < 100 * MSS {
        flow.round();
        rounds += 1;
    }
    // 30 segments at 9/17 each.
    assert!((56..=58).contains(&rounds), "{rounds}");
    for round in 1..=50 {
        flow.round();
        let expected = (100 + round) * MSS;
        assert!(flow.congestion.cwnd().abs_diff(expected) <= MSS, "alpha is not one by now");
    }
}

#[test]
fn a_timeout_starts_the_next_stage_flat() {
    let mut flow = Flow::new(Algorithm::Cubic, 50_000);
    flow.lose_at(1000 * MSS);
    flow.round();
    let cwnd = flow.congestion.cwnd();
    flow.congestion.on_rto(flow.now, cwnd, true);
    let ssthresh = flow.congestion.ssthresh();
    assert_eq!(ssthresh, fraction(cwnd, 7, 10));
    while flow.congestion.is_slow_start() {
        flow.round();
    }
    flow.round();
    assert_eq!(cubic(&flow).curve.k, 0);
    assert!(cubic(&flow).curve.w_max.abs_diff(ssthresh) <= MSS);
}

#[test]
fn a_slow_start_without_loss_ends_in_the_convex_part() {
    // RFC 9438 4.10: W_max is then the window at which slow start was left.
    let mut window = Window { cwnd: 100 * MSS, ssthresh: 100 * MSS, mss: MSS };
    let (mut cubic, mut rtt) = (Cubic::default(), RttEstimator::new());
    let now = Instant::from_nanos(5);
    rtt.sample(Duration::from_millis(10), now);
    let ack = Ack {
        now,
        acked_bytes: MSS,
        in_flight_before: 100 * MSS,
        rtt: &rtt,
        is_cwnd_limited: true,
    };
    cubic.on_ack(&mut window, &ack);
    assert_eq!((cubic.curve.k, cubic.curve.w_max), (0, 100 * MSS));
}

#[test]
fn time_without_demand_is_not_on_the_curve() {
    let mut busy = Flow::new(Algorithm::Cubic, 100_000);
    busy.lose_at(500 * MSS);
    let mut lazy = Flow::new(Algorithm::Cubic, 100_000);
    lazy.lose_at(500 * MSS);
    for round in 0..60 {
        busy.round();
        lazy.round();
        if round == 10 {
            // A minute of small answers, then nothing for less than a timeout.
            for _ in 0..60 {
                lazy.congestion.on_ack(lazy.now, 100, 100, &lazy.estimator, false);
                lazy.now = lazy.now.saturating_add(Duration::from_secs(1));
            }
        }
        if round == 20 {
            let idle = Duration::from_millis(250);
            lazy.now = lazy.now.saturating_add(idle);
            lazy.congestion.after_idle(lazy.now, idle, lazy.estimator.rto());
        }
    }
    // The pause may cost the space between two ACKs.
    assert!(lazy.congestion.cwnd().abs_diff(busy.congestion.cwnd()) < MSS / 2);
}

#[test]
fn an_undo_restores_the_curve() {
    let mut flow = Flow::new(Algorithm::Cubic, 100_000);
    flow.lose_at(1000 * MSS);
    for _ in 0..30 {
        flow.round();
    }
    let before = cubic(&flow).curve;
    flow.congestion.on_rto(flow.now, 500 * MSS, true);
    assert_eq!(cubic(&flow).curve.w_max, 0);
    flow.congestion.undo();
    let after = cubic(&flow).curve;
    assert_eq!((after.w_max, after.k, after.estimate), (before.w_max, before.k, before.estimate));
}

#[test]
fn a_jump_of_the_clock_grows_the_window_by_half_at_most() {
    let mut flow = Flow::new(Algorithm::Cubic, 100_000);
    flow.lose_at(100 * MSS);
    flow.round();
    let before = flow.congestion.cwnd();
    flow.now = flow.now.saturating_add(Duration::from_secs(1_000_000));
    for _ in 0..before / MSS {
        flow.ack(MSS);
    }
    let after = flow.congestion.cwnd();
    // A half for every ACK, and the window they refer to grows under them.
    assert!(after > before * 14 / 10 && after < before * 16 / 10, "{before} {after}");
}

#[test]
fn cube_roots_of_cubes() {
    for root in [0u64, 1, 2, 3, 10, 1000, 123_456, 2_642_245] {
        assert_eq!(u64::from(cube_root(root.pow(3))), root);
        if root > 0 {
            assert_eq!(u64::from(cube_root(root.pow(3) - 1)), root - 1);
        }
    }
    assert_eq!(cube_root(u64::MAX), 2_642_245);
}

proptest! {
    #[test]
    fn cube_root_is_that_of_floating_point(value: u64) {
        let root = f64::from(cube_root(value));
        let expected = (value as f64).cbrt();
        prop_assert!(root <= expected + 1e-6 && root + 1.0 >= expected - 1e-6);
    }

    #[test]
    fn the_curve_is_that_of_floating_point(
        w_max in 2u32..50_000,
        mss in 536u32..9000,
        elapsed in 0u64..60_000_000_000,
    ) {
        let window = Window { cwnd: w_max * mss / 10 * 7, ssthresh: w_max * mss, mss };
        let mut curve = Curve { w_max: w_max * mss, ..Curve::default() };
        curve.start(Instant::default(), &window);
        let w_max = f64::from(w_max * mss) / f64::from(mss);
        let k = ((w_max - f64::from(window.cwnd) / f64::from(mss)) / C).cbrt();
        let expected = (C * (elapsed as f64 / 1e9 - k).powi(3) + w_max) * f64::from(mss);
        let got = f64::from(curve.window_at(elapsed, mss));
        // Two ticks of time, on either side of the flat part.
        let slope = 3.0 * C * (elapsed as f64 / 1e9 - k).powi(2) * f64::from(mss);
        let tolerance = 2.0 + slope * 2.0 / 1024.0 + f64::from(mss) * 0.01;
        prop_assert!((got - expected.min(f64::from(MAX_CWND))).abs() <= tolerance, "{} {}", got, expected);
    }
}
