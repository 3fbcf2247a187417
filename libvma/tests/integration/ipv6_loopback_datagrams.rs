//! UDP within the host over `::1`: shared memory has the datagrams as it has those over 127.0.0.1, and the names are the kernel's.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};

use crate::dual_stack::{of, with_ipv6};
use crate::dual_stack_datagrams::{GO_ON, WAYS};
use crate::harness::{Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};
use crate::ipv6_loopback::both;

/// Sockets of AF_INET6, and questions to an echo server.
const SIX: &str = "
def six(at=None, peer=None, only=None, share=0):
    s = socket(AF_INET6, SOCK_DGRAM)
    if only is not None: s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, only)
    if share: s.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
    s.settimeout(15)
    if at: s.bind(at)
    if peer: s.connect(peer)
    return s
def ask(c, n, to=None, size=100):
    global peer
    for number in range(n):
        question = pattern(size, number)
        c.sendto(question, to) if to else c.send(question)
        answer, peer = c.recvfrom(65535)
        assert answer == question, number
";

/// A server and a client under the library.
fn pair(net: &Namespaces) -> (Puppet, Puppet) {
    both(net, SIX)
}

/// Questions by `ask` of the client, and answers of the server's `s`.
#[track_caller]
fn exchange(server: &mut Puppet, client: &mut Puppet, ask: &str, count: u32) {
    let echo = format!("echo(s, {count})");
    server.begin(&echo);
    client.run(ask);
    server.end(&echo);
}

/// 200 questions and answers, of which the kernel sees none.
#[track_caller]
fn goes_past_the_kernel(net: &Namespaces, server: &mut Puppet, client: &mut Puppet, to: &str) {
    let ask = format!("ask(c, 200, {to})");
    wait_for("the two to have found each other", || {
        let watch = net.watch_ipv6(Side::A);
        exchange(server, client, &ask, 200);
        (watch.moved() == (0, 0)).then_some(())
    });
    let watches = (net.watch_ipv6(Side::A), net.watch(Side::A));
    exchange(server, client, &ask, 200);
    watches.0.still();
    watches.1.still();
}

const TO: &str = "('::1', 5000)";

/// The ways to make a server that datagrams to `::1` reach.
const SERVERS: [&str; 4] = [
    "s = six(('::1', 5000))",
    "s = six(('::', 5000), only=0)",
    "s = six(('::', 5000), only=1)",
    "s = six(('::1', 5000), only=0)",
];

/// Clients, and the destination that their calls name.
const CLIENTS: [(&str, &str); 5] = [
    ("c = six()", TO),
    ("c = six(peer=('::1', 5000))", "None"),
    ("c = six(('::1', 0))", TO),
    ("c = six(('::', 0), only=1)", TO),
    ("c = six(('::1', 0), ('::1', 5000))", "None"),
];

/// A statement about `::1` as one about another address.
fn at(statement: &str, address: &str) -> String {
    statement.replace("'::1'", &format!("'{address}'"))
}

// covers: LIM-52
#[test]
fn datagrams_over_the_loopback_address_of_ipv6_are_served() {
    datagrams_are_served_at("::1");
}

// covers: LIM-52
#[test]
fn datagrams_over_the_hosts_own_addresses_of_ipv6_are_served() {
    datagrams_are_served_at(&of(Side::A).to_string());
}

