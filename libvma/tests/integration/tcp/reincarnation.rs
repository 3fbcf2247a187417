//! Connections between the same endpoints, one after the other, from processes under the library and
//! from others: each must look later than the one before it to a server that holds TIME-WAIT.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::harness::{Namespaces, PYTHON, Puppet, Side};

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
