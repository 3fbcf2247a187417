//! Connections and listeners that go from one process to another in the middle of their work.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::harness::{Ends, Library, Output, PATIENCE, PYTHON, Puppet, Side, at_once};

/// Sends and receives at once, as echo.py's clients do.
const COMMON: &str = "
import hashlib, os, select, socket, subprocess, sys, threading, time
def pattern(size, seed): return hashlib.shake_128(b'%d' % seed).digest(size)
def exchange(c, out, wanted):
    sender = threading.Thread(target=c.sendall, args=(out,))
    sender.start()
    got = bytearray()
    while len(got) < len(wanted):
        part = c.recv(min(65536, len(wanted) - len(got)))
        assert part, f'the end after {len(got)} bytes'
        got += part
    sender.join()
    assert got == wanted, 'other bytes'
SIZE = 8 << 20
TO, FROM = pattern(SIZE, 1), pattern(SIZE, 2)
";

/// The peer of such a program: sends and receives everything, then expects the end.
const PEER: &str = "
c = socket.create_connection(('10.99.0.1', 7000), 20)
exchange(c, FROM, TO)
assert c.recv(1) == b'', 'no end'
print('all of it')
";

fn script(parts: &[&str]) -> String {
    parts.concat()
}

#[track_caller]
fn conversation(server: &str) -> Output {
    let ends = Ends::new(Library::Server);
    let accepts = "
l = socket.create_server(('10.99.0.1', 7000))
select.select([l], [], [], 20)
c, _ = l.accept()
c.settimeout(20)
";
    let server = ends.server(PYTHON).arg("-c").arg(&script(&[COMMON, accepts, server]));
    let server = server.start_shown();
    ends.net.wait_for_listener(Side::A, 7000);
    let client = ends.client(PYTHON).arg("-c").arg(&script(&[COMMON, PEER])).run();
    client.says("all of it");
    server.wait().ok()
}

