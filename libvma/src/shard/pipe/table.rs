//! All ends of pipes in a process, and the offers that wait to be accepted.

use std::net::SocketAddrV4;

use libvma_engine::tcp::Events;

use super::end::Pipe;
use super::message::{Message, Name, Offer};
use super::{Carrier, SocketId};
use crate::device::Received;
use crate::device::shm::LinkId;

/// The pipes of a shard.
#[derive(Default)]
pub struct Pipes {
    slots: Vec<Slot>,
    free: Vec<u32>,
    offers: Vec<Waiting>,
    /// Pipes of connections that were accepted before their offer came, which is expected.
    expectant: Vec<Expectant>,
    /// Some pipe got bytes back, or is about to.
    returned: bool,
    /// A closed socket has bytes that the kernel had no room for.
    pressing: bool,
}

struct Slot {
    generation: u32,
    pipe: Option<Box<Pipe>>,
}

/// An offer of a peer's.
struct Waiting {
    link: LinkId,
    from: Name,
    offer: Offer,
}

impl Waiting {
    fn is_for(&self, socket: u32, destination: SocketAddrV4) -> bool {
        (self.offer.socket, self.offer.destination) == (socket, destination)
    }
}

/// A connection whose offer is expected.
struct Expectant {
    index: u32,
    /// The client's socket, and where it has connected to.
    client: u32,
    local: SocketAddrV4,
}

/// More than a listener's backlog.
const MOST_OFFERS: usize = 65_536;

