//! The control plane: what the kernel says about interfaces, addresses, routes and neighbours, and
//! which interfaces may be offloaded.
//!
//! Nothing is computed here that the kernel computes: routes are its answers, neighbours its
//! entries, resolution its work. The tables are kept current by [`Control::apply`], which the
//! internal thread feeds from the monitor.

pub mod icmp;
pub mod netlink;
pub mod rendezvous;
mod route_cache;
mod udp_table;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::Shown;
use libvma_dev::ipv6_stand_ins::{self, alike_everywhere};

use crate::config::{Config, XdpInterfaces};
use crate::device::Interface;
use crate::log::log_line;
use netlink::{Address, Change, Error, Link, Monitor, Neighbour, Netlink, Route, RouteQuery};
use route_cache::RouteCache;
use udp_table::UdpTable;

pub struct Control {
    netlink: Netlink,
    allowed: XdpInterfaces,
    links: HashMap<u32, Link>,
    addresses: Vec<Address>,
    neighbours: HashMap<(u32, Ipv4Addr), Neighbour>,
    udp_table: UdpTable,
    routes: RouteCache,
}

/// What a change means for those who hold answers of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Cached next hops are void.
    pub next_hops: bool,
    /// Local addresses or interfaces changed: flows must be reconsidered.
    pub flows: bool,
    /// A neighbour, by its interface and address, does not answer.
    pub unanswered: Option<(u32, Ipv4Addr)>,
}

/// Why an interface is left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOffloadable {
    NoInterface,
    Loopback,
    Down,
    NotEthernet,
    /// Part of a bridge or bond: its packets belong to that.
    Enslaved,
    /// Neither veth nor tap, and the administrator did not allow it (`VMA_XDP`).
    NotAllowed,
    /// `VMA_XDP` does not name it.
    NotListed,
}

impl NotOffloadable {
    /// May change without the administrator saying so to us: a cable, a boot that goes on.
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            NotOffloadable::Down | NotOffloadable::Enslaved | NotOffloadable::NoInterface
        )
    }

    pub fn text(self) -> &'static str {
        match self {
            NotOffloadable::NoInterface => "there is no such interface",
            NotOffloadable::Loopback => "its interface is the loopback",
            NotOffloadable::Down => "its interface is down",
            NotOffloadable::NotEthernet => "its interface is not Ethernet",
            NotOffloadable::Enslaved => "its interface belongs to a bridge or bond",
            NotOffloadable::NotAllowed => {
                "its interface is neither veth nor tap; VMA_XDP=all or VMA_XDP=<names> allows attaching to it"
            }
            NotOffloadable::NotListed => "VMA_XDP does not name its interface",
        }
    }
}

impl Control {
    /// Subscribes to changes, then reads the tables: nothing is missed in between.
    pub fn open(config: &Config) -> Result<(Control, Monitor), Error> {
        let monitor = Monitor::open()?;
        let mut control = Control {
            netlink: Netlink::open()?,
            allowed: config.xdp.clone(),
            links: HashMap::new(),
            addresses: Vec::new(),
            neighbours: HashMap::new(),
            udp_table: UdpTable::default(),
            routes: RouteCache::new(),
        };
        control.reload()?;
        Ok((control, monitor))
    }

    /// Reads every table anew.
    pub fn reload(&mut self) -> Result<(), Error> {
        self.links = self.netlink.links()?.into_iter().map(|link| (link.index, link)).collect();
        self.addresses = self.netlink.addresses()?;
        let key = |neighbour: Neighbour| ((neighbour.ifindex, neighbour.addr), neighbour);
        self.neighbours = self.netlink.neighbours()?.into_iter().map(key).collect();
        Ok(())
    }

