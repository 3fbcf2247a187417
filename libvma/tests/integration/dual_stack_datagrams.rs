//! UDP sockets of AF_INET6 that take IPv4, too: the library serves the datagrams of both families, those of IPv4 under the names
//! that an IPv6 socket has for them.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, Namespaces, PATIENCE, PYTHON, Puppet, Side, wait_for};

const DUAL: &str = "
def dual(at=None, peer=None, share=False):
    s = socket(AF_INET6, SOCK_DGRAM)
    s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
    if share: s.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
    s.settimeout(15)
    if at: s.bind(at)
    if peer: s.connect(peer)
    return s
";

fn dual_puppet(net: &Namespaces, side: Side) -> Puppet {
    let mut program = net.puppet(side);
    program.run(DUAL);
    program
}

/// A kernel socket of IPv6 of the test itself.
fn ipv6_socket(net: &Namespaces, side: Side, at: Ipv6Addr) -> UdpSocket {
    let at = SocketAddrV6::new(at, 0, 0, 0);
    let socket = net.within(side, || UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends to the server, whose statement `take` receives into `d` and `peer`; the answer comes back.
#[track_caller]
fn round(program: &mut Puppet, take: &str, from: &UdpSocket, to: SocketAddr, text: &str) {
    from.send_to(text.as_bytes(), to).unwrap();
    program.run(take);
    assert_eq!(program.run("d"), format!("b'{text}'"));
    program.run("s.sendto(d[::-1], peer)");
    let mut got = [0; 100];
    let (len, source) = from.recv_from(&mut got).unwrap();
    let reversed: Vec<u8> = text.bytes().rev().collect();
    assert_eq!((&got[..len], source), (&reversed[..], to));
}

// covers: LIM-23
#[test]
fn a_server_has_both_families() {
    let waits = [
        ("blocking", "s.settimeout(None)", "d, peer = s.recvfrom(100)"),
        ("a timeout", "s.settimeout(15)", "d, peer = s.recvfrom(100)"),
        (
            "epoll",
            "e = select.epoll(); e.register(s, select.EPOLLIN); s.setblocking(False)",
            "assert e.poll(15) == [(s.fileno(), 1)]; d, peer = s.recvfrom(100)",
        ),
        (
            "select",
            "s.setblocking(False)",
            "assert select.select([s], [], [], 15)[0]; d, peer = s.recvfrom(100)",
        ),
        (
            "trying",
            "s.setblocking(False)",
            "d = None\nwhile d is None:\n try: d, peer = s.recvfrom(100)\n except BlockingIOError: pass",
        ),
        ("recvmsg", "s.settimeout(15)", "d, _, _, peer = s.recvmsg(100)"),
    ];
    for (way, prepare, take) in waits {
        let net = Namespaces::new();
        with_ipv6(&net);
        let mut program = dual_puppet(&net, Side::A);
        program.run("s = dual(('::', 5000))");
        program.run(prepare);
        let four = net.socket(Side::B);
        let six = ipv6_socket(&net, Side::B, of(Side::B));
        let own = ipv6_socket(&net, Side::A, Ipv6Addr::LOCALHOST);
        let to_six = |side_of: Ipv6Addr| SocketAddr::from((side_of, 5000));
        let (watch, watch6) = (net.watch(Side::A), net.watch_ipv6(Side::A));
        for n in 0..5 {
            round(&mut program, take, &four, Side::A.at(5000).into(), &format!("four {n}"));
            let port = four.local_addr().unwrap().port();
            assert_eq!(program.run("peer"), format!("('::ffff:10.99.0.2', {port}, 0, 0)"));
            round(&mut program, take, &six, to_six(of(Side::A)), &format!("six {n}"));
            let own_name = six.local_addr().unwrap();
            let (ip, port) = (own_name.ip(), own_name.port());
            assert_eq!(program.run("peer"), format!("('{ip}', {port}, 0, 0)"), "{way}");
            round(&mut program, take, &own, to_six(Ipv6Addr::LOCALHOST), &format!("own {n}"));
        }
        watch.still();
        // A kernel socket asks and is answered five times.
        assert_eq!(watch6.moved(), (10, 10), "{way}");
        assert_eq!(program.run("s.getsockname()"), "('::', 5000, 0, 0)");
        let traffic = program.finish();
        assert!(traffic.rx >= 10 && traffic.tx >= 10, "{way}: {traffic:?}");
    }
}

/// A sleeper, too, is woken by either.
#[test]
fn a_sleeping_call_wakes_for_both_families() {
    for sleep in ["s.recvfrom(100)[0]", "select.select([s], [], [], 15)[0] and s.recv(100)"] {
        let net = Namespaces::new();
        with_ipv6(&net);
        let mut program = dual_puppet(&net, Side::A);
        program.run("s = dual(('::', 5000)); s.settimeout(None)");
        let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
        for (socket, to) in [
            (&four, SocketAddr::from(Side::A.at(5000))),
            (&six, SocketAddr::from((of(Side::A), 5000))),
            (&four, SocketAddr::from(Side::A.at(5000))),
        ] {
            program.begin(sleep);
            program.wait_until_asleep();
            socket.send_to(b"wake", to).unwrap();
            assert_eq!(program.end(sleep), "b'wake'");
        }
    }
}

/// Datagrams of both families at once, as fast as they come: each is there once, and those of a family in order.
#[test]
fn nothing_is_lost_between_the_families() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut program = dual_puppet(&net, Side::A);
    program.run("s = dual(('::', 5000)); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 4 << 20)");
    let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
    const COUNT: u32 = 2000;
    program.begin(&format!(
        "got = {{4: [], 6: []}}
for _ in range({}):
    d, peer = s.recvfrom(100)
    got[4 if peer[0].startswith('::ffff:') else 6].append(int(d))",
        2 * COUNT
    ));
    let send = |socket: &UdpSocket, to: SocketAddr| {
        for n in 0..COUNT {
            socket.send_to(n.to_string().as_bytes(), to).unwrap();
            if n % 20 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&four, Side::A.at(5000).into()));
        scope.spawn(|| send(&six, SocketAddr::from((of(Side::A), 5000))));
    });
    program.end("got");
    let sorted = format!("got[4] == list(range({COUNT})), got[6] == list(range({COUNT}))");
    assert_eq!(program.run(&sorted), "(True, True)");
}

