//! The ways to privileges that docs/installation.md names: with each of them, a program of an ordinary
//! user is served by the library on an interface.

use std::process::Stdio;

use packages::{PLAIN, Peer, Root, Run, dist, wait_for, workspace};

const CAPS: &str = "+net_admin,+net_raw,+bpf,+ipc_lock";
const USER: &str = "setpriv --reuid trader --regid trader --init-groups";
const SERVER: &str = "env LD_PRELOAD=libvma.so sockperf server -i 10.99.0.1";

fn installed() -> Root {
    let root = Root::fresh(&PLAIN);
    crate::sources::without_services(&root);
    root.install(&[dist::deb("libvma"), dist::deb("libvma-utils")]);
    root.shell("useradd trader").succeeds();
    root
}

/// Runs the server by these words and talks to it over a cable. Returns what vma_stats tells of its
/// socket, and what it said itself.
fn serve(root: &Root, words: &str) -> (String, String) {
    let peer = Peer::of(root);
    let mut server =
        root.shell(&format!("{words} >/tmp/said 2>&1")).stdin(Stdio::null()).spawn().unwrap();
    let said = || std::fs::read_to_string(root.path("/tmp/said")).unwrap_or_default();
    wait_for("the server listens", || said().contains("[SERVER] listen").then_some(()));
    let mut client = peer.command("sockperf");
    client.args(["ping-pong", "-i", "10.99.0.1", "-t", "1"]).succeeds();
    let counters = root.shell("vma_stats -n sockperf -v 3 -c 1").succeeds();
    root.shell("pkill -x sockperf").succeeds();
    server.wait().unwrap();
    (counters, said())
}

/// That the guide has these very words.
fn documented(words: &str) {
    let guide = std::fs::read_to_string(workspace().join("docs/installation.md")).unwrap();
    assert!(guide.contains(words), "{words}");
}

// covers: RUN-09
#[test]
fn without_privileges_the_kernel_serves_interfaces_and_the_program_is_told() {
    let (counters, said) = serve(&installed(), &format!("{USER} {SERVER}"));
    assert!(counters.contains("Rx OS info:") && !counters.contains("Rx Offload:"), "{counters}");
    assert!(said.contains("VMA WARNING: veth0 is not offloaded"), "{said}");
}

// covers: RUN-09
#[test]
fn with_ambient_capabilities_a_users_program_is_served() {
    documented(&format!("caps={CAPS}\n"));
    documented(&format!("{USER} --inh-caps $caps --ambient-caps $caps \\\n"));
    let words = format!("{USER} --inh-caps {CAPS} --ambient-caps {CAPS} {SERVER}");
    let (counters, said) = serve(&installed(), &words);
    assert!(counters.contains("Rx Offload:"), "{counters}{said}");
}

// covers: RUN-09
#[test]
fn with_capabilities_of_the_file_a_users_program_is_served() {
    let root = installed();
    let caps = "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep /usr/bin/sockperf\n";
    let library = "chmod u+s \"$(readlink -f /usr/lib/libvma.so)\"\n";
    documented(&format!("{caps}{library}LD_PRELOAD=libvma.so sockperf server"));
    root.shell(&format!("{caps}{library}")).succeeds();
    let (counters, said) = serve(&root, &format!("{USER} {SERVER}"));
    assert!(counters.contains("Rx Offload:"), "{counters}{said}");
}
