//! Parameters of TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use super::{counter, puppet};
use crate::harness::{Hook, Namespaces, PYTHON, Puppet, Side, wait_for};

fn listener(net: &Namespaces) -> (TcpListener, u16) {
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A program with a connection `c` to the test, and the test's end of it.
#[track_caller]
fn connected(net: &Namespaces, set: &[(&str, &str)]) -> (Puppet, TcpStream) {
    let mut program = puppet(net, set);
    let (listener, port) = listener(net);
    program.run(&format!("c = socket(); c.connect(('10.99.0.2', {port}))"));
    (program, listener.accept().unwrap().0)
}

/// An option of the test's own end, as Python's kernel socket tells it.
#[track_caller]
fn at_peer(net: &Namespaces, set: &[(&str, &str)], expression: &str) -> String {
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    peer.run("l = socket(); l.bind(('10.99.0.2', 0)); l.listen()");
    let port = peer.number("l.getsockname()[1]");
    let mut program = puppet(net, set);
    program.run(&format!("c = socket(); c.connect(('10.99.0.2', {port}))"));
    peer.run("d, _ = l.accept()");
    peer.run(expression)
}

// covers: NET-21
#[test]
fn segments_are_no_larger_than_is_said() {
    let net = Namespaces::new();
    let size = "d.getsockopt(IPPROTO_TCP, TCP_MAXSEG)";
    let stamps = ("VMA_TCP_TIMESTAMP_OPTION", "0");
    assert_eq!(at_peer(&net, &[stamps], size), "1460");
    assert_eq!(at_peer(&net, &[stamps, ("VMA_MSS", "1000")], size), "1000");
    assert_eq!(at_peer(&net, &[stamps, ("VMA_MTU", "1000")], size), "960");
    assert_eq!(at_peer(&net, &[stamps, ("VMA_MTU", "1000"), ("VMA_MSS", "900")], size), "900");
}

// covers: NET-37
#[test]
fn connections_have_time_stamps_if_said() {
    let net = Namespaces::new();
    // The options of TCP_INFO; the lowest bit is for time stamps.
    let stamps = "d.getsockopt(IPPROTO_TCP, TCP_INFO, 8)[5] & 1";
    for (value, with) in [("0", "0"), ("1", "1"), ("2", "1")] {
        assert_eq!(at_peer(&net, &[("VMA_TCP_TIMESTAMP_OPTION", value)], stamps), with);
    }
}

// covers: API-26, NET-36
#[test]
fn sockets_begin_as_is_said() {
    let net = Namespaces::new();
    for (name, value, option, said) in
        [("VMA_TCP_NODELAY", "1", "TCP_NODELAY", "1"), ("VMA_TCP_NODELAY", "0", "TCP_NODELAY", "0")]
    {
        let mut program = puppet(&net, &[(name, value)]);
        let option = format!("socket().getsockopt(IPPROTO_TCP, {option})");
        assert_eq!(program.run(&option), said, "{name}={value}");
    }
    for (value, name) in [("0", "reno"), ("1", "cubic")] {
        let (mut program, _peer) = connected(&net, &[("VMA_TCP_CC_ALGO", value)]);
        let said =
            program.run("c.getsockopt(IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b'\\0').decode()");
        assert_eq!(said, format!("'{name}'"));
    }
}

/// The kernel's socket of an accepted connection has it, too: for whoever gets the connection later.
#[test]
fn accepted_sockets_have_the_nodelay_that_is_said() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_TCP_NODELAY", "1")]);
    program.run("l = socket(); l.bind(('10.99.0.1', 5000)); l.listen(); l.setblocking(False)");
    program.run("select.select([l], [], [], 0); l.setblocking(True)");
    let watch = net.watch_tcp(Side::A);
    let peer = net.within(Side::B, || std::net::TcpStream::connect(Side::A.at(5000))).unwrap();
    program.run("c = l.accept()[0]");
    let option = "c.getsockopt(IPPROTO_TCP, TCP_NODELAY)";
    assert_eq!(program.run(option), "1");
    for value in ["0", "1"] {
        program.run(&format!("c.setsockopt(IPPROTO_TCP, TCP_NODELAY, {value})"));
        assert_eq!(program.run(option), value);
    }
    watch.still(0);
    drop(peer);
}

