//! Datagrams of every size, and trains of them.

use crate::harness::{Hook, Namespaces, Puppet, Side};
use crate::live::{PORT, counted, in_use, pattern, reassembled, round_trip};

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
