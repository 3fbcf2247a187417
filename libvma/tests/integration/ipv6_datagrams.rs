//! UDP over IPv6 on an interface: served as IPv4's datagrams are, and the kernel sees nothing of it.

use std::net::{SocketAddrV6, UdpSocket};

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{
    Ends, Library, Namespaces, Offload, PATIENCE, PYTHON, Puppet, Side, wait_for,
};

pub(crate) const SOCKETS: &str = "
def six(at=None, peer=None, only=0):
    s = socket(AF_INET6, SOCK_DGRAM)
    s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, only)
    s.settimeout(15)
    if at: s.bind(at)
    if peer: s.connect(peer)
    return s
def told(s, size=100):
    d, control, flags, peer = s.recvmsg(size, 512)
    return d, {(level, kind): data for level, kind, data in control}, peer
";

fn namespaces() -> Namespaces {
    let net = Namespaces::new();
    with_ipv6(&net);
    net
}

fn puppet(net: &Namespaces, side: Side) -> Puppet {
    let mut program = net.puppet(side);
    program.run(SOCKETS);
    program
}

/// A program without the library.
fn plain(net: &Namespaces, side: Side) -> Puppet {
    let mut program = Puppet::start(net.program(side, PYTHON));
    program.run(SOCKETS);
    program
}

/// Server and client.
fn pair(ends: &Ends) -> (Puppet, Puppet) {
    let [server, client] = [ends.server(PYTHON), ends.client(PYTHON)].map(|program| {
        let mut program = Puppet::start(program);
        program.run(SOCKETS);
        program
    });
    (server, client)
}

/// A kernel socket of the test itself.
fn kernels(net: &Namespaces, side: Side) -> UdpSocket {
    let at = SocketAddrV6::new(of(side), 0, 0, 0);
    let socket = net.within(side, || UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Every side that runs under the library.
fn watches(ends: &Ends) -> Vec<Offload<'_>> {
    let sides = [(Side::A, ends.library.at_server()), (Side::B, ends.library.at_client())];
    let sides = sides.into_iter().filter(|(_, under)| *under);
    sides.map(|(side, _)| ends.net.watch_ipv6(side)).collect()
}

// covers: NET-03
#[test]
fn questions_and_answers_go_by_the_library() {
    // Where the server is, and where the client: any address, one address, any of IPv6 only.
    let places = [
        ("('::', 5000)", "('::', 0)"),
        ("('fd00:99::1', 5000)", "('fd00:99::2', 0)"),
        ("('::', 5000), only=1", "('::', 0), only=1"),
    ];
    for (library, (server_at, client_at)) in Library::ALL.into_iter().zip(places) {
        let ends = Ends::new(library);
        with_ipv6(&ends.net);
        let (mut server, mut client) = pair(&ends);
        server.run(&format!("s = six({server_at})"));
        client.run(&format!("c = six({client_at}); c.sendto(b'first', ('fd00:99::1', 5000))"));
        server.run("echo(s)");
        client.run("c.recv(100)");
        let sides = watches(&ends);
        for connect in ["", "c.connect(('fd00:99::1', 5000))"] {
            client.run(connect);
            let send = match connect {
                "" => "c.sendto(data, ('fd00:99::1', 5000))",
                _ => "c.send(data)",
            };
            // The last one fills the packet.
            for size in [0, 1, 1000, 1452] {
                client.run(&format!("data = pattern({size}, 3); {send}"));
                server.run("echo(s)");
                client.run("got, peer = c.recvfrom(65535)\nassert got == data");
                assert_eq!(client.run("peer"), "('fd00:99::1', 5000, 0, 0)");
            }
        }
        assert_eq!(client.run("c.getpeername()"), "('fd00:99::1', 5000, 0, 0)");
        assert_eq!(client.run("c.getsockname()[0]"), "'fd00:99::2'");
        for watch in sides {
            watch.still();
        }
        for (mut program, under) in [(server, library.at_server()), (client, library.at_client())] {
            if under {
                let traffic = program.finish();
                assert!(traffic.rx >= 9 && traffic.tx >= 9, "{traffic:?}");
            }
        }
    }
}

/// A sleeper is woken, by a train, too.
// covers: NET-03
#[test]
fn a_sleeping_call_wakes() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000)); s.settimeout(None)");
    let peer = kernels(&net, Side::B);
    let mut sender = plain(&net, Side::B);
    sender.run("t = six(peer=('fd00:99::1', 5000)); t.setsockopt(IPPROTO_UDP, 103, 1000)");
    let watch = net.watch_ipv6(Side::A);
    for sleep in ["s.recvfrom(100)[0]", "select.select([s], [], [], 15)[0] and s.recv(100)"] {
        for _ in 0..3 {
            program.begin(sleep);
            program.wait_until_asleep();
            peer.send_to(b"wake", (of(Side::A), 5000)).unwrap();
            assert_eq!(program.end(sleep), "b'wake'");
        }
    }
    for _ in 0..3 {
        program.begin("[len(s.recv(2000)) for _ in range(3)]");
        program.wait_until_asleep();
        sender.run("t.send(bytes(2500))");
        assert_eq!(program.end("train"), "[1000, 1000, 500]");
    }
    watch.still();
}