// covers: API-27
#[test]
fn every_segment_is_acknowledged_at_once_if_said() {
    let net = Namespaces::new();
    let acknowledged = |value| {
        let (mut program, mut peer) = connected(&net, &[("VMA_TCP_QUICKACK", value)]);
        peer.set_nodelay(true).unwrap();
        // The program answers, so that its answers acknowledge what they answer.
        let exchange = |program: &mut Puppet, peer: &mut TcpStream| {
            program.begin("c.recv(10), c.send(b'y')");
            peer.write_all(b"x").unwrap();
            peer.read_exact(&mut [0]).unwrap();
            program.end("c.recv(10), c.send(b'y')");
        };
        // The first segments of a connection are acknowledged at once in any case.
        (0..40).for_each(|_| exchange(&mut program, &mut peer));
        let before = counter(&net, Side::B, "Tcp", "InSegs");
        (0..20).for_each(|_| exchange(&mut program, &mut peer));
        counter(&net, Side::B, "Tcp", "InSegs") - before
    };
    let (seldom, always) = (acknowledged("0"), acknowledged("1"));
    assert!(seldom >= 20 && always >= seldom + 15, "{seldom} {always}");
}

// covers: NET-38
#[test]
fn a_batch_gets_few_acknowledgments_for_as_many_connections_as_is_said() {
    const SEGMENT: usize = 1448;
    const BATCH: usize = 32;
    let net = Namespaces::new();
    // Every write of the peer is a segment, sent once and at once.
    net.sysctl(Side::B, "net.ipv4.tcp_autocorking", "0");
    net.sysctl(Side::B, "net.ipv4.tcp_early_retrans", "0");
    net.ip(Side::B, &format!("route change 10.99.0.0/24 dev {} initcwnd 64", Side::B.device()));
    let acknowledgments = |streams, connections: usize| {
        let mut program = puppet(&net, &[("VMA_GRO_STREAMS_MAX", streams)]);
        let kernel = net.watch_tcp(Side::A);
        let (listener, port) = listener(&net);
        program
            .run("cs = []\ndef take(c, size):\n while size: size -= len(c.recv(min(size, 65536)))");
        let mut peers = Vec::new();
        for _ in 0..connections {
            let connect = format!("c = socket(); c.connect(('10.99.0.2', {port})); cs.append(c)");
            program.run(&connect);
            let mut peer = listener.accept().unwrap().0;
            peer.set_nodelay(true).unwrap();
            // The first segments of a connection are acknowledged at once; then the window is open.
            program.begin("take(c, 4000000)");
            peer.write_all(&vec![0; 4_000_000]).unwrap();
            program.end("take(c, 4000000)");
            peers.push(peer);
        }
        let sent = counter(&net, Side::B, "Tcp", "OutSegs");
        let before = counter(&net, Side::B, "Tcp", "InSegs");
        // All come before anybody looks.
        program.signal(Signal::STOP);
        wait_for("the program stands still", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.id())).unwrap();
            stat.contains(") T ").then_some(())
        });
        for _ in 0..BATCH / connections {
            peers.iter_mut().for_each(|peer| peer.write_all(&[0; SEGMENT]).unwrap());
        }
        wait_for("the batch has left", || {
            (counter(&net, Side::B, "Tcp", "OutSegs") - sent >= BATCH as u64).then_some(())
        });
        program.signal(Signal::CONT);
        program.run(&format!("for c in cs: take(c, {BATCH} * {SEGMENT} // len(cs))"));
        kernel.still(0);
        counter(&net, Side::B, "Tcp", "InSegs") - before
    };
    // Every second segment by itself (RFC 9293 section 3.8.6.3); in a batch the second, fourth,
    // eighth and so on of a connection. If the batch is taken in two halves that is twice almost as
    // many; a delayed acknowledgment of before and an update of the window may be added. Taken in several looks, each
    // odd segment at the end of one is acknowledged as well: some more, but far from each.
    for (streams, connections, expected) in
        [("32", 1, 4..=10), ("0", 1, 15..=26), ("2", 2, 7..=13), ("1", 2, 15..=26)]
    {
        let count = acknowledgments(streams, connections);
        assert!(expected.contains(&count), "{count} with {streams} for {connections}");
    }
}

