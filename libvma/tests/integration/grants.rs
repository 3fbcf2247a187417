//! Programs without any privilege to which `vmad` grants a ring. `ipv6` has those that talk over IPv6, `hostile`, `hostile_ipv6` and `rebound`
//! those that want more.

mod hostile;
mod hostile_ipv6;
mod ipv6;
mod rebound;
mod wire;

use std::fs::Permissions;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{
    Namespaces, PYTHON, Program, Puppet, Running, Side, is_long, library, tool, wait_for,
};

/// The user that programs run as, and another one.
const NOBODY: u32 = 65534;
const OTHER: u32 = 65533;

/// Two namespaces with a `vmad` on side A, which has its files in the test's directory.
struct Host {
    net: Namespaces,
    daemon: Running,
}

impl Host {
    /// `rule`: what the configuration grants.
    fn new(rule: &str) -> Host {
        Host::with_daemon_on(Side::A, rule)
    }

    /// The daemon is in the network of that side.
    fn with_daemon_on(side: Side, rule: &str) -> Host {
        let net = Namespaces::new();
        std::fs::create_dir(net.file("run")).unwrap();
        open_to_all(&net.dir);
        std::fs::copy(library(), net.file("libvma.so")).unwrap();
        open_to_all(&net.file("libvma.so"));
        let daemon = start(&net, side, rule);
        Host { net, daemon }
    }

    /// A program of that user without capabilities, under the library; its /run is the test's.
    fn program(&self, user: u32, name: &str) -> Program<'_> {
        self.net
            .program(Side::A, "unshare")
            .with_library()
            .env("LD_PRELOAD", self.net.file("libvma.so").to_str().unwrap())
            .args("--mount --propagation private sh -c")
            .arg("mount --bind \"$0\" /run && exec \"$@\"")
            .arg(self.net.file("run").to_str().unwrap())
            .args(&format!("setpriv --reuid={user} --regid={user} --clear-groups"))
            .args("--bounding-set=-all --inh-caps=-all --no-new-privs")
            .arg(name)
    }

    fn puppet(&self, user: u32) -> Puppet {
        Puppet::start(self.program(user, PYTHON))
    }

    /// Sends to a program's socket `s`, bound to port 5000, and takes its answers: what the kernel of its side had of them.
    #[track_caller]
    fn echoes(&self, program: &mut Puppet, len: usize) -> (u64, u64) {
        let peer = self.net.socket(Side::B);
        let watch = self.net.watch(Side::A);
        echo(program, &peer, Side::A.at(5000), len);
        watch.moved()
    }

    /// TAPs of rings on side A.
    fn taps(&self) -> usize {
        let links = self.net.ip(Side::A, "-o link show");
        links.lines().filter(|line| line.contains(": vma")).count()
    }
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
}

fn start(net: &Namespaces, side: Side, rule: &str) -> Running {
    let file = |name: &str| net.file(name).to_str().unwrap().to_owned();
    let keys =
        ["run/vma_agent.sock", "vmad.lock", "vmad.pid", "notify", "run/vma_grant.sock"].map(file);
    let [socket, lock, pid, notify, grant] = keys;
    let config = format!(
        "socket = '{socket}'\nlock_file = '{lock}'\npid_file = '{pid}'\nnotify_dir = '{notify}'\n\
         grant_socket = '{grant}'\n{rule}"
    );
    std::fs::write(net.file("vmad.toml"), config).unwrap();
    let program = tool("vmad");
    let daemon = net
        .program(side, program.to_str().unwrap())
        .args("--console -v 5 --config")
        .arg(&file("vmad.toml"))
        .start();
    wait_for("the daemon serves", || daemon.printed().contains("serving on").then_some(()));
    daemon
}

fn rule_of_two() -> String {
    format!("[[grant]]\ninterfaces = ['*']\nusers = ['{NOBODY}', '{OTHER}']\n")
}

fn rule(interface: &str, user: u32) -> String {
    format!("[[grant]]\ninterfaces = ['{interface}']\nusers = ['{user}']\n")
}

