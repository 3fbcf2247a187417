//! The way out of a shared-memory ring: packets, messages, the peers' bells.

use libvma_engine::frame::{Frame, Pool};

use super::lane::{INLINE, Inline, Progress, RESERVE, Violation};
use super::link::{self, Link};
use super::record::{HEADER, MOST_CHUNKS, MOST_INLINE_PAYLOAD, Shape};
use super::segment::CHUNK;
use super::{LinkId, Ring, link_mut};
use crate::capture::{Direction, Tap};
use crate::sys::time::realtime_nanos;

/// No room in the link now, or no such link: [`super::Arrival::Relief`] tells when there is some
/// (or [`super::Arrival::Broken`]). A packet that finds no room is lost without relief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// How far a message may go into the last slots of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// It leaves them free.
    Usual,
    /// It may take half of them: a program has been told that its socket is writable.
    Promised,
    /// It may take all of them.
    Urgent,
}

impl Rank {
    /// The slots that the message leaves free.
    #[inline(always)]
    pub fn reserve(self) -> u64 {
        match self {
            Rank::Usual => RESERVE,
            Rank::Promised => RESERVE / 2,
            Rank::Urgent => 0,
        }
    }
}

/// The packet under construction. What goes into the slot is put together here, so that the slot's
/// cache lines, which the peer polls, are written to once.
pub struct Outgoing {
    /// `None` if there is no packet under construction.
    link: Option<LinkId>,
    len: usize,
    shape: Shape,
    bytes: Inline,
}

impl Outgoing {
    pub fn new() -> Outgoing {
        let shape = Shape { start: 0, end: 0, chunks: 0, used: 0 };
        Outgoing { link: None, len: 0, shape, bytes: [0; INLINE] }
    }
}

