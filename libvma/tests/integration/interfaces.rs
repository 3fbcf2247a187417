//! Interfaces made of software other than veth and tap, which the administrator allows with `VMA_XDP`.
//! Their peers are on the same machine and leave checksums unfinished.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::harness::{Hook, Namespaces, PATIENCE, PYTHON, Puppet, Side};

/// An interface `up0` on top of side A's end of the cable, which has that end's address.
fn over_cable(kind: &str) -> Namespaces {
    let net = Namespaces::new();
    let (a, b) = (Side::A, Side::B);
    let (mac, top) = match kind {
        "bridge" => (a.mac(), "link add up0 address 02:00:00:99:00:01 type bridge"),
        "macvlan" => (
            "02:00:00:99:00:03",
            "link add up0 link veth-a address 02:00:00:99:00:03 type macvlan mode bridge",
        ),
        _ => unreachable!("{kind}"),
    };
    net.ip(a, top);
    if kind == "bridge" {
        net.ip(a, "link set veth-a master up0");
    }
    net.ip(a, "address flush dev veth-a");
    net.ip(a, "address add 10.99.0.1/24 brd + dev up0");
    net.ip(a, "link set up0 addrgenmode none up");
    net.ip(a, &format!("neigh replace {} lladdr {} nud permanent dev up0", b.ip(), b.mac()));
    net.ip(b, &format!("neigh replace {} lladdr {mac} nud permanent dev veth-b", a.ip()));
    net
}

/// A program that is served on `up0` exchanges datagrams and a stream with a local peer.
#[track_caller]
fn serves_local_peers(kind: &str, allowed: &str, mode: &str, hook: Hook) {
    let net = over_cable(kind);
    let program = net.program(Side::A, PYTHON).with_library();
    let program = program.env("VMA_XDP", allowed).env("VMA_XDP_MODE", mode);
    let mut program = Puppet::start(program);
    let (datagrams, streams) = (net.watch(Side::A), net.watch_tcp(Side::A));
    program.run("s = udp(('10.99.0.1', 5000))");
    let peer = net.socket(Side::B);
    for n in 0..50u8 {
        peer.send_to(&[n; 100], Side::A.at(5000)).unwrap();
    }
    program.run("echo(s, 50)");
    for n in 0..50u8 {
        let mut buffer = [0; 200];
        assert_eq!(peer.recv(&mut buffer).unwrap_or_else(|e| panic!("{kind} {n}: {e}")), 100);
        assert_eq!(buffer[..100], [n; 100], "{kind}");
    }
    // In fragments.
    peer.send_to(&[7; 4000], Side::A.at(5000)).unwrap();
    program.run("echo(s)");
    assert_eq!(peer.recv(&mut [0; 5000]).unwrap(), 4000, "{kind}");
    datagrams.still();

    program.run("l = create_server(('10.99.0.1', 7000)); select.select([l], [], [], 0)");
    let mut peer = net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    program.run("c, _ = l.accept(); c.settimeout(15)");
    program.begin("got = b''\nwhile len(got) < 1 << 20: got += c.recv(1 << 20)");
    peer.write_all(&vec![5; 1 << 20]).unwrap();
    program.end("the stream arrives");
    assert_eq!(program.run("set(got)"), "{5}", "{kind}");
    program.begin("c.sendall(got); c.close()");
    let mut back = Vec::new();
    peer.read_to_end(&mut back).unwrap();
    assert!(back == vec![5; 1 << 20], "{kind}: {} bytes came back", back.len());
    program.end("the stream goes back");
    streams.still(1);
    assert_eq!(net.steering_on(Side::A, "up0"), Some(hook), "{kind}");
}

// covers: NET-06
#[test]
fn a_bridge_serves_local_peers() {
    serves_local_peers("bridge", "up0", "auto", Hook::Tc);
    serves_local_peers("bridge", "all", "generic", Hook::GenericXdp);
}

// covers: NET-06
#[test]
fn a_macvlan_serves_local_peers() {
    serves_local_peers("macvlan", "all", "auto", Hook::Tc);
    serves_local_peers("macvlan", "up0", "generic", Hook::GenericXdp);
}
