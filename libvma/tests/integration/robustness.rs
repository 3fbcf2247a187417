//! Processes that are killed, fork, or turn into daemons.

use std::time::{Duration, Instant};

use crate::harness::{Namespaces, PYTHON, Puppet, Side, wait_for};

/// A round trip that the kernel's counters do not see.
#[track_caller]
fn offloaded_echo(net: &Namespaces, program: &mut Puppet, port: u16) {
    let watch = net.watch(Side::A);
    let peer = net.socket(Side::B);
    for n in 0..10u8 {
        peer.send_to(&[n; 33], Side::A.at(port)).unwrap();
        program.run("echo(s)");
        let mut buffer = [0; 100];
        assert_eq!(peer.recv(&mut buffer).unwrap(), 33);
        assert_eq!(buffer[..33], [n; 33]);
    }
    watch.still();
}

// covers: FIX-29
#[test]
fn a_killed_process_leaves_the_interface_to_the_next() {
    let net = Namespaces::new();
    for _ in 0..3 {
        let server = net.program(Side::A, "sockperf").args("server -i 10.99.0.1").with_library();
        let server = server.start();
        net.wait_for_port(Side::A, 11111);
        let client = net.program(Side::B, "sockperf").args("ping-pong -i 10.99.0.1 -t 30");
        let client = client.with_library().with_short_sleeps().start();
        // In the middle of traffic: both ends are attached and the server's kernel counts nothing.
        wait_for("both are attached", || {
            (net.is_steered(Side::A) && net.is_steered(Side::B)).then_some(())
        });
        drop((server, client)); // SIGKILL

        let begin = Instant::now();
        wait_for("nothing is attached", || {
            (!net.is_steered(Side::A) && !net.is_steered(Side::B)).then_some(())
        });
        let mut next = net.puppet(Side::A);
        next.run("s = udp(('10.99.0.1', 5000))");
        offloaded_echo(&net, &mut next, 5000);
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(1), "the next process took {took:?}");
    }
}

// covers: FIX-29
#[test]
fn however_a_process_ends_nothing_is_left() {
    let net = Namespaces::new();
    let ends = [
        "os._exit(3)",
        "os.abort()",
        "sys.exit(1)",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 15)",
        "os.execv('/bin/true', ['true'])",
    ];
    for end in ends {
        let mut program = net.puppet(Side::A);
        program.run("s = udp(('10.99.0.1', 5000))");
        offloaded_echo(&net, &mut program, 5000);
        assert!(net.is_steered(Side::A));
        program.begin(end);
        wait_for(&format!("nothing is attached after {end}"), || {
            (!net.is_steered(Side::A)).then_some(())
        });
    }
}

// covers: FIX-29
#[test]
fn a_closed_socket_needs_no_flow() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
    program.run("s.close()");
    // The kernel has the port back: what comes now is answered with ICMP port unreachable.
    let peer = net.socket(Side::B);
    peer.connect(Side::A.at(5000)).unwrap();
    peer.send(b"anybody?").unwrap();
    let refused = peer.recv(&mut [0; 10]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    // And the same port can be had again, a thousand times.
    program.run("for n in range(1000): udp(('10.99.0.1', 5000)).close()");
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
}

// covers: API-34, LIM-22, FIX-26
#[test]
fn the_parent_keeps_its_offload_after_fork() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
    program.run(
        "
child = os.fork()
if child == 0: time.sleep(60); os._exit(0)",
    );
    offloaded_echo(&net, &mut program, 5000);
    program.run("os.kill(child, 9); os.waitpid(child, 0)");
    offloaded_echo(&net, &mut program, 5000);
    // Children that come and go, with exec and without.
    program.run("import subprocess");
    program.run("for n in range(20): subprocess.run(['true'], check=True); os.system('true')");
    offloaded_echo(&net, &mut program, 5000);
}

// covers: API-34, LIM-22, RUN-19
#[test]
fn a_child_uses_sockets_of_its_own_after_fork() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
    let peer = net.socket(Side::B);
    program.run(
        "
child = os.fork()
if child == 0:
    try:
        t = udp(('10.99.0.1', 5001))
        echo(t, 10)
        os._exit(0)
    except BaseException: os._exit(1)",
    );
    net.wait_for_port(Side::A, 5001);
    for n in 0..10u8 {
        peer.send_to(&[n; 20], Side::A.at(5001)).unwrap();
        assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 20);
    }
    assert_eq!(program.run("os.waitpid(child, 0)[1]"), "0");
    offloaded_echo(&net, &mut program, 5000);
}

// covers: API-34, LIM-22
#[test]
fn an_inherited_socket_works_in_the_child_once_the_parent_has_closed_it() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
    program.run(
        "
r, w = os.pipe()
child = os.fork()
if child == 0:
    try:
        os.read(r, 1)
        echo(s, 10)
        os._exit(0)
    except BaseException: os._exit(1)
s.close()
os.write(w, b'x')",
    );
    let peer = net.socket(Side::B);
    for n in 0..10u8 {
        peer.send_to(&[n; 20], Side::A.at(5000)).unwrap();
        assert_eq!(peer.recv(&mut [0; 100]).expect("the child answers"), 20);
    }
    assert_eq!(program.run("os.waitpid(child, 0)[1]"), "0");
}

