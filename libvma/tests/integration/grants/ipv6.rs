//! Programs without any privilege whose datagrams of IPv6 come and go by a ring that `vmad` grants.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};

use rustix::process::Signal;

use super::{
    Host, NOBODY, answers, echo, loses_none, rule, sends_fragments, start, wakes_by_epoll,
};
use crate::dual_stack::{of, with_ipv6};
use crate::harness::{PATIENCE, Puppet, Side, wait_for};
use crate::ipv6_datagrams::SOCKETS;

impl Host {
    /// As [`Host::new`], with the addresses of IPv6.
    pub(super) fn of_ipv6(rule: &str) -> Host {
        let host = Host::new(rule);
        with_ipv6(&host.net);
        host
    }

    fn puppet_of_ipv6(&self) -> Puppet {
        let mut program = self.puppet(NOBODY);
        program.run(SOCKETS);
        program
    }

    /// A socket of the kernel's on side B.
    pub(super) fn peer_of_ipv6(&self, port: u16) -> UdpSocket {
        let at = SocketAddrV6::new(of(Side::B), port, 0, 0);
        let socket = self.net.within(Side::B, || UdpSocket::bind(at)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// As [`Host::echoes`], of IPv6.
    #[track_caller]
    fn echoes_of_ipv6(&self, program: &mut Puppet, len: usize) -> (u64, u64) {
        let peer = self.peer_of_ipv6(0);
        let watch = self.net.watch_ipv6(Side::A);
        echo(program, &peer, own(5000), len);
        watch.moved()
    }
}

pub(super) fn own(port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(of(Side::A), port, 0, 0)
}

#[test]
fn datagrams_of_ipv6_are_served() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet_of_ipv6();
    for at in ["('fd00:99::1', 5000)", "('::', 5000)", "('::', 5000), only=1"] {
        program.run(&format!("s = six({at})"));
        // The last one fills the packet.
        for len in [0, 50, 1452] {
            let moved = host.echoes_of_ipv6(&mut program, len);
            assert_eq!(moved, (0, 0), "{at}, {len} bytes: {}", host.daemon.printed());
        }
        program.run("s.close()");
    }
    assert_eq!(host.taps(), 1);
    program.finish();
    wait_for("nothing is left of it", || {
        (host.taps() == 0 && !host.net.is_steered(Side::A)).then_some(())
    });
}

/// Of both families, and one of IPv6 only beside one of IPv4 that have one port.
#[test]
fn a_socket_of_both_families_is_served_over_both() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet_of_ipv6();
    program.run("s = six(('::', 5000))");
    assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0));
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    assert_eq!(host.echoes_of_ipv6(&mut program, 1452), (0, 0));
    program.run("s.close()");
    program.run("six_only, four = six(('::', 5000), only=1), udp(('', 5000))");
    program.run("s = six_only");
    assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0));
    program.run("s = four");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
}

/// Of both families and bound to the interface: the daemon cannot tell whether it takes IPv4, which is the kernel's.
#[test]
fn a_socket_that_is_bound_to_the_interface_has_ipv4_from_the_kernel() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet_of_ipv6();
    let to_device = "s.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, b'veth-a')";
    program.run("s = six(('::', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    program.run(to_device);
    for of in ["bound later", "bound before"] {
        assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0), "{of}");
        assert_eq!(host.echoes(&mut program, 50), (10, 10), "{of}");
        program.run(&format!("s.close(); s = socket(AF_INET6, SOCK_DGRAM); {to_device}"));
        program.run("s.bind(('::', 5000)); s.settimeout(15)");
    }
    // A socket of IPv4 is served, or of an address.
    program.run(&format!("s.close(); s = socket(AF_INET, SOCK_DGRAM); {to_device}"));
    program.run("s.bind(('', 5000)); s.settimeout(15)");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
}

/// Several of one port: the kernel names one of them when it is asked for IPv4.
#[test]
fn each_of_several_with_a_port_may_send_over_both_families() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let peer = host.net.socket_at(Side::B, Side::B.at(7000));
    let mut asker = host.asker_of_ipv6();
    let mut second = host.asker_of_ipv6();
    for asker in [&mut asker, &mut second] {
        asker.run("p = bound6('::', 6000, share=SO_REUSEPORT)");
        assert_eq!(asker.run("ask(c, ADD, local=('10.99.0.1', 6000), shown=p)"), "0");
    }
    for asker in [&mut asker, &mut second] {
        asker.run("os.write(tap, frame('0001', '10.99.0.1', 6000))");
        assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 0);
    }
}

