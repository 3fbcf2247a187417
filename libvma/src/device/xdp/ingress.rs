//! The ring that the steering program at the tc ingress hook fills (`bpf/ingress.bpf.c`, which has
//! the protocol): our side of it.
//!
//! It takes the place of an AF_XDP socket's fill and RX ring. [`Slots`] knows the order of reads and
//! writes and nothing of where the memory is, so that the same code runs under the model checker;
//! [`Ingress`] is the memory, mapped from BPF maps; [`Bell`] wakes who sleeps.

mod bell;
#[cfg(test)]
mod model;
mod own_bells;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

pub use self::bell::Bell;
use self::own_bells::OwnBells;
pub use self::own_bells::Taker;
use super::ring::{CONTINUED, Descriptor, Mapping, SEGMENT_SHIFT};
use super::umem::{CHUNK, Umem};
use crate::sys::Fd;

/// The maps of the steering program that the process shares.
pub struct Maps {
    pub chunks: Fd,
    pub slots: Fd,
    pub control: Fd,
    pub bells: Fd,
    pub waiters: Fd,
}

/// An atomic word that both sides see.
pub trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
}

/// A piece of a frame, as the program describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub chunk: u32,
    pub len: u32,
    /// More pieces of the frame follow.
    pub continued: bool,
    /// Of a train of UDP datagrams: bytes of each; else 0.
    pub segment: u16,
}

/// The shared words. Positions count on for ever; which slot one means is the memory's to say.
pub trait Memory {
    type Word: Word;
    /// Number of slots, a power of two.
    fn size(&self) -> u32;
    fn turn(&self, position: u32) -> &Self::Word;
    fn credit(&self) -> &Self::Word;
    fn asleep(&self) -> &Self::Word;
    /// Writes the number of a free chunk into a slot that is ours.
    fn offer(&self, position: u32, chunk: u32);
    /// Reads a slot that the program has published.
    fn piece(&self, position: u32) -> Piece;
    /// A sequentially consistent fence.
    fn fence();
}

/// Our side of the ring.
pub struct Slots<M> {
    memory: M,
    /// The position that is read next.
    next: u32,
    /// The position that is offered next; at most `size` in front of `next`.
    offered: u32,
    /// Chunks that the program does not know of yet.
    unpublished: u32,
}

impl<M: Memory> Slots<M> {
    /// Over fresh memory (zeros), in which no slot must look as if it were published: positions begin
    /// with the second lap.
    pub fn new(memory: M) -> Slots<M> {
        let first = memory.size();
        Slots { memory, next: first, offered: first, unpublished: 0 }
    }

    /// Slots that hold neither a free chunk nor a piece.
    #[inline]
    pub fn room(&self) -> u32 {
        self.memory.size().saturating_sub(self.offered.wrapping_sub(self.next))
    }

    /// Offers a chunk to write to, with the next [`Slots::publish`]; the caller has asked
    /// [`Slots::room`].
    #[inline]
    pub fn offer(&mut self, chunk: u32) {
        self.memory.offer(self.offered, chunk);
        self.offered = self.offered.wrapping_add(1);
        self.unpublished += 1;
    }

    #[inline]
    pub fn publish(&mut self) {
        let count = core::mem::take(&mut self.unpublished);
        if count > 0 {
            self.memory.credit().fetch_add(count, Ordering::Release);
        }
    }

    #[inline]
    pub fn is_ready(&self) -> bool {
        self.memory.turn(self.next).load(Ordering::Acquire) == self.next.wrapping_add(1)
    }

    /// The next piece, if it is there. All pieces of a frame are there with the first.
    #[inline]
    pub fn consume(&mut self) -> Option<Piece> {
        if !self.is_ready() {
            return None;
        }
        let piece = self.memory.piece(self.next);
        self.next = self.next.wrapping_add(1);
        Some(piece)
    }

    /// Before a sleep: asks for the bell. False if something has come meanwhile, for which it was
    /// perhaps not rung.
    pub fn fall_asleep(&self) -> bool {
        self.memory.asleep().store(1, Ordering::Relaxed);
        // The program publishes, fences and looks whether somebody sleeps (Dekker's pattern): at least
        // one of the two sees the other's word.
        M::fence();
        !self.is_ready()
    }
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    #[inline(always)]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_add(self, value, order)
    }
}

