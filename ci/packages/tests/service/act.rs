//! What a test does with the init script, and what it looks at afterwards.

use std::fs;
use std::process::Command;

use packages::{PLAIN, Root, dist};

pub const SCRIPT: &str = "/etc/init.d/vma";
pub const DAEMON: &str = "/usr/sbin/vmad";
pub const PID_FILE: &str = "/run/vmad.pid";
pub const LOCK_FILE: &str = "/run/lock/vmad.lock";
pub const SOCKET: &str = "/run/vma_agent.sock";

/// What a run of the script said and with which code it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs a program to its end, whatever that is.
#[track_caller]
pub fn run(command: &mut Command) -> Said {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Said {
        code: output.status.code().unwrap_or_else(|| panic!("{command:?}: {}", output.status)),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the script with an action.
#[track_caller]
pub fn act(root: &Root, action: &str) -> Said {
    run(root.command(SCRIPT).arg(action))
}

/// The same, of which a certain code is expected.
#[track_caller]
pub fn expect(root: &Root, action: &str, code: i32) -> Said {
    let said = act(root, action);
    assert_eq!(said.code, code, "{action}: {said:?}");
    said
}

/// A Debian with the package in it and the daemon not started yet.
pub fn installed() -> Root {
    let root = Root::fresh(&PLAIN);
    install(&root);
    root
}

/// Installs the package as where an administrator starts services himself.
pub fn install(root: &Root) {
    without_services(root);
    root.install(&[dist::deb("libvma")]);
}

/// As in Debian's images: maintainer scripts may start nothing.
pub fn without_services(root: &Root) {
    root.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
    let path = root.path("/usr/sbin/policy-rc.d");
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("the file is ours");
}

/// The number in a pid file, as the root's processes see it.
#[track_caller]
pub fn number_in(root: &Root, file: &str) -> u32 {
    let text = root.read(file);
    let first = text.lines().next().unwrap_or_default();
    first.parse().unwrap_or_else(|_| panic!("{file}: {text:?}"))
}

/// The numbers of the root's living processes of this name.
pub fn running(root: &Root, name: &str) -> Vec<u32> {
    let processes = fs::read_dir(root.path("/proc")).expect("/proc is mounted in a root").flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|id| {
            let stat = fs::read_to_string(root.path(&format!("/proc/{id}/stat")));
            // "12 (name) S ...": a zombie is dead.
            let stat = stat.unwrap_or_default();
            let rest = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
            rest.is_some_and(|(comm, rest)| comm == name && !rest.starts_with(" Z"))
        })
        .collect()
}

/// Kills a process of the root.
#[track_caller]
pub fn kill(root: &Root, signal: &str, id: u32) {
    let killed = run(root.command("sh").args(["-c", &format!("kill -{signal} {id}")]));
    assert_eq!(killed.code, 0, "{killed:?}");
}

/// The whole life of a daemon, by the script alone: what every system must be able to do.
#[track_caller]
pub fn whole_life(root: &Root) {
    assert_eq!(expect(root, "status", 3).out, "vmad is not running.\n");

    let said = expect(root, "start", 0);
    assert!(said.out.starts_with("Starting vmad: "), "{said:?}");
    let first = number_in(root, PID_FILE);
    assert_eq!(running(root, "vmad"), [first]);
    let status = expect(root, "status", 0);
    assert_eq!(status.out, format!("vmad is running... pid={first}\n"));
    expect(root, "start", 0);
    assert_eq!(running(root, "vmad"), [first], "a second start starts nothing");

    expect(root, "restart", 0);
    let second = number_in(root, PID_FILE);
    assert_ne!(second, first);
    assert_eq!(running(root, "vmad"), [second]);

    kill(root, "KILL", second);
    packages::wait_for("the daemon is dead", || running(root, "vmad").is_empty().then_some(()));
    assert_eq!(expect(root, "status", 1).out, "vmad is not running.\n");
    expect(root, "start", 0);
    let third = number_in(root, PID_FILE);
    assert_eq!(running(root, "vmad"), [third]);

    let said = expect(root, "stop", 0);
    assert!(said.out.starts_with("Shutting down vmad: "), "{said:?}");
    assert_eq!(running(root, "vmad"), [], "stop waits for the end");
    expect(root, "status", 3);
    expect(root, "stop", 0);
    for file in [PID_FILE, LOCK_FILE, SOCKET] {
        assert!(!root.path(file).exists(), "{file} is left behind");
    }
}
