//! The XDP device: AF_XDP rings on one interface, plus the eBPF flow table that feeds them.
//!
//! `program` loads and attaches the steering program, `flow` is its table, `umem` the frames' memory, `flows` that or the daemon's, which
//! `grant` asks for a ring, `queue` one AF_XDP socket, `ring` its four rings, `ingress` the ring that takes the place of two of them where
//! the program writes frames to the memory itself, `inlet` what those two ways have in common, `outlet` the same for the two ways to send,
//! `tx_rings` what threads send by at the same time, `send` what goes by them, `ipv6` the other headers of packets of IPv6,
//! `super_frame` the way out for TCP segments larger than the MTU, `capture` the copy of sent frames for `VMA_PCAP`, `inject` gives frames
//! to the kernel, `establish` whole connections to its listeners, `count` what is told of all that, `leave` the end of the process. Works
//! on any Linux interface.

mod bells;
mod bpf;
mod capture;
mod count;
mod establish;
mod flow;
mod flows;
mod grant;
mod ingress;
mod inject;
mod inlet;
mod ipv6;
mod leave;
mod outlet;
mod program;
mod queue;
mod ring;
mod send;
mod stand_ins;
mod super_frame;
mod tx_rings;
mod umem;

pub use self::grant::is_daemon_there;
pub use establish::{Establisher, Handshake, LOOPBACK_MAC};
pub use inject::Injector;
pub use program::Mode;

use std::collections::HashSet;

use libvma_engine::frame::{Extent, Frame, Pool};
use libvma_engine::translation::DropReason;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use self::count::Traffic;
use self::grant::Granted;
pub use self::ingress::Taker;
use self::ingress::{Bell, Ingress, Maps};
use self::outlet::Outlet;
use self::program::Program;
use self::queue::{Place, Queue, Sizes, ring_size};
use self::ring::{CONTINUED, Descriptor, SEGMENT_SHIFT};
use self::super_frame::SuperFrames;
use self::umem::{CHUNK, Umem};
use super::{Flow, Interface, OpenError, Received, Tally};
use crate::capture::Tap;
use crate::sys::errand;

/// How much memory a ring may take, in frames of 2 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames for receiving, over all queues of the interface.
    pub rx_frames: u32,
    /// So many of them, in each queue or in the one ring for all, are the kernel's to receive into. The
    /// others replace those that wait for their readers.
    pub rx_posted: u32,
    /// Frames for sending.
    pub tx_frames: u32,
    /// How long to wait for an interface that another process holds: it may be about to end.
    pub patience_nanos: u64,
    /// How many processes may receive at the tc ingress hook, this one among them.
    pub most_sharers: u32,
}

/// At most this many receive queues are served (size of the program's `sockets` map).
const MOST_QUEUES: u32 = 64;

/// With more queues, what is fetched ahead for each would drive other things out of the cache.
const EXPECTING: usize = 4;

/// The longest IP packet in one chunk: without the kernel's XDP_PACKET_HEADROOM, and the Ethernet header.
const LONGEST_UNCHAINED: u32 = CHUNK - 256 - 14;

/// Consumed RX entries and empty fill entries are given back in batches of this size.
const BATCH: u32 = 64;

/// A shard's endpoint on one interface.
pub struct Ring {
    interface: Interface,
    // Dropped in this order: no more frames are steered, the sockets go, then their memory.
    program: Program,
    closed_to_strangers: bool,
    queues: Vec<Queue>,
    umem: Umem,
    /// Where frames are received, if that is not in the UMEM.
    shared: Option<Umem>,
    rx: Pool,
    tx: Pool,
    /// Number of the first TX chunk in the UMEM.
    tx_base: u32,
    /// Frames written to the TX ring and not yet seen in the completion ring.
    in_flight: u32,
    idents: ipv6::Idents,
    /// RX frames that each queue's kernel side has, to receive into or received: at most so many. They
    /// go round in turn, and the fewer there are, the warmer they are.
    most_posted: u32,
    super_frames: SuperFrames,
    traffic: Traffic,
    tally: Tally,
    /// Where sent frames are captured.
    tap: Option<Box<Tap>>,
}

