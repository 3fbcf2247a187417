//! As `hostile`, over IPv6: programs that ask `vmad` for what is not theirs, and that write frames of others.

use std::time::Duration;

use super::hostile::senders;
use super::ipv6::own;
use super::wire::write;
use super::{Host, NOBODY, rule};
use crate::dual_stack::of;
use crate::harness::{PYTHON, Puppet, Side, wait_for};
use crate::ipv6_datagrams::SOCKETS;

/// Sockets and frames of IPv6.
const SIX: &str = r#"
def bound6(address, port, kind=SOCK_DGRAM, share=None, only=0):
    s = socket(AF_INET6, kind)
    s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, only)
    if share: s.setsockopt(SOL_SOCKET, share, 1)
    s.bind((address, port))
    return s.detach()

def summed(*pieces):
    data = b''.join(pieces)
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return struct.pack('!H', 0xffff - total or 0xffff)

def frame6(mac, source, port, to=('fd00:99::2', 7000), next=17, length=8, before=b''):
    ends = inet_pton(AF_INET6, source) + inet_pton(AF_INET6, to[0])
    head = struct.pack('!HHH', port, to[1], length)
    rest = bytes(length - 8)
    udp = head + summed(ends, struct.pack('!II', length, 17), head, rest) + rest
    ip = struct.pack('!IHBB', 6 << 28, len(before) + length, next, 64) + ends
    return bytes.fromhex('02000099000202000099' + mac + '86dd') + ip + before + udp
"#;

impl Host {
    pub(super) fn asker_of_ipv6(&self) -> Puppet {
        let mut asker = self.asker(NOBODY);
        asker.run(&format!("exec({SIX:?})"));
        asker.run("c, tap = granted('veth-a')");
        asker
    }

    /// A program of another user without the library.
    pub(super) fn other(&self) -> Puppet {
        let mut other = Puppet::start(self.net.program(Side::A, PYTHON));
        other.run(SOCKETS);
        other
    }
}

#[test]
fn a_flow_takes_the_socket_that_has_it() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut other = host.other();
    other.run("s = six(('fd00:99::1', 5000))");
    let mut asker = host.asker_of_ipv6();
    host.net.add_ipv6(Side::A, "fe80::5");
    let flow = "local=('fd00:99::1', 5000)";
    for (wanted, asked) in [
        ("EBADF", format!("ADD, {flow}")),
        // Another user has it; what may be shown is another port, another address, or of another kind.
        ("EACCES", format!("ADD, {flow}, shown=bound6('fd00:99::1', 5001)")),
        ("EACCES", format!("ADD, {flow}, shown=bound6('::1', 5000)")),
        ("EACCES", format!("ADD, {flow}, shown=bound6('fd00:99::1', 5000, SOCK_STREAM)")),
        ("EACCES", format!("ADD, {flow}, shown=bound('10.99.0.1', 5000)")),
        ("EACCES", "ADD, local=('fd00:99::1', 6101), shown=bound('', 6101)".into()),
        (
            "EACCES",
            "ADD, local=('fd00:99::1', 6102), shown=bound6('::ffff:10.99.0.1', 6102)".into(),
        ),
        // A socket of IPv6 only has no datagrams of IPv4.
        ("EACCES", "ADD, local=('10.99.0.1', 6100), shown=bound6('::', 6100, only=1)".into()),
        // Not its own address, those of groups, links, the host itself, and of all.
        ("EOPNOTSUPP", "ADD, local=('fd00:99::2', 6000), shown=bound6('::', 6000)".into()),
        ("EOPNOTSUPP", "ADD, local=('ff05::1:3', 6001), shown=bound6('::', 6001)".into()),
        ("EOPNOTSUPP", "ADD, local=('fe80::5', 6002), shown=bound6('::', 6002)".into()),
        ("EOPNOTSUPP", "ADD, local=('::1', 6003), shown=bound6('::', 6003)".into()),
        ("EOPNOTSUPP", "ADD, local=('::', 6004), shown=bound6('::', 6004)".into()),
        ("EOPNOTSUPP", "ADD, local=('fd00:99::1', 0), shown=bound6('::', 6005)".into()),
        // Ends of two families.
        (
            "EOPNOTSUPP",
            "ADD, local=('fd00:99::1', 6006), peer=('10.99.0.2', 9), shown=bound6('::', 6006)"
                .into(),
        ),
        ("2", format!("REMOVE, {flow}")),
    ] {
        assert_eq!(asker.run(&format!("ask(c, {asked}) - {wanted}")), "0", "{asked}");
    }
    // Connected: to that peer only.
    asker.run("f = socket(AF_INET6, SOCK_DGRAM)");
    asker.run("f.bind(('fd00:99::1', 6010)); f.connect(('fd00:99::2', 9))");
    let flow = "local=('fd00:99::1', 6010), shown=f.fileno()";
    assert_eq!(asker.run(&format!("ask(c, ADD, {flow}, peer=('fd00:99::2', 10)) - EACCES")), "0");
    assert_eq!(asker.run(&format!("ask(c, ADD, {flow}, peer=('fd00:99::3', 9)) - EACCES")), "0");
    assert_eq!(asker.run(&format!("ask(c, ADD, {flow}, peer=('fd00:99::2', 9))")), "0");
    // A datagram for another program's socket comes to that program.
    host.peer_of_ipv6(0).send_to(b"for another", own(5000)).unwrap();
    assert_eq!(other.run("s.recv(100)"), "b'for another'");
}

