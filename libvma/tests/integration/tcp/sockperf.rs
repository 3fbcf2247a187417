//! sockperf over TCP: one connection, and a thousand with epoll.

use std::fmt::Write;

use crate::harness::{Ends, Library, Program, Side};

/// Each end on a CPU of its own, since both spin; with descriptors for every connection.
fn sockperf(ends: &Ends, side: Side) -> Program<'_> {
    let (program, cpu) = match side {
        Side::A => (ends.server("prlimit"), "1"),
        Side::B => (ends.client("prlimit"), "0"),
    };
    program.args("--nofile=8192 taskset -c").arg(cpu).arg("sockperf")
}

/// A run of the client, in which nothing may get lost.
#[track_caller]
fn run(ends: &Ends, ports: &[u16], words: &str, client_words: &str) {
    let watch = ends.watch();
    let mut server = sockperf(ends, Side::A).args("server").args(words).start_shown();
    // It opens them in order.
    if let Some(last) = ports.last() {
        ends.net.wait_for_listener(Side::A, *last);
    }
    server.wait_for_text("using ");
    let client = sockperf(ends, Side::B).args(client_words).args(words);
    let client = client.with_short_sleeps().run().ok();
    watch.still(ports.len() as u64);
    if client_words.contains("throughput") {
        assert!(client.number("Total of ") > 1000.0, "{}", client.stdout);
        return;
    }
    let (sent, received) = (client.number("SentMessages="), client.number("ReceivedMessages="));
    // The run may end between a message and its answer.
    assert!(sent > 1000.0 && sent - received <= 1.0, "{}", client.stdout);
    for word in ["dropped messages = 0", "duplicated messages = 0", "out-of-order messages = 0"] {
        client.says(word);
    }
}

#[track_caller]
fn one_connection(library: Library, client_words: &str) {
    let ends = Ends::new(library);
    run(&ends, &[11111], "--tcp -i 10.99.0.1", client_words);
}

/// A server of a thousand listeners and a client of a thousand connections.
#[track_caller]
fn thousand_connections(library: Library) {
    let ends = Ends::new(library);
    let ports: Vec<u16> = (7000..8000).collect();
    let mut lines = String::new();
    for port in &ports {
        writeln!(lines, "T:10.99.0.1:{port}").unwrap();
    }
    let feed = ends.net.file("feed");
    std::fs::write(&feed, lines).unwrap();
    let words = format!("-f {} -F e", feed.display());
    run(&ends, &ports, &words, "ping-pong -t 2");
}

// covers: API-02, NET-03, TOOL-10
#[test]
fn sockperf_ping_pong_server_with_library() {
    one_connection(Library::Server, "ping-pong -t 1 -m 64");
}

// covers: API-02, NET-03, TOOL-11
#[test]
fn sockperf_ping_pong_client_with_library() {
    one_connection(Library::Client, "ping-pong -t 1 -m 64");
}

// covers: API-02, NET-03, TOOL-10, TOOL-11
#[test]
fn sockperf_ping_pong_with_library_on_both_ends() {
    one_connection(Library::Both, "ping-pong -t 1 -m 64");
}

// covers: TOOL-12
#[test]
#[ignore = "ci/test --long: the other direction"]
fn sockperf_throughput_server_with_library() {
    one_connection(Library::Server, "throughput -t 1 -m 1000");
}

// covers: TOOL-12
#[test]
#[ignore = "ci/test --long: the other direction"]
fn sockperf_throughput_client_with_library() {
    one_connection(Library::Client, "throughput -t 1 -m 1000");
}

// covers: TOOL-12
#[test]
fn sockperf_throughput_with_library_on_both_ends() {
    one_connection(Library::Both, "throughput -t 1 -m 1000");
}

// covers: MUX-03, NET-03
#[test]
#[ignore = "ci/test --long: the other direction"]
fn sockperf_thousand_connections_by_epoll_server_with_library() {
    thousand_connections(Library::Server);
}

// covers: MUX-03, NET-03
#[test]
#[ignore = "ci/test --long: the other direction"]
fn sockperf_thousand_connections_by_epoll_client_with_library() {
    thousand_connections(Library::Client);
}

// covers: MUX-03, NET-03
#[test]
fn sockperf_thousand_connections_by_epoll_with_library_on_both_ends() {
    thousand_connections(Library::Both);
}
