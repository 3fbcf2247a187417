//! Sockets in use while the network changes under them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::family::Family;
use crate::harness::{Namespaces, Puppet, Side, wait_for};

pub(crate) const PORT: u16 = 5000;

/// `pattern(size, seed)` of the puppet's stage.
pub(crate) fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + seed * 13 + (i >> 8) * 31) as u8).collect()
}

/// One datagram from the peer to the program and back, byte for byte.
#[track_caller]
pub(crate) fn round_trip(
    program: &mut Puppet,
    peer: &UdpSocket,
    to: impl Into<SocketAddr>,
    size: usize,
    seed: usize,
) {
    let to = to.into();
    let sent = pattern(size, seed);
    program.begin("echo(s)");
    peer.send_to(&sent, to).unwrap();
    program.end("echo(s)");
    let mut buffer = vec![0; 65536];
    let (len, from) = peer.recv_from(&mut buffer).expect("the answer arrives");
    assert_eq!(from, to);
    assert!(buffer[..len] == sent, "{size} bytes came back as other {len} bytes");
}

/// Round trips until one leaves the kernel's counters alone: the library has seen the change.
#[track_caller]
fn settles(
    net: &Namespaces,
    program: &mut Puppet,
    peer: &UdpSocket,
    to: impl Into<SocketAddr> + Copy,
) {
    let mut seed = 0;
    let family = if to.into().is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    wait_for("the traffic is offloaded", || {
        let watch = family.watch(net, Side::A);
        round_trip(program, peer, to, 100, seed);
        seed += 1;
        (watch.moved() == (0, 0)).then_some(())
    });
}

/// Datagrams from the program to the peer until one arrives without the kernel's help. Those that
/// are under way during a change may get lost.
#[track_caller]
fn sending_settles(net: &Namespaces, program: &mut Puppet, peer: &UdpSocket) {
    let (ip, port) = (peer.local_addr().unwrap().ip(), peer.local_addr().unwrap().port());
    let family = if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    peer.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    wait_for("what is sent arrives, offloaded", || {
        let watch = family.watch(net, Side::A);
        program.run(&format!("s.sendto(b'x', ('{ip}', {port}))"));
        let arrived = peer.recv_from(&mut [0; 16]).is_ok();
        (arrived && watch.moved() == (0, 0)).then_some(())
    });
}

/// A program with a bound socket `s`, offloaded already, and its peer.
pub(crate) fn in_use(net: &Namespaces, bound_to: &str) -> (Puppet, UdpSocket) {
    in_use_of(Family::Ipv4, net, bound_to)
}

fn in_use_of(family: Family, net: &Namespaces, bound_to: &str) -> (Puppet, UdpSocket) {
    let mut program = net.puppet(Side::A);
    program.run(&format!("s = udp(('{bound_to}', {PORT}))"));
    let peer = family.socket(net, Side::B, family.of(Side::B));
    if family == Family::Ipv6 {
        // A peer is known from its first datagram on.
        round_trip(&mut program, &peer, (family.of(Side::A), PORT), 64, 0);
    }
    let watch = family.watch(net, Side::A);
    round_trip(&mut program, &peer, (family.of(Side::A), PORT), 64, 1);
    watch.still();
    (program, peer)
}

/// Lets the program end; its sockets' counters show traffic that went past the kernel.
#[track_caller]
pub(crate) fn counted(program: &mut Puppet) {
    let traffic = program.finish();
    assert!(traffic.rx >= 2 && traffic.tx >= 2, "{traffic:?}");
}

pub(crate) fn reassembled(net: &Namespaces, side: Side) -> u64 {
    let text = net.read_proc(side, "snmp");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let at = lines.next().unwrap().split_whitespace().position(|n| n == "ReasmOKs").unwrap();
    lines.next().unwrap().split_whitespace().nth(at).unwrap().parse().unwrap()
}

// covers: RUN-01, NET-01, NET-04, NET-45, RUN-20, LIM-78
#[test]
fn echo_is_offloaded() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    for n in 0..100 {
        round_trip(&mut program, &peer, Side::A.at(PORT), n, n);
    }
    let traffic = program.finish();
    watch.check(&traffic, 101, 101);
}

