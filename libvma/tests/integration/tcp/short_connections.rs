//! Connections of one question and one answer: how many segments and system calls they take. The segments that are counted
//! are those that the kernel's sockets at the other end received.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::harness::{Ends, Library, Namespaces, PATIENCE, PYTHON, Puppet, Side};

const COUNT: u64 = 100;
/// Some connections may take a segment or two more, where the programs are late.
const LATE: u64 = COUNT / 4;

#[test]
fn the_answer_of_a_server_carries_the_acknowledgment_of_the_question() {
    let ends = Ends::new(Library::Server);
    let watch = ends.watch();
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('10.99.0.1', 7000))");
    program.run("select.select([l], [], [], 0)");
    program.run("def serve():\n c = l.accept()[0]; c.recv(100); c.sendall(b'a' * 145); c.close()");
    program.begin(&format!("for _ in range({COUNT}): serve()"));
    let before = ends.net.kernel_tcp(Side::B).segments_in;
    for _ in 0..COUNT {
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.write_all(&[b'q'; 60]).unwrap();
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 145);
    }
    program.end("the answers");
    // The SYN, the answer, the FIN, and the acknowledgment of the client's FIN.
    let segments = ends.net.kernel_tcp(Side::B).segments_in - before;
    assert!(segments <= 4 * COUNT + LATE, "{segments} segments for {COUNT} connections");
    watch.still(5);
}

#[test]
fn the_question_of_a_client_that_always_asks_carries_the_acknowledgment_of_the_handshake() {
    let ends = Ends::new(Library::Server);
    let watch = ends.watch();
    let listener = ends.net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run(
        "def ask():\n c = create_connection(('10.99.0.2', 7000), 15); c.sendall(b'q' * 60)\n \
         while c.recv(100): pass\n c.close()",
    );
    let mut serve = |count: u64| {
        program.begin(&format!("for _ in range({count}): ask()"));
        for _ in 0..count {
            let mut peer = listener.accept().unwrap().0;
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            peer.read_exact(&mut [0; 60]).unwrap();
            peer.write_all(&[b'a'; 90]).unwrap();
        }
        program.end("the questions");
    };
    // The library learns that this client speaks first.
    serve(20);
    let before = ends.net.kernel_tcp(Side::B).segments_in;
    serve(COUNT);
    // The SYN, the question, the acknowledgments of the answer and of the server's FIN, and the own FIN.
    let segments = ends.net.kernel_tcp(Side::B).segments_in - before;
    assert!(segments <= 5 * COUNT + LATE, "{segments} segments for {COUNT} connections");
    watch.still(5);
}

/// The kernel, which has the connection then, takes the first part for acknowledged.
#[test]
fn a_question_in_two_parts_does_not_wait_for_a_server_that_forks_between_them() {
    let ends = Ends::new(Library::Server);
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('10.99.0.1', 7000))");
    program.run("select.select([l], [], [], 0)");
    program.run(
        "def serve():
 c = l.accept()[0]; select.select([c], [], [], 15)
 if os.fork() == 0:
  begin = time.monotonic(); got = b''
  while len(got) < 8: got += c.recv(8)
  c.send(b'%d' % ((time.monotonic() - begin) * 1000)); os._exit(0)
 c.close(); os.wait()",
    );
    let mut took = Vec::new();
    for _ in 0..5 {
        program.begin("serve()");
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        // Nagle's algorithm keeps the second part until the first one is acknowledged.
        peer.write_all(b"head").unwrap();
        peer.write_all(b"body").unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        program.end("the fork");
        took.push(answer.parse::<u32>().expect("milliseconds"));
    }
    took.sort();
    assert!(took[2] < 100, "{took:?} ms until the second part came");
}

/// The system calls of a client, but for those of the internal thread, by name. It makes so many connections one after the other.
fn calls_of_client(net: &Namespaces, connections: usize) -> HashMap<String, usize> {
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..connections {
            let mut peer = listener.accept().unwrap().0;
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            peer.read_exact(&mut [0; 60]).unwrap();
            peer.write_all(&[b'a'; 90]).unwrap();
        }
    });
    // The bound socket has the interface attached at once.
    let code = format!(
        "from socket import *\nu = socket(AF_INET, SOCK_DGRAM); u.bind(('10.99.0.1', 5000))\n\
         for _ in range({connections}):\n s = socket(); s.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)\n \
         s.connect(('10.99.0.2', 7000)); s.sendall(b'q' * 60)\n \
         while s.recv(100): pass\n s.close()"
    );
    let trace = net.file("trace");
    let watch = net.watch_tcp(Side::A);
    let program = net.program(Side::A, "strace").with_library().arg("-o");
    program.arg(trace.to_str().unwrap()).arg(PYTHON).arg("-c").arg(&code).run().ok();
    server.join().unwrap();
    watch.still(10);
    let mut calls = HashMap::new();
    for line in std::fs::read_to_string(trace).unwrap().lines() {
        if let Some((name, _)) = line.split_once('(') {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

#[test]
fn a_connection_asks_the_kernel_for_little() {
    let net = Namespaces::new();
    let (few, many) = (calls_of_client(&net, 50), calls_of_client(&net, 150));
    // What it takes in hundredths of a call, with the program's own calls. Once a second the settings of the host are read.
    for (name, most) in [
        ("socket", 100),
        ("getsockopt", 0),
        ("bind", 100),
        ("getsockname", 100),
        ("bpf", 107),
        ("fcntl", 100),
        ("prlimit64", 0),
        ("openat", 0),
        ("close", 200),
    ] {
        let count = |calls: &HashMap<String, usize>| calls.get(name).copied().unwrap_or(0);
        let more = count(&many).saturating_sub(count(&few));
        assert!(more <= most + 40, "{name}: {more} calls for 100 connections");
    }
}
