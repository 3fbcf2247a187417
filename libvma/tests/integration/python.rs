//! The ways a Python program waits for datagrams.

use std::time::{Duration, Instant};

use crate::harness::{Namespaces, PYTHON, Side};

// covers: API-10, MUX-12
#[test]
fn a_receive_timeout_is_kept() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    // settimeout() polls before it receives; SO_RCVTIMEO is kept by the receive call itself.
    program.run("s = udp(('10.99.0.1', 5000), timeout=0.2)");
    let begin = Instant::now();
    assert!(program.raises("s.recv(10)").starts_with("TimeoutError"));
    let by_poll = begin.elapsed();
    program.run("s.settimeout(None)");
    program.run("s.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack('ll', 0, 200000))");
    let begin = Instant::now();
    assert!(program.raises("s.recv(10)").starts_with("BlockingIOError"));
    for took in [by_poll, begin.elapsed()] {
        let allowed = Duration::from_millis(195)..Duration::from_millis(400);
        assert!(allowed.contains(&took), "{took:?} instead of 200 ms");
    }
}

// covers: API-10
#[test]
fn a_blocked_receive_wakes_with_the_datagram() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    let mut program = net.puppet(Side::A);
    let peer = net.socket(Side::B);
    program.run("s = udp(('10.99.0.1', 5000), timeout=None)");
    for n in 0..5u8 {
        program.begin("s.recv(100)");
        // Longer than a receive call polls before it sleeps.
        assert_eq!(program.wait_until_asleep(), "S");
        peer.send_to(&[b'a' + n; 3], Side::A.at(5000)).unwrap();
        let letter = char::from(b'a' + n);
        assert_eq!(program.end("s.recv(100)"), format!("b'{letter}{letter}{letter}'"));
    }
    let traffic = program.finish();
    watch.check(&traffic, 5, 0);
}

const SERVERS: &[(&str, &str)] = &[
    (
        "select",
        "
socks = [udp(('10.99.0.1', 5000 + n)) for n in range(5)]
for s in socks: s.setblocking(False)
print('ready', flush=True)
left = 500
while left:
    for s in select.select(socks, [], [], 15)[0]:
        while True:
            try: data, peer = s.recvfrom(2000)
            except BlockingIOError: break
            s.sendto(data, peer); left -= 1",
    ),
    (
        "poll",
        "
socks = {s.fileno(): s for s in [udp(('10.99.0.1', 5000 + n)) for n in range(5)]}
waiter = select.poll()
for fd in socks: waiter.register(fd, select.POLLIN)
print('ready', flush=True)
left = 500
while left:
    for fd, event in waiter.poll(15000):
        data, peer = socks[fd].recvfrom(2000)
        socks[fd].sendto(data, peer); left -= 1",
    ),
    (
        "epoll",
        "
socks = {s.fileno(): s for s in [udp(('10.99.0.1', 5000 + n)) for n in range(5)]}
waiter = select.epoll()
for fd in socks: waiter.register(fd, select.EPOLLIN)
print('ready', flush=True)
left = 500
while left:
    for fd, event in waiter.poll(15):
        data, peer = socks[fd].recvfrom(2000)
        socks[fd].sendto(data, peer); left -= 1",
    ),
    (
        "edge-triggered epoll",
        "
socks = {s.fileno(): s for s in [udp(('10.99.0.1', 5000 + n)) for n in range(5)]}
waiter = select.epoll()
for fd in socks: socks[fd].setblocking(False); waiter.register(fd, select.EPOLLIN | select.EPOLLET)
print('ready', flush=True)
left = 500
while left:
    for fd, event in waiter.poll(15):
        while True:
            try: data, peer = socks[fd].recvfrom(2000)
            except BlockingIOError: break
            socks[fd].sendto(data, peer); left -= 1",
    ),
    (
        "asyncio",
        "
import asyncio
class Echo(asyncio.DatagramProtocol):
    left = 500
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, peer):
        self.transport.sendto(data, peer)
        Echo.left -= 1
        if not Echo.left: over.set()
async def serve():
    global over
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for n in range(5):
        await loop.create_datagram_endpoint(Echo, local_addr=('10.99.0.1', 5000 + n))
    print('ready', flush=True)
    await asyncio.wait_for(over.wait(), 15)
asyncio.run(serve())",
    ),
    (
        "threads",
        "
def serve(s):
    for n in range(100):
        data, peer = s.recvfrom(2000)
        s.sendto(data, peer)
socks = [udp(('10.99.0.1', 5000 + n)) for n in range(5)]
workers = [threading.Thread(target=serve, args=(s,)) for s in socks]
for one in workers: one.start()
print('ready', flush=True)
for one in workers: one.join()",
    ),
];

const PREAMBLE: &str = "
import select, socket, threading
def udp(at):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(15); s.bind(at)
    return s
";