// covers: LIM-25, NET-06
#[test]
fn an_address_added_later_is_offloaded_too() {
    for family in Family::BOTH {
        let net = family.namespaces();
        let (mut program, first) = in_use_of(family, &net, family.any());
        let [new, far] = [Side::A, Side::B].map(|side| family.second_of(side));
        family.add_address(&net, Side::B, far);
        family.add_neighbour(&net, Side::B, new, Side::A.mac());
        family.add_address(&net, Side::A, new);
        family.add_neighbour(&net, Side::A, far, Side::B.mac());
        let second = family.socket(&net, Side::B, far);
        settles(&net, &mut program, &second, (new, PORT));

        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &second, (new, PORT), 200, n);
            round_trip(&mut program, &first, (family.of(Side::A), PORT), 200, n);
        }
        watch.still();
        counted(&mut program);
    }
}

/// Takes an address away that is not the only one.
fn remove_second(family: Family, net: &Namespaces) {
    let (address, prefix) = (family.second_of(Side::A), family.prefix());
    net.ip(Side::A, &format!("address del {address}/{prefix} dev veth-a"));
}

// covers: LIM-25, NET-06
#[test]
fn an_address_removed_leaves_the_others_offloaded() {
    for family in Family::BOTH {
        let net = family.namespaces();
        family.add_address(&net, Side::A, family.second_of(Side::A));
        let (mut program, peer) = in_use_of(family, &net, family.any());
        remove_second(family, &net);
        let at = (family.of(Side::A), PORT);
        settles(&net, &mut program, &peer, at);
        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &peer, at, 200, n);
        }
        watch.still();
        counted(&mut program);
    }
}

// covers: LIM-25
#[test]
fn a_socket_whose_address_is_gone_fails_as_in_the_kernel() {
    for family in Family::BOTH {
        let net = family.namespaces();
        let (own, to) = (family.second_of(Side::A), family.of(Side::B));
        let mut fate = String::new();
        for preloaded in [false, true] {
            family.add_address(&net, Side::A, own);
            let program = net.program(Side::A, crate::harness::PYTHON);
            let mut program =
                Puppet::start(if preloaded { program.with_library() } else { program });
            program.run(&format!("s = udp(('{own}', 5001)); s.sendto(b'x', ('{to}', 9))"));
            remove_second(family, &net);
            if !preloaded {
                fate = fate_of_sending(&mut program, to);
            } else if fate != "'sent'" {
                wait_for(&format!("{family:?}: {fate}, as in the kernel"), || {
                    (fate_of_sending(&mut program, to) == fate).then_some(())
                });
            } else {
                // Of IPv6 Linux goes on sending. So long the library has to see the change.
                for _ in 0..50 {
                    assert_eq!(fate_of_sending(&mut program, to), fate, "{family:?}");
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// 'sent', or the error's name.
fn fate_of_sending(program: &mut Puppet, to: IpAddr) -> String {
    let code = format!(
        "\
try: s.sendto(b'x', ('{to}', 9)); result = 'sent'
except OSError as problem: result = errno.errorcode[problem.errno]"
    );
    program.run(&code);
    program.run("result")
}

// covers: NET-20, NET-23
#[test]
fn fragmentation_follows_the_mtu() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let at = Side::A.at(PORT);
    let before = reassembled(&net, Side::B);
    round_trip(&mut program, &peer, at, 1400, 2);
    assert_eq!(reassembled(&net, Side::B), before, "1400 bytes fit an MTU of 1500");

    net.ip(Side::A, "link set veth-a mtu 1000");
    // One way only: what the peer sends would not fit the cable.
    wait_for("what is sent is fragmented", || {
        let port = peer.local_addr().unwrap().port();
        program.run(&format!("s.sendto(pattern(1400, 3), ('10.99.0.2', {port}))"));
        let mut buffer = [0; 1500];
        assert_eq!(peer.recv(&mut buffer).expect("the datagram arrives"), 1400);
        assert!(buffer[..1400] == pattern(1400, 3));
        (reassembled(&net, Side::B) > before).then_some(())
    });
    net.ip(Side::B, "link set veth-b mtu 1000");
    let watch = net.watch(Side::A);
    let before = reassembled(&net, Side::B);
    for n in 0..20 {
        round_trip(&mut program, &peer, at, 1400, n);
    }
    assert_eq!(reassembled(&net, Side::B), before + 20);
    watch.still();

    net.ip(Side::B, "link set veth-b mtu 1500");
    net.ip(Side::A, "link set veth-a mtu 1500");
    wait_for("what is sent is no longer fragmented", || {
        let before = reassembled(&net, Side::B);
        round_trip(&mut program, &peer, at, 1400, 4);
        (reassembled(&net, Side::B) == before).then_some(())
    });
}

// covers: LIM-25, NET-07, NET-09
#[test]
fn a_route_that_changes_its_gateway_is_followed() {
    for family in Family::BOTH {
        let net = family.namespaces();
        // Two gateways on B, each with its own MAC address; B answers to the one it has.
        let second_mac = "02:00:00:99:00:77";
        let [first, second] = [family.of(Side::B), family.in_network(0, 3)];
        family.add_neighbour(&net, Side::A, second, second_mac);
        let (target, network) = (family.in_network(50, 1), family.in_network(50, 0));
        net.ip(Side::B, &format!("address add {target} dev lo"));
        let route = format!("{network}/{} via", family.prefix());
        net.ip(Side::A, &format!("route add {route} {first}"));
        let (mut program, _) = in_use_of(family, &net, &family.of(Side::A).to_string());
        let far = family.socket(&net, Side::B, target);
        let at = (family.of(Side::A), PORT);
        round_trip(&mut program, &far, at, 300, 1);

        net.ip(Side::B, &format!("link set veth-b address {second_mac}"));
        // Forgotten with the own address, and nobody asks by IPv6 from one of another interface.
        family.add_neighbour(&net, Side::B, family.of(Side::A), Side::A.mac());
        net.ip(Side::A, &format!("route replace {route} {second}"));
        sending_settles(&net, &mut program, &far);
        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &far, at, 300, n);
        }
        watch.still();
        counted(&mut program);
    }
}

// covers: LIM-25, NET-09
#[test]
fn a_neighbour_that_changes_its_mac_address_is_followed() {
    for family in Family::BOTH {
        let net = family.namespaces();
        let (mut program, peer) = in_use_of(family, &net, &family.of(Side::A).to_string());
        let mac = "02:00:00:99:00:55";
        net.ip(Side::B, &format!("link set veth-b address {mac}"));
        family.add_neighbour(&net, Side::A, family.of(Side::B), mac);
        sending_settles(&net, &mut program, &peer);
        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &peer, (family.of(Side::A), PORT), 300, n);
        }
        watch.still();
        counted(&mut program);
    }
}

