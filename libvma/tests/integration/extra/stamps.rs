//! Time stamps of what is received, and sockets that want more than the library makes.

use std::io::Write;
use std::net::TcpListener;

use super::program;
use crate::harness::{Namespaces, Program, Side};

/// What the program waits for, and what it is sent then.
const STEPS: [(&str, &str); 6] = [
    ("early\n", "d"),
    ("soon\n", "d"),
    ("soon\nsoon\n", "d"),
    ("soon\nsoon\nsoon\n", "d"),
    ("received\n", "r"),
    ("behind\n", "d"),
];

fn stamps<'a>(net: &'a Namespaces, host: &str) -> Program<'a> {
    program(net, "stamps", include_str!("stamps.c")).args(host).with_library()
}

#[test]
fn a_callback_learns_when_bytes_of_a_stream_came() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let watch = net.watch_tcp(Side::A);
    let mut running = stamps(&net, "10.99.0.2").start();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    for (step, bytes) in STEPS {
        running.wait_for_text(step);
        stream.write_all(bytes.as_bytes()).unwrap();
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    watch.still(1);
}

#[test]
fn a_callback_learns_when_bytes_of_a_stream_within_the_host_came() {
    let net = Namespaces::new();
    let mut server = net.puppet(Side::A);
    server.run("l = socket(); l.bind(('127.0.0.1', 7000)); l.listen()");
    let mut running = stamps(&net, "127.0.0.1").start();
    running.wait_for_text("early\n");
    server.run("s, _ = l.accept()");
    for (step, bytes) in STEPS {
        running.wait_for_text(step);
        server.run(&format!("s.sendall(b'{bytes}')"));
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

/// A socket that is served, and what the library says of it.
#[test]
fn stamps_of_the_adapter_are_said_to_be_missing_once() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut program = net.puppet(Side::A);
    program.run("import struct; a, b = udp(('10.99.0.1', 5000)), udp(('10.99.0.1', 5001))");
    let watch = net.watch(Side::A);
    // SO_TIMESTAMPING with RX_HARDWARE, RX_SOFTWARE, SOFTWARE and RAW_HARDWARE.
    program.run("for s in (a, b): s.setsockopt(SOL_SOCKET, 37, 4 | 8 | 16 | 64)");
    for port in [5000, 5001] {
        peer.send_to(b"x", Side::A.at(port)).unwrap();
    }
    program.run("import time; now = time.time()");
    for socket in ["a", "b"] {
        program.run(&format!("_, control, _, _ = {socket}.recvmsg(10, 200)"));
        program.run("stamps = struct.unpack('6q', control[0][2])");
        assert_eq!(program.run("abs(now - stamps[0]) < 10 and stamps[2:] == (0, 0, 0, 0)"), "True");
    }
    watch.still();
    program.finish();
    let said = program.stderr();
    assert_eq!(said.matches("asks for time stamps of the adapter").count(), 1, "{said}");
}
