//! The shared-memory device: packets and messages between processes of one host.
//!
//! A [`Ring`] has any number of links, one to each peer process. `segment` is a link's memory,
//! `lane` one direction of it and the only place that orders accesses, `record` what a slot can
//! hold, `link` both lanes and the peer's bell, `head` the received packets somebody holds,
//! `transmit` the way out, `count` what is told of all that. Who the peer is, and what packets and
//! messages mean, is not known here.
//!
//! The peer is not trusted. Whatever it writes is copied once, checked, then used; a peer that
//! breaks the layout is reported as [`Arrival::Broken`] and not listened to any more.
//!
//! Nobody makes a system call for a peer that polls. One that sleeps has armed its lanes before
//! ([`Ring::settle`]); whoever sends to it then rings the link's bell (`bell`) with [`Ring::kick`].

mod bell;
mod count;
mod head;
mod lane;
mod link;
mod own_bells;
mod record;
mod segment;
#[cfg(test)]
mod tests;
mod transmit;

pub use lane::{COMMON, INLINE, Progress, Reader};
pub use own_bells::Arming;
pub use record::{MOST_PACKET, MOST_PAYLOAD};
pub use segment::Segment;
pub use transmit::{Full, Rank};

use core::net::Ipv4Addr;

use libvma_engine::frame::Frame;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use self::bell::{Bell, Bells};
use self::head::Heads;
use self::lane::{Inline, Violation};
use self::link::{Link, State};
use self::record::{HEADER, Shape};
use self::segment::system;
use self::transmit::Outgoing;
use super::{Interface, OpenError, Received, Tally};
use crate::capture::Tap;
use crate::sys::{Fd, unix_socket};

/// Names a link for as long as it exists, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    index: u16,
    generation: u16,
}

impl LinkId {
    /// Names no link: a ring never has so many.
    pub const NONE: LinkId = LinkId { index: u16::MAX, generation: u16::MAX };

    /// The Ethernet address that stands for the link: a locally administered one.
    #[inline]
    pub fn mac(self) -> [u8; 6] {
        let [a, b] = self.index.to_be_bytes();
        let [c, d] = self.generation.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    /// The same for frames to one of several sockets behind the link; the number has no meaning here.
    #[inline]
    pub fn mac_of_member(self, member: u8) -> [u8; 6] {
        let [first, _, rest @ ..] = self.mac();
        let [a, b, c, d] = rest;
        [first, member, a, b, c, d]
    }

    #[inline]
    pub fn from_mac(mac: [u8; 6]) -> Option<LinkId> {
        let [2, _, a, b, c, d] = mac else { return None };
        let (index, generation) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Some(LinkId { index, generation })
    }
}

/// Which lane is whose: the two sides must not be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that created the segment.
    Maker,
    /// The process that took it.
    Taker,
}

/// What came by a link, or became of it.
#[derive(Debug)]
pub enum Arrival {
    /// An Ethernet frame. Its source address is the link's, whatever the peer wrote there.
    Packet(Received),
    /// `kind` is not 0. A payload is a frame like a packet's, but holds nothing else.
    Message { link: LinkId, kind: u8, header: [u64; 3], payload: Option<Received> },
    /// Something did not fit lately; now there is room again.
    Relief(LinkId),
    /// The peer broke the layout. Nothing goes over the link any more; it wants to be unlinked.
    Broken(LinkId),
}

/// What went over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets_in: u64,
    pub packets_out: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    /// Bytes of packets and of messages' payload.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Times that something did not fit.
    pub full: u64,
    /// Times that the peer's bell was rung.
    pub bells: u64,
}

impl core::fmt::Display for Counters {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "in {} packets, {} messages, {} bytes; out {} packets, {} messages, {} bytes; full {} times, {} bells rung",
            self.packets_in,
            self.messages_in,
            self.bytes_in,
            self.packets_out,
            self.messages_out,
            self.bytes_out,
            self.full,
            self.bells
        )
    }
}

/// A place for a link; the generation tells one tenant from the next.
#[derive(Default)]
struct Place {
    generation: u16,
    link: Option<Box<Link>>,
}

