//! With the real daemon: what peers hear of a process that was killed, and of one that was not.

use std::io::{ErrorKind, Write};

use std::net::IpAddr;

use super::*;
use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Running, tool};
use crate::workers;

/// What a peer that waits may wait for the reset. It usually takes a few milliseconds.
const AT_ONCE: Duration = Duration::from_secs(1);

impl Host {
    /// The daemon, which has all its files in the test's directory.
    fn vmad(&self) -> Running {
        let file = |name: &str| self.net.file(name).to_str().unwrap().to_owned();
        let config = format!(
            "socket = '{}'\nlock_file = '{}'\npid_file = '{}'\n",
            file("run/vma_agent.sock"),
            file("vmad.lock"),
            file("vmad.pid"),
        );
        std::fs::write(self.net.file("vmad.toml"), config).unwrap();
        let program = tool("vmad");
        let daemon = self
            .net
            .program(Side::A, program.to_str().unwrap())
            .args("--console -v 5 --config")
            .arg(&file("vmad.toml"))
            .arg("--notify-dir")
            .arg(&file("notify"))
            .start();
        wait_for("the daemon has its socket", || self.daemon_socket().exists().then_some(()));
        daemon
    }
}

/// Until the daemon has been told so often that a connection is established.
#[track_caller]
fn knows(daemon: &Running, connections: usize) {
    wait_for("the daemon knows the connections", || {
        (daemon.printed().matches("state: ESTABLISHED").count() >= connections).then_some(())
    });
}

/// Kills the program while a peer waits in recv(); how long it waits on.
#[track_caller]
fn killed(program: &mut Puppet, peer: &mut TcpStream) -> Duration {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (peer.read(&mut [0; 1]), Instant::now()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished(), "it waits");
        let begin = Instant::now();
        kill(program);
        let (heard, when) = waiting.join().unwrap();
        let error = heard.expect_err("not an orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        when - begin
    })
}

// covers: DMN-02, DMN-08
#[test]
fn peers_of_a_killed_process_get_a_reset_though_they_send_nothing() {
    let host = Host::new();
    let daemon = host.vmad();
    for round in 0..6 {
        let accepts = round % 2 == 0;
        let watch = host.net.watch_tcp(Side::A);
        let mut program = host.puppet();
        let mut peer = match accepts {
            true => host.accept(&mut program),
            false => host.connect(&mut program, 1).pop().unwrap(),
        };
        program.run("c.sendall(b'hello')");
        peer.read_exact(&mut [0; 5]).unwrap();
        watch.still(0);
        knows(&daemon, round + 1);
        let took = killed(&mut program, &mut peer);
        println!(
            "a peer of {} heard it after {took:?}",
            if accepts { "a server" } else { "a client" }
        );
        assert!(took < AT_ONCE, "{took:?}");
    }
    wait_for("the daemon has tidied up", || host.notified().is_empty().then_some(()));
}

// covers: DMN-02
#[test]
fn peers_over_ipv6_of_a_killed_process_get_a_reset_too() {
    let host = Host::new();
    with_ipv6(&host.net);
    let daemon = host.vmad();
    // A listener of both families has clients of both.
    let addresses = [IpAddr::from(of(Side::A)), IpAddr::from(Side::A.ip())];
    for (round, address) in addresses.into_iter().enumerate() {
        let mut program = host.puppet();
        program.run("l = create_server(('::', 7000), family=AF_INET6, dualstack_ipv6=True)");
        program.run("select.select([l], [], [], 0)");
        let watch = host.net.watch_tcp(Side::A);
        let mut peer =
            patient(host.net.within(Side::B, || TcpStream::connect((address, 7000))).unwrap());
        program.run("c, _ = l.accept(); c.sendall(b'hello')");
        peer.read_exact(&mut [0; 5]).unwrap();
        watch.still(0);
        knows(&daemon, round + 1);
        let took = killed(&mut program, &mut peer);
        println!("a peer of a server on {address} heard it after {took:?}");
        assert!(took < AT_ONCE, "{took:?}");
    }
    let listener = host.net.within(Side::B, || TcpListener::bind((of(Side::B), 7001))).unwrap();
    let mut program = host.puppet();
    program.run(&format!("c = create_connection(('{}', 7001), 15)", of(Side::B)));
    let mut peer = patient(listener.accept().unwrap().0);
    knows(&daemon, 3);
    let took = killed(&mut program, &mut peer);
    assert!(took < AT_ONCE, "{took:?}");
    wait_for("the daemon has tidied up", || host.notified().is_empty().then_some(()));
}

// covers: DMN-02, LIM-22
#[test]
fn the_daemon_ends_the_connections_of_workers() {
    for place in [workers::IPV4, workers::IPV6] {
        ends_those_of_workers(place);
    }
}

#[track_caller]
fn ends_those_of_workers(place: workers::Place) {
    let host = Host::new();
    let daemon = host.vmad();
    let server = host.program(PYTHON);
    let (server, mut client) = workers::start_in(server, &host.net, 4, place);
    workers::wait_until_served(&host.net, &mut client);
    assert!(client.number("len(set(workers))") > 1);
    let began = Instant::now();
    let said = client.run("kill_one()");
    assert!(["{104}", "{b''}"].contains(&said.as_str()), "{said}");
    assert!(began.elapsed() < 2 * AT_ONCE, "{:?}", began.elapsed());
    wait_for("the daemon to tell what it does", || {
        daemon.printed().contains("died: telling the peers of 4 connections").then_some(())
    });
    client.run("talk()");
    drop(server);
}

