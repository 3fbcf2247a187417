//! The messages and files of the agent protocol, byte by byte, with the test as the daemon.

use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::dual_stack::{of, with_ipv6};

const ESTABLISHED: u8 = 4;
const CLOSED: u8 = 0;

/// A daemon that reads what it is told.
struct Daemon {
    socket: UnixDatagram,
    notify_dir: PathBuf,
}

/// STATE, as it lies in the datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    pid: u32,
    fid: u32,
    local: String,
    peer: String,
    state: u8,
}

impl Daemon {
    fn start(host: &Host) -> Daemon {
        let path = host.daemon_socket();
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Daemon { socket, notify_dir: host.notify_dir() }
    }

    #[track_caller]
    fn next(&self) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let len = self.socket.recv(&mut buffer).expect("a message in time");
        buffer[..len].to_vec()
    }

    #[track_caller]
    fn is_told_nothing(&self, duration: Duration) {
        self.socket.set_read_timeout(Some(duration)).unwrap();
        let mut buffer = [0; 100];
        let heard = self.socket.recv(&mut buffer);
        assert!(heard.is_err(), "{:02x?}", &buffer[..heard.unwrap_or_default()]);
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// Leaves no room for anybody's messages; the sockets hold what waits.
    fn stuff(&self, host: &Host) -> Vec<UnixDatagram> {
        let mut all = Vec::new();
        loop {
            let socket = UnixDatagram::unbound().unwrap();
            socket.connect(host.daemon_socket()).unwrap();
            socket.set_nonblocking(true).unwrap();
            if socket.send(&[0]).is_err() {
                return all;
            }
            while socket.send(&[0]).is_ok() {}
            all.push(socket);
        }
    }

    /// INIT of this process, which is answered.
    #[track_caller]
    fn registers(&self, pid: u32) {
        let init = self.next();
        let mut expected = vec![0x01, 3, 0, 0];
        expected.extend(pid.to_ne_bytes());
        assert_eq!((init.len(), &init[..8]), (12, &expected[..]), "{init:02x?}");
        let [major, minor, revision] = libvma_dev::VERSION
            .split('.')
            .map(|number| number.parse::<u32>().unwrap())
            .collect::<Vec<_>>()[..]
        else {
            panic!("three numbers")
        };
        assert_eq!(init[8..], ((major << 12) | (minor << 8) | revision).to_ne_bytes());
        let mut answer = init;
        answer[0] = 0x81;
        let path = self.notify_dir.join(format!("vma_agent.{pid}.sock"));
        self.socket.send_to(&answer, path).unwrap();
    }

    #[track_caller]
    fn told(&self) -> Told {
        let state = self.next();
        assert_eq!((state.len(), &state[..4]), (26, &[0x02, 3, 0, 0][..]), "{state:02x?}");
        assert_eq!(state[24], 1, "SOCK_STREAM");
        let word = |at: usize| u32::from_ne_bytes(state[at..at + 4].try_into().unwrap());
        let address = |ip: usize, port: usize| {
            let [a, b, c, d] = state[ip..ip + 4] else { panic!("four bytes") };
            format!("{a}.{b}.{c}.{d}:{}", u16::from_be_bytes([state[port], state[port + 1]]))
        };
        Told {
            pid: word(4),
            fid: word(8),
            local: address(12, 20),
            peer: address(16, 22),
            state: state[25],
        }
    }

    /// Reads until a connection is told to be in this state.
    #[track_caller]
    fn until(&self, state: u8) -> Told {
        let mut passed = Vec::new();
        for _ in 0..20 {
            let told = self.told();
            if told.state == state {
                return told;
            }
            passed.push(told);
        }
        panic!("state {state} is not told, but {passed:?}");
    }

    #[track_caller]
    fn says_goodbye(&self, pid: u32) {
        let mut expected = vec![0x03, 3, 0, 0];
        expected.extend(pid.to_ne_bytes());
        let message = std::iter::repeat_with(|| self.next()).find(|one| one[0] != 0x02).unwrap();
        assert_eq!(message, expected);
    }
}

