use libvma_dev::ipv6_loopback::STAND_IN;

use super::*;
use crate::socket::fixture::{Linked, Udp, stack, stack_with_plane};
use crate::socket::order::Origin;
use crate::socket::receive::Received;
use crate::sys::loopback_end::Takes;

/// The control messages of a call that say these.
fn says(tos: Option<u8>, ttl: Option<u8>) -> Ancillary {
    let mut ancillary = Ancillary::default();
    (ancillary.tos, ancillary.ttl) = (tos, ttl);
    ancillary
}

// No device that a test can make keeps a frame for long: the decisions by themselves.

// covers: API-42
#[test]
fn whether_a_send_waits_is_the_sockets_or_forced() {
    for asked in [false, true] {
        assert_eq!(waits(Blocking::AsSocket, asked), asked);
        assert!(waits(Blocking::Always, asked));
        assert!(!waits(Blocking::Never, asked));
    }
}

// covers: STAT-40, FIX-24
#[test]
fn what_the_kernel_says_to_a_send_is_counted() {
    let stack = stack();
    let mut socket = Socket::new(-1, true, &stack.config);
    socket.state = State::Offloaded;
    let id = stack.shard.lock().unwrap().attach(socket, 0);
    for outcome in [Ok(0), Ok(7), Err(libc::EAGAIN), Err(libc::EINTR), Err(libc::EPERM)] {
        after_os(&stack, id, outcome);
    }
    let counters = stack.shard.lock().unwrap().counters_of(id).unwrap();
    let expected = libvma_dev::stats::Counters {
        tx_os_packets: 2,
        tx_os_bytes: 7,
        tx_os_errors: 1,
        tx_os_eagain: 1,
        ..Default::default()
    };
    assert_eq!(counters, expected);
}

// covers: API-40
#[test]
fn a_send_that_does_not_wait_is_done_or_says_eagain() {
    assert_eq!(dropped(false), Ok(()));
    assert_eq!(dropped(true), Err(libc::EAGAIN));
}

/// The kernel's calls on an offloaded socket, before a route is looked for.
#[test]
fn a_call_that_only_the_kernel_can_make_is_passed_on() {
    let udp = Udp::named(stack_with_plane(&[]));
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    let zeros = [0; 32];
    let cases: [(&[u8], _, _, Option<&[u8]>, _); 7] = [
        (b"x", Some(to), libc::MSG_OOB, None, WhyOs::Arguments),
        (b"x", Some(to), libc::MSG_MORE, None, WhyOs::Arguments),
        (b"x", Some(to), 0, Some(&zeros), WhyOs::ControlMessage),
        (&[0; 65_508], Some(to), 0, None, WhyOs::Arguments),
        (b"x", None, 0, None, WhyOs::Arguments),
        (b"x", Some(SocketAddrV4::new(*to.ip(), 0)), 0, None, WhyOs::Arguments),
        (b"x", Some(SocketAddrV4::new(Ipv4Addr::BROADCAST, 9)), 0, None, WhyOs::Broadcast),
    ];
    for (payload, to, flags, control, why) in cases {
        let sent = udp.send_with(payload, to, flags, control);
        assert_eq!(sent, Outcome::Os(why), "{to:?} {flags:#x} {control:?}");
        // MSG_MORE: the kernel waits for the rest.
        udp.with(|_, socket| socket.os_corked = false);
    }
    assert_eq!(udp.state(), State::Offloaded, "each is of the call alone");
}

/// send(2): what MSG_MORE has left in the kernel's socket goes with the next bytes, which have to go there.
#[test]
fn a_corked_datagram_is_finished_by_the_kernel() {
    let linked = Linked::new();
    let send = |flags| linked.client.send_with(b"part", Some(linked.to()), flags, None);
    assert_eq!(send(libc::MSG_MORE), Outcome::Os(WhyOs::Arguments));
    assert_eq!(send(0), Outcome::Os(WhyOs::Arguments));
    assert!(matches!(send(0), Outcome::Ours((4, _))), "the datagram is whole");
}

#[test]
fn an_error_that_waits_in_the_kernel_is_reported_by_the_next_call() {
    let linked = Linked::new();
    linked.send(b"first");
    linked.client.with(|_, socket| socket.order.note_error());
    assert_eq!(linked.client.send(b"x", linked.to()), Outcome::Os(WhyOs::PendingError));
    linked.send(b"second");
}

