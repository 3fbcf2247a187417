//! What follows from losses, reordering and repetitions, on both sides.

use super::script::{ACK, Script, Segment, path, plain, segment, selective};
use crate::tcp::congestion::Algorithm;
use crate::tcp::seq::Seq;
use crate::tcp::{Error, Events, Path, Settings};
use crate::wire::tcp::Flags;

const MSS: u32 = 1460;

/// The sequence number of the n-th full segment.
fn nth(n: u32) -> u32 {
    1 + n * MSS
}

/// A connection with ten full segments in flight, 10 ms ago.
fn in_flight(settings: Settings) -> Script {
    let mut script = Script::established(settings);
    script.write(10 * MSS as usize);
    assert_eq!(script.sent().len(), 10);
    script.pass(10);
    script
}

/// The segments from one to before another arrived, the n-th first.
fn sacked(ack: u32, from: u32, to: u32) -> Segment {
    segment(ACK, 1, nth(ack), 0).sack(&[(nth(from), nth(to))])
}

// checks: RFC6675
#[test]
fn a_hole_below_three_reported_segments_is_filled() {
    let mut script = in_flight(selective());
    script.give(sacked(0, 1, 2));
    script.give(sacked(0, 1, 3));
    assert_eq!(script.sent(), Vec::<String>::new());
    script.give(sacked(0, 1, 4));
    assert_eq!(script.sent(), ["A 1+1460 a1"]);
    let info = script.info();
    assert!(info.is_recovering);
    // CUBIC goes down to 0.7.
    assert_eq!(info.ssthresh, 10 * MSS * 7 / 10);
    // All of it arrives: the window is at the threshold.
    script.pass(10);
    script.give(segment(ACK, 1, nth(10), 0));
    assert!(!script.info().is_recovering);
    assert_eq!(script.info().cwnd, 10 * MSS * 7 / 10);
}

#[test]
fn several_holes_are_filled_in_one_round_trip() {
    let mut script = in_flight(Settings { congestion: Algorithm::None, ..selective() });
    // 0, 2 and 4 are lost.
    let report = |blocks: &[(u32, u32)]| {
        let blocks: Vec<_> = blocks.iter().map(|(from, to)| (nth(*from), nth(*to))).collect();
        segment(ACK, 1, 1, 0).sack(&blocks)
    };
    script.give(report(&[(5, 8), (3, 4), (1, 2)]));
    let sent: Vec<u32> = script.segments().iter().map(|sent| sent.seq()).collect();
    assert_eq!(sent, [nth(0), nth(2), nth(4)]);
}

// checks: RFC8985
#[test]
fn after_reordering_was_seen_a_segment_may_be_late() {
    let mut script = in_flight(selective());
    // The first one is only late: no retransmission at less than three.
    script.give(sacked(0, 1, 3));
    script.give(segment(ACK, 1, nth(3), 0));
    script.give(segment(ACK, 1, nth(10), 0));
    assert_eq!(script.sent(), Vec::<String>::new());
    script.write(10 * MSS as usize);
    script.sent();
    script.pass(10);
    // Now three do not suffice at once, but a quarter of the round trip later.
    script.give(sacked(10, 11, 15));
    assert_eq!(script.sent(), Vec::<String>::new());
    script.pass(3);
    assert_eq!(script.sent()[0], format!("A {}+1460 a1", nth(10)));
}

#[test]
fn a_lost_retransmission_is_noticed() {
    let mut script = in_flight(selective());
    script.give(sacked(0, 1, 4));
    assert_eq!(script.sent(), ["A 1+1460 a1"]);
    script.pass(1);
    // New data leaves after the retransmission, and arrives before it.
    script.write(10 * MSS as usize);
    script.give(sacked(0, 1, 10));
    let new: Vec<u32> = script.segments().iter().map(|sent| sent.seq()).collect();
    assert!(new.contains(&nth(10)), "{new:?}");
    script.pass(12);
    script.sent();
    script.give(sacked(0, 1, 11));
    assert_eq!(script.sent()[0], "A 1+1460 a1");
}

// checks: RFC6582
#[test]
fn without_sack_three_duplicates_repair_one_segment_a_round_trip() {
    let mut script = in_flight(plain());
    script.write(5 * MSS as usize);
    let duplicate = segment(ACK, 1, 1, 0);
    // Limited transmit (RFC 3042): the first two bring a new segment each.
    script.give(duplicate.clone());
    script.give(duplicate.clone());
    let limited: Vec<u32> = script.segments().iter().map(|sent| sent.seq()).collect();
    assert_eq!(limited, [nth(10), nth(11)]);
    script.give(duplicate.clone());
    assert_eq!(script.sent()[0], "A 1+1460 a1");
    assert!(script.info().is_recovering);
    // A partial acknowledgment: the next hole.
    script.pass(10);
    script.give(segment(ACK, 1, nth(4), 0));
    // As soon as the reduction allows it (RFC 6937), which is with the next one that has left.
    script.give(segment(ACK, 1, nth(4), 0));
    assert_eq!(script.sent()[0], format!("A {}+1460 a1", nth(4)));
    script.pass(10);
    script.give(segment(ACK, 1, nth(12), 0));
    assert!(!script.info().is_recovering);
}

