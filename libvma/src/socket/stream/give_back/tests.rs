use libvma_engine::wire::tcp::Flags;

use super::super::shutdown::shutdown;
use super::*;
use crate::socket::fixture::{KEY, RECEIVE_START, SEND_START, Tcp, Udp};

/// Looks at what the kernel would get of the connection. `None`: nothing.
fn given<T>(tcp: &Tcp, look: impl FnOnce(&Snapshot<'_>) -> T) -> Option<T> {
    let mut state = tcp.stack.shard.lock().unwrap();
    let mut told = None;
    state.transplant(tcp.id, |cutting| {
        told = snapshot(cutting, look);
        false
    });
    told
}

#[test]
fn the_kernel_gets_a_connection_in_the_state_that_the_engine_has_left() {
    let state = |tcp: &Tcp| given(tcp, |snapshot| snapshot.state);
    assert_eq!(state(&Tcp::connecting()), None, "there is none yet");
    let tcp = Tcp::connected();
    assert_eq!(state(&tcp), Some(repair::State::Established));
    shutdown(&tcp.stack, tcp.id, libc::SHUT_WR);
    assert_eq!(state(&tcp), Some(repair::State::FinWait1));
    tcp.acknowledge(1);
    assert_eq!(state(&tcp), Some(repair::State::FinWait2));
    tcp.arrive(Flags::FIN, b"");
    assert_eq!(state(&tcp), Some(repair::State::TimeWait));
    let waiting = Tcp::connected_as(TcpState::CloseWait, b"");
    assert_eq!(state(&waiting), Some(repair::State::CloseWait));
    shutdown(&waiting.stack, waiting.id, libc::SHUT_WR);
    assert_eq!(state(&waiting), Some(repair::State::LastAck));
    let both = Tcp::connected();
    shutdown(&both.stack, both.id, libc::SHUT_WR);
    both.arrive(Flags::FIN, b"");
    assert_eq!(state(&both), Some(repair::State::Closing));
}

#[test]
fn the_kernel_gets_every_byte_that_is_not_read_or_not_acknowledged() {
    let tcp = Tcp::connected_as(TcpState::Established, b"unread");
    tcp.set_number(libc::IPPROTO_TCP, libc::TCP_CORK, 1);
    tcp.send(&[1; 1460], 0);
    tcp.send(b"held back", 0);
    tcp.arrive(Flags::NONE, b"more");
    let told = given(&tcp, |it| {
        assert_eq!((it.local, it.remote), (KEY.local_endpoint(), KEY.remote_endpoint()));
        assert_eq!(it.unread.concat(), b"unreadmore");
        assert_eq!((it.send_unacknowledged, it.receive_next), (SEND_START, RECEIVE_START + 4));
        (it.unacknowledged.concat().len(), it.unsent.concat().len(), it.failed)
    });
    assert_eq!(told, Some((1460, 9, false)));
}

/// A program that reads the rest of a reset connection gets the bytes, and then the error that it has not seen.
#[test]
fn of_a_reset_connection_the_kernel_gets_what_is_unread_and_the_error() {
    let tcp = Tcp::connected_as(TcpState::Established, b"unread");
    tcp.send(b"in vain", 0);
    tcp.arrive(Flags::RST, b"");
    let look = |it: &Snapshot<'_>| {
        let sent = it.unacknowledged.concat().len() + it.unsent.concat().len();
        (it.state, it.unread.concat(), sent, it.failed)
    };
    let expected = (repair::State::Closed, b"unread".to_vec(), 0, true);
    assert_eq!(given(&tcp, look), Some(expected));
    tcp.receive(9, 0);
    tcp.receive(9, 0);
    let told = given(&tcp, look);
    assert_eq!(told, Some((repair::State::Closed, Vec::new(), 0, false)), "it was told");
}

#[test]
fn segments_to_the_peer_do_not_grow_by_the_kernels_connection() {
    let size = |most: Option<i32>| {
        let tcp = Tcp::connected();
        if let Some(most) = most {
            tcp.set_number(libc::IPPROTO_TCP, libc::TCP_MAXSEG, most);
        }
        given(&tcp, |it| it.segment_size)
    };
    assert_eq!((size(None), size(Some(600))), (Some(1460), Some(600)));
}

/// A shadow that is gone takes nothing.
#[test]
fn a_connection_that_the_kernel_does_not_take_stays_here() {
    let give = |tcp: &Tcp| give_back_to(&tcp.stack, tcp.id, -1, WhyOs::Passed);
    let tcp = Tcp::connected_as(TcpState::Established, b"unread");
    assert!(!give(&tcp));
    assert_eq!(tcp.with(|_, socket| socket.state), State::Offloaded);
    assert_eq!(tcp.receive(9, 0), crate::socket::Outcome::Ours(b"unread".to_vec()));
    assert!(!give(&Tcp::connecting()));
    // The program has had everything that came by a connection which is over.
    let over = Tcp::connected();
    over.arrive(Flags::RST, b"");
    over.receive(9, 0);
    assert!(give(&over));
    let unread = Tcp::connected_as(TcpState::Established, b"unread");
    unread.arrive(Flags::RST, b"");
    assert!(!give(&unread), "bytes would be lost");
}

#[test]
fn a_socket_without_a_connection_is_the_kernels_at_once() {
    for tcp in [Tcp::new(), Tcp::listening()] {
        let is_listener = tcp.stack.shard.lock().unwrap().is_listening(tcp.id);
        assert!(give_back(&tcp.stack, tcp.id, WhyOs::Passed));
        assert_eq!(tcp.with(|_, socket| socket.state), State::Os(WhyOs::Passed));
        assert_eq!(tcp.phase(), Phase::Fresh);
        let mut state = tcp.stack.shard.lock().unwrap();
        assert!(!state.is_listening(tcp.id), "{is_listener}");
        assert!(state.has_departed(tcp.id), "calls that wait go on there");
    }
    let (tcp, udp) = (Tcp::new(), Udp::new());
    assert!(give_back(&udp.stack, udp.id, WhyOs::Passed), "there is nothing to do");
    assert_eq!(udp.state(), State::Undecided);
    assert_eq!((streams(&udp.stack), streams(&tcp.stack)), (Vec::new(), vec![tcp.id]));
}

#[test]
fn connections_are_the_streams_that_were_connected() {
    assert_eq!(connections(&Tcp::connecting().stack), []);
    let tcp = Tcp::connected();
    assert_eq!(connections(&tcp.stack), [tcp.id]);
    end(&tcp.stack, tcp.id);
    let mut state = tcp.stack.shard.lock().unwrap();
    assert!(state.connection(tcp.id).is_none());
    assert_eq!(state.orphans().len(), 1, "its end is sent");
}
