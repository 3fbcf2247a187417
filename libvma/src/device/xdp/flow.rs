//! The flow table of one interface: what the steering program matches.
//!
//! Several sockets may want the same flow (SO_REUSEPORT, a multicast group), so flows are counted;
//! the last one out removes it from the program's maps. An *exception* is a 5-tuple that is the
//! kernel's though a 3-tuple of ours covers it. The program remembers what it found to be ours, for the
//! length of an *epoch*: one ends with everything that ceases to be ours, and when an IPv6 address gets a stand-in
//! or loses it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use super::bpf;
use super::ring::Mapping;
use super::stand_ins::StandIns;
use crate::device::Flow;
use crate::sys::Fd;

/// Key of map `flows5`; everything as it stands in the packet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FiveTuple {
    source: [u8; 4],
    destination: [u8; 4],
    source_port: [u8; 2],
    port: [u8; 2],
    protocol: u32,
}

/// Key of map `flows3`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ThreeTuple {
    destination: [u8; 4],
    port: [u8; 2],
    protocol: u16,
}

// SAFETY: 4 + 4 + 2 + 2 + 4 bytes, alignment 4: no padding.
unsafe impl bpf::Plain for FiveTuple {}
// SAFETY: 4 + 2 + 2 bytes, alignment 2: no padding.
unsafe impl bpf::Plain for ThreeTuple {}

pub struct FlowTable {
    three: Fd,
    five: Fd,
    stand_ins: StandIns,
    epoch: Mapping,
    /// So many epochs are over.
    ended: u64,
    users: HashMap<Flow, u32>,
    exceptions: HashSet<Flow>,
    /// How many exceptions there are from a 3-tuple, installed or not.
    excepted: HashMap<Flow, u32>,
}

/// Values of `flows5` and `flows3`, as in the program.
const PASSED: u32 = 0;
const OURS: u32 = 1;
const EVERY_PEER: u32 = 1;
const MOST_PEERS: u32 = 2;

impl FlowTable {
    pub fn new(three: Fd, five: Fd, stand_ins: Fd, epoch: &Fd) -> Result<FlowTable, Errno> {
        let epoch = Mapping::shared(epoch, 0, size_of::<u64>())?;
        let (users, exceptions, excepted) = (HashMap::new(), HashSet::new(), HashMap::new());
        let stand_ins = StandIns::new(stand_ins);
        Ok(FlowTable { three, five, stand_ins, epoch, ended: 0, users, exceptions, excepted })
    }

