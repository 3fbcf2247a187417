//! TCP in the shard: connections and listeners, apart from the sockets that own them, because a
//! connection lives before accept() and beyond close().
//!
//! `receive` takes segments to connections and listeners, `wire` takes segments to the rings by a
//! connection's `way`, `body` is received payload, `transplant` lends a connection to be installed
//! elsewhere, `take_over` goes on with one that the kernel had, `command` is what sockets ask for, `read`
//! how they take what was received, `listen` the passive side, `work` what is put off to the end of a
//! batch, and the timers, `watch` what is told of connections outside the process.

mod body;
mod command;
mod first_word;
#[cfg(test)]
pub mod fixture;
mod listen;
mod pass;
mod read;
mod receive;
mod rehearsal;
mod retired;
mod take_over;
mod transplant;
mod unaccepted;
mod watch;
mod way;
mod wire;
mod work;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub use body::Body;
pub use command::{AddressInUse, Opening};
use libvma_engine::tcp::State::{Closed, TimeWait};
use libvma_engine::tcp::isn::Secret;
use libvma_engine::tcp::lookup::FlowTable;
use libvma_engine::tcp::{Connection, Events, Path};
use libvma_engine::time::Instant;
use libvma_engine::timer_wheel::TimerWheel;
pub use listen::{Accepted, ListenSpec, five_tuple, three_tuple};
pub use read::Taken;
pub(in crate::shard) use receive::way_back;
pub use take_over::Resumption;
pub use transplant::{Cutting, Orphan};
pub use unaccepted::{Establisher, Waiting};
pub use watch::{Pending, Report};
pub use wire::Wire;

use self::body::Heaps;
use self::first_word::FirstWords;
use self::listen::Listening;
use self::retired::Retired;
use self::watch::{Watch, Watched};
use self::way::Way;
use super::clock::Clock;
use super::{Flow, NextHop, RingId, SocketId, State};
use crate::device::Ring;
use crate::device::xdp::Injector;

/// What the shard needs to speak TCP; made with the first stream socket.
pub struct Setup {
    /// For initial sequence numbers (RFC 6528).
    pub secret: [u8; 32],
    /// The part of the secret that all processes share until the next boot, if it is known by now.
    pub starts: Option<[u8; 16]>,
    /// For the table of connections.
    pub seed: u64,
    /// Connections whose answers wait for the end of a batch (VMA_GRO_STREAMS_MAX).
    pub streams: usize,
    /// Raised when connections change; None if nobody ever listens.
    pub pending: Option<Arc<Pending>>,
}

/// What the socket layer keeps of a listener for a connection: the shard does not look at it.
pub type InheritedState = Arc<dyn Any + Send + Sync>;

/// What is dropped with a connection; the shard does not look at it.
pub type Attachment = Box<dyn Any + Send>;

/// Who a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Socket(SocketId),
    /// In the accept queue of a listener.
    Backlog(u32),
    /// close() was called.
    Orphan,
}

/// The index and serial number of a connection: names it beyond its life.
type Named = (u32, u32);

/// The wheel has nothing for a connection.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// A transmission control block: a connection, and what the shard knows of it.
struct Block {
    /// Tells it from others that had its index.
    serial: u32,
    connection: Connection<Body>,
    way: Way,
    owner: Owner,
    /// Flows of its own; an accepted connection lives on those of its listener.
    flows: Vec<(RingId, Flow)>,
    /// What its listener was when it came; for whoever accepts it, so most have none.
    inherited_state: Option<Box<InheritedState>>,
    /// The peer began it: a listener has its port, of the library's or of the kernel's.
    is_accepted: bool,
    /// What happened since its socket was last told.
    events: Events,
    /// In the list of those that get their output at the end of the batch.
    touched: bool,
    /// So many of its segments came since it last got its output there.
    batched: u32,
    /// In the list of those in TIME-WAIT.
    waits: bool,
    /// In the table.
    known: bool,
    /// When the wheel fires; it may be too early, never too late.
    armed: Instant,
    /// So many segments sent again are in the counts of rings.
    retransmissions: u64,
    watched: Watched,
}

impl Block {
    /// The ring counts what was sent again by it; so it keeps that when the connection is gone.
    fn count_retransmissions(&mut self, rings: &mut [Ring]) {
        let Some(ring) = self.way.ring() else { return };
        let all = self.connection.counters().retransmissions;
        if let Some(ring) = rings.get_mut(ring.index()) {
            let new = all.saturating_sub(core::mem::replace(&mut self.retransmissions, all));
            ring.tally().retransmissions += new;
        }
    }
}

