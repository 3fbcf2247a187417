//! What other sockets of the host are owed that share a group or a port with an offloaded one.

use std::net::UdpSocket;
use std::time::Duration;

use crate::harness::{Namespaces, PYTHON, Puppet, Side, wait_for};

const GROUP: &str = "239.1.1.1:5000";

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
def member():
    s = shared(('', 5000))
    s.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, inet_aton('239.1.1.1') + inet_aton('10.99.0.1'))
    return s
def until(s, last):
    got = []
    while not got or got[-1] != last: got.append(int(s.recv(100)))
    return got
";

fn network() -> Namespaces {
    let net = Namespaces::new();
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
fn reaches(peer: &UdpSocket, member: &mut Puppet, other: &mut Puppet) {
    wait_for("the member gets a datagram", || {
        send(peer, GROUP, -1);
        (member.number("len(drain(s))") > 0).then_some(())
    });
    send(peer, GROUP, -2);
    for program in [member, other] {
        program.run("until(s, -2)");
    }
}

/// Sends a few datagrams, all of which both must get, in order and once.
#[track_caller]
fn both_get_all(peer: &UdpSocket, members: [&mut Puppet; 2]) {
    for number in 0..20 {
        send(peer, GROUP, number);
    }
    for program in members {
        assert_eq!(program.run("until(s, 19) == list(range(20))"), "True");
        assert_eq!(program.run("drain(s)"), "[]");
    }
}

#[test]
fn a_member_that_was_there_first_gets_everything_and_so_does_ours() {
    for other_has_library in [false, true] {
        let net = network();
        let peer = net.socket(Side::B);
        let (mut other, mut ours) = (puppet(&net, other_has_library), puppet(&net, true));
        other.run("s = member()");
        ours.run("s = member()");
        if other_has_library {
            // The first one has the flow until it notices the second.
            reaches(&peer, &mut ours, &mut other);
        }
        both_get_all(&peer, [&mut other, &mut ours]);
    }
}

#[test]
fn a_member_that_comes_later_gets_everything_once_it_was_seen() {
    for other_has_library in [false, true] {
        let net = network();
        let peer = net.socket(Side::B);
        let (mut ours, mut other) = (puppet(&net, true), puppet(&net, other_has_library));
        ours.run("s = member()");
        let watch = net.watch(Side::A);
        send(&peer, GROUP, 7);
        ours.run("until(s, 7)");
        watch.still();

        other.run("s = member()");
        reaches(&peer, &mut other, &mut ours);
        both_get_all(&peer, [&mut ours, &mut other]);

        // When it is gone, the group comes past the kernel again.
        other.finish();
        wait_for("the group is offloaded again", || {
            let before = net.kernel_datagrams(Side::A);
            send(&peer, GROUP, 8);
            ours.run("until(s, 8)");
            (net.kernel_datagrams(Side::A) == before).then_some(())
        });
    }
}

#[test]
fn members_that_come_and_go_cost_the_others_nothing() {
    let net = network();
    let peer = net.socket(Side::B);
    let (mut ours, mut other) = (puppet(&net, true), puppet(&net, false));
    ours.run("s = member()");
    const LAST: i32 = 1500;
    ours.begin(&format!("got = until(s, {LAST})"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..=LAST {
                send(&peer, GROUP, number);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Joins, is seen, leaves, and that is seen.
        other.run("s = member(); s.recv(100); s.close()");
    });
    ours.end("everything arrives");
    assert_eq!(ours.run(&format!("got == list(range({LAST} + 1))")), "True");
    let traffic = ours.finish();
    assert!(traffic.rx > 0 && traffic.rx_os > 0, "{traffic:?}");
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
