//! Programs that people run: sockperf and iperf, as server and client, against the kernel's
//! sockets and against each other.

use rustix::process::Signal;

use crate::harness::{Namespaces, Output, Program, Side};

/// Which ends run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Server,
    Client,
    Both,
}

impl Library {
    fn prepare<'a>(self, program: Program<'a>, is_server: bool) -> Program<'a> {
        let without = if is_server { Library::Client } else { Library::Server };
        if self == without { program } else { program.with_library() }
    }
}

/// The number behind the first `name` in sockperf's output.
fn field(output: &Output, name: &str) -> u64 {
    let Some((_, rest)) = output.stdout.split_once(name) else {
        panic!("no {name}:\n{}{}", output.stdout, output.stderr);
    };
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect("a number")
}

/// Each end on a CPU of its own, since both spin.
fn sockperf(net: &Namespaces, side: Side) -> Program<'_> {
    let cpu = if side == Side::A { "1" } else { "0" };
    net.program(side, "taskset").arg("-c").arg(cpu).arg("sockperf")
}

/// One second of ping-pong; the server's address may be a group. Side A is the server.
#[track_caller]
fn ping_pong(library: Library, server_words: &str, client_words: &str) {
    let net = Namespaces::new();
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("route add 224.0.0.0/4 dev {}", side.device()));
    }
    let (server_watch, client_watch) = (net.watch(Side::A), net.watch(Side::B));

    let server = sockperf(&net, Side::A).args("server").args(server_words);
    let mut server = library.prepare(server, true).start();
    server.wait_for_text("using ");
    let client = sockperf(&net, Side::B).args("ping-pong -t 1 -m 64");
    let client = library.prepare(client.args(client_words), false).with_short_sleeps().run().ok();
    let server = server.interrupt().ok();

    let sent = field(&client, "SentMessages=");
    let received = field(&client, "ReceivedMessages=");
    assert!(sent > 1000, "{}", client.stdout);
    // The run may end between a message and its answer.
    assert!(sent - received <= 1, "{sent} sent, {received} received");
    for word in ["dropped messages = 0", "duplicated messages = 0", "out-of-order messages = 0"] {
        assert!(client.stdout.contains(word), "{}", client.stdout);
    }
    if library != Library::Client {
        server_watch.check(&server.traffic, received, received);
    }
    if library != Library::Server {
        client_watch.check(&client.traffic, received, sent);
    }
}

// covers: RUN-20, NET-01, LIM-78, TOOL-10, INS-46
#[test]
fn sockperf_server_with_library_client_without() {
    ping_pong(Library::Server, "-i 10.99.0.1", "-i 10.99.0.1");
}

// covers: RUN-20, NET-01, LIM-78, TOOL-11, INS-46
#[test]
fn sockperf_client_with_library_server_without() {
    ping_pong(Library::Client, "-i 10.99.0.1", "-i 10.99.0.1");
}

// covers: NET-01, TOOL-10, TOOL-11, INS-46
#[test]
fn sockperf_with_library_on_both_ends() {
    ping_pong(Library::Both, "-i 10.99.0.1", "-i 10.99.0.1");
}

// covers: API-10
#[test]
fn sockperf_with_non_blocking_sockets() {
    ping_pong(Library::Both, "-i 10.99.0.1 --nonblocked", "-i 10.99.0.1 --nonblocked");
}

// covers: NET-02, API-17, API-19, API-41, TOOL-10
#[test]
fn sockperf_multicast_server_with_library() {
    ping_pong(
        Library::Server,
        "-i 224.4.4.4 --mc-rx-if 10.99.0.1 --mc-tx-if 10.99.0.1",
        "-i 224.4.4.4 --mc-rx-if 10.99.0.2 --mc-tx-if 10.99.0.2",
    );
}

// covers: NET-02, API-17, API-19, API-41, TOOL-11
#[test]
fn sockperf_multicast_client_with_library() {
    ping_pong(
        Library::Client,
        "-i 224.4.4.4 --mc-rx-if 10.99.0.1 --mc-tx-if 10.99.0.1",
        "-i 224.4.4.4 --mc-rx-if 10.99.0.2 --mc-tx-if 10.99.0.2",
    );
}

// covers: NET-02, NET-07, NET-08, API-41
#[test]
fn sockperf_multicast_on_both_ends_by_route() {
    ping_pong(Library::Both, "-i 224.4.4.4", "-i 224.4.4.4");
}

