//! TC rules: frames of the flows that a process asks for go to its TAP instead of to the kernel,
//! and what a TAP sends goes out by its interface. For guests whose network device may be unplugged
//! at any time (Hyper-V).
//!
//! Here is who claims what: a rule that several processes ask for is made once and lives until the
//! last of them gives it up or dies. A flow means one rule or two (below), both or none. How rules
//! come to be in one network namespace is in `network`, the bytes for the kernel in `rules`, the
//! talk with it in `netlink`.

mod network;
mod rules;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use anyhow::Context;
use libvma_dev::agent::{Flow, FlowKind};

use crate::namespace::{Identity, Namespace};
use network::{LOOPBACK, Network};

/// All rules that were made, by network namespace.
#[derive(Default)]
pub struct Traffic(HashMap<Identity, Claims>);

/// The rules of one namespace and the processes that want them.
struct Claims {
    network: Network,
    rules: HashMap<Rule, BTreeSet<i32>>,
}

/// What one process can ask for of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Rule {
    kind: FlowKind,
    /// The interface that frames come by; with [`FlowKind::Egress`] the one that they leave by.
    interface: u32,
    tap: u32,
    /// Zeros with [`FlowKind::Egress`].
    local: SocketAddrV4,
    /// Zeros but with a 5-tuple.
    peer: SocketAddrV4,
}

impl Traffic {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the rules of a flow in `namespace` for process `owner`, unless they are there.
    ///
    /// # Errors The kernel's, with the names of interface and flow and with its own words where it
    /// has some. Then nothing is left of the flow.
    pub fn add(
        &mut self,
        owner: i32,
        namespace: &Rc<Namespace>,
        flow: &Flow,
    ) -> anyhow::Result<()> {
        let identity = namespace.identity();
        let claims = match self.0.entry(identity) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Claims {
                network: Network::open(namespace).context("rtnetlink for TC rules")?,
                rules: HashMap::new(),
            }),
        };
        let result = claims.add(owner, flow);
        self.0.retain(|_, claims| !claims.rules.is_empty());
        result.with_context(|| format!("flow {}", Told(flow)))
    }

    /// Gives up the rules of a flow. One that was never asked for is no error.
    ///
    /// # Errors
    /// As of [`Traffic::add`]; the rule counts as gone all the same.
    pub fn delete(
        &mut self,
        owner: i32,
        namespace: &Rc<Namespace>,
        flow: &Flow,
    ) -> anyhow::Result<()> {
        let Some(claims) = self.0.get_mut(&namespace.identity()) else { return Ok(()) };
        let mut result = Ok(());
        for rule in Rule::all(flow) {
            result = result.and(claims.give_up(owner, &rule));
        }
        self.0.retain(|_, claims| !claims.rules.is_empty());
        result.with_context(|| format!("flow {}", Told(flow)))
    }

    /// Gives up all that process `owner` asked for; it has ended.
    pub fn forget(&mut self, owner: i32) {
        for claims in self.0.values_mut() {
            let mut its: Vec<Rule> = claims
                .rules
                .iter()
                .filter(|(_, owners)| owners.contains(&owner))
                .map(|(rule, _)| *rule)
                .collect();
            its.sort();
            for rule in its {
                if let Err(error) = claims.give_up(owner, &rule) {
                    log::error!("[{owner}] removing TC rules after its end: {error:#}");
                }
            }
        }
        self.0.retain(|_, claims| !claims.rules.is_empty());
    }

    /// Removes every rule that was made; the daemon ends.
    pub fn remove_all(&mut self) {
        let owners: BTreeSet<i32> =
            self.0.values().flat_map(|claims| claims.rules.values()).flatten().copied().collect();
        for owner in owners {
            self.forget(owner);
        }
    }
}

impl Claims {
    fn add(&mut self, owner: i32, flow: &Flow) -> anyhow::Result<()> {
        self.network.check_tap(flow.tap)?;
        let mut added = Vec::new();
        for rule in Rule::all(flow) {
            if self.network.skips(&rule)? {
                continue;
            }
            match self.claim(owner, rule) {
                Ok(true) => added.push(rule),
                Ok(false) => {}
                Err(error) => {
                    for rule in added {
                        if let Err(error) = self.give_up(owner, &rule) {
                            log::error!("[{owner}] taking a half-made flow back: {error:#}");
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Whether that is news.
    fn claim(&mut self, owner: i32, rule: Rule) -> anyhow::Result<bool> {
        if let Some(owners) = self.rules.get_mut(&rule) {
            return Ok(owners.insert(owner));
        }
        self.network.place(rule)?;
        self.rules.insert(rule, BTreeSet::from([owner]));
        Ok(true)
    }

    fn give_up(&mut self, owner: i32, rule: &Rule) -> anyhow::Result<()> {
        let Some(owners) = self.rules.get_mut(rule) else { return Ok(()) };
        owners.remove(&owner);
        if owners.is_empty() {
            self.rules.remove(rule);
            self.network.remove(rule)?;
        }
        Ok(())
    }
}

impl Rule {
    /// The rules that a flow means. What comes in by the interface may as well come from a process
    /// of this host, and then it comes by `lo`.
    fn all(flow: &Flow) -> Vec<Self> {
        let nowhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let five = matches!(flow.kind, FlowKind::Udp5Tuple | FlowKind::Tcp5Tuple);
        let rule = Self {
            kind: flow.kind,
            interface: flow.interface,
            tap: flow.tap,
            local: flow.local,
            peer: if five { flow.peer } else { nowhere },
        };
        match flow.kind {
            FlowKind::Egress => vec![Self { local: nowhere, ..rule }],
            _ if rule.interface == LOOPBACK => vec![rule],
            _ => vec![Self { interface: LOOPBACK, ..rule }, rule],
        }
    }

    /// The interface that has the filters: a TAP's frames come by the TAP.
    fn filtered(&self) -> u32 {
        if self.kind == FlowKind::Egress { self.tap } else { self.interface }
    }
}

/// A flow for the log.
struct Told<'a>(&'a Flow);

impl fmt::Display for Told<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flow { kind, interface, tap, local, peer, .. } = self.0;
        write!(out, "type: {} if_id: {interface} tap_id: {tap}", *kind as u8)?;
        match kind {
            FlowKind::Egress => Ok(()),
            FlowKind::Udp3Tuple | FlowKind::Tcp3Tuple => write!(out, " to {local}"),
            FlowKind::Udp5Tuple | FlowKind::Tcp5Tuple => write!(out, " from {peer} to {local}"),
        }
    }
}

#[cfg(test)]
mod tests;
