//! Addresses and groups that an offloaded UDP socket shares with a socket of another process, or with
//! one of this process that the kernel serves.
//!
//! A steered packet reaches this process only. So a flow that another socket of the host could receive,
//! too, is left to the kernel, which delivers to every member of a group and chooses among the sockets
//! of a port (SO_REUSEADDR, SO_REUSEPORT). The flow is steered again once the others are gone.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::Shown;
use libvma_dev::ipv6_stand_ins;

use super::{Plane, Socket, Stack, State, attach};
use crate::control::Control;
use crate::log::log_line;
use crate::shard::SocketId;
use crate::sys::fd;
use crate::sys::loopback_end::Takes;
use crate::sys::sockaddr::Family;
use crate::sys::time::monotonic_nanos;

/// Of one socket.
#[derive(Default)]
pub struct Sharing {
    /// Addresses that are left to the kernel.
    pub withheld: Vec<Ipv4Addr>,
    /// Reviews in a row that found nobody else at one of them.
    alone: u32,
}

impl Sharing {
    /// The review found that other sockets have a part in these addresses. True if the flows are to change.
    fn review(&mut self, shared: &[Ipv4Addr]) -> bool {
        let left = self.withheld.iter().any(|address| !shared.contains(address));
        self.alone = if left { self.alone + 1 } else { 0 };
        let ends = self.alone >= REVIEWS_ALONE;
        let begins = shared.iter().any(|address| !self.withheld.contains(address));
        if ends {
            self.alone = 0;
            self.withheld.clear();
        }
        ends || begins
    }
}

/// How often the sockets are reviewed. What a later member loses came in this time.
const INTERVAL: u64 = 50_000_000;
/// A review takes at most this share of the internal thread's time.
const COST_SHARE: u64 = 100;
/// After so many reviews that found nobody else, a flow is steered again. The tables are not read in
/// one piece, so that one review may miss a socket.
const REVIEWS_ALONE: u32 = 10;

/// Reviews the sockets now and then, at once at first; in the internal thread.
#[derive(Default)]
pub struct Reviews {
    next: u64,
}

impl Reviews {
    /// Nanoseconds until the next review; None: there is nothing to review.
    pub fn patience(&self) -> Option<u64> {
        (self.next != u64::MAX).then(|| self.next.saturating_sub(monotonic_nanos()))
    }

    /// A socket may have something to share from now on.
    pub fn wake(&mut self) {
        if self.next == u64::MAX {
            self.next = 0;
        }
    }

    pub fn attend(&mut self, stack: &Stack) {
        if monotonic_nanos() < self.next {
            return;
        }
        self.next = match review(stack) {
            Some(cost) => {
                monotonic_nanos().saturating_add(INTERVAL.max(cost.saturating_mul(COST_SHARE)))
            }
            None => u64::MAX,
        };
    }
}

/// Withholds what others came to share, and steers what they have left. Returns how long that took;
/// None without a socket that could share anything.
fn review(stack: &Stack) -> Option<u64> {
    let began = monotonic_nanos();
    let ids = {
        let mut state = stack.shard.lock().ok()?;
        let mut ids = state.ids();
        ids.retain(|id| {
            let socket = state.socket(*id).map(|(_, socket)| socket);
            socket.is_some_and(|socket| socket.state == State::Offloaded && may_share(socket))
        });
        ids
    };
    if ids.is_empty() {
        return None;
    }
    let mut plane = stack.plane.lock().ok()?;
    let plane = plane.as_mut()?;
    plane.control.udp_table().read(|| own_inodes(stack));
    for id in ids {
        review_one(stack, plane, id);
    }
    Some(monotonic_nanos().saturating_sub(began))
}

fn review_one(stack: &Stack, plane: &mut Plane, id: SocketId) {
    let now = shared(stack, &mut plane.control, id);
    let changes = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Some((_, socket)) = state.socket(id) else { return };
        socket.datagrams.get_or_insert_default().sharing.review(&now)
    };
    // A socket works without flows, too: its packets then reach the shadow.
    if changes && let Err(why) = attach::install(stack, plane, id) {
        log_line!(Debug, "a socket is served by the kernel for now: {why}");
    }
}

/// Could a socket of another process receive what this one does?
pub fn may_share(socket: &Socket) -> bool {
    socket.stream.is_none()
        && socket.local.is_some()
        && (!socket.options.memberships.is_empty() || socket.options.shares_port())
}

