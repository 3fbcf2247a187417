//! What the kernel carries for sockets of the program: of those that became its own, of those that were
//! so from the start, and of calls that are passed on.

use super::*;

// covers: STAT-25, STAT-38, FIX-23
#[test]
fn every_call_on_a_socket_of_the_kernels_is_counted() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = net.puppet(Side::A);
    program.run(BURSTS);
    program.run("s = socket(AF_INET, SOCK_DGRAM); s.bind(('10.99.0.1', 5000))");
    program.run("s.connect(('10.99.0.2', 7000)); fd = s.fileno()");
    let descriptor = program.number("fd");
    let file = open(&net.dir, program.id());
    // IP_OPTIONS: three bytes that mean nothing, and the end.
    program.run("s.setsockopt(0, 4, b'\\1\\1\\1\\0')");
    program.run("s.send(bytes(100)); s.sendto(bytes(10), ('10.99.0.2', 7000))");
    program.run(
        "s.sendmsg([bytes(3), bytes(4)]); os.write(fd, bytes(20)); os.writev(fd, [b'ab', b'c'])",
    );
    assert_eq!(program.number("messages(libc.sendmmsg, s, 3)"), 3);
    let refused = "
try: s.send(bytes(70000))
except OSError as error: assert error.errno == errno.EMSGSIZE";
    program.run(refused);
    let counters = |taken: &Taken| find(taken, descriptor).counters;
    let taken = take(&file);
    let told = counters(&taken);
    let sent = 100 + 10 + 7 + 20 + 3 + 3 * 5;
    assert_eq!((told.tx_os_packets, told.tx_os_bytes, told.tx_os_errors), (8, sent, 1), "{told:?}");
    assert_eq!((told.tx_packets, told.tx_bytes, told.tx_os_eagain), (0, 0, 0), "{told:?}");
    assert_eq!(taken.snapshot.totals.tx_os_bytes, sent);
    assert_eq!(taken.sockets.len(), 1);

    for _ in 0..9 {
        peer.send_to(&[7; 5], Side::A.at(5000)).unwrap();
    }
    program.run("assert len(s.recv(9, MSG_PEEK)) == 5; s.recv(9); s.recvfrom(9); s.recvmsg(9)");
    program.run("os.read(fd, 9); os.readv(fd, [bytearray(9)]); s.recv_into(bytearray(9))");
    assert_eq!(program.number("messages(libc.recvmmsg, s, 3, None)"), 3);
    program.run(
        "
try: s.recv(9, MSG_DONTWAIT)
except BlockingIOError: pass",
    );
    let told = counters(&take(&file));
    assert_eq!((told.rx_os_packets, told.rx_os_bytes), (9, 45), "{told:?}");
    assert_eq!((told.rx_os_eagain, told.rx_os_errors, told.rx_packets), (1, 0, 0), "{told:?}");

    // By another number; the first one becomes somebody else's.
    program.run("d = os.dup(fd); s.close(); os.write(d, bytes(11)); f = os.open('/dev/null', 1)");
    program.run("os.write(f, bytes(1000)); e = os.dup2(d, 77); os.close(d); os.write(77, b'x')");
    let taken = take(&file);
    let socket = find(&taken, 77);
    assert_eq!((taken.sockets.len(), socket.counters.tx_os_bytes), (1, sent + 12), "{taken:?}");
    assert_eq!(socket.local_port, 5000);
    // It is set to zero, counts again, and goes.
    file.ask(&Request::Zero(&[77])).unwrap();
    take(&file);
    program.run("os.write(77, bytes(30))");
    let taken = take(&file);
    assert_eq!(find(&taken, 77).counters.tx_os_bytes, 30);
    assert_eq!(taken.snapshot.totals.tx_os_bytes, sent + 42, "the totals go on");
    program.run("os.close(77); t = udp()");
    let taken = take(&file);
    assert_eq!((taken.sockets.len(), taken.snapshot.totals.tx_os_bytes), (1, sent + 42));
    let text = std::fs::read_to_string(net.file(&format!("stats.{}", program.id()))).unwrap();
    assert!(text.contains("[fd=77] Tx OS info: 0 / 1 / 0 ["), "{text}");
    assert_eq!(text.matches("Tx OS info").count(), 1, "{text}");
    program.finish();
}

