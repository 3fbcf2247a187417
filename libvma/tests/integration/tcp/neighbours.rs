//! Connections whose neighbour the kernel has yet to find.

use std::net::TcpListener;

use crate::dual_stack::of;
use crate::harness::{Namespaces, PYTHON, Side};

const ADDRESSES: u64 = 16;
const THREADS: u64 = 8;

/// Threads that connect at once, to one unresolved address after the other.
const CONNECTING: &str = r#"
import socket, sys, threading
prefix = sys.argv[1]
addresses, threads, port = map(int, sys.argv[2:])
failed, kept = [], []
def connect(to, gate):
    gate.wait()
    try:
        kept.append(socket.create_connection((to, port), timeout=3))
    except OSError as error:
        failed.append(f"{to}: {error!r}")
for n in range(addresses):
    gate = threading.Barrier(threads)
    all = [threading.Thread(target=connect, args=(f"{prefix}{100 + n}", gate)) for _ in range(threads)]
    for thread in all: thread.start()
    for thread in all: thread.join()
    if failed: break
print("failed", failed, "connected", len(kept))
"#;

// covers: LIM-25
#[test]
fn threads_that_connect_at_once_all_learn_the_neighbours_address() {
    all_learn("10.99.0.", "24", "0.0.0.0:0");
}

// covers: LIM-25
#[test]
fn threads_that_connect_at_once_all_learn_the_neighbours_address_of_ipv6() {
    all_learn("fd00:99::", "64 nodad", "[::]:0");
}

#[track_caller]
fn all_learn(prefix: &str, bits: &str, any: &str) {
    let net = Namespaces::with_arp();
    // Of IPv6 the kernel asks from its link-local address.
    net.add_ipv6(Side::A, "fe80::a");
    net.add_ipv6(Side::B, "fe80::b");
    net.add_ipv6(Side::A, "fd00:99::1");
    for n in 0..ADDRESSES {
        net.ip(Side::B, &format!("address add {prefix}{}/{bits} dev veth-b", 100 + n));
    }
    let listener = net.within(Side::B, || TcpListener::bind(any).unwrap());
    let port = listener.local_addr().unwrap().port();
    let watch = net.watch_tcp(Side::A);
    let words = format!("{prefix} {ADDRESSES} {THREADS} {port}");
    let program = net.program(Side::A, PYTHON).with_library();
    let output = program.arg("-c").arg(CONNECTING).args(&words).run().ok();
    let all = ADDRESSES * THREADS;
    assert!(output.stdout.contains(&format!("failed [] connected {all}\n")), "{}", output.stdout);
    watch.still(all);
}

/// Linux asks from the source of the packet for which it asks, if the interface has no link-local address: the library has no packet there.
// covers: LIM-25
#[test]
fn a_neighbour_of_ipv6_is_found_without_link_local_addresses() {
    let net = Namespaces::with_arp();
    for side in [Side::A, Side::B] {
        net.add_ipv6(side, of(side));
    }
    let listener = net.within(Side::B, || TcpListener::bind("[::]:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let mut program = net.puppet(Side::A);
    let to = of(Side::B);
    // It was 3 s, and no route to the host.
    program.run(&format!("c = socket(AF_INET6); c.settimeout(0.9); c.connect(('{to}', {port}))"));
    let watch = net.watch_tcp(Side::A);
    program.run(&format!("d = socket(AF_INET6); d.settimeout(0.9); d.connect(('{to}', {port}))"));
    watch.still(0);
}
