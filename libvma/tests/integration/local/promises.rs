//! The promises of poll(2) and its kin: the next send() takes at least one byte, the next recv() has one, whatever happens in
//! between.

use rustix::process::Signal;

use super::{Local, Under};
use crate::harness::{PYTHON, Puppet};

const CONNECTIONS: usize = 12;

/// Sends small messages by the first connection until no connection's message finds a slot.
const FILL: &str = "
def fill():
    sent = 0
    try:
        while True: sent += cs[0].send(b'f' * 50)
    except BlockingIOError: return sent
";

/// A client that has `unread` bytes on their way to a stopped server on each connection but the first.
fn busy(local: &Local, unread: usize) -> (Puppet, Puppet) {
    let mut server = Puppet::start(local.server(PYTHON));
    server.run("l = create_server(('127.0.0.1', 7000), backlog=64); l.settimeout(10)");
    let mut client = Puppet::start(local.client(PYTHON));
    client.run(FILL);
    client.run(&format!(
        "cs = [create_connection(('127.0.0.1', 7000), 10) for n in range({CONNECTIONS})]"
    ));
    server.run(&format!("a = [l.accept()[0] for n in range({CONNECTIONS})]"));
    client.run("for c in cs: c.sendall(b'1')");
    server.run("for c in a: c.settimeout(10); c.recv(1); c.sendall(b'2')");
    client.run("for c in cs: c.recv(1); c.setblocking(False)");
    server.signal(Signal::STOP);
    client.run(&format!("for c in cs[1:]: assert c.send(b'u' * {unread}) == {unread}"));
    (server, client)
}

/// Other connections fill the link between poll and send. An idle connection sends by the kernel then; a busy one has a
/// slot of the link.
// covers: MUX-01, MUX-02, MUX-03
#[test]
fn a_connection_that_is_writable_takes_a_byte_though_others_fill_the_link() {
    for (under, unread) in [(Under::Both, 20_000), (Under::Both, 100), (Under::Neither, 20_000)] {
        for wait in [
            "p = select.poll()\nfor c in cs: p.register(c, select.POLLOUT)\ntold = len(p.poll(0))",
            "told = len(select.select([], cs, [], 0)[1])",
            "p = select.epoll()\nfor c in cs: p.register(c, select.EPOLLOUT)\ntold = len(p.poll(0))",
            "p = select.epoll()\nfor c in cs: p.register(c, select.EPOLLOUT | select.EPOLLET)
told = len(p.poll(0))",
        ] {
            let local = Local::new(under);
            let (mut server, mut client) = busy(&local, unread);
            client.run(wait);
            assert_eq!(client.run("told"), CONNECTIONS.to_string());
            let filled: usize = client.run("fill()").parse().unwrap();
            client.run("sent = [c.send(b'p' * 1000) for c in cs[1:]]");
            // Once it has sent, it is not told of room that is not there.
            client.run("p = select.poll()\nfor c in cs[1:]: p.register(c, select.POLLOUT)");
            client.run(
                "for fd, _ in p.poll(0):
                    assert os.write(fd, b'q') == 1; sent[[c.fileno() for c in cs[1:]].index(fd)] += 1",
            );
            let sent = client.run("sent");
            server.signal(Signal::CONT);
            server.run(&format!(
                "sent = [{filled}, *({unread} + n for n in {sent})]
for c, count in zip(a, sent):
    got = b''
    while len(got) < count: got += c.recv(count - len(got))
    assert got.strip(b'f') == b'' or got.strip(b'u').rstrip(b'q').strip(b'p') == b'', got"
            ));
            client.run("assert len(p.poll(5000)) > 0");
        }
    }
}

/// A server and a client with so many connections, `a` and `cs`, that have carried bytes. The client polls for an event.
fn connected(local: &Local, count: usize, event: &str) -> (Puppet, Puppet) {
    let mut server = Puppet::start(local.server(PYTHON));
    server.run("l = create_server(('127.0.0.1', 7000), backlog=64); l.settimeout(10)");
    let mut client = Puppet::start(local.client(PYTHON));
    client
        .run(&format!("cs = [create_connection(('127.0.0.1', 7000), 10) for n in range({count})]"));
    server.run(&format!("a = [l.accept()[0] for n in range({count})]"));
    client.run("for c in cs: c.sendall(b'1')");
    server.run("for c in a: c.settimeout(10); c.recv(1); c.sendall(b'2')");
    client.run("for c in cs: c.recv(1); c.setblocking(False)");
    client.run(&format!("p = select.poll()\nfor c in cs: p.register(c, select.{event})"));
    (server, client)
}