// covers: LIM-23
#[test]
fn a_client_names_its_peer_by_a_mapped_address() {
    for library in [Library::Client, Library::Both] {
        let ends = Ends::new(library);
        let mut server = Puppet::start(ends.server(PYTHON));
        let mut client = Puppet::start(ends.client(PYTHON));
        server.run(DUAL);
        client.run(DUAL);
        server.run("s = dual(('::', 5000))");
        // The first datagram may find the interface not yet attached.
        client.run("c = dual(('::', 0)); c.sendto(b'first', ('::ffff:10.99.0.1', 5000))");
        server.run("echo(s)");
        client.run("c.recv(100)");
        let sides: Vec<_> = [(Side::A, library.at_server()), (Side::B, library.at_client())]
            .into_iter()
            .filter(|(_, under)| *under)
            .map(|(side, _)| ends.net.watch(side))
            .collect();
        for connect in ["", "c.connect(('::ffff:10.99.0.1', 5000))"] {
            client.run(connect);
            let send = match connect {
                "" => "c.sendto(data, ('::ffff:10.99.0.1', 5000))",
                _ => "c.send(data)",
            };
            for size in [0, 1, 1000, 9000] {
                client.run(&format!("data = pattern({size}, 3); {send}"));
                server.run("echo(s)");
                let got = client.run("got, peer = c.recvfrom(65535)\nassert got == data");
                assert_eq!(got, "None");
                assert_eq!(client.run("peer"), "('::ffff:10.99.0.1', 5000, 0, 0)");
            }
        }
        assert_eq!(client.run("c.getpeername()"), "('::ffff:10.99.0.1', 5000, 0, 0)");
        assert_eq!(client.run("c.getsockname()[0]"), "'::ffff:10.99.0.2'");
        for watch in sides {
            watch.still();
        }
    }
}

