//! Route lookups: what a socket would be told.

use super::*;

#[test]
fn route_has_gateway_source_and_metrics() {
    in_namespace(|| {
        pair();
        ip("route add 10.7.0.0/16 via 10.0.0.2\n\
             route add 10.8.0.0/16 via 10.0.0.3 mtu 1300 hoplimit 7\n");
        let v0 = index("v0");
        let direct = Route {
            kind: RouteKind::Unicast,
            oif: v0,
            gateway: None,
            prefsrc: Some(addr("10.0.0.1")),
            mtu: None,
            hop_limit: None,
        };
        assert_eq!(route_to("10.0.0.2"), direct);
        assert_eq!(route_to("10.7.1.1"), Route { gateway: Some(addr("10.0.0.2")), ..direct });
        let tuned = Route {
            gateway: Some(addr("10.0.0.3")),
            mtu: Some(1300),
            hop_limit: Some(7),
            ..direct
        };
        assert_eq!(route_to("10.8.1.1"), tuned);
        // With a source of the socket's own, and everything else a socket can bring.
        let full = RouteQuery {
            src: Some(addr("10.0.0.1")),
            oif: Some(v0),
            tos: 0xff,
            mark: 0xffff_ffff,
            protocol: Some(Protocol::Tcp),
            sport: Some(0),
            dport: Some(65535),
            ..RouteQuery::to(addr("10.8.1.1"))
        };
        assert_eq!(route(full), tuned);
    });
}

#[test]
fn route_follows_policy_rules() {
    in_namespace(|| {
        pair();
        ip("addr add 10.0.0.50/24 dev v0\n\
            route add default via 10.0.0.2\n\
            route add default via 10.0.0.100 table 100\nrule add from 10.0.0.50 table 100\n\
            route add default via 10.0.0.101 table 101\nrule add fwmark 7 table 101\n\
            route add default via 10.0.0.102 table 102\nrule add ipproto udp dport 5000 table 102\n\
            route add default via 10.0.0.103 table 103\nrule add tos 0x10 table 103\n");
        let plain = RouteQuery::to(addr("8.8.8.8"));
        let gateway = |query| route(query).gateway.unwrap();
        assert_eq!(gateway(plain), addr("10.0.0.2"));
        assert_eq!(
            gateway(RouteQuery { src: Some(addr("10.0.0.50")), ..plain }),
            addr("10.0.0.100")
        );
        assert_eq!(gateway(RouteQuery { mark: 7, ..plain }), addr("10.0.0.101"));
        let udp = RouteQuery { protocol: Some(Protocol::Udp), dport: Some(5000), ..plain };
        assert_eq!(gateway(udp), addr("10.0.0.102"));
        assert_eq!(gateway(RouteQuery { protocol: Some(Protocol::Tcp), ..udp }), addr("10.0.0.2"));
        assert_eq!(gateway(RouteQuery { tos: 0x10, ..plain }), addr("10.0.0.103"));
        assert_eq!(
            gateway(RouteQuery { tos: 0x13, ..plain }),
            addr("10.0.0.103"),
            "ECN bits are no TOS"
        );
    });
}

#[test]
fn refused_route_carries_the_sockets_errno() {
    in_namespace(|| {
        assert_eq!(route_to("10.0.0.2").kind, RouteKind::Refused(Errno::NETUNREACH));
        pair();
        ip("route add unreachable 10.20.0.0/16\n\
             route add prohibit 10.21.0.0/16\n\
             route add blackhole 10.22.0.0/16\n");
        for (dst, errno) in [
            ("192.0.2.1", Errno::NETUNREACH),
            ("10.20.0.1", Errno::HOSTUNREACH),
            ("10.21.0.1", Errno::ACCESS),
            ("10.22.0.1", Errno::INVAL),
        ] {
            assert_eq!(route_to(dst), Route::refused(errno), "{dst}");
        }
        let query = RouteQuery::to(addr("10.0.0.2"));
        assert_eq!(
            route(RouteQuery { oif: Some(9999), ..query }).kind,
            RouteKind::Refused(Errno::NODEV)
        );
        // Which errno differs between kernels.
        let foreign = RouteQuery { src: Some(addr("10.0.0.77")), ..query };
        assert!(matches!(route(foreign).kind, RouteKind::Refused(_)));
    });
}

