use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use libvma_dev::stats::Counters;

use super::*;
use crate::shard::Interest;
use crate::socket::fixture::{Linked, Tcp, Udp, stack, stack_with};

/// Receives without blocking; `os` is what the kernel's socket says, if it is to be asked.
fn receive_once(os: Option<Result<usize, i32>>, flags: i32) -> (Outcome<Received>, Counters) {
    let stack = stack();
    let mut socket = Socket::new(-1, true, &stack.config);
    socket.state = State::Offloaded;
    if os.is_some() {
        socket.order.note_readable();
    }
    let id = stack.shard.lock().unwrap().attach(socket, 0);
    let mut ask = |_| os.unwrap_or(Err(libc::EAGAIN)).map(FromKernel::one);
    let mut room = [0; 16];
    let mut buffers = [IoSliceMut::new(&mut room)];
    let request = Request { buffers: &mut buffers, flags, control: None, os: &mut ask };
    let outcome = receive(&stack, id, request);
    let mut state = stack.shard.lock().unwrap();
    assert_eq!(state.socket(id).unwrap().0.rx_thread, thread::thread_id() as u32);
    (outcome, state.counters_of(id).unwrap())
}

// covers: STAT-38
#[test]
fn what_the_kernels_socket_says_is_counted_as_its() {
    let none = Counters::default();
    let (outcome, counters) = receive_once(Some(Ok(5)), 0);
    assert!(matches!(outcome, Outcome::Ours(Received::FromOs(FromKernel { bytes: 5, .. }))));
    let got = Counters { rx_os_packets: 1, rx_os_bytes: 5, rx_os_poll_hits: 1, ..none };
    assert_eq!(counters, got);
    // A look takes nothing.
    let (_, counters) = receive_once(Some(Ok(5)), libc::MSG_PEEK);
    assert_eq!(counters, Counters { rx_os_poll_hits: 1, ..none });
    let (outcome, counters) = receive_once(Some(Err(libc::ECONNREFUSED)), 0);
    assert!(matches!(outcome, Outcome::Errno(libc::ECONNREFUSED)));
    assert_eq!(counters, Counters { rx_os_errors: 1, ..none });
}

// covers: STAT-38, STAT-40, FIX-24
#[test]
fn nothing_to_receive_is_a_miss_and_an_eagain() {
    for os in [None, Some(Err(libc::EAGAIN))] {
        let (outcome, counters) = receive_once(os, 0);
        assert!(matches!(outcome, Outcome::Errno(libc::EAGAIN)));
        let expected = Counters { rx_eagain: 1, rx_poll_misses: 1, ..Counters::default() };
        assert_eq!(counters, expected);
    }
}

const INTEREST: Interest = Interest {
    descriptor: 7,
    events: libc::EPOLLIN as u32,
    data: 7,
    spent: false,
    in_kernel: true,
    news: false,
    about: u32::MAX,
};

/// The kernel's word that an epoll call has passed on holds, whatever becomes of the registration before the socket is read.
#[test]
fn the_kernels_word_outlives_the_registration() {
    for end in ["stays", "is taken back", "goes with its instance", "began later"] {
        for asks_for_length in [false, true] {
            let stack = stack();
            let (sender, shadow) = UnixDatagram::pair().unwrap();
            sender.send(b"x").unwrap();
            let mut socket = Socket::new(shadow.as_raw_fd(), true, &stack.config);
            socket.state = State::Offloaded;
            let mut state = stack.shard.lock().unwrap();
            let id = state.attach(socket, 0);
            let set = state.new_set(-1);
            if end != "began later" {
                state.watch(set, id, INTEREST);
            }
            state.raise_os_doubt();
            match end {
                "is taken back" => assert!(state.unwatch(set, id, 7)),
                "goes with its instance" => state.end_set(set),
                _ => {}
            }
            drop(state);
            if asks_for_length {
                let _ = next_len(&stack, id);
                let mut state = stack.shard.lock().unwrap();
                let looked = state.socket(id).unwrap().1.order.may_be_readable();
                assert_eq!(looked, end != "began later", "{end}");
                continue;
            }
            let mut asked = 0;
            for _ in 0..2 {
                let mut ask = |_| {
                    asked += 1;
                    Err(libc::EAGAIN)
                };
                let mut room = [0; 16];
                let mut buffers = [IoSliceMut::new(&mut room)];
                let request =
                    Request { buffers: &mut buffers, flags: 0, control: None, os: &mut ask };
                assert!(matches!(receive(&stack, id, request), Outcome::Errno(libc::EAGAIN)));
            }
            // Without open rings each call asks once anyhow.
            assert_eq!(asked, 2 + i32::from(end != "began later"), "{end}");
        }
    }
}

fn datagram(outcome: &Outcome<Received>) -> (usize, i32) {
    match outcome {
        Outcome::Ours(Received::Datagram { len, flags, .. }) => (*len, *flags),
        other => panic!("{other:?}"),
    }
}