/// A child of the peer's takes a connection over: its unread bytes go back and come again by the kernel.
// covers: MUX-02, API-34
#[test]
fn a_connection_that_is_readable_has_a_byte_though_it_goes_to_the_kernel() {
    const ROUNDS: usize = 40;
    for under in [Under::Both, Under::Neither] {
        let local = Local::new(under);
        let (mut server, mut client) = connected(&local, ROUNDS, "POLLIN");
        server.begin(
            "for c in a:
                c.sendall(b'x' * 400000)
                child = os.fork()
                if child == 0: c.sendall(b'y'); os._exit(0)
                os.waitpid(child, 0)",
        );
        let read = format!(
            "got, early = 0, 0
while got < {ROUNDS} * 400001:
    told = p.poll(10000)
    assert told
    for fd, _ in told:
        try: got += len(os.read(fd, 1000))
        except BlockingIOError: early += 1"
        );
        client.run(&read);
        server.end("the server");
        assert_eq!(client.run("early"), "0", "{under:?}");
    }
}

/// The same of a program that sends while its peer's child takes the connection over.
// covers: MUX-02, API-34
#[test]
fn a_connection_that_is_writable_takes_a_byte_though_it_goes_to_the_kernel() {
    const ROUNDS: usize = 20;
    for under in [Under::Both, Under::Neither] {
        let local = Local::new(under);
        let (mut server, mut client) = connected(&local, ROUNDS, "POLLOUT");
        server.begin(
            "total = 0
for c in a:
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        got = b''
        while data := c.recv(100000): got += data
        assert got == (bytes(range(251)) * 2400)[:len(got)], 'other bytes'
        os.write(w, b'%d' % len(got)); os._exit(0)
    os.close(w); total += int(os.read(r, 99)); os.waitpid(child, 0)",
        );
        client.run(
            "early = sent = 0
pattern = bytes(range(251)) * 40
left = {c.fileno(): [c, 600000] for c in cs}
while left:
    told = p.poll(10000)
    assert told
    for fd, _ in told:
        c, more = left[fd]
        at = (600000 - more) % 251
        part = pattern[at:at + min(more, 5000)]
        try: n = c.send(part); assert n <= len(part); sent += n; left[fd][1] -= n
        except BlockingIOError: early += 1
        if left[fd][1] == 0: p.unregister(fd); left.pop(fd)[0].shutdown(SHUT_WR)",
        );
        server.end("the server");
        assert_eq!(client.run("early"), "0", "{under:?}");
        assert_eq!(server.run("total"), client.run("sent"), "{under:?}");
    }
}

/// What the program itself does between poll and recv makes the connection the kernel's: its unread bytes go back to the peer, and come
/// again.
// covers: MUX-02, API-34
#[test]
fn a_connection_that_is_readable_has_a_byte_though_the_program_gives_it_away() {
    const ROUNDS: usize = 12;
    for under in [Under::Both, Under::Neither] {
        for (way, gives) in [
            ("an option", "c.setsockopt(SOL_SOCKET, 47, 100000000)"),
            ("a message", "x, y = socketpair(AF_UNIX); send_fds(x, [b'x'], [c.fileno()])"),
            ("signals", "fcntl.fcntl(c, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)"),
            ("a fork", "os.fork() or os._exit(0); os.wait()"),
        ] {
            let local = Local::new(under);
            let (mut server, mut client) = connected(&local, ROUNDS, "POLLIN");
            client.run("import fcntl, signal; signal.signal(signal.SIGIO, signal.SIG_IGN)");
            server.run("for c in a: c.sendall(b'x' * 3000)");
            client.run(&format!(
                "early = 0
for c in cs:
    while c.fileno() not in [fd for fd, _ in p.poll(10000)]: pass
    {gives}
    try: assert len(c.recv(1000)) > 0
    except BlockingIOError: early += 1"
            ));
            assert_eq!(client.run("early"), "0", "{way}, {under:?}");
            // And none is missing.
            client.run("for c in cs: c.settimeout(10)");
            server.run("for c in a: c.shutdown(SHUT_WR)");
            let rest = "sum(len(b''.join(iter(lambda: c.recv(9999), b''))) for c in cs)";
            assert_eq!(client.number(rest), ROUNDS as i64 * 2000, "{way}, {under:?}");
        }
    }
}