/// A train, control messages in both directions and a group: as they are with IPv4 sockets.
#[test]
fn quic_like_calls_are_served() {
    let net = Namespaces::new();
    let mut program = dual_puppet(&net, Side::A);
    program.run("s = dual(('::', 5000)); s.setsockopt(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)");
    program.run("s.setsockopt(IPPROTO_IP, IP_RECVTOS, 1)");
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    peer.send_to(b"question", Side::A.at(5000)).unwrap();
    program.run("d, control, _, peer = s.recvmsg(100, 256)");
    program.run("info = {(level, kind): data for level, kind, data in control}");
    let mapped = "inet_pton(AF_INET6, '::ffff:10.99.0.1')";
    let index = "struct.pack('=I', if_nametoindex('veth-a'))";
    let told = format!("info[IPPROTO_IPV6, IPV6_PKTINFO] == {mapped} + {index}");
    assert_eq!(program.run(&told), "True");
    program.run("assert (IPPROTO_IP, IP_TOS) in info");
    const UDP_SEGMENT: u32 = 103;
    program.run(&format!(
        "s.sendmsg([b'a' * 250], [(IPPROTO_IPV6, IPV6_PKTINFO, {mapped} + bytes(4)), \
         (IPPROTO_UDP, {UDP_SEGMENT}, struct.pack('=H', 100))], 0, peer)"
    ));
    let mut got = [0; 300];
    for expected in [100, 100, 50] {
        let (len, source) = peer.recv_from(&mut got).unwrap();
        assert_eq!((len, source), (expected, Side::A.at(5000).into()));
    }
    watch.still();
}

