use std::net::{Ipv4Addr, SocketAddrV4};

use super::*;
use crate::socket::fixture::{ANY_PORT, Linked, Tcp, Udp, await_input, stack, stack_with_plane};
use crate::socket::{State, close};
use crate::sys::sockaddr::Family;

/// A process that got a socket may use its port as it likes; the kernel chooses among the sockets of the port.
#[test]
fn a_socket_beside_a_passed_one_is_the_kernels() {
    let udp = Udp::of(stack(), Family::Ipv4);
    let beside = |port| is_beside_passed(&udp.stack, udp.raw(), port);
    udp.set_number(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    assert!(!beside(7));
    udp.with(|_, socket| socket.local = Some(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7)));
    note_passed(&udp.stack, udp.id);
    assert!(beside(7) && !beside(8));
    // Without the option it could not be bound, if the other one were still there.
    udp.set_number(libc::SOL_SOCKET, libc::SO_REUSEADDR, 0);
    assert!(!beside(7));
    udp.set_number(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    assert!(!beside(7), "the port is forgotten");
    note_passed(&udp.stack, udp.id);
    assert!(beside(7));
}

#[test]
fn a_passed_socket_is_the_kernels_and_its_port_is_remembered() {
    let udp = Udp::named(stack_with_plane(&[]));
    pass(&udp.stack, udp.id, WhyOs::Passed);
    assert_eq!(udp.state(), State::Os(WhyOs::Passed));
    assert!(udp.stack.passed.lock().unwrap().contains(&udp.address().port()));
}

#[test]
fn a_port_is_shared_with_datagram_sockets_of_the_process_only() {
    let udp = Udp::new();
    let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7);
    let shares = || shares_port(&mut udp.stack.shard.lock().unwrap(), udp.id, 7);
    let other = |local, is_stream: bool| {
        let mut socket = Socket::new(-1, true, &udp.stack.config);
        socket.local = local;
        socket.stream = is_stream.then(|| {
            let tcp = Tcp::new();
            tcp.with(|_, socket| socket.stream.take()).unwrap()
        });
        udp.stack.shard.lock().unwrap().attach(socket, 0)
    };
    udp.with(|_, socket| socket.local = Some(here));
    assert!(!shares(), "it is the socket itself");
    other(None, false);
    other(Some(SocketAddrV4::new(*here.ip(), 8)), false);
    other(Some(here), true);
    assert!(!shares());
    other(Some(here), false);
    assert!(shares());
}

/// A forked child reads on where its parent stopped.
#[test]
fn a_shared_socket_that_is_closed_leaves_its_queue_to_the_kernel() {
    for is_shared in [false, true] {
        let linked = Linked::new();
        linked.send(b"unread");
        linked.server.stack.shard.lock().unwrap().catch_up();
        let copy = rustix::io::dup(&linked.server.shadow).unwrap();
        linked.server.with(|_, socket| socket.forks += u32::from(is_shared));
        close(&linked.server.stack, linked.server.id, linked.server.raw());
        // The client sends once more what its peer gives back.
        linked.client.stack.shard.lock().unwrap().catch_up();
        let mut room = [0; 9];
        let got = rustix::net::recv(&copy, &mut room[..], rustix::net::RecvFlags::DONTWAIT);
        let got = got.map(|(len, _)| len).unwrap_or(0);
        assert_eq!(&room[..got], if is_shared { &b"unread"[..] } else { b"" });
        let passed = linked.server.stack.passed.lock().unwrap();
        assert_eq!(!passed.is_empty(), is_shared);
    }
}

/// The datagrams that another process is about to read must find room, and the program's SO_RCVBUF is to stay.
#[test]
fn the_kernels_receive_buffer_is_as_before_when_all_found_room() {
    let linked = Linked::new();
    let (server, (level, name)) = (&linked.server, (libc::SOL_SOCKET, libc::SO_RCVBUF));
    let room = || crate::sys::shadow::int_option(server.raw(), level, name).unwrap();
    let before = room();
    linked.send(b"unread");
    attach::un_offload(&server.stack, server.id, WhyOs::Passed);
    assert_eq!(room(), before);
}

/// The count tells whether a receive buffer that was enlarged can be as before again.
#[test]
fn a_receive_queue_counts_as_its_datagrams_and_their_overhead() {
    let udp = Udp::new();
    crate::sys::shadow::bind(udp.raw(), ANY_PORT).unwrap();
    assert_eq!(charged(udp.raw()), 0);
    let to = udp.address();
    let sender = std::net::UdpSocket::bind(ANY_PORT).unwrap();
    sender.send_to(&[0; 100], to).unwrap();
    await_input(&udp.shadow);
    let one = charged(udp.raw());
    assert!(one >= 100, "{one}");
    sender.send_to(&[0; 100], to).unwrap();
    // The socket was readable before, so poll() does not tell of this one.
    while charged(udp.raw()) == one {
        std::thread::yield_now();
    }
    assert_eq!(charged(udp.raw()), 2 * one);
}
