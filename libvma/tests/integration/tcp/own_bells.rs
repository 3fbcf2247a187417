//! Threads that each wait for connections of their own: what comes wakes the one it is for.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Namespaces, PYTHON, Running, Side};

/// The internal thread comes to the aid of nobody within the test.
const RARELY: (&str, &str) = ("VMA_PROGRESS_ENGINE_INTERVAL", "5000");

/// Runs a script under the library with so many connections `conns` to the test; the other ends of them.
fn with_connections(net: &Namespaces, count: usize, script: &str) -> (Running, Vec<TcpStream>) {
    let listener = net.within(Side::B, || TcpListener::bind("0.0.0.0:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let connect = format!(
        "import os, select, socket, sys, threading, time\n\
         conns = [socket.create_connection(('10.99.0.2', {port})) for _ in range({count})]\n"
    );
    let program = net.program(Side::A, PYTHON).with_library().env(RARELY.0, RARELY.1);
    let program = program.env("VMA_RX_POLL", "0").env("VMA_SELECT_POLL", "0").arg("-c");
    let running = program.arg(&format!("{connect}{script}")).start();
    let peers: Vec<_> = (0..count).map(|_| listener.accept().unwrap().0).collect();
    for peer in &peers {
        peer.set_nodelay(true).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    (running, peers)
}

/// Sends a byte and waits for the answer.
fn ask(peer: &mut TcpStream) -> Duration {
    let asked = Instant::now();
    peer.write_all(b"x").unwrap();
    peer.read_exact(&mut [0]).unwrap();
    asked.elapsed()
}

/// Each thread echoes on its own connection; how often it slept goes to the output at the end.
const ECHOES: &str = r#"
slept = {}
def serve(n):
    while conns[n].recv(1):
        conns[n].send(b'x')
    status = open(f'/proc/self/task/{threading.get_native_id()}/status').read()
    slept[n] = int(status.split('\nvoluntary_ctxt_switches:')[1].split()[0])
threads = [threading.Thread(target=serve, args=(n,)) for n in range(len(conns))]
for t in threads:
    t.start()
    time.sleep(0.02)
for t in threads: t.join()
print(*(slept[n] for n in range(len(conns))))
"#;

#[test]
fn a_segment_wakes_the_thread_that_waits_on_its_connection_and_no_other() {
    let net = Namespaces::new();
    let watch = net.watch_tcp(Side::A);
    let (running, mut peers) = with_connections(&net, 4, ECHOES);
    sleep(Duration::from_millis(200));
    for _ in 0..300 {
        ask(peers.last_mut().unwrap());
        sleep(Duration::from_millis(1));
    }
    drop(peers);
    let output = running.wait().ok();
    watch.still(4);
    let slept: Vec<u32> =
        output.stdout.split_whitespace().map(|count| count.parse().unwrap()).collect();
    let [others @ .., own] = &slept[..] else { panic!("{slept:?}") };
    assert!(*own >= 250, "{slept:?}");
    // The first one listens to the ring for all.
    assert!(others.iter().all(|count| *count < 100), "{slept:?}");
}

/// Threads at one epoll instance: whoever gets `c` computes, and gives no answer.
const SHARED_INSTANCE: &str = r#"
poll = select.epoll()
for c in conns: poll.register(c, select.EPOLLIN | select.EPOLLET)
by_number = {c.fileno(): c for c in conns}
def serve():
    while True:
        for number, _ in poll.poll():
            got = by_number[number].recv(1)
            if got == b'c': time.sleep(0.1)
            elif got: by_number[number].send(got)
            else: os._exit(0)
for _ in range(2): threading.Thread(target=serve).start()
"#;

#[test]
fn a_thread_that_computes_keeps_nothing_from_others_at_its_epoll_instance() {
    let net = Namespaces::new();
    let watch = net.watch_tcp(Side::A);
    let (running, mut peers) = with_connections(&net, 2, SHARED_INSTANCE);
    let (first, second) = peers.split_at_mut(1);
    let mut late = Vec::new();
    // Whom each of the threads has served last is different in each round.
    let mut pattern = 0x9e37_79b9_u32;
    for round in 0..20 {
        for _ in 0..10 + round {
            pattern = pattern.rotate_left(5).wrapping_mul(5);
            ask(if pattern & 64 == 0 { &mut first[0] } else { &mut second[0] });
        }
        let (busy, other) = match round % 2 {
            0 => (&mut *first, &mut *second),
            _ => (&mut *second, &mut *first),
        };
        busy[0].write_all(b"c").unwrap();
        sleep(Duration::from_millis(20));
        late.push(ask(&mut other[0]));
        sleep(Duration::from_millis(100));
    }
    drop(peers);
    running.wait().ok();
    watch.still(2);
    // A timer that happens to be due would have helped in the end, some milliseconds later.
    assert!(count_slow(&late) < 5, "{late:?}");
}

fn count_slow(times: &[Duration]) -> usize {
    times.iter().filter(|time| **time > Duration::from_millis(3)).count()
}

/// One thread waits on the first connection; the other computes before it takes what comes on the second.
const COMPUTES: &str = r#"
def wait():
    while conns[0].recv(1): conns[0].send(b'x')
def compute():
    while conns[1].recv(1):
        conns[1].send(b'x')
        time.sleep(0.1)
        left = 40960
        while left: left -= len(conns[1].recv(left))
        conns[1].send(b'x')
threads = [threading.Thread(target=f) for f in (wait, compute)]
for t in threads: t.start()
for t in threads: t.join()
"#;

#[test]
fn what_comes_for_a_thread_that_computes_is_acknowledged() {
    let net = Namespaces::new();
    let watch = net.watch_tcp(Side::A);
    let (running, mut peers) = with_connections(&net, 2, COMPUTES);
    let mut times = Vec::new();
    for _ in 0..10 {
        ask(&mut peers[0]);
        ask(&mut peers[1]);
        let began = Instant::now();
        for _ in 0..10 {
            peers[1].write_all(&[7; 4096]).unwrap();
        }
        while unacknowledged(&peers[1]) > 20_000 {
            std::thread::yield_now();
        }
        times.push(began.elapsed());
        peers[1].read_exact(&mut [0]).unwrap();
    }
    drop(peers);
    running.wait().ok();
    watch.still(2);
    assert!(count_slow(&times) < 4, "{times:?}");
}

/// Bytes that the peer has not acknowledged (SIOCOUTQ, tcp(7)).
fn unacknowledged(stream: &TcpStream) -> i32 {
    use std::os::fd::AsRawFd;
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an int.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    assert_eq!(result, 0);
    bytes
}
