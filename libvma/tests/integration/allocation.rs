//! A data-path call allocates nothing.

use crate::harness::{Namespaces, Side, Traffic, compile_counting};

fn allocations(net: &Namespaces, polls: &str) -> String {
    let program = compile_counting(net, "allocation", include_str!("allocation.c"));
    let peer = net.socket_at(Side::B, Side::B.at(5000));
    let rounds = 2000;
    let watch = net.watch(Side::A);
    let stats = net.file(&format!("allocation-{polls}"));
    let running = net
        .program(Side::A, program.to_str().unwrap())
        .with_library()
        .counting()
        .args(&format!("10.99.0.1 10.99.0.2 {rounds}"))
        .env("VMA_RX_POLL", polls)
        .env("VMA_SELECT_POLL", polls)
        .env("VMA_STATS_FILE", stats.to_str().unwrap())
        .start();
    let mut buffer = [0; 2048];
    for _ in 0..540 + rounds {
        let (len, from) = peer.recv_from(&mut buffer).unwrap();
        peer.send_to(&buffer[..len], from).unwrap();
    }
    let output = running.wait().ok();
    watch.check(&Traffic::read(&stats), 540 + rounds, 540 + rounds);
    output.stdout.trim().to_owned()
}

// covers: API-08, API-10
#[test]
fn calls_that_poll_allocate_nothing() {
    let net = Namespaces::new();
    assert_eq!(allocations(&net, "-1"), "allocations 0");
}

// covers: API-08, API-10
#[test]
fn calls_that_sleep_allocate_nothing() {
    let net = Namespaces::new();
    assert_eq!(allocations(&net, "0"), "allocations 0");
}
