//! Programs that talk by IPv6, as they do by IPv4: at every end the library serves them, and the kernel sees nothing.

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, PYTHON, Puppet, Side};

use super::curl::{assert_same, random_file};
use super::faults::transfer_to;
use super::nginx;

const MIB: u64 = 1 << 20;

fn ends(library: Library) -> Ends {
    let ends = Ends::new(library);
    with_ipv6(&ends.net);
    ends
}

/// A listener on `[::]` takes IPv6 only, which is nginx's default.
#[track_caller]
fn nginx_and_curl(library: Library, listen: &str) {
    let ends = ends(library);
    let watch = ends.watch();
    let server = nginx::start_at(listen, &ends, false, true);
    random_file(&ends.net.file("www/large"), 64 * MIB, 1);
    let (url, target) = (format!("http://[{}]:8080", of(Side::A)), ends.net.file("got"));
    let curl = ends.client("curl").args(&format!("-sS --max-time 50 {url}/large -o"));
    curl.arg(target.to_str().unwrap()).run().ok();
    assert_same(&ends.net.file("www/large"), &target);
    for (words, requests) in [("-k -c 20", 4000), ("-c 20", 1000)] {
        let words = format!("-q -n {requests} -s 20 {words} {url}/small");
        let ab = ends.client("ab").args(&words).run().ok();
        assert_eq!(ab.number("Complete requests:"), f64::from(requests), "{}", ab.stdout);
        assert_eq!(ab.number("Failed requests:"), 0.0, "{}", ab.stdout);
    }
    // Of ab's connections the last twenty of each run are closed at its end.
    watch.still(1 + 2 * 20);
    drop(server);
}

// covers: INS-46, API-07, API-09, NET-03
#[test]
fn nginx_on_any_address_of_ipv6() {
    nginx_and_curl(Library::Both, "[::]:8080");
    nginx_and_curl(Library::Server, "[::]:8080 ipv6only=off");
}

// covers: API-02, NET-03
#[test]
fn curl_and_ab_with_library_at_the_client() {
    nginx_and_curl(Library::Client, "[::]:8080");
}

// covers: INS-46, API-07, NET-03
#[test]
fn nginx_on_an_address_of_ipv6_and_on_all_of_ipv4() {
    nginx_and_curl(Library::Server, "[fd00:99::1]:8080; listen 8080");
}

// covers: API-02, NET-03, LIM-38
#[test]
fn iperf3_in_bulk() {
    for (library, mode) in
        [(Library::Server, "-R"), (Library::Client, "-P 2"), (Library::Both, "--bidir")]
    {
        let ends = ends(library);
        let watch = ends.watch();
        let server = ends.server("iperf3").args("-6 -s -1").start_shown();
        ends.net.wait_for_listener(Side::A, 5201);
        let client = ends.client("iperf3").args(&format!("-6 -c {} -J -t 1", of(Side::A)));
        client.args(mode).run().says("\"sum_received\"");
        watch.still(5);
        drop(server);
    }
}

// covers: THR-04, NET-03
#[test]
fn a_cable_that_does_everything_wrong() {
    let faults = "seed=7 loss=1 duplicate=1 reorder=2 corrupt=0.5 delay=200 jitter=100";
    transfer_to("fd00:99::1", faults, 4 * MIB, |faults| {
        [faults.lost, faults.duplicated, faults.reordered, faults.corrupted].iter().all(|n| *n > 5)
    });
}

/// Traffic class and hop limit of the packets that come to side B while `c` sends, as a packet socket there sees them.
const SEEN: &str = "
raw = socket(AF_PACKET, SOCK_RAW, htons(0x86dd)); raw.bind(('veth-b', 0x86dd)); raw.settimeout(15)
def seen():
    while raw.recv(2000, MSG_DONTWAIT): pass
def next_data():
    while True:
        p = raw.recv(2000)
        # TCP to port 7000, with data.
        if p[20] == 6 and p[56:58] == bytes([0x1b, 0x58]) and len(p) > 54 + (p[66] >> 4) * 4:
            return (p[14] << 4 & 255 | p[15] >> 4) & 0xfc, p[21], int.from_bytes(p[15:18], 'big') & 0xfffff
";

// covers: API-34
#[test]
fn hop_limit_and_traffic_class_are_those_of_the_options() {
    let ends = ends(Library::Client);
    let mut watcher = Puppet::start(ends.net.program(Side::A, PYTHON));
    watcher.run(&SEEN.replace("veth-b", "veth-a"));
    watcher.run("l = create_server(('::', 7000), family=AF_INET6)");
    let mut program = Puppet::start(ends.client(PYTHON));
    let watch = ends.watch();
    program.run("c = socket(AF_INET6); c.setsockopt(IPPROTO_IPV6, IPV6_TCLASS, 0x48)");
    program.run("c.setsockopt(IPPROTO_IP, IP_TTL, 9)");
    program.run(&format!("c.connect(('{}', 7000))", of(Side::A)));
    watcher.run("s, _ = l.accept()");
    let mut sent = |program: &mut Puppet| {
        program.run("c.sendall(b'some data')");
        watcher.run("s.recv(100)");
        // Linux gives every flow a label.
        watcher.run("got = next_data(); assert got[2] > 0");
        watcher.run("got[:2]")
    };
    assert_eq!(sent(&mut program), "(72, 64)");
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 7)");
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_TCLASS, 0x20)");
    assert_eq!(sent(&mut program), "(32, 7)");
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS, -1)");
    assert_eq!(sent(&mut program), "(32, 64)");
    watch.still(0);
}
