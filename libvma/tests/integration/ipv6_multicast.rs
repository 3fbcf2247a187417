//! Groups of IPv6 on an interface: heard and sent to by the library, and the kernel sees nothing of it.

use std::path::Path;

use crate::dual_stack::with_ipv6;
use crate::harness::{Ends, Library, Namespaces, PYTHON, Puppet, Side};

/// Members of groups, and senders. Groups are of the site; the last word of the kernel's own is for its interface.
const GROUPS: &str = "
def number(n): return n.to_bytes(4, sys.byteorder)
def joins(s, group, name=IPV6_JOIN_GROUP):
    s.setsockopt(IPPROTO_IPV6, name, inet_pton(AF_INET6, group) + number(interface))
def sockaddr(address):
    return (bytes([AF_INET6, 0]) + bytes(6) + inet_pton(AF_INET6, address)).ljust(128, b'\\0')
def chooses(s, group, source, name):
    request = number(interface) + bytes(4) + sockaddr(group) + sockaddr(source)
    s.setsockopt(IPPROTO_IPV6, name, request)
JOIN_SOURCE, LEAVE_SOURCE, BLOCK, UNBLOCK = 46, 47, 43, 44
def member(port, group=None, at='::'):
    s = socket(AF_INET6, SOCK_DGRAM)
    s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    s.settimeout(15)
    s.bind((at, port))
    if group: joins(s, group)
    return s
def sender(at='::'):
    s = socket(AF_INET6, SOCK_DGRAM)
    s.settimeout(15)
    s.bind((at, 0))
    s.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_IF, interface)
    return s
";

fn prepared(mut program: Puppet, side: Side) -> Puppet {
    program.run(GROUPS);
    program.run(&format!("interface = if_nametoindex('{}')", side.device()));
    program
}

fn namespaces() -> Namespaces {
    let net = Namespaces::new();
    with_ipv6(&net);
    net
}

fn under_library(net: &Namespaces, side: Side) -> Puppet {
    prepared(net.puppet(side), side)
}

fn plain(net: &Namespaces, side: Side) -> Puppet {
    prepared(Puppet::start(net.program(side, PYTHON)), side)
}

/// From one host to a group, and an answer to where it came from.
// covers: NET-03
#[test]
fn members_hear_and_answer_by_the_library() {
    for library in Library::ALL {
        let ends = Ends::new(library);
        with_ipv6(&ends.net);
        let mut member = prepared(Puppet::start(ends.server(PYTHON)), Side::A);
        let mut sender = prepared(Puppet::start(ends.client(PYTHON)), Side::B);
        member.run("s = member(5000, 'ff05::1:3')");
        sender.run("c = sender(); c.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 7)");
        sender.run("c.sendto(b'first', ('ff05::1:3', 5000))");
        member.run("d, peer = s.recvfrom(100); s.sendto(d, peer)");
        sender.run("c.recv(100)");
        let sides = [(Side::A, library.at_server()), (Side::B, library.at_client())];
        let watches = || sides.iter().filter(|(_, under)| *under);
        let watches: Vec<_> = watches().map(|(side, _)| ends.net.watch_ipv6(*side)).collect();
        member.run("s.setsockopt(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)");
        member.run("s.setsockopt(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)");
        for size in [0, 1, 1000, 1452] {
            sender.run(&format!("c.sendto(pattern({size}, 3), ('ff05::1:3', 5000))"));
            member.run("d, control, flags, peer = s.recvmsg(2000, 200); s.sendto(d, peer)");
            assert_eq!(sender.run(&format!("c.recv(2000) == pattern({size}, 3)")), "True");
            member.run("control = {kind: data for _, kind, data in control}");
            let info =
                "control[IPV6_PKTINFO] == inet_pton(AF_INET6, 'ff05::1:3') + number(interface)";
            assert_eq!(member.run(info), "True");
            assert_eq!(
                member.run("control[IPV6_HOPLIMIT] == number(7), peer[0]"),
                "(True, 'fd00:99::2')"
            );
        }
        for watch in watches {
            watch.still();
        }
        for (mut program, under) in [(member, library.at_server()), (sender, library.at_client())] {
            if under {
                let traffic = program.finish();
                assert!(traffic.rx >= 4 && traffic.tx >= 4, "{traffic:?}");
            }
        }
    }
}

