//! Sockets of AF_INET6, which take IPv4, too: the library serves their connections of both families, those of IPv4 under the names
//! that an IPv6 socket has for them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::path::Path;

use crate::harness::{Ends, Library, Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};

/// A socket that Node, Java and many other servers listen with.
const LISTEN: &str = "
def dual(port=0, at='::'):
    s = socket(AF_INET6, SOCK_STREAM)
    s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    s.settimeout(15)
    if port: s.bind((at, port))
    return s
def talk(c, d):
    # Both at once.
    out, back = b''.join(pattern(65536, n) for n in range(16)), pattern(65536, 99)
    t = threading.Thread(target=c.sendall, args=(out,)); t.start()
    got = bytearray()
    while len(got) < len(out): got += d.recv(65536)
    t.join()
    d.sendall(back)
    again = bytearray()
    while len(again) < len(back): again += c.recv(65536)
    return got == out and again == back
";

pub(crate) fn of(side: Side) -> Ipv6Addr {
    let last = if side == Side::A { 1 } else { 2 };
    Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, last)
}

/// Gives the cable IPv6 addresses. Each end knows the other's MAC address for good.
pub(crate) fn with_ipv6(net: &Namespaces) {
    for side in [Side::A, Side::B] {
        let (device, peer, mac) = (side.device(), of(side.other()), side.other().mac());
        net.add_ipv6(side, of(side));
        net.ip(side, &format!("-6 neigh replace {peer} lladdr {mac} nud permanent dev {device}"));
    }
}

fn connect_by_ipv6(net: &Namespaces, from: Side, to: Ipv6Addr, port: u16) -> TcpStream {
    let stream = net.within(from, || TcpStream::connect(SocketAddrV6::new(to, port, 0, 0)));
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What the peer says comes, and the answer gets there.
#[track_caller]
fn exchange(program: &mut Puppet, peer: &mut TcpStream) {
    peer.write_all(b"to the server").unwrap();
    assert_eq!(program.run("c.recv(100)"), "b'to the server'");
    program.run("c.sendall(b'to the client')");
    let mut got = [0; 13];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"to the client");
}

// covers: API-07, LIM-23, NET-03
#[test]
fn a_listener_of_both_families_is_served_by_both() {
    for wait in ["settimeout(15)", "settimeout(None)", "setblocking(False)"] {
        let net = Namespaces::new();
        with_ipv6(&net);
        let mut program = net.puppet(Side::A);
        program.run(LISTEN);
        program
            .run(&format!("l = dual(7000); l.listen(); l.{wait}; select.select([l], [], [], 0)"));
        program.run("e = select.epoll(); e.register(l)");
        let accept =
            "assert e.poll(15) == [(l.fileno(), 1)]; c, peer = l.accept(); c.settimeout(15)";

        let watch = net.watch_tcp(Side::A);
        let mut four = net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        four.set_read_timeout(Some(PATIENCE)).unwrap();
        program.run(accept);
        exchange(&mut program, &mut four);
        let port = four.local_addr().unwrap().port();
        assert_eq!(program.run("peer"), format!("('::ffff:10.99.0.2', {port}, 0, 0)"));
        assert_eq!(program.run("c.getpeername() == peer"), "True");
        assert_eq!(program.run("c.getsockname()"), "('::ffff:10.99.0.1', 7000, 0, 0)");
        assert_eq!(program.run("c.family == AF_INET6"), "True");
        assert_eq!(program.run("c.getsockopt(SOL_SOCKET, SO_DOMAIN) == AF_INET6"), "True");
        assert_eq!(program.run("c.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY)"), "0");
        watch.still(0);
        program.run("first = c");

        // The kernel's connections come to the same listener: of `::1`, whose client is a plain process.
        for (side, to) in [(Side::B, of(Side::A)), (Side::A, Ipv6Addr::LOCALHOST)] {
            let watch = net.watch_tcp(Side::A);
            let mut six = connect_by_ipv6(&net, side, to, 7000);
            program.run(accept);
            exchange(&mut program, &mut six);
            let own = six.local_addr().unwrap();
            assert_eq!(program.run("peer[:2]"), format!("('{}', {})", own.ip(), own.port()));
            assert_eq!(program.run("peer == c.getpeername()"), "True");
            assert_eq!(program.run("c.getsockname()"), format!("('{to}', 7000, 0, 0)"));
            if side == Side::B {
                watch.still(0);
            }
        }
        let watch = net.watch_tcp(Side::A);
        program.run("c = first");
        exchange(&mut program, &mut four);
        // The end of the last one of IPv6.
        watch.still(1);
    }
}

