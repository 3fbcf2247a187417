//! What cannot be installed leaves a socket that is as good as new.

use libvma_dev::ipv6_stand_ins;

use super::*;

fn reusable(wire: &Wire, socket: TcpStream) {
    let fd = socket.as_raw_fd();
    assert!(socket.take_error().unwrap().is_none());
    assert!(socket.peer_addr().is_err());
    assert_eq!(shadow::int_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR), Some(1));
    assert_eq!(shadow::option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []), Some(0));
    let listener = wire.at_peer(|| TcpListener::bind((wire::THEIRS, 0)).unwrap());
    let to = shadow::to_sockaddr(listener.local_addr().unwrap().to_string().parse().unwrap());
    let at = core::ptr::from_ref(&to).cast();
    // SAFETY: `to` is a sockaddr_in of the size given.
    assert_eq!(unsafe { libc::connect(fd, at, size_of_val(&to) as u32) }, 0);
    let (mut ours, mut theirs) = (socket, impatient(listener.accept().unwrap().0));
    chat(&mut ours, &mut theirs);
    assert!(information(&ours).tcpi_snd_mss > 1400);
}

fn fresh_with_option() -> TcpStream {
    let socket = fresh();
    shadow::set_int_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    socket
}

/// The kernel keeps connections whose interface is gone; so it takes them, too.
#[test]
fn no_route_is_no_failure() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let mut taken = Taken::from(ours, &theirs);
        taken.remote = "192.0.2.1:7".parse().unwrap();
        let socket = fresh_with_option();
        taken.install(socket.as_raw_fd()).unwrap();
        assert_eq!(socket.peer_addr().unwrap().to_string(), "192.0.2.1:7");
    });
}

/// A stand-in is no address of IPv4: the connection would be one between hosts that do not exist.
#[test]
fn a_connection_of_ipv6_is_refused_by_a_socket_of_ipv4() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let mut taken = Taken::from(ours, &theirs);
        let stand_in = |port| {
            let ip = ipv6_stand_ins::of("2001:db8::77".parse().unwrap()).unwrap();
            SocketAddrV4::new(ip, port)
        };
        (taken.local, taken.remote) = (stand_in(7), stand_in(8));
        let socket = fresh_with_option();
        let error = taken.install(socket.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "family", errno: libc::EAFNOSUPPORT });
        reusable(wire, socket);
    });
}

#[test]
fn the_kernel_has_the_connection() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let taken = Taken::from(ours, &theirs);
        let mut ours = taken.installed();
        let socket = fresh_with_option();
        let error = taken.install(socket.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "connect", errno: libc::EADDRNOTAVAIL });
        reusable(wire, socket);
        let mut theirs = theirs;
        chat(&mut ours, &mut theirs);
    });
}

/// Far into it: the connection is there, and goes again without a word. Then it is installed.
#[test]
fn a_late_failure_is_undone() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        let mut taken = Taken::from(ours, &theirs);
        taken.unread = text(0, 10_000);
        taken.window_scale = Some(WindowScale { send: 15, receive: 7 });
        let socket = fresh_with_option();
        let error = taken.install(socket.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "TCP_REPAIR_OPTIONS", errno: libc::EFBIG });
        taken.window_scale = Some(WindowScale { send: 7, receive: 7 });
        taken.install(socket.as_raw_fd()).unwrap();
        let mut ours = socket;
        expect(&mut ours, &text(0, 10_000));
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn bound_to_another_port() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let taken = Taken::from(ours, &theirs);
        let socket = fresh();
        shadow::bind_any(socket.as_raw_fd()).unwrap();
        let error = taken.install(socket.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "bind", errno: libc::EINVAL });
    });
}

#[test]
fn a_connection_of_the_socket_survives() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let taken = Taken::from(ours, &theirs);
        let (mut ours, mut theirs) = wire.opened();
        let error = taken.install(ours.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "connect", errno: libc::EISCONN });
        chat(&mut ours, &mut theirs);
    });
}

#[test]
fn without_the_capability() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let taken = Taken::from(ours, &theirs);
        let socket = fresh();
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        sets.permitted.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = taken.install(socket.as_raw_fd()).unwrap_err();
        assert_eq!(error, Error { call: "TCP_REPAIR", errno: libc::EPERM });
    });
}

/// As seteuid() away from root leaves it.
#[test]
fn a_capability_that_was_laid_down_is_taken_back_for_a_moment() {
    with_wire(|wire| {
        let (ours, theirs) = wire.opened();
        let taken = Taken::from(ours, &theirs);
        let socket = fresh();
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        taken.install(socket.as_raw_fd()).unwrap();
        assert!(rustix::thread::capabilities(None).unwrap().effective.is_empty());
    });
}
