//! Sockets in use while the network changes under them, and datagrams of every size.

use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use crate::harness::{Hook, Namespaces, Puppet, Side, wait_for};

const PORT: u16 = 5000;

/// `pattern(size, seed)` of the puppet's stage.
fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + seed * 13 + (i >> 8) * 31) as u8).collect()
}

/// One datagram from the peer to the program and back, byte for byte.
#[track_caller]
fn round_trip(program: &mut Puppet, peer: &UdpSocket, to: SocketAddrV4, size: usize, seed: usize) {
    let sent = pattern(size, seed);
    program.begin("echo(s)");
    peer.send_to(&sent, to).unwrap();
    program.end("echo(s)");
    let mut buffer = vec![0; 65536];
    let (len, from) = peer.recv_from(&mut buffer).expect("the answer arrives");
    assert_eq!(from, to.into());
    assert!(buffer[..len] == sent, "{size} bytes came back as other {len} bytes");
}

/// Round trips until one leaves the kernel's counters alone: the library has seen the change.
#[track_caller]
fn settles(net: &Namespaces, program: &mut Puppet, peer: &UdpSocket, to: SocketAddrV4) {
    let mut seed = 0;
    wait_for("the traffic is offloaded", || {
        let before = net.kernel_datagrams(Side::A);
        round_trip(program, peer, to, 100, seed);
        seed += 1;
        (net.kernel_datagrams(Side::A) == before).then_some(())
    });
}

/// Datagrams from the program to the peer until one arrives without the kernel's help. Those that
/// are under way during a change may get lost.
#[track_caller]
fn sending_settles(net: &Namespaces, program: &mut Puppet, peer: &UdpSocket) {
    let (ip, port) = (peer.local_addr().unwrap().ip(), peer.local_addr().unwrap().port());
    peer.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    wait_for("what is sent arrives, offloaded", || {
        let before = net.kernel_datagrams(Side::A);
        program.run(&format!("s.sendto(b'x', ('{ip}', {port}))"));
        let arrived = peer.recv_from(&mut [0; 16]).is_ok();
        (arrived && net.kernel_datagrams(Side::A) == before).then_some(())
    });
}

/// A program with a bound socket `s`, offloaded already, and its peer.
fn in_use(net: &Namespaces, bound_to: &str) -> (Puppet, UdpSocket) {
    let mut program = net.puppet(Side::A);
    program.run(&format!("s = udp(('{bound_to}', {PORT}))"));
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    round_trip(&mut program, &peer, Side::A.at(PORT), 64, 1);
    watch.still();
    (program, peer)
}

/// Lets the program end; its sockets' counters show traffic that went past the kernel.
#[track_caller]
fn counted(program: &mut Puppet) {
    let traffic = program.finish();
    assert!(traffic.rx >= 2 && traffic.tx >= 2, "{traffic:?}");
}

fn reassembled(net: &Namespaces, side: Side) -> u64 {
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
    let net = Namespaces::new();
    let (mut program, first) = in_use(&net, "0.0.0.0");
    net.ip(Side::B, "address add 10.99.1.2/24 dev veth-b");
    net.ip(Side::B, "neigh replace 10.99.1.1 lladdr 02:00:00:99:00:01 nud permanent dev veth-b");
    net.ip(Side::A, "address add 10.99.1.1/24 dev veth-a");
    net.ip(Side::A, "neigh replace 10.99.1.2 lladdr 02:00:00:99:00:02 nud permanent dev veth-a");
    let second = net.socket_at(Side::B, "10.99.1.2:0".parse().unwrap());
    let new_address: SocketAddrV4 = "10.99.1.1:5000".parse().unwrap();
    settles(&net, &mut program, &second, new_address);

    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &second, new_address, 200, n);
        round_trip(&mut program, &first, Side::A.at(PORT), 200, n);
    }
    watch.still();
    counted(&mut program);
}

// covers: LIM-25, NET-06
#[test]
fn an_address_removed_leaves_the_others_offloaded() {
    let net = Namespaces::new();
    net.ip(Side::A, "address add 10.99.1.1/24 dev veth-a");
    let (mut program, peer) = in_use(&net, "0.0.0.0");
    net.ip(Side::A, "address del 10.99.1.1/24 dev veth-a");
    settles(&net, &mut program, &peer, Side::A.at(PORT));
    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &peer, Side::A.at(PORT), 200, n);
    }
    watch.still();
    counted(&mut program);
}