    /// Takes a change over into the tables.
    pub fn apply(&mut self, change: Change) -> Effect {
        let both = Effect { next_hops: true, flows: true, unanswered: None };
        let hops = Effect { next_hops: true, ..Effect::default() };
        match change {
            Change::Link(link) => {
                let same = self.links.get(&link.index) == Some(&link);
                self.links.insert(link.index, link);
                if same { Effect::default() } else { both }
            }
            Change::LinkGone(index) => {
                self.links.remove(&index);
                self.addresses.retain(|address| address.ifindex != index);
                self.neighbours.retain(|(interface, _), _| *interface != index);
                both
            }
            // The kernel tells of it again whenever a router does.
            Change::AddressAdded(address) if self.addresses.contains(&address) => Effect::default(),
            Change::AddressAdded(address) => {
                self.addresses
                    .retain(|old| (old.ifindex, old.addr) != (address.ifindex, address.addr));
                self.addresses.push(address);
                both
            }
            Change::AddressGone(address) => {
                self.addresses
                    .retain(|old| (old.ifindex, old.addr) != (address.ifindex, address.addr));
                both
            }
            Change::RouteChanged => hops,
            Change::Neighbour(new) => {
                let old = self.neighbours.insert((new.ifindex, new.addr), new);
                let usable = |n: &Neighbour| n.mac.filter(|_| n.state.is_valid());
                let changed = old.as_ref().and_then(usable) != usable(&new);
                if old.as_ref().and_then(usable).is_some() && new.state == netlink::NudState::Stale
                {
                    // Only our packets use it, which the kernel does not see: ask it to confirm.
                    self.probe(new.ifindex, new.addr);
                }
                let failed = new.state == netlink::NudState::Failed;
                let unanswered = failed.then_some((new.ifindex, new.addr));
                Effect { next_hops: changed, unanswered, ..Effect::default() }
            }
            Change::NeighbourGone { ifindex, addr } => {
                self.neighbours.remove(&(ifindex, addr));
                hops
            }
            Change::Resync => {
                if let Err(error) = self.reload() {
                    log_line!(Warning, "netlink messages were lost and {error}");
                }
                both
            }
        }
    }

    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// The interface that has this address.
    pub fn interface_of(&self, address: Ipv4Addr) -> Option<u32> {
        self.addresses.iter().find(|known| known.addr == address).map(|known| known.ifindex)
    }

    /// Is it an address of this host that other processes of it mean by it, too?
    pub fn is_known_alike(&self, address: Ipv4Addr) -> bool {
        let hosts: Vec<_> = self.addresses.iter().map(|known| known.addr).collect();
        hosts.contains(&address) && alike_everywhere(&hosts).contains(&address)
    }

    /// All local addresses with their interfaces.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Interfaces that have such an address, each once.
    pub fn addressed_interfaces(&self, such: impl Fn(Ipv4Addr) -> bool) -> Vec<u32> {
        let addresses = self.addresses.iter().filter(|address| such(address.addr));
        let mut indexes: Vec<u32> = addresses.map(|address| address.ifindex).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }

