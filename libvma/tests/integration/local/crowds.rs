//! More connections between two processes than their link has slots, while one of the two does not poll:
//! an idle connection takes a small send as the kernel's would, and all bytes arrive in order.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Local, Under};
use crate::harness::{PYTHON, Puppet};

/// More than a link has slots for.
const CONNECTIONS: usize = 1200;

const PARTS: &str = "
import resource
from zlib import crc32
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
cs, accepted = [], []
def send_all(text):
    for at, c in enumerate(cs):
        c.setblocking(False)
        data = text % c.getsockname()[1]
        try: count = c.send(data)
        except BlockingIOError: raise Exception('connection %d takes nothing' % at)
        assert count == len(data), (at, count)
def take(a, *texts):
    wanted = b''.join(text % a.getpeername()[1] for text in texts)
    got = b''
    a.settimeout(10)
    while len(got) < len(wanted):
        more = a.recv(len(wanted) - len(got))
        if not more: break
        got += more
    assert got == wanted, (got, wanted)
";

/// A server and a client with so many connections that are agreed upon.
fn crowd(local: &Local) -> (Puppet, Puppet) {
    let mut server = Puppet::start(local.server(PYTHON));
    server.run("l = create_server(('127.0.0.1', 7000), backlog=2048); l.settimeout(10)");
    let mut client = Puppet::start(local.client(PYTHON));
    client.run(PARTS);
    server.run(PARTS);
    for _ in 0..CONNECTIONS / 100 {
        client.run("cs += [create_connection(('127.0.0.1', 7000), 10) for n in range(100)]");
        server.run("accepted += [l.accept()[0] for n in range(100)]");
        client.run("for c in cs[-100:]: c.sendall(b'1')");
        server.run("for a in accepted[-100:]: a.settimeout(10); a.recv(1); a.sendall(b'2')");
        client.run("for c in cs[-100:]: c.recv(1)");
    }
    (server, client)
}

/// Waits until the kernel has nothing to send any more: it acknowledges what came late.
fn await_silence(local: &Local) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let watch = local.sandbox.watch();
        std::thread::sleep(Duration::from_millis(300));
        if watch.moved().lo_packets == 0 {
            return;
        }
        assert!(Instant::now() < end, "the kernel goes on sending");
    }
}

#[test]
fn an_idle_connection_takes_a_small_send_though_the_link_is_full() {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    // What poll(2) and epoll(7) say is what send() does.
    client.run("p, e = select.poll(), select.epoll()");
    client.run("for c in cs: p.register(c, select.POLLOUT); e.register(c, select.EPOLLOUT)");
    let writable = |wait: &str| format!("len([1 for _, told in {wait} if told == select.POLLOUT])");
    for wait in ["p.poll(0)".to_owned(), format!("e.poll(0, {CONNECTIONS})")] {
        assert_eq!(client.run(&writable(&wait)), CONNECTIONS.to_string(), "{wait}");
    }
    client.run("send_all(b'second %06d')");
    server.signal(Signal::CONT);
    client.run("send_all(b'third %06d')");
    server.run("for a in accepted: take(a, b'first %06d', b'second %06d', b'third %06d')");
    // The kernel has nothing to do with what follows: not more than a link has slots for.
    client.run("everyone, cs = cs, cs[:500]");
    server.run("own = {a.getpeername()[1]: a for a in accepted}");
    let ports = client.run("[c.getsockname()[1] for c in cs]");
    await_silence(&local);
    let watch = local.sandbox.watch();
    client.run("send_all(b'fourth %06d')");
    server.run(&format!("for port in {ports}: take(own[port], b'fourth %06d')"));
    assert!(local.moved(&watch).segments < 100, "segments by the kernel");
}

/// What a connection may send by the kernel is limited. Up to there, and beyond, poll(2) says what send() does.
#[test]
fn poll_agrees_with_send_whatever_an_idle_connection_sends() {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.run("a = {a.getpeername()[1]: a for a in accepted}");
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    client.run("c, sent, p = cs[-1], b'', select.poll(); p.register(c, select.POLLOUT)");
    client.run(
        "for n in range(3000):
            data = b'%08d' % n * 100
            if p.poll(0): sent += data[:c.send(data)]",
    );
    // Nor does splice(2) take from a pipe what it cannot send.
    client.run(
        "r, w = os.pipe(); os.set_blocking(r, False); os.write(w, b'z' * 1000)
for n in range(100):
    try: sent += b'y' * c.send(b'y' * 10000)
    except BlockingIOError: break
try: n = os.splice(r, c.fileno(), 1000)
except BlockingIOError: n = 0
sent += b'z' * n
assert n == 1000 or len(os.read(r, 2000)) == 1000 - n",
    );
    let sent: usize = client.run("len(sent)").parse().unwrap();
    assert!(sent > 60_000, "{sent} bytes");
    server.signal(Signal::CONT);
    let port = client.run("c.getsockname()[1]");
    server.run(&format!("take(a[{port}], b'first %06d')"));
    server.run(&format!(
        "got = b''
while len(got) < {sent}: got += a[{port}].recv({sent} - len(got))"
    ));
    assert_eq!(server.run("crc32(got)"), client.run("crc32(sent)"));
    client.run("assert p.poll(5000)");
}

