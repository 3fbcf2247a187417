//! The shard: the unit of concurrency, and the only place that knows both halves, protocol and
//! device. It owns its rings and the sockets attached to them, under one lock.
//!
//! `poll` asks the rings for frames, `receive` takes them to socket queues, `transmit` takes datagrams to the
//! rings, `datagram` is what lies in a queue, `ready` tells sleepers and multiplexers, `clock`
//! makes protocol time, `count` sums up what was counted, `capture` hands out what passes; `envelope` and `direct` are the short ways
//! within the host; `tcp` holds connections and listeners. `S` is what the socket layer keeps per
//! socket: the shard does not look at it, it only puts it under the same lock.

mod burst;
mod capture;
pub mod clock;
mod count;
pub mod datagram;
mod direct;
mod endpoint;
pub mod envelope;
mod filter;
pub mod hand_over;
mod local;
pub mod pipe;
mod poll;
mod ready;
mod receive;
mod rehearsal;
pub mod tcp;
mod train;
mod transmit;

use libvma_dev::ipv6_stand_ins::alike_everywhere;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::ip::reassembly::{MEMORY_LIMIT, Reassembler};
use libvma_engine::udp::lookup::{Filter, Lookup};
use rustix::io::Errno;

use crate::capture::Capture;
use crate::device::{OpenError, Ring, shm, xdp};
use crate::sys::lock::{Guard, Lock, Reentered};
use crate::sys::wait::Waker;
use crate::sys::{errand, late_close, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::capture::Direction;
pub use crate::device::shm::{LinkId, Progress, Segment, Side, check_bell};
pub use crate::device::xdp::{Limits, Mode, is_daemon_there};
pub use crate::device::{Flow, Interface};
pub use burst::TICK_NANOS;
pub use count::Counts;
pub use direct::Direct;
pub use endpoint::Endpoint;
pub use envelope::Envelope;
pub use filter::Judged;
pub use local::member_number;
pub use ready::{Interest, Readiness, Registration, SetId, SleeperId};
pub use transmit::{Egress, NextHop, SendError, group_mac};

use self::burst::Burst;
use self::endpoint::Slot;
use self::ready::{Set, Sleeper};

/// Names a socket for its whole life; a number that is used again gets another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    index: u32,
    generation: u32,
}

impl SocketId {
    /// As one word, never 0, for an atomic table.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub fn from_bits(bits: u64) -> Option<SocketId> {
        let generation = (bits >> 32) as u32;
        (generation != 0).then_some(SocketId { index: bits as u32, generation })
    }
}

/// Names a ring of the shard; rings are never removed, at most they fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingId(u16);

impl RingId {
    #[inline]
    fn index(self) -> usize {
        usize::from(self.0)
    }
}

pub struct Shard<S> {
    lock: Lock<State<S>>,
    /// Some ring may bring packets: polling may pay.
    live: AtomicBool,
}

/// What the lock protects.
pub struct State<S> {
    rings: Vec<Ring>,
    slots: Vec<Slot<S>>,
    free: Vec<u32>,
    /// Of the program's sends, over all rings.
    burst: Burst,
    /// Some ring has datagrams that wait for a kick.
    unsent: bool,
    /// Kicks made for sends that stood alone; the internal thread sees by it whether a blast goes on.
    kicks: u64,
    lookup: Lookup,
    /// None until the first stream socket.
    tcp: Option<Box<tcp::Tcp>>,
    /// Other processes of this host.
    local: local::Local,
    /// TCP connections whose bytes go through shared memory.
    pipes: pipe::Pipes,
    /// Of IPv4, and of IPv6.
    reassemblers: [Reassembler; 2],
    sleepers: Vec<Sleeper>,
    /// The one that listens to the rings.
    driver: Option<SleeperId>,
    /// When it wakes by itself, in nanoseconds.
    driver_until: u64,
    sets: Vec<Option<Set>>,
    /// The host's own addresses, which nothing from a cable may come from, with their interfaces.
    own_addresses: Vec<(std::net::Ipv4Addr, u32)>,
    /// Those of them that links carry.
    linked_addresses: Vec<std::net::Ipv4Addr>,
    /// Scratch of `receive::multicast_targets`.
    matches: Vec<u32>,
    /// Why received frames were not delivered, by [`DropReason::index`].
    drops: [u64; DropReason::COUNT],
    /// Times the rings were polled; the internal thread sees by it whether anybody does.
    polls: u64,
    /// See [`State::doze`].
    dozing: Option<Arc<Waker>>,
    /// IPv4 identification of the next packet.
    ident: u16,
    /// See [`State::raise_os_doubt`].
    os_doubt: u64,
    /// Rises with every change of routes, neighbours, interfaces: cached next hops of an older
    /// epoch are void.
    epoch: u64,
    /// See [`State::answers`].
    answers: u64,
    /// Datagrams that the program is to judge.
    filters: Option<Box<filter::Filters>>,
    /// All packets are captured.
    captures: Option<Box<capture::Captures>>,
    /// See [`State::has_left`].
    has_left: bool,
}