    /// What the program remembers is void. Called after a change of its tables, never before.
    fn end_epoch(&mut self) {
        self.ended += 1;
        let epoch = self.epoch.at::<AtomicU64>(0);
        // SAFETY: an aligned word in a mapping that `self` owns; any bits will do.
        let epoch = unsafe { &*epoch };
        epoch.store(self.ended, Ordering::SeqCst);
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// No stand-in is left for a peer: what comes from it is the kernel's from now on.
    pub fn leave_to_kernel(&mut self, peer: Ipv6Addr) {
        if self.stand_ins.leave_to_kernel(peer) {
            self.end_epoch();
        }
    }

    /// Does the program know the address that has this stand-in?
    pub fn knows(&self, stand_in: Ipv4Addr) -> bool {
        self.stand_ins.has(stand_in)
    }

    pub fn is_closed_to_strangers(&self) -> bool {
        self.stand_ins.are_too_many()
    }

    /// Steers a flow to us, or counts one more user of it.
    pub fn add(&mut self, flow: Flow) -> Result<(), Errno> {
        let any = any_port(flow);
        if flow == any {
            return self.count(flow);
        }
        self.count(flow)?;
        // The program sends later fragments that overtake their first one by this key.
        self.count(any).inspect_err(|_| self.remove_flow(flow))
    }

    /// Counts one user less of each, by as few system calls as the kernel allows.
    pub fn remove(&mut self, flows: impl Iterator<Item = Flow>) {
        let mut keys = [five(NO_FLOW); BATCH];
        let mut count = 0;
        let mut ends = false;
        for flow in flows {
            match flow {
                Flow::FiveTuple { .. } if self.forget(flow) => {
                    if let Some(key) = keys.get_mut(count) {
                        *key = five(flow);
                    }
                    count += 1;
                    if count == BATCH {
                        bpf::map_delete_all(&self.five, &keys);
                        count = 0;
                    }
                    ends = true;
                }
                Flow::FiveTuple { .. } => {}
                Flow::ThreeTuple { .. } => ends |= self.remove_one(flow),
            }
            let any = any_port(flow);
            if any != flow {
                // For fragments, which the program does not remember.
                self.remove_one(any);
            }
        }
        bpf::map_delete_all(&self.five, keys.get(..count).unwrap_or_default());
        if ends {
            self.end_epoch();
        }
    }

    fn remove_flow(&mut self, flow: Flow) {
        if self.remove_one(flow) {
            self.end_epoch();
        }
    }

    /// A 5-tuple is the kernel's from now on, whatever 3-tuples are ours or will be.
    pub fn except(&mut self, flow: Flow) -> Result<(), Errno> {
        if !self.exceptions.insert(flow) {
            return Ok(());
        }
        let installed = self.stand_ins.add(flow).and_then(|_| {
            let written = bpf::map_update(&self.five, &five(flow), &PASSED);
            written.inspect_err(|_| _ = self.stand_ins.remove(flow))
        });
        if let Err(errno) = installed {
            self.exceptions.remove(&flow);
            return Err(errno);
        }
        let whole = whole(flow);
        *self.excepted.entry(whole).or_default() += 1;
        self.look_closer(whole);
        self.end_epoch();
        Ok(())
    }

    pub fn end_exception(&mut self, flow: Flow) {
        if !self.exceptions.remove(&flow) {
            return;
        }
        // ENOENT cannot hurt, as below.
        let _ = match self.users.contains_key(&flow) {
            true => bpf::map_update(&self.five, &five(flow), &OURS),
            false => bpf::map_delete(&self.five, &five(flow)),
        };
        if self.stand_ins.remove(flow) {
            self.end_epoch();
        }
        let whole = whole(flow);
        if let Some(count) = self.excepted.get_mut(&whole) {
            *count -= 1;
            if *count == 0 {
                self.excepted.remove(&whole);
                self.look_closer(whole);
            }
        }
    }

    pub fn exceptions(&self) -> &HashSet<Flow> {
        &self.exceptions
    }

    /// Writes a 3-tuple that is installed with its present value.
    fn look_closer(&self, whole: Flow) {
        if self.users.contains_key(&whole) {
            // It replaces an entry, which needs no room.
            let _ = bpf::map_update(&self.three, &three(whole), &self.value(whole));
        }
    }

    fn value(&self, flow: Flow) -> u32 {
        match flow {
            Flow::ThreeTuple { .. } if self.excepted.contains_key(&flow) => MOST_PEERS,
            Flow::ThreeTuple { .. } => EVERY_PEER,
            Flow::FiveTuple { .. } => OURS,
        }
    }

    fn count(&mut self, flow: Flow) -> Result<(), Errno> {
        if let Some(users) = self.users.get_mut(&flow) {
            *users += 1;
            return Ok(());
        }
        let value = self.value(flow);
        let is_new = self.stand_ins.add(flow)?;
        match flow {
            Flow::ThreeTuple { .. } => bpf::map_update(&self.three, &three(flow), &value),
            Flow::FiveTuple { .. } => bpf::map_update(&self.five, &five(flow), &value),
        }
        .inspect_err(|_| _ = self.stand_ins.remove(flow))?;
        if is_new {
            self.end_epoch();
        }
        self.users.insert(flow, 1);
        self.end_exception(flow);
        Ok(())
    }

    /// Counts one user less. True if the flow is to go from the program's maps.
    fn forget(&mut self, flow: Flow) -> bool {
        let Some(users) = self.users.get_mut(&flow) else { return false };
        *users -= 1;
        if *users > 0 {
            return false;
        }
        self.users.remove(&flow);
        self.stand_ins.remove(flow);
        !self.exceptions.contains(&flow)
    }

    /// True if it is gone from the program's maps.
    fn remove_one(&mut self, flow: Flow) -> bool {
        if !self.forget(flow) {
            return false;
        }
        // ENOENT cannot hurt: the flow is gone, which is what was wanted.
        let _ = match flow {
            Flow::ThreeTuple { .. } => bpf::map_delete(&self.three, &three(flow)),
            Flow::FiveTuple { .. } => bpf::map_delete(&self.five, &five(flow)),
        };
        true
    }
}

/// So many entries are deleted by one system call.
const BATCH: usize = 16;

const NO_FLOW: Flow =
    Flow::ThreeTuple { protocol: 0, destination: core::net::Ipv4Addr::UNSPECIFIED, port: 0 };

/// The 3-tuple that covers a flow.
fn whole(flow: Flow) -> Flow {
    let (protocol, destination) = flow.destination();
    let (Flow::ThreeTuple { port, .. } | Flow::FiveTuple { port, .. }) = flow;
    Flow::ThreeTuple { protocol, destination, port }
}

/// The key by which an address is known to have some flow of ours.
fn any_port(flow: Flow) -> Flow {
    let (protocol, destination) = flow.destination();
    Flow::ThreeTuple { protocol, destination, port: 0 }
}

fn three(flow: Flow) -> ThreeTuple {
    let (protocol, destination) = flow.destination();
    let (Flow::ThreeTuple { port, .. } | Flow::FiveTuple { port, .. }) = flow;
    ThreeTuple {
        destination: destination.octets(),
        port: port.to_be_bytes(),
        protocol: u16::from(protocol),
    }
}

pub(super) fn five(flow: Flow) -> FiveTuple {
    let (source, source_port) = match flow {
        Flow::FiveTuple { source, source_port, .. } => (source.octets(), source_port),
        Flow::ThreeTuple { .. } => ([0; 4], 0),
    };
    let three = three(flow);
    FiveTuple {
        source,
        destination: three.destination,
        source_port: source_port.to_be_bytes(),
        port: three.port,
        protocol: u32::from(three.protocol),
    }
}

#[cfg(test)]
mod tests;
