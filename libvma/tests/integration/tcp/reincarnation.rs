//! Connections between the same endpoints, one after the other, from processes under the library and
//! from others: each must look later than the one before it to a server that holds TIME-WAIT.

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
