//! Windows, and when it is worth sending: both sides of flow control.

use super::script::{ACK, Script, WINDOW, path, plain, segment, selective};
use crate::tcp::{Buffer, Events, Path, SendFlags, Settings};
use crate::wire::tcp::Flags;

const MSS: u32 = 1460;

fn fixed(limit: u32) -> Buffer {
    Buffer { limit, most: limit, automatic: false }
}

#[test]
fn nothing_leaves_beyond_the_peers_window() {
    let mut script = Script::established(plain());
    script.give(segment(ACK, 1, 1, 0).window(4000));
    script.write(20_000);
    // Two segments; what is left of the window is less than half of the largest one.
    assert_eq!(script.sent(), ["A 1+1460 a1", "A 1461+1460 a1"]);
    script.give(segment(ACK, 1, 2921, 0).window(4000));
    assert_eq!(script.sent(), ["A 2921+1460 a1", "A 4381+1460 a1"]);
    // The peer takes its window back: nothing more.
    script.give(segment(ACK, 1, 2921, 0).window(0));
    script.give(segment(ACK, 1, 5841, 0).window(0));
    assert_eq!(script.sent(), Vec::<String>::new());
}

/// RFC 9293 section 3.8.6.2.1.
#[test]
fn small_windows_are_not_filled() {
    let mut script = Script::established(plain());
    script.write(30_000);
    script.sent();
    script.give(segment(ACK, 1, 14_601, 0).window(100));
    assert_eq!(script.sent(), Vec::<String>::new());
    // Half of the largest window the peer offered would be worth it; after the override timeout
    // anything is.
    script.pass(250);
    assert_eq!(script.sent(), ["A 14601+100 a1"]);
}

#[test]
fn a_peer_with_a_tiny_window_is_served() {
    let settings = plain();
    let mut script = Script::connecting(settings.clone());
    script.give(Script::answer(&settings).window(200));
    script.sent();
    script.write(1000);
    assert_eq!(script.sent(), ["A 1+200 a1"]);
    script.give(segment(ACK, 1, 201, 0).window(100));
    assert_eq!(script.sent(), ["A 201+100 a1"], "half of the largest");
}

/// RFC 9293 section 3.8.6.2.2: the edge does not creep.
#[test]
fn the_window_opens_by_worthwhile_amounts() {
    let settings = Settings { receive_buffer: fixed(10_000), ..plain() };
    let mut script = Script::established(settings);
    for at in 0..6 {
        script.give(segment(ACK, 1 + at * 1460, 1, 1460));
    }
    script.pass(100);
    let last = script.segments().pop().unwrap();
    assert_eq!(u32::from(last.header.window), 10_000 - 6 * 1460);
    // Reading a little tells nobody.
    script.read(500);
    assert!(script.segments().is_empty());
    script.read(500);
    script.read(4000);
    let update = script.segments().pop().expect("an update");
    assert_eq!(u32::from(update.header.window), 10_000 - 6 * 1460 + 5000);
}

#[test]
fn a_full_buffer_closes_the_window_and_reading_opens_it() {
    let settings = Settings { receive_buffer: fixed(4 * MSS), ..plain() };
    let mut script = Script::established(settings);
    for at in 0..4 {
        script.give(segment(ACK, 1 + at * MSS, 1, MSS));
    }
    assert_eq!(script.segments().last().unwrap().header.window, 0);
    // A probe is answered, its byte not taken.
    script.give(segment(ACK, 1 + 4 * MSS, 1, 1));
    let answer = script.segments().pop().unwrap();
    assert_eq!((answer.ack(), answer.header.window), (1 + 4 * MSS, 0));
    script.read(4 * MSS);
    let update = script.segments().pop().unwrap();
    assert_eq!(u32::from(update.header.window), 4 * MSS);
}

#[test]
fn the_announced_edge_never_moves_left() {
    let mut script = Script::established(plain());
    let now = script.now;
    script.connection.set(now, |settings| settings.receive_buffer = fixed(2000));
    let mut edge = 65_536;
    for at in 0..20 {
        script.give(segment(ACK, 1 + at * 1000, 1, 1000));
        for sent in script.segments() {
            let announced = sent.ack() + u32::from(sent.header.window);
            assert!(announced >= edge, "{announced} after {edge}");
            edge = announced;
        }
    }
}

