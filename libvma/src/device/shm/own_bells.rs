//! Bells of single threads, beside the common bell of each link.
//!
//! One thread guards the ring and wakes the others. Where several threads wait, each for connections of its own,
//! that is two wake-ups for a record. So each thread gets a bell on each link: a socket pair as the common bell's,
//! of which the peer gets one end. The consumer of a lane writes down which thread reads a connection
//! ([`Reader`]), and the producer rings that thread's bell for the connection's data. All else rings the common bell, or, if no
//! thread guards the ring, that of any thread that sleeps.
//!
//! The readers that are written down are a hint. Data is left to a thread that is awake only while the thread's bit in
//! the armed word says that it attends (`lane`), and only a thread that arms its bell sets this bit. So a thread whose
//! bell does not exist, or got lost on its way, or that sleeps without it, has its data ring the common bell.
//!
//! A bell is made when a thread first lacks it, and goes to the peer by the rendezvous. A thread arms it only if the
//! peer has said that it can ring it. Until then the same bell is sent again now and then.

use std::sync::Arc;

use super::bell::Bell;
use super::lane::{BELLS, COMMON, Reader};
use super::{Arrival, LinkId, Ring, link, link_mut};
use crate::sys::time::monotonic_nanos;
use crate::sys::{Fd, unix_socket};

/// A thread sleeps on the bells of so many links at most: with more the common bells are better.
const MOST_LINKS: usize = 4;

/// How long to wait for the peer's word that it can ring a bell, or for descriptors, before the bell is sent again.
pub(super) const RESEND_NANOS: u64 = 500_000_000;
/// The wait doubles so many times, to 32 s: a peer that is stopped takes no bell, and each one sent waits in its socket.
const MOST_DOUBLINGS: u8 = 6;

/// A thread's bell on a link, as this side has it.
struct Own {
    hears: Fd,
    /// The peer's end, until the peer has said that it can ring it.
    rings: Option<Arc<Fd>>,
    /// Rings that were not taken off the bell yet.
    owed: u32,
    /// A sleep ended otherwise: it may have been rung all the same.
    is_unsure: bool,
    /// The thread sleeps, and has armed it.
    is_armed: bool,
}

/// The bells of a link that belong to threads.
#[derive(Default)]
pub(super) struct OwnBells {
    own: [Option<Own>; BELLS],
    /// Those of the peer's threads.
    of_peer: [Option<Arc<Fd>>; BELLS],
    /// The readers of connections, as the peer was told them last.
    readers: Vec<Reader>,
    /// A bit for each bell that is to be made, or sent again.
    wanted: u32,
    /// When a bell may be wanted again, in nanoseconds.
    next_try: [u64; BELLS],
    /// How often it was sent without the peer's word, up to [`MOST_DOUBLINGS`].
    tries: [u8; BELLS],
}

/// The state of a thread's bells, and of the links, just before the thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arming {
    /// The thread sleeps on a bell of each link. If not, another thread must guard the ring.
    pub hears_all: bool,
    /// Nothing has come. If not, the thread must not sleep: it may have been left to it.
    pub is_quiet: bool,
}

impl OwnBells {
    fn has_any(&self) -> bool {
        self.own.iter().any(Option::is_some)
    }

    fn is_armed(&self, number: usize) -> bool {
        self.own.get(number).is_some_and(|own| own.as_ref().is_some_and(|own| own.is_armed))
    }

    /// Before a sleep on a bell; `can_ring` is the peer's word. False: the bell is not to be had, and is asked for
    /// unless that was done a short while ago. Bounded: a peer may ring for ever.
    pub fn prepare(&mut self, bell: u32, can_ring: bool) -> bool {
        let own = self.own.get_mut(bell as usize).and_then(Option::as_mut);
        let Some(own) = own.filter(|own| can_ring || own.rings.is_none()) else {
            let next_try = self.next_try.get(bell as usize).copied().unwrap_or(u64::MAX);
            if next_try == 0 || next_try <= monotonic_nanos() {
                self.wanted |= 1 << bell;
            }
            return false;
        };
        own.rings = None;
        own.is_armed = true;
        if let Some(tries) = self.tries.get_mut(bell as usize) {
            *tries = 0;
        }
        if own.owed > 0 || own.is_unsure {
            unix_socket::hush(&own.hears);
            own.owed = own.owed.saturating_sub(1);
            own.is_unsure = own.owed > 0;
        }
        true
    }

    pub fn note_end_of_sleep(&mut self, bell: u32, is_rung: bool) {
        let Some(own) = self.own.get_mut(bell as usize).and_then(Option::as_mut) else { return };
        own.is_armed = false;
        match is_rung {
            true => own.owed = (own.owed + 1).min(4),
            false => own.is_unsure = true,
        }
    }

