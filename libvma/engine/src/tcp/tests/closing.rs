//! How connections end: FIN in every order, RST, orphans, TIME-WAIT.

use core::time::Duration;

use super::script::{ACK, IRS, Script, plain, segment, selective};
use crate::tcp::{Error, Events, Settings, State};
use crate::wire::tcp::{Flags, Header, Options, Timestamps};

const FIN: Flags = Flags::FIN;
const RST: Flags = Flags::RST;

#[test]
fn a_half_closed_connection_still_receives() {
    let mut script = Script::established(plain());
    script.shutdown();
    assert_eq!(script.sent(), ["FA 1+0 a1"]);
    script.give(segment(ACK, 1, 2, 0));
    assert_eq!(script.state(), State::FinWait2);
    script.give(segment(ACK, 1, 2, 500));
    assert_eq!(script.connection.readable(), 500);
    script.read(500);
    let events = script.give(segment(FIN.with(ACK), 501, 2, 100));
    assert!(events.contains(Events::PEER_CLOSED.union(Events::READABLE)));
    assert_eq!(script.state(), State::TimeWait);
    assert!(!script.connection.is_at_end());
    script.read(100);
    assert!(script.connection.is_at_end());
}

#[test]
fn a_connection_half_closed_by_the_peer_still_sends() {
    let mut script = Script::established(plain());
    script.give(segment(FIN.with(ACK), 1, 1, 0));
    assert_eq!((script.state(), script.sent()), (State::CloseWait, vec!["A 1+0 a2".into()]));
    assert!(script.connection.is_at_end());
    script.write(100);
    script.shutdown();
    assert_eq!(script.sent(), ["PA 1+100 a2", "FA 101+0 a2"]);
    assert_eq!(script.state(), State::LastAck);
    let events = script.give(segment(ACK, 2, 102, 0));
    assert_eq!((script.state(), events.contains(Events::CLOSED)), (State::Closed, true));
}

#[test]
fn both_close_at_once() {
    let mut script = Script::established(plain());
    script.shutdown();
    script.give(segment(FIN.with(ACK), 1, 1, 0));
    assert_eq!(script.state(), State::Closing);
    assert_eq!(script.sent(), ["FA 1+0 a1", "A 2+0 a2"]);
    script.give(segment(ACK, 2, 2, 0));
    assert_eq!(script.state(), State::TimeWait);
}

#[test]
fn the_fin_rides_on_the_last_data() {
    let mut script = Script::established(plain());
    let _ = script.connection.send(script.now, [&[1u8; 3000][..]], Default::default());
    script.shutdown();
    assert_eq!(script.sent(), ["A 1+1460 a1", "A 1461+1460 a1", "FPA 2921+80 a1"]);
}

#[test]
fn time_wait_ends_in_time_and_starts_over_with_a_fin() {
    let mut script = Script::established(plain());
    script.shutdown();
    script.give(segment(FIN.with(ACK), 1, 2, 0));
    assert_eq!(script.state(), State::TimeWait);
    script.pass(40_000);
    script.sent();
    script.give(segment(FIN.with(ACK), 1, 2, 0));
    assert_eq!(script.sent(), ["A 2+0 a2"]);
    script.pass(59_999);
    assert_eq!(script.state(), State::TimeWait);
    script.pass(1);
    assert_eq!(script.state(), State::Closed);
    assert!(script.events.contains(Events::CLOSED));
}

/// RFC 6191, and RFC 9293 section 3.10.7.4 without time stamps.
#[test]
fn time_wait_gives_way_to_a_newer_syn() {
    let syn = |seq: u32, stamp: Option<u32>| Header {
        flags: Flags::SYN,
        seq: IRS.wrapping_add(seq),
        options: Options {
            timestamps: stamp.map(|value| Timestamps { value, echo: 0 }),
            ..Options::default()
        },
        ..Header::default()
    };
    let mut script = Script::established(plain());
    assert!(!script.connection.may_be_replaced_by(&syn(100, None), script.now));
    script.shutdown();
    script.give(segment(FIN.with(ACK), 1, 2, 0));
    let connection = &script.connection;
    assert!(connection.may_be_replaced_by(&syn(3, None), script.now));
    assert!(!connection.may_be_replaced_by(&syn(2, None), script.now));
    assert!(!connection.may_be_replaced_by(&syn(1, None), script.now));
    let ack = Header { flags: ACK, ..syn(100, None) };
    assert!(!connection.may_be_replaced_by(&ack, script.now));

    let stamped = Settings { timestamps: true, ..plain() };
    let mut script = Script::established(stamped);
    script.shutdown();
    script.give(segment(FIN.with(ACK), 1, 2, 0).stamps(1_000_100, 10_010));
    assert_eq!(script.state(), State::TimeWait);
    // Newer by its time stamp, whatever its number.
    assert!(script.connection.may_be_replaced_by(&syn(0, Some(1_000_101)), script.now));
    assert!(!script.connection.may_be_replaced_by(&syn(0, Some(1_000_100)), script.now));
    assert!(!script.connection.may_be_replaced_by(&syn(0, Some(1_000_000)), script.now));
    // Old by its time stamp, whatever its number; by the number if the time stamp is the same.
    assert!(!script.connection.may_be_replaced_by(&syn(100, Some(1_000_099)), script.now));
    assert!(script.connection.may_be_replaced_by(&syn(100, Some(1_000_100)), script.now));
}

