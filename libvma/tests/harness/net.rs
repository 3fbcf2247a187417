//! The two namespaces, and what their kernels count.

use std::fmt::Display;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sandbox::{CONTAINER, DEFAULT_PROFILE};
use super::{PATIENCE, Program, Puppet, Traffic, compile, wait_for};

/// One end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

/// Where on the receive path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    NativeXdp,
    GenericXdp,
    Tc,
}

/// Of the running kernel: 6.1 is (6, 1).
pub fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is there");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => panic!("the kernel's version: {release}"),
    }
}

impl Hook {
    /// The hook that is taken on a veth unless the user says otherwise: tc, with Linux 6.6.
    pub fn best() -> Hook {
        if kernel_version() >= (6, 6) { Hook::Tc } else { Hook::NativeXdp }
    }
}

impl Side {
    pub fn ip(self) -> Ipv4Addr {
        match self {
            Side::A => Ipv4Addr::new(10, 99, 0, 1),
            Side::B => Ipv4Addr::new(10, 99, 0, 2),
        }
    }

    pub fn at(self, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip(), port)
    }

    pub fn device(self) -> &'static str {
        match self {
            Side::A => "veth-a",
            Side::B => "veth-b",
        }
    }

    pub fn mac(self) -> &'static str {
        match self {
            Side::A => "02:00:00:99:00:01",
            Side::B => "02:00:00:99:00:02",
        }
    }

    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Two namespaces and their cable. No packet leaves them.
pub struct Namespaces {
    prefix: String,
    /// For files of the test; gone afterwards.
    pub dir: PathBuf,
}

impl Namespaces {
    /// Each end knows the other's MAC address for good, so that nobody needs ARP.
    pub fn new() -> Namespaces {
        let net = Namespaces::with_arp();
        for side in [Side::A, Side::B] {
            let (peer, device) = (side.other(), side.device());
            let (ip, mac) = (peer.ip(), peer.mac());
            net.ip(side, &format!("neigh replace {ip} lladdr {mac} nud permanent dev {device}"));
        }
        net
    }