pub(super) struct Tcp {
    secret: Secret,
    seed: u64,
    blocks: Vec<Option<Box<Block>>>,
    free: Vec<u32>,
    table: FlowTable<u32>,
    listeners: Vec<Option<Box<Listening>>>,
    /// By port, whatever the address.
    listening: HashMap<u16, Vec<u32>>,
    timers: TimerWheel,
    /// The earliest that any listener has something to do.
    listeners_due: Option<Instant>,
    /// The last connections that got something to keep, the oldest first.
    keepers: VecDeque<Named>,
    /// What they keep, by the connection's index: what keeps its port from others.
    kept: HashMap<u32, Attachment>,
    retired: Retired,
    /// Connections in TIME-WAIT without a socket, the oldest first.
    waiting: VecDeque<Named>,
    /// Of the last connection made.
    serial: u32,
    /// Connections that get their output at the end of the batch.
    touched: Vec<u32>,
    streams: usize,
    /// Sockets that must be told what happened.
    news: Vec<SocketId>,
    heaps: Heaps,
    /// Sockets that were given to the kernel lately.
    departed: VecDeque<SocketId>,
    clock: Clock,
    /// The time of this batch, once it was read.
    now: Option<Instant>,
    /// Polls without a segment since the clock was read.
    idle: u32,
    watch: Watch,
    /// Connections that held data when a send call ended, and that the internal thread looks after.
    holding: Vec<Named>,
    /// It has not been told yet.
    unattended: bool,
    /// Until then a connection that the program has closed may get bytes of a peer that does not know yet.
    closing_until: Instant,
    first_words: FirstWords,
    /// Made for the first segment that is passed to the kernel.
    injector: Option<Injector>,
}

/// The shard's other half, lent to TCP.
struct Io<'a> {
    rings: &'a mut [Ring],
    ident: &'a mut u16,
}

impl Tcp {
    fn new(setup: Setup) -> Tcp {
        let mut clock = Clock::new();
        let mut secret = Secret::new(setup.secret);
        if let Some(starts) = setup.starts {
            secret.set_starts(starts);
        }
        Tcp {
            secret,
            seed: setup.seed,
            blocks: Vec::new(),
            free: Vec::new(),
            table: FlowTable::new(setup.seed),
            listeners: Vec::new(),
            listening: HashMap::new(),
            timers: TimerWheel::new(clock.now()),
            listeners_due: None,
            keepers: VecDeque::new(),
            kept: HashMap::new(),
            retired: Retired::default(),
            waiting: VecDeque::new(),
            serial: 0,
            touched: Vec::new(),
            streams: setup.streams,
            news: Vec::new(),
            heaps: Heaps::default(),
            departed: VecDeque::new(),
            clock,
            now: None,
            idle: 0,
            watch: Watch::new(setup.pending),
            holding: Vec::new(),
            unattended: false,
            closing_until: Instant::from_nanos(0),
            first_words: FirstWords::default(),
            injector: None,
        }
    }

