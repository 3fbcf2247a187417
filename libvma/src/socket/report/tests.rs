use super::*;
use crate::socket::fixture::{Linked, Tcp, Udp};

/// Names as many sockets as wanted; nobody asks the shard for them.
fn id(number: u32) -> Name {
    Name::Ours(SocketId::from_bits(1 << 32 | u64::from(number)).unwrap())
}

fn ids(numbers: &[u32]) -> Vec<Name> {
    numbers.iter().map(|number| id(*number)).collect()
}

fn places(report: &Report) -> Vec<Option<Name>> {
    report.places.iter().map(|place| place.id).collect()
}

#[test]
fn a_socket_keeps_its_place_and_a_new_one_gets_the_lowest() {
    let mut report = Report::new(3);
    report.assign(&ids(&[1, 2, 3]));
    assert_eq!(places(&report), [Some(id(1)), Some(id(2)), Some(id(3))]);
    report.assign(&ids(&[3, 1]));
    assert_eq!(places(&report), [Some(id(1)), None, Some(id(3))]);
    report.assign(&ids(&[9, 3, 1, 8]));
    assert_eq!(places(&report), [Some(id(1)), Some(id(9)), Some(id(3))]);
    assert!(!report.by_id.contains_key(&id(8)), "there is no place for it");
    // It gets the first that becomes free.
    report.assign(&ids(&[9, 3, 8]));
    assert_eq!(places(&report), [Some(id(8)), Some(id(9)), Some(id(3))]);
    report.assign(&[]);
    assert!(places(&report).is_empty());
}

/// The report about a socket, and the reason for which it is the kernel's.
fn described(stack: &Stack, id: SocketId) -> (Told, Option<WhyOs>) {
    let mut told = Told::default();
    let why = describe(&mut stack.shard.lock().unwrap(), id, &mut told);
    (told, why)
}

#[test]
fn a_datagram_socket_is_told_as_it_stands() {
    let linked = Linked::new();
    linked.send(b"waits");
    linked.server.stack.shard.lock().unwrap().catch_up();
    let group = std::net::Ipv4Addr::new(239, 1, 1, 1);
    linked.server.with(|_, socket| {
        socket.options.memberships.push(libvma_engine::udp::lookup::Membership {
            group,
            interface: 1,
            mode: libvma_engine::udp::lookup::SourceMode::Exclude,
            sources: Vec::new(),
        });
    });
    let (told, why) = described(&linked.server.stack, linked.server.id);
    assert_eq!((why, told.kind), (None, libc::SOCK_DGRAM as u32));
    assert_eq!((told.ready_packets, told.ready_bytes), (1, 5));
    assert_eq!((told.local, told.local_port), ([127, 0, 0, 1], linked.to().port()));
    assert_eq!((told.peer, told.peer_port), ([0; 4], 0));
    assert_eq!((told.group_count, told.groups[0]), (1, group.to_ipv6_mapped().octets()));
    assert_eq!(told.flags, stats::OFFLOADED | stats::MULTICAST_LOOP);
    // The client's last datagram went by the link.
    let (sender, _) = described(&linked.client.stack, linked.client.id);
    assert_ne!(sender.flags & stats::WITHIN_HOST, 0);
    linked.server.with(|_, socket| {
        (socket.state, socket.nonblocking) = (State::Os(WhyOs::Passed), false);
        socket.options.multicast.is_looped = false;
    });
    let (told, why) = described(&linked.server.stack, linked.server.id);
    assert_eq!((why, told.flags), (Some(WhyOs::Passed), stats::BLOCKING));
}

