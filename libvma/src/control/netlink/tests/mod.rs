//! The control plane's view against the real kernel, in network namespaces of the test's own. They
//! need root and iproute2, and leave nothing behind: a namespace goes with its last thread and
//! descriptor.
#![allow(
    deprecated,
    reason = "unshare() of this thread's network only is harmless, and control/ has no unsafe"
)]

mod changes;
mod neighbours;
mod routes;
mod tables;

use core::net::Ipv4Addr;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::{Command, Stdio};

use libvma_dev::ipv6_stand_ins;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare};

use super::*;

/// Runs a test in a network namespace of its own, on a thread of its own.
pub(in crate::control) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(UnshareFlags::NEWNET).expect("a network namespace needs root");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs lines of `ip` in the calling thread's namespace.
pub(in crate::control) fn ip(lines: &str) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("iproute2");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "ip failed on: {lines}");
}

/// A veth pair, up; `v0` has 10.0.0.1/24.
///
/// Waits for both carriers: the kernel announces them late, in the midst of what a test does next.
fn pair() {
    let mut monitor = Monitor::open().unwrap();
    ip("link add v0 type veth peer name v1\n\
        link set v0 address 02:00:00:00:00:01\n\
        link set v1 address 02:00:00:00:00:02\n\
        link set lo up\nlink set v0 up\nlink set v1 up\n\
        addr add 10.0.0.1/24 broadcast + dev v0\n");
    let mut waiting = vec!["v0", "v1"];
    while !waiting.is_empty() {
        assert!(readable(monitor.as_fd()), "no carrier on {waiting:?}");
        for change in changes(&mut monitor) {
            waiting.retain(
                |name| !matches!(&change, Change::Link(link) if link.carrier && link.name == *name),
            );
        }
    }
}

fn index(name: &str) -> u32 {
    link(name).index
}

fn link(name: &str) -> Link {
    let links = Netlink::open().unwrap().links().unwrap();
    links.into_iter().find(|link| link.name == name).unwrap()
}

fn addr(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn route_to(dst: &str) -> Route {
    route(RouteQuery::to(addr(dst)))
}

fn route(query: RouteQuery) -> Route {
    Netlink::open().unwrap().route(&query).unwrap()
}

pub(in crate::control) fn sysctl(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
}

/// Everything that is there now.
fn changes(monitor: &mut Monitor) -> Vec<Change> {
    let mut seen = Vec::new();
    let count = monitor.read(&mut |change| seen.push(change)).unwrap();
    assert_eq!(count, seen.len());
    seen
}

/// Waits for a change, whatever comes before it.
fn until(monitor: &mut Monitor, wanted: impl Fn(&Change) -> bool) -> Change {
    let mut seen = Vec::new();
    loop {
        let new = changes(monitor);
        if let Some(found) = new.iter().find(|change| wanted(change)) {
            return found.clone();
        }
        seen.extend(new);
        assert!(readable(monitor.as_fd()), "waited in vain, saw {seen:?}");
    }
}

fn readable(fd: BorrowedFd<'_>) -> bool {
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}