impl Ring {
    /// Opens a ring in the best mode that works, and tells each that does not to `refused`. Where the process lacks the privileges
    /// the daemon is asked for one.
    pub fn open(
        interface: Interface,
        mode: Mode,
        limits: Limits,
        refused: impl FnMut(Mode, &OpenError),
    ) -> Result<Ring, OpenError> {
        match Ring::open_by_right(interface.clone(), mode, limits, refused) {
            Err(error) if error.lacks_privilege() && matches!(mode, Mode::Auto | Mode::Tc) => {
                Ring::open_granted(interface, limits).unwrap_or(Err(error))
            }
            result => result,
        }
    }

    fn open_by_right(
        interface: Interface,
        mode: Mode,
        limits: Limits,
        mut refused: impl FnMut(Mode, &OpenError),
    ) -> Result<Ring, OpenError> {
        let (better, last) = mode.candidates(&interface);
        for mode in better {
            match Ring::open_in(*mode, interface.clone(), limits) {
                Err(error) if !matches!(error, OpenError::Busy | OpenError::Shared(_)) => {
                    refused(*mode, &error)
                }
                result => return result,
            }
        }
        Ring::open_in(last, interface, limits)
    }

    /// A ring that the daemon makes; None if there is no daemon that grants any.
    fn open_granted(interface: Interface, limits: Limits) -> Option<Result<Ring, OpenError>> {
        let rx_frames = limits.rx_frames.max(BATCH).next_power_of_two();
        let memory =
            program::Sizes { chunks: rx_frames, slots: ring_size(limits.rx_posted, rx_frames) };
        let granted = Granted::ask(interface.index, memory)?;
        Some(granted.and_then(|granted| Ring::of_grant(interface, limits, memory, granted)))
    }

    fn of_grant(
        interface: Interface,
        limits: Limits,
        memory: program::Sizes,
        granted: Granted,
    ) -> Result<Ring, OpenError> {
        let tx_frames = limits.tx_frames.max(BATCH).next_power_of_two();
        let umem = Umem::new(tx_frames).map_err(failed("mmap of the UMEM"))?;
        let program = Program::granted(&interface, granted.grant);
        let bell = Bell::of_tap(&granted.tap).map_err(failed("fcntl(F_DUPFD_CLOEXEC)"))?;
        let (shared, ingress) = share(granted.maps, memory, interface.index, Some(bell))?;
        let queue = Queue::behind_tap(granted.tap, tx_frames, ingress);
        let mut ring = Ring {
            // Its TAP takes frames of the MTU.
            super_frames: SuperFrames::Unavailable,
            interface,
            program,
            closed_to_strangers: false,
            queues: vec![queue],
            umem,
            shared: Some(shared),
            rx: Pool::new(memory.chunks),
            tx: Pool::new(tx_frames),
            tx_base: 0,
            in_flight: 0,
            idents: ipv6::Idents::new(),
            most_posted: memory.slots,
            traffic: Traffic::default(),
            tally: Tally::default(),
            tap: None,
        };
        ring.refill(0, memory.slots);
        Ok(ring)
    }

