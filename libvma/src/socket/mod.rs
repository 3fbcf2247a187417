//! POSIX semantics of one socket: blocking, flags, options, errors, its shadow in the kernel.
//!
//! Every call ends in one of three ways ([`Outcome`]): we did it, it failed, or the kernel's socket
//! of the same number (the *shadow*) shall do it. Anything not done here is passed on, per call or,
//! by [`attach::un_offload`], for good; the program cannot tell.

mod ancillary;
pub mod attach;
pub mod attaching;
pub mod block;
pub mod brevity;
mod contention;
pub mod dump;
pub mod egress;
pub mod filter;
#[cfg(test)]
pub(crate) mod fixture;
pub mod hand_over;
pub mod local;
pub mod lost_rings;
pub mod message;
pub mod multicast;
pub mod options;
pub mod order;
mod outstanding;
pub mod receive;
pub mod report;
pub mod shadow_news;
pub mod sharing;
pub mod stream;
pub mod wait;
mod why;

pub use why::{Remedy, WhyOs};

pub use crate::shard::{RingId, SocketId, clock};

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use libvma_engine::drop_reason::DropReason;

use self::brevity::Brevity;
use self::order::Order;
use self::outstanding::Outstanding;
use self::shadow_news::{Kind, Shadows};
use crate::config::Config;
use crate::control::Control;
use crate::extra::Extra;
use crate::log::log_line;
use crate::process::inherit;
use crate::shard::{self, Envelope, Flow, NextHop};
use crate::stats::{SocketCounters, StatsFile};
use crate::sys::load::Load;
use crate::sys::lock::Lock;
use crate::sys::loopback_end::Takes;
use crate::sys::shadow;
use crate::sys::sockaddr::Family;
use crate::sys::wait::Waker;

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    Ours(T),
    Errno(i32),
    /// The kernel shall do it.
    Os(WhyOs),
}

/// What the sockets of a process share.
pub struct Stack {
    pub config: Config,
    pub shard: shard::Shard<Socket>,
    /// When a receive call last took what had arrived though it need not have, for
    /// VMA_RX_CQ_DRAIN_RATE_NSEC.
    pub drained: AtomicU64,
    /// Clients of a listener that no thread has waited on yet.
    pub hold: stream::hold::Hold,
    /// None until the first socket needs it, or if netlink is not to be had.
    pub plane: Lock<Option<Plane>>,
    /// The instances that tell the internal thread of news of the shadows.
    pub shadows: Shadows,
    /// When the next interface is to be attached.
    pub attaching: attaching::Schedule,
    /// Wakes the internal thread when there is something new for it to attend to.
    pub internal_waker: Option<Arc<Waker>>,
    /// Who else wants the CPUs.
    pub load: Load,
    /// Other processes of this host.
    pub local: local::Local,
    /// Connections within the host, and UDP sockets, that ended after a request or two.
    pub short_streams: Brevity,
    pub short_datagrams: Brevity,
    pub stats: StatsFile,
    /// What sockets have counted that are no more. Only locked with the shard, so that a socket is
    /// either there or in here.
    pub ended: Lock<SocketCounters>,
    /// Sockets that became the kernel's, to be told of.
    pub kernels: report::kernels::Kernels,
    /// The host's TCP settings, as they were when a stream socket was opened.
    pub system: Lock<stream::KnownSystem>,
    /// The secret behind initial sequence numbers and time stamps. None inside: the kernel does not show its own.
    pub starts: OnceLock<Option<[u8; 16]>>,
    /// Ports of UDP sockets that other processes got from this one.
    pub passed: Lock<HashSet<u16>>,
    /// The state of the Extra API.
    pub extra: Extra,
    /// Connections, for the daemon.
    pub watch: stream::watch::Watch,
}

pub type Shard = shard::State<Socket>;

/// The control plane and what it led to.
pub struct Plane {
    pub control: Control,
    /// Per interface: its ring, or why it has none.
    pub rings: HashMap<u32, Result<RingId, WhyOs>>,
    /// Interfaces that are to get one.
    pub wanted: attaching::Wanted,
}

impl Stack {
    /// What wakes the internal thread, for a child that asks for a socket.
    pub fn internal_waker_descriptor(&self) -> i32 {
        self.internal_waker.as_ref().map_or(-1, |waker| waker.raw())
    }

    /// There is something new for the internal thread to attend to.
    #[cold]
    pub fn wake_internal_thread(&self) {
        if let Some(waker) = &self.internal_waker {
            waker.wake();
        }
    }
}

