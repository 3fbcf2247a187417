//! The promises of poll(2) over an interface: what it has told of is there for the next call that does not wait, whatever the program has
//! done with the socket in between. (`local::promises` has those of connections within the host.)

use crate::harness::{Namespaces, PYTHON, Puppet, Side};

/// What a program does between poll and the call, and undoes.
const WAYS: &str = "
import fcntl, signal, threading
signal.signal(signal.SIGIO, signal.SIG_IGN)
def forked(s):
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
def living(s):
    r, w = os.pipe(); child = os.fork()
    if child == 0: os.close(w); os.read(r, 1); os._exit(0)
    os.close(r); os.close(w); os.waitpid(child, 0)
def passed(s): x, y = socketpair(AF_UNIX); send_fds(x, [b'x'], [s.fileno()])
def copied(s): os.close(os.dup(s.fileno()))
def signalled(s): fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)
def paced(s): s.setsockopt(SOL_SOCKET, 47, 100000000)
def by_thread(s): t = threading.Thread(target=paced, args=(s,)); t.start(); return t
ways = [lambda s: None, forked, living, passed, copied, signalled, paced, by_thread]
def is_told(s, event): p = select.poll(); p.register(s, event); return p.poll(10000) != []
";

/// A peer of kernel sockets that sends back what it gets, and connects when it is told to.
const PEER: &str = "
import threading
u = udp(('10.99.0.2', 7000)); u.settimeout(None)
def datagrams():
    while True: data, peer = u.recvfrom(99); u.sendto(data, peer)
l = create_server(('10.99.0.2', 7000), backlog=64)
def stream(c):
    while data := c.recv(99): c.sendall(data)
    c.close()
def streams():
    while True: threading.Thread(target=stream, args=(l.accept()[0],), daemon=True).start()
for work in (datagrams, streams): threading.Thread(target=work, daemon=True).start()
";

// covers: MUX-02, API-34
#[test]
fn what_poll_has_told_of_is_there_whatever_the_program_does_with_the_socket() {
    let net = Namespaces::new();
    let mut peer = Puppet::start(net.program(Side::B, PYTHON));
    peer.run(PEER);
    let mut program = net.puppet(Side::A);
    program.run(WAYS);
    for open in
        ["s = udp(None, ('10.99.0.2', 7000))", "s = create_connection(('10.99.0.2', 7000), 10)"]
    {
        program.run(&format!(
            "early = []
for way in ways:
    for _ in range(4):
        {open}
        s.setblocking(False); s.send(b'hello'); assert is_told(s, select.POLLIN)
        thread = way(s)
        try: assert s.recv(9) == b'hello'
        except BlockingIOError: early.append((way.__name__, 'recv'))
        if thread: thread.join()
        {open}
        s.setblocking(False); assert is_told(s, select.POLLOUT)
        thread = way(s)
        try: assert s.send(b'hello') == 5
        except BlockingIOError: early.append((way.__name__, 'send'))
        if thread: thread.join()
        assert is_told(s, select.POLLIN) and s.recv(9) == b'hello'"
        ));
        assert_eq!(program.run("early"), "[]", "{open}");
    }
}

/// A connection that was made while nobody accepted is there for accept(), though its peer has reset it or a child has the listener, too.
// covers: MUX-02, API-34
#[test]
fn a_listener_that_is_readable_accepts_whatever_happens_in_between() {
    let mut net = Namespaces::new();
    for way in ["forked", "living", "passed", "copied", "reset"] {
        for _ in 0..3 {
            let mut program = net.puppet(Side::A);
            program.run(WAYS);
            program.run("l = create_server(('10.99.0.1', 7000)); l.setblocking(False)");
            program.run("select.select([l], [], [], 0)");
            let mut peer = Puppet::start(net.program(Side::B, PYTHON));
            peer.run("c = create_connection(('10.99.0.1', 7000), 10); c.sendall(b'hello')");
            assert_eq!(program.run("is_told(l, select.POLLIN)"), "True");
            if way == "reset" {
                peer.run("c.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack('ii', 1, 0)); c.close()");
                program.run("time.sleep(0.02)");
            } else {
                program.run(&format!("{way}(l)"));
            }
            program.run("c, _ = l.accept(); c.settimeout(10)");
            assert_eq!(program.run("c.recv(5)"), "b'hello'", "{way}");
            drop((program, peer));
            net = Namespaces::new();
        }
    }
}