    /// The peer's end of a bell that is wanted, which is made if there is none.
    fn provide(&mut self, now: u64) -> Option<(u32, Arc<Fd>)> {
        while self.wanted != 0 {
            let number = self.wanted.trailing_zeros();
            self.wanted &= !(1 << number);
            let place = (self.own.get_mut(number as usize), self.next_try.get_mut(number as usize));
            let (Some(own), Some(next_try)) = place else { continue };
            let Some(tries) = self.tries.get_mut(number as usize) else { continue };
            *next_try = now.saturating_add(RESEND_NANOS << *tries);
            *tries = (*tries + 1).min(MOST_DOUBLINGS);
            if own.is_none() {
                let Ok(Bell { hears, rings }) = Bell::make() else { continue };
                let rings = Some(Arc::new(rings));
                *own = Some(Own { hears, rings, owed: 0, is_unsure: false, is_armed: false });
            }
            if let Some(Own { rings: Some(rings), .. }) = own {
                return Some((number, Arc::clone(rings)));
            }
        }
        None
    }

    /// The reader that was noted before, if it was another one.
    pub fn set_reader(&mut self, number: u32, reader: Reader) -> Option<Reader> {
        let number = number as usize;
        if number >= self.readers.len() {
            if reader == Reader::Unknown {
                return None;
            }
            self.readers.resize(number + 1, Reader::Unknown);
        }
        let known = self.readers.get_mut(number)?;
        (*known != reader).then(|| core::mem::replace(known, reader))
    }

    /// A bit for each bell of the peer's threads.
    pub fn of_peer(&self) -> u64 {
        let there = self.of_peer.iter().enumerate().filter(|(_, bell)| bell.is_some());
        there.fold(0, |bits, (bell, _)| bits | 1 << bell)
    }

    pub fn of_peer_at(&self, bell: u32) -> Option<&Arc<Fd>> {
        self.of_peer.get(bell as usize)?.as_ref()
    }
}

