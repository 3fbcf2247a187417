//! A test's own system: an overlay over a base, in namespaces of its own.
//!
//! ```text
//!    test --- stdin ---> holder (unshare): mount, pid, net, uts, ipc namespaces
//!                          |  bash, process 1 in there: mounts, then waits for the end of its stdin
//!                          |
//!    Root::command: nsenter, chroot        Root::outside: nsenter only
//! ```
//!
//! When the test ends, however it ends, so does the holder's stdin; with process 1 the kernel ends
//! every process in there and undoes every mount.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::Base;
use crate::run::Run;
use crate::tree::{self, Tree};

/// Bash, because as process 1 it also reaps what others leave behind: a daemon that was killed must
/// not seem alive as a zombie.
const HOLDER: &str = r#"
set -e
at=$1 lower=$2
overlay() { mount -t overlay overlay -o "lowerdir=$lower,upperdir=$at/upper,workdir=$at/work" "$at/root"; }
# In a container this folder may be on an overlay itself, over which there cannot be another.
overlay 2>/dev/null || {
    mount -t tmpfs tmpfs "$at"
    mkdir "$at/upper" "$at/work" "$at/root"
    overlay
}
cd "$at/root"
mkdir -p proc sys dev
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    : >dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
hostname fresh
ip link set lo up
echo ready
read -r _ || true
"#;

/// A system to install packages in. Its files, processes and network are nobody else's.
pub struct Root {
    holder: Child,
    dir: PathBuf,
}

impl Root {
    /// As debootstrap made it.
    pub fn fresh(base: &Base) -> Root {
        Root::over(&base.folder())
    }

    /// Over any folder that has a system in it, which stays as it is.
    pub fn over(lower: &Path) -> Root {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("vmar-{}-{count}", std::process::id()));
        for name in ["upper", "work", "root"] {
            fs::create_dir_all(dir.join(name)).expect("a directory for the test's files");
        }
        let mut holder = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child"])
            .args(["bash", "-c", HOLDER, "holder"])
            .args([&dir, lower])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut said = String::new();
        let stdout = holder.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        assert_eq!(said, "ready\n", "cannot make a root over {}", lower.display());
        Root { holder, dir }
    }

    /// A file of the system, for the test to look at or to write.
    pub fn path(&self, absolute: &str) -> PathBuf {
        let inside = absolute.strip_prefix('/').expect("paths in a root begin with /");
        let mounts = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        let root = self.mounted();
        mounts.join(root.strip_prefix("/").expect("absolute")).join(inside)
    }

    /// The text of a file of the system.
    #[track_caller]
    pub fn read(&self, absolute: &str) -> String {
        let path = self.path(absolute);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{absolute} in the root: {error}"))
    }

    #[track_caller]
    pub fn write(&self, absolute: &str, text: &str) {
        fs::write(self.path(absolute), text)
            .unwrap_or_else(|error| panic!("{absolute} in the root: {error}"));
    }

    /// All files of the system.
    pub fn tree(&self) -> Tree {
        tree::read(&self.path("/"))
    }

    /// A program of the system, as root, with nothing of this process's environment.
    ///
    /// What the caller adds by `env` reaches nsenter and chroot of the machine too: for LD_PRELOAD
    /// use [`Root::shell`].
    pub fn command(&self, program: &str) -> Command {
        self.command_in_network(program, self.id())
    }

    /// The same, on the network of another process.
    pub(crate) fn command_in_network(&self, program: &str, id: u32) -> Command {
        let mut command = self.enter(id);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .envs([("HOME", "/root"), ("LC_ALL", "C.UTF-8"), ("DEBIAN_FRONTEND", "noninteractive")])
            .arg("chroot")
            .arg(self.mounted())
            .arg(program);
        command
    }

    /// A line for the system's shell.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-e", "-c", line]);
        command
    }

    /// A program of the machine, within the system's namespaces: the system's files are below
    /// [`Root::mounted`].
    pub fn outside(&self, program: &str) -> Command {
        let mut command = self.enter(self.id());
        command.arg(program);
        command
    }

    /// The words that enter the system's namespaces, and the network of a process.
    fn enter(&self, network_of: u32) -> Command {
        let id = self.id();
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--uts", "--ipc", "--target", &id.to_string()])
            .arg(format!("--net=/proc/{network_of}/ns/net"))
            // The holder made the namespace for its child and is not in it itself.
            .arg(format!("--pid=/proc/{id}/ns/pid_for_children"))
            .stdin(Stdio::null());
        command
    }

    /// The process whose namespaces these are.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    /// `ip` of the machine, on the system's network.
    pub(crate) fn ip(&self, words: &str) {
        // Not among the system's processes: `netns <id>` is an id of the machine.
        let network = format!("--net=/proc/{}/ns/net", self.id());
        Command::new("nsenter").args([&network, "ip"]).args(words.split(' ')).succeeds();
    }

    /// Datagrams that the kernel gave to sockets of the root's network.
    pub fn kernel_datagrams(&self) -> u64 {
        let text = self.command("cat").arg("/proc/net/snmp").succeeds();
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let names = lines.next().expect("names").split_whitespace();
        let mut pairs = names.zip(lines.next().expect("values").split_whitespace());
        let value = pairs.find(|(name, _)| *name == "InDatagrams").expect("a known counter").1;
        value.parse().expect("a number")
    }

    /// Where the system is mounted, for programs started by [`Root::outside`].
    pub fn mounted(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Copies a file of the machine into a folder of the system; returns its path there.
    #[track_caller]
    pub fn bring(&self, file: &Path, folder: &str) -> String {
        let name = file.file_name().expect("a file").to_str().expect("a readable name");
        let there = format!("{}/{name}", folder.trim_end_matches('/'));
        fs::create_dir_all(self.path(folder)).expect("the root is writable");
        let place = self.path(&there);
        assert!(file != place, "{} is there already", file.display());
        fs::copy(file, place).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        there
    }

    /// Says whether packages may start and stop services. Without a word about it Debian lets none in
    /// a system without an init.
    pub fn allow_services(&self, allowed: bool) {
        let status = if allowed { 0 } else { 101 };
        self.write("/usr/sbin/policy-rc.d", &format!("#!/bin/sh\nexit {status}\n"));
        self.command("chmod").args(["755", "/usr/sbin/policy-rc.d"]).succeeds();
    }

    /// `dpkg -i` of packages that lie on the machine; returns what it said.
    #[track_caller]
    pub fn install(&self, packages: &[PathBuf]) -> String {
        self.dpkg_install(packages).output_of_success()
    }

    /// The same, to be run by the caller. An edited configuration file stays.
    pub fn dpkg_install(&self, packages: &[PathBuf]) -> Command {
        let mut command = self.command("dpkg");
        command.args(["--force-confold", "--install"]);
        command.args(packages.iter().map(|package| self.bring(package, "/var/tmp")));
        command
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // Process 1 sees the end of its input.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
