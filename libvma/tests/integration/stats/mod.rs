//! The statistics file of a process: the numbers in it are what was sent and received.
//!
//! `life` is when there is such a file, `asking` what a reader of it can ask for, `kernels` what the
//! kernel carries, `manual` what vma_stats shows of it.

mod asking;
mod kernels;
mod life;
mod manual;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libvma_dev::stats::{
    BLOCKING, Counters, File, MULTICAST_LOOP, OFFLOADED, Problem, RING_XDP, Request, Socket, Taken,
    WITHIN_HOST, find_all, read_text,
};

use crate::harness::{BURSTS, Namespaces, PYTHON, Puppet, Sandbox, Side, at_once, tool, wait_for};

const PATIENCE: Duration = Duration::from_secs(10);

/// The file of a process that has a socket, or soon has one.
#[track_caller]
fn open(directory: &Path, process: u32) -> File {
    wait_for("the process has its file", || File::open(directory, process).ok())
}

#[track_caller]
fn take(file: &File) -> Taken {
    file.take(PATIENCE).unwrap_or_else(|problem| panic!("{}: {problem}", file.path().display()))
}

/// The socket with this descriptor.
#[track_caller]
fn find(taken: &Taken, descriptor: i64) -> Socket {
    let found = taken.sockets.iter().find(|one| i64::from(one.descriptor) == descriptor);
    *found.unwrap_or_else(|| panic!("no socket {descriptor}: {:?}", taken.sockets))
}

fn puppet(net: &Namespaces, environment: &[(&str, &str)]) -> Puppet {
    let program = net.program(Side::A, PYTHON).with_library();
    let set = environment.iter().fold(program, |program, (name, value)| program.env(name, value));
    Puppet::start(set)
}

// covers: STAT-25, STAT-38, THR-06
#[test]
fn a_reader_gets_the_numbers_of_what_was_sent() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    let descriptor = program.number("s.fileno()");
    let file = open(&net.dir, program.id());
    let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!((file.header().process, file.header().sockets), (program.id(), 100));

    program.run("for _ in range(30): s.sendto(bytes(100), ('10.99.0.2', 7000))");
    for _ in 0..20 {
        peer.send_to(&[0; 50], Side::A.at(5000)).unwrap();
        program.run("s.recv(1000)");
    }
    let taken = take(&file);
    let socket = find(&taken, descriptor);
    let counters = socket.counters;
    assert_eq!((counters.tx_packets, counters.tx_bytes), (30, 3000), "{counters:?}");
    assert_eq!((counters.rx_packets, counters.rx_bytes), (20, 1000), "{counters:?}");
    assert_eq!((counters.tx_os_packets, counters.rx_os_packets), (0, 0), "{counters:?}");
    assert_eq!((socket.local, socket.local_port), ([10, 99, 0, 1], 5000));
    assert_eq!((socket.peer_port, socket.kind), (0, 2));
    assert_eq!(socket.flags & OFFLOADED, OFFLOADED);
    assert_eq!(socket.flags & (WITHIN_HOST | MULTICAST_LOOP), MULTICAST_LOOP);
    let inode = program.number("os.fstat(s.fileno()).st_ino");
    assert_eq!(i64::try_from(socket.inode).unwrap(), inode);
    assert_eq!((taken.snapshot.totals.tx_packets, taken.snapshot.totals.rx_packets), (30, 20));
    assert_eq!((taken.snapshot.sockets_open, taken.snapshot.sockets_hidden), (1, 0));
    let ring = taken.snapshot.rings.iter().find(|ring| ring.kind == RING_XDP).expect("a ring");
    assert_eq!(read_text(&ring.name), "veth-a");
    assert!(ring.rx_packets >= 20 && ring.tx_packets >= 30, "{ring:?}");
    assert!(ring.tx_bytes >= 30 * 142, "{ring:?}");

    // What is not read waits; what comes then is counted with it.
    for _ in 0..3 {
        peer.send_to(&[0; 70], Side::A.at(5000)).unwrap();
    }
    let socket = wait_for("three datagrams wait", || {
        let socket = find(&take(&file), descriptor);
        (socket.ready_packets == 3).then_some(socket)
    });
    assert_eq!((socket.ready_bytes, socket.counters.rx_ready_packets_max), (210, 3));
    // A socket that is gone counts in the totals.
    program.run("drain(s); s.close(); t = udp()");
    let taken = take(&file);
    assert_eq!(taken.sockets.len(), 1);
    assert_eq!((taken.snapshot.totals.tx_packets, taken.snapshot.totals.rx_packets), (30, 23));
    program.finish();
    assert!(find_all(&net.dir).unwrap().is_empty(), "it is removed at the end");
}

