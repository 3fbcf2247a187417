//! Connections and sockets that go from one process to another in the middle of their work, with both
//! ends in one host: fork, exec, passing. What they do afterwards may be the kernel's; that every byte
//! is there, in order and once, is what counts.

use crate::harness::{Output, PYTHON, Puppet};

use super::{ALL, Local, Under};

/// Sends and receives at once, as echo.py's clients do.
pub(super) const COMMON: &str = "
import array, hashlib, os, select, socket, subprocess, sys, threading, time
AT = ('127.0.0.1', 7000)
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
HALF = SIZE // 2
TO, FROM = pattern(SIZE, 1), pattern(SIZE, 2)
";

/// The peer of such a program: sends and receives everything, then expects the end.
const PEER: &str = "
c = socket.create_connection(AT, 20)
exchange(c, FROM, TO)
assert c.recv(1) == b'', 'no end'
print('all of it')
";

pub(super) const ACCEPTS: &str = "
l = socket.create_server(AT)
c, _ = l.accept()
c.settimeout(20)
";

/// The sharing one accepts. Of the first half of what is said a part does not go by the kernel, or
/// nothing was shared but the kernel's own connection.
#[track_caller]
fn conversation(under: Under, server: &str) -> Output {
    let (output, by_kernel) = conversation_by_any_way(under, server);
    assert!(under != Under::Both || by_kernel < 15 << 20, "{by_kernel} bytes over lo");
    output
}

/// And how many bytes went over `lo`.
#[track_caller]
fn conversation_by_any_way(under: Under, server: &str) -> (Output, u64) {
    let local = Local::new(under);
    let server = local.server(PYTHON).arg("-c").arg(&[COMMON, ACCEPTS, server].concat());
    let server = server.start_shown();
    local.sandbox.wait_for_listener(7000);
    let watch = local.sandbox.watch();
    let client = local.client(PYTHON).arg("-c").arg(&[COMMON, PEER].concat()).start_shown();
    let output = server.wait().ok();
    client.wait().says("all of it");
    (output, watch.moved().lo_bytes)
}

// covers: API-34, LIM-22
#[test]
fn a_bulk_transfer_goes_on_in_a_forked_child() {
    for under in ALL {
        for parent in ["c.close()", "pass", "c.close(); l.close()"] {
            let output = conversation(
                under,
                &format!(
                    "
exchange(c, TO[:HALF], FROM[:HALF])
child = os.fork()
if child == 0:
    exchange(c, TO[HALF:], FROM[HALF:])
    c.close()
    os._exit(7)
{parent}
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
c.close()
print('child served')"
                ),
            );
            output.says("child served");
        }
    }
}

#[test]
fn a_child_and_its_parent_write_to_one_connection() {
    for under in ALL {
        // In turns, each waiting for the other; the peer sees the order.
        let output = conversation(
            under,
            "
exchange(c, TO[:HALF], FROM)
mine, its = os.pipe(), os.pipe()
STEP = HALF // 8
child = os.fork()
if child == 0:
    for part in range(1, 8, 2):
        os.read(its[0], 1)
        c.sendall(TO[HALF + part * STEP : HALF + (part + 1) * STEP])
        os.write(mine[1], b'x')
    os._exit(7)
for part in range(0, 8, 2):
    c.sendall(TO[HALF + part * STEP : HALF + (part + 1) * STEP])
    os.write(its[1], b'x')
    os.read(mine[0], 1)
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
c.close()
print('both wrote')",
        );
        output.says("both wrote");
    }
}