/// What a program like a name server or QUIC asks for and says.
// covers: NET-03
#[test]
fn control_messages_tell_and_are_heeded() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    let mut peer = plain(&net, Side::B);
    program.run("s = six(('::', 5000))");
    for option in ["IPV6_RECVPKTINFO", "IPV6_RECVTCLASS", "IPV6_RECVHOPLIMIT", "74"] {
        program.run(&format!("s.setsockopt(IPPROTO_IPV6, {option}, 1)"));
        peer.run(&format!("globals().setdefault('p', six(('fd00:99::2', 0))).setsockopt(IPPROTO_IPV6, {option}, 1)"));
    }
    peer.run("p.sendto(b'x', ('fd00:99::1', 5000))");
    program.run("s.sendto(*s.recvfrom(100))");
    peer.run("p.recv(100)");
    let watch = net.watch_ipv6(Side::A);
    peer.run(
        "p.sendmsg([b'question'], [(IPPROTO_IPV6, IPV6_TCLASS, struct.pack('=i', 0x48)), \
         (IPPROTO_IPV6, IPV6_HOPLIMIT, struct.pack('=i', 9))], 0, ('fd00:99::1', 5000))",
    );
    program.run("d, info, peer = told(s)");
    let own = "inet_pton(AF_INET6, 'fd00:99::1')";
    for told in [
        format!(
            "info[IPPROTO_IPV6, IPV6_PKTINFO] == {own} + struct.pack('=I', if_nametoindex('veth-a'))"
        ),
        "info[IPPROTO_IPV6, IPV6_TCLASS] == struct.pack('=i', 0x48)".into(),
        "info[IPPROTO_IPV6, IPV6_HOPLIMIT] == struct.pack('=i', 9)".into(),
        format!("info[IPPROTO_IPV6, 74][2:24] == struct.pack('!HI', 5000, 0) + {own}"),
        "len(info) == 4".into(),
    ] {
        assert_eq!(program.run(&told), "True", "{told}");
    }
    // By the call, and by the socket.
    program.run(&format!(
        "s.sendmsg([b'a' * 250], [(IPPROTO_IPV6, IPV6_PKTINFO, {own} + bytes(4)), \
         (IPPROTO_UDP, 103, struct.pack('=H', 100)), \
         (IPPROTO_IPV6, IPV6_HOPLIMIT, struct.pack('=i', 7))], 0, peer)"
    ));
    for expected in [100, 100, 50] {
        peer.run("d, info, source = told(p)");
        assert_eq!(peer.run("len(d), source"), format!("({expected}, ('fd00:99::1', 5000, 0, 0))"));
        assert_eq!(peer.run("info[IPPROTO_IPV6, IPV6_HOPLIMIT][0]"), "7");
    }
    for (class, hops) in [(0x20, 33), (0, 64)] {
        program.run(&format!("s.setsockopt(IPPROTO_IPV6, IPV6_TCLASS, {class})"));
        let said = if hops == 64 { -1 } else { hops };
        program.run(&format!("s.setsockopt(IPPROTO_IPV6, IPV6_UNICAST_HOPS, {said})"));
        // Of IPv4 packets.
        program.run("s.setsockopt(IPPROTO_IP, IP_TTL, 11); s.setsockopt(IPPROTO_IP, IP_TOS, 8)");
        program.run("s.sendto(b'x', peer)");
        peer.run("d, info, source = told(p)");
        let seen = "info[IPPROTO_IPV6, IPV6_TCLASS][0], info[IPPROTO_IPV6, IPV6_HOPLIMIT][0]";
        assert_eq!(peer.run(seen), format!("({class}, {hops})"));
    }
    watch.still();
    // What is not the host's address is the kernel's to refuse.
    let foreign = "inet_pton(AF_INET6, 'fd00:99::77')";
    let send =
        format!("s.sendmsg([b'x'], [(IPPROTO_IPV6, IPV6_PKTINFO, {foreign} + bytes(4))], 0, peer)");
    assert!(program.raises(&send).contains("Invalid argument"));
}

