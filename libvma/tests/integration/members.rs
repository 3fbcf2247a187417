//! What other sockets of the host are owed that share a group or a port with an offloaded one.

use std::net::{SocketAddrV6, UdpSocket};
use std::time::Duration;

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Namespaces, Offload, PYTHON, Puppet, Side, at_once, wait_for};

/// The group's family.
#[derive(Clone, Copy)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    fn group(self) -> &'static str {
        match self {
            Family::Ipv4 => "239.1.1.1:5000",
            Family::Ipv6 => "[ff05::1:3]:5000",
        }
    }

    /// Opens a member.
    fn member(self) -> &'static str {
        match self {
            Family::Ipv4 => "s = member()",
            Family::Ipv6 => "s = member6()",
        }
    }

    /// The beginning of the call that opens one at a place.
    fn opens(self) -> &'static str {
        match self {
            Family::Ipv4 => "member(",
            Family::Ipv6 => "member6(",
        }
    }

    /// A socket of the other host.
    fn peer(self, net: &Namespaces) -> UdpSocket {
        match self {
            Family::Ipv4 => net.socket(Side::B),
            Family::Ipv6 => {
                let at = SocketAddrV6::new(of(Side::B), 0, 0, 0);
                net.within(Side::B, || UdpSocket::bind(at)).unwrap()
            }
        }
    }

    fn watch(self, net: &Namespaces) -> Offload<'_> {
        match self {
            Family::Ipv4 => net.watch(Side::A),
            Family::Ipv6 => net.watch_ipv6(Side::A),
        }
    }
}

/// Opens sockets that may share their port.
const SHARING: &str = "
def shared(at, option=SO_REUSEADDR, peer=None):
    s = socket(AF_INET, SOCK_DGRAM)
    s.setsockopt(SOL_SOCKET, option, 1)
    s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)
    s.settimeout(15)
    s.bind(at)
    if peer: s.connect(peer)
    return s
A, B = '10.99.0.1', '10.99.0.2'
def member(at='', joins=A):
    s = shared((at, 5000))
    if joins: s.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, inet_aton('239.1.1.1') + inet_aton(joins))
    return s
def member6(at='', joins=A):
    s = socket(AF_INET6, SOCK_DGRAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)
    s.settimeout(15)
    s.bind((at or '::', 5000))
    interface = [index for index, name in if_nameindex() if name != 'lo'][0]
    request = inet_pton(AF_INET6, 'ff05::1:3') + interface.to_bytes(4, sys.byteorder)
    if joins: s.setsockopt(IPPROTO_IPV6, IPV6_JOIN_GROUP, request)
    return s
def until(s, last):
    got = []
    while not got or got[-1] != last: got.append(int(s.recv(100)))
    return got
";

fn network() -> Namespaces {
    let net = Namespaces::new();
    with_ipv6(&net);
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("route add 224.0.0.0/4 dev {}", side.device()));
    }
    net
}

fn puppet(net: &Namespaces, with_library: bool) -> Puppet {
    let program = net.program(Side::A, PYTHON);
    let mut program = Puppet::start(if with_library { program.with_library() } else { program });
    program.run(SHARING);
    program
}

fn send(peer: &UdpSocket, to: &str, number: i32) {
    peer.send_to(number.to_string().as_bytes(), to).unwrap();
}

/// Sends until a member has got something: whatever had to change has changed. Then both are empty.
#[track_caller]
fn reaches(peer: &UdpSocket, group: &str, member: &mut Puppet, other: &mut Puppet) {
    wait_for("the member gets a datagram", || {
        send(peer, group, -1);
        (member.number("len(drain(s))") > 0).then_some(())
    });
    send(peer, group, -2);
    for program in [member, other] {
        program.run("until(s, -2)");
    }
}

/// Sends a few datagrams, all of which both must get, in order and once.
#[track_caller]
fn both_get_all(peer: &UdpSocket, group: &str, members: [&mut Puppet; 2]) {
    for number in 0..20 {
        send(peer, group, number);
    }
    for program in members {
        assert_eq!(program.run("until(s, 19) == list(range(20))"), "True");
        assert_eq!(program.run("drain(s)"), "[]");
    }
}

