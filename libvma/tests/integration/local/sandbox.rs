//! What the other tests of this folder stand on: that the sandbox has no privilege, and that what is
//! left in it by a killed test would be gone.

use crate::harness::{PYTHON, Puppet, Sandbox, wait_for};

#[test]
fn programs_in_the_sandbox_have_no_privilege() {
    let sandbox = Sandbox::new();
    let output = sandbox.program("cat").args("/proc/self/status").run().ok();
    let words = |name: &str| -> Vec<String> {
        let line = output.stdout.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(words(set), ["0000000000000000"], "{set}\n{}", output.stdout);
    }
    assert_eq!(words("NoNewPrivs:"), ["1"]);
    // Root inside is an ordinary user outside, and nobody else is there.
    let map = sandbox.program("cat").args("/proc/self/uid_map").run().ok().stdout;
    let map: Vec<&str> = map.split_whitespace().collect();
    assert!(map.len() == 3 && map[0] == "0" && map[1] != "0" && map[2] == "1", "{map:?}");
    // The network is its own, and not to be changed.
    let links = sandbox.program("ip").args("-brief link").run().ok().stdout;
    assert!(links.lines().count() == 1 && links.starts_with("lo "), "{links}");
    let change = sandbox.program("ip").args("link set lo down").run();
    assert!(!change.status.success(), "lo was set down");
}

#[test]
fn the_library_is_quiet_in_a_process_without_privilege() {
    let sandbox = Sandbox::new();
    let program = sandbox.program(PYTHON).with_library().env("VMA_TRACELEVEL", "warning");
    let mut program = Puppet::start(program);
    program.run("s = udp(('127.0.0.1', 5000)); s.sendto(b'x', ('127.0.0.1', 5000))");
    assert_eq!(program.run("s.recv(10)"), "b'x'");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
    assert!(maps.contains("libvma.so"), "it is not loaded");
    program.finish();
}

#[test]
fn the_sandbox_ends_with_everybody_in_it() {
    let sandbox = Sandbox::new();
    let mut program = Puppet::start(sandbox.program(PYTHON));
    let child = program.number("child if (child := os.fork()) else (os.setsid(), signal.pause())");
    let path = format!("/proc/{child}/status");
    let dir = sandbox.dir.clone();
    assert!(std::fs::exists(&path).unwrap(), "the child is there");
    drop(sandbox);
    wait_for("the child is gone", || {
        let state = std::fs::read_to_string(&path).unwrap_or_default();
        (state.is_empty() || state.contains("State:\tZ")).then_some(())
    });
    assert!(!dir.exists());
}
