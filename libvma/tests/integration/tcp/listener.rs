//! A listener on 0.0.0.0 has the world on one interface and the host's own programs on another.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::harness::{Ends, Library, Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};

/// Connects from a side, has the listening program accept, and exchanges a few bytes both ways.
#[track_caller]
fn served(ends: &Ends, program: &mut Puppet, side: Side, to: SocketAddrV4, accept: &str) {
    let mut peer = ends.net.within(side, || TcpStream::connect(to)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    program.run(accept);
    let local = format!("{:?}", (to.ip().to_string(), to.port())).replace('"', "'");
    assert_eq!(program.run("c.getsockname()"), local);
    peer.write_all(b"to the server").unwrap();
    assert_eq!(program.run("c.recv(100)"), "b'to the server'");
    program.run("c.sendall(b'to the client'); c.close()");
    let mut got = String::new();
    peer.read_to_string(&mut got).unwrap();
    assert_eq!(got, "to the client");
}

const ACCEPTS: [(&str, &str); 4] = [
    ("l.settimeout(None)", "c, _ = l.accept(); c.settimeout(15)"),
    ("l.settimeout(15)", "c, _ = l.accept(); c.settimeout(15)"),
    (
        "l.setblocking(False); e = select.epoll(); e.register(l)",
        "assert e.poll(15) == [(l.fileno(), 1)]; c, _ = l.accept(); c.settimeout(15)",
    ),
    (
        "l.setblocking(False)",
        "assert select.select([l], [], [], 15)[0] == [l]; c, _ = l.accept(); c.settimeout(15)",
    ),
];

/// Connections come to the library from the first wait for them on.
const FIRST_WAIT: &str = "select.select([l], [], [], 0)";

// covers: API-07, LIM-34, NET-06
#[test]
fn a_listener_on_any_address_accepts_from_the_cable_and_from_lo_alike() {
    for (prepare, accept) in ACCEPTS {
        let ends = Ends::new(Library::Server);
        let mut program = Puppet::start(ends.server(PYTHON));
        program.run("l = create_server(('0.0.0.0', 7000))");
        program.run(prepare);
        program.run(FIRST_WAIT);
        let watch = ends.watch();
        served(&ends, &mut program, Side::B, Side::A.at(7000), accept);
        watch.still(1);
        for ip in [Ipv4Addr::LOCALHOST, Side::A.ip()] {
            let at = SocketAddrV4::new(ip, 7000);
            served(&ends, &mut program, Side::A, at, accept);
        }
        let watch = ends.watch();
        served(&ends, &mut program, Side::B, Side::A.at(7000), accept);
        watch.still(1);
    }
}

// covers: API-07, LIM-34
#[test]
fn whoever_waits_for_the_cable_is_woken_by_lo_and_the_other_way_round() {
    for (prepare, accept) in ACCEPTS {
        let ends = Ends::new(Library::Server);
        let mut program = Puppet::start(ends.server(PYTHON).env("VMA_RX_POLL", "0"));
        program.run("l = create_server(('0.0.0.0', 7000))");
        program.run(prepare);
        for (side, ip) in [(Side::A, Ipv4Addr::LOCALHOST), (Side::B, Side::A.ip())] {
            program.begin(accept);
            program.wait_until_asleep();
            let at = SocketAddrV4::new(ip, 7000);
            let mut peer = ends.net.within(side, || TcpStream::connect(at)).unwrap();
            program.end(accept);
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            program.run("c.sendall(b'woken'); c.close()");
            let mut got = String::new();
            peer.read_to_string(&mut got).unwrap();
            assert_eq!(got, "woken");
        }
    }
}

// covers: API-07, LIM-34, MUX-03
#[test]
fn fifty_clients_from_each_interface_are_all_accepted() {
    let ends = Ends::new(Library::Server);
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('0.0.0.0', 7000), backlog=128); l.settimeout(15)");
    program.run(FIRST_WAIT);
    let connect = |side, ip| {
        let at = SocketAddrV4::new(ip, 7000);
        ends.net.within(side, || TcpStream::connect(at)).unwrap()
    };
    let watch = ends.net.watch_tcp(Side::A);
    let mut peers = Vec::new();
    for _ in 0..50 {
        peers.push(connect(Side::B, Side::A.ip()));
        peers.push(connect(Side::A, Ipv4Addr::LOCALHOST));
    }
    program.run("all = [l.accept() for n in range(100)]");
    let by_kernel = 50;
    assert_eq!(watch.moved().accepted, by_kernel, "connections that the kernel accepted");
    program.run("[c.sendall(repr(peer).encode()) or c.close() for c, peer in all]");
    for mut peer in peers {
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = String::new();
        peer.read_to_string(&mut got).unwrap();
        let own = peer.local_addr().unwrap();
        assert_eq!(got, format!("('{}', {})", own.ip(), own.port()));
    }
}