/// A server of three sockets, waiting for them by `mux`; the client goes through all of them.
#[track_caller]
fn feed(library: Library, mux: &str) {
    let net = Namespaces::new();
    let feed = net.file("feed");
    std::fs::write(&feed, "U:10.99.0.1:7001\nU:10.99.0.1:7002\nU:10.99.0.1:7003\n").unwrap();
    let words = format!("-f {} -F {mux}", feed.display());
    let (server_watch, client_watch) = (net.watch(Side::A), net.watch(Side::B));

    let server = sockperf(&net, Side::A).args("server").args(&words);
    let mut server = library.prepare(server, true).start();
    for port in [7001, 7002, 7003] {
        net.wait_for_port(Side::A, port);
    }
    server.wait_for_text("using ");
    let client = sockperf(&net, Side::B).args("ping-pong -t 1").args(&words);
    let client = library.prepare(client, false).with_short_sleeps().run().ok();
    let server = server.interrupt().ok();

    let sent = field(&client, "SentMessages=");
    let received = field(&client, "ReceivedMessages=");
    assert!(sent > 1000 && sent - received <= 1, "{}", client.stdout);
    assert!(client.stdout.contains("dropped messages = 0"), "{}", client.stdout);
    if library != Library::Client {
        server_watch.check(&server.traffic, received, received);
    }
    if library != Library::Server {
        client_watch.check(&client.traffic, received, sent);
    }
}

// covers: MUX-01
#[test]
fn sockperf_serves_several_sockets_by_select() {
    feed(Library::Server, "s");
}

// covers: MUX-02
#[test]
fn sockperf_serves_several_sockets_by_poll() {
    feed(Library::Server, "p");
}

// covers: MUX-03
#[test]
fn sockperf_serves_several_sockets_by_epoll() {
    feed(Library::Server, "e");
}

// covers: MUX-01, MUX-02, MUX-03
#[test]
fn sockperf_client_of_several_sockets() {
    for mux in ["s", "p", "e"] {
        feed(Library::Both, mux);
    }
}

// covers: TOOL-12, LIM-26
#[test]
fn sockperf_throughput_at_a_moderate_rate_loses_nothing() {
    let net = Namespaces::new();
    let (server_watch, client_watch) = (net.watch(Side::A), net.watch(Side::B));
    let server = sockperf(&net, Side::A).args("server -i 10.99.0.1 -g").with_library();
    let mut server = server.start();
    server.wait_for_text("using ");
    let client = sockperf(&net, Side::B).with_library().with_short_sleeps();
    let client = client.args("throughput -i 10.99.0.1 -t 1 -m 100 --mps 5000").run().ok();
    let sent = field(&client, "Total of ");
    let server = server.interrupt().ok();
    server_watch.check(&server.traffic, sent, 0);
    client_watch.check(&client.traffic, 0, sent);
    assert_eq!(server.traffic.rx_dropped, 0);
    assert!(sent >= 4000, "{}", client.stdout);
}

/// Half a second of iperf at a rate that both machines can do. Side A is the server.
#[track_caller]
fn iperf(library: Library) {
    let net = Namespaces::new();
    let (server_watch, client_watch) = (net.watch(Side::A), net.watch(Side::B));
    let server = net.program(Side::A, "iperf").args("-s -u -B 10.99.0.1");
    let mut server = library.prepare(server, true).start();
    net.wait_for_port(Side::A, 5001);
    server.wait_for_text("Server listening");
    let client = net.program(Side::B, "iperf").args("-c 10.99.0.1 -u -b 30m -l 1000 -t 0.5 -e");
    let client = library.prepare(client, false).run().ok();
    // The server's report arrives at the client, so both directions work.
    assert!(client.stdout.contains("Server Report"), "{}{}", client.stdout, client.stderr);
    assert!(client.stdout.contains("(0%)"), "loss: {}", client.stdout);
    server.signal(Signal::INT);
    let server = server.wait();
    if library != Library::Client {
        server_watch.check(&server.traffic, 1000, 1);
    }
    if library != Library::Server {
        client_watch.check(&client.traffic, 1, 1000);
    }
}

// covers: LIM-26, RUN-20
#[test]
fn iperf_server_with_library() {
    iperf(Library::Server);
}

// covers: LIM-26, RUN-20
#[test]
fn iperf_client_with_library() {
    iperf(Library::Client);
}

// covers: LIM-26
#[test]
fn iperf_with_library_on_both_ends() {
    iperf(Library::Both);
}

/// A thread for each client, and a connected socket.
// covers: RUN-23
#[test]
fn iperf_serves_several_clients_by_threads() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    let mut server =
        net.program(Side::A, "iperf").args("-s -u -B 10.99.0.1").with_library().start();
    net.wait_for_port(Side::A, 5001);
    server.wait_for_text("Server listening");
    let client = net.program(Side::B, "iperf");
    let client = client.args("-c 10.99.0.1 -u -b 8m -l 1000 -t 0.5 -P 4").run().ok();
    // A thread for each of the four reports to its client. On kernel sockets, too, what comes before a thread has connected its
    // socket may be counted as late or lost.
    let reports: Vec<&str> = client.stdout.lines().filter(|line| line.contains('%')).collect();
    let received = |line: &&str| -> Option<u32> {
        let (lost, total) = line.rsplit("ms").next()?.split('(').next()?.trim().split_once('/')?;
        Some(total.trim().parse::<u32>().ok()? - lost.trim().parse::<u32>().ok()?)
    };
    let counts: Vec<u32> = reports.iter().filter_map(received).collect();
    assert!(counts.len() == 4 && counts.iter().all(|count| *count > 480), "{}", client.stdout);
    server.signal(Signal::INT);
    let server = server.wait();
    watch.check(&server.traffic, 1000, 4);
}
