//! Bells of single threads, beside the common bell of each link.
//!
//! One thread guards the ring and wakes the others. Where several threads wait, each for connections of its own,
//! that is two wake-ups for a record. So each thread gets a bell on each link: a socket pair as the common bell's,
//! of which the peer gets one end. The consumer of a lane writes down which thread reads a connection
//! ([`Reader`]), and the producer rings that thread's bell for the connection's data. All else rings the common bell, or, if no
//! thread guards the ring, that of any thread that sleeps.
//!
//! A bell is made when a thread first lacks it, and goes to the peer by the rendezvous. A thread arms it only if the
//! peer has said that it can ring it.

use std::sync::Arc;

use super::bell::Bell;
use super::lane::{BELLS, COMMON, Reader};
use super::{LinkId, Ring, check_bell, link, link_mut};
use crate::device::OpenError;
use crate::sys::{Fd, unix_socket};

/// A thread sleeps on the bells of so many links at most: with more the common bells are better.
const MOST_LINKS: usize = 4;

/// A thread's bell on a link, as this side has it.
struct Own {
    hears: Fd,
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
    /// What the peer was told of the readers of connections.
    readers: Vec<Reader>,
    /// A bit for each bell that is to be made.
    wanted: u32,
}

impl OwnBells {
    fn has_any(&self) -> bool {
        self.own.iter().any(Option::is_some)
    }

    fn is_armed(&self, number: usize) -> bool {
        self.own.get(number).is_some_and(|own| own.as_ref().is_some_and(|own| own.is_armed))
    }

    pub fn is_there(&mut self, bell: u32) -> bool {
        let is_there = self.own.get(bell as usize).is_some_and(Option::is_some);
        if !is_there {
            self.wanted |= 1 << bell;
        }
        is_there
    }

    /// Before a sleep. Bounded: a peer may ring for ever.
    pub fn prepare(&mut self, bell: u32) {
        let Some(own) = self.own.get_mut(bell as usize).and_then(Option::as_mut) else { return };
        own.is_armed = true;
        if own.owed > 0 || own.is_unsure {
            unix_socket::hush(&own.hears);
            own.owed = own.owed.saturating_sub(1);
            own.is_unsure = own.owed > 0;
        }
    }

    pub fn note_end_of_sleep(&mut self, bell: u32, is_rung: bool) {
        let Some(own) = self.own.get_mut(bell as usize).and_then(Option::as_mut) else { return };
        own.is_armed = false;
        match is_rung {
            true => own.owed = (own.owed + 1).min(4),
            false => own.is_unsure = true,
        }
    }

    /// What was said before, if it was something else.
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
    /// descriptors to sleep on. None if there is no such bell on some link; false if something has come meanwhile.
    pub fn arm_own_bell(&mut self, number: usize, mut each: impl FnMut(&Fd)) -> Option<bool> {
        let bell = u32::try_from(number).ok().filter(|bell| (*bell as usize) < BELLS)?;
        if self.open.len() > MOST_LINKS {
            return None;
        }
        let mut hears_all = true;
        for index in &self.open {
            let Some(link) = link_mut(&mut self.places, *index) else { continue };
            let armed = link.arm_own(bell);
            hears_all &= armed;
            if armed && let Some(Some(own)) = link.own_bells.own.get(number) {
                each(&own.hears);
            }
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
        self.wants_bells |= !hears_all;
        hears_all.then_some(is_quiet)
    }

    /// The thread sleeps no more.
    pub fn disarm_own_bell(&mut self, number: usize) {
        let Ok(bell) = u32::try_from(number) else { return };
        for index in &self.open {
            if let Some(link) = link_mut(&mut self.places, *index)
                && link.own_bells.is_armed(number)
            {
                link.disarm(bell);
            }
        }
    }

    /// Has the record that was received last rung this bell? Only its link's peer is asked, who harms nobody else by a lie.
    pub fn has_rung(&self, number: usize) -> bool {
        let Ok(bell) = u32::try_from(number) else { return false };
        self.arrived_by.and_then(|index| self.at(index)).is_some_and(|link| {
            (bell == COMMON || link.own_bells.is_armed(number)) && link.is_rung(bell)
        })
    }

    /// The record that was received last is dealt with.
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
        self.has_waiting()
    }

    /// The bell of this number is another thread's from now on.
    pub fn forget_own_bell(&mut self, number: usize) {
        for index in &self.open {
            let Some(link) = link_mut(&mut self.places, *index) else { continue };
            for connection in 0..link.own_bells.readers.len() as u32 {
                let reader = link.own_bells.readers.get(connection as usize).copied();
                if let Some(Reader::First(bell) | Reader::Alone(bell)) = reader
                    && bell as usize == number
                {
                    link.set_reader(connection, Reader::Unknown);
                }
            }
        }
    }

    /// Makes a bell that a thread lacked, for the peer of the link: the number and the end for the peer.
    pub fn make_bell(&mut self) -> Option<(LinkId, u32, Fd)> {
        if !self.wants_bells {
            return None;
        }
        for index in &self.open {
            let Some(link) = link_mut(&mut self.places, *index) else { continue };
            let wanted = link.own_bells.wanted;
            if wanted == 0 {
                continue;
            }
            let number = wanted.trailing_zeros();
            link.own_bells.wanted &= !(1 << number);
            let Ok(Bell { hears, rings }) = Bell::make() else { continue };
            if let Some(place) = link.own_bells.own.get_mut(number as usize) {
                *place = Some(Own { hears, owed: 0, is_unsure: false, is_armed: false });
            }
            return Some((link.id, number, rings));
        }
        self.wants_bells = false;
        None
    }

    pub fn wants_bells(&self) -> bool {
        self.wants_bells
    }

    /// A bell of a peer's thread.
    pub fn take_bell(&mut self, id: LinkId, number: u32, bell: Fd) -> Result<(), OpenError> {
        check_bell(&bell)?;
        if let Some(link) = self.open_link(id)
            && number != COMMON
            && let Some(place @ None) = link.own_bells.of_peer.get_mut(number as usize)
        {
            *place = Some(Arc::new(bell));
            link.can_ring();
        }
        Ok(())
    }
}