#[test]
fn a_stream_is_told_with_its_connection() {
    let state = |tcp: &Tcp| described(&tcp.stack, tcp.id).0.tcp_state;
    assert_eq!(state(&Tcp::new()), CLOSE);
    assert_eq!(state(&Tcp::listening()), LISTEN);
    assert_eq!(state(&Tcp::in_phase(Phase::Connecting)), SYN_SENT);
    assert_eq!(state(&Tcp::connecting()), SYN_SENT);
    let tcp = Tcp::connected_as(libvma_engine::tcp::State::CloseWait, b"unread");
    tcp.send(b"four", 0);
    let (told, _) = described(&tcp.stack, tcp.id);
    assert_eq!((told.kind, told.tcp_state), (libc::SOCK_STREAM as u32, CLOSE_WAIT));
    assert_eq!((told.ready_bytes, told.unsent_bytes), (6, 4));
    assert_eq!((told.peer, told.peer_port), ([10, 0, 0, 2], 80));
    assert_eq!((told.tcp.segment_size, told.tcp.send_window), (1460, 50_000));
}

/// The totals go on when counters begin at zero, unless all of them do.
#[test]
fn counters_that_begin_anew_stay_in_the_totals() {
    let linked = Linked::new();
    let (stack, number) = (&linked.client.stack, linked.client.raw());
    let mut report = Report::new(4);
    let mut totals = || {
        let mut snapshot = Snapshot::default();
        let sockets = report.gather(stack, &mut snapshot);
        let of_socket = sockets.first().map(|told| told.counters.tx_packets);
        (of_socket, snapshot.totals.tx_packets, snapshot.sockets_open)
    };
    linked.send(b"x");
    assert_eq!(totals(), (Some(1), 1, 1));
    let mut other = Report::new(4);
    other.set_to_zero(stack, &[number + 1]);
    assert_eq!(totals(), (Some(1), 1, 1), "another one's");
    other.set_to_zero(stack, &[number]);
    assert_eq!(totals(), (Some(0), 1, 1));
    linked.send(b"x");
    assert_eq!(totals(), (Some(1), 2, 1));
    other.set_to_zero(stack, &[]);
    assert_eq!(totals(), (Some(0), 0, 1));
    crate::socket::close(stack, linked.client.id, number);
    assert_eq!(totals(), (None, 0, 0));
}

/// A socket that became the kernel's keeps its place.
#[test]
fn a_socket_of_the_kernel_is_told_in_the_place_that_it_had() {
    let udp = Udp::named(crate::socket::fixture::stack_with_plane(&[]));
    let mut report = Report::new(4);
    let mut snapshot = Snapshot::default();
    let before = report.gather(&udp.stack, &mut snapshot).first().copied().unwrap();
    assert_eq!((before.reason, before.used), ([0; 64], 1));
    crate::socket::attach::un_offload(&udp.stack, udp.id, WhyOs::Arguments);
    let one = kernels::of_socket(&udp.stack, udp.id, WhyOs::NotOurs).unwrap();
    assert!(kernels::of_socket(&udp.stack, udp.id, WhyOs::NotOurs).is_none(), "told once");
    let id = kernels::enter(&udp.stack, one).unwrap();
    udp.stack.shard.lock().unwrap().detach(udp.id);
    kernels::traffic(&udp.stack, id).unwrap().sent(Ok(7));
    let told = report.gather(&udp.stack, &mut snapshot).to_vec();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].inode, before.inode, "it is the same socket");
    assert_eq!(stats::read_text(&told[0].reason), WhyOs::Arguments.to_string());
    assert_eq!((told[0].counters.tx_os_bytes, snapshot.totals.tx_os_bytes), (7, 7));
    // More sockets than places.
    let mut small = Report::new(0);
    assert!(small.gather(&udp.stack, &mut snapshot).is_empty());
    assert_eq!((snapshot.sockets_open, snapshot.sockets_hidden), (1, 1));
}

#[test]
fn an_address_of_ipv6_is_told_beside_the_one_that_stands_for_it() {
    let real: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    let stand_in = ipv6_stand_ins::of(real).unwrap();
    assert_eq!(ipv6_of(stand_in.octets()), real.octets());
    assert_eq!(ipv6_of([10, 0, 0, 1]), [0; 16]);
}
