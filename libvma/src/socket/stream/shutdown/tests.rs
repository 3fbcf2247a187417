use libvma_engine::wire::tcp::Flags;

use super::*;
use crate::socket::fixture::{KEY, Tcp};

fn shut(tcp: &Tcp, how: i32) -> Outcome<()> {
    shutdown(&tcp.stack, tcp.id, how)
}

fn has_connection(tcp: &Tcp) -> bool {
    tcp.stack.shard.lock().unwrap().has_connection(&KEY)
}

#[test]
fn an_unknown_direction_is_refused() {
    for how in [-1, 3] {
        assert_eq!(shut(&Tcp::connected(), how), Outcome::Errno(libc::EINVAL));
    }
}

/// The kernel's socket says ENOTCONN, and sees the end of reading all the same.
#[test]
fn a_fresh_socket_remembers_that_reading_was_shut() {
    for (how, is_shut) in [(libc::SHUT_WR, false), (libc::SHUT_RD, true), (libc::SHUT_RDWR, true)] {
        let tcp = Tcp::new();
        assert_eq!(shut(&tcp, how), Outcome::Os(WhyOs::Unbound));
        assert_eq!(tcp.with_stream(|stream| stream.reading_shut), is_shut, "{how}");
    }
}

#[test]
fn a_listener_ends_when_its_reading_is_shut() {
    for (how, why, phase) in [
        (libc::SHUT_WR, WhyOs::Unbound, Phase::Listening { steered: true }),
        (libc::SHUT_RD, WhyOs::ShutDown, Phase::Fresh),
        (libc::SHUT_RDWR, WhyOs::ShutDown, Phase::Fresh),
    ] {
        let tcp = Tcp::listening();
        assert_eq!(shut(&tcp, how), Outcome::Os(why));
        assert_eq!(tcp.phase(), phase);
        let listens = tcp.stack.shard.lock().unwrap().is_listening(tcp.id);
        assert_eq!(listens, phase != Phase::Fresh);
    }
}

/// tcp_shutdown() and inet_shutdown() of Linux: in SYN-SENT the connection is disconnected.
#[test]
fn an_attempt_to_connect_ends_and_another_may_follow() {
    let tcp = Tcp::connecting();
    assert_eq!(shut(&tcp, libc::SHUT_WR), Outcome::Ours(()));
    assert_eq!((tcp.phase(), has_connection(&tcp)), (Phase::Fresh, false));
    assert_eq!(tcp.with(|_, socket| socket.pending_error), libc::ECONNRESET);
}

#[test]
fn each_direction_ends_by_itself() {
    let writing = Tcp::connected();
    assert_eq!(shut(&writing, libc::SHUT_WR), Outcome::Ours(()));
    assert_eq!(writing.tcp_state(), Some(TcpState::FinWait1));
    writing.arrive(Flags::NONE, b"late");
    assert_eq!(writing.receive(9, 0), Outcome::Ours(b"late".to_vec()));

    let reading = Tcp::connected();
    assert_eq!(shut(&reading, libc::SHUT_RD), Outcome::Ours(()));
    assert_eq!(reading.tcp_state(), Some(TcpState::Established));
    assert_eq!(reading.receive(9, 0), Outcome::Ours(Vec::new()));
    assert_eq!(reading.send(b"x", 0), Outcome::Ours(1));

    let after_peer = Tcp::connected_as(TcpState::CloseWait, b"");
    assert_eq!(shut(&after_peer, libc::SHUT_RDWR), Outcome::Ours(()));
    assert_eq!(after_peer.tcp_state(), Some(TcpState::LastAck));
}

#[test]
fn a_connection_that_is_over_is_not_connected() {
    let tcp = Tcp::connected();
    tcp.arrive(Flags::RST, b"");
    assert_eq!(shut(&tcp, libc::SHUT_WR), Outcome::Errno(libc::ENOTCONN));
    let gone = Tcp::in_phase(Phase::Connected);
    assert_eq!(shut(&gone, libc::SHUT_WR), Outcome::Errno(libc::ENOTCONN));
    // TIME-WAIT: both ends have been sent, and acknowledged.
    let both = Tcp::connected();
    shut(&both, libc::SHUT_WR);
    both.acknowledge(1);
    assert_eq!(both.tcp_state(), Some(TcpState::FinWait2));
    both.arrive(Flags::FIN, b"");
    assert_eq!(both.tcp_state(), Some(TcpState::TimeWait));
    assert_eq!(shut(&both, libc::SHUT_RDWR), Outcome::Errno(libc::ENOTCONN));
}

/// RFC 2525 section 2.17: data that nobody has read makes the end a reset.
#[test]
fn a_close_ends_the_connection_in_order_unless_data_was_left_unread() {
    for (unread, lives_on) in [(&b""[..], true), (b"unread", false)] {
        let tcp = Tcp::connected_as(TcpState::Established, unread);
        close(&tcp.stack, tcp.id, tcp.raw());
        assert_eq!(has_connection(&tcp), lives_on);
        let mut state = tcp.stack.shard.lock().unwrap();
        assert!(state.socket(tcp.id).is_none());
        assert_eq!(!state.orphans().is_empty(), lives_on);
    }
    let resetting = Tcp::connected();
    resetting.with_stream(|stream| stream.settings.reset_on_close = true);
    resetting.set(libc::SOL_SOCKET, libc::SO_LINGER, [1, 0, 0, 0, 0, 0, 0, 0]);
    close(&resetting.stack, resetting.id, resetting.raw());
    assert!(!has_connection(&resetting));
}

#[test]
fn a_closed_listener_takes_its_clients_along() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    close(&tcp.stack, tcp.id, tcp.raw());
    let state = tcp.stack.shard.lock().unwrap();
    assert!(state.connections_by_key().is_empty());
}

/// The kernel would give the port to another socket, whose packets the connection would get.
#[test]
fn the_port_is_kept_while_a_connection_of_it_goes_on() {
    let kept = |tcp: &Tcp| {
        let mut state = tcp.stack.shard.lock().unwrap();
        port_kept(&mut state, tcp.id, tcp.raw()).is_some()
    };
    let tcp = Tcp::connected();
    assert!(!kept(&tcp), "the socket of another one holds it");
    tcp.with_stream(|stream| stream.holds_port = true);
    assert!(kept(&tcp));
    tcp.arrive(Flags::RST, b"");
    assert!(!kept(&tcp));
}

#[test]
fn counters_of_a_closed_socket_stay_in_the_sum() {
    let tcp = Tcp::connected();
    tcp.send(b"seven77", 0);
    close(&tcp.stack, tcp.id, tcp.raw());
    assert_eq!(tcp.stack.ended.lock().unwrap().tx_bytes, 7);
}
