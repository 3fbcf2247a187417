//! When an interface is attached, and what becomes of the sockets that needed it before: the kernel serves
//! them until it is, and then the library, without a byte lost, repeated or out of order.

use crate::harness::{Ends, Library, Namespaces, PYTHON, Program, Puppet, Side, wait_for};

fn in_background(program: Program<'_>) -> Program<'_> {
    program.env("VMA_XDP_ATTACH", "background")
}

fn puppet(net: &Namespaces, how: &str) -> Puppet {
    Puppet::start(net.program(Side::A, PYTHON).with_library().env("VMA_XDP_ATTACH", how))
}

// covers: LIM-46
#[test]
fn an_interface_is_attached_when_is_said() {
    for (how, at_once) in [("foreground", true), ("background", false)] {
        let net = Namespaces::new();
        let peer = net.socket_at(Side::B, Side::B.at(5000));
        let mut program = puppet(&net, how);
        program.run("s = udp()\ns.sendto(b'first', ('10.99.0.2', 5000))");
        assert_eq!(net.is_steered(Side::A), at_once, "{how}");
        let (_, from) = peer.recv_from(&mut [0; 9]).unwrap();
        let mut served = || {
            let watch = net.watch(Side::A);
            program.run("s.sendto(b'x' * 100, ('10.99.0.2', 5000))");
            peer.recv_from(&mut [0; 200]).unwrap();
            peer.send_to(&[7; 100], from).unwrap();
            assert_eq!(program.run("len(s.recv(200))"), "100");
            watch.moved() == (0, 0)
        };
        if at_once {
            assert!(served());
        }
        // The flow comes after the program.
        wait_for("the library to serve the socket", || served().then_some(()));
        assert!((0..10).all(|_| served()), "it stays so");
    }
}

/// A server may give up its rights when it has its sockets.
// covers: LIM-46
#[test]
fn a_server_that_gives_up_root_is_served() {
    let net = Namespaces::new();
    let mut program = puppet(&net, "background");
    program.run("s = udp(('10.99.0.1', 5000))\nos.setuid(65534)");
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    program.begin("echo(s)");
    peer.send_to(&[7; 100], Side::A.at(5000)).unwrap();
    program.end("echo(s)");
    assert_eq!(peer.recv(&mut [0; 200]).unwrap(), 100);
    watch.still();
}

/// Datagrams are numbered and sent back: none may be missing, repeated or overtaken.
const COUNTS: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.99.0.2', 0))
s.settimeout(5)
end, n = time.monotonic() + 0.5, 0
while time.monotonic() < end:
    burst = [b'%d' % k for k in range(n, n + 20)]
    for one in burst: s.sendto(one, ('10.99.0.1', 5000))
    got = [s.recv(100) for _ in burst]
    if got != burst: sys.exit(f'{got} instead of {burst}')
    n += 20
print('in order')
";

const ECHOES: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.99.0.1', 5000))
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
";

// covers: THR-04
#[test]
fn datagrams_stay_in_order_while_their_interface_is_attached() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        let server = in_background(ends.server(PYTHON)).arg("-c").arg(ECHOES).start();
        ends.net.wait_for_port(Side::A, 5000);
        let output = in_background(ends.client(PYTHON)).arg("-c").arg(COUNTS).run().ok();
        assert!(output.stdout.contains("in order"), "{library:?}");
        if library.at_client() {
            let traffic = &output.traffic;
            assert!(traffic.rx > 100 && traffic.tx > 100, "{library:?}: {traffic:?}");
        }
        drop(server);
    }
}

/// A connection that a forked child has, too, is the kernel's for good, and alone needs no interface.
// covers: LIM-46
#[test]
fn a_connection_that_is_shared_by_a_fork_attaches_nothing() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON));
    server.run("l = create_server(('10.99.0.2', 7000))");
    for (fork, attached) in [("", true), ("if os.fork() == 0: time.sleep(2); os._exit(0)", false)] {
        let mut program = puppet(&net, "background");
        program.run("import time\ns = create_connection(('10.99.0.2', 7000))");
        server.run("c, _ = l.accept()");
        program.run(fork);
        // Three times as long as a connection waits.
        program.run("time.sleep(0.3)");
        assert_eq!(net.is_steered(Side::A), attached, "{fork}");
    }
}

