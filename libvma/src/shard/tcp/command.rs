//! What sockets ask of their connections.

use std::io::IoSlice;

use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::seq::Seq;
use libvma_engine::tcp::{
    Connection, Error, Events, Readiness, SendFlags, Settings, State as TcpState,
};
use libvma_engine::time::Instant;

use super::listen::five_tuple;
use super::watch::Watched;
use super::way::{Envelope, Way};
use super::{Attachment, Block, Body, Io, NEVER, Owner, Tcp, Wire, path};
use crate::device::Ring;
use crate::shard::{Flow, NextHop, RingId, SocketId, State};
use crate::sys::errand;
use crate::sys::kernel_start::Start;
use crate::sys::user::{self, Copied};

/// A connection to open.
pub struct Opening {
    pub key: FlowKey,
    /// None: the neighbour is being resolved.
    pub hop: Option<NextHop>,
    pub ttl: u8,
    pub tos: u8,
    pub settings: Settings,
    pub flows: Vec<(RingId, Flow)>,
    /// As the kernel would begin, where that is known.
    pub start: Option<Start>,
}

/// The pieces behind so many bytes.
#[inline]
fn behind<'a>(data: &'a [IoSlice<'_>], mut skip: usize) -> impl Iterator<Item = &'a [u8]> {
    data.iter().filter_map(move |piece| {
        let here = skip.min(piece.len());
        skip -= here;
        piece.get(here..).filter(|rest| !rest.is_empty())
    })
}

/// Queues what is before memory that is not there.
#[cold]
fn send_good(
    connection: &mut Connection<Body>,
    now: Instant,
    data: &[IoSlice<'_>],
    (skip, mut good): (usize, usize),
    flags: SendFlags,
) -> Result<Copied, Error> {
    if good == 0 {
        // An error of the connection comes first.
        return connection.may_write().map(|()| Copied { bytes: 0, fault: true });
    }
    let pieces = behind(data, skip).map_while(|piece| {
        let piece = piece.get(..good).unwrap_or(piece);
        good -= piece.len();
        Some(piece).filter(|piece| !piece.is_empty())
    });
    connection.send(now, pieces, flags).map(|bytes| Copied { bytes, fault: true })
}

/// The addresses and ports are those of another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressInUse;

impl<S> State<S> {
    /// May a connection with these addresses and ports begin? One in TIME-WAIT makes room.
    pub fn has_room_for_connection(&mut self, key: &FlowKey) -> bool {
        let Some((tcp, _)) = self.tcp() else { return true };
        tcp.table.get(key).is_none_or(|index| tcp.makes_room(index))
    }

    /// Actively opens a connection for a socket: its SYN leaves.
    pub fn open_connection(&mut self, id: SocketId, opening: Opening) -> Result<(), AddressInUse> {
        self.begin();
        let Some((tcp, mut io)) = self.tcp() else { return Err(AddressInUse) };
        let Opening { key, hop, ttl, tos, mut settings, flows, start } = opening;
        settings.first_ack_waits = tcp.first_words.expects(&key);
        let mut former = None;
        if let Some(index) = tcp.table.get(&key) {
            if !tcp.makes_room(index) {
                return Err(AddressInUse);
            }
            former = tcp.block(index).map(|block| block.connection.successor());
            tcp.tear_down(&mut io, index);
        }
        let now = tcp.now();
        let own = || (tcp.secret.initial_sequence(now, &key), tcp.secret.timestamp_offset(&key));
        let (iss, stamp) = former.unwrap_or_else(|| {
            let (sequence, stamp) = own();
            let kernels = start.and_then(|start| start.sequence).map(Seq::new);
            (kernels.unwrap_or(sequence), start.map_or(stamp, |start| start.stamp_offset))
        });
        let path = path(io.rings, hop.as_ref());
        let connection = Connection::connect(key, iss, stamp, path, settings, now);
        let index = tcp.insert(Block {
            serial: 0,
            connection,
            way: Way::new(&key, hop.as_ref(), Envelope { ttl, tos }),
            owner: Owner::Socket(id),
            flows,
            inherited_state: None,
            is_accepted: false,
            events: Events::NONE,
            touched: false,
            batched: 0,
            waits: false,
            known: true,
            armed: NEVER,
            retransmissions: 0,
            watched: Watched::new(),
        });
        tcp.with(&mut io, index, |connection, wire| connection.output(now, wire));
        tcp.settle(&mut io, index);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = Some(index);
        }
        self.after_tcp();
        Ok(())
    }

    pub(super) fn connection_of(&mut self, id: SocketId) -> Option<u32> {
        self.socket(id)?.0.connection
    }

    /// The socket's connection, to look at.
    #[inline]
    pub fn connection(&mut self, id: SocketId) -> Option<&mut Connection<Body>> {
        let index = self.connection_of(id)?;
        Some(&mut self.tcp.as_deref_mut()?.block(index)?.connection)
    }

    /// Does something to the socket's connection, then sends what follows from it.
    pub fn with_connection<T>(
        &mut self,
        id: SocketId,
        call: impl FnOnce(&mut Connection<Body>, &mut Wire<'_>, Instant) -> T,
    ) -> Option<T> {
        self.begin();
        let index = self.connection_of(id)?;
        let (tcp, mut io) = self.tcp()?;
        let now = tcp.now();
        let result = tcp.with(&mut io, index, |connection, wire| call(connection, wire, now))?;
        tcp.output(&mut io, index);
        self.after_tcp();
        Some(result)
    }

    /// Queues bytes for sending and sends what may be sent. 0: no room. Only bytes that find room are looked at; as in the kernel
    /// those before memory that is not there are sent.
    #[inline]
    pub fn stream_send(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        skip: usize,
        flags: SendFlags,
    ) -> Option<Result<Copied, Error>> {
        self.begin();
        let index = self.connection_of(id)?;
        let (tcp, mut io) = self.tcp()?;
        let now = tcp.now();
        let (result, holds) = tcp.with(&mut io, index, |connection, wire| {
            let good = user::gives(data, skip, connection.send_room());
            let result = if good.fault {
                send_good(connection, now, data, (skip, good.bytes), flags)
            } else {
                let sent = connection.send(now, behind(data, skip), flags);
                sent.map(|bytes| Copied { bytes, fault: false })
            };
            wire.eager = true;
            if connection.wants_output() {
                connection.output(now, wire);
            }
            (result, connection.holds_data())
        })?;
        tcp.settle(&mut io, index);
        self.after_tcp();
        if holds {
            self.look_after_held(id);
        }
        // What a busy device did not take of an early kick.
        if !errand::has_kick() {
            self.unsent |= self.rings.iter_mut().any(Ring::is_stuck);
        }
        Some(result)
    }

    /// What goes into the IP headers of the connection's segments.
    pub fn set_envelope(&mut self, id: SocketId, ttl: Option<u8>, tos: u8) {
        let Some(index) = self.connection_of(id) else { return };
        if let Some((tcp, _)) = self.tcp()
            && let Some(block) = tcp.block(index)
        {
            let ttl = ttl.unwrap_or(block.way.envelope().ttl);
            block.way.set_envelope(&block.connection.key(), Envelope { ttl, tos });
        }
    }

    /// The program closed the socket: the connection goes on by itself until it is done, and
    /// `kept` as long.
    pub fn orphan_connection(&mut self, id: SocketId, kept: Option<Attachment>) {
        self.begin();
        self.expect_anybody(id);
        let Some(index) = self.connection_of(id) else { return };
        self.keep_carried(id);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = None;
        }
        let Some((tcp, mut io)) = self.tcp() else { return };
        let now = tcp.now();
        if let Some(block) = tcp.block(index) {
            block.owner = Owner::Orphan;
            // An accepted connection has no flows of its own.
            if !block.flows.is_empty() {
                let (key, spoke_first) = (block.connection.key(), block.connection.spoke_first());
                tcp.first_words.note(&key, spoke_first);
            }
        }
        if let Some(kept) = kept {
            tcp.keep(&mut io, index, kept);
        }
        let state = tcp.with(&mut io, index, |connection, wire| {
            connection.close(now, wire);
            connection.state()
        });
        tcp.output(&mut io, index);
        if matches!(state, Some(TcpState::FinWait1 | TcpState::FinWait2)) {
            tcp.look_after_closed(now);
        }
        self.after_tcp();
    }

    /// The program took the connection back: the peer, if it knows of it, gets a RST.
    pub fn abort_connection(&mut self, id: SocketId) {
        self.expect_anybody(id);
        let Some(index) = self.connection_of(id) else { return };
        self.keep_carried(id);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = None;
        }
        if let Some((tcp, mut io)) = self.tcp() {
            tcp.abort(&mut io, index);
        }
        self.after_tcp();
    }

    /// Takes the connection away without a word to the peer: somebody else has it now.
    pub fn forget_connection(&mut self, id: SocketId) {
        let Some(index) = self.connection_of(id) else { return };
        self.keep_carried(id);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = None;
        }
        let Some((tcp, mut io)) = self.tcp() else { return };
        if let Some(block) = tcp.block(index) {
            block.owner = Owner::Orphan;
        }
        tcp.tear_down(&mut io, index);
    }

    /// What poll(2) says of a stream socket; None if it is none of ours, or neither connected nor
    /// listening.
    #[inline]
    pub fn readiness(&mut self, id: SocketId) -> Option<Readiness> {
        let (connection, listener) = {
            let (endpoint, _) = self.socket(id)?;
            (endpoint.connection, endpoint.listener)
        };
        let tcp = self.tcp.as_deref_mut()?;
        if let Some(index) = connection {
            return Some(tcp.block(index)?.connection.readiness());
        }
        let listener = tcp.listeners.get(listener? as usize)?.as_ref()?;
        Some(if listener.engine.is_readable() { Readiness::IN } else { Readiness::NONE })
    }

    /// Adds what was sent again since the last time to the rings' counts.
    pub(in crate::shard) fn count_retransmissions(&mut self) {
        let Some((tcp, io)) = self.tcp() else { return };
        tcp.blocks.iter_mut().flatten().for_each(|block| block.count_retransmissions(io.rings));
    }

    /// The next hops of all connections that have one or wait for one: `find` looks them up again.
    /// For the internal thread, after a change of routes or neighbours.
    pub fn connections_by_key(&self) -> Vec<FlowKey> {
        let Some(tcp) = self.tcp.as_deref() else { return Vec::new() };
        tcp.table.iter().map(|(key, _)| key).collect()
    }

    /// Those whose segments go by an interface.
    pub fn connections_over(&self, interface: u32) -> Vec<FlowKey> {
        let Some(tcp) = self.tcp.as_deref() else { return Vec::new() };
        let goes = |index: u32| {
            let block = tcp.blocks.get(index as usize)?.as_deref()?;
            let ring = self.rings.get(block.way.ring()?.index())?;
            Some(!ring.is_local() && ring.interface().index == interface)
        };
        let over = tcp.table.iter().filter(|(_, index)| goes(*index) == Some(true));
        over.map(|(key, _)| key).collect()
    }

    /// The socket that a connection belongs to, if it has one.
    pub fn owner_of(&mut self, key: &FlowKey) -> Option<SocketId> {
        let (tcp, _) = self.tcp()?;
        let index = tcp.table.get(key)?;
        match tcp.block(index)?.owner {
            Owner::Socket(id) => Some(id),
            Owner::Backlog(_) | Owner::Orphan => None,
        }
    }

    /// Sets the next hop of a connection; what waited for it leaves.
    pub fn set_hop(&mut self, key: &FlowKey, hop: NextHop) {
        self.begin();
        let Some((tcp, mut io)) = self.tcp() else { return };
        let Some(index) = tcp.table.get(key) else { return };
        let path = path(io.rings, Some(&hop));
        let now = tcp.now();
        let Some(block) = tcp.block(index) else { return };
        let moved = block.way.ring().is_some_and(|old| old != hop.ring);
        if moved && !block.flows.iter().any(|(ring, _)| *ring == hop.ring) {
            // Answers will come by the other interface, too.
            let flow = five_tuple(key);
            if let Some(ring) = io.rings.get_mut(hop.ring.index())
                && ring.add_flow(flow).is_ok()
            {
                block.flows.push((hop.ring, flow));
            }
        }
        // What went by the other one stays there.
        block.count_retransmissions(io.rings);
        let waited = block.way.set_hop(&hop).is_none();
        block.connection.set_path(path);
        if waited {
            tcp.with(&mut io, index, |connection, wire| connection.output(now, wire));
            tcp.settle(&mut io, index);
        }
        self.after_tcp();
    }

    /// Does a connection wait for its neighbour to be resolved?
    pub fn waits_for_hop(&mut self, key: &FlowKey) -> bool {
        let Some((tcp, _)) = self.tcp() else { return false };
        let Some(index) = tcp.table.get(key) else { return false };
        tcp.block(index).is_some_and(|block| block.way.ring().is_none())
    }

    /// An ICMP error about a packet of a connection, or a neighbour that does not answer: `call`
    /// tells the connection.
    pub fn on_notice(
        &mut self,
        key: &FlowKey,
        call: impl FnOnce(&mut Connection<Body>, Instant) -> Events,
    ) {
        self.begin();
        let Some((tcp, mut io)) = self.tcp() else { return };
        let Some(index) = tcp.table.get(key) else { return };
        let now = tcp.now();
        let events = tcp.with(&mut io, index, |connection, _| call(connection, now));
        tcp.note(index, events.unwrap_or_default());
        tcp.output(&mut io, index);
        self.after_tcp();
    }
}