fn datagrams_are_served_at(address: &str) {
    for server in SERVERS {
        let net = Namespaces::new();
        with_ipv6(&net);
        let (mut program, mut client) = pair(&net);
        program.run(&at(server, address));
        for (open, to) in CLIENTS {
            client.run(&at(open, address));
            let to = &at(to, address);
            goes_past_the_kernel(&net, &mut program, &mut client, to);
            assert_eq!(client.run("peer"), format!("('{address}', 5000, 0, 0)"));
            let port = client.run("c.getsockname()[1]");
            program.begin("d, peer = s.recvfrom(100)");
            client.run(&format!("c.sendto(b'x', {to}) if {to} else c.send(b'x')"));
            program.end("recvfrom");
            assert_eq!(program.run("peer"), format!("('{address}', {port}, 0, 0)"));
            let own = if to == "None" || open.contains("::1") { address } else { "::" };
            assert_eq!(client.run("c.getsockname()"), format!("('{own}', {port}, 0, 0)"));
            if to == "None" {
                let there = format!("('{address}', 5000, 0, 0)");
                assert_eq!(client.run("c.getpeername()"), there);
            }
            client.run("c.close()");
        }
        for mut puppet in [program, client] {
            let traffic = puppet.finish();
            assert!(traffic.rx > 1000 && traffic.tx > 1000, "{server}: {traffic:?}");
            assert!(!puppet.stderr().contains("IPv6"), "{}", puppet.stderr());
        }
    }
}

/// The names and control messages of datagrams, as statements whose values are the same without the library.
const TOLD: &str = "
NAMES = {IPV6_PKTINFO: 'info', IPV6_HOPLIMIT: 'hops', IPV6_TCLASS: 'class', 74: 'destination', 2: 'old info', 8: 'old hops'}
def told(s, size=100, flags=0, room=500):
    data, control, flags, peer = s.recvmsg(size, room, flags)
    return data, [(NAMES.get(kind, (level, kind)), value.hex()) for level, kind, value in control], int(flags), peer[0], peer[2:]
";

/// Statements of the client, and those by which the server then tells what it got.
const TELLING: [(&str, &str); 20] = [
    ("c.sendto(b'plain', TO)", "told(s)"),
    ("c.sendmsg([b'two ', b'parts'], [], 0, TO)", "told(s)"),
    ("c.sendto(b'', TO)", "told(s)"),
    ("c.sendto(b'cut off', TO)", "told(s, 3)"),
    ("c.sendto(b'cut off', TO)", "told(s, 3, MSG_TRUNC)"),
    ("c.sendto(b'peek', TO)", "[told(s, 3, MSG_PEEK), told(s, 3, MSG_PEEK | MSG_TRUNC), told(s)]"),
    ("c.sendto(b'x' * 9000, TO)", "len(told(s, 65535)[0])"),
    ("c.sendto(b'x' * 65000, TO)", "len(told(s, 65535)[0])"),
    ("c.sendto(b'x' * 65507, TO)", "len(told(s, 65535)[0])"),
    ("c.sendto(b'x' * 65527, TO)", "len(told(s, 65535)[0])"),
    ("c.setsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9); c.sendto(b'nine hops', TO)", "told(s)"),
    ("c.setsockopt(IPPROTO_IPV6, IPV6_TCLASS, 0xb8); c.sendto(b'a class', TO)", "told(s)"),
    (
        "c.setsockopt(IPPROTO_IP, IP_TTL, 5); c.setsockopt(IPPROTO_IP, IP_TOS, 4); c.sendto(b'of IPv4', TO)",
        "told(s)",
    ),
    (
        "c.sendmsg([b'by the call'], [(IPPROTO_IPV6, IPV6_TCLASS, struct.pack('i', 2)), (IPPROTO_IPV6, IPV6_HOPLIMIT, struct.pack('i', 7))], 0, TO)",
        "told(s)",
    ),
    ("c.sendmsg([b'of IPv4'], [(IPPROTO_IP, IP_TOS, struct.pack('i', 8))], 0, TO)", "told(s)"),
    (
        "c.sendmsg([b'from'], [(IPPROTO_IPV6, IPV6_PKTINFO, inet_pton(AF_INET6, '::1') + bytes(4))], 0, TO)",
        "told(s)",
    ),
    (
        "c.sendmsg([b'train' * 3], [(IPPROTO_UDP, 103, struct.pack('H', 5))], 0, TO)",
        "[told(s), told(s), told(s)]",
    ),
    ("c.sendto(b'little room', TO)", "told(s, room=30)"),
    ("c.sendto(b'a scope', ('::1', 5000, 0, 1))", "told(s)"),
    ("c.sendto(b'a label', ('::1', 5000, 77, 0))", "told(s)"),
];

