//! The passive side: listeners by address and port, and the connections that wait for accept().

use core::net::SocketAddrV4;
use core::time::Duration;

use libvma_dev::ipv6_stand_ins::{self, covers};
use libvma_engine::drop_reason::DropReason;
use libvma_engine::tcp::connection::own_mss;
use libvma_engine::tcp::listen::{Context, ListenSettings, Listener, Verdict};
use libvma_engine::tcp::lookup::{FlowKey, FlowTable};
use libvma_engine::tcp::{Connection, EcnField, Events, Settings};
use libvma_engine::time::Instant;
use libvma_engine::wire::tcp::Flags;

use super::receive::Arrival;
use super::watch::Watched;
use super::way::{Envelope, Way};
use super::{Block, Body, InheritedState, Io, NEVER, Owner, Tcp, path};
use crate::device::Ring;
use crate::shard::{Flow, NextHop, RingId, SocketId, State, clock};

/// A listener of the shard.
pub(super) struct Listening {
    pub engine: Listener,
    socket: SocketId,
    local: SocketAddrV4,
    /// What accepted connections start with.
    settings: Settings,
    pub(super) inherited_state: InheritedState,
    takes_ipv6: bool,
    /// For segments of IPv4 and of IPv6.
    envelopes: [Envelope; 2],
    /// The ways back to those whose handshake is under way, for retransmissions.
    ways: FlowTable<NextHop>,
    seed: u64,
    /// Until then segments may come that are for connections of the kernel: the flows are new.
    settled: Instant,
    /// Other processes accept from it, too: clients that come now are the kernel's.
    left: bool,
    /// Of handshakes that were under way then.
    flows: Vec<(FlowKey, RingId)>,
}

/// How long it takes at most to find the kernel's connections and to except them.
const SETTLING: Duration = Duration::from_secs(1);

impl Listening {
    /// Ways are forgotten when there are more than requests: the peer's next SYN brings its way.
    fn remember_way(&mut self, arrival: &Arrival<'_>) {
        const MOST: usize = 1024;
        if self.ways.len() > MOST && self.ways.len() > 2 * self.engine.len() {
            self.ways = FlowTable::new(self.seed);
        }
        self.ways.insert(arrival.key, arrival.hop);
    }

    /// The flow that a handshake has got of its own is its connection's.
    fn take_flow(&mut self, key: &FlowKey) -> Vec<(RingId, Flow)> {
        match self.flows.iter().position(|(of, _)| of == key) {
            Some(at) => vec![(self.flows.swap_remove(at).1, five_tuple(key))],
            None => Vec::new(),
        }
    }

    /// Flows of handshakes that came to nothing go.
    fn drop_flows(&mut self, rings: &mut [Ring], all: bool) {
        let engine = &self.engine;
        self.flows.retain(|(key, ring)| {
            let kept = !all && engine.is_half_open(key);
            if !kept && let Some(ring) = rings.get_mut(ring.index()) {
                ring.remove_flow(five_tuple(key));
            }
            kept
        });
    }
}

/// A socket that listens.
pub struct ListenSpec {
    pub local: SocketAddrV4,
    pub backlog: u32,
    pub listen: ListenSettings,
    /// What accepted connections start with.
    pub settings: Settings,
    /// What accept() gets of it.
    pub inherited_state: InheritedState,
    pub takes_ipv6: bool,
    /// TTL and TOS; hop limit and traffic class of IPv6.
    pub envelopes: [(u8, u8); 2],
}

/// A connection taken off the accept queue: give it a socket with [`State::adopt`], or drop it with
/// [`State::reject`].
#[must_use]
pub struct Accepted {
    pub(super) index: u32,
    pub key: FlowKey,
    /// What the listener was when the connection came.
    pub inherited_state: Option<InheritedState>,
}