/// Fragments are the library's in both directions, but those of the longest datagrams and of sockets that say what becomes of them.
// covers: NET-03, NET-20, NET-23, LIM-20
#[test]
fn datagrams_beyond_the_mtu_arrive() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        with_ipv6(&ends.net);
        let (mut server, mut client) = pair(&ends);
        server.run("s = six(('::', 5000))");
        client.run("c = six(peer=('fd00:99::1', 5000)); c.send(b'first')");
        server.run("echo(s)");
        client.run("c.recv(100)");
        let mut ask = |size: usize| {
            client.run(&format!("data = pattern({size}, 5); c.send(data)"));
            server.run("echo(s)");
            client.run("got = c.recv(65535)\nassert got == data");
        };
        let watches = watches(&ends);
        [1452, 1453, 1448, 1449, 9000, 65507, 10, 1453, 10].into_iter().for_each(&mut ask);
        watches.iter().for_each(Offload::still);
        [65508, 65527, 1453].into_iter().for_each(&mut ask);
        // A train of such is refused, as by the kernel.
        client.run("c.setsockopt(IPPROTO_UDP, 103, 1453)");
        assert!(client.raises("c.send(bytes(4000))").contains("Message too long"));
        client.run("c.setsockopt(IPPROTO_UDP, 103, 1452); c.send(bytes(4000))");
        assert_eq!(server.run("[len(s.recv(9000)) for _ in range(3)]"), "[1452, 1452, 1096]");
        client.run("c.setsockopt(IPPROTO_UDP, 103, 0)");
        // What does not fit is refused if that is wanted, which is no matter of IPv4's option.
        client.run("c.setsockopt(IPPROTO_IP, 10, 2); c.send(bytes(3000))");
        assert_eq!(server.run("len(s.recv(9000))"), "3000");
        client.run("c.setsockopt(IPPROTO_IPV6, IPV6_DONTFRAG, 1)");
        assert!(client.raises("c.send(bytes(1453))").contains("Message too long"));
        client.run("c.setsockopt(IPPROTO_IPV6, IPV6_DONTFRAG, 0); c.send(bytes(1453))");
        assert_eq!(server.run("len(s.recv(9000))"), "1453");
        server.run("s.settimeout(0.05)");
        assert!(server.raises("s.recv(10)").contains("timed out"));
    }
}

/// In any order: each datagram is whole wherever it is put together, and one of a peer without a stand-in, too.
// covers: NET-03, NET-23
#[test]
fn fragments_in_any_order_are_a_datagram() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000))");
    let mut thrower = plain(&net, Side::B);
    thrower.run(PIECES);
    let text = "text = b''.join(b'%5d' % n for n in range(1000))";
    program.run(text);
    thrower.run(text);
    thrower.run("throw(pieces(text, 1))");
    assert_eq!(program.run("s.recv(9000) == text"), "True");
    let watch = net.watch_ipv6(Side::A);
    for order in ["pieces(text, 2)", "pieces(text, 3)[:2] + pieces(text, 3)[1:]"] {
        thrower.run(&format!("throw({order})"));
        assert_eq!(program.run("s.recv(9000) == text"), "True", "{order}");
    }
    // As the first one comes first, the last one may come next.
    thrower.run("p = pieces(text, 4); throw(p[:1] + p[:0:-1])");
    assert_eq!(program.run("s.recv(9000) == text"), "True");
    watch.still();
    thrower.run("throw(pieces(text, 5)[::-1])");
    assert_eq!(program.run("s.recv(9000) == text"), "True");
    assert_eq!(watch.moved(), (1, 0));
    // Overlapping ones are no datagram (RFC 5722), nor is one without a checksum (RFC 8200 section 8.1).
    let watch = net.watch_ipv6(Side::A);
    thrower.run("p = pieces(text, 6); throw(p[:1] + [piece(text, 6, 1400, 1600)] + p[1:])");
    thrower.run("throw(pieces(text, 7, check=0)); throw(pieces(text, 8, check=1))");
    thrower.run("throw(pieces(b'good' * 500, 9))");
    assert_eq!(program.run("s.recv(9000) == b'good' * 500"), "True");
    watch.still();
    // Of one sum with 16 others (see below).
    for n in 0..24 {
        let source = format!("inet_pton(AF_INET6, 'fd00:99::{:x}:{:x}')", 0x100 + n, 0x200 - n);
        for ident in [100 + n, 200 + n] {
            thrower.run(&format!("throw(pieces(text, {ident}, source={source}))"));
            assert_eq!(program.run("s.recv(9000) == text"), "True", "{n}");
        }
    }
}

