//! The ends of TCP connections and listeners as the kernel has them, `::1` by its stand-in
//! ([`libvma_dev::ipv6_loopback`]). For streams only: whatever else asks for addresses gets IPv4 ones by `sys::shadow`.

use core::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{self, is_stand_in};

use super::shadow;
use super::sockaddr::{Named, SocketName};

/// The end of a connection that this socket is. `None`: it has an IPv6 address that the library does not serve, or none.
pub fn local(fd: c_int) -> Option<SocketAddrV4> {
    end(shadow::local_name(fd)?)
}

/// As [`local`], of any stream: a listener of both families has 0.0.0.0.
pub fn shown(fd: c_int) -> Option<SocketAddrV4> {
    local(fd).or_else(|| shadow::local_address(fd).filter(|four| !is_stand_in(*four.ip())))
}

/// The other end.
pub fn peer(fd: c_int) -> Option<SocketAddrV4> {
    end(shadow::peer_name(fd)?)
}

/// An address that a listener is reached by: of one that takes IPv6 only, whatever its address, `::1`. `None`: it is not reached by
/// an address that the library serves.
pub fn listening(fd: c_int) -> Option<SocketAddrV4> {
    match (shadow::local_address(fd), shadow::local_name(fd)?) {
        (Some(four), _) => Some(four).filter(|four| !is_stand_in(*four.ip())),
        (None, Named::Ipv6(own)) if own.ip().is_unspecified() => {
            Some(ipv6_loopback::end(own.port()))
        }
        (None, own) => end(own),
    }
}

/// The source address of a socket that is about to connect to this peer; 0.0.0.0 if the kernel is to choose. `None`: the library
/// cannot tell whether the socket's address fits the peer.
pub fn source(fd: c_int, peer: SocketAddrV4) -> Option<SocketAddrV4> {
    if !is_stand_in(*peer.ip()) {
        return shadow::local_address(fd);
    }
    match shadow::local_name(fd)? {
        Named::Ipv6(own) if own.ip().is_unspecified() => {
            Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, own.port()))
        }
        own @ Named::Ipv6(_) => end(own),
        Named::Ipv4(_) => None,
    }
}

/// Connects a socket of either family. The errno if that fails.
pub fn connect(fd: c_int, peer: SocketAddrV4) -> Result<(), c_int> {
    match ipv6_loopback::real(peer) {
        Some(peer) => shadow::connect_as(fd, &SocketName::of_ipv6(peer)),
        None => shadow::connect(fd, peer),
    }
}

fn end(name: Named) -> Option<SocketAddrV4> {
    match name {
        // The program has bound a socket to the stand-in.
        Named::Ipv4(four) => Some(four).filter(|four| !is_stand_in(*four.ip())),
        Named::Ipv6(own) => own.ip().is_loopback().then(|| ipv6_loopback::end(own.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use rustix::net::{AddressFamily, SocketType, sockopt};

    fn ipv4(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
    }

    #[test]
    fn the_ends_of_a_connection_are_those_of_its_family() {
        for (at, end) in
            [("[::1]:0", ipv6_loopback::end as fn(u16) -> SocketAddrV4), ("127.0.0.1:0", ipv4)]
        {
            let listener = TcpListener::bind(at).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let there = end(listener.local_addr().unwrap().port());
            assert_eq!(listening(listener.as_raw_fd()), Some(there));
            assert_eq!(super::peer(client.as_raw_fd()), Some(there));
            assert_eq!(local(server.as_raw_fd()), Some(there));
            assert_eq!(super::peer(server.as_raw_fd()), Some(end(peer.port())));
            assert_eq!(super::peer(listener.as_raw_fd()), None);
        }
    }

    #[test]
    fn a_listener_of_ipv6_is_reached_by_its_loopback_address_and_one_of_both_by_ipv4() {
        let both = TcpListener::bind("[::]:0").unwrap();
        let port = both.local_addr().unwrap().port();
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        assert_eq!(listening(both.as_raw_fd()), Some(any));
        let six = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        sockopt::set_ipv6_v6only(&six, true).unwrap();
        rustix::net::bind(&six, &"[::]:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
        let Some(Named::Ipv6(own)) = shadow::local_name(six.as_raw_fd()) else { panic!("IPv6") };
        assert_eq!(listening(six.as_raw_fd()), Some(ipv6_loopback::end(own.port())));
    }

    #[test]
    fn the_kernel_chooses_where_an_unbound_socket_connects_from() {
        let six = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        let (to_six, to_four) = (ipv6_loopback::end(80), ipv4(80));
        let open = Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        assert_eq!(source(six.as_raw_fd(), to_six), open);
        assert_eq!(source(six.as_raw_fd(), to_four), open);
        sockopt::set_ipv6_v6only(&six, true).unwrap();
        assert_eq!(source(six.as_raw_fd(), to_six), open);
        assert_eq!(source(six.as_raw_fd(), to_four), None);
        let own = TcpListener::bind("[::1]:0").unwrap();
        let port = own.local_addr().unwrap().port();
        assert_eq!(source(own.as_raw_fd(), to_six), Some(ipv6_loopback::end(port)));
        assert_eq!(source(own.as_raw_fd(), to_four), None);
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(source(four.as_raw_fd(), to_six), None);
    }

    /// A multicast address, to which a socket may be bound.
    #[test]
    fn a_socket_that_has_the_address_itself_is_not_taken_for_one_of_ipv6() {
        let four = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&four, &ipv6_loopback::end(0)).unwrap();
        assert!(shadow::local_address(four.as_raw_fd()).is_some());
        assert_eq!(listening(four.as_raw_fd()), None);
        assert_eq!(local(four.as_raw_fd()), None);
    }

    #[test]
    fn the_peer_is_connected_to_by_its_real_address() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let six = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        assert_eq!(connect(six.as_raw_fd(), ipv6_loopback::end(port)), Ok(()));
        let (_, from) = listener.accept().unwrap();
        assert!(from.is_ipv6());
        let four = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(connect(four.as_raw_fd(), ipv4(port)), Err(libc::ECONNREFUSED));
    }
}