#[test]
fn a_buffer_smaller_than_a_unit_of_the_window_does_not_stay_closed() {
    let settings = Settings { window_scaling: true, receive_buffer: fixed(256 << 20), ..plain() };
    let mut script = Script::connecting(settings.clone());
    let syn = script.segments().pop().unwrap();
    assert_eq!(syn.header.options.window_scale, Some(13));
    let now = script.now;
    script.connection.set(now, |settings| settings.receive_buffer = fixed(2000));
    script.give(Script::answer(&settings));
    for at in 0..44 {
        script.give(segment(ACK, 1 + at * MSS, 1, MSS));
    }
    script.read(44 * MSS);
    script.segments();
    script.give(segment(ACK, 1 + 44 * MSS, 1, 100));
    script.read(100);
    script.pass(250);
    let last = script.segments().pop().unwrap();
    assert_eq!((last.ack(), last.header.window), (101 + 44 * MSS, 1));
}

#[test]
fn windows_are_scaled_as_agreed_upon() {
    let settings = Settings {
        window_scaling: true,
        receive_buffer: Buffer { limit: 1 << 20, most: 1 << 20, automatic: false },
        ..plain()
    };
    let mut script = Script::connecting(settings.clone());
    let syn = script.segments().pop().unwrap();
    assert_eq!((syn.header.window, syn.header.options.window_scale), (65_535, Some(5)));
    // Not agreed upon yet, so TCP_INFO does not tell it.
    let info = script.info();
    assert_eq!((info.window_scaling, info.rcv_scale), (false, 0));
    script.give(Script::answer(&settings));
    let info = script.info();
    assert_eq!((info.window_scaling, info.rcv_scale), (true, 5));
    let third = script.segments().pop().unwrap();
    assert_eq!(u32::from(third.header.window) << 5, 1 << 20);
    // That of the SYN is not scaled, those after it are.
    assert_eq!(script.info().snd_wnd, u32::from(WINDOW));
    script.give(segment(ACK, 1, 1, 0));
    assert_eq!(script.info().snd_wnd, u32::from(WINDOW) << 7);
}

#[test]
fn without_the_peers_option_nothing_is_scaled() {
    let settings = Settings { window_scaling: true, ..plain() };
    let mut script = Script::connecting(settings);
    script.give(Script::answer(&plain()));
    let third = script.segments().pop().unwrap();
    assert_eq!(third.header.window, 65_535);
    script.give(segment(ACK, 1, 1, 0));
    assert_eq!(script.info().snd_wnd, u32::from(WINDOW));
}

/// RFC 9293 section 3.7.4, as modified by Minshall: one small segment at a time.
#[test]
fn nagle_holds_small_segments_back() {
    let mut script = Script::established(plain());
    script.write(100);
    assert_eq!(script.sent(), ["PA 1+100 a1"]);
    script.write(100);
    script.write(100);
    assert_eq!(script.sent(), Vec::<String>::new());
    script.give(segment(ACK, 1, 101, 0));
    assert_eq!(script.sent(), ["PA 101+200 a1"]);
    // A full segment does not wait, and what follows it only for the small one before.
    script.write(1460 + 10);
    assert_eq!(script.sent(), ["A 301+1460 a1"]);
    script.give(segment(ACK, 1, 301, 0));
    assert_eq!(script.sent(), ["PA 1761+10 a1"]);
}

#[test]
fn nodelay_sends_at_once() {
    let mut script = Script::established(Settings { nodelay: true, ..plain() });
    script.write(100);
    script.write(100);
    assert_eq!(script.sent(), ["PA 1+100 a1", "PA 101+100 a1"]);
    // Switched on, it pushes what waits.
    let mut script = Script::established(plain());
    script.write(100);
    script.write(100);
    script.sent();
    let now = script.now;
    script.connection.set(now, |settings| settings.nodelay = true);
    script.connection.push(now, &mut script.outbox);
    assert_eq!(script.sent(), ["PA 101+100 a1"]);
}

#[test]
fn cork_sends_full_segments_only() {
    let mut script = Script::established(Settings { cork: true, nodelay: true, ..plain() });
    script.write(2000);
    assert_eq!(script.sent(), ["A 1+1460 a1"]);
    script.write(2000);
    assert_eq!(script.sent(), ["A 1461+1460 a1"]);
    let now = script.now;
    script.connection.set(now, |settings| settings.cork = false);
    script.connection.push(now, &mut script.outbox);
    assert_eq!(script.sent(), ["PA 2921+1080 a1"]);
}

#[test]
fn msg_more_waits_for_the_next_write() {
    let mut script = Script::established(plain());
    script.write_with(100, SendFlags { more: true, urgent: false });
    assert_eq!(script.sent(), Vec::<String>::new());
    script.write(100);
    assert_eq!(script.sent(), ["PA 1+200 a1"]);
}

/// RFC 9293 section 3.8.6.3: at least every second full segment.
#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut script = Script::established(plain());
    let now = script.now;
    let mut at = 1;
    let mut bulk = |script: &mut Script, count: u32| {
        for _ in 0..count {
            script.give(segment(ACK, at, 1, MSS));
            at += MSS;
            script.read(MSS);
        }
        script.sent().len()
    };
    // At first all are, so that the peer's slow start gets going.
    assert!(bulk(&mut script, 16) >= 15);
    let _ = now;
    let acknowledgments = bulk(&mut script, 20);
    assert!((10..=11).contains(&acknowledgments), "{acknowledgments} for 20 segments");
}

