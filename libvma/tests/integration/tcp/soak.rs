//! Ten thousand short connections a second: nothing of them is left.

use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::harness::{Ends, Library, Side, compile, is_long, wait_for};

/// Connections that may be started in a second. A busy machine does fewer.
const RATE: u32 = 10_000;
const ROUNDS: usize = 3;

/// Of a round.
fn seconds() -> u32 {
    if is_long() { 3 } else { 1 }
}

/// What may be resident more after the last round than after the first, and the most connections that may
/// be in TIME-WAIT, which lasts longer than the rounds.
const ORDERLY: (i64, i64) = (4 << 10, 16_384);
const ABORTED: (i64, i64) = (2 << 10, 0);
/// Of a connection.
const RESIDENT_KIB: i64 = 2;

/// What a process has; of its descriptors those that are no rings: a further one is opened when two threads
/// send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    resident_kib: i64,
    descriptors: usize,
    flows: i64,
}

#[track_caller]
fn holdings(ends: &Ends, flows: &str, process: u32) -> Holdings {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let resident = status.split_once("VmRSS:").expect("a resident size").1;
    let counted = ends.net.program(Side::A, flows).args(&process.to_string()).run().ok();
    Holdings {
        resident_kib: resident.split_whitespace().next().unwrap().parse().unwrap(),
        descriptors: descriptors(process),
        flows: counted.number("flows ") as i64,
    }
}

#[track_caller]
fn descriptors(process: u32) -> usize {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process");
    let handle = pidfd_open(id, PidfdFlags::empty()).expect("it lives");
    let folder = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it lives");
    let numbers = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies = numbers.filter_map(|fd| pidfd_getfd(&handle, fd, PidfdGetfdFlags::empty()).ok());
    copies.filter(|copy| socket_domain(copy) != Ok(AddressFamily::XDP)).count()
}

#[track_caller]
fn soak(library: Library, way: &str, (growth, most_waiting): (i64, i64)) {
    let ends = Ends::new(library);
    let program = compile(&ends.net, "connections", include_str!("connections.c"), &[]);
    let flows = compile(&ends.net, "flows", include_str!("flows.c"), &[]);
    let (program, flows) = (program.to_str().unwrap(), flows.to_str().unwrap());
    for side in [Side::A, Side::B] {
        ends.net.sysctl(side, "net.ipv4.ip_local_port_range", "1024 65535");
        // Without, the kernel would hold back the resets and SYNs that it takes for an attack.
        ends.net.sysctl(side, "net.ipv4.tcp_syncookies", "0");
        ends.net.sysctl(side, "net.ipv4.tcp_max_syn_backlog", "8192");
    }
    let watch = ends.watch();
    let server = ends.server("prlimit").args("--nofile=16384").arg(program);
    let server = server.args("server 10.99.0.1 7000 4").arg(way).start_shown();
    ends.net.wait_for_listener(Side::A, 7003);
    let client = ends.client("prlimit").args("--nofile=16384").arg(program);
    let client = client.args("client 10.99.0.1 7000 4").arg(way);
    let client = client.args(&format!("{RATE} {ROUNDS} {}", seconds())).start_shown();

    let mut at_server = Vec::new();
    for round in 1..=ROUNDS {
        let line = format!("round {round} ");
        wait_for(&line, || {
            let printed = client.printed();
            let ended = std::fs::read_to_string(format!("/proc/{}/comm", client.id())).is_err();
            assert!(!ended || printed.contains(&line), "the client ended:\n{printed}");
            printed.contains(&line).then_some(())
        });
        // The last connections end a little later at the server.
        let level = at_server.first().map_or(usize::MAX, |first: &Holdings| first.descriptors);
        at_server.push(wait_for("the server has closed what it accepted", || {
            let holdings = holdings(&ends, flows, server.id());
            (round == 1 || holdings.descriptors <= level).then_some(holdings)
        }));
    }
    let printed = client.printed();
    println!("{library:?} {way}\n{printed}{at_server:#?}");
    let rounds: Vec<Vec<f64>> = printed
        .lines()
        .filter(|line| line.starts_with("round "))
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    assert_eq!(rounds.len(), ROUNDS, "{printed}");
    for round in &rounds {
        let [_, done, failed, ..] = round[..] else { panic!("{printed}") };
        assert!(failed == 0.0 && done > 1000.0, "{printed}");
    }
    watch.still(256);
    let (first, last) = (&rounds[0], &rounds[ROUNDS - 1]);
    // Those that do not wait yet after a slow first round may be made in the others.
    let growth = growth + RESIDENT_KIB * (most_waiting - first[1] as i64).max(0);
    assert!(last[4] - first[4] <= growth as f64, "the client grew by {} KiB", last[4] - first[4]);
    assert_eq!(last[5], first[5], "descriptors of the client\n{printed}");
    let (first, last) = (at_server[0], at_server[ROUNDS - 1]);
    assert!(last.resident_kib - first.resident_kib <= growth, "{at_server:#?}");
    assert!(last.descriptors <= first.descriptors, "{at_server:#?}");
    // Connections in TIME-WAIT may keep theirs.
    assert!(way == "orderly" || last.flows <= first.flows, "{at_server:#?}");
}

// covers: API-07, NET-03, FIX-29, FIX-28
#[test]
fn soak_of_orderly_connections_with_library_on_both_ends() {
    soak(Library::Both, "orderly", ORDERLY);
}

// covers: API-07, NET-03, FIX-29, FIX-28
#[test]
fn soak_of_aborted_connections_with_library_on_both_ends() {
    soak(Library::Both, "abort", ABORTED);
}