// covers: LIM-25
#[test]
fn a_socket_whose_address_is_gone_fails_as_in_the_kernel() {
    let net = Namespaces::new();
    let answers = [false, true].map(|preloaded| {
        net.ip(Side::A, "address add 10.99.1.1/24 dev veth-a");
        let program = net.program(Side::A, crate::harness::PYTHON);
        let mut program = Puppet::start(if preloaded { program.with_library() } else { program });
        program.run("s = udp(('10.99.1.1', 5001))");
        program.run("s.sendto(b'x', ('10.99.0.2', 9))");
        net.ip(Side::A, "address del 10.99.1.1/24 dev veth-a");
        // The change is followed within moments.
        wait_for("sending fails", || {
            let code = "\
try: s.sendto(b'x', ('10.99.0.2', 9)); result = 'sent'
except OSError as problem: result = errno.errorcode[problem.errno]";
            program.run(code);
            let result = program.run("result");
            (result != "'sent'").then_some(result)
        })
    });
    assert_eq!(answers[0], answers[1]);
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
    let net = Namespaces::new();
    // Two gateways on B, each with its own MAC address; B answers to the one it has.
    let second_mac = "02:00:00:99:00:77";
    net.ip(
        Side::A,
        &format!("neigh replace 10.99.0.3 lladdr {second_mac} nud permanent dev veth-a"),
    );
    net.ip(Side::B, "address add 10.50.0.1/32 dev lo");
    net.ip(Side::A, "route add 10.50.0.0/24 via 10.99.0.2");
    let (mut program, _) = in_use(&net, "10.99.0.1");
    let far = net.socket_at(Side::B, "10.50.0.1:0".parse().unwrap());
    round_trip(&mut program, &far, Side::A.at(PORT), 300, 1);

    net.ip(Side::B, &format!("link set veth-b address {second_mac}"));
    net.ip(Side::A, "route replace 10.50.0.0/24 via 10.99.0.3");
    sending_settles(&net, &mut program, &far);
    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &far, Side::A.at(PORT), 300, n);
    }
    watch.still();
    counted(&mut program);
}

// covers: LIM-25, NET-09
#[test]
fn a_neighbour_that_changes_its_mac_address_is_followed() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let mac = "02:00:00:99:00:55";
    net.ip(Side::B, &format!("link set veth-b address {mac}"));
    net.ip(Side::A, &format!("neigh replace 10.99.0.2 lladdr {mac} nud permanent dev veth-a"));
    sending_settles(&net, &mut program, &peer);
    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &peer, Side::A.at(PORT), 300, n);
    }
    watch.still();
    counted(&mut program);
}

// covers: LIM-25
#[test]
fn a_neighbour_that_announces_a_new_mac_address_is_followed() {
    let net = Namespaces::with_arp();
    net.sysctl(Side::B, "net.ipv4.conf.all.arp_notify", "1");
    net.sysctl(Side::B, "net.ipv4.conf.veth-b.arp_notify", "1");
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    let peer = net.socket(Side::B);
    settles(&net, &mut program, &peer, Side::A.at(PORT));
    net.ip(Side::B, "link set veth-b address 02:00:00:99:00:55");
    sending_settles(&net, &mut program, &peer);
}

// covers: LIM-25
#[test]
fn a_new_mac_address_of_the_own_interface_is_followed() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let mac = "02:00:00:99:00:55";
    net.ip(Side::A, &format!("link set veth-a address {mac}"));
    net.ip(Side::B, &format!("neigh replace 10.99.0.1 lladdr {mac} nud permanent dev veth-b"));
    settles(&net, &mut program, &peer, Side::A.at(PORT));
    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &peer, Side::A.at(PORT), 300, n);
    }
    watch.still();
    counted(&mut program);
}

// covers: LIM-25
#[test]
fn the_kernel_resolves_an_unknown_neighbour_then_traffic_is_offloaded() {
    let net = Namespaces::with_arp();
    let peer = net.socket(Side::B);
    let port = peer.local_addr().unwrap().port();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    // Back to back, so that some leave before the neighbour is known: none is lost, none overtakes.
    program.run(&format!("for n in range(50): s.sendto(bytes([n]), ('10.99.0.2', {port}))"));
    for n in 0..50 {
        let mut buffer = [0; 8];
        let (len, _) = peer.recv_from(&mut buffer).unwrap_or_else(|e| panic!("datagram {n}: {e}"));
        assert_eq!(buffer[..len], [n], "in order");
    }
    settles(&net, &mut program, &peer, Side::A.at(PORT));
    let watch = net.watch(Side::A);
    for n in 0..20 {
        round_trip(&mut program, &peer, Side::A.at(PORT), 300, n);
    }
    watch.still();
    let traffic = program.finish();
    assert!(traffic.tx_os >= 1, "the kernel sends the first one: {traffic:?}");
}