#[test]
fn window_updates_are_no_duplicates() {
    let mut script = in_flight(plain());
    for window in 1..10 {
        script.give(segment(ACK, 1, 1, 0).window(60_000 + window));
    }
    assert_eq!(script.sent(), Vec::<String>::new());
    assert!(!script.info().is_recovering);
    // Nor is what carries data.
    for at in 0..5 {
        script.give(segment(ACK, 1 + at * 10, 1, 10).window(60_009));
    }
    assert!(!script.info().is_recovering);
}

// checks: RFC5681
#[test]
fn a_timeout_starts_over_with_one_segment() {
    let mut script = in_flight(selective());
    // A loss probe comes first.
    script.pass(100);
    script.sent();
    script.pass(215);
    assert_eq!(script.sent(), ["A 1+1460 a1"]);
    let info = script.info();
    assert_eq!((info.cwnd, info.counters.timeouts), (MSS, 1));
    // Slow start, and what is reported is not sent again.
    script.pass(5);
    let mut again = Vec::new();
    for at in 1..=7 {
        script.give(sacked(at, 8, 9));
        again.extend(script.segments().iter().map(|sent| sent.seq()));
    }
    assert!(again.contains(&nth(7)) && !again.contains(&nth(8)), "{again:?}");
}

/// RFC 3522: the acknowledgment echoes a stamp from before the repetition.
#[test]
fn a_timeout_that_was_not_needed_is_undone() {
    let mut script = Script::established(Settings { timestamps: true, ..selective() });
    script.write(10 * 1448);
    let first = script.segments();
    let stamp = first[0].header.options.timestamps.unwrap().value;
    let cwnd = script.info().cwnd;
    script.pass(500);
    assert!(script.info().cwnd < cwnd);
    script.give(segment(ACK, 1, 1 + 10 * 1448, 0).stamps(1_000_500, stamp));
    assert!(script.info().cwnd >= cwnd);
    assert!(!script.info().is_recovering);
}

// checks: RFC2883
#[test]
fn repetitions_are_reported() {
    let mut script = Script::established(selective());
    script.give(segment(ACK, 1, 1, 100));
    script.give(segment(ACK, 101, 1, 100));
    script.sent();
    script.give(segment(ACK, 1, 1, 100));
    assert_eq!(script.sent(), ["A 1+0 a201 [1-101]"]);
    // Out of order, twice.
    script.give(segment(ACK, 301, 1, 100));
    assert_eq!(script.sent(), ["A 1+0 a201 [301-401]"]);
    script.give(segment(ACK, 301, 1, 100));
    assert_eq!(script.sent(), ["A 1+0 a201 [301-401] [301-401]"]);
    // Without agreement nothing is.
    let mut script = Script::established(plain());
    script.give(segment(ACK, 301, 1, 100));
    assert_eq!(script.sent(), ["A 1+0 a1"]);
}

// checks: RFC2018
#[test]
fn the_latest_range_is_reported_first() {
    let mut script = Script::established(selective());
    for start in [101, 301, 501, 701, 901] {
        script.give(segment(ACK, start, 1, 100));
    }
    let last = script.sent().pop().unwrap();
    assert_eq!(last, "A 1+0 a1 [901-1001] [701-801] [501-601] [301-401]");
    // The hole is filled: acknowledged at once (RFC 5681 section 4.2).
    script.give(segment(ACK, 1, 1, 100));
    assert_eq!(script.sent(), ["A 1+0 a201 [901-1001] [701-801] [501-601] [301-401]"]);
}

#[test]
fn each_segment_out_of_order_gets_an_answer_of_its_own() {
    let mut script = Script::established(plain());
    for start in [101, 201, 301] {
        script.give_silently(segment(ACK, start, 1, 100));
    }
    script.output();
    assert_eq!(script.sent(), ["A 1+0 a1", "A 1+0 a1", "A 1+0 a1"]);
}