    /// The ends find each other's MAC address by ARP.
    pub fn with_arp() -> Namespaces {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_left_over();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("vmat-{}-{count}", std::process::id());
        let dir = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&dir).expect("a directory for the test's files");
        let net = Namespaces { prefix, dir };
        for side in [Side::A, Side::B] {
            run_ip(&["netns", "add", &net.name(side)]);
        }
        net.lay_cable();
        net
    }

    /// Makes the cable and its ends, which must not be there.
    fn lay_cable(&self) {
        let (a, b) = (Side::A, Side::B);
        self.ip(
            a,
            &format!(
                "link add {} address {} type veth peer {} address {} netns {}",
                a.device(),
                a.mac(),
                b.device(),
                b.mac(),
                self.name(b)
            ),
        );
        for side in [a, b] {
            let device = side.device();
            self.ip(side, "link set lo up");
            self.ip(side, &format!("address add {}/24 brd + dev {device}", side.ip()));
            // No IPv6 address on the cable: no duplicate address detection, no solicitations.
            self.ip(side, &format!("link set {device} addrgenmode none up"));
        }
    }

    /// Deletes the interfaces at both ends and makes new ones of the same names and addresses.
    pub fn replace_cable(&self) {
        self.ip(Side::A, &format!("link delete {}", Side::A.device()));
        self.lay_cable();
    }

    pub fn name(&self, side: Side) -> String {
        format!("{}-{side:?}", self.prefix).to_lowercase()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `ip -n <namespace> <words>`; returns what it prints.
    #[track_caller]
    pub fn ip(&self, side: Side, words: &str) -> String {
        let name = self.name(side);
        let mut all = vec!["-n", &name];
        all.extend(words.split_whitespace());
        run_ip(&all)
    }

    /// Gives the side's end of the cable an address of IPv6 with 64 bits of network, and waits until the kernel has it: `ip` returns
    /// before the kernel's own work puts the address into the local table, and what is sent there meanwhile is lost.
    #[track_caller]
    pub fn add_ipv6(&self, side: Side, address: impl Display) {
        self.ip(side, &format!("-6 address add {address}/64 dev {} nodad", side.device()));
        wait_for(&format!("{address} is local"), || {
            let local = self.ip(side, &format!("-6 route show table local {address}"));
            local.starts_with("local ").then_some(())
        });
    }

    /// Does `work` on a thread in the namespace: sockets it makes and processes it starts are and
    /// stay there.
    pub fn within<T: Send>(&self, side: Side, work: impl FnOnce() -> T + Send) -> T {
        let path = Path::new("/run/netns").join(self.name(side));
        let namespace = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("setns needs root");
            work()
        };
        std::thread::scope(|scope| {
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A kernel socket of the test itself, bound to the side's address and a port the kernel
    /// picks. Receiving fails after [`PATIENCE`].
    pub fn socket(&self, side: Side) -> UdpSocket {
        self.socket_at(side, side.at(0))
    }

    pub fn socket_at(&self, side: Side, at: SocketAddrV4) -> UdpSocket {
        let socket = self
            .within(side, || UdpSocket::bind(at))
            .unwrap_or_else(|error| panic!("bind to {at}: {error}"));
        socket.set_read_timeout(Some(PATIENCE)).expect("SO_RCVTIMEO");
        socket
    }

    /// The same as in a container of root's that has these capabilities and no other (`+net_admin,+bpf`): processes, mounts, /dev/shm and
    /// IPC are its own, and the default seccomp profile for it holds.
    pub fn container(&self, side: Side, capabilities: &str, name: &str) -> Program<'_> {
        let profile = compile(self, "profile", DEFAULT_PROFILE, &[]);
        let (first, words) = CONTAINER.split_first().expect("a word");
        let program = Program::new(self, side, first);
        let program = words.iter().fold(program, |program, word| program.arg(word));
        let set = format!("-all,{capabilities}");
        let set = set.trim_end_matches(',');
        let drops = format!("setpriv --bounding-set={set} --inh-caps={set} --no-new-privs");
        let program = program.args(&drops).arg(&profile.to_string_lossy());
        let program = if capabilities.contains("bpf") { program.arg("+bpf") } else { program };
        program.arg(name)
    }

    /// A program to run in the namespace, without the library unless asked for.
    pub fn program(&self, side: Side, name: &str) -> Program<'_> {
        Program::new(self, side, name)
    }

    /// A puppet under the library.
    pub fn puppet(&self, side: Side) -> Puppet {
        Puppet::start(self.program(side, super::PYTHON).with_library())
    }

    /// Writes a file below /proc/sys of the namespace.
    pub fn sysctl(&self, side: Side, name: &str, value: &str) {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.within(side, || std::fs::write(&path, value))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    pub fn read_proc(&self, side: Side, name: &str) -> String {
        let path = format!("/proc/thread-self/net/{name}");
        self.within(side, || std::fs::read_to_string(&path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Datagrams that the namespace's kernel delivered to sockets and sent for them.
    pub fn kernel_datagrams(&self, side: Side) -> (u64, u64) {
        let text = self.read_proc(side, "snmp");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let names: Vec<&str> = lines.next().expect("names").split_whitespace().collect();
        let values: Vec<&str> = lines.next().expect("values").split_whitespace().collect();
        let value = |wanted: &str| -> u64 {
            let at = names.iter().position(|name| *name == wanted).expect("a known counter");
            values[at].parse().expect("a number")
        };
        (value("InDatagrams"), value("OutDatagrams"))
    }

    /// The same of IPv6.
    pub fn kernel_datagrams_of_ipv6(&self, side: Side) -> (u64, u64) {
        (self.snmp6(side, "Udp6InDatagrams"), self.snmp6(side, "Udp6OutDatagrams"))
    }

    /// A counter of the namespace's IPv6.
    pub fn snmp6(&self, side: Side, wanted: &str) -> u64 {
        let text = self.read_proc(side, "snmp6");
        let mut lines = text.lines().map(str::split_whitespace);
        let mut line =
            lines.find(|line| line.clone().next() == Some(wanted)).expect("a known counter");
        line.nth(1).expect("a value").parse().expect("a number")
    }

    /// The ports of the namespace's UDP sockets.
    pub fn udp_ports(&self, side: Side) -> Vec<u16> {
        let text = self.read_proc(side, "udp");
        let port = |line: &str| {
            let local = line.split_whitespace().nth(1)?;
            u16::from_str_radix(local.split_once(':')?.1, 16).ok()
        };
        text.lines().skip(1).filter_map(port).collect()
    }

    #[track_caller]
    pub fn wait_for_port(&self, side: Side, port: u16) {
        wait_for(&format!("UDP port {port} is bound"), || {
            self.udp_ports(side).contains(&port).then_some(())
        });
    }

    /// Where a steering program is attached to the side's interface, if one is.
    pub fn steering(&self, side: Side) -> Option<Hook> {
        self.steering_on(side, side.device())
    }

    /// The same of another interface.
    pub fn steering_on(&self, side: Side, device: &str) -> Option<Hook> {
        let shown = self.ip(side, &format!("-d link show {device}"));
        if shown.contains("xdpgeneric") {
            return Some(Hook::GenericXdp);
        }
        if shown.contains("prog/xdp") {
            return Some(Hook::NativeXdp);
        }
        if Hook::best() != Hook::Tc {
            return None;
        }
        // A program that is detached between the question which there are and the one what they are
        // makes the second one fail.
        let query = || SchedClassifier::query_tcx(device, TcAttachType::Ingress).ok();
        let (_, programs) =
            wait_for("the kernel tells of its programs", || self.within(side, query));
        programs
            .iter()
            .any(|program| program.name_as_str() == Some("vma_ingress"))
            .then_some(Hook::Tc)
    }

    pub fn is_steered(&self, side: Side) -> bool {
        self.steering(side).is_some()
    }

    /// From here to [`Offload::check`] or [`Offload::still`], the side's kernel sees no UDP.
    pub fn watch(&self, side: Side) -> Offload<'_> {
        Offload {
            net: self,
            side,
            count: Namespaces::kernel_datagrams,
            before: self.kernel_datagrams(side),
        }
    }

    /// As [`Namespaces::watch`], of UDP over IPv6.
    pub fn watch_ipv6(&self, side: Side) -> Offload<'_> {
        let before = self.kernel_datagrams_of_ipv6(side);
        Offload { net: self, side, count: Namespaces::kernel_datagrams_of_ipv6, before }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for side in [Side::A, Side::B] {
            remove(&self.name(side));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Watches the kernel's UDP counters of one side.
pub struct Offload<'a> {
    net: &'a Namespaces,
    side: Side,
    count: fn(&Namespaces, Side) -> (u64, u64),
    before: (u64, u64),
}

impl Offload<'_> {
    /// The kernel counted nothing.
    #[track_caller]
    pub fn still(&self) {
        assert_eq!(self.moved(), (0, 0), "UDP datagrams (in, out) went through the kernel");
    }

    /// What the kernel has counted since: datagrams in and out.
    pub fn moved(&self) -> (u64, u64) {
        let now = (self.count)(self.net, self.side);
        (now.0 - self.before.0, now.1 - self.before.1)
    }

    /// The kernel counted nothing, and the library counted at least this many datagrams in each
    /// direction and none by the kernel's sockets.
    #[track_caller]
    pub fn check(&self, traffic: &Traffic, least_rx: u64, least_tx: u64) {
        self.still();
        assert!(
            traffic.rx >= least_rx && traffic.tx >= least_tx,
            "at least {least_rx} in and {least_tx} out should be offloaded: {traffic:?}"
        );
        assert_eq!((traffic.rx_os, traffic.tx_os), (0, 0), "by the kernel: {traffic:?}");
    }
}

#[track_caller]
fn run_ip(words: &[&str]) -> String {
    let output = Command::new("ip").args(words).output().expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {error}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Ends what runs in a namespace of ours and removes it.
fn remove(name: &str) {
    if !Path::new("/run/netns").join(name).exists() {
        return;
    }
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).output();
}

/// Namespaces of test processes that were killed before they could clean up.
fn remove_left_over() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("vmat-").and_then(|rest| rest.split('-').next());
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid).exists()
        {
            remove(&name);
        }
    }
}
