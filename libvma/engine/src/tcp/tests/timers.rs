//! What happens when nothing arrives, and when: times in milliseconds.

use core::time::Duration;

use super::script::{ACK, Script, Segment, plain, segment, selective};
use crate::tcp::{Error, Millis, SendFlags, Settings, State};
use crate::wire::tcp::Flags;

const HOUR: u64 = 3_600_000;

// checks: RFC6298
#[test]
fn a_syn_is_repeated_with_doubled_pauses_and_given_up() {
    let mut script = Script::connecting(plain());
    let start = script.now;
    script.pass(HOUR);
    // tcp_syn_retries = 6: ETIMEDOUT after 127 s.
    assert_eq!(script.times_since(start), [0, 1000, 3000, 7000, 15_000, 31_000, 63_000]);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
    assert!(script.connection.is_closed());

    let mut script = Script::connecting(Settings { syn_retries: 1, ..plain() });
    script.pass(2_999);
    assert_eq!(script.state(), State::SynSent);
    script.pass(1);
    assert_eq!(script.state(), State::Closed);
}

// checks: RFC6298
#[test]
fn data_is_repeated_with_doubled_pauses_and_given_up() {
    let mut script = Script::established(plain());
    let start = script.now;
    script.write(100);
    script.pass(HOUR);
    let times = script.times_since(start);
    // Linux's minimum of 200 ms beyond the round trip of 10 ms, up to 120 s, tcp_retries2 = 15.
    let mut expected = vec![0];
    let (mut at, mut pause) = (0, 210);
    for _ in 0..15 {
        at += pause;
        expected.push(at);
        pause = (pause * 2).min(120_000);
    }
    assert_eq!(times, expected);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
}

/// RFC 6298 section 5.7: without a measurement data starts with 3 s.
#[test]
fn a_lost_syn_makes_the_first_timeout_long() {
    let mut script = Script::connecting(plain());
    script.pass(1500);
    script.give(Script::answer(&plain()));
    script.sent();
    script.write(100);
    script.sent();
    script.pass(2_999);
    assert_eq!(script.sent(), Vec::<String>::new());
    script.pass(1);
    assert_eq!(script.sent(), ["PA 1+100 a1"]);
}

#[test]
fn an_acknowledgment_ends_the_count_of_timeouts() {
    let mut script = Script::established(plain());
    script.write(100);
    script.pass(1000);
    assert_eq!(script.info().retransmits, 2);
    script.give(segment(ACK, 1, 101, 0));
    assert_eq!(script.info().retransmits, 0);
    // Which of the three was acknowledged nobody knows.
    assert!(script.info().rto > Duration::from_millis(800));
    script.pass(HOUR);
    assert_eq!(script.connection.deadline(), None, "nothing left to wait for");
}

// checks: RFC5482
#[test]
fn user_timeout_ends_a_connection_whose_data_is_not_acknowledged() {
    let limit = Duration::from_millis(5000);
    let mut script = Script::established(Settings { user_timeout: Some(limit), ..plain() });
    script.pass(HOUR);
    let start = script.now;
    script.write(100);
    script.pass(4_999);
    assert_eq!(script.state(), State::Established);
    script.pass(1_700);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
    assert!(script.now.saturating_duration_since(start) < Duration::from_secs(7));
}

/// As on Linux: what is retransmitted before the time is over is retransmitted with growing pauses,
/// and the last one is not waited for longer.
#[test]
fn user_timeout_leaves_the_backoff_alone() {
    let limit = Duration::from_millis(1000);
    for window in [60_000, 0] {
        let mut script = Script::established(Settings { user_timeout: Some(limit), ..plain() });
        let start = script.now;
        script.write(100);
        script.give(segment(ACK, 1, 1, 0).window(window));
        script.pass(2000);
        assert_eq!(script.times_since(start), [0, 210, 630]);
        assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
    }
    let mut script = Script::connecting(Settings { user_timeout: Some(limit), ..plain() });
    script.pass(1001);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
}

#[test]
fn an_orphan_is_given_up_earlier() {
    let mut script = Script::established(plain());
    script.write(100);
    script.close();
    let start = script.now;
    script.pass(HOUR);
    assert!(script.connection.is_closed());
    let times = script.times_since(start);
    // tcp_orphan_retries, as Linux reads 0 of it: 8.
    assert!(times.last().is_some_and(|last| *last < 60_000), "{times:?}");
}

// covers: NET-35
#[test]
fn keep_alive_asks_and_gives_up() {
    let settings = Settings {
        keep_alive: true,
        keep_idle: Millis::from_secs(10),
        keep_interval: Millis::from_secs(2),
        keep_count: 3,
        ..plain()
    };
    let mut script = Script::established(settings.clone());
    let start = script.now;
    script.pass(9_999);
    assert_eq!(script.sent(), Vec::<String>::new());
    script.pass(1);
    // An old number without data (RFC 9293 section 3.8.4).
    assert_eq!(script.sent(), ["A 0+0 a1"]);
    script.pass(1000);
    // An answer starts it over.
    script.give(segment(ACK, 1, 1, 0));
    let answered = script.now;
    script.pass(HOUR);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
    let last = script.segments();
    let millis =
        |sent: &super::script::Sent| sent.at.saturating_duration_since(answered).as_millis() as u64;
    let times: Vec<u64> = last.iter().map(millis).collect();
    assert_eq!(times, [10_000, 12_000, 14_000, 16_000]);
    assert!(last[3].has(Flags::RST), "the last one resets");
    let _ = start;

    // Data in flight is seen to by retransmissions.
    let mut script = Script::established(settings);
    script.write(100);
    script.sent();
    script.pass(15_000);
    assert!(script.sent().iter().all(|sent| sent == "PA 1+100 a1"));
}

