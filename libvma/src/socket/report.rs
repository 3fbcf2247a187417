//! How the sockets of a process stand and what they have counted, all at one instant.
//!
//! Under the shard's lock numbers are copied and nothing else: what takes longer (names, questions to
//! the kernel) comes after it. Who asks for a report, and where it goes, is not known here.

pub mod kernels;
pub mod traffic;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_stand_ins;
use libvma_dev::stats::{self, Counters, Drop, Pool, Ring, Snapshot, Socket as Told, Tcp};
use libvma_engine::drop_reason::DropReason;
use libvma_engine::tcp::Info;

use self::traffic::KernelsId;
use super::stream::{Phase, Stream, tell};
use super::{Socket, SocketId, Stack, State, WhyOs, clock};
use crate::extra::Amount;
use crate::log::log_line;
use crate::shard;
use crate::sys::{fd, loopback_end, shadow};

/// Gathers reports. A socket keeps its place in them while it lives.
pub struct Report {
    /// So many places there are.
    most: usize,
    places: Vec<Place>,
    by_id: HashMap<Name, usize>,
    sockets: Vec<Told>,
    /// What was dropped before zeros were wanted.
    drops_before: [u64; DropReason::COUNT],
    /// That there are more sockets than places was said.
    told: bool,
}

/// How a socket is known over its life: one of ours that became the kernel's keeps its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Ours(SocketId),
    Kernels(KernelsId),
}

#[derive(Clone, Default)]
struct Place {
    id: Option<Name>,
    /// The socket is in this report.
    lives: bool,
    why: Option<WhyOs>,
    /// Of this descriptor.
    inode: Option<(i32, u64)>,
}

impl Report {
    /// With so many places for sockets.
    pub fn new(most: usize) -> Report {
        Report {
            most,
            places: Vec::new(),
            by_id: HashMap::new(),
            sockets: Vec::new(),
            drops_before: [0; DropReason::COUNT],
            told: false,
        }
    }

    /// Fills in what sockets and rings have to tell. Returns the places up to the last one in use.
    pub fn gather(&mut self, stack: &Stack, snapshot: &mut Snapshot) -> &[Told] {
        let (held, held_of) = stack.extra.amounts();
        (snapshot.zero_copy_packets, snapshot.zero_copy_bytes) = (held.packets, held.bytes);
        let Ok(mut state) = stack.shard.lock() else { return &[] };
        let ids = state.ids();
        let (kernels, ended) = kernels::all(stack);
        let name_of = |id, was: Option<SocketId>| was.map_or(Name::Kernels(id), Name::Ours);
        let kernels: Vec<_> = kernels.into_iter().map(|(id, was)| (id, name_of(id, was))).collect();
        let ours = ids.iter().map(|id| Name::Ours(*id));
        let all: Vec<_> = ours.chain(kernels.iter().map(|(_, name)| *name)).collect();
        self.assign(&all);
        snapshot.sockets_open = all.len() as u32;
        snapshot.sockets_hidden = 0;
        snapshot.totals = ended;
        for id in ids {
            let Some((counters, limit)) = super::counters(&mut state, id) else { continue };
            snapshot.totals.add(&counters);
            let Some(place) = self.by_id.get(&Name::Ours(id)).copied() else {
                snapshot.sockets_hidden += 1;
                continue;
            };
            if let (Some(told), Some(place)) =
                (self.sockets.get_mut(place), self.places.get_mut(place))
            {
                let held = held_of.get(&id).copied().unwrap_or_default();
                *told = Told { used: 1, counters, ready_limit: limit as u64, ..Told::default() };
                tell_held(told, held);
                place.why = describe(&mut state, id, told);
            }
        }
        let drops = drops(&state);
        let rings = state.ring_statistics();
        let pools = state.pool_statistics();
        drop(state);
        for (id, name) in kernels {
            match self.by_id.get(&name).and_then(|at| self.sockets.get_mut(*at)) {
                Some(told) => match kernels::tell(stack, id) {
                    Some(kernels) => {
                        *told = kernels;
                        // Packets of the time when it was ours.
                        if let Name::Ours(was) = name {
                            tell_held(told, held_of.get(&was).copied().unwrap_or_default());
                        }
                    }
                    None => {
                        *told = Told::default();
                        snapshot.sockets_open -= 1;
                    }
                },
                None => snapshot.sockets_hidden += 1,
            }
        }
        devices(snapshot, &rings, pools);
        self.finish(snapshot, drops);
        if snapshot.sockets_hidden > 0 && !core::mem::replace(&mut self.told, true) {
            log_line!(
                Info,
                "VMA Statistics can monitor up to {} sockets - increase VMA_STATS_FD_NUM",
                self.most
            );
        }
        &self.sockets
    }