// covers: STAT-26
#[test]
fn connections_tell_their_state() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut program = net.puppet(Side::A);
    program.run("l = socket(); l.bind(('10.99.0.1', 6000)); l.listen(); l.setblocking(False)");
    program.run("c = socket(); c.connect(('10.99.0.2', 7000))");
    let (listens, connected) = (program.number("l.fileno()"), program.number("c.fileno()"));
    let (mut peer, _) = listener.accept().unwrap();
    program.run("c.sendall(bytes(100_000))");
    peer.read_exact(&mut [0; 100_000]).unwrap();
    peer.write_all(&[0; 5000]).unwrap();
    program.run("n = 0\nwhile n < 5000: n += len(c.recv(65536))");
    let file = open(&net.dir, program.id());
    let taken = take(&file);
    let socket = find(&taken, connected);
    assert_eq!((socket.kind, socket.tcp_state, socket.peer_port), (1, 1, 7000));
    assert_eq!((socket.local, socket.peer), ([10, 99, 0, 1], [10, 99, 0, 2]));
    assert_eq!((socket.counters.tx_bytes, socket.counters.rx_bytes), (100_000, 5000));
    assert!(socket.counters.rx_packets > 0 && socket.counters.tx_packets > 10);
    assert!(socket.tcp.congestion_window >= socket.tcp.segment_size, "{:?}", socket.tcp);
    assert!(socket.tcp.segment_size > 1000 && socket.tcp.round_trip > 0, "{:?}", socket.tcp);
    assert_eq!(socket.flags & (OFFLOADED | BLOCKING), OFFLOADED | BLOCKING);
    let socket = find(&taken, listens);
    assert_eq!((socket.tcp_state, socket.local_port, socket.flags & BLOCKING), (10, 6000, 0));
    let before = taken.snapshot.totals;
    program.run("c.close(); l.close()");
    let after = take(&file).snapshot.totals;
    assert!(after.tx_packets >= before.tx_packets && after.tx_bytes == before.tx_bytes);
    program.finish();
}

// covers: STAT-36
#[test]
fn a_ring_keeps_the_retransmissions_of_connections_that_are_over() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut program = net.puppet(Side::A);
    program.run("u = udp(('10.99.0.1', 5000)); c = socket(); c.connect(('10.99.0.2', 7000))");
    let (_peer, _) = listener.accept().unwrap();
    let file = open(&net.dir, program.id());
    let count = || {
        let rings = take(&file).snapshot.rings;
        rings
            .iter()
            .filter(|ring| ring.kind == RING_XDP)
            .map(|ring| ring.retransmissions)
            .sum::<u64>()
    };
    // Nothing is acknowledged any more.
    net.ip(Side::B, "route add blackhole 10.99.0.1/32");
    program.run("c.send(bytes(100))");
    let before = wait_for("it was sent again", || Some(count()).filter(|count| *count > 0));
    program.run("c.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack('ii', 1, 0)); c.close()");
    assert!(count() >= before, "{} after {before}", count());
    // Only what comes from then on.
    file.ask(&Request::Zero(&[])).unwrap();
    assert_eq!(count(), 0);
    program.finish();
}

#[test]
fn connections_within_the_host_are_told_as_such() {
    tell_of_a_connection_within_the_host("AF_INET", "127.0.0.1", [127, 0, 0, 1]);
}

/// The layout has room for IPv4 addresses; what stands for the other one is shown as what it is.
// covers: STAT-26
#[test]
fn connections_over_the_loopback_address_of_ipv6_are_told_by_its_stand_in() {
    let stand_in = libvma_dev::ipv6_loopback::STAND_IN.octets();
    tell_of_a_connection_within_the_host("AF_INET6", "::1", stand_in);
}

