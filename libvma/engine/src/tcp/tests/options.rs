//! Options that both sides agree upon: time stamps, ECN, MSS; and what a SYN says.

use super::script::{ACK, ISS, Script, path, plain, segment, selective};
use crate::tcp::{Path, Settings, State};
use crate::wire::tcp::{Flags, Timestamps};

fn stamped() -> Settings {
    Settings { timestamps: true, ..plain() }
}

fn stamps(sent: &super::script::Sent) -> Timestamps {
    sent.header.options.timestamps.expect("time stamps")
}

#[test]
fn the_syn_offers_what_is_on() {
    let mut script = Script::connecting(Settings::default());
    let syn = script.segments().pop().unwrap();
    let options = syn.header.options;
    assert_eq!((options.mss, options.sack_permitted), (Some(1460), true));
    assert!(options.timestamps.is_some_and(|stamps| stamps.echo == 0));
    assert!(options.window_scale.is_some());
    assert_eq!((syn.header.seq, syn.header.ack, syn.has(ACK)), (ISS, 0, false));

    let mut script = Script::connecting(plain());
    let options = script.segments().pop().unwrap().header.options;
    assert_eq!((options.mss, options.sack_permitted), (Some(1460), false));
    assert_eq!((options.timestamps, options.window_scale), (None, None));

    let mut script = Script::connecting(Settings { max_segment: Some(500), ..plain() });
    assert_eq!(script.segments().pop().unwrap().header.options.mss, Some(500));
}

#[test]
fn segments_are_as_large_as_both_allow() {
    let mut settings = stamped();
    let mss = |settings: &Settings, peer: Option<u16>| {
        let mut script = Script::connecting(settings.clone());
        let mut answer = Script::answer(settings);
        answer.options.mss = peer;
        script.give(answer);
        script.info().snd_mss
    };
    assert_eq!(mss(&settings, Some(1460)), 1448);
    assert_eq!(mss(&settings, Some(9000)), 1448);
    assert_eq!(mss(&settings, Some(1000)), 988);
    // RFC 9293 section 3.7.1.
    assert_eq!(mss(&settings, None), 524);
    // Nobody means so little.
    assert_eq!(mss(&settings, Some(1)), 76);
    settings.max_segment = Some(600);
    assert_eq!(mss(&settings, Some(1460)), 588);
    let mut script = Script::established(settings);
    script.connection.set_path(Path { mtu: 9000, ..path() });
    assert_eq!(script.info().snd_mss, 588);
}

// covers: LIM-53
#[test]
fn time_stamps_are_echoed() {
    let mut script = Script::established(stamped());
    script.give(segment(ACK, 1, 1, 100).stamps(1_000_007, 10_000));
    script.write(10);
    let sent = script.segments().pop().unwrap();
    assert_eq!(stamps(&sent).echo, 1_000_007);
    // RFC 7323 section 4.3: of segments ahead of a hole the stamp is not echoed, of the one that
    // fills it is.
    script.give(segment(ACK, 201, 1, 100).stamps(1_000_020, 10_000));
    assert_eq!(stamps(&script.segments().pop().unwrap()).echo, 1_000_007);
    script.give(segment(ACK, 101, 1, 100).stamps(1_000_015, 10_000));
    assert_eq!(stamps(&script.segments().pop().unwrap()).echo, 1_000_015);
}

#[test]
fn our_clock_advances_a_millisecond_at_a_time() {
    let mut script = Script::established(stamped());
    script.write(10);
    let first = stamps(&script.segments().pop().unwrap()).value;
    script.pass(25);
    script.give(segment(ACK, 1, 11, 0).stamps(1_000_010, first));
    script.write(10);
    let second = stamps(&script.segments().pop().unwrap()).value;
    assert_eq!(second.wrapping_sub(first), 25);
}

// covers: LIM-53
#[test]
fn old_segments_are_told_by_their_stamps() {
    let mut script = Script::established(stamped());
    script.give(segment(ACK, 1, 1, 100).stamps(1_000_100, 10_000));
    script.sent();
    // From before the sequence numbers wrapped: acknowledged, not taken.
    script.give(segment(ACK, 101, 1, 100).stamps(999_000, 10_000));
    assert_eq!(script.sent(), ["A 1+0 a101"]);
    assert_eq!(script.connection.queued(), 100);
    // A RST is judged by its number alone.
    script.give(segment(Flags::RST, 101, 0, 0).stamps(1, 0));
    assert_eq!(script.state(), State::Closed);
}

/// RFC 7323 section 5.5: after 24 days a stamp proves nothing.
#[test]
fn after_a_long_silence_any_stamp_is_new() {
    let mut script = Script::established(stamped());
    script.give(segment(ACK, 1, 1, 100).stamps(2_000_000_000, 10_000));
    script.pass(25 * 24 * 3_600_000);
    script.give(segment(ACK, 101, 1, 100).stamps(500, 10_000));
    assert_eq!(script.connection.queued(), 200);
}

