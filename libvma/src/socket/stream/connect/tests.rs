use libvma_engine::wire::tcp::Flags;

use super::super::Stream;
use super::super::shutdown::shutdown;
use super::*;
use crate::socket::fixture::{ANY_PORT, KEY, Tcp, own_loopback, resumption, stack_with};
use crate::socket::{Socket, Stack};

const PEER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);

fn connect_to(tcp: &Tcp, peer: SocketAddrV4) -> Outcome<()> {
    connect(&tcp.stack, tcp.id, peer)
}

/// A socket of a process without links to others and without a control plane.
fn fresh(family: Family) -> Tcp {
    Tcp::of(stack_with(&[("VMA_LOCAL", "0")]), family)
}

#[test]
fn a_connected_or_listening_socket_is_not_connected_again() {
    for phase in [Phase::Connected, Phase::Listening { steered: false }] {
        let tcp = Tcp::in_phase(phase);
        assert_eq!(connect_to(&tcp, PEER), Outcome::Errno(libc::EISCONN), "{phase:?}");
    }
}

#[test]
fn an_address_that_the_engine_cannot_reach_is_the_kernels() {
    let no_port = SocketAddrV4::new(*PEER.ip(), 0);
    assert_eq!(connect_to(&fresh(Family::Ipv4), no_port), Outcome::Os(WhyOs::Arguments));
    let loopback = libvma_dev::ipv6_loopback::end(80);
    assert_eq!(connect_to(&fresh(Family::Ipv6), loopback), Outcome::Os(WhyOs::Ipv6));
    // Without the right to install connections the kernel could never take them back.
    let expected = match repair::is_allowed() {
        true => WhyOs::NoControlPlane,
        false => WhyOs::CannotBeGivenBack,
    };
    assert_eq!(connect_to(&fresh(Family::Ipv4), PEER), Outcome::Os(expected));
}

/// connect(2): EALREADY while it is under way, and its outcome once.
#[test]
fn a_second_call_asks_how_the_attempt_stands() {
    let tcp = Tcp::connecting();
    assert_eq!(connect_to(&tcp, PEER), Outcome::Errno(libc::EALREADY));
    assert_eq!(tcp.phase(), Phase::Connecting);
    // The peer refuses: a reset that acknowledges the SYN.
    let start = {
        let mut state = tcp.stack.shard.lock().unwrap();
        let connection = state.connection(tcp.id).unwrap();
        connection.transplant(crate::shard::clock::now()).snd_nxt.raw()
    };
    let flags = Flags::RST.with(Flags::ACK);
    let reset = libvma_engine::wire::tcp::Header { flags, ack: start, ..tcp.header() };
    tcp.arrive_as(&reset, b"");
    assert_eq!(connect_to(&tcp, PEER), Outcome::Errno(libc::ECONNREFUSED));
    assert_eq!((tcp.phase(), tcp.tcp_state()), (Phase::Fresh, None), "the next one starts anew");

    let done = Tcp::connected();
    done.with_stream(|stream| stream.phase = Phase::Connecting);
    assert_eq!(connect_to(&done, PEER), Outcome::Ours(()));
    assert_eq!(connect_to(&done, PEER), Outcome::Errno(libc::EISCONN));

    let lost = Tcp::in_phase(Phase::Connecting);
    assert_eq!(connect_to(&lost, PEER), Outcome::Errno(libc::ECONNABORTED));
}

#[test]
fn an_attempt_that_began_in_this_call_is_in_progress() {
    let tcp = Tcp::connecting();
    let finish = |nonblocking, started| finish(&tcp.stack, tcp.id, nonblocking, started);
    assert_eq!(finish(true, true), Outcome::Errno(libc::EINPROGRESS));
    assert_eq!(finish(true, false), Outcome::Errno(libc::EALREADY));
    // SO_SNDTIMEO: socket(7).
    tcp.with_stream(|stream| stream.send_timeout = Some(0));
    assert_eq!(finish(false, true), Outcome::Errno(libc::EINPROGRESS));
    assert_eq!(finish(false, false), Outcome::Errno(libc::EALREADY));
    tcp.resume_after_handshake();
    assert_eq!(finish(false, true), Outcome::Ours(()));
}

/// tcp_disconnect() of Linux: sk_err is ECONNRESET, unless the end was agreed upon.
#[test]
fn a_socket_that_is_disconnected_is_as_new_but_for_the_error_to_tell() {
    let disconnect = |tcp: &Tcp| {
        assert!(!disconnect(&tcp.stack, tcp.id), "the kernel has no part in it");
        (tcp.phase(), tcp.with(|_, socket| core::mem::take(&mut socket.pending_error)))
    };
    let connected = Tcp::connected_as(TcpState::Established, b"unread");
    assert_eq!(disconnect(&connected), (Phase::Fresh, libc::ECONNRESET));
    assert_eq!(connected.tcp_state(), None);
    assert_eq!(disconnect(&connected), (Phase::Fresh, 0));

    assert_eq!(disconnect(&Tcp::connecting()), (Phase::Fresh, libc::ECONNRESET));

    let untold = Tcp::connected();
    untold.arrive(Flags::RST, b"");
    assert_eq!(disconnect(&untold), (Phase::Fresh, libc::ECONNRESET));

    let reset = Tcp::connected();
    reset.arrive(Flags::RST, b"");
    reset.receive(1, 0);
    assert_eq!(disconnect(&reset), (Phase::Fresh, 0), "it was told already");

    let last = Tcp::connected_as(TcpState::CloseWait, b"");
    shutdown(&last.stack, last.id, libc::SHUT_WR);
    assert_eq!(disconnect(&last), (Phase::Fresh, 0));

    let over = Tcp::connected();
    shutdown(&over.stack, over.id, libc::SHUT_WR);
    over.acknowledge(1);
    over.arrive(Flags::FIN, b"");
    assert_eq!(disconnect(&over), (Phase::Fresh, 0));
    let state = over.stack.shard.lock().unwrap();
    assert!(state.has_connection(&KEY), "TIME-WAIT goes on");
    drop(state);

    let listener = Tcp::listening();
    assert_eq!(disconnect(&listener), (Phase::Fresh, 0));
    assert!(!listener.stack.shard.lock().unwrap().is_listening(listener.id));
}

