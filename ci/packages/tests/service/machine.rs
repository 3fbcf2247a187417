//! A machine booted by systemd: systemd-nspawn in the namespaces of a [`Root`].
//!
//! All of it (nspawn, systemd and what that starts) are processes of the root's own process
//! namespace, on the root's own network: they go with it, however the test ends.

mod control_groups;

use std::fs;
use std::process::{Child, Command, Stdio};

use packages::{Root, Run, SYSTEMD, wait_for};

use control_groups::ControlGroups;

/// Moves itself into the control groups of the machine; takes the root's own /proc, /sys and /dev
/// away, because systemd-nspawn leaves alone what is already mounted; then boots.
///
/// `--register=no --keep-unit`: there need not be a systemd outside. CAP_NET_ADMIN, because the
/// network is the root's, so not systemd-nspawn's to give.
const BOOT: &str = r#"
root=$1
shift
for group; do echo 0 >"$group/cgroup.procs"; done
for name in dev sys proc; do umount --recursive "$root/$name"; done
mount -t proc proc /proc
exec systemd-nspawn --directory="$root" --boot --register=no --keep-unit --console=pipe --quiet \
    --capability=CAP_NET_ADMIN
"#;

/// A running system with systemd as its process 1.
pub struct Machine {
    // In the order in which they go.
    nspawn: Booted,
    root: Root,
    _groups: ControlGroups,
}

struct Booted {
    nspawn: Child,
    /// Its process 1, as the test sees it.
    init: u32,
}

impl Machine {
    /// Boots a Debian 12, after `prepare` has done its part to the files.
    pub fn boot(prepare: impl FnOnce(&Root)) -> Machine {
        let root = Root::fresh(&SYSTEMD);
        prepare(&root);
        let groups = ControlGroups::make();
        let mut nspawn = root
            .outside("unshare")
            .args(["--mount", "sh", "-e", "-c", BOOT, "boot"])
            .arg(root.mounted())
            .args(groups.folders())
            .stdin(Stdio::null())
            .spawn()
            .expect("util-linux is installed");
        let init = wait_for("systemd is process 1", || {
            let ended = nspawn.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "systemd-nspawn: {ended:?}");
            descendants(nspawn.id()).into_iter().find(|id| is_init(*id))
        });
        let machine = Machine { nspawn: Booted { nspawn, init }, root, _groups: groups };
        wait_for("the machine has booted", || {
            let state = machine.command("systemctl").arg("is-system-running").output().ok()?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            matches!(state.as_str(), "running" | "degraded").then_some(())
        });
        machine
    }

    /// A program of the machine, as root.
    pub fn command(&self, program: &str) -> Command {
        self.nspawn.command(program)
    }

    /// A line for the machine's shell.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-e", "-c", line]);
        command
    }

    /// `ip` of the system that the test runs on, on the machine's network: the machine has no
    /// /dev/net/tun.
    pub fn ip(&self, words: &str) {
        self.root.outside("ip").args(words.split(' ')).succeeds();
    }

    /// A property of the service, as systemd knows it.
    #[track_caller]
    pub fn property(&self, name: &str) -> String {
        let mut show = self.command("systemctl");
        let value = show.args(["show", "--value", "--property", name, "vma.service"]).succeeds();
        value.trim().to_owned()
    }

    /// What systemd and the daemon said about the service.
    pub fn journal(&self) -> String {
        self.command("journalctl").args(["--unit=vma", "--no-pager"]).output_of_success()
    }
}

impl Booted {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .arg(format!("--target={}", self.init))
            .args(["--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", program])
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        let _ = self.command("systemctl").args(["poweroff", "--force", "--force"]).output();
        // It is nsenter, which ends with systemd-nspawn.
        let _ = self.nspawn.wait();
    }
}

fn descendants(id: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.flat_map(|child: u32| [vec![child], descendants(child)].concat()).collect()
}

/// Whether a process is the first of a namespace below the root's and already executes systemd.
fn is_init(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    numbers.split_whitespace().last() == Some("1") && name.trim_end() == "systemd"
}
