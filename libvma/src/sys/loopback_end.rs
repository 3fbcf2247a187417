//! The ends of sockets as the kernel has them, `::1` by its stand-in ([`libvma_dev::ipv6_loopback`]), others of IPv6 by theirs
//! ([`libvma_dev::ipv6_stand_ins`]).

use core::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use libvma_dev::ipv6_loopback::{self, is_stand_in};
use libvma_dev::ipv6_stand_ins;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use super::sockaddr::{Family, Named, SocketName};
use super::{Fd, shadow};

/// The addresses of a UDP socket, of IPv6 by their stand-ins, and any of them as 0.0.0.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramEnds {
    /// None: it is not bound.
    pub local: Option<SocketAddrV4>,
    pub peer: Option<SocketAddrV4>,
    pub takes: Takes,
}

/// Of which families a UDP socket takes datagrams, as far as its address says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    #[default]
    Both,
    /// It is of AF_INET, or bound to a mapped address.
    Ipv4,
    /// It is bound to an IPv6 address, or to `::` with IPV6_V6ONLY.
    Ipv6,
}

/// None: one of the socket's addresses is one that the library does not serve.
pub fn of_datagrams(fd: c_int) -> Option<DatagramEnds> {
    let peer = match shadow::peer_name(fd) {
        Some(peer) => Some(end(peer)?),
        None => None,
    };
    let name = shadow::local_name(fd);
    let (local, takes) = match name {
        None => (None, Takes::Both),
        Some(own @ Named::Ipv4(_)) => (Some(end(own)?), Takes::Ipv4),
        Some(Named::Ipv6(any)) if any.ip().is_unspecified() => {
            let only = shadow::int_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != Some(0);
            let takes = if only { Takes::Ipv6 } else { Takes::Both };
            (Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, any.port())), takes)
        }
        Some(own @ Named::Ipv6(_)) => (Some(end(own)?), Takes::Ipv6),
    };
    let local = local.filter(|local| local.port() != 0);
    Some(DatagramEnds { local, peer, takes })
}

/// The address of a UDP socket as people are shown it.
pub fn shown_of_datagrams(fd: c_int) -> Option<SocketAddrV4> {
    let ipv4 = || shadow::local_address(fd).filter(|four| !is_stand_in(*four.ip()));
    of_datagrams(fd).map_or_else(ipv4, |ends| ends.local)
}

/// Does a socket of IPv6 send to `::1`, and from there, if it has no address of its own? Not where IPv6 is off, for example.
pub fn is_reachable() -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None);
    // Any port: nothing is sent.
    let to = SocketName::of_ipv6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 0, 0));
    socket.and_then(Fd::adopt_briefly).is_ok_and(|socket| {
        shadow::connect_as(socket.raw(), &to).is_ok()
            && local(socket.raw()).is_some_and(|own| is_stand_in(*own.ip()))
    })
}

/// The name of an address as a socket of this family has it.
#[inline]
pub fn name(address: SocketAddrV4, family: Family) -> SocketName {
    match ipv6_loopback::real(address) {
        Some(real) if family == Family::Ipv6 => SocketName::of_ipv6(real),
        _ => SocketName::new(address, family),
    }
}

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

/// As [`peer`], if its address has been met before, as the host's own ones have.
pub fn known_peer(fd: c_int) -> Option<SocketAddrV4> {
    let name = shadow::peer_name(fd)?;
    let is_known = match name {
        Named::Ipv6(it) => it.ip().is_loopback() || ipv6_stand_ins::known(*it.ip()).is_some(),
        Named::Ipv4(_) => true,
    };
    if is_known { end(name) } else { None }
}

/// The address of a listener: 0.0.0.0 is any of both families, [`ipv6_stand_ins::ANY`] any of IPv6. `None`: it is not reached by an
/// address that the library serves.
pub fn listening(fd: c_int) -> Option<SocketAddrV4> {
    match (shadow::local_address(fd), shadow::local_name(fd)?) {
        (Some(four), _) => Some(four).filter(|four| !is_stand_in(*four.ip())),
        (None, Named::Ipv6(own)) if own.ip().is_unspecified() => {
            Some(SocketAddrV4::new(ipv6_stand_ins::ANY, own.port()))
        }
        (None, own) => end(own),
    }
}

