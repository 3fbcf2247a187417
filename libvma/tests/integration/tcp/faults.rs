//! A cable that loses, duplicates, reorders, delays and corrupts: every byte arrives all the same,
//! and as fast as over the kernel's TCP.

use crate::dual_stack::with_ipv6;
use crate::harness::{Ends, Faults, Library, Namespaces, PYTHON, Relay, Side, at_once};

use super::curl::{assert_same, random_file};

/// A file each way at once; the library is at one end only, so that its peer is the kernel.
#[track_caller]
fn transfer(faults: &str, len: u64, happened: impl Fn(&Faults) -> bool + Sync) {
    transfer_to("10.99.0.1", faults, len, happened);
}

/// The same to an address of either family.
#[track_caller]
pub fn transfer_to(
    address: &str,
    faults: &str,
    len: u64,
    happened: impl Fn(&Faults) -> bool + Sync,
) {
    at_once(2, &[Library::Server, Library::Client], |&library| {
        let ends = Ends::new(library);
        let relay = Relay::splice(&ends.net, faults);
        with_ipv6(&ends.net);
        let watch = ends.watch();
        let file = |name: &str| ends.net.file(name);
        random_file(&file("down"), len, 7);
        random_file(&file("up"), len, 8);
        std::fs::write(file("transfer.py"), include_str!("transfer.py")).unwrap();
        let server = ends.server(PYTHON).args("transfer.py server down up.got").args(address);
        let server = server.start_shown();
        ends.net.wait_for_listener(Side::A, 7000);
        let client = ends.client(PYTHON).args("transfer.py client up down.got").args(address);
        let client = client.start_shown();
        client.wait().ok();
        server.wait().ok();
        watch.still(4);
        let what = relay.finish();
        println!("{library:?}, {faults}: {what:?}");
        assert_same(&file("down"), &file("down.got"));
        assert_same(&file("up"), &file("up.got"));
        assert!(happened(&what), "{faults}: {what:?}");
    });
}

const MIB: u64 = 1 << 20;

// covers: THR-04, NET-03
#[test]
fn a_cable_that_loses_one_percent() {
    transfer("seed=1 loss=1", 8 * MIB, |faults| faults.lost > 20);
}

// covers: THR-04, NET-03
#[test]
fn a_cable_that_loses_five_percent() {
    transfer("seed=2 loss=5", 2 * MIB, |faults| faults.lost > 20);
}

// covers: FIX-04, NET-03
#[test]
fn a_cable_that_reorders() {
    transfer("seed=3 reorder=5", 8 * MIB, |faults| faults.reordered > 100);
}

// covers: FIX-04, NET-03
#[test]
fn a_cable_that_duplicates() {
    transfer("seed=4 duplicate=5", 8 * MIB, |faults| faults.duplicated > 100);
}

// covers: NET-03
#[test]
fn a_cable_that_corrupts() {
    transfer("seed=5 corrupt=1", 8 * MIB, |faults| faults.corrupted > 20);
}

// covers: LIM-53, NET-03
#[test]
fn a_long_cable() {
    transfer("seed=6 delay=5000 jitter=1000", 8 * MIB, |faults| faults.frames > 1000);
}

// covers: THR-04, FIX-04, NET-03
#[test]
fn a_cable_that_does_everything_wrong() {
    let faults = "seed=7 loss=1 duplicate=1 reorder=2 corrupt=0.5 delay=200 jitter=100";
    transfer(faults, 4 * MIB, |faults| {
        [faults.lost, faults.duplicated, faults.reordered, faults.corrupted].iter().all(|n| *n > 5)
    });
}

/// What a kernel socket on side A receives in two seconds over a cable that loses one percent, in
/// Mb/s.
#[track_caller]
fn bulk(seed: u32, sender_has_library: bool) -> f64 {
    let net = Namespaces::new();
    let relay = Relay::splice(&net, &format!("seed={seed} loss=1 delay=250"));
    let server = net.program(Side::A, "iperf3").args("-4 -s -1 -B 10.99.0.1").start_shown();
    net.wait_for_listener(Side::A, 5201);
    let watch = net.watch_tcp(Side::B);
    let client = net.program(Side::B, "iperf3");
    let client = if sender_has_library { client.with_library() } else { client };
    let client = client.args("-4 -c 10.99.0.1 -t 2 -f m -C cubic").run().ok();
    if sender_has_library {
        // What iperf3 leaves unacknowledged at its exit the kernel repeats, over this cable more than
        // once; the transfer itself is thousands of segments.
        watch.still(8);
    }
    let line = client.stdout.lines().find(|line| line.contains("receiver"));
    let line = line.unwrap_or_else(|| panic!("{}\n{}", client.stdout, client.stderr));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Mbits/sec").unwrap();
    let faults = relay.finish();
    assert!(faults.lost > 10 && faults.overrun == 0, "{faults:?}");
    drop(server);
    words[at - 1].parse().unwrap()
}

/// How much two runs of the very same may differ while the machine has other work. `ci/demo` measures
/// the ratio; this test is there for a recovery that does not work.
const NOISE: f64 = 0.25;

// covers: NET-36
#[test]
fn bulk_over_a_lossy_cable_keeps_up_with_the_kernels_cubic() {
    let (mut kernel, mut library) = (0.0, 0.0);
    for seed in 11..14 {
        kernel += bulk(seed, false) / 3.0;
        library += bulk(seed, true) / 3.0;
    }
    let text =
        format!("at 1 % loss: {library:.0} Mb/s by the library, {kernel:.0} Mb/s by the kernel");
    println!("{text}");
    assert!(library >= kernel * (1.0 - NOISE), "{text}");
}
