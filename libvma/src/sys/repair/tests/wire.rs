//! Two network namespaces and a wire that can be cut.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio, id};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::impatient;

pub const OURS: &str = "10.0.0.1";
pub const THEIRS: &str = "10.0.0.2";

pub struct Wire {
    ours: File,
    theirs: File,
}

/// Runs a test in a namespace of its own, with a peer's beside it, on a thread of its own.
pub fn with_wire(test: impl FnOnce(&Wire) + Send + 'static) {
    let thread = std::thread::spawn(|| test(&Wire::new()));
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl Wire {
    fn new() -> Wire {
        let theirs = new_namespace();
        let ours = new_namespace();
        let wire = Wire { ours, theirs };
        ip(&format!(
            "link set lo up\n\
             link add v0 address 02:00:00:00:00:01 type veth \
                 peer name v1 address 02:00:00:00:00:02 netns /proc/{}/fd/{}\n\
             addr add {OURS}/24 dev v0\n\
             link set v0 up\n",
            id(),
            wire.theirs.as_raw_fd(),
        ));
        wire.at_peer(|| {
            ip(&format!("link set lo up\naddr add {THEIRS}/24 dev v1\nlink set v1 up\n"));
        });
        // Linux 6.15 and later: the kernel retransmits once a second, without backoff.
        if std::fs::exists("/proc/sys/net/ipv4/tcp_rto_max_ms").unwrap() {
            wire.set("tcp_rto_max_ms", "1000");
        }
        wire.mend();
        wire
    }

    /// Does something in the peer's namespace.
    pub fn at_peer<T>(&self, action: impl FnOnce() -> T) -> T {
        enter(&self.theirs);
        let result = action();
        enter(&self.ours);
        result
    }

    /// From now on frames in both directions go to hosts that are not there.
    pub fn cut(&self) {
        self.neighbours("02:00:00:00:00:88", "02:00:00:00:00:99");
    }

    pub fn mend(&self) {
        self.neighbours("02:00:00:00:00:02", "02:00:00:00:00:01");
    }

    /// From now on the peer is heard, and hears nothing.
    pub fn deliver_theirs(&self) {
        self.neighbours("02:00:00:00:00:88", "02:00:00:00:00:01");
    }

    /// From now on the peer hears, and is not heard.
    pub fn deliver_ours(&self) {
        self.neighbours("02:00:00:00:00:02", "02:00:00:00:00:99");
    }

    fn neighbours(&self, theirs: &str, ours: &str) {
        ip(&format!("neigh replace {THEIRS} lladdr {theirs} dev v0 nud permanent\n"));
        self.at_peer(|| {
            ip(&format!("neigh replace {OURS} lladdr {ours} dev v1 nud permanent\n"));
        });
    }

    pub fn set(&self, name: &str, value: &str) {
        let set = || std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
        set();
        self.at_peer(set);
    }

    /// A connection that we opened: our end, the peer's.
    pub fn opened(&self) -> (TcpStream, TcpStream) {
        let listener = self.at_peer(|| TcpListener::bind((THEIRS, 0)).unwrap());
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        (impatient(ours), impatient(theirs))
    }

    /// A connection that we accepted from `listener`: our end, the peer's.
    pub fn accepted(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let theirs = self.at_peer(|| TcpStream::connect(to).unwrap());
        let ours = listener.accept().unwrap().0;
        (impatient(ours), impatient(theirs))
    }
}

fn new_namespace() -> File {
    // SAFETY: the network namespace only, which no memory or descriptor depends on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace needs root");
    File::open("/proc/thread-self/ns/net").unwrap()
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Runs lines of `ip` in the calling thread's namespace.
pub fn ip(lines: &str) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("iproute2");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip failed on: {lines}");
}