#[test]
fn of_two_threads_that_connect_the_slower_one_asks_for_the_others_attempt() {
    for (phase, expected) in [
        (Phase::Fresh, None),
        (Phase::Connecting, Some(None)),
        (Phase::Connected, Some(Some(libc::EISCONN))),
        (Phase::Listening { steered: true }, Some(Some(libc::EISCONN))),
    ] {
        let tcp = Tcp::in_phase(phase);
        let refusal = still_fresh(&mut tcp.stack.shard.lock().unwrap(), tcp.id).err();
        let told = refusal.map(|refusal| match refusal {
            Refusal::UnderWay => None,
            Refusal::Errno(errno) => Some(errno),
            Refusal::Os(why) => panic!("{why}"),
        });
        assert_eq!(told, expected, "{phase:?}");
    }
}

/// The way of a usual client asks the kernel nothing about its socket.
#[test]
fn a_fresh_socket_is_known_to_be_unbound_once() {
    let tcp = Tcp::new();
    let look = || Shadow::of(&tcp.stack, tcp.id).unwrap();
    let first = look();
    assert!(first.is_unbound && !first.may_bind_late);
    assert!(!look().is_unbound, "the attempt may have given it an address");
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    assert_eq!(first.address(PEER), Some(any));
    shadow::bind(tcp.raw(), ANY_PORT).unwrap();
    assert_eq!(look().address(PEER), shadow::local_address(tcp.raw()));
    tcp.set_number(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    assert!(look().may_bind_late);
}

/// ip(7), IP_BIND_ADDRESS_NO_PORT: the kernel would choose the port in its connect(), which never comes.
#[test]
fn a_port_is_reserved_at_once_and_can_be_given_back() {
    let tcp = Tcp::new();
    let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    tcp.set_number(level, name, 1);
    let shadow = Shadow::of(&tcp.stack, tcp.id).unwrap();
    let unbound = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let source = own_loopback();
    let reserved = shadow.reserve(unbound, source).unwrap();
    assert!(reserved.port() != 0 && *reserved.ip() == source);
    assert_eq!(crate::sys::shadow::int_option(tcp.raw(), level, name), Some(0));
    assert_eq!(shadow.reserve(reserved, source), Some(reserved), "it has one");
    assert!(hold_port(reserved).is_none(), "it is taken");
    assert_eq!(release_port(tcp.raw()), Some(()));
    let held = hold_port(reserved);
    assert!(held.is_some() && hold_port(reserved).is_none());
}

/// The kernel gives a port again as soon as its socket is closed, though a connection of the library may live on.
#[test]
fn a_port_whose_old_connection_lives_on_is_not_used_for_the_same_peer() {
    const IP_LOCAL_PORT_RANGE: i32 = 51;
    let tcp = Tcp::new();
    let shadow = Shadow::of(&tcp.stack, tcp.id).unwrap();
    let unbound = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
    let source = own_loopback();
    let choose = |bound: SocketAddrV4, peer| {
        choose_port(&tcp.stack, &shadow, bound, source, peer).map_err(|refusal| match refusal {
            Refusal::Errno(errno) => errno,
            Refusal::Os(_) | Refusal::UnderWay => 0,
        })
    };
    let first = choose(unbound, PEER).unwrap();
    assert_eq!((first.local, first.remote_endpoint()), (source, PEER));
    occupy(&tcp.stack, first);
    assert_eq!(choose(first.local_endpoint(), PEER), Ok(first), "the program has chosen it");
    release_port(tcp.raw()).unwrap();
    // The option is of Linux 6.3: the kernel has no other port to give.
    let port = u32::from(first.local_port);
    let (option, range) = ((libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE), port << 16 | port);
    if !crate::sys::shadow::set_option(tcp.raw(), option.0, option.1, &range) {
        eprintln!("skipped in part: the kernel has no IP_LOCAL_PORT_RANGE");
        return;
    }
    // The first try holds the only port, and a second one finds none.
    assert!(choose(unbound, PEER).is_err());
    let other = SocketAddrV4::new(*PEER.ip(), 81);
    assert_eq!(choose(unbound, other), Ok(FlowKey { remote_port: 81, ..first }));
}

/// Gives these addresses and ports to a connection of the process.
fn occupy(stack: &Stack, key: FlowKey) {
    let mut socket = Socket::new(-1, true, &stack.config);
    let settings = super::super::system::of(stack).settings.clone();
    socket.stream = Some(Box::new(Stream::new(settings.clone(), Family::Ipv4)));
    let mut state = stack.shard.lock().unwrap();
    let id = state.attach(socket, 0);
    let resumption = resumption(key, settings, TcpState::Established, b"");
    state.take_over_connection(id, resumption).unwrap();
    assert!(!state.has_room_for_connection(&key));
}