/// A program that ends soon needs no interface.
// covers: LIM-46
#[test]
fn a_short_program_attaches_nothing() {
    let serves = "
import socket
l = socket.create_server(('10.99.0.1', 7000))
c, _ = l.accept()
c.sendall(c.recv(100))
";
    let asks = "
import socket, os
c = socket.create_connection(('10.99.0.1', 7000))
c.sendall(b'question')
assert c.recv(100) == b'question'
os._exit(0)
";
    let ends = Ends::new(Library::Client);
    let server = ends.server(PYTHON).arg("-c").arg(serves).start();
    ends.net.wait_for_listener(Side::A, 7000);
    let client = in_background(ends.client(PYTHON)).env("VMA_TRACELEVEL", "debug");
    let output = client.arg("-c").arg(asks).run().ok();
    assert!(output.stderr.contains("its interface is being attached"), "{}", output.stderr);
    assert!(!output.stderr.contains("offloaded in mode"), "{}", output.stderr);
    drop(server);
}

/// A program that binds its socket to any port asks a question and ends, as a resolver does (dig, getaddrinfo()).
// covers: LIM-46
#[test]
fn a_client_with_a_port_of_the_kernels_choice_attaches_nothing() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(5000));
    for (family, any, to) in [
        ("AF_INET", "0.0.0.0", "10.99.0.2"),
        ("AF_INET", "10.99.0.1", "10.99.0.2"),
        ("AF_INET6", "::", "::ffff:10.99.0.2"),
    ] {
        let mut program = puppet(&net, "background");
        program.run(&format!("s = socket({family}, SOCK_DGRAM)\ns.bind(('{any}', 0))"));
        program.run(&format!("s.sendto(b'question', ('{to}', 5000))"));
        let (len, from) = peer.recv_from(&mut [0; 9]).unwrap();
        peer.send_to(&[7; 100], from).unwrap();
        assert_eq!((len, program.run("len(s.recv(200))").as_str()), (8, "100"), "{any}");
        assert!(!net.is_steered(Side::A), "{any}");
    }
}

/// Clients listen, too, for one connection to come back (FTP in active mode).
// covers: LIM-46
#[test]
fn a_listener_with_a_port_of_the_kernels_choice_attaches_in_the_background() {
    let net = Namespaces::new();
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    for bound in ["l.bind(('10.99.0.1', 0))", "l.bind(('0.0.0.0', 0))", "0"] {
        let mut program = puppet(&net, "background");
        program.run(&format!("l = socket(AF_INET, SOCK_STREAM)\n{bound}\nl.listen()"));
        let port = program.run("l.getsockname()[1]");
        peer.run(&format!("c = create_connection(('10.99.0.1', {port}))\nc.sendall(b'x' * 100)"));
        program.run("s, _ = l.accept()");
        assert_eq!(program.run("len(s.recv(200))"), "100", "{bound}");
        assert!(!net.is_steered(Side::A), "{bound}");
        let mut is_served = || {
            let before = net.kernel_tcp(Side::A).accepted;
            peer.run(&format!("d = create_connection(('10.99.0.1', {port}))"));
            program.run("l.accept()");
            net.kernel_tcp(Side::A).accepted == before
        };
        wait_for("the library to serve a listener that stays", || is_served().then_some(()));
    }
}

/// Connections that were made before their interface was there are served when it is; every byte that went
/// to and fro meanwhile is where it belongs.
#[track_caller]
fn are_taken_over(library: Library, way: &str) {
    let ends = Ends::new(library);
    let server = in_background(ends.server(PYTHON)).arg("-c").arg(include_str!("attach/server.py"));
    let server = server.arg(way).start();
    ends.net.wait_for_listener(Side::A, 7000);
    let mut client = Puppet::start(in_background(ends.client(PYTHON)));
    client.run(include_str!("attach/client.py"));
    let rounds = |client: &mut Puppet, seconds: &str| {
        let said = client.run(&format!("talk({seconds})"));
        said.parse::<u32>().unwrap_or_else(|_| panic!("{library:?}, {way}: {said}"))
    };
    let before = rounds(&mut client, "0.6");
    let watch = ends.watch();
    let after = rounds(&mut client, "0.2");
    watch.still(0);
    assert!(before > 1 && after > before, "{library:?}, {way}: {before}, {after} rounds");
    client.finish();
    drop(server);
}