impl<S> State<S> {
    /// Drops what connections without a socket keep, a descriptor each: the program needs them. Returns how
    /// many that were. As in `Tcp::keep` those in TIME-WAIT end early, because their ports are free now.
    pub fn release_kept(&mut self) -> usize {
        let Some((tcp, mut io)) = self.tcp() else { return 0 };
        let mut released = tcp.end_retired(&mut io);
        while let Some((oldest, serial)) = tcp.keepers.pop_front() {
            let block = tcp.block(oldest).filter(|block| block.serial == serial);
            let Some(waits) = block.map(|block| block.waits) else { continue };
            if tcp.kept.remove(&oldest).is_some() {
                released += 1;
                if waits {
                    tcp.tear_down(&mut io, oldest);
                }
            }
        }
        self.after_tcp();
        released
    }
}

impl Tcp {
    /// A connection without a socket keeps something. What is kept is dear (a descriptor), so only
    /// the last ones keep theirs; an older one that is in TIME-WAIT ends early (as with Linux's
    /// tcp_max_tw_buckets), because others may use its port now.
    fn keep(&mut self, io: &mut Io<'_>, index: u32, kept: Attachment) {
        const MOST: usize = 256;
        while let Some((oldest, serial)) = self.keepers.front().copied() {
            let block =
                self.block(oldest).filter(|block| block.serial == serial).map(|block| block.waits);
            let keeps = block.is_some() && self.kept.contains_key(&oldest);
            let waits = block == Some(true);
            if keeps && self.keepers.len() < MOST {
                break;
            }
            self.keepers.pop_front();
            if keeps && waits {
                self.tear_down(io, oldest);
            } else if keeps {
                self.kept.remove(&oldest);
            }
        }
        if let Some(serial) = self.block(index).map(|block| block.serial) {
            self.keepers.push_back((index, serial));
            self.kept.insert(index, kept);
        }
    }
}
