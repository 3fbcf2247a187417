//! Socket addresses as the kernel and the program have them, and the IPv4 addresses that they stand for.
//!
//! An AF_INET6 socket names its IPv4 peers by IPv4-mapped addresses (RFC 4291 section 2.5.5.2, ipv6(7)). The
//! library knows IPv4 addresses only; both directions of the conversion are here.

use core::ffi::c_int;
use core::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use libvma_dev::ipv6_stand_ins;

/// How a socket names IPv4 addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    #[default]
    Ipv4,
    /// AF_INET6: IPv4 addresses are mapped.
    Ipv6,
}

impl Family {
    /// Of a socket of this domain (socket(2)); `None` if it is no Internet socket.
    pub fn of_domain(domain: c_int) -> Option<Family> {
        match domain {
            libc::AF_INET => Some(Family::Ipv4),
            libc::AF_INET6 => Some(Family::Ipv6),
            _ => None,
        }
    }

    pub fn domain(self) -> c_int {
        match self {
            Family::Ipv4 => libc::AF_INET,
            Family::Ipv6 => libc::AF_INET6,
        }
    }
}

/// Bytes of a `sockaddr_in6`, the longer one of the two.
pub const LONGEST: usize = size_of::<libc::sockaddr_in6>();
/// Bytes of a `sockaddr_in6` without the scope, which the kernel requires at least (`SIN6_LEN_RFC2133`).
const SHORTEST_V6: usize = 24;
/// The address in a `sockaddr_in6`, behind the flow label.
const V6_ADDRESS: core::ops::Range<usize> = 8..24;

/// An IPv4 address as a socket of a family names it: the bytes of a `sockaddr_in` or `sockaddr_in6`. That of a stand-in
/// ([`ipv6_stand_ins`]) is the IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketName {
    bytes: [u8; LONGEST],
    len: usize,
}

impl SocketName {
    pub fn new(address: SocketAddrV4, family: Family) -> SocketName {
        let ip = *address.ip();
        let mut bytes = [0; LONGEST];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(0, &(family.domain() as libc::sa_family_t).to_ne_bytes());
        put(2, &address.port().to_be_bytes());
        let len = match family {
            Family::Ipv4 => {
                put(4, &ip.octets());
                size_of::<libc::sockaddr_in>()
            }
            // Any address, of both families.
            Family::Ipv6 if ip.is_unspecified() => LONGEST,
            Family::Ipv6 => {
                let real = ipv6_stand_ins::real(ip).unwrap_or_else(|| ip.to_ipv6_mapped());
                put(V6_ADDRESS.start, &real.octets());
                LONGEST
            }
        };
        SocketName { bytes, len }
    }

    /// The bytes of an IPv6 address without flow label and scope.
    pub fn of_ipv6(address: SocketAddrV6) -> SocketName {
        let mut name =
            SocketName::new(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()), Family::Ipv6);
        if let Some(place) = name.bytes.get_mut(V6_ADDRESS) {
            place.copy_from_slice(&address.ip().octets());
        }
        name
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The address that the bytes of a `sockaddr` hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Of a `sockaddr_in`, or IPv4-mapped.
    Ipv4(SocketAddrV4),
    /// An IPv6 address, `::` included. The flow label and the scope are left out.
    Ipv6(SocketAddrV6),
}

impl Named {
    /// `None`: of another family, or shorter than the kernel takes.
    pub fn read(bytes: &[u8]) -> Option<Named> {
        let (family, rest) = bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*port);
        match c_int::from(libc::sa_family_t::from_ne_bytes(*family)) {
            libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
                let octets: [u8; 4] = *rest.first_chunk()?;
                Some(Named::Ipv4(SocketAddrV4::new(Ipv4Addr::from(octets), port)))
            }
            libc::AF_INET6 if bytes.len() >= SHORTEST_V6 => {
                let octets: [u8; 16] = *rest.get(4..)?.first_chunk()?;
                let ip = Ipv6Addr::from(octets);
                Some(match ip.to_ipv4_mapped() {
                    Some(ip) => Named::Ipv4(SocketAddrV4::new(ip, port)),
                    None => Named::Ipv6(SocketAddrV6::new(ip, port, 0, 0)),
                })
            }
            _ => None,
        }
    }

    pub fn port(&self) -> u16 {
        match self {
            Named::Ipv4(address) => address.port(),
            Named::Ipv6(address) => address.port(),
        }
    }

    /// Is it the host's own loopback address?
    pub fn is_loopback(&self) -> bool {
        match self {
            Named::Ipv4(address) => address.ip().is_loopback(),
            Named::Ipv6(address) => address.ip().is_loopback(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 5000);

    /// The bytes as the C library's structure has them.
    fn v6(ip: Ipv6Addr, port: u16) -> Vec<u8> {
        let mut bytes = (libc::AF_INET6 as libc::sa_family_t).to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(ip.octets());
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn an_ipv4_socket_has_its_addresses_as_they_are() {
        let name = SocketName::new(ADDRESS, Family::Ipv4);
        let mut expected = (libc::AF_INET as libc::sa_family_t).to_ne_bytes().to_vec();
        expected.extend([0x13, 0x88, 10, 99, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(name.bytes(), expected);
        assert_eq!(Named::read(name.bytes()), Some(Named::Ipv4(ADDRESS)));
    }

    #[test]
    fn an_ipv6_socket_has_them_mapped() {
        let name = SocketName::new(ADDRESS, Family::Ipv6);
        assert_eq!(name.bytes(), v6("::ffff:10.99.0.1".parse().unwrap(), 5000));
        assert_eq!(Named::read(name.bytes()), Some(Named::Ipv4(ADDRESS)));
    }

    #[test]
    fn any_address_is_any_of_both_families() {
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80);
        let name = SocketName::new(any, Family::Ipv6);
        assert_eq!(name.bytes(), v6(Ipv6Addr::UNSPECIFIED, 80));
        let read = Named::read(name.bytes());
        assert_eq!(read, Some(Named::Ipv6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 80, 0, 0))));
    }

    #[test]
    fn an_ipv6_address_is_none_of_ipv4() {
        for ip in ["2001:db8::1", "::1", "fe80::1", "::10.99.0.1", "64:ff9b::10.99.0.1"] {
            let ip: Ipv6Addr = ip.parse().unwrap();
            let read = Named::read(&v6(ip, 80));
            assert_eq!(read, Some(Named::Ipv6(SocketAddrV6::new(ip, 80, 0, 0))));
        }
    }

    #[test]
    fn lengths_are_the_kernels() {
        let four = SocketName::new(ADDRESS, Family::Ipv4);
        let six = SocketName::new(ADDRESS, Family::Ipv6);
        assert_eq!((four.bytes().len(), six.bytes().len()), (16, 28));
        let is_read = |name: &SocketName, len| Named::read(&name.bytes()[..len]).is_some();
        assert!((0..16).all(|len| !is_read(&four, len)) && is_read(&four, 16));
        // The scope may be missing.
        assert!((0..24).all(|len| !is_read(&six, len)) && (24..=28).all(|len| is_read(&six, len)));
    }

    #[test]
    fn other_families_are_none() {
        for family in [libc::AF_UNSPEC, libc::AF_UNIX] {
            let mut bytes = [0; LONGEST];
            bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
            assert_eq!(Named::read(&bytes), None);
            assert_eq!(Family::of_domain(family), None);
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            assert_eq!(Family::of_domain(family.domain()), Some(family));
        }
    }
}