#[test]
fn a_transfer_that_is_under_way_survives_that_a_child_takes_a_part() {
    // A thread of the parent waits for room and another for data while the child reads and writes.
    for under in ALL {
        let (output, _) = conversation_by_any_way(
            under,
            "
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
}

#[test]
fn a_connection_is_passed_to_a_plain_program_in_the_middle() {
    for under in ALL {
        // The plain one is a child without the library, which gets the descriptor by SCM_RIGHTS.
        let output = conversation(
            under,
            "
exchange(c, TO[:HALF], FROM[:HALF])
here, there = socket.socketpair()
text = '''
import os, socket, sys, threading
by = socket.socket(fileno=0)
_, fds, _, _ = socket.recv_fds(by, 1, 1)
c = socket.socket(fileno=fds[0])
c.settimeout(20)
out = b''
while part := os.read(3, 1 << 16): out += part
sender = threading.Thread(target=c.sendall, args=(out,))
sender.start()
got = b''
while len(got) < %d: got += c.recv(1 << 16)
sender.join()
import hashlib
print(hashlib.sha256(got).hexdigest())
''' % HALF
reader, writer = os.pipe()
environment = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
start = lambda: (os.dup2(reader, 3), os.close(writer))
os.set_inheritable(reader, True)
plain = subprocess.Popen([sys.executable, '-c', text], stdin=there, stdout=subprocess.PIPE,
                         env=environment, close_fds=False, preexec_fn=start)
os.close(reader)
socket.send_fds(here, [b'x'], [c.fileno()])
c.close()
with os.fdopen(writer, 'wb') as file: file.write(TO[HALF:])
said = plain.communicate()[0].decode().strip()
assert said == hashlib.sha256(FROM[HALF:]).hexdigest(), said
print('passed')",
        );
        output.says("passed");
    }
}

#[test]
fn a_program_gets_the_connection_as_its_standard_streams() {
    for under in ALL {
        let local = Local::new(under);
        // By vfork, by fork, and by posix_spawn.
        for start in [
            "subprocess.Popen(['cat'], stdin=c, stdout=c)",
            "subprocess.Popen(['cat'], stdin=c, stdout=c, preexec_fn=lambda: None)",
            "os.posix_spawnp('cat', ['cat'], os.environ, file_actions=\
             [(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, c.fileno(), 1)])",
        ] {
            let mut program = Puppet::start(local.server(PYTHON));
            program.run("import subprocess; l = create_server(('127.0.0.1', 7000))");
            let mut peer = Puppet::start(local.client(PYTHON));
            peer.run("c = create_connection(('127.0.0.1', 7000))");
            program.run("c, _ = l.accept()");
            peer.run("c.sendall(b'before')");
            assert_eq!(program.run("c.recv(6)"), "b'before'");
            program.run("c.sendall(b'answer')");
            assert_eq!(peer.run("c.recv(6)"), "b'answer'");
            program.run(&format!("p = {start}"));
            program.run("c.close()");
            peer.run("c.sendall(b'through cat')");
            assert_eq!(peer.run("c.recv(11, MSG_WAITALL)"), "b'through cat'", "{start}");
            peer.run("c.shutdown(SHUT_WR)");
            assert_eq!(peer.run("c.recv(1)"), "b''", "{start}");
        }
    }
}

// covers: API-35
#[test]
fn a_program_that_starts_itself_anew_keeps_its_connection() {
    for under in ALL {
        let local = Local::new(under);
        let mut peer = Puppet::start(local.server(PYTHON));
        peer.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
        // The second life finds the descriptor by its number.
        let script = local.sandbox.file("again.py");
        let text = "
import os, socket, sys
if len(sys.argv) == 1:
    c = socket.create_connection(('127.0.0.1', 7000))
    c.sendall(b'x' * 1000000)
    assert c.recv(1) == b'1'
    c.sendall(b'y' * 1000000)
    os.set_inheritable(c.fileno(), True)
    os.execv(sys.executable, [sys.executable, sys.argv[0], str(c.fileno())])
c = socket.socket(fileno=int(sys.argv[1]))
assert c.recv(100) == b'in between'
c.sendall(b'z' * 1000000)";
        std::fs::write(&script, text).unwrap();
        let program = local.client(PYTHON).arg(script.to_str().unwrap()).start_shown();
        peer.run("c, _ = l.accept(); c.setblocking(True)");
        assert_eq!(peer.run("c.recv(1000000, MSG_WAITALL) == b'x' * 1000000"), "True");
        peer.run("c.sendall(b'1'); c.sendall(b'in between')");
        peer.run("got = c.makefile('rb').read()");
        assert_eq!(peer.run("got == b'y' * 1000000 + b'z' * 1000000"), "True");
        program.wait().ok();
    }
}

/// And then the end, not a reset, with no daemon that sees to it.
// covers: LIM-36, LIM-28, LIM-29
#[test]
fn what_a_process_sent_before_it_ended_arrives() {
    for under in ALL {
        let local = Local::new(under);
        for end in ["os._exit(0)", "sys.exit(0)", "c.close(); os._exit(0)", "os.abort()"] {
            let mut peer = Puppet::start(local.server(PYTHON));
            peer.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
            let mut program = Puppet::start(local.client(PYTHON));
            program.run("c = create_connection(('127.0.0.1', 7000), 15)");
            peer.run("c, _ = l.accept(); c.settimeout(15)");
            program.run("c.sendall(b'1')");
            assert_eq!(peer.run("c.recv(1)"), "b'1'");
            program.begin(&format!("c.sendall(b'x' * 200000); {end}"));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(peer.run("c.makefile('rb').read() == b'x' * 200000"), "True", "{end}");
        }
    }
}
