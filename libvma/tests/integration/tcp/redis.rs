//! redis-server with its own benchmark: fifty connections, pipelined and not.

use crate::family::Family;
use crate::harness::{Library, Side};

#[track_caller]
fn redis(family: Family, library: Library) {
    let ends = family.ends(library);
    // `bind *` is what redis does by default.
    let (listen, host) = match family {
        Family::Ipv4 => ("10.99.0.1", "10.99.0.1"),
        Family::Ipv6 => ("* ::", "fd00:99::1"),
    };
    let watch = ends.watch();
    let server = ends
        .server("redis-server")
        .args(&format!("--bind {listen}"))
        .args("--port 6379 --appendonly no --daemonize no --protected-mode no")
        .args("--save")
        .arg("")
        .start_shown();
    ends.net.wait_for_listener(Side::A, 6379);
    for words in ["-n 10000 -c 50 -t set,get", "-n 20000 -c 50 -P 16 -t set,get,lrange_100"] {
        let client = ends
            .client("redis-benchmark")
            .args(&format!("-h {host} -q -r 1000 -d 100"))
            .args(words)
            .run()
            .ok();
        for test in ["SET: ", "GET: "] {
            let rates: Vec<&str> = client.stdout.split(['\r', '\n']).collect();
            let done = rates.iter().any(|line| {
                line.starts_with(test)
                    && line.contains("requests per second")
                    && line.contains("p50")
            });
            assert!(done, "no result of {test}\n{}\n{}", client.stdout, client.stderr);
        }
        assert!(!client.stderr.contains("rror"), "{}", client.stderr);
    }
    // A value larger than any socket's buffer, both ways.
    let value = "v".repeat(8 << 20);
    std::fs::write(ends.net.file("value"), &value).unwrap();
    let cli = |words: &str| ends.client("redis-cli").args(&format!("-h {host} --raw")).args(words);
    let file = std::fs::File::open(ends.net.file("value")).unwrap();
    cli("-x set large").stdin(file.into()).run().says("OK");
    let got = cli("get large").run().ok();
    assert!(got.stdout.trim_end() == value, "{} bytes came back", got.stdout.len());
    // 50 connections of five tests and of CONFIG GET, and two clients.
    watch.still(6 * 51 + 2);
    drop(server);
}

// covers: NET-03, MUX-03
#[test]
fn redis_server_with_library() {
    redis(Family::Ipv4, Library::Server);
}

// covers: NET-03, MUX-03
#[test]
fn redis_client_with_library() {
    redis(Family::Ipv4, Library::Client);
}

// covers: NET-03, MUX-03
#[test]
fn redis_with_library_on_both_ends() {
    redis(Family::Ipv4, Library::Both);
}

// covers: INS-46, NET-03, MUX-03
#[test]
fn redis_over_ipv6_with_library_on_both_ends() {
    redis(Family::Ipv6, Library::Both);
}
