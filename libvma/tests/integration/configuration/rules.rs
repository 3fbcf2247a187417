//! libvma.conf: who serves what.

use std::net::{SocketAddrV4, UdpSocket};

use super::{counter, puppet};
use crate::harness::{Namespaces, Puppet, Side, wait_for};

/// A program that obeys these rules and tells at level debug what they decide.
fn ruled(net: &Namespaces, rules: &str) -> Puppet {
    let file = net.file("some.conf");
    std::fs::write(&file, rules).expect("a file");
    puppet(net, &[("VMA_CONFIG_FILE", file.to_str().unwrap()), ("VMA_TRACELEVEL", "debug")])
}

/// How many of ten datagrams to the program's port its kernel delivered.
#[track_caller]
fn received_by_kernel(net: &Namespaces, program: &mut Puppet, peer: &UdpSocket, port: u16) -> u64 {
    let before = net.kernel_datagrams(Side::A).0;
    for _ in 0..10 {
        peer.send_to(b"x", Side::A.at(port)).unwrap();
        program.run("s.recv(10)");
    }
    net.kernel_datagrams(Side::A).0 - before
}

/// How many of ten datagrams from the program its kernel sent.
#[track_caller]
fn sent_by_kernel(net: &Namespaces, program: &mut Puppet, to: SocketAddrV4) -> u64 {
    // The first ones may wait for the neighbour.
    let send = format!("s.sendto(b'x', ('{}', {}))", to.ip(), to.port());
    program.run(&send);
    let before = net.kernel_datagrams(Side::A).1;
    (0..10).for_each(|_| drop(program.run(&send)));
    net.kernel_datagrams(Side::A).1 - before
}

// covers: CONF-10, CONF-14, CONF-17, CONF-23
#[test]
fn a_receiver_is_the_kernels_by_address_and_port() {
    let net = Namespaces::new();
    let mut program = ruled(&net, "use os udp_receiver 10.99.0.1:5000-5001\n");
    let peer = net.socket(Side::B);
    program.run("s = udp(('0.0.0.0', 5000))");
    assert_eq!(received_by_kernel(&net, &mut program, &peer, 5000), 10);
    // It sends by us all the same.
    assert_eq!(sent_by_kernel(&net, &mut program, Side::B.at(9)), 0, "{}", program.stderr());
    assert!(program.stderr().contains("some.conf:1)"), "{}", program.stderr());
    program.run("s = udp(('10.99.0.1', 5002))");
    assert_eq!(received_by_kernel(&net, &mut program, &peer, 5002), 0);
}

// covers: CONF-13, CONF-16, CONF-20
#[test]
fn a_sender_is_the_kernels_by_destination() {
    let net = Namespaces::new();
    let rules = "use vma udp_sender *:7002\nuse os udp_sender 10.99.0.0/24:7001-7003\n";
    let mut program = ruled(&net, rules);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(sent_by_kernel(&net, &mut program, Side::B.at(7001)), 10);
    assert_eq!(sent_by_kernel(&net, &mut program, Side::B.at(7002)), 0);
    assert_eq!(sent_by_kernel(&net, &mut program, Side::B.at(7004)), 0);
    // And receives by us.
    let peer = net.socket(Side::B);
    assert_eq!(received_by_kernel(&net, &mut program, &peer, 5000), 0);
}

// covers: CONF-01, CONF-15
#[test]
fn without_a_file_the_resolver_is_the_kernels() {
    let net = Namespaces::new();
    let mut program = puppet(&net, &[("VMA_TRACELEVEL", "debug")]);
    let _servers = [53, 54].map(|port| net.socket_at(Side::B, Side::B.at(port)));
    let connected =
        |port: u16| format!("s = udp(); s.connect(('10.99.0.2', {port})); s.send(b'x')");
    program.run(&connected(53));
    let before = net.kernel_datagrams(Side::A).1;
    program.run("for _ in range(10): s.send(b'x')");
    assert_eq!(net.kernel_datagrams(Side::A).1 - before, 10);
    assert!(program.stderr().contains("of a rule (built-in rules:2)"), "{}", program.stderr());
    program.run(&connected(54));
    let before = net.kernel_datagrams(Side::A).1;
    program.run("for _ in range(10): s.send(b'x')");
    assert_eq!(net.kernel_datagrams(Side::A).1 - before, 0);
}

// covers: CONF-11, CONF-12
#[test]
fn tcp_is_the_kernels_by_role() {
    let net = Namespaces::new();
    let rules = "use os tcp_server *:8000\nuse os tcp_client *:8001:10.99.0.1:*\n";
    let mut program = ruled(&net, rules);
    let listener = net.within(Side::B, || std::net::TcpListener::bind(Side::B.at(8001)).unwrap());
    let other = net.within(Side::B, || std::net::TcpListener::bind(Side::B.at(8002)).unwrap());
    let connect = |program: &mut Puppet, port: u16| {
        let before = counter(&net, Side::A, "Tcp", "ActiveOpens");
        program.run(&format!("c = socket(); c.connect(('10.99.0.2', {port})); c.send(b'x')"));
        counter(&net, Side::A, "Tcp", "ActiveOpens") - before
    };
    assert_eq!(connect(&mut program, 8001), 1);
    assert_eq!(connect(&mut program, 8002), 0);
    drop((listener, other));
    let mut accept = |port: u16| {
        program.run(&format!("l = socket(); l.bind(('10.99.0.1', {port})); l.listen()"));
        let before = counter(&net, Side::A, "Tcp", "PassiveOpens");
        program.begin("c, _ = l.accept()");
        let client = net.within(Side::B, || std::net::TcpStream::connect(Side::A.at(port)));
        program.end("c, _ = l.accept()");
        drop(client.unwrap());
        counter(&net, Side::A, "Tcp", "PassiveOpens") - before
    };
    assert_eq!(accept(8000), 1);
    assert_eq!(accept(8003), 0);
}

// covers: CONF-04, CONF-06, CONF-07, CONF-21
#[test]
fn a_section_is_for_its_programs_and_ids() {
    let net = Namespaces::new();
    let file = net.file("some.conf");
    let rules = "application-id nginx *\nuse os udp_sender *:*\nuse os udp_receiver *:*\n\
                 application-id pyth* mine\nuse os udp_sender *:*\nuse os udp_receiver *:*\n";
    std::fs::write(&file, rules).unwrap();
    let file = file.to_str().unwrap();
    for (id, threads) in [("mine", 1), ("another", 2)] {
        let mut program = puppet(&net, &[("VMA_CONFIG_FILE", file), ("VMA_APPLICATION_ID", id)]);
        program.run("s = udp(('10.99.0.1', 5000))");
        // A socket that is never ours needs no internal thread.
        let seen = wait_for("the threads", || Some(program.number("threads()")));
        assert_eq!(seen, threads, "{id}");
        let told = program.stderr().contains("VMA_APPLICATION_ID another does not exist");
        assert_eq!(told, id == "another", "{}", program.stderr());
        program.finish();
    }
}

// covers: CONF-05
#[test]
fn what_is_wrong_in_a_file_is_told_with_its_place_and_the_rest_holds() {
    let net = Namespaces::new();
    let mut program = ruled(&net, "use os udp_sendr *:*\nuse os udp_sender *:7001\n");
    program.run("s = udp(('10.99.0.1', 5000))");
    let told = "some.conf:1:8: expected tcp_server, tcp_client, udp_receiver, udp_sender or";
    assert!(program.stderr().contains(told), "{}", program.stderr());
    assert_eq!(sent_by_kernel(&net, &mut program, Side::B.at(7001)), 10);
}
