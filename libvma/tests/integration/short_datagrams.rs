//! UDP sockets that live for one question, as resolvers open them.

use crate::harness::{Namespaces, Side};

const ASK: &str = "
def ask(way, server='10.99.0.2'):
    s = socket(AF_INET, SOCK_DGRAM)
    s.settimeout(5)
    if way == 'bind': s.bind(('', 0))
    if way == 'connect': s.connect((server, 6000))
    if way == 'connect': s.send(b'question')
    else: s.sendto(b'question', (server, 6000))
    assert s.recv(100) == b'question'
    s.close()
";

/// Hundreds of sockets, each for one question, by this way of naming the server. Then others, which are served.
#[track_caller]
fn asked_often(way: &str) {
    let net = Namespaces::new();
    let mut servers = [6000, 6001].map(|port| {
        let mut server = net.puppet(Side::B);
        server.run(&format!("s = udp(('10.99.0.2', {port}))"));
        server.begin("for i in range(2000): s.sendto(*s.recvfrom(100))");
        server
    });
    let mut client = net.puppet(Side::A);
    client.run(ASK);
    client.run(&format!("ask('{way}')"));
    let watch = net.watch(Side::A);
    client.run(&format!("for i in range(900): ask('{way}')"));
    let (received, sent) = watch.moved();
    assert!(received > 300 && sent > 300, "{way}: {received} received, {sent} sent by the kernel");
    // A socket for another server is served, and so is one with a name.
    let watch = net.watch(Side::A);
    client.run("s = udp(peer=('10.99.0.2', 6001)); t = udp(('10.99.0.1', 5000))");
    client.run("t.connect(('10.99.0.2', 6000))");
    client.run("for i in range(20): s.send(b'question'); assert s.recv(100) == b'question'");
    client.run("for i in range(20): t.send(b'question'); assert t.recv(100) == b'question'");
    watch.still();
    servers.iter_mut().for_each(|server| server.kill());
}

#[test]
fn connected_sockets_for_one_question_are_the_kernels() {
    asked_often("connect");
}

#[test]
fn sockets_that_send_one_question_are_the_kernels() {
    asked_often("sendto");
}

#[test]
fn sockets_bound_to_any_port_for_one_question_are_the_kernels() {
    asked_often("bind");
}

/// The server does not look for each of its clients, but it finds one that stays.
#[test]
fn a_server_of_short_lived_sockets_serves_one_that_stays() {
    let net = Namespaces::new();
    let mut server = net.puppet(Side::A);
    server.run("s = udp(('127.0.0.1', 6000))");
    server.begin("for i in range(2000): s.sendto(*s.recvfrom(100))");
    let mut client = net.puppet(Side::A);
    client.run(ASK);
    client.run("for i in range(300): ask('connect', '127.0.0.1')");
    client.run("s = udp(('127.0.0.1', 5000), peer=('127.0.0.1', 6000)); s.settimeout(5)");
    let exchange = "for i in range(20): s.send(b'question'); assert s.recv(100) == b'question'";
    client.run(exchange);
    let watch = net.watch(Side::A);
    client.run(exchange);
    watch.still();
    server.kill();
}