/// Connected, by each way to wait, more at once, and more than a packet.
#[test]
fn granted_sockets_of_ipv6_do_what_others_do() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet_of_ipv6();
    program.run("s = six(('::', 5000))");
    program.run("s.setblocking(False); e = select.epoll(); e.register(s, select.EPOLLIN)");
    let peer = host.peer_of_ipv6(7000);
    let watch = host.net.watch_ipv6(Side::A);
    wakes_by_epoll(&mut program, &peer, own(5000));
    // A socket that gets its address by connect().
    program.run("c = six(peer=('fd00:99::2', 7000))");
    answers(&mut program, &peer);
    let other = host.peer_of_ipv6(7001);
    program.run("c.connect(('fd00:99::2', 7001))");
    let from = answers(&mut program, &other);
    watch.still();
    loses_none(&mut program, &peer, own(5000));
    sends_fragments(&mut program, &other, from);
}

/// The kernel finds the peer, and says where it is (RFC 4861).
#[test]
fn a_neighbour_is_found() {
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    for side in [Side::A, Side::B] {
        let (device, peer) = (side.device(), of(side.other()));
        host.net.ip(side, &format!("-6 neigh del {peer} dev {device}"));
    }
    let mut program = host.puppet_of_ipv6();
    program.run("s = six(('fd00:99::1', 5000))");
    wait_for("it is served", || (host.echoes_of_ipv6(&mut program, 50) == (0, 0)).then_some(()));
}

/// As with IPv4: nothing is lost that comes while the daemon is away, and the ring comes back.
#[test]
fn the_daemon_may_be_started_again() {
    let granted = rule(Side::A.device(), NOBODY);
    let mut host = Host::of_ipv6(&granted);
    let mut program = host.puppet_of_ipv6();
    program.run("s = six(('::', 5000))");
    assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0));
    for signal in [Signal::TERM, Signal::KILL] {
        host.daemon.signal(signal);
        host.daemon.wait_for_end();
        let peer = host.peer_of_ipv6(0);
        for n in 0..10_u8 {
            peer.send_to(&[n; 50], own(5000)).unwrap();
            program.run("d, peer = s.recvfrom(100)");
            assert_eq!(program.run("d[0]"), n.to_string());
        }
        let sent = host.net.kernel_datagrams_of_ipv6(Side::A).1;
        wait_for("the kernel sends", || {
            program.run("s.sendto(b'x', peer)");
            (host.net.kernel_datagrams_of_ipv6(Side::A).1 > sent).then_some(())
        });
        assert_eq!(host.echoes_of_ipv6(&mut program, 50).0, 10, "by the kernel");
        host.daemon = start(&host.net, Side::A, &granted);
        wait_for("the ring is back", || {
            (host.echoes_of_ipv6(&mut program, 50) == (0, 0)).then_some(())
        });
        assert_eq!(host.taps(), 1);
    }
}

/// More peers than there are stand-ins for one sum of an address: the daemon leaves those beyond to the kernel.
#[test]
fn peers_without_a_stand_in_come_by_the_kernel() {
    const STAND_INS: u16 = 16;
    let host = Host::of_ipv6(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet_of_ipv6();
    program.run("s = six(('::', 5000))");
    assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0));
    program.run(
        "def got():\n    try: return s.recvfrom(100)[1][0]\n    except TimeoutError: return ''",
    );
    program.run("s.settimeout(0.1)");
    for n in 0..STAND_INS + 2 {
        let peer = Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0x100 + n, 0x200 - n);
        host.net.ip(Side::B, &format!("-6 addr add {peer}/64 dev veth-b nodad"));
        let at = SocketAddrV6::new(peer, 0, 0, 0);
        let socket = host.net.within(Side::B, || UdpSocket::bind(at)).unwrap();
        let watch = host.net.watch_ipv6(Side::A);
        let is_stranger = n >= STAND_INS;
        wait_for("a datagram comes", || {
            socket.send_to(b"whose?", own(5000)).unwrap();
            (program.run("got()") == format!("'{peer}'")).then_some(())
        });
        let by_kernel = watch.moved().0;
        assert_eq!(by_kernel > 0, is_stranger, "peer {n}: {by_kernel}");
    }
    program.run("s.settimeout(15)");
    assert_eq!(host.echoes_of_ipv6(&mut program, 50), (0, 0), "the others are served");
}