/// Datagrams to port 5000 of side A, in pieces of 1448 bytes.
const PIECES: &str = "
link = socket(AF_PACKET, SOCK_RAW); link.bind(('veth-b', 0))
A, B = inet_pton(AF_INET6, 'fd00:99::1'), inet_pton(AF_INET6, 'fd00:99::2')
def ones(data):
    if len(data) & 1: data += bytes(1)
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 65535) + (total >> 16)
    return ~total & 65535
def datagram(payload, source, check):
    head = struct.pack('!HHHH', 4000, 5000, 8 + len(payload), 0)
    right = ones(source + A + struct.pack('!II', 8 + len(payload), 17) + head + payload) or 65535
    return head[:6] + struct.pack('!H', right if check is None else check) + payload
def piece(payload, ident, at, end, source=B, check=None):
    whole = datagram(payload, source, check)
    body = whole[at:end]
    more = at + len(body) < len(whole)
    head = struct.pack('!BBHI', 17, 0, at & ~7 | more, ident) + body
    ip = struct.pack('!IHBB', 6 << 28, len(head), 44, 64) + source + A
    return bytes.fromhex('02000099000102000099000286dd') + ip + head
def pieces(payload, ident, **more):
    return [piece(payload, ident, at, at + 1448, **more) for at in range(0, 8 + len(payload), 1448)]
def throw(frames):
    for frame in frames: link.send(frame)
";

/// The kernel's word about a port that nobody has.
// covers: NET-03
#[test]
fn a_refusal_is_told() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("c = six(peer=('fd00:99::2', 7))");
    let watch = net.watch_ipv6(Side::A);
    for _ in 0..3 {
        program.run("c.send(b'x')");
        let refused = program.raises("c.recv(100)");
        assert!(refused.contains("Connection refused"), "{refused}");
    }
    program.run("c.send(b'x'); time.sleep(0.1)");
    let refused = program.raises("c.send(b'x')");
    assert!(refused.contains("Connection refused"), "{refused}");
    watch.still();
}

/// Sixteen addresses of one ones' complement sum can be told apart (`libvma_dev::ipv6_stand_ins`). Of more peers nothing is lost:
/// they are the kernel's, and those before them the library's.
// covers: NET-03
#[test]
fn peers_beyond_the_librarys_memory_are_the_kernels() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000))");
    let mut peers = puppet_of_peers(&net);
    let mut ask = |from: &str, more: &str| {
        peers.run(&format!("p = six(('{from}', 0)); {more}p.sendto(data, ('fd00:99::1', 5000))"));
        program.run("d, who = s.recvfrom(2000); s.sendto(d, who)");
        assert_eq!(program.run("who[0]"), format!("'{from}'"));
        peers.run("assert p.recv(2000) == data");
    };
    // Of one sum.
    let address = |n: u16| format!("fd00:99::{:x}:{:x}", 0x100 + n, 0x200 - n);
    for n in 0..24 {
        ask(&address(n), "data = b'%d' % time.time_ns(); ");
        // Told to the steering program by now.
        ask(&address(n), "data = pattern(1400); ");
    }
    let watch = net.watch_ipv6(Side::A);
    for n in 0..16 {
        ask(&address(n), "");
    }
    watch.still();
    for n in 16..24 {
        ask(&address(n), "");
    }
    assert_eq!(watch.moved(), (8, 8));
}