// covers: API-07, LIM-34
#[test]
fn connections_of_the_kernels_are_accepted_while_others_keep_coming() {
    for (prepare, accept) in ACCEPTS {
        let ends = Ends::new(Library::Server);
        let mut program = Puppet::start(ends.server(PYTHON));
        program.run("l = create_server(('0.0.0.0', 7000), backlog=128)");
        program.run(prepare);
        program.run(FIRST_WAIT);
        let watch = ends.net.watch_tcp(Side::A);
        let connect = |side, ip| {
            let at = SocketAddrV4::new(ip, 7000);
            ends.net.within(side, || TcpStream::connect(at)).unwrap()
        };
        let local = connect(Side::A, Ipv4Addr::LOCALHOST);
        let peers: Vec<_> = (0..40).map(|_| connect(Side::B, Side::A.ip())).collect();
        program.run("kept = []");
        for _ in 0..20 {
            program.run(accept);
            program.run("kept.append((c, c.getpeername()[0]))");
        }
        assert_eq!(watch.moved().accepted, 1, "the others are the library's");
        assert_eq!(program.run("[ip for _, ip in kept].count('127.0.0.1')"), "1", "{prepare}");
        drop((local, peers));
    }
}

/// While no thread of the server polls, all their SYNs come before the end of any handshake.
// covers: API-07
#[test]
fn more_clients_at_once_than_the_backlog_are_all_greeted() {
    let ends = Ends::new(Library::Server);
    let mut server = Puppet::start(ends.server(PYTHON));
    server.run("l = create_server(('0.0.0.0', 7000), backlog=8); l.settimeout(15)");
    server.run(FIRST_WAIT);
    let watch = ends.net.watch_tcp(Side::A);
    let mut clients = Puppet::start(ends.client(PYTHON));
    clients.run("all = [socket() for n in range(16)]");
    server.signal(Signal::STOP);
    clients.run("[s.setblocking(False) or s.connect_ex(('10.99.0.1', 7000)) for s in all]");
    server.signal(Signal::CONT);
    server.begin("[l.accept()[0].sendall(b'greeting') for n in range(16)]");
    clients.run("[s.settimeout(15) for s in all]");
    assert_eq!(clients.run("[s.recv(100) for s in all].count(b'greeting')"), "16");
    server.end("16 clients");
    watch.still(16);
}

/// As active FTP and `iperf -r` do. The interface is attached by listen(), as for any server, but the kernel listens before.
#[test]
fn a_server_may_connect_back_to_a_client_that_begins_to_listen() {
    let net = Namespaces::new();
    let server = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let program = net.program(Side::A, PYTHON).with_library();
    let mut client = Puppet::start(program.env("VMA_XDP_ATTACH", "background"));
    client.run("c = create_connection(('10.99.0.2', 7000), 10)");
    let (_peer, _) = server.accept().unwrap();
    client.run("l = socket(); l.bind(('10.99.0.1', 5000))");
    client.begin("time.monotonic_ns(), l.listen(8), time.monotonic_ns()");
    let connected = wait_for("the client listens", || {
        net.within(Side::B, || TcpStream::connect(Side::A.at(5000))).ok()
    });
    let connected_at = clock_gettime(ClockId::Monotonic);
    let connected_at = connected_at.tv_sec * 1_000_000_000 + connected_at.tv_nsec;
    let times = client.end("listen");
    let times: Vec<i64> =
        times.split(", ").filter_map(|it| it.trim_matches(['(', ')']).parse().ok()).collect();
    let [began_at, returned_at] = times[..] else { panic!("{times:?}") };
    let half = (returned_at - began_at) / 2;
    assert!(connected_at - began_at < half, "after {} of {half} ns", connected_at - began_at);
    client.run("l.accept()[0].send(b'hello')");
    let mut room = [0; 5];
    (&connected).read_exact(&mut room).unwrap();
    // The next one is served.
    let watch = net.watch_tcp(Side::A);
    let mut next = net.within(Side::B, || TcpStream::connect(Side::A.at(5000))).unwrap();
    client.run("d = l.accept()[0]; d.send(b'hello')");
    next.read_exact(&mut room).unwrap();
    watch.still(0);
    assert_eq!(&room, b"hello");
}
