//! Programs that talk by IPv6, as they do by IPv4: at every end the library serves them, and the kernel sees nothing.

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, Namespaces, PYTHON, Puppet, Side};

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
    let server = nginx::start_at(listen, &ends, 0, true);
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
    let wrk = ends.client("wrk").args(&format!("-t 1 -c 10 -d 1s {url}/small")).run().ok();
    assert!(
        wrk.number("Requests/sec:") > 100.0 && !wrk.stdout.contains("errors"),
        "{}",
        wrk.stdout
    );
    // Of ab's connections the last twenty of each run are closed at its end; wrk's, and the one that it tries first.
    watch.still(1 + 2 * 20 + 11);
    drop(server);
}

// covers: API-07, API-09, NET-03
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

// covers: API-07, NET-03
#[test]
fn nginx_on_an_address_of_ipv6_and_on_all_of_ipv4() {
    nginx_and_curl(Library::Server, "[fd00:99::1]:8080; listen 8080");
}

// covers: API-02, NET-03
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

/// Throws segments at port 7000 of side A that are wrong in some way, and then a flood of SYNs from anywhere.
const THROWER: &str = "
import random
r = random.Random(7)
raw = socket(AF_PACKET, SOCK_RAW); raw.bind(('veth-b', 0x86dd))
A, B = inet_pton(AF_INET6, 'fd00:99::1'), inet_pton(AF_INET6, 'fd00:99::2')
def ones(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 65535) + (total >> 16)
    return ~total & 65535
def segment(src, sport, flags, dst=A, kind=6, first=0x60, length=None, check=None, seq=None):
    seq = r.randrange(2**32) if seq is None else seq
    head = struct.pack('!HHIIBBHHH', sport, 7000, seq, r.randrange(2**32), 0x50, flags, 1024, 0, 0)
    right = ones(src + dst + struct.pack('!II', 20, 6) + head)
    head = head[:16] + struct.pack('!H', right if check is None else check) + head[18:]
    ip = struct.pack('!BBHHBB', first, 0, 0, 20 if length is None else length, kind, 64) + src + dst
    return bytes.fromhex('02000099000102000099000286dd') + ip + head
SOURCES = [B, A, bytes(16), bytes(15) + b'\\1', inet_pton(AF_INET6, 'ff02::1'), inet_pton(AF_INET6, 'fe80::b'),
           inet_pton(AF_INET6, '::ffff:10.99.0.2'), r.randbytes(16)]
def hostile():
    src, sport, flags = r.choice(SOURCES), r.choice([port, 4000, 0, 7000]), r.randrange(256)
    kind = r.randrange(6)
    if kind == 0: return segment(src, sport, flags, first=r.randrange(256))
    if kind == 1: return segment(src, sport, flags, kind=r.randrange(256))
    if kind == 2: return segment(src, sport, flags, length=r.randrange(65536))
    if kind == 3: return segment(src, sport, flags, check=r.randrange(65536))
    if kind == 4: return segment(src, sport, flags, dst=r.choice(SOURCES))
    return segment(src, sport, flags & ~4)[:r.randrange(14, 75)]
for n in range(20000): raw.send(hostile())
for n in range(20000): raw.send(segment(b'\\x20\\1' + r.randbytes(14), r.randrange(1, 65536), 2))
";

// covers: NET-40
#[test]
fn wrong_segments_and_a_flood_do_no_harm() {
    let ends = ends(Library::Server);
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('::', 7000), family=AF_INET6, backlog=64)");
    program.run("select.select([l], [], [], 0)");
    let mut peer = Puppet::start(ends.client(PYTHON));
    peer.run(&format!("c = create_connection(('{}', 7000), 15)", of(Side::A)));
    program.run("s, _ = l.accept(); s.settimeout(15)");
    peer.run("port = c.getsockname()[1]");
    peer.run(THROWER);
    peer.run("c.sendall(pattern(50000, 3))");
    program.run("got = b''\nwhile len(got) < 50000: got += s.recv(65536)");
    assert_eq!(program.run("got == pattern(50000, 3)"), "True");
    let watch = ends.watch();
    peer.run(&format!("d = create_connection(('{}', 7000), 15)", of(Side::A)));
    peer.run("d.sendall(b'still there')");
    program.run("n, who = l.accept(); n.settimeout(15)");
    assert_eq!(program.run("n.recv(100)"), "b'still there'");
    assert_eq!(program.run("who[0]"), format!("'{}'", of(Side::B)));
    watch.still(0);
}

