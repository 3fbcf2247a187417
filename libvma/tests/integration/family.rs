//! The two families of addresses, for tests that mean both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::dual_stack::{of, with_ipv6};
use crate::harness::{Ends, Library, Namespaces, Offload, PATIENCE, Side};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// Two namespaces with addresses of the family, where each end knows the other's MAC address for good.
    pub fn namespaces(self) -> Namespaces {
        let net = Namespaces::new();
        if self == Family::Ipv6 {
            with_ipv6(&net);
        }
        net
    }

    pub fn ends(self, library: Library) -> Ends {
        Ends { net: self.namespaces(), library }
    }

    /// As [`Family::namespaces`], where the ends find each other.
    pub fn without_neighbours(self) -> Namespaces {
        let net = Namespaces::with_arp();
        if self == Family::Ipv6 {
            // The kernel asks from link-local addresses.
            for (side, near) in [(Side::A, "fe80::a"), (Side::B, "fe80::b")] {
                net.add_ipv6(side, near);
                net.add_ipv6(side, of(side));
            }
        }
        net
    }

    pub fn of(self, side: Side) -> IpAddr {
        match self {
            Family::Ipv4 => side.ip().into(),
            Family::Ipv6 => of(side).into(),
        }
    }

    /// An address of another network.
    pub fn second_of(self, side: Side) -> IpAddr {
        let last = if side == Side::A { 1 } else { 2 };
        self.in_network(1, last)
    }

    /// 10.99.`network`.`last`, or what stands for that.
    pub fn in_network(self, network: u8, last: u8) -> IpAddr {
        let (middle, end) = (network.into(), last.into());
        match self {
            Family::Ipv4 => Ipv4Addr::new(10, 99, network, last).into(),
            Family::Ipv6 => Ipv6Addr::new(0xfd00, 0x99, middle, 0, 0, 0, 0, end).into(),
        }
    }

    pub fn any(self) -> &'static str {
        match self {
            Family::Ipv4 => "0.0.0.0",
            Family::Ipv6 => "::",
        }
    }

    pub fn prefix(self) -> u8 {
        match self {
            Family::Ipv4 => 24,
            Family::Ipv6 => 64,
        }
    }

    pub fn add_address(self, net: &Namespaces, side: Side, address: IpAddr) {
        match self {
            Family::Ipv4 => {
                net.ip(side, &format!("address add {address}/24 dev {}", side.device()));
            }
            Family::Ipv6 => net.add_ipv6(side, address),
        }
    }

    /// `side` knows the MAC address of another one for good.
    pub fn add_neighbour(self, net: &Namespaces, side: Side, address: IpAddr, mac: &str) {
        let device = side.device();
        net.ip(side, &format!("neigh replace {address} lladdr {mac} nud permanent dev {device}"));
    }

    /// The kernel's datagrams of the family.
    pub fn watch(self, net: &Namespaces, side: Side) -> Offload<'_> {
        match self {
            Family::Ipv4 => net.watch(side),
            Family::Ipv6 => net.watch_ipv6(side),
        }
    }

    /// A kernel socket of the test itself.
    pub fn socket(self, net: &Namespaces, side: Side, at: IpAddr) -> UdpSocket {
        let socket = net.within(side, || UdpSocket::bind(SocketAddr::new(at, 0))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}