/// One socket, as POSIX sees it: UDP, or TCP with what only that has in `stream`.
pub struct Socket {
    /// Every descriptor number of the program that refers to it; the first one is the shadow's.
    pub descriptors: Vec<i32>,
    pub state: State,
    /// How a UDP socket names IPv4 addresses. A stream has its own.
    pub family: Family,
    /// O_NONBLOCK. Of the open file description, hence shared by all its descriptors.
    pub nonblocking: bool,
    /// What getsockname() says; None while unbound.
    pub local: Option<SocketAddrV4>,
    /// What getpeername() says.
    pub peer: Option<SocketAddrV4>,
    /// Of a UDP socket: the families that it takes.
    pub takes: Takes,
    pub options: options::Options,
    /// Flows installed for it.
    flows: Vec<(RingId, Flow)>,
    /// Of a UDP socket: its knowledge of others.
    datagrams: Option<Box<Datagrams>>,
    /// The next hop of the last destination.
    route: Option<Box<CachedRoute>>,
    /// The internal thread watches the shadow.
    is_shadow_watched: bool,
    /// Whose turn it is, ours or the shadow's.
    pub order: Order,
    /// What the next call reports; 0 is nothing.
    pending_error: i32,
    /// MSG_MORE data waits in the shadow.
    os_corked: bool,
    /// The program chose its address by bind(), so that others may know it.
    pub named: bool,
    /// Other processes of this host find it.
    pub posted: Option<Box<local::Posted>>,
    /// Its first datagram went to an address of this host.
    starts_locally: bool,
    /// What it has counted is told of among the kernel's from now on.
    goes_on: bool,
    /// How often the process had forked when it was made: a child made since then has it, too.
    forks: u32,
    /// What only a TCP socket has.
    pub stream: Option<Box<stream::Stream>>,
}

/// The knowledge that a UDP socket has of others. Apart, because a stream has no use for it.
#[derive(Default)]
struct Datagrams {
    /// Flows not installed for it, because other sockets of the host have a part in them.
    sharing: sharing::Sharing,
    /// The key under which sockets like it are remembered: its destination, or [`brevity::AUTOMATIC`].
    brevity_key: Option<SocketAddrV4>,
    /// Of a server: the clients within the host that it answered last.
    strangers: egress::Strangers,
}

/// Is the socket offloaded?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not bound yet: it could become either.
    Undecided,
    Offloaded,
    /// The kernel's for good.
    Os(WhyOs),
}

/// A destination's route, valid for one epoch of the shard.
#[derive(Clone, Copy)]
struct CachedRoute {
    /// Within the host: so many went by the kernel, which may be slower, since the last one by the link;
    /// u16::MAX is any number.
    by_kernel: u16,
    destination: Ipv4Addr,
    /// The source that the call named (IP_PKTINFO).
    source: Option<Ipv4Addr>,
    /// The shard's count of answers then; see `State::answers`.
    answers: u64,
    /// Within the host a port is another process's than the next one.
    port: Option<u16>,
    epoch: u64,
    via: Via,
    /// What went by this route to another process of this host and may not be read yet.
    outstanding: Outstanding,
    /// Of a route to another process of this host, after the first datagram.
    envelope: Option<Envelope>,
}

/// How a destination is reached.
#[derive(Clone, Copy, Debug)]
pub enum Via {
    Ring {
        hop: NextHop,
        source: Ipv4Addr,
        /// Unless the socket's IP_TTL says otherwise, which is not for packets of IPv6.
        hop_limit: Option<u8>,
        /// Of packets of IPv6: IPV6_TCLASS.
        class: Option<u8>,
    },
    Os(WhyOs),
}

impl Socket {
    /// The kernel has sent a datagram: what goes by a link next comes after it. Whether the call named the route's destination does not
    /// matter: by another address of this host the kernel may reach the same socket.
    #[cold]
    #[inline(never)]
    fn note_sent_by_kernel(&mut self) {
        if let Some(route) = self.route.as_deref_mut()
            && route.port.is_some()
        {
            let count = if self.options.segment == 0 { 1 } else { u16::MAX };
            route.by_kernel = route.by_kernel.saturating_add(count);
        }
    }

