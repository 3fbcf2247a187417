//! Sockets that were shown to `vmad`, and are bound elsewhere since then, so that another user may have what they had.

use super::hostile::senders;
use super::ipv6::own;
use super::wire::write;
use super::{Host, NOBODY, rule};
use crate::harness::{Puppet, Side};

/// Gives back the port that the kernel has chosen.
const DISCONNECT: &str =
    "import ctypes; disconnect = lambda s: ctypes.CDLL(None).connect(s.fileno(), bytes(28), 28)";

const TO_DEVICE: &str =
    "to_device = lambda s, name: s.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, name)";

impl Host {
    fn rebinder(&self) -> Puppet {
        let mut asker = self.asker_of_ipv6();
        asker.run(DISCONNECT);
        asker.run(TO_DEVICE);
        asker
    }
}

/// A socket that takes IPv6 only since then stands beside another user's of IPv4.
#[test]
fn who_takes_ipv6_only_sends_nothing_of_ipv4() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let [four, six] = [host.net.socket_at(Side::B, Side::B.at(7000)), host.peer_of_ipv6(7000)];
    let mut asker = host.rebinder();
    asker.run("s = socket(AF_INET6, SOCK_DGRAM); s.bind(('::', 0)); port = s.getsockname()[1]");
    for own in ["10.99.0.1", "fd00:99::1"] {
        assert_eq!(
            asker.run(&format!("ask(c, ADD, local=('{own}', port), shown=s.fileno())")),
            "0"
        );
    }
    let port: u16 = asker.run("port").parse().unwrap();
    write(&mut asker, "frame('0001', '10.99.0.1', port)");
    assert_eq!(senders(&four), [Side::A.at(port).into()]);
    assert_eq!(asker.run("disconnect(s)"), "0");
    assert_eq!(asker.run("s.getsockname()[1]"), "0");
    asker.run("s.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1); s.bind(('::', port))");
    for theirs in [
        format!("s = udp(('10.99.0.1', {port}))"),
        format!("s = udp(('', {port}))"),
        // Of IPv4 only, too.
        format!("s = socket(AF_INET6, SOCK_DGRAM); s.bind(('::ffff:0.0.0.0', {port}))"),
    ] {
        let mut other = host.other();
        other.run(&theirs);
        write(&mut asker, "frame('0001', '10.99.0.1', port)");
        assert_eq!(senders(&four), [], "{theirs}");
        write(&mut asker, "frame6('0001', 'fd00:99::1', port)");
        assert_eq!(senders(&six), [own(port).into()], "{theirs}");
        other.kill();
    }
    // Another socket of the asker's at the TAP, which takes both, says nothing of the first one.
    asker.run("to_device(s, b'veth-a')");
    let mut other = host.other();
    other.run(TO_DEVICE);
    other.run("s = socket(AF_INET, SOCK_DGRAM); to_device(s, b'veth-a')");
    other.run(&format!("s.bind(('10.99.0.1', {port}))"));
    asker.run("q = socket(AF_INET6, SOCK_DGRAM); to_device(q, b'vma0'); q.bind(('::', port))");
    write(&mut asker, "frame('0001', '10.99.0.1', port)");
    assert_eq!(senders(&four), []);
}

/// Within one family: a socket that has another address or port sends nothing from the former one.
#[test]
fn who_is_bound_elsewhere_sends_nothing_from_where_it_was() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let four = host.net.socket_at(Side::B, Side::B.at(7000));
    let mut asker = host.rebinder();
    for elsewhere in ["('127.0.0.1', port)", "('10.99.0.1', 0)"] {
        asker.run("s = socket(AF_INET, SOCK_DGRAM); s.bind(('10.99.0.1', 0))");
        asker.run("port = s.getsockname()[1]");
        assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', port), shown=s.fileno())"), "0");
        let port: u16 = asker.run("port").parse().unwrap();
        write(&mut asker, "frame('0001', '10.99.0.1', port)");
        assert_eq!(senders(&four), [Side::A.at(port).into()]);
        assert_eq!(asker.run("disconnect(s)"), "0");
        asker.run(&format!("s.bind({elsewhere})"));
        write(&mut asker, "frame('0001', '10.99.0.1', port)");
        assert_eq!(senders(&four), [], "{elsewhere}");
    }
}

/// A socket that is bound to another interface leaves room for another user's on this one.
#[test]
fn who_is_bound_to_another_interface_sends_nothing_by_this_one() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let [four, six] = [host.net.socket_at(Side::B, Side::B.at(7000)), host.peer_of_ipv6(7000)];
    let mut asker = host.rebinder();
    asker.run("s = socket(AF_INET, SOCK_DGRAM); s.bind(('', 6000))");
    asker.run("t = socket(AF_INET6, SOCK_DGRAM); t.bind(('fd00:99::1', 6000))");
    for (own, shown) in [("10.99.0.1", "s"), ("fd00:99::1", "t")] {
        let add = format!("ask(c, ADD, local=('{own}', 6000), shown={shown}.fileno())");
        assert_eq!(asker.run(&add), "0");
    }
    let leave = |asker: &mut Puppet| {
        write(asker, "frame('0001', '10.99.0.1', 6000)");
        write(asker, "frame6('0001', 'fd00:99::1', 6000)");
        [senders(&four), senders(&six)].map(|seen| seen.len())
    };
    assert_eq!(leave(&mut asker), [1, 1]);
    asker.run("to_device(s, b'lo'); to_device(t, b'lo')");
    let mut other = host.other();
    other.run(TO_DEVICE);
    other.run("s, t = socket(AF_INET, SOCK_DGRAM), socket(AF_INET6, SOCK_DGRAM)");
    other.run("to_device(s, b'veth-a'); to_device(t, b'veth-a')");
    other.run("s.bind(('10.99.0.1', 6000)); t.bind(('fd00:99::1', 6000))");
    assert_eq!(leave(&mut asker), [0, 0]);
    // On the interface itself it is the kernel's, too. (A socket without CAP_NET_RAW is bound to one interface for good.)
    asker.run("s = socket(AF_INET, SOCK_DGRAM); to_device(s, b'veth-a'); s.bind(('', 6001))");
    assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6001), shown=s.fileno())"), "0");
    write(&mut asker, "frame('0001', '10.99.0.1', 6001)");
    assert_eq!(senders(&four), [Side::A.at(6001).into()]);
    // The program at the hook cannot tell which of both families such a socket takes.
    asker.run("s = socket(AF_INET6, SOCK_DGRAM); to_device(s, b'veth-a'); s.bind(('::', 6002))");
    assert_eq!(
        asker.run("ask(c, ADD, local=('10.99.0.1', 6002), shown=s.fileno()) - EOPNOTSUPP"),
        "0"
    );
    assert_eq!(asker.run("ask(c, ADD, local=('fd00:99::1', 6002), shown=s.fileno())"), "0");
}
