//! Another host, at the other end of a cable to a root.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use crate::root::Root;
use crate::run::Run;

/// The root's end of the cable.
const OURS: (&str, Ipv4Addr, &str) = ("veth0", Ipv4Addr::new(10, 99, 0, 1), "02:00:00:99:00:01");
const THEIRS: (&str, Ipv4Addr, &str) = ("veth1", Ipv4Addr::new(10, 99, 0, 2), "02:00:00:99:00:02");

/// A network namespace of its own with the files and processes of a root. It goes with the root.
pub struct Peer<'a> {
    root: &'a Root,
    holder: Child,
}

impl<'a> Peer<'a> {
    /// Lays the cable: 10.99.0.1 is the root, 10.99.0.2 the peer.
    pub fn of(root: &'a Root) -> Peer<'a> {
        let mut command = Command::new("nsenter");
        let mut holder = command
            .arg("--target")
            .arg(root.id().to_string())
            .args(["--mount", "unshare", "--net", "sh", "-c", "echo ready; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut said = String::new();
        let stdout = holder.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        assert_eq!(said, "ready\n", "cannot make a network namespace");

        let peer = Peer { root, holder };
        let ((device, _, mac), (their_device, _, their_mac)) = (OURS, THEIRS);
        let id = peer.holder.id();
        root.ip(&format!(
            "link add {device} address {mac} type veth peer {their_device} address {their_mac} netns {id}"
        ));
        set_up(|words| root.ip(words), OURS, THEIRS);
        set_up(|words| peer.ip(words), THEIRS, OURS);
        peer
    }

    /// The root's address.
    pub const ROOT: Ipv4Addr = OURS.1;
    /// The peer's own.
    pub const PEER: Ipv4Addr = THEIRS.1;

    /// A program of the root's files, on the peer's network.
    pub fn command(&self, program: &str) -> Command {
        self.root.command_in_network(program, self.holder.id())
    }

    fn ip(&self, words: &str) {
        self.command("ip").args(words.split(' ')).succeeds();
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// One end, with the other one as a permanent neighbour, so that nobody needs ARP.
fn set_up(ip: impl Fn(&str), own: (&str, Ipv4Addr, &str), other: (&str, Ipv4Addr, &str)) {
    let (device, address, _) = own;
    let (_, other_address, other_mac) = other;
    ip("link set lo up");
    ip(&format!("address add {address}/24 brd + dev {device}"));
    // No IPv6 address on the cable: no duplicate address detection, no solicitations.
    ip(&format!("link set {device} addrgenmode none up"));
    ip(&format!("neigh replace {other_address} lladdr {other_mac} nud permanent dev {device}"));
}
