//! What an ordinary user has in a plain container: a network of its own with nothing but `lo` in it,
//! and no capability anywhere. The tests of traffic within one host run in it.
//!
//! ```text
//!    the test (root or not)        holder: makes a user and a network namespace, brings lo up
//!          |                                     |
//!          +--- program ----- joins both, drops every capability for good, becomes the program
//! ```
//!
//! The kernel of the namespace counts what went through it, as on the bench with two sides; here
//! these are the datagrams, segments and bytes of `lo` ([`Watch`]).

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Program, compile_in, library, wait_for};

/// Makes of root, who may run the tests, the user who owns nothing.
const BECOME_NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Holds the namespaces until the test, or its process, is gone; then ends who is left in them.
const HOLDER: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
ip link set lo up || exit
for n in 1 2 3; do ip -6 address add "fd00:98::$n/128" dev lo nodad || exit; done
# ip returns before the kernel has an address in the local table, and what is sent there meanwhile is lost.
for n in 1 2 3; do
    for round in $(seq 2000); do
        ip -6 route show table local "fd00:98::$n" | grep -q ^local && continue 2
        sleep 0.005
    done
    echo "fd00:98::$n does not become local" >&2
    exit 1
done
echo ready
read _
own=$(readlink /proc/$$/ns/net)
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" != "$own" ] || [ "$process" = "/proc/$$" ] ||
        kill -KILL "${process#/proc/}" 2>/dev/null
done
"#;

/// Namespaces of a container's own.
pub(super) const CONTAINER: &[&str] = &[
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--ipc",
    "--uts",
    "--mount-proc",
    "sh",
    "-c",
    "mount -t tmpfs none /dev/shm && exec \"$@\"",
    "sh",
];
/// The filter of a container's system calls.
pub(super) const DEFAULT_PROFILE: &str = include_str!("default_profile.c");

/// A user and a network namespace without privileges. No packet leaves it. Beside those of loopback it has addresses of its own,
/// fd00:98::1 to fd00:98::3.
pub struct Sandbox {
    holder: Child,
    /// For files of the test; gone afterwards.
    pub dir: PathBuf,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("vmas-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the test's files");
        // The programs are somebody else.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("it is ours");
        let words = "unshare --user --map-root-user --net sh -c".split(' ');
        let words: Vec<&str> = become_nobody().iter().copied().chain(words).collect();
        let mut holder = Command::new(words[0])
            .args(&words[1..])
            .arg(HOLDER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut said = String::new();
        let stdout = holder.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        assert_eq!(said, "ready\n", "no user namespace: is user.max_user_namespaces 0?");
        Sandbox { holder, dir }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A program to run in the sandbox, without the library unless asked for.
    pub fn program(&self, name: &str) -> Program<'_> {
        Program::in_sandbox(self, &self.words(&[], &[]), name)
    }

