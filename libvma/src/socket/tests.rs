use std::os::fd::AsRawFd;

use super::fixture::{ANY_PORT, Linked, Tcp, Udp, stack_with, with_socket};
use super::*;

#[test]
fn a_socket_ends_with_its_last_descriptor() {
    let udp = Udp::new();
    let number = udp.raw();
    let copy = rustix::io::dup(&udp.shadow).unwrap();
    let other = copy.as_raw_fd();
    assert!(duplicate(&udp.stack, udp.id, other));
    assert_eq!(descriptors(&udp.stack, udp.id), [number, other]);
    assert!(!close(&udp.stack, udp.id, number));
    assert_eq!(udp.with(|endpoint, socket| (endpoint.shadow, socket.shadow())), (other, other));
    assert!(!close(&udp.stack, udp.id, i32::MAX), "it is another one's");
    assert!(close(&udp.stack, udp.id, other));
    assert!(descriptors(&udp.stack, udp.id).is_empty());
    assert!(close(&udp.stack, udp.id, other), "it is gone already");
    assert!(!duplicate(&udp.stack, udp.id, other));
}

#[test]
fn what_a_closed_socket_has_counted_is_kept_in_the_sum() {
    let linked = Linked::new();
    linked.send(b"seven77");
    close(&linked.client.stack, linked.client.id, linked.client.raw());
    let ended = *linked.client.stack.ended.lock().unwrap();
    assert_eq!((ended.tx_packets, ended.tx_bytes), (1, 7));
}

/// The other processes must ask the kernel at once whose the port is now.
#[test]
fn a_closed_socket_is_not_found_by_others_any_more() {
    let linked = Linked::new();
    linked.send(b"first");
    close(&linked.server.stack, linked.server.id, linked.server.raw());
    let sent = linked.client.send(b"late", linked.to());
    assert_eq!(sent, Outcome::Os(WhyOs::LocalDestination));
}

/// Sockets for one question each are the kernel's when many have come one after the other.
#[test]
fn sockets_that_end_after_few_datagrams_are_remembered() {
    let stack = stack_with(&[]);
    let key = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 53);
    let end = |packets: u64| {
        let mut socket = Socket::new(-1, true, &stack.config);
        socket.note_first_destination(key);
        socket.state = State::Offloaded;
        let id = stack.shard.lock().unwrap().attach(socket, 0);
        with_socket(&stack, id, |endpoint, _| endpoint.counters.tx_packets = packets);
        close(&stack, id, -1);
    };
    // An earlier time than all of theirs: so none is too old however long the rest takes.
    let now = clock::now().as_nanos();
    let expects = || {
        // The first answer may be a sample.
        stack.short_datagrams.expects(key, now);
        stack.short_datagrams.expects(key, now)
    };
    // One less than are enough, at a time to come, so that no pause is seen before the next one.
    let soon = now + 1_000_000_000;
    (1..32).for_each(|_| stack.short_datagrams.note(key, true, soon));
    assert!(!expects());
    end(1);
    assert!(expects());
    end(100);
    assert!(!expects());
}

#[test]
fn a_new_socket_has_the_kernels_room_and_loops_as_configured() {
    let made = |looped| {
        let udp = Udp::of(stack_with(&[("VMA_TX_MC_LOOPBACK", looped)]), Family::Ipv6);
        let option = |level, name| shadow::int_option(udp.raw(), level, name);
        let kernels = (
            option(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
            option(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
        );
        let limit = option(libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap() as usize;
        assert_eq!(udp.with(|endpoint, _| (endpoint.limit, endpoint.shadow)), (limit, udp.raw()));
        (kernels, udp.with(|_, socket| socket.loops_multicast()))
    };
    assert_eq!(made("1"), ((Some(1), Some(1)), true));
    assert_eq!(made("0"), ((Some(0), Some(0)), false));
}

/// A call that waits on the socket has to find it the kernel's, and not gone.
#[test]
fn a_socket_retires_when_it_is_the_kernels_and_nothing_is_left_of_it() {
    let linked = Linked::new();
    let (stack, id) = (&linked.server.stack, linked.server.id);
    let stands = || (is_kernels(stack, id), is_retired(stack, id));
    assert_eq!(stands(), (false, false));
    linked.send(b"left");
    stack.shard.lock().unwrap().catch_up();
    linked.server.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    assert_eq!(stands(), (true, false));
    linked.server.receive(9, 0);
    assert_eq!(stands(), (true, true));
    close(stack, id, linked.server.raw());
    assert_eq!(stands(), (true, true), "nothing is to be looked at here");
}

#[test]
fn only_a_route_to_another_process_counts_what_the_kernel_sends() {
    let count = |port| {
        let udp = Udp::new();
        udp.with(|_, socket| {
            socket.route = Some(Box::new(CachedRoute {
                by_kernel: u16::MAX - 1,
                destination: Ipv4Addr::LOCALHOST,
                source: None,
                answers: 0,
                port,
                epoch: 0,
                via: Via::Os(WhyOs::LocalDestination),
                outstanding: Outstanding::default(),
                envelope: None,
            }));
            socket.note_sent_by_kernel();
            socket.note_sent_by_kernel();
            socket.route.as_ref().unwrap().by_kernel
        })
    };
    assert_eq!(count(Some(9)), u16::MAX, "any number");
    assert_eq!(count(None), u16::MAX - 1);
}

#[test]
fn datagrams_of_ipv6_may_come_to_an_unconnected_socket_of_that_family() {
    for (family, peer, expected) in [
        (Family::Ipv4, None, false),
        (Family::Ipv6, None, true),
        (Family::Ipv6, Some(ANY_PORT), false),
    ] {
        let udp = Udp::of(stack_with(&[]), family);
        assert_eq!(
            udp.with(|_, socket| {
                socket.peer = peer;
                socket.takes_ipv6()
            }),
            expected
        );
    }
}

/// Senders name the member of a group (SO_REUSEPORT) that the kernel has chosen.
#[test]
fn a_socket_is_a_member_while_it_shares_its_port_and_is_posted() {
    let linked = Linked::new();
    let number = |reuse_port| {
        linked.server.with(|_, socket| {
            socket.options.reuse_port = reuse_port;
            socket.member()
        })
    };
    assert_eq!(number(false), 0);
    assert_ne!(number(true), 0);
    linked.server.with(|_, socket| socket.posted = None);
    assert_eq!(number(true), 0);
}

#[test]
fn the_limit_that_statistics_tell_is_that_of_the_kind_of_socket() {
    let (udp, tcp) = (Udp::new(), Tcp::new());
    udp.with(|endpoint, _| endpoint.limit = 4711);
    tcp.with_stream(|stream| stream.settings.receive_buffer.most = 4712);
    let limit = |stack: &Stack, id| {
        let (_, limit) = counters(&mut stack.shard.lock().unwrap(), id).unwrap();
        limit
    };
    assert_eq!((limit(&udp.stack, udp.id), limit(&tcp.stack, tcp.id)), (4711, 4712));
    assert!(is_stream(&tcp.stack, tcp.id) && !is_stream(&udp.stack, udp.id));
}
