//! A peer that answers the rendezvous too late for connect(): its process is stopped, or has no CPU. The
//! connection begins in the kernel, and gets its pipe while it lives.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{PYTHON, Puppet, Shown, compile_in, is_long};

use super::kills::Random;
use super::sharing::{ACCEPTS, COMMON};
use super::{ALL, Local, Under};

/// As `sharing::PEER`, and says when it is connected.
const PEER: &str = "
c = socket.create_connection(AT, 20)
print('connected', flush=True)
exchange(c, FROM, TO)
assert c.recv(1) == b'', 'no end'
print('all of it')
";

/// Long enough for a connect() to give up waiting.
const LATE: Duration = Duration::from_millis(40);

/// A server that is stopped while its client connects: what it does then, what the client does, and how many
/// bytes went over `lo`.
#[track_caller]
fn conversation(under: Under, server: &str, client: &str) -> u64 {
    let local = Local::new(under);
    let server = local.server(PYTHON).arg("-c").arg(&[COMMON, ACCEPTS, server].concat());
    let server = server.start_shown();
    local.sandbox.wait_for_listener(7000);
    let watch = local.sandbox.watch();
    let client = local.client(PYTHON).arg("-c").arg(&[COMMON, client].concat());
    connect_late(&server, client.start_shown(), |client| {
        client.wait().says("all of it");
    });
    server.wait().ok().says("served");
    local.moved(&watch).lo_bytes
}

/// The server is stopped until the client is connected, and a while longer.
#[track_caller]
fn connect_late<T>(server: &Shown, mut client: Shown, then: impl FnOnce(Shown) -> T) {
    server.signal(Signal::STOP);
    client.wait_for_text("connected");
    std::thread::sleep(LATE);
    server.signal(Signal::CONT);
    then(client);
}

#[track_caller]
fn is_past_the_kernel(under: Under, by_kernel: u64, most: u64) {
    assert!(under != Under::Both || by_kernel < most, "{by_kernel} bytes over lo");
    assert!(under == Under::Both || by_kernel > 16 << 20, "{by_kernel} bytes over lo");
}

// covers: API-05
#[test]
fn a_connection_to_a_stopped_server_gets_its_pipe_when_that_goes_on() {
    for under in ALL {
        let served = "exchange(c, TO, FROM); c.close(); print('served')";
        let by_kernel = conversation(under, served, PEER);
        // What both send before either knows, in the buffers of the kernel's sockets.
        is_past_the_kernel(under, by_kernel, 12 << 20);
    }
}

/// Nothing is under way when the pipe comes: all bytes but the first go by it.
#[test]
fn an_exchange_of_messages_goes_past_the_kernel_after_a_late_beginning() {
    let client = "
c = socket.create_connection(AT, 20)
print('connected', flush=True)
for number in range(20000):
    c.sendall(b'%8d' % number)
    assert c.recv(1000, socket.MSG_WAITALL) == b'%1000d' % number
print('all of it')";
    let server = "
for number in range(20000):
    assert c.recv(8, socket.MSG_WAITALL) == b'%8d' % number
    c.sendall(b'%1000d' % number)
c.close()
print('served')";
    for under in ALL {
        let by_kernel = conversation(under, server, client);
        is_past_the_kernel(under, by_kernel, 1 << 20);
    }
}

/// The server speaks first, and its bytes wait in the kernel's socket when the pipe comes.
#[test]
fn what_the_server_sent_before_the_pipe_came_is_read_first() {
    let client = "
c = socket.create_connection(AT, 20)
print('connected', flush=True)
time.sleep(0.5)
exchange(c, FROM, TO)
print('all of it')";
    let served = "exchange(c, TO, FROM); c.close(); print('served')";
    for under in ALL {
        let by_kernel = conversation(under, served, client);
        is_past_the_kernel(under, by_kernel, 14 << 20);
    }
}