    /// The same as one of the containers of a pod: the network and the user are the sandbox's, processes, mounts, /dev/shm and IPC its
    /// own, and the default seccomp profile holds.
    pub fn container(&self, name: &str) -> Program<'_> {
        let profile = compile_in(&self.dir, "profile", DEFAULT_PROFILE, &[]);
        let words = self.words(CONTAINER, &[&profile.to_string_lossy()]);
        // All are process 1 of theirs.
        Program::in_sandbox(self, &words, name).env("VMA_STATS_SHMEM_DIR", "/dev/shm")
    }

    /// The words that turn into a program in the sandbox; the program and its arguments follow. A
    /// library to preload is in PRELOAD: none of these words needs it. `first` are words while there are privileges, `last` those
    /// behind that.
    pub(super) fn words(&self, first: &[&str], last: &[&str]) -> Vec<String> {
        let joins = format!("nsenter --preserve-credentials --user --net --target {}", self.id());
        let drops =
            "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs";
        let exec = "[ -z \"$PRELOAD\" ] || export LD_PRELOAD=\"$PRELOAD\"
                    unset PRELOAD
                    exec \"$@\"";
        let joined = joins.split(' ').chain(first.iter().copied()).chain(drops.split(' '));
        let joined = joined.chain(last.iter().copied()).chain(["sh", "-c", exec, "sh"]);
        become_nobody().iter().copied().chain(joined).map(str::to_owned).collect()
    }

    /// The library, where the programs may read it.
    pub fn library(&self) -> PathBuf {
        let copy = self.file("libvma.so");
        if !copy.exists() {
            std::fs::copy(library(), &copy).expect("a copy of the library");
            wait_for("the library is there", || copy.exists().then_some(()));
        }
        copy
    }

    /// The process whose namespaces these are.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// A file below /proc/net as the sandbox sees it.
    pub fn read_proc(&self, name: &str) -> String {
        let path = format!("/proc/{}/net/{name}", self.id());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[track_caller]
    pub fn wait_for_udp(&self, port: u16) {
        wait_for(&format!("UDP port {port} is bound"), || {
            self.has_socket("udp", port, "07").then_some(())
        });
    }

    #[track_caller]
    pub fn wait_for_listener(&self, port: u16) {
        wait_for(&format!("somebody listens on TCP port {port}"), || {
            self.has_socket("tcp", port, "0A").then_some(())
        });
    }

    fn has_socket(&self, protocol: &str, port: u16, state: &str) -> bool {
        let text = self.read_proc(protocol) + &self.read_proc(&format!("{protocol}6"));
        let port = format!(":{port:04X}");
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(state)
        })
    }

    /// The abstract names of unix sockets in the namespace.
    pub fn abstract_names(&self) -> Vec<String> {
        let text = self.read_proc("unix");
        let name =
            |line: &str| line.split_whitespace().nth(7)?.strip_prefix('@').map(str::to_owned);
        text.lines().skip(1).filter_map(name).collect()
    }

    fn counters(&self) -> Counters {
        let snmp = self.read_proc("snmp");
        let dev = self.read_proc("dev");
        let lo = dev.lines().find_map(|line| line.trim().strip_prefix("lo:")).expect("lo");
        let mut lo = lo.split_whitespace().map(|word| word.parse::<u64>().expect("a number"));
        Counters {
            lo_bytes: lo.next().expect("bytes"),
            lo_packets: lo.next().expect("packets"),
            datagrams: counter(&snmp, "Udp: ", "InDatagrams"),
            connections: counter(&snmp, "Tcp: ", "ActiveOpens"),
            segments: counter(&snmp, "Tcp: ", "InSegs"),
        }
    }

    /// Counts from here on what goes through the kernel.
    pub fn watch(&self) -> Watch<'_> {
        Watch { sandbox: self, before: self.counters() }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The holder sees the end of its input and cleans up.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn become_nobody() -> &'static [&'static str] {
    if rustix::process::getuid().is_root() { BECOME_NOBODY } else { &["env"] }
}

fn counter(text: &str, section: &str, wanted: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(section));
    let names = lines.next().expect("names").split_whitespace();
    let values = lines.next().expect("values").split_whitespace();
    let value = names.zip(values).find(|(name, _)| *name == wanted);
    value.and_then(|(_, value)| value.parse().ok()).expect("a known counter")
}

/// What the kernel of a sandbox counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub lo_bytes: u64,
    pub lo_packets: u64,
    /// Received by UDP sockets.
    pub datagrams: u64,
    /// Opened, whoever moves the bytes then.
    pub connections: u64,
    pub segments: u64,
}

/// Watches the kernel's counters of a sandbox.
pub struct Watch<'a> {
    sandbox: &'a Sandbox,
    before: Counters,
}

impl Watch<'_> {
    pub fn moved(&self) -> Counters {
        let (now, before) = (self.sandbox.counters(), self.before);
        Counters {
            lo_bytes: now.lo_bytes - before.lo_bytes,
            lo_packets: now.lo_packets - before.lo_packets,
            datagrams: now.datagrams - before.datagrams,
            connections: now.connections - before.connections,
            segments: now.segments - before.segments,
        }
    }
}
