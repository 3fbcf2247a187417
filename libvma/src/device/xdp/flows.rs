//! The flows of one interface: in a table of our own (`flow`), or the daemon's, which has granted the ring (`grant`).

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::grant::MOST_STRANGERS;
use libvma_dev::ipv6_stand_ins;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::flow::FlowTable;
use super::grant::Grant;
use crate::device::Flow;

pub enum Flows {
    Own(FlowTable),
    Granted(GrantedFlows),
}

/// Counted, as in a table of our own. Each is one socket's: the daemon's programs ask the kernel for each datagram whose it is.
pub struct GrantedFlows {
    grant: Grant,
    users: HashMap<Flow, User>,
    /// Only TCP has any, which is not granted.
    exceptions: HashSet<Flow>,
    /// Peers of which the daemon knows that they are the kernel's. Not more than `MOST_STRANGERS`.
    strangers: HashSet<Ipv6Addr>,
}

struct User {
    shown: i32,
    count: u32,
}

impl GrantedFlows {
    pub fn new(grant: Grant) -> GrantedFlows {
        GrantedFlows {
            grant,
            users: HashMap::new(),
            exceptions: HashSet::new(),
            strangers: HashSet::new(),
        }
    }

    pub fn grant(&mut self) -> &mut Grant {
        &mut self.grant
    }

    /// The daemon has a peer's datagrams left to the kernel. Each question takes the time of a frame or more, so there is one for a peer, of
    /// whose frames more may be under way, and none when the daemon leaves all strangers to the kernel.
    pub fn tell_stranger(&mut self, peer: Ipv6Addr) {
        let is_known = self.is_closed_to_strangers() || self.strangers.contains(&peer);
        if !is_known && !self.grant.is_over() && self.grant.leave_to_kernel(peer).is_ok() {
            self.strangers.insert(peer);
        }
    }

    fn is_closed_to_strangers(&self) -> bool {
        self.strangers.len() >= MOST_STRANGERS as usize
    }

    fn add(&mut self, flow: Flow, shown: Option<i32>) -> Result<(), Errno> {
        let shown = shown.ok_or(Errno::OPNOTSUPP)?;
        match self.users.get_mut(&flow) {
            Some(user) if user.shown == shown => user.count += 1,
            // Of the sockets that share a port (SO_REUSEPORT) the others are the kernel's.
            Some(_) => return Err(Errno::ADDRINUSE),
            None => {
                self.grant.add(flow, shown)?;
                self.users.insert(flow, User { shown, count: 1 });
                // When the flow ends the daemon knows nothing of its peer.
                if let Flow::FiveTuple { source, .. } = flow
                    && !self.is_closed_to_strangers()
                    && let Some(peer) = ipv6_stand_ins::real(source)
                {
                    self.strangers.remove(&peer);
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, flow: Flow) {
        let Some(user) = self.users.get_mut(&flow) else { return };
        user.count -= 1;
        if user.count == 0 {
            self.users.remove(&flow);
            self.grant.remove(flow);
        }
    }
}

impl Flows {
    pub fn is_empty(&self) -> bool {
        match self {
            Flows::Own(table) => table.is_empty(),
            Flows::Granted(granted) => granted.users.is_empty(),
        }
    }

    /// Steers a flow to us, or counts one more user of it. `shown` is the kernel's socket that has its destination.
    pub fn add(&mut self, flow: Flow, shown: Option<i32>) -> Result<(), Errno> {
        match self {
            Flows::Own(table) => table.add(flow),
            Flows::Granted(granted) => granted.add(flow, shown),
        }
    }

    /// Counts one user less of each.
    pub fn remove(&mut self, flows: impl Iterator<Item = Flow>) {
        match self {
            Flows::Own(table) => table.remove(flows),
            Flows::Granted(granted) => flows.for_each(|flow| granted.remove(flow)),
        }
    }

    /// As [`FlowTable::except`].
    pub fn except(&mut self, flow: Flow) -> Result<(), Errno> {
        match self {
            Flows::Own(table) => table.except(flow),
            Flows::Granted(_) => Err(Errno::OPNOTSUPP),
        }
    }

    pub fn end_exception(&mut self, flow: Flow) {
        if let Flows::Own(table) = self {
            table.end_exception(flow);
        }
    }

    pub fn exceptions(&self) -> &HashSet<Flow> {
        match self {
            Flows::Own(table) => table.exceptions(),
            Flows::Granted(granted) => &granted.exceptions,
        }
    }

    /// No stand-in is left for a peer: what comes from it is the kernel's from now on.
    pub fn leave_to_kernel(&mut self, peer: Ipv6Addr) {
        if let Flows::Own(table) = self {
            table.leave_to_kernel(peer);
        }
    }

    /// Does the program know the address that has this stand-in?
    pub fn knows(&mut self, stand_in: Ipv4Addr) -> bool {
        match self {
            Flows::Own(table) => table.knows(stand_in),
            Flows::Granted(_) => false,
        }
    }

    pub fn is_closed_to_strangers(&self) -> bool {
        match self {
            Flows::Own(table) => table.is_closed_to_strangers(),
            Flows::Granted(granted) => granted.is_closed_to_strangers(),
        }
    }

    /// The connection that a ring lasts with which was granted.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Flows::Own(_) => None,
            Flows::Granted(granted) => Some(granted.grant.connection()),
        }
    }

    /// The daemon that has granted the ring is gone, or does not answer.
    pub fn are_lost(&self) -> bool {
        matches!(self, Flows::Granted(granted) if granted.grant.is_over())
    }
}

#[cfg(test)]
mod tests;