/// The caller takes a closed connection out after a batch of segments; the next connection of the same
/// ports may begin in that batch.
#[test]
fn a_closed_connection_gives_way_to_any_syn() {
    let mut reset = Script::established(plain());
    let syn = Header { flags: Flags::SYN, seq: IRS, ..Header::default() };
    assert!(!reset.connection.may_be_replaced_by(&syn, reset.now));
    reset.give_silently(segment(RST, 1, 0, 0));

    let mut script = Script::established(plain());
    script.give(segment(FIN.with(ACK), 1, 1, 0));
    script.shutdown();
    assert_eq!(script.state(), State::LastAck);
    assert!(!script.connection.may_be_replaced_by(&syn, script.now));
    script.give_silently(segment(ACK, 2, 2, 0));
    for it in [&reset, &script] {
        assert_eq!(it.state(), State::Closed);
        assert!(it.connection.may_be_replaced_by(&syn, it.now));
    }
    for flags in [ACK, RST, Flags::SYN.with(ACK), Flags::SYN.with(RST), Flags::SYN.with(FIN)] {
        let other = Header { flags, ..syn };
        assert!(!script.connection.may_be_replaced_by(&other, script.now), "{flags:?}");
    }
}

#[test]
fn a_reset_ends_time_wait_unless_told_otherwise() {
    for (rfc_1337, state) in [(false, State::Closed), (true, State::TimeWait)] {
        let mut script = Script::established(Settings { rfc_1337, ..plain() });
        script.shutdown();
        script.give(segment(FIN.with(ACK), 1, 2, 0));
        script.give(segment(RST, 3, 0, 0));
        assert_eq!(script.state(), State::TimeWait, "not the very next number");
        script.give(segment(RST, 2, 0, 0));
        assert_eq!(script.state(), state);
    }
}

/// A peer in TIME-WAIT that the SYN looks old to acknowledges what it remembers.
#[test]
fn a_syn_comes_again_at_once_after_an_old_connection_was_reset() {
    let mut script = Script::connecting(plain());
    script.sent();
    let start = script.now;
    script.give(segment(ACK, 100, 5000, 0));
    assert_eq!(script.sent(), ["R 5000+0"]);
    script.pass(500);
    assert_eq!(script.times_since(start), [2]);
    // Once.
    script.give(segment(ACK, 100, 5000, 0));
    script.sent();
    script.pass(500);
    assert_eq!(script.sent(), Vec::<String>::new());
    script.give(Script::answer(&plain()));
    assert_eq!(script.state(), State::Established);
}

// checks: RFC5961
#[test]
fn only_the_very_next_number_resets() {
    let mut script = Script::established(plain());
    script.give(segment(RST, 5, 0, 0));
    assert_eq!((script.state(), script.sent()), (State::Established, vec!["A 1+0 a1".into()]));
    // Challenges are rare (RFC 5961 section 7).
    script.give(segment(RST, 6, 0, 0));
    script.give(segment(Flags::SYN, 6, 0, 0));
    assert_eq!(script.sent(), Vec::<String>::new());
    script.pass(501);
    script.give(segment(Flags::SYN, 6, 0, 0));
    assert_eq!(script.sent(), ["A 1+0 a1"]);
    let events = script.give(segment(RST, 1, 0, 0));
    assert!(events.contains(Events::ERROR));
    assert_eq!(script.connection.take_error(), Some(Error::Reset));
    assert_eq!(script.connection.take_error(), None);
}

/// RFC 2525 section 2.17: the peer must not believe that its data was read.
#[test]
fn close_with_unread_data_resets() {
    let mut script = Script::established(plain());
    script.give(segment(ACK, 1, 1, 10));
    script.sent();
    script.close();
    assert_eq!(script.sent(), ["RA 1+0 a11"]);
    assert!(script.connection.is_closed());
}

#[test]
fn close_with_a_linger_time_of_zero_resets() {
    let mut script = Script::established(Settings { reset_on_close: true, ..plain() });
    script.write(100);
    script.sent();
    script.close();
    assert_eq!(script.sent(), ["RA 101+0 a1"]);
}

#[test]
fn data_for_a_closed_program_is_answered_by_a_reset() {
    let mut script = Script::established(plain());
    script.write(100);
    script.close();
    assert_eq!(script.sent(), ["PA 1+100 a1", "FA 101+0 a1"]);
    let events = script.give(segment(ACK, 1, 102, 10));
    assert_eq!(script.sent(), ["R 102+0"]);
    assert!(events.contains(Events::CLOSED));
}

