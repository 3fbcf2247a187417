//! TCP connections within the host over `::1`, where `localhost` leads first: shared memory has their bytes as it has those over
//! 127.0.0.1, and the names are the kernel's.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6, TcpListener, TcpStream};

use crate::dual_stack::{GO_ON, WAYS, of, with_ipv6};
use crate::harness::{Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};

/// Listeners and clients of AF_INET6.
const SIX: &str = "
def six(port, at, only=None, shared=0):
    s = socket(AF_INET6, SOCK_STREAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEPORT, shared)
    if only is not None: s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, only)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    s.bind((at, port))
    s.listen()
    s.settimeout(15)
    return s
def call(port, at='::1'):
    s = socket(AF_INET6, SOCK_STREAM)
    s.settimeout(15)
    s.connect((at, port))
    return s
def serve(c, n):
    for _ in range(n):
        c.sendall(c.recv(1000, MSG_WAITALL)[::-1])
def ask(c, n, salt=0):
    for number in range(n):
        question = pattern(1000, number + salt)
        c.sendall(question)
        assert c.recv(1000, MSG_WAITALL) == question[::-1], number
";

/// A server and a client under the library.
fn pair(net: &Namespaces) -> (Puppet, Puppet) {
    both(net, SIX)
}

/// Two processes under the library, with these functions.
pub fn both(net: &Namespaces, functions: &str) -> (Puppet, Puppet) {
    let (mut server, mut client) = (net.puppet(Side::A), net.puppet(Side::A));
    server.run(functions);
    client.run(functions);
    (server, client)
}

/// 200 questions and answers between `d` of the server and `c` of the client, of which the kernel sees none.
#[track_caller]
fn goes_past_the_kernel(net: &Namespaces, server: &mut Puppet, client: &mut Puppet) {
    let mut exchange = || {
        server.begin("serve(d, 200)");
        client.run("ask(c, 200)");
        server.end("serve");
    };
    // The pipe is agreed upon, at the latest while the connection lives.
    wait_for("the connection to have a pipe", || {
        let watch = net.watch_tcp(Side::A);
        exchange();
        (watch.moved().segments() == 0).then_some(())
    });
    let watch = net.watch_tcp(Side::A);
    exchange();
    watch.still(0);
}

/// The last data and the end of both directions arrive.
#[track_caller]
fn ends_well(server: &mut Puppet, client: &mut Puppet) {
    client.run("c.sendall(b'last'); c.shutdown(SHUT_WR)");
    assert_eq!(server.run("d.recv(100), d.recv(100)"), "(b'last', b'')");
    server.run("d.sendall(b'answer'); d.close()");
    assert_eq!(client.run("c.recv(100), c.recv(100)"), "(b'answer', b'')");
    client.run("c.close()");
}

/// The ways to make a listener that connections over `::1` reach.
const LISTENERS: [&str; 4] = [
    "l = six(7000, '::1')",
    "l = six(7000, '::', 0)",
    "l = six(7000, '::', 1)",
    "l = six(7000, '::1', 0)",
];

/// A statement about `::1` as one about another address.
fn at(statement: &str, address: &str) -> String {
    statement.replace("'::1'", &format!("'{address}'"))
}

// covers: API-02, API-05, API-07, NET-41
#[test]
fn connections_over_the_loopback_address_of_ipv6_are_served() {
    connections_are_served_at("::1");
}

// covers: LIM-52
#[test]
fn connections_over_the_hosts_own_addresses_of_ipv6_are_served() {
    connections_are_served_at(&of(Side::A).to_string());
}

