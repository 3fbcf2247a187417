//! The 32 bits by which the programs of a ring know an IPv6 address, as they know an IPv4 address by its own.
//!
//! A stand-in is the one that the library would choose (`libvma_dev::ipv6_stand_ins`), unless another address of the ring has it. No two
//! addresses share one: by a stand-in the program behind the TAP knows whose an address and port is.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins::choices;

#[derive(Default)]
pub struct StandIns {
    of: HashMap<Ipv6Addr, StandIn>,
    real: HashMap<Ipv4Addr, Ipv6Addr>,
}

struct StandIn {
    name: Ipv4Addr,
    /// Ends of flows with the address.
    users: u32,
}

impl StandIns {
    /// For one more end of a flow; an IPv4 address stands for itself. None: all that the address can have are taken.
    pub fn take(&mut self, address: IpAddr) -> Option<Ipv4Addr> {
        let address = match address {
            IpAddr::V4(address) => return Some(address),
            IpAddr::V6(address) => address,
        };
        if let Some(known) = self.of.get_mut(&address) {
            known.users += 1;
            return Some(known.name);
        }
        let name = choices(address).find(|name| !self.real.contains_key(name))?;
        self.real.insert(name, address);
        self.of.insert(address, StandIn { name, users: 1 });
        Some(name)
    }

    /// For one end less. The address, if that was the last one of IPv6.
    pub fn give_back(&mut self, address: IpAddr) -> Option<Ipv6Addr> {
        let IpAddr::V6(address) = address else { return None };
        let known = self.of.get_mut(&address)?;
        known.users -= 1;
        if known.users > 0 {
            return None;
        }
        self.real.remove(&known.name);
        self.of.remove(&address);
        Some(address)
    }

    /// The name that an address has now; an IPv4 address stands for itself.
    pub fn known(&self, address: IpAddr) -> Option<Ipv4Addr> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(address) => self.of.get(&address).map(|known| known.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one sum, so that they want the same stand-ins.
    fn alike(n: u16) -> IpAddr {
        Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0x100 + n, 0x200 - n).into()
    }

    #[test]
    fn no_two_addresses_share_one() {
        let mut names = StandIns::default();
        let some: Vec<_> = (0..16).map(|n| names.take(alike(n)).unwrap()).collect();
        let distinct: std::collections::HashSet<_> = some.iter().collect();
        assert_eq!(distinct.len(), 16);
        assert_eq!(names.take(alike(16)), None);
        assert_eq!(names.give_back(alike(16)), None);
        assert_eq!(names.give_back(alike(3)).map(IpAddr::V6), Some(alike(3)));
        assert_eq!(names.take(alike(16)), some.get(3).copied());
    }

    #[test]
    fn one_stays_as_long_as_a_flow_has_the_address() {
        let mut names = StandIns::default();
        let name = names.take(alike(0));
        assert_eq!(names.take(alike(0)), name);
        assert_eq!(names.give_back(alike(0)), None);
        assert_eq!(names.known(alike(0)), name);
        assert!(names.give_back(alike(0)).is_some());
        assert_eq!(names.known(alike(0)), None);
        let four = Ipv4Addr::new(10, 0, 0, 1);
        assert_eq!((names.take(four.into()), names.known(four.into())), (Some(four), Some(four)));
        assert_eq!(names.give_back(four.into()), None);
    }
}