/// Calls that fail, or that answer without a datagram.
const ANSWERS: [&str; 12] = [
    "raised(lambda: c.sendto(b'x', ('::1', 0)))",
    "raised(lambda: c.sendto(b'x' * 65528, TO))",
    "raised(lambda: c.sendmsg([b'x'], [(IPPROTO_IPV6, IPV6_PKTINFO, inet_pton(AF_INET6, '2001:db8::1') + bytes(4))], 0, TO))",
    "raised(lambda: c.sendmsg([b'x'], [(IPPROTO_IPV6, IPV6_HOPLIMIT, struct.pack('i', 256))], 0, TO))",
    "raised(lambda: socket(AF_INET, SOCK_DGRAM).connect_ex(('127.0.0.1', 5000)))",
    "raised(lambda: six(('::1', 0)).sendto(b'x', ('::ffff:127.255.255.255', 5000)))",
    "raised(lambda: six(only=1).sendto(b'x', ('::ffff:127.0.0.1', 5000)))",
    "raised(lambda: six(('::ffff:127.0.0.1', 0)).sendto(b'x', TO))",
    "raised(lambda: udp().sendto(b'x', ('127.255.255.255', 5000)))",
    "raised(lambda: six(('::1', 5000)))",
    "raised(lambda: six(peer=('::1', 5000)).sendto(b'', ('::1', 0)))",
    "[s.getsockopt(IPPROTO_IPV6, option) for s in [six(peer=('::1', 5000))] for option in (IPV6_TCLASS, IPV6_UNICAST_HOPS, 23, 24)]",
];

/// All options that have control messages made, and what the messages say; the same of the kernel alone.
#[test]
fn what_is_told_of_a_datagram_is_what_the_kernel_tells() {
    is_told_alike_at("::1");
}

#[test]
fn what_is_told_of_a_datagram_to_another_address_is_what_the_kernel_tells() {
    is_told_alike_at(&of(Side::A).to_string());
}

fn is_told_alike_at(address: &str) {
    let at = |statement: &str| at(statement, address);
    let told = |library: bool| {
        let net = Namespaces::new();
        with_ipv6(&net);
        let start = || {
            let program = net.program(Side::A, PYTHON);
            let mut puppet = Puppet::start(if library { program.with_library() } else { program });
            puppet.run("import struct");
            puppet.run(SIX);
            puppet.run(TOLD);
            puppet.run(&at("TO = ('::1', 5000)"));
            puppet.run("def raised(call):\n try: return call()\n except OSError as error: return errno.errorcode[error.errno]");
            puppet
        };
        let mut all = Vec::new();
        for open in ["s = six(('::1', 5000))", "s = six(('::', 5000), only=0)"] {
            let (mut server, mut client) = (start(), start());
            server.run(&at(open));
            client.run("c = six()");
            if library {
                goes_past_the_kernel(&net, &mut server, &mut client, "TO");
            } else {
                exchange(&mut server, &mut client, "ask(c, 3, TO)", 3);
            }
            let options = "for option in OPTIONS: s.setsockopt(IPPROTO_IPV6, option, 1)";
            for set in [
                "pass".to_owned(),
                format!(
                    "OPTIONS = [IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS]\n{options}"
                ),
                format!("OPTIONS = [2, 8, 74]\n{options}"),
            ] {
                server.run(&set);
                for (send, receive) in TELLING {
                    let sent = client.run(&at(send));
                    all.push(format!("{open}: {set}: {send} = {sent}: {}", server.run(receive)));
                }
            }
            for answer in ANSWERS {
                all.push(format!("{open}: {answer} = {}", client.run(&at(answer))));
            }
        }
        all
    };
    let (kernel, library) = (told(false), told(true));
    for (kernel, library) in kernel.iter().zip(&library) {
        assert_eq!(kernel, library);
    }
}