// covers: LIM-25
#[test]
fn a_neighbour_that_announces_a_new_mac_address_is_followed() {
    for (family, option) in [(Family::Ipv4, "ipv4.conf/arp"), (Family::Ipv6, "ipv6.conf/ndisc")] {
        let net = family.without_neighbours();
        let (group, what) = option.split_once('/').unwrap();
        for name in ["all", "veth-b"] {
            net.sysctl(Side::B, &format!("net.{group}.{name}.{what}_notify"), "1");
        }
        let mut program = net.puppet(Side::A);
        program.run(&format!("s = udp(('{}', 5000))", family.of(Side::A)));
        let peer = family.socket(&net, Side::B, family.of(Side::B));
        settles(&net, &mut program, &peer, (family.of(Side::A), PORT));
        net.ip(Side::B, "link set veth-b address 02:00:00:99:00:55");
        sending_settles(&net, &mut program, &peer);
    }
}

// covers: LIM-25
#[test]
fn a_new_mac_address_of_the_own_interface_is_followed() {
    for family in Family::BOTH {
        let net = family.namespaces();
        let (own, mac) = (family.of(Side::A), "02:00:00:99:00:55");
        let (mut program, peer) = in_use_of(family, &net, &own.to_string());
        net.ip(Side::A, &format!("link set veth-a address {mac}"));
        family.add_neighbour(&net, Side::B, own, mac);
        settles(&net, &mut program, &peer, (own, PORT));
        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &peer, (own, PORT), 300, n);
        }
        watch.still();
        counted(&mut program);
    }
}

// covers: LIM-25
#[test]
fn the_kernel_resolves_an_unknown_neighbour_then_traffic_is_offloaded() {
    for family in Family::BOTH {
        let net = family.without_neighbours();
        let (own, to) = (family.of(Side::A), family.of(Side::B));
        let peer = family.socket(&net, Side::B, to);
        let port = peer.local_addr().unwrap().port();
        let mut program = net.puppet(Side::A);
        program.run(&format!("s = udp(('{own}', 5000))"));
        // Back to back, so that some leave before the neighbour is known: none is lost, none overtakes.
        program.run(&format!("for n in range(50): s.sendto(bytes([n]), ('{to}', {port}))"));
        for n in 0..50 {
            let mut buffer = [0; 8];
            let (len, _) =
                peer.recv_from(&mut buffer).unwrap_or_else(|e| panic!("datagram {n}: {e}"));
            assert_eq!(buffer[..len], [n], "in order");
        }
        settles(&net, &mut program, &peer, (own, PORT));
        let watch = family.watch(&net, Side::A);
        for n in 0..20 {
            round_trip(&mut program, &peer, (own, PORT), 300, n);
        }
        watch.still();
        let traffic = program.finish();
        assert!(traffic.tx_os >= 1, "the kernel sends the first one: {traffic:?}");
    }
}