// covers: API-02, LIM-23, NET-03
#[test]
fn a_client_that_names_its_peer_by_a_mapped_address_is_served() {
    for library in [Library::Client, Library::Both] {
        let ends = Ends::new(library);
        let mut server = Puppet::start(ends.server(PYTHON));
        let mut client = Puppet::start(ends.client(PYTHON));
        server.run(LISTEN);
        client.run(LISTEN);
        server.run("l = dual(7000); l.listen(); select.select([l], [], [], 0)");
        let watch = ends.watch();
        client.run("c = dual(); c.connect(('::ffff:10.99.0.1', 7000))");
        server.run("d, peer = l.accept(); d.settimeout(15)");
        assert_eq!(client.run("c.getpeername()"), "('::ffff:10.99.0.1', 7000, 0, 0)");
        assert_eq!(client.run("c.getsockname()[0]"), "'::ffff:10.99.0.2'");
        let port = client.run("c.getsockname()[1]");
        assert_eq!(server.run("peer"), format!("('::ffff:10.99.0.2', {port}, 0, 0)"));
        client.run("c.sendall(pattern(50000, 3))");
        server.run("got = b''\nwhile len(got) < 50000: got += d.recv(65536)");
        assert_eq!(server.run("got == pattern(50000, 3)"), "True");
        server.run("d.sendall(b'answer')");
        assert_eq!(client.run("c.recv(100)"), "b'answer'");
        client.run("c.shutdown(SHUT_WR)");
        assert_eq!(server.run("d.recv(1)"), "b''");
        watch.still(0);
        // IP_TOS and IP_TTL concern it, the options of IPv6 do not.
        client.run("c.setsockopt(IPPROTO_IP, IP_TOS, 0x10); c.setsockopt(IPPROTO_IPV6, 67, 0x20)");
        let told = "c.getsockopt(IPPROTO_IP, IP_TOS), c.getsockopt(IPPROTO_IPV6, 67)";
        assert_eq!(client.run(told), "(16, 32)");
        watch.still(0);
    }
}

// covers: API-02, LIM-52
#[test]
fn an_ipv6_peer_is_served() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let there = SocketAddrV6::new(of(Side::B), 7000, 0, 0);
    let there = net.within(Side::B, || TcpListener::bind(there)).unwrap();
    let here = net.within(Side::A, || TcpListener::bind("[::1]:7000")).unwrap();
    let mut program = net.puppet(Side::A);
    program.run(LISTEN);
    for _ in 0..2 {
        for (to, listener) in [("::1".to_owned(), &here), (of(Side::B).to_string(), &there)] {
            let watch = net.watch_tcp(Side::A);
            program.run(&format!("c = dual(); c.connect(('{to}', 7000))"));
            let (mut peer, from) = listener.accept().unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            exchange(&mut program, &mut peer);
            assert_eq!(program.run("c.getpeername()"), format!("('{to}', 7000, 0, 0)"));
            let (ip, port) = (from.ip(), from.port());
            assert_eq!(program.run("c.getsockname()"), format!("('{ip}', {port}, 0, 0)"));
            if to != "::1" {
                watch.still(1);
            }
        }
    }
    program.run("c = dual(); c.setblocking(False)");
    let refused = program.raises("c.connect(('::1', 9)); select.select([], [c], []); c.send(b'x')");
    assert!(refused.contains("refused") || refused.contains("progress"), "{refused}");
    // What the kernel refuses does not make it the kernel's.
    program.run("c = dual()");
    program.run("import ctypes; libc = ctypes.CDLL(None, use_errno=True)");
    program
        .run("name = struct.pack('=H', AF_INET) + bytes([0x1b, 0x58, 10, 99, 0, 2]) + bytes(20)");
    for (len, error) in [(28, "EAFNOSUPPORT"), (16, "EINVAL")] {
        let told = program.run(&format!(
            "libc.connect(c.fileno(), name, {len}), ctypes.get_errno() == errno.{error}"
        ));
        assert_eq!(told, "(-1, True)", "{error}");
    }
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let watch = net.watch_tcp(Side::A);
    program.run("c.connect(('::ffff:10.99.0.2', 7000))");
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut program, &mut peer);
    watch.still(0);
    program.finish();
    let told = program.stderr();
    let told: Vec<_> = told.lines().filter(|line| line.contains("IPv6 socket")).collect();
    assert_eq!(told.len(), 0, "{told:?}");
}