    pub fn new(descriptor: i32, nonblocking: bool, config: &Config) -> Socket {
        Socket {
            descriptors: vec![descriptor],
            state: State::Undecided,
            family: Family::Ipv4,
            nonblocking,
            local: None,
            peer: None,
            takes: Takes::default(),
            options: options::Options::new(config),
            flows: Vec::new(),
            datagrams: None,
            route: None,
            is_shadow_watched: false,
            order: Order::default(),
            pending_error: 0,
            os_corked: false,
            named: false,
            posted: None,
            starts_locally: false,
            goes_on: false,
            forks: inherit::forks(),
            stream: None,
        }
    }

    /// SO_ERROR would tell something of a socket without a connection.
    pub fn has_error(&self) -> bool {
        self.pending_error != 0
    }

    /// Is a flow not installed for it, because other sockets of the host have a part in it?
    fn is_withheld(&self) -> bool {
        self.datagrams.as_ref().is_some_and(|datagrams| !datagrams.sharing.withheld.is_empty())
    }

    /// May its shadow receive IPv6 datagrams?
    fn takes_ipv6(&self) -> bool {
        self.family == Family::Ipv6 && self.peer.is_none()
    }

    /// The number under which senders of this host know the socket among those that share its port with SO_REUSEPORT; 0: none.
    fn member(&self) -> u8 {
        let posted = self.posted.as_ref().filter(|_| self.options.reuse_port);
        posted.map_or(0, |posted| posted.member_number())
    }

    /// Do the groups that it sends to loop? That goes by the socket's family, also for IPv4 groups under mapped names (sk_mc_loop() of
    /// Linux).
    pub fn loops_multicast(&self) -> bool {
        match self.family {
            Family::Ipv4 => self.options.multicast.is_looped,
            Family::Ipv6 => self.options.ipv6_multicast.is_looped,
        }
    }

    /// The number by which the kernel knows the socket.
    pub fn shadow(&self) -> i32 {
        self.descriptors.first().copied().unwrap_or(-1)
    }
}

/// A new UDP socket of the program; `nonblocking` from SOCK_NONBLOCK.
pub fn open(stack: &Stack, descriptor: i32, nonblocking: bool, family: Family) -> Option<SocketId> {
    let limit = shadow::int_option(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF);
    let limit = limit.map_or(212_992, |bytes| bytes.max(0) as usize);
    if !stack.config.tx_mc_loopback {
        shadow::set_int_option(descriptor, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0);
        // ENOPROTOOPT of AF_INET.
        shadow::set_int_option(descriptor, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0);
    }
    let socket = Socket { family, ..Socket::new(descriptor, nonblocking, &stack.config) };
    let mut state = stack.shard.lock().ok()?;
    let id = state.attach(socket, limit);
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.shadow = descriptor;
    }
    Some(id)
}

/// The program closed one of the socket's descriptors; the last one ends it. Returns whether it
/// did.
pub fn close(stack: &Stack, id: SocketId, descriptor: i32) -> bool {
    close_by(stack, id, descriptor, descriptor)
}

/// As [`close`], if the number names another file already: that is none of ours.
pub fn close_lost(stack: &Stack, id: SocketId, descriptor: i32) -> bool {
    close_by(stack, id, descriptor, NO_SHADOW)
}

/// The number of a shadow that is gone.
pub const NO_SHADOW: i32 = -1;

fn close_by(stack: &Stack, id: SocketId, descriptor: i32, shadow: i32) -> bool {
    let Ok(mut state) = stack.shard.lock() else {
        // In a signal handler that got past the wrapper, above our own lock. The flows of the
        // socket stay until the process ends; the caller closes the shadow all the same.
        return true;
    };
    let Some((endpoint, socket)) = state.socket(id) else { return true };
    socket.descriptors.retain(|other| *other != descriptor);
    if let Some(living) = socket.descriptors.first() {
        endpoint.shadow = *living;
        return false;
    }
    if socket.is_shadow_watched {
        let kind = if socket.stream.is_some() { Kind::Streams } else { Kind::Datagrams };
        stack.shadows.forget(kind, shadow);
    }
    if socket.stream.is_some() {
        // Other threads may have bytes for the kernel until the connection has ended.
        if shadow != NO_SHADOW {
            socket.descriptors.push(shadow);
        }
        drop(state);
        stream::close(stack, id, shadow);
        stack.extra.forget(id);
        return true;
    }
    let shared = hand_over::is_shared(socket) && socket.state == State::Offloaded;
    let (flows, posted) = (socket.flows.clone(), socket.posted.take());
    if shared {
        drop(state);
        hand_over::note_passed(stack, id);
        state = match stack.shard.lock() {
            Ok(state) => state,
            Err(_) => return true,
        };
        hand_over::queue(&mut state, id, shadow, &flows);
    }
    if let Some((_, socket)) = state.socket(id) {
        socket.flows.clear();
    }
    for (ring, flow) in &flows {
        state.remove_flow(*ring, *flow);
    }
    if let Some(posted) = posted {
        drop(state);
        local::unpost(stack, *posted);
        state = match stack.shard.lock() {
            Ok(state) => state,
            Err(_) => return true,
        };
    }
    // What has arrived for it goes with it, not to the next socket on its port.
    state.catch_up();
    if shared {
        hand_over::queue(&mut state, id, shadow, &flows);
    }
    if state.has_unsent() {
        state.kick_all();
    }
    let counters = last_counters(stack, &mut state, id);
    let lived = brevity::was_short(&mut state, id);
    state.detach(id);
    stack.extra.forget(id);
    drop(state);
    if let Some((key, was_short)) = lived {
        stack.short_datagrams.note(key, was_short, clock::now().as_nanos());
    }
    if let Some((counters, limit)) = counters {
        stack.stats.append(descriptor, &counters, limit);
    }
    true
}

