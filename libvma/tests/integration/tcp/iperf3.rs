//! iperf3: bulk in one direction and both, over one connection and eight.

use crate::harness::{Ends, Library, Side, is_long};

/// A second each, ten with `ci/test --long`; -4, as the socket would otherwise be an IPv6 one.
#[track_caller]
fn iperf3(library: Library, modes: &[&str]) {
    let seconds = if is_long() { "10" } else { "1" };
    for mode in modes {
        let ends = Ends::new(library);
        let watch = ends.watch();
        let server = ends.server("iperf3").args("-4 -s -1 -B 10.99.0.1").start_shown();
        ends.net.wait_for_listener(Side::A, 5201);
        let client = ends.client("iperf3").args("-4 -c 10.99.0.1 -J -t").arg(seconds);
        let client = client.args(mode).run();
        client.says("\"sum_received\"");
        // The control connection, and at most sixteen for data. The server ends by itself (-1).
        watch.still(17);
        for sum in ["sum_sent", "sum_received"] {
            let section = client.stdout.split_once(&format!("\"{sum}\"")).unwrap().1;
            let (_, rest) = section.split_once("\"bits_per_second\":").unwrap();
            let number = rest.split([',', '\n', '}']).next().unwrap();
            let rate: f64 = number.trim().parse().unwrap();
            println!("{library:?} {mode}: {sum} {:.2} Gb/s", rate / 1e9);
            assert!(rate > 1e6, "{mode} {sum}: {rate} b/s\n{}", client.stdout);
        }
        drop(server);
    }
}

const ONE: [&str; 3] = ["-P 1", "-P 1 -R", "-P 1 --bidir"];
const EIGHT: [&str; 3] = ["-P 8", "-P 8 -R", "-P 8 --bidir"];

// covers: API-02, NET-03, LIM-38
#[test]
fn iperf3_server_with_library() {
    iperf3(Library::Server, &ONE);
}

// covers: API-02, NET-03, LIM-38
#[test]
fn iperf3_client_with_library() {
    iperf3(Library::Client, &ONE);
}

// covers: API-02, NET-03, LIM-38
#[test]
fn iperf3_with_library_on_both_ends() {
    iperf3(Library::Both, &ONE);
}

// covers: NET-03, MUX-01
#[test]
#[ignore = "ci/test --long: the other direction"]
fn iperf3_eight_streams_server_with_library() {
    iperf3(Library::Server, &EIGHT);
}

// covers: NET-03, MUX-01
#[test]
#[ignore = "ci/test --long: the other direction"]
fn iperf3_eight_streams_client_with_library() {
    iperf3(Library::Client, &EIGHT);
}

// covers: NET-03, MUX-01
#[test]
fn iperf3_eight_streams_with_library_on_both_ends() {
    iperf3(Library::Both, &EIGHT);
}