/// recv(2): the rest of a datagram is lost, and MSG_TRUNC tells how long it was.
#[test]
fn a_datagram_that_is_longer_than_the_room_is_cut() {
    let linked = Linked::new();
    for flags in [0, libc::MSG_TRUNC] {
        linked.send(b"0123456789");
        linked.send(b"next");
        let (outcome, _) = linked.server.receive(4, flags);
        let len = if flags == 0 { 4 } else { 10 };
        assert_eq!(datagram(&outcome), (len, libc::MSG_TRUNC), "{flags:#x}");
        let (outcome, bytes) = linked.server.receive(100, flags);
        assert_eq!((datagram(&outcome), &bytes[..]), ((4, 0), &b"next"[..]));
    }
    let counters = linked.server.with(|endpoint, _| endpoint.counters);
    assert_eq!((counters.rx_packets, counters.rx_bytes), (4, 28), "as the kernel counts it");
}

#[test]
fn a_peeked_datagram_stays_and_comes_with_its_source() {
    let linked = Linked::new();
    linked.send(b"first");
    linked.send(b"second");
    for flags in [libc::MSG_PEEK, libc::MSG_PEEK, 0] {
        let (outcome, bytes) = linked.server.receive(100, flags);
        assert_eq!(bytes, b"first");
        let Outcome::Ours(Received::Datagram { source, .. }) = outcome else { panic!() };
        assert_eq!(source, linked.client.address());
    }
    assert_eq!(linked.server.receive(100, 0).1, b"second");
    assert_eq!(linked.server.with(|endpoint, _| endpoint.counters.rx_packets), 2);
}

#[test]
fn what_only_the_kernel_can_tell_is_asked_of_it() {
    for flags in [libc::MSG_ERRQUEUE, libc::MSG_OOB] {
        let linked = Linked::new();
        linked.send(b"datagram");
        let (outcome, _) = linked.server.receive(100, flags);
        assert!(matches!(outcome, Outcome::Os(WhyOs::Arguments)));
        assert_eq!(linked.server.receive(100, 0).1, b"datagram");
    }
}

#[test]
fn a_kept_error_is_told_once_before_a_datagram() {
    let linked = Linked::new();
    linked.send(b"datagram");
    let (stack, id) = (&linked.server.stack, linked.server.id);
    keep_error(stack, id, libc::EAGAIN);
    assert_eq!(take_kept_error(stack, id), None, "it is no error");
    keep_error(stack, id, libc::ECONNREFUSED);
    assert_eq!(take_kept_error(stack, id), Some(libc::ECONNREFUSED));
    assert_eq!(take_kept_error(stack, id), None);
    keep_error(stack, id, libc::ECONNREFUSED);
    assert!(matches!(linked.server.receive(9, 0).0, Outcome::Errno(libc::ECONNREFUSED)));
    assert_eq!(linked.server.receive(9, 0).1, b"datagram");
    assert_eq!(linked.server.with(|endpoint, _| endpoint.counters.rx_errors), 1);
}

/// FIONREAD; udp(7). The program then receives that datagram, whatever comes to the other queue.
#[test]
fn the_length_of_the_next_datagram_is_told() {
    let linked = Linked::new();
    let next = || next_len(&linked.server.stack, linked.server.id);
    assert_eq!(next(), None);
    linked.send(b"");
    linked.send(b"four");
    linked.server.stack.shard.lock().unwrap().catch_up();
    assert_eq!(next(), Some(0), "a datagram of no bytes");
    linked.server.receive(9, 0);
    assert_eq!(next(), Some(4));
}

#[test]
fn a_call_expects_more_while_a_queue_may_have_something() {
    let linked = Linked::new();
    let more = || has_more(&linked.server.stack, linked.server.id);
    linked.server.with(|_, socket| socket.order.note_empty());
    assert!(!more());
    linked.send(b"x");
    assert!(!more(), "the rings are not looked at");
    linked.server.stack.shard.lock().unwrap().catch_up();
    assert!(more());
    linked.server.receive(9, 0);
    linked.server.with(|_, socket| socket.order.note_empty());
    assert!(!more());
    linked.server.with(|_, socket| socket.pending_error = libc::ECONNREFUSED);
    assert!(more());
    linked.server.with(|_, socket| {
        socket.pending_error = 0;
        socket.order.note_readable();
    });
    assert!(more(), "the kernel's socket may have something");
    linked.server.with(|_, socket| {
        socket.order.note_empty();
        socket.state = State::Os(WhyOs::Passed);
    });
    assert!(more(), "the kernel is to be asked");
}

/// A socket that became the kernel's gives what is left of its own queue first.
#[test]
fn what_is_left_of_the_queue_comes_before_the_kernels_say() {
    let linked = Linked::new();
    linked.send(b"left");
    linked.server.stack.shard.lock().unwrap().catch_up();
    linked.server.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    assert_eq!(linked.server.receive(9, 0).1, b"left");
    assert!(matches!(linked.server.receive(9, 0).0, Outcome::Os(WhyOs::Passed)));
    let unbound = Udp::new();
    assert!(matches!(unbound.receive(9, 0).0, Outcome::Os(WhyOs::Unbound)));
    let gone = SocketId::from_bits(unbound.id.to_bits() + (1 << 32)).unwrap();
    let request = Request { buffers: &mut [], flags: 0, control: None, os: &mut |_| Err(0) };
    let outcome = receive(&unbound.stack, gone, request);
    assert!(matches!(outcome, Outcome::Os(WhyOs::NotOurs)));
}