// covers: LIM-74
#[test]
fn a_program_without_privileges_is_served() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0), "{}", host.daemon.printed());
    // Frames of the MTU, and fragments.
    assert_eq!(host.echoes(&mut program, 1472), (0, 0));
    assert_eq!(host.taps(), 1);
    program.run("s.close()");
    // Another socket gets the port at once.
    program.run("s = udp(('', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    program.finish();
    wait_for("nothing is left of it", || {
        (host.taps() == 0 && !host.net.is_steered(Side::A)).then_some(())
    });
}

/// The daemon goes into the network of the program, as into a container's.
#[test]
fn a_program_in_another_network_than_the_daemon_is_served() {
    let host = Host::with_daemon_on(Side::B, &rule("*", NOBODY));
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    assert_eq!(host.taps(), 1);
}

/// Datagrams of so many bytes come to the program's `s`, and back.
#[track_caller]
fn echo(program: &mut Puppet, peer: &UdpSocket, own: impl ToSocketAddrs + Copy, len: usize) {
    for n in 0..10u8 {
        peer.send_to(&vec![n; len], own).unwrap();
        program.run("d, peer = s.recvfrom(65536)");
        program.run("s.sendto(d, peer)");
        let mut answer = vec![0; len + 1];
        assert_eq!(peer.recv(&mut answer).unwrap(), len);
        assert!(answer[..len].iter().all(|byte| *byte == n));
    }
}

/// The program's `s`, which `e` watches, gets datagrams while the program sleeps.
fn wakes_by_epoll(program: &mut Puppet, peer: &UdpSocket, own: impl ToSocketAddrs + Copy) {
    for _ in 0..3 {
        program.begin("e.poll(15)");
        program.wait_until_asleep();
        peer.send_to(b"wakes", own).unwrap();
        assert!(program.end("e.poll(15)").contains(", 1)"));
        assert_eq!(program.run("s.recv(100)"), "b'wakes'");
    }
}

/// The program's `c`, which is connected to the peer, sends and is answered; returns its address.
fn answers(program: &mut Puppet, peer: &UdpSocket) -> SocketAddr {
    program.run("c.send(b'connected')");
    let (_, from) = peer.recv_from(&mut [0; 100]).unwrap();
    peer.send_to(b"back", from).unwrap();
    assert_eq!(program.run("c.recv(100)"), "b'back'");
    from
}

/// Many datagrams come to the program's `s` at once.
fn loses_none(program: &mut Puppet, peer: &UdpSocket, own: impl ToSocketAddrs + Copy) {
    program.run("s.setblocking(True)");
    for n in 0..200u16 {
        peer.send_to(&n.to_ne_bytes(), own).unwrap();
    }
    assert_eq!(
        program.run("[struct.unpack('=H', s.recv(9))[0] for _ in range(200)] == list(range(200))"),
        "True"
    );
}

/// A datagram of several fragments goes from the program's `c` to the peer, and another one back.
fn sends_fragments(program: &mut Puppet, peer: &UdpSocket, own: SocketAddr) {
    program.run("c.send(bytes(3000))");
    assert_eq!(peer.recv(&mut [0; 4000]).unwrap(), 3000);
    peer.send_to(&[1; 3000], own).unwrap();
    assert_eq!(program.run("len(c.recv(4000))"), "3000");
}

/// Connected and not, by each way to wait, more than a frame, and to itself.
#[test]
fn granted_sockets_do_what_others_do() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('10.99.0.1', 5000))");
    program.run("s.setblocking(False); e = select.epoll(); e.register(s, select.EPOLLIN)");
    let peer = host.net.socket_at(Side::B, Side::B.at(7000));
    let watch = host.net.watch(Side::A);
    wakes_by_epoll(&mut program, &peer, Side::A.at(5000));
    program.run("c = udp(peer=('10.99.0.2', 7000))");
    let from = answers(&mut program, &peer);
    watch.still();
    loses_none(&mut program, &peer, Side::A.at(5000));
    sends_fragments(&mut program, &peer, from);
    // TCP works by the kernel.
    program.run("l = create_server(('10.99.0.1', 6000))");
    let client =
        host.net.within(Side::B, || std::net::TcpStream::connect(Side::A.at(6000))).unwrap();
    program.run("t = l.accept()[0]");
    std::io::Write::write_all(&mut &client, b"by tcp").unwrap();
    assert_eq!(program.run("t.recv(100)"), "b'by tcp'");
}

