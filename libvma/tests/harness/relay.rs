//! A relay in the cable that loses, duplicates, reorders, delays and corrupts frames.

use std::process::Command;

use rustix::process::Signal;

use super::ends::Shown;
use super::{Namespaces, Side, compile};

/// The relay between the two sides, in a namespace of its own. Dropped before the [`Namespaces`].
pub struct Relay {
    namespace: String,
    program: Option<Shown>,
}

/// What the relay did to the frames of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub frames: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    /// Lost by the relay or a receiving kernel, which were too slow.
    pub overrun: u64,
}

impl Relay {
    /// Cuts the cable, before any program uses it, and puts a relay in between: `faults` as relay.c
    /// explains, for example `loss=1 delay=500`.
    #[track_caller]
    pub fn splice(net: &Namespaces, faults: &str) -> Relay {
        let namespace = format!("{}-relay", net.name(Side::A).trim_end_matches("-a"));
        ip(&["netns", "add", &namespace]);
        let mut relay = Relay { namespace, program: None };
        net.ip(Side::A, &format!("link delete {}", Side::A.device()));
        for side in [Side::A, Side::B] {
            lay_cable(net, side, &relay.namespace);
        }
        let program = compile(net, "relay", include_str!("relay.c"), &["-O2"]);
        let program = program.to_str().expect("a path in UTF-8");
        let words = format!("netns exec {} {program} relay-a relay-b {faults}", relay.namespace);
        let mut program = net.program(Side::A, "ip").args(&words).start_shown();
        program.wait_for_text("ready");
        relay.program = Some(program);
        relay
    }

    /// Ends it; returns what it did.
    #[track_caller]
    pub fn finish(mut self) -> Faults {
        let program = self.program.take().expect("it is taken only here");
        program.signal(Signal::TERM);
        let printed = super::wait_for("the relay has reported", || {
            let printed = program.printed();
            (printed.lines().filter(|line| line.contains("overrun")).count() == 2)
                .then_some(printed)
        });
        let sum = |name: &str| -> u64 {
            let mut words = printed.split_whitespace();
            let mut total = 0;
            while let Some(word) = words.next() {
                if word == name {
                    total += words.next().and_then(|n| n.parse::<u64>().ok()).expect("a number");
                }
            }
            total
        };
        Faults {
            frames: sum("frames"),
            lost: sum("lost"),
            duplicated: sum("duplicated"),
            reordered: sum("reordered"),
            corrupted: sum("corrupted"),
            overrun: sum("overrun") + self.dropped(),
        }
    }

    /// Frames that a veth dropped because the receiving kernel's backlog was full.
    fn dropped(&self) -> u64 {
        let prefix = self.namespace.trim_end_matches("relay");
        let of = |namespace: &str| -> u64 {
            let devices = ip(&["netns", "exec", namespace, "cat", "/proc/net/dev"]);
            let transmit_drop = |line: &str| line.split_whitespace().nth(12)?.parse::<u64>().ok();
            devices.lines().filter(|line| line.contains(':')).filter_map(transmit_drop).sum()
        };
        ["a", "b", "relay"].iter().map(|name| of(&format!("{prefix}{name}"))).sum()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.program = None; // a namespace lives as long as its processes
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).output();
    }
}

/// A veth pair from the side to the relay, with the names and addresses that the cable had. The ends
/// leave no checksum and no segmentation to the device, as there is none that could do it.
fn lay_cable(net: &Namespaces, side: Side, relay: &str) {
    let (device, mac, peer) = (side.device(), side.mac(), side.other());
    let end = if side == Side::A { "relay-a" } else { "relay-b" };
    net.ip(side, &format!("link add {device} address {mac} type veth peer {end} netns {relay}"));
    let switches = format!("-K {device} tx off tso off gro off");
    net.program(side, "ethtool").args(&switches).run().ok();
    net.ip(side, &format!("address add {}/24 brd + dev {device}", side.ip()));
    net.ip(side, &format!("link set {device} addrgenmode none up"));
    ip(&["-n", relay, "link", "set", end, "addrgenmode", "none", "up"]);
    let (ip, mac) = (peer.ip(), peer.mac());
    net.ip(side, &format!("neigh replace {ip} lladdr {mac} nud permanent dev {device}"));
}

#[track_caller]
fn ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {error}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