// covers: DMN-02
#[test]
fn the_daemon_and_its_files_are_as_the_protocol_says() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let pid = program.id();
    program.run("s = udp(('10.99.0.1', 5000)); t = socket()");
    daemon.is_told_nothing(Duration::from_millis(200));
    assert!(!host.notify_dir().exists(), "nothing happens before the first connection");

    let watch = host.net.watch_tcp(Side::A);
    let peer = host.connect(&mut program, 1).pop().unwrap();
    daemon.registers(pid);
    let told = daemon.until(ESTABLISHED);
    let own = peer.peer_addr().unwrap().to_string();
    let other = peer.local_addr().unwrap().to_string();
    let fid = u32::try_from(program.number("c.fileno()")).unwrap();
    assert_eq!(told, Told { pid, fid, local: own, peer: other, state: ESTABLISHED });

    let names = [format!("vma_agent.{pid}.pid"), format!("vma_agent.{pid}.sock")];
    assert_eq!(host.notified(), names);
    let found = names.map(|name| std::fs::metadata(host.notify_dir().join(name)).unwrap());
    assert_eq!((found[0].permissions().mode() & 0o7777, found[0].len()), (0o640, 0));
    assert!(found[1].file_type().is_socket());
    let directory = std::fs::metadata(host.notify_dir()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o7777, 0o1777);
    // Held open by a number that no program expects.
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .find(|one| std::fs::metadata(one.path()).is_ok_and(|file| file.ino() == found[0].ino()));
    let number: u32 = open.expect("it is open").file_name().to_str().unwrap().parse().unwrap();
    assert!(number >= 1000, "{number}");

    // The program closes what it knows, and what it does not.
    program.run("os.closerange(10, 4096)");
    watch.still(0);
    program.run("c.shutdown(SHUT_WR)");
    assert!((5..=6).contains(&daemon.told().state), "our FIN");
    drop(peer);
    program.run("c.close()");
    let closed = daemon.until(10);
    assert_eq!((closed.fid, closed.local), (told.fid, told.local), "TIME-WAIT");
    program.finish();
    daemon.says_goodbye(pid);
    assert_eq!(host.notified(), Vec::<String>::new());
    assert!(host.notify_dir().exists());
}

/// The daemon here answers as the original's, which sends back what it got.
// covers: DMN-02
#[test]
fn a_daemon_that_knows_ipv4_only_is_told_of_nothing_else() {
    let host = Host::new();
    with_ipv6(&host.net);
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    program.run("l = create_server(('::', 7000), family=AF_INET6, dualstack_ipv6=True)");
    program.run("select.select([l], [], [], 0)");
    let connect = |to: IpAddr| host.net.within(Side::B, || TcpStream::connect((to, 7000))).unwrap();
    let watch = host.net.watch_tcp(Side::A);
    let mut six = patient(connect(of(Side::A).into()));
    daemon.registers(program.id());
    daemon.is_told_nothing(Duration::from_millis(300));
    program.run("c, _ = l.accept(); c.sendall(b'hello')");
    six.read_exact(&mut [0; 5]).unwrap();
    watch.still(0);
    let four = connect(Side::A.ip().into());
    let told = daemon.until(ESTABLISHED);
    assert_eq!(told.peer, four.local_addr().unwrap().to_string());
}

// covers: DMN-02
#[test]
fn a_connection_is_told_within_milliseconds_though_the_program_sleeps() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let first = host.accept(&mut program);
    daemon.registers(program.id());
    daemon.until(ESTABLISHED);
    program.begin("time.sleep(20)");
    let mut worst = Duration::ZERO;
    for _ in 0..20 {
        let begin = Instant::now();
        // Nobody accepts it: the library's own thread is all that there is.
        let peer = host.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        let told = daemon.until(ESTABLISHED);
        worst = worst.max(begin.elapsed());
        assert_eq!(told.peer, peer.local_addr().unwrap().to_string());
    }
    println!("told {worst:?} after connect() at the latest");
    assert!(worst < Duration::from_millis(250), "{worst:?}");
    drop(first);
}

// covers: DMN-03, DMN-06
#[test]
fn without_a_daemon_nothing_is_made_and_nothing_is_said() {
    let host = Host::new();
    let mut program = Puppet::start(host.program(PYTHON).env("VMA_TRACELEVEL", "info"));
    let mut peer = host.connect(&mut program, 1).pop().unwrap();
    program.run("time.sleep(1.5); c.sendall(b'x')");
    peer.read_exact(&mut [0; 1]).unwrap();
    assert!(!host.notify_dir().exists());
    let said = program.stderr();
    assert!(said.contains("VMA INFO") && !said.contains("vmad"), "{said}");
    let links = program.run("[os.readlink('/proc/self/fd/%s' % n) for n in os.listdir('/proc/self/fd') if os.path.islink('/proc/self/fd/%s' % n)]");
    assert!(!links.contains("notify"), "{links}");
    program.finish();

    let mut program = Puppet::start(host.program(PYTHON).env("VMA_TRACELEVEL", "debug"));
    let peer = host.connect(&mut program, 1);
    let stars = "**********\n";
    wait_for("the notice", || (program.stderr().matches(stars).count() == 2).then_some(()));
    let said = program.stderr();
    let notice: Vec<_> = said.lines().filter(|line| line.ends_with('*')).collect();
    assert_eq!(notice.len(), 5, "{notice:#?}");
    assert!(notice.iter().all(|line| line.contains("VMA DEBUG: *")), "{notice:#?}");
    assert!(notice[1].contains("vmad cannot be reached at /var/run/vma_agent.sock"));
    drop(peer);
    program.finish();
    assert!(!host.notify_dir().exists());
}

