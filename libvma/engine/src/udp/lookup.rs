//! Which socket gets a datagram: Linux's rules over the sockets of one shard.
//!
//! Unicast goes to the one best match (udp(7), `SO_REUSEPORT` in socket(7)): a socket bound to the
//! very address beats one bound to any; then a connected peer, then a bound device, then that it is of
//! AF_INET counts; among equals the socket that was bound last wins, unless they share the port with SO_REUSEPORT, which
//! spreads flows over them. Multicast goes to every match whose memberships allow it.

use crate::alloc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

/// What a datagram says of itself, in host byte order.
#[derive(Clone, Copy, Debug)]
pub struct Tuple {
    pub source: Ipv4Addr,
    pub source_port: u16,
    pub destination: Ipv4Addr,
    pub port: u16,
    /// The interface it came in by.
    pub interface: u32,
    /// Its addresses stand for ones of IPv6: it is for sockets of AF_INET6 only.
    pub is_ipv6: bool,
    /// The member that the kernel chose among sockets with SO_REUSEPORT, if the sender has asked it; else 0.
    pub member: u8,
}

/// What a socket wants.
#[derive(Clone, Debug)]
pub struct Filter {
    /// 0.0.0.0 for any.
    pub local: Ipv4Addr,
    pub port: u16,
    /// Only from this peer: a connected socket.
    pub peer: Option<(Ipv4Addr, u16)>,
    /// SO_BINDTODEVICE.
    pub device: Option<u32>,
    /// SO_REUSEPORT was on when the socket was bound.
    pub reuse_port: bool,
    /// The number under which senders of this host know the socket among those that share its port; 0: none.
    pub member: u8,
    /// IP_MULTICAST_ALL: groups that some other socket joined are welcome too.
    pub multicast_all: bool,
    /// IPV6_MULTICAST_ALL.
    pub ipv6_multicast_all: bool,
    /// Of AF_INET6: one of AF_INET comes first.
    pub is_ipv6: bool,
    /// Of AF_INET6, and takes nothing of IPv4 (IPV6_V6ONLY, or an IPv6 address).
    pub ipv6_only: bool,
    /// It takes nothing of IPv6: it is of AF_INET, or at a mapped address.
    pub ipv4_only: bool,
    pub memberships: Vec<Membership>,
}

/// A group joined on an interface, and which sources are wanted (RFC 3376 section 3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub group: Ipv4Addr,
    pub interface: u32,
    pub mode: SourceMode,
    pub sources: Vec<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceMode {
    /// All but the listed sources.
    Exclude,
    /// The listed sources only.
    Include,
}

impl Membership {
    /// Every source is shut out: that is no membership.
    pub fn is_of_nobody(&self) -> bool {
        self.mode == SourceMode::Include && self.sources.is_empty()
    }

    fn allows(&self, source: Ipv4Addr) -> bool {
        self.sources.contains(&source) == (self.mode == SourceMode::Include)
    }
}

impl Filter {
    fn matches_peer_and_device(&self, tuple: &Tuple) -> bool {
        self.peer.is_none_or(|peer| peer == (tuple.source, tuple.source_port))
            && self.device.is_none_or(|device| device == tuple.interface)
    }

    fn takes_family(&self, tuple: &Tuple) -> bool {
        if tuple.is_ipv6 { !self.ipv4_only } else { !self.ipv6_only }
    }

    fn score(&self, tuple: &Tuple) -> Option<u32> {
        if !self.takes_family(tuple) {
            return None;
        }
        let exact = self.local == tuple.destination;
        if !exact && !self.local.is_unspecified() || !self.matches_peer_and_device(tuple) {
            return None;
        }
        let (peer, device) = (self.peer.is_some(), self.device.is_some());
        let weights = [(exact, 16), (peer, 8), (device, 4), (!self.is_ipv6, 1)];
        Some(weights.iter().filter(|(holds, _)| *holds).map(|(_, weight)| weight).sum())
    }

    #[inline]
    fn wants_group(&self, tuple: &Tuple) -> bool {
        let bound = self.local.is_unspecified() || self.local == tuple.destination;
        if !bound || !self.takes_family(tuple) || !self.matches_peer_and_device(tuple) {
            return false;
        }
        // Of IPv6 Linux asks for the membership that came last, of whatever interface (inet6_mc_check()).
        let joined = self.memberships.iter().rev().find(|membership| {
            membership.group == tuple.destination
                && (tuple.is_ipv6 || membership.interface == tuple.interface)
        });
        let all = if tuple.is_ipv6 { self.ipv6_multicast_all } else { self.multicast_all };
        joined.map_or(all, |membership| membership.allows(tuple.source))
    }