// covers: LIM-25, NET-06
#[test]
fn an_interface_that_goes_down_and_comes_up_is_offloaded_again() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    net.ip(Side::A, "link set veth-a down");
    net.ip(Side::A, "link set veth-a up");
    for (side, peer) in [(Side::A, Side::B), (Side::B, Side::A)] {
        let (ip, mac, device) = (peer.ip(), peer.mac(), side.device());
        net.ip(side, &format!("neigh replace {ip} lladdr {mac} nud permanent dev {device}"));
    }
    sending_settles(&net, &mut program, &peer);
    peer.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    settles(&net, &mut program, &peer, Side::A.at(PORT));
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

// covers: NET-23, LIM-20
#[test]
fn large_datagrams_are_fragmented_and_reassembled() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    for (seed, size) in
        [1472, 1473, 1475, 1476, 2000, 2960, 8000, 30_000, 65_507].into_iter().enumerate()
    {
        for turn in 0..5 {
            round_trip(&mut program, &peer, Side::A.at(PORT), size, seed * 5 + turn);
        }
    }
    let traffic = program.finish();
    watch.check(&traffic, 46, 46);
}

// covers: NET-23, API-08
#[test]
fn a_datagram_beyond_the_limit_is_refused() {
    let net = Namespaces::new();
    let (mut program, _peer) = in_use(&net, "10.99.0.1");
    let error = program.raises("s.sendto(bytes(65508), ('10.99.0.2', 9))");
    assert!(error.contains("Message too long"), "{error}");
}

#[test]
fn a_socket_sends_by_us_again_after_a_corked_datagram() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let to = format!("('10.99.0.2', {})", peer.local_addr().unwrap().port());
    let mut buffer = [0; 16];
    // The kernel puts the two together.
    program.run(&format!("s.sendto(b'one', 0x8000, {to}); s.sendto(b'two', {to})"));
    assert_eq!(peer.recv(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"onetwo");
    let before = net.kernel_datagrams(Side::A);
    program.run(&format!("s.sendto(b'three', {to})"));
    assert_eq!(peer.recv(&mut buffer).unwrap(), 5);
    assert_eq!(net.kernel_datagrams(Side::A), before);
}

// covers: NET-01
#[test]
fn trains_leave_as_datagrams() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let to = format!("('10.99.0.2', {})", peer.local_addr().unwrap().port());
    let watch = net.watch(Side::A);
    let mut buffer = vec![0; 65536];
    for (size, len) in [(1400, 14_000), (1472, 65_507), (700, 1000), (1, 128), (1472, 1472)] {
        program.run(&format!("s.setsockopt(17, 103, {size})"));
        for pieces in [1, 2, 3] {
            // In one buffer, or in several.
            program.run(&format!("sent = pattern({len}, {pieces})"));
            let part = usize::div_ceil(len, pieces);
            let parts = format!("[sent[n:n + {part}] for n in range(0, {len}, {part})]");
            let count = program.run(&format!("s.sendmsg({parts}, [], 0, {to})"));
            assert_eq!(count, len.to_string());
            let mut got = Vec::new();
            while got.len() < len {
                let (count, _) = peer.recv_from(&mut buffer).expect("the next datagram");
                assert_eq!(count, size.min(len - got.len()));
                got.extend_from_slice(&buffer[..count]);
            }
            assert!(got == pattern(len, pieces), "{len} bytes in datagrams of {size}");
        }
    }
    // Too long for the MTU; too many.
    program.run("s.setsockopt(17, 103, 1473)");
    let error = program.raises(&format!("s.sendto(sent, {to}) and s.sendto(bytes(1473), {to})"));
    assert!(error.contains("Message too long"), "{error}");
    program.run("s.setsockopt(17, 103, 1)");
    let error = program.raises(&format!("s.sendto(bytes(129), {to})"));
    assert!(error.contains("Invalid argument"), "{error}");
    let traffic = program.finish();
    watch.check(&traffic, 0, 500);
}