    /// The time of this batch.
    #[inline]
    fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(|| self.clock.now())
    }

    fn insert(&mut self, mut block: Block) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        block.serial = self.serial;
        let key = block.connection.key();
        let block = Some(Box::new(block));
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.blocks.push(None);
                (self.blocks.len() - 1) as u32
            }
        };
        if let Some(slot) = self.blocks.get_mut(index as usize) {
            *slot = block;
        }
        self.table.insert(key, index);
        index
    }

    #[inline]
    fn block(&mut self, index: u32) -> Option<&mut Block> {
        self.blocks.get_mut(index as usize)?.as_deref_mut()
    }

    /// Would a connection give its addresses and ports to a new one? What the peer may remember of it is
    /// earlier than the new one, so that TIME-WAIT may be cut short (RFC 6191). One that the last batch of
    /// segments ended may still be in the table ([`State::may_put_off`]).
    fn makes_room(&mut self, index: u32) -> bool {
        let state = self.block(index).map(|block| block.connection.state());
        state.is_none_or(|state| matches!(state, Closed | TimeWait))
    }

    /// Calls `call` with a connection and its way out.
    #[inline]
    fn with<T>(
        &mut self,
        io: &mut Io<'_>,
        index: u32,
        call: impl FnOnce(&mut Connection<Body>, &mut Wire<'_>) -> T,
    ) -> Option<T> {
        let block = self.blocks.get_mut(index as usize)?.as_deref_mut()?;
        let mut wire = Wire {
            rings: io.rings,
            ident: io.ident,
            heaps: &mut self.heaps,
            way: &block.way,
            key: block.connection.key(),
            refused: false,
            uncut: false,
            eager: false,
        };
        let result = call(&mut block.connection, &mut wire);
        if wire.uncut {
            let path = Path { segmentation_limit: 0, ..block.connection.path() };
            block.connection.set_path(path);
        }
        let stalled = wire.refused && !block.touched && block.connection.wants_output();
        if stalled {
            block.touched = true;
            self.touched.push(index);
        }
        Some(result)
    }

    /// After every call of the engine: the deadline, and the end of a connection.
    #[inline]
    fn settle(&mut self, io: &mut Io<'_>, index: u32) {
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if block.watched.differs(block.connection.state()) {
            return self.settle_new_state(io, index);
        }
        if block.connection.is_closed() {
            return self.tear_down(io, index);
        }
        if block.owner == Owner::Orphan && !block.waits && block.connection.state() == TimeWait {
            self.note_wait(io, index);
        }
        let Some(block) = self.block(index) else { return };
        // A deadline that moved back is found out when the wheel fires: with every ACK another
        // one, moving it each time costs more.
        if let Some(deadline) = block.connection.deadline()
            && deadline < block.armed
        {
            block.armed = deadline;
            self.timers.schedule(index, deadline);
        }
    }

    #[cold]
    fn settle_new_state(&mut self, io: &mut Io<'_>, index: u32) {
        self.note_state(index);
        self.settle(io, index);
    }

    /// A connection is over: its addresses are free. What was received stays for its socket.
    #[cold]
    fn tear_down(&mut self, io: &mut Io<'_>, index: u32) {
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if core::mem::replace(&mut block.known, false) {
            self.table.remove(&block.connection.key());
        }
        self.end_watch(index);
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let flows = core::mem::take(&mut block.flows);
        let is_orphan = block.owner == Owner::Orphan;
        if core::mem::replace(&mut block.armed, NEVER) != NEVER {
            self.timers.cancel(index);
        }
        let kept = if is_orphan { self.kept.remove(&index) } else { None };
        match kept {
            Some(kept) => self.retire(io, flows, kept),
            None => {
                for (ring, flow) in flows {
                    if let Some(ring) = io.rings.get_mut(ring.index()) {
                        ring.remove_flow(flow);
                    }
                }
            }
        }
        if is_orphan {
            self.drop_block(io, index);
        }
    }

    /// A connection without a socket has reached TIME-WAIT. When there are too many, the oldest ends
    /// early (Linux: tcp_max_tw_buckets).
    #[cold]
    fn note_wait(&mut self, io: &mut Io<'_>, index: u32) {
        const MOST: usize = 16_384;
        let Some(block) = self.block(index) else { return };
        block.waits = true;
        let named = (index, block.serial);
        self.waiting.push_back(named);
        while let Some((oldest, serial)) = self.waiting.front().copied() {
            let lives = self.block(oldest).is_some_and(|block| block.serial == serial);
            if lives && self.waiting.len() <= MOST {
                break;
            }
            self.waiting.pop_front();
            if lives {
                self.tear_down(io, oldest);
            }
        }
    }

    /// Takes a block out; it must be torn down.
    fn drop_block(&mut self, io: &mut Io<'_>, index: u32) {
        self.with(io, index, |connection, wire| connection.drain(wire));
        if let Some(slot) = self.blocks.get_mut(index as usize)
            && let Some(mut block) = slot.take()
        {
            block.count_retransmissions(io.rings);
            self.kept.remove(&index);
            self.free.push(index);
        }
    }

    /// Notes what happened to a connection; its socket is told at the end of the batch.
    #[inline]
    fn note(&mut self, index: u32, events: Events) {
        if events.is_empty() {
            return;
        }
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let first = block.events.is_empty();
        block.events.insert(events);
        if first && let Owner::Socket(id) = block.owner {
            self.news.push(id);
        }
    }
}

/// How packets by this next hop travel.
fn path(rings: &[Ring], hop: Option<&NextHop>) -> Path {
    const ETHERNET: u32 = 1500;
    match hop {
        None => Path { mtu: ETHERNET, segmentation_limit: 0 },
        Some(hop) => {
            let limit = rings.get(hop.ring.index()).map_or(0, Ring::segmentation_limit);
            Path { mtu: hop.mtu, segmentation_limit: u32::try_from(limit).unwrap_or(u32::MAX) }
        }
    }
}

impl<S> State<S> {
    /// Makes the shard speak TCP.
    pub fn enable_tcp(&mut self, setup: impl FnOnce() -> Setup) {
        if self.tcp.is_none() {
            self.tcp = Some(Box::new(Tcp::new(setup())));
        }
    }

    /// Sets the secret behind the initial sequence numbers and time stamps of later connections.
    pub fn set_starts(&mut self, starts: &[u8; 16]) {
        if let Some(tcp) = &mut self.tcp {
            tcp.secret.set_starts(*starts);
        }
    }

    fn tcp(&mut self) -> Option<(&mut Tcp, Io<'_>)> {
        let tcp = self.tcp.as_deref_mut()?;
        Some((tcp, Io { rings: &mut self.rings, ident: &mut self.ident }))
    }
}

/// Is this the address of the key, or any?
#[cfg(test)]
mod tests {
    use libvma_engine::tcp::lookup::FlowKey;

    use super::*;
    use crate::shard::endpoint::Slot;
    use crate::socket::Socket;
    use crate::socket::stream::Stream;

    // covers: NET-03
    #[test]
    fn an_idle_connection_costs_at_most_two_kib() {
        // The table keeps itself between a quarter and a half full; the wheel has a node for each.
        let found = 4 * size_of::<(FlowKey, u32)>() + 32;
        let socket = size_of::<Slot<Socket>>() + size_of::<Stream>();
        let total = size_of::<Block>() + found + socket;
        assert!(total <= 2048, "{} + {found} + {socket} = {total} bytes", size_of::<Block>());
    }
}
