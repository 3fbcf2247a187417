//! Peer notification end to end: a real `vmad`, a process that dies by SIGKILL and whose
//! connections its own kernel does not know, and the kernel of its peer. Needs root. What happens
//! on lossy paths and behind firewalls is tested beside the code (`src/vmad/resets/tests.rs`).

#[path = "network/daemon.rs"]
mod daemon;
mod network;

use std::time::Duration;

use daemon::Daemon;
use network::{Network, Program, Side, monotonic};

const PEER: &str = include_str!("network/peer.py");
const VICTIM: &str = include_str!("network/victim.py");

/// Long enough for what must not come.
const NEVER: Duration = Duration::from_millis(400);

/// A peer in B on this port, and a process in A with so many connections to it.
fn ends(network: &Network, port: u16, count: usize) -> (Program, Program) {
    ends_at(Side::B.ip(), network, port, count)
}

fn ends_at(address: &str, network: &Network, port: u16, count: usize) -> (Program, Program) {
    let arguments = [address, &port.to_string(), &count.to_string()];
    let peer = network.python(Side::B, PEER, &arguments);
    peer.expect("listening");
    let victim = network.python(Side::A, VICTIM, &arguments);
    victim.expect("connected");
    peer.expect("accepted");
    (peer, victim)
}

/// The same with connections that A's kernel forgot and the daemon knows.
fn offloaded(network: &Network, daemon: &Daemon, port: u16, count: usize) -> (Program, Program) {
    offloaded_at(Side::B.ip(), network, daemon, port, count)
}

fn offloaded_at(
    address: &str,
    network: &Network,
    daemon: &Daemon,
    port: u16,
    count: usize,
) -> (Program, Program) {
    let (peer, mut victim) = ends_at(address, network, port, count);
    victim.say("vanish");
    victim.expect("vanished");
    daemon.register(&mut victim);
    (peer, victim)
}

/// When the resets came, in milliseconds after `start`, sorted.
fn resets_after(peer: &Program, count: usize, start: i64) -> Vec<f64> {
    let mut times: Vec<f64> = (0..count)
        .map(|_| {
            let line = peer.expect("reset");
            let when: i64 =
                line.split(' ').nth(1).and_then(|when| when.parse().ok()).expect("a time");
            (when - start) as f64 / 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

// covers: DMN-02
#[test]
fn the_peer_of_a_killed_process_is_reset_within_100_ms_though_it_only_receives() {
    let daemon = Daemon::start(&[]);
    let network = Network::new();
    let mut times = Vec::new();
    for port in 4000..4005 {
        let (peer, mut victim) = offloaded(&network, &daemon, port, 1);
        let start = monotonic();
        victim.kill();
        times.extend(resets_after(&peer, 1, start));
    }
    times.sort_by(f64::total_cmp);
    println!("from kill -9 to ECONNRESET: {times:.2?} ms, median {:.2} ms", times[2]);
    assert!(times[0] < 100.0, "not once within 100 ms: {times:?} ms");
    assert!(times[4] < 1000.0, "{times:?} ms");
}

// covers: DMN-02
#[test]
fn a_thousand_peers_of_one_process_are_reset_at_once() {
    let daemon = Daemon::start(&[]);
    let network = Network::new();
    let (peer, mut victim) = offloaded(&network, &daemon, 4000, 1000);
    let start = monotonic();
    victim.kill();
    let times = resets_after(&peer, 1000, start);
    println!("1000 resets after kill -9: median {:.1} ms, last {:.1} ms", times[500], times[999]);
    assert!(times[999] < 3000.0, "the last after {} ms", times[999]);
}

// covers: DMN-02
#[test]
fn peers_over_ipv6_are_reset_but_those_of_living_processes_and_of_the_kernel() {
    for options in [&[] as &[&str], &["--force-rst"]] {
        let daemon = Daemon::start(options);
        let network = Network::new();
        network.add_ipv6();
        let six = Side::B.ipv6();
        let (kernels, mut its) = ends_at(six, &network, 4001, 1);
        // It claims connections that the kernel has.
        daemon.register(&mut its);
        let (served, _also_living) = offloaded_at(six, &network, &daemon, 4002, 1);
        let (peer, mut victim) = offloaded_at(six, &network, &daemon, 4000, 3);
        let start = monotonic();
        victim.kill();
        let times = resets_after(&peer, 3, start);
        println!("from kill -9 to ECONNRESET over IPv6: {times:.2?} ms");
        assert!(times[2] < 1000.0, "{times:?} ms");
        assert_eq!(kernels.line_within(NEVER), None);
        assert_eq!(served.line_within(Duration::ZERO), None);
    }
}

// covers: DMN-02
#[test]
fn nobody_is_reset_after_an_orderly_end() {
    let daemon = Daemon::start(&["--force-rst"]);
    let network = Network::new();
    let (peer, mut victim) = offloaded(&network, &daemon, 4000, 2);
    victim.say("exit");
    victim.expect("exited");
    victim.kill();
    daemon.wait_for_end_of(&victim);
    assert_eq!(peer.line_within(NEVER), None, "it said that it ends");
}

// covers: DMN-02
#[test]
fn connections_of_others_between_the_same_hosts_live_on() {
    for options in [&[] as &[&str], &["--force-rst"]] {
        let daemon = Daemon::start(options);
        let network = Network::new();
        // One of the kernel's, and one of another process that the daemon serves.
        let (mut kernels, _living) = ends(&network, 4001, 1);
        let (served, _also_living) = offloaded(&network, &daemon, 4002, 1);
        let (peer, mut victim) = offloaded(&network, &daemon, 4000, 3);
        victim.kill();
        resets_after(&peer, 3, 0);
        kernels.say("send");
        kernels.expect("sent");
        assert_eq!(kernels.line_within(NEVER), None);
        assert_eq!(served.line_within(Duration::ZERO), None);
    }
}

// covers: DMN-03
#[test]
fn without_the_daemon_a_silent_peer_hears_nothing() {
    let network = Network::new();
    let mut daemon = Daemon::start(&[]);
    let (peer, mut victim) = offloaded(&network, &daemon, 4000, 1);
    daemon.stop();
    victim.kill();
    assert_eq!(peer.line_within(NEVER), None, "who should have told it?");
}
