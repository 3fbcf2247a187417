//! Rules in a real kernel: B's frames reach A's TAP or A's kernel, and `tc` shows afterwards what
//! it showed before. Root only.

use std::net::UdpSocket;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libvma_dev::agent::{Action, Flow, FlowKind};
use rustix::process::Pid;

use super::Traffic;
use crate::namespace::network::{Network, PATIENCE, Program, Side};
use crate::namespace::{Namespace, Namespaces};

const TAP: &str = include_str!("../../../tests/network/tap.py");

/// Long enough for what is sure not to come.
const NEVER: Duration = Duration::from_millis(150);

const OWNER: i32 = 4711;
const OTHER: i32 = 4712;

/// A has a TAP and the rules, B sends.
struct Scene {
    network: Network,
    tap: Program,
    tap_index: u32,
    interface: u32,
    namespace: Rc<Namespace>,
    traffic: Traffic,
}

impl Scene {
    fn new() -> Self {
        let network = Network::new();
        let tap = network.python(Side::A, TAP, &["tap0"]);
        let tap_index = tap.expect("tap").parse().expect("an index");
        let namespace = Namespaces::new()
            .of(Pid::from_raw(tap.pid()).expect("a process"))
            .expect("root may look");
        let interface = network
            .run(Side::A, "cat /sys/class/net/veth-a/ifindex")
            .trim()
            .parse()
            .expect("an index");
        Self { network, tap, tap_index, interface, namespace, traffic: Traffic::new() }
    }

    fn flow(&self, kind: FlowKind, local: &str, peer: &str) -> Flow {
        let address = |text: &str| text.parse().expect("an address");
        Flow {
            pid: OWNER,
            wants_answer: true,
            kind,
            action: Action::Add,
            interface: self.interface,
            tap: self.tap_index,
            local: address(local),
            peer: address(peer),
        }
    }

    /// UDP to 10.98.0.1 and this port.
    fn udp(&self, port: u16) -> Flow {
        self.flow(FlowKind::Udp3Tuple, &format!("10.98.0.1:{port}"), "0.0.0.0:0")
    }

