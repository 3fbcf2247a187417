//! Time stamps of what is received, and sockets that want more than the library makes.

use std::io::{Read, Write};
use std::net::TcpListener;

use libvma_dev::stats::{File, OFFLOADED, read_text};

use super::program;
use crate::harness::{Namespaces, PATIENCE, Program, Side, wait_for};

/// The lines that the program prints while it waits, and the bytes that are sent to it then.
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

/// A served socket, and the library's log about it.
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

/// Its packets are the kernel's own, so that the kernel stamps them when they leave.
#[test]
fn a_socket_that_wants_stamps_of_sending_is_the_kernels_and_says_why() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut program = net.puppet(Side::A);
    program.run("import select; u = udp(('10.99.0.1', 5000)); t = socket()");
    program.run("u.sendto(b'before', ('10.99.0.2', 7000)); t.connect(('10.99.0.2', 7000))");
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 100];
    peer.recv(&mut bytes).unwrap();
    // SO_TIMESTAMPING with TX_SOFTWARE and SOFTWARE.
    program.run("for s in (u, t): s.setsockopt(SOL_SOCKET, 37, 2 | 16)");
    program.run("u.connect(('10.99.0.2', 7000))");
    for socket in ["u", "t"] {
        let watch = net.watch(Side::A);
        program.run(&format!("{socket}.send(b'stamped')"));
        program.run(&format!("p = select.poll(); p.register({socket}, 0); p.poll(10000)"));
        program.run(&format!("_, control, _, _ = {socket}.recvmsg(100, 500, 0x2000)")); // MSG_ERRQUEUE
        let stamps = "[data[:16] != bytes(16) for level, kind, data in control if kind == 37]";
        assert_eq!(program.run(stamps), "[True]", "a stamp, of {socket}");
        assert_eq!(watch.moved().1, u64::from(socket == "u"));
    }
    peer.recv(&mut bytes).unwrap();
    stream.read_exact(&mut bytes[..7]).unwrap();
    let sockets = ["u", "t"].map(|socket| program.number(&format!("{socket}.fileno()")));
    let file = wait_for("its statistics", || File::open(&net.dir, program.id()).ok());
    let taken = file.take(PATIENCE).expect("an answer");
    for descriptor in sockets {
        let told = taken.sockets.iter().find(|told| i64::from(told.descriptor) == descriptor);
        let told = told.expect("the socket is told of");
        assert_eq!(
            (told.flags & OFFLOADED, read_text(&told.reason)),
            (0, "it has SO_TIMESTAMPING, which only the kernel serves")
        );
    }
    program.finish();
}
