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