/// sendmmsg(2): whether a message goes with those before it to the kernel is asked before these have left.
#[test]
fn asking_whose_a_datagram_is_sends_nothing_and_takes_no_error() {
    let linked = Linked::new();
    let nobody = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    let is_kernels = |to| {
        let (payload, named) = (&[IoSlice::new(b"x")], Family::Ipv4);
        let request =
            Request { payload, to: Some(to), named, flags: 0, control: None, more_follow: true };
        super::is_kernels(&linked.client.stack, linked.client.id, &request)
    };
    assert!(is_kernels(nobody) && !is_kernels(linked.to()));
    linked.client.with(|_, socket| socket.order.note_error());
    assert!(!is_kernels(nobody), "the next call tells of the error");
    assert!(linked.client.with(|_, socket| socket.order.take_error()));
    assert_eq!(linked.client.with(|endpoint, _| endpoint.counters.tx_packets), 0);
    linked.server.stack.shard.lock().unwrap().catch_up();
    assert!(!linked.server.with(|endpoint, _| endpoint.is_readable()));
}

#[test]
fn a_socket_of_the_kernel_says_why() {
    let udp = Udp::new();
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    udp.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    assert_eq!(udp.send(b"x", to), Outcome::Os(WhyOs::Passed));
    let gone = SocketId::from_bits(udp.id.to_bits() + (1 << 32)).unwrap();
    let payload = &[IoSlice::new(b"x")];
    let named = Family::Ipv4;
    let request =
        Request { payload, to: Some(to), named, flags: 0, control: None, more_follow: false };
    assert_eq!(send(&udp.stack, gone, &request), Outcome::Os(WhyOs::NotOurs));
    // sendto() of a mapped address: EINVAL or EAFNOSUPPORT is the kernel's to say.
    let request = Request { named: Family::Ipv6, ..request };
    assert_eq!(send(&udp.stack, udp.id, &request), Outcome::Os(WhyOs::Arguments));
}

/// ip(7): the first datagram of a socket that is not bound gives it a port. Without a destination, or to one that the kernel
/// refuses, it must stay unbound.
#[test]
fn a_first_datagram_binds_the_socket_if_it_can_be_sent() {
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    for (to, is_bound) in [
        (Some(to), true),
        (None, false),
        (Some(SocketAddrV4::new(*to.ip(), 0)), false),
        (Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 9)), false),
    ] {
        let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
        assert!(matches!(udp.send_with(b"x", to, 0, None), Outcome::Os(_)));
        assert_eq!(udp.address().port() != 0, is_bound, "{to:?}");
        assert_eq!(udp.with(|_, socket| socket.starts_locally), is_bound, "{to:?}");
    }
}

#[test]
fn only_a_socket_that_begins_with_this_host_may_have_peers_there() {
    for (to, is_local) in [
        (Ipv4Addr::LOCALHOST, true),
        (Ipv4Addr::new(127, 3, 2, 1), true),
        (Ipv4Addr::new(192, 0, 2, 1), false),
    ] {
        let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
        note_start(&udp.stack, udp.id, SocketAddrV4::new(to, 9));
        assert_eq!(udp.with(|_, socket| socket.starts_locally), is_local, "{to}");
        // Once it had some it may have them still.
        note_start(&udp.stack, udp.id, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9));
        note_start(&udp.stack, udp.id, SocketAddrV4::new(to, 9));
        assert!(udp.with(|_, socket| socket.starts_locally));
    }
}

/// The traffic class and the hop limit of a call decide whether the route that is known may be used.
#[test]
fn a_call_is_the_kernels_where_it_asks_for_another_way_than_the_sockets() {
    let udp = Udp::new();
    let (unicast, group) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(239, 1, 1, 1));
    let none = Ancillary::default();
    let cases = [
        (unicast, none, None),
        (group, none, None),
        (unicast, says(Some(0x20), None), Some(WhyOs::ControlMessage)),
        // Routes do not depend on the two bits of ECN.
        (unicast, says(Some(0x13), None), None),
        (unicast, says(None, Some(1)), None),
        (group, says(None, Some(1)), None),
        (STAND_IN, says(Some(0x20), None), None),
    ];
    let part = |to, ancillary: &Ancillary| {
        udp.with(|_, socket| kernels_part(&udp.stack, socket, ancillary, SocketAddrV4::new(to, 9)))
    };
    udp.with(|_, socket| socket.options.tos = 0x10);
    for (to, ancillary, expected) in cases {
        assert_eq!(part(to, &ancillary), expected, "{to} {ancillary:?}");
    }
    udp.with(|_, socket| socket.options.multicast.hops = 0);
    assert_eq!(part(group, &none), Some(WhyOs::Arguments), "it stays on this host");
    assert_eq!(part(group, &says(None, Some(1))), None);
    assert_eq!(part(unicast, &none), None);
}