/// The kernel's for good, nothing of ours left to read, and nobody waits on it, who would have to find
/// it the kernel's and not gone: no call needs to look here any more.
pub fn is_retired(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let withholds = state.withholds(id);
    state.socket(id).is_none_or(|(endpoint, socket)| {
        let idle = !endpoint.is_readable() && !withholds && !endpoint.is_waited_for();
        matches!(socket.state, State::Os(_)) && idle
    })
}

/// Was the socket given to the kernel for good?
pub fn is_kernels(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.socket(id).is_none_or(|(_, socket)| matches!(socket.state, State::Os(_)))
}

pub fn is_stream(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.socket(id).is_some_and(|(_, socket)| socket.stream.is_some())
}

/// Every number of the program that refers to a socket.
pub fn descriptors(stack: &Stack, id: SocketId) -> Vec<i32> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    state.socket(id).map_or_else(Vec::new, |(_, socket)| socket.descriptors.clone())
}

/// dup(): one more descriptor of the same socket.
pub fn duplicate(stack: &Stack, id: SocketId, descriptor: i32) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    match state.socket(id) {
        Some((_, socket)) => {
            socket.descriptors.push(descriptor);
            true
        }
        None => false,
    }
}

/// At exit: what still waits is sent, connections go to the kernel, and the sockets that were not closed report their counters.
pub fn at_exit(stack: &Stack) {
    let Ok(mut state) = stack.shard.lock() else { return };
    state.kick_all();
    for reason in DropReason::ALL {
        let count = state.drops(*reason);
        if count > 0 {
            log_line!(Debug, "received and not delivered, {reason}: {count}");
        }
    }
    state.log_links();
    if !stack.stats.is_wanted() {
        return;
    }
    for id in state.ids() {
        let descriptor = state.socket(id).map(|(_, socket)| socket.shadow());
        if let (Some(descriptor), Some((counters, limit))) = (descriptor, counters(&mut state, id))
        {
            stack.stats.append(descriptor, &counters, limit);
        }
    }
    drop(state);
    report::kernels::at_exit(stack);
}

/// At exit, as the last thing: interfaces are given up.
pub fn leave_interfaces(stack: &Stack) {
    let left = stack.shard.lock().map(|mut state| state.leave_interfaces());
    if let Ok(Err(errno)) = left {
        log_line!(Debug, "the process ends when the kernel has detached the interfaces: {errno}");
    }
}

/// What a socket has counted that is about to be detached, before the lock is given up; None if that is
/// not to be told yet.
fn last_counters(
    stack: &Stack,
    state: &mut crate::shard::State<Socket>,
    id: SocketId,
) -> Option<(SocketCounters, usize)> {
    let last = counters(state, id)?;
    if let Ok(mut ended) = stack.ended.lock() {
        ended.add(&last.0);
    }
    let goes_on = state.socket(id).is_some_and(|(_, socket)| socket.goes_on);
    (!goes_on).then_some(last)
}

fn counters(
    state: &mut crate::shard::State<Socket>,
    id: SocketId,
) -> Option<(SocketCounters, usize)> {
    let counters = state.counters_of(id)?;
    let (endpoint, socket) = state.socket(id)?;
    let limit = match &socket.stream {
        Some(stream) => stream.settings.receive_buffer.most as usize,
        None => endpoint.limit,
    };
    Some((counters, limit))
}

#[cfg(test)]
mod tests;