    /// From now on the counters of these sockets begin at zero; of everything, if none is named.
    pub fn set_to_zero(&mut self, stack: &Stack, descriptors: &[i32]) {
        kernels::set_to_zero(stack, descriptors);
        let Ok(mut state) = stack.shard.lock() else { return };
        let Ok(mut ended) = stack.ended.lock() else { return };
        for id in state.ids() {
            let Some((_, socket)) = state.socket(id) else { continue };
            let named = socket.descriptors.iter().any(|own| descriptors.contains(own));
            if !named && !descriptors.is_empty() {
                continue;
            }
            // The totals go on.
            if let Some(counters) = state.counters_of(id) {
                ended.add(&counters);
            }
            state.zero_counters(id);
        }
        if descriptors.is_empty() {
            *ended = Counters::default();
            state.zero_rings();
            self.drops_before = drops(&state);
        }
    }

    /// Places for new sockets, the lowest first; those of sockets that are gone become free.
    fn assign(&mut self, ids: &[Name]) {
        self.places.iter_mut().for_each(|place| place.lives = false);
        let mut new = Vec::new();
        for id in ids {
            match self.by_id.get(id).and_then(|at| self.places.get_mut(*at)) {
                Some(place) => place.lives = true,
                None => new.push(*id),
            }
        }
        for (place, told) in self.places.iter_mut().zip(&mut self.sockets) {
            if !place.lives
                && let Some(gone) = place.id.take()
            {
                self.by_id.remove(&gone);
                *told = Told::default();
            }
        }
        let mut at = 0;
        for id in new {
            while self.places.get(at).is_some_and(|place| place.id.is_some()) {
                at += 1;
            }
            if at >= self.most {
                break;
            }
            if at == self.places.len() {
                self.places.push(Place::default());
                self.sockets.push(Told::default());
            }
            if let Some(place) = self.places.get_mut(at) {
                *place = Place { id: Some(id), lives: true, ..Place::default() };
                self.by_id.insert(id, at);
            }
        }
        while self.places.last().is_some_and(|place| place.id.is_none()) {
            self.places.pop();
            self.sockets.pop();
        }
    }

    /// What needs no lock.
    fn finish(&mut self, snapshot: &mut Snapshot, drops: [u64; DropReason::COUNT]) {
        for (told, place) in self.sockets.iter_mut().zip(&mut self.places) {
            // The kernel told all of its own.
            if told.used == 0 || told.inode != 0 {
                continue;
            }
            told.reason = place.why.map_or([0; 64], |why| stats::text(&why.to_string()));
            let (_, inode) = *place
                .inode
                .filter(|(descriptor, _)| *descriptor == told.descriptor)
                .get_or_insert_with(|| (told.descriptor, fd::inode(told.descriptor)));
            place.inode = Some((told.descriptor, inode));
            told.inode = inode;
            if told.local_port == 0 {
                (told.local, told.local_port) = told_address(end_of(
                    told,
                    loopback_end::shown,
                    loopback_end::shown_of_datagrams,
                ));
            }
            if told.peer_port == 0 && told.flags & stats::WITHIN_HOST != 0 {
                let peer = end_of(told, loopback_end::peer, shadow::peer_address);
                (told.peer, told.peer_port) = told_address(peer);
            }
        }
        for told in self.sockets.iter_mut().filter(|told| told.used > 0) {
            told.local_ipv6 = ipv6_of(told.local);
            told.peer_ipv6 = ipv6_of(told.peer);
        }
        let counts = DropReason::ALL.iter().zip(drops.iter().zip(self.drops_before));
        let mut slots = snapshot.drops.iter_mut();
        for (reason, (count, before)) in counts {
            let count = count.saturating_sub(before);
            if count > 0
                && let Some(slot) = slots.next()
            {
                *slot = Drop { reason: stats::text(reason.name()), count };
            }
        }
        slots.for_each(|slot| *slot = Drop::default());
    }
}

/// The address that this one stands for, if it does.
fn ipv6_of(address: [u8; 4]) -> [u8; 16] {
    ipv6_stand_ins::real(address.into()).map_or([0; 16], |real| real.octets())
}

/// Tells the amount that the program has of a socket.
fn tell_held(told: &mut Told, held: Amount) {
    (told.zero_copy_packets, told.zero_copy_bytes) = (held.packets, held.bytes);
}

fn devices(snapshot: &mut Snapshot, rings: &[Ring], pools: [Pool; stats::POOLS]) {
    snapshot.rings = Default::default();
    for (place, ring) in snapshot.rings.iter_mut().zip(rings) {
        *place = *ring;
    }
    snapshot.pools = pools;
}

fn drops(state: &shard::State<Socket>) -> [u64; DropReason::COUNT] {
    let mut counts = [0; DropReason::COUNT];
    for (count, reason) in counts.iter_mut().zip(DropReason::ALL) {
        *count = state.drops(*reason);
    }
    counts
}

