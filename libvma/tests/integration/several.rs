//! Several programs on one interface: the library serves each of them, and none disturbs the others.

use crate::harness::{Namespaces, PYTHON, Puppet, Side};

/// A program answers so many datagrams, and then one stream of so many bytes, at a port of its own.
const SERVE: &str = "
def serve(port, size):
    u, l = udp(('10.99.0.1', port)), socket(AF_INET, SOCK_STREAM)
    l.bind(('10.99.0.1', port)); l.listen()
    globals().update(u=u, l=l, size=size)
def reply(times):
    for _ in range(times): echo(u)
    c, _ = l.accept()
    c.settimeout(20)
    left = size
    while left:
        data = c.recv(65536)
        if not data: raise EOFError(left)
        c.sendall(data)
        left -= len(data)
    c.close()
";

/// The peer: its datagrams come back, and the bytes of its stream in their order.
const ASK: &str = "
import threading
def ask(port, size, times):
    u = udp(peer=('10.99.0.1', port))
    for at in range(times):
        for length in (1, 1472, 5000):
            u.send(pattern(length, at))
            assert u.recv(65535) == pattern(length, at)
    c = create_connection(('10.99.0.1', port)); c.settimeout(20)
    sent = b''.join(pattern(65536, at) for at in range(size // 65536))
    t = threading.Thread(target=c.sendall, args=(sent,)); t.start()
    got = bytearray()
    while len(got) < size:
        data = c.recv(65536)
        if not data: raise EOFError(len(got))
        got += data
    t.join()
    assert got == sent
";

const SIZE: usize = 4 << 20;
const TIMES: usize = 50;

#[test]
fn each_of_three_programs_on_one_interface_is_served() {
    let net = Namespaces::new();
    let mut servers = Vec::new();
    for port in [5000, 5001, 5002] {
        let mut server = net.puppet(Side::A);
        server.run(SERVE);
        server.run(&format!("serve({port}, {SIZE})"));
        servers.push((port, server));
    }
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    peer.run(ASK);
    let (watch, before) = (net.watch(Side::A), net.kernel_tcp(Side::A));
    for (port, server) in &mut servers {
        server.begin(&format!("reply({})", 3 * TIMES));
        peer.run(&format!("ask({port}, {SIZE}, {TIMES})"));
        server.end("reply");
    }
    let after = net.kernel_tcp(Side::A);
    assert_eq!(after.segments_in - before.segments_in, 0, "{before:?} {after:?}");
    for (_, server) in &mut servers {
        let traffic = server.finish();
        watch.check(&traffic, 3 * TIMES as u64, 3 * TIMES as u64);
    }
}

#[test]
fn a_program_that_is_killed_takes_nothing_from_the_others() {
    let net = Namespaces::new();
    let mut first = net.puppet(Side::A);
    first.run("u = udp(('10.99.0.1', 4000))");
    let mut second = net.puppet(Side::A);
    second.run(SERVE);
    second.run(&format!("serve(5000, {SIZE})"));
    let mut third = net.puppet(Side::A);
    third.run("u = udp(('10.99.0.1', 6000))");
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    peer.run(ASK);
    let (watch, before) = (net.watch(Side::A), net.kernel_tcp(Side::A));
    second.begin(&format!("reply({})", 3 * TIMES));
    peer.begin(&format!("ask(5000, {SIZE}, {TIMES})"));
    first.kill();
    third.kill();
    peer.end("ask");
    second.end("reply");
    let after = net.kernel_tcp(Side::A);
    assert_eq!(after.segments_in - before.segments_in, 0, "{before:?} {after:?}");
    let traffic = second.finish();
    watch.check(&traffic, 3 * TIMES as u64, 3 * TIMES as u64);
}

#[test]
fn a_frame_that_the_link_does_not_take_holds_nothing_up() {
    let net = Namespaces::new();
    net.ip(Side::A, &format!("link set {} mtu 9000", Side::A.device()));
    let mut first = net.puppet(Side::A);
    first.run("u = udp(('10.99.0.1', 4000))");
    let mut second = net.puppet(Side::A);
    second.run("u = udp(('10.99.0.1', 5000))");
    let peer = net.socket(Side::B);
    let port = peer.local_addr().unwrap().port();
    let watch = net.watch(Side::A);
    for at in 0..300 {
        // Too long for the other end, whose MTU is smaller.
        second.run(&format!("u.sendto(pattern(3000), ('10.99.0.2', {port}))"));
        second.run(&format!("u.sendto(b'{at}', ('10.99.0.2', {port}))"));
        let mut got = [0; 100];
        let len = peer.recv(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got[..len]), at.to_string());
    }
    watch.check(&second.finish(), 0, 600);
}