    /// Unconnected and willing to share its port.
    fn shares(&self) -> bool {
        self.reuse_port && self.peer.is_none()
    }
}

struct Entry {
    filter: Filter,
    /// Larger is later.
    bound: u64,
    next: u32,
}

const NONE: u32 = 0;

/// The sockets of a shard by local port. Socket numbers are the caller's.
pub struct Lookup {
    /// Per port, 1 + the number of the first socket. 256 KiB of zeroes that cost memory only
    /// where touched.
    heads: Vec<u32>,
    entries: Vec<Option<Entry>>,
    clock: u64,
}

impl Default for Lookup {
    fn default() -> Self {
        Lookup { heads: alloc::vec![NONE; 65536], entries: Vec::new(), clock: 0 }
    }
}

impl Lookup {
    /// No socket was ever inserted.
    pub fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    /// Inserts socket `id`, or replaces what it wants. It is the latest then, unless its address
    /// stays what it was: the kernel moves a socket only when that changes.
    pub fn insert(&mut self, id: u32, filter: Filter) {
        let index = id as usize;
        if let Some(known) = self.filter_mut(id)
            && (known.local, known.port) == (filter.local, filter.port)
        {
            *known = filter;
            return;
        }
        self.remove(id);
        if self.entries.len() <= index {
            self.entries.resize_with(index.saturating_add(1), || None);
        }
        self.clock = self.clock.wrapping_add(1);
        let Some(head) = self.heads.get_mut(usize::from(filter.port)) else { return };
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Some(Entry { filter, bound: self.clock, next: *head });
            *head = id.saturating_add(1);
        }
    }

    pub fn remove(&mut self, id: u32) {
        let Some(gone) = self.entries.get_mut(id as usize).and_then(Option::take) else { return };
        let Some(head) = self.heads.get_mut(usize::from(gone.filter.port)) else { return };
        let target = id.saturating_add(1);
        if *head == target {
            *head = gone.next;
            return;
        }
        let mut at = *head;
        while let Some(entry) = entry_mut(&mut self.entries, at) {
            if entry.next == target {
                entry.next = gone.next;
                return;
            }
            at = entry.next;
        }
    }

    /// What socket `id` wants; its port must not be changed through this.
    pub fn filter_mut(&mut self, id: u32) -> Option<&mut Filter> {
        self.entries.get_mut(id as usize)?.as_mut().map(|entry| &mut entry.filter)
    }

    /// Is any socket, on whatever port, a member of a group on an interface? Looks at all of them.
    pub fn is_joined(&self, group: Ipv4Addr, interface: u32) -> bool {
        let memberships = |entry: &Entry| {
            let mut all = entry.filter.memberships.iter();
            all.any(|one| (one.group, one.interface) == (group, interface))
        };
        self.entries.iter().flatten().any(memberships)
    }

    /// The socket for a unicast datagram.
    #[inline]
    pub fn unicast(&self, tuple: &Tuple) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        let mut sharing = None;
        for (id, entry) in self.on_port(tuple.port) {
            let Some(score) = entry.filter.score(tuple) else { continue };
            // The list runs from the latest to the earliest: only a better score displaces.
            if best.is_none_or(|(_, top)| score > top) {
                best = Some((id, score));
                sharing = entry.filter.shares().then_some(&entry.filter);
            }
        }
        let (id, score) = best?;
        sharing.and_then(|first| self.spread(tuple, score, first)).or(Some(id))
    }

    /// SO_REUSEPORT: one flow, always the same of the sockets that share with `first`; the one that the kernel chose if that is known.
    fn spread(&self, tuple: &Tuple, score: u32, first: &Filter) -> Option<u32> {
        let sharing = || {
            self.on_port(tuple.port).filter(|(_, entry)| {
                entry.filter.shares()
                    // Sockets that take IPv6 only have a group of their own (inet_reuseport_add_sock() of Linux).
                    && entry.filter.ipv6_only == first.ipv6_only
                    && entry.filter.score(tuple) == Some(score)
            })
        };
        let chosen = |(_, entry): &(u32, &Entry)| entry.filter.member == tuple.member;
        if tuple.member != 0
            && let Some((id, _)) = sharing().find(chosen)
        {
            return Some(id);
        }
        let pick = usize::try_from(hash(tuple)).ok()?.checked_rem(sharing().count())?;
        // In the order of binding, so that a newcomer moves as few flows as it can.
        let mut member: Option<(u64, u32)> = None;
        for _ in 0..=pick {
            let floor = member;
            member = sharing()
                .map(|(id, entry)| (entry.bound, id))
                .filter(|candidate| floor.is_none_or(|floor| *candidate > floor))
                .min();
        }
        member.map(|(_, id)| id)
    }

    /// Lets senders of this host call a socket that shares its port so. False, and nothing is changed, if another one on that
    /// port has the name.
    pub fn name(&mut self, id: u32, member: u8) -> bool {
        let Some(port) = self.filter_mut(id).map(|filter| filter.port) else { return false };
        let mut others = self.on_port(port).filter(|(other, _)| *other != id);
        if others.any(|(_, Entry { filter, .. })| filter.shares() && filter.member == member) {
            return false;
        }
        if let Some(filter) = self.filter_mut(id) {
            filter.member = member;
        }
        true
    }

    /// Calls `deliver` for each socket that wants a multicast datagram.
    pub fn multicast(&self, tuple: &Tuple, mut deliver: impl FnMut(u32)) {
        for (id, entry) in self.on_port(tuple.port) {
            if entry.filter.wants_group(tuple) {
                deliver(id);
            }
        }
    }

    fn on_port(&self, port: u16) -> OnPort<'_> {
        let next = self.heads.get(usize::from(port)).copied().unwrap_or(NONE);
        OnPort { entries: &self.entries, next }
    }
}

