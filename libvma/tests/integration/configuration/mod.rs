//! What the parameters and libvma.conf do, seen from outside the process.

mod logging;
mod receiving;
mod rules;
mod sending;
mod signals;
mod tcp;

use crate::harness::{Namespaces, PYTHON, Puppet, Side};

/// Python under the library in an environment of its own.
fn puppet(net: &Namespaces, environment: &[(&str, &str)]) -> Puppet {
    let mut program = net.program(Side::A, PYTHON).with_library();
    for (name, value) in environment {
        program = program.env(name, value);
    }
    Puppet::start(program)
}

/// A number of /proc/net/snmp.
fn counter(net: &Namespaces, side: Side, protocol: &str, wanted: &str) -> u64 {
    let text = net.read_proc(side, "snmp");
    let prefix = format!("{protocol}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let names = lines.next().expect("names");
    let at = names.split_whitespace().position(|name| name == wanted).expect("a known counter");
    let values = lines.next().expect("values");
    values.split_whitespace().nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

// covers: RUN-05
#[test]
fn a_program_can_load_the_library_by_itself_and_close_it() {
    let net = Namespaces::new();
    let peer = net.socket_at(Side::B, Side::B.at(7000));
    let mut program = Puppet::start(net.program(Side::A, PYTHON));
    program.run("import ctypes, _ctypes");
    program.run(&format!("vma = ctypes.CDLL({:?})", crate::harness::library()));
    program.run("to = struct.pack('H', AF_INET) + struct.pack('!H', 7000) + inet_aton('10.99.0.2') + bytes(8)");
    program.run("at = struct.pack('H', AF_INET) + struct.pack('!H', 5000) + inet_aton('10.99.0.1') + bytes(8)");
    program.run("s = vma.socket(AF_INET, SOCK_DGRAM, 0); vma.bind(s, at, 16)");
    let watch = net.watch(Side::A);
    assert_eq!(program.number("vma.sendto(s, b'hello', 5, 0, to, 16)"), 5);
    let mut buffer = [0; 10];
    let (len, from) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..len], from), (&b"hello"[..], Side::A.at(5000).into()));
    peer.send_to(b"you", from).unwrap();
    program.run("answer = ctypes.create_string_buffer(10)");
    assert_eq!(program.number("vma.recv(s, answer, 10, 0)"), 3);
    watch.still();
    // Its thread runs on in the library's text.
    program.run("vma.close(s); _ctypes.dlclose(vma._handle); time.sleep(0.2)");
    assert_eq!(program.number("threads()"), 2);
    program.finish();
}
