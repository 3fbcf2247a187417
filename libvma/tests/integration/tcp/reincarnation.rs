//! Connections between the same endpoints, one after the other, from processes under the library and
//! from others: each must look later than the one before it to a server that holds TIME-WAIT.

use std::fs::DirEntry;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Namespaces, PYTHON, Puppet, Side, wait_for};

const SERVE: &str = "
import threading
def serve(l):
    while True:
        c, _ = l.accept()
        c.sendall(b'x')
        c.close()
";

/// Clients, under the library or not, connect from one port to a server that closes first. Returns how
/// long the handshakes took.
fn connect_in_turn(at_server: bool, clients: &[bool]) -> Vec<Duration> {
    let net = Namespaces::new();
    let server = net.program(Side::B, PYTHON);
    let mut server = Puppet::start(if at_server { server.with_library() } else { server });
    server.run(SERVE);
    server.run("l = create_server(('10.99.0.2', 7000))");
    server.run("threading.Thread(target=serve, args=(l,), daemon=True).start()");
    net.wait_for_listener(Side::B, 7000);
    let mut took = Vec::new();
    for with_library in clients {
        let program = net.program(Side::A, PYTHON);
        let mut client =
            Puppet::start(if *with_library { program.with_library() } else { program });
        let watch = net.watch_tcp(Side::A);
        client.run("c = socket(); c.settimeout(15); c.bind(('10.99.0.1', 5000))");
        let begin = Instant::now();
        client.run("c.connect(('10.99.0.2', 7000))");
        took.push(begin.elapsed());
        assert_eq!(client.run("c.recv(9), c.recv(9)"), "(b'x', b'')");
        client.run("c.close()");
        if *with_library {
            watch.still(0);
        }
    }
    took
}

#[track_caller]
fn nobody_waits(took: &[Duration]) {
    assert!(took.iter().all(|time| *time < Duration::from_millis(700)), "{took:?}");
}

// covers: NET-04
#[test]
fn a_client_that_restarts_does_not_wait_for_the_servers_time_wait() {
    nobody_waits(&connect_in_turn(false, &[true; 10]));
    nobody_waits(&connect_in_turn(true, &[true; 10]));
}

// covers: NET-04
#[test]
fn clients_with_and_without_the_library_take_turns_on_one_port() {
    let clients = [true, false, false, true, true, false, true, false];
    nobody_waits(&connect_in_turn(false, &clients));
    nobody_waits(&connect_in_turn(true, &clients));
}

/// Every thread of the process stands still.
fn stop(process: &Puppet) {
    process.signal(Signal::STOP);
    let is_stopped = |task: DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    wait_for("the process stands still", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).ok()?;
        tasks.flatten().all(is_stopped).then_some(())
    });
}

// covers: NET-04
#[test]
fn a_client_may_reset_a_connection_and_make_it_anew_before_the_server_looks() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON).with_library());
    server.run("l = create_server(('10.99.0.2', 7000)); l.settimeout(15)");
    net.wait_for_listener(Side::B, 7000);
    let mut client = Puppet::start(net.program(Side::A, PYTHON));
    client.run("reset = struct.pack('ii', 1, 0)");
    let watch = net.watch_tcp(Side::B);
    client.run("c = socket(); c.settimeout(15); c.bind(('10.99.0.1', 5000))");
    client.run("c.setsockopt(SOL_SOCKET, SO_LINGER, reset); c.connect(('10.99.0.2', 7000))");
    server.run("a = l.accept()[0]; a.settimeout(15); a.sendall(b'first')");
    assert_eq!(client.run("c.recv(9)"), "b'first'");
    // The reset and the SYN wait in the ring, so that they come in one batch.
    stop(&server);
    client.run("c.close()");
    client.run("c = socket(); c.bind(('10.99.0.1', 5000)); c.setblocking(False)");
    assert_eq!(client.run("c.connect_ex(('10.99.0.2', 7000)) == errno.EINPROGRESS"), "True");
    server.signal(Signal::CONT);
    client.run("select.select([], [c], [], 15)");
    assert_eq!(client.run("c.getsockopt(SOL_SOCKET, SO_ERROR)"), "0");
    server.run("b = l.accept()[0]; b.sendall(b'second')");
    assert!(server.raises("a.recv(9)").starts_with("ConnectionResetError"));
    client.run("c.settimeout(15)");
    assert_eq!(client.run("c.recv(9)"), "b'second'");
    watch.still(0);
}

/// More connections that wait for their end than keep their ports from the kernel's other sockets.
const HALF_CLOSED: &str = "
import socket
refused = []
for n in range(450):
    c = socket.socket()
    try:
        c.connect(('10.99.0.2', 7000))
    except OSError as error:
        refused.append(f'{n}: {error!r}')
    c.close()
print('refused', refused)
";

// covers: NET-04
#[test]
fn a_port_whose_connection_is_not_over_is_not_taken_for_another_to_the_same_peer() {
    let net = Namespaces::new();
    net.sysctl(Side::A, "net.ipv4.ip_local_port_range", "40000 40599");
    let listener = net.within(Side::B, || TcpListener::bind("0.0.0.0:7000").unwrap());
    // It closes nothing, so that the client's end of each connection waits for a FIN.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let watch = net.watch_tcp(Side::A);
    let program = net.program(Side::A, PYTHON).with_library();
    let output = program.arg("-c").arg(HALF_CLOSED).run().ok();
    assert!(output.stdout.contains("refused []\n"), "{}", output.stdout);
    watch.still(450);
}
