//! The ways to an end: closing, giving the connection to the kernel, the peer's death.

use super::{Bond, Owed, PORTION, Pipe};
use crate::device::shm::LinkId;
use crate::net::bulk_copy::bulk_copy;
use crate::net::tcp::Events;
use crate::shard::pipe::message::{Message, Name};
use crate::shard::pipe::{Carrier, Leftover};

impl Pipe {
    /// Begins to give the connection to the kernel.
    pub(in crate::shard::pipe) fn stop(&mut self, carrier: &mut impl Carrier) {
        self.leaves = true;
        if self.bond == Bond::Confirmed && !self.outgoing.stopped {
            self.outgoing.stopped = true;
            self.owed.stop = true;
            self.settle(carrier);
        }
    }

    /// Takes a client's offer back, or no longer waits for one. True if nobody has it any more.
    pub(in crate::shard::pipe) fn withdraw(
        &mut self,
        carrier: &mut impl Carrier,
        now: u64,
    ) -> bool {
        if self.is_apart() {
            self.end();
        }
        if self.is_offered() {
            self.bond = Bond::Withdrawn;
            self.since = now;
            carrier.tell(self.link, Message::Withdraw { from: self.own, closed: false });
        }
        self.bond == Bond::Over
    }

    /// The socket is closed. False: it is not said yet, the pipe stays until it is.
    pub(in crate::shard::pipe) fn close(&mut self, carrier: &mut impl Carrier) -> bool {
        self.owner = None;
        self.incoming.clear(carrier);
        if self.bond == Bond::Over || self.is_apart() {
            return true;
        }
        self.owed.closed = true;
        self.settle(carrier);
        !self.owed.closed
    }

    /// Bytes that the peer has not read, as far as it has said or noted.
    pub(super) fn unread_there(&mut self, carrier: &impl Carrier) -> u64 {
        let noted = self.peer.and_then(|peer| carrier.note_of_peer(self.link, peer.index));
        let outgoing = &mut self.outgoing;
        let noted = noted.filter(|noted| *noted <= outgoing.sent).unwrap_or(0);
        outgoing.read_by_peer = outgoing.read_by_peer.max(noted);
        outgoing.sent - outgoing.read_by_peer
    }

    /// Would the peer lose something if the connection ended now? It may want to give unread bytes
    /// back, or is about to.
    pub(in crate::shard::pipe) fn must_remain(&mut self, carrier: &impl Carrier) -> bool {
        self.bond == Bond::Confirmed && (self.outgoing.stopped || self.unread_there(carrier) > 0)
            || !self.backlog().is_empty()
    }

    /// The socket is closed, but the pipe stays until the peer has everything.
    pub(in crate::shard::pipe) fn remain(
        &mut self,
        carrier: &mut impl Carrier,
        leftover: Box<dyn Leftover>,
    ) {
        self.owner = None;
        self.leftover = Some(leftover);
        if !self.outgoing.shut {
            self.shut(carrier);
        }
    }

    pub(in crate::shard::pipe) fn has_remains(&self) -> bool {
        self.leftover.is_some()
    }

    /// Does the kernel have to take bytes of a closed socket?
    pub(in crate::shard::pipe) fn has_remaining_backlog(&self) -> bool {
        self.has_remains() && !self.backlog().is_empty()
    }

    /// The peer sent something that nobody will read.
    pub(in crate::shard::pipe) fn refuse(&mut self, carrier: &mut impl Carrier) {
        if let Some(to) = self.peer {
            carrier.tell(self.link, Message::Closed { to });
        }
        if let Some(leftover) = &mut self.leftover {
            leftover.reset();
        }
        self.end();
        self.outgoing.backlog = Vec::new();
    }

    /// Its socket is closed: is there nothing left to say or to do?
    pub(in crate::shard::pipe) fn is_finished_with(&mut self, carrier: &mut impl Carrier) -> bool {
        if self.has_remains() { self.wind_up(carrier) } else { !self.owes() }
    }

    /// Does what is left to do for a closed socket. True when that is all.
    pub(in crate::shard::pipe) fn wind_up(&mut self, carrier: &mut impl Carrier) -> bool {
        if self.wants_arming()
            && let Some(leftover) = &mut self.leftover
        {
            leftover.arm(true);
            self.armed = true;
        }
        self.settle(carrier);
        let backlog = self.outgoing.ready(self.bond);
        let Some(leftover) = &mut self.leftover else { return false };
        if self.dead {
            leftover.reset();
            return true;
        }
        if !backlog.is_empty() {
            let Some(count) = leftover.write(backlog) else {
                self.refuse(carrier);
                return true;
            };
            if count < backlog.len() && !self.armed {
                leftover.arm(true);
                self.armed = true;
            }
            self.backlog_gone(count);
        }
        if self.must_remain(carrier) {
            return false;
        }
        if core::mem::take(&mut self.armed)
            && let Some(leftover) = &mut self.leftover
        {
            leftover.arm(false);
        }
        if let (Some(to), Bond::Confirmed) = (self.peer, self.bond) {
            self.owed.closed = !carrier.tell(self.link, Message::Closed { to });
        }
        !self.owed.closed
    }