    fn add(&mut self, owner: i32, flow: &Flow) {
        self.traffic.add(owner, &self.namespace, flow).unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn delete(&mut self, owner: i32, flow: &Flow) {
        let result = self.traffic.delete(owner, &self.namespace, flow);
        result.unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn refused(&mut self, flow: &Flow) -> String {
        let error = self.traffic.add(OWNER, &self.namespace, flow).expect_err("it cannot be");
        format!("{error:#}")
    }

    /// All that `tc` knows on A's side.
    fn shown(&self) -> String {
        let mut shown = self.network.run(Side::A, "tc qdisc show");
        for device in ["lo", "veth-a", "tap0"] {
            if shown.contains(&format!("dev {device} ")) {
                shown += device;
                shown +=
                    &self.network.run(Side::A, &format!("tc filter show dev {device} ingress"));
            }
        }
        shown
    }

    /// A socket of A's kernel.
    fn kernel(&self, port: u16) -> UdpSocket {
        self.network.inside(Side::A, || {
            let socket = UdpSocket::bind(("10.98.0.1", port)).expect("a free port");
            socket.set_read_timeout(Some(PATIENCE)).expect("an option");
            socket
        })
    }

    fn send(&self, from: Side, source_port: u16, port: u16) {
        self.network.inside(from, || {
            let socket = UdpSocket::bind((from.ip(), source_port)).expect("a free port");
            socket.send_to(b"hello", ("10.98.0.1", port)).expect("sent");
        });
    }

    /// From a port of B to one of A, and it must reach A's kernel only.
    fn assert_kernel(&self, kernel: &UdpSocket) {
        let port = kernel.local_addr().expect("an address").port();
        self.send(Side::B, 3000, port);
        let (length, _) = kernel.recv_from(&mut [0; 100]).expect("the kernel gets it");
        assert_eq!(length, 5);
        assert_eq!(self.tap.line_within(NEVER), None, "the TAP must not get it");
    }

    /// The same, and it must reach the TAP only.
    fn assert_tap(&self, kernel: &UdpSocket) {
        let port = kernel.local_addr().expect("an address").port();
        self.send(Side::B, 3000, port);
        assert_eq!(self.tap.expect("udp"), format!("10.98.0.2:3000 10.98.0.1:{port}"));
        kernel.set_read_timeout(Some(NEVER)).expect("an option");
        assert!(kernel.recv_from(&mut [0; 100]).is_err(), "the kernel must not get it");
        kernel.set_read_timeout(Some(PATIENCE)).expect("an option");
    }
}

// covers: DMN-04
#[test]
fn a_flow_goes_to_the_tap_and_back_and_others_do_not() {
    let mut scene = Scene::new();
    let before = scene.shown();
    let (kernel, bystander) = (scene.kernel(5000), scene.kernel(5256));
    scene.assert_kernel(&kernel);
    let flow = scene.udp(5000);
    scene.add(OWNER, &flow);
    println!("{}", scene.shown());
    scene.assert_tap(&kernel);
    scene.assert_kernel(&bystander);
    // Asked for twice is the same as once.
    scene.add(OWNER, &flow);
    scene.delete(OWNER, &flow);
    scene.assert_kernel(&kernel);
    assert_eq!(scene.shown(), before);
    scene.delete(OWNER, &flow);
}

#[test]
fn processes_of_the_same_host_reach_the_tap_through_lo() {
    let mut scene = Scene::new();
    let _kernel = scene.kernel(5000);
    let flow = scene.udp(5000);
    scene.add(OWNER, &flow);
    scene.send(Side::A, 3001, 5000);
    assert_eq!(scene.tap.expect("udp"), "10.98.0.1:3001 10.98.0.1:5000");
}

// covers: DMN-04
#[test]
fn tcp_flows_match_their_tuples() {
    let mut scene = Scene::new();
    let connect = |scene: &Scene, from: u16, to: u16| {
        let mut client =
            scene.network.python(Side::B, CONNECT, &[&from.to_string(), &to.to_string()]);
        client.expect("trying");
        client.line_within(NEVER).map(|line| (line, client.kill()).0)
    };
    // Nobody listens: A's kernel refuses what it sees.
    let refused = Some("refused".to_owned());
    scene.add(OWNER, &scene.flow(FlowKind::Tcp3Tuple, "10.98.0.1:6000", "0.0.0.0:0"));
    scene.add(OWNER, &scene.flow(FlowKind::Tcp5Tuple, "10.98.0.1:6001", "10.98.0.2:3100"));
    assert_eq!(connect(&scene, 3050, 6000), None);
    assert_eq!(scene.tap.expect("tcp"), "10.98.0.2:3050 10.98.0.1:6000");
    assert_eq!(connect(&scene, 3101, 6001), refused, "another source");
    assert_eq!(connect(&scene, 3100, 6001), None);
    assert_eq!(scene.tap.expect("tcp"), "10.98.0.2:3100 10.98.0.1:6001");
    assert_eq!(connect(&scene, 3102, 6002), refused, "another destination");
    // UDP to the same port is another flow.
    let kernel = scene.kernel(6000);
    scene.assert_kernel(&kernel);
}

const CONNECT: &str = "
import socket, sys
end = socket.socket()
end.bind(('10.98.0.2', int(sys.argv[1])))
print('trying', flush=True)
try:
    end.connect(('10.98.0.1', int(sys.argv[2])))
except ConnectionRefusedError:
    print('refused', flush=True)
";

// covers: DMN-04
#[test]
fn all_rules_of_an_owner_go_with_it_and_those_of_another_stay() {
    let mut scene = Scene::new();
    let before = scene.shown();
    let (shared, kernel) = (scene.kernel(5000), scene.kernel(5001));
    scene.add(OTHER, &scene.udp(5000));
    let with_other = scene.shown();
    let flows = [
        scene.udp(5000),
        scene.udp(5001),
        scene.flow(FlowKind::Udp5Tuple, "10.98.0.1:5002", "10.98.0.2:9"),
        scene.flow(FlowKind::Tcp3Tuple, "10.98.0.1:5003", "0.0.0.0:0"),
        scene.flow(FlowKind::Tcp5Tuple, "10.98.0.1:5004", "10.98.0.2:9"),
        scene.flow(FlowKind::Egress, "0.0.0.0:0", "0.0.0.0:0"),
    ];
    for flow in &flows {
        scene.add(OWNER, flow);
    }
    scene.assert_tap(&kernel);
    scene.traffic.forget(OWNER);
    scene.assert_kernel(&kernel);
    scene.assert_tap(&shared);
    // The kernel lets go of empty tables some time later; the next operation then finds them free.
    let end = Instant::now() + PATIENCE;
    loop {
        scene.add(OTHER, &scene.udp(5005));
        scene.delete(OTHER, &scene.udp(5005));
        if scene.shown() == with_other {
            break;
        }
        assert!(Instant::now() < end, "{}\ninstead of\n{with_other}", scene.shown());
    }
    scene.traffic.remove_all();
    assert_eq!(scene.shown(), before);
    scene.assert_kernel(&shared);
}

// covers: DMN-04
#[test]
fn what_somebody_else_made_is_neither_removed_nor_changed() {
    for foreign in [
        &["tc qdisc add dev veth-a ingress"] as &[_],
        &["tc qdisc add dev veth-a clsact"],
        &[
            "tc qdisc add dev veth-a ingress",
            "tc filter add dev veth-a ingress protocol ip prio 2 u32 match ip dport 99 0xffff \
             action mirred egress redirect dev tap0",
            "tc qdisc add dev lo ingress",
            "tc filter add dev lo ingress protocol ip u32 match ip dport 98 0xffff \
             action mirred egress redirect dev tap0",
        ],
    ] {
        let mut scene = Scene::new();
        for command in foreign {
            scene.network.run(Side::A, command);
        }
        let before = scene.shown();
        let kernel = scene.kernel(5000);
        for _ in 0..2 {
            scene.add(OWNER, &scene.udp(5000));
            scene.add(OWNER, &scene.flow(FlowKind::Tcp3Tuple, "10.98.0.1:5003", "0.0.0.0:0"));
            scene.assert_tap(&kernel);
            scene.traffic.forget(OWNER);
            assert_eq!(scene.shown(), before);
        }
        scene.assert_kernel(&kernel);
    }
}

#[test]
fn filters_that_somebody_added_to_our_qdisc_stay() {
    let mut scene = Scene::new();
    scene.add(OWNER, &scene.udp(5000));
    scene.network.run(
        Side::A,
        "tc filter add dev veth-a ingress protocol ip u32 match ip dport 99 0xffff \
             action mirred egress redirect dev tap0",
    );
    let kernel = scene.kernel(5000);
    scene.traffic.forget(OWNER);
    let shown = scene.network.run(Side::A, "tc filter show dev veth-a ingress");
    assert!(shown.contains("match 00000063/0000ffff at 20"), "{shown}");
    assert_eq!(shown.matches("mirred").count(), 1, "{shown}");
    assert_eq!(shown.matches("ht divisor").count(), 1, "{shown}");
    scene.assert_kernel(&kernel);
}

// covers: DMN-04
#[test]
fn a_flow_that_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let mut scene = Scene::new();
    let before = scene.shown();
    let no_interface = Flow { interface: 9999, ..scene.udp(5000) };
    let said = scene.refused(&no_interface);
    assert_eq!(
        said,
        "flow type: 2 if_id: 9999 tap_id: {tap} to 10.98.0.1:5000: \
         interface 9999: No such device (os error 19)"
            .replace("{tap}", &scene.tap_index.to_string())
    );
    assert_eq!(scene.shown(), before, "what was made on lo must be gone");
    let no_tap = Flow { tap: scene.interface, ..scene.udp(5000) };
    let said = scene.refused(&no_tap);
    assert!(said.ends_with(&format!("interface {} (veth-a) is no TAP", scene.interface)), "{said}");
    let nothing = Flow { tap: 0, ..scene.udp(5000) };
    println!("{}", scene.refused(&nothing));
    assert_eq!(scene.shown(), before);
}

#[test]
fn a_peer_on_this_host_is_filtered_on_lo_only() {
    let mut scene = Scene::new();
    let flow = scene.flow(FlowKind::Udp5Tuple, "10.98.0.1:5000", "10.98.0.1:7");
    scene.add(OWNER, &flow);
    let shown = scene.shown();
    assert!(shown.contains("qdisc ingress ffff: dev lo "), "{shown}");
    assert!(!shown.contains("qdisc ingress ffff: dev veth-a "), "{shown}");
    scene.delete(OWNER, &flow);
    assert!(!scene.shown().contains("ingress"));
}

#[test]
fn rules_that_vanished_with_their_interface_are_no_error() {
    let mut scene = Scene::new();
    let flow = scene.udp(5000);
    scene.add(OWNER, &flow);
    scene.add(OTHER, &flow);
    scene.network.ip(Side::A, "link delete veth-a");
    scene.delete(OWNER, &flow);
    scene.traffic.forget(OTHER);
    assert!(!scene.shown().contains("ingress"), "those on lo are gone, too");
    // The TAP of a killed process vanishes with it.
    let mut scene = Scene::new();
    scene.add(OWNER, &scene.udp(5000));
    scene.add(OWNER, &scene.flow(FlowKind::Egress, "0.0.0.0:0", "0.0.0.0:0"));
    scene.tap.kill();
    scene.traffic.forget(OWNER);
    assert!(!scene.shown().contains("ingress"));
    let kernel = scene.kernel(5000);
    scene.send(Side::B, 3000, 5000);
    kernel.recv_from(&mut [0; 100]).expect("the kernel gets it");
}

#[test]
fn what_a_killed_daemon_left_behind_is_cleared_away_once_its_tap_is_gone() {
    let mut scene = Scene::new();
    let before = scene.network.run(Side::A, "tc qdisc show dev veth-a");
    let kernel = scene.kernel(5000);
    scene.add(OWNER, &scene.udp(5000));
    // The daemon is killed; the next one does not know of the flow, but its process lives.
    scene.traffic = Traffic::new();
    scene.add(OTHER, &scene.udp(5001));
    scene.assert_tap(&kernel);
    scene.traffic.forget(OTHER);
    scene.assert_tap(&kernel);
    // It dies, too: now the flow leads nowhere.
    scene.tap.kill();
    scene.tap = scene.network.python(Side::A, TAP, &["tap1"]);
    scene.tap_index = scene.tap.expect("tap").parse().expect("an index");
    scene.add(OTHER, &scene.udp(5001));
    scene.assert_kernel(&kernel);
    scene.assert_tap(&scene.kernel(5001));
    scene.traffic.forget(OTHER);
    assert_eq!(scene.network.run(Side::A, "tc qdisc show dev veth-a"), before);
    assert!(!scene.network.run(Side::A, "tc qdisc show dev lo").contains("ingress"));
}

#[test]
fn rules_that_somebody_removed_come_back_with_the_next_one() {
    let mut scene = Scene::new();
    let kernel = scene.kernel(5000);
    scene.add(OWNER, &scene.udp(5000));
    scene.network.run(Side::A, "tc qdisc del dev veth-a ingress");
    scene.assert_kernel(&kernel);
    scene.add(OWNER, &scene.udp(5001));
    scene.assert_tap(&kernel);
    scene.network.run(Side::A, "tc qdisc del dev veth-a ingress");
    scene.traffic.forget(OWNER);
    assert!(!scene.shown().contains("ingress"));
}

#[test]
fn what_the_tap_sends_goes_out_by_the_interface_or_to_lo() {
    let mut scene = Scene::new();
    let far = scene.network.inside(Side::B, || {
        let socket = UdpSocket::bind("10.98.0.2:5000").expect("a free port");
        socket.set_read_timeout(Some(PATIENCE)).expect("an option");
        socket
    });
    let flow = scene.flow(FlowKind::Egress, "0.0.0.0:0", "0.0.0.0:0");
    scene.add(OWNER, &flow);
    scene.add(OWNER, &scene.udp(5000));
    let mac = scene.network.run(Side::B, "cat /sys/class/net/veth-b/address");
    scene.tap.say(&format!("send {} 10.98.0.1 10.98.0.2 5000", mac.trim()));
    let (length, from) = far.recv_from(&mut [0; 100]).expect("B gets it");
    assert_eq!((length, from.to_string().as_str()), (4, "10.98.0.1:7"));
    scene.tap.say("send 00:00:00:00:00:00 10.98.0.1 10.98.0.1 5000");
    // On `lo` the rules of those wait whom it is for; here it is the sender itself. (The kernel
    // would take no packet from lo that comes from its own address and that it did not send: a
    // martian.)
    assert_eq!(scene.tap.expect("udp"), "10.98.0.1:7 10.98.0.1:5000");
    scene.traffic.forget(OWNER);
    assert!(!scene.shown().contains("ingress"));
}

#[test]
fn a_thousand_flows_are_made_and_removed() {
    let mut scene = Scene::new();
    let before = scene.shown();
    let kernel = scene.kernel(5999);
    let flows: Vec<Flow> = (5000..6000).map(|port| scene.udp(port)).collect();
    let start = std::time::Instant::now();
    for flow in &flows {
        scene.add(OWNER, flow);
    }
    let made = start.elapsed();
    scene.assert_tap(&kernel);
    let start = std::time::Instant::now();
    scene.traffic.remove_all();
    println!("1000 flows (2000 filters): made in {made:.0?}, removed in {:.0?}", start.elapsed());
    assert_eq!(scene.shown(), before);
}
