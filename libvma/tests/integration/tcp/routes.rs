//! Many connections to one peer, while routes change.

use std::net::TcpListener;

use crate::harness::{Namespaces, Side};

// covers: LIM-25
#[test]
fn each_connection_goes_by_the_routes_of_its_moment() {
    let net = Namespaces::new();
    net.ip(Side::B, "address add 10.50.0.1/32 dev veth-b");
    let listener = net.within(Side::B, || TcpListener::bind("0.0.0.0:7000").unwrap());
    let mut program = net.puppet(Side::A);
    program.run("import socket; kept = []");
    program.run(
        "\
def connect():
    kept.append(socket.create_connection(('10.50.0.1', 7000), timeout=5))
    return kept[-1].getsockname()[0]",
    );
    net.ip(Side::A, "route add 10.50.0.0/24 via 10.99.0.2");
    let watch = net.watch_tcp(Side::A);
    for _ in 0..20 {
        for _ in 0..3 {
            assert_eq!(program.run("connect()"), "'10.99.0.1'");
            listener.accept().unwrap();
        }
        net.ip(Side::A, "route replace unreachable 10.50.0.0/24");
        let error = program.raises("connect()");
        assert!(error.contains("No route to host"), "{error}");
        // A rule for the port of the peer alone.
        net.ip(Side::A, "route replace 10.50.0.0/24 via 10.99.0.2");
        net.ip(Side::A, "rule add to 10.50.0.1 ipproto tcp dport 7000 prohibit");
        assert!(program.raises("connect()").contains("Permission denied"));
        net.ip(Side::A, "rule del to 10.50.0.1 ipproto tcp dport 7000 prohibit");
    }
    watch.still(60);
    program.finish();
}