#[test]
fn keep_alive_is_off_unless_asked_for() {
    let mut script = Script::established(plain());
    script.pass(10 * HOUR);
    assert_eq!(script.sent(), Vec::<String>::new());
    let now = script.now;
    script.connection.set(now, |settings| {
        settings.keep_alive = true;
        settings.keep_idle = Millis::from_secs(5);
    });
    script.pass(1);
    assert_eq!(script.sent(), ["A 0+0 a1"], "idle for longer already");
}

#[test]
fn a_closed_window_is_probed_with_growing_pauses() {
    let mut script = Script::established(plain());
    script.give(segment(ACK, 1, 1, 0).window(0));
    script.sent();
    let start = script.now;
    script.write(100);
    for _ in 0..5 {
        let due = script.connection.deadline().expect("a probe is due");
        script.pass_for(due.saturating_duration_since(script.now));
        script.pass(1);
        // The peer says that it is still closed.
        script.give(segment(ACK, 1, 1, 0).window(0));
    }
    let segments = script.segments();
    assert!(segments.iter().all(|sent| sent.seq() == 0 && sent.payload.is_empty()));
    let times: Vec<u64> = segments
        .iter()
        .map(|sent| sent.at.saturating_duration_since(start).as_millis() as u64)
        .collect();
    assert_eq!(times, [210, 630, 1470, 3150, 6510]);
    // It opens: the data leaves at once, and the backoff is forgotten.
    script.give(segment(ACK, 1, 1, 0));
    assert_eq!(script.sent(), ["PA 1+100 a1"]);
    assert_eq!(script.info().retransmits, 0);
}

#[test]
fn a_window_that_stays_closed_keeps_the_connection_as_long_as_probes_are_answered() {
    let mut script = Script::established(plain());
    script.give(segment(ACK, 1, 1, 0).window(0));
    script.write(100);
    for _ in 0..40 {
        script.pass(120_001);
        script.give(segment(ACK, 1, 1, 0).window(0));
    }
    assert_eq!(script.state(), State::Established);
    // Without answers it is given up.
    script.pass(10 * HOUR);
    assert_eq!(script.connection.take_error(), Some(Error::TimedOut));
}

#[test]
fn acknowledgments_are_delayed_for_40_ms() {
    let mut script = Script::established(plain());
    // After the first segments, which are acknowledged at once.
    let mut at = 1;
    for _ in 0..20 {
        script.give(segment(ACK, at, 1, 100));
        at += 100;
    }
    script.pass(100);
    script.sent();
    let start = script.now;
    script.give(segment(ACK, at, 1, 100));
    assert_eq!(script.sent(), Vec::<String>::new());
    script.pass(100);
    assert_eq!(script.times_since(start), [40]);
}

// checks: RFC8985
#[test]
fn a_loss_probe_repeats_the_tail() {
    let mut script = Script::established(selective());
    script.write(3 * 1460);
    let start = script.now;
    script.sent();
    script.give(segment(ACK, 1, 1461, 0));
    script.pass(100);
    let probes = script.segments();
    assert_eq!((probes.len(), probes[0].seq()), (1, 2921));
    let after = probes[0].at.saturating_duration_since(start).as_millis();
    assert!((15..40).contains(&after), "{after} ms, about twice the round trip");
    // It was lost, and the probe repaired it: the next acknowledgment shows that, and the window shrinks.
    let cwnd = script.info().cwnd;
    script.give(segment(ACK, 1, 4381, 0));
    assert_eq!(script.info().cwnd, cwnd);
    script.write(1460);
    script.give(segment(ACK, 1, 5841, 0));
    assert!(script.info().cwnd < cwnd);
}

#[test]
fn a_loss_probe_that_was_not_needed_costs_nothing() {
    let mut script = Script::established(selective());
    script.write(3 * 1460);
    script.sent();
    script.pass(100);
    assert_eq!(script.sent(), ["PA 2921+1460 a1"]);
    let cwnd = script.info().cwnd;
    // The last one arrived twice.
    script.give(segment(ACK, 1, 4381, 0).sack(&[(2921, 4381)]));
    assert!(script.info().cwnd >= cwnd);
}

#[test]
fn corked_data_leaves_after_200_ms() {
    let mut script = Script::established(Settings { cork: true, ..plain() });
    let start = script.now;
    script.write(100);
    script.pass(300);
    assert_eq!(script.times_since(start), [200]);
    let mut script = Script::established(plain());
    let start = script.now;
    script.write_with(100, SendFlags { more: true, urgent: false });
    script.pass(300);
    assert_eq!(script.times_since(start), [200]);
}

#[test]
fn nothing_is_due_when_nothing_is_to_be_done() {
    for settings in [plain(), selective(), Settings::default()] {
        let mut script = Script::established(settings.clone());
        script.write(5000);
        let segments = script.segments();
        let end = segments.last().map(|sent| sent.seq() + sent.payload.len() as u32).unwrap();
        let mut answer: Segment = segment(ACK, 1, end, 0);
        if settings.timestamps {
            answer = answer.stamps(1_000_020, 10_010);
        }
        script.pass(10);
        script.give(answer);
        script.pass(5000);
        assert_eq!(script.connection.deadline(), None, "{settings:?}");
        assert_eq!(script.sent(), Vec::<String>::new());
    }
}
