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
    /// None: not asked since the last change.
    dependence: Option<Dependence>,
    known: Vec<(RouteQuery, Route)>,
    /// The first answer is not kept: a program that has one connection need not know what answers depend on.
    was_asked: bool,
    /// When the oldest of them was given.
    since: u64,
}

/// What the answer to a question depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependence {
    Addresses,
    /// The choice among several next hops.
    Ports,
    /// The user, perhaps, or a rule's ports.
    More,
}

impl RouteCache {
    pub fn new() -> RouteCache {
        RouteCache {
            changes: Monitor::open_routes().ok(),
            dependence: None,
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
        if is_kept && self.known.len() < MOST && self.dependence(netlink) == Dependence::Addresses {
            if self.known.is_empty() {
                self.since = monotonic_nanos();
            }
            self.known.push((key, route));
        }
        Ok(route)
    }

    /// What answers depend on, as far as it matters to connections of IPv4.
    pub fn dependence(&mut self, netlink: &mut Netlink) -> Dependence {
        let ask = || {
            // 0: next hops are chosen by addresses alone; 2: those of a packet in a tunnel.
            let settings = Sysctl::below("/proc/sys/net/ipv4");
            let policy = settings.number("fib_multipath_hash_policy");
            match (policy, netlink.rules_are_plain().unwrap_or(false)) {
                (Some(0), true) => Dependence::Addresses,
                (Some(1 | 3), true) => Dependence::Ports,
                _ => Dependence::More,
            }
        };
        *self.dependence.get_or_insert_with(ask)
    }

    fn expire(&mut self) {
        let Some(changes) = &mut self.changes else { return };
        let mut moved = false;
        let result = changes.read(&mut |change| {
            moved |= matches!(change, Change::RouteChanged | Change::Resync);
        });
        if moved || result.is_err() {
            self.dependence = None;
            self.known.clear();
        } else if monotonic_nanos().saturating_sub(self.since) > AGE_NANOS {
            self.known.clear();
        }
    }
}
