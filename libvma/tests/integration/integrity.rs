//! Connections of random sizes whose ends fork, exec, pass the descriptor on, go on in another thread or
//! close early, with the library at one end and at both, within the host and over a cable, also one that
//! loses: `integrity.c` checks every byte. A reader may miss bytes only if it gets an error.
//!
//! Most of these changes hand the connection over to the kernel, in the middle of its data: which way the
//! bytes went is not the question here, but that some of them went by the library.
//!
//! `LIBVMA_LONG=1` (`ci/test --long`) makes it 10 000 connections of each kind. `VMA_TEST_SEED` repeats a run.

mod watch;

use std::fmt::Write;
use std::net::IpAddr;

use watch::Bench;

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{
    Ends, Library, Output, Program, Relay, Sandbox, Side, compile, compile_in, is_long,
};

const SOURCE: &str = include_str!("integrity.c");
const THREADS: usize = 8;
/// How the server shares its work: a thread or a process for each connection.
const MODELS: [&str; 2] = ["thread", "fork"];

/// So many runs of each model.
fn rounds() -> usize {
    if is_long() { 20 } else { 1 }
}

/// In each run.
fn connections(few: usize) -> usize {
    if is_long() { 10_000 / MODELS.len() / rounds() } else { few }
}

fn runs() -> impl Iterator<Item = (&'static str, usize)> {
    MODELS.into_iter().flat_map(|model| (0..rounds()).map(move |round| (model, round)))
}

/// The first seed: connection n has the n-th after it.
fn seed() -> u64 {
    let given = std::env::var("VMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(if is_long() { u64::from(std::process::id()) << 20 } else { 1 })
}

fn server<'a>(program: Program<'a>, at: &str, model: &str, count: usize) -> Program<'a> {
    program.args(&format!("server {at} 7000 {model} {count}"))
}

fn client<'a>(program: Program<'a>, at: &str, count: usize, round: usize) -> Program<'a> {
    let seed = seed() + (count * round) as u64;
    program.args(&format!("client {at} 7000 {count} {seed} {THREADS}"))
}

/// Each end of each connection has said that it is done, and nothing else.
#[track_caller]
fn check(what: &str, count: usize, ends: [Output; 2]) {
    let ends: Vec<(&str, Output)> = ["server", "client"].into_iter().zip(ends).collect();
    let (mut is_well, mut text) = (true, String::new());
    for (end, output) in &ends {
        let lines = output.stdout.lines();
        let bad: Vec<&str> = lines.clone().filter(|line| *line != "done").take(10).collect();
        let done = lines.filter(|line| *line == "done").count();
        is_well &= bad.is_empty() && done == count;
        let _ = writeln!(text, "{end}: {done} of {count} well; {bad:#?}\n{}", output.stderr);
    }
    // Of both ends: an error at one has its cause at the other as a rule.
    assert!(is_well, "{what}, seed {}:\n{text}", seed());
    ends.into_iter().for_each(|(_, output)| {
        output.ok();
    });
}

/// Connections within one host.
#[track_caller]
fn within_the_host(at_server: bool, at_client: bool) {
    for (model, round) in runs() {
        let count = connections(150);
        let sandbox = Sandbox::new();
        let program = compile_in(&sandbox.dir, "integrity", SOURCE, &[]);
        let program = program.to_str().expect("a path in UTF-8");
        let new = |with_library: bool| {
            let program = sandbox.program(program);
            if with_library { program.with_library() } else { program }
        };
        let running = server(new(at_server), "127.0.0.1", model, count).start_shown();
        sandbox.wait_for_listener(7000);
        let clients = client(new(at_client), "127.0.0.1", count, round).start_shown();
        let what = format!("within the host, {model}, round {round}");
        let ends = Bench::Host(&sandbox).wait(&what, [running, clients]);
        let traffic = ends[1].traffic;
        check(&what, count, ends);
        // A server that forks for each connection gives it to the kernel before anything is sent.
        if at_server && at_client && model == "thread" {
            assert!(traffic.rx + traffic.tx > 0, "nothing by the library: {traffic:?}");
        }
    }
}

/// Connections over a cable that loses so many percent.
#[track_caller]
fn over_a_cable(library: Library, loss: u32) {
    over_a_cable_to(|side| side.ip().into(), library, loss);
}

/// The same to an address of either family.
#[track_caller]
fn over_a_cable_to(of: impl Fn(Side) -> IpAddr, library: Library, loss: u32) {
    for (model, round) in runs() {
        let count = connections(if loss > 0 { 40 } else { 80 });
        let ends = Ends::new(library);
        let relay = (loss > 0).then(|| Relay::splice(&ends.net, &format!("seed=3 loss={loss}")));
        with_ipv6(&ends.net);
        let program = compile(&ends.net, "integrity", SOURCE, &[]);
        let program = program.to_str().expect("a path in UTF-8");
        let at = of(Side::A).to_string();
        let running = server(ends.server(program), &at, model, count).start_shown();
        ends.net.wait_for_listener(Side::A, 7000);
        let clients = client(ends.client(program), &at, count, round).start_shown();
        let what = format!("over a cable that loses {loss} %, {library:?}, {model}, round {round}");
        let outputs = Bench::Cable(&ends.net).wait(&what, [running, clients]);
        let traffic = outputs[1].traffic;
        check(&what, count, outputs);
        if library.at_client() {
            assert!(traffic.rx > 0 && traffic.tx > 0, "nothing by the library: {traffic:?}");
        }
        if let Some(relay) = relay {
            let faults = relay.finish();
            assert!(faults.lost > 0 && faults.overrun == 0, "{faults:?}");
        }
    }
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_within_the_host_with_library_on_both_ends() {
    within_the_host(true, true);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_within_the_host_with_library_on_the_server() {
    within_the_host(true, false);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_within_the_host_with_library_on_the_client() {
    within_the_host(false, true);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_a_cable_with_library_on_both_ends() {
    over_a_cable(Library::Both, 0);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_a_cable_with_library_on_the_server() {
    over_a_cable(Library::Server, 0);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_a_cable_with_library_on_the_client() {
    over_a_cable(Library::Client, 0);
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_a_cable_that_loses() {
    let ends: &[Library] = if is_long() { &Library::ALL } else { &[Library::Both] };
    ends.iter().for_each(|library| over_a_cable(*library, 1));
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_ipv6() {
    for library in [Library::Server, Library::Both] {
        over_a_cable_to(|side| of(side).into(), library, 0);
    }
}

// covers: THR-04
#[test]
fn bytes_survive_all_changes_over_ipv6_by_a_cable_that_loses() {
    over_a_cable_to(|side| of(side).into(), Library::Client, 1);
}