fn connections_are_served_at(address: &str) {
    for listener in LISTENERS {
        let net = Namespaces::new();
        with_ipv6(&net);
        let (mut server, mut client) = pair(&net);
        server.run(&at(listener, address));
        let non_blocking = "c = socket(AF_INET6, SOCK_STREAM); c.setblocking(False)
try: c.connect(('::1', 7000))
except BlockingIOError: pass
assert select.select([], [c], [], 15)[1] == [c]
assert c.getsockopt(SOL_SOCKET, SO_ERROR) == 0
assert c.connect_ex(('::1', 7000)) in (0, errno.EISCONN)
c.settimeout(15)";
        let bound = "c = socket(AF_INET6, SOCK_STREAM); c.bind(('::1', 0)); c.connect(('::1', 7000)); c.settimeout(15)";
        let only = "c = socket(AF_INET6, SOCK_STREAM); c.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1); c.bind(('::', 0)); c.connect(('::1', 7000)); c.settimeout(15)";
        for connect in ["c = call(7000, '::1')", non_blocking, bound, only] {
            client.run(&at(connect, address));
            server.run("d, peer = l.accept(); d.settimeout(15)");
            goes_past_the_kernel(&net, &mut server, &mut client);
            let port = client.run("c.getsockname()[1]");
            let [there, here] = ["7000", &port].map(|port| format!("('{address}', {port}, 0, 0)"));
            assert_eq!(client.run("c.getpeername()"), there);
            assert_eq!(client.run("c.getsockname()"), here);
            assert_eq!(server.run("d.getsockname()"), there);
            assert_eq!(server.run("d.getpeername()"), here);
            assert_eq!(server.run("peer"), here);
            for end in [("c", &mut client), ("d", &mut server)] {
                let (name, puppet) = end;
                let domain = format!("{name}.getsockopt(SOL_SOCKET, SO_DOMAIN) == AF_INET6");
                assert_eq!(puppet.run(&domain), "True");
                let state = format!("{name}.getsockopt(IPPROTO_TCP, TCP_INFO, 8)[0]");
                assert_eq!(puppet.run(&state), "1");
                assert_eq!(puppet.run(&format!("{name}.getsockopt(SOL_SOCKET, SO_ERROR)")), "0");
                // Options of IPv6 are the shadow's.
                puppet.run(&format!("{name}.setsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33)"));
                let hops = format!("{name}.getsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS)");
                assert_eq!(puppet.run(&hops), "33");
            }
            goes_past_the_kernel(&net, &mut server, &mut client);
            ends_well(&mut server, &mut client);
        }
        for puppet in [server, client] {
            let mut puppet = puppet;
            puppet.finish();
            assert!(!puppet.stderr().contains("IPv6"), "{}", puppet.stderr());
        }
    }
}

/// As Node and Java listen.
// covers: API-07, NET-03
#[test]
fn a_listener_of_both_families_serves_connections_of_both_at_once() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("l = six(7000, '::', 0)");
    client
        .run("cs = [create_connection((['::1', '127.0.0.1'][n % 2], 7000), 15) for n in range(8)]");
    server.run("ds = [l.accept()[0] for _ in range(8)]");
    let names = "[d.settimeout(15) or d.getpeername()[0] for d in ds]";
    let expected = ["'::1', '::ffff:127.0.0.1'"; 4].join(", ");
    assert_eq!(server.run(names), format!("[{expected}]"));
    let mut exchange = || {
        server.begin("for d in ds: serve(d, 50)");
        client.run("for n, c in enumerate(cs): ask(c, 50, n)");
        server.end("serve");
    };
    exchange();
    let watch = net.watch_tcp(Side::A);
    exchange();
    watch.still(0);
}

/// The port of one family is not that of the other one, and a more specific listener comes first.
// covers: API-07
#[test]
fn each_connection_reaches_the_listener_that_the_kernel_would_give_it() {
    let net = Namespaces::new();
    let (four, mut client) = pair(&net);
    let six = net.puppet(Side::A);
    let mut servers = [four, six];
    let [four, six] = &mut servers;
    six.run(SIX);
    four.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
    six.run("l = six(7000, '::1')");
    // As one process with both addresses, and another one with any address beside a specific one.
    four.run("m = create_server(('0.0.0.0', 7001)); n = six(7001, '::', 1)");
    four.run("o = six(7002, '::', 0, 1)");
    six.run("o = six(7002, '::1', shared=1)");
    for (to, at, server, listener) in [
        ("127.0.0.1", 7000, 0, "l"),
        ("::1", 7000, 1, "l"),
        ("127.0.0.1", 7001, 0, "m"),
        ("::1", 7001, 0, "n"),
        ("127.0.0.1", 7002, 0, "o"),
        ("::1", 7002, 1, "o"),
    ] {
        let server = &mut servers[server];
        client.run(&format!("c = create_connection(('{to}', {at}), 15)"));
        server.run(&format!(
            "{listener}.settimeout(15); d, _ = {listener}.accept(); d.settimeout(15)"
        ));
        goes_past_the_kernel(&net, server, &mut client);
        ends_well(server, &mut client);
    }
    // A listener that ends leaves its port to the other one. What the client knows of the port it asks again after 100 ms.
    let [four, six] = &mut servers;
    six.run("o.close()");
    wait_for("connections to reach the other listener by a pipe", || {
        client.run("c = call(7002)");
        four.run("d, _ = o.accept(); d.settimeout(15)");
        let mut exchange = || {
            four.begin("serve(d, 50)");
            client.run("ask(c, 50)");
            four.end("serve");
        };
        exchange();
        let watch = net.watch_tcp(Side::A);
        exchange();
        let is_past_the_kernel = watch.moved().segments() == 0;
        ends_well(four, &mut client);
        is_past_the_kernel.then_some(())
    });
}