#[track_caller]
fn tell_of_a_connection_within_the_host(family: &str, host: &str, told: [u8; 4]) {
    let sandbox = Sandbox::new();
    let mut server = Puppet::start(sandbox.program(PYTHON).with_library());
    let mut client = Puppet::start(sandbox.program(PYTHON).with_library());
    server.run(&format!("l = socket({family}); l.bind(('{host}', 6000)); l.listen()"));
    client.run(&format!("c = socket({family}); c.connect(('{host}', 6000))"));
    server.run("a, _ = l.accept()");
    client.run("c.sendall(b'x' * 1000)");
    server.run("a.recv(1000, MSG_WAITALL); a.sendall(b'y' * 500)");
    client.run("c.recv(500, MSG_WAITALL); c.sendall(b'z' * 100)");
    server.run("a.recv(100, MSG_WAITALL)");
    let descriptor = client.number("c.fileno()");
    let taken = take(&open(&sandbox.dir, client.id()));
    let socket = find(&taken, descriptor);
    assert_eq!((socket.flags & WITHIN_HOST, socket.tcp_state), (WITHIN_HOST, 1), "{socket:?}");
    assert_eq!((socket.peer, socket.peer_port), (told, 6000));
    let port = client.number("c.getsockname()[1]");
    assert_eq!((socket.local, i64::from(socket.local_port)), (told, port));
    assert!(socket.counters.tx_bytes + socket.counters.tx_os_bytes >= 100, "{socket:?}");
    let directory = sandbox.dir.to_str().unwrap();
    let tool = tool("vma_stats");
    let report = sandbox.program(tool.to_str().unwrap()).args("-v 5 -c 1 -k").arg(directory).run();
    let (process, name) = (client.id(), if host == "::1" { "[::1]" } else { host });
    let row = report.stdout.lines().find(|line| line.contains(&format!("{process}/")));
    let row = row.unwrap_or_else(|| panic!("{}{}", report.stdout, report.stderr));
    let ends: Vec<_> = row.split_whitespace().filter(|word| word.starts_with(name)).collect();
    assert_eq!(ends, [format!("{name}:{port}"), format!("{name}:6000")], "{row}");
    client.finish();
    server.finish();
}

#[test]
fn sockets_of_the_kernels_are_told_with_the_reason() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut program = net.puppet(Side::A);
    program.run("u = udp(('10.99.0.1', 5000)); c = socket(); c.connect(('10.99.0.2', 7000))");
    program.run("u.sendto(b'x', ('10.99.0.2', 7000)); c.sendall(b'x')");
    let (u, c) = (program.number("u.fileno()"), program.number("c.fileno()"));
    let (accepted, _) = listener.accept().unwrap();
    let file = open(&net.dir, program.id());
    assert_eq!(read_text(&find(&take(&file), u).reason), "");
    // IP_OPTIONS of the one, SO_TIMESTAMP of the other.
    program.run("u.setsockopt(0, 4, b'\\1' * 4); c.setsockopt(1, 29, 1)");
    program.run("u.sendto(b'x', ('10.99.0.2', 7000)); u.sendto(b'x', ('10.99.0.2', 7000))");
    let taken = take(&file);
    for (descriptor, option, port, state) in [(u, "IP_OPTIONS", 5000, 0), (c, "SO_TIMESTAMP", 0, 1)]
    {
        let socket = find(&taken, descriptor);
        let reason = format!("it has {option}, which only the kernel serves");
        assert_eq!(read_text(&socket.reason), reason, "{socket:?}");
        assert_eq!((socket.flags & OFFLOADED, socket.tcp_state), (0, state), "{socket:?}");
        assert!(port == 0 || socket.local_port == port, "{socket:?}");
        assert!(socket.inode != 0 && socket.counters.tx_packets > 0, "{socket:?}");
    }
    assert_eq!((find(&taken, c).peer, find(&taken, c).peer_port), ([10, 99, 0, 2], 7000));
    assert_eq!((taken.sockets.len(), taken.snapshot.sockets_open), (2, 2));
    // Nobody told us that it was closed.
    program.run("c.close(); d = os.dup(0)");
    let taken = take(&file);
    assert_eq!(taken.sockets.iter().map(|one| i64::from(one.descriptor)).collect::<Vec<_>>(), [u]);
    drop((peer, accepted));
    program.finish();
}

// covers: STAT-42
#[test]
fn the_share_of_polling_is_measured_if_said() {
    // Each spins on a processor of its own.
    at_once(2, &[("0", 0), ("1", 200)], |&(value, most)| {
        let net = Namespaces::new();
        let environment = [("VMA_CPU_USAGE_STATS", value), ("VMA_SELECT_POLL", "-1")];
        let mut program = puppet(&net, &environment);
        program.run("s = udp(('10.99.0.1', 5000)); e = select.epoll(); e.register(s, 1)");
        // It polls all of its time.
        program.run("for _ in range(25): select.select([s], [], [], 0.1)");
        program.run("for _ in range(25): e.poll(0.1)");
        let (descriptor, thread) = (program.number("e.fileno()"), program.id());
        let taken = take(&open(&net.dir, program.id()));
        let (select, poll) = (taken.snapshot.select, taken.snapshot.poll);
        let epoll = taken.snapshot.epolls.iter().find(|one| one.used == 1).expect("one");
        assert_eq!(i64::from(epoll.descriptor), descriptor);
        assert_eq!((select.timeouts, epoll.calls.timeouts, poll.timeouts), (25, 25, 0));
        assert_eq!((select.thread, epoll.calls.thread), (thread, thread));
        assert!(epoll.calls.polling_cpu.min(most) == epoll.calls.polling_cpu, "{epoll:?}");
        assert!(epoll.calls.polling_cpu >= most / 4, "{epoll:?}");
        program.finish();
    });
}