impl Ring {
    /// A frame for a packet of `len` bytes by this link; `None` if there is no room, or never will
    /// be: the packet is lost, nothing tells when there is room. Only one is under construction at a time: the one before it is forgotten.
    #[inline]
    pub fn allocate(&mut self, link: LinkId, len: usize) -> Option<Frame> {
        self.abandon();
        let shape = Shape::packet(len)?;
        match self.open_link(link)?.has_room_for_packet(shape.chunks) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(Violation) => {
                self.break_off_later(link);
                return None;
            }
        }
        let outgoing = &mut self.outgoing;
        // What an earlier packet left there is not this peer's business.
        outgoing.bytes = [0; INLINE];
        if shape.chunks > 0 {
            link_mut(&mut self.places, link.index)?.lend(&mut outgoing.bytes, shape.chunks);
        }
        outgoing.link = Some(link);
        outgoing.len = len;
        outgoing.shape = shape;
        self.heads.outgoing()
    }

    /// Sends a packet that a slot holds; a peer that sleeps learns of it with the next
    /// [`Ring::kick`]. `fill` gets its number in the lane and the slot's bytes, all zero. `Full` also
    /// if the peer has withdrawn a socket ([`Ring::has_withdrawn`]).
    #[inline]
    pub fn send_packet(
        &mut self,
        id: LinkId,
        len: usize,
        fill: impl FnOnce(u64, &mut Inline),
    ) -> Result<Progress, Full> {
        let shape = Shape::packet(len).filter(|shape| shape.chunks == 0).ok_or(Full)?;
        let link = self.open_link(id).ok_or(Full)?;
        if link.is_withdrawn() {
            return Err(Full);
        }
        match link.has_room_for_packet(0) {
            Ok(true) => {}
            Ok(false) => return Err(Full),
            Err(Violation) => {
                self.break_off_later(id);
                return Err(Full);
            }
        }
        let mut bytes = [0; INLINE];
        fill(link.progress().sent, &mut bytes);
        link.counters.packets_out += 1;
        link.counters.bytes_out += len as u64;
        link.publish(0, len, &bytes, shape);
        let progress = link.progress();
        if !link.fresh {
            link.fresh = true;
            self.fresh.push(id.index);
        }
        Ok(progress)
    }

    /// The link, if it has room for a message.
    #[inline]
    fn make_room(&mut self, id: LinkId, chunks: usize, rank: Rank) -> Option<&mut Link> {
        match self.open_link(id)?.has_room(chunks, rank.reserve()) {
            Ok(true) => return self.open_link(id),
            Ok(false) => self.count_attention(),
            Err(Violation) => self.break_off_later(id),
        }
        None
    }

    /// Hands the pieces of an allocated frame, in order, to `write` with their offset in the
    /// packet.
    #[inline]
    pub fn write(&mut self, frame: &Frame, mut write: impl FnMut(usize, &mut [u8])) {
        if !self.heads.is_outgoing(frame) {
            return;
        }
        let Outgoing { link: Some(id), len, shape, bytes } = &mut self.outgoing else { return };
        if let Some(inline) = bytes.get_mut(..shape.end) {
            write(0, inline);
        }
        let Some(link) = link_mut(&mut self.places, id.index) else { return };
        let mut offset = shape.end;
        for place in 0..shape.chunks {
            link.chunk_mut(bytes, place, *len - offset, |piece| write(offset, piece));
            offset += CHUNK;
        }
    }

    /// Sends a written packet; a peer that sleeps learns of it with the next [`Ring::kick`].
    #[inline]
    pub fn transmit(&mut self, frame: Frame) {
        if !self.heads.is_outgoing(&frame) {
            self.release(frame);
            return;
        }
        if self.tap.is_some() {
            self.capture(&frame);
        }
        let _number = Pool::surrender(frame);
        let Outgoing { link, len, shape, bytes } = &mut self.outgoing;
        let Some(id) = link.take() else { return };
        let Some(link) = link_mut(&mut self.places, id.index) else { return };
        if !link.is_open() {
            return;
        }
        // Urgent messages may have taken the slot meanwhile.
        if link.has_slot() != Ok(true) {
            link.reclaim(bytes, shape.chunks);
            return;
        }
        link.counters.packets_out += 1;
        link.counters.bytes_out += *len as u64;
        link.publish(0, *len, bytes, *shape);
        if !link.fresh {
            link.fresh = true;
            self.fresh.push(id.index);
        }
    }

    /// Written packets are captured here from now on. Those of [`Ring::send_packet`] are not.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(Box::new(tap));
    }

    #[cold]
    #[inline(never)]
    fn capture(&mut self, frame: &Frame) {
        let mut packet = Vec::with_capacity(self.outgoing.len);
        self.write(frame, |_, piece| packet.extend_from_slice(piece));
        // The addresses are marks for the peer.
        if let Some(addresses) = packet.get_mut(..12) {
            addresses.fill(0);
        }
        if let Some(tap) = &self.tap {
            let bytes = core::iter::once(&packet[..]);
            tap.packet(Direction::Out, realtime_nanos(), packet.len(), bytes, None);
        }
    }

    /// Sends a message; a peer that sleeps learns of it with the next [`Ring::kick`]. `fill` is
    /// called with the pieces of the payload, `len` bytes in all, in order. Its rank
    /// says which of the last slots it may take.
    #[inline]
    pub fn send_message(
        &mut self,
        link: LinkId,
        kind: u8,
        header: [u64; 3],
        len: usize,
        rank: Rank,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<(), Full> {
        let shape = Shape::message(len).filter(|_| kind != 0).ok_or(Full)?;
        let open = self.make_room(link, shape.chunks, rank).ok_or(Full)?;
        let mut bytes = [0; INLINE];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(header) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        if shape.chunks > 0 {
            open.lend(&mut bytes, shape.chunks);
            for place in 0..shape.chunks {
                open.chunk_mut(&bytes, place, len - place * CHUNK, &mut fill);
            }
        } else if len > 0
            && let Some(inline) = bytes.get_mut(HEADER..shape.end)
        {
            fill(inline);
        }
        open.counters.messages_out += 1;
        open.counters.bytes_out += len as u64;
        open.publish(kind, len, &bytes, shape);
        if !open.fresh {
            open.fresh = true;
            self.fresh.push(link.index);
        }
        Ok(())
    }

    /// Bytes of payload that one message could carry now; 0 if not even an empty one fits: then
    /// [`super::Arrival::Relief`] tells when one does.
    pub fn room(&mut self, link: LinkId) -> usize {
        let Some(open) = self.open_link(link) else { return 0 };
        match open.room() {
            Ok(None) => match self.make_room(link, 0, Rank::Usual) {
                Some(_) => MOST_INLINE_PAYLOAD,
                None => 0,
            },
            Ok(Some(0)) => {
                link::fence();
                open.wake_any();
                MOST_INLINE_PAYLOAD
            }
            Ok(Some(chunks)) => chunks.min(MOST_CHUNKS) * CHUNK,
            Err(Violation) => {
                self.break_off_later(link);
                0
            }
        }
    }

    /// Rings the bells of the peers that sleep, as far as something was sent to them.
    #[inline]
    pub fn kick(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        link::fence();
        while let Some(index) = self.fresh.pop() {
            if let Some(link) = link_mut(&mut self.places, index)
                && core::mem::take(&mut link.fresh)
                && link.is_open()
            {
                link.wake();
            }
        }
    }

    /// Links with something sent that waits for a kick.
    #[inline]
    pub fn unsent(&self) -> u32 {
        self.fresh.len() as u32
    }

    /// Forgets the packet under construction.
    #[inline]
    pub(super) fn abandon(&mut self) {
        if let Some(id) = self.outgoing.link.take()
            && let Some(link) = link_mut(&mut self.places, id.index)
        {
            link.reclaim(&self.outgoing.bytes, self.outgoing.shape.chunks);
        }
    }

    pub(super) fn abandon_for(&mut self, id: LinkId) {
        if self.outgoing.link == Some(id) {
            self.abandon();
        }
    }
}