/// The addresses that must not be steered to a socket, those withheld so far included.
pub fn withheld(stack: &Stack, control: &mut Control, id: SocketId) -> Vec<Ipv4Addr> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    if !state.socket(id).is_some_and(|(_, socket)| may_share(socket)) {
        return Vec::new();
    }
    drop(state);
    control.udp_table().refresh(|| own_inodes(stack));
    let mut all = shared(stack, control, id);
    let own = own_addresses(control);
    let possible = addresses(stack, id, &own).map_or_else(Vec::new, |own| own.addresses);
    let Ok(mut state) = stack.shard.lock() else { return all };
    let Some((_, socket)) = state.socket(id) else { return all };
    let shadow = socket.shadow();
    let withheld = &mut socket.datagrams.get_or_insert_default().sharing.withheld;
    withheld.retain(|address| possible.contains(address));
    for address in &all {
        if !withheld.contains(address) {
            let address = Shown(SocketAddrV4::new(*address, 0));
            log_line!(
                Debug,
                "fd {shadow}: {address} is received by the kernel: another socket of this host has the port"
            );
        }
    }
    all.extend(withheld.iter());
    all.sort_unstable();
    all.dedup();
    withheld.clone_from(&all);
    all
}

/// The addresses that other sockets have a part in, by the table as it was read last.
fn shared(stack: &Stack, control: &mut Control, id: SocketId) -> Vec<Ipv4Addr> {
    let own = own_addresses(control);
    let Some(Own { port, family, addresses }) = addresses(stack, id, &own) else {
        return Vec::new();
    };
    let others = |control: &mut Control| -> Vec<(Ipv4Addr, u64)> {
        let table = control.udp_table();
        let at = |address: &Ipv4Addr| {
            let address = *address;
            table.receivers(address, port, family).map(move |inode| (address, inode))
        };
        addresses.iter().flat_map(at).collect()
    };
    let first = others(control);
    if first.is_empty() {
        return Vec::new();
    }
    // A socket that this process closed while the table was read looks like another one's.
    control.udp_table().read(|| own_inodes(stack));
    let again = others(control);
    let mut shared: Vec<Ipv4Addr> =
        first.into_iter().filter(|other| again.contains(other)).map(|(at, _)| at).collect();
    shared.dedup();
    shared
}

fn own_addresses(control: &Control) -> Vec<Ipv4Addr> {
    control.addresses().iter().map(|known| known.addr).collect()
}

/// Where a socket receives what others may receive, too.
struct Own {
    port: u16,
    family: Family,
    addresses: Vec<Ipv4Addr>,
}

fn addresses(stack: &Stack, id: SocketId, own: &[Ipv4Addr]) -> Option<Own> {
    let mut state = stack.shard.lock().ok()?;
    let (_, socket) = state.socket(id)?;
    let takes_ipv6 = socket.family == Family::Ipv6 && socket.takes != Takes::Ipv4;
    let takes = |address: &Ipv4Addr| match ipv6_stand_ins::is_one(*address) {
        true => takes_ipv6,
        false => socket.takes != Takes::Ipv6,
    };
    let (local, options) = (socket.local?, &socket.options);
    let at = *local.ip();
    let groups = options.memberships.iter().map(|membership| membership.group);
    let mut all: Vec<Ipv4Addr> =
        groups.filter(|group| takes(group) && (at.is_unspecified() || at == *group)).collect();
    // A connected socket is steered its peer's packets only, and those are for it alone.
    let whole = socket.peer.is_none() || stack.config.udp_3t_rules;
    if whole && options.shares_port() && !ipv6_stand_ins::is_multicast(at) {
        match at.is_unspecified() {
            true => all.extend(own.iter().filter(|own| takes(own))),
            false => all.push(at),
        }
    }
    Some(Own { port: local.port(), family: socket.family, addresses: all })
}

/// The sockets of this process that are offloaded, or may be as soon as their bind() is over.
fn own_inodes(stack: &Stack) -> HashSet<u64> {
    let Ok(mut state) = stack.shard.lock() else { return HashSet::new() };
    let mut descriptors = Vec::new();
    for id in state.ids() {
        let Some((_, socket)) = state.socket(id) else { continue };
        if socket.stream.is_none() && !matches!(socket.state, State::Os(_)) {
            descriptors.push(socket.shadow());
        }
    }
    drop(state);
    descriptors.into_iter().map(fd::inode).collect()
}

#[cfg(test)]
mod tests;
