//! sockperf's options, each in a run with the library at both ends. Those of the Extra API (`--vmazcopyread`, `--vmarxfiltercb`,
//! `--load-vma`, `--dummy-send`, `-F x`) are refused by the sockperf that distributions build, whatever is preloaded: `extra` has
//! tests of what they ask for. `--set-sock-accl` sets an option that Linux does not have, and
//! `--rate-limit` one that makes the socket the kernel's.

use std::path::PathBuf;

use crate::harness::{Namespaces, Output, Program, Side};

/// Each end on a CPU of its own, since both spin.
fn sockperf(net: &Namespaces, side: Side) -> Program<'_> {
    let cpu = if side == Side::A { "1" } else { "0" };
    net.program(side, "taskset").arg("-c").arg(cpu).arg("sockperf").with_library()
}

fn network() -> Namespaces {
    let net = Namespaces::new();
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("route add 224.0.0.0/4 dev {}", side.device()));
    }
    net
}

/// What both ends printed.
struct Ran {
    server: Output,
    client: Output,
}

/// A run in which the kernel of neither side sees a datagram, or a segment of the one connection.
#[track_caller]
fn run(net: &Namespaces, server_words: &str, client_words: &str) -> Ran {
    let (udp, tcp) = (
        [Side::A, Side::B].map(|side| net.watch(side)),
        [Side::A, Side::B].map(|side| net.watch_tcp(side)),
    );
    let mut server = sockperf(net, Side::A).args("server").args(server_words).start();
    server.wait_for_text("using ");
    let client = sockperf(net, Side::B).with_short_sleeps().args(client_words).run().ok();
    let server = server.interrupt().ok();
    if server_words.contains("--tcp") {
        tcp.iter().for_each(|watch| watch.still(1));
    } else {
        udp.iter().for_each(|watch| watch.still());
    }
    for output in [&server, &client] {
        assert!(
            output.traffic.rx + output.traffic.tx > 0,
            "{:?}\n{}",
            output.traffic,
            output.stdout
        );
    }
    Ran { server, client }
}

/// Messages of the longest burst.
const BURST: f64 = 4.0;

impl Ran {
    /// Every message was answered, but perhaps the last burst.
    #[track_caller]
    fn answered(&self) {
        let (sent, got) =
            (self.client.number("SentMessages="), self.client.number("ReceivedMessages="));
        assert!(
            sent > 100.0 && sent - got <= BURST,
            "{}{}",
            self.client.stdout,
            self.client.stderr
        );
        for word in ["dropped messages = 0", "duplicated messages = 0", "out-of-order messages = 0"]
        {
            self.client.says(word);
        }
    }
}

/// A file of three sockets at the server.
fn feed(net: &Namespaces, kind: char, at: &str) -> PathBuf {
    let path = net.file("feed");
    let lines: String = (7001..7004).map(|port| format!("{kind}:{at}:{port}\n")).collect();
    std::fs::write(&path, lines).unwrap();
    path
}

// covers: TOOL-14, API-10
#[test]
fn common_options_of_datagram_sockets() {
    let net = network();
    for words in [
        "-i 10.99.0.1 -p 7001 --tos 32 --uc-reuseaddr --buffer-size 200000 --lls 50 -a 500",
        "-i 10.99.0.1 --nonblocked --recv_looping_num 10 -A 500",
        "-i 10.99.0.1 --nonblocked --recv_looping_num=-1",
    ] {
        println!("{words}");
        run(&net, words, &format!("ping-pong -t 1 {words}")).answered();
    }
}

// covers: TOOL-14, MUX-01, MUX-02, MUX-03
#[test]
fn ways_to_wait_for_several_sockets() {
    let net = network();
    let feed = feed(&net, 'U', "10.99.0.1");
    for (way, timeout) in [("s", "5"), ("poll", "-1"), ("e", "-1"), ("epoll", "5"), ("r", "10")] {
        // A receive call waits at one socket.
        if way == "r" {
            std::fs::write(&feed, "U:10.99.0.1:7001\n").unwrap();
        }
        println!("{way} {timeout}");
        let words = format!("-f {} -F {way} --timeout={timeout}", feed.display());
        run(&net, &words, &format!("ping-pong -t 1 {words}")).answered();
    }
}