#[test]
fn a_rule_that_names_the_destination_leaves_the_datagram_to_the_kernel() {
    let stack = stack_with_plane(&[]);
    assert!(stack.config.rules.add("use os udp_sender 127.0.0.1:9"));
    let udp = Udp::named(stack);
    let to = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    assert!(matches!(udp.send(b"x", to(9)), Outcome::Os(WhyOs::Rule(_))));
    assert_eq!(udp.send(b"x", to(10)), Outcome::Os(WhyOs::LocalDestination));
}

/// The headers of a datagram, by the socket's options and the call's control messages.
#[test]
fn headers_are_the_calls_then_the_sockets_then_the_routes() {
    let udp = Udp::new();
    let (unicast, group) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(239, 1, 1, 1));
    let none = Ancillary::default();
    let headers = |to, hop_limit, class, ancillary| {
        let (hop, source) = (NextHop::nowhere(), Ipv4Addr::LOCALHOST);
        let way = Way { hop, source, hop_limit, class, after_kernel: 0, ancillary };
        udp.with(|_, socket| {
            let egress = way.egress(socket, SocketAddrV4::new(to, 9), &[], 0);
            (egress.ttl, egress.tos, egress.checksum, egress.loop_back)
        })
    };
    assert_eq!(headers(unicast, None, None, none), (64, 0, true, false));
    assert_eq!(headers(unicast, Some(30), None, none), (30, 0, true, false));
    assert_eq!(headers(group, Some(30), None, none), (1, 0, true, true), "IP_MULTICAST_TTL");
    udp.with(|_, socket| {
        (socket.options.ttl, socket.options.tos) = (Some(20), 0x10);
        (socket.options.checksum, socket.options.multicast.is_looped) = (false, false);
    });
    assert_eq!(headers(unicast, Some(30), None, none), (20, 0x10, false, false));
    assert_eq!(headers(group, Some(30), None, none), (1, 0x10, false, false));
    // A packet of IPv6 has the socket's other options, and a checksum in any case.
    assert_eq!(headers(unicast, Some(30), Some(0x40), none), (30, 0x40, true, false));
    let call = says(Some(0x12), Some(5));
    assert_eq!(headers(unicast, Some(30), Some(0x40), call), (5, 0x12, true, false));
    assert_eq!(headers(group, None, None, call), (5, 0x12, false, false));
}

#[test]
fn datagrams_of_a_link_count_and_arrive_in_order() {
    let linked = Linked::new();
    for payload in [&b"one"[..], b"", b"three"] {
        linked.send(payload);
    }
    for payload in [&b"one"[..], b"", b"three"] {
        let (outcome, got) = linked.server.receive(100, 0);
        assert!(matches!(outcome, Outcome::Ours(Received::Datagram { .. })), "{outcome:?}");
        assert_eq!(got, payload);
    }
    let counters = linked.client.with(|endpoint, _| endpoint.counters);
    assert_eq!((counters.tx_packets, counters.tx_bytes), (3, 8));
}

/// The receiver takes the kernel's before the next one of the link, which says how many there were.
#[test]
fn what_the_kernel_has_sent_is_told_to_the_receiver_once() {
    let linked = Linked::new();
    linked.send(b"by the link");
    let after_kernel = || {
        let server = &linked.server;
        server.stack.shard.lock().unwrap().catch_up();
        let told = server.with(|endpoint, _| endpoint.front().map(|front| front.after_kernel));
        server.with(|_, socket| socket.order.announce(Some(Origin::Queue)));
        server.receive(100, 0);
        told
    };
    assert_eq!(after_kernel(), Some(u16::MAX), "what the kernel has of earlier ones is not known");
    linked.send(b"by the link");
    assert_eq!(after_kernel(), Some(0));
    for _ in 0..2 {
        after_os(&linked.client.stack, linked.client.id, Ok(9));
    }
    linked.send(b"by the link");
    assert_eq!(after_kernel(), Some(2));
    linked.send(b"by the link");
    assert_eq!(after_kernel(), Some(0));
}

/// A train may be received from the kernel as one message, or as many.
#[test]
fn a_train_by_the_kernel_is_any_number_of_datagrams() {
    let linked = Linked::new();
    linked.send(b"by the link");
    let by_kernel = || linked.client.with(|_, it| it.route.as_ref().map(|route| route.by_kernel));
    assert_eq!(by_kernel(), Some(0));
    after_os(&linked.client.stack, linked.client.id, Ok(9));
    assert_eq!(by_kernel(), Some(1));
    linked.client.with(|_, socket| socket.options.segment = 1200);
    after_os(&linked.client.stack, linked.client.id, Ok(9000));
    assert_eq!(by_kernel(), Some(u16::MAX));
    linked.client.with(|_, socket| socket.options.segment = 0);
    linked.send(b"by the link");
    // A control message that is not understood may be UDP_SEGMENT.
    let passed = linked.client.send_with(b"x", Some(linked.to()), 0, Some(&[]));
    assert_eq!(passed, Outcome::Os(WhyOs::ControlMessage));
    assert_eq!(by_kernel(), Some(u16::MAX));
}