/// `struct slot` of the program.
#[repr(C)]
struct Slot {
    turn: AtomicU32,
    chunk: AtomicU32,
    len: AtomicU32,
    continued: AtomicU32,
}

/// `struct control` of the program.
#[repr(C)]
struct Control {
    reserve: Line<Reserve>,
    asleep: Line<AtomicU32>,
    read: Line<AtomicU32>,
    lost: Line<AtomicU64>,
}

#[repr(C)]
struct Reserve {
    head: AtomicU32,
    mask: AtomicU32,
    credit: AtomicU32,
    mark: AtomicU32,
    own_bells: AtomicU32,
}

#[repr(C, align(64))]
struct Line<T>(T);

// As in the program.
const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Control>() == 4 * 64);

/// The maps of slots and of control words.
struct Shared {
    _slots: Mapping,
    _control: Mapping,
    slots: *const Slot,
    control: *const Control,
    mask: u32,
}

// SAFETY: the pointers go into mappings that the value owns; nothing in them belongs to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn map(maps: &Maps, size: u32) -> Result<Shared, Errno> {
        debug_assert!(size.is_power_of_two());
        let slots = Mapping::shared(&maps.slots, 0, size as usize * size_of::<Slot>())?;
        let control = Mapping::shared(&maps.control, 0, size_of::<Control>())?;
        let shared = Shared {
            slots: slots.at::<Slot>(0).cast_const(),
            control: control.at::<Control>(0).cast_const(),
            _slots: slots,
            _control: control,
            mask: size - 1,
        };
        let Line(reserve) = &shared.control().reserve;
        reserve.mask.store(size - 1, Ordering::Relaxed);
        reserve.head.store(size, Ordering::Release);
        Ok(shared)
    }

    #[inline]
    fn slot(&self, position: u32) -> &Slot {
        // SAFETY: the mask keeps the number below the count of slots that were mapped.
        let slot = unsafe { self.slots.add((position & self.mask) as usize) };
        // SAFETY: a slot is made of atomic words, for which any bits will do, and stays mapped as long as
        // `self`.
        unsafe { &*slot }
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: as in `slot`.
        unsafe { &*self.control }
    }
}

impl Memory for Shared {
    type Word = AtomicU32;

