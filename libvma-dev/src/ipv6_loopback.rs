//! The IPv6 loopback address `::1` where addresses are IPv4.
//!
//! The library knows IPv4 addresses. Traffic within the host over `::1` is served all the same, because nothing of it but its names
//! is IPv6: shared memory has the bytes, and the kernel everything else. Below the calls of the program both addresses are
//! [`STAND_IN`], with the ports as they are. A library that knows IPv6 does without it.
//!
//! The stand-in may appear only in
//!
//! * the destination that a socket of AF_INET6 sends or connects to (`convert` makes it of `::1`), and the source of a datagram
//!   (`sys::loopback_end::name` unmakes it),
//! * the ends that the kernel tells of a socket (`sys::loopback_end`, which makes it and unmakes it), and what is kept of them: the
//!   offer of a pipe, what a UDP socket receives, its route, the statistics,
//! * datagrams on a link between two processes: both their addresses are this stand-in, or none (`shard::local`),
//! * questions to the kernel which socket a packet reaches (`control::netlink::diag`, which unmakes it),
//! * questions to the rules of libvma.conf, of which only those fit that name no address ([`is_stand_in`]),
//! * captured packets, and whatever shows addresses to people ([`Shown`]), which unmake it.
//!
//! It never names a flow, a route of an interface or a connection of the engine. A program that names the address itself has a socket, or
//! a call, of the kernel's: it is a broadcast address, to which no stream connects.

use core::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::ipv6_stand_ins;

/// The broadcast address of the loopback network: no packet comes from it, and the library serves none to it. Nothing is lost if a
/// host has made it an address of its own: that is the kernel's then. It counts as a loopback address, as `::1` does, and not as a
/// multicast address.
pub const STAND_IN: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);

/// Does the address stand for `::1`?
#[inline]
pub fn is_stand_in(address: Ipv4Addr) -> bool {
    address == STAND_IN
}

/// The name of `::1` at this port.
pub fn end(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(STAND_IN, port)
}

/// The IPv6 address that an end stands for, if it does: this one, or another one ([`ipv6_stand_ins`]).
pub fn real(address: SocketAddrV4) -> Option<SocketAddrV6> {
    let ip = match is_stand_in(*address.ip()) {
        true => Ipv6Addr::LOCALHOST,
        false => ipv6_stand_ins::real(*address.ip())?,
    };
    Some(SocketAddrV6::new(ip, address.port(), 0, 0))
}

/// The address as the kernel has it.
pub fn named(address: SocketAddrV4) -> SocketAddr {
    real(address).map_or(SocketAddr::V4(address), SocketAddr::V6)
}

/// An address of a socket as people read it: `[::1]:80` or `127.0.0.1:80`.
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