// covers: STAT-41
#[test]
fn sockets_without_a_place_count_in_the_totals() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = puppet(&net, &[("VMA_STATS_FD_NUM", "2")]);
    program.run("all = [udp(('10.99.0.1', 5000 + n)) for n in range(5)]");
    program.run("for one in all: one.sendto(bytes(100), ('10.99.0.2', 7000))");
    let file = open(&net.dir, program.id());
    let taken = take(&file);
    let ports = |taken: &Taken| taken.sockets.iter().map(|one| one.local_port).collect::<Vec<_>>();
    assert_eq!(ports(&taken), [5000, 5001]);
    assert_eq!((taken.snapshot.sockets_open, taken.snapshot.sockets_hidden), (5, 3));
    assert_eq!(taken.snapshot.totals.tx_packets, 5);
    let line = "VMA Statistics can monitor up to 2 sockets - increase VMA_STATS_FD_NUM";
    assert_eq!(program.stderr().matches(line).count(), 1, "{}", program.stderr());
    // A place that becomes free is the next one's; the other socket keeps its own.
    program.run("all[0].close()");
    let taken = take(&file);
    let mut shown = ports(&taken);
    assert_eq!((shown.pop(), shown.len()), (Some(5001), 1));
    assert_eq!(taken.snapshot.totals.tx_packets, 5);
    assert_eq!(program.stderr().matches(line).count(), 1);
    drop(peer);
    program.finish();
}

/// Numbers of one instant: a datagram is counted with its bytes, or not at all.
#[test]
fn a_reader_sees_only_what_was_at_one_instant() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = net.puppet(Side::A);
    program.run("first = udp(('10.99.0.1', 4999))");
    program.run(
        "def hammer(n):
    s = udp(('10.99.0.1', 5000 + n)); s.setblocking(False)
    while not stop:
        s.sendto(bytes(100 + n), ('10.99.0.2', 7000))
        try: s.recv(1000)
        except BlockingIOError: pass
        if n == 7: s.close(); s = udp(('10.99.0.1', 5007)); s.setblocking(False)
stop = False
workers = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
for one in workers: one.start()",
    );
    let file = open(&net.dir, program.id());
    let stop = AtomicBool::new(false);
    let (compared, last) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 200];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((len, from)) = peer.recv_from(&mut buffer) {
                    let _ = peer.send_to(&buffer[..len], from);
                }
            }
        });
        let seen = {
            let _stopped = Stop(&stop);
            snapshots(&file)
        };
        program.run("stop = True\nfor one in workers: one.join()");
        // Wakes the echo.
        program.run("first.sendto(b'x', ('10.99.0.2', 7000))");
        seen
    });
    assert!(
        compared > 1000 && last.tx_packets > 1000 && last.rx_packets > 100,
        "{compared} {last:?}"
    );
    program.finish();
}

/// Also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Compares the numbers of many snapshots; how many there were, and the last totals.
fn snapshots(file: &File) -> (u64, Counters) {
    let mut last = Counters::default();
    let mut compared = 0;
    for _ in 0..200 {
        let taken = take(file);
        for socket in taken.sockets.iter().filter(|one| one.local_port >= 5000) {
            let size = u64::from(socket.local_port) - 4900;
            let counters = &socket.counters;
            assert_eq!(counters.tx_bytes, counters.tx_packets * size, "{socket:?}");
            assert_eq!(counters.rx_bytes, counters.rx_packets * size, "{socket:?}");
            compared += counters.tx_packets.min(1);
        }
        let totals = taken.snapshot.totals;
        let grows = totals.tx_packets >= last.tx_packets
            && totals.tx_bytes >= last.tx_bytes
            && totals.rx_packets >= last.rx_packets
            && totals.rx_os_packets >= last.rx_os_packets;
        assert!(grows, "{last:?}\n{totals:?}");
        last = totals;
    }
    (compared, last)
}
