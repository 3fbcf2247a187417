//! A process sends and ends before its peer has read anything, and the peer hands the connection on: whoever has it
//! then gets every byte, and a clean end behind them.

use crate::harness::{Counters, compile_in};

use super::{Local, Under};

const BYTES: usize = 500_000;
/// More than one message queue of unix(7) holds.
const CONNECTIONS: usize = 24;

const READERS: [&str; 5] = ["self", "fork", "orphan", "exec", "pass"];

struct Ran {
    local: Local,
    stdout: String,
    /// Of how many connections the peer's half was left, by the log.
    halves: usize,
    moved: Counters,
}

/// The client connects when the two processes have their link.
#[track_caller]
fn run(under: Under, end: &str, reader: &str) -> Ran {
    run_when(under, end, reader, "linked")
}

#[track_caller]
fn run_when(under: Under, end: &str, reader: &str, when: &str) -> Ran {
    let local = Local::new(under);
    let source = include_str!("ended_sender.c");
    let program = compile_in(&local.sandbox.dir, "ended_sender", source, &[]);
    let log = local.sandbox.dir.join("log");
    let watch = local.sandbox.watch();
    let program = local.server(program.to_str().unwrap());
    let program = program.args(&format!("{CONNECTIONS} {BYTES} {end} {reader} {when}"));
    let program = program.env("VMA_TRACELEVEL", "debug").env("VMA_LOG_FILE", log.to_str().unwrap());
    let output = program.start_shown().wait();
    let moved = watch.moved();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    let halves = log.matches("left bytes that are not read").count();
    println!("{end} {reader} {when}: {halves} halves");
    Ran { local, stdout: output.stdout, halves, moved }
}

// covers: API-34
#[test]
fn whoever_gets_a_connection_gets_what_a_sender_left_that_has_ended() {
    for end in ["exit", "close", "shut"] {
        for reader in READERS {
            let ran = run(Under::Both, end, reader);
            assert_eq!(ran.stdout.trim(), "whole", "{end}, {reader}");
            // A process that reads by itself may be done before its internal thread has heard of all.
            let halves = if reader == "self" { 1..=CONNECTIONS } else { CONNECTIONS..=CONNECTIONS };
            assert!(
                halves.contains(&ran.halves),
                "{end}, {reader}: the kernel had the bytes, but for {} halves",
                ran.halves
            );
        }
    }
}

#[test]
fn whoever_reads_what_a_sender_left_that_has_ended_does_so_past_the_kernel() {
    let ran = run(Under::Both, "exit", "self");
    assert_eq!(ran.stdout.trim(), "whole");
    ran.local.check_tcp_moved(&ran.moved, CONNECTIONS as u64, (CONNECTIONS * BYTES) as u64);
}

// covers: API-34
#[test]
fn whoever_gets_a_connection_gets_what_a_sender_left_that_ends_meanwhile() {
    for reader in READERS {
        let ran = run(Under::Both, "cross", reader);
        assert_eq!(ran.stdout.trim(), "whole", "{reader}");
    }
}

/// The kernel would have the bytes. They are lost, but nobody takes what is there for all.
#[test]
fn a_sender_that_is_killed_leaves_an_error_and_no_end() {
    for reader in READERS {
        let ran = run(Under::Both, "kill", reader);
        let lost = ran.stdout.matches("Connection reset by peer after 1 bytes").count();
        if reader == "self" {
            assert_eq!(ran.stdout.trim(), "whole");
        } else {
            assert_eq!(lost, CONNECTIONS, "{reader}: {}", ran.stdout);
        }
    }
}

/// The link comes after the connections, so that some bytes go by the kernel, or all: how many depends on the time.
#[test]
fn whatever_is_sent_while_the_link_is_late_comes_or_is_an_error() {
    for reader in READERS {
        for end in ["exit", "close", "cross"] {
            let ran = run_when(Under::Both, end, reader, "late");
            assert_eq!(ran.stdout.trim(), "whole", "{end}, {reader}");
        }
        let ran = run_when(Under::Both, "kill", reader, "late");
        let is_error = |line: &str| line.contains("Connection reset by peer after");
        let stdout = ran.stdout.trim();
        let errors = !stdout.is_empty() && stdout.lines().all(is_error);
        assert!(stdout == "whole" || errors, "{reader}: {stdout}");
    }
}

#[test]
fn the_kernel_delivers_what_a_sender_left_that_has_ended() {
    for reader in READERS {
        let ran = run(Under::Neither, "exit", reader);
        assert_eq!(ran.stdout.trim(), "whole", "{reader}");
    }
}