/// The ports of a connection decide which of the listeners of SO_REUSEPORT gets it.
#[test]
fn each_member_of_a_group_serves_its_connections() {
    let net = Namespaces::new();
    let (one, mut client) = pair(&net);
    let two = net.puppet(Side::A);
    let mut servers = [one, two];
    servers[1].run(SIX);
    for server in &mut servers {
        server.run("l = six(7000, '::1', shared=1)");
    }
    client.run("cs = {}");
    client.run("for _ in range(16): c = call(7000); cs[c.getsockname()[1]] = c");
    let accept = "l.setblocking(False); ds = {}
try:
 while True:
  d, peer = l.accept(); d.settimeout(15); ds[peer[1]] = d
except BlockingIOError: pass";
    // All connections are in the accept queues. The library leaves one that waits there for a second to the kernel.
    for server in &mut servers {
        server.run(accept);
    }
    let mut served = 0;
    for server in &mut servers {
        let ports = server.run("' '.join(map(str, ds))");
        for port in ports.trim_matches('\'').split_whitespace() {
            client.run(&format!("c = cs[{port}]"));
            server.run(&format!("d = ds[{port}]"));
            goes_past_the_kernel(&net, server, &mut client);
            ends_well(server, &mut client);
            served += 1;
        }
    }
    assert_eq!(served, 16);
}

#[test]
fn refusals_are_those_of_the_kernel() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    // An IPv4 listener is nobody's that connects over IPv6, and the other way round.
    server.run("l = create_server(('127.0.0.1', 7000)); m = six(7001, '::1')");
    for (to, port) in [("::1", 7000), ("127.0.0.1", 7001), ("::1", 7002)] {
        let refused = client.raises(&format!("create_connection(('{to}', {port}), 15)"));
        assert!(refused.contains("ConnectionRefused"), "{refused}");
    }
    client.run("c = socket(AF_INET6, SOCK_STREAM); c.setblocking(False)");
    client.run("c.connect_ex(('::1', 7002)); select.select([], [c], [], 15)");
    assert_eq!(client.run("c.getsockopt(SOL_SOCKET, SO_ERROR) == errno.ECONNREFUSED"), "True");
    assert_eq!(client.run("c.getsockopt(SOL_SOCKET, SO_ERROR)"), "0");
    client.run("c.settimeout(15)");
    // The listener is found, and ends before it has accepted: what the client sees is the kernel's affair.
    client.run("c = call(7001)");
    server.run("m.close()");
    let reset = client.raises("c.sendall(b'x'); c.recv(1)");
    assert!(reset.contains("ConnectionReset"), "{reset}");
    // A multicast address is what the library writes for ::1 inside.
    for (family, to) in [("AF_INET", "224.0.0.0"), ("AF_INET6", "::ffff:224.0.0.0")] {
        let refused =
            client.raises(&format!("socket({family}, SOCK_STREAM).connect(('{to}', 7000))"));
        assert!(refused.contains("Network is unreachable"), "{refused}");
    }
}