#[test]
fn quick_acknowledgments_can_be_asked_for() {
    let mut script = Script::established(plain());
    let mut at = 1;
    let mut get = |script: &mut Script| {
        script.give(segment(ACK, at, 1, 10));
        at += 10;
        script.sent().len()
    };
    // The program answers what it gets: acknowledgments ride on its answers.
    script.connection.set_quick_ack(false);
    assert_eq!(get(&mut script), 0);
    // Asked for, one is sent for what is owed, and for what comes.
    script.connection.set_quick_ack(true);
    script.output();
    assert_eq!(script.sent(), ["A 1+0 a11"]);
    assert_eq!(get(&mut script), 1);
    let always = Settings { always_quick_ack: true, ..plain() };
    let mut script = Script::established(always);
    script.connection.set_quick_ack(false);
    script.give(segment(ACK, 1, 1, 10));
    assert_eq!(script.sent(), ["A 1+0 a11"]);
}

/// A connection that has got what is acknowledged at once anyway, and the next number.
fn settled() -> (Script, u32) {
    let mut script = Script::established(plain());
    let mut at = 1;
    for _ in 0..20 {
        script.give(segment(ACK, at, 1, 100));
        at += 100;
    }
    script.read(2000);
    script.pass(100);
    script.sent();
    (script, at)
}

// Linux: tcp_cleanup_rbuf.
#[test]
fn a_read_that_takes_all_acknowledges_what_was_pushed() {
    let (mut script, at) = settled();
    for k in 0..50 {
        script.pass(1);
        script.give(segment(ACK.with(Flags::PSH), at + 16 * k, 1, 16));
        assert_eq!(script.sent(), Vec::<String>::new());
        script.read(15);
        assert_eq!(script.sent(), Vec::<String>::new(), "something is left to read");
        script.read(1);
        assert_eq!(script.sent(), [format!("A 1+0 a{}", at + 16 * k + 16)]);
    }
    // A full segment that was not pushed has others behind it.
    let at = at + 16 * 50;
    script.give(segment(ACK, at, 1, 100));
    script.read(100);
    assert_eq!(script.sent(), Vec::<String>::new());
}

#[test]
fn what_a_program_answers_is_acknowledged_by_its_answers() {
    let (mut script, mut at) = settled();
    let mut turn = |script: &mut Script, mine: u32| {
        script.give(segment(ACK.with(Flags::PSH), at, mine, 16));
        script.read(16);
        let early = script.sent().len();
        at += 16;
        script.write(16);
        script.sent();
        early
    };
    assert_eq!(turn(&mut script, 1), 1, "nothing was answered so far");
    for k in 1..20 {
        script.pass(1);
        assert_eq!(turn(&mut script, 1 + 16 * k), 0);
    }
    // Two are no request: the peer sends, and may wait for it.
    script.give(segment(ACK.with(Flags::PSH), at, 321, 16));
    script.read(16);
    script.give(segment(ACK.with(Flags::PSH), at + 16, 321, 10));
    script.sent();
    script.read(10);
    // Whoever only sends gets acknowledgments, and does not answer those.
    let (mut script, at) = settled();
    script.write(16);
    script.give(segment(ACK, at, 17, 0));
    script.write(16);
    script.sent();
    script.pass(50);
    script.give(segment(ACK.with(Flags::PSH), at, 33, 16));
    script.read(16);
    assert_eq!(script.sent(), [format!("A 33+0 a{}", at + 16)]);
}

#[test]
fn data_carries_the_acknowledgment() {
    let mut script = Script::established(plain());
    script.give_silently(segment(ACK, 1, 1, 10));
    script.write(10);
    assert_eq!(script.sent(), ["PA 1+10 a11"]);
    script.pass(100);
    assert_eq!(script.sent(), Vec::<String>::new());
}

#[test]
fn the_send_buffer_is_bounded_and_room_is_told_of() {
    let settings = Settings { send_buffer: fixed(10_000), ..plain() };
    let mut script = Script::established(settings);
    assert_eq!(script.write(25_000), 10_000);
    assert_eq!(script.connection.send_room(), 0);
    assert!(script.give(segment(ACK, 1, 1461, 0)).is_empty(), "a worthwhile amount, not any");
    let events = script.give(segment(ACK, 1, 5841, 0));
    assert!(events.contains(Events::WRITABLE));
    assert_eq!(script.connection.send_room(), 5840);
}