// covers: THR-04
#[test]
fn connections_of_threads_are_taken_over() {
    Library::ALL.into_iter().for_each(|library| are_taken_over(library, "threads"));
}

// covers: THR-04
#[test]
fn connections_that_epoll_watches_are_taken_over() {
    are_taken_over(Library::Server, "epoll");
    are_taken_over(Library::Both, "epoll");
}

// covers: THR-04
#[test]
fn connections_that_poll_and_select_wait_for_are_taken_over() {
    are_taken_over(Library::Server, "poll");
    are_taken_over(Library::Both, "select");
}

/// A lone worker takes its parent's listener over, and attaches in the background; the kernel accepts meanwhile.
// covers: THR-04
#[test]
fn connections_that_the_kernel_accepted_are_taken_over() {
    let ends = Ends::new(Library::Server);
    // The worker begins to wait when all clients are connected.
    let worker = "\nimport os, time\nif os.fork():\n    os.wait()\n    os._exit(1)\n\
                  while not os.path.exists('connected'): time.sleep(0.01)\nways[";
    let forks = include_str!("attach/server.py").replace("\nways[", worker);
    let server = in_background(ends.server(PYTHON)).arg("-c").arg(&forks).arg("threads").start();
    ends.net.wait_for_listener(Side::A, 7000);
    let mut client = Puppet::start(ends.client(PYTHON));
    client.run(include_str!("attach/client.py"));
    client.run("talk(0)");
    assert_eq!(ends.net.kernel_tcp(Side::A).accepted, 12, "the kernel has them all");
    std::fs::write(ends.net.file("connected"), "").unwrap();
    assert!(client.run("talk(0.6)").parse::<u32>().is_ok());
    let watch = ends.watch();
    assert!(client.run("talk(0.2)").parse::<u32>().is_ok());
    watch.still(0);
    client.finish();
    drop(server);
}

/// A child has the connection, too: it stays the kernel's, and both can use it.
// covers: THR-04
#[test]
fn a_connection_that_a_child_shares_stays_the_kernels() {
    let ends = Ends::new(Library::Client);
    let server = ends.server(PYTHON).arg("-c").arg(include_str!("attach/server.py"));
    let server = server.arg("threads").start();
    ends.net.wait_for_listener(Side::A, 7000);
    let mut client = Puppet::start(in_background(ends.client(PYTHON)));
    client.run("c = create_connection(('10.99.0.1', 7000))");
    client.run(
        "child = os.fork()\nif child == 0:\n time.sleep(0.5)\n c.sendall(b'child')\n os._exit(0)",
    );
    client.run(
        "for n in range(100):\n c.sendall(b'x')\n assert c.recv(9) == b'x'\n time.sleep(0.002)",
    );
    client.run("os.waitpid(child, 0)");
    assert_eq!(client.run("c.recv(9)"), "b'child'");
    let traffic = client.finish();
    assert_eq!((traffic.rx, traffic.tx), (0, 0), "{traffic:?}");
    drop(server);
}

/// A plain server on side A, and a client under the library on side B, both told what to do.
fn pair(net: &Namespaces) -> (Puppet, Puppet) {
    let mut server = Puppet::start(net.program(Side::A, PYTHON));
    server.run("l = create_server(('10.99.0.1', 7000))");
    let client = net.program(Side::B, PYTHON).with_library();
    let mut client = Puppet::start(in_background(client));
    client.run(
        "c = create_connection(('10.99.0.1', 7000)); before = c.getsockname(), c.getpeername()",
    );
    server.run("s, _ = l.accept(); s.settimeout(10)");
    (server, client)
}

/// Has the client make small calls until its connection is served.
#[track_caller]
fn wait_until_taken_over(client: &mut Puppet) {
    // Looks take nothing, and count as calls.
    client.run(
        "for n in range(200):\n try: c.recv(1, MSG_PEEK | MSG_DONTWAIT)\n except BlockingIOError: pass\n time.sleep(0.002)",
    );
}

