use libvma_engine::tcp::State as TcpState;

use super::*;
use crate::socket::fixture::{KEY, Tcp};

/// The MTU of the connection's path.
fn mtu(tcp: &Tcp) -> u32 {
    let mut state = tcp.stack.shard.lock().unwrap();
    state.connection(tcp.id).unwrap().path().mtu
}

/// The first byte of what the connection has sent last.
fn sent(tcp: &Tcp, len: u32) -> u32 {
    let mut state = tcp.stack.shard.lock().unwrap();
    let connection = state.connection(tcp.id).unwrap();
    connection.transplant(crate::shard::clock::now()).snd_nxt.raw().wrapping_sub(len)
}

fn notice(tcp: &Tcp, kind: Kind, seq: u32) {
    let notice = Notice { key: KEY, seq: Some(seq), kind };
    on_icmp(&tcp.stack, &notice, seq);
}

/// RFC 5927 section 4.1: a message that quotes nothing which is under way may be a forgery.
#[test]
fn the_path_shrinks_by_a_message_about_a_segment_that_is_under_way() {
    let tcp = Tcp::connected();
    tcp.send(&[1; 1000], 0);
    let before = sent(&tcp, 1000);
    notice(&tcp, Kind::TooBig(1200), before.wrapping_sub(1));
    assert_eq!(mtu(&tcp), 1500);
    notice(&tcp, Kind::TooBig(1200), before);
    assert_eq!(mtu(&tcp), 1200);
}

/// RFC 1122 section 4.2.3.9: during the handshake a hard error ends the attempt, later it is remembered only.
#[test]
fn an_unreachable_peer_ends_an_attempt_and_no_connection() {
    let attempt = Tcp::connecting();
    notice(&attempt, Kind::Unreachable(Error::HostUnreachable), sent(&attempt, 1));
    assert_eq!(attempt.tcp_state(), Some(TcpState::Closed));
    assert_eq!(attempt.receive(1, 0), crate::socket::Outcome::Errno(libc::EHOSTUNREACH));

    let tcp = Tcp::connected();
    tcp.send(b"x", 0);
    notice(&tcp, Kind::Unreachable(Error::HostUnreachable), sent(&tcp, 1));
    assert_eq!(tcp.tcp_state(), Some(TcpState::Established));
    assert_eq!(tcp.receive(1, 0), crate::socket::Outcome::Errno(libc::EAGAIN));
}

#[test]
fn a_message_about_no_connection_of_ours_is_passed_over() {
    let tcp = Tcp::connected();
    let key = FlowKey { local_port: KEY.local_port + 1, ..KEY };
    let notice = Notice { key, seq: Some(0), kind: Kind::TooBig(600) };
    on_icmp(&tcp.stack, &notice, 0);
    assert_eq!(mtu(&tcp), 1500);
}

#[test]
fn a_route_is_asked_for_by_what_the_socket_says_of_it() {
    let tcp = Tcp::connected();
    let none = Wishes::of(&tcp.stack, &KEY);
    assert_eq!(none, Wishes::default());
    tcp.with(|_, socket| {
        let options = &mut socket.options;
        (options.mark, options.tos, options.ipv6_class) = (7, 0x10, 0x20);
        options.bound_device = core::num::NonZeroU32::new(3);
    });
    let wishes = Wishes::of(&tcp.stack, &KEY);
    assert_eq!(wishes, Wishes { device: Some(3), tos: 0x10, mark: 7 });
    let asked = query(&KEY, wishes);
    assert_eq!((asked.src, asked.dst), (Some(KEY.local), KEY.remote));
    assert_eq!((asked.oif, asked.tos, asked.mark), (Some(3), 0x10, 7));
    assert_eq!((asked.sport, asked.dport), (Some(KEY.local_port), Some(KEY.remote_port)));
    // A connection that its program has closed has no wishes any more.
    let gone = FlowKey { local_port: 1, ..KEY };
    assert_eq!(Wishes::of(&tcp.stack, &gone), Wishes::default());
}

/// All of one pair of addresses went by one next hop after a change of routes, whatever hops they had.
#[test]
fn connections_of_one_pair_share_a_way_unless_ports_choose() {
    let of = |key: FlowKey, by_ports| shared(&query(&key, Wishes::default()), by_ports);
    let others = [
        FlowKey { local_port: KEY.local_port + 1, ..KEY },
        // Of a server's connections the port of the peer differs.
        FlowKey { remote_port: KEY.remote_port + 1, ..KEY },
    ];
    for other in others {
        assert_eq!(of(KEY, false), of(other, false));
        assert_ne!(of(KEY, true), of(other, true));
        let ipv6 = |key| {
            let remote = ipv6_stand_ins::of_neighbour("2001:db8::1".parse().unwrap()).unwrap();
            of(FlowKey { remote, ..key }, true)
        };
        assert_eq!(ipv6(KEY), ipv6(other), "another setting is theirs");
    }
    let elsewhere = FlowKey { remote: Ipv4Addr::new(192, 0, 2, 77), ..KEY };
    assert_ne!(of(KEY, false), of(elsewhere, false));
}

/// Routes that are lost may come back at once: the last next hop is better than none until then.
#[test]
fn a_route_that_is_not_found_leaves_the_next_hop_as_it_was() {
    let tcp = Tcp::connected();
    let environment = [("VMA_XDP", "off")];
    let with_plane = crate::socket::fixture::stack_with_plane(&environment);
    let mut plane = with_plane.plane.lock().unwrap();
    refresh(&tcp.stack, plane.as_mut().unwrap());
    assert!(matches!(tcp.send(b"x", 0), crate::socket::Outcome::Ours(1)));
    let mut state = tcp.stack.shard.lock().unwrap();
    assert!(!state.waits_for_hop(&KEY));
    assert_eq!(state.connection(tcp.id).unwrap().unsent(), 0, "it has left");
}