    #[inline]
    fn size(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn turn(&self, position: u32) -> &AtomicU32 {
        &self.slot(position).turn
    }

    #[inline]
    fn credit(&self) -> &AtomicU32 {
        &self.control().reserve.0.credit
    }

    #[inline]
    fn asleep(&self) -> &AtomicU32 {
        &self.control().asleep.0
    }

    #[inline]
    fn offer(&self, position: u32, chunk: u32) {
        self.slot(position).chunk.store(chunk, Ordering::Relaxed);
    }

    #[inline]
    fn piece(&self, position: u32) -> Piece {
        let slot = self.slot(position);
        let continued = slot.continued.load(Ordering::Relaxed);
        Piece {
            chunk: slot.chunk.load(Ordering::Relaxed),
            len: slot.len.load(Ordering::Relaxed),
            continued: continued & 1 != 0,
            segment: (continued >> SEGMENT_SHIFT) as u16,
        }
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// What packets come through.
pub struct Ingress {
    slots: Slots<Shared>,
    /// Slots before this position were offered anew, as far as there were frames.
    settled: u32,
    bell: Bell,
    own_bells: OwnBells,
}

impl Ingress {
    /// `slots` is the number that the map was made with. Without a bell a packet socket is made one.
    pub fn open(
        maps: Maps,
        slots: u32,
        interface: u32,
        bell: Option<Bell>,
    ) -> Result<Ingress, Errno> {
        let own_bells = OwnBells::new(&maps.bells, &maps.waiters, interface)?;
        let slots = Slots::new(Shared::map(&maps, slots)?);
        let bell = bell.map_or_else(|| Bell::open(interface), Ok)?;
        slots.memory.control().reserve.0.mark.store(bell.mark(), Ordering::Relaxed);
        Ok(Ingress { settled: slots.next, slots, bell, own_bells })
    }

    #[inline]
    pub fn consume(&mut self) -> Option<Descriptor> {
        let piece = self.slots.consume()?;
        Some(Descriptor {
            address: u64::from(piece.chunk) * u64::from(CHUNK),
            len: piece.len.min(CHUNK),
            options: u32::from(piece.segment) << SEGMENT_SHIFT
                | if piece.continued { CONTINUED } else { 0 },
        })
    }

    /// Starts to fetch what the program is about to write: the chunk whose number is in the slot.
    #[inline]
    pub fn expect_next(&self, umem: &Umem) {
        let slot = self.slots.memory.slot(self.slots.next);
        umem.prefetch_expected(u64::from(slot.chunk.load(Ordering::Relaxed)) * u64::from(CHUNK));
    }

    /// Slots read and not [`settled`](Ingress::settle) yet.
    #[inline]
    pub fn unsettled(&self) -> u32 {
        self.slots.next.wrapping_sub(self.settled)
    }

    /// What was read up to here is about to be offered anew.
    #[inline]
    pub fn settle(&mut self) {
        self.settled = self.slots.next;
    }

    #[inline]
    pub fn room(&self) -> u32 {
        self.slots.room()
    }

    #[inline]
    pub fn offer(&mut self, address: u64) {
        self.slots.offer((address / u64::from(CHUNK)) as u32);
    }

    #[inline]
    pub fn publish(&mut self) {
        self.slots.publish();
    }

    /// Before a sleep on the [descriptors](Ingress::descriptors).
    pub fn fall_asleep(&mut self) {
        self.bell.hush();
        if !self.slots.fall_asleep() {
            self.bell.ring();
        }
    }

    /// Readable when a packet has come since [`Ingress::fall_asleep`].
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        self.bell.descriptors()
    }

    /// A thread is about to sleep until its own bell of this number (1 and up) rings: what becomes readable
    /// then. None if there is no such bell; false in the second place if something has come meanwhile, for
    /// which it was perhaps not rung.
    pub fn arm_own_bell(&mut self, number: usize) -> Option<(BorrowedFd<'_>, bool)> {
        let (is_there, missed) = self.own_bells.provide(number, &self.bell);
        if missed {
            self.bell.ring();
        }
        if !is_there {
            return None;
        }
        self.heed_own_bells(true);
        self.note_read();
        let bell = self.own_bells.arm(number)?;
        // As in `Slots::fall_asleep`.
        fence(Ordering::SeqCst);
        Some((bell, !self.slots.is_ready()))
    }

    /// Whether the program looks up whose bell a connection's frames ring. If not it rings the common bell.
    pub fn heed_own_bells(&self, heeds: bool) {
        let count = if heeds { self.own_bells.count() } else { 0 };
        self.slots.memory.control().reserve.0.own_bells.store(count, Ordering::Relaxed);
    }

    /// Tells the program what was read, if it asks.
    #[inline]
    pub fn note_read(&self) {
        if self.own_bells.count() > 0 {
            self.slots.memory.control().read.0.store(self.slots.next, Ordering::Relaxed);
        }
    }

    /// No thread sleeps on the common bell.
    pub fn silence(&self) {
        self.slots.memory.asleep().store(0, Ordering::Relaxed);
    }

    /// Was the common bell rung since [`Ingress::fall_asleep`]?
    pub fn is_rung(&self) -> bool {
        self.slots.memory.asleep().load(Ordering::Relaxed) == 0
    }

    pub fn is_own_bell_rung(&self, number: usize) -> bool {
        self.own_bells.is_rung(number)
    }

    pub fn own_bells(&mut self) -> &mut OwnBells {
        &mut self.own_bells
    }

    /// Pieces that wait to be read.
    pub fn waiting(&self) -> u32 {
        let Line(reserve) = &self.slots.memory.control().reserve;
        reserve
            .head
            .load(Ordering::Relaxed)
            .wrapping_sub(self.slots.next)
            .min(self.slots.memory.size())
    }

    /// Frames that found no room, since the beginning.
    pub fn lost(&self) -> u64 {
        self.slots.memory.control().lost.0.load(Ordering::Relaxed)
    }
}