/// While the server waits for the offer, and afterwards, its end may go to another process.
#[test]
fn a_late_connection_survives_that_it_is_shared() {
    let forks = "
exchange(c, TO[:HALF], FROM[:HALF])
child = os.fork()
if child == 0:
    exchange(c, TO[HALF:], FROM[HALF:])
    os._exit(7)
c.close()
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
print('served')";
    let forks_at_once = "
child = os.fork()
if child == 0:
    exchange(c, TO, FROM)
    os._exit(7)
c.close()
assert os.waitpid(child, 0)[1] == 7 << 8, 'the child'
print('served')";
    let passes_at_once = "
here, there = socket.socketpair()
socket.send_fds(here, [b'x'], [c.fileno()])
c.close()
c = socket.socket(fileno=socket.recv_fds(there, 1, 1)[1][0])
c.setblocking(True)
exchange(c, TO, FROM)
c.close()
print('served')";
    for under in ALL {
        for server in [forks, forks_at_once, passes_at_once] {
            conversation(under, server, PEER);
        }
    }
}

/// Calls that wait in the kernel when the pipe comes: the answer that ends them comes by the pipe.
#[test]
fn calls_that_wait_when_the_pipe_comes_are_woken() {
    let waits = [
        "c.recv(5, MSG_WAITALL)",
        "select.select([c], [], [])[0] == [c] and c.recv(5)",
        "p.poll() and c.recv(5)",
        "e.poll() and c.recv(5)",
        "edge.poll() and c.recv(5)",
    ];
    for under in ALL {
        for wait in waits {
            let local = Local::new(under);
            let mut server = Puppet::start(local.server(PYTHON));
            server.run("l = create_server(('127.0.0.1', 7000)); l.settimeout(15)");
            server.signal(Signal::STOP);
            let mut client = Puppet::start(local.client(PYTHON));
            client.run("import select; c = create_connection(('127.0.0.1', 7000))");
            client.run("p = select.poll(); p.register(c, select.POLLIN)");
            client.run("e = select.epoll(); e.register(c, select.EPOLLIN)");
            client.run("edge = select.epoll(); edge.register(c, select.EPOLLIN | select.EPOLLET)");
            client.begin(wait);
            std::thread::sleep(LATE);
            server.signal(Signal::CONT);
            server.run("c, _ = l.accept(); c.settimeout(15)");
            let watch = local.sandbox.watch();
            // Until then the pipe is there.
            std::thread::sleep(LATE);
            server.run("c.sendall(b'hello')");
            assert_eq!(client.end(wait), "b'hello'", "{under:?} {wait}");
            client.begin(wait);
            server.run("c.sendall(b'again')");
            assert_eq!(client.end(wait), "b'again'", "{under:?} {wait}");
            assert_eq!(local.moved(&watch).segments == 0, under == Under::Both, "{wait}");
            server.begin("c.recv(5, MSG_WAITALL)");
            client.run("c.sendall(b'there')");
            assert_eq!(server.end("recv"), "b'there'");
            client.run("c.close()");
            assert_eq!(server.run("c.recv(1)"), "b''");
        }
    }
}

/// Either end is stopped and goes on at random moments, also in the middle of agreeing upon the pipe.
#[test]
fn no_byte_is_lost_whoever_is_stopped_and_when() {
    let mut random = Random::seeded();
    let rounds = if is_long() { 200 } else { 12 };
    for style in ["blocking", "epoll"].into_iter().cycle().take(rounds) {
        let local = Local::new(Under::Both);
        let twin = compile_in(&local.sandbox.dir, "twin", include_str!("twin.c"), &[]);
        let twin = twin.to_str().unwrap();
        let arguments = format!("tcp 7000 {style} {}", 4 << 20);
        let mut server = local.server(twin).args("serve").args(&arguments).start_shown();
        server.wait_for_text("listening");
        server.signal(Signal::STOP);
        let client = local.client(twin).args("call").args(&arguments).start_shown();
        let nap = |micros: u64| std::thread::sleep(Duration::from_micros(micros));
        nap(random.next(120_000));
        for _ in 0..random.next(4) {
            client.signal(Signal::STOP);
            nap(random.next(3000));
            server.signal(Signal::CONT);
            nap(random.next(3000));
            client.signal(Signal::CONT);
            server.signal(Signal::STOP);
            nap(random.next(3000));
        }
        server.signal(Signal::CONT);
        let output = client.wait().ok();
        assert!(output.number("got") >= f64::from(4 << 20), "{style}: {}", output.stdout);
        server.wait_for_text("served");
    }
}
