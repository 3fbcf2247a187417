//! The IPv6 addresses that flows of an interface have, as the steering program knows them: it reads a packet's addresses, and its
//! flows have stand-ins ([`libvma_dev::ipv6_stand_ins`]).

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins::real;
use rustix::io::Errno;

use super::bpf;
use crate::device::Flow;
use crate::sys::Fd;

pub struct StandIns {
    map: Fd,
    /// How many flows have each.
    users: HashMap<Ipv4Addr, u32>,
    /// Peers that the program knows as the kernel's, the oldest first.
    strangers: VecDeque<Ipv6Addr>,
    /// There were more of them.
    are_too_many: bool,
}

/// So many peers without a stand-in does the program know, whose table has room for more. Beyond that the oldest is told again when it is
/// heard of again, and all datagrams are the kernel's but those of peers that a flow names.
const MOST_STRANGERS: usize = 65_536;
const STRANGER: StandIn = StandIn([0xff; 4]);

/// Key of map `stand_ins`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Address([u8; 16]);

/// Its value.
#[repr(C)]
#[derive(Clone, Copy)]
struct StandIn([u8; 4]);

// SAFETY: bytes alone.
unsafe impl bpf::Plain for Address {}
// SAFETY: bytes alone.
unsafe impl bpf::Plain for StandIn {}

impl StandIns {
    pub fn new(map: Fd) -> StandIns {
        StandIns { map, users: HashMap::new(), strangers: VecDeque::new(), are_too_many: false }
    }

    /// No stand-in is left for a peer: what comes from it is the kernel's from now on.
    /// False: the program knows that already.
    pub fn leave_to_kernel(&mut self, peer: Ipv6Addr) -> bool {
        // Frames of one may be under way, which counts once.
        if bpf::map_insert(&self.map, &Address(peer.octets()), &STRANGER).is_err() {
            return false;
        }
        self.strangers.push_back(peer);
        if self.strangers.len() > MOST_STRANGERS
            && let Some(oldest) = self.strangers.pop_front()
        {
            self.are_too_many = true;
            let _ = bpf::map_delete(&self.map, &Address(oldest.octets()));
        }
        true
    }

    /// Were there more peers without a stand-in than the program can know?
    pub fn are_too_many(&self) -> bool {
        self.are_too_many
    }

    /// Does the program know the address?
    pub fn has(&self, stand_in: Ipv4Addr) -> bool {
        self.users.contains_key(&stand_in)
    }

    /// Before the flow is installed. True: the program did not know an address of it.
    pub fn add(&mut self, flow: Flow) -> Result<bool, Errno> {
        let [destination, source] = addresses(flow);
        let is_new = destination.map_or(Ok(false), |it| self.add_one(it))?;
        let added = source.map_or(Ok(false), |it| self.add_one(it));
        let added = added.map(|is_too| is_new || is_too);
        added.inspect_err(|_| destination.into_iter().for_each(|it| _ = self.remove_one(it)))
    }

    /// The flow is gone, or about to go. True: the program does not know an address of it any more.
    pub fn remove(&mut self, flow: Flow) -> bool {
        let gone = addresses(flow).into_iter().flatten().filter(|it| self.remove_one(*it));
        gone.count() > 0
    }

    fn add_one(&mut self, (stand_in, address): (Ipv4Addr, Ipv6Addr)) -> Result<bool, Errno> {
        if let Some(users) = self.users.get_mut(&stand_in) {
            *users += 1;
            return Ok(false);
        }
        bpf::map_update(&self.map, &Address(address.octets()), &StandIn(stand_in.octets()))?;
        self.users.insert(stand_in, 1);
        Ok(true)
    }

    fn remove_one(&mut self, (stand_in, address): (Ipv4Addr, Ipv6Addr)) -> bool {
        let Some(users) = self.users.get_mut(&stand_in) else { return false };
        *users -= 1;
        if *users > 0 {
            return false;
        }
        self.users.remove(&stand_in);
        // ENOENT cannot hurt: it is gone.
        let _ = bpf::map_delete(&self.map, &Address(address.octets()));
        true
    }
}

/// The destination and the source of a flow of IPv6.
fn addresses(flow: Flow) -> [Option<(Ipv4Addr, Ipv6Addr)>; 2] {
    let named = |stand_in| Some((stand_in, real(stand_in)?));
    match flow {
        Flow::ThreeTuple { destination, .. } => [named(destination), None],
        Flow::FiveTuple { source, destination, .. } => [named(destination), named(source)],
    }
}