// covers: LIM-52
#[test]
fn a_link_local_client_of_a_served_listener_is_the_kernels() {
    let ends = ends(Library::Server);
    ends.net.add_ipv6(Side::A, "fe80::a");
    ends.net.add_ipv6(Side::B, "fe80::b");
    let mut program = Puppet::start(ends.server(PYTHON));
    program.run("l = create_server(('::', 7000), family=AF_INET6); l.settimeout(15)");
    program.run("select.select([l], [], [], 0)");
    let mut peer = Puppet::start(ends.client(PYTHON));
    peer.run("c = socket(AF_INET6); c.settimeout(15); link = if_nametoindex('veth-b')");
    peer.run("c.bind(('fe80::b', 0, 0, link)); c.connect(('fd00:99::1', 7000))");
    peer.run("c.sendall(b'near')");
    program.run("s, who = l.accept(); s.settimeout(15)");
    assert_eq!(program.run("who[0].split('%')[0], s.recv(100)"), "('fe80::b', b'near')");
    program.run("s.sendall(b'by')");
    assert_eq!(peer.run("c.recv(100)"), "b'by'");
}

// covers: API-34
#[test]
fn a_connection_tells_the_mtu_of_ipv6() {
    let ends = ends(Library::Client);
    let mut server = Puppet::start(ends.net.program(Side::A, PYTHON));
    server.run("l = create_server(('::', 7000), family=AF_INET6)");
    let mut program = Puppet::start(ends.client(PYTHON));
    let watch = ends.watch();
    program.run(&format!("c = create_connection(('{}', 7000), 15)", of(Side::A)));
    const IPV6_MTU: u8 = 24;
    assert_eq!(program.run(&format!("c.getsockopt(IPPROTO_IPV6, {IPV6_MTU})")), "1500");
    assert_eq!(program.run("c.getsockopt(IPPROTO_TCP, TCP_MAXSEG)"), "1428");
    watch.still(0);
}

// covers: CONF-19
#[test]
fn rules_may_name_addresses_of_ipv6() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let rules = net.file("rules");
    let text = "use os tcp_server [fd00:99::]/64:7000\nuse os tcp_server [::]:7002\n";
    std::fs::write(&rules, text).unwrap();
    let program = net.program(Side::A, PYTHON).with_library();
    let mut program = Puppet::start(program.env("VMA_CONFIG_FILE", rules.to_str().unwrap()));
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    let own = of(Side::A).to_string();
    // A listener on `::` is one of both families, too.
    for (at, port, both, is_kernels) in [
        (own.as_str(), 7000, "", true),
        (&own, 7001, "", false),
        (&own, 7002, "", false),
        ("::", 7002, "", true),
        ("::", 7002, ", dualstack_ipv6=True", true),
        ("::", 7003, ", dualstack_ipv6=True", false),
    ] {
        program.run("s = l = None");
        program.run(&format!("l = create_server(('{at}', {port}), family=AF_INET6{both})"));
        program.run("select.select([l], [], [], 0)");
        let before = net.kernel_tcp(Side::A).accepted;
        peer.run(&format!(
            "c = create_connection(('{}', {port}), 15); c.sendall(b'x')",
            of(Side::A)
        ));
        program.run("s, _ = l.accept()");
        assert_eq!(program.run("s.recv(1)"), "b'x'");
        let accepted = net.kernel_tcp(Side::A).accepted > before;
        assert_eq!(accepted, is_kernels, "{at} port {port}{both}");
    }
}
