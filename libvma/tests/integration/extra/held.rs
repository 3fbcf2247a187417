//! Packets that the program has: their owners, fork, cancellation, a socket that becomes the kernel's, and what
//! waiting calls tell of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::program;
use crate::harness::{Namespaces, Program, Running, Side};

fn held<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    let source = concat!(include_str!("../../harness/allocations.h"), include_str!("held.c"));
    program(net, "held", source).args(words).with_library()
}

fn listener(net: &Namespaces) -> TcpListener {
    net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap())
}

/// Waits for a step of the program, and sends it a datagram.
#[track_caller]
fn answer(running: &mut Running, step: &str, peer: &UdpSocket, text: &str) {
    running.wait_for_text(step);
    peer.send_to(text.as_bytes(), Side::A.at(5000)).unwrap();
}

#[track_caller]
fn is_done(running: Running) {
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

// covers: EXT-20, EXT-21
#[test]
fn packets_are_given_back_by_a_number_that_another_socket_has_now() {
    let net = Namespaces::new();
    let (peer, listener) = (net.socket(Side::B), listener(&net));
    let mut running = held(&net, "reuse").start();
    answer(&mut running, "datagram\n", &peer, "one");
    let (mut stream, _) = listener.accept().unwrap();
    for (step, text) in [("first\n", b"a"), ("second\n", b"b")] {
        running.wait_for_text(step);
        stream.write_all(text).unwrap();
    }
    is_done(running);
}

// covers: EXT-16
#[test]
fn the_kernels_datagrams_are_not_copied_if_zero_copy_is_forced() {
    let net = Namespaces::new();
    is_done(held(&net, "force").start());
}

#[test]
fn a_forked_child_can_look_at_packets_but_not_give_them_back() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = held(&net, "fork").start();
    answer(&mut running, "datagram\n", &peer, "one");
    is_done(running);
}

#[test]
fn a_cancelled_thread_ends_in_the_call_but_not_in_a_callback() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = held(&net, "cancel").start();
    running.wait_for_text("begun\n");
    answer(&mut running, "begun\nbegun\n", &peer, "slowly");
    answer(&mut running, "last\n", &peer, "last");
    is_done(running);
}

// covers: EXT-11, EXT-13, EXT-14, EXT-22
#[test]
fn what_is_held_stays_as_it_is_while_others_come_and_go() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = held(&net, "many").start();
    running.wait_for_text("first\n");
    let watch = net.watch(Side::A);
    for number in 0..3000i32 {
        let byte = |at: usize| (number.wrapping_mul(7) as usize).wrapping_add(at * 13) as u8;
        let mut bytes: Vec<u8> = (0..1000).map(byte).collect();
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        peer.send_to(&bytes, Side::A.at(5000)).unwrap();
        if number % 50 == 49 {
            let told = peer.recv(&mut bytes);
            // The program says what it misses.
            assert!(told.is_ok(), "no answer to {number}: {:?}", running.wait());
        }
    }
    is_done(running);
    watch.still();
}

// covers: EXT-12
#[test]
fn a_callback_may_do_every_call() {
    let net = Namespaces::new();
    let (peer, listener) = (net.socket(Side::B), listener(&net));
    let mut running = held(&net, "inside").start();
    answer(&mut running, "first\n", &peer, "i1");
    let (stream, _) = listener.accept().unwrap();
    echo(stream);
    let told = peer.recv(&mut [0; 4]);
    assert!(told.is_ok(), "nothing was sent by the callback: {:?}", running.wait());
    peer.send_to(b"i2", Side::A.at(5000)).unwrap();
    is_done(running);
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    stream.set_nodelay(true).unwrap();
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..len]).unwrap();
    }
}

#[test]
fn the_verdict_on_a_connection_that_becomes_the_kernels_counts() {
    let net = Namespaces::new();
    let listener = listener(&net);
    let mut running = held(&net, "departs 10.99.0.2").start();
    for kind in ["d", "h", "r"] {
        running.wait_for_text(&format!("{kind}\n"));
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(format!("{kind}1").as_bytes()).unwrap();
        running.wait_for_text(&format!("{kind}\nrest\n"));
        stream.write_all(b"x2").unwrap();
    }
    is_done(running);
}

#[test]
fn the_verdict_on_a_connection_within_the_host_that_becomes_the_kernels_counts() {
    let net = Namespaces::new();
    let mut server = net.puppet(Side::A);
    server.run("l = socket(); l.bind(('127.0.0.1', 7000)); l.listen()");
    let mut running = held(&net, "departs 127.0.0.1").start();
    for kind in ["d", "h", "r"] {
        running.wait_for_text(&format!("{kind}\n"));
        server.run("s, _ = l.accept()");
        server.run(&format!("s.sendall(b'{kind}1')"));
        running.wait_for_text(&format!("{kind}\nrest\n"));
        server.run("s.sendall(b'x2')");
    }
    is_done(running);
}

// covers: EXT-20
#[test]
fn another_thread_may_give_a_packet_back_before_its_callback_returns() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = held(&net, "early").start();
    answer(&mut running, "datagram\n", &peer, "early");
    is_done(running);
}

// covers: EXT-11
#[test]
fn waiting_calls_tell_once_that_a_callback_holds_something() {
    let net = Namespaces::new();
    let (peer, listener) = (net.socket(Side::B), listener(&net));
    let mut running = held(&net, "ready").start();
    for round in 1..=4 {
        answer(&mut running, &"hold\n".repeat(round), &peer, "h");
    }
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    for round in 5..=8 {
        running.wait_for_text(&"hold\n".repeat(round));
        stream.write_all(b"h").unwrap();
    }
    is_done(running);
}

// covers: EXT-22
#[test]
fn packets_that_are_given_back_cost_no_allocation() {
    let net = Namespaces::new();
    let (peer, listener) = (net.socket_at(Side::B, Side::B.at(7000)), listener(&net));
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let watch = net.watch(Side::A);
    let running = held(&net, "allocation").counting().start();
    let mut bytes = [0; 64];
    for _ in 0..2 * 900 {
        let (len, from) = peer.recv_from(&mut bytes).unwrap();
        peer.send_to(&bytes[..len], from).unwrap();
    }
    let (stream, _) = listener.accept().unwrap();
    echo(stream);
    let output = running.wait().ok();
    assert_eq!(output.stdout, "lent 0, held 0, of a stream 0 and 0\n");
    watch.still();
}
