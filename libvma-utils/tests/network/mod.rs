//! A private network for the tests of `vmad`: two namespaces with a cable between them, and programs in
//! them that are spoken to line by line. Nothing of the machine is touched, and everything is gone when
//! the values are dropped, also when a test fails.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long anything may take that is sure to happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The two ends of the cable; each is a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// 10.98.0.1 on `veth-a`.
    A,
    /// 10.98.0.2 on `veth-b`.
    B,
}

/// Two namespaces with a cable.
pub struct Network {
    prefix: String,
}

/// A program in one of them, killed when dropped.
pub struct Program {
    pub child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Side {
    pub fn ip(self) -> &'static str {
        match self {
            Side::A => "10.98.0.1",
            Side::B => "10.98.0.2",
        }
    }

    pub fn ipv6(self) -> &'static str {
        match self {
            Side::A => "fd00:98::1",
            Side::B => "fd00:98::2",
        }
    }

    pub fn device(self) -> &'static str {
        match self {
            Side::A => "veth-a",
            Side::B => "veth-b",
        }
    }
}

impl Network {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self { prefix: format!("vmad-{}-{count}", std::process::id()) };
        let (a, b) = (network.name(Side::A), network.name(Side::B));
        run(Command::new("ip").args(["netns", "add", &a]));
        run(Command::new("ip").args(["netns", "add", &b]));
        let link = format!("-n {a} link add veth-a type veth peer veth-b netns {b}");
        run(Command::new("ip").args(link.split(' ')));
        for side in [Side::A, Side::B] {
            network.ip(side, "link set lo up");
            network.ip(side, &format!("address add {}/24 dev {}", side.ip(), side.device()));
            network.ip(side, &format!("link set {} addrgenmode none up", side.device()));
        }
        network
    }

    /// Gives both sides an address of IPv6, too, and waits until the kernel has it: `ip` returns before the kernel's own work puts
    /// the address into the local table, and what is sent there meanwhile is lost.
    pub fn add_ipv6(&self) {
        for side in [Side::A, Side::B] {
            let (address, device) = (side.ipv6(), side.device());
            self.ip(side, &format!("-6 address add {address}/64 dev {device} nodad"));
            let is_local = || {
                let local = self.ip(side, &format!("-6 route show table local {address}"));
                local.starts_with("local ")
            };
            let end = Instant::now() + PATIENCE;
            while !is_local() {
                assert!(Instant::now() < end, "{address} does not become local");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Runs `ip` on one side with these words.
    pub fn ip(&self, side: Side, words: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name(side)]).args(words.split(' ')))
    }

    /// Runs a command on one side and returns what it prints. It must succeed.
    pub fn run(&self, side: Side, words: &str) -> String {
        let mut words = words.split(' ');
        run(self.command(side, words.next().expect("a program")).args(words))
    }

    /// Loads nftables rules on one side.
    pub fn nft(&self, side: Side, rules: &str) {
        run(self.command(side, "nft").arg(rules));
    }

    /// A command that will run on one side.
    pub fn command(&self, side: Side, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(side), program]);
        command
    }

    /// Starts Python with this script; its arguments follow.
    pub fn python(&self, side: Side, script: &str, arguments: &[&str]) -> Program {
        Program::start(self.command(side, "python3").args(["-u", "-c", script]).args(arguments))
    }

    /// Has this thread on one side while `work` is done.
    pub fn inside<T: Send>(&self, side: Side, work: impl FnOnce() -> T + Send) -> T {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        use std::os::fd::AsFd;
        let file = std::fs::File::open(format!("/run/netns/{}", self.name(side)))
            .expect("the namespace is there");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter");
                work()
            });
            thread.join().expect("the work is done")
        })
    }

    fn name(&self, side: Side) -> String {
        format!("{}-{}", self.prefix, if side == Side::A { "a" } else { "b" })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in [Side::A, Side::B] {
            let _ = Command::new("ip").args(["netns", "delete", &self.name(side)]).status();
        }
    }
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Self { child, input, lines }
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program reads");
    }

    /// Its next line, which must come and begin with `word`; the rest of it.
    pub fn expect(&self, word: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {word:?} came"));
        let rest =
            line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?} instead of {word:?}"));
        rest.trim().to_owned()
    }

    /// Its next line within `time`, if any. The program must not end meanwhile.
    pub fn line_within(&self, time: Duration) -> Option<String> {
        match self.lines.recv_timeout(time) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the program has ended"),
        }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, as Python's `time.monotonic_ns` counts them.
pub fn monotonic() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