/// One socket is a member of groups of both families; another one chooses the sources that it hears.
// covers: NET-03
#[test]
fn memberships_and_sources_are_the_sockets() {
    let net = namespaces();
    net.add_ipv6(Side::B, "fd00:99::22");
    net.ip(Side::B, &format!("route add 224.0.0.0/4 dev {}", Side::B.device()));
    let (mut program, mut peer) = (under_library(&net, Side::A), plain(&net, Side::B));
    program.run("s = member(5000, 'ff05::1:3')");
    program.run("s.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, inet_aton('239.1.1.1') + inet_aton('10.99.0.1'))");
    program.run("t = member(5001); chooses(t, 'ff3e:40:2001:db8::1:1', 'fd00:99::2', JOIN_SOURCE)");
    peer.run("one, two = sender('fd00:99::2'), sender('fd00:99::22')");
    peer.run("four = socket(AF_INET, SOCK_DGRAM); four.sendto(b'warm', ('239.1.1.1', 5000))");
    peer.run("one.sendto(b'warm', ('ff05::1:3', 5000))");
    program.run("s.recv(100), s.recv(100)");
    let watches = [net.watch(Side::A), net.watch_ipv6(Side::A)];
    let hear = |program: &mut Puppet, socket: &str| program.run(&format!("drain({socket})"));
    peer.run("four.sendto(b'four', ('239.1.1.1', 5000)); one.sendto(b'six', ('ff05::1:3', 5000))");
    assert_eq!(hear(&mut program, "s"), "[b'four', b'six']");
    let both =
        "for s in one, two: s.sendto(s.getsockname()[0].encode(), ('ff3e:40:2001:db8::1:1', 5001))";
    peer.run(both);
    assert_eq!(hear(&mut program, "t"), "[b'fd00:99::2']");
    program.run("chooses(t, 'ff3e:40:2001:db8::1:1', 'fd00:99::22', JOIN_SOURCE)");
    peer.run(both);
    assert_eq!(hear(&mut program, "t"), "[b'fd00:99::2', b'fd00:99::22']");
    program.run("chooses(t, 'ff3e:40:2001:db8::1:1', 'fd00:99::2', LEAVE_SOURCE)");
    peer.run(both);
    assert_eq!(hear(&mut program, "t"), "[b'fd00:99::22']");
    for watch in watches {
        watch.still();
    }
    // The kernel has nobody to give it to, and neither have we.
    program.run("joins(s, 'ff05::1:3', IPV6_LEAVE_GROUP)");
    peer.run("one.sendto(b'left', ('ff05::1:3', 5000)); four.sendto(b'last', ('239.1.1.1', 5000))");
    assert_eq!(hear(&mut program, "s"), "[b'last']");
}

/// Members in the sender's own process hear a datagram, too, unless IPV6_MULTICAST_LOOP is off.
// covers: NET-03
#[test]
fn a_sender_hears_itself_if_it_wants() {
    let net = namespaces();
    let (mut program, mut peer) = (under_library(&net, Side::A), plain(&net, Side::B));
    peer.run("there = member(5000, 'ff05::1:3')");
    program.run(
        "s = member(5000, 'ff05::1:3'); c = sender(); c.sendto(b'first', ('ff05::1:3', 5000))",
    );
    program.run("s.recv(100)");
    peer.run("there.recv(100)");
    let watch = net.watch_ipv6(Side::A);
    program.run("c.sendto(b'both', ('ff05::1:3', 5000))");
    assert_eq!(program.run("s.recvfrom(100)[1][0]"), "'fd00:99::1'");
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0)");
    program.run("c.sendto(b'there', ('ff05::1:3', 5000))");
    assert_eq!(peer.run("there.recv(100), there.recv(100)"), "(b'both', b'there')");
    assert_eq!(program.run("drain(s)"), "[]");
    watch.still();
    // That goes by the socket's family, not by the group's.
    net.ip(Side::A, &format!("route add 224.0.0.0/4 dev {}", Side::A.device()));
    let join = "inet_aton('239.1.1.1') + inet_aton('10.99.0.1')";
    program.run(&format!("s.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, {join})"));
    program.run("c.sendto(b'mapped', ('::ffff:239.1.1.1', 5000))");
    assert_eq!(program.run("drain(s)"), "[]");
    // Nothing leaves the host with so few hops.
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 0)");
    program.run("c.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1)");
    program.run("c.sendto(b'here', ('ff05::1:3', 5000))");
    assert_eq!(program.run("s.recv(100)"), "b'here'");
    assert_eq!(peer.run("drain(there)"), "[]");
}