    /// The connection that the ring lasts with, if the daemon has granted it.
    pub fn grant(&self) -> Option<BorrowedFd<'_>> {
        self.program.flows.connection()
    }

    /// The daemon that has granted the ring is gone, or does not answer: nothing comes any more.
    pub fn is_lost(&self) -> bool {
        self.program.flows.are_lost()
    }

    fn open_in(mode: Mode, interface: Interface, limits: Limits) -> Result<Ring, OpenError> {
        let count = interface.rx_queues.clamp(1, MOST_QUEUES);
        let per_queue = (limits.rx_frames / count).max(BATCH).next_power_of_two();
        let rx_frames = per_queue * count;
        let tx_frames = limits.tx_frames.max(BATCH).next_power_of_two();
        let memory =
            program::Sizes { chunks: rx_frames, slots: ring_size(limits.rx_posted, rx_frames) };
        let (program, maps) = Program::attach(&interface, mode, memory, limits)?;
        // Either one ring takes all that comes in, or each queue has one.
        let (count, posted, tx_base) = match maps {
            Some(_) => (1, memory.slots, 0),
            None => (count, ring_size(limits.rx_posted, per_queue), rx_frames),
        };
        let umem = Umem::new(tx_base + tx_frames).map_err(failed("mmap of the UMEM"))?;
        let (shared, mut ingress) =
            maps.map(|maps| share(maps, memory, interface.index, None)).transpose()?.unzip();

        let mut queues: Vec<Queue> = Vec::with_capacity(count as usize);
        for number in 0..count {
            let owner = queues.first().map(|queue| &queue.socket);
            // Only the first queue sends; the others get the smallest ring.
            let tx = if number == 0 { tx_frames } else { BATCH };
            // The fill ring of a socket that receives nothing has to be there, no more.
            let sizes = Sizes { rx: if ingress.is_some() { BATCH } else { posted }, tx };
            let place = Place {
                interface: interface.index,
                queue: number,
                program: &program,
                patience_nanos: limits.patience_nanos,
            };
            let queue = match Queue::open(place, &umem, owner, sizes, ingress.take()) {
                Ok(queue) => queue,
                // The interface was made with more queues than it has active now.
                Err(OpenError::System { call: "bind(AF_XDP)", errno })
                    if number > 0 && errno == Errno::INVAL.raw_os_error() =>
                {
                    break;
                }
                Err(error) => return Err(error),
            };
            queues.push(queue);
        }

        if queues.iter().any(|queue| !queue.takes_chains) && interface.mtu > LONGEST_UNCHAINED {
            let text = format!("an MTU of more than {LONGEST_UNCHAINED} needs Linux 6.6");
            return Err(OpenError::Program(text));
        }

        let mut ring = Ring {
            super_frames: SuperFrames::new(&interface),
            interface,
            program,
            closed_to_strangers: false,
            queues,
            umem,
            shared,
            rx: Pool::new(rx_frames),
            tx: Pool::new(tx_frames),
            tx_base,
            in_flight: 0,
            idents: ipv6::Idents::new(),
            most_posted: posted,
            traffic: Traffic::default(),
            tally: Tally::default(),
            tap: None,
        };
        for number in 0..ring.queues.len() {
            ring.refill(number, posted);
        }
        // Only now, with frames to receive into, may packets come.
        for (number, queue) in ring.queues.iter().enumerate() {
            ring.program.set_socket(number as u32, &queue.socket)?;
        }
        Ok(ring)
    }

    /// Is any flow steered here?
    pub fn has_flows(&self) -> bool {
        !self.program.flows.is_empty()
    }

    /// Gives the interface free, for another process or a later ring. Frames that are still queued
    /// stay readable.
    pub fn shut(&mut self) {
        self.program.detach();
        // Another thread may be about to kick one of them.
        self.queues.drain(..).for_each(Queue::retire);
    }

    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Where the steering program runs.
    pub fn mode(&self) -> Mode {
        self.program.mode
    }

    /// Something about the interface changed.
    pub fn update_interface(&mut self, now: Interface) -> Result<(), OpenError> {
        self.interface = now;
        self.program.set_interface(&self.interface)
    }

    /// Packets of this flow come to us from now on (or still, if another socket has it already).
    pub fn add_flow(&mut self, flow: Flow) -> Result<(), Errno> {
        self.program.flows.add(flow, None)
    }

    /// The same; `shown` is the kernel's socket that has the flow's destination. A daemon that has granted the ring
    /// wants to see it.
    pub fn add_flow_of(&mut self, shown: i32, flow: Flow) -> Result<(), Errno> {
        self.program.flows.add(flow, Some(shown))
    }

    pub fn remove_flows(&mut self, flows: impl Iterator<Item = Flow>) {
        self.program.flows.remove(flows);
    }

    /// Packets of this 5-tuple go to the kernel from now on, also if a 3-tuple of ours covers it.
    pub fn except_flow(&mut self, flow: Flow) -> Result<(), Errno> {
        self.program.flows.except(flow)
    }

    pub fn end_exception(&mut self, flow: Flow) {
        self.program.flows.end_exception(flow);
    }

    pub fn exceptions(&self) -> &HashSet<Flow> {
        self.program.flows.exceptions()
    }

    /// The descriptors that become readable when a packet comes.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().flat_map(|queue| queue.inlet.descriptors(&queue.socket))
    }

    /// The next packet. A bad descriptor is skipped: what the kernel writes is checked, too.
    #[inline]
    pub fn receive(&mut self) -> Option<Received> {
        for number in 0..self.queues.len() {
            if let Some(received) = self.receive_from(number) {
                return Some(received);
            }
        }
        None
    }

    #[inline]
    fn receive_from(&mut self, number: usize) -> Option<Received> {
        let most = self.most_posted;
        let few_queues = self.queues.len() <= EXPECTING;
        let memory = self.shared.as_ref().unwrap_or(&self.umem);
        let queue = self.queues.get_mut(number)?;
        let Some(first) = queue.inlet.consume() else {
            if few_queues {
                queue.inlet.expect_next(memory);
            }
            // Entries go back in batches, but a queue that runs low gets what there is.
            if queue.posted < most / 2 && self.rx.available() > 0 {
                queue.inlet.publish();
                self.refill(number, 1);
            }
            return None;
        };
        memory.prefetch(Extent { offset: first.address, len: first.len });
        let mut more = first.options & CONTINUED != 0;
        let segment = (first.options >> SEGMENT_SHIFT) as u16;
        let mut len = first.len;
        let head = reclaim(&mut self.rx, first);
        let mut last = head.as_ref().map(Frame::index);
        queue.posted = queue.posted.saturating_sub(1);
        // The kernel publishes the descriptors of a packet together.
        while more {
            let Some(next) = queue.inlet.consume() else { break };
            more = next.options & CONTINUED != 0;
            len = len.saturating_add(next.len);
            queue.posted = queue.posted.saturating_sub(1);
            if let Some(frame) = reclaim(&mut self.rx, next) {
                match last {
                    Some(index) => last = Some(self.rx.append(index, frame)),
                    None => self.rx.release(frame),
                }
            }
        }
        if queue.inlet.unpublished() >= BATCH {
            queue.inlet.publish();
            self.refill(number, BATCH);
        }
        self.traffic.rx_packets += 1;
        self.traffic.rx_bytes += u64::from(len);
        head.map(|frame| Received { frame, len, segment })
    }

    /// Before a sleep: gives back everything that was received, or the kernel would take the ring for readable and wake at once.
    pub fn settle(&mut self) {
        self.note_sleep();
        for number in 0..self.queues.len() {
            let Some(queue) = self.queues.get_mut(number) else { continue };
            if queue.inlet.unpublished() > 0 {
                queue.inlet.publish();
                self.refill(number, BATCH);
            }
            if let Some(queue) = self.queues.get_mut(number) {
                queue.inlet.fall_asleep();
            }
        }
    }

    /// Gives free frames to the kernel to receive into.
    fn refill(&mut self, number: usize, at_least: u32) {
        let most = self.most_posted;
        let Some(queue) = self.queues.get_mut(number) else { return };
        let room = queue.inlet.room(at_least).min(most.saturating_sub(queue.posted));
        for _ in 0..room {
            let Some(frame) = self.rx.allocate() else {
                self.traffic.rx_none += 1;
                break;
            };
            queue.inlet.offer(u64::from(Pool::surrender(frame)) * u64::from(CHUNK));
            queue.posted += 1;
        }
        queue.publish_offers();
    }

    #[inline]
    fn rx_memory(&self) -> &Umem {
        self.shared.as_ref().unwrap_or(&self.umem)
    }

    /// The first piece of a received packet: all its headers are in it.
    #[inline]
    pub fn first_bytes(&self, frame: &Frame) -> &[u8] {
        self.rx_memory().bytes(self.rx.extent(frame))
    }

    /// Makes a received packet of IPv6 one of IPv4 (`ipv6`).
    #[inline(never)]
    pub fn translate(&mut self, received: &mut Received) -> Result<(), DropReason> {
        let extent = self.rx.extent(&received.frame);
        let memory = self.shared.as_mut().unwrap_or(&mut self.umem);
        let flows = &mut self.program.flows;
        // The peer's next packet comes to the kernel.
        let stranger = |address| flows.leave_to_kernel(address);
        let outcome = ipv6::to_ipv4(memory.bytes_mut(extent), received.len as usize, stranger);
        if outcome == Err(DropReason::KernelsConnection) {
            self.close_to_strangers();
        }
        let by = outcome?;
        self.rx.set_extent_at(received.frame.index(), ipv6::shrunk(extent, by));
        received.len = received.len.saturating_sub(by as u32);
        Ok(())
    }

    /// If there are too many of them: each costs some 0.1 ms here, and their addresses may be forged.
    #[cold]
    fn close_to_strangers(&mut self) {
        if self.program.flows.is_closed_to_strangers() && !self.closed_to_strangers {
            self.closed_to_strangers = self.program.set_interface(&self.interface).is_ok();
        }
    }

    /// Are datagrams of unknown peers the kernel's, as there were too many strangers?
    pub fn is_closed_to_strangers(&self) -> bool {
        self.closed_to_strangers
    }

    /// All pieces of a received packet.
    #[inline]
    pub fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]> {
        self.rx.extents(frame).map(|extent| self.rx_memory().bytes(extent))
    }

    /// Gives a received packet back.
    #[inline]
    pub fn release(&mut self, frame: Frame) {
        self.rx.release(frame);
    }

    /// Some queue has less than half of its frames left to receive into, and too few are free to help it: whoever queues packets must copy
    /// them out, or the ring runs dry because one application is slow.
    #[inline]
    pub fn is_short_of_frames(&self) -> bool {
        let least = self.most_posted / 2;
        self.rx.available() < least as usize && self.queues.iter().any(|queue| queue.posted < least)
    }

    /// Descriptors that wait for a kick.
    #[inline]
    pub fn unsent(&self) -> u32 {
        self.queues.first().map_or(0, |queue| queue.outlet.unsent())
    }

    /// Did a kick leave something behind (device busy, no memory)?
    pub fn is_stuck(&mut self) -> bool {
        self.queues.first_mut().is_some_and(|queue| !queue.outlet.is_drained())
    }

    /// Has a kick left something behind that leaves with another kick only?
    #[inline]
    pub fn has_left_over(&self) -> bool {
        let left_over = |queue: &Queue| match &queue.outlet {
            Outlet::Packets(packets) => packets.has_waiting(),
            // The kernel goes on by itself, or has been called as often as it wanted.
            Outlet::Rings { .. } => false,
        };
        self.queues.first().is_some_and(left_over)
    }

    /// Sends what is queued.
    #[inline]
    pub fn kick(&mut self) {
        if let Some(queue) = self.queues.first_mut() {
            queue.kick(&self.umem);
        }
        if self.in_flight >= BATCH {
            self.reclaim_sent();
        }
    }

    /// As [`Ring::kick`], or the calling thread does it when it has given back its locks, if others wait for
    /// those. True if something was left behind.
    #[inline]
    pub fn kick_soon(&mut self) -> bool {
        if errand::may_put_off_kick()
            && let Some(queue) = self.queues.first_mut()
            && queue.put_off_kick()
        {
            if self.in_flight >= BATCH {
                self.reclaim_sent();
            }
            return false;
        }
        self.kick();
        self.is_stuck()
    }

    /// Do packets longer than a chunk arrive, as chains? If not (Linux before 6.6), they are lost.
    pub fn takes_chains(&self) -> bool {
        self.queues.first().is_some_and(|queue| queue.takes_chains)
    }

    /// Do TCP segments arrive that were put together, by a local peer's offload or by GRO? In a device's driver they are
    /// not yet, and a veth's peer does not do so while there is a program in the driver.
    pub fn takes_streams(&self) -> bool {
        let uncut = self.interface.is_virtual && !self.interface.is_veth;
        self.takes_chains() || self.program.mode == Mode::Native && !uncut
    }

    /// The largest TCP payload that [`Ring::transmit_segmented`] takes; 0 without segmentation
    /// offload.
    #[inline]
    pub fn segmentation_limit(&self) -> usize {
        self.super_frames.limit()
    }

    /// Does [`Ring::transmit_segmented`] take UDP, too?
    #[inline]
    pub fn carries_trains(&self) -> bool {
        self.super_frames.carries_trains()
    }

    fn reclaim_sent(&mut self) {
        let Some(queue) = self.queues.first_mut() else { return };
        while let Some(address) = queue.outlet.take_sent() {
            let index = ((address / u64::from(CHUNK)) as u32).wrapping_sub(self.tx_base);
            if let Some(frame) = self.tx.reclaim(index, Extent::default()) {
                self.tx.release(frame);
                self.in_flight = self.in_flight.saturating_sub(1);
            }
        }
        queue.outlet.settle();
    }
}

/// The memory that the steering program writes frames to, and the ring that it fills.
fn share(
    maps: Maps,
    sizes: program::Sizes,
    interface: u32,
    bell: Option<Bell>,
) -> Result<(Umem, Ingress), OpenError> {
    let memory = Umem::of_map(&maps.chunks, sizes.chunks).map_err(failed("mmap of the frames"))?;
    let ingress =
        Ingress::open(maps, sizes.slots, interface, bell).map_err(failed("opening the ring"))?;
    Ok((memory, ingress))
}

fn failed(call: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { call, errno: errno.raw_os_error() }
}

fn reclaim(pool: &mut Pool, descriptor: Descriptor) -> Option<Frame> {
    let index = (descriptor.address / u64::from(CHUNK)) as u32;
    pool.reclaim(index, Extent { offset: descriptor.address, len: descriptor.len })
}
