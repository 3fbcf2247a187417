use libvma_engine::wire::tcp::{Flags, Header};

use super::*;
use crate::socket::fixture::{Tcp, Udp};

fn bytes(bytes: &[u8]) -> Outcome<Vec<u8>> {
    Outcome::Ours(bytes.to_vec())
}

fn connected(unread: &[u8]) -> Tcp {
    Tcp::connected_as(TcpState::Established, unread)
}

/// The peer sends these bytes, of which the one before `mark` is urgent.
fn arrive_urgent(tcp: &Tcp, payload: &[u8], mark: u16) {
    let flags = Flags::ACK.with(Flags::URG);
    tcp.arrive_as(&Header { flags, urgent: mark, ..tcp.header() }, payload);
}

#[test]
fn a_call_takes_what_is_there_up_to_its_room() {
    let tcp = connected(b"abcdef");
    tcp.arrive(Flags::NONE, b"gh");
    assert_eq!(tcp.receive(4, 0), bytes(b"abcd"));
    assert_eq!(tcp.receive(100, 0), bytes(b"efgh"));
    assert_eq!(tcp.receive(100, 0), Outcome::Errno(libc::EAGAIN));
}

/// tcp(7): with MSG_TRUNC the bytes are thrown away, and with MSG_PEEK they stay all the same.
#[test]
fn bytes_that_are_peeked_at_stay_and_bytes_that_are_discarded_go() {
    let tcp = connected(b"abcdef");
    assert_eq!(tcp.receive(3, libc::MSG_PEEK), bytes(b"abc"));
    let discard = |room, flags| discard(&tcp.stack, tcp.id, room, flags);
    assert_eq!(discard(100, libc::MSG_TRUNC | libc::MSG_PEEK), Outcome::Ours(6));
    assert_eq!(discard(2, libc::MSG_TRUNC), Outcome::Ours(2));
    assert_eq!(tcp.receive(100, 0), bytes(b"cdef"));
    let counted = tcp.with(|endpoint, _| endpoint.counters.rx_bytes);
    assert_eq!(counted, 6, "a byte counts once");
}

/// socket(7), SO_PEEK_OFF: a peek moves the offset on, and a read moves it back.
#[test]
fn peeking_goes_on_where_it_stopped() {
    let tcp = connected(b"abcdef");
    tcp.set_number(libc::SOL_SOCKET, libc::SO_PEEK_OFF, 1);
    let offset = || tcp.with_stream(|stream| stream.peek_offset);
    assert_eq!(tcp.receive(2, libc::MSG_PEEK), bytes(b"bc"));
    assert_eq!(tcp.receive(2, libc::MSG_PEEK), bytes(b"de"));
    assert_eq!(offset(), Some(5));
    assert_eq!(tcp.receive(2, 0), bytes(b"ab"));
    assert_eq!(offset(), Some(3));
    assert_eq!(tcp.receive(100, libc::MSG_PEEK), bytes(b"f"));
    assert_eq!(tcp.receive(100, 0), bytes(b"cdef"));
    assert_eq!(offset(), Some(0));
}

#[test]
fn the_end_comes_behind_the_bytes_and_is_told_again_and_again() {
    let tcp = connected(b"ab");
    tcp.arrive(Flags::FIN, b"cd");
    assert_eq!(tcp.receive(100, libc::MSG_WAITALL), bytes(b"abcd"));
    assert_eq!(tcp.receive(100, 0), bytes(b""));
    assert_eq!(tcp.receive(100, libc::MSG_PEEK), bytes(b""));
}

#[test]
fn a_reset_is_told_once_behind_the_bytes() {
    let tcp = connected(b"abc");
    tcp.arrive(Flags::RST, b"");
    assert_eq!(tcp.receive(100, 0), bytes(b"abc"));
    assert_eq!(tcp.receive(100, 0), Outcome::Errno(libc::ECONNRESET));
    assert_eq!(tcp.receive(100, 0), bytes(b""));
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.rx_errors), 1);
}

#[test]
fn a_call_without_room_ends_when_there_is_something() {
    let tcp = connected(b"");
    assert_eq!(tcp.receive(0, 0), Outcome::Errno(libc::EAGAIN));
    tcp.arrive(Flags::NONE, b"x");
    assert_eq!(tcp.receive(0, 0), bytes(b""));
    assert_eq!(tcp.receive(9, 0), bytes(b"x"));
}

/// Linux: tcp_recv_urg(), and a read that does not cross the mark.
#[test]
fn the_urgent_byte_is_taken_apart_from_the_others() {
    let tcp = connected(b"");
    assert_eq!(tcp.receive(1, libc::MSG_OOB), Outcome::Errno(libc::EINVAL));
    arrive_urgent(&tcp, b"ab!cd", 3);
    assert_eq!(tcp.receive(9, libc::MSG_OOB | libc::MSG_PEEK), bytes(b"!"));
    assert_eq!(tcp.receive(9, libc::MSG_OOB), bytes(b"!"));
    assert_eq!(tcp.receive(9, libc::MSG_OOB), Outcome::Errno(libc::EINVAL), "it was taken");
    assert_eq!(tcp.receive(9, 0), bytes(b"ab"));
    assert_eq!(tcp.receive(9, 0), bytes(b"cd"));
}