struct OnPort<'a> {
    entries: &'a [Option<Entry>],
    next: u32,
}

impl<'a> Iterator for OnPort<'a> {
    type Item = (u32, &'a Entry);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let id = self.next.checked_sub(1)?;
        let entry = self.entries.get(id as usize)?.as_ref()?;
        self.next = entry.next;
        Some((id, entry))
    }
}

fn entry_mut(entries: &mut [Option<Entry>], link: u32) -> Option<&mut Entry> {
    entries.get_mut(link.checked_sub(1)? as usize)?.as_mut()
}

/// A mixing of the 4-tuple; any will do, it only has to be stable for a flow.
fn hash(tuple: &Tuple) -> u32 {
    let ports = u64::from(tuple.source_port).wrapping_shl(16) | u64::from(tuple.port);
    let addresses =
        u64::from(tuple.source.to_bits()).wrapping_shl(32) | u64::from(tuple.destination.to_bits());
    let mixed =
        (addresses ^ ports.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed.wrapping_shr(33)).wrapping_shr(16) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const GROUP: Ipv4Addr = Ipv4Addr::new(224, 1, 2, 3);

    fn filter(local: Ipv4Addr) -> Filter {
        Filter {
            local,
            port: 7,
            peer: None,
            device: None,
            reuse_port: false,
            member: 0,
            multicast_all: true,
            ipv6_multicast_all: true,
            is_ipv6: false,
            ipv6_only: false,
            ipv4_only: true,
            memberships: Vec::new(),
        }
    }

    fn tuple(source_port: u16, destination: Ipv4Addr) -> Tuple {
        Tuple {
            source: THERE,
            source_port,
            destination,
            port: 7,
            interface: 3,
            is_ipv6: false,
            member: 0,
        }
    }

    #[test]
    fn of_ipv6_the_last_membership_counts_on_every_interface() {
        let group = Ipv4Addr::new(0, 129, 0, 7);
        let (one, two) = (Ipv4Addr::new(0, 1, 0, 1), Ipv4Addr::new(0, 1, 0, 2));
        let joined = |interface, mode, sources: &[Ipv4Addr]| Membership {
            group,
            interface,
            mode,
            sources: sources.to_vec(),
        };
        let mut lookup = Lookup::default();
        let whole = joined(1, SourceMode::Exclude, &[]);
        let memberships = alloc::vec![whole, joined(2, SourceMode::Include, &[one])];
        let any = Filter { ipv4_only: false, ..filter(Ipv4Addr::UNSPECIFIED) };
        lookup.insert(0, Filter { memberships, ..any.clone() });
        lookup.insert(1, Filter { ipv6_multicast_all: false, ..any.clone() });
        lookup.insert(2, Filter { multicast_all: false, ..any });
        let heard = |source, interface| {
            let tuple = Tuple { source, interface, is_ipv6: true, ..tuple(9, group) };
            let mut ids = members(&lookup, &tuple);
            ids.sort_unstable();
            ids
        };
        assert_eq!((heard(one, 1), heard(one, 3)), (alloc::vec![0, 2], alloc::vec![0, 2]));
        assert_eq!(heard(two, 1), [2]);
        assert!(lookup.is_joined(group, 1) && lookup.is_joined(group, 2));
        assert!(!lookup.is_joined(group, 3) && !lookup.is_joined(one, 1));
    }

    fn members(lookup: &Lookup, tuple: &Tuple) -> Vec<u32> {
        let mut ids = Vec::new();
        lookup.multicast(tuple, |id| ids.push(id));
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_exact_address_beats_any_and_a_peer_beats_both_unconnected() {
        let mut lookup = Lookup::default();
        lookup.insert(0, filter(Ipv4Addr::UNSPECIFIED));
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(0));
        lookup.insert(1, filter(HERE));
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(1));
        lookup.insert(2, Filter { peer: Some((THERE, 9)), ..filter(HERE) });
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(2));
        assert_eq!(lookup.unicast(&tuple(10, HERE)), Some(1));
        assert_eq!(lookup.unicast(&tuple(10, THERE)), Some(0));
    }

    #[test]
    fn the_member_that_the_kernel_chose_gets_the_datagram() {
        let mut lookup = Lookup::default();
        for id in 0..4 {
            lookup.insert(id, Filter { reuse_port: true, ..filter(HERE) });
        }
        // The kernel's choice is among those at the address.
        lookup.insert(4, Filter { reuse_port: true, ..filter(Ipv4Addr::UNSPECIFIED) });
        assert!(lookup.name(2, 7));
        assert!(lookup.name(3, 8));
        assert!(!lookup.name(0, 7) && !lookup.name(4, 7), "two sockets on a port have one name");
        assert!(lookup.name(2, 7), "it has that name");
        for port in 1..100 {
            let chosen = |member| lookup.unicast(&Tuple { member, ..tuple(port, HERE) });
            assert_eq!((chosen(7), chosen(8)), (Some(2), Some(3)));
            // Of a member that is gone, as of one that was not told, any other may have it.
            assert_eq!(chosen(9), chosen(0));
        }
    }

    #[test]
    fn a_datagram_of_ipv6_is_for_sockets_of_that_family_only() {
        let of_ipv6 = |destination| Tuple { is_ipv6: true, ..tuple(9, destination) };
        let mut lookup = Lookup::default();
        lookup.insert(0, filter(Ipv4Addr::UNSPECIFIED));
        lookup.insert(1, filter(HERE));
        assert_eq!(lookup.unicast(&of_ipv6(HERE)), None);
        // Of both families; of IPv6 only; at an address of that.
        let six = |local| Filter { is_ipv6: true, ipv4_only: false, ..filter(local) };
        lookup.insert(2, six(Ipv4Addr::UNSPECIFIED));
        assert_eq!(lookup.unicast(&of_ipv6(HERE)), Some(2));
        let only = |local| Filter { ipv6_only: true, ..six(local) };
        lookup.insert(3, only(Ipv4Addr::UNSPECIFIED));
        assert_eq!(lookup.unicast(&of_ipv6(HERE)), Some(3));
        lookup.insert(4, only(HERE));
        assert_eq!(lookup.unicast(&of_ipv6(HERE)), Some(4));
        lookup.remove(1);
        lookup.remove(0);
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(2), "of IPv4");
        assert_eq!(members(&lookup, &tuple(9, GROUP)), [2]);
        // At a mapped address: behind one of AF_INET, and not for IPv6.
        let mut lookup = Lookup::default();
        lookup.insert(0, filter(Ipv4Addr::UNSPECIFIED));
        lookup.insert(1, Filter { is_ipv6: true, ..filter(Ipv4Addr::UNSPECIFIED) });
        assert_eq!(
            (lookup.unicast(&tuple(9, HERE)), lookup.unicast(&of_ipv6(HERE))),
            (Some(0), None)
        );
    }

    #[test]
    fn a_connected_socket_takes_nothing_from_others() {
        let mut lookup = Lookup::default();
        lookup.insert(0, Filter { peer: Some((THERE, 9)), ..filter(HERE) });
        assert_eq!(lookup.unicast(&tuple(10, HERE)), None);
    }

    #[test]
    fn among_equals_the_latest_wins() {
        let mut lookup = Lookup::default();
        lookup.insert(5, filter(HERE));
        lookup.insert(3, filter(HERE));
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(3));
        lookup.remove(3);
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(5));
        lookup.remove(5);
        assert_eq!(lookup.unicast(&tuple(9, HERE)), None);
    }

    #[test]
    fn other_wishes_at_the_same_address_keep_the_order() {
        let mut lookup = Lookup::default();
        lookup.insert(0, filter(HERE));
        lookup.insert(1, filter(HERE));
        lookup.insert(0, Filter { multicast_all: false, ..filter(HERE) });
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(1));
        lookup.insert(0, filter(Ipv4Addr::UNSPECIFIED));
        lookup.insert(0, filter(HERE));
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(0));
    }

    #[test]
    fn an_ipv4_socket_comes_before_an_ipv6_one() {
        let mut lookup = Lookup::default();
        let ipv6 = |local| Filter { is_ipv6: true, reuse_port: true, ..filter(local) };
        let ipv4 = |local| Filter { reuse_port: true, ..filter(local) };
        lookup.insert(0, ipv4(Ipv4Addr::UNSPECIFIED));
        lookup.insert(1, ipv6(Ipv4Addr::UNSPECIFIED));
        assert!((0..50).all(|port| lookup.unicast(&tuple(port, HERE)) == Some(0)));
        lookup.insert(2, ipv6(HERE));
        assert!((0..50).all(|port| lookup.unicast(&tuple(port, HERE)) == Some(2)));
        assert_eq!(members(&lookup, &tuple(9, GROUP)), [0, 1]);
        lookup.remove(2);
        lookup.remove(0);
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(1));
    }

    // covers: FIX-21
    #[test]
    fn sockets_on_one_port_with_different_peers_each_get_their_own() {
        let mut lookup = Lookup::default();
        for id in 0..10u32 {
            let port = 100 + id as u16;
            lookup.insert(id, Filter { peer: Some((THERE, port)), ..filter(HERE) });
        }
        for id in 0..10u32 {
            assert_eq!(lookup.unicast(&tuple(100 + id as u16, HERE)), Some(id));
        }
    }

    #[test]
    fn reuse_port_spreads_flows_and_keeps_each_where_it_is() {
        let mut lookup = Lookup::default();
        for id in 0..4 {
            lookup.insert(id, Filter { reuse_port: true, ..filter(HERE) });
        }
        let mut hits = [0; 4];
        for port in 1000..2000 {
            let first = lookup.unicast(&tuple(port, HERE)).expect("a socket");
            assert_eq!(lookup.unicast(&tuple(port, HERE)), Some(first));
            hits[first as usize] += 1;
        }
        assert!(hits.iter().all(|n| *n > 150), "uneven: {hits:?}");
    }

    #[test]
    fn who_takes_ipv6_only_shares_with_its_like() {
        let six = |ipv6_only| Filter {
            is_ipv6: true,
            ipv4_only: false,
            ipv6_only,
            reuse_port: true,
            ..filter(Ipv4Addr::UNSPECIFIED)
        };
        let mut lookup = Lookup::default();
        for (id, only) in [(0, false), (1, true), (2, true)] {
            lookup.insert(id, six(only));
        }
        let chosen = |port| lookup.unicast(&Tuple { is_ipv6: true, ..tuple(port, HERE) });
        let all: Vec<_> = (0..100).filter_map(chosen).collect();
        assert!(all.contains(&1) && all.contains(&2) && !all.contains(&0));
        assert!((0..100).all(|port| lookup.unicast(&tuple(port, HERE)) == Some(0)));
    }

    // covers: LIM-12
    #[test]
    fn every_member_gets_a_multicast_datagram() {
        let mut lookup = Lookup::default();
        lookup.insert(0, filter(Ipv4Addr::UNSPECIFIED));
        lookup.insert(1, filter(GROUP));
        lookup.insert(2, filter(HERE));
        lookup.insert(3, Filter { multicast_all: false, ..filter(GROUP) });
        assert_eq!(members(&lookup, &tuple(9, GROUP)), [0, 1]);
    }

    #[test]
    fn source_filters_include_and_exclude() {
        let mut lookup = Lookup::default();
        let membership =
            |mode| Membership { group: GROUP, interface: 3, mode, sources: alloc::vec![THERE] };
        for (id, mode) in [(0, SourceMode::Include), (1, SourceMode::Exclude)] {
            let memberships = alloc::vec![membership(mode)];
            lookup.insert(id, Filter { memberships, ..filter(GROUP) });
        }
        assert_eq!(members(&lookup, &tuple(9, GROUP)), [0]);
        let other = Tuple { source: HERE, ..tuple(9, GROUP) };
        assert_eq!(members(&lookup, &other), [1]);
    }

    #[test]
    fn a_bound_device_takes_its_own_interface_only() {
        let mut lookup = Lookup::default();
        lookup.insert(0, Filter { device: Some(4), ..filter(HERE) });
        assert_eq!(lookup.unicast(&tuple(9, HERE)), None);
        lookup.insert(1, Filter { device: Some(3), ..filter(HERE) });
        assert_eq!(lookup.unicast(&tuple(9, HERE)), Some(1));
    }
}
