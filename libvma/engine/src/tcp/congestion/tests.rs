//! What holds for every algorithm, and the flow the algorithms' own tests use.

use proptest::prelude::*;

use super::*;

pub(super) const MSS: u32 = 1460;

/// A sender that always has data, on a path that loses nothing by itself.
pub(super) struct Flow {
    pub congestion: Congestion,
    pub estimator: RttEstimator,
    pub now: Instant,
    pub rtt_micros: u64,
}

impl Flow {
    pub(super) fn new(algorithm: Algorithm, rtt_micros: u64) -> Self {
        Self {
            congestion: Congestion::new(algorithm, MSS),
            estimator: RttEstimator::new(),
            now: Instant::from_nanos(1_000_000_000),
            rtt_micros,
        }
    }

    pub(super) fn ack(&mut self, bytes: u32) {
        self.estimator.sample(Duration::from_micros(self.rtt_micros), self.now);
        let in_flight = self.congestion.cwnd();
        self.congestion.on_ack(self.now, bytes, in_flight, &self.estimator, true);
    }

    /// One round trip: a window of ACKs, one for every segment, evenly spaced.
    pub(super) fn round(&mut self) {
        let acks = self.congestion.cwnd() / MSS;
        for _ in 0..acks {
            let pause = Duration::from_nanos(self.rtt_micros * 1000 / u64::from(acks));
            self.now = self.now.saturating_add(pause);
            self.ack(MSS);
        }
    }

    /// A fast recovery that starts with a full window of `cwnd` and takes no time.
    pub(super) fn lose_at(&mut self, cwnd: u32) {
        self.congestion.set_cwnd(cwnd);
        self.congestion.on_loss(self.now, cwnd);
        self.congestion.on_recovery_exit(self.now);
    }
}

const BOTH: [Algorithm; 2] = [Algorithm::NewReno, Algorithm::Cubic];

fn windows(congestion: &Congestion) -> (u32, u32) {
    (congestion.cwnd(), congestion.ssthresh())
}

#[test]
fn is_small() {
    assert!(size_of::<Congestion>() <= 128, "{}", size_of::<Congestion>());
}

// covers: NET-36
#[test]
fn algorithms_have_the_kernels_names_and_the_parameters_numbers() {
    for (number, name, algorithm) in [
        (0, "reno", Algorithm::NewReno),
        (1, "cubic", Algorithm::Cubic),
        (2, "none", Algorithm::None),
    ] {
        assert_eq!(Algorithm::from_parameter(number), Some(algorithm));
        assert_eq!(Algorithm::from_name(name), Some(algorithm));
        assert_eq!(algorithm.name(), name);
        assert_eq!(Congestion::new(algorithm, MSS).algorithm(), algorithm);
    }
    assert_eq!(Algorithm::from_parameter(3), None);
    assert_eq!(Algorithm::from_name("bbr"), None);
    assert_eq!(Algorithm::default(), Algorithm::NewReno);
}

#[test]
fn the_initial_window_is_that_of_rfc_6928() {
    for (mss, window) in [(536, 5360), (1460, 14_600), (2000, 14_600), (8960, 17_920)] {
        assert_eq!(Congestion::new(Algorithm::NewReno, mss).cwnd(), window);
    }
}

#[test]
fn the_handshakes_segment_size_moves_only_the_initial_window() {
    let mut congestion = Congestion::new(Algorithm::Cubic, 536);
    congestion.set_mss(1460);
    assert_eq!(congestion.cwnd(), 14_600);
    congestion.set_cwnd(100_000);
    congestion.set_mss(536);
    assert_eq!(congestion.cwnd(), 100_000);
    // Nonsense is bounded.
    congestion.set_mss(0);
    congestion.set_mss(u32::MAX);
    assert_eq!(congestion.cwnd(), 100_000);
}

#[test]
fn an_unused_window_does_not_grow() {
    for algorithm in BOTH {
        let mut flow = Flow::new(algorithm, 1000);
        flow.estimator.sample(Duration::from_millis(1), flow.now);
        for _ in 0..2 {
            let before = flow.congestion.cwnd();
            for _ in 0..100 {
                flow.now = flow.now.saturating_add(Duration::from_millis(100));
                flow.congestion.on_ack(flow.now, MSS, 2 * MSS, &flow.estimator, false);
            }
            assert_eq!(flow.congestion.cwnd(), before);
            flow.lose_at(50 * MSS);
        }
    }
}