/// How a socket stands. Returns why it is the kernel's, if it is.
fn describe(state: &mut shard::State<Socket>, id: SocketId, told: &mut Told) -> Option<WhyOs> {
    let local_ring = state.local_ring_id();
    let (endpoint, socket) = state.socket(id)?;
    told.descriptor = socket.shadow();
    told.flags = flags(socket, local_ring);
    (told.rx_thread, told.tx_thread) = (endpoint.rx_thread, endpoint.tx_thread);
    (told.ready_packets, told.ready_bytes) = (endpoint.datagrams(), endpoint.waiting().1);
    (told.local, told.local_port) = told_address(socket.local);
    (told.peer, told.peer_port) = told_address(socket.peer);
    let why = match socket.state {
        State::Os(why) => Some(why),
        State::Offloaded | State::Undecided => None,
    };
    let Some(stream) = &socket.stream else {
        told.kind = libc::SOCK_DGRAM as u32;
        let options = &socket.options;
        told.multicast_interface = options.multicast_source.map_or([0; 4], |one| one.octets());
        for membership in &options.memberships {
            if let Some(place) = told.groups.get_mut(told.group_count as usize) {
                let group = membership.group;
                let real = ipv6_stand_ins::real(group).unwrap_or_else(|| group.to_ipv6_mapped());
                *place = real.octets();
                told.group_count += 1;
            }
        }
        return why;
    };
    told.kind = libc::SOCK_STREAM as u32;
    told.tcp_state = unconnected_state(stream);
    if endpoint.has_pipe() {
        told.flags |= stats::WITHIN_HOST;
        if let Some(pipe) = state.pipe(id) {
            told.ready_bytes = pipe.readable() as u64;
            told.unsent_bytes = pipe.backlog().len() as u64;
            told.tcp_state = match (pipe.is_established(), pipe.is_shut(), pipe.is_finished()) {
                (false, ..) => SYN_SENT,
                (true, false, false) => ESTABLISHED,
                (true, true, false) => FIN_WAIT_2,
                (true, false, true) => CLOSE_WAIT,
                (true, true, true) => CLOSE,
            };
        }
    } else if let Some(connection) = state.connection(id) {
        let info = connection.info(clock::now());
        told.tcp_state = u32::from(tell::state_number(info.state));
        told.ready_bytes = u64::from(connection.queued());
        told.unsent_bytes = u64::from(connection.unacknowledged());
        let key = connection.key();
        (told.local, told.local_port) = told_address(Some(key.local_endpoint()));
        (told.peer, told.peer_port) = told_address(Some(key.remote_endpoint()));
        told.tcp = tcp(&info);
    }
    why
}

/// The numbers of linux/tcp.h.
const ESTABLISHED: u32 = 1;
const SYN_SENT: u32 = 2;
const FIN_WAIT_2: u32 = 5;
const CLOSE: u32 = 7;
const CLOSE_WAIT: u32 = 8;
const LISTEN: u32 = 10;

fn unconnected_state(stream: &Stream) -> u32 {
    match stream.phase {
        Phase::Listening { .. } => LISTEN,
        Phase::Connecting => SYN_SENT,
        Phase::Fresh | Phase::Connected => CLOSE,
    }
}

fn flags(socket: &Socket, local_ring: Option<super::RingId>) -> u32 {
    let is_stream = socket.stream.is_some();
    let route = socket.route.as_ref();
    let within_host = matches!(
        route.map(|route| route.via),
        Some(super::Via::Ring { hop, .. }) if Some(hop.ring) == local_ring
    );
    let each = [
        (socket.state == State::Offloaded, stats::OFFLOADED),
        (!socket.nonblocking, stats::BLOCKING),
        (!is_stream && socket.loops_multicast(), stats::MULTICAST_LOOP),
        (within_host, stats::WITHIN_HOST),
    ];
    each.into_iter().filter(|(holds, _)| *holds).fold(0, |flags, (_, flag)| flags | flag)
}

/// An end as the kernel tells it: `of_stream` asks for a stream's, `of_another` for another socket's.
fn end_of(
    told: &Told,
    of_stream: fn(i32) -> Option<SocketAddrV4>,
    of_another: fn(i32) -> Option<SocketAddrV4>,
) -> Option<SocketAddrV4> {
    let ask = if told.kind == libc::SOCK_STREAM as u32 { of_stream } else { of_another };
    ask(told.descriptor)
}

fn told_address(address: Option<SocketAddrV4>) -> ([u8; 4], u16) {
    let address = address.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    (address.ip().octets(), address.port())
}

fn tcp(info: &Info) -> Tcp {
    let micros = |time: core::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    Tcp {
        round_trip: info.srtt.map_or(0, micros),
        round_trip_variance: micros(info.rttvar),
        retransmission_timeout: micros(info.rto),
        congestion_window: info.cwnd,
        slow_start_threshold: info.ssthresh,
        segment_size: info.snd_mss,
        send_window: info.snd_wnd,
        receive_window: info.rcv_wnd,
        timeouts: info.counters.timeouts,
        out_of_order: info.counters.out_of_order,
    }
}

#[cfg(test)]
mod tests;
