use super::*;
use crate::socket::fixture::{Linked, Udp, stack_with_plane};

fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(ip.into(), port)
}

fn known(via: Via, port: Option<u16>) -> CachedRoute {
    CachedRoute {
        by_kernel: 0,
        destination: [192, 0, 2, 1].into(),
        source: None,
        answers: 5,
        port,
        epoch: 7,
        via,
        outstanding: Outstanding::default(),
        envelope: None,
    }
}

fn by_ring() -> Via {
    let source = Ipv4Addr::LOCALHOST;
    Via::Ring { hop: NextHop::nowhere(), source, hop_limit: None, class: None }
}

#[test]
fn a_route_holds_for_its_destination_and_source_until_something_changes() {
    let udp = Udp::new();
    let there = at([192, 0, 2, 1], 9);
    let holds = |route: CachedRoute, to, source, now| {
        udp.with(|_, socket| {
            socket.route = Some(Box::new(route));
            cached(socket, to, source, now).is_some()
        })
    };
    let own = Some(Ipv4Addr::new(192, 0, 2, 9));
    for (to, source, now, expected) in [
        (there, None, (7, 5), true),
        (at([192, 0, 2, 1], 10), None, (7, 5), true),
        (at([192, 0, 2, 2], 9), None, (7, 5), false),
        (there, own, (7, 5), false),
        (there, None, (8, 5), false),
        // An answer of another process may be for what goes by the kernel only.
        (there, None, (7, 6), true),
    ] {
        assert_eq!(holds(known(by_ring(), None), to, source, now), expected, "{to} {now:?}");
    }
    let by_kernel = || known(Via::Os(WhyOs::LocalDestination), Some(9));
    assert!(holds(by_kernel(), there, None, (7, 5)));
    assert!(!holds(by_kernel(), there, None, (7, 6)), "it may be a link by now");
    assert!(!holds(by_kernel(), at([192, 0, 2, 1], 10), None, (7, 5)), "a port is a process");
}

/// RFC 1191: the path's MTU is the kernel's to know, and the next datagram asks for it.
#[test]
fn a_packet_too_big_voids_the_route_of_its_sender() {
    let (udp, own) = (Udp::new(), at([10, 0, 0, 1], 7000));
    let key = FlowKey {
        local: *own.ip(),
        local_port: own.port(),
        remote: [192, 0, 2, 1].into(),
        remote_port: 9,
    };
    let is_kept = |local, key: &FlowKey| {
        udp.with(|_, socket| {
            socket.local = Some(local);
            socket.route = Some(Box::new(known(by_ring(), None)));
        });
        on_packet_too_big(&udp.stack, key);
        udp.with(|_, socket| socket.route.is_some())
    };
    assert!(!is_kept(own, &key));
    assert!(is_kept(at([10, 0, 0, 1], 7001), &key));
    assert!(is_kept(own, &FlowKey { remote: [192, 0, 2, 2].into(), ..key }));
}

#[test]
fn a_family_that_the_socket_does_not_serve_is_the_kernels() {
    let six = ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
    let other = ipv6_stand_ins::of("2001:db8::2".parse().unwrap()).unwrap();
    let four = Ipv4Addr::new(192, 0, 2, 1);
    let udp = Udp::of(stack_with_plane(&[]), Family::Ipv6);
    let is_ipv6s = |to, takes, by_kernel, local: Option<Ipv4Addr>| {
        udp.with(|_, socket| {
            (socket.takes, socket.options.sends_ipv6_by_kernel) = (takes, by_kernel);
            socket.local = local.map(|local| SocketAddrV4::new(local, 7000));
        });
        let found = find_route(&udp.stack, udp.id, SocketAddrV4::new(to, 9), None);
        matches!(found, Some(Via::Os(WhyOs::Ipv6)))
    };
    assert!(is_ipv6s(six, Takes::Ipv4, false, None));
    assert!(is_ipv6s(four, Takes::Ipv6, false, None));
    assert!(is_ipv6s(six, Takes::Both, true, None), "an option that only the kernel knows");
    assert!(!is_ipv6s(four, Takes::Both, true, None));
    assert!(is_ipv6s(six, Takes::Both, false, Some(four)), "bound to the other family");
    assert!(is_ipv6s(four, Takes::Both, false, Some(other)));
    assert!(!is_ipv6s(six, Takes::Both, false, Some(other)));
    assert!(!is_ipv6s(four, Takes::Both, false, Some(Ipv4Addr::UNSPECIFIED)));
}