// covers: NET-40
#[test]
fn connections_are_steered_by_as_much_as_is_said() {
    let net = Namespaces::new();
    for (rules, by_kernel) in [("0", true), ("1", false)] {
        let (mut program, _peer) = connected(&net, &[("VMA_TCP_3T_RULES", rules)]);
        let port = program.number("c.getsockname()[1]") as u16;
        let before = counter(&net, Side::A, "Tcp", "InSegs");
        // An acknowledgment of a stranger's to the connection's port: a reset answers it. (A SYN would be handed to the kernel,
        // which may have a listener.)
        let mut stranger = Puppet::start(net.program(Side::B, PYTHON));
        stranger.run(
            "r = socket(AF_INET, SOCK_RAW, IPPROTO_TCP); r.settimeout(5); r.bind(('10.99.0.2', 0))",
        );
        stranger.run(&format!(
            "head = lambda check: struct.pack('!HHIIBBHHH', 9, {port}, 1, 1, 5 << 4, 0x10, 1000, check, 0)"
        ));
        stranger.run("words = inet_aton('10.99.0.2') + inet_aton('10.99.0.1') + struct.pack('!HH', 6, 20) + head(0)");
        stranger.run(
            "total = sum(struct.unpack('!16H', words)); total = (total & 65535) + (total >> 16)",
        );
        stranger
            .run("r.sendto(head(~((total & 65535) + (total >> 16)) & 65535), ('10.99.0.1', 0))");
        let answer = "next(p[33] for p in iter(lambda: r.recv(100), None) if p[20:24] == struct.pack('!HH', ";
        assert_eq!(stranger.run(&format!("{answer}{port}, 9)) & 4")), "4", "a reset");
        let kernels = counter(&net, Side::A, "Tcp", "InSegs") - before > 0;
        assert_eq!(kernels, by_kernel, "{rules}");
    }
}

// covers: NET-39
#[test]
fn a_listener_takes_as_many_connections_a_second_as_is_said() {
    let net = Namespaces::new();
    let taken = |rate| {
        let mut program = puppet(&net, &[("VMA_TCP_MAX_SYN_RATE", rate)]);
        program.run("l = socket(); l.bind(('10.99.0.1', 5000)); l.listen(100); l.settimeout(0.1)");
        assert!(program.raises("l.accept()").contains("timed out"));
        program.begin("for _ in range(20):\n try: l.accept()\n except TimeoutError: pass");
        let connect = || {
            TcpStream::connect_timeout(&Side::A.at(5000).into(), Duration::from_millis(50)).is_ok()
        };
        let taken = net.within(Side::B, || (0..10).filter(|_| connect()).count());
        program.end("");
        taken
    };
    assert_eq!(taken("0"), 10);
    assert!(taken("2") <= 6);
}

// covers: THR-11
#[test]
fn timers_run_at_once_if_said() {
    let net = Namespaces::new();
    // Its messages would wake the internal thread.
    for side in [Side::A, Side::B] {
        net.sysctl(side, "net.ipv6.conf.all.disable_ipv6", "1");
    }
    // A host that is not there, whose packets the peer gets and drops.
    let mac = Side::B.mac();
    net.ip(Side::A, &format!("neigh replace 10.99.0.9 lladdr {mac} dev veth-a nud permanent"));
    let repeated = |value| {
        let set = [
            ("VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING", value),
            ("VMA_PROGRESS_ENGINE_INTERVAL", "20000"),
        ];
        let mut program = puppet(&net, &set);
        // Has the interface attached: until it is, the kernel makes connections, and repeats SYNs itself.
        program.run("s = udp(('10.99.0.1', 0))");
        program.run("c = socket(); c.setblocking(False); c.connect_ex(('10.99.0.9', 80))");
        // Others that poll run the timers, so the thread leaves them to this one.
        program.run("time.sleep(0.1); drain(s)");
        let before = counter(&net, Side::B, "Ip", "InReceives");
        // Nobody polls; the SYN is due again after one second.
        program.run("time.sleep(1.5)");
        counter(&net, Side::B, "Ip", "InReceives") - before
    };
    assert!(repeated("1") > 0);
    // What else wakes the thread, such as a message of netlink, has it look at the timers, too.
    assert!((0..5).any(|_| repeated("0") == 0));
}

