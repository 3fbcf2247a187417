//! recvfrom_zcopy(), and the socket options of the Extra API.

use std::io::Write;
use std::net::TcpListener;

use super::program;
use crate::harness::{Namespaces, Program, Side};

fn lend<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    program(net, "lend", include_str!("lend.c")).args(words).with_library()
}

// covers: EXT-16, EXT-17, EXT-18, EXT-19, EXT-20, EXT-21
#[test]
fn datagrams_are_lent_until_they_are_given_back() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = lend(&net, "datagrams").start();
    let send = |text: &[u8]| peer.send_to(text, Side::A.at(5000)).unwrap();
    let large = vec![b'L'; 60_000];
    for (step, texts) in [
        ("first\n", &[&b"one"[..], b"two"][..]),
        ("large\n", &[&large]),
        ("small room\n", &[b"x"]),
        ("mixed\n", &[b"m1", b"m2", b"m3"]),
    ] {
        running.wait_for_text(step);
        texts.iter().for_each(|text| {
            send(text);
        });
    }
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
    // All but one that the program sent to itself.
    assert_eq!((output.traffic.rx, output.traffic.rx_os), (7, 1), "{:?}", output.traffic);
}

// covers: EXT-17, EXT-19, EXT-20, EXT-22
#[test]
fn bytes_of_a_stream_are_lent_in_order_and_without_a_leak() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let mut running = lend(&net, "stream").start();
    let (mut stream, _) = listener.accept().unwrap();
    running.wait_for_text("bulk\n");
    let bytes: Vec<u8> = (0..64usize << 20).map(|at| (at % 251) as u8).collect();
    stream.write_all(&bytes).unwrap();
    running.wait_for_text("end\n");
    drop(stream);
    let output = running.wait().ok();
    assert!(output.stdout.ends_with("done\n"), "{}", output.stdout);
}

#[test]
fn options_of_the_extra_api_are_a_sockets_own() {
    let net = Namespaces::new();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let peer = net.socket(Side::B);
    let mut running = lend(&net, "options").start();
    let (mut stream, _) = listener.accept().unwrap();
    for (step, kernels) in [("before\n", 0), ("after\n", 1)] {
        running.wait_for_text(step);
        let watch = net.watch(Side::A);
        peer.send_to(b"x", Side::A.at(5000)).unwrap();
        stream.write_all(b"x").unwrap();
        let next = if kernels == 0 { "after\n" } else { "done\n" };
        running.wait_for_text(next);
        assert_eq!(watch.moved().0, kernels, "datagrams by the kernel at {step}");
    }
    running.wait().ok();
}