#[test]
fn a_failed_datagram_is_an_error_or_lost() {
    let udp = Udp::named(stack_with_plane(&[("VMA_TX_NONBLOCKED_EAGAINS", "1")]));
    let silent = Udp::named(stack_with_plane(&[]));
    let fail = |udp: &Udp, error| {
        let state = udp.stack.shard.lock().unwrap();
        failed(&udp.stack, state, udp.id, (error, 10), RingId::nowhere())
    };
    let lost = Outcome::Ours((10, RingId::nowhere()));
    assert_eq!(fail(&udp, SendError::TooBig), Outcome::Errno(libc::EMSGSIZE));
    assert_eq!(fail(&udp, SendError::Fault), Outcome::Errno(libc::EFAULT));
    assert_eq!(fail(&udp, SendError::NoFrame), Outcome::Errno(libc::EAGAIN));
    assert_eq!(fail(&udp, SendError::ReceiverFull), lost);
    assert_eq!(fail(&udp, SendError::NoRing), Outcome::Os(WhyOs::RingRefused));
    assert_eq!(fail(&silent, SendError::NoFrame), lost, "as the kernel drops it");
    let counts = |udp: &Udp| {
        udp.with(|endpoint, _| {
            let it = endpoint.counters;
            (it.tx_errors, it.tx_eagain, it.tx_dropped)
        })
    };
    assert_eq!((counts(&udp), counts(&silent)), ((2, 1, 1), (0, 0, 1)));
}

#[test]
fn of_a_train_that_was_cut_off_both_parts_are_counted() {
    let udp = Udp::named(stack_with_plane(&[]));
    let state = udp.stack.shard.lock().unwrap();
    let told = cut_off(&udp.stack, state, udp.id, (2500, 2000, 1000), RingId::nowhere());
    assert_eq!(told, Outcome::Ours((2500, RingId::nowhere())));
    let counters = udp.with(|endpoint, _| endpoint.counters);
    let counted = (counters.tx_packets, counters.tx_bytes, counters.tx_dropped);
    assert_eq!(counted, (2, 2000, 1));
}

/// The link is shared: a socket that has not filled it finds room in the kernel.
#[test]
fn a_full_link_is_left_for_the_kernel_by_those_who_have_not_filled_it() {
    let linked = Linked::new();
    linked.send(b"first");
    let route = linked.client.with(|_, socket| socket.route.take());
    let progress = |sent| Some(Progress { sent, read: 0 });
    assert!(has_room_in_kernel(progress(1), &route));
    assert!(!has_room_in_kernel(None, &route), "it is no link");
    assert!(!has_room_in_kernel(progress(1), &None));
    let mut busy = route;
    let outstanding = &mut busy.as_mut().unwrap().outstanding;
    for sent in 2..=u64::from(FEW_OUTSTANDING) {
        outstanding.note(Progress { sent, read: 0 });
    }
    assert!(!has_room_in_kernel(progress(40), &busy));
}

/// VMA_SND_FLAGS_DUMMY.
#[test]
fn a_rehearsed_datagram_is_refused_as_a_sent_one_would_be() {
    let linked = Linked::new();
    let try_it = |udp: &Udp, payload: &[u8], to, named| {
        let payload = &[IoSlice::new(payload)];
        let request = Request { payload, to, named, flags: 0, control: None, more_follow: false };
        rehearse(&udp.stack, udp.id, &request)
    };
    let (client, to, four) = (&linked.client, Some(linked.to()), Family::Ipv4);
    assert_eq!(try_it(client, b"four", to, four), Ok(4));
    assert_eq!(try_it(client, &[0; 65_508], to, four), Err(libc::EMSGSIZE));
    assert_eq!(try_it(client, b"four", None, four), Err(libc::EDESTADDRREQ));
    assert_eq!(try_it(client, b"four", to, Family::Ipv6), Err(libc::EAFNOSUPPORT));
    linked.client.with(|_, socket| socket.takes = Takes::Ipv6);
    assert_eq!(try_it(client, b"four", to, four), Err(libc::EINVAL));
    linked.client.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    assert_eq!(try_it(client, b"four", to, four), Err(libc::EINVAL));
    let counters = linked.client.with(|endpoint, _| endpoint.counters);
    assert_eq!((counters.tx_dummy, counters.tx_packets), (1, 0), "nothing has left");
    linked.server.stack.shard.lock().unwrap().catch_up();
    assert!(!linked.server.with(|endpoint, _| endpoint.is_readable()));
}