#[test]
fn fast_recovery_ends_at_the_threshold_and_ignores_acks() {
    for (algorithm, ssthresh) in [(Algorithm::NewReno, 50 * MSS), (Algorithm::Cubic, 70 * MSS)] {
        let mut flow = Flow::new(algorithm, 1000);
        flow.congestion.set_cwnd(100 * MSS);
        flow.congestion.on_loss(flow.now, 103 * MSS);
        assert_eq!(windows(&flow.congestion), (100 * MSS, ssthresh));
        flow.congestion.set_cwnd(60 * MSS);
        flow.ack(MSS);
        assert_eq!(flow.congestion.cwnd(), 60 * MSS);
        flow.congestion.on_recovery_exit(flow.now);
        assert_eq!(windows(&flow.congestion), (ssthresh, ssthresh));
        assert!(!flow.congestion.is_slow_start());
    }
}

#[test]
fn a_timeout_starts_from_one_segment_and_only_the_first_moves_the_threshold() {
    for (algorithm, ssthresh) in [(Algorithm::NewReno, 50 * MSS), (Algorithm::Cubic, 70 * MSS)] {
        let mut flow = Flow::new(algorithm, 1000);
        flow.congestion.set_cwnd(100 * MSS);
        flow.congestion.on_rto(flow.now, 100 * MSS, true);
        assert_eq!(windows(&flow.congestion), (MSS, ssthresh));
        flow.congestion.on_rto(flow.now, MSS, false);
        assert_eq!(windows(&flow.congestion), (MSS, ssthresh));
        flow.round();
        flow.round();
        assert_eq!(flow.congestion.cwnd(), 4 * MSS);
        flow.congestion.on_recovery_exit(flow.now);
        assert_eq!(flow.congestion.cwnd(), 4 * MSS);
    }
}

#[test]
fn the_threshold_is_at_least_two_segments() {
    for algorithm in BOTH {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.on_rto(Instant::default(), MSS, true);
        assert_eq!(windows(&congestion), (MSS, 2 * MSS));
        // A repaired loss at one segment must not raise the window to the threshold.
        congestion.on_repaired_loss(Instant::default(), MSS);
        assert_eq!(windows(&congestion), (MSS, 2 * MSS));
    }
}

#[test]
fn a_repaired_loss_reduces_at_once_and_for_good() {
    for (algorithm, cwnd) in [(Algorithm::NewReno, 50 * MSS), (Algorithm::Cubic, 70 * MSS)] {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.set_cwnd(100 * MSS);
        congestion.on_repaired_loss(Instant::default(), 100 * MSS);
        assert_eq!(windows(&congestion), (cwnd, cwnd));
        congestion.undo();
        assert_eq!(windows(&congestion), (cwnd, cwnd));
    }
}

#[test]
fn a_congestion_echo_reduces_for_good_and_leaves_the_window_to_its_round_trip() {
    for (algorithm, cwnd) in [(Algorithm::NewReno, 50 * MSS), (Algorithm::Cubic, 70 * MSS)] {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.set_cwnd(100 * MSS);
        congestion.on_echo(Instant::default(), 100 * MSS);
        assert_eq!(windows(&congestion), (100 * MSS, cwnd));
        congestion.on_recovery_exit(Instant::default());
        congestion.undo();
        assert_eq!(windows(&congestion), (cwnd, cwnd));
    }
}

#[test]
fn a_spurious_episode_leaves_no_trace() {
    for algorithm in BOTH {
        let mut flow = Flow::new(algorithm, 10_000);
        flow.lose_at(100 * MSS);
        flow.round();
        let before = windows(&flow.congestion);
        flow.congestion.on_loss(flow.now, before.0);
        flow.congestion.set_cwnd(30 * MSS);
        flow.congestion.on_rto(flow.now, 20 * MSS, true);
        flow.congestion.on_rto(flow.now, 20 * MSS, false);
        assert_eq!(flow.congestion.cwnd(), MSS);
        flow.congestion.undo();
        assert_eq!(windows(&flow.congestion), before);
        // There is one undo per episode.
        flow.lose_at(flow.congestion.cwnd());
        flow.congestion.undo();
        flow.lose_at(10 * MSS);
        flow.congestion.set_cwnd(10 * MSS);
        flow.congestion.undo();
        flow.congestion.set_cwnd(10 * MSS);
        flow.congestion.undo();
        assert_eq!(flow.congestion.cwnd(), 10 * MSS);
    }
}

