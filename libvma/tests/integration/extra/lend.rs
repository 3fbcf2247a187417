//! recvfrom_zcopy(), and the socket options of the Extra API.

use std::io::Write;
use std::net::TcpListener;

use super::program;
use crate::harness::{Namespaces, Program, Puppet, Side, wait_for};

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
    let others = [7001, 7002].map(|port| net.socket_at(Side::B, Side::B.at(port)));
    for (step, kernels) in [("before\n", 0), ("after\n", 3)] {
        running.wait_for_text(step);
        let watch = net.watch(Side::A);
        peer.send_to(b"x", Side::A.at(5000)).unwrap();
        stream.write_all(b"x").unwrap();
        if kernels > 0 {
            for other in &others {
                let (_, from) = other.recv_from(&mut [0; 8]).unwrap();
                other.send_to(b"x", from).unwrap();
            }
        }
        let next = if kernels == 0 { "after\n" } else { "done\n" };
        running.wait_for_text(next);
        assert_eq!(watch.moved(), (kernels, 0), "datagrams by the kernel at {step}");
    }
    running.wait().ok();
}

/// Datagrams of the kernel's when one process sends to the port of another one.
fn by_kernel(net: &Namespaces, from: &mut Puppet, to: &mut Puppet, port: u16) -> u64 {
    let watch = net.watch(Side::A);
    from.run(&format!("s.sendto(b'there', ('10.99.0.1', {port}))"));
    assert_eq!(to.run("s.recv(10)"), "b'there'");
    watch.moved().0
}

#[test]
fn a_socket_that_leaves_receiving_to_the_kernel_still_sends_within_the_host() {
    let net = Namespaces::new();
    let (mut one, mut other) = (net.puppet(Side::A), net.puppet(Side::A));
    one.run("s = udp(('10.99.0.1', 5000))");
    other.run("s = udp(('10.99.0.1', 5001))");
    // The first datagrams go by the kernel, until the processes have found each other.
    wait_for("both ways go past the kernel", || {
        let ways = [
            by_kernel(&net, &mut one, &mut other, 5001),
            by_kernel(&net, &mut other, &mut one, 5000),
        ];
        (ways == [0, 0]).then_some(())
    });
    one.run("s.setsockopt(SOL_SOCKET, 2821, 1)"); // SO_VMA_SHUTDOWN_RX
    wait_for("it sends past the kernel", || {
        assert_eq!(by_kernel(&net, &mut other, &mut one, 5000), 1);
        (by_kernel(&net, &mut one, &mut other, 5001) == 0).then_some(())
    });
    for _ in 0..100 {
        assert_eq!(by_kernel(&net, &mut other, &mut one, 5000), 1);
    }
}