impl<S> Default for Shard<S> {
    fn default() -> Shard<S> {
        // A child that fork() made has a shard of its own, made by the thread that forked.
        thread::forget_id();
        errand::forget();
        Shard {
            lock: Lock::new(State {
                rings: Vec::new(),
                slots: Vec::new(),
                free: Vec::new(),
                burst: Burst::default(),
                unsent: false,
                kicks: 0,
                lookup: Lookup::default(),
                tcp: None,
                local: local::Local::default(),
                pipes: pipe::Pipes::default(),
                reassemblers: [Reassembler::default(), Reassembler::of_ipv6(MEMORY_LIMIT)],
                sleepers: Vec::new(),
                driver: None,
                driver_until: u64::MAX,
                sets: Vec::new(),
                own_addresses: Vec::new(),
                linked_addresses: Vec::new(),
                matches: Vec::new(),
                drops: [0; DropReason::COUNT],
                polls: 0,
                dozing: None,
                ident: clock::seed(),
                os_doubt: 0,
                epoch: 1,
                answers: 0,
                filters: None,
                captures: None,
                has_left: false,
            }),
            live: AtomicBool::new(false),
        }
    }
}

impl<S> Shard<S> {
    /// A shard of which all that passes is captured.
    pub fn captured(capture: Option<Arc<Capture>>) -> Shard<S> {
        let shard = Shard::default();
        if let Some(capture) = capture
            && let Ok(mut state) = shard.lock()
        {
            state.captures = Some(Box::new(capture::Captures::new(capture)));
        }
        shard
    }

    #[inline]
    pub fn lock(&self) -> Result<Guard<'_, State<S>>, Reentered> {
        self.lock.lock()
    }

    pub fn try_lock(&self) -> Option<Guard<'_, State<S>>> {
        self.lock.try_lock()
    }

    /// Opens a ring on an interface, as [`xdp::Ring::open`]. Milliseconds, and not under the lock.
    pub fn open_ring(
        &self,
        interface: Interface,
        mode: Mode,
        limits: Limits,
        refused: impl FnMut(Mode, &OpenError),
    ) -> Result<RingId, OpenError> {
        let ring = Ring::Xdp(xdp::Ring::open(interface, mode, limits, refused)?);
        self.add_ring(ring)
    }

    /// Makes the ring for links with other processes of this host.
    pub fn open_local_ring(&self) -> Result<RingId, OpenError> {
        let ring = Ring::Shm(shm::Ring::open()?);
        let id = self.add_ring(ring)?;
        if let Ok(mut state) = self.lock() {
            state.local.ring = Some(id);
            state.local.direct = state.captures.is_none().then_some(id);
        }
        Ok(id)
    }

    fn add_ring(&self, mut ring: Ring) -> Result<RingId, OpenError> {
        let busy = |_| OpenError::System { call: "the shard's lock", errno: libc::EDEADLK };
        let mut state = self.lock().map_err(busy)?;
        if let Some(captures) = &mut state.captures {
            captures.add(&mut ring);
        }
        state.rings.push(ring);
        // Who sleeps on the other rings must sleep on this one, too.
        state.wake_all();
        let id = RingId((state.rings.len() - 1) as u16);
        self.note_liveness(&state);
        Ok(id)
    }

    /// A ring or a link came or went.
    pub fn note_liveness(&self, state: &State<S>) {
        self.live.store(state.rings.iter().any(Ring::is_live), Ordering::Relaxed);
    }

    /// May any ring bring packets? If not, waiting is the kernel's alone.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }
}

