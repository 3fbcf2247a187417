use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use libvma_engine::tcp::State as TcpState;
use libvma_engine::wire::tcp::Flags;
use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::socket::fixture::{Linked, Tcp, Udp, stack_with};
use crate::socket::stream::{self, Phase};
use crate::socket::{State, WhyOs};
use crate::sys::sockaddr::Family;

const MILLISECOND: u64 = 1_000_000;

fn entry(fd: i32) -> PollFd {
    PollFd { fd, events: libc::POLLIN, revents: 0 }
}

/// poll(2) on a socket of ours and the end of a pipe of the kernel's: the result, and what is told of each.
fn ask(socket: (&Stack, SocketId, i32), pipe: i32, timeout: u64) -> (Result<usize, i32>, [i16; 2]) {
    let (stack, id, shadow) = socket;
    let mut fds = [entry(shadow), entry(pipe)];
    let members = &mut [Member::new(0, id)];
    let question = Question { fds: &mut fds, members, told: Told::Unasked };
    let result = poll(stack, &OsTurn::default(), question, Some(timeout), None);
    (result, fds.map(|entry| entry.revents))
}

// covers: MUX-01
#[test]
fn a_sleep_tells_what_the_kernel_has() {
    // The kernel has no turn of its own.
    let tcp = Tcp::of(stack_with(&[("VMA_SELECT_POLL_OS_RATIO", "0")]), Family::Ipv4);
    tcp.resume(TcpState::Established, b"");
    let (mut far, near) = UnixStream::pair().unwrap();
    let socket = (&tcp.stack, tcp.id, tcp.raw());
    assert_eq!(ask(socket, near.as_raw_fd(), MILLISECOND), (Ok(0), [0, 0]));
    far.write_all(b"x").unwrap();
    let began = Instant::now();
    for timeout in [0, 1, 10_000 * MILLISECOND] {
        let told = ask(socket, near.as_raw_fd(), timeout);
        assert_eq!(told, (Ok(1), [0, libc::POLLIN]), "{timeout} ns");
    }
    tcp.arrive(Flags::ACK, b"y");
    for timeout in [0, 1, 10_000 * MILLISECOND] {
        let (result, [ours, _]) = ask(socket, near.as_raw_fd(), timeout);
        assert!(result.is_ok_and(|count| count >= 1) && ours == libc::POLLIN, "{timeout} ns");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "what the sleep was told ends the call");
}

/// How long a call on these sockets of the process polls, which could.
fn patience(stack: &Stack, ids: &[SocketId]) -> Patience {
    let mut fds: Vec<_> = ids.iter().map(|_| entry(-1)).collect();
    let mut members: Vec<_> = ids.iter().enumerate().map(|(at, id)| Member::new(at, *id)).collect();
    let mut question = Question { fds: &mut fds, members: &mut members, told: Told::Unasked };
    let turn = OsTurn::default();
    let mut polling = Polling {
        turn: &turn,
        counting: Counting::begin(turn.calls(Told::Unasked), 0),
        handled: 0,
        question: &mut question,
        timeout: None,
        patience: Patience::Loops(1000),
        masked: false,
        asked: false,
        slept: false,
        told_asleep: false,
        ours: 0,
        since: None,
    };
    polling.look_at_ours(stack, true);
    polling.patience
}

#[test]
fn a_call_does_not_poll_for_what_only_the_kernel_can_tell() {
    let linked = Linked::new();
    let Udp { stack, id: datagrams, .. } = &linked.server;
    let shadow = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let listener = stream::open(stack, shadow.as_raw_fd(), true, Family::Ipv4).unwrap();
    {
        let mut state = stack.shard.lock().unwrap();
        let (_, socket) = state.socket(listener).unwrap();
        socket.stream.as_deref_mut().unwrap().phase = Phase::Listening { steered: true };
    }
    let polls = |ids: &[SocketId]| !matches!(patience(stack, ids), Patience::Loops(0));
    assert!(!polls(&[listener]), "other processes accept from it");
    assert!(polls(&[*datagrams]) && polls(&[listener, *datagrams]));
    let mut state = stack.shard.lock().unwrap();
    let (_, socket) = state.socket(listener).unwrap();
    socket.state = State::Os(WhyOs::LocalDestination);
    assert!(!look(&mut state, listener).unwrap().served);
}

#[test]
fn connections_come_to_a_listener_of_ours_by_the_rings() {
    let listener = Tcp::listening();
    let mut state = listener.stack.shard.lock().unwrap();
    assert!(look(&mut state, listener.id).unwrap().served);
}