// covers: API-34, LIM-22
#[test]
fn a_child_forked_before_any_socket_is_offloaded() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    let peer = net.socket(Side::B);
    let watch = net.watch(Side::A);
    program.run(
        "
r, w = os.pipe()
child = os.fork()
if child == 0:
    try:
        t = udp(('10.99.0.1', 5001))
        os.write(w, b'x')
        echo(t, 10)
        os._exit(0)
    except BaseException: os._exit(1)",
    );
    program.run("os.read(r, 1)");
    for n in 0..10u8 {
        peer.send_to(&[n; 20], Side::A.at(5001)).unwrap();
        assert_eq!(peer.recv(&mut [0; 100]).unwrap(), 20);
    }
    assert_eq!(program.run("os.waitpid(child, 0)[1]"), "0");
    watch.still();
}

const DAEMON: &str = "
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def serve(when):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(15)
    s.bind(('10.99.0.1', 5000))
    return s
if sys.argv[1] == 'socket-first': s = serve('')
if libc.daemon(1, 0): sys.exit(1)
if sys.argv[1] == 'daemon-first': s = serve('')
os.close(os.open('ready', os.O_CREAT | os.O_WRONLY))
for n in range(10):
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
s.close()
";

/// Starts the daemon, has ten datagrams answered.
fn daemon(net: &Namespaces, order: &str) {
    let path = net.file("daemon.py");
    std::fs::write(&path, DAEMON).unwrap();
    let program = net.program(Side::A, PYTHON).arg(path.to_str().unwrap()).arg(order);
    program.with_library().run().ok(); // the parent ends at once
    wait_for("the daemon is ready", || net.file("ready").exists().then_some(()));
    let peer = net.socket(Side::B);
    for n in 0..10u8 {
        peer.send_to(&[n; 20], Side::A.at(5000)).unwrap();
        assert_eq!(peer.recv(&mut [0; 100]).expect("the daemon answers"), 20);
    }
    wait_for("the daemon has ended", || (!net.udp_ports(Side::A).contains(&5000)).then_some(()));
}

// covers: API-34, LIM-22
#[test]
fn a_daemon_that_opens_its_socket_afterwards_is_offloaded() {
    let net = Namespaces::new();
    let watch = net.watch(Side::A);
    daemon(&net, "daemon-first");
    watch.still();
}

// covers: API-34, LIM-22
#[test]
fn a_daemon_that_opened_its_socket_before_keeps_it() {
    let net = Namespaces::new();
    daemon(&net, "socket-first");
}

// covers: LIM-24, API-39
#[test]
fn ctrl_c_ends_a_blocked_program() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000), timeout=None)");
    for _ in 0..3 {
        program.begin("s.recv(10)");
        program.wait_until_asleep();
        program.signal(rustix::process::Signal::INT);
        let exception = program.exception("s.recv(10)");
        assert!(exception.starts_with("KeyboardInterrupt"), "{exception}");
        offloaded_echo(&net, &mut program, 5000);
    }
}

// covers: API-36, API-37, LIM-11, LIM-54
#[test]
fn duplicates_share_the_socket() {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("first = udp(('10.99.0.1', 5000)); s = first.dup(); first.close()");
    offloaded_echo(&net, &mut program, 5000);
    program.run("fd = os.dup2(s.fileno(), 70); s.close(); s = socket(fileno=fd); s.settimeout(15)");
    offloaded_echo(&net, &mut program, 5000);
    // Onto the socket: the port is free again, and the number is something else.
    program.run("null = os.open('/dev/null', os.O_RDONLY); os.dup2(null, 70)");
    assert_eq!(program.run("os.read(70, 10)"), "b''");
    program.run("s.detach(); s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
}

/// What socket calls with these bad pointers (Python expressions) come to.
fn bad_pointers_are_efault(pointers: &[&str]) {
    let net = Namespaces::new();
    let mut program = net.puppet(Side::A);
    program.run("s = udp(('10.99.0.1', 5000))");
    offloaded_echo(&net, &mut program, 5000);
    program.run("import ctypes; libc = ctypes.CDLL(None, use_errno=True)");
    program.run("s.connect(('10.99.0.2', 9))");
    let peer = net.socket_at(Side::B, Side::B.at(9));
    for bad in pointers {
        for call in
            ["send(fd, $, 10, 0)", "write(fd, $, 10)", "recv(fd, $, 10, 0)", "read(fd, $, 10)"]
        {
            let call = call.replace('$', &format!("ctypes.c_void_p({bad})"));
            let call = call.replace("fd", "s.fileno()");
            peer.send_to(b"0123456789", Side::A.at(5000)).unwrap();
            assert_eq!(program.run(&format!("libc.{call}")), "-1", "{call}");
            assert_eq!(program.run("errno.errorcode[ctypes.get_errno()]"), "'EFAULT'", "{call}");
            program.run("drain(s)");
        }
    }
}

// covers: LIM-45
#[test]
fn null_and_wild_pointers_are_efault() {
    bad_pointers_are_efault(&["0", "8", "-1", "1 << 63"]);
}