// covers: API-07
#[test]
fn a_listener_that_takes_ipv6_only_leaves_ipv4_to_another() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut program = net.puppet(Side::A);
    program
        .run("six = socket(AF_INET6, SOCK_STREAM); six.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)");
    program.run("six.bind(('::', 7000)); six.listen(); six.settimeout(15)");
    program.run("l = create_server(('0.0.0.0', 7000)); select.select([l, six], [], [], 0)");
    let watch = net.watch_tcp(Side::A);
    let mut four = net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
    four.set_read_timeout(Some(PATIENCE)).unwrap();
    program.run("l.settimeout(15); c, _ = l.accept(); c.settimeout(15)");
    exchange(&mut program, &mut four);
    let mut six = connect_by_ipv6(&net, Side::B, of(Side::A), 7000);
    program.run("c, peer = six.accept(); c.settimeout(15)");
    exchange(&mut program, &mut six);
    assert_eq!(program.run("peer[0]"), format!("'{}'", of(Side::B)));
    assert_eq!(program.run("six.getsockname()"), "('::', 7000, 0, 0)");
    watch.still(0);
    // A mapped address is none that it may connect to.
    program
        .run("six = socket(AF_INET6, SOCK_STREAM); six.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)");
    let refused = program.raises("six.connect(('::ffff:10.99.0.2', 7000))");
    assert!(refused.contains("Network is unreachable"), "{refused}");
}

// covers: API-07
#[test]
fn the_hosts_default_may_be_ipv6_only() {
    let net = Namespaces::new();
    net.sysctl(Side::A, "net.ipv6.bindv6only", "1");
    let mut program = net.puppet(Side::A);
    program.run("six = socket(AF_INET6, SOCK_STREAM); six.bind(('::', 7000)); six.listen()");
    let refused = net.within(Side::B, || TcpStream::connect(Side::A.at(7000)));
    assert!(refused.is_err(), "nobody listens");
    program.run("six.close()");
    program.run(LISTEN);
    program.run("l = dual(7001); l.listen(); select.select([l], [], [], 0)");
    let watch = net.watch_tcp(Side::A);
    let mut four = net.within(Side::B, || TcpStream::connect(Side::A.at(7001))).unwrap();
    four.set_read_timeout(Some(PATIENCE)).unwrap();
    program.run("c, _ = l.accept(); c.settimeout(15)");
    exchange(&mut program, &mut four);
    watch.still(0);
    assert_eq!(program.run("c.getsockopt(IPPROTO_IPV6, IPV6_V6ONLY)"), "0");
    // Its shadow takes the connection.
    program.run("if os.fork() == 0:\n c.sendall(c.recv(100)[::-1]); os._exit(0)");
    four.write_all(b"to a child").unwrap();
    let mut got = [0; 10];
    four.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"dlihc a ot");
}

/// How another process gets the connection `c`, whose name is `own`, and goes on with it: it tells the names, then
/// everything that comes until the end, and that it is the end.
pub(crate) const WAYS: [(&str, &str); 5] = [
    ("fork", "if os.fork() == 0: go_on(c)\nc.close()"),
    ("fork while the parent keeps it", "if os.fork() == 0: go_on(c)"),
    (
        "fork and exec",
        "if os.fork() == 0:\n os.set_inheritable(c.fileno(), True)\n \
         os.execlp('python3', 'python3', 'on.py', str(c.fileno()))\nc.close()",
    ),
    (
        "exec",
        "os.set_inheritable(c.fileno(), True)\nos.write(1, b'=None\\n')\n\
         os.execlp('python3', 'python3', 'on.py', str(c.fileno()))",
    ),
    (
        "a message",
        "one, other = socketpair(AF_UNIX)\nif os.fork() == 0:\n one.close(); _, fds, _, _ = recv_fds(other, 9, 1)\n \
         go_on(socket(fileno=fds[0]))\nsend_fds(one, [b'x'], [c.fileno()])\nc.close()",
    ),
];

pub(crate) const GO_ON: &str = "
import os, sys
from socket import *
def go_on(c):
    c.settimeout(15)
    c.sendall(repr((c.getsockname(), c.getpeername())).encode() + b';')
    while data := c.recv(65536): c.sendall(data)
    c.sendall(b'the end')
    c.shutdown(SHUT_WR)
    os._exit(0)
