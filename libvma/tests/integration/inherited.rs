//! Datagrams that wait in a socket when another process gets it: it reads them, in order, from whom they
//! came, whatever way the socket went.

use std::net::UdpSocket;

use crate::harness::{Namespaces, PATIENCE, PYTHON, Puppet, Sandbox, Side};

/// Bytes of each; those above the MTU arrive in fragments.
const SIZES: [usize; 10] = [10, 0, 1472, 1473, 20, 9000, 30, 65_507, 40, 50];

/// Reads and answers what waits, and tells what it got.
const READER: &str = "
import os, socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
s.settimeout(10)
for n in range(10):
    data, peer = s.recvfrom(65535)
    s.sendto(b'%d %d %s' % (n, len(data), data[:2]), peer)
";

/// The other end of SCM_RIGHTS.
const TAKER: &str = "
import socket, sys
_, [number], _, _ = socket.recv_fds(socket.socket(fileno=0), 10, 1)
sys.argv = ['', str(number)]
exec(open('reader.py').read())
";

struct Bench {
    net: Namespaces,
    program: Puppet,
    peer: UdpSocket,
}

impl Bench {
    /// The program is bound to port 5000.
    fn new() -> Bench {
        let net = Namespaces::new();
        std::fs::write(net.file("reader.py"), READER).unwrap();
        std::fs::write(net.file("taker.py"), TAKER).unwrap();
        let mut program = net.puppet(Side::A);
        program.run("import subprocess");
        program.run("env = dict(os.environ); env.pop('LD_PRELOAD'); r, w = os.pipe()");
        program.run("s = udp(('10.99.0.1', 5000)); s.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20)");
        let peer = net.socket(Side::B);
        Bench { net, program, peer }
    }

    /// Ten datagrams are in the library's queue and not in the kernel's.
    fn fill(&mut self) {
        let watch = self.net.watch(Side::A);
        for (number, size) in SIZES.iter().enumerate() {
            self.peer.send_to(&vec![b'a' + number as u8; *size], Side::A.at(5000)).unwrap();
        }
        self.program.run("assert select.select([s], [], [], 15)[0]");
        self.program.run("assert s.recv(65535, MSG_PEEK) == b'a' * 10");
        watch.still();
    }

    #[track_caller]
    fn all_come(&mut self, how: &str) {
        for (number, size) in SIZES.iter().enumerate() {
            let mut got = [0; 100];
            let answer = self.peer.recv(&mut got).map(|len| &got[..len]);
            let answer = answer.unwrap_or_else(|error| panic!("{how}, {number}: {error}"));
            let letters = vec![b'a' + number as u8; 2.min(*size)];
            let expected = format!("{number} {size} {}", String::from_utf8_lossy(&letters));
            assert_eq!(String::from_utf8_lossy(answer), expected, "{how}");
        }
    }
}

/// How another process gets `s`, and reads from it.
const WAYS: [(&str, &str); 10] = [
    (
        "a forked child",
        "
if os.fork() == 0:
    sys.argv = ['', str(os.dup(s.fileno()))]; exec(open('reader.py').read()); os._exit(0)",
    ),
    (
        "a forked child whose parent closes",
        "
if os.fork() == 0:
    os.read(r, 1); sys.argv = ['', str(os.dup(s.fileno()))]; exec(open('reader.py').read()); os._exit(0)
s.close()
os.write(w, b'x')",
    ),
    (
        "a forked child whose parent ends",
        "
if os.fork() == 0:
    os.read(r, 1); sys.argv = ['', str(os.dup(s.fileno()))]; exec(open('reader.py').read()); os._exit(0)
os.write(1, b'=None\\n')
os.write(w, b'x') if os.getppid() else 0
sys.exit(0)",
    ),
    (
        "inetd, by dup2",
        "
if os.fork() == 0: os.dup2(s.fileno(), 0); os.execlp('python3', 'python3', 'reader.py', '0')",
    ),
    (
        "inetd, by dup",
        "
if os.fork() == 0:
    import ctypes
    os.close(0); ctypes.CDLL(None).dup(s.fileno())
    os.execlp('python3', 'python3', 'reader.py', '0')",
    ),
    (
        "inetd, a program without the library",
        "
if os.fork() == 0:
    os.dup2(s.fileno(), 0); os.execvpe('python3', ['python3', 'reader.py', '0'], env)",
    ),
    ("vfork", "p = subprocess.Popen(['python3', 'reader.py', '0'], stdin=s)"),
    (
        "posix_spawn",
        "
os.posix_spawnp('python3', ['python3', 'reader.py', '0'], env,
    file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), 0)])",
    ),
    (
        "exec",
        "
os.write(1, b'=None\\n'); s.set_inheritable(True)
os.execlp('python3', 'python3', 'reader.py', str(s.fileno()))",
    ),
    (
        "SCM_RIGHTS",
        "
a, b = socketpair(AF_UNIX)
p = subprocess.Popen(['python3', 'taker.py'], stdin=b, env=env)
send_fds(a, [b'x'], [s.fileno()])",
    ),
];