/// The port is free, or free again: a connected socket hears of it by its next call.
#[test]
fn refusals_are_those_of_the_kernel() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    client.run("c = six(peer=('::1', 5000)); c.send(b'x')");
    assert!(client.raises("c.recv(1)").contains("ConnectionRefused"));
    assert_eq!(client.run("c.getsockopt(SOL_SOCKET, SO_ERROR)"), "0");
    // A socket of IPv4 on the port is another one.
    server.run("four = udp(('127.0.0.1', 5000))");
    client.run("c.send(b'x')");
    assert!(client.raises("c.recv(1)").contains("ConnectionRefused"));
    server.run("s = six(('::1', 5000))");
    goes_past_the_kernel(&net, &mut server, &mut client, "None");
    server.run("s.close()");
    wait_for("the refusal", || {
        client.run("refused = 0\ntry: c.send(b'x')\nexcept ConnectionRefusedError: refused = 1");
        (client.run("refused") == "1").then_some(())
    });
    assert_eq!(server.run("drain(four)"), "[]");
    // An unconnected one hears nothing.
    client.run("u = six(); u.sendto(b'x', ('::1', 5000)); u.sendto(b'x', ('::1', 5000))");
    assert_eq!(client.run("u.getsockopt(SOL_SOCKET, SO_ERROR)"), "0");
    assert_eq!(client.run("drain(u)"), "[]");
}

/// The port spaces of the families are the kernel's: each datagram reaches the socket that it would have reached.
#[test]
fn each_family_has_its_own_ports() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::', 5000), only=1); four = udp(('0.0.0.0', 5000))");
    client.run("c = six(); f = udp()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    // The same of IPv4, beside it.
    wait_for("the two to have found each other by IPv4", || {
        let watch = net.watch(Side::A);
        server.begin("echo(four, 50)");
        client.run("ask(f, 50, ('127.0.0.1', 5000))");
        server.end("echo");
        (watch.moved() == (0, 0)).then_some(())
    });
    let watches = (net.watch_ipv6(Side::A), net.watch(Side::A));
    for _ in 0..20 {
        client.run("c.sendto(b'six', ('::1', 5000)); f.sendto(b'four', ('127.0.0.1', 5000))");
        assert_eq!(server.run("s.recv(9), four.recv(9)"), "(b'six', b'four')");
    }
    watches.0.still();
    watches.1.still();
    assert_eq!(server.run("drain(s), drain(four)"), "([], [])");
    // A better socket of another process: connected to the client, or at the very address.
    let mut other = net.puppet(Side::A);
    other.run(SIX);
    client.run("c = six(('::1', 0))");
    let port = client.run("c.getsockname()[1]");
    server.run(
        "s.close(); s = six(); s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); s.bind(('::', 5001))",
    );
    goes_past_the_kernel(&net, &mut server, &mut client, "('::1', 5001)");
    other.run("o = six(); o.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); o.bind(('::1', 5001))");
    other.run(&format!("o.connect(('::1', {port})); o.settimeout(0.01); got = b''"));
    wait_for("the better socket to be found", || {
        client.run("c.sendto(b'for whom', ('::1', 5001))");
        other.run("try: got = o.recv(100)\nexcept TimeoutError: pass");
        (other.run("got") == "b'for whom'").then_some(())
    });
}

// covers: API-34
#[test]
fn a_socket_goes_on_in_another_process_with_what_waits_in_it() {
    for server in SERVERS {
        for (way, how) in WAYS {
            let net = Namespaces::new();
            std::fs::write(net.file("on.py"), GO_ON).unwrap();
            let (mut program, mut client) = pair(&net);
            program.run(server);
            client.run("c = six()");
            goes_past_the_kernel(&net, &mut program, &mut client, TO);
            let watch = net.watch_ipv6(Side::A);
            client.run("[c.sendto(data, ('::1', 5000)) for data in (b'one', b'two')]");
            assert_eq!(program.run("s.recv(9, MSG_PEEK)"), "b'one'");
            watch.still();
            program.run(how);
            assert_eq!(client.run("[c.recvfrom(9) for _ in range(2)]").matches("::1").count(), 2);
            client.run("c.sendto(b'later', ('::1', 5000))");
            assert_eq!(client.run("c.recv(9)"), "b'later'", "{way}");
        }
    }
}