#[test]
fn control_messages_that_find_no_room_are_cut_and_that_is_told() {
    let linked = Linked::new();
    linked.server.set_number(libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
    for (room, expected) in
        [(24, (24, 0)), (18, (18, libc::MSG_CTRUNC)), (0, (0, libc::MSG_CTRUNC))]
    {
        linked.send(b"x");
        let (mut bytes, mut control) = ([0; 9], vec![0; room]);
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        let control = Some(&mut control[..]);
        let request = Request { buffers, flags: 0, control, os: &mut |_| Err(libc::EAGAIN) };
        let outcome = receive(&linked.server.stack, linked.server.id, request);
        let Outcome::Ours(Received::Datagram { control, flags, .. }) = outcome else { panic!() };
        assert_eq!((control, flags), expected);
    }
}

/// recvmmsg(2): a run of the kernel's comes by one call, unless a datagram of ours waits for its turn.
#[test]
fn several_are_taken_from_the_kernel_if_nothing_of_ours_waits() {
    let linked = Linked::new();
    let ask = |takes: &mut Vec<Take>| {
        let mut os = |take| {
            takes.push(take);
            Ok(FromKernel { datagrams: 3, bytes: 30 })
        };
        let mut room = [0; 16];
        let buffers = &mut [IoSliceMut::new(&mut room)];
        let request = Request { buffers, flags: 0, control: None, os: &mut os };
        receive(&linked.server.stack, linked.server.id, request)
    };
    let mut takes = Vec::new();
    linked.server.with(|_, socket| socket.order.note_readable());
    let outcome = ask(&mut takes);
    assert_eq!(outcome, Outcome::Ours(Received::FromOs(FromKernel { datagrams: 3, bytes: 30 })));
    let counters = linked.server.with(|endpoint, _| endpoint.counters);
    assert_eq!((counters.rx_os_packets, counters.rx_os_bytes), (3, 30));
    assert_eq!(counters.rx_os_poll_hits, 3);
    linked.send(b"ours");
    linked.server.stack.shard.lock().unwrap().catch_up();
    // The program was told of one of the kernel's.
    linked.server.with(|_, socket| socket.order.announce(Some(Origin::Shadow)));
    ask(&mut takes);
    assert_eq!(takes, [Take::Several, Take::One]);
}

/// A UDP socket whose buffer one datagram fills drops those that come before it is read.
#[test]
fn a_full_receive_buffer_loses_what_comes() {
    let linked = Linked::new();
    linked.server.with(|endpoint, _| endpoint.limit = 1);
    for payload in [&b"one"[..], b"two", b"three"] {
        linked.send(payload);
        linked.server.stack.shard.lock().unwrap().catch_up();
    }
    assert_eq!(linked.server.receive(9, 0).1, b"one", "one always finds room");
    let (outcome, _) = linked.server.receive(9, 0);
    assert!(matches!(outcome, Outcome::Errno(libc::EAGAIN)), "{outcome:?}");
    assert_eq!(linked.server.with(|endpoint, _| endpoint.counters.rx_dropped_packets), 2);
}

#[test]
fn what_the_kernels_socket_gives_by_itself_is_counted() {
    for (outcome, is_stream, expected) in [
        (Ok(7), false, Counters { rx_os_packets: 1, rx_os_bytes: 7, ..Counters::default() }),
        (Ok(0), false, Counters { rx_os_packets: 1, ..Counters::default() }),
        (Ok(0), true, Counters::default()),
        (Err(libc::EAGAIN), false, Counters { rx_os_eagain: 1, ..Counters::default() }),
        (Err(libc::EINTR), false, Counters::default()),
        (Err(libc::ECONNREFUSED), false, Counters { rx_os_errors: 1, ..Counters::default() }),
    ] {
        let (udp, tcp) = (Udp::new(), Tcp::new());
        let (stack, id) = if is_stream { (&tcp.stack, tcp.id) } else { (&udp.stack, udp.id) };
        after_os(stack, id, outcome);
        let counters = stack.shard.lock().unwrap().counters_of(id).unwrap();
        assert_eq!(counters, expected, "{outcome:?}");
    }
}

/// Processes of this host reach a socket that was bound, or that began with one of them.
#[test]
fn peers_within_the_host_are_expected_of_sockets_that_they_can_know() {
    for (on, named, began, expected) in [
        ("1", false, false, false),
        ("1", true, false, true),
        ("1", false, true, true),
        ("0", true, true, false),
    ] {
        let udp = Udp::of(stack_with(&[("VMA_LOCAL", on)]), Family::Ipv4);
        let expects = udp.with(|_, socket| {
            (socket.named, socket.starts_locally) = (named, began);
            has_local_peers(&udp.stack, socket)
        });
        assert_eq!(expects, expected, "{on} {named} {began}");
    }
}