/// Connections over `::1` and over another address come to one listener, and one from this to that.
// covers: LIM-52
#[test]
fn a_listener_serves_connections_by_all_addresses_of_ipv6() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let own = of(Side::A);
    for listener in ["l = six(7000, '::', 1)", "l = six(7000, '::', 0)"] {
        let (mut server, mut client) = pair(&net);
        server.run(listener);
        for at in [own, Ipv6Addr::LOCALHOST] {
            client.run(&format!("c = call(7000, '{at}')"));
            server.run("d, _ = l.accept(); d.settimeout(15)");
            goes_past_the_kernel(&net, &mut server, &mut client);
            assert_eq!(server.run("d.getsockname()[0]"), format!("'{at}'"));
            ends_well(&mut server, &mut client);
        }
        client.run(&format!(
            "c = socket(AF_INET6, SOCK_STREAM); c.bind(('{own}', 0)); c.settimeout(15)"
        ));
        client.run("c.connect(('::1', 7000))");
        server.run("d, peer = l.accept(); d.settimeout(15)");
        assert_eq!(server.run("peer[0]"), format!("'{own}'"));
        server.begin("serve(d, 20)");
        client.run("ask(c, 20)");
        server.end("serve");
        ends_well(&mut server, &mut client);
        server.run("l.close()");
    }
}

/// A process without the library at the other end.
#[test]
fn a_plain_process_at_the_other_end_has_the_kernels_connection() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run(SIX);
    program.run("l = six(7000, '::1')");
    let there = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7001, 0, 0);
    let listener = net.within(Side::A, || TcpListener::bind(there)).unwrap();
    let echo = |program: &mut Puppet, mut peer: TcpStream| {
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        program.run("c.sendall(b'to the peer')");
        let mut got = [0; 11];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"to the peer");
        peer.write_all(&got).unwrap();
        assert_eq!(program.run("c.recv(100)"), "b'to the peer'");
    };
    program.run("c = call(7001)");
    echo(&mut program, listener.accept().unwrap().0);
    let here = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7000, 0, 0);
    let peer = net.within(Side::A, || TcpStream::connect(here)).unwrap();
    program.run("c, _ = l.accept(); c.settimeout(15)");
    echo(&mut program, peer);
}

/// A worker accepts from a listener that its parent made.
// covers: API-34, API-07
#[test]
fn a_forked_child_serves_the_listener_that_it_inherits() {
    for listener in LISTENERS {
        let net = Namespaces::new();
        let (mut server, mut client) = pair(&net);
        server.run(listener);
        server.run(
            "if os.fork() == 0:
 for _ in range(2):
  d, _ = l.accept(); d.settimeout(15)
  serve(d, 400)
  d.close()
 os._exit(0)",
        );
        // The parent has withdrawn it before the fork.
        wait_for("the child to post the listener", || {
            net.read_proc(Side::A, "unix").contains("/socket/").then_some(())
        });
        for _ in 0..2 {
            client.run("c = call(7000); ask(c, 200)");
            let watch = net.watch_tcp(Side::A);
            client.run("ask(c, 199)");
            watch.still(0);
            client.run("ask(c, 1)");
            assert_eq!(client.run("c.recv(1)"), "b''");
            client.run("c.close()");
        }
    }
}

// covers: API-34, API-35, LIM-22
#[test]
fn a_connection_goes_on_in_another_process() {
    for (way, how) in WAYS {
        let net = Namespaces::new();
        std::fs::write(net.file("on.py"), GO_ON).unwrap();
        let (mut program, mut peer) = pair(&net);
        program
            .run("exec(open('on.py').read(), {**globals(), '__builtins__': __builtins__}, stage)");
        program.run("l = six(7000, '::1')");
        peer.run("c = call(7000)");
        program.run("d, _ = l.accept(); d.settimeout(15)");
        goes_past_the_kernel(&net, &mut program, &mut peer);
        // Both queues have something when it moves.
        program.run("d.sendall(pattern(60000, 5))");
        peer.run("c.sendall(b'unread;')");
        program.run("assert d.recv(100, MSG_PEEK) == b'unread;'; c = d");
        program.begin(how);
        peer.run("c.sendall(b'x' * 30000); c.shutdown(SHUT_WR); got = b''");
        if way != "exec" {
            program.end(how);
            program.run("c = d = None");
        }
        peer.run("while data := c.recv(65536): got += data");
        let port = peer.run("c.getsockname()[1]");
        let names = format!("(('::1', 7000, 0, 0), ('::1', {port}, 0, 0));unread;");
        assert_eq!(peer.run("got[:60000] == pattern(60000, 5)"), "True", "{way}");
        assert_eq!(
            peer.run(&format!("got[60000:][:{}]", names.len())),
            format!("b\"{names}\""),
            "{way}"
        );
        let rest = format!("got[60000 + {}:] == b'x' * 30000 + b'the end'", names.len());
        assert_eq!(peer.run(&rest), "True", "{way}");
    }
}