#[test]
fn close_sends_what_was_written_first() {
    let mut script = Script::established(plain());
    let len = 50_000;
    assert_eq!(script.write(len), len);
    script.close();
    let mut sent = 0;
    for _ in 0..40 {
        for segment in script.segments() {
            sent = sent.max(segment.seq() as usize + segment.payload.len() - 1);
        }
        script.give(segment(ACK, 1, sent as u32 + 1, 0));
        script.pass(10);
    }
    assert_eq!(sent, len);
    assert_eq!(script.state(), State::FinWait1);
    script.give(segment(ACK, 1, len as u32 + 2, 0));
    assert_eq!(script.state(), State::FinWait2);
}

/// tcp(7), TCP_LINGER2.
#[test]
fn an_orphan_does_not_wait_for_ever_for_a_fin() {
    let seconds = |fin_timeout: Option<u64>| {
        let fin_timeout = fin_timeout.map(Duration::from_secs);
        let mut script = Script::established(Settings { fin_timeout, ..plain() });
        script.close();
        script.give(segment(ACK, 1, 2, 0));
        script
    };
    let mut script = seconds(Some(7));
    assert_eq!(script.state(), State::FinWait2);
    script.pass(6_999);
    assert_eq!(script.state(), State::FinWait2);
    script.pass(1);
    assert_eq!(script.state(), State::Closed);
    let mut script = seconds(None);
    assert_eq!(
        (script.state(), script.sent()),
        (State::Closed, vec!["FA 1+0 a1".into(), "RA 2+0 a1".into()])
    );
    // One that has its program waits as long as that does.
    let mut script = Script::established(plain());
    script.shutdown();
    script.give(segment(ACK, 1, 2, 0));
    script.pass(3_600_000);
    assert_eq!(script.state(), State::FinWait2);
}

/// As Linux: the end is told when nothing is there, but what comes is kept all the same.
#[test]
fn after_shutdown_of_reading_data_still_arrives() {
    let mut script = Script::established(plain());
    script.give(segment(ACK, 1, 1, 10));
    script.connection.shutdown_read();
    assert!(!script.connection.is_at_end());
    script.read(10);
    assert!(script.connection.is_at_end());
    script.give(segment(ACK, 11, 1, 3000));
    assert_eq!(script.sent().last().unwrap(), "A 1+0 a3011");
    assert_eq!(script.connection.queued(), 3000);
}

#[test]
fn an_out_of_order_fin_waits_for_the_data_before_it() {
    let mut script = Script::established(selective());
    script.give(segment(FIN.with(ACK), 101, 1, 50));
    assert_eq!(
        (script.state(), script.sent()),
        (State::Established, vec!["A 1+0 a1 [101-152]".into()])
    );
    script.give(segment(ACK, 1, 1, 100));
    assert_eq!((script.state(), script.sent()), (State::CloseWait, vec!["A 1+0 a152".into()]));
    assert_eq!(script.connection.readable(), 150);
}

#[test]
fn abort_before_anything_was_said_says_nothing() {
    let mut script = Script::connecting(plain());
    script.sent();
    script.close();
    assert!(script.connection.is_closed());
    assert_eq!(script.sent(), Vec::<String>::new());
    let mut script = Script::connecting(plain());
    script.give(segment(Flags::SYN, 0, 0, 0));
    script.sent();
    script.connection.abort();
    script.output();
    assert_eq!(script.sent(), ["RA 1+0 a1"]);
}

#[test]
fn a_connection_shut_down_during_a_simultaneous_open_sends_its_fin() {
    let mut script = Script::connecting(plain());
    script.give(segment(Flags::SYN, 0, 0, 0));
    script.sent();
    script.shutdown();
    script.give(segment(Flags::SYN.with(ACK), 0, 1, 0));
    let sent = script.sent();
    assert!(sent.iter().any(|sent| sent.starts_with("FA 1+0")), "{sent:?}");
    script.give(segment(ACK, 1, 2, 0));
    assert_eq!(script.state(), State::FinWait2);
}

#[test]
fn an_accepted_connection_works_like_any_other() {
    let mut script = Script::accepted(plain());
    assert_eq!(script.state(), State::Established);
    assert!(script.events.contains(Events::ESTABLISHED));
    script.give(segment(FIN.with(ACK), 1, 1, 20));
    script.read(20);
    script.write(5);
    script.close();
    assert_eq!(script.sent(), ["A 1+0 a22", "PA 1+5 a22", "FA 6+0 a22"]);
    script.give(segment(ACK, 22, 7, 0));
    assert!(script.connection.is_closed());
}

/// As on Linux (SIOCOUTQ): how much may not have reached the peer, the FIN included.
#[test]
fn a_connection_that_failed_tells_what_was_not_acknowledged() {
    let mut script = Script::established(plain());
    script.write(300);
    script.give(segment(ACK, 1, 101, 0));
    script.give(segment(Flags::RST, 1, 0, 0));
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.unacknowledged(), 200);
    let mut script = Script::established(plain());
    script.write(300);
    script.shutdown();
    script.give(segment(ACK, 1, 301, 0));
    script.give(segment(Flags::RST, 1, 0, 0));
    assert_eq!(script.connection.unacknowledged(), 1);
    let mut script = Script::established(plain());
    script.write(300);
    script.shutdown();
    script.give(segment(ACK.with(Flags::FIN), 1, 302, 0));
    assert_eq!(script.connection.unacknowledged(), 0);
}