/// The kernel says for each datagram whose it is.
#[test]
fn a_datagram_is_whose_the_kernel_says_now() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let peer = host.peer_of_ipv6(9);
    let mut other = host.other();
    let mut asker = host.asker_of_ipv6();
    // Its frames, for which there is no room: no chunk was put into a slot.
    asker.run("import mmap; m = mmap.mmap(control, 4096)");
    let lost = |asker: &mut Puppet| asker.run("struct.unpack_from('=Q', m, 192)[0]");
    let took = |other: &mut Puppet| {
        peer.send_to(b"whose?", own(5000)).unwrap();
        other.run("s.recv(100)") == "b'whose?'"
    };
    let flow = "ADD, local=('fd00:99::1', 5000)";
    asker.run("p = bound6('fd00:99::1', 5000, share=SO_REUSEADDR)");
    assert_eq!(asker.run(&format!("ask(c, {flow}, shown=p)")), "0");
    let watch = host.net.watch_ipv6(Side::A);
    peer.send_to(b"the ring's", own(5000)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "1").then_some(()));
    watch.still();
    // A socket with the same port that is bound later gets the datagrams from then on.
    other.run("s = socket(AF_INET6, SOCK_DGRAM); s.settimeout(15)");
    other.run("s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); s.bind(('fd00:99::1', 5000))");
    assert!(took(&mut other));
    other.run("s.close()");
    // A closed one is nobody's.
    asker.run("os.close(p)");
    other.run("s = six(('fd00:99::1', 5000))");
    assert!(took(&mut other));
    other.run("s.close()");
    // Connected, and to nobody again: the kernel leaves the former peer's address in the socket.
    asker.run("f = socket(AF_INET6, SOCK_DGRAM); f.bind(('fd00:99::1', 5000)); f.connect(('fd00:99::2', 9))");
    assert_eq!(
        asker.run(&format!("ask(c, {flow}, peer=('fd00:99::2', 9), shown=f.fileno())")),
        "0"
    );
    peer.send_to(b"the ring's", own(5000)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "2").then_some(()));
    asker.run("import ctypes; ctypes.CDLL(None).connect(f.fileno(), bytes(28), 28)");
    assert_eq!(
        asker.run("ask(c, REMOVE, local=('fd00:99::1', 5000), peer=('fd00:99::2', 9))"),
        "0"
    );
    assert_eq!(asker.run(&format!("ask(c, {flow}, shown=f.fileno())")), "0");
    peer.send_to(b"the ring's", own(5000)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "3").then_some(()));
    asker.run("f.close()");
}