if len(sys.argv) > 1: go_on(socket(fileno=int(sys.argv[1])))
";

// covers: API-34, API-35, LIM-22
#[test]
fn a_connection_goes_on_in_another_process() {
    let mapped = |side: Side| side.ip().to_ipv6_mapped();
    for (way, how) in WAYS {
        goes_on_in_another_process(way, how, 0, Side::ip, mapped);
    }
}

// covers: API-34, API-35, LIM-22
#[test]
fn a_connection_over_ipv6_goes_on_in_another_process() {
    for (way, how) in WAYS {
        for v6_only in [0, 1] {
            goes_on_in_another_process(way, how, v6_only, of, of);
        }
    }
}

/// The connection is to this address, and both ends have these names.
#[track_caller]
fn goes_on_in_another_process<T: Into<IpAddr>>(
    way: &str,
    how: &str,
    v6_only: u8,
    address: impl Fn(Side) -> T,
    name: impl Fn(Side) -> Ipv6Addr,
) {
    let net = Namespaces::new();
    with_ipv6(&net);
    std::fs::write(net.file("on.py"), GO_ON).unwrap();
    let mut program = net.puppet(Side::A);
    program.run(LISTEN);
    program.run("exec(open('on.py').read(), {**globals(), '__builtins__': __builtins__}, stage)");
    program.run(&format!(
        "l = dual(); l.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, {v6_only}); l.bind(('::', 7000))"
    ));
    program.run("l.listen(); select.select([l], [], [], 0)");
    let watch = net.watch_tcp(Side::A);
    let to = SocketAddr::new(address(Side::A).into(), 7000);
    let mut peer = net.within(Side::B, || TcpStream::connect(to)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    program.run("c, _ = l.accept(); c.settimeout(15)");
    exchange(&mut program, &mut peer);
    watch.still(0);
    // Both queues have something when it moves.
    program.run("c.sendall(pattern(60000, 5))");
    peer.write_all(b"unread;").unwrap();
    program.run("assert c.recv(100, MSG_PEEK) == b'unread;'");
    program.run(how);
    peer.write_all(&[b'x'; 30_000]).unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap_or_else(|error| panic!("{way}: {error}"));
    assert!(got.len() > 60_000, "{way}: {} bytes", got.len());
    let port = peer.local_addr().unwrap().port();
    let (a, b) = (name(Side::A), name(Side::B));
    let names = format!("(('{a}', 7000, 0, 0), ('{b}', {port}, 0, 0));unread;");
    let rest = String::from_utf8_lossy(&got[60_000..]);
    let (xs, end) = ("x".repeat(30_000), "the end");
    assert!(rest == format!("{names}{xs}{end}"), "{way}: {:.200}", rest);
}

// covers: API-34
#[test]
fn a_connection_may_become_one_of_an_ipv4_socket() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let mut program = net.puppet(Side::A);
    program.run(LISTEN);
    program.run("c = dual(); c.connect(('::ffff:10.99.0.2', 7000))");
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut program, &mut peer);
    const IPV6_ADDRFORM: u32 = 1;
    program.run(&format!("c.setsockopt(IPPROTO_IPV6, {IPV6_ADDRFORM}, AF_INET)"));
    assert_eq!(program.run("c.getsockopt(SOL_SOCKET, SO_DOMAIN) == AF_INET"), "True");
    program.run("c = socket(fileno=c.detach()); c.settimeout(15)");
    assert_eq!(program.run("c.getpeername()"), "('10.99.0.2', 7000)");
    exchange(&mut program, &mut peer);
}

/// The kernel still has the connection then; it is taken over as what it is by that time.
#[test]
fn a_connection_that_became_one_of_ipv4_is_taken_over_as_such() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let program = net.program(Side::A, PYTHON).with_library();
    let mut program = Puppet::start(program.env("VMA_XDP_ATTACH", "background"));
    program.run(LISTEN);
    program.run("c = dual(); c.connect(('::ffff:10.99.0.2', 7000))");
    const IPV6_ADDRFORM: u32 = 1;
    program.run(&format!("c.setsockopt(IPPROTO_IPV6, {IPV6_ADDRFORM}, AF_INET)"));
    program.run("c = socket(fileno=c.detach()); c.settimeout(15)");
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_for("the library to take the connection over", || {
        let watch = net.watch_tcp(Side::A);
        exchange(&mut program, &mut peer);
        (watch.moved().segments() == 0).then_some(())
    });
    assert_eq!(program.run("c.getpeername()"), "('10.99.0.2', 7000)");
    assert_eq!(program.run("c.getsockname()[0]"), "'10.99.0.1'");
}