    /// Is it the end of this peer's?
    pub(in crate::shard::pipe) fn is_with(&self, link: LinkId, peer: Name) -> bool {
        self.link == link && self.peer == Some(peer)
    }

    /// The link is over: what it brought can be read, the rest is the kernel's.
    pub(in crate::shard::pipe) fn cut(&mut self, carrier: &impl Carrier) -> Events {
        if self.bond == Bond::Over {
            return Events::NONE;
        }
        // Bytes that nobody will read. The peer has noted what it did read.
        self.dead = self.unread_there(carrier) > 0 && !self.outgoing.complete
            || self.lacks_bytes()
            || self.incoming.returned && self.incoming.held() > 0;
        if self.dead {
            self.note_reset();
        }
        self.end();
        Events::CLOSED
    }

    /// The client is gone before it knew of this end.
    pub(in crate::shard::pipe) fn leave_alone(&mut self) {
        self.end();
    }

    /// Is the connection over, though the kernel does not know?
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Are both directions over, though the kernel does not know?
    pub fn has_ended(&self) -> bool {
        self.dead || self.outgoing.shut && self.incoming.fin
    }

    /// Is there something that could not be said?
    pub(in crate::shard::pipe) fn owes(&self) -> bool {
        self.owed != Owed::default()
    }

    pub(super) fn end(&mut self) {
        self.bond = Bond::Over;
        self.peer = None;
        self.owed = Owed::default();
        self.incoming.kernel.get_or_insert(0);
    }

    /// Says what is owed, and goes on with what waits for room on the link. What is said first comes
    /// first here.
    pub(in crate::shard::pipe) fn settle(&mut self, carrier: &mut impl Carrier) {
        if self.is_offered() && self.owed.closed {
            let message = Message::Withdraw { from: self.own, closed: true };
            self.owed.closed = !carrier.tell(self.link, message);
        }
        let Some(to) = self.peer else { return };
        if self.owed.switch {
            self.switch(carrier);
        }
        if self.owed.credit {
            self.credit(carrier);
        }
        if self.owed.fin && !self.outgoing.stopped {
            self.tell_fin(carrier);
        }
        self.tell_overflow(carrier);
        if self.owed.stop {
            let kernel = self.outgoing.kernel;
            self.owed.stop = !carrier.tell(self.link, Message::Stop { to, kernel });
        }
        if self.owed.closed && !self.owed.fin {
            self.owed.closed = !carrier.tell(self.link, Message::Closed { to });
        }
        self.give_back(carrier);
    }

    #[cold]
    pub(super) fn switch(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.peer else { return };
        if self.outgoing.switched || self.outgoing.stopped {
            self.owed.switch = false;
            return;
        }
        let shut = self.outgoing.shut;
        let message = Message::Switch { to, kernel: self.outgoing.kernel, shut };
        self.owed.switch = !carrier.tell(self.link, message);
        self.outgoing.switched = !self.owed.switch;
        self.outgoing.kernel_told = self.outgoing.kernel;
    }

    /// Both have stopped: returns what was not read.
    pub(super) fn give_back(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.peer else { return };
        let ready = self.outgoing.stopped && !self.owed.stop && self.incoming.stopped;
        if !ready || self.stopped_said || self.wants_arming() || self.wants_prefetch() {
            return;
        }
        self.incoming.returned = true;
        self.incoming.kernel.get_or_insert(0);
        let queue = &mut self.incoming.queue;
        let mut portion = Vec::new();
        while !queue.is_empty() {
            let count = carrier.room(self.link).min(queue.len()).min(PORTION);
            if count == 0 {
                return;
            }
            portion.resize(count, 0);
            let count = queue.fill(carrier, &mut portion);
            let mut rest = portion.get(..count).unwrap_or_default();
            let (kind, header) = Message::Return { to }.encode();
            let sent = carrier.send(self.link, kind, header, count, true, |room| {
                let here = rest.len().min(room.len());
                let (now, later) = rest.split_at(here);
                bulk_copy(room, now);
                rest = later;
            });
            if !sent {
                return;
            }
            queue.consume(carrier, count);
            self.incoming.given += count as u64;
        }
        self.stopped_said = carrier.tell(self.link, Message::Stopped { to });
        if self.stopped_said && self.outgoing.complete {
            self.end();
        }
    }

    /// The peer broke the rules.
    #[cold]
    pub(in crate::shard::pipe) fn condemn(&mut self, carrier: &mut impl Carrier) -> Events {
        if let Some(to) = self.peer {
            carrier.tell(self.link, Message::Closed { to });
        }
        self.incoming.clear(carrier);
        self.end();
        self.dead = true;
        self.note_reset();
        Events::CLOSED
    }

    /// The link has room again.
    pub(in crate::shard::pipe) fn relieved(&mut self, carrier: &mut impl Carrier) -> Events {
        self.settle(carrier);
        self.crowded = false;
        if core::mem::take(&mut self.wants_room) { Events::WRITABLE } else { Events::NONE }
    }
}