impl<S> State<S> {
    /// Makes a socket listen, or changes what it was told before.
    pub fn listen(&mut self, id: SocketId, spec: ListenSpec) {
        let known = self.socket(id).and_then(|(endpoint, _)| endpoint.listener);
        let Some((tcp, _)) = self.tcp() else { return };
        let ListenSpec { local, backlog, listen, settings, inherited_state, takes_ipv6, envelopes } =
            spec;
        let envelopes = envelopes.map(|(ttl, tos)| Envelope { ttl, tos });
        if let Some(listening) = known.and_then(|index| tcp.listener(index)) {
            listening.engine.set_backlog(backlog);
            listening.settings = settings;
            listening.inherited_state = inherited_state;
            *listening.engine.settings_mut() = listen;
            listening.envelopes = envelopes;
            return;
        }
        // Not the time of a batch: there is none, and the next one must not start with it.
        let (seed, now) = (tcp.seed, clock::now());
        let engine = Listener::new(listen, backlog, seed, now);
        let ways = FlowTable::new(seed);
        let settled = now.saturating_add(SETTLING);
        let listening = Listening {
            engine,
            socket: id,
            local,
            settings,
            inherited_state,
            takes_ipv6,
            envelopes,
            ways,
            seed,
            settled,
            left: false,
            flows: Vec::new(),
        };
        let index = match tcp.listeners.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                tcp.listeners.push(None);
                tcp.listeners.len() - 1
            }
        };
        if let Some(slot) = tcp.listeners.get_mut(index) {
            *slot = Some(Box::new(listening));
        }
        tcp.listening.entry(local.port()).or_default().push(index as u32);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.listener = Some(index as u32);
        }
    }

    pub fn is_listening(&mut self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|(endpoint, _)| endpoint.listener.is_some())
    }

    /// Has anybody begun to connect to the socket, or waits for accept()?
    pub fn has_clients(&mut self, id: SocketId) -> bool {
        let Some(listener) = self.socket(id).and_then(|(endpoint, _)| endpoint.listener) else {
            return false;
        };
        let Some((tcp, _)) = self.tcp() else { return false };
        tcp.listener(listener)
            .is_some_and(|listening| !listening.engine.is_empty() || listening.engine.is_readable())
    }

    /// Connections in the accept queue; None if the socket does not listen.
    pub fn accept_queue_len(&mut self, id: SocketId) -> Option<usize> {
        let listener = self.socket(id)?.0.listener?;
        let (tcp, _) = self.tcp()?;
        Some(tcp.listener(listener)?.engine.accepted_len())
    }

    /// The next connection off the accept queue.
    pub fn accept(&mut self, id: SocketId) -> Option<Accepted> {
        let listener = self.socket(id)?.0.listener?;
        let (tcp, _) = self.tcp()?;
        let index = tcp.listener(listener)?.engine.pop_accepted()?;
        let block = tcp.block(index)?;
        let (key, inherited_state) =
            (block.connection.key(), block.inherited_state.as_deref().cloned());
        Some(Accepted { index, key, inherited_state })
    }

    /// The accepted connection is this socket's.
    pub fn adopt(&mut self, accepted: Accepted, id: SocketId) {
        let Some((tcp, _)) = self.tcp() else { return };
        if let Some(block) = tcp.block(accepted.index) {
            block.owner = Owner::Socket(id);
            block.inherited_state = None;
            block.events = Events::NONE;
        }
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = Some(accepted.index);
        }
        self.begin_service(accepted.index);
    }

    /// The connection may fill its whole receive buffer from now on.
    #[inline(never)]
    fn begin_service(&mut self, index: u32) {
        let Some((tcp, mut io)) = self.tcp() else { return };
        let now = tcp.now();
        let Some(block) = tcp.block(index) else { return };
        block.connection.begin_service(now);
        // Output that was put off to the end of the batch leaves there.
        if !block.touched && block.connection.wants_output() {
            tcp.output(&mut io, index);
            self.after_tcp();
        }
    }

    /// There is no descriptor for the accepted connection: it waits on, as on Linux.
    pub fn put_back_accepted(&mut self, accepted: Accepted, id: SocketId) {
        let listener = self.socket(id).and_then(|(endpoint, _)| endpoint.listener);
        let Some((tcp, mut io)) = self.tcp() else { return };
        match listener.and_then(|listener| tcp.listener(listener)) {
            Some(listening) => listening.engine.put_back_accepted(accepted.index),
            None => tcp.abort(&mut io, accepted.index),
        }
        self.after_tcp();
    }

    /// Nobody takes the accepted connection: it is reset.
    pub fn reject(&mut self, accepted: Accepted) {
        if let Some((tcp, mut io)) = self.tcp() {
            tcp.abort(&mut io, accepted.index);
        }
        self.after_tcp();
    }

    /// The socket listens no more: connections that nobody accepted are reset, half-open ones
    /// forgotten. Those accepted before get flows of their own from `flow`, because those of the
    /// listener go.
    pub fn end_listening(&mut self, id: SocketId) {
        let listener = self.socket(id).and_then(|(endpoint, _)| endpoint.listener.take());
        let Some(listener) = listener else { return };
        let Some((tcp, mut io)) = self.tcp() else { return };
        let Some(mut listening) = tcp.listeners.get_mut(listener as usize).and_then(Option::take)
        else {
            return;
        };
        if let Some(same) = tcp.listening.get_mut(&listening.local.port()) {
            same.retain(|other| *other != listener);
        }
        listening.drop_flows(io.rings, true);
        let mut resets = Vec::new();
        listening.engine.close(|key, header| resets.push((key, header)));
        for (key, header) in resets {
            if let Some(hop) = listening.ways.get(&key) {
                tcp.reply(&mut io, &hop, key, &header);
            }
        }
        while let Some(index) = listening.engine.pop_accepted() {
            tcp.abort(&mut io, index);
        }
        self.after_tcp();
    }

    /// Other processes accept from the socket's listener, too: the handshakes that are under way end here, on
    /// flows of their own, and new clients are the kernel's. To be called before the listener's flows go.
    pub fn leave_listening(&mut self, id: SocketId) {
        let listener = self.socket(id).and_then(|(endpoint, _)| endpoint.listener);
        let Some((tcp, io)) = self.tcp() else { return };
        let Some(listening) = listener.and_then(|listener| tcp.listener(listener)) else { return };
        if core::mem::replace(&mut listening.left, true) {
            return;
        }
        for key in listening.engine.half_open() {
            if let Some(hop) = listening.ways.get(&key)
                && let Some(ring) = io.rings.get_mut(hop.ring.index())
                && ring.add_flow(five_tuple(&key)).is_ok()
            {
                listening.flows.push((key, hop.ring));
            }
        }
    }

    /// The connections that live on the flows of a listener at this address: they need their own
    /// before those go.
    pub fn steer_accepted(&mut self, local: SocketAddrV4) {
        let Some((tcp, io)) = self.tcp() else { return };
        for block in tcp.blocks.iter_mut().flatten() {
            let key = block.connection.key();
            let mine = key.local_port == local.port() && covers(*local.ip(), key.local);
            let Some(id) =
                block.way.ring().filter(|_| mine && block.known && block.flows.is_empty())
            else {
                continue;
            };
            let flow = five_tuple(&key);
            if let Some(ring) = io.rings.get_mut(id.index())
                && ring.add_flow(flow).is_ok()
            {
                block.flows.push((id, flow));
            }
        }
    }
}