// covers: TOOL-14, TOOL-16, API-17, NET-02
#[test]
fn options_of_multicast() {
    let net = network();
    let of = |side: Side, more: &str| {
        let (own, peer) = (side.ip(), side.other().ip());
        format!("-i 224.4.4.4 --mc-rx-if {own} --mc-tx-if {own} --mc-ttl 3 {more}")
            .replace("PEER", &peer.to_string())
    };
    for (server, client) in
        [("--mc-source-filter PEER", "--mc-source-filter PEER"), ("--force-unicast-reply", "")]
    {
        println!("{server}");
        let client = of(Side::B, client);
        run(&net, &of(Side::A, server), &format!("ping-pong -t 1 {client}")).answered();
    }
}

// covers: TOOL-14, NET-03
#[test]
fn options_of_streams() {
    let net = network();
    for words in [
        "--tcp-avoid-nodelay",
        "--tcp-skip-blocking-send",
        "--nonblocked --tos 16 --buffer-size 100000",
    ] {
        println!("{words}");
        let words = format!("--tcp -i 10.99.0.1 {words}");
        run(&net, &words, &format!("ping-pong -t 1 {words}")).answered();
    }
}

// covers: TOOL-15
#[test]
fn options_of_the_client() {
    let net = network();
    let ping_pong = [
        "--client_ip 10.99.0.2 --client_port 7100",
        "--pre-warmup-wait 1 -b 4 --full-rtt -d",
        "--mps 2000 --data-integrity --range 20 -m 64",
    ];
    for words in ping_pong {
        println!("{words}");
        let client = format!("ping-pong --time 1 -i 10.99.0.1 {words}");
        run(&net, "-i 10.99.0.1", &client).answered();
    }
    // The client makes no statistics of these.
    for words in ["--dontwarmup --mps 2000", "--no-rdtsc"] {
        let ran = run(&net, "-i 10.99.0.1", &format!("ping-pong -t 1 -i 10.99.0.1 {words}"));
        let (sent, got) =
            (ran.client.number("SentMessages="), ran.client.number("ReceivedMessages="));
        assert!(sent > 1000.0 && sent - got <= 1.0, "{words}: {}", ran.client.stdout);
    }
    let ran =
        run(&net, "-i 10.99.0.1", "under-load --time 1 --mps 2000 --reply-every 5 -i 10.99.0.1");
    let (sent, got) = (ran.client.number("SentMessages="), ran.client.number("ReceivedMessages="));
    assert!(sent > 1000.0 && (sent / 5.0 - got).abs() <= 2.0, "{}", ran.client.stdout);
}

// covers: TOOL-16
#[test]
fn options_of_the_server() {
    let net = network();
    let client = "ping-pong -t 1 -i 10.99.0.1";
    run(&net, "-i 10.99.0.1 -m 65507 -g", client).answered();
    run(&net, "-i 10.99.0.1 -m 65507", &format!("{client} -m 30000")).answered();
    let feed = feed(&net, 'U', "10.99.0.1");
    let words = format!("-f {} -F e", feed.display());
    let server = format!("{words} --threads-num 3 --cpu-affinity 0,1");
    run(&net, &server, &format!("ping-pong -t 1 {words}")).answered();
    // Who does not answer.
    let ran = run(&net, "-i 10.99.0.1 --dont-reply -g", "throughput -t 1 --mps 2000 -i 10.99.0.1");
    assert!(ran.client.number("Total of ") > 1000.0, "{}", ran.client.stdout);
    assert_eq!((ran.server.traffic.tx, ran.server.traffic.rx_dropped), (0, 0));
}
