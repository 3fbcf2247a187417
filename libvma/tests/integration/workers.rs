//! Servers whose workers all accept from one listener: the kernel chooses the worker, and the worker takes over what
//! lives.

use std::time::{Duration, Instant};

use crate::dual_stack::with_ipv6;
use crate::harness::{Namespaces, PYTHON, Program, Puppet, Running, Side, wait_for};

/// Workers that echo, and tell who they are.
const WORKERS: &str = "
import os, select, socket, sys
listener = socket.socket(socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if ':' in sys.argv[2]: listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(sys.argv[3]))
listener.bind((sys.argv[2], 7000)); listener.listen(64)
listener.setblocking(False)
def work():
    epoll, open = select.epoll(), {}
    epoll.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                try: one, _ = listener.accept()
                except BlockingIOError: continue
                open[one.fileno()] = one
                epoll.register(one, select.EPOLLIN | select.EPOLLET)
                # Each worker gets some.
                if len(open) == 4: epoll.unregister(listener)
            else:
                data = open[fd].recv(1000)
                if data == b'who': data = b'%d' % os.getpid()
                if data: open[fd].sendall(data)
                else: open.pop(fd).close()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0: work()
while True:
    os.wait()
    if os.fork() == 0: work()
";

/// Their clients, with kernel sockets.
const CLIENTS: &str = "
def ask(s, what):
    s.sendall(what)
    return s.recv(1000)
def talk():
    for s in clients:
        for n in range(4): assert ask(s, b'%d' % n) == b'%d' % n
def connect(n): return [create_connection((servers[i % len(servers)], 7000), 10) for i in range(n)]
clients = connect(16)
talk()
workers = [int(ask(s, b'who')) for s in clients]
def kill_one():
    victim = workers[0]
    theirs = [s for s, w in zip(clients, workers) if w == victim]
    others = [s for s, w in zip(clients, workers) if w != victim]
    # The kernel would answer an acknowledgment that is still to come with a reset.
    for s in theirs: s.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)
    os.kill(victim, signal.SIGKILL)
    said = set()
    for s in theirs:
        try: said.add(s.recv(1000))
        except OSError as problem: said.add(problem.errno)
    clients[:] = others
    return said
";

/// What the workers listen at, and the addresses by which clients come in turn.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// With IPV6_V6ONLY or without.
    listen: &'static str,
    servers: &'static str,
}

pub(crate) const IPV4: Place = Place { listen: "10.99.0.1 0", servers: "['10.99.0.1']" };
/// The default of nginx and others.
pub(crate) const IPV6: Place = Place { listen: ":: 1", servers: "['fd00:99::1']" };
const BOTH: Place = Place { listen: ":: 0", servers: "['fd00:99::1', '10.99.0.1']" };

/// The workers are those of `server`, a Python on side A.
pub(crate) fn start_in(
    server: Program<'_>,
    net: &Namespaces,
    workers: u32,
    place: Place,
) -> (Running, Puppet) {
    with_ipv6(net);
    let server = server.arg("-c").arg(WORKERS).arg(&workers.to_string()).args(place.listen);
    let server = server.start();
    net.wait_for_listener(Side::A, 7000);
    let mut client = Puppet::start(net.program(Side::B, PYTHON));
    client.run(&format!("servers = {}", place.servers));
    client.run(CLIENTS);
    (server, client)
}

fn start(net: &Namespaces, workers: u32, place: Place) -> (Running, Puppet) {
    start_in(net.program(Side::A, PYTHON).with_library(), net, workers, place)
}

/// The kernel sees nothing of a whole conversation with all clients.
#[track_caller]
pub(crate) fn wait_until_served(net: &Namespaces, client: &mut Puppet) {
    wait_for("the workers to serve all connections", || {
        let before = net.kernel_tcp(Side::A).segments();
        client.run("talk()");
        (net.kernel_tcp(Side::A).segments() == before).then_some(())
    });
}

// covers: THR-04, LIM-22
#[test]
fn workers_take_over_what_lives_and_end_it_when_they_are_killed() {
    take_over_and_end(IPV4);
}

// covers: THR-04, LIM-22
#[test]
fn workers_take_over_connections_of_ipv6() {
    take_over_and_end(IPV6);
}

// covers: THR-04, LIM-22
#[test]
fn workers_take_over_connections_of_both_families() {
    take_over_and_end(BOTH);
}

#[track_caller]
fn take_over_and_end(place: Place) {
    let net = Namespaces::new();
    let (server, mut client) = start(&net, 4, place);
    wait_until_served(&net, &mut client);
    assert_eq!(client.run("len(set(workers))"), "4");
    let watch = net.watch_tcp(Side::A);
    (0..20).for_each(|_| drop(client.run("talk()")));
    watch.still(0);

    let began = Instant::now();
    // ECONNRESET, as from a kernel's socket with bytes unread, or the end of the stream.
    let said = client.run("kill_one()");
    assert!(["{104}", "{b''}"].contains(&said.as_str()), "{said}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The others notice nothing. What the kernel hears is of the four that ended.
    let watch = net.watch_tcp(Side::A);
    (0..20).for_each(|_| drop(client.run("talk()")));
    watch.still(4);

    // The parent has put another worker in its place, which inherits the kernel's listener.
    client.run("clients += connect(4)");
    wait_until_served(&net, &mut client);
    assert_eq!(
        client.run("len({ask(s, b'who') for s in clients} - {b'%d' % w for w in workers})"),
        "1"
    );
    drop(server);
}

/// Workers that serve one client at a time, and end its connection when they are told to.
const ENDING_WORKERS: &str = "
import os, socket, sys
listener = socket.create_server(('10.99.0.1', 7000))
for _ in range(2):
    if os.fork() == 0:
        while True:
            one, _ = listener.accept()
            try:
                while data := one.recv(100):
                    if data == b'end': break
                    one.sendall(data)
            except ConnectionResetError: pass
            one.close()
os.wait()
";

/// A client that always has the same port, and ends its connections by a reset or lets the worker do it.
const RETURNING_CLIENT: &str = "
import errno, struct, time
def come():
    # Until the worker has acknowledged the end of the connection before, the ports are taken.
    while True:
        s = socket()
        s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        s.bind(('10.99.0.2', 5000))
        s.settimeout(10)
        began = time.monotonic()
        try: s.connect(('10.99.0.1', 7000))
        except OSError as problem:
            if problem.errno != errno.EADDRNOTAVAIL: raise
            continue
        return s, time.monotonic() - began
def talk():
    for n in range(10):
        s.sendall(b'x')
        assert s.recv(9) == b'x'
def come_again(resets):
    global s
    if resets:
        s.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack('ii', 1, 0))
    else:
        s.sendall(b'end')
        assert s.recv(9) == b''
    s.close()
    s, took = come()
    return took < 0.5
s, _ = come()
";

/// The workers' listener is the kernel's: it accepts the client's next connection, though a worker had the one before.
// covers: NET-04
#[test]
fn a_client_of_workers_may_come_again_from_its_port() {
    let net = Namespaces::new();
    let server = net.program(Side::A, PYTHON).with_library();
    let server = server.arg("-c").arg(ENDING_WORKERS).start();
    net.wait_for_listener(Side::A, 7000);
    let mut client = Puppet::start(net.program(Side::B, PYTHON));
    client.run(RETURNING_CLIENT);
    for resets in ["False", "True", "True", "False", "False"] {
        wait_until_served(&net, &mut client);
        assert_eq!(client.run(&format!("come_again({resets})")), "True", "{resets}");
    }
    wait_until_served(&net, &mut client);
    drop(server);
}