/// Of each family, beside a program without and with the library.
fn cases() -> impl Iterator<Item = (Family, bool)> {
    Family::BOTH.into_iter().flat_map(|family| [(family, false), (family, true)])
}

#[test]
fn a_member_that_was_there_first_gets_everything_and_so_does_ours() {
    for (family, other_has_library) in cases() {
        let net = network();
        let (peer, group) = (family.peer(&net), family.group());
        let (mut other, mut ours) = (puppet(&net, other_has_library), puppet(&net, true));
        other.run(family.member());
        ours.run(family.member());
        if other_has_library {
            // The first one has the flow until it notices the second.
            reaches(&peer, group, &mut ours, &mut other);
        }
        both_get_all(&peer, group, [&mut other, &mut ours]);
    }
}

#[test]
fn a_member_that_comes_later_gets_everything_once_it_was_seen() {
    for (family, other_has_library) in cases() {
        let net = network();
        let (peer, group) = (family.peer(&net), family.group());
        let (mut ours, mut other) = (puppet(&net, true), puppet(&net, other_has_library));
        ours.run(family.member());
        let watch = family.watch(&net);
        send(&peer, group, 7);
        ours.run("until(s, 7)");
        watch.still();

        other.run(family.member());
        reaches(&peer, group, &mut other, &mut ours);
        both_get_all(&peer, group, [&mut ours, &mut other]);

        // When it is gone, the group comes past the kernel again.
        other.finish();
        wait_for("the group is offloaded again", || {
            let watch = family.watch(&net);
            send(&peer, group, 8);
            ours.run("until(s, 8)");
            (watch.moved() == (0, 0)).then_some(())
        });
    }
}

/// Programs of one host that all run over the library: what one sends to the group the others get, and itself, and the other host.
// covers: NET-46
#[test]
fn accelerated_programs_of_a_host_hear_what_one_of_them_sends() {
    for family in Family::BOTH {
        let net = network();
        let (peer, group) = (family.peer(&net), family.group());
        let mut members = [puppet(&net, true), puppet(&net, true), puppet(&net, true)];
        members.iter_mut().for_each(|program| {
            program.run(family.member());
        });
        let [first, second, third] = &mut members;
        reaches(&peer, group, third, first);
        second.run("until(s, -2)");
        let (host, port) = group.rsplit_once(':').expect("an address and a port");
        let to = format!("({:?}, {port})", host.trim_matches(['[', ']']));
        let scope = match family {
            Family::Ipv4 => "s.setsockopt(IPPROTO_IP, IP_MULTICAST_IF, inet_aton(A))",
            Family::Ipv6 => {
                "s.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_IF, if_nametoindex('veth-a'))"
            }
        };
        first.run(scope);
        first.run(&format!("for n in range(20): s.sendto(str(n).encode(), {to})"));
        for program in &mut members {
            assert_eq!(program.run("until(s, 19) == list(range(20))"), "True");
            assert_eq!(program.run("drain(s)"), "[]");
        }
        // Who does not want to hear itself is not heard by its neighbours, either.
        let [first, second, _] = &mut members;
        first.run(match family {
            Family::Ipv4 => "s.setsockopt(IPPROTO_IP, IP_MULTICAST_LOOP, 0)",
            Family::Ipv6 => "s.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0)",
        });
        first.run(&format!("s.sendto(b'7', {to}); time.sleep(0.05)"));
        assert_eq!(second.run("drain(s)"), "[]");
    }
}

#[test]
fn members_that_come_and_go_cost_the_others_nothing() {
    at_once(2, &Family::BOTH, |&family| come_and_go(family));
}