fn puppet_of_peers(net: &Namespaces) -> Puppet {
    let mut peers = plain(net, Side::B);
    peers.run(
        "import subprocess
all = ''.join('address add fd00:99::%x:%x/64 dev veth-b nodad\\n' % (0x100 + n, 0x200 - n) for n in range(24))
subprocess.run(['ip', '-6', '-batch', '-'], input=all, text=True, check=True)",
    );
    peers
}

/// What waits in the queue when the kernel is to have the socket: a datagram, a train, a large one, an empty one.
// covers: NET-03
#[test]
fn what_waits_goes_to_the_kernel_with_the_socket() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000)); s.setsockopt(IPPROTO_UDP, 104, 0)");
    let mut peer = plain(&net, Side::B);
    peer.run("p = six(('fd00:99::2', 6000)); p.connect(('fd00:99::1', 5000)); p.send(b'x')");
    program.run("echo(s)");
    peer.run("p.recv(100)");
    let watch = net.watch_ipv6(Side::A);
    peer.run("p.send(b'one'); p.send(b''); p.setsockopt(IPPROTO_IPV6, IPV6_TCLASS, 0x20)");
    peer.run("p.setsockopt(IPPROTO_UDP, 103, 1000); p.send(pattern(2500)); p.setsockopt(IPPROTO_UDP, 103, 0)");
    peer.run("p.send(pattern(1452, 7))");
    program.run("time.sleep(0.05); s.recv(100, MSG_PEEK)");
    watch.still();
    program.run("s.setsockopt(IPPROTO_IPV6, IPV6_RECVTCLASS, 1)");
    // SIGIO comes from the kernel's sockets only.
    program.run("signal.signal(signal.SIGIO, signal.SIG_IGN)");
    program.run("fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)");
    peer.run("p.send(b'later')");
    program.run("got = [told(s, 2000) for n in range(7)]");
    let expected = "[b'one', b'', pattern(2500)[:1000], pattern(2500)[1000:2000], pattern(2500)[2000:], \
                    pattern(1452, 7), b'later']";
    assert_eq!(program.run(&format!("[d for d, info, who in got] == {expected}")), "True");
    assert_eq!(program.run("set(who for d, info, who in got)"), "{('fd00:99::2', 6000, 0, 0)}");
    assert_eq!(
        program.run("[info[IPPROTO_IPV6, IPV6_TCLASS][0] for d, info, who in got]"),
        "[0, 0, 32, 32, 32, 32, 32]"
    );
    assert_eq!(watch.moved().0, 7);
}

/// Many small ones fill the kernel's socket, as it counts, more than if they had come there.
// covers: NET-01, NET-03
#[test]
fn what_comes_after_a_long_queue_was_handed_over_arrives() {
    for (own, to) in
        [("udp(('10.99.0.1', 5000))", "10.99.0.1"), ("six(('::', 5000))", "fd00:99::1")]
    {
        let net = namespaces();
        let mut program = puppet(&net, Side::A);
        program.run(&format!("s = {own}"));
        let mut peer = plain(&net, Side::B);
        peer.run(&format!("p = socket(AF_INET6 if ':' in '{to}' else AF_INET, SOCK_DGRAM)"));
        peer.run(&format!("p.connect(('{to}', 5000)); p.send(b'first')"));
        program.run("s.recv(100)");
        let watches = [net.watch(Side::A), net.watch_ipv6(Side::A)];
        peer.run("for n in range(200): p.send(b'%d' % n)");
        program.run("time.sleep(0.05); s.recv(100, MSG_PEEK)");
        watches.iter().for_each(|watch| watch.still());
        program.run("signal.signal(signal.SIGIO, signal.SIG_IGN)");
        program.run("fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)");
        peer.run("for n in range(200, 220): p.send(b'%d' % n)");
        program.run("time.sleep(0.05); got = drain(s)");
        assert_eq!(program.run("got == [b'%d' % n for n in range(220)], len(got)"), "(True, 220)");
    }
}