impl<S> State<S> {
    /// May what a thread waits for come by a ring? A link with another process that nobody uses (connections that
    /// live for a moment stay the kernel's) only brings what wakes a sleeper early enough.
    pub fn may_polling_pay(&self) -> bool {
        !self.pipes.is_empty()
            || !self.lookup.is_unused()
            || self.rings.iter().any(|ring| !ring.is_local())
    }

    /// Takes a socket in. It gets no packets before [`State::bind`].
    pub fn attach(&mut self, socket: S, receive_limit: usize) -> SocketId {
        let endpoint = Endpoint::new(receive_limit);
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, content: None });
                (self.slots.len() - 1) as u32
            }
        };
        let Some(slot) = self.slots.get_mut(index as usize) else {
            // The index came from the vector itself just above.
            return SocketId { index, generation: u32::MAX };
        };
        // 30 bits: the fd table uses the top two.
        slot.generation = (slot.generation.wrapping_add(1) & 0x3fff_ffff).max(1);
        slot.content = Some((endpoint, socket));
        SocketId { index, generation: slot.generation }
    }

    /// Takes a socket out: its queue is freed, its sleepers are woken, its number may be used
    /// again. Its flows are the caller's to remove.
    pub fn detach(&mut self, id: SocketId) -> Option<(Endpoint, S)> {
        // It may be detached twice, and its number another socket's by then.
        self.socket(id)?;
        self.lookup.remove(id.index);
        self.wake_sleepers_of(id);
        self.discard_queue(id);
        self.discard_withheld(id);
        let slot = self.slots.get_mut(id.index as usize)?;
        let content = slot.content.take()?;
        self.free.push(id.index);
        Some(content)
    }

    #[inline]
    pub fn socket(&mut self, id: SocketId) -> Option<(&mut Endpoint, &mut S)> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.content.as_mut().map(|(endpoint, socket)| (endpoint, socket))
    }

    /// All sockets, for the slow paths.
    pub fn ids(&self) -> Vec<SocketId> {
        let live = |(index, slot): (usize, &Slot<S>)| {
            slot.content.as_ref()?;
            Some(SocketId { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().filter_map(live).collect()
    }

    /// Says which datagrams a socket wants.
    pub fn bind(&mut self, id: SocketId, filter: Filter) {
        if self.socket(id).is_some() {
            self.lookup.insert(id.index, filter);
        }
    }

    /// The socket wants no more datagrams; what is queued stays.
    pub fn unbind(&mut self, id: SocketId) {
        if self.socket(id).is_some() {
            self.lookup.remove(id.index);
        }
    }

    /// [`Lookup::name`]
    pub fn name(&mut self, id: SocketId, member: u8) -> bool {
        self.socket(id).is_some() && self.lookup.name(id.index, member)
    }

    pub fn filter_mut(&mut self, id: SocketId) -> Option<&mut Filter> {
        self.socket(id)?;
        self.lookup.filter_mut(id.index)
    }

    /// Steers a flow to the shard; the errno if the kernel refuses.
    pub fn add_flow(&mut self, ring: RingId, flow: Flow) -> Result<(), i32> {
        match self.rings.get_mut(usize::from(ring.0)) {
            // Its program runs no more: what answers would go to the kernel.
            Some(ring) if self.has_left && !ring.is_local() => Err(libc::EOPNOTSUPP),
            Some(ring) => ring.add_flow(flow).map_err(|errno| errno.raw_os_error()),
            None => Err(libc::ENODEV),
        }
    }

    /// The same for the kernel's socket that has the flow's destination.
    pub fn add_flow_of(&mut self, shown: i32, ring: RingId, flow: Flow) -> Result<(), i32> {
        match self.rings.get_mut(usize::from(ring.0)) {
            // Its program runs no more: what answers would go to the kernel.
            Some(ring) if self.has_left && !ring.is_local() => Err(libc::EOPNOTSUPP),
            Some(ring) => ring.add_flow_of(shown, flow).map_err(|errno| errno.raw_os_error()),
            None => Err(libc::ENODEV),
        }
    }

    pub fn remove_flow(&mut self, ring: RingId, flow: Flow) {
        if let Some(ring) = self.rings.get_mut(usize::from(ring.0)) {
            ring.remove_flow(flow);
        }
    }

    /// Gives a ring's interface free if nothing is steered there. True if it did.
    pub fn shut_idle_ring(&mut self, ring: RingId) -> bool {
        self.free_ports();
        let Some(ring) = self.rings.get_mut(ring.index()) else { return false };
        let idle = !ring.has_flows();
        if idle {
            ring.shut();
        }
        idle
    }

    /// Is there an interface that packets of ours leave by?
    pub fn has_interface(&self) -> bool {
        self.rings.iter().any(|ring| !ring.is_local())
    }

    pub fn ring(&self, ring: RingId) -> Option<&Ring> {
        self.rings.get(usize::from(ring.0))
    }

    pub fn ring_mut(&mut self, ring: RingId) -> Option<&mut Ring> {
        self.rings.get_mut(usize::from(ring.0))
    }

    /// The first address of an interface that has a ring.
    pub fn interface_address(&self, interface: u32) -> Option<std::net::Ipv4Addr> {
        let ring = self.rings.iter().find(|ring| ring.interface().index == interface)?;
        Some(ring.interface().address)
    }

    pub fn set_own_addresses(&mut self, addresses: Vec<(std::net::Ipv4Addr, u32)>) {
        let hosts: Vec<_> = addresses.iter().map(|(address, _)| *address).collect();
        self.linked_addresses = alike_everywhere(&hosts);
        self.own_addresses = addresses;
    }

    /// Rings of interfaces, on which packets arrive whether anybody looks or not.
    pub fn has_interfaces(&self) -> bool {
        self.rings.iter().any(|ring| !ring.is_local())
    }

    /// The process ends: nothing is steered to its rings any more, and the kernel closes what takes long to close when
    /// the process has ended. An error says that it does so before.
    pub fn leave_interfaces(&mut self) -> Result<(), Errno> {
        self.has_left = true;
        // Datagrams go by the kernel, too, which gets their answers.
        self.next_epoch();
        let (links, left) = Ring::leave_all(&self.rings);
        late_close::leave(&links).and(left)
    }

    /// The process ends, and its interfaces have been given up: what begins now (another library's destructor may
    /// connect) is the kernel's.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Before a sleep: the descriptors that become readable when a packet for any ring comes.
    pub fn sleep_on_rings(&mut self, mut each: impl FnMut(i32)) {
        use rustix::fd::AsRawFd;
        for ring in &mut self.rings {
            ring.settle();
            ring.descriptors(|fd| each(fd.as_raw_fd()));
        }
    }

    /// As [`State::sleep_on_rings`], for the internal thread while no other sleeps.
    pub fn sleep_on_all(&mut self, each: impl FnMut(i32)) {
        for ring in &mut self.rings {
            match ring {
                Ring::Xdp(ring) => ring.ignore_own_bells(),
                Ring::Shm(ring) => ring.stop_all_attending(),
            }
        }
        self.sleep_on_rings(each);
    }

    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// The internal thread is about to sleep for long, because no thread has polled for a second. The next thread that polls, or
    /// that ends a sleep, wakes it by this.
    pub fn doze(&mut self, waker: Arc<Waker>) {
        self.dozing = Some(waker);
    }

    /// The internal thread is awake.
    pub fn end_doze(&mut self) {
        self.dozing = None;
    }

    #[cold]
    fn rouse(&mut self) {
        if let Some(waker) = self.dozing.take() {
            waker.wake();
        }
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason.index()).copied().unwrap_or(0)
    }

    fn count_drop(&mut self, reason: DropReason) {
        if let Some(count) = self.drops.get_mut(reason.index()) {
            *count += 1;
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rises when a process of this host may have been found: cached answers that there is none, of
    /// an older count, are void.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Voids cached answers that nobody of this host has an address.
    pub fn next_answers(&mut self) {
        self.answers += 1;
    }

    /// Voids every cached next hop.
    pub fn next_epoch(&mut self) {
        self.epoch += 1;
    }
}
