//! The IPv6 loopback address `::1` where addresses are IPv4.
//!
//! The library knows IPv4 addresses. TCP connections within the host over `::1` are served all the same, because nothing of them
//! but their names is IPv6: the kernel makes the connection, shared memory has its bytes. Below the calls of the program their
//! two addresses are [`STAND_IN`], with the ports as they are. A library that knows IPv6 does without it.
//!
//! The stand-in may appear only in
//!
//! * the peer that a stream connects to (`convert::peer` makes it of `::1`),
//! * the ends that the kernel tells of a connection or a listener of TCP (`sys::loopback_end`, which makes it and unmakes it), and
//!   what is kept of them: the offer of a pipe, the statistics,
//! * questions to the kernel which socket a connection reaches (`control::netlink::diag`, which unmakes it),
//! * questions to the rules of libvma.conf, of which only those fit that name no address ([`is_stand_in`]),
//! * captured segments, and whatever shows addresses to people ([`Shown`]), which unmake it.
//!
//! It never names a UDP socket, a flow, a route or a connection of the engine. A program that names the address itself gets what the
//! kernel says to it: it is a multicast address, to which nobody can connect, and from which nobody does.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

/// The address 224.0.0.0 "is guaranteed not to be assigned to any group" (RFC 1112 section 4), and a multicast address is neither
/// the source nor the destination of a connection (RFC 9293 section 3.9.2.3). Linux connects to 0.0.0.0/8 and 240.0.0.0/4, so that
/// none of those would do.
pub const STAND_IN: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

/// Does the address stand for `::1`? For addresses of TCP sockets only.
#[inline]
pub fn is_stand_in(address: Ipv4Addr) -> bool {
    address == STAND_IN
}

/// The name of `::1` at this port.
pub fn end(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(STAND_IN, port)
}

/// The IPv6 address that an end stands for, if it does.
pub fn real(address: SocketAddrV4) -> Option<SocketAddrV6> {
    is_stand_in(*address.ip()).then(|| SocketAddrV6::new(Ipv6Addr::LOCALHOST, address.port(), 0, 0))
}

/// An address of a TCP socket as people read it: `[::1]:80` or `127.0.0.1:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown(pub SocketAddrV4);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match real(self.0) {
            Some(real) => real.fmt(f),
            None => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_real_address() {
        assert_eq!(Shown(end(80)).to_string(), "[::1]:80");
        assert_eq!(format!("{:>12}", Shown(end(80))), "    [::1]:80");
        let other = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
        assert_eq!(Shown(other).to_string(), "127.0.0.1:80");
        assert_eq!(real(other), None);
    }
}