#[test]
fn without_the_peers_stamps_ours_are_off() {
    let mut script = Script::connecting(Settings { timestamps: true, ..selective() });
    script.sent();
    script.give(Script::answer(&selective()));
    assert_eq!(script.segments()[0].header.options.timestamps, None);
    assert_eq!(script.info().snd_mss, 1460);
}

#[test]
fn a_repeated_segment_is_measured_by_its_stamp() {
    let mut script = Script::established(stamped());
    let before = script.info().srtt.unwrap();
    script.write(10);
    script.sent();
    script.pass(1000);
    let again = script.segments().pop().unwrap();
    script.pass(5);
    // Which one is acknowledged, the stamp tells: this one after a moment.
    let rest = script.now.saturating_duration_since(again.at).as_millis() as u64;
    script.give(segment(ACK, 1, 11, 0).stamps(1_001_000, stamps(&again).value));
    let srtt = script.info().srtt.unwrap();
    let eighth = (before.as_millis() as u64 * 7 + rest) / 8;
    assert!(srtt.as_millis().abs_diff(u128::from(eighth)) <= 1, "{srtt:?}, {eighth}");
}

fn with_ecn() -> Script {
    let settings = Settings { ecn: true, ..selective() };
    let mut script = Script::connecting(settings.clone());
    let syn = script.segments().pop().unwrap();
    assert!(syn.has(Flags::ECE.with(Flags::CWR)) && !syn.ecn_capable);
    let mut answer = Script::answer(&settings);
    answer.flags = answer.flags.with(Flags::ECE);
    script.pass(10);
    script.give(answer);
    script.sent();
    script
}

// checks: RFC3168
#[test]
fn congestion_is_echoed_until_the_peer_has_reacted() {
    let mut script = with_ecn();
    script.give(segment(ACK, 1, 1, 100).congested());
    assert_eq!(script.sent(), ["AE 1+0 a101"]);
    script.give(segment(ACK, 101, 1, 100));
    assert_eq!(script.sent(), ["AE 1+0 a201"]);
    script.give(segment(ACK.with(Flags::CWR), 201, 1, 100));
    script.give(segment(ACK, 301, 1, 100));
    assert_eq!(script.sent().last().unwrap(), "A 1+0 a401");
}

// checks: RFC3168
#[test]
fn an_echo_reduces_the_window_once_and_is_confirmed() {
    let mut script = with_ecn();
    script.write(14_600);
    assert!(script.segments().iter().all(|sent| sent.ecn_capable));
    script.pass(10);
    let cwnd = script.info().cwnd;
    script.give(segment(ACK.with(Flags::ECE), 1, 1461, 0));
    script.give(segment(ACK.with(Flags::ECE), 1, 2921, 0));
    script.give(segment(ACK, 1, 14_601, 0));
    assert_eq!(script.info().cwnd, cwnd * 7 / 10);
    script.write(3000);
    let segments = script.segments();
    let confirmed: Vec<bool> = segments.iter().map(|sent| sent.has(Flags::CWR)).collect();
    assert!(confirmed[0] && confirmed[1..].iter().all(|it| !it), "{confirmed:?}");
    // RFC 3168 section 6.1.5.
    script.pass(1000);
    assert!(script.segments().iter().all(|sent| !sent.ecn_capable));
}

// checks: RFC3168
#[test]
fn a_reduction_is_confirmed_also_if_the_device_was_full_at_first() {
    let mut script = with_ecn();
    script.write(1460);
    script.give(segment(ACK.with(Flags::ECE), 1, 1461, 0));
    script.sent();
    script.outbox.full = true;
    script.write(100);
    script.outbox.full = false;
    script.output();
    let segments = script.segments();
    assert_eq!(segments.len(), 1);
    assert!(segments[0].has(Flags::CWR), "{:?}", segments[0]);
}

#[test]
fn a_peer_that_does_not_answer_gets_no_ecn() {
    let settings = Settings { ecn: true, ..selective() };
    let mut script = Script::connecting(settings.clone());
    script.give(Script::answer(&settings));
    script.sent();
    assert!(!script.info().ecn);
    script.write(100);
    assert!(script.segments().iter().all(|sent| !sent.ecn_capable));
    // One that reflects the bits of the SYN has not understood them.
    let mut script = Script::connecting(settings.clone());
    let mut answer = Script::answer(&settings);
    answer.flags = answer.flags.with(Flags::ECE.with(Flags::CWR));
    script.give(answer);
    assert!(!script.info().ecn);
}

/// RFC 7323 section 5.2, with Linux's allowance for acknowledgments that overtake each other.
#[test]
fn a_stamp_may_be_missing_but_not_from_a_reset() {
    let mut script = Script::established(stamped());
    script.give(segment(ACK, 1, 1, 100));
    assert_eq!(script.connection.queued(), 100, "as Linux, which takes it");
}
