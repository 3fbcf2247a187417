//! The table, and its functions that need no packet.

use super::program;
use crate::harness::{Namespaces, Program, Running, Side};

fn table<'a>(net: &'a Namespaces, words: &str) -> Program<'a> {
    program(net, "table", include_str!("table.c")).args(words)
}

/// Sends a byte to each of the ports when the program is ready; it ends when all came. Returns how many of them the kernel
/// delivered.
#[track_caller]
fn by_kernel(net: &Namespaces, mut running: Running, ports: &[u16]) -> u64 {
    running.wait_for_text("ready");
    let watch = net.watch(Side::A);
    let peer = net.socket(Side::B);
    for port in ports {
        peer.send_to(b"x", Side::A.at(*port)).unwrap();
    }
    let output = running.wait().ok();
    assert!(output.stdout.contains("all came"), "{}", output.stdout);
    watch.moved().0
}

// covers: EXT-02, EXT-04
#[test]
fn the_table_is_there_before_any_socket_and_in_every_thread() {
    let net = Namespaces::new();
    let output = table(&net, "table").with_library().run().ok();
    assert_eq!(output.stdout, "the table is as published\n");
}

// covers: EXT-03
#[test]
fn without_the_library_there_is_no_table_and_the_program_goes_on() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let running = table(&net, "none").start();
    let mut byte = [0];
    let (_, from) = peer.recv_from(&mut byte).unwrap();
    peer.send_to(&byte, from).unwrap();
    assert_eq!(running.wait().ok().stdout, "without the library\n");
}

// covers: EXT-05
#[test]
fn an_added_rule_goes_first_and_concerns_later_decisions() {
    let net = Namespaces::new();
    let running = table(&net, "rules").with_library().start();
    // 5000 was bound before, 5001 is the kernel's by the first rule, 5002 ours by the second.
    assert_eq!(by_kernel(&net, running, &[5000, 5001, 5002]), 1);
}

// covers: EXT-06
#[test]
fn a_thread_chooses_whether_its_sockets_are_served() {
    let net = Namespaces::new();
    // Of a socket made before, one by the thread and one by another thread, so many are the kernel's.
    for (wish, default, expected) in
        [("0", "1", 1), ("1", "1", 0), ("-", "1", 0), ("1", "0", 2), ("0", "0", 3), ("-", "0", 3)]
    {
        let running = table(&net, &format!("threads {wish}"))
            .with_library()
            .env("VMA_OFFLOADED_SOCKETS", default)
            .start();
        let kernels = by_kernel(&net, running, &[5000, 5001, 5002]);
        assert_eq!(kernels, expected, "wish {wish}, VMA_OFFLOADED_SOCKETS={default}");
    }
}

// covers: EXT-23
#[test]
fn a_descriptor_is_dumped_at_the_level_that_is_asked_for() {
    let net = Namespaces::new();
    let output = table(&net, "dump").with_library().run().ok();
    let fd = output.stdout.trim().strip_prefix("fd ").unwrap();
    let part = |from: &str, to: &str| {
        let (_, rest) = output.stderr.split_once(&format!("\n{from}\n")).unwrap();
        rest.split_once(&format!("\n{to}\n")).map_or(rest, |(part, _)| part).to_owned()
    };
    let one = part("one", "too fine");
    for line in [
        format!("VMA INFO: ============ DUMPING FD {fd} STATISTICS ============"),
        format!("VMA INFO: Fd number : {fd}"),
        "VMA INFO: Bind info : 10.99.0.1:5000".to_owned(),
        "VMA INFO: Is offloaded : true".to_owned(),
    ] {
        assert!(one.lines().any(|other| other == line), "no {line:?} in\n{one}");
    }
    assert!(!output.stderr.contains("VMA DEBUG"), "{}", output.stderr);
    let unknown = part("unknown level", "all");
    assert!(unknown.contains(&format!("VMA INFO: Fd number : {fd}\n")), "{unknown}");
    let all = part("all", "");
    assert!(
        all.contains("VMA WARNING: ======= DUMPING STATISTICS FOR ALL OPEN FDS ======"),
        "{all}"
    );
    assert!(all.contains(&format!("VMA WARNING: Fd number : {fd}\n")), "{all}");
}

#[test]
fn functions_that_are_not_offered_say_so() {
    let net = Namespaces::new();
    let output = table(&net, "refused").with_library().run().ok();
    assert_eq!(output.stdout, "refused\n");
    let said = "VMA WARNING: socketXtreme was not enabled during runtime. Set VMA_SOCKETXTREME to use. \
                Ignoring...";
    assert_eq!(output.stderr.matches(said).count(), 1, "{}", output.stderr);
}