// covers: LIM-52
#[test]
fn a_link_local_peer_is_the_kernels_and_told_once() {
    let net = Namespaces::new();
    with_ipv6(&net);
    net.add_ipv6(Side::A, "fe80::a");
    net.add_ipv6(Side::B, "fe80::b");
    let mut peer = net.puppet(Side::B);
    peer.run("link = if_nametoindex('veth-b'); p = socket(AF_INET6, SOCK_DGRAM); p.settimeout(15)");
    peer.run("p.bind(('fe80::b', 6000, 0, link))");
    let mut program = dual_puppet(&net, Side::A);
    // Neither a look nor a try.
    program.run("s = dual(('::', 5000)); t = dual(('::1', 0)); t.sendto(b'x', ('::1', 9))");
    program.run(
        "link = if_nametoindex('veth-a'); s.sendto(b'in passing', ('fe80::b', 6000, 0, link))",
    );
    assert_eq!(peer.run("p.recv(100)"), "b'in passing'");
    peer.run("p.sendto(b'near', ('fd00:99::1', 5000))");
    program.run("d, who = s.recvfrom(100)");
    assert_eq!(program.run("d, who[0], who[3] == link"), "(b'near', 'fe80::b', True)");
    // What is connected to such a peer, until it is closed.
    for _ in 0..2 {
        program.run("c = dual(); c.connect(('fe80::b', 6000, 0, link)); c.send(b'hello')");
        peer.run("d, who = p.recvfrom(100); p.sendto(b'answer', who)");
        assert_eq!(program.run("c.recvfrom(100)[0]"), "b'answer'");
    }
    // And a port of which another socket has the IPv4 half.
    program.run("v = socket(AF_INET6, SOCK_DGRAM); v.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)");
    program.run("v.bind(('::', 5001)); w = udp(('0.0.0.0', 5001))");
    let refused = program.raises("v.sendto(b'x', ('::ffff:10.99.0.2', 5000))");
    assert!(refused.contains("Network is unreachable"), "{refused}");
    let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
    let (watch, watch6) = (net.watch(Side::A), net.watch_ipv6(Side::A));
    four.send_to(b"four", Side::A.at(5001)).unwrap();
    assert_eq!(program.run("w.recv(100)"), "b'four'");
    six.send_to(b"six", (of(Side::A), 5001)).unwrap();
    assert_eq!(program.run("v.recv(100)"), "b'six'");
    four.send_to(b"four", Side::A.at(5000)).unwrap();
    assert_eq!(program.run("s.recv(100)"), "b'four'");
    six.send_to(b"six", (of(Side::A), 5000)).unwrap();
    assert_eq!(program.run("s.recv(100)"), "b'six'");
    watch.still();
    watch6.still();
    program.finish();
    let told = program.stderr();
    let told: Vec<_> = told.lines().filter(|line| line.contains("IPv6 socket")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
}

/// How another process gets the socket `s` and answers what waits in it.
pub const WAYS: [(&str, &str); 4] = [
    ("fork", "if os.fork() == 0: echo(s, 3); os._exit(0)\ns.close()"),
    (
        "fork and exec",
        "if os.fork() == 0:\n os.set_inheritable(s.fileno(), True)\n \
         os.execlp('python3', 'python3', 'on.py', str(s.fileno()))\ns.close()",
    ),
    (
        "exec",
        "os.set_inheritable(s.fileno(), True)\nos.write(1, b'=None\\n')\n\
         os.execlp('python3', 'python3', 'on.py', str(s.fileno()))",
    ),
    (
        "a message",
        "one, other = socketpair(AF_UNIX)\nif os.fork() == 0:\n one.close(); _, fds, _, _ = recv_fds(other, 9, 1)\n \
         s = socket(fileno=fds[0]); s.settimeout(15); echo(s, 3); os._exit(0)\nsend_fds(one, [b'x'], [s.fileno()])\ns.close()",
    ),
];

pub const GO_ON: &str = "
import sys
from socket import *
s = socket(fileno=int(sys.argv[1]))
s.settimeout(15)
for _ in range(3):
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
";

#[test]
fn a_socket_goes_on_in_another_process() {
    for (way, how) in WAYS {
        let net = Namespaces::new();
        with_ipv6(&net);
        std::fs::write(net.file("on.py"), GO_ON).unwrap();
        let mut program = dual_puppet(&net, Side::A);
        program.run("s = dual(('::', 5000))");
        let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
        let watch = net.watch(Side::A);
        four.send_to(b"served", Side::A.at(5000)).unwrap();
        program.run("echo(s)");
        let mut got = [0; 100];
        four.recv(&mut got).unwrap();
        watch.still();
        // Two wait, and one comes later.
        four.send_to(b"waits", Side::A.at(5000)).unwrap();
        six.send_to(b"waits, too", (of(Side::A), 5000)).unwrap();
        program.run("time.sleep(0.1)");
        program.run(how);
        for socket in [&four, &six] {
            let len = socket.recv(&mut got).unwrap_or_else(|error| panic!("{way}: {error}"));
            assert!(got[..len].starts_with(b"waits"), "{way}");
        }
        four.send_to(b"later", Side::A.at(5000)).unwrap();
        let len = four.recv(&mut got).unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(&got[..len], b"later", "{way}");
    }
}

/// A flow goes to the same socket of a group always, and each has some; a socket of AF_INET on the port has them all.
#[test]
fn a_port_is_shared_as_by_the_kernel() {
    let net = Namespaces::new();
    let mut program = dual_puppet(&net, Side::A);
    program.run("all = [dual(('::', 5000), share=True) for _ in range(3)]");
    let peers: Vec<_> = (0..40).map(|_| net.socket(Side::B)).collect();
    let watch = net.watch(Side::A);
    let send = || {
        for peer in peers.iter().chain(&peers) {
            peer.send_to(&peer.local_addr().unwrap().port().to_be_bytes(), Side::A.at(5000))
                .unwrap();
        }
    };
    send();
    program.run("time.sleep(0.05); got = [drain(s) for s in all]");
    assert_eq!(program.run("sum(map(len, got)), min(map(len, got)) > 0"), "(80, True)");
    assert_eq!(program.run("[x for x in got for d in x if x.count(d) != 2]"), "[]");
    watch.still();
    program.run(
        "four = socket(AF_INET, SOCK_DGRAM); four.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)\n\
         four.bind(('0.0.0.0', 5000))",
    );
    send();
    program.run("time.sleep(0.05); got = [drain(s) for s in all]");
    assert_eq!(program.run("len(drain(four)), sum(map(len, got))"), "(80, 0)");
    watch.still();
}

/// Another process on the port of the same family: the kernel chooses.
#[test]
fn a_port_is_shared_with_another_process() {
    let net = Namespaces::new();
    let mut program = dual_puppet(&net, Side::A);
    program.run("s = dual(('::', 5000), share=True)");
    let peer = net.socket(Side::B);
    peer.send_to(b"alone", Side::A.at(5000)).unwrap();
    assert_eq!(program.run("s.recv(100)"), "b'alone'");
    let mut other = Puppet::start(net.program(Side::A, PYTHON));
    other.run(DUAL);
    other.run("s = dual(('::', 5000), share=True)");
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..100 {
        let peer = net.socket(Side::B);
        peer.send_to(b"for either", Side::A.at(5000)).unwrap();
    }
    let count = |program: &mut Puppet| -> u32 {
        program.run("time.sleep(0.05)");
        program.run("len(drain(s))").parse().unwrap()
    };
    let (here, there) = (count(&mut program), count(&mut other));
    assert_eq!(here + there, 100);
    assert!(here > 10 && there > 10, "{here} and {there}");
}

/// Shared memory has the IPv4 datagrams within the host, whatever the family of the sockets.
// covers: NET-41
#[test]
fn datagrams_within_the_host_are_served() {
    let net = Namespaces::new();
    let (mut server, mut client) = (dual_puppet(&net, Side::A), dual_puppet(&net, Side::A));
    server.run("s = dual(('::', 5000))");
    for (open, to, name) in [
        ("c = udp()", "('127.0.0.1', 5000)", "('127.0.0.1', 5000)"),
        ("c = dual()", "('::ffff:127.0.0.1', 5000)", "('::ffff:127.0.0.1', 5000, 0, 0)"),
        ("c = dual()", "('::ffff:10.99.0.1', 5000)", "('::ffff:10.99.0.1', 5000, 0, 0)"),
        (
            "c = dual(); c.connect(TO)",
            "('::ffff:127.0.0.1', 5000)",
            "('::ffff:127.0.0.1', 5000, 0, 0)",
        ),
    ] {
        client.run(&format!("TO = {to}"));
        client.run(open);
        let echo = |server: &mut Puppet, client: &mut Puppet, count: u32| {
            server.begin(&format!("echo(s, {count})"));
            client.run(&format!(
                "for n in range({count}):\n c.sendto(b'%d' % n, TO)\n d, peer = c.recvfrom(100)\n assert d == b'%d' % n"
            ));
            server.end("echo");
        };
        // Until they have found each other.
        echo(&mut server, &mut client, 200);
        let watch = net.watch(Side::A);
        echo(&mut server, &mut client, 200);
        watch.still();
        assert_eq!(client.run("peer"), name);
    }
    client.run("c = dual(); c.sendto(b'six', ('::1', 5000))");
    assert_eq!(server.run("s.recvfrom(100)[0]"), "b'six'");
}

/// iperf3's server is on `::` unless told otherwise, and opens its UDP sockets there.
// covers: LIM-23
#[test]
fn iperf3_receives_datagrams_by_both_families() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        with_ipv6(&ends.net);
        for to in ["::ffff:10.99.0.1", "fd00:99::1"] {
            let server = ends.server("iperf3").args("-s -1").start_shown();
            wait_for("iperf3 to listen", || {
                ends.net.read_proc(Side::A, "tcp6").contains(":1451 ").then_some(())
            });
            let watched = if library.at_server() { Side::A } else { Side::B };
            let (four, six) = (ends.net.watch(watched), ends.net.watch_ipv6(watched));
            let words = format!("-u -b 50M -l 1000 -c {to} -J -t 1");
            ends.client("iperf3").args(&words).run().says("\"sum_received\"");
            // The kernel has the greeting, and what leaves before the interface is attached.
            for (rx, tx) in [four.moved(), six.moved()] {
                assert!(rx < 1000 && tx < 1000, "{library:?}: {rx} and {tx} of 6250 by the kernel");
            }
            drop(server);
        }
    }
}

