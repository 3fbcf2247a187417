//! What `vmad` is told of the connections of a process, and what follows.
//!
//! The daemon's socket has a fixed place, so every program here runs in a mount namespace of its own, in
//! which /run is a directory of the test's: the machine's /run is never touched. `protocol` lets the
//! test itself be the daemon, `resets` runs the real one.

mod protocol;
mod resets;

use std::fs::Permissions;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Namespaces, PATIENCE, PYTHON, Program, Puppet, Side, library, wait_for};

/// Two namespaces, a place for the daemon's socket, and one for the library's files.
struct Host {
    net: Namespaces,
}

impl Host {
    fn new() -> Host {
        let net = Namespaces::new();
        std::fs::create_dir(net.file("run")).unwrap();
        Host { net }
    }

    /// As programs see it, this is /var/run/vma_agent.sock.
    fn daemon_socket(&self) -> PathBuf {
        self.net.file("run/vma_agent.sock")
    }

    fn notify_dir(&self) -> PathBuf {
        self.net.file("notify")
    }

    /// What lies in the notify directory; empty also if there is none.
    fn notified(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.notify_dir()).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|one| one.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A program on side A under the library, whose /run is the test's.
    fn program(&self, name: &str) -> Program<'_> {
        self.net
            .program(Side::A, "unshare")
            .with_library()
            .env("VMA_VMAD_NOTIFY_DIR", self.notify_dir().to_str().unwrap())
            .args("--mount --propagation private sh -c")
            .arg("mount --bind \"$0\" /run && exec \"$@\"")
            .arg(self.net.file("run").to_str().unwrap())
            .arg(name)
    }

    fn puppet(&self) -> Puppet {
        Puppet::start(self.program(PYTHON))
    }

    /// A puppet of a user who owns nothing, with no more rights than it takes to have an interface.
    fn nobodys_puppet(&self) -> Puppet {
        const RIGHTS: &str = "+net_admin,+net_raw,+bpf,+perfmon,+ipc_lock";
        let mode = |path: &Path| {
            std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        };
        mode(&self.net.dir);
        let copy = self.net.file("libvma.so");
        std::fs::copy(library(), &copy).unwrap();
        mode(&copy);
        let program = self
            .program("setpriv")
            .env("LD_PRELOAD", copy.to_str().unwrap())
            .args("--reuid=65534 --regid=65534 --clear-groups")
            .args(&format!("--inh-caps={RIGHTS} --ambient-caps={RIGHTS}"))
            .arg(PYTHON);
        Puppet::start(program)
    }

    /// Connections from the program (`c`, or the list `all`) to a kernel socket of the test on side B.
    fn connect(&self, program: &mut Puppet, count: usize) -> Vec<TcpStream> {
        let listener = self.net.within(Side::B, || TcpListener::bind(Side::B.at(0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let accept = |_| {
            program.run(&format!("c = create_connection(('10.99.0.2', {port}), 15)"));
            program.run("all = globals().get('all', []) + [c]");
            listener.accept().unwrap().0
        };
        (0..count).map(accept).map(patient).collect()
    }

    /// A connection that the program accepts (`c`), from a kernel socket of the test on side B.
    fn accept(&self, program: &mut Puppet) -> TcpStream {
        program.run("l = create_server(('10.99.0.1', 7000))");
        // Connections come to the library from the first wait for them on.
        program.run("select.select([l], [], [], 0)");
        let peer = self.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        program.run("c, _ = l.accept()");
        patient(peer)
    }
}

fn patient(peer: TcpStream) -> TcpStream {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

/// kill -9, before the program can notice that its input ends.
fn kill(program: &mut Puppet) {
    program.signal(Signal::KILL);
    program.kill();
}

/// Nothing comes for so long: not a byte, no end, no reset.
#[track_caller]
fn hears_nothing(peer: &mut TcpStream, duration: Duration) {
    peer.set_read_timeout(Some(duration)).unwrap();
    let heard = peer.read(&mut [0; 1]);
    let nothing = heard.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(nothing, "{heard:?}");
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
}