/// A server of five sockets under the library; a hundred datagrams to each come back unharmed.
#[track_caller]
fn serve(name: &str) {
    let (_, script) = SERVERS.iter().find(|(known, _)| *known == name).expect(name);
    let net = Namespaces::new();
    let path = net.file("server.py");
    std::fs::write(&path, [PREAMBLE, script].concat()).unwrap();
    let watch = net.watch(Side::A);
    let program = net.program(Side::A, PYTHON).arg(path.to_str().unwrap()).with_library();
    let mut server = program.start();
    server.wait_for_text("ready");
    let peer = net.socket(Side::B);
    for round in 0..10usize {
        // Bursts of fifty, over all sockets.
        for n in 0..50usize {
            let payload = vec![(round * 50 + n) as u8; 1 + (round * 50 + n) * 2];
            peer.send_to(&payload, Side::A.at(5000 + (n % 5) as u16)).unwrap();
        }
        let mut seen = Vec::new();
        for _ in 0..50 {
            let mut buffer = [0; 2000];
            let (len, from) = peer.recv_from(&mut buffer).unwrap_or_else(|error| {
                panic!("{name}, round {round}, {}: {error}\n{}", seen.len(), server.printed())
            });
            let n = (len - 1) / 2;
            assert!(buffer[..len].iter().all(|byte| *byte == n as u8), "payload {n}");
            assert_eq!(from, Side::A.at(5000 + (n % 5) as u16).into());
            seen.push(n);
        }
        seen.sort_unstable();
        let all: Vec<usize> = (round * 50..round * 50 + 50).collect();
        assert_eq!(seen, all, "each once");
    }
    let output = server.wait().ok();
    watch.check(&output.traffic, 500, 500);
}

// covers: MUX-01, API-10
#[test]
fn select_with_non_blocking_sockets() {
    serve("select");
}

// covers: MUX-02
#[test]
fn poll_with_blocking_sockets() {
    serve("poll");
}

// covers: MUX-03
#[test]
fn epoll_level_triggered() {
    serve("epoll");
}

// covers: MUX-03
#[test]
fn epoll_edge_triggered() {
    serve("edge-triggered epoll");
}

// covers: MUX-03, MUX-11
#[test]
fn asyncio_datagram_endpoints() {
    serve("asyncio");
}

// covers: API-10
#[test]
fn a_thread_for_each_socket() {
    serve("threads");
}

// covers: MUX-11, MUX-01, MUX-02, MUX-03
#[test]
fn ordinary_descriptors_and_offloaded_ones_in_one_wait() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    let peer = net.socket(Side::B);
    program.run("s = udp(('10.99.0.1', 5000)); r, w = os.pipe()");
    program.run(
        "
def ready_select(): return sorted(x if isinstance(x, int) else 's' for x in select.select([s, r], [], [], 15)[0])
p = select.poll(); p.register(s, 1); p.register(r, 1)
def ready_poll(): return ['s' if fd == s.fileno() else fd for fd, _ in p.poll(15000)]
e = select.epoll(); e.register(s, 1); e.register(r, 1)
def ready_epoll(): return ['s' if fd == s.fileno() else fd for fd, _ in e.poll(15)]",
    );
    for wait in ["ready_select()", "ready_poll()", "ready_epoll()"] {
        program.begin(wait);
        peer.send_to(b"x", Side::A.at(5000)).unwrap();
        assert_eq!(program.end(wait), "['s']", "{wait}");
        program.run("s.recv(9)");
        program.run("os.write(w, b'x')");
        assert_eq!(program.run(&format!("{wait} == [r]")), "True", "{wait}");
        program.run("os.read(r, 1)");
    }
}

// covers: MUX-11
#[test]
fn an_ordinary_descriptor_does_not_wait_for_a_program_that_works_between_its_calls() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    let peer = net.socket(Side::B);
    program.run("s = udp(('10.99.0.1', 5000)); r, w = os.pipe()");
    peer.send_to(b"x", Side::A.at(5000)).unwrap();
    program.run("select.select([s], [], [], 15)");
    program.run(
        "
p = select.poll(); p.register(s, 1); p.register(r, 1)
e = select.epoll(); e.register(s, 1); e.register(r, 1)
def work(): time.sleep(0.001); os.write(w, b'x')
def late(wait): work(); told = r not in wait(); os.read(r, 1); return told",
    );
    // The offloaded one is ready all the time.
    for wait in [
        "select.select([s, r], [], [], 15)[0]",
        "[fd for fd, _ in p.poll(15000)]",
        "[fd for fd, _ in e.poll(15)]",
    ] {
        let late = program.number(&format!("sum(late(lambda: {wait}) for _ in range(50))"));
        assert_eq!(late, 0, "{wait}");
    }
}

// covers: MUX-12
#[test]
fn waiting_on_idle_sockets_keeps_the_timeout() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    program.run("p = select.poll(); p.register(s, 1); e = select.epoll(); e.register(s, 1)");
    for wait in ["select.select([s], [], [], %s)", "p.poll(1000 * %s)", "e.poll(%s)"] {
        for seconds in ["0", "0.05", "0.3"] {
            let begin = Instant::now();
            program.run(&wait.replace("%s", seconds));
            let (took, wanted) = (begin.elapsed().as_secs_f64(), seconds.parse::<f64>().unwrap());
            assert!(took >= wanted - 0.001 && took < wanted + 0.15, "{wait} {seconds}: {took} s");
        }
    }
}