/// connect() to AF_UNSPEC, and again.
#[test]
fn a_socket_connects_again() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("l = six(7000, '::1')");
    client.run("c = call(7000)");
    server.run("d, _ = l.accept(); d.settimeout(15)");
    goes_past_the_kernel(&net, &mut server, &mut client);
    client.run("import ctypes; libc = ctypes.CDLL(None, use_errno=True)");
    assert_eq!(client.run("libc.connect(c.fileno(), bytes(28), 28)"), "0");
    server.run("try: assert d.recv(1) == b''\nexcept ConnectionResetError: pass");
    client.run("c.connect(('::1', 7000))");
    server.run("d, _ = l.accept(); d.settimeout(15); d.sendall(b'again')");
    assert_eq!(client.run("c.recv(100)"), "b'again'");
}

/// A rule that names IPv4 addresses is not for `::1`, one for all addresses is.
// covers: CONF-11, CONF-12
#[test]
fn rules_for_every_address_leave_it_to_the_kernel() {
    for (of_server, of_client, kernel) in [
        ("use os tcp_server 127.0.0.1:7000\nuse os tcp_server 224.0.0.0/4:7000\n", "", false),
        ("", "use os tcp_client 127.0.0.0/8:7000:*:*\nuse os tcp_client 224.0.0.0:*:*:*\n", false),
        ("use os tcp_server *:7000\n", "", true),
        ("", "use os tcp_client *:7000:*:*\n", true),
    ] {
        let net = Namespaces::new();
        let ruled = |name: &str, rules: &str| {
            let file = net.file(name);
            std::fs::write(&file, rules).unwrap();
            let program = net.program(Side::A, PYTHON).with_library();
            let mut puppet = Puppet::start(program.env("VMA_CONFIG_FILE", file.to_str().unwrap()));
            puppet.run(SIX);
            puppet
        };
        let (mut server, mut client) = (ruled("server", of_server), ruled("client", of_client));
        server.run("l = six(7000, '::1')");
        client.run("c = call(7000)");
        server.run("d, _ = l.accept(); d.settimeout(15)");
        if !kernel {
            goes_past_the_kernel(&net, &mut server, &mut client);
            continue;
        }
        let watch = net.watch_tcp(Side::A);
        server.begin("serve(d, 100)");
        client.run("ask(c, 100)");
        server.end("serve");
        assert!(watch.moved().segments() >= 400, "{of_server}{of_client}");
    }
}

#[test]
fn without_traffic_within_the_host_it_is_the_kernels() {
    let net = Namespaces::new();
    let start = || {
        let program = net.program(Side::A, PYTHON).with_library();
        let mut puppet = Puppet::start(program.env("VMA_LOCAL", "0"));
        puppet.run(SIX);
        puppet
    };
    let (mut server, mut client) = (start(), start());
    server.run("l = six(7000, '::1')");
    client.run("c = call(7000)");
    server.run("d, _ = l.accept(); d.settimeout(15); serve_it = True");
    let watch = net.watch_tcp(Side::A);
    server.begin("serve(d, 100)");
    client.run("ask(c, 100)");
    server.end("serve");
    assert!(watch.moved().segments() >= 400);
}

/// A peer that answers the rendezvous later than connect() waits: its pipe comes late.
#[test]
fn a_connection_to_a_stopped_server_gets_its_pipe_when_that_goes_on() {
    use rustix::process::Signal;
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("l = six(7000, '::', 0)");
    server.signal(Signal::STOP);
    client.run("c = call(7000)");
    server.signal(Signal::CONT);
    server.run("d, _ = l.accept(); d.settimeout(15)");
    wait_for("the pipe", || {
        let watch = net.watch_tcp(Side::A);
        server.begin("serve(d, 20)");
        client.run("ask(c, 20)");
        server.end("serve");
        (watch.moved().segments() == 0).then_some(())
    });
    ends_well(&mut server, &mut client);
}
