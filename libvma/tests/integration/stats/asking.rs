//! What a reader of the statistics file can ask for, and what the log tells of sockets.

use super::*;

// covers: STAT-16, STAT-17, LOG-15
#[test]
fn the_log_can_be_changed_while_the_program_runs() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_TRACELEVEL", "warning")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    let file = open(&net.dir, program.id());
    assert_eq!(file.control().unwrap().log_level, 2);
    file.ask(&Request::LogLevel(5)).unwrap();
    file.ask(&Request::LogDetails(2)).unwrap();
    take(&file);
    file.ask(&Request::Dump { descriptor: 0, level: 5 }).unwrap();
    wait_for("lines of the new level", || program.stderr().contains("VMA DEBUG").then_some(()));
    let line = format!("Pid: {:>5} Tid:", program.id());
    let said = program.stderr();
    let first = said.lines().find(|line| line.contains("VMA DEBUG")).unwrap();
    assert!(first.starts_with(&line), "{first}");
    program.finish();
}

// covers: STAT-23, STAT-24
#[test]
fn a_closed_socket_tells_its_counters() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = puppet(&net, &[("VMA_TRACELEVEL", "debug")]);
    program.run("s = udp(('10.99.0.1', 5000))");
    program.run("for _ in range(30): s.sendto(bytes(100), ('10.99.0.2', 7000))");
    let descriptor = program.number("s.fileno()");
    program.run("s.close()");
    let line = format!("[fd={descriptor}] Tx Offload: 2 / 30 / 0 [kilobytes/packets/errors]\n");
    let said = program.stderr();
    assert!(said.contains("VMA DEBUG: ") && said.contains(&line), "{said}");
    let file = std::fs::read_to_string(net.file(&format!("stats.{}", program.id()))).unwrap();
    assert!(file.contains(&format!("VMA: {line}")), "{file}");
    drop(peer);
    program.finish();
}

// covers: STAT-14, STAT-35
#[test]
fn a_dump_goes_to_the_log() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut program = net.puppet(Side::A);
    program.run("u = udp(('10.99.0.1', 5000)); c = socket(); c.connect(('10.99.0.2', 7000))");
    program.run("c.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1); c.sendall(bytes(14))");
    program.run("e = select.epoll(); e.register(u, 1); e.register(c, 1)");
    let (mut peer, _) = listener.accept().unwrap();
    peer.read_exact(&mut [0; 14]).unwrap();
    let (u, c) = (program.number("u.fileno()"), program.number("c.fileno()"));
    let e = program.number("e.fileno()");
    let file = open(&net.dir, program.id());
    let frame = "VMA INFO: ==================================================\n";
    file.ask(&Request::Dump { descriptor: c as i32, level: 3 }).unwrap();
    take(&file);
    let said = program.stderr();
    let port = program.run("c.getsockname()[1]");
    for expected in [
        &format!("{frame}VMA INFO: ============ DUMPING FD {c} STATISTICS ============\n"),
        "VMA INFO: ==================== SOCKET FD ===================\n",
        &format!("VMA INFO: Fd number : {c}\n"),
        &format!("VMA INFO: Bind info : 10.99.0.1:{port}\n"),
        "VMA INFO: Connection info : 10.99.0.2:7000\n",
        "VMA INFO: Protocol : PROTO_TCP\n",
        "VMA INFO: Is offloaded : true\n",
        "VMA INFO: Socket state : TCP_SOCK_CONNECTED_RDWR\n",
        "VMA INFO: Connection state : TCP_CONN_CONNECTED\n",
        "VMA INFO: PCB state : ESTABLISHED\n",
        "VMA INFO: PCB flags : 0x148\n",
        "VMA INFO: Window scaling : ENABLED, rcv_scale ",
        "VMA INFO: Receive window : rcv_wnd ",
        "VMA INFO: Send window : snd_wnd ",
        "VMA INFO: First unsent : NULL\n",
        "VMA INFO: Congestion : cwnd ",
        "VMA INFO: Acknowledge : lastack ",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in\n{said}");
    }
    assert!(said.ends_with(&format!("{frame}{frame}")), "{said}");
    assert!(!said.contains(&format!("Fd number : {u}\n")), "{said}");

    // All of them, at a level that is not wanted and at one that is.
    file.ask(&Request::Dump { descriptor: 0, level: 5 }).unwrap();
    take(&file);
    assert_eq!(program.stderr(), said);
    file.ask(&Request::Dump { descriptor: 0, level: 2 }).unwrap();
    take(&file);
    let all = program.stderr().split_off(said.len());
    for expected in [
        "VMA WARNING: ======= DUMPING STATISTICS FOR ALL OPEN FDS ======\n",
        &format!("VMA WARNING: Fd number : {u}\n"),
        &format!("VMA WARNING: Fd number : {c}\n"),
        "VMA WARNING: Protocol : PROTO_UDP\n",
        "VMA WARNING: Rx ready list size : 0\n",
        "VMA WARNING: ==================== EPOLL FD ====================\n",
        &format!("VMA WARNING: Fd number : {e}\n"),
        "VMA WARNING: Offloaded Fds : 2\n",
        &format!("VMA WARNING: Offloaded Fds list: {u} {c}\n"),
    ] {
        assert!(all.contains(expected), "{expected:?} is not in\n{all}");
    }
    program.finish();
}

// covers: STAT-15
#[test]
fn counters_can_be_set_to_zero() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000)); t = udp(('10.99.0.1', 5001))");
    let send = "for one in s, t: one.sendto(bytes(100), ('10.99.0.2', 7000))";
    program.run(send);
    let (s, t) = (program.number("s.fileno()"), program.number("t.fileno()"));
    let file = open(&net.dir, program.id());
    let sent = |taken: &Taken| [s, t].map(|one| find(taken, one).counters.tx_packets);
    assert_eq!(sent(&take(&file)), [1, 1]);
    // One of them.
    file.ask(&Request::Zero(&[s as i32])).unwrap();
    program.run(send);
    wait_for("it counts again", || (sent(&take(&file))[1] == 2).then_some(()));
    let taken = take(&file);
    assert!(sent(&taken)[0] < 2 && sent(&taken)[1] == 2, "{:?}", sent(&taken));
    assert_eq!(taken.snapshot.totals.tx_packets, 4, "totals of what was go on");
    // Everything.
    file.ask(&Request::Zero(&[])).unwrap();
    let taken = take(&file);
    assert_eq!((sent(&taken), taken.snapshot.totals), ([0, 0], Counters::default()));
    assert!(taken.snapshot.rings.iter().all(|ring| ring.tx_packets == 0));
    program.run(send);
    let taken = take(&file);
    assert_eq!((sent(&taken), taken.snapshot.totals.tx_packets), ([1, 1], 2));
    drop(peer);
    program.finish();
}
