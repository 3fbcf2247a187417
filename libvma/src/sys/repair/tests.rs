//! Connections between two namespaces of the test's own, given from one kernel socket to another
//! in the midst of a conversation. They need root and iproute2, and leave nothing behind.

mod closing;
mod conversation;
mod failure;
mod taken;
mod taking;
mod wire;

use core::mem::size_of;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use super::calls::Queue;
use super::steps::BIND_TO_INDEX;
use super::*;
use taken::Taken;
use wire::{Wire, with_wire};

/// A TCP socket, not bound, not connected. As a TcpStream, which it is about to be.
fn fresh() -> TcpStream {
    // SAFETY: socket takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor, nobody else's.
    let stream = unsafe { TcpStream::from_raw_fd(fd) };
    impatient(stream)
}

/// A test shall fail, not hang.
fn impatient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// A socket filter that lets everything pass.
fn attach_filter(stream: &TcpStream) {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut program = [libc::sock_filter { code, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    let target = Target { fd: stream.as_raw_fd(), unfiltered: false, segment_size: 0 };
    target.set("filter", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
}

/// Bytes that show where in the stream they belong.
fn text(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| (at % 251) as u8 ^ (at >> 8) as u8).collect()
}

fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == wanted, "{} bytes differ", wanted.len());
}

fn expect_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "end of the stream");
}

fn say(stream: &mut TcpStream, words: &[u8]) {
    stream.write_all(words).unwrap();
}

/// Both directions work.
fn chat(one: &mut TcpStream, other: &mut TcpStream) {
    let words = text(0, 70_000);
    for _ in 0..3 {
        say(one, &words);
        expect(other, &words);
        say(other, &words);
        expect(one, &words);
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `tcpi_state`, a number of the kernel's.
fn kernel_state(stream: &TcpStream) -> u8 {
    information(stream).tcpi_state
}

fn information(stream: &TcpStream) -> libc::tcp_info {
    // SAFETY: integers only.
    let mut information: libc::tcp_info = unsafe { core::mem::zeroed() };
    let at = core::ptr::from_mut(&mut information).cast::<u8>();
    // SAFETY: the bytes of `information`, which outlives the slice; any bytes are valid for it.
    let bytes = unsafe { core::slice::from_raw_parts_mut(at, size_of::<libc::tcp_info>()) };
    shadow::option(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, bytes).unwrap();
    information
}

const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSED: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