#[test]
fn the_urgent_byte_is_marked_and_read_apart() {
    let mut script = Script::established(plain());
    script.write_with(5, SendFlags { more: false, urgent: true });
    assert_eq!(script.sent(), ["PAU 1+5 a1 u5"]);
    let events = script.give(segment(ACK, 1, 6, 10).urgent(10));
    assert!(events.contains(Events::URGENT));
    assert_eq!(script.connection.readable(), 9);
    script.read(9);
    assert!(script.connection.is_at_hidden_mark());
    assert!(script.connection.has_urgent());
    script.connection.take_urgent();
    script.read(1);
    assert!(!script.connection.has_urgent());
    script.give(segment(ACK, 11, 6, 10));
    assert_eq!(script.connection.readable(), 10);
}

#[test]
fn a_super_frame_leaves_for_a_device_that_cuts_it() {
    let path = Path { segmentation_limit: 65_000, ..path() };
    let mut script = Script::established(selective());
    script.connection.set_path(path);
    script.write(14_600);
    let sent = script.sent();
    assert!(sent.len() <= 2, "{sent:?}");
    script.give(segment(ACK, 1, 14_601, 0));
    // Urgent data is for a segment of its own.
    script.write_with(5000, SendFlags { more: false, urgent: true });
    assert!(script.segments().iter().all(|sent| sent.payload.len() <= 1460));
}

#[test]
fn a_device_without_room_is_tried_again() {
    let mut script = Script::established(plain());
    script.outbox.full = true;
    script.write(100);
    script.give(segment(ACK, 1, 1, 2000));
    script.give(segment(ACK, 2001, 1, 2000));
    assert!(script.segments().is_empty() && script.connection.wants_output());
    script.outbox.full = false;
    script.output();
    assert_eq!(script.sent(), ["PA 1+100 a4001"]);
    assert!(!script.connection.wants_output());
    // A FIN, a RST.
    script.outbox.full = true;
    script.shutdown();
    assert!(script.connection.wants_output());
    script.outbox.full = false;
    script.output();
    assert_eq!(script.sent(), ["FA 101+0 a4001"]);
    script.outbox.full = true;
    script.connection.abort();
    script.output();
    assert!(!script.connection.is_closed() && script.connection.wants_output());
    script.outbox.full = false;
    script.output();
    assert!(script.connection.is_closed());
    assert!(script.segments()[0].has(Flags::RST));
}

#[test]
fn bytes_beyond_the_window_are_cut_off() {
    let settings = Settings { receive_buffer: fixed(2000), ..plain() };
    let mut script = Script::established(settings);
    script.give(segment(ACK, 1, 1, 3000));
    assert_eq!(script.connection.queued(), 2000);
    assert_eq!(script.segments().pop().unwrap().ack(), 2001);
}

/// The kernel's listener takes no more than the first window, if the connection is given to it before the program accepts it.
#[test]
fn a_connection_takes_its_first_window_until_it_is_accepted_and_its_buffer_from_then_on() {
    const FIRST: u32 = 65_535 - 2800;
    let settings = Settings { receive_buffer: fixed(1 << 20), window_scaling: true, ..plain() };
    let mut script = Script::accepted(settings);
    let mut next = 1;
    while next + MSS <= 1 + FIRST {
        script.give(segment(ACK, next, 1, MSS));
        next += MSS;
    }
    script.give(segment(ACK, next, 1, FIRST + 1 - next));
    script.pass(100);
    let last = script.segments().pop().expect("an acknowledgment");
    assert_eq!((last.ack(), last.header.window), (1 + FIRST, 0));
    // A segment beyond it is not taken.
    script.give(segment(ACK, 1 + FIRST, 1, MSS));
    let last = script.segments().pop().expect("an acknowledgment");
    assert_eq!((last.ack(), last.header.window), (1 + FIRST, 0));
    // The program may wait for more than that before it reads.
    let now = script.now;
    script.connection.begin_service(now);
    script.output();
    let update = script.segments().pop().expect("a window update");
    assert_eq!(u32::from(update.header.window), ((1 << 20) - FIRST) >> 7);
}

#[test]
fn accepting_a_connection_tells_its_peer_nothing_that_it_need_not_know() {
    for len in [0, MSS] {
        let settings = Settings { receive_buffer: fixed(1 << 20), window_scaling: true, ..plain() };
        let mut script = Script::accepted(settings);
        if len > 0 {
            script.give(segment(ACK, 1, 1, len));
        }
        script.pass(100);
        script.sent();
        let now = script.now;
        script.connection.begin_service(now);
        script.output();
        assert_eq!(script.sent(), Vec::<String>::new());
        script.give(segment(ACK, 1 + len, 1, MSS));
        script.pass(100);
        let last = script.segments().pop().expect("an acknowledgment");
        assert_eq!(u32::from(last.header.window), ((1 << 20) - len - MSS) >> 7);
    }
}