#[test]
fn the_loopback_address_of_ipv6_is_served_to_sockets_that_need_nothing_of_the_kernel() {
    let udp = Udp::of(stack_with_plane(&[]), Family::Ipv6);
    let off = Udp::of(stack_with_plane(&[("VMA_LOCAL", "0")]), Family::Ipv6);
    let own = SocketAddrV4::new(STAND_IN, 7000);
    let is_ipv6s = |udp: &Udp| {
        let to = libvma_dev::ipv6_loopback::end(9);
        matches!(find_route(&udp.stack, udp.id, to, None), Some(Via::Os(WhyOs::Ipv6)))
    };
    for one in [&udp, &off] {
        one.with(|_, socket| socket.local = Some(own));
    }
    assert!(!is_ipv6s(&udp) && is_ipv6s(&off));
    udp.with(|_, socket| socket.options.sends_ipv6_by_kernel = true);
    assert!(is_ipv6s(&udp));
    udp.with(|_, socket| {
        socket.options.sends_ipv6_by_kernel = false;
        socket.options.bound_device = NonZeroU32::new(1);
    });
    assert!(is_ipv6s(&udp));
    udp.with(|_, socket| {
        socket.options.bound_device = None;
        socket.local = Some(at([127, 0, 0, 1], 7000));
    });
    assert!(is_ipv6s(&udp), "it is bound to an address of IPv4");
}

#[test]
fn only_an_unconnected_server_has_clients_that_are_strangers() {
    let strangers = |named, peer| {
        let udp = Udp::new();
        udp.with(|_, socket| (socket.named, socket.peer) = (named, peer));
        (1..100).filter(|port| is_stranger(&udp.stack, udp.id, *port)).count()
    };
    assert!(strangers(true, None) > 0);
    assert_eq!(strangers(true, Some(at([127, 0, 0, 1], 1))), 0);
    assert_eq!(strangers(false, None), 0);
}

/// ip(7), IP_PKTINFO: the kernel refuses a source that is no address of the host.
#[test]
fn a_source_that_is_not_the_hosts_is_the_kernels_to_refuse() {
    let linked = Linked::new();
    let (stack, id) = (&linked.client.stack, linked.client.id);
    let from = |source| find_route(stack, id, linked.to(), source);
    let foreign = Some(Ipv4Addr::new(192, 0, 2, 77));
    assert!(matches!(from(foreign), Some(Via::Os(WhyOs::ControlMessage))));
    assert!(matches!(from(Some(Ipv4Addr::LOCALHOST)), Some(Via::Ring { .. })));
    let (local, foreign) = (Ipv4Addr::new(127, 9, 9, 9), Ipv4Addr::new(192, 0, 2, 77));
    assert!(is_own(stack, local) && !is_own(stack, foreign));
}

#[test]
fn what_is_on_this_host_goes_by_a_link_or_by_the_kernel() {
    let linked = Linked::new();
    let (stack, id) = (&linked.client.stack, linked.client.id);
    let way = |to| find_route(stack, id, to, None);
    assert!(matches!(way(linked.to()), Some(Via::Ring { .. })));
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    assert!(matches!(way(at([127, 0, 0, 1], port)), Some(Via::Os(WhyOs::LocalDestination))));
    assert!(matches!(way(at([255; 4], 9)), Some(Via::Os(WhyOs::Broadcast))));
    // Links are not bound to interfaces.
    linked.client.with(|_, socket| socket.options.bound_device = NonZeroU32::new(1));
    assert!(matches!(way(linked.to()), Some(Via::Os(WhyOs::LocalDestination))));
}

#[test]
fn without_a_control_plane_no_route_is_known() {
    let udp = Udp::new();
    let to = at([192, 0, 2, 1], 9);
    let way = renew(&udp.stack, udp.id, to, None, (1, 0));
    assert!(matches!(way, Some(Via::Os(WhyOs::NoControlPlane))));
    let kept = udp.with(|_, socket| cached(socket, to, None, (1, 0)));
    assert!(matches!(kept, Some(Via::Os(WhyOs::NoControlPlane))), "the answer is kept");
}

#[test]
fn a_link_is_for_one_port_and_may_follow_datagrams_of_the_kernels() {
    let linked = Linked::new();
    linked.client.with(|_, socket| socket.route = None);
    let epoch = {
        let state = linked.client.stack.shard.lock().unwrap();
        (state.epoch(), state.answers())
    };
    renew(&linked.client.stack, linked.client.id, linked.to(), None, epoch);
    linked.client.with(|_, socket| {
        let route = socket.route.as_ref().unwrap();
        assert_eq!((route.port, route.by_kernel), (Some(linked.to().port()), u16::MAX));
    });
}
