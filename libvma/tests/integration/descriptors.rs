//! The program's limit of descriptors (RLIMIT_NOFILE) is the program's: the library's own do not count.

use crate::harness::{Namespaces, PYTHON, Side, library};

/// Opens as many of each kind as there is room for, and prints how many that were.
const COUNT: &str = r#"
import errno, os, resource, select, sys, threading
from socket import *
own = '10.99.0.1'
def udp(address):
    s = socket(AF_INET, SOCK_DGRAM)
    s.bind((address, 0))
    return s
def tcp():
    return socket(AF_INET, SOCK_STREAM)
def listening(address):
    s = tcp()
    s.bind((address, 0))
    s.listen(5)
    return s
def connected():
    s = tcp()
    s.connect(('10.99.0.2', 6000))
    return s
def instance():
    e = select.epoll()
    e.register(first, select.EPOLLIN)
    return e
def room(name, make):
    made = []
    try:
        while True: made.append(make())
    except OSError as problem: reason = errno.errorcode[problem.errno]
    count = len(made)
    for one in made: one.close()
    print(name, count, reason, resource.getrlimit(resource.RLIMIT_NOFILE))
def all_kinds(who):
    room(who + ' udp', lambda: udp(own))
    room(who + ' udp lo', lambda: udp('127.0.0.1'))
    room(who + ' udp any', lambda: udp(''))
    room(who + ' tcp', tcp)
    room(who + ' listening', lambda: listening(own))
    room(who + ' listening lo', lambda: listening('127.0.0.1'))
    room(who + ' connected', connected)
    room(who + ' epoll', instance)
    room(who + ' unix', lambda: socket(AF_UNIX, SOCK_STREAM))
    room(who + ' udp', lambda: udp(own))
threaded = sys.argv[1] == 'threads'
if threaded: threading.Thread(target=lambda: os.read(0, 1)).start()
first = udp(own)
first.sendto(b'x', ('10.99.0.2', 9000))
all_kinds('parent')
first.sendto(b'y', ('10.99.0.2', 9000))
sys.stdout.flush()
if not threaded:
    child = os.fork()
    if child: os.waitpid(child, 0)
    all_kinds('forked' if child else 'child')
    sys.stdout.flush()
    if child == 0: os._exit(0)
print(open('/proc/self/limits').read().split('Max open files')[1].split('\n')[0])
"#;

/// The output of the program, with and without the library.
fn counts(threads: &str, limits: &str) -> (String, String) {
    let run = |preloaded: bool| {
        let net = Namespaces::new();
        let receiver = net.socket_at(Side::B, Side::B.at(9000));
        let listener =
            net.within(Side::B, || std::net::TcpListener::bind(Side::B.at(6000)).unwrap());
        // The queue of std's listener is short.
        rustix::net::listen(&listener, 4096).unwrap();
        let before = net.watch(Side::A);
        let program = net.program(Side::A, "prlimit").arg(&format!("--nofile={limits}"));
        let program = program.arg(PYTHON).arg("-c").arg(COUNT).arg(threads);
        let output = if preloaded { program.with_library().run() } else { program.run() }.ok();
        let mut buffer = [0; 10];
        for sent in [b'x', b'y'] {
            assert_eq!((receiver.recv(&mut buffer).unwrap(), buffer[0]), (1, sent));
        }
        if preloaded {
            before.still();
        }
        output.stdout
    };
    (run(false), run(true))
}

// covers: LIM-21
#[test]
fn a_program_opens_as_many_as_on_the_kernel() {
    let (kernel, library) = counts("", "1024:4096");
    assert!(kernel.contains("parent udp 10"), "{kernel}");
    assert_eq!(kernel, library);
}

// covers: LIM-21
#[test]
fn a_program_with_threads_opens_as_many_as_on_the_kernel() {
    let (kernel, library) = counts("threads", "1024:4096");
    assert!(kernel.contains("parent udp 10"), "{kernel}");
    assert_eq!(kernel, library);
}

/// There is no place above the limits without CAP_SYS_RESOURCE: a program may miss what the library cannot do without, and no more.
#[test]
fn a_program_that_may_not_raise_its_limit_misses_a_few() {
    let (kernel, library) = counts("", "300:300");
    let numbers = |text: &str| -> Vec<u32> {
        let of_line = |line: &str| line.split(" EMFILE ").next()?.rsplit(' ').next()?.parse().ok();
        text.lines().filter(|line| line.contains(" EMFILE ")).filter_map(of_line).collect()
    };
    let (kernel, library) = (numbers(&kernel), numbers(&library));
    assert_eq!((kernel.len(), library.len()), (30, 30));
    assert!(kernel.iter().all(|count| *count == kernel[0]), "{kernel:?}");
    assert!(library.iter().all(|count| *count + 32 >= kernel[0]), "{library:?}, {kernel:?}");
}

/// Tells whether the kernel's table of descriptors is the same before the program's first socket and after it.
const TABLE: &str = r#"
import os, threading
from socket import *
def table(): return int(open('/proc/self/status').read().split('FDSize:')[1].split()[0])
threading.Thread(target=lambda: os.read(0, 1), daemon=True).start()
before = table()
s = socket(AF_INET, SOCK_DGRAM)
s.bind(('10.99.0.1', 0))
s.sendto(b'x', ('10.99.0.2', 9000))
print('same' if before == table() else (before, table()))
"#;

/// Where threads share the table, the kernel waits for a grace period of RCU whenever it grows: 10 ms and more.
#[test]
fn the_first_socket_of_a_program_with_threads_waits_for_no_table() {
    for limits in ["300:4096", "300:300", "1024:4096", "4096:4096", "20000:20000"] {
        let net = Namespaces::new();
        let receiver = net.socket_at(Side::B, Side::B.at(9000));
        let before = net.watch(Side::A);
        // A program begins with the table of the one that was there before exec, here without the library.
        let preload = format!("LD_PRELOAD={}", library().display());
        let program = net.program(Side::A, "prlimit").arg(&format!("--nofile={limits}"));
        let program = program.arg("env").arg(&preload).arg(PYTHON).arg("-c").arg(TABLE);
        let program = program.with_library().env("LD_PRELOAD", "");
        assert_eq!(program.run().ok().stdout, "same\n", "{limits}");
        assert_eq!(receiver.recv(&mut [0; 10]).unwrap(), 1);
        before.still();
    }
}