impl Ring {
    /// A thread is about to sleep until its own bell of this number (1 and up) rings; `each` gets the
    /// descriptors to sleep on.
    pub fn arm_own_bell(&mut self, number: usize, mut each: impl FnMut(&Fd)) -> Arming {
        let deaf = Arming { hears_all: false, is_quiet: true };
        let bell = u32::try_from(number).ok().filter(|bell| (*bell as usize) < BELLS);
        let Some(bell) = bell else { return deaf };
        let may = self.open.len() <= MOST_LINKS;
        let (mut hears_all, mut must_look) = (may, false);
        for index in &self.open {
            let Some(link) = link_mut(&mut self.places, *index) else { continue };
            let armed = may && link.arm_own(bell);
            hears_all &= armed;
            // Here, at the latest, the thread finds the data that was left to it while it was awake.
            must_look |= armed || link.stop_attending(bell);
            self.wants_bells |= link.own_bells.wanted != 0;
            if armed && let Some(Some(own)) = link.own_bells.own.get(number) {
                each(&own.hears);
            }
        }
        if !must_look {
            return Arming { hears_all, ..deaf };
        }
        link::fence();
        let mut is_quiet = self.broken.is_empty();
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                if link.owes_relief() {
                    link.relieve();
                }
                is_quiet &= !link.has_waiting();
            }
        }
        Arming { hears_all, is_quiet }
    }

    /// The thread sleeps no more.
    pub fn disarm_own_bell(&mut self, number: usize) {
        let Ok(bell) = u32::try_from(number) else { return };
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index)
                && link.own_bells.is_armed(number)
            {
                self.owes_look |= link.disarm(bell);
            }
        }
    }

    /// Did a thread's bell ring for something that may not have been looked at yet, and is it still there?
    pub fn has_unseen(&self) -> bool {
        self.owes_look && self.has_waiting()
    }

    /// No thread attends: whatever comes rings the common bell, until a thread arms its own bell. A look must follow.
    pub fn stop_all_attending(&mut self) {
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index) {
                link.stop_all_attending();
            }
        }
    }

    /// This arrival is dealt with from now on, until [`Ring::end_arrival`]: [`Ring::has_rung`] tells whom it has woken.
    #[inline]
    pub fn begin_arrival(&mut self, arrival: &Arrival) {
        self.arrived_by = match arrival {
            Arrival::Packet(received) => Some(self.heads.get(&received.frame).link),
            Arrival::Message { link, .. } => Some(link.index),
            Arrival::Relief(_) | Arrival::Broken(_) => None,
        };
    }

    /// Has the record that is dealt with rung this bell? Only its link's peer is asked, who harms nobody else by a lie.
    pub fn has_rung(&self, number: usize) -> bool {
        let Ok(bell) = u32::try_from(number) else { return false };
        self.arrived_by.and_then(|index| self.at(index)).is_some_and(|link| {
            (bell == COMMON || link.own_bells.is_armed(number)) && link.is_rung(bell)
        })
    }

    /// The arrival is dealt with.
    #[inline]
    pub fn end_arrival(&mut self) {
        self.arrived_by = None;
    }

    /// The last message is for the thread that reads the connection of this number.
    #[inline]
    pub fn address(&mut self, id: LinkId, number: u32) {
        if let Some(link) = self.open_link(id) {
            link.address(number);
        }
    }

    /// No thread guards the ring: what is for nobody in particular rings the own bell of any thread that sleeps.
    pub fn silence_common_bell(&mut self) {
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index)
                && link.own_bells.has_any()
                && !link.is_rung(COMMON)
            {
                link.disarm(COMMON);
            }
        }
    }

    /// Is there anything to be taken?
    pub fn has_waiting(&self) -> bool {
        link::fence();
        self.open.iter().filter_map(|index| self.at(*index)).any(|link| link.has_waiting())
    }

    /// The thread that reads the connection of this number from now on. True if what came already may have
    /// been left to another thread.
    pub fn set_reader(&mut self, id: LinkId, number: u32, reader: Reader) -> bool {
        let reader = match reader {
            Reader::First(bell) | Reader::Alone(bell) if bell as usize >= BELLS => Reader::Unknown,
            reader => reader,
        };
        let Some(link) = self.open_link(id) else { return false };
        if !link.set_reader(number, reader) {
            return false;
        }
        link::fence();
        // Whoever is woken for it may leave without a look.
        self.owes_look = true;
        self.has_waiting()
    }

    /// The bell of this number is another thread's from now on. True if what came already may have been left to the
    /// former one.
    pub fn forget_own_bell(&mut self, number: usize) -> bool {
        let bell = u32::try_from(number).ok().filter(|bell| (*bell as usize) < BELLS);
        let Some(bell) = bell else { return false };
        let mut was_left = false;
        for index in &self.open {
            let Some(link) = link_mut(&mut self.places, *index) else { continue };
            for connection in 0..link.own_bells.readers.len() as u32 {
                let reader = link.own_bells.readers.get(connection as usize).copied();
                if let Some(Reader::First(of) | Reader::Alone(of)) = reader
                    && of == bell
                {
                    was_left |= link.set_reader(connection, Reader::Unknown);
                }
            }
            was_left |= link.stop_attending(bell);
        }
        self.owes_look |= was_left;
        was_left && self.has_waiting()
    }

    /// A bell that a thread lacks, for the peer of the link: the number and the end for the peer. The same one again
    /// if the peer has not said that it has it.
    pub fn make_bell(&mut self) -> Option<(LinkId, u32, Arc<Fd>)> {
        let now = monotonic_nanos();
        let links = self.open.iter();
        for index in links {
            if let Some(link) = link_mut(&mut self.places, *index)
                && let Some((number, bell)) = link.own_bells.provide(now)
            {
                return Some((link.id, number, bell));
            }
        }
        None
    }

    /// Has a thread been found to lack a bell since this was asked last? [`Ring::make_bell`] makes it.
    pub fn wants_bells(&mut self) -> bool {
        core::mem::take(&mut self.wants_bells)
    }

    /// A bell of a peer's thread, which the caller has checked ([`super::check_bell`]). It is given back if there is one, or no such
    /// thread.
    pub fn take_bell(&mut self, id: LinkId, number: u32, bell: Fd) -> Option<Fd> {
        if let Some(link) = self.open_link(id)
            && number != COMMON
            && let Some(place @ None) = link.own_bells.of_peer.get_mut(number as usize)
        {
            *place = Some(Arc::new(bell));
            link.can_ring();
            return None;
        }
        Some(bell)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_DOUBLINGS, OwnBells, RESEND_NANOS};

    #[test]
    fn a_bell_that_is_never_confirmed_is_sent_more_and_more_rarely() {
        let mut bells = OwnBells::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(!bells.prepare(1, false));
            bells.wanted = 1 << 1;
            assert!(bells.provide(0).is_some());
            pauses.push(bells.next_try[1] / RESEND_NANOS);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(pauses.last(), Some(&(1 << MOST_DOUBLINGS)));
        assert!(bells.prepare(1, true), "the peer can ring it");
        assert_eq!(bells.tries[1], 0);
    }
}
