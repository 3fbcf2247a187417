//! How a process ends that has an interface: its parent waits for no grace period of the kernel's, nothing is steered
//! to it any more, and the next process gets its queue, for which it waits some 20 ms if it comes at once.

use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::harness::{
    Namespaces, PYTHON, Puppet, Side, compile, kernel_version, library, wait_for,
};

/// The kernel closes the link of a steering program, a packet socket and an AF_XDP socket by a grace period each, of
/// some 10 ms.
const LONGEST_END: Duration = Duration::from_millis(8);

const LIBC: &str = "import ctypes\nlibc = ctypes.CDLL(None)";

/// Has the program end by this statement: how long its parent waits for that.
fn end(program: &mut Puppet, statement: &str) -> Duration {
    program.begin(statement);
    // Printed by the statement, right before the end.
    program.end(statement);
    let began = Instant::now();
    let id = Pid::from_raw(program.id().try_into().unwrap());
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(id.unwrap()), how).unwrap();
    let took = began.elapsed();
    program.finish();
    took
}

/// A statement that answers and then ends the program.
fn ending(call: &str) -> String {
    format!("sys.stdout.write('=\\n'); sys.stdout.flush(); {call}")
}

// covers: LIM-46
#[test]
fn a_process_with_an_interface_ends_without_a_grace_period() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON));
    server.run("l = create_server(('10.99.0.2', 7000), backlog=64)");
    for call in ["libc.exit(0)", "os._exit(0)", "libc.quick_exit(0)"] {
        let ended = |_| {
            let mut program = net.puppet(Side::A);
            program.run(LIBC);
            program.run("u = udp(('10.99.0.1', 5000))");
            program.run("s = create_connection(('10.99.0.2', 7000)); s.send(b'x' * 1000)");
            assert!(net.is_steered(Side::A), "it is offloaded");
            let took = end(&mut program, &ending(call));
            server.run("c, _ = l.accept(); c.settimeout(15)");
            assert_eq!(server.run("len(c.recv(2000, MSG_WAITALL))"), "1000", "{call}");
            took
        };
        let mut times: Vec<Duration> = (0..7).map(ended).collect();
        times.sort_unstable();
        println!("{call}: {times:?}");
        // Before Linux 6.9 the process itself closes what is left.
        let is_short = times[times.len() / 2] <= LONGEST_END;
        assert!(is_short || kernel_version() < (6, 9), "{call}: {times:?}");
    }
}

/// The port of a process that has ended is its successor's, though the kernel closes the rings later.
// covers: LIM-46
#[test]
fn nothing_is_steered_once_its_process_has_ended() {
    let net = Namespaces::new();
    let peer = net.socket(Side::B);
    for _ in 0..10 {
        let mut program = net.puppet(Side::A);
        program.run("u = udp(('10.99.0.1', 5000))");
        assert!(net.is_steered(Side::A), "it is offloaded");
        end(&mut program, &ending("os._exit(0)"));
        assert!(!net.is_steered(Side::A), "its program is gone");
        let successor = net.socket_at(Side::A, Side::A.at(5000));
        peer.send_to(b"hello", Side::A.at(5000)).unwrap();
        assert_eq!(successor.recv(&mut [0; 10]).unwrap(), 5);
    }
}

/// The rings of a process that has ended are closed, and until then a successor waits for its queue: it does not take
/// its predecessor for a process that keeps it.
// covers: LIM-46
#[test]
fn a_successor_has_the_queue_of_its_predecessor() {
    let net = Namespaces::new();
    // With a line of headings.
    let packet_sockets = || net.read_proc(Side::A, "packet").lines().count() - 1;
    let mut bells = None;
    for _ in 0..5 {
        let mut program = net.puppet(Side::A);
        program.run("u = udp(('10.99.0.1', 5000))");
        assert!(net.is_steered(Side::A), "it is offloaded");
        // A process that finds its queue taken sends by a packet socket, which is one more.
        let count = *bells.get_or_insert_with(packet_sockets);
        wait_for("only one bell", || (packet_sockets() == count).then_some(()));
        end(&mut program, &ending("os._exit(0)"));
    }
    wait_for("the packet sockets are closed", || (packet_sockets() == 0).then_some(()));
}

/// Another library's destructor may run after ours: the interface serves nothing any more then, and the kernel does.
#[test]
fn a_connection_after_the_librarys_end_is_the_kernels() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON));
    server.run("l = create_server(('10.99.0.2', 7000)); l.settimeout(15)");
    let options = ["-shared", "-fPIC"];
    let late = compile(&net, "late_connect.so", include_str!("late_connect.c"), &options);
    let both = format!("{}:{}", library().display(), late.display());
    let program = net.program(Side::A, PYTHON).with_library().env("LD_PRELOAD", &both);
    let mut program = Puppet::start(program);
    program.run(LIBC);
    program.run("u = udp(('10.99.0.1', 5000))");
    assert!(net.is_steered(Side::A), "it is offloaded");
    program.begin(&ending("libc.exit(0)"));
    program.end("exit()");
    server.run("c, _ = l.accept(); c.settimeout(15)");
    assert_eq!(server.run("c.recv(10)"), "b'late'");
    program.finish();
}

/// A kernel that refuses something of the way closes the interface with the process, and nothing is lost by that: here a
/// process that may open no more descriptors, so that there is no socket to send those of the interface to.
#[test]
fn a_process_that_may_not_leave_its_interface_ends_all_the_same() {
    let net = Namespaces::new();
    let mut server = Puppet::start(net.program(Side::B, PYTHON));
    server.run("l = create_server(('10.99.0.2', 7000), backlog=64)");
    let peer = net.socket(Side::B);
    let program = net.program(Side::A, PYTHON).with_library().env("VMA_TRACELEVEL", "debug");
    let mut program = Puppet::start(program);
    program.run("u = udp(('10.99.0.1', 5000)); import resource");
    program.run("s = create_connection(('10.99.0.2', 7000)); s.send(b'x' * 1000)");
    assert!(net.is_steered(Side::A), "it is offloaded");
    program.run("resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))");
    end(&mut program, &ending("os._exit(0)"));
    let printed = program.stderr();
    assert!(printed.contains("when the kernel has detached the interfaces"), "{printed}");
    server.run("c, _ = l.accept(); c.settimeout(15)");
    assert_eq!(server.run("len(c.recv(2000, MSG_WAITALL))"), "1000");
    assert!(!net.is_steered(Side::A), "its program is gone");
    let successor = net.socket_at(Side::A, Side::A.at(5000));
    peer.send_to(b"hello", Side::A.at(5000)).unwrap();
    assert_eq!(successor.recv(&mut [0; 10]).unwrap(), 5);
}
