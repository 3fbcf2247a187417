use libvma_engine::tcp::State as TcpState;
use libvma_engine::wire::tcp::Flags;

use super::*;
use crate::socket::fixture::{Linked, Tcp, Udp, callback};
use crate::socket::{Outcome, WhyOs};

const ALL: [Judgement; 5] =
    [Judgement::None, Judgement::Due, Judgement::UnderWay, Judgement::Ending, Judgement::Passed];

/// Judges by the first byte: d drops, h holds, and everything else is received.
fn by_first_byte(_: &Callback, packet: &mut Packet<'_>) -> Verdict {
    match packet.payload.first() {
        Some(b'd') => Verdict::Drop,
        Some(b'h') => Verdict::Hold,
        _ => Verdict::Receive,
    }
}

/// The bytes of a receive call, or its errno.
fn received(udp: &Udp) -> Result<Vec<u8>, i32> {
    match udp.receive(100, 0) {
        (Outcome::Ours(_), bytes) => Ok(bytes),
        (Outcome::Errno(errno), _) => Err(errno),
        (Outcome::Os(why), _) => panic!("{why}"),
    }
}

#[test]
fn bytes_that_came_before_the_callback_are_not_judged() {
    for (before, readable, given) in [
        (Judgement::None, true, Judgement::Passed),
        (Judgement::None, false, Judgement::Due),
        (Judgement::Due, true, Judgement::Due),
        (Judgement::UnderWay, true, Judgement::UnderWay),
        (Judgement::Passed, false, Judgement::Passed),
        // Taken back and given again while it ran.
        (Judgement::Ending, true, Judgement::UnderWay),
    ] {
        assert_eq!(before.after_register(true, readable), given, "{before:?} {readable}");
    }
}

/// No other thread may read what is being judged.
#[test]
fn a_callback_that_runs_ends_with_its_verdict() {
    for before in ALL {
        let runs = matches!(before, Judgement::UnderWay | Judgement::Ending);
        let expected = if runs { Judgement::Ending } else { Judgement::None };
        for readable in [false, true] {
            assert_eq!(before.after_register(false, readable), expected, "{before:?}");
        }
    }
    for next in [Judgement::Due, Judgement::Passed] {
        assert_eq!(Judgement::Ending.after_verdict(next), Judgement::None);
        assert_eq!(Judgement::None.after_verdict(next), Judgement::None, "it is gone already");
        assert_eq!(Judgement::UnderWay.after_verdict(next), next);
    }
}

#[test]
fn a_datagram_is_dropped_held_or_received_as_the_callback_says() {
    let linked = Linked::new();
    let (stack, id) = (&linked.server.stack, linked.server.id);
    assert_eq!(register(stack, id, Some(callback(7, by_first_byte))), Ok(()));
    assert!(linked.server.with(|endpoint, _| endpoint.wants_stamp), "a callback gets the time");
    for payload in [&b"drop"[..], b"first", b"hold", b"second"] {
        linked.send(payload);
    }
    assert_eq!(received(&linked.server), Ok(b"first".to_vec()));
    assert_eq!(received(&linked.server), Ok(b"second".to_vec()));
    assert_eq!(received(&linked.server), Err(libc::EAGAIN));
    let (held, of_sockets) = stack.extra.amounts();
    assert_eq!((held.packets, held.bytes), (1, 4));
    assert!(of_sockets.contains_key(&id));
    assert_eq!(register(stack, id, None), Ok(()));
    assert!(!stack.extra.callbacks.are_any());
    assert!(!linked.server.with(|endpoint, _| endpoint.wants_stamp));
    linked.send(b"drop");
    assert_eq!(received(&linked.server), Ok(b"drop".to_vec()), "nobody judges any more");
}

#[test]
fn a_socket_of_the_kernel_gets_no_callback() {
    let udp = Udp::new();
    udp.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    let given = register(&udp.stack, udp.id, Some(callback(7, by_first_byte)));
    assert_eq!(given, Err(libc::EINVAL));
    assert!(!udp.stack.extra.callbacks.are_any());
}

#[test]
fn bytes_of_a_stream_are_judged_before_they_can_be_read() {
    let tcp = Tcp::connected();
    let judged = callback(tcp.raw(), by_first_byte);
    assert_eq!(register(&tcp.stack, tcp.id, Some(judged)), Ok(()));
    assert_eq!(tcp.with_stream(|stream| stream.judgement), Judgement::Due);
    tcp.arrive(Flags::NONE, b"dropped");
    assert_eq!(tcp.receive(100, 0), Outcome::Errno(libc::EAGAIN));
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.rx_bytes), 7, "they were taken");
    tcp.arrive(Flags::NONE, b"read");
    assert_eq!(tcp.receive(2, 0), Outcome::Ours(b"re".to_vec()));
    assert_eq!(tcp.with_stream(|stream| stream.judgement), Judgement::Passed);
    // Bytes that come while others are left are read with those.
    tcp.arrive(Flags::NONE, b"d");
    assert_eq!(tcp.receive(100, 0), Outcome::Ours(b"add".to_vec()));
    assert_eq!(tcp.with_stream(|stream| stream.judgement), Judgement::Due);
    tcp.arrive(Flags::NONE, b"d");
    assert_eq!(tcp.receive(100, 0), Outcome::Errno(libc::EAGAIN));
}

#[test]
fn bytes_that_were_there_first_and_errors_pass_the_callback() {
    let tcp = Tcp::connected_as(TcpState::Established, b"d first");
    register(&tcp.stack, tcp.id, Some(callback(tcp.raw(), by_first_byte))).unwrap();
    assert_eq!(tcp.receive(100, 0), Outcome::Ours(b"d first".to_vec()));
    tcp.arrive(Flags::RST, b"");
    assert_eq!(tcp.receive(100, 0), Outcome::Errno(libc::ECONNRESET));
}

#[test]
fn a_sleep_is_put_off_while_a_callback_has_something_to_judge() {
    let tcp = Tcp::connected();
    let due = || is_due(&tcp.stack, &mut tcp.stack.shard.lock().unwrap());
    assert!(!due());
    register(&tcp.stack, tcp.id, Some(callback(tcp.raw(), by_first_byte))).unwrap();
    assert!(!due(), "nothing has come");
    tcp.arrive(Flags::NONE, b"read");
    assert!(due());
    judge(&tcp.stack);
    assert!(!due(), "they have passed");
}

/// The time of arrival is the first byte's, whoever notes it.
#[test]
fn the_arrival_of_bytes_is_noted_once() {
    let tcp = Tcp::connected();
    register(&tcp.stack, tcp.id, Some(callback(tcp.raw(), by_first_byte))).unwrap();
    let note = || {
        note_arrivals(&tcp.stack, &mut tcp.stack.shard.lock().unwrap());
        tcp.with_stream(|stream| stream.arrival)
    };
    assert_eq!(note(), 0);
    tcp.arrive(Flags::NONE, b"dropped");
    let first = note();
    assert_ne!(first, 0);
    tcp.arrive(Flags::NONE, b"later");
    assert_eq!(note(), first);
    judge(&tcp.stack);
    assert_eq!(tcp.with_stream(|stream| stream.arrival), 0);
}

/// Callbacks get a `struct sockaddr_in`.
#[test]
fn an_address_of_ipv6_is_told_by_its_port_alone() {
    let four = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
    assert_eq!(told(four), four);
    let port_only = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80);
    let stand_in = ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
    assert_eq!(told(SocketAddrV4::new(stand_in, 80)), port_only);
    assert_eq!(told(libvma_dev::ipv6_loopback::end(80)), port_only);
}