// covers: API-34, LIM-22
#[test]
fn a_bulk_transfer_goes_on_in_a_forked_child() {
    for parent in ["c.close()", "pass", "c.close(); l.close()"] {
        let output = conversation(&format!(
            "
exchange(c, TO[:SIZE // 2], FROM[:SIZE // 2])
child = os.fork()
if child == 0:
    exchange(c, TO[SIZE // 2:], FROM[SIZE // 2:])
    c.close()
    os._exit(7)
{parent}
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
c.close()
print('child served')"
        ));
        output.says("child served");
    }
}

// covers: API-34, LIM-22
#[test]
fn a_transfer_that_is_under_way_survives_that_a_child_takes_a_part() {
    // A thread of the parent waits for room and another for data while the child reads and writes.
    let output = conversation(
        "
half = SIZE // 2
sender = threading.Thread(target=c.sendall, args=(TO,))
sender.start()
first = c.recv(1000)
child = os.fork()
if child == 0:
    # The parent is asked for the connection here.
    data = c.recv(500, socket.MSG_WAITALL | socket.MSG_PEEK)
    os._exit(7 if data and FROM[len(first):].startswith(data) else 8)
got = bytearray(first)
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
while len(got) < SIZE:
    part = c.recv(65536)
    assert part, len(got)
    got += part
sender.join()
assert got == FROM, 'other bytes'
c.close()
print('parent served')",
    );
    output.says("parent served");
}

// covers: API-34
#[test]
fn a_blocked_reader_reads_on_from_the_kernel() {
    let output = conversation(
        "
exchange(c, TO[:-1], FROM[:-10])
got = []
reader = threading.Thread(target=lambda: got.append(c.recv(10, socket.MSG_PEEK)))
poll = select.epoll()
poll.register(c, select.EPOLLIN)
c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 10)
reader.start()
if os.fork() == 0:
    c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    os._exit(0)
os.wait()
reader.join()
assert got == [FROM[-10:]], got
assert poll.poll(5) == [(c.fileno(), select.EPOLLIN)], 'epoll'
assert c.recv(100) == FROM[-10:]
c.sendall(TO[-1:])
c.close()
print('read on')",
    );
    output.says("read on");
}

// covers: API-34, API-35
#[test]
fn a_program_gets_the_connection_as_its_standard_streams() {
    let ends = Ends::new(Library::Server);
    // By vfork, by fork, and by posix_spawn.
    for start in [
        "subprocess.Popen(['cat'], stdin=c, stdout=c)",
        "subprocess.Popen(['cat'], stdin=c, stdout=c, preexec_fn=lambda: None)",
        "os.posix_spawnp('cat', ['cat'], os.environ, file_actions=\
         [(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, c.fileno(), 1)])",
    ] {
        let mut program = Puppet::start(ends.server(PYTHON));
        program.run("import subprocess");
        program.run("l = create_server(('10.99.0.1', 7000)); select.select([l], [], [], 0)");
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        program.run("c, _ = l.accept()");
        program.run(&format!("p = {start}"));
        program.run("c.close()");
        let mut got = [0; 11];
        peer.write_all(b"through cat").unwrap();
        peer.read_exact(&mut got).unwrap_or_else(|error| panic!("{start}: {error}"));
        assert_eq!(&got, b"through cat", "{start}");
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(peer.read(&mut got).unwrap(), 0, "{start}");
    }
}

// covers: API-35
#[test]
fn a_program_that_starts_itself_anew_keeps_its_connection() {
    let ends = Ends::new(Library::Server);
    let listener = ends.net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
    // The second life finds the descriptor by its number.
    let script = ends.net.file("again.py");
    let text = "
import os, socket, sys
if len(sys.argv) == 1:
    c = socket.create_connection(('10.99.0.2', 7000))
    c.sendall(b'x' * 1000000)
    assert c.recv(1) == b'1'
    c.sendall(b'y' * 1000000)
    os.set_inheritable(c.fileno(), True)
    os.execv(sys.executable, [sys.executable, sys.argv[0], str(c.fileno())])
c = socket.socket(fileno=int(sys.argv[1]))
assert c.recv(100) == b'in between'
c.sendall(b'z' * 1000000)";
    std::fs::write(&script, text).unwrap();
    let program = ends.server(PYTHON).arg(script.to_str().unwrap()).start_shown();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = vec![0; 1_000_000];
    peer.read_exact(&mut got).unwrap();
    peer.write_all(b"1").unwrap();
    peer.write_all(b"in between").unwrap();
    let mut rest = Vec::new();
    peer.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 2_000_000);
    assert!(rest[..1_000_000].iter().all(|byte| *byte == b'y'));
    program.wait().ok();
}

// covers: LIM-36
#[test]
fn a_process_that_may_not_use_tcp_repair_stays_until_its_data_is_there() {
    for end in ["os._exit(0)", "c.close(); sys.exit(0)"] {
        let ends = Ends::new(Library::Server);
        let listener = ends.net.within(Side::B, || TcpListener::bind(Side::B.at(7000))).unwrap();
        let mut program = Puppet::start(ends.server(PYTHON));
        program.run("c = create_connection(('10.99.0.2', 7000), 15)");
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        program.run("c.sendall(b'x' * 50000)");
        program.run("os.setresuid(65534, 65534, 65534)");
        program.begin(&format!("c.sendall(b'x' * 50000); {end}"));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut got = Vec::new();
        let outcome = peer.read_to_end(&mut got);
        assert!(outcome.is_ok() && got.len() == 100_000, "{end}: {} {outcome:?}", got.len());
    }
}

/// A server whose parent only listens.
const WORKERS: &str = "
l = socket.create_server(('10.99.0.1', 7000), backlog=64)
def work():
    while True:
        select.select([l], [], [])
        c, _ = l.accept()
        c.sendall(b'%d' % os.getpid())
        c.close()
for n in range(int(sys.argv[1])):
    if os.fork() == 0:
        work()
time.sleep(60)
";

#[track_caller]
fn workers(count: u32) -> u64 {
    let ends = Ends::new(Library::Server);
    let text = script(&[COMMON, WORKERS]);
    let server = ends.server(PYTHON).arg("-c").arg(&text).args(&count.to_string()).start_shown();
    ends.net.wait_for_listener(Side::A, 7000);
    // A listener that got heirs is left to the kernel within a second or so.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let before = ends.net.kernel_tcp(Side::A);
    for _ in 0..20 {
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        assert!(text.parse::<u32>().is_ok(), "{text:?}");
    }
    let accepted = ends.net.kernel_tcp(Side::A).accepted - before.accepted;
    drop(server);
    accepted
}

// covers: API-34, LIM-22
#[test]
fn a_single_worker_has_the_listener_offloaded_and_several_share_the_kernels() {
    at_once(2, &[(1, 0), (3, 20)], |&(count, by_kernel)| assert_eq!(workers(count), by_kernel));
}

/// A server that gives up its rights between listen() and the first wait, and forks for each client.
const DAEMON: &str = "
l = socket.create_server(('0.0.0.0', 7000))
os.setgroups([])
os.setuid(65534)
print('ready', flush=True)
for n in range(4):
    select.select([l], [], [])
    c, _ = l.accept()
    if os.fork() == 0:
        c.sendall(c.recv(100))
        c.shutdown(socket.SHUT_WR)
        os._exit(0)
    c.close()
    os.wait()
";

// covers: API-34, RUN-09
#[test]
fn children_of_a_server_that_gave_up_its_rights_after_listen_have_their_connections() {
    let ends = Ends::new(Library::Server);
    let text = script(&[COMMON, DAEMON]);
    let mut server = ends.server(PYTHON).arg("-c").arg(&text).start_shown();
    server.wait_for_text("ready");
    for _ in 0..4 {
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.write_all(b"question").unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
    }
    server.wait().ok();
}

/// Serves a client in a child.
const FORK: &str = "
if os.fork() == 0:
    c.sendall(c.recv(100))
    c.shutdown(SHUT_WR)
    os._exit(0)
c.close()
os.wait()
";

// covers: API-34
#[test]
fn clients_of_a_server_that_gives_up_its_rights_are_served_by_its_children() {
    let ways = [
        "os.setuid(65534)",
        "os.setreuid(65534, 65534)",
        "os.setresuid(65534, 65534, 65534)",
        // Laid down only.
        "os.seteuid(65534)",
        "ctypes.CDLL(None).capset(struct.pack('=Ii', 0x20080522, 0), bytes(24))",
        "ctypes.CDLL(None).syscall(117, 65534, 65534, 65534)",
    ];
    let cases: Vec<_> = ways.iter().flat_map(|way| [(*way, true), (*way, false)]).collect();
    at_once(2, &cases, |&(way, waits)| {
        let ends = Ends::new(Library::Server);
        let mut server = Puppet::start(ends.server(PYTHON));
        server.run("import ctypes, struct");
        server.run("l = create_server(('0.0.0.0', 7000)); l.settimeout(15)");
        let before = ends.net.kernel_tcp(Side::A);
        let mut peer = ends.net.within(Side::B, || TcpStream::connect(Side::A.at(7000))).unwrap();
        let accepted = ends.net.kernel_tcp(Side::A).accepted - before.accepted;
        assert_eq!(accepted, 0, "{way}, waits: {waits}: the library accepts");
        let accept = "c, _ = l.accept(); c.settimeout(15)";
        let [first, second] = if waits { [way, accept] } else { [accept, way] };
        server.run(first);
        server.run(second);
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.write_all(b"question").unwrap();
        server.run(FORK);
        let mut text = String::new();
        let end = peer.read_to_string(&mut text);
        assert!(text == "question" && end.is_ok(), "{way}, waits: {waits}: {text:?} {end:?}");
    });
}