#[test]
fn a_notify_directory_that_cannot_be_used_is_told_and_harms_nothing() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let program = host.program(PYTHON).env("VMA_VMAD_NOTIFY_DIR", "/nonexistent/notify");
    let mut program = Puppet::start(program.env("VMA_TRACELEVEL", "warning"));
    let mut peer = host.connect(&mut program, 1).pop().unwrap();
    let reason = "(VMA_VMAD_NOTIFY_DIR): /nonexistent/notify: No such file or directory";
    wait_for("the reason is told", || program.stderr().contains(reason).then_some(()));
    program.run("c.sendall(b'x')");
    peer.read_exact(&mut [0; 1]).unwrap();
    daemon.is_told_nothing(Duration::from_millis(100));
    program.finish();
    assert_eq!(program.stderr().matches(reason).count(), 1);
}

#[test]
fn an_empty_notify_directory_is_nobody_told() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = Puppet::start(host.program(PYTHON).env("VMA_VMAD_NOTIFY_DIR", ""));
    let peer = host.connect(&mut program, 1);
    daemon.is_told_nothing(Duration::from_millis(300));
    drop(peer);
    program.finish();
    assert!(!host.notify_dir().exists());
}

// covers: DMN-07
#[test]
fn a_daemon_that_starts_again_is_told_of_every_connection() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let peers = host.connect(&mut program, 3);
    daemon.registers(program.id());
    for _ in 0..3 {
        daemon.until(ESTABLISHED);
    }
    drop(daemon);
    program.run("c.close()");
    let daemon = Daemon::start(&host);
    let begin = Instant::now();
    daemon.registers(program.id());
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let mut told = [daemon.until(ESTABLISHED).peer, daemon.until(ESTABLISHED).peer];
    told.sort();
    let mut left = [&peers[0], &peers[1]].map(|peer| peer.local_addr().unwrap().to_string());
    left.sort();
    // They all have the listener's port, so it is the other end that tells them apart.
    assert_eq!(told, left);
    program.finish();
    daemon.says_goodbye(program.id());
}

#[test]
fn a_connection_is_over_for_the_daemon_before_it_is_the_kernels() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let mut peer = host.accept(&mut program);
    let parent = program.id();
    daemon.registers(parent);
    let fid = daemon.until(ESTABLISHED).fid;
    // Tells when the kernel has the connection: it is the first thing that the child does to it.
    program.run(
        "child = os.fork()
if child == 0:
    c.sendall(b'child')
    os._exit(0 if c.recv(100) == b'go on' else 1)",
    );
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"child");
    daemon.socket.set_nonblocking(true).unwrap();
    let told = daemon.told();
    assert_eq!((told.fid, told.state, told.pid), (fid, CLOSED, parent), "it was told before");
    daemon.socket.set_nonblocking(false).unwrap();
    kill(&mut program);
    hears_nothing(&mut peer, Duration::from_millis(300));
    std::io::Write::write_all(&mut peer, b"go on").unwrap();
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "the child has had it, and closed it in order");
}

/// That it is told before, and not only soon, shows where the daemon has no room for the message: then
/// the connection stays where it is, for the 200 ms that anybody waits.
#[test]
fn a_daemon_that_does_not_read_puts_off_what_becomes_the_kernels() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let mut peer = host.accept(&mut program);
    daemon.registers(program.id());
    let fid = daemon.until(ESTABLISHED).fid;
    let others = daemon.stuff(&host);
    let begin = Instant::now();
    program.run("if os.fork() == 0: c.sendall(b'child'); os._exit(0)");
    peer.read_exact(&mut [0; 5]).unwrap();
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(150), "{took:?}");
    // It is not forgotten either.
    let told = std::iter::repeat_with(|| daemon.next()).find(|one| one.len() > 1).unwrap();
    assert_eq!((told[0], u32::from_ne_bytes(told[8..12].try_into().unwrap())), (2, fid));
    assert_eq!(told[25], CLOSED);
    drop(others);
    kill(&mut program);
}