#[test]
fn the_process_of_an_ordinary_user_is_known_to_the_daemon_too() {
    let host = Host::new();
    let daemon = host.vmad();
    let mut program = host.nobodys_puppet();
    assert_eq!(program.run("os.getuid()"), "65534");
    let watch = host.net.watch_tcp(Side::A);
    let mut peer = host.accept(&mut program);
    watch.still(0);
    knows(&daemon, 1);
    let took = killed(&mut program, &mut peer);
    assert!(took < AT_ONCE, "{took:?}");
    wait_for("the daemon has tidied up", || host.notified().is_empty().then_some(()));
}

// covers: DMN-02
#[test]
fn a_thousand_peers_get_their_reset() {
    let host = Host::new();
    let daemon = host.vmad();
    let mut program = Puppet::start(host.program(PYTHON).env("VMA_TRACELEVEL", "warning"));
    program.run("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))");
    const MANY: usize = 1000;
    let listener = host.net.within(Side::B, || TcpListener::bind(Side::B.at(7100))).unwrap();
    let watch = host.net.watch_tcp(Side::A);
    program.begin(&format!(
        "all = [create_connection(('10.99.0.2', 7100), 15) for _ in range({MANY})]"
    ));
    let mut peers: Vec<_> = (0..MANY).map(|_| patient(listener.accept().unwrap().0)).collect();
    program.end("connections");
    watch.still(0);
    knows(&daemon, MANY);
    let begin = Instant::now();
    kill(&mut program);
    for peer in &mut peers {
        let error = peer.read(&mut [0; 1]).expect_err("not an orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    let took = begin.elapsed();
    println!("{MANY} peers heard it after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

// covers: DMN-03
#[test]
fn without_the_daemon_a_peer_hears_nothing_until_it_sends() {
    let host = Host::new();
    let daemon = host.vmad();
    let mut program = host.puppet();
    let mut peer = host.accept(&mut program);
    knows(&daemon, 1);
    daemon.interrupt();
    program.run("c.sendall(b'all goes on')");
    peer.read_exact(&mut [0; 11]).unwrap();
    kill(&mut program);
    hears_nothing(&mut peer, Duration::from_millis(500));
    peer.write_all(b"anybody?").unwrap();
    let error = peer.read(&mut [0; 1]).expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

// covers: DMN-07
#[test]
fn a_daemon_that_was_started_again_resets_connections_from_before() {
    let host = Host::new();
    let mut daemon = host.vmad();
    for how in ["orderly", "killed"] {
        let mut program = host.puppet();
        let mut peer = host.accept(&mut program);
        knows(&daemon, 1);
        if how == "killed" {
            daemon.signal(Signal::KILL);
            daemon.wait_for_end();
        } else {
            daemon.interrupt();
        }
        daemon = host.vmad();
        knows(&daemon, 1);
        let took = killed(&mut program, &mut peer);
        println!("{how}: a peer heard it after {took:?}");
        assert!(took < AT_ONCE, "{took:?}");
        // The next round counts in a daemon that has told of this connection.
        daemon.interrupt();
        daemon = host.vmad();
    }
}

#[test]
fn a_process_that_ends_in_order_ends_its_connections_in_order() {
    let host = Host::new();
    let daemon = host.vmad();
    let ends = ["sys.exit(0)", "os._exit(0)", "c.close()", "os.execv('/bin/true', ['true'])"];
    for (round, end) in ends.into_iter().enumerate() {
        let mut program = host.puppet();
        let mut peer = host.accept(&mut program);
        knows(&daemon, round + 1);
        program.begin(&format!("c.sendall(b'last words'); l.close(); {end}"));
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap_or_else(|error| panic!("{end}: {error}"));
        assert_eq!(got, b"last words");
        // Nor is what follows a reset, while our half is open.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "{end}");
        drop(peer);
        if end == "c.close()" {
            program.finish();
        }
    }
    let said = daemon.printed();
    assert!(said.contains("remove from the storage"), "{said}");
    assert!(!said.contains("detect abnormal termination"), "{said}");
}

/// The parent dies, and somebody else goes on with its connection.
#[track_caller]
fn goes_on(host: &Host, daemon: &Running, known: usize, hand_over: &str) {
    let mut program = host.puppet();
    let mut peer = host.accept(&mut program);
    knows(daemon, known);
    program.run(hand_over);
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"child", "{hand_over}");
    kill(&mut program);
    hears_nothing(&mut peer, Duration::from_millis(300));
    peer.write_all(b"go on").unwrap();
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap_or_else(|error| panic!("{hand_over}: {error}"));
    assert_eq!(rest, b"as ever", "{hand_over}");
}

#[test]
fn a_connection_that_somebody_else_has_outlives_the_process() {
    const TALK: &str = "c.sendall(b'child'); c.recv(100); c.sendall(b'as ever')";
    let host = Host::new();
    let daemon = host.vmad();
    let forked = format!("if os.fork() == 0:\n    {TALK}; os._exit(0)");
    let executed = format!(
        "import subprocess; c.set_inheritable(True)
code = \"\"\"import socket; c = socket.socket(fileno=%d); {TALK}\"\"\" % c.fileno()
subprocess.Popen([sys.executable, '-c', code], pass_fds=[c.fileno()])"
    );
    let sent = format!(
        "a, b = socketpair(AF_UNIX, SOCK_STREAM)
if os.fork() == 0:
    _, [fd], _, _ = recv_fds(b, 10, 1)
    c = socket(fileno=fd); {TALK}; os._exit(0)
send_fds(a, [b'x'], [c.fileno()])"
    );
    for (round, hand_over) in [&forked, &executed, &sent].into_iter().enumerate() {
        goes_on(&host, &daemon, round + 1, hand_over);
    }
}