/// A process without the library at the other end, and other addresses of IPv6.
// covers: LIM-52
#[test]
fn what_is_not_within_the_host_and_the_library_is_the_kernels() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut program = net.puppet(Side::A);
    program.run(SIX);
    program.run("s = six(('::', 5000)); c = six()");
    for (at, to) in [(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST), (of(Side::A), of(Side::A))] {
        let there = SocketAddrV6::new(at, 0, 0, 0);
        let peer = net.within(Side::A, || UdpSocket::bind(there)).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let port = peer.local_addr().unwrap().port();
        let mut got = [0; 100];
        for round in 0..50 {
            program.run(&format!("c.sendto(b'{round}', ('{at}', {port}))"));
            let (len, from) = peer.recv_from(&mut got).unwrap();
            peer.send_to(&got[..len], from).unwrap();
            assert_eq!(program.run("c.recv(100)"), format!("b'{round}'"));
            peer.send_to(&got[..len], (to, 5000)).unwrap();
            let expected = format!("(b'{round}', ('{at}', {port}, 0, 0))");
            assert_eq!(program.run("s.recvfrom(100)"), expected);
        }
    }
}

/// Options that only the kernel serves have it do so, and the order is kept when the way changes.
#[test]
fn options_of_ipv6_that_only_the_kernel_knows_are_its_own() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::1', 5000))");
    client.run("c = six()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    // A header of options with nothing in it but padding (RFC 8200 section 4.6).
    client.run("for n in range(10): c.sendto(b'%d' % n, ('::1', 5000))");
    client.run("c.setsockopt(IPPROTO_IPV6, 59, bytes([0, 0, 1, 4, 0, 0, 0, 0]))");
    let watch = net.watch_ipv6(Side::A);
    client.run("for n in range(10, 20): c.sendto(b'%d' % n, ('::1', 5000))");
    assert_eq!(server.run("[int(s.recv(9)) for _ in range(20)] == list(range(20))"), "True");
    assert_eq!(watch.moved(), (10, 10));
    // Flow labels of the kernel's are told.
    client.run("c = six()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    server.run("s.setsockopt(IPPROTO_IPV6, 11, 1)");
    let watch = net.watch_ipv6(Side::A);
    exchange(&mut server, &mut client, "ask(c, 20, ('::1', 5000))", 20);
    assert_eq!(watch.moved(), (40, 40));
}

/// Calls by which the kernel sends a datagram to the server: of these only the last two are looked at by the library.
const BY_KERNEL: [&str; 5] = [
    // More than a packet of IPv4 has room for.
    "c.sendto(b'2' * 65508, TO)",
    "c.sendto(b'2', ('::', 5000))",
    "c.sendto(b'2', ('::1', 5000, 77, 0))",
    "c.sendmsg([b'2'], [(IPPROTO_IPV6, IPV6_TCLASS, bytes([255] * 4))], 0, TO)",
    "c.sendto(b'2', MSG_DONTROUTE, TO)",
];

#[test]
fn what_the_kernel_sends_keeps_its_place() {
    for address in ["::1".to_owned(), of(Side::A).to_string()] {
        let net = Namespaces::new();
        with_ipv6(&net);
        let (mut server, mut client) = pair(&net);
        server.run("s = six(('::', 5000), only=0)");
        client.run(&at("c = six(); TO = ('::1', 5000)", &address));
        for call in BY_KERNEL {
            let call = at(call, &address);
            goes_past_the_kernel(&net, &mut server, &mut client, "TO");
            for round in 0..3 {
                let watch = net.watch_ipv6(Side::A);
                client.run(&format!("c.sendto(b'1', TO); {call}; c.sendto(b'3', TO)"));
                client.run(&format!("{call}; {call}; c.sendto(b'4', TO)"));
                let got = server.run("b''.join(s.recv(65535)[:1] for _ in range(6))");
                assert_eq!(got, "b'123224'", "{call}, {round}");
                assert_eq!(watch.moved(), (3, 3), "{call}");
            }
        }
    }
}

/// An MTU of the socket's own is the kernel's to heed.
#[test]
fn what_is_too_long_for_the_sockets_mtu_is_refused() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::1', 5000))");
    client.run("c = six()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    client.run(
        "[c.setsockopt(IPPROTO_IPV6, option, value) for option, value in [(24, 1280), (62, 1)]]",
    );
    assert!(client.raises("c.sendto(bytes(1300), ('::1', 5000))").contains("Message too long"));
    exchange(&mut server, &mut client, "ask(c, 5, ('::1', 5000))", 5);
}

