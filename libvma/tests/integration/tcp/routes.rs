//! Many connections to one peer, while routes change.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::harness::{Namespaces, PATIENCE, Side};

// covers: LIM-25
#[test]
fn each_connection_goes_by_the_routes_of_its_moment() {
    let net = Namespaces::new();
    net.ip(Side::B, "address add 10.50.0.1/32 dev veth-b");
    let listener = net.within(Side::B, || TcpListener::bind("0.0.0.0:7000").unwrap());
    let mut program = net.puppet(Side::A);
    program.run("import socket; kept = []");
    program.run(
        "\
def connect():
    kept.append(socket.create_connection(('10.50.0.1', 7000), timeout=5))
    return kept[-1].getsockname()[0]",
    );
    net.ip(Side::A, "route add 10.50.0.0/24 via 10.99.0.2");
    let watch = net.watch_tcp(Side::A);
    for _ in 0..20 {
        for _ in 0..3 {
            assert_eq!(program.run("connect()"), "'10.99.0.1'");
            listener.accept().unwrap();
        }
        net.ip(Side::A, "route replace unreachable 10.50.0.0/24");
        let error = program.raises("connect()");
        assert!(error.contains("No route to host"), "{error}");
        // A rule for the port of the peer alone.
        net.ip(Side::A, "route replace 10.50.0.0/24 via 10.99.0.2");
        net.ip(Side::A, "rule add to 10.50.0.1 ipproto tcp dport 7000 prohibit");
        assert!(program.raises("connect()").contains("Permission denied"));
        net.ip(Side::A, "rule del to 10.50.0.1 ipproto tcp dport 7000 prohibit");
    }
    watch.still(60);
    program.finish();
}

/// A column of an interface's line in /proc/net/dev.
fn counted(net: &Namespaces, side: Side, device: &str, column: usize) -> u64 {
    let text = net.read_proc(side, "dev");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    let packets = line.and_then(|line| line.split_whitespace().nth(column)?.parse().ok());
    packets.expect("a number")
}

/// Packets that left by an interface of side A.
fn left(net: &Namespaces, device: &str) -> u64 {
    counted(net, Side::A, device, 9)
}

/// A second cable beside the first one, and 10.50.0.1 of side B behind both.
fn two_cables() -> Namespaces {
    let net = Namespaces::new();
    let second = format!(
        "link add second-a address 02:00:00:98:00:01 type veth peer second-b address 02:00:00:98:00:02 netns {}",
        net.name(Side::B)
    );
    net.ip(Side::A, &second);
    for (side, own, peer) in [(Side::A, 1, 2), (Side::B, 2, 1)] {
        let device = if side == Side::A { "second-a" } else { "second-b" };
        net.ip(side, &format!("address add 10.98.0.{own}/24 dev {device}"));
        net.ip(side, &format!("link set {device} addrgenmode none up"));
        let mac = format!("02:00:00:98:00:0{peer}");
        net.ip(
            side,
            &format!("neigh replace 10.98.0.{peer} lladdr {mac} nud permanent dev {device}"),
        );
    }
    net.ip(Side::B, "address add 10.50.0.1/32 dev lo");
    // The ports choose among next hops, too.
    net.sysctl(Side::A, "net.ipv4.fib_multipath_hash_policy", "1");
    net
}

// covers: LIM-02
#[test]
fn connections_and_datagrams_use_both_next_hops_of_a_route() {
    let net = two_cables();
    let hops = "nexthop via 10.99.0.2 dev veth-a nexthop via 10.98.0.2 dev second-a";
    net.ip(Side::A, &format!("route add 10.50.0.0/24 {hops}"));
    let listener = net.within(Side::B, || TcpListener::bind("10.50.0.1:7000").unwrap());
    let echo = net.within(Side::B, || UdpSocket::bind("10.50.0.1:7000").unwrap());
    echo.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut program = net.puppet(Side::A);
    // What an interface does with its first socket is not of interest.
    program.run("kept = [udp((f'10.{net}.0.1', 4000)) for net in (99, 98)]");
    let (streams, datagrams) = (net.watch_tcp(Side::A), net.watch(Side::A));
    // By the address of the interface that each goes by.
    let (mut used, mut packets) =
        ([[0; 2]; 2], ["veth-a", "second-a"].map(|device| left(&net, device)));
    const EACH: usize = 40;
    for at in 0..EACH {
        let from = if at % 2 == 0 {
            program.run("c = create_connection(('10.50.0.1', 7000), 15); kept.append(c)");
            let (mut peer, from) = listener.accept().unwrap();
            program.run("c.sendall(b'there')");
            peer.read_exact(&mut [0; 5]).unwrap();
            peer.write_all(b"back").unwrap();
            assert_eq!(program.run("c.recv(4, MSG_WAITALL)"), "b'back'");
            from
        } else {
            // The way depends on the port that it has when it connects.
            program.run(&format!("s = udp(('0.0.0.0', {}), ('10.50.0.1', 7000))", 5000 + at));
            program.run("kept.append(s); s.send(b'there')");
            let mut room = [0; 9];
            let (len, from) = echo.recv_from(&mut room).unwrap();
            echo.send_to(&room[..len], from).unwrap();
            assert_eq!(program.run("s.recv(9)"), "b'there'");
            from
        };
        used[at % 2][usize::from(from.ip() == Ipv4Addr::new(10, 98, 0, 1))] += 1;
    }
    streams.still(EACH as u64);
    datagrams.still();
    for used in used {
        assert!(used.iter().all(|count| *count > EACH / 16), "{used:?}");
    }
    for (packets, device) in packets.iter_mut().zip(["veth-a", "second-a"]) {
        *packets = left(&net, device) - *packets;
    }
    assert!(packets.iter().all(|count| *count > EACH as u64 / 16), "{packets:?}");
}