/// A group of the link is the kernel's, on the same socket.
// covers: NET-03
#[test]
fn groups_of_a_link_are_heard_beside_others() {
    let net = namespaces();
    let (mut program, mut peer) = (under_library(&net, Side::A), plain(&net, Side::B));
    program.run("s = member(5000, 'ff05::1:3'); joins(s, 'ff02::1:3')");
    peer.run("c = sender()");
    let watch = net.watch_ipv6(Side::A);
    let mut kernels = 0;
    for n in 0..10 {
        peer.run(&format!("c.sendto(b'link {n}', ('ff02::1:3', 5000, 0, interface))"));
        peer.run(&format!("c.sendto(b'site {n}', ('ff05::1:3', 5000))"));
        let mut got = [program.run("s.recv(100)"), program.run("s.recv(100)")];
        got.sort();
        assert_eq!(got, [format!("b'link {n}'"), format!("b'site {n}'")]);
        kernels += 1;
    }
    assert_eq!(watch.moved(), (kernels, 0));
    let traffic = program.finish();
    assert_eq!((traffic.rx, traffic.rx_os), (10, 10), "{traffic:?}");
}

/// Java's two kinds of sockets are members of a group; without Java there is nothing to see.
// covers: NET-03
#[test]
fn java_is_a_member() {
    if !Path::new("/usr/bin/java").exists() {
        return;
    }
    let net = namespaces();
    let script = "
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
class Member {
    public static void main(String[] words) throws Exception {
        NetworkInterface device = NetworkInterface.getByName(words[0]);
        InetAddress group = InetAddress.getByName(\"ff05::1:3\");
        DatagramChannel channel = DatagramChannel.open(StandardProtocolFamily.INET6);
        channel.bind(new InetSocketAddress(5000)).configureBlocking(true);
        MembershipKey key = channel.join(group, device);
        MulticastSocket socket = new MulticastSocket(5001);
        socket.joinGroup(new InetSocketAddress(group, 0), device);
        System.out.println(\"ready\");
        ByteBuffer buffer = ByteBuffer.allocate(2000);
        DatagramPacket packet = new DatagramPacket(new byte[2000], 2000);
        int bytes = 0;
        for (int n = 0; n < 20; n++) {
            channel.receive(buffer.clear());
            socket.receive(packet);
            bytes += buffer.position() + packet.getLength();
        }
        key.block(InetAddress.getByName(\"fd00:99::2\"));
        key.drop();
        System.out.println(\"got \" + bytes);
        System.exit(0);
    }
}";
    std::fs::write(net.file("Member.java"), script).unwrap();
    let words = format!("-XX:TieredStopAtLevel=1 Member.java {}", Side::A.device());
    let mut member = net.program(Side::A, "java").with_library().args(&words).start_shown();
    member.wait_for_text("ready");
    let mut peer = plain(&net, Side::B);
    peer.run("c = sender()");
    let watch = net.watch_ipv6(Side::A);
    for _ in 0..20 {
        peer.run(
            "c.sendto(bytes(100), ('ff05::1:3', 5000)); c.sendto(bytes(50), ('ff05::1:3', 5001))",
        );
    }
    member.wait_for_text("got 3000");
    watch.still();
}
