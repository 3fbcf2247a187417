//! A process of the same user that means harm: it may hand over memory, write anything into it at any
//! time, or say nonsense on the rendezvous. Who shares that memory may lose what it had with this peer,
//! and nothing else: it neither crashes nor stops to serve others.

use std::time::SystemTime;

use crate::harness::{PYTHON, compile_in};

use super::{Local, Under};

/// The victim: sends back what it gets, by UDP and TCP.
const ECHO: &str = "
import socket, threading
AT = ('127.0.0.1', 7000)
def datagrams():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(AT)
    while True:
        try:
            data, peer = s.recvfrom(65536)
            s.sendto(data, peer)
        except OSError: pass
def stream(c):
    try:
        while data := c.recv(65536): c.sendall(data)
    except OSError: pass
    c.close()
threading.Thread(target=datagrams).start()
l = socket.create_server(AT, backlog=128)
while True:
    try: c, _ = l.accept()
    except OSError: continue
    threading.Thread(target=stream, args=(c,)).start()
";

/// An honest client, which may have to repeat a datagram but gets all of its own back.
const CLIENT: &str = "
import socket, threading
AT = ('127.0.0.1', 7000)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(AT)
u.settimeout(0.5)
for n in range(300):
    data = b'%d ' % n * (1 + n % 300)
    for attempt in range(20):
        u.send(data)
        try:
            while (got := u.recv(65536)) != data:
                assert got.split()[0] == got.split()[-1] and int(got.split()[0]) < n, got
            break
        except TimeoutError: pass
    else: raise AssertionError('no answer')
for n in range(3):
    c = socket.create_connection(AT, 20)
    data = bytes(range(256)) * 8192
    sender = threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)))
    sender.start()
    got = c.makefile('rb').read()
    sender.join()
    assert got == data, len(got)
print('served')
";

const SECONDS: u32 = 2;

/// The victim under attack, and honest clients meanwhile and afterwards.
#[track_caller]
fn attacked(mode: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let given = std::env::var("VMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or(now.as_nanos() as u64);
    println!("{mode}: VMA_TEST_SEED={seed}");
    let local = Local::new(Under::Both);
    let hostile = compile_in(&local.sandbox.dir, "hostile", include_str!("hostile.c"), &[]);
    let mut victim = local.server(PYTHON).arg("-c").arg(ECHO).start_shown();
    local.sandbox.wait_for_udp(7000);
    local.sandbox.wait_for_listener(7000);
    // Posts are there soon after the sockets.
    local.client(PYTHON).arg("-c").arg(CLIENT).run().says("served");
    let program = local.program(hostile.to_str().unwrap(), mode == "inside");
    let attacker = program.args(&format!("7000 {mode} {seed} {SECONDS}")).start_shown();
    local.client(PYTHON).arg("-c").arg(CLIENT).run().says("served");
    let output = attacker.wait().ok();
    // Otherwise the victim was not hit at all.
    if mode != "offers" {
        assert!(output.number("links ") >= 3.0, "{}\n{}", output.stdout, output.stderr);
    }
    assert!(victim.is_running(), "the victim died: {}", victim.printed());
    local.client(PYTHON).arg("-c").arg(CLIENT).run().says("served");
    local.sandbox.program(PYTHON).arg("-c").arg(CLIENT).run().says("served");
    assert!(victim.is_running(), "the victim died: {}", victim.printed());
}

#[test]
fn memory_that_changes_all_the_time_does_no_harm() {
    attacked("scribble");
}

#[test]
fn records_that_lie_do_no_harm() {
    attacked("records");
}

#[test]
fn frames_that_lie_do_no_harm() {
    attacked("frames");
}

#[test]
fn messages_that_lie_do_no_harm() {
    attacked("messages");
}

#[test]
fn offers_that_are_none_do_no_harm() {
    attacked("offers");
}

/// Both sides of the memory: who writes over it goes on to use it.
#[test]
fn a_program_that_overwrites_its_own_links_harms_nobody() {
    attacked("inside");
}