/// A server of both families was replaced by one of IPv4, and its worker still serves a client.
#[test]
fn connections_of_a_former_listener_of_the_other_family_go_on() {
    let net = Namespaces::new();
    let mut former = Puppet::start(net.program(Side::A, PYTHON));
    former.run(LISTEN);
    former.run("l = dual(7000); l.listen()");
    let mut peer = net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    former.run("c, _ = l.accept(); c.settimeout(15); l.close()");
    exchange(&mut former, &mut peer);
    let mut program = net.puppet(Side::A);
    program.run("l = create_server(('0.0.0.0', 7000)); select.select([l], [], [], 0)");
    let _other = net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
    program.run("l.accept()");
    exchange(&mut former, &mut peer);
}

/// Connections that the kernel has, because their interface is being attached.
// covers: THR-04
#[test]
fn connections_are_taken_over() {
    for library in [Library::Server, Library::Client] {
        let ends = Ends::new(library);
        let background = |program: crate::harness::Program<'_>| {
            let mut puppet = Puppet::start(program.env("VMA_XDP_ATTACH", "background"));
            puppet.run(LISTEN);
            puppet
        };
        let (mut server, mut client) =
            (background(ends.server(PYTHON)), background(ends.client(PYTHON)));
        server.run("l = dual(7000); l.listen()");
        client.run("c = dual(); c.connect(('::ffff:10.99.0.1', 7000))");
        server.run("d, _ = l.accept(); d.settimeout(15)");
        let names = "c.getsockname(), c.getpeername()";
        let before = client.run(names);
        let mut round = |bytes: u32| {
            client.run(&format!("c.sendall(pattern({bytes}, 1))"));
            server.run(&format!("got = b''\nwhile len(got) < {bytes}: got += d.recv(65536)"));
            server.run("d.sendall(got)");
            client.run(&format!("got = b''\nwhile len(got) < {bytes}: got += c.recv(65536)"));
            assert_eq!(client.run(&format!("got == pattern({bytes}, 1)")), "True");
        };
        let mut is_served = || {
            let watches = [Side::A, Side::B].map(|side| ends.net.watch_tcp(side));
            round(100);
            let at = usize::from(library == Library::Client);
            watches[at].moved().segments() == 0
        };
        wait_for("the library to take the connection over", || is_served().then_some(()));
        let watch = ends.watch();
        (0..10).for_each(|_| round(20_000));
        watch.still(0);
        assert_eq!(client.run(names), before);
        // And back.
        client.run("if os.fork() == 0:\n c.sendall(b'from a child'); os._exit(0)");
        assert_eq!(server.run("d.recv(100)"), "b'from a child'");
    }
}

/// A pipe of shared memory has the bytes of an IPv4 connection within the host, whatever the family of its ends.
// covers: NET-41
#[test]
fn connections_within_the_host_are_served() {
    let net = Namespaces::new();
    let mut server = net.puppet(Side::A);
    let mut client = net.puppet(Side::A);
    server.run(LISTEN);
    client.run(LISTEN);
    server.run("l = dual(7000); l.listen(); select.select([l], [], [], 0)");
    for (connect, peer) in [
        ("c = create_connection(('127.0.0.1', 7000))", "('127.0.0.1', 7000)"),
        ("c = dual(); c.connect(('::ffff:127.0.0.1', 7000))", "('::ffff:127.0.0.1', 7000, 0, 0)"),
        ("c = dual(); c.connect(('::ffff:10.99.0.1', 7000))", "('::ffff:10.99.0.1', 7000, 0, 0)"),
    ] {
        client.run(connect);
        client.run("c.settimeout(15)");
        server.run("d, _ = l.accept(); d.settimeout(15)");
        let echo = |server: &mut Puppet, client: &mut Puppet| {
            server.begin("for n in range(200):\n while len(d.recv(1000, MSG_WAITALL)) < 1000: pass\n d.sendall(b'y' * 1000)");
            client.run("for n in range(200):\n c.sendall(b'x' * 1000)\n c.recv(1000, MSG_WAITALL)");
            server.end("echo");
        };
        echo(&mut server, &mut client);
        let watch = net.watch_tcp(Side::A);
        echo(&mut server, &mut client);
        watch.still(1);
        assert_eq!(client.run("c.getpeername()"), peer);
        assert!(server.run("d.getsockname()[0]").contains("::ffff:"));
        // The end, and the kernel's connection is whole.
        client.run("c.sendall(b'last'); c.close()");
        assert_eq!(server.run("d.recv(100), d.recv(100)"), "(b'last', b'')");
        server.run("d.close()");
    }
    client.run("c = dual(); c.connect(('::1', 7000)); c.sendall(b'six')");
    server.run("d, _ = l.accept(); d.settimeout(15)");
    assert_eq!(server.run("d.recv(100)"), "b'six'");
}

