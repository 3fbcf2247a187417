//! Parameters of sending datagrams and of steering them.

use super::{counter, puppet};
use crate::harness::{Hook, Namespaces, Side, wait_for};

// covers: API-20
#[test]
fn sockets_begin_with_the_loopback_that_is_said() {
    let net = Namespaces::new();
    for value in ["0", "1"] {
        let mut program = puppet(&net, &[("VMA_TX_MC_LOOPBACK", value)]);
        let said = program.run("udp().getsockopt(IPPROTO_IP, IP_MULTICAST_LOOP)");
        assert_eq!(said, value);
    }
}

// covers: NET-20
#[test]
fn datagrams_are_cut_to_the_mtu_that_is_said() {
    let net = Namespaces::new();
    for (mtu, cut) in [("600", 1), ("0", 0)] {
        let peer = net.socket(Side::B);
        let port = peer.local_addr().unwrap().port();
        let mut program = puppet(&net, &[("VMA_MTU", mtu)]);
        program
            .run(&format!("s = udp(('10.99.0.1', 5000)); s.sendto(b'x', ('10.99.0.2', {port}))"));
        peer.recv(&mut [0; 10]).unwrap();
        let before = counter(&net, Side::B, "Ip", "ReasmOKs");
        program.run(&format!("s.sendto(b'x' * 1000, ('10.99.0.2', {port}))"));
        assert_eq!(peer.recv(&mut [0; 2000]).unwrap(), 1000);
        assert_eq!(counter(&net, Side::B, "Ip", "ReasmOKs") - before, cut, "{mtu}");
    }
}

// covers: NET-40, LIM-81
#[test]
fn connected_sockets_are_steered_by_as_much_as_is_said() {
    let net = Namespaces::new();
    for (rules, by_kernel) in [("0", 1), ("1", 0)] {
        let (peer, stranger) = (net.socket(Side::B), net.socket(Side::B));
        let port = peer.local_addr().unwrap().port();
        let mut program = puppet(&net, &[("VMA_UDP_3T_RULES", rules)]);
        program.run(&format!("s = udp(('10.99.0.1', 5000), ('10.99.0.2', {port}))"));
        peer.send_to(b"x", Side::A.at(5000)).unwrap();
        program.run("s.recv(10)");
        // What nobody wants shows in the counters of whoever it was steered to.
        let before = counter(&net, Side::A, "Udp", "NoPorts");
        stranger.send_to(b"x", Side::A.at(5000)).unwrap();
        peer.send_to(b"y", Side::A.at(5000)).unwrap();
        assert_eq!(program.run("s.recv(10)"), "b'y'");
        assert_eq!(counter(&net, Side::A, "Udp", "NoPorts") - before, by_kernel, "{rules}");
    }
}

#[test]
fn the_steering_program_runs_where_is_said() {
    let net = Namespaces::new();
    let modes = [
        ("generic", Some(Hook::GenericXdp)),
        ("native", Some(Hook::NativeXdp)),
        // Only where the kernel has it.
        ("tc", Some(Hook::Tc).filter(|tc| Hook::best() == *tc)),
        ("auto", Some(Hook::best())),
    ];
    for (mode, hook) in modes {
        let mut program = puppet(&net, &[("VMA_XDP_MODE", mode)]);
        program.run("s = udp(('10.99.0.1', 5000))");
        assert_eq!(net.steering(Side::A), hook, "{mode}");
        program.finish();
        wait_for("nothing is attached", || (!net.is_steered(Side::A)).then_some(()));
    }
}

#[test]
fn counters_go_to_the_file_that_is_said() {
    let net = Namespaces::new();
    let file = net.file("counters.%d");
    let mut program = puppet(&net, &[("VMA_STATS_FILE", file.to_str().unwrap())]);
    program.run("s = udp(('10.99.0.1', 5000)); s.sendto(b'x', ('10.99.0.2', 9)); s.close()");
    let file = net.file(&format!("counters.{}", program.id()));
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("Tx Offload: 0 / 1 / 0"), "{text}");
}