// covers: THR-04
#[test]
fn unread_and_unsent_bytes_move_with_their_connection() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    server.run("s.sendall(pattern(60000, 1))");
    client.run("first = b''.join(c.recv(100) for _ in range(5))");
    // Nobody reads it yet: most of it cannot be sent.
    client.run("sent, c2 = 0, c.setblocking(False)\nout = pattern(65536, 2) * 64");
    client.run(
        "try:\n while True: sent += c.send(out[sent:sent + 10000])\nexcept BlockingIOError: pass",
    );
    wait_until_taken_over(&mut client);
    let watch = net.watch_tcp(Side::B);
    client.run("c.settimeout(10)\nrest = b''");
    client.run("while len(first + rest) < 60000: rest += c.recv(65536)");
    assert_eq!(client.run("first + rest == pattern(60000, 1)"), "True");
    server.begin("got = b''\nwhile len(got) < 1 << 21: got += s.recv(1 << 20)");
    client.run("c.sendall(out[sent:])\nc.shutdown(SHUT_WR)");
    server.end("got");
    server.run("while more := s.recv(1 << 20): got += more");
    assert_eq!(server.run("got == pattern(65536, 2) * 64"), "True", "all of it, once");
    server.run("s.close()");
    assert_eq!(client.run("c.recv(1)"), "b''");
    watch.still(0);
}

// covers: THR-04
#[test]
fn what_was_set_before_holds_when_a_connection_is_taken_over() {
    let net = Namespaces::new();
    let (mut server, mut client) = pair(&net);
    client.run("c.settimeout(None)");
    client.run("c.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack('ll', 0, 100000))");
    client.run("c.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)");
    client.run("c.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, 77)");
    client.run("c.setsockopt(IPPROTO_IP, IP_TOS, 0x10)");
    client.run("copy = c.dup()");
    wait_until_taken_over(&mut client);
    let watch = net.watch_tcp(Side::B);
    assert_eq!(client.run("(c.getsockname(), c.getpeername()) == before"), "True");
    let told = "c.getsockopt(IPPROTO_TCP, TCP_NODELAY), c.getsockopt(IPPROTO_TCP, TCP_KEEPIDLE), \
                c.getsockopt(IPPROTO_IP, IP_TOS), c.getsockopt(IPPROTO_TCP, TCP_INFO, 1)";
    assert_eq!(client.run(told), "(1, 77, 16, b'\\x01')");
    let waited = client.raises("begin = time.monotonic()\nc.recv(1)");
    assert!(waited.starts_with("BlockingIOError"), "{waited}");
    let millis = client.number("int((time.monotonic() - begin) * 1000)");
    assert!((90..2000).contains(&millis), "SO_RCVTIMEO: {millis} ms");
    client.run("c.close()");
    server.run("s.sendall(b'to the copy')");
    assert_eq!(client.run("copy.recv(100)"), "b'to the copy'");
    client.run("copy.sendall(b'from it')");
    assert_eq!(server.run("s.recv(100)"), "b'from it'");
    watch.still(0);
    client.run("copy.close()");
    assert_eq!(server.run("s.recv(1)"), "b''", "it ends in order");
}

/// Each time at another moment: a descriptor that is passed on works there.
// covers: THR-04
#[test]
fn a_connection_may_be_passed_on_while_it_is_taken_over() {
    for wait in [0, 30, 40, 45, 50, 60, 100] {
        let net = Namespaces::new();
        let (mut server, mut client) = pair(&net);
        client.run("other, own = socketpair(AF_UNIX)");
        client.run(
            "def poke():\n while not stop:\n  try: c.recv(1, MSG_PEEK | MSG_DONTWAIT)\n  except OSError: pass",
        );
        client.run("stop = False\nthreads = [threading.Thread(target=poke) for _ in range(2)]");
        client.run(&format!("for t in threads: t.start()\ntime.sleep({wait} / 1000)"));
        client.run("send_fds(own, [b'x'], [c.fileno()])");
        client.run("stop = True\nfor t in threads: t.join()");
        server.run("s.sendall(b'hello')");
        client.run("_, fds, _, _ = recv_fds(other, 10, 1)\nd = socket(fileno=fds[0])");
        assert_eq!(client.run("d.recv(100)"), "b'hello'", "after {wait} ms");
        client.run("d.sendall(b'answer')");
        assert_eq!(server.run("s.recv(100)"), "b'answer'", "after {wait} ms");
    }
}