/// The address is that of the first question's hop. Before Linux 6.16 the second one, by the address, may be answered by another
/// interface; with this rule it always is.
// covers: LIM-02
#[test]
fn a_connection_hears_answers_by_the_interface_of_its_address() {
    let net = two_cables();
    net.ip(Side::A, "route add 10.50.0.0/24 via 10.99.0.2 dev veth-a");
    net.ip(Side::A, "route add 10.50.0.0/24 via 10.98.0.2 dev second-a table 100");
    net.ip(Side::A, "rule add from 10.99.0.1 to 10.50.0.0/24 table 100");
    for device in ["all", "second-b"] {
        net.sysctl(Side::B, &format!("net.ipv4.conf.{device}.rp_filter"), "0");
    }
    let listener = net.within(Side::B, || TcpListener::bind("10.50.0.1:7000").unwrap());
    let mut program = net.puppet(Side::A);
    program.run("kept = [udp((f'10.{net}.0.1', 4000)) for net in (99, 98)]");
    let (watch, before) = (net.watch_tcp(Side::A), left(&net, "second-a"));
    program.run("c = create_connection(('10.50.0.1', 7000), 15)");
    let (mut peer, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), Ipv4Addr::new(10, 99, 0, 1));
    program.run("c.sendall(b'there')");
    peer.read_exact(&mut [0; 5]).unwrap();
    peer.write_all(b"back").unwrap();
    assert_eq!(program.run("c.recv(4, MSG_WAITALL)"), "b'back'");
    watch.still(1);
    assert!(left(&net, "second-a") >= before + 3, "the SYN and what follows");
}

/// Both next hops are behind one interface, so that all connections are of one pair of addresses.
// covers: LIM-02 LIM-25
#[test]
fn a_change_of_routes_leaves_connections_their_next_hops() {
    const COUNT: usize = 12;
    const SENT: u64 = 4;
    let net = Namespaces::new();
    net.ip(
        Side::B,
        "link add hop-b link veth-b address 02:00:00:99:00:05 type macvlan mode bridge",
    );
    net.ip(Side::B, "link set hop-b addrgenmode none up");
    net.ip(Side::B, "address add 10.50.0.1/32 dev lo");
    for device in ["all", "hop-b"] {
        net.sysctl(Side::B, &format!("net.ipv4.conf.{device}.rp_filter"), "0");
    }
    let neighbour = "10.99.0.5 lladdr 02:00:00:99:00:05 nud permanent dev veth-a";
    net.ip(Side::A, &format!("neigh replace {neighbour}"));
    let hops = "nexthop via 10.99.0.2 dev veth-a nexthop via 10.99.0.5 dev veth-a";
    net.ip(Side::A, &format!("route add 10.50.0.0/24 {hops}"));
    net.sysctl(Side::A, "net.ipv4.fib_multipath_hash_policy", "1");
    let listener = net.within(Side::B, || TcpListener::bind("10.50.0.1:7000").unwrap());
    let mut program = net.puppet(Side::A);
    program.run("kept = []");
    let watch = net.watch_tcp(Side::A);
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        program.run("kept.append(create_connection(('10.50.0.1', 7000), 15))");
        peers.push(listener.accept().unwrap().0);
    }
    let mut ways = || -> Vec<bool> {
        let by_second = |(at, peer): (usize, &mut TcpStream)| {
            let before = counted(&net, Side::B, "hop-b", 1);
            for _ in 0..SENT {
                program.run(&format!("kept[{at}].sendall(b'x')"));
                peer.read_exact(&mut [0; 1]).unwrap();
            }
            counted(&net, Side::B, "hop-b", 1) >= before + SENT
        };
        peers.iter_mut().enumerate().map(by_second).collect()
    };
    let before = ways();
    assert!(before.contains(&true) && before.contains(&false), "{before:?}");
    net.ip(Side::A, "route add 10.51.0.0/24 via 10.99.0.2");
    // Long enough for a thread to hear of it; nothing is to be seen then.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ways(), before);
    watch.still(COUNT as u64);
}
