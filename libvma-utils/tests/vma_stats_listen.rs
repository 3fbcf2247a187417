//! Metrics by HTTP from the program as it is called.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod fake;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use fake::{Fake, scratch};
use libvma_dev::stats::{Control, Snapshot, Socket};
use rustix::process::{Pid, Signal, kill_process};

fn tell(_: &Control, answers: u32) -> (Snapshot, Vec<Socket>) {
    let mut snapshot = Snapshot::default();
    snapshot.totals.rx_bytes = 1000 * u64::from(answers);
    (snapshot, Vec::new())
}

#[test]
fn each_scrape_reads_the_counters_anew_until_a_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let directory = scratch(&format!("listen-{}", signal.as_raw()));
        let fake = Fake::new(&directory, tell);
        let mut program = Command::new(env!("CARGO_BIN_EXE_vma_stats"))
            .args(["--listen", "127.0.0.1:0", "-k"])
            .arg(&directory)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let mut out = BufReader::new(program.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("text");
        let address = line.trim().strip_prefix("vmastat: metrics at http://").expect(&line);
        let address = address.strip_suffix("/metrics").expect(&line);
        for scrape in 1..=2 {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("text");
            let expected = format!(
                "vma_process_received_bytes_total{{pid=\"{}\",name=\"sleep\"}} {scrape}000\n",
                fake.process()
            );
            assert!(answer.contains(&expected), "{expected}\nis not in\n{answer}");
        }
        let id = Pid::from_raw(program.id() as i32).expect("it has one");
        kill_process(id, signal).expect("it is ours");
        assert!(program.wait().expect("it ends").success());
    }
}
