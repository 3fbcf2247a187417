//! redis-server with its own benchmark, pipelined and not, and a value larger than any buffer.

use super::{Local, Under, not_both};

#[track_caller]
fn redis(under: Under) {
    let local = Local::new(under);
    let server = local
        .server("redis-server")
        .args("--bind 127.0.0.1 --port 6379 --appendonly no --daemonize no --protected-mode no")
        .args("--save")
        .arg("")
        .start_shown();
    local.sandbox.wait_for_listener(6379);
    let watch = local.sandbox.watch();
    for words in [
        "-n 5000 -c 1 -t set,get",
        "-n 20000 -c 50 -t set,get",
        "-n 40000 -c 50 -P 16 -t set,get,lrange_100",
    ] {
        let client = local.client("redis-benchmark").args("-h 127.0.0.1 -q -r 1000 -d 100");
        let client = client.args(words).run().ok();
        for test in ["SET: ", "GET: "] {
            let mut lines = client.stdout.split(['\r', '\n']);
            let done = lines.any(|line| {
                line.starts_with(test)
                    && line.contains("requests per second")
                    && line.contains("p50")
            });
            assert!(done, "no result of {test}\n{}\n{}", client.stdout, client.stderr);
        }
        assert!(!client.stderr.contains("rror"), "{}", client.stderr);
    }
    let value = "v".repeat(32 << 20);
    let path = local.sandbox.file("value");
    std::fs::write(&path, &value).unwrap();
    let cli = |words: &str| local.client("redis-cli").args("-h 127.0.0.1 --raw").args(words);
    let file = std::fs::File::open(&path).unwrap();
    cli("-x set large").stdin(file.into()).run().says("OK");
    let got = cli("get large").run().ok();
    assert!(got.stdout.trim_end() == value, "{} bytes came back", got.stdout.len());
    // Of each test, and one that asks for the configuration; two clients. Most of the bytes are those
    // of lrange_100 and of the large value.
    let connections = 2 * (1 + 50) + 2 * 50 + 5 * 50 + 3 + 2;
    let bytes = 40_000 * 100 * 10 + 2 * value.len() as u64;
    local.check_tcp(&watch, connections, bytes);
    drop(server);
}

#[test]
fn redis_with_library_on_both_ends() {
    redis(Under::Both);
}

#[test]
fn redis_with_library_on_at_most_one_end() {
    for under in not_both(Under::Client) {
        redis(under);
    }
}
