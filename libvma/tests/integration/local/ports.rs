//! The ports that connections within the host leave from.

use std::process::Command;

use super::{Local, Under};
use crate::harness::{PYTHON, Puppet};

/// Bytes of a connection.
const PART: u64 = 1 << 20;

/// As under the kernel, a port serves one connection to each destination, and one that ends does not hold up
/// the next: nothing is reserved ahead of connect(). Four ports are enough for eight connections.
// covers: API-05
#[test]
fn a_port_serves_a_connection_to_each_destination() {
    let local = Local::new(Under::Both);
    let range = "echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range";
    let target = local.sandbox.id().to_string();
    let set = Command::new("nsenter").args(["-t", &target, "-n", "sh", "-c", range]).status();
    assert!(set.expect("nsenter").success(), "{range}");
    let mut server = Puppet::start(local.server(PYTHON));
    server.run("ls = [create_server(('127.0.0.1', 7000 + n)) for n in (0, 1)]");
    let mut client = Puppet::start(local.client(PYTHON));
    client.run("cs = [create_connection(('127.0.0.1', 7000 + n % 2), 10) for n in range(8)]");
    server.run("accepted = [ls[n % 2].accept()[0] for n in range(8)]");
    for n in 0..8 {
        // The connections are agreed upon.
        client.run(&format!("c = cs[{n}]; c.sendall(b'1')"));
        server.run(&format!("a = accepted[{n}]; a.settimeout(10); a.recv(1)"));
        server.run("a.sendall(b'2')");
        client.run("c.recv(1)");
    }
    let watch = local.sandbox.watch();
    for n in 0..8 {
        let send = format!("cs[{n}].sendall(bytes({PART}))");
        client.begin(&send);
        server.run(&format!("a = accepted[{n}]; n = {PART}"));
        server.run("while n: n -= len(a.recv(n)) or 1 / 0");
        client.end(&send);
    }
    local.check_tcp(&watch, 0, 8 * PART);
    assert!(local.moved(&watch).lo_bytes < PART, "bytes by the kernel");
}

/// After a row of short connections, which are left to the kernel, one that lives has its pipe.
// covers: API-05
#[test]
fn a_row_of_short_connections_is_not_held_against_later_ones() {
    let local = Local::new(Under::Both);
    let mut server = Puppet::start(local.server(PYTHON));
    server.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(10)");
    let mut client = Puppet::start(local.client(PYTHON));
    let serve = "for _ in range(300): a, _ = l.accept(); a.sendall(a.recv(9)); a.close()";
    server.begin(serve);
    let ask = "
for n in range(300):
    c = create_connection(('127.0.0.1', 7000), 10)
    c.sendall(b'%d' % n)
    assert c.recv(9) == b'%d' % n
    assert c.recv(9) == b''
    c.close()";
    client.run(ask);
    server.end(serve);
    client.run("import time; time.sleep(0.5)");
    client.run("c = create_connection(('127.0.0.1', 7000), 10); c.sendall(b'1')");
    server.run("a, _ = l.accept(); a.recv(1); a.sendall(b'2')");
    client.run("c.recv(1)");
    let watch = local.sandbox.watch();
    let send = format!("c.sendall(bytes({PART}))");
    client.begin(&send);
    server.run(&format!("n = {PART}"));
    server.run("while n: n -= len(a.recv(n)) or 1 / 0");
    client.end(&send);
    assert!(local.moved(&watch).lo_bytes < PART / 2, "bytes by the kernel");
}
