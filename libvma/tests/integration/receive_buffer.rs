//! How many datagrams a UDP socket holds whose program reads nothing: no fewer than a kernel socket with the same SO_RCVBUF, and not
//! all of them.

use crate::dual_stack::with_ipv6;
use crate::harness::{Namespaces, PYTHON, Puppet, Side, kernel_version, wait_for};

/// Both sides of each size at which the kernel takes a larger buffer: for IPv4 these are 197 and 645 bytes.
const SIZES: [usize; 9] = [1, 150, 151, 181, 197, 198, 645, 646, 1452];
const BURST: i64 = 400;

const FUNCTIONS: &str = "
import time
def receiver(address, port):
    s = socket(AF_INET6 if ':' in address else AF_INET, SOCK_DGRAM)
    s.bind((address, port))
    return s
def burst(address, port, size, count=400):
    s = socket(AF_INET6 if ':' in address else AF_INET, SOCK_DGRAM)
    for i in range(count): s.sendto(bytes(size), (address, port))
def held(s):
    time.sleep(0.1)
    count = 0
    try:
        while True: s.recv(2000, MSG_DONTWAIT); count += 1
    except BlockingIOError: return count
";

fn with_functions(mut puppet: Puppet) -> Puppet {
    puppet.run(FUNCTIONS);
    puppet
}

fn on_the_kernel(net: &Namespaces, side: Side) -> Puppet {
    with_functions(Puppet::start(net.program(side, PYTHON)))
}

/// The number of datagrams of a burst that a receiver holds.
fn held(sender: &mut Puppet, receiver: &mut Puppet, address: &str, port: u16, size: usize) -> i64 {
    sender.run(&format!("burst('{address}', {port}, {size})"));
    receiver.number("held(s)")
}

/// Before Linux 6.3 the kernel had smaller buffers for the smallest datagrams.
#[track_caller]
fn is_enough(found: i64, expected: i64, address: &str, size: usize) {
    let least = if kernel_version() >= (6, 3) { expected } else { expected.min(256) };
    assert!((least..BURST).contains(&found), "{address}, {size}: {found}, {expected}");
}

fn begin(receiver: &mut Puppet, address: &str, port: u16) {
    receiver.run(&format!("s = receiver('{address}', {port})"));
}

// covers: API-15
#[test]
fn a_burst_from_the_wire_is_held_as_by_a_kernel_socket() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut sender = on_the_kernel(&net, Side::A);
    let mut kernels = on_the_kernel(&net, Side::B);
    let mut served = with_functions(net.puppet(Side::B));
    for address in ["10.99.0.2", "fd00:99::2"] {
        begin(&mut kernels, address, 5000);
        begin(&mut served, address, 5001);
        for size in SIZES {
            let expected = held(&mut sender, &mut kernels, address, 5000, size);
            let (ipv4, ipv6) = (net.watch(Side::B), net.watch_ipv6(Side::B));
            let found = held(&mut sender, &mut served, address, 5001, size);
            ipv4.still();
            ipv6.still();
            is_enough(found, expected, address, size);
        }
    }
}

// covers: API-15
#[test]
fn a_burst_within_the_host_is_held_as_by_a_kernel_socket() {
    let net = Namespaces::new();
    let (mut kernels, mut sender) = (on_the_kernel(&net, Side::B), on_the_kernel(&net, Side::B));
    let [mut served, mut client] = [(); 2].map(|()| with_functions(net.puppet(Side::B)));
    client.run("c = udp()");
    for (port, address) in [(5000, "127.0.0.1"), (5002, "10.99.0.2")] {
        begin(&mut kernels, address, port);
        begin(&mut served, address, port + 1);
        // One socket sends all the time, so that it finds the other process.
        let send = format!("c.sendto(b'x', ('{address}', {}))", port + 1);
        wait_for("the two find each other", || {
            let watch = net.watch(Side::B);
            client.run(&send);
            served.number("held(s)");
            (watch.moved() == (0, 0)).then_some(())
        });
        for size in SIZES {
            let expected = held(&mut sender, &mut kernels, address, port, size);
            let watch = net.watch(Side::B);
            let burst = format!("c.sendto(bytes({size}), ('{address}', {}))", port + 1);
            client.run(&format!("for i in range({BURST}): {burst}"));
            let found = served.number("held(s)");
            watch.still();
            is_enough(found, expected, address, size);
        }
    }
}
