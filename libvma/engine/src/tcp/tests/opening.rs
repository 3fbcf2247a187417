//! The opening of connections: the first acknowledgments wait for a segment that carries them, where the program is
//! expected to send ([`Settings::first_ack_waits`]).

use super::script::{ACK, Script, plain, segment};
use crate::tcp::{SendFlags, Settings};
use crate::wire::tcp::Flags;

const PUSH: Flags = ACK.with(Flags::PSH);

fn waiting() -> Settings {
    Settings { first_ack_waits: true, ..plain() }
}

fn nothing() -> Vec<String> {
    Vec::new()
}

/// The program reads, and its output waits as the shard lets it.
fn read_and_wait(script: &mut Script, len: u32) -> bool {
    let (now, outbox) = (script.now, &mut script.outbox);
    script.connection.consume(now, len, outbox);
    script.connection.may_answer()
}

#[test]
fn the_answer_carries_the_acknowledgment_of_a_request() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    assert_eq!(script.sent(), nothing());
    // The program comes to it late.
    script.pass(30);
    assert!(read_and_wait(&mut script, 60));
    script.write(145);
    assert_eq!(script.sent(), ["PA 1+145 a61"]);
    // That was the beginning.
    script.give(segment(PUSH, 61, 146, 60));
    assert!(!read_and_wait(&mut script, 30));
}

#[test]
fn a_request_without_an_answer_is_acknowledged_when_it_was_read() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    assert!(read_and_wait(&mut script, 60));
    script.output();
    assert_eq!(script.sent(), ["A 1+0 a61"]);
    assert!(!script.connection.may_answer());
    // Later data are acknowledged at once, as ever.
    script.give(segment(PUSH, 61, 1, 60));
    assert_eq!(script.sent(), ["A 1+0 a121"]);
}

#[test]
fn a_request_that_nobody_reads_is_acknowledged_after_the_usual_delay() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    script.pass(39);
    assert_eq!(script.sent(), nothing());
    script.pass(2);
    assert_eq!(script.sent(), ["A 1+0 a61"]);
}

#[test]
fn the_second_segment_of_a_request_is_acknowledged_at_once() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    script.give(segment(PUSH, 61, 1, 60));
    assert_eq!(script.sent(), ["A 1+0 a121"]);
    // And the first of more that are on their way.
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(ACK, 1, 1, 1460));
    assert_eq!(script.sent(), ["A 1+0 a1461"]);
}

#[test]
fn a_request_waits_for_nothing_if_the_program_wants_it_so() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.connection.set_quick_ack(true);
    script.give(segment(PUSH, 1, 1, 60));
    assert_eq!(script.sent(), ["A 1+0 a61"]);
    let mut script = Script::accepted(Settings { always_quick_ack: true, ..waiting() });
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    assert_eq!(script.sent(), ["A 1+0 a61"]);
}

fn connected() -> Script {
    let mut script = Script::connecting(waiting());
    script.sent();
    script.give(Script::answer(&waiting()));
    script
}

#[test]
fn the_first_data_carry_the_acknowledgment_of_the_handshake() {
    let mut script = connected();
    assert_eq!(script.sent(), nothing());
    script.pass(5);
    script.write(60);
    assert_eq!(script.sent(), ["PA 1+60 a1"]);
    assert!(script.connection.spoke_first());
    // The reply and the end behind it: the close carries the acknowledgment of both.
    script.give(segment(PUSH, 1, 61, 145));
    script.give(segment(ACK.with(Flags::FIN), 146, 61, 0));
    assert_eq!(script.sent(), nothing());
    assert!(read_and_wait(&mut script, 145));
    script.close();
    assert_eq!(script.sent(), ["FA 61+0 a147"]);
}

#[test]
fn a_program_that_says_nothing_acknowledges_the_handshake_all_the_same() {
    let mut script = connected();
    script.pass(19);
    assert_eq!(script.sent(), nothing());
    script.pass(2);
    assert_eq!(script.sent(), ["A 1+0 a1"]);
    script.write(60);
    assert!(!script.connection.spoke_first(), "that was late");
}

#[test]
fn a_peer_that_speaks_first_is_acknowledged_at_once() {
    let mut script = connected();
    script.give(segment(PUSH, 1, 1, 20));
    assert_eq!(script.sent(), ["A 1+0 a21"]);
    script.write(60);
    assert!(!script.connection.spoke_first());
}

#[test]
fn a_connection_that_is_not_expected_to_begin_so_does_as_ever() {
    let mut script = Script::connecting(plain());
    script.sent();
    script.give(Script::answer(&plain()));
    assert_eq!(script.sent(), ["A 1+0 a1"]);
    script.write_with(60, SendFlags::default());
    script.sent();
    assert!(script.connection.spoke_first(), "which is known for the next one");
    script.give(segment(PUSH, 1, 61, 145));
    assert_eq!(script.sent(), ["A 61+0 a146"]);
}

/// Before somebody else goes on with the connection.
#[test]
fn what_waits_is_acknowledged_on_demand() {
    let mut script = Script::accepted(waiting());
    script.sent();
    script.give(segment(PUSH, 1, 1, 60));
    script.connection.acknowledge();
    script.output();
    assert_eq!(script.sent(), ["A 1+0 a61"]);
    script.connection.acknowledge();
    script.output();
    assert_eq!(script.sent(), nothing(), "once");
    let mut script = connected();
    script.connection.acknowledge();
    script.output();
    assert_eq!(script.sent(), ["A 1+0 a1"]);
}
