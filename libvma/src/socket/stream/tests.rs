use std::net::SocketAddrV6;

use libvma_engine::tcp::State as TcpState;
use libvma_engine::wire::tcp::Flags;

use super::shutdown::shutdown;
use super::*;
use crate::socket::fixture::{ANY_PORT, KEY, Tcp, stack, stack_with};

fn established(tcp: &Tcp) -> bool {
    is_established(&mut tcp.stack.shard.lock().unwrap(), tcp.id)
}

/// A non-blocking connect() may never be asked how it ended.
#[test]
fn a_connection_counts_as_established_before_connect_has_said_so() {
    let attempt = Tcp::connecting();
    assert!(!established(&attempt));
    for (phase, expected) in [
        (Phase::Fresh, false),
        (Phase::Connecting, true),
        (Phase::Connected, true),
        (Phase::Listening { steered: true }, false),
    ] {
        let tcp = Tcp::connected();
        tcp.with_stream(|stream| stream.phase = phase);
        assert_eq!(established(&tcp), expected, "{phase:?}");
    }
    let failed = Tcp::connected();
    failed.arrive(Flags::RST, b"");
    failed.with_stream(|stream| stream.phase = Phase::Connecting);
    assert!(!established(&failed));
}

/// getpeername(2): of a connection that is closing there is a peer, of one in TIME-WAIT none.
#[test]
fn a_peer_is_named_from_the_handshake_to_the_end_of_both_directions() {
    let peer = |tcp: &Tcp| peer_address(&tcp.stack, tcp.id).map(|told| told.map(|_| ()));
    let none = Some(Err(libc::ENOTCONN));
    assert_eq!(peer(&Tcp::new()), None, "the kernel says so");
    assert_eq!(peer(&Tcp::connecting()), none);
    let tcp = Tcp::connected();
    let told = peer_address(&tcp.stack, tcp.id).unwrap().unwrap();
    assert_eq!(told.bytes(), SocketName::new(KEY.remote_endpoint(), Family::Ipv4).bytes());
    shutdown(&tcp.stack, tcp.id, libc::SHUT_WR);
    assert_eq!(peer(&tcp), Some(Ok(())));
    tcp.acknowledge(1);
    assert_eq!((tcp.tcp_state(), peer(&tcp)), (Some(TcpState::FinWait2), Some(Ok(()))));
    tcp.arrive(Flags::FIN, b"");
    assert_eq!((tcp.tcp_state(), peer(&tcp)), (Some(TcpState::TimeWait), none));
}

/// getsockname(2) after a connect() that failed: Linux keeps the port and forgets the address.
#[test]
fn after_a_failed_attempt_the_port_is_still_to_be_seen() {
    let tcp = Tcp::new();
    let told = |tcp: &Tcp| local_address(&tcp.stack, tcp.id);
    assert!(told(&tcp).is_none(), "the kernel knows");
    shadow::bind(tcp.raw(), ANY_PORT).unwrap();
    assert!(told(&tcp).is_none(), "the program has bound it");
    tcp.with_stream(|stream| stream.bound_by_us = true);
    let port = shadow::local_address(tcp.raw()).unwrap().port();
    let open = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    assert_eq!(told(&tcp).unwrap().bytes(), SocketName::new(open, Family::Ipv4).bytes());
    tcp.with_stream(|stream| stream.phase = Phase::Connected);
    assert!(told(&tcp).is_none());
    let connected = told(&Tcp::connected()).unwrap();
    assert_eq!(connected.bytes(), SocketName::new(KEY.local_endpoint(), Family::Ipv4).bytes());
}

#[test]
fn a_listener_of_ipv6_alone_is_served_only_if_others_of_the_host_find_it() {
    let bound = |address: &str| {
        let tcp = Tcp::of(stack(), Family::Ipv6);
        let name = SocketName::of_ipv6(SocketAddrV6::new(address.parse().unwrap(), 0, 0, 0));
        shadow::bind_as(tcp.raw(), &name).unwrap();
        tcp
    };
    let serves_none = |tcp: &Tcp| serves_no_family(&tcp.stack, tcp.id);
    assert!(!serves_none(&Tcp::listening()), "IPv4");
    assert!(!serves_none(&bound("::")));
    assert!(!serves_none(&bound("::ffff:127.0.0.1")));
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped in part: this host has no ::1");
        return;
    }
    let loopback = bound("::1");
    assert!(serves_none(&loopback));
    let address = libvma_dev::ipv6_loopback::end(1);
    let posted = crate::socket::local::post(
        &loopback.stack,
        libvma_engine::wire::ipv4::protocol::TCP,
        loopback.raw(),
        address,
    );
    loopback.with(|_, socket| socket.posted = posted.map(Box::new));
    assert!(!serves_none(&loopback));
}

#[test]
fn a_new_socket_begins_as_configured() {
    let nodelay = |value| {
        let tcp = Tcp::of(stack_with(&[("VMA_TCP_NODELAY", value)]), Family::Ipv4);
        let kernels = shadow::int_option(tcp.raw(), libc::IPPROTO_TCP, libc::TCP_NODELAY);
        (kernels != Some(0), tcp.with_stream(|stream| stream.settings.nodelay))
    };
    assert_eq!((nodelay("0"), nodelay("1")), ((false, false), (true, true)));
    let tcp = Tcp::new();
    assert!(tcp.with_stream(|stream| stream.unbound));
    before_bind(&tcp.stack, tcp.id);
    assert!(!tcp.with_stream(|stream| stream.unbound), "bind() may give it an address");
}

#[test]
fn the_flags_of_the_file_description_say_whether_calls_wait_and_signals_come() {
    let tcp = Tcp::new();
    let set = |flags: i32| {
        let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
        rustix::fs::fcntl_setfl(&tcp.shadow, flags).unwrap();
        let is_signal_driven = after_flags(&tcp.stack, tcp.id);
        (tcp.with(|_, socket| socket.nonblocking), is_signal_driven)
    };
    assert_eq!(set(libc::O_NONBLOCK), (true, false));
    assert_eq!(set(0), (false, false));
    assert_eq!(set(libc::O_ASYNC | libc::O_NONBLOCK), (true, true));
}
