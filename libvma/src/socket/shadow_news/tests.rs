use std::os::unix::net::UnixStream;

use super::*;
use crate::socket::attach::watch_shadow;
use crate::socket::fixture::{ANY_PORT, Udp, await_input, own_loopback, stack};
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

/// A bound socket whose shadow the instance watches.
fn watched() -> Udp {
    let mut stack = stack();
    stack.shadows = Shadows::open();
    let udp = Udp::of(stack, Family::Ipv4);
    shadow::bind(udp.raw(), ANY_PORT).unwrap();
    watch_shadow(&udp.stack, udp.id, udp.raw());
    assert!(udp.with(|_, socket| socket.is_shadow_watched));
    udp
}

#[test]
fn a_datagram_that_came_by_the_kernel_is_told_once() {
    let udp = watched();
    let sender = std::net::UdpSocket::bind(ANY_PORT).unwrap();
    let told = || {
        hear(&udp.stack, Kind::Datagrams);
        udp.with(|_, socket| socket.order.take_readable())
    };
    assert!(!told());
    sender.send_to(b"x", udp.address()).unwrap();
    await_input(&udp.shadow);
    assert!(told());
    assert!(!told(), "an edge is reported once");
    assert!(!udp.with(|_, socket| socket.order.may_have_error()));
    assert!(!hear_of_pipes(&udp.stack), "nobody has a connection with a pipe");
}

#[test]
fn an_error_of_the_kernels_socket_is_told_as_one() {
    let udp = watched();
    let closed = std::net::UdpSocket::bind((own_loopback(), 0)).unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    rustix::net::connect(&udp.shadow, &address).unwrap();
    rustix::net::send(&udp.shadow, b"x", rustix::net::SendFlags::empty()).unwrap();
    await_input(&udp.shadow);
    hear(&udp.stack, Kind::Datagrams);
    assert!(udp.with(|_, socket| socket.order.take_error()), "the port is closed (ICMP)");
}

#[test]
fn the_end_of_a_granted_ring_is_no_sockets_news() {
    let udp = watched();
    let (ring, daemon) = UnixStream::pair().unwrap();
    udp.stack.shadows.watch_ring(&ring).unwrap();
    hear(&udp.stack, Kind::Streams);
    assert!(!udp.stack.attaching.take_loss());
    drop(daemon);
    hear(&udp.stack, Kind::Streams);
    assert!(udp.stack.attaching.take_loss() && udp.stack.attaching.was_loss());
    assert!(!udp.stack.attaching.take_loss(), "somebody looks");
    assert!(!udp.with(|_, socket| socket.order.may_be_readable()));
}

#[test]
fn all_news_is_heard_at_once_however_much_there_is() {
    let mut stack = stack();
    stack.shadows = Shadows::open();
    let udp = Udp::of(stack, Family::Ipv4);
    let sender = std::net::UdpSocket::bind(ANY_PORT).unwrap();
    let more: Vec<_> = (0..2 * PORTION + 1)
        .map(|_| {
            let socket = std::net::UdpSocket::bind((own_loopback(), 0)).unwrap();
            let raw = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let own = crate::socket::Socket::new(raw, true, &udp.stack.config);
            let id = udp.stack.shard.lock().unwrap().attach(own, 0);
            watch_shadow(&udp.stack, id, raw);
            sender.send_to(b"x", socket.local_addr().unwrap()).unwrap();
            await_input(&socket);
            (socket, id)
        })
        .collect();
    hear(&udp.stack, Kind::Datagrams);
    for (_, id) in &more {
        let mut state = udp.stack.shard.lock().unwrap();
        assert!(state.socket(*id).unwrap().1.order.may_be_readable());
    }
}