impl Pipes {
    /// Makes a pipe, which is apart.
    pub(super) fn add(&mut self, owner: SocketId, limit: u64, now: u64) -> (u32, &mut Pipe) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, pipe: None });
                (self.slots.len() - 1) as u32
            }
        };
        // The index is of a slot that was free, or was made just now.
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        let own = Name { index, generation: slot.generation };
        (index, slot.pipe.insert(Box::new(Pipe::new(owner, own, limit, now))))
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.pipe.take().is_some()
        {
            self.expectant.retain(|expectant| expectant.index != index);
            self.free.push(index);
        }
    }

    #[inline]
    pub fn get(&mut self, index: u32) -> Option<&mut Pipe> {
        self.slots.get_mut(index as usize)?.pipe.as_deref_mut()
    }

    #[cfg(test)]
    pub(super) fn name(&self, index: u32) -> Option<Name> {
        let slot = self.slots.get(index as usize)?;
        Some(Name { index, generation: slot.generation })
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Pipe> {
        self.slots.iter_mut().filter_map(|slot| slot.pipe.as_deref_mut())
    }

    /// All indices are less.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn take_returned(&mut self) -> bool {
        core::mem::take(&mut self.returned)
    }

    pub fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Is there an offer for a connection of which this is the client's socket?
    pub fn has_offer(&self, socket: u32, local: SocketAddrV4) -> bool {
        self.offers.iter().any(|waiting| waiting.is_for(socket, local))
    }

    /// Takes the offer for a connection that was accepted, of which this is the client's socket.
    pub(super) fn take_offer(
        &mut self,
        socket: u32,
        local: SocketAddrV4,
    ) -> Option<(LinkId, Name, Offer)> {
        let matches = |waiting: &Waiting| waiting.is_for(socket, local);
        // The last one counts: older ones are of clients that are gone.
        let at = self.offers.iter().rposition(matches)?;
        let Waiting { link, from, offer } = self.offers.remove(at);
        self.offers.retain(|waiting| !matches(waiting));
        Some((link, from, offer))
    }

    /// Takes a message; which socket it concerns, and how.
    #[inline]
    pub(super) fn input(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        message: Message,
        payload: Option<Received>,
    ) -> Option<(SocketId, Events)> {
        let to = match message {
            Message::Data { to, .. }
            | Message::Credit { to, .. }
            | Message::Withdrawn { to }
            | Message::Confirm { to, .. }
            | Message::Switch { to, .. }
            | Message::Fin { to, .. }
            | Message::Stop { to, .. }
            | Message::Return { to }
            | Message::Stopped { to }
            | Message::Closed { to, .. } => to,
            Message::Offer { from, offer } => {
                self.drop_payload(carrier, payload);
                return self.offered(carrier, Waiting { link, from, offer });
            }
            Message::Withdraw { from, closed } => {
                self.drop_payload(carrier, payload);
                return self.withdraw(carrier, link, from, closed);
            }
        };
        let slot = self.slots.get_mut(to.index as usize);
        let slot = slot.filter(|slot| slot.generation == to.generation);
        let pipe = slot.and_then(|slot| slot.pipe.as_deref_mut()).filter(|pipe| pipe.link == link);
        let Some(pipe) = pipe else {
            self.drop_payload(carrier, payload);
            return None;
        };
        let Some(owner) = pipe.owner() else {
            return self.input_to_closed(carrier, to.index, message, payload);
        };
        self.returned |= matches!(message, Message::Stop { .. } | Message::Stopped { .. });
        let events = match pipe.input(carrier, message, payload) {
            Ok(events) => events,
            Err(_) => pipe.condemn(carrier),
        };
        Some((owner, events))
    }

    #[cold]
    fn offered(
        &mut self,
        carrier: &mut impl Carrier,
        waiting: Waiting,
    ) -> Option<(SocketId, Events)> {
        let Waiting { link, from, offer } = waiting;
        let is_for = |expectant: &Expectant| {
            (expectant.client, expectant.local) == (offer.socket, offer.destination)
        };
        if let Some(at) = self.expectant.iter().position(is_for) {
            let index = self.expectant.swap_remove(at).index;
            let pipe = self.get(index).filter(|pipe| pipe.is_apart())?;
            let owner = pipe.owner()?;
            let confirmed = pipe.confirm_late(carrier, link, from, offer.limit);
            let events = Events::READABLE.union(Events::WRITABLE);
            return confirmed.then_some((owner, events));
        }
        // A peer that offers without end has the rest of its connections by the kernel.
        if self.offers.len() < MOST_OFFERS {
            self.offers.push(waiting);
        }
        None
    }

    /// The pipe is of a connection that this socket of a client's made, and that was accepted before its offer
    /// came.
    pub(super) fn expect_offer(&mut self, index: u32, client: u32, local: SocketAddrV4) {
        if let Some(pipe) = self.get(index) {
            pipe.expect_offer();
            self.expectant.push(Expectant { index, client, local });
        }
    }

    /// The socket of the pipe is closed.
    #[cold]
    fn input_to_closed(
        &mut self,
        carrier: &mut impl Carrier,
        index: u32,
        message: Message,
        payload: Option<Received>,
    ) -> Option<(SocketId, Events)> {
        let pipe = self.get(index).filter(|pipe| pipe.has_remains());
        let data = matches!(message, Message::Data { .. });
        let Some(pipe) = pipe.filter(|_| !data) else {
            self.drop_payload(carrier, payload);
            if let Some(pipe) = self.get(index).filter(|pipe| pipe.has_remains()) {
                pipe.refuse(carrier);
                self.remove(index);
            }
            return None;
        };
        if pipe.input(carrier, message, payload).is_err() {
            pipe.condemn(carrier);
        }
        let ended = pipe.wind_up(carrier);
        let pressing = pipe.has_remaining_backlog();
        self.pressing |= pressing;
        if ended {
            self.remove(index);
        }
        None
    }

    /// Looks after the pipes whose sockets are closed.
    pub(super) fn wind_up(&mut self, carrier: &mut impl Carrier) {
        for index in 0..self.slots.len() as u32 {
            if let Some(pipe) = self.get(index).filter(|pipe| pipe.has_remains())
                && pipe.wind_up(carrier)
            {
                self.remove(index);
            }
        }
        let pressing = self.all().any(|pipe| pipe.has_remaining_backlog());
        self.pressing = pressing;
    }

    pub fn is_pressing(&self) -> bool {
        self.pressing
    }

    /// How many pipes outlive their sockets.
    pub(super) fn remaining(&mut self) -> usize {
        self.all().filter(|pipe| pipe.has_remains()).count()
    }

    #[cold]
    fn drop_payload(&mut self, carrier: &mut impl Carrier, payload: Option<Received>) {
        if let Some(received) = payload {
            carrier.release(received.frame);
        }
    }

    #[cold]
    fn withdraw(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
        from: Name,
        closed: bool,
    ) -> Option<(SocketId, Events)> {
        self.offers.retain(|waiting| waiting.link != link || waiting.from != from);
        let is_its = |pipe: &Pipe| pipe.is_with(link, from);
        let found = self.slots.iter().position(|slot| slot.pipe.as_deref().is_some_and(is_its));
        match found.map(|index| index as u32) {
            // It was confirmed meanwhile.
            Some(index) if closed => {
                let pipe = self.get(index)?;
                pipe.leave_alone();
                let owner = pipe.owner();
                if owner.is_none() {
                    self.remove(index);
                }
                owner.map(|owner| (owner, Events::CLOSED))
            }
            Some(_) => None,
            None => {
                if !closed {
                    // If that finds no room, it asks again.
                    carrier.tell(link, Message::Withdrawn { to: from });
                }
                None
            }
        }
    }

    #[cold]
    pub(super) fn relieved(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
    ) -> Vec<(SocketId, Events)> {
        let mut told = Vec::new();
        let mut ended = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(pipe) = slot.pipe.as_deref_mut().filter(|pipe| pipe.link == link) else {
                continue;
            };
            let events = pipe.relieved(carrier);
            if let Some(owner) = pipe.owner() {
                told.extend((events != Events::NONE).then_some((owner, events)));
            } else if pipe.is_finished_with(carrier) {
                ended.push(index as u32);
            }
        }
        ended.into_iter().for_each(|index| self.remove(index));
        told
    }

    #[cold]
    pub(super) fn cut(
        &mut self,
        carrier: &mut impl Carrier,
        link: LinkId,
    ) -> Vec<(SocketId, Events)> {
        self.offers.retain(|waiting| waiting.link != link);
        let mut told = Vec::new();
        let mut ended = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(pipe) = slot.pipe.as_deref_mut().filter(|pipe| pipe.link == link) else {
                continue;
            };
            let events = pipe.cut(carrier);
            if let Some(owner) = pipe.owner() {
                told.push((owner, events));
            } else if pipe.is_finished_with(carrier) {
                ended.push(index as u32);
            }
        }
        ended.into_iter().for_each(|index| self.remove(index));
        told
    }
}