// checks: RFC1191
#[test]
fn a_smaller_path_mtu_is_followed_at_once() {
    let mut script = in_flight(selective());
    let now = script.now;
    // One that does not quote what is in flight is not from the path (RFC 5927).
    script.connection.on_packet_too_big(1000, Seq::new(200_000), now);
    assert_eq!(script.info().snd_mss, MSS);
    script.connection.on_packet_too_big(1000, Seq::new(super::script::ISS.wrapping_add(1)), now);
    script.output();
    let segments = script.segments();
    assert_eq!(segments[0].seq(), 1);
    assert!(segments.iter().all(|sent| sent.payload.len() <= 960));
    // No congestion: the window is still the initial one.
    assert_eq!((script.info().snd_mss, script.info().cwnd), (960, 9600));
    // Not below what every path carries.
    script.connection.on_packet_too_big(100, Seq::new(super::script::ISS.wrapping_add(1)), now);
    assert_eq!(script.info().snd_mss, 552 - 40);
}

// checks: RFC2923
#[test]
fn a_black_hole_is_got_round() {
    let mut script = in_flight(selective());
    let mut sizes = Vec::new();
    for _ in 0..8 {
        let due = script.connection.deadline().expect("a retransmission is due");
        script.pass_for(due.saturating_duration_since(script.now));
        sizes.extend(script.segments().iter().map(|sent| sent.payload.len()));
    }
    assert!(sizes.starts_with(&[1460, 1460, 1460]), "{sizes:?}");
    assert!(sizes.contains(&1024) && sizes.ends_with(&[524]), "{sizes:?}");
}

#[test]
fn an_outage_does_not_make_segments_small() {
    let mut script = in_flight(selective());
    script.pass(5000);
    assert!(script.info().snd_mss < MSS);
    script.sent();
    let mut end = 1;
    while end < nth(10) {
        end = (end + 3000).min(nth(10));
        script.pass(10);
        script.give(segment(ACK, 1, end, 0));
    }
    assert_eq!(script.info().snd_mss, MSS);
    script.write(3 * MSS as usize);
    script.pass(10);
    script.give(segment(ACK, 1, nth(13), 0));
    // The next outage is judged anew.
    script.write(3 * MSS as usize);
    script.pass(5000);
    assert!(script.info().snd_mss < MSS);
    let mut end = nth(13);
    while end < nth(16) {
        end = (end + 3000).min(nth(16));
        script.pass(10);
        script.give(segment(ACK, 1, end, 0));
    }
    assert_eq!(script.info().snd_mss, MSS);
}

#[test]
fn unreachable_ends_a_handshake_and_explains_a_timeout() {
    let iss = Seq::new(super::script::ISS);
    let mut script = Script::connecting(plain());
    let other = script.connection.on_unreachable(Error::HostUnreachable, iss.plus(5));
    assert!(other.is_empty());
    let events = script.connection.on_unreachable(Error::HostUnreachable, iss);
    assert!(events.contains(Events::ERROR));
    assert_eq!(script.connection.take_error(), Some(Error::HostUnreachable));

    let mut script = in_flight(plain());
    script.connection.on_unreachable(Error::NetworkUnreachable, iss.plus(1));
    assert_eq!(script.connection.take_error(), None);
    script.pass(3_600_000);
    assert_eq!(script.connection.take_error(), Some(Error::NetworkUnreachable));
}

/// An acknowledgment of what was lost is the end of it, even if the peer has less room.
#[test]
fn sack_that_the_peer_takes_back_is_sent_again_after_a_timeout() {
    let mut script = in_flight(selective());
    script.give(sacked(0, 5, 10));
    // The peer acknowledges up to what it had reported, but no more (RFC 2018 section 8).
    script.give(segment(ACK, 1, nth(5), 0));
    script.sent();
    script.pass(1000);
    let again: Vec<u32> = script.segments().iter().map(|sent| sent.seq()).collect();
    assert!(again.contains(&nth(5)), "{again:?}");
}

#[test]
fn duplicates_without_anything_in_flight_mean_nothing() {
    let mut script = Script::established(plain());
    for _ in 0..10 {
        script.give(segment(ACK, 1, 1, 0));
    }
    script.write(100);
    assert_eq!(script.sent(), ["PA 1+100 a1"]);
    assert!(!script.info().is_recovering);
    script.give(segment(ACK.with(Flags::PSH), 1, 101, 0));
    assert_eq!(script.info().unacknowledged, 0);
}

#[test]
fn a_run_cut_by_the_device_is_repaired_by_the_segment() {
    let mut script = Script::established(selective());
    script.connection.set_path(Path { segmentation_limit: 65_000, ..path() });
    script.write(10 * MSS as usize);
    script.sent();
    script.pass(10);
    // Of the run the third segment is lost.
    let report = segment(ACK, 1, nth(2), 0).sack(&[(nth(3), nth(10))]);
    script.give(report);
    assert_eq!(script.sent(), [format!("A {}+1460 a1", nth(2))]);
}
