//! VMA_SND_FLAGS_DUMMY: the way of a send, and nothing on the wire.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use super::program;
use crate::harness::{Namespaces, PYTHON, Puppet, Side, tool, wait_for};

const ROUNDS: u64 = 500;

/// Packets that left by side A's interface.
fn left(net: &Namespaces) -> u64 {
    let text = net.read_proc(Side::A, "dev");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("veth-a:")).expect("veth-a");
    line.split_whitespace().nth(9).and_then(|word| word.parse().ok()).expect("a number")
}

/// vma_stats shows so many dummy messages of a socket.
#[track_caller]
fn wait_for_dummies(net: &Namespaces, process: u32, count: u64) {
    let tool = tool("vma_stats");
    let line = format!("Tx Dummy messages : {count}\n");
    wait_for(&line, || {
        let program = net.program(Side::A, tool.to_str().expect("text"));
        let program = program.arg("-k").arg(net.dir.to_str().expect("text"));
        let output = program.args(&format!("-p {process} -v 3 -c 1")).run().ok();
        output.stdout.contains(&line).then_some(())
    });
}

// covers: EXT-25, EXT-26, EXT-29
#[test]
fn dummy_sends_go_nowhere_and_are_counted() {
    let net = Namespaces::new();
    let datagrams = net.socket_at(Side::B, Side::B.at(7000));
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let (go, mut say) = std::io::pipe().unwrap();
    let before = left(&net);
    let mut running = program(&net, "dummy", include_str!("dummy.c"))
        .args(&ROUNDS.to_string())
        .with_library()
        .stdin(Stdio::from(OwnedFd::from(go)))
        .start();
    let mut buffer = [0; 2048];
    running.wait_for_text("datagrams");
    assert_eq!(left(&net), before, "packets that left");
    // One that is too long for a packet, and in each round 4 with an address and 5 without.
    wait_for_dummies(&net, running.id(), 1 + 9 * ROUNDS);
    say.write_all(b"g").unwrap();
    assert_eq!((datagrams.recv(&mut buffer).unwrap(), buffer[0]), (1, b'u'));

    let before = left(&net);
    say.write_all(b"g").unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    running.wait_for_text("stream");
    let packets = left(&net) - before;
    assert!(packets <= 4, "{packets} segments left, where the handshake needs 2");
    wait_for_dummies(&net, running.id(), 1 + 5 * ROUNDS);
    // The connection is none the worse for it.
    say.write_all(b"g").unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"t");
    say.write_all(b"g").unwrap();
    assert_eq!(stream.read(&mut byte).unwrap(), 0);
    running.wait().ok();
    datagrams.set_nonblocking(true).unwrap();
    assert!(datagrams.recv(&mut buffer).is_err(), "a datagram too many");
}

// covers: API-30
#[test]
fn getsockname_is_followed_by_a_dummy_send_if_said() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    for (value, dummies, port) in [("1", 5, 5001), ("0", 0, 5002)] {
        let program = net.program(Side::A, PYTHON).with_library();
        let program = program.env("VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", value);
        let mut program = Puppet::start(program);
        program.run("names = 'str({s.getsockname() for _ in range(5)})'");
        for open in [
            format!("s = udp(('10.99.0.1', {port}), ('10.99.0.2', 7000))"),
            format!("s = socket(); s.bind(('10.99.0.1', {port})); s.connect(('10.99.0.2', 7000))"),
        ] {
            program.run(&open);
            let before = left(&net);
            assert_eq!(program.run("eval(names)"), format!("\"{{('10.99.0.1', {port})}}\""));
            assert_eq!(left(&net), before, "packets that left");
            if dummies > 0 {
                wait_for_dummies(&net, program.id(), dummies);
            }
            program.run("s.send(b'x'); s.close()");
        }
        // One that has nobody to send to stays what it is, and so does errno.
        program.run("import ctypes; libc = ctypes.CDLL(None, use_errno=True)");
        program.run("s = socket(AF_INET, SOCK_DGRAM); ctypes.set_errno(7)");
        program.run("name, size = ctypes.create_string_buffer(16), ctypes.c_uint(16)");
        assert_eq!(program.run("libc.getsockname(s.fileno(), name, ctypes.byref(size))"), "0");
        assert_eq!(program.run("ctypes.get_errno(), s.getsockname()"), "(7, ('0.0.0.0', 0))");
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"x", "of the connection");
        let mut got = [0; 2048];
        assert_eq!((peer.recv(&mut got).unwrap(), got[0]), (1, b'x'));
        program.finish();
    }
}