// covers: LIM-65, STAT-40
#[test]
fn connections_of_the_kernels_are_counted() {
    let net = Namespaces::new();
    let listener = net.within(Side::A, || TcpListener::bind("127.0.0.1:7000").unwrap());
    let mut program = net.puppet(Side::A);
    program.run("l = socket(); l.bind(('127.0.0.1', 6000)); l.listen()");
    program.run("c = socket(); c.connect(('127.0.0.1', 7000))");
    let (mut peer, _) = listener.accept().unwrap();
    program.run("c.sendall(bytes(1000)); open('file', 'wb').write(bytes(300)); f = open('file')");
    program.run("os.sendfile(c.fileno(), f.fileno(), 0, 300)");
    peer.read_exact(&mut [0; 1300]).unwrap();
    peer.write_all(&[0; 500]).unwrap();
    program.run("c.recv(500, MSG_WAITALL)");
    program.run(
        "
try: c.recv(1, MSG_DONTWAIT)
except BlockingIOError: pass
r, w = os.pipe(); os.write(w, bytes(40)); os.splice(r, c.fileno(), 40)",
    );
    peer.read_exact(&mut [0; 40]).unwrap();
    let file = open(&net.dir, program.id());
    let socket = find(&take(&file), program.number("c.fileno()"));
    let told = socket.counters;
    assert_eq!(read_text(&socket.reason), "the destination is on this host");
    assert_eq!((socket.tcp_state, socket.peer_port, socket.kind), (1, 7000, 1), "{socket:?}");
    assert_eq!((told.tx_os_packets, told.tx_os_bytes), (3, 1340), "{told:?}");
    assert_eq!((told.rx_os_packets, told.rx_os_bytes, told.rx_os_eagain), (1, 500, 1), "{told:?}");
    // Its end is no packet, and what cannot be sent then an error.
    peer.shutdown(std::net::Shutdown::Both).unwrap();
    drop(peer);
    program.run(
        "
assert c.recv(1) == b''
c.send(b'x'); time.sleep(0.1)
try: c.send(b'x')
except BrokenPipeError: pass",
    );
    let told = find(&take(&file), program.number("c.fileno()")).counters;
    assert_eq!((told.rx_os_packets, told.tx_os_packets, told.tx_os_errors), (1, 4, 1), "{told:?}");

    // One that is accepted.
    let mut client = net.within(Side::A, || TcpStream::connect("127.0.0.1:6000").unwrap());
    client.write_all(&[0; 70]).unwrap();
    program.run("a, _ = l.accept(); a.recv(100); a.send(bytes(7))");
    client.read_exact(&mut [0; 7]).unwrap();
    let taken = take(&file);
    let socket = find(&taken, program.number("a.fileno()"));
    assert_eq!((socket.counters.rx_os_bytes, socket.counters.tx_os_bytes), (70, 7), "{socket:?}");
    assert_eq!((socket.local_port, socket.flags & OFFLOADED), (6000, 0), "{socket:?}");
    program.run("a.close(); c.close(); l.close()");
    let totals = take(&file).snapshot.totals;
    assert_eq!((totals.tx_os_bytes, totals.rx_os_bytes), (1340 + 1 + 7, 570), "{totals:?}");
    program.finish();
}

// covers: STAT-38
#[test]
fn sends_that_are_passed_on_are_counted_as_they_end() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = socket(AF_INET, SOCK_DGRAM); s.bind(('10.99.0.1', 5000))");
    let file = open(&net.dir, program.id());
    // To a port of this host that nobody has, and to everybody without leave.
    program.run(
        "
s.sendto(bytes(10), ('10.99.0.1', 9))
for address in '255.255.255.255', '10.99.0.255':
    try: s.sendto(bytes(10), (address, 9))
    except PermissionError: pass",
    );
    let told = find(&take(&file), program.number("s.fileno()")).counters;
    assert_eq!((told.tx_os_packets, told.tx_os_bytes, told.tx_os_errors), (1, 10, 2), "{told:?}");
    program.finish();
}

/// A listener whose process was told by libvma.conf to leave connections to the kernel.
// covers: LIM-65
#[test]
fn sockets_that_rules_leave_to_the_kernel_are_counted() {
    let net = Namespaces::new();
    let rules = net.file("rules.conf");
    std::fs::write(
        &rules,
        "application-id * *\nuse os tcp_server *:*\nuse os tcp_client *:*:*:*\n",
    )
    .unwrap();
    let environment = [("VMA_CONFIG_FILE", rules.to_str().unwrap())];
    let mut program = puppet(&net, &environment);
    program.run("u = udp(('10.99.0.1', 5000))");
    program.run("l = socket(); l.bind(('10.99.0.1', 6000)); l.listen()");
    let mut client = net.within(Side::B, || TcpStream::connect(Side::A.at(6000)).unwrap());
    program.run("a, _ = l.accept(); a.send(bytes(70))");
    client.read_exact(&mut [0; 70]).unwrap();
    let taken = take(&open(&net.dir, program.id()));
    let socket = find(&taken, program.number("a.fileno()"));
    assert_eq!((socket.counters.tx_os_packets, socket.counters.tx_os_bytes), (1, 70), "{socket:?}");
    assert_eq!((socket.tcp_state, socket.flags & OFFLOADED), (1, 0), "{socket:?}");
    let listens = find(&taken, program.number("l.fileno()"));
    assert_eq!((listens.tcp_state, read_text(&socket.reason)), (10, read_text(&listens.reason)));
    assert_ne!(read_text(&socket.reason), "");
    program.finish();
}
