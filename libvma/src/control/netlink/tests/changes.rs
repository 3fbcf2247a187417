//! Following: what the monitor tells, and when it could not.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, SendFlags, SocketType, sockopt};

use super::*;

// covers: LIM-25
#[test]
fn monitor_follows_links() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        assert_eq!(changes(&mut monitor), []);
        let now = |monitor: &mut Monitor, wanted: fn(&Link) -> bool| {
            until(monitor, |change| matches!(change, Change::Link(link) if wanted(link)));
        };
        ip("link set v0 mtu 1300\n");
        now(&mut monitor, |link| link.name == "v0" && link.mtu == 1300 && link.carrier);
        ip("link set v1 down\n");
        now(&mut monitor, |link| link.name == "v0" && link.up && !link.carrier);
        ip("link set v1 name w1\nlink set w1 up\n");
        now(&mut monitor, |link| link.name == "w1" && link.carrier);
        let gone = index("w1");
        ip("link del v0\n");
        until(&mut monitor, |change| *change == Change::LinkGone(gone));
        ip("link add v0 type veth peer name v1\n");
        now(&mut monitor, |link| link.name == "v0" && link.kind.as_deref() == Some("veth"));
    });
}

// covers: LIM-25
#[test]
fn leaving_a_bridge_is_not_going_away() {
    in_namespace(|| {
        pair();
        ip("link add b0 type bridge\nlink set v1 master b0\n");
        let mut monitor = Monitor::open().unwrap();
        ip("link set v1 nomaster\n");
        let seen = changes(&mut monitor);
        assert!(seen.iter().any(|change| {
            matches!(change, Change::Link(link) if link.name == "v1" && link.master.is_none())
        }));
        assert!(!seen.iter().any(|change| matches!(change, Change::LinkGone(_))), "{seen:?}");
    });
}

// covers: LIM-25
#[test]
fn monitor_follows_addresses() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        let second = Address {
            ifindex: index("v0"),
            addr: addr("10.5.0.1"),
            prefix_len: 16,
            broadcast: None,
        };
        ip("addr add 10.5.0.1/16 dev v0\n");
        let seen = changes(&mut monitor);
        assert_eq!(seen, [Change::AddressAdded(second), Change::RouteChanged]);
        ip("addr del 10.5.0.1/16 dev v0\n");
        let seen = changes(&mut monitor);
        assert_eq!(seen, [Change::AddressGone(second), Change::RouteChanged]);
        assert_eq!(changes(&mut monitor), []);
    });
}

#[test]
fn routes_change_with_the_loopback_address_of_ipv6() {
    in_namespace(|| {
        pair();
        ip("link set lo up\n");
        let (mut monitor, mut routes) = (Monitor::open().unwrap(), Monitor::open_routes().unwrap());
        for line in ["addr del ::1/128 dev lo", "addr add ::1/128 dev lo"] {
            ip(&format!("{line}\n"));
            assert_eq!(changes(&mut monitor), [Change::RouteChanged], "{line}");
            assert_eq!(changes(&mut routes), [Change::RouteChanged], "{line}");
        }
    });
}

// covers: LIM-25
#[test]
fn an_address_of_ipv6_counts_when_no_other_host_has_it() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        let own = Address {
            ifindex: index("v0"),
            addr: ipv6_stand_ins::of("fd00:5::1".parse().unwrap()).unwrap(),
            prefix_len: 64,
            broadcast: None,
        };
        ip("addr add fd00:5::1/64 dev v0\n");
        assert!(!changes(&mut monitor).contains(&Change::AddressAdded(own)), "it is tentative");
        until(&mut monitor, |change| *change == Change::AddressAdded(own));
        let mut netlink = Netlink::open().unwrap();
        assert!(netlink.addresses().unwrap().contains(&own));
        ip("addr del fd00:5::1/64 dev v0\n");
        until(&mut monitor, |change| *change == Change::AddressGone(own));
        assert!(!netlink.addresses().unwrap().contains(&own));
        // It means nothing without its interface.
        ip("addr add fe80::5/64 dev v0 nodad\n");
        let seen = changes(&mut monitor);
        assert!(!seen.iter().any(|change| matches!(change, Change::AddressAdded(_))), "{seen:?}");
    });
}

// covers: LIM-25
#[test]
fn monitor_tells_that_routes_changed() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        for line in [
            "route add 10.7.0.0/16 via 10.0.0.2",
            "route del 10.7.0.0/16",
            "rule add from 10.0.0.1 table 100",
            "rule del from 10.0.0.1 table 100",
            "nexthop add id 1 via 10.0.0.2 dev v0",
        ] {
            ip(&format!("{line}\n"));
            assert_eq!(changes(&mut monitor), [Change::RouteChanged], "{line}");
        }
        // The kernel announces no route here, though it drops all of v0's.
        ip("link set v0 down\n");
        assert_eq!(changes(&mut monitor).last(), Some(&Change::RouteChanged));
        assert_eq!(route_to("10.0.0.7").kind, RouteKind::Refused(Errno::NETUNREACH));
    });
}

// covers: LIM-25
#[test]
fn lost_changes_end_in_a_resync_and_then_following_goes_on() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        sockopt::set_socket_recv_buffer_size(monitor.as_fd(), 4096).unwrap();
        let many: String = (0..200).map(|n| format!("addr add 10.3.0.{n}/32 dev v0\n")).collect();
        ip(&many);
        let seen = changes(&mut monitor);
        let added = seen.iter().filter(|change| matches!(change, Change::AddressAdded(_))).count();
        assert!(added > 0 && added < 200, "what came before the loss is told");
        assert_eq!(seen.iter().position(|change| *change == Change::Resync), Some(seen.len() - 1));
        ip("addr del 10.3.0.1/32 dev v0\n");
        let gone = changes(&mut monitor);
        assert!(matches!(gone[..], [Change::AddressGone(_), Change::RouteChanged]), "{gone:?}");
    });
}

#[test]
fn nobody_but_the_kernel_is_believed() {
    in_namespace(|| {
        pair();
        let mut monitor = Monitor::open().unwrap();
        let own = SocketAddrNetlink::try_from(net::getsockname(monitor.as_fd()).unwrap()).unwrap();
        let (kind, socket) = (SocketType::RAW, net::AddressFamily::NETLINK);
        let liar = net::socket(socket, kind, None).unwrap();
        // RTM_DELLINK of loopback: a header and a `struct ifinfomsg`.
        let mut lie = vec![0; 32];
        lie[0] = 32;
        lie[4] = 17;
        lie[20] = 1;
        let to = SocketAddrNetlink::new(own.pid(), 0);
        net::sendto(&liar, &lie, SendFlags::empty(), &to).unwrap();
        assert!(readable(monitor.as_fd()));
        assert_eq!(changes(&mut monitor), []);
    });
}