/// Whoever is bound to it or sends to it, an address that the host has lost is not reached.
#[test]
fn the_host_may_lose_its_loopback_address() {
    for server in ["s = six(('::1', 5000))", "s = six(('::', 5000), only=0)"] {
        for client_socket in ["c = six()", "c = six(('::1', 0))"] {
            let net = Namespaces::new();
            let (mut program, mut client) = pair(&net);
            program.run(server);
            client.run(client_socket);
            goes_past_the_kernel(&net, &mut program, &mut client, TO);
            net.ip(Side::A, "-6 address del ::1/128 dev lo");
            let kernels = net.within(Side::A, || UdpSocket::bind("[::]:0")).unwrap();
            let refused = kernels.send_to(b"x", "[::1]:5000").unwrap_err();
            client.run("lost = 0");
            wait_for("the error", || {
                client.run("try: c.sendto(b'x', ('::1', 5000))\nexcept OSError as error: lost = error.errno");
                (client.run("lost") != "0").then_some(())
            });
            if client_socket == "c = six()" {
                assert_eq!(client.run("lost"), refused.raw_os_error().unwrap().to_string());
            }
            client.run("try: c.sendto(b'x', ('::1', 5000))\nexcept OSError: lost = 'again'");
            assert_eq!(client.run("lost"), "'again'");
            net.ip(Side::A, "-6 address add ::1/128 dev lo");
            // The kernel has it a moment later.
            wait_for("the address", || kernels.send_to(b"x", "[::1]:5000").ok());
            program.run("drain(s)");
            goes_past_the_kernel(&net, &mut program, &mut client, TO);
        }
    }
}

/// Datagrams to an address that the host has only just got, and from there, arrive, each once.
#[test]
fn the_host_may_get_and_lose_another_address() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::', 5000))");
    client.run("c = six()");
    let first = format!("('{}', 5000)", of(Side::A));
    goes_past_the_kernel(&net, &mut server, &mut client, &first);
    for round in 0..5 {
        let own = format!("fd00:99::7{round}");
        let to = format!("('{own}', 5000)");
        net.add_ipv6(Side::A, &own);
        client.run(&format!("c = six(('{own}', 0))"));
        for number in 0..40 {
            client.run(&format!("c.sendto(b'{number}', {to})"));
        }
        let port = client.run("c.getsockname()[1]");
        let got = server.run("[s.recvfrom(100) for _ in range(40)]");
        let expected: Vec<_> =
            (0..40).map(|n| format!("(b'{n}', ('{own}', {port}, 0, 0))")).collect();
        assert_eq!(got, format!("[{}]", expected.join(", ")));
        assert_eq!(server.run("drain(s)"), "[]");
        goes_past_the_kernel(&net, &mut server, &mut client, &to);
        net.ip(Side::A, &format!("-6 address del {own}/64 dev {}", Side::A.device()));
        wait_for("the host to have lost it", || {
            server.run("drain(s)");
            client.run(&format!("c.sendto(b'x', {to})"));
            server.run("select.select([s], [], [], 0.05)");
            (server.run("drain(s)") == "[]").then_some(())
        });
        client.run("c.close()");
    }
}

/// The kernel says which member of a group gets a flow.
#[test]
fn a_shared_port_is_served_and_shared() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::1', 5000), share=1)");
    client.run("c = six()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    server.run("t = six(('::1', 5000), share=1)");
    client.run("for n in range(40): six().sendto(b'%d' % n, ('::1', 5000))");
    assert_eq!(server.run("sorted(map(int, drain(s) + drain(t))) == list(range(40))"), "True");
}

