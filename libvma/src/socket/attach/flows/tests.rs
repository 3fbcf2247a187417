use super::*;
use crate::socket::fixture::{Udp, stack_with_plane};
use crate::socket::{Plane, State};

const LOCAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7000);
const ELSEWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9);

/// A socket that is bound to the loopback address.
fn place_with(udp: &Udp, change: impl FnOnce(&mut crate::socket::Socket)) -> Place {
    udp.with(|_, socket| {
        socket.local = Some(LOCAL);
        change(socket);
    });
    Place::of(&udp.stack, udp.id).unwrap().unwrap()
}

fn with_control<T>(stack: &Stack, look: impl FnOnce(&mut Plane) -> T) -> T {
    look(stack.plane.lock().unwrap().as_mut().unwrap())
}

#[test]
fn a_socket_without_an_address_has_no_place() {
    let udp = Udp::new();
    assert!(Place::of(&udp.stack, udp.id).unwrap().is_none());
    let gone = SocketId::from_bits(udp.id.to_bits() + (1 << 32)).unwrap();
    assert_eq!(Place::of(&udp.stack, gone).err(), Some(WhyOs::NotOurs));
}

#[test]
fn packets_of_a_family_are_taken_as_the_socket_says() {
    let six = ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
    for (family, takes, of_four, of_six) in [
        (Family::Ipv4, Takes::Both, true, false),
        (Family::Ipv6, Takes::Both, true, true),
        (Family::Ipv6, Takes::Ipv4, true, false),
        (Family::Ipv6, Takes::Ipv6, false, true),
    ] {
        let udp = Udp::new();
        let place = place_with(&udp, |socket| (socket.family, socket.takes) = (family, takes));
        let taken = (place.takes(*ELSEWHERE.ip()), place.takes(six));
        assert_eq!(taken, (of_four, of_six), "{family:?} {takes:?}");
        let filter = place.filter(&udp.with(|_, socket| socket.options.clone()));
        assert_eq!((filter.ipv6_only, filter.ipv4_only), (!of_four, !of_six));
        assert_eq!(filter.is_ipv6, family == Family::Ipv6);
    }
}

/// VMA_UDP_3T_RULES: a connected socket is steered its peer's packets only, or all of its port.
#[test]
fn a_connected_socket_is_steered_its_peers_packets_unless_configured_otherwise() {
    let flow = |peer, rules| {
        let udp = Udp::of(stack_with_plane(&[("VMA_UDP_3T_RULES", rules)]), Family::Ipv4);
        place_with(&udp, |socket| socket.peer = peer).flow(&udp.stack, *LOCAL.ip())
    };
    let (protocol, destination, port) = (protocol::UDP, *LOCAL.ip(), LOCAL.port());
    let all = Flow::ThreeTuple { protocol, destination, port };
    let (source, source_port) = (*ELSEWHERE.ip(), ELSEWHERE.port());
    let peers = Flow::FiveTuple { protocol, source, source_port, destination, port };
    assert_eq!((flow(None, "0"), flow(None, "1")), (all, all));
    assert_eq!((flow(Some(ELSEWHERE), "0"), flow(Some(ELSEWHERE), "1")), (peers, all));
}

/// A socket that other processes of the host reach needs no interface.
#[test]
fn a_socket_is_within_the_host_by_its_addresses_and_by_what_others_know() {
    let within = |local_is_on: &str, change: fn(&mut crate::socket::Socket)| {
        let udp = Udp::of(stack_with_plane(&[("VMA_LOCAL", local_is_on)]), Family::Ipv4);
        let place = place_with(&udp, change);
        with_control(&udp.stack, |plane| place.is_within_host(&udp.stack, &plane.control))
    };
    assert!(!within("1", |_| {}), "nobody knows of it");
    assert!(within("1", |socket| socket.named = true));
    assert!(within("1", |socket| socket.starts_locally = true));
    assert!(!within("0", |socket| socket.named = true));
    assert!(within("1", |socket| socket.peer = Some(LOCAL)));
    assert!(!within("1", |socket| (socket.named, socket.peer) = (true, Some(ELSEWHERE))));
    assert!(!within("1", |socket| (socket.named, socket.local) = (true, Some(ELSEWHERE))));
    assert!(within("1", |socket| {
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7000);
        (socket.named, socket.local) = (true, Some(any));
    }));
    assert!(!within("1", |socket| {
        socket.named = true;
        socket.options.bound_device = core::num::NonZeroU32::new(1);
    }));
}

#[test]
fn a_socket_with_something_left_to_the_kernel_is_not_without_packets() {
    assert!(Wanted::withholding(Vec::new()).is_empty());
    assert!(!Wanted::withholding(vec![*LOCAL.ip()]).is_empty());
    let mut all_left = Wanted::withholding(Vec::new());
    let flow = Flow::ThreeTuple { protocol: protocol::UDP, destination: *LOCAL.ip(), port: 7 };
    all_left.flows.push((RingId::nowhere(), flow));
    all_left.leave_to_kernel();
    assert!(all_left.flows.is_empty() && !all_left.is_empty());
}

#[test]
fn an_address_is_steered_unless_it_is_withheld_or_a_rule_leaves_it() {
    let stack = stack_with_plane(&[]);
    assert!(stack.config.rules.add("use os udp_receiver 239.1.1.1:*"));
    let udp = Udp::of(stack, Family::Ipv4);
    let place = place_with(&udp, |_| {});
    let (shared, ruled, free) =
        (Ipv4Addr::new(239, 2, 2, 2), Ipv4Addr::new(239, 1, 1, 1), Ipv4Addr::new(239, 3, 3, 3));
    let mut wanted = Wanted::withholding(vec![shared]);
    let mut may = |to| wanted.may_have(&udp.stack, &place, Moment::Join, to);
    assert!(!may(shared) && !may(ruled) && may(free));
    let mut none_withheld = Wanted::withholding(Vec::new());
    assert!(!none_withheld.may_have(&udp.stack, &place, Moment::Join, ruled));
    assert!(!none_withheld.is_empty(), "the socket still sends");
}

/// The reason of the interface that may come outweighs that of the loopback interface.
#[test]
fn why_there_are_no_flows_is_told_of_the_interface_that_matters() {
    let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
    let place = place_with(&udp, |_| {});
    let mut wanted = Wanted::withholding(Vec::new());
    with_control(&udp.stack, |plane| wanted.add_addresses(&udp.stack, plane, &place));
    use crate::control::NotOffloadable;
    assert_eq!(wanted.why, WhyOs::Interface(NotOffloadable::Loopback));
    assert!(wanted.flows.is_empty());
    // A socket that is bound to a group hears no other, and none of its family's others.
    let group = Ipv4Addr::new(239, 1, 1, 1);
    let place = place_with(&udp, |socket| socket.local = Some(SocketAddrV4::new(group, 7)));
    with_control(&udp.stack, |plane| {
        plane.rings.insert(1, Ok(RingId::nowhere()));
        let groups = [(group, 1), (Ipv4Addr::new(239, 9, 9, 9), 1)];
        wanted.add_groups(&udp.stack, plane, &place, &groups);
    });
    assert_eq!(wanted.flows, [(RingId::nowhere(), place.flow_of_all(group))]);
    assert_eq!(udp.state(), State::Undecided, "nothing is installed here");
}
