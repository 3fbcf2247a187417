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

// covers: API-02, NET-03
#[test]
fn iperf3_server_with_library() {
    iperf3(Library::Server, &ONE);
}

// covers: API-02, NET-03
#[test]
fn iperf3_client_with_library() {
    iperf3(Library::Client, &ONE);
}

// covers: API-02, NET-03
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

/// Bits a second in each tenth of a second of a transfer.
fn tenths(ends: &Ends) -> Vec<f64> {
    let server = ends.server("iperf3").args("-4 -s -1 -B 10.99.0.1").start_shown();
    ends.net.wait_for_listener(Side::A, 5201);
    let client = ends.client("iperf3").args("-4 -c 10.99.0.1 -J -i 0.1 -t 2").run().ok();
    drop(server);
    let intervals = client.stdout.split("\"intervals\"").nth(1).expect("intervals");
    let intervals = intervals.split("\"sum_sent\"").next().expect("an end");
    let sums = intervals.split("\"sum\"").skip(1);
    let rate = |sum: &str| {
        let (_, rest) = sum.split_once("\"bits_per_second\":")?;
        rest.split([',', '\n', '}']).next()?.trim().parse().ok()
    };
    sums.filter_map(rate).collect()
}

// covers: LIM-38
#[test]
fn no_tenth_of_a_second_of_bulk_is_a_pause() {
    // The best of a few: other programs take the CPUs now and then.
    let worst = (0..4).map(|_| {
        let mut rates = tenths(&Ends::new(Library::Both));
        assert!(rates.len() >= 18, "{rates:?}");
        rates.sort_unstable_by(f64::total_cmp);
        let middle = rates[rates.len() / 2];
        println!(
            "Gb/s: {:.2} to {:.2}, median {:.2}",
            rates[0] / 1e9,
            rates.last().unwrap() / 1e9,
            middle / 1e9
        );
        rates[0] / middle
    });
    let steadiest = worst.fold(0.0, f64::max);
    assert!(steadiest > 0.5, "the worst tenth of a second has {steadiest:.2} of the median");
}