/// Java's sockets are of AF_INET6 unless told otherwise; without Java there is nothing to see.
// covers: LIM-23
#[test]
fn java_by_its_defaults_is_served() {
    if !Path::new("/usr/bin/java").exists() {
        return;
    }
    let ends = Ends::new(Library::Server);
    let script = "
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
class Echo {
    public static void main(String[] words) throws Exception {
        DatagramSocket socket = new DatagramSocket(5000);
        new Thread(() -> {
            try {
                byte[] bytes = new byte[2000];
                while (true) {
                    DatagramPacket packet = new DatagramPacket(bytes, bytes.length);
                    socket.receive(packet);
                    socket.send(packet);
                }
            } catch (Exception error) { error.printStackTrace(); }
        }).start();
        Selector selector = Selector.open();
        DatagramChannel channel = DatagramChannel.open().bind(new InetSocketAddress(5001));
        channel.configureBlocking(false).register(selector, SelectionKey.OP_READ);
        ByteBuffer buffer = ByteBuffer.allocate(2000);
        System.out.println(\"ready\");
        while (selector.select() >= 0) {
            selector.selectedKeys().clear();
            SocketAddress from;
            while ((from = channel.receive(buffer.clear())) != null) channel.send(buffer.flip(), from);
        }
    }
}";
    std::fs::write(ends.net.file("Echo.java"), script).unwrap();
    let mut server = ends.server("java").args("-XX:TieredStopAtLevel=1 Echo.java").start_shown();
    server.wait_for_text("ready");
    let peer = ends.net.socket(Side::B);
    let watch = ends.net.watch(Side::A);
    for n in 0..50u8 {
        for port in [5000, 5001] {
            peer.send_to(&[n; 700], Side::A.at(port)).unwrap();
            let mut got = [0; 2000];
            let (len, from) = peer.recv_from(&mut got).unwrap();
            assert_eq!((&got[..len], from), (&[n; 700][..], Side::A.at(port).into()));
        }
    }
    watch.still();
    drop(server);
}

/// The library shows the script in its banner, which is not to be taken for what it prints.
const ASYNCIO: &str = "
import asyncio
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, peer): self.transport.sendto(data, peer)
async def main():
    import socket
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(('::', 5000))
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, sock=s)
    print('rea' + 'dy', flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
";

#[test]
fn asyncio_on_both_families_is_served() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut server =
        net.program(Side::A, PYTHON).with_library().arg("-c").arg(ASYNCIO).start_shown();
    server.wait_for_text("ready");
    let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
    let watch = net.watch(Side::A);
    for n in 0..50u8 {
        for (socket, to) in [
            (&four, SocketAddr::from(Side::A.at(5000))),
            (&six, SocketAddr::from((of(Side::A), 5000))),
        ] {
            socket.send_to(&[n; 300], to).unwrap();
            let mut got = [0; 2000];
            let (len, from) = socket.recv_from(&mut got).unwrap();
            assert_eq!((&got[..len], from), (&[n; 300][..], to));
        }
    }
    watch.still();
    drop(server);
}