#[test]
fn trains_between_two_programs_are_offloaded_at_both_ends() {
    let net = Namespaces::new();
    let (mut program, _peer) = in_use(&net, "10.99.0.1");
    let mut other = net.puppet(Side::B);
    other.run("s = udp(('10.99.0.2', 5001))");
    other.run("s.setsockopt(17, 104, 1)");
    let (here, there) = (net.watch(Side::A), net.watch(Side::B));
    for (size, len) in [(1400, 14_000), (1472, 60_000), (1, 128), (700, 1000)] {
        program.run(&format!("s.setsockopt(17, 103, {size})"));
        let send = format!("s.sendto(pattern({len}, 5), ('10.99.0.2', 5001))");
        assert_eq!(program.run(&send), len.to_string());
        other.run("got, told, flags, source = s.recvmsg(65535, 64)");
        assert_eq!(
            other.run(&format!("got == pattern({len}, 5), source")),
            "(True, ('10.99.0.1', 5000))"
        );
        assert_eq!(other.run("struct.unpack('i', told[0][2])[0]"), size.to_string());
    }
    here.still();
    there.still();
}

// covers: NET-04
#[test]
fn a_segmented_train_of_the_peer_is_offloaded() {
    let net = Namespaces::new();
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    let mut sender = Puppet::start(net.program(Side::B, crate::harness::PYTHON));
    sender.run("s = udp(peer=('10.99.0.1', 5000))");
    sender.run("s.setsockopt(17, 103, 1400)");
    sender.run("sent = b''.join(pattern(1400, n) for n in range(10))");
    let watch = net.watch(Side::A);
    for _ in 0..20 {
        sender.run("s.send(sent)");
        program.run("got = [s.recv(65535) for n in range(10)]");
        assert_eq!(program.run("[len(one) for one in got]"), format!("{:?}", [1400; 10]));
        assert_eq!(program.run("got == [pattern(1400, n) for n in range(10)]"), "True");
    }
    // A train that is shorter than the MTU.
    sender.run("s.setsockopt(17, 103, 700)");
    sender.run("s.send(sent[:1000])");
    program.run("got = [s.recv(65535) for n in range(2)]");
    assert_eq!(program.run("[len(one) for one in got]"), "[700, 300]");
    assert_eq!(program.run("b''.join(got) == pattern(1400, 0)[:1000]"), "True");
    round_trip(&mut program, &peer, Side::A.at(PORT), 1400, 0);
    watch.still();

    // As one message.
    program.run("s.setsockopt(17, 104, 1)");
    sender.run("s.setsockopt(17, 103, 1400)");
    sender.run("s.send(sent)");
    program.run("got, told, flags, source = s.recvmsg(65535, 64)");
    assert_eq!(program.run("got == b''.join(pattern(1400, n) for n in range(10))"), "True");
    assert_eq!(program.run("told == [(17, 104, struct.pack('i', 1400))]"), "True");
    watch.still();
    counted(&mut program);
}

// covers: NET-01, NET-23
#[test]
fn the_xdp_hook_offloads_too() {
    let net = Namespaces::new();
    for (mode, hook) in [("native", Hook::NativeXdp), ("generic", Hook::GenericXdp)] {
        let watch = net.watch(Side::A);
        let program = net.program(Side::A, crate::harness::PYTHON).with_library();
        let mut program = Puppet::start(program.env("VMA_XDP_MODE", mode));
        program.run("s = udp(('10.99.0.1', 5000))");
        assert_eq!(net.steering(Side::A), Some(hook));
        let peer = net.socket(Side::B);
        for (seed, size) in [0, 1, 64, 1472, 1473, 9000, 65_507].into_iter().enumerate() {
            round_trip(&mut program, &peer, Side::A.at(PORT), size, seed);
        }
        let traffic = program.finish();
        watch.check(&traffic, 7, 7);
    }
}

// covers: NET-20, NET-23
#[test]
fn jumbo_frames_are_offloaded() {
    let net = Namespaces::new();
    for side in [Side::A, Side::B] {
        net.ip(side, &format!("link set {} mtu 9000", side.device()));
    }
    let watch = net.watch(Side::A);
    let reassembled_before = reassembled(&net, Side::B);
    let (mut program, peer) = in_use(&net, "10.99.0.1");
    for (seed, size) in [1473, 2048, 4000, 8900, 8972].into_iter().enumerate() {
        for turn in 0..10 {
            round_trip(&mut program, &peer, Side::A.at(PORT), size, seed * 10 + turn);
        }
    }
    assert_eq!(reassembled(&net, Side::B), reassembled_before, "nothing was fragmented");
    round_trip(&mut program, &peer, Side::A.at(PORT), 20_000, 9);
    let traffic = program.finish();
    watch.check(&traffic, 52, 52);
}
