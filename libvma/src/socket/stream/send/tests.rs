use libvma_engine::wire::tcp::Flags;

use super::super::rehearsal::rehearse;
use super::super::shutdown::shutdown;
use super::*;
use crate::socket::State;
use crate::socket::fixture::Tcp;

/// A connection whose send buffer is the smallest one that the kernel allows.
fn with_little_room() -> Tcp {
    let tcp = Tcp::connected();
    tcp.set_number(libc::SOL_SOCKET, libc::SO_SNDBUF, 0);
    tcp
}

fn room(tcp: &Tcp) -> Outcome<usize> {
    wait_for_room(&tcp.stack, tcp.id)
}

#[test]
fn a_call_sends_what_finds_room_and_the_next_one_says_eagain() {
    let tcp = with_little_room();
    let Outcome::Ours(before) = room(&tcp) else { panic!("the buffer is empty") };
    let data = vec![7; 3 * before];
    let Outcome::Ours(sent) = tcp.send(&data, 0) else { panic!("there was room") };
    assert!((before..data.len()).contains(&sent), "{before} {sent}");
    assert_eq!(tcp.send(&data, 0), Outcome::Errno(libc::EAGAIN));
    assert_eq!(room(&tcp), Outcome::Errno(libc::EAGAIN));
    tcp.acknowledge(sent as u32);
    assert_eq!(room(&tcp), Outcome::Ours(before));
    let counters =
        tcp.with(|endpoint, _| (endpoint.counters.tx_bytes, endpoint.counters.tx_eagain));
    assert_eq!(counters, (sent as u64, 1), "the question for room is no send");
}

#[test]
fn after_the_end_of_writing_a_send_is_a_broken_pipe() {
    let tcp = Tcp::connected();
    assert_eq!(shutdown(&tcp.stack, tcp.id, libc::SHUT_WR), Outcome::Ours(()));
    assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::EPIPE));
    assert_eq!(room(&tcp), Outcome::Errno(libc::EPIPE));
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.tx_errors), 1);
}

#[test]
fn a_reset_is_told_to_the_next_send_and_then_the_pipe_is_broken() {
    let tcp = Tcp::connected();
    tcp.arrive(Flags::RST, b"");
    assert!(is_failed(&tcp.stack, tcp.id), "a call that has done something stops ahead of it");
    assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::ECONNRESET));
    assert!(!is_failed(&tcp.stack, tcp.id));
    assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::EPIPE));
}

#[test]
fn nothing_is_sent_before_the_handshake_has_ended() {
    let tcp = Tcp::connecting();
    assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::EAGAIN));
    assert_eq!(room(&tcp), Outcome::Errno(libc::EAGAIN));
}

#[test]
fn without_a_connection_the_kernel_says_what_is_wrong_behind_a_kept_error() {
    for phase in [Phase::Fresh, Phase::Listening { steered: false }] {
        let tcp = Tcp::in_phase(phase);
        tcp.with(|_, socket| socket.pending_error = libc::ETIMEDOUT);
        assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::ETIMEDOUT), "{phase:?}");
        assert_eq!(tcp.send(b"x", 0), Outcome::Os(WhyOs::Unbound), "{phase:?}");
        assert_eq!(room(&tcp), Outcome::Os(WhyOs::Unbound), "{phase:?}");
    }
    let tcp = Tcp::in_phase(Phase::Connected);
    assert_eq!(tcp.send(b"x", 0), Outcome::Errno(libc::EPIPE), "the connection is gone");
}

/// send(2): bytes that were taken are told, and what ended the call is the next one's.
#[test]
fn bytes_that_have_left_outweigh_what_ended_the_call() {
    let tcp = Tcp::connected();
    let outcome = |ended, sent| outcome(&tcp.stack, tcp.id, ended, sent);
    for ended in [
        Ok(Err(libc::ECONNRESET)),
        Err(Ended::WouldBlock),
        Err(Ended::TimedOut),
        Err(Ended::Interrupted),
        Err(Ended::Gone),
        Err(Ended::Departed),
    ] {
        assert_eq!(outcome(ended, 3), Outcome::Ours(3));
    }
    assert_eq!(outcome(Ok(Ok(())), 0), Outcome::Ours(0));
    assert_eq!(outcome(Ok(Err(libc::EPIPE)), 0), Outcome::Errno(libc::EPIPE));
    assert_eq!(outcome(Err(Ended::Departed), 0), Outcome::Os(WhyOs::Passed));
    assert_eq!(outcome(Err(Ended::Interrupted), 0), Outcome::Errno(libc::EINTR));
    assert_eq!(outcome(Err(Ended::Gone), 0), Outcome::Errno(libc::EBADF));
}

/// VMA_SND_FLAGS_DUMMY: what cannot leave at once as one segment is not rehearsed.
#[test]
fn a_rehearsal_says_whether_one_segment_could_leave_now() {
    let tcp = Tcp::connected();
    let of = |tcp: &Tcp, pieces: &[&[u8]], flags| {
        let pieces: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        rehearse(&tcp.stack, tcp.id, &pieces, flags)
    };
    assert_eq!(of(&tcp, &[b"four"], 0), Ok(4));
    assert_eq!(of(&tcp, &[b"four"], libc::MSG_MORE), Err(libc::EAGAIN));
    assert_eq!(of(&tcp, &[b"four"], libc::MSG_OOB), Err(libc::EAGAIN));
    assert_eq!(of(&tcp, &[b"two", b"pieces"], 0), Err(libc::EAGAIN));
    assert_eq!(of(&tcp, &[b""], 0), Err(libc::EAGAIN));
    assert_eq!(of(&tcp, &[&[0; 10_000]], 0), Err(libc::EAGAIN), "it is more than a segment");
    assert_eq!(of(&Tcp::new(), &[b"four"], 0), Err(libc::EAGAIN));
    assert_eq!(of(&Tcp::in_phase(Phase::Connected), &[b"four"], 0), Err(libc::EAGAIN));
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.tx_dummy), 1);
    tcp.with(|_, socket| socket.state = State::Os(WhyOs::Passed));
    assert_eq!(of(&tcp, &[b"four"], 0), Err(libc::EINVAL));
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.tx_bytes), 0, "nothing has left");
}