/// A shard's endpoint for peers on this host.
pub struct Ring {
    interface: Interface,
    bells: Bells,
    places: Vec<Place>,
    /// Indices of the open links.
    open: Vec<u16>,
    /// Where in `open` the last arrival came from.
    turn: usize,
    heads: Heads,
    outgoing: Outgoing,
    /// Links with records whose bell was not looked at yet.
    fresh: Vec<u16>,
    /// Links that broke and were not reported yet.
    broken: Vec<LinkId>,
    /// Links that wait for relief or are to be reported.
    attention: usize,
    /// Links with more of the peer's chunks than is good for the peer.
    crowded: usize,
    /// A thread lacks a bell on some link, which nobody was told yet.
    wants_bells: bool,
    /// The bell of a thread rang, and nobody has seen the ring empty since.
    owes_look: bool,
    /// The link of the record that is dealt with ([`Ring::begin_arrival`]).
    arrived_by: Option<u16>,
    tally: Tally,
    /// What went over links that are gone.
    ended: Counters,
    /// Where sent packets are captured.
    tap: Option<Box<Tap>>,
}

impl Ring {
    /// Its packets come as if by `lo`.
    pub fn open() -> Result<Ring, OpenError> {
        Ok(Ring {
            interface: loopback(),
            bells: Bells::open()?,
            places: Vec::new(),
            open: Vec::new(),
            turn: 0,
            heads: Heads::new(),
            outgoing: Outgoing::new(),
            fresh: Vec::new(),
            broken: Vec::new(),
            attention: 0,
            crowded: 0,
            wants_bells: false,
            owes_look: false,
            arrived_by: None,
            tally: Tally::default(),
            ended: Counters::default(),
            tap: None,
        })
    }

    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Becomes readable when a peer has something for us while we sleep.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bells.descriptor()
    }

    /// Opens a link over `segment`; `bell_of_peer` is what the peer's [`Segment::bell`] gave.
    pub fn link(
        &mut self,
        segment: Segment,
        side: Side,
        bell_of_peer: Fd,
    ) -> Result<LinkId, OpenError> {
        check_bell(&bell_of_peer)?;
        let vacant = self.places.iter().position(|place| place.link.is_none());
        let index = vacant.unwrap_or(self.places.len());
        let number = u16::try_from(index).map_err(|_| OpenError::Busy)?;
        if vacant.is_none() {
            self.places.push(Place::default());
        }
        let Some(place) = self.places.get_mut(index) else { return Err(OpenError::Busy) };
        let id = LinkId { index: number, generation: place.generation };
        // The end to ring it with is the peer's alone.
        let Bell { hears, .. } = segment.bell;
        self.bells.hear(number, &hears)?;
        place.link = Some(Box::new(Link::new(id, segment.mapping, side, hears, bell_of_peer)));
        self.open.push(number);
        // Room for every link, so that sending never allocates.
        self.fresh.reserve(self.places.len());
        self.broken.reserve(self.places.len());
        Ok(id)
    }

    /// Ends a link: nothing is sent or received any more. Frames of it stay readable until they are
    /// released.
    pub fn unlink(&mut self, id: LinkId) {
        if !self.link_of(id).is_some_and(|link| link.state != State::Closing) {
            return;
        }
        self.abandon_for(id);
        self.close(id, State::Closing);
        self.broken.retain(|broken| *broken != id);
        self.count_attention();
        self.vacate(id.index);
    }

    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.open.iter().filter_map(|index| self.at(*index)).map(|link| link.id)
    }

    pub fn has_links(&self) -> bool {
        !self.open.is_empty()
    }

    pub fn counters(&self, id: LinkId) -> Counters {
        self.link_of(id).map_or_else(Counters::default, |link| link.counters)
    }

    /// What came next, over all links in turn.
    #[inline]
    pub fn receive(&mut self) -> Option<Arrival> {
        if self.attention > 0
            && let Some(arrival) = self.attend()
        {
            return Some(arrival);
        }
        let count = self.open.len();
        let mut is_empty = true;
        for _ in 0..count {
            self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
            let index = *self.open.get(self.turn)?;
            let Some(link) = self.places.get_mut(usize::from(index))?.link.as_deref_mut() else {
                continue;
            };
            match link.peek() {
                Ok(None) if link.owes_relief() => link.relieve(),
                Ok(None) => {}
                Ok(Some((kind, len, shape))) => {
                    is_empty = false;
                    if let Some(arrival) = self.take(index, kind, len, shape) {
                        return Some(arrival);
                    }
                }
                Err(Violation) => return self.break_off(index),
            }
        }
        self.owes_look &= !is_empty;
        None
    }

    /// Takes the record that `peek` found; `None` if it must wait for a free head.
    #[inline(always)]
    fn take(&mut self, index: u16, kind: u8, len: usize, shape: Shape) -> Option<Arrival> {
        let link = self.places.get_mut(usize::from(index))?.link.as_deref_mut()?;
        if kind != 0 && len == 0 {
            let mut bytes = [0; INLINE];
            link.counters.messages_in += 1;
            if link.take(&mut bytes, shape).is_err() {
                return self.break_off(index);
            }
            let header = header_of(&bytes);
            return Some(Arrival::Message { link: link.id, kind, header, payload: None });
        }
        let (frame, head) = self.heads.allocate()?;
        if link.take(&mut head.bytes, shape).is_err() {
            self.heads.release(frame);
            return self.break_off(index);
        }
        if shape.chunks > 0 {
            count_crowd(&mut self.crowded, link);
        }
        link.heads += 1;
        link.counters.bytes_in += len as u64;
        head.link = index;
        head.len = len as u32;
        head.start = shape.start as u8;
        head.end = shape.end as u8;
        let received = Received { frame, len: len as u32, segment: 0 };
        if kind == 0 {
            link.counters.packets_in += 1;
            if let Some(source) = head.bytes.get_mut(6..12) {
                source.copy_from_slice(&link.id.mac());
            }
            return Some(Arrival::Packet(received));
        }
        link.counters.messages_in += 1;
        let header = header_of(&head.bytes);
        Some(Arrival::Message { link: link.id, kind, header, payload: Some(received) })
    }

    /// The cold part of receiving: links that broke, links that have room again.
    #[cold]
    fn attend(&mut self) -> Option<Arrival> {
        if let Some(id) = self.broken.pop() {
            self.count_attention();
            return Some(Arrival::Broken(id));
        }
        for index in &self.open {
            let place = self.places.get_mut(usize::from(*index))?;
            if let Some(link) = place.link.as_deref_mut()
                && link.is_relieved()
            {
                let id = link.id;
                self.count_attention();
                return Some(Arrival::Relief(id));
            }
        }
        self.count_attention();
        None
    }

    /// Before a sleep on [`Ring::bell`]: whoever sends from now on rings it. What came just before
    /// rings it, too.
    pub fn settle(&mut self) {
        self.tally.sleeps += 1;
        let mut woken = false;
        self.bells.hush(self.open.len(), |index| {
            woken = true;
            if let Some(link) = link_mut(&mut self.places, index) {
                link.hush();
            }
        });
        self.tally.wakes += u64::from(woken);
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                link.arm();
            }
        }
        link::fence();
        let mut awake = !self.broken.is_empty();
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                if link.owes_relief() {
                    link.relieve();
                }
                awake |= link.has_waiting();
            }
        }
        if awake {
            self.bells.ring_own();
        }
    }

    /// The first piece of a received packet or payload: all headers of a packet are in it.
    #[inline]
    pub fn first_bytes(&self, frame: &Frame) -> &[u8] {
        let head = self.heads.get(frame);
        self.at(head.link).map_or(&[], |link| link.first_bytes(head))
    }

    /// All pieces of a received packet or payload.
    #[inline]
    pub fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]> {
        let head = self.heads.get(frame);
        self.at(head.link).into_iter().flat_map(|link| link.pieces(head))
    }

    /// Gives a received frame back, or one that was allocated and not transmitted.
    #[inline]
    pub fn release(&mut self, frame: Frame) {
        if self.heads.is_outgoing(&frame) {
            self.abandon();
            return;
        }
        let head = self.heads.get(&frame);
        if let Some(link) = link_mut(&mut self.places, head.link) {
            if head.rest() > 0 {
                link.give_back(head);
                count_crowd(&mut self.crowded, link);
            }
            link.heads = link.heads.saturating_sub(1);
            if link.heads == 0 && link.state == State::Closing {
                self.vacate(head.link);
            }
        }
        self.heads.release(frame);
    }

    /// Whoever queues packets must copy them out, or a peer runs dry because one application is
    /// slow.
    #[inline]
    pub fn is_short_of_frames(&self) -> bool {
        self.crowded > 0 || self.heads.are_few()
    }

    /// Nothing more can be received before something is released, whatever has come.
    pub fn is_out_of_frames(&self) -> bool {
        self.heads.free() == 0
    }

    fn at(&self, index: u16) -> Option<&Link> {
        self.places.get(usize::from(index))?.link.as_deref()
    }

    /// Does a peer that is awake run on this CPU, the caller's? A caller that polls keeps it from it.
    pub fn shares_cpu(&mut self, cpu: u32) -> bool {
        let mut shared = false;
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                shared |= link.shares_cpu(cpu);
            }
        }
        shared
    }

    /// Leaves a word for the peer, who finds it also when this process is dead. Numbers beyond some
    /// 16 000 are not kept.
    #[inline]
    pub fn set_note(&self, link: LinkId, number: usize, value: u64) {
        if let Some(link) = self.link_of(link) {
            link.set_note(number, value);
        }
    }

    /// The word that the peer left. It is not to be relied upon, like everything else of it.
    pub fn note_of_peer(&self, link: LinkId, number: usize) -> Option<u64> {
        self.link_of(link)?.note_of_peer(number)
    }

    fn link_of(&self, id: LinkId) -> Option<&Link> {
        self.at(id.index).filter(|link| link.id == id)
    }

    /// Lets all peers know that a socket is not to be reached by a link any more.
    pub fn withdraw(&mut self) {
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                link.withdraw();
            }
        }
    }

    /// Has the peer withdrawn a socket since this was asked last?
    #[inline]
    pub fn has_withdrawn(&mut self, link: LinkId) -> bool {
        self.open_link(link).is_some_and(Link::has_withdrawn)
    }

    /// How far the records sent by a link have come.
    #[inline]
    pub fn progress(&self, link: LinkId) -> Progress {
        self.link_of(link).map(Link::progress).unwrap_or_default()
    }

    /// The link, if something can be sent by it.
    #[inline]
    fn open_link(&mut self, id: LinkId) -> Option<&mut Link> {
        link_mut(&mut self.places, id.index).filter(|link| link.id == id && link.is_open())
    }

    /// The peer broke the layout: nothing that it writes is looked at any more.
    #[cold]
    fn break_off(&mut self, index: u16) -> Option<Arrival> {
        let id = self.at(index)?.id;
        self.break_off_later(id);
        self.attend()
    }

    /// The same, found while sending: the next [`Ring::receive`] reports it.
    #[cold]
    fn break_off_later(&mut self, id: LinkId) {
        self.close(id, State::Broken);
        self.broken.push(id);
        self.count_attention();
    }

    /// Takes a link out of all that goes on.
    fn close(&mut self, id: LinkId, state: State) {
        if let Some(link) = link_mut(&mut self.places, id.index) {
            link.state = state;
            self.bells.ignore(&link.bell);
            count_crowd(&mut self.crowded, link);
        }
        self.open.retain(|index| *index != id.index);
    }

    /// Frees the place of a link that nobody needs any more.
    fn vacate(&mut self, index: u16) {
        if let Some(place) = self.places.get_mut(usize::from(index))
            && let Some(link) = place.link.take_if(|link| link.heads == 0)
        {
            self.ended.add(&link.counters);
            place.generation = place.generation.wrapping_add(1);
        }
    }

    fn count_attention(&mut self) {
        let starving = self.open.iter().filter_map(|index| self.at(*index));
        self.attention = self.broken.len() + starving.filter(|link| link.is_starving()).count();
    }
}