/// A `::` socket hears every address that the host has, as long as it has it.
// covers: LIM-25, NET-03
#[test]
fn addresses_come_and_go() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000))");
    let mut peer = plain(&net, Side::B);
    peer.run("p = six(('fd00:99::2', 0))");
    let mut ask = |to: &str, count: u32| {
        program.begin(&format!("echo(s, {count})"));
        peer.run(&format!("for n in range({count}): p.sendto(b'x', ('{to}', 5000)); p.recv(10)"));
        program.end("echo");
    };
    ask("fd00:99::1", 10);
    net.add_ipv6(Side::A, "fd00:99::11");
    // The neighbours find each other, and the library the address.
    ask("fd00:99::11", 1);
    wait_for("the new address is served", || {
        let watch = net.watch_ipv6(Side::A);
        ask("fd00:99::11", 1);
        (watch.moved() == (0, 0)).then_some(())
    });
    let watch = net.watch_ipv6(Side::A);
    ask("fd00:99::11", 10);
    ask("fd00:99::1", 10);
    watch.still();
    net.ip(Side::A, "-6 address del fd00:99::11/64 dev veth-a");
    ask("fd00:99::1", 10);
    watch.still();
}

/// The neighbour is not known at first, and the route leads over a router that says how long packets may be.
// covers: NET-03
#[test]
fn the_path_is_followed() {
    let net = Namespaces::with_arp();
    for side in [Side::A, Side::B] {
        net.add_ipv6(side, of(side));
    }
    let mut program = puppet(&net, Side::A);
    program.run("s = six(('::', 5000))");
    let mut peer = plain(&net, Side::B);
    peer.run("p = six(('fd00:99::2', 6000))");
    let mut ask = |size: usize| {
        program.run(&format!("s.sendto(pattern({size}), ('fd00:99::2', 6000))"));
        peer.run(&format!("d, who = p.recvfrom(65535)\nassert d == pattern({size})"));
        peer.run("p.sendto(d, who)");
        program.run(&format!("assert s.recv(65535) == pattern({size})"));
    };
    ask(10);
    wait_for("the neighbour is known", || {
        let watch = net.watch_ipv6(Side::A);
        ask(10);
        (watch.moved() == (0, 0)).then_some(())
    });
    let watch = net.watch_ipv6(Side::A);
    ask(1452);
    watch.still();
    net.ip(Side::A, "-6 route add fd00:99::2/128 dev veth-a mtu 1400");
    let reassembled = || net.snmp6(Side::B, "Ip6ReasmOKs");
    wait_for("the path's MTU is heeded", || {
        let before = reassembled();
        ask(1452);
        (reassembled() > before).then_some(())
    });
    let watch = net.watch_ipv6(Side::A);
    let before = reassembled();
    ask(1352);
    assert_eq!(reassembled(), before);
    ask(1353);
    assert_eq!(reassembled(), before + 1);
    watch.still();
}

/// A socket of another process on the port: the kernel chooses who gets what, and the library has it all again afterwards.
// covers: NET-03
#[test]
fn a_port_is_shared_with_another_process() {
    let net = namespaces();
    let mut program = puppet(&net, Side::A);
    let share = "setsockopt(SOL_SOCKET, SO_REUSEPORT, 1); s.bind(('::', 5000))";
    program.run(&format!("s = six(); s.{share}"));
    let mut other = plain(&net, Side::A);
    let mut peer = plain(&net, Side::B);
    let send = "for n in range(100): six(('fd00:99::2', 0)).sendto(b'x', ('fd00:99::1', 5000))";
    let count = |program: &mut Puppet| -> u32 { program.run("len(drain(s))").parse().unwrap() };
    peer.run(send);
    assert_eq!(count(&mut program), 100);
    other.run(&format!("s = six(); s.{share}"));
    program.run("time.sleep(0.3)");
    peer.run(send);
    program.run("time.sleep(0.05)");
    let (here, there) = (count(&mut program), count(&mut other));
    assert_eq!(here + there, 100);
    assert!(here > 10 && there > 10, "{here} and {there}");
    other.run("s.close()");
    wait_for("the library has all again", || {
        let watch = net.watch_ipv6(Side::A);
        peer.run(send);
        assert_eq!(count(&mut program), 100);
        (watch.moved() == (0, 0)).then_some(())
    });
}