/// The flow of all connections at an address and port.
pub fn three_tuple(key: &FlowKey) -> Flow {
    let FlowKey { local: destination, local_port: port, .. } = *key;
    Flow::ThreeTuple { protocol: libvma_engine::wire::ipv4::protocol::TCP, destination, port }
}

/// The flow of one connection.
pub fn five_tuple(key: &FlowKey) -> Flow {
    Flow::FiveTuple {
        protocol: libvma_engine::wire::ipv4::protocol::TCP,
        source: key.remote,
        source_port: key.remote_port,
        destination: key.local,
        port: key.local_port,
    }
}

impl Tcp {
    pub(super) fn listener(&mut self, index: u32) -> Option<&mut Listening> {
        self.listeners.get_mut(index as usize)?.as_deref_mut()
    }

    /// The listener for a segment: one bound to its very address before one bound to any. Of
    /// several (SO_REUSEPORT) always the same one for a 4-tuple.
    pub(super) fn is_listened_to(&self, key: &FlowKey) -> bool {
        self.listener_for(key).is_some()
    }

    fn listener_for(&self, key: &FlowKey) -> Option<u32> {
        let at_port = self.listening.get(&key.local_port)?;
        let is_ipv6 = ipv6_stand_ins::is_one(key.local);
        for specific in [true, false] {
            let fits = |one: &Listening| match specific {
                true => *one.local.ip() == key.local,
                false => covers(*one.local.ip(), key.local) && (one.takes_ipv6 || !is_ipv6),
            };
            let at = |index: &u32| self.listeners.get(*index as usize)?.as_deref();
            let among = || at_port.iter().filter(|index| at(index).is_some_and(fits));
            let count = among().count();
            if count > 0 {
                let chosen = key.keyed_hash(self.seed) % count as u64;
                return among().nth(chosen as usize).copied();
            }
        }
        None
    }