    /// The host's own addresses with their interfaces: no packet from the network may claim to come
    /// from there. (Directed broadcast addresses the kernel lets pass.)
    pub fn own_addresses(&self) -> Vec<(Ipv4Addr, u32)> {
        self.addresses.iter().map(|known| (known.addr, known.ifindex)).collect()
    }

    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address.is_broadcast()
            || self.addresses.iter().any(|known| known.broadcast == Some(address))
    }

    /// May this interface be offloaded, and what is it for a device?
    pub fn offloadable(&self, index: u32) -> Result<Interface, NotOffloadable> {
        let link = self.links.get(&index).ok_or(NotOffloadable::NoInterface)?;
        if link.loopback {
            return Err(NotOffloadable::Loopback);
        }
        let mac = link.mac.filter(|_| link.ether).ok_or(NotOffloadable::NotEthernet)?;
        if !link.up {
            return Err(NotOffloadable::Down);
        }
        if link.master.is_some() {
            return Err(NotOffloadable::Enslaved);
        }
        let is_usual = matches!(link.kind.as_deref(), Some("veth" | "tun"));
        match &self.allowed {
            XdpInterfaces::Off => return Err(NotOffloadable::NotListed),
            XdpInterfaces::Auto if !is_usual => return Err(NotOffloadable::NotAllowed),
            XdpInterfaces::Named(names) if !names.contains(&link.name) => {
                return Err(NotOffloadable::NotListed);
            }
            XdpInterfaces::Auto | XdpInterfaces::All | XdpInterfaces::Named(_) => {}
        }
        let mut addresses = self
            .addresses
            .iter()
            .filter(|address| address.ifindex == index && !ipv6_stand_ins::is_one(address.addr));
        Ok(Interface {
            index,
            name: link.name.clone(),
            mac,
            address: addresses.next().map_or(Ipv4Addr::UNSPECIFIED, |first| first.addr),
            mtu: link.mtu,
            rx_queues: link.rx_queues,
            is_virtual: link.is_virtual(),
            is_veth: link.kind.as_deref() == Some("veth"),
            has_local_peers: link.has_local_peers(),
        })
    }

    /// What the kernel would do with a packet.
    pub fn route(&mut self, query: &RouteQuery) -> Result<Route, Error> {
        self.netlink.route(query)
    }

    /// The same for one of many connections.
    pub fn route_of_connection(&mut self, query: &RouteQuery) -> Result<Route, Error> {
        self.routes.route(&mut self.netlink, query)
    }

    /// Whether the ports of a connection of IPv4 choose among next hops.
    pub fn ports_choose_hops(&mut self) -> bool {
        self.routes.ports_choose_hops(&mut self.netlink)
    }

    /// The link-layer address of a neighbour, if the kernel has it; else the kernel is asked to
    /// resolve it, and the change arrives through the monitor.
    pub fn neighbour(&mut self, interface: u32, address: Ipv4Addr) -> Option<[u8; 6]> {
        let mac = self.neighbour_in_use(interface, address);
        if mac.is_none() {
            self.probe(interface, address);
        }
        mac
    }

    /// As [`Control::neighbour`], for a caller whose packet the kernel sends if it has no address, and so resolves it. (A question from
    /// here, of IPv6, has no packet's source address: where the interface has no link-local one either, only the kernel's next
    /// question, a second later, is answered.)
    pub fn neighbour_in_use(&mut self, interface: u32, address: Ipv4Addr) -> Option<[u8; 6]> {
        let usable = |neighbour: &Neighbour| neighbour.mac.filter(|_| neighbour.state.is_valid());
        let known = self.neighbours.get(&(interface, address)).copied();
        let known = match known.filter(|known| usable(known).is_some()) {
            Some(known) => Some(known),
            // The monitor's message may still be under way. The table is left to that message: whoever
            // asked before is told only if the message changes the table.
            None => self.netlink.neighbour(interface, address).ok().flatten(),
        };
        let mac = known.as_ref().and_then(usable);
        let is_stale = known.is_some_and(|known| known.state == netlink::NudState::Stale);
        if is_stale {
            // A stale address is used meanwhile, but only the kernel can confirm it.
            self.probe(interface, address);
        }
        if let Some(entry) = self.neighbours.get_mut(&(interface, address))
            && entry.state == netlink::NudState::Stale
        {
            // The kernel does not announce this step; the address it has is the same.
            entry.state = netlink::NudState::Delay;
        }
        mac
    }

    /// Can the kernel ask for a neighbour of IPv6 without a packet for it? The question has the packet's source address, or a link-local
    /// one of the interface.
    #[cold]
    pub fn asks_without_packet(interface: u32) -> bool {
        let Ok(text) = crate::sys::fd::read_file("/proc/thread-self/net/if_inet6") else {
            return true;
        };
        has_link_local(&String::from_utf8_lossy(&text), interface)
    }

    /// Has the kernel given a neighbour up? An attempt that began meanwhile is another one.
    pub fn has_given_up(&mut self, interface: u32, address: Ipv4Addr) -> bool {
        let Ok(known) = self.netlink.neighbour(interface, address) else { return true };
        known.is_none_or(|known| {
            !known.state.is_valid() && known.state != netlink::NudState::Incomplete
        })
    }

    fn probe(&mut self, interface: u32, address: Ipv4Addr) {
        if let Err(error) = self.netlink.probe_neighbour(interface, address) {
            let shown = Shown(SocketAddrV4::new(address, 0));
            log_line!(Debug, "neighbour {shown}: {error}");
        }
    }

    /// The UDP sockets of the host, as they were when the table was read.
    pub fn udp_table(&mut self) -> &mut UdpTable {
        &mut self.udp_table
    }

    /// How many sockets of the host are members of a group on an interface (/proc/net/igmp, igmp6).
    /// None if that cannot be told.
    pub fn members_on_host(&self, group: Ipv4Addr, interface: u32) -> Option<u32> {
        let read = |path| crate::sys::fd::read_file(path).ok();
        match ipv6_stand_ins::real(group) {
            None => {
                let text = read("/proc/thread-self/net/igmp")?;
                igmp_users(&String::from_utf8_lossy(&text), group, interface)
            }
            Some(group) => {
                let text = read("/proc/thread-self/net/igmp6")?;
                mld_users(&String::from_utf8_lossy(&text), group, interface)
            }
        }
    }
}