/// A reader that waits learns of bytes that went by the kernel, whichever way it waits.
#[test]
fn a_reader_that_waits_gets_what_went_by_the_kernel() {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.run("a = {a.getpeername()[1]: a for a in accepted}");
    let last = client.run("cs[-1].getsockname()[1]");
    server.begin(&format!("take(a[{last}], b'first %06d')"));
    server.wait_until_asleep();
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    server.signal(Signal::CONT);
    server.end("it waits in recv()");
    server.run("e = select.epoll(); rest = dict((a.fileno(), a) for a in accepted)");
    server.run(&format!("del rest[a[{last}].fileno()]"));
    server.run("for fd in rest: e.register(fd, select.EPOLLIN)");
    server.run(
        "while rest:
            told = e.poll(10, 2000)
            assert told
            for fd, _ in told: take(rest.pop(fd), b'first %06d'); e.unregister(fd)",
    );
}

#[test]
fn a_program_that_is_killed_loses_nothing_that_a_full_link_did_not_take() {
    loses_nothing_at_its_end(Puppet::kill);
}

#[test]
fn a_program_that_ends_loses_nothing_that_a_full_link_did_not_take() {
    loses_nothing_at_its_end(|client| {
        client.finish();
    });
}

fn loses_nothing_at_its_end(end: impl FnOnce(&mut Puppet)) {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    client.run("send_all(b'second %06d')");
    end(&mut client);
    server.signal(Signal::CONT);
    server.run(
        "for a in accepted:
            take(a, b'first %06d', b'second %06d')
            assert a.recv(1) == b''",
    );
}

#[test]
fn a_connection_that_is_closed_or_given_up_loses_nothing_either() {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.run("a = {a.getpeername()[1]: a for a in accepted}");
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    client.run("send_all(b'second %06d')");
    let ports = |client: &mut Puppet, part: &str| {
        client.run(&format!("[c.getsockname()[1] for c in {part}]"))
    };
    let (closed, given_up) =
        (ports(&mut client, "cs[-200:-150]"), ports(&mut client, "cs[-60:-30]"));
    client.run("for c in cs[-200:-150]: c.close()");
    server.signal(Signal::CONT);
    // Only the kernel's connection has an urgent byte: the pipe ends.
    server.run(&format!("for port in {given_up}: a[port].send(b'!', MSG_OOB)"));
    client.run("for c in cs[-30:]: c.setblocking(True); c.send(b'!', MSG_OOB)");
    client.run("cs = cs[:-200] + cs[-150:]; send_all(b'third %06d')");
    server.run(&format!(
        "for port in {closed}:
            take(a[port], b'first %06d', b'second %06d')
            assert a.pop(port).recv(1) == b''"
    ));
    server.run("for one in a.values(): take(one, b'first %06d', b'second %06d', b'third %06d')");
}

#[test]
fn a_forked_child_goes_on_behind_what_went_by_the_kernel() {
    let local = Local::new(Under::Both);
    let (mut server, mut client) = crowd(&local);
    server.signal(Signal::STOP);
    client.run("send_all(b'first %06d')");
    client.run("send_all(b'second %06d')");
    server.signal(Signal::CONT);
    client.run(
        "child = os.fork()
if child == 0:
    cs = cs[-30:]
    for c in cs: c.setblocking(True)
    send_all(b'third %06d')
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0",
    );
    client.run("cs, others = cs[-30:], cs[:-30]; send_all(b'fourth %06d')");
    server.run("for a in accepted: take(a, b'first %06d', b'second %06d')");
    server.run("for a in accepted[-30:]: take(a, b'third %06d', b'fourth %06d')");
    client.run("cs = others; send_all(b'third %06d')");
    server.run("for a in accepted[:-30]: take(a, b'third %06d')");
}