fn loopback() -> Interface {
    Interface {
        // In every network namespace.
        index: 1,
        name: "lo".into(),
        mac: [0; 6],
        address: Ipv4Addr::LOCALHOST,
        mtu: 65_535,
        rx_queues: 1,
        is_virtual: true,
        is_veth: false,
        has_local_peers: true,
    }
}

#[inline(always)]
fn link_mut(places: &mut [Place], index: u16) -> Option<&mut Link> {
    places.get_mut(usize::from(index))?.link.as_deref_mut()
}

/// Keeps the number of crowded links up to date.
#[inline]
fn count_crowd(crowded: &mut usize, link: &mut Link) {
    let is_crowded = link.is_open() && link.holds_many();
    if is_crowded != link.is_crowded {
        link.is_crowded = is_crowded;
        *crowded = if is_crowded { *crowded + 1 } else { *crowded - 1 };
    }
}

/// The header of a message.
#[inline(always)]
fn header_of(bytes: &Inline) -> [u64; 3] {
    let mut header = [0; HEADER / 8];
    for (word, bytes) in header.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    header
}

/// Is it fit to be a bell: nothing that ringing it raises a signal for, or waits?
pub fn check_bell(bell: &Fd) -> Result<(), OpenError> {
    match unix_socket::is_bell(bell) {
        true => Ok(()),
        false => Err(system("getsockopt of a bell")(Errno::INVAL)),
    }
}