/// Peers for which a ring has no room are the kernel's: one by one, and then all that no flow names.
#[test]
fn strangers_are_the_kernels() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let [peer, named] = [9, 10].map(|port| host.peer_of_ipv6(port));
    let mut asker = host.asker_of_ipv6();
    asker.run("import mmap; m = mmap.mmap(control, 4096)");
    let lost = |asker: &mut Puppet| asker.run("struct.unpack_from('=Q', m, 192)[0]");
    asker.run("s = socket(AF_INET6, SOCK_DGRAM); s.settimeout(15); s.bind(('::', 5000))");
    let flow = "ADD, local=('fd00:99::1', 5000), shown=s.fileno()";
    assert_eq!(asker.run(&format!("ask(c, {flow})")), "0");
    peer.send_to(b"the ring's", own(5000)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "1").then_some(()));
    assert_eq!(asker.run("ask(c, STRANGER, peer=('10.99.0.2', 0)) - EINVAL"), "0");
    for of_all in ["ask(c, STRANGER, peer=('fd00:99::2', 0))", "c2 = granted('veth-a')[0]"] {
        asker.run(of_all);
        if of_all.starts_with("c2") {
            // Another ring, which knows nothing of it, and has many others.
            asker.run("c.close(); c = c2");
            assert_eq!(asker.run(&format!("ask(c, {flow})")), "0");
            asker.run("all = [ask(c, STRANGER, peer=('fd00:98::%x' % n, 0)) for n in range(1023)]");
            asker.run("m = mmap.mmap(control, 4096)");
            peer.send_to(b"not yet", own(5000)).unwrap();
            wait_for("it comes by the ring", || (lost(&mut asker) == "1").then_some(()));
            assert_eq!(
                asker.run("set(all + [ask(c, STRANGER, peer=('fd00:98::ffff', 0))])"),
                "{0}"
            );
        }
        peer.send_to(b"a stranger's", own(5000)).unwrap();
        assert_eq!(asker.run("s.recv(100)"), "b\"a stranger's\"");
    }
    // A socket that is connected to one names it.
    asker.run("f = socket(AF_INET6, SOCK_DGRAM); f.bind(('fd00:99::1', 5001)); f.connect(('fd00:99::2', 10))");
    let flow = "ADD, local=('fd00:99::1', 5001), peer=('fd00:99::2', 10), shown=f.fileno()";
    assert_eq!(asker.run(&format!("ask(c, {flow})")), "0");
    named.send_to(b"the ring's", own(5001)).unwrap();
    wait_for("it comes by the ring", || (lost(&mut asker) == "2").then_some(()));
}

/// Extension headers and fragments in front of a datagram for the ring: the kernel reads them.
#[test]
fn headers_in_front_of_a_datagram_are_the_kernels() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut asker = host.asker_of_ipv6();
    asker.run("s = socket(AF_INET6, SOCK_DGRAM); s.settimeout(15); s.bind(('fd00:99::1', 6000))");
    let flow = "ADD, local=('fd00:99::1', 6000), shown=s.fileno()";
    assert_eq!(asker.run(&format!("ask(c, {flow})")), "0");
    let mut sender = Puppet::start(host.net.program(Side::B, PYTHON));
    sender.run(&format!("import struct; exec({SIX:?})"));
    sender.run("r = socket(AF_PACKET, SOCK_RAW); r.bind(('veth-b', 0))");
    // Destination options (60) with padding, and a fragment that is the whole (44).
    for (next, before) in [(60, "1100010400000000"), (44, "1100000000000007")] {
        sender.run(&format!(
            "f = frame6('0002', 'fd00:99::2', 7000, to=('fd00:99::1', 6000), next={next}, before=bytes.fromhex('{before}'), length=12)"
        ));
        sender.run("f = bytes.fromhex('020000990001020000990002') + f[12:]; r.send(f)");
        assert_eq!(asker.run("s.recv(100)"), "b'\\x00\\x00\\x00\\x00'", "header {next}");
    }
}