#[test]
fn route_kind_tells_local_broadcast_multicast() {
    in_namespace(|| {
        pair();
        let v0 = index("v0");
        for own in ["10.0.0.1", "127.0.0.1", "127.9.9.9"] {
            let local = route_to(own);
            assert_eq!((local.kind, local.oif), (RouteKind::Local, 1), "{own}");
        }
        let broadcast = route_to("10.0.0.255");
        assert_eq!((broadcast.kind, broadcast.oif), (RouteKind::Broadcast, v0));
        let everyone =
            route(RouteQuery { oif: Some(v0), ..RouteQuery::to(addr("255.255.255.255")) });
        assert_eq!(
            (everyone.kind, everyone.oif, everyone.prefsrc),
            (RouteKind::Broadcast, v0, Some(addr("10.0.0.1")))
        );
        let group = RouteQuery::to(addr("239.1.2.3"));
        assert_eq!(route(group).kind, RouteKind::Refused(Errno::NETUNREACH));
        let multicast = route(RouteQuery { oif: Some(v0), ..group });
        assert_eq!(
            (multicast.kind, multicast.oif, multicast.prefsrc),
            (RouteKind::Multicast, v0, Some(addr("10.0.0.1")))
        );
        let multicast = route(RouteQuery { src: Some(addr("10.0.0.1")), ..group });
        assert_eq!((multicast.kind, multicast.oif), (RouteKind::Multicast, v0));
    });
}

#[test]
fn route_we_cannot_follow_is_other() {
    in_namespace(|| {
        pair();
        ip("addr add fd00::1/64 dev v0\nroute add 10.30.0.0/16 via inet6 fd00::2 dev v0\n");
        assert_eq!(route_to("10.30.0.1").kind, RouteKind::Other);
    });
}

/// Two veth pairs, and a route to 10.7.0.0/16 over both.
fn two_paths() {
    pair();
    ip("link add w0 type veth peer name w1\nlink set w0 up\nlink set w1 up\n\
         addr add 10.1.0.1/24 dev w0\n\
         route add 10.7.0.0/16 nexthop via 10.0.0.2 dev v0 nexthop via 10.1.0.2 dev w0\n");
}

// covers: LIM-02
#[test]
fn multipath_uses_every_next_hop_and_keeps_a_flow_on_one() {
    in_namespace(|| {
        two_paths();
        // Hash the ports too, so that connections to one host spread.
        sysctl("fib_multipath_hash_policy", "1");
        let hops = [(index("v0"), addr("10.0.0.2")), (index("w0"), addr("10.1.0.2"))];
        let mut used = [0; 2];
        for dport in 1..=64 {
            let flow = RouteQuery {
                protocol: Some(Protocol::Tcp),
                sport: Some(40000),
                dport: Some(dport),
                ..RouteQuery::to(addr("10.7.0.9"))
            };
            let first = route(flow);
            assert_eq!(first, route(flow), "one flow, one path");
            let hop = (first.oif, first.gateway.unwrap());
            used[hops.iter().position(|known| *known == hop).unwrap()] += 1;
        }
        assert!(used[0] > 8 && used[1] > 8, "{used:?}");
    });
}

// covers: LIM-02 LIM-25
#[test]
fn multipath_loses_the_next_hop_whose_link_goes_down() {
    in_namespace(|| {
        two_paths();
        let mut monitor = Monitor::open().unwrap();
        ip("link set w0 down\n");
        assert!(changes(&mut monitor).contains(&Change::RouteChanged));
        let v0 = index("v0");
        assert!((1..=64).all(|host| route_to(&format!("10.7.0.{host}")).oif == v0));
    });
}

fn stand_in(address: &str) -> Ipv4Addr {
    ipv6_stand_ins::of_neighbour(address.parse().unwrap()).unwrap()
}

// covers: LIM-23
#[test]
fn a_route_of_ipv6_is_told_by_stand_ins() {
    in_namespace(|| {
        pair();
        ip("addr add fd00:6::1/64 dev v0 nodad\n\
            route add fd00:7::/32 via fe80::9 dev v0 mtu 1400\n\
            route add fd00:8::/32 via fd00:6::9\n\
            route add unreachable fd00:9::/32\n");
        let own = Some(stand_in("fd00:6::1"));
        let on_link = route(RouteQuery::to(stand_in("fd00:6::2")));
        let expected = (RouteKind::Unicast, index("v0"), own, None, None);
        let told = |route: Route| (route.kind, route.oif, route.prefsrc, route.gateway, route.mtu);
        assert_eq!(told(on_link), expected);
        let behind = route(RouteQuery::to(stand_in("fd00:7::2")));
        // 1400 bytes with the longer header.
        let expected =
            (RouteKind::Unicast, index("v0"), own, Some(stand_in("fe80::9")), Some(1380));
        assert_eq!(told(behind), expected);
        let query = RouteQuery { src: own, ..RouteQuery::to(stand_in("fd00:8::2")) };
        let expected = (RouteKind::Unicast, index("v0"), own, Some(stand_in("fd00:6::9")), None);
        assert_eq!(told(route(query)), expected);
        assert_eq!(route(RouteQuery::to(stand_in("fd00:6::1"))).kind, RouteKind::Local);
        let refused = route(RouteQuery::to(stand_in("fd00:9::1"))).kind;
        assert!(matches!(refused, RouteKind::Refused(_) | RouteKind::Other), "{refused:?}");
    });
}