    /// A segment that is for no connection.
    #[cold]
    pub(super) fn passive_input(
        &mut self,
        io: &mut Io<'_>,
        arrival: &Arrival<'_>,
        body: Body,
    ) -> Result<(), DropReason> {
        let now = self.now();
        if Tcp::is_excepted(io, &arrival.hop, &arrival.key) {
            return self.pass(io, arrival, body);
        }
        let Some(number) = self.listener_for(&arrival.key) else {
            return self.unclaimed(io, arrival, body);
        };
        // A handshake that began here ends here.
        let begins = arrival.header.flags.contains(Flags::SYN);
        let may_pass = !self.is_half_open(number, &arrival.key);
        if may_pass && begins && self.listener(number).is_some_and(|listening| listening.left) {
            return self.pass(io, arrival, body);
        }
        let path = path(io.rings, Some(&arrival.hop));
        let verdict = {
            let Some(listening) =
                self.listeners.get_mut(number as usize).and_then(Option::as_deref_mut)
            else {
                return Err(DropReason::NoSocket);
            };
            let context = Context {
                secret: &self.secret,
                our_mss: u16::try_from(own_mss(path, &listening.settings)).unwrap_or(u16::MAX),
                accept_queue_full: false,
                ecn: EcnField::of(arrival.tos),
            };
            listening.engine.on_segment(
                now,
                arrival.key,
                arrival.header,
                arrival.payload_len,
                &context,
            )
        };
        self.listeners_due =
            self.listeners.iter().flatten().filter_map(|one| one.engine.deadline()).min();
        let Verdict::Established(request) = verdict else {
            let is_kernels = may_pass
                && self
                    .listener(number)
                    .is_some_and(|listening| listening.left || now < listening.settled);
            if is_kernels && matches!(verdict, Verdict::NotMine) {
                return self.pass(io, arrival, body);
            }
            super::body::release(io.rings, &mut self.heaps, body);
            return self.answer(io, number, arrival, verdict);
        };
        let Some(listening) = self.listener(number) else { return Err(DropReason::NoSocket) };
        // A peer that connects sends a request first, as a rule.
        let settings = Settings { first_ack_waits: true, ..listening.settings.clone() };
        let connection = Connection::accept(&request, path, settings, now);
        let [ipv4, ipv6] = listening.envelopes;
        let is_ipv6 = ipv6_stand_ins::is_one(arrival.key.local);
        let (socket, envelope) = (listening.socket, if is_ipv6 { ipv6 } else { ipv4 });
        let inherited_state = Some(Box::new(listening.inherited_state.clone()));
        let flows = listening.take_flow(&arrival.key);
        let index = self.insert(Block {
            serial: 0,
            connection,
            way: Way::new(&arrival.key, Some(&arrival.hop), envelope),
            owner: Owner::Backlog(number),
            flows,
            inherited_state,
            is_accepted: true,
            events: Events::NONE,
            touched: false,
            batched: 0,
            waits: false,
            known: true,
            armed: NEVER,
            retransmissions: 0,
            watched: Watched::new(),
        });
        if let Some(listening) = self.listener(number) {
            listening.engine.push_accepted(index);
            listening.ways.remove(&arrival.key);
        }
        self.feed(io, index, arrival, body);
        self.tell(socket);
        Ok(())
    }

    /// A segment that is for no connection and for no listener: a reset answers it, but a SYN is the kernel's.
    #[cold]
    fn unclaimed(
        &mut self,
        io: &mut Io<'_>,
        arrival: &Arrival<'_>,
        body: Body,
    ) -> Result<(), DropReason> {
        if arrival.header.is_opening() {
            // The flow of a connection that is over led it here. The kernel may have a listener, whose other
            // connections never come here, and answers for its absence, too.
            self.end_retired(io);
            return self.pass(io, arrival, body);
        }
        super::body::release(io.rings, &mut self.heaps, body);
        self.reset(io, arrival);
        Err(DropReason::NoSocket)
    }

    fn is_half_open(&mut self, number: u32, key: &FlowKey) -> bool {
        self.listener(number).is_some_and(|listening| listening.engine.is_half_open(key))
    }

    /// What a listener says to a segment that completes no handshake.
    fn answer(
        &mut self,
        io: &mut Io<'_>,
        number: u32,
        arrival: &Arrival<'_>,
        verdict: Verdict,
    ) -> Result<(), DropReason> {
        match verdict {
            Verdict::Drop(reason) => return Err(reason),
            Verdict::Reply(header) | Verdict::Reset(header) => {
                if header.flags.contains(Flags::SYN)
                    && let Some(listening) = self.listener(number)
                {
                    listening.remember_way(arrival);
                }
                self.reply(io, &arrival.hop, arrival.key, &header);
            }
            Verdict::NotMine => {
                self.reset(io, arrival);
                return Err(DropReason::NoSocket);
            }
            Verdict::Established(_) => {}
        }
        Ok(())
    }

    /// Retransmissions of SYN-ACKs.
    #[cold]
    pub(super) fn run_listeners(&mut self, io: &mut Io<'_>, now: Instant) {
        for number in 0..self.listeners.len() {
            let mut answers = Vec::new();
            if let Some(listening) = self.listener(number as u32) {
                listening.engine.on_timer(now, |key, header| answers.push((key, header)));
                listening.drop_flows(io.rings, false);
                answers.retain(|(key, _)| listening.ways.get(key).is_some());
            }
            for (key, header) in answers {
                let hop = self.listener(number as u32).and_then(|one| one.ways.get(&key));
                if let Some(hop) = hop {
                    self.reply(io, &hop, key, &header);
                }
            }
        }
        self.listeners_due =
            self.listeners.iter().flatten().filter_map(|one| one.engine.deadline()).min();
    }

    /// Resets a connection that is nobody's any more, or never was.
    pub(super) fn abort(&mut self, io: &mut Io<'_>, index: u32) {
        if let Some(block) = self.block(index) {
            block.owner = Owner::Orphan;
        }
        self.with(io, index, |connection, _| connection.abort());
        self.output(io, index);
    }
}