/// A frame that is written to a TAP leaves only as the kernel would have sent it for the sockets that were shown.
#[test]
fn nothing_is_sent_that_the_program_could_not_have_the_kernel_send() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    host.net.add_ipv6(Side::A, "fd00:99::7");
    let peer = host.peer_of_ipv6(7000);
    let four = host.net.socket_at(Side::B, Side::B.at(7000));
    let mut wire = host.wire();
    let mut asker = host.asker_of_ipv6();
    asker.run("p = bound6('fd00:99::1', 6000); w = bound6('::', 6003)");
    let good = "frame6('0001', 'fd00:99::1', 6000)";
    write(&mut asker, good);
    assert_eq!(asker.run("ask(c, ADD, local=('fd00:99::1', 6000), shown=p)"), "0");
    assert_eq!(asker.run("ask(c, ADD, local=('fd00:99::1', 6003), shown=w)"), "0");
    let stand_in = libvma_dev::ipv6_stand_ins::choices(of(Side::A)).next().unwrap();
    for forged in [
        // Port, address, an address whose flow is another port's, and one that is the host's but no flow's.
        "frame6('0001', 'fd00:99::1', 6001)",
        "frame6('0001', 'fd00:99::9', 6000)",
        "frame6('0001', 'fd00:99::7', 6000)",
        "frame6('0001', 'fd00:99::7', 6003)",
        "frame6('0001', '::', 6003)",
        "frame6('0001', 'ff02::1', 6003)",
        "frame6('0003', 'fd00:99::1', 6000)",
        // TCP, ICMPv6, no next header.
        "frame6('0001', 'fd00:99::1', 6000, next=6)",
        "frame6('0001', 'fd00:99::1', 6000, next=58)",
        "frame6('0001', 'fd00:99::1', 6000, next=59)",
        // Hop-by-hop options, destination options, routing, and a fragment in front of UDP.
        "frame6('0001', 'fd00:99::1', 6000, next=0, before=bytes.fromhex('1100010400000000'))",
        "frame6('0001', 'fd00:99::1', 6000, next=60, before=bytes.fromhex('1100010400000000'))",
        "frame6('0001', 'fd00:99::1', 6000, next=43, before=bytes.fromhex('1100040000000000'))",
        "frame6('0001', 'fd00:99::1', 6000, next=44, before=bytes.fromhex('1100000000000007'))",
        // Too long for the MTU, too short, and said to be longer than it is.
        "frame6('0001', 'fd00:99::1', 6000, length=1462)",
        "frame6('0001', 'fd00:99::1', 6000)[:13]",
        "frame6('0001', 'fd00:99::1', 6000)[:57]",
        "frame6('0001', 'fd00:99::1', 6000)[:18] + bytes.fromhex('05dc') + frame6('0001', 'fd00:99::1', 6000)[20:]",
        // Another version, another protocol, a VLAN.
        "frame6('0001', 'fd00:99::1', 6000)[:14] + bytes.fromhex('45') + frame6('0001', 'fd00:99::1', 6000)[15:]",
        "frame6('0001', 'fd00:99::1', 6000)[:12] + bytes.fromhex('0800') + frame6('0001', 'fd00:99::1', 6000)[14:]",
        "frame6('0001', 'fd00:99::1', 6000)[:12] + bytes.fromhex('81000005') + frame6('0001', 'fd00:99::1', 6000)[12:]",
        // IPv4 from the ports of flows of IPv6 alone, and from an address of 0.0.0.0/8, as the tables have them.
        "frame('0001', '10.99.0.1', 6000)",
        "frame('0001', '10.99.0.1', 6003)",
        &format!("frame('0001', '{stand_in}', 6003)"),
    ] {
        write(&mut asker, forged);
    }
    write(&mut asker, good);
    let last = "frame6('0001', 'fd00:99::1', 6003)";
    write(&mut asker, last);
    let [good_bytes, last_bytes] = [good, last].map(|own| asker.run(&format!("{own}.hex()")));
    assert_eq!(wire.until(&last_bytes), [&*good_bytes, &last_bytes], "its own and nothing else");
    assert_eq!(senders(&peer), [own(6000).into(), own(6003).into()]);
    assert_eq!(senders(&four), []);
    // Not after the flow was given up.
    assert_eq!(asker.run("ask(c, REMOVE, local=('fd00:99::1', 6000))"), "0");
    write(&mut asker, good);
    assert_eq!(senders(&peer), []);
    // A flow of IPv4 of the same socket lets it send over both.
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6003), shown=w)"), "0");
    write(&mut asker, "frame('0001', '10.99.0.1', 6003)");
    assert_eq!(senders(&four), [Side::A.at(6003).into()]);
    // Not from what stands for its address of IPv6 in the tables.
    wire.until(&asker.run("frame('0001', '10.99.0.1', 6003).hex()"));
    write(&mut asker, &format!("frame('0001', '{stand_in}', 6003)"));
    write(&mut asker, last);
    assert_eq!(wire.until(&last_bytes), [&*last_bytes]);
    senders(&peer);
    // Not any more when another socket has the port, which takes IPv6 only.
    asker.run("os.close(w); w = bound6('::', 6003, only=1)");
    assert_eq!(asker.run("ask(c, ADD, local=('fd00:99::1', 6003), shown=w)"), "0");
    let mut other = host.other();
    other.run("s = udp(('10.99.0.1', 6003))");
    write(&mut asker, "frame('0001', '10.99.0.1', 6003)");
    assert_eq!(senders(&four), []);
    write(&mut asker, "frame6('0001', 'fd00:99::1', 6003)");
    assert_eq!(senders(&peer), [own(6003).into()]);
}