/// The source address of a socket that is about to connect to this peer; 0.0.0.0 if the kernel is to choose. `None`: the library
/// cannot tell whether the socket's address fits the peer.
pub fn source(fd: c_int, peer: SocketAddrV4) -> Option<SocketAddrV4> {
    let is_ipv6 = ipv6_stand_ins::is_one(*peer.ip());
    if !is_stand_in(*peer.ip()) && !is_ipv6 {
        return shadow::local_address(fd).filter(|own| !ipv6_stand_ins::is_one(*own.ip()));
    }
    match shadow::local_name(fd)? {
        Named::Ipv6(own) if own.ip().is_unspecified() => {
            Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, own.port()))
        }
        Named::Ipv6(_) if is_ipv6 => shadow::local_address(fd),
        own @ Named::Ipv6(_) => end(own).filter(|own| is_stand_in(*own.ip())),
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
        Named::Ipv4(four) => Some(four)
            .filter(|four| !is_stand_in(*four.ip()) && !ipv6_stand_ins::is_one(*four.ip())),
        Named::Ipv6(own) if own.ip().is_loopback() => Some(ipv6_loopback::end(own.port())),
        Named::Ipv6(own) => Some(SocketAddrV4::new(ipv6_stand_ins::of(*own.ip())?, own.port())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use std::net::UdpSocket;

    use rustix::net::sockopt;

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
        let any = SocketAddrV4::new(ipv6_stand_ins::ANY, own.port());
        assert_eq!(listening(six.as_raw_fd()), Some(any));
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

    #[test]
    fn a_udp_socket_has_the_addresses_of_its_family() {
        let ends = |socket: &UdpSocket| of_datagrams(socket.as_raw_fd());
        let at = |at: &str| UdpSocket::bind(at).unwrap();
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        let any = |port| Some(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
        let six = at("[::1]:0");
        let expected = DatagramEnds {
            local: Some(ipv6_loopback::end(port(&six))),
            peer: None,
            takes: Takes::Ipv6,
        };
        assert_eq!(ends(&six), Some(expected));
        let both = at("[::]:0");
        let expected = DatagramEnds { local: any(port(&both)), peer: None, takes: Takes::Both };
        assert_eq!(ends(&both), Some(expected));
        both.connect(("::1", port(&six))).unwrap();
        let (local, peer) = (ipv6_loopback::end(port(&both)), ipv6_loopback::end(port(&six)));
        let expected = DatagramEnds { local: Some(local), peer: Some(peer), takes: Takes::Ipv6 };
        assert_eq!(ends(&both), Some(expected));
        let unbound = net::socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
        assert_eq!(of_datagrams(unbound.as_raw_fd()).unwrap().local, None);
        sockopt::set_ipv6_v6only(&unbound, true).unwrap();
        net::bind(&unbound, &"[::]:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
        let only = of_datagrams(unbound.as_raw_fd()).unwrap();
        assert!(
            only.takes == Takes::Ipv6 && only.local.is_some_and(|own| own.ip().is_unspecified())
        );
        // An address of IPv4 that stands for another one here.
        assert_eq!(ends(&at("127.255.255.255:0")), None);
    }

    #[test]
    fn a_socket_of_ipv6_names_the_stand_in_by_its_real_address() {
        let name = |address| super::name(address, Family::Ipv6);
        let real = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 0, 0);
        assert_eq!(name(ipv6_loopback::end(80)), SocketName::of_ipv6(real));
        assert_eq!(name(ipv4(80)), SocketName::new(ipv4(80), Family::Ipv6));
        assert!(is_reachable());
    }

    /// A broadcast address, to which a socket may be bound.
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
