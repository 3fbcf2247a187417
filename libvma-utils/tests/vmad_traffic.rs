//! Flows to a TAP end to end: a real `vmad`, a process that asks it by messages and dies, and what
//! the kernel does with datagrams meanwhile. Needs root. Other kinds of flows, foreign qdiscs and
//! failures are tested beside the code (`src/vmad/traffic/tests.rs`).

#[path = "network/daemon.rs"]
mod daemon;
mod network;

use std::net::UdpSocket;
use std::time::Duration;

use daemon::Daemon;
use network::{Network, PATIENCE, Program, Side};

const TAP: &str = include_str!("network/tap.py");

/// Long enough for what must not come.
const NEVER: Duration = Duration::from_millis(200);

/// UDP to one port, from anywhere.
const UDP_3_TUPLE: u8 = 2;

struct Scene {
    network: Network,
    /// Of A's kernel, on port 5000.
    kernel: UdpSocket,
    interface: String,
}

impl Scene {
    fn new() -> Self {
        let network = Network::new();
        let kernel = network.inside(Side::A, || {
            let socket = UdpSocket::bind("10.98.0.1:5000").expect("a free port");
            socket.set_read_timeout(Some(PATIENCE)).expect("an option");
            socket
        });
        let interface = network.run(Side::A, "cat /sys/class/net/veth-a/ifindex").trim().to_owned();
        Self { network, kernel, interface }
    }

    /// A process with a TAP, known to the daemon.
    fn client(&self, daemon: &Daemon, tap: &str) -> Program {
        let mut client = self.network.python(Side::A, TAP, &[tap]);
        client.expect("tap");
        daemon.register(&mut client);
        client
    }

    /// Asks for (1) or gives up (2) the flow to port 5000; the answer's status.
    fn ask(&self, client: &mut Program, action: u8, interface: &str) -> String {
        client.say(&format!("flow {UDP_3_TUPLE} {action} {interface} 10.98.0.1 5000 0.0.0.0 0"));
        client.expect("answer")
    }

    fn send(&self) {
        self.network.inside(Side::B, || {
            let socket = UdpSocket::bind("10.98.0.2:3000").expect("a free port");
            socket.send_to(b"hello", "10.98.0.1:5000").expect("sent");
        });
    }

    fn assert_kernel(&self) {
        self.send();
        let (length, _) = self.kernel.recv_from(&mut [0; 100]).expect("the kernel gets it");
        assert_eq!(length, 5);
    }

    fn assert_tap(&self, client: &Program) {
        self.send();
        assert_eq!(client.expect("udp"), "10.98.0.2:3000 10.98.0.1:5000");
        self.kernel.set_read_timeout(Some(NEVER)).expect("an option");
        assert!(self.kernel.recv_from(&mut [0; 100]).is_err(), "the kernel must not get it");
        self.kernel.set_read_timeout(Some(PATIENCE)).expect("an option");
    }

    fn shown(&self) -> String {
        let mut shown = String::new();
        for device in ["lo", "veth-a"] {
            for what in ["qdisc", "filter"] {
                let ingress = if what == "filter" { " ingress" } else { "" };
                shown +=
                    &self.network.run(Side::A, &format!("tc {what} show dev {device}{ingress}"));
            }
        }
        shown
    }
}

// covers: DMN-04
#[test]
fn a_process_leads_a_flow_to_its_tap_and_back() {
    let daemon = Daemon::start(&[]);
    let scene = Scene::new();
    let before = scene.shown();
    let mut client = scene.client(&daemon, "tap0");
    scene.assert_kernel();
    assert_eq!(scene.ask(&mut client, 1, &scene.interface), "0");
    scene.assert_tap(&client);
    assert_eq!(scene.ask(&mut client, 2, &scene.interface), "0");
    scene.assert_kernel();
    assert_eq!(scene.shown(), before);
    // What cannot be is answered with a failure, and the log says what it was.
    assert_eq!(scene.ask(&mut client, 1, "9999"), "1");
    assert!(daemon.log().contains("interface 9999: No such device"), "{}", daemon.log());
    assert_eq!(scene.shown(), before);
}

// covers: DMN-04
#[test]
fn the_rules_of_a_killed_process_go_with_it_and_those_of_another_stay() {
    let daemon = Daemon::start(&[]);
    let scene = Scene::new();
    let before = scene.shown();
    let mut first = scene.client(&daemon, "tap0");
    let mut second = scene.client(&daemon, "tap1");
    assert_eq!(scene.ask(&mut first, 1, &scene.interface), "0");
    let with_first = scene.shown();
    second.say(&format!("flow {UDP_3_TUPLE} 1 {} 10.98.0.1 5001 0.0.0.0 0", scene.interface));
    assert_eq!(second.expect("answer"), "0");
    second.kill();
    daemon.wait_for_end_of(&second);
    assert_eq!(scene.shown(), with_first);
    scene.assert_tap(&first);
    first.kill();
    daemon.wait_for_end_of(&first);
    assert_eq!(scene.shown(), before);
    scene.assert_kernel();
}

// covers: DMN-04
#[test]
fn no_rule_outlives_an_orderly_end_of_process_or_daemon() {
    let mut daemon = Daemon::start(&[]);
    let scene = Scene::new();
    let before = scene.shown();
    let mut client = scene.client(&daemon, "tap0");
    assert_eq!(scene.ask(&mut client, 1, &scene.interface), "0");
    client.say("exit");
    client.expect("exited");
    daemon.wait_for_end_of(&client);
    assert_eq!(scene.shown(), before);
    let mut client = scene.client(&daemon, "tap1");
    assert_eq!(scene.ask(&mut client, 1, &scene.interface), "0");
    scene.assert_tap(&client);
    daemon.stop();
    assert_eq!(scene.shown(), before);
    scene.assert_kernel();
}
