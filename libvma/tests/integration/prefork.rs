//! Servers whose workers share a listener: which of them serves it, us or the kernel, changes while clients
//! come, and none of them may notice.

use std::net::IpAddr;

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, Side, compile};

const SOURCE: &str = include_str!("prefork.c");

// covers: THR-04
#[test]
fn no_client_is_reset_while_workers_start() {
    let ends = Ends::new(Library::Server);
    let program = compile(&ends.net, "prefork", SOURCE, &[]);
    let program = program.to_str().expect("a path in UTF-8");
    let at = Side::A.ip();
    let server = ends.server(program).args(&format!("server {at} 5")).start_shown();
    let clients = ends.client(program).args(&format!("client {at} 3")).start_shown().wait();
    assert_eq!(clients.stdout.trim(), "done", "{}", clients.stderr);
    clients.ok();
    server.wait().ok();
}

const LEAVING: &str = include_str!("prefork_leaving.c");

/// Clients connect to a server that goes on in the way that is named; the program has the list. How many connections were
/// handed over to the kernel's listener, by the log.
#[track_caller]
fn leaves(how: &str, library: Library) -> u32 {
    leaves_at(how, library, Side::ip)
}

/// At this address of side A; a listener of IPv6 is on `::`.
#[track_caller]
fn leaves_at<T: Into<IpAddr>>(how: &str, library: Library, address: fn(Side) -> T) -> u32 {
    let ends = Ends::new(library);
    with_ipv6(&ends.net);
    let program = compile(&ends.net, "leaving", LEAVING, &[]);
    let program = program.to_str().expect("a path in UTF-8");
    let at: IpAddr = address(Side::A).into();
    let log = ends.net.file("log");
    let server = ends.server(program).args(&format!("server {at} {how}"));
    let server = server.env("VMA_TRACELEVEL", "debug").env("VMA_LOG_FILE", log.to_str().unwrap());
    let mut server = server.start_shown();
    server.wait_for_text("listening");
    let clients = ends.client(program).args(&format!("client {at}")).start_shown().wait();
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    assert_eq!(clients.stdout.trim(), "answered 16", "{}{}", clients.stderr, read());
    clients.ok();
    server.wait().ok();
    let log = read();
    assert!(!library.at_server() || !log.is_empty());
    let told = log.lines().filter_map(|line| line.split("are the kernel's now: ").nth(1));
    told.map(|count| count.trim().parse::<u32>().expect("a number")).sum()
}

// covers: THR-04
#[test]
fn a_worker_that_exits_leaves_the_connections_that_wait_to_the_next_one() {
    for how in ["exit", "_exit", "close"] {
        assert_eq!(leaves(how, Library::Client), 0);
        assert_eq!(leaves(how, Library::Server), 15, "{how}");
    }
}

#[test]
fn a_worker_that_exits_leaves_the_connections_that_wait_to_one_that_waits_beside_it() {
    assert_eq!(leaves("watched", Library::Client), 0);
    assert_eq!(leaves("watched", Library::Server), 15);
}

#[test]
fn a_forked_child_accepts_what_came_before_the_fork() {
    for how in ["ahead", "polled"] {
        assert_eq!(leaves(how, Library::Client), 0);
        assert_eq!(leaves(how, Library::Server), 16, "{how}");
    }
}

#[test]
fn a_listener_that_goes_on_without_the_library_keeps_the_connections_that_wait() {
    for how in ["exec", "owner"] {
        assert_eq!(leaves(how, Library::Client), 0);
        assert_eq!(leaves(how, Library::Server), 16, "{how}");
    }
}

// covers: THR-04
#[test]
fn connections_over_ipv6_that_wait_are_left_to_others_too() {
    for (how, given) in [("_exit", 15), ("watched", 15), ("polled", 16), ("exec", 16)] {
        assert_eq!(leaves_at(how, Library::Client, of), 0);
        assert_eq!(leaves_at(how, Library::Server, of), given, "{how}");
    }
}