// covers: API-34, API-35, LIM-22
#[test]
fn whoever_gets_a_socket_reads_what_waits_in_it() {
    for (how, way) in WAYS {
        let mut bench = Bench::new();
        bench.fill();
        bench.program.run(way);
        bench.all_come(how);
    }
}

// covers: API-34
#[test]
fn the_program_itself_reads_on_from_the_kernel() {
    for why in [
        "fcntl.fcntl(s, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)",
        "import ctypes; f = ctypes.CDLL(None).fdopen(os.dup(s.fileno()), b'r')",
    ] {
        let mut bench = Bench::new();
        bench.fill();
        bench.program.run(why);
        bench.program.run("p = subprocess.Popen(['python3', 'reader.py', '0'], stdin=s, env=env)");
        bench.all_come(why);
    }
}

// covers: API-34
#[test]
fn each_member_of_a_group_keeps_its_own_copies() {
    let mut bench = Bench::new();
    bench.program.run(
        "
def member():
    m = udp(); m.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1); m.bind(('239.1.1.1', 5001))
    m.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, inet_aton('239.1.1.1') + inet_aton('10.99.0.1'))
    return m
a, b = member(), member()",
    );
    let to_group = bench.net.within(Side::B, || {
        UdpSocket::bind(Side::B.at(0)).and_then(|socket| {
            rustix::net::sockopt::set_ip_multicast_if(&socket, &Side::B.ip())?;
            Ok(socket)
        })
    });
    let to_group = to_group.unwrap();
    let watch = bench.net.watch(Side::A);
    for number in [b"0", b"1", b"2"] {
        to_group.send_to(number, "239.1.1.1:5001").unwrap();
    }
    assert_eq!(bench.program.run("a.recv(10) + b.recv(10)"), "b'00'");
    watch.still();
    bench.program.run("fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)");
    let both = "([b'1', b'2'], [b'1', b'2'])";
    assert_eq!(bench.program.run("drain(a), drain(b)"), both);
}

// covers: API-34, LIM-22
#[test]
fn socat_answers_every_client_from_a_process_of_its_own() {
    let net = Namespaces::new();
    let server = net.program(Side::A, "socat").with_library();
    let _server = server.args("UDP4-LISTEN:5000,fork,reuseaddr EXEC:cat").start();
    net.wait_for_port(Side::A, 5000);
    let peers = [net.socket(Side::B), net.socket(Side::B)];
    for number in 0..5u8 {
        for peer in &peers {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            peer.send_to(&[number; 20], Side::A.at(5000)).unwrap();
            let mut got = [0; 100];
            assert_eq!(peer.recv(&mut got).expect("an answer"), 20);
            assert_eq!(got[..20], [number; 20]);
        }
    }
}

/// Within the host nobody has rights. Their senders send the datagrams again, or the reader's parent
/// does if these are gone.
// covers: API-34, LIM-22
#[test]
fn a_child_reads_what_others_of_the_host_have_sent_its_parent() {
    for sender_ends in [false, true] {
        let sandbox = Sandbox::new();
        let mut server = Puppet::start(sandbox.program(PYTHON).with_library());
        let mut client = Puppet::start(sandbox.program(PYTHON).with_library());
        server.run("s = udp(('127.0.0.1', 5000))");
        client.run("c = udp(peer=('127.0.0.1', 5000))");
        let exchange = |server: &mut Puppet, client: &mut Puppet| {
            client.run("c.send(b'x')");
            server.run("data, peer = s.recvfrom(100); s.sendto(data, peer)");
            client.run("c.recv(100)");
        };
        crate::harness::wait_for("a link stands", || {
            let watch = sandbox.watch();
            exchange(&mut server, &mut client);
            (watch.moved().datagrams == 0).then_some(())
        });
        let watch = sandbox.watch();
        client.run("for n in range(10): c.send(b'%d' % n)");
        server.run("assert select.select([s], [], [], 15)[0]");
        assert_eq!(watch.moved().datagrams, 0);
        if sender_ends {
            client.run("c.close()");
        }
        server.run(
            "
r, w = os.pipe()
if os.fork() == 0:
    for n in range(10):
        got = s.recvfrom(100)
        os.write(w, got[0] + b' ' if got[1] == peer else b'- ')
    os._exit(0)
got = b''
while len(got) < 20: got += os.read(r, 100)",
        );
        assert_eq!(server.run("got"), "b'0 1 2 3 4 5 6 7 8 9 '");
    }
}