/// As QUIC servers do: a socket for each client beside the listener, on its port.
#[test]
fn an_ipv6_client_of_its_own_socket_leaves_the_listener_served() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut program = dual_puppet(&net, Side::A);
    program.run("s = dual(('::', 5000), share=True)");
    let (four, six) = (net.socket(Side::B), ipv6_socket(&net, Side::B, of(Side::B)));
    let port = six.local_addr().unwrap().port();
    program.run(&format!("c = dual(('::', 5000), ('{}', {port}), share=True)", of(Side::B)));
    let watch = net.watch(Side::A);
    for n in 0..20 {
        let text = format!("four {n}");
        four.send_to(text.as_bytes(), Side::A.at(5000)).unwrap();
        assert_eq!(program.run("s.recv(100)"), format!("b'{text}'"));
    }
    watch.still();
    six.send_to(b"six", SocketAddr::from((of(Side::A), 5000))).unwrap();
    assert_eq!(program.run("c.recv(100)"), "b'six'");
}

/// A program that is told by other means that a datagram of IPv6 is there.
#[test]
fn a_call_that_does_not_wait_sees_ipv6_after_a_call_in_vain() {
    let net = Namespaces::new();
    with_ipv6(&net);
    let mut program = dual_puppet(&net, Side::A);
    program.run("own = dual()");
    program.run(
        "s = dual(('::', 5000)); s.setblocking(False)
def one():
    try: return s.recv(100)
    except BlockingIOError: pass
def first():
    while True:
        if got := one(): return got
",
    );
    let four = net.socket(Side::B);
    for _ in 0..20 {
        four.send_to(b"four", Side::A.at(5000)).unwrap();
        assert_eq!(program.run("first(), one()"), "(b'four', None)");
        // At once: later the internal thread has told of it.
        assert_eq!(program.run("own.sendto(b'six', ('::1', 5000)), one()"), "(3, b'six')");
    }
}
