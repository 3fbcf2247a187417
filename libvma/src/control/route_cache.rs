//! Answers to route queries, kept as long as the kernel would give them again: a program that makes many
//! connections to one peer asks the same question for each, but for its port.
//!
//! The kernel announces each change of routes, rules and addresses, and queues the message for our netlink
//! socket before the call that made the change returns. If no message is queued, the answers still hold.
//! Path MTUs and redirects that the kernel learns are not announced, so answers expire after 100 ms.

use libvma_dev::ipv6_stand_ins;

use super::netlink::{Change, Error, Monitor, Netlink, Route, RouteKind, RouteQuery};
use crate::sys::sysctl::Sysctl;
use crate::sys::time::monotonic_nanos;

const AGE_NANOS: u64 = 100_000_000;
/// Programs with more peers ask the kernel.
const MOST: usize = 16;

pub struct RouteCache {
    /// None: it could not be opened, and nothing is kept.
    changes: Option<Monitor>,
    /// How next hops are chosen. None: not asked since the last change.
    choice: Option<Choice>,
    /// [`Netlink::rules_are_plain`]. None: not asked since the last change.
    plain: Option<bool>,
    known: Vec<(RouteQuery, Route)>,
    /// The first answer is not kept: a program that has one connection need not know what answers depend on.
    was_asked: bool,
    /// When the oldest of them was given.
    since: u64,
}

/// The part of a packet that chooses among several next hops (fib_multipath_hash_policy).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Addresses,
    Ports,
    /// The packet inside of a tunnel's as well, or the setting cannot be read.
    More,
}

impl RouteCache {
    pub fn new() -> RouteCache {
        RouteCache {
            changes: Monitor::open_routes().ok(),
            choice: None,
            plain: None,
            known: Vec::with_capacity(MOST),
            was_asked: false,
            since: 0,
        }
    }

    /// As [`Netlink::route`].
    pub fn route(&mut self, netlink: &mut Netlink, query: &RouteQuery) -> Result<Route, Error> {
        let key = RouteQuery { protocol: None, sport: None, dport: None, ..*query };
        self.expire();
        if let Some((_, route)) = self.known.iter().find(|(known, _)| *known == key) {
            return Ok(*route);
        }
        let route = netlink.route(query)?;
        let is_first = !core::mem::replace(&mut self.was_asked, true);
        // Of IPv6 rules and settings are others.
        let is_ipv6 = ipv6_stand_ins::is_one(query.dst);
        let is_kept =
            !is_first && !is_ipv6 && route.kind == RouteKind::Unicast && self.changes.is_some();
        if is_kept && self.known.len() < MOST && self.addresses_decide(netlink) {
            if self.known.is_empty() {
                self.since = monotonic_nanos();
            }
            self.known.push((key, route));
        }
        Ok(route)
    }

    /// Whether the ports of a connection of IPv4 choose among next hops.
    pub fn ports_choose_hops(&mut self, netlink: &mut Netlink) -> bool {
        self.expire();
        self.choice() == Choice::Ports && self.rules_are_plain(netlink)
    }

    fn addresses_decide(&mut self, netlink: &mut Netlink) -> bool {
        self.choice() == Choice::Addresses && self.rules_are_plain(netlink)
    }

    fn choice(&mut self) -> Choice {
        let ask = || {
            let settings = Sysctl::below("/proc/sys/net/ipv4");
            match settings.number("fib_multipath_hash_policy") {
                Some(0) => Choice::Addresses,
                Some(1 | 3) => Choice::Ports,
                _ => Choice::More,
            }
        };
        *self.choice.get_or_insert_with(ask)
    }

    /// Answers depend on no rule's ports, nor on the user. They are read only if they matter: that costs a dump
    /// of all rules.
    fn rules_are_plain(&mut self, netlink: &mut Netlink) -> bool {
        *self.plain.get_or_insert_with(|| netlink.rules_are_plain().unwrap_or(false))
    }

    fn expire(&mut self) {
        let Some(changes) = &mut self.changes else {
            (self.choice, self.plain) = (None, None);
            return;
        };
        let mut moved = false;
        let result = changes.read(&mut |change| {
            moved |= matches!(change, Change::RouteChanged | Change::Resync);
        });
        if moved || result.is_err() {
            (self.choice, self.plain) = (None, None);
            self.known.clear();
        } else if monotonic_nanos().saturating_sub(self.since) > AGE_NANOS {
            self.known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::tests::{in_namespace, ip, sysctl};
    use super::*;

    #[test]
    fn rules_are_read_only_where_ports_choose() {
        in_namespace(|| {
            let (mut cache, mut netlink) = (RouteCache::new(), Netlink::open().unwrap());
            assert!(!cache.ports_choose_hops(&mut netlink));
            assert_eq!((cache.choice, cache.plain), (Some(Choice::Addresses), None));
            // Nothing is asked again until routes change, nor is the setting, whose change is not announced.
            sysctl("fib_multipath_hash_policy", "1");
            assert!(!cache.ports_choose_hops(&mut netlink));
            ip("link set lo up\n");
            assert!(cache.ports_choose_hops(&mut netlink));
            assert_eq!((cache.choice, cache.plain), (Some(Choice::Ports), Some(true)));
            ip("rule add ipproto udp dport 5000 table 100\n");
            assert!(!cache.ports_choose_hops(&mut netlink));
            assert_eq!(cache.plain, Some(false));
        });
    }

    #[test]
    fn nothing_is_kept_whose_change_would_not_be_heard_of() {
        in_namespace(|| {
            let (mut cache, mut netlink) = (RouteCache::new(), Netlink::open().unwrap());
            cache.changes = None;
            assert!(!cache.ports_choose_hops(&mut netlink));
            sysctl("fib_multipath_hash_policy", "1");
            assert!(cache.ports_choose_hops(&mut netlink));
        });
    }
}