#[test]
fn a_send_call_takes_what_has_arrived_if_said() {
    let net = Namespaces::new();
    for (value, polled) in [("1", true), ("0", false)] {
        let set = [("VMA_RX_POLL_ON_TX_TCP", value), ("VMA_PROGRESS_ENGINE_INTERVAL", "20000")];
        let (mut program, mut peer) = connected(&net, &set);
        program
            .run("s = udp(('10.99.0.1', 5000)); s.setsockopt(SOL_SOCKET, 35, 1); time.sleep(0.05)");
        let datagrams = net.socket(Side::B);
        datagrams.send_to(b"x", Side::A.at(5000)).unwrap();
        program.run("time.sleep(0.01); c.send(b'x'); time.sleep(0.4)");
        peer.read_exact(&mut [0; 1]).unwrap();
        let age: f64 = program
            .run("(lambda m: time.time() - sum(x / y for x, y in zip(struct.unpack('ll', m[1][0][2]), (1, 1e9))))(s.recvmsg(9, 99))")
            .parse()
            .unwrap();
        assert_eq!(age > 0.2, polled, "{value}: {age}");
    }
}

// covers: NET-01, NET-03
#[test]
fn connections_come_by_the_xdp_hook_if_that_is_said() {
    const SIZE: usize = 4_000_000;
    let net = Namespaces::new();
    let sent: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    // Spinning, and asleep before each packet.
    for (mode, hook, polls) in [
        ("generic", Hook::GenericXdp, "-1"),
        ("generic", Hook::GenericXdp, "0"),
        ("native", Hook::NativeXdp, "-1"),
        ("native", Hook::NativeXdp, "0"),
    ] {
        let mut program = puppet(&net, &[("VMA_XDP_MODE", mode), ("VMA_RX_POLL", polls)]);
        let kernel = net.watch_tcp(Side::A);
        let (listener, port) = listener(&net);
        program.run(&format!("c = socket(); c.connect(('10.99.0.2', {port}))"));
        assert_eq!(net.steering(Side::A), Some(hook));
        let mut peer = listener.accept().unwrap().0;
        program.begin(&format!("got = c.recv({SIZE}, MSG_WAITALL)"));
        peer.write_all(&sent).unwrap();
        program.end(&format!("got = c.recv({SIZE}, MSG_WAITALL)"));
        program.begin("c.sendall(got)");
        let mut back = vec![0; SIZE];
        peer.read_exact(&mut back).unwrap();
        program.end("c.sendall(got)");
        assert!(back == sent, "{mode}, {polls} polls: other bytes came back");
        kernel.still(0);
    }
}

// covers: RUN-14
#[test]
fn programs_that_talk_by_one_way_connections_are_served_by_their_profile() {
    let net = Namespaces::new();
    let end = |side| {
        let program = net.program(side, PYTHON).with_library();
        Puppet::start(program.env("VMA_SPEC", "multi_ring_latency"))
    };
    let (mut asks, mut answers) = (end(Side::A), end(Side::B));
    answers.run("l = create_server(('10.99.0.2', 7000)); select.select([l], [], [], 0)");
    asks.run("l = create_server(('10.99.0.1', 7001)); select.select([l], [], [], 0)");
    let watches = [Side::A, Side::B].map(|side| net.watch_tcp(side));
    // Each has a connection by which it only sends, and one by which it only receives.
    asks.run("to = create_connection(('10.99.0.2', 7000)); to.settimeout(15)");
    answers.run("come, _ = l.accept(); come.settimeout(15)");
    answers.run("to = create_connection(('10.99.0.1', 7001)); to.settimeout(15)");
    asks.run("come, _ = l.accept(); come.settimeout(15)");
    answers.begin("for n in range(500): to.sendall(come.recv(64, MSG_WAITALL)); to.getsockname()");
    asks.run(
        "
for n in range(500):
    to.sendall(pattern(64, n)); to.getsockname()
    assert come.recv(64, MSG_WAITALL) == pattern(64, n)",
    );
    answers.end("");
    watches.iter().for_each(|watch| watch.still(0));
    for mut program in [asks, answers] {
        program.run("to.close(); come.close()");
        let traffic = program.finish();
        assert!(traffic.rx >= 500 && traffic.tx >= 500 && traffic.rx_os == 0, "{traffic:?}");
    }
}