/// An address that goes and comes back: nothing leaves from it meanwhile.
#[test]
fn an_address_may_be_away_for_a_while() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    host.net.add_ipv6(Side::A, "fd00:99::7");
    let peer = host.peer_of_ipv6(7000);
    let mut asker = host.asker_of_ipv6();
    asker.run("p = bound6('::', 6000)");
    for own in ["fd00:99::7", "fd00:99::1"] {
        assert_eq!(asker.run(&format!("ask(c, ADD, local=('{own}', 6000), shown=p)")), "0");
    }
    peer.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let leaves = |asker: &mut Puppet| {
        write(asker, "frame6('0001', 'fd00:99::7', 6000)");
        write(asker, "frame6('0001', 'fd00:99::1', 6000)");
        std::iter::from_fn(|| peer.recv(&mut [0; 100]).ok()).count()
    };
    assert_eq!(leaves(&mut asker), 2);
    host.net.ip(Side::A, "-6 addr del fd00:99::7/64 dev veth-a");
    wait_for("its address is gone", || (leaves(&mut asker) == 1).then_some(()));
    host.net.add_ipv6(Side::A, "fd00:99::7");
    wait_for("it is back", || (leaves(&mut asker) == 2).then_some(()));
}

/// A library and a daemon of two versions: the daemon says so.
#[test]
fn another_version_is_refused() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut asker = host.asker(NOBODY);
    for version in [1, 3] {
        asker.run("e = meet()");
        asker.run(&format!(
            "e.send(message(OPEN, version={version}, interface=if_nametoindex('veth-a')))"
        ));
        let why = format!("the library speaks version {version} of the grants, vmad 2");
        asker.run("said = e.recv(200)");
        assert_eq!(
            asker.run("struct.unpack_from('=i', said)[0]"),
            libc::EPROTONOSUPPORT.to_string()
        );
        assert_eq!(asker.run("said[4:].rstrip(b'\\0').decode()"), format!("'{why}'"));
    }
    assert_eq!(host.taps(), 0);
}
