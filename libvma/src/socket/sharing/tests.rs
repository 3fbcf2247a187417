use libvma_engine::udp::lookup::{Membership, SourceMode};

use super::*;
use crate::socket::fixture::{Udp, stack, stack_with, stack_with_plane};

const ONE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const TWO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);

fn withholding(addresses: &[Ipv4Addr]) -> Sharing {
    Sharing { withheld: addresses.to_vec(), alone: 0 }
}

fn member_of(group: Ipv4Addr) -> Membership {
    Membership { group, interface: 1, mode: SourceMode::Exclude, sources: Vec::new() }
}

#[test]
fn an_address_is_withheld_at_once_and_steered_again_after_many_reviews() {
    let mut sharing = withholding(&[]);
    assert!(!sharing.review(&[]));
    assert!(sharing.review(&[ONE]), "another socket came");
    let mut sharing = withholding(&[ONE]);
    assert!(!sharing.review(&[ONE]), "nothing is new");
    for review in 1..REVIEWS_ALONE {
        assert!(!sharing.review(&[]), "{review}");
    }
    assert!(sharing.review(&[]));
    assert!(sharing.withheld.is_empty());
}

/// The tables are not read in one piece: one review may miss the other socket.
#[test]
fn one_sight_of_another_socket_begins_the_count_anew() {
    let mut sharing = withholding(&[ONE, TWO]);
    (1..REVIEWS_ALONE).for_each(|_| assert!(!sharing.review(&[ONE])));
    assert!(!sharing.review(&[ONE, TWO]));
    (1..REVIEWS_ALONE).for_each(|_| assert!(!sharing.review(&[ONE])));
    assert!(sharing.review(&[ONE]), "one of the two was left long enough");
}

#[test]
fn only_a_bound_datagram_socket_that_shares_its_port_or_is_in_a_group_is_reviewed() {
    let may = |change: fn(&mut Socket)| {
        let udp = Udp::new();
        udp.with(|_, socket| {
            socket.local = Some(SocketAddrV4::new(ONE, 7));
            change(socket);
            may_share(socket)
        })
    };
    assert!(!may(|_| {}));
    assert!(may(|socket| socket.options.reuse_port = true));
    assert!(may(|socket| socket.options.reuse_address = true));
    assert!(may(|socket| socket.options.memberships.push(member_of(GROUP))));
    assert!(!may(|socket| (socket.options.reuse_port, socket.local) = (true, None)));
    let tcp = crate::socket::fixture::Tcp::new();
    let of_stream = tcp.with(|_, socket| {
        (socket.local, socket.options.reuse_port) = (Some(SocketAddrV4::new(ONE, 7)), true);
        may_share(socket)
    });
    assert!(!of_stream);
}

#[test]
fn what_others_may_receive_goes_by_the_sockets_address_groups_and_peer() {
    let other = Ipv4Addr::new(239, 2, 2, 2);
    let six = ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
    let of = |rules: &str, family, change: &dyn Fn(&mut Socket)| {
        let udp = Udp::of(stack_with(&[("VMA_UDP_3T_RULES", rules)]), family);
        udp.with(|_, socket| {
            socket.local = Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7));
            socket.options.reuse_port = true;
            socket.options.memberships = vec![member_of(GROUP), member_of(other)];
            change(socket);
        });
        addresses(&udp.stack, udp.id, &[ONE, TWO, six]).unwrap().addresses
    };
    let four = |change: &dyn Fn(&mut Socket)| of("0", Family::Ipv4, change);
    assert_eq!(four(&|_| {}), [GROUP, other, ONE, TWO]);
    assert_eq!(four(&|socket| socket.options.reuse_port = false), [GROUP, other]);
    assert_eq!(four(&|socket| socket.local = Some(SocketAddrV4::new(ONE, 7))), [ONE]);
    assert_eq!(four(&|socket| socket.local = Some(SocketAddrV4::new(GROUP, 7))), [GROUP]);
    // The packets of a peer are for the connected socket alone, unless the whole port is steered.
    let connected = |socket: &mut Socket| socket.peer = Some(SocketAddrV4::new(TWO, 9));
    assert_eq!(four(&connected), [GROUP, other]);
    assert_eq!(of("1", Family::Ipv4, &connected), [GROUP, other, ONE, TWO]);
    assert_eq!(of("0", Family::Ipv6, &|_| {}), [GROUP, other, ONE, TWO, six]);
    let only_six = |socket: &mut Socket| socket.takes = Takes::Ipv6;
    assert_eq!(of("0", Family::Ipv6, &only_six), [six]);
}

/// A socket of another program on the same port, which the kernel gives a part of the datagrams.
#[test]
fn another_programs_socket_on_the_port_is_seen_and_an_own_one_is_not() {
    let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
    udp.set_number(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    crate::sys::shadow::bind(udp.raw(), crate::socket::fixture::ANY_PORT).unwrap();
    let address = udp.address();
    udp.with(|_, socket| socket.local = Some(address));
    let seen = || {
        let mut plane = udp.stack.plane.lock().unwrap();
        withheld(&udp.stack, &mut plane.as_mut().unwrap().control, udp.id)
    };
    assert!(seen().is_empty());
    let other = Udp::of(stack(), Family::Ipv4);
    other.set_number(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    crate::sys::shadow::bind(other.raw(), address).unwrap();
    let mut plane = udp.stack.plane.lock().unwrap();
    let control = &mut plane.as_mut().unwrap().control;
    control.udp_table().read(|| own_inodes(&udp.stack));
    assert_eq!(shared(&udp.stack, control, udp.id), [Ipv4Addr::LOCALHOST]);
    // A second one of this process, offloaded or about to be, is none of the others.
    let own = Socket::new(other.raw(), true, &udp.stack.config);
    udp.stack.shard.lock().unwrap().attach(own, 0);
    control.udp_table().read(|| own_inodes(&udp.stack));
    assert!(shared(&udp.stack, control, udp.id).is_empty());
}

#[test]
fn reviews_stop_when_there_is_nothing_to_review_until_a_socket_comes() {
    let mut reviews = Reviews::default();
    assert_eq!(reviews.patience(), Some(0), "the first one is due at once");
    reviews.attend(&stack_with_plane(&[]));
    assert_eq!(reviews.patience(), None);
    reviews.wake();
    assert_eq!(reviews.patience(), Some(0));
    // While one is due later a wake-up changes nothing.
    reviews.next = monotonic_nanos() + 10 * INTERVAL;
    reviews.wake();
    assert!(reviews.patience().is_some_and(|left| left > INTERVAL));
}