/// The rule names an interface, a user or a group.
#[test]
fn who_is_not_named_is_served_by_the_kernel() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet(OTHER);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (10, 10));
    program.finish();
    let printed = program.stderr();
    assert!(printed.contains("no [[grant]] in vmad.toml names user 65533"), "{printed}");
    assert_eq!(host.taps(), 0);
}

/// The daemon is stopped and started again: no datagram is lost that comes while it is not there, and the ring comes back.
#[test]
fn the_daemon_may_be_started_again() {
    let granted = rule(Side::A.device(), NOBODY);
    let mut host = Host::new(&granted);
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    for signal in [Signal::TERM, Signal::KILL] {
        host.daemon.signal(signal);
        host.daemon.wait_for_end();
        // Nothing is lost that comes. What the program sends before it has heard of the end is.
        let peer = host.net.socket(Side::B);
        for n in 0..10_u8 {
            peer.send_to(&[n; 50], Side::A.at(5000)).unwrap();
            assert_eq!(
                {
                    program.run("d, peer = s.recvfrom(100)");
                    program.run("d[0]")
                },
                n.to_string()
            );
        }
        let sent = host.net.kernel_datagrams(Side::A).1;
        wait_for("the kernel sends", || {
            program.run("s.sendto(b'x', peer)");
            (host.net.kernel_datagrams(Side::A).1 > sent).then_some(())
        });
        assert_eq!(host.echoes(&mut program, 50).0, 10, "by the kernel");
        host.daemon = start(&host.net, Side::A, &granted);
        wait_for("the ring is back", || (host.echoes(&mut program, 50) == (0, 0)).then_some(()));
        assert_eq!(host.taps(), 1);
    }
}

/// Programs that are killed at any moment, with a ring, while it is made, or before: nothing is left of them, and another
/// program loses nothing.
#[test]
fn kills_leave_nothing_and_touch_nobody() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut steady = host.puppet(NOBODY);
    steady.run("s = udp(('10.99.0.1', 5000))");
    let kills = if is_long() { 100 } else { 12 };
    for n in 0..kills {
        let mut victim = host.puppet(NOBODY);
        victim.begin("s = udp(('10.99.0.1', 5001)); s.recv(1)");
        // Its ring is made within some ten milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(n * 37 % 50));
        victim.kill();
        assert_eq!(host.echoes(&mut steady, 50), (0, 0), "kill {n}");
    }
    wait_for("only the other one's is left", || (host.taps() == 1).then_some(()));
    steady.finish();
    wait_for("nothing is left", || {
        (host.taps() == 0 && !host.net.is_steered(Side::A)).then_some(())
    });
    let threads = format!("/proc/{}/task", host.daemon.id());
    wait_for("no thread is left", || {
        (std::fs::read_dir(&threads).unwrap().count() == 2).then_some(())
    });
}

/// A receive call without room for a byte, on a socket that the daemon has marked.
#[test]
fn the_size_of_what_the_kernel_has_is_told() {
    let host = Host::new(&rule(Side::A.device(), NOBODY));
    let mut program = host.puppet(NOBODY);
    program.run("s = udp(('10.99.0.1', 5000))");
    assert_eq!(host.echoes(&mut program, 50), (0, 0));
    let peer = host.net.socket(Side::B);
    // In fragments, which are the kernel's.
    peer.send_to(&[1; 3000], Side::A.at(5000)).unwrap();
    program.run("import ctypes; recv = ctypes.CDLL(None).recv");
    assert_eq!(program.run("recv(s.fileno(), None, 0, MSG_PEEK | MSG_TRUNC)"), "3000");
    let message =
        program.run("(lambda got: (got[0], got[2] & MSG_TRUNC != 0))(s.recvmsg(0, 0, MSG_PEEK))");
    assert_eq!(message, "(b'', True)");
    assert_eq!(program.run("recv(s.fileno(), None, 0, 0)"), "0");
    peer.send_to(&[1; 2000], Side::A.at(5000)).unwrap();
    assert_eq!(program.run("len(s.recv(4000))"), "2000", "the one before was taken");
}