/// iperf3 as it is without options.
// covers: API-02, NET-03
#[test]
fn iperf3_listens_by_both_families() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        let server = ends.server("iperf3").args("-s -1").start_shown();
        wait_for("iperf3 to listen", || {
            ends.net.read_proc(Side::A, "tcp6").contains(":1451 ").then_some(())
        });
        let watch = ends.watch();
        let client = ends.client("iperf3").args("-c ::ffff:10.99.0.1 -J -t 1").run();
        client.says("\"sum_received\"");
        watch.still(3);
        drop(server);
    }
}

/// Node's `listen()` is on `::` unless told otherwise; without Node there is nothing to see.
#[test]
fn node_listens_by_both_families() {
    if !Path::new("/usr/bin/node").exists() {
        return;
    }
    let ends = Ends::new(Library::Server);
    with_ipv6(&ends.net);
    let script = "
require('http').createServer((request, answer) => answer.end('seen by ' + request.socket.remoteAddress))
    .listen(8080);";
    let server = ends.server("node").arg("-e").arg(script).start_shown();
    wait_for("node to listen", || {
        ends.net.read_proc(Side::A, "tcp6").contains(":1F90 ").then_some(())
    });
    // Its flows follow at once.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let watch = ends.net.watch_tcp(Side::A);
    for (host, peer) in [("10.99.0.1", "::ffff:10.99.0.2"), ("[fd00:99::1]", "fd00:99::2")] {
        let words = format!("-sS --max-time 20 http://{host}:8080/");
        let curl = ends.client("curl").args(&words).run().ok();
        assert_eq!(curl.stdout, format!("seen by {peer}"));
    }
    watch.still(0);
    drop(server);
}

/// Java's selectors and its clients of HTTP, of either family; without Java there is nothing to see.
// covers: LIM-23
#[test]
fn java_serves_and_asks_by_its_defaults() {
    if !Path::new("/usr/bin/java").exists() {
        return;
    }
    const SERVER: &str = "
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
class Server {
    public static void main(String[] words) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(8080), 0);
        server.createContext(\"/\", exchange -> {
            byte[] answer = exchange.getRemoteAddress().getAddress().getHostAddress().getBytes();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
        System.out.println(\"ready\");
    }
}";
    const CLIENT: &str = "
import java.net.URI;
import java.net.http.*;
class Client {
    public static void main(String[] words) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String url : words)
            for (int n = 0; n < 50; n++) {
                HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
                String seen = client.send(request, HttpResponse.BodyHandlers.ofString()).body();
                if (n == 49) System.out.println(\"seen \" + seen);
            }
        System.exit(0);
    }
}";
    for library in [Library::Server, Library::Client] {
        let ends = Ends::new(library);
        with_ipv6(&ends.net);
        let names = [("Server.java", SERVER), ("Client.java", CLIENT)];
        let [server, client] = names.map(|(name, text)| {
            let path = ends.net.file(name);
            std::fs::write(&path, text).unwrap();
            format!("-XX:TieredStopAtLevel=1 {}", path.display())
        });
        let mut server = ends.server("java").args(&server).start_shown();
        server.wait_for_text("ready");
        ends.net.wait_for_listener(Side::A, 8080);
        let watch = ends.watch();
        let urls = "http://10.99.0.1:8080/ http://[fd00:99::1]:8080/";
        let client = ends.client("java").args(&client).args(urls).run().ok();
        for seen in ["seen 10.99.0.2", "seen fd00:99:0:0:0:0:0:2"] {
            assert!(client.stdout.contains(seen), "{}", client.stdout);
        }
        watch.still(2);
        drop(server);
    }
}