// covers: LIM-25, NET-06
#[test]
fn an_interface_that_goes_down_and_comes_up_is_offloaded_again() {
    for family in Family::BOTH {
        let net = family.namespaces();
        // Linux forgets addresses of IPv6 otherwise.
        net.sysctl(Side::A, "net.ipv6.conf.veth-a.keep_addr_on_down", "1");
        let (mut program, peer) = in_use_of(family, &net, &family.of(Side::A).to_string());
        net.ip(Side::A, "link set veth-a down");
        net.ip(Side::A, "link set veth-a up");
        for side in [Side::A, Side::B] {
            let other = side.other();
            family.add_neighbour(&net, side, family.of(other), other.mac());
        }
        sending_settles(&net, &mut program, &peer);
        peer.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
        settles(&net, &mut program, &peer, (family.of(Side::A), PORT));
    }
}

// covers: LIM-25, NET-06
#[test]
fn an_interface_without_a_carrier_is_offloaded_once_it_has_one() {
    let net = Namespaces::new();
    net.ip(Side::B, "link set veth-b down");
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    net.ip(Side::B, "link set veth-b up");
    net.ip(Side::B, "neigh replace 10.99.0.1 lladdr 02:00:00:99:00:01 nud permanent dev veth-b");
    let peer = net.socket(Side::B);
    settles(&net, &mut program, &peer, Side::A.at(PORT));
}

// covers: LIM-25, NET-06
#[test]
fn an_interface_that_is_down_at_first_is_offloaded_once_it_is_up() {
    let net = Namespaces::new();
    net.ip(Side::A, "link set veth-a down");
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('0.0.0.0', 5000))");
    net.ip(Side::A, "link set veth-a up");
    for (side, peer) in [(Side::A, Side::B), (Side::B, Side::A)] {
        let (ip, mac, device) = (peer.ip(), peer.mac(), side.device());
        net.ip(side, &format!("neigh replace {ip} lladdr {mac} nud permanent dev {device}"));
    }
    let peer = net.socket(Side::B);
    settles(&net, &mut program, &peer, Side::A.at(PORT));
}

// covers: LIM-25
#[test]
fn a_program_survives_the_removal_of_its_interface() {
    let net = Namespaces::new();
    let (mut program, _peer) = in_use(&net, "10.99.0.1");
    net.ip(Side::A, "link del veth-a");
    program.run("s.settimeout(0.05)");
    assert!(program.raises("s.recv(10)").starts_with("TimeoutError"));
    wait_for("sending fails", || {
        let code = "\
try: s.sendto(b'x', ('10.99.0.2', 9)); result = 'sent'
except OSError as problem: result = problem.errno";
        program.run(code);
        (program.run("result") != "'sent'").then_some(())
    });
    program.run("s.close()");
    // Another socket works on what is left.
    program.run("t = udp(('127.0.0.1', 0)); t.sendto(b'me', t.getsockname())");
    assert_eq!(program.run("t.recv(9)"), "b'me'");
    program.finish();
}

// covers: API-15
#[test]
fn more_datagrams_than_the_queue_holds_are_dropped_not_fatal() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let watch = net.watch(Side::A);
    for _ in 0..20_000 {
        peer.send_to(&[9; 1000], Side::A.at(PORT)).unwrap();
    }
    // The internal thread has taken in what the program did not ask for; the oldest are kept.
    program.run("got = drain(s)");
    assert!(program.number("len(got)") > 50);
    assert_eq!(program.run("set(got) == {bytes([9]) * 1000}"), "True");
    wait_for("nothing is left", || {
        program.run("got = drain(s)");
        (program.number("len(got)") == 0).then_some(())
    });
    for n in 0..10 {
        round_trip(&mut program, &peer, Side::A.at(PORT), 100, n);
    }
    watch.still();
    counted(&mut program);
}