fn come_and_go(family: Family) {
    let net = network();
    let (peer, group) = (family.peer(&net), family.group());
    let (mut ours, mut other) = (puppet(&net, true), puppet(&net, false));
    ours.run(family.member());
    const LAST: i32 = 1500;
    ours.begin(&format!("got = until(s, {LAST})"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..=LAST {
                send(&peer, group, number);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Joins, is seen, leaves, and that is seen.
        other.run(&format!("{}; s.recv(100); s.close()", family.member()));
    });
    ours.end("everything arrives");
    assert_eq!(ours.run(&format!("got == list(range({LAST} + 1))")), "True");
    let traffic = ours.finish();
    assert!(traffic.rx > 0 && traffic.rx_os > 0, "{traffic:?}");
}

/// A socket that is bound to an address of its own hears nothing of the groups that it has joined; others do.
#[test]
fn a_member_that_is_bound_elsewhere_takes_nothing_from_others() {
    for family in Family::BOTH {
        let net = network();
        let (peer, group) = (family.peer(&net), family.group());
        let (mut ours, mut other) = (puppet(&net, true), puppet(&net, false));
        let (own, at) = match family {
            Family::Ipv4 => ("10.99.0.1", "239.1.1.1"),
            Family::Ipv6 => ("fd00:99::1", "ff05::1:3"),
        };
        ours.run(&format!("s = {}at='{own}')", family.opens()));
        other.run(&format!("s = {}at='{at}')", family.opens()));
        for number in 0..20 {
            send(&peer, group, number);
        }
        assert_eq!(other.run("until(s, 19) == list(range(20))"), "True");
        assert_eq!(ours.run("drain(s)"), "[]");
    }
}

/// Nothing comes back from an interface on which nobody has joined, though all sockets on the port would hear it.
#[test]
fn a_sender_that_has_not_joined_hears_nothing_of_itself() {
    for family in Family::BOTH {
        let net = network();
        let mut ours = puppet(&net, true);
        let mut there = Puppet::start(net.program(Side::B, PYTHON));
        there.run(SHARING);
        there.run(&format!("s = {}at='', joins=B)", family.opens()));
        ours.run(&format!("s = {}at='', joins=None)", family.opens()));
        let to = match family {
            Family::Ipv4 => "('239.1.1.1', 5000)",
            Family::Ipv6 => "('ff05::1:3', 5000)",
        };
        let send = format!("s.sendto(b'1', {to})");
        ours.run(&send);
        there.run("s.recv(100)");
        let watch = family.watch(&net);
        ours.run(&send);
        there.run("s.recv(100)");
        assert_eq!(ours.run("drain(s)"), "[]");
        watch.still();
        // As soon as somebody has.
        ours.run(&format!("member = {}at='', joins=A)", family.opens()));
        ours.run(&send);
        assert_eq!(ours.run("s.recv(100), member.recv(100)"), "(b'1', b'1')");
    }
}

#[test]
fn processes_that_share_a_port_share_what_arrives() {
    let net = network();
    let (mut ours, mut other) = (puppet(&net, true), puppet(&net, false));
    ours.run("s = shared(('10.99.0.1', 5000), SO_REUSEPORT)");
    other.run("s = shared(('10.99.0.1', 5000), SO_REUSEPORT)");
    let peers: Vec<UdpSocket> = (0..64).map(|_| net.socket(Side::B)).collect();
    let mut got = [0, 0];
    wait_for("the other one gets something", || {
        peers.iter().for_each(|peer| send(peer, "10.99.0.1:5000", 0));
        got = [&mut ours, &mut other].map(|program| program.number("len(drain(s))"));
        (got[1] > 0).then_some(())
    });
    peers.iter().for_each(|peer| send(peer, "10.99.0.1:5000", 0));
    let got = [&mut ours, &mut other].map(|program| program.number("len(drain(s))"));
    // The kernel spreads by a hash of the addresses.
    assert!(got[0] > 8 && got[1] > 8 && got[0] + got[1] == 64, "{got:?}");
}

#[test]
fn a_connected_socket_of_another_process_gets_what_its_peer_sends() {
    let net = network();
    let (mut ours, mut other) = (puppet(&net, true), puppet(&net, false));
    let (peer, stranger) = (net.socket(Side::B), net.socket(Side::B));
    ours.run("s = shared(('', 5000))");
    let port = peer.local_addr().unwrap().port();
    other.run(&format!("s = shared(('', 5000), peer=('10.99.0.2', {port}))"));
    wait_for("the connected socket gets a datagram", || {
        send(&peer, "10.99.0.1:5000", 1);
        (other.number("len(drain(s))") > 0).then_some(())
    });
    ours.run("drain(s)");
    send(&peer, "10.99.0.1:5000", 2);
    send(&stranger, "10.99.0.1:5000", 3);
    assert_eq!(other.run("until(s, 2), drain(s)"), "([2], [])");
    assert_eq!(ours.run("until(s, 3), drain(s)"), "([3], [])");
}
