//! Several threads that poll one ring, and what a process has of completions in all.

use std::collections::HashSet;
use std::net::TcpListener;
use std::time::Duration;

use super::{is_done, program};
use crate::harness::{Namespaces, Program, Side};

fn threads<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    let source = concat!(include_str!("../../../harness/allocations.h"), include_str!("threads.c"));
    program(net, "xtreme_threads", source).args(words)
}

// covers: LIM-57
#[test]
fn threads_share_a_ring_and_each_packet_comes_once() {
    const ROUNDS: u32 = 50;
    const AT_ONCE: u32 = 20;
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut running = threads(&net, "threads").start();
    running.wait_for_text("ready\n");
    let watch = net.watch(Side::A);
    for round in 0..ROUNDS {
        let mut awaited = HashSet::new();
        for number in 0..AT_ONCE {
            for port in 5000..5004u16 {
                let text = format!("{round} {number} {port}");
                peer.send_to(text.as_bytes(), Side::A.at(port)).unwrap();
                awaited.insert(text);
            }
        }
        while !awaited.is_empty() {
            let mut bytes = [0; 64];
            let (len, from) = peer.recv_from(&mut bytes).unwrap();
            let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
            assert!(text.ends_with(&from.port().to_string()), "{text} came from {from}");
            assert!(awaited.remove(&text), "{text} came twice");
        }
    }
    peer.send_to(b"over", Side::A.at(5000)).unwrap();
    let output = running.wait().ok();
    let all = 4 * ROUNDS * AT_ONCE + 1;
    assert!(output.stdout.ends_with(&format!("{all} packets\ndone\n")), "{}", output.stdout);
    watch.still();
}

// covers: EXT-48, FIX-05
#[test]
fn packets_that_are_freed_cost_no_memory() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let listener = net.within(Side::B, || TcpListener::bind(Side::B.at(7000)).unwrap());
    let watch = net.watch(Side::A);
    let running = threads(&net, "allocation").counting().start();
    let mut bytes = [0; 64];
    for _ in 0..2300 {
        let (len, from) = peer.recv_from(&mut bytes).unwrap();
        peer.send_to(&bytes[..len], from).unwrap();
    }
    let mut stream = super::streams::accept(&listener);
    std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    let output = running.wait().ok();
    assert_eq!(output.stdout, "0 and 0\n", "{}", output.stderr);
    watch.still();
}

// covers: EXT-48
#[test]
fn packets_of_completions_are_counted_as_held() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    let mut running = threads(&net, "counted").start();
    running.wait_for_text("ready\n");
    let watch = net.watch(Side::A);
    peer.send_to(&[1; 100], Side::A.at(5000)).unwrap();
    peer.send_to(&[1; 1024], Side::A.at(5000)).unwrap();
    let said = is_done(running);
    // A packet whose buffer has a reference is one still.
    let dumped = "Rx zero copy buffers : 1 KB / 1 [bytes/packets]";
    assert_eq!(said.matches("Rx zero copy buffers").count(), 1, "{said}");
    assert!(said.contains(dumped), "{said}");
    watch.still();
}