/// Reads /proc/net/igmp: a line per interface that starts with its index, then indented lines with
/// the group (hexadecimal, in memory order) and its number of users.
fn igmp_users(text: &str, group: Ipv4Addr, interface: u32) -> Option<u32> {
    let wanted = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let mut current = None;
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        if !line.starts_with(char::is_whitespace) {
            current = first.parse::<u32>().ok();
        } else if current == Some(interface) && first.eq_ignore_ascii_case(&wanted) {
            return words.next()?.parse().ok();
        }
    }
    Some(0)
}

/// Reads /proc/net/if_inet6: lines of an address, the interface's index, prefix, scope and flags (hexadecimal), and its name.
fn has_link_local(text: &str, interface: u32) -> bool {
    const TENTATIVE: u32 = 0x40;
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        let is_near = words.next().is_some_and(|address| address.starts_with("fe8"));
        let number = |word: Option<&str>| u32::from_str_radix(word?, 16).ok();
        let is_on = number(words.next()) == Some(interface);
        is_near && is_on && number(words.nth(2)).is_some_and(|flags| flags & TENTATIVE == 0)
    })
}

/// Reads /proc/net/igmp6: lines of the interface's index and name, the group (hexadecimal) and its number of users.
fn mld_users(text: &str, group: Ipv6Addr, interface: u32) -> Option<u32> {
    let wanted = format!("{:032x}", u128::from(group));
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let index = words.next()?.parse::<u32>().ok();
        if index == Some(interface) && words.nth(1)?.eq_ignore_ascii_case(&wanted) {
            return words.next()?.parse().ok();
        }
    }
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_counts_on_its_interface_once_it_is_the_hosts() {
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fd000099000000000000000000000001 02 40 00 80   veth-a\n\
                    fe80000000000000000000000000000b 0b 40 20 80     eth1\n\
                    fe80000000000000000000000000000c 0c 40 20 c0     eth2\n";
        let found = [1, 2, 11, 12, 13].map(|interface| has_link_local(text, interface));
        assert_eq!(found, [false, false, true, false, false]);
    }

    #[test]
    fn users_of_a_group_of_ipv6_are_read_per_interface() {
        let row = |interface: u32, group: u128, users: u32| {
            format!("{interface}    eth0            {group:032x}     {users} 0000000C 0\n")
        };
        let group = |text: &str| u128::from(text.parse::<Ipv6Addr>().unwrap());
        let text = row(1, group("ff02::1"), 1)
            + &row(7, group("ff05::1:a"), 2)
            + &row(7, group("ff05::1:ab"), 3);
        let users = |group: &str, interface| mld_users(&text, group.parse().unwrap(), interface);
        assert_eq!(users("ff05::1:ab", 7), Some(3));
        assert_eq!((users("ff05::1:ab", 1), users("ff05::2", 7)), (Some(0), Some(0)));
        assert_eq!(users("ff02::1", 1), Some(1));
    }

    #[test]
    fn users_of_a_group_are_read_per_interface() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    2\teth0      :     2      V3\n\t\t\t\t030201E0     3 0:00000000\t\t0\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let group = Ipv4Addr::new(224, 1, 2, 3);
        assert_eq!(igmp_users(text, group, 2), Some(3));
        assert_eq!(igmp_users(text, group, 1), Some(0));
    }
}