#[test]
fn idle_time_halves_down_to_the_restart_window() {
    let second = Duration::from_secs(1);
    for algorithm in BOTH {
        let mut congestion = Congestion::new(algorithm, MSS);
        congestion.set_cwnd(100 * MSS);
        congestion.after_idle(Instant::default(), second / 2, second);
        assert_eq!(windows(&congestion), (100 * MSS, INFINITE_SSTHRESH));
        congestion.on_repaired_loss(Instant::default(), 30 * MSS);
        congestion.set_cwnd(100 * MSS);
        congestion.after_idle(Instant::default(), second * 5 / 2, second);
        assert_eq!(windows(&congestion), (25 * MSS, 75 * MSS));
        congestion.after_idle(Instant::default(), second * 1000, second);
        assert_eq!(windows(&congestion), (10 * MSS, 75 * MSS));
        congestion.set_cwnd(3 * MSS);
        congestion.after_idle(Instant::default(), second * 1000, Duration::ZERO);
        congestion.after_idle(Instant::default(), second * 1000, second);
        assert_eq!(congestion.cwnd(), 3 * MSS);
    }
}

#[test]
fn changing_the_algorithm_keeps_the_window() {
    let mut flow = Flow::new(Algorithm::NewReno, 10_000);
    flow.lose_at(80 * MSS);
    flow.congestion.set_algorithm(Algorithm::Cubic);
    assert_eq!(windows(&flow.congestion), (40 * MSS, 40 * MSS));
    flow.round();
    assert!(flow.congestion.cwnd() >= 40 * MSS);
    flow.congestion.set_algorithm(Algorithm::None);
    assert_eq!(flow.congestion.cwnd(), none::CWND);
    flow.congestion.set_algorithm(Algorithm::NewReno);
    assert_eq!(flow.congestion.ssthresh(), 40 * MSS);
}

#[derive(Clone, Debug)]
enum Event {
    Ack { bytes: u32, in_flight: u32, rtt: u64, limited: bool },
    Loss(u32),
    Rto(u32, bool),
    Ecn(u32),
    Exit,
    Undo,
    Idle(u64, u64),
    SetCwnd(u32),
    SetMss(u32),
    Switch(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let ack = (any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>())
        .prop_map(|(bytes, in_flight, rtt, limited)| Event::Ack { bytes, in_flight, rtt, limited });
    let modest = (1u32..100_000, 1u32..1 << 24, 1u64..1 << 32)
        .prop_map(|(bytes, in_flight, rtt)| Event::Ack { bytes, in_flight, rtt, limited: true });
    prop_oneof![
        3 => ack,
        20 => modest,
        1 => any::<u32>().prop_map(Event::Loss),
        1 => (any::<u32>(), any::<bool>()).prop_map(|(flight, first)| Event::Rto(flight, first)),
        1 => any::<u32>().prop_map(Event::Ecn),
        2 => Just(Event::Exit),
        1 => Just(Event::Undo),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(idle, rto)| Event::Idle(idle, rto)),
        1 => any::<u32>().prop_map(Event::SetCwnd),
        1 => any::<u32>().prop_map(Event::SetMss),
        1 => (0u64..3).prop_map(Event::Switch),
    ]
}

proptest! {
    #[test]
    fn windows_stay_in_bounds(
        start in 0u64..3,
        mss: u32,
        events in prop::collection::vec((event(), any::<u32>()), 1..200),
    ) {
        let mut congestion = Congestion::new(Algorithm::from_parameter(start).unwrap(), mss);
        let mut rtt = RttEstimator::new();
        let mut now = Instant::default();
        for (event, pause) in events {
            now = now.saturating_add(Duration::from_nanos(u64::from(pause)));
            match event {
                Event::Ack { bytes, in_flight, rtt: nanos, limited } => {
                    rtt.sample(Duration::from_nanos(nanos), now);
                    let before = congestion.cwnd();
                    congestion.on_ack(now, bytes, in_flight, &rtt, limited);
                    prop_assert!(congestion.cwnd() >= before, "an ACK shrank the window");
                }
                Event::Loss(flight) => congestion.on_loss(now, flight),
                Event::Rto(flight, first) => congestion.on_rto(now, flight, first),
                Event::Ecn(flight) => congestion.on_repaired_loss(now, flight),
                Event::Exit => congestion.on_recovery_exit(now),
                Event::Undo => _ = congestion.undo(),
                Event::Idle(idle, rto) => congestion.after_idle(
                    now, Duration::from_nanos(idle), Duration::from_nanos(rto)),
                Event::SetCwnd(bytes) => congestion.set_cwnd(bytes),
                Event::SetMss(mss) => congestion.set_mss(mss),
                Event::Switch(to) => {
                    congestion.set_algorithm(Algorithm::from_parameter(to).unwrap());
                }
            }
            let mss = congestion.window.mss;
            prop_assert!(congestion.cwnd() >= mss);
            prop_assert!(congestion.is_slow_start() || congestion.cwnd() >= 2 * mss);
            prop_assert!(congestion.ssthresh() >= 2 * mss);
            prop_assert!(congestion.window.cwnd <= MAX_CWND);
        }
    }
}
