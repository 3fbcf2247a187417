//! sockperf: request and answer, and one way, by UDP and TCP; many sockets with epoll.

use std::fmt::Write;

use crate::harness::is_long;

use super::{Local, Under, not_both};

/// What keeps both ends on processors of their own, with descriptors for every socket.
const PINNED: [&str; 2] =
    ["--nofile=8192 taskset -c 1 sockperf", "--nofile=8192 taskset -c 0 sockperf"];

/// Sockets of a process that others surely find.
const MOST_FOUND: u64 = 100;

struct Case {
    /// Of both ends.
    words: String,
    client: &'static str,
    sockets: u64,
    tcp: bool,
}

impl Case {
    fn one(words: &str, client: &'static str) -> Case {
        let words = format!("-i 127.0.0.1 -p 7000 {words}");
        Case { tcp: words.contains("--tcp"), words, client, sockets: 1 }
    }

    #[track_caller]
    fn run(&self, local: &Local) {
        let server = local.server("prlimit").args(PINNED[0]).args("server").args(&self.words);
        let mut server = server.start_shown();
        for port in [7000, 7000 + self.sockets as u16 - 1] {
            if self.tcp {
                local.sandbox.wait_for_listener(port);
            } else {
                local.sandbox.wait_for_udp(port);
            }
        }
        server.wait_for_text("using ");
        let watch = local.sandbox.watch();
        let client = local.client("prlimit").args(PINNED[1]).args(self.client).args(&self.words);
        let client = client.with_short_sleeps().run().ok();
        let count = if self.client.contains("throughput") {
            client.number("Total of ")
        } else {
            let (sent, received) =
                (client.number("SentMessages="), client.number("ReceivedMessages="));
            // The run may end between a message and its answer.
            let lost = client.number("dropped messages =");
            assert!(sent - received <= 1.0 && lost <= sent - received, "{}", client.stdout);
            for word in ["duplicated messages = 0", "out-of-order messages = 0"] {
                client.says(word);
            }
            2.0 * received
        };
        assert!(count > 1000.0, "{}", client.stdout);
        if self.sockets > MOST_FOUND && local.under == Under::Both {
            // What of it went which way does not matter.
        } else if self.tcp {
            // Of at least the smallest message that sockperf has.
            local.check_tcp(&watch, self.sockets, count as u64 * 14);
        } else if local.under == Under::Both || !self.client.contains("throughput") {
            local.check_udp(&watch, self.sockets, count as u64);
        }
        drop(server);
    }
}

/// A hundred sockets of either end; a thousand, more than a process lets others find. By the kernel's
/// ways a hundred do for once.
#[track_caller]
fn many(under: Under, protocol: &str) {
    let counts: &[u64] = if under == Under::Both || is_long() { &[100, 1000] } else { &[100] };
    for sockets in counts.iter().copied() {
        let local = Local::new(under);
        let mut lines = String::new();
        for port in 7000..7000 + sockets {
            writeln!(lines, "{protocol}:127.0.0.1:{port}").unwrap();
        }
        let feed = local.sandbox.file("feed");
        std::fs::write(&feed, lines).unwrap();
        let words = format!("-f {} -F e", feed.display());
        // A second longer, for as many messages of each.
        let client = if sockets > MOST_FOUND {
            "ping-pong -t 2 --mps=4000000"
        } else {
            "ping-pong -t 1 --mps=4000000"
        };
        let tcp = protocol == "T";
        Case { words, client, sockets, tcp }.run(&local);
    }
}

/// Without a rate sockperf has numbers for 600000 messages in a second.
const PING_PONG: &str = "ping-pong -t 1 -m 64 --mps=4000000";
const THROUGHPUT: &str = "throughput -t 1 -m 1000";

#[test]
fn sockperf_over_udp_with_library_on_both_ends() {
    let local = Local::new(Under::Both);
    Case::one("", PING_PONG).run(&local);
    Case::one("--nonblocked", PING_PONG).run(&local);
    Case::one("", THROUGHPUT).run(&local);
}

#[test]
fn sockperf_over_tcp_with_library_on_both_ends() {
    let local = Local::new(Under::Both);
    Case::one("--tcp", PING_PONG).run(&local);
    Case::one("--tcp --nonblocked", PING_PONG).run(&local);
    Case::one("--tcp", THROUGHPUT).run(&local);
}

#[test]
fn sockperf_with_library_on_at_most_one_end() {
    for under in not_both(Under::Server) {
        let local = Local::new(under);
        for words in ["", "--tcp"] {
            Case::one(words, PING_PONG).run(&local);
            Case::one(words, THROUGHPUT).run(&local);
        }
    }
}

#[test]
fn sockperf_with_many_connections_by_epoll() {
    for under in [Under::Both].into_iter().chain(not_both(Under::Client)) {
        many(under, "T");
    }
}

#[test]
fn sockperf_with_many_sockets_by_epoll() {
    for under in [Under::Both].into_iter().chain(not_both(Under::Server)) {
        many(under, "U");
    }
}