#[test]
fn a_forked_child_has_files_of_its_own_and_leaves_its_parents_alone() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let peers = host.connect(&mut program, 1);
    let parent = program.id();
    daemon.registers(parent);
    daemon.until(ESTABLISHED);
    let before = host.notified();
    // One that does nothing, one that starts another program, one that has connections.
    program.run("os.waitpid(os.fork() or os._exit(0), 0)");
    program
        .run("import subprocess; subprocess.run(['true']); os.posix_spawn('/bin/true', ['x'], {})");
    daemon.is_told_nothing(Duration::from_millis(100));
    assert_eq!(host.notified(), before);

    drop(peers);
    program.finish();
    daemon.says_goodbye(parent);
    assert_eq!(host.notified(), Vec::<String>::new());

    // The interface is its first user's: here the child's.
    let listener = host.net.within(Side::B, || TcpListener::bind(Side::B.at(7100))).unwrap();
    let mut program = host.puppet();
    program.run(
        "s = socket(); r, w = os.pipe()
child = os.fork()
if child == 0:
    c = create_connection(('10.99.0.2', 7100), 15)
    os.read(r, 1)
    os._exit(0)",
    );
    let child = u32::try_from(program.number("child")).unwrap();
    let peer = listener.accept().unwrap().0;
    daemon.registers(child);
    let told = daemon.until(ESTABLISHED);
    assert_eq!((told.pid, told.local), (child, peer.peer_addr().unwrap().to_string()));
    assert_eq!(host.notified().len(), 2);
    program.run("os.write(w, b'x'); os.waitpid(child, 0)");
    daemon.says_goodbye(child);
    assert_eq!(host.notified(), Vec::<String>::new());
    program.finish();
    daemon.is_told_nothing(Duration::from_millis(100));
}

#[test]
fn a_process_that_executes_another_program_says_goodbye_and_comes_back() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = host.puppet();
    let mut peers = host.connect(&mut program, 1);
    let pid = program.id();
    daemon.registers(pid);
    daemon.until(ESTABLISHED);
    // One that fails: not even found, so nothing happens.
    program.run(
        "
try: os.execv('/nonexistent', ['x'])
except FileNotFoundError: pass",
    );
    daemon.is_told_nothing(Duration::from_millis(100));
    // One that is found and fails.
    program.run(
        "
open('broken', 'w').write('no program'); os.chmod('broken', 0o755)
try: os.execv('./broken', ['x'])
except OSError: pass",
    );
    daemon.says_goodbye(pid);
    // Its connection became the kernel's; the next one is ours, and told.
    peers.extend(host.connect(&mut program, 1));
    daemon.registers(pid);
    let told = daemon.until(ESTABLISHED);
    assert_eq!(told.peer, peers[1].local_addr().unwrap().to_string());

    let listener = host.net.within(Side::B, || TcpListener::bind(Side::B.at(7100))).unwrap();
    program.begin(
        "os.execv(sys.executable, [sys.executable, '-c', 'import socket, time; \
         s = socket.create_connection((\"10.99.0.2\", 7100)); time.sleep(60)'])",
    );
    daemon.says_goodbye(pid);
    let peer = listener.accept().unwrap().0;
    daemon.registers(pid);
    assert_eq!(daemon.until(ESTABLISHED).local, peer.peer_addr().unwrap().to_string());
    assert_eq!(host.notified().len(), 2);
    // What a killed process leaves is the daemon's to remove.
    kill(&mut program);
    assert_eq!(host.notified().len(), 2);
}

// covers: DMN-02
#[test]
fn a_thousand_connections_are_all_told_and_then_all_over() {
    let host = Host::new();
    let daemon = Daemon::start(&host);
    let mut program = Puppet::start(host.program(PYTHON).env("VMA_TRACELEVEL", "warning"));
    program.run("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))");
    const MANY: usize = 1000;
    let listener = host.net.within(Side::B, || TcpListener::bind(Side::B.at(7100))).unwrap();
    program.begin(&format!(
        "all = [create_connection(('10.99.0.2', 7100), 15) for _ in range({MANY})]"
    ));
    daemon.registers(program.id());
    let peers: Vec<_> = (0..MANY).map(|_| listener.accept().unwrap().0).collect();
    program.end("connections");
    let mut open = std::collections::HashSet::new();
    while open.len() < MANY {
        let told = daemon.told();
        if told.state == ESTABLISHED {
            open.insert(told.local);
        }
    }
    let expected = peers.iter().map(|peer| peer.peer_addr().unwrap().to_string()).collect();
    assert_eq!(open, expected);
    drop(peers);
    program.run("for c in all: c.close()");
    while !open.is_empty() {
        let told = daemon.told();
        if told.state != ESTABLISHED && told.state != 7 {
            open.remove(&told.local);
        }
    }
    program.finish();
}
