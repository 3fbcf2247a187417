//! iperf3: bulk in one direction and both, over one connection and eight.

use super::{Local, Under, not_both};

/// A second each; -4, as the socket would otherwise be an IPv6 one.
#[track_caller]
fn iperf3(under: Under, modes: &[&str]) {
    for mode in modes {
        let local = Local::new(under);
        let watch = local.sandbox.watch();
        let server = local.server("iperf3").args("-4 -s -1 -B 127.0.0.1").start_shown();
        local.sandbox.wait_for_listener(5201);
        let client = local.client("iperf3").args("-4 -c 127.0.0.1 -t 1 -J").args(mode).run();
        client.says("\"sum_received\"");
        server.wait().ok();
        let mut bytes = 0.0;
        for (sum, _) in client.stdout.match_indices("\"sum_received") {
            let (_, rest) = client.stdout[sum..].split_once("\"bytes\":").unwrap();
            bytes += rest.split([',', '\n', '}']).next().unwrap().trim().parse::<f64>().unwrap();
        }
        println!("{under:?} {mode}: {:.2} Gb/s", bytes * 8e-9);
        assert!(bytes > 50e6, "{mode}: {bytes} bytes\n{}", client.stdout);
        let streams = if mode.contains("8") { 8 } else { 1 };
        let directions = if mode.contains("bidir") { 2 } else { 1 };
        // And the control connection.
        local.check_tcp(&watch, 1 + streams * directions, bytes as u64);
    }
}

const ONE: [&str; 3] = ["-P 1", "-P 1 -R", "-P 1 --bidir"];
const EIGHT: [&str; 3] = ["-P 8", "-P 8 -R", "-P 8 --bidir"];

#[test]
fn iperf3_with_library_on_both_ends() {
    iperf3(Under::Both, &ONE);
}

#[test]
fn iperf3_eight_streams_with_library_on_both_ends() {
    iperf3(Under::Both, &EIGHT);
}

#[test]
fn iperf3_with_library_on_at_most_one_end() {
    for under in not_both(Under::Server) {
        iperf3(under, &["-P 1", "-P 8 --bidir"]);
    }
}