/// A rule that names IPv4 addresses is not for `::1`, the stand-in's among them; one for all addresses is.
// covers: CONF-10, CONF-13, CONF-14
#[test]
fn rules_and_parameters_leave_it_to_the_kernel() {
    let of_ipv4 = "use os udp_receiver 127.0.0.1:5000\nuse os udp_sender 127.0.0.0/8:*\n";
    let all = "use os udp_receiver *:5000\n";
    let connected = "c = six(peer=('::1', 5000))";
    for (of_server, of_client, local, open, kernel) in [
        (of_ipv4, of_ipv4, "1", connected, false),
        (of_ipv4, "use os udp_sender 127.255.255.255:*\n", "1", "c = six()", false),
        (all, "", "1", "c = six()", true),
        ("", "use os udp_sender *:5000\n", "1", "c = six()", true),
        ("", "use os udp_connect *:5000:*:*\n", "1", connected, true),
        ("", "", "0", "c = six()", true),
    ] {
        let net = Namespaces::new();
        let ruled = |name: &str, rules: &str| {
            let file = net.file(name);
            std::fs::write(&file, rules).unwrap();
            let program = net.program(Side::A, PYTHON).with_library().env("VMA_LOCAL", local);
            let mut puppet = Puppet::start(program.env("VMA_CONFIG_FILE", file.to_str().unwrap()));
            puppet.run(SIX);
            puppet
        };
        let (mut server, mut client) = (ruled("server", of_server), ruled("client", of_client));
        server.run("s = six(('::1', 5000))");
        client.run(open);
        if !kernel {
            let to = if open == connected { "None" } else { TO };
            goes_past_the_kernel(&net, &mut server, &mut client, to);
            continue;
        }
        let watch = net.watch_ipv6(Side::A);
        exchange(&mut server, &mut client, "ask(c, 50, ('::1', 5000))", 50);
        assert!(watch.moved().0 >= 50 && watch.moved().1 >= 50, "{of_server}{of_client}{local}");
    }
}

/// A rule for one address is one for a socket that takes what comes to all.
#[test]
fn a_rule_may_name_one_of_the_hosts_own_addresses() {
    for open in ["s = six(('::', 5000), only=1)", "s = six(('::', 5000), only=0)"] {
        let net = Namespaces::new();
        with_ipv6(&net);
        let own = of(Side::A);
        let file = net.file("rules");
        std::fs::write(&file, format!("use os udp_receiver [{own}]:5000\n")).unwrap();
        let program = net.program(Side::A, PYTHON).with_library();
        let program = program.env("VMA_CONFIG_FILE", file.to_str().unwrap());
        let (mut server, mut client) = (Puppet::start(program), net.puppet(Side::A));
        server.run(SIX);
        client.run(SIX);
        server.run(open);
        client.run("c = six()");
        let watch = net.watch_ipv6(Side::A);
        exchange(&mut server, &mut client, &format!("ask(c, 50, ('{own}', 5000))"), 50);
        assert!(watch.moved().0 >= 50 && watch.moved().1 >= 50, "{open}");
    }
}

/// Waiting calls of all kinds wake.
#[test]
fn a_sleeping_call_wakes() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s = six(('::', 5000), only=1); s.settimeout(None)");
    client.run("c = six()");
    goes_past_the_kernel(&net, &mut server, &mut client, TO);
    server.run("e = select.epoll(); e.register(s, select.EPOLLIN)");
    let watch = net.watch_ipv6(Side::A);
    for sleep in [
        "s.recvfrom(100)[0]",
        "select.select([s], [], [], 15)[0] and s.recv(100)",
        "e.poll(15) == [(s.fileno(), 1)] and s.recv(100)",
    ] {
        server.begin(sleep);
        server.wait_until_asleep();
        client.run("c.sendto(b'wake', ('::1', 5000))");
        assert_eq!(server.end(sleep), "b'wake'");
    }
    watch.still();
}
