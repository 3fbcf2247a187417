//! One-way streams of small writes without TCP_NODELAY: Nagle's algorithm has them wait for
//! acknowledgments, which must come, and be noticed, as soon as with the kernel's sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::{Ends, Library, PATIENCE, PYTHON, Puppet, Side};

#[test]
fn a_reader_acknowledges_small_writes_as_soon_as_it_has_read_them() {
    let ends = Ends::new(Library::Server);
    let watch = ends.watch();
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('10.99.0.1', 7000))");
    program.run("select.select([l], [], [], 0)");
    let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
    program.run("c, _ = l.accept(); c.settimeout(15)");
    program.begin("len([len(part) for part in iter(lambda: c.recv(4096), b'')])");
    for _ in 0..250 {
        peer.write_all(&[7; 16]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(peer);
    // Delayed acknowledgments would have 20 writes and more arrive as one.
    let reads: u32 = program.end("the reads").parse().unwrap();
    assert!(reads > 150, "{reads} reads for 250 writes");
    watch.still(5);
}

#[test]
fn what_nagle_holds_leaves_though_the_program_calls_nobody() {
    let ends = Ends::new(Library::Server);
    let watch = ends.watch();
    let listener = ends.net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    // The internal thread looks by itself, but hardly ever.
    let server = ends.server(PYTHON).env("VMA_PROGRESS_ENGINE_INTERVAL", "2000");
    let mut program = Puppet::start(server);
    program.run("c = create_connection(('10.99.0.2', 7000), 15)");
    let mut peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut took = Vec::new();
    for _ in 0..20 {
        program.begin("c.sendall(b'head'); c.sendall(b'body'); time.sleep(0.1)");
        peer.read_exact(&mut [0; 4]).unwrap();
        let begin = Instant::now();
        peer.read_exact(&mut [0; 4]).unwrap();
        took.push(begin.elapsed());
        program.end("two writes");
    }
    took.sort();
    assert!(took[14] < Duration::from_millis(50), "{took:?}");
    watch.still(0);
}