#[test]
fn an_urgent_byte_that_was_announced_is_waited_for() {
    let tcp = connected(b"");
    arrive_urgent(&tcp, b"ab", 3);
    assert_eq!(tcp.receive(1, libc::MSG_OOB), Outcome::Errno(libc::EAGAIN));
    tcp.arrive(Flags::NONE, b"!");
    assert_eq!(tcp.receive(1, libc::MSG_OOB), bytes(b"!"));
}

#[test]
fn an_urgent_byte_in_line_is_one_of_the_others() {
    let tcp = connected(b"");
    tcp.set_number(libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    arrive_urgent(&tcp, b"ab!cd", 3);
    assert_eq!(tcp.receive(1, libc::MSG_OOB), Outcome::Errno(libc::EINVAL));
    let (first, second) = (tcp.receive(9, 0), tcp.receive(9, 0));
    assert_eq!((first, second), (bytes(b"ab"), bytes(b"!cd")));
}

#[test]
fn without_a_connection_the_kept_error_comes_first_and_then_the_kernel_is_asked() {
    for phase in [Phase::Fresh, Phase::Listening { steered: true }] {
        let tcp = Tcp::in_phase(phase);
        tcp.with(|_, socket| socket.pending_error = libc::ECONNREFUSED);
        assert_eq!(tcp.receive(9, 0), Outcome::Errno(libc::ECONNREFUSED), "{phase:?}");
        assert_eq!(tcp.receive(9, 0), Outcome::Os(WhyOs::Unbound), "{phase:?}");
    }
    let udp = Udp::new();
    let datagrams = receive(&udp.stack, udp.id, &mut [], 0);
    assert!(matches!(datagrams, Outcome::Os(WhyOs::NotOurs)));
}

#[test]
fn the_error_queue_of_a_connection_is_empty() {
    let tcp = connected(b"abc");
    assert_eq!(tcp.receive(9, libc::MSG_ERRQUEUE), Outcome::Errno(libc::EAGAIN));
    assert_eq!(tcp.receive(9, 0), bytes(b"abc"));
}

#[test]
fn a_connection_that_is_not_established_has_nothing_to_read() {
    let tcp = Tcp::connecting();
    assert_eq!(tcp.receive(9, 0), Outcome::Errno(libc::EAGAIN));
}

#[test]
fn the_most_that_waited_is_seen_when_it_is_read() {
    let tcp = connected(b"abc");
    tcp.arrive(Flags::NONE, b"defg");
    tcp.receive(1, libc::MSG_PEEK);
    tcp.receive(7, 0);
    tcp.arrive(Flags::NONE, b"h");
    tcp.receive(7, libc::MSG_PEEK);
    assert_eq!(tcp.with(|endpoint, _| endpoint.counters.rx_ready_bytes_max), 7);
}

/// Of a socket that has no connection there is only an error to tell, which nobody has to judge.
#[test]
fn bytes_are_withheld_for_a_callback_while_there_may_be_some() {
    let phases = [
        (Phase::Fresh, false),
        (Phase::Connecting, true),
        (Phase::Connected, true),
        (Phase::Listening { steered: false }, false),
    ];
    for (phase, may_have_bytes) in phases {
        for (judgement, is_due) in [
            (Judgement::None, false),
            (Judgement::Due, true),
            (Judgement::UnderWay, true),
            (Judgement::Ending, true),
            (Judgement::Passed, false),
        ] {
            let tcp = Tcp::in_phase(phase);
            tcp.with_stream(|stream| stream.judgement = judgement);
            let withheld = withholds(&mut tcp.stack.shard.lock().unwrap(), tcp.id);
            assert_eq!(withheld, may_have_bytes && is_due, "{phase:?} {judgement:?}");
        }
    }
}

/// The callback's reader must get bytes that are withheld from the program, and no error.
#[test]
fn the_judge_reads_past_what_the_program_has_set() {
    let tcp = connected(b"abcdef");
    tcp.set_number(libc::SOL_SOCKET, libc::SO_PEEK_OFF, 3);
    tcp.with_stream(|stream| {
        stream.judgement = Judgement::UnderWay;
        stream.low_water = 100;
    });
    let read = |flags| {
        let mut room = [0; 4];
        let count = read_as_judge(&tcp.stack, tcp.id, &mut [IoSliceMut::new(&mut room)], 4, flags);
        room[..count].to_vec()
    };
    assert_eq!(read(libc::MSG_PEEK), b"abcd");
    assert_eq!(read(0), b"abcd");
    assert_eq!(read(0), b"ef");
    tcp.arrive(Flags::RST, b"");
    assert_eq!(read(0), b"");
    tcp.with_stream(|stream| stream.judgement = Judgement::None);
    assert_eq!(tcp.receive(9, 0), Outcome::Errno(libc::ECONNRESET), "the program is told");
}
