//! The ways to an end: closing, giving the connection to the kernel, the peer's death.

use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::tcp::Events;

use super::{Bond, Holder, PORTION, Pipe, Sending};
use crate::device::shm::{LinkId, Rank};
use crate::shard::pipe::message::{Message, Name, Parting};
use crate::shard::pipe::{Carrier, Leftover, SocketId};

impl Pipe {
    /// The socket, unless it is closed.
    #[inline]
    pub(in crate::shard::pipe) fn owner(&self) -> Option<SocketId> {
        match self.holder {
            Holder::Socket(id) => Some(id),
            Holder::Closing | Holder::Closed | Holder::Leftover(_) => None,
        }
    }

    /// Gives the connection to the kernel: takes an offer back, and if it is confirmed all the same, or is
    /// already, begins to give the pipe up.
    pub(in crate::shard::pipe) fn leave(&mut self, carrier: &mut impl Carrier, now: u64) {
        self.withdraw(carrier, now);
        if let Bond::Withdrawn { leaves } = &mut self.bond {
            *leaves = true;
        }
        self.stop(carrier);
    }

    /// Begins to give the pipe up.
    pub(super) fn stop(&mut self, carrier: &mut impl Carrier) {
        if self.bond.is_confirmed() && self.outgoing.state.stop() {
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
            let leaves = self.bond == Bond::Withdrawn { leaves: true };
            self.bond = Bond::Withdrawn { leaves };
            self.since = now;
            carrier.tell(self.link, Message::Withdraw { from: self.own, closed: false });
        }
        self.bond == Bond::Over
    }

    /// The socket is closed. False: it is not said yet, the pipe stays until it is.
    pub(in crate::shard::pipe) fn close(&mut self, carrier: &mut impl Carrier) -> bool {
        if self.owner().is_some() {
            self.parting = self.parting_now();
        }
        self.incoming.clear(carrier);
        if self.bond == Bond::Over || self.is_apart() {
            self.holder = Holder::Closed;
            return true;
        }
        self.holder = Holder::Closing;
        self.settle(carrier);
        self.is_closed()
    }

    fn parting_now(&self) -> Parting {
        if self.are_both_told() {
            Parting::Ended
        } else if self.incoming.held() > 0 {
            Parting::Torn
        } else {
            Parting::Whole
        }
    }

    /// Bytes that the peer has not read, as far as it has said or noted.
    pub(super) fn unread_there(&mut self, carrier: &impl Carrier) -> u64 {
        let noted = self.bond.peer().and_then(|peer| carrier.note_of_peer(self.link, peer.index));
        let outgoing = &mut self.outgoing;
        let noted = noted.filter(|noted| *noted <= outgoing.sent).unwrap_or(0);
        outgoing.read_by_peer = outgoing.read_by_peer.max(noted);
        outgoing.sent - outgoing.read_by_peer
    }

    /// Would the peer lose something if the connection ended now? It may want to give unread bytes
    /// back, or is about to.
    pub(in crate::shard::pipe) fn must_remain(&mut self, carrier: &impl Carrier) -> bool {
        self.bond.is_confirmed()
            && (self.outgoing.state.has_stopped() || self.unread_there(carrier) > 0)
            || !self.backlog().is_empty()
    }

    /// The socket is closed, but the pipe stays until the peer has everything.
    pub(in crate::shard::pipe) fn remain(
        &mut self,
        carrier: &mut impl Carrier,
        leftover: Box<dyn Leftover>,
    ) {
        self.holder = Holder::Leftover(leftover);
        if self.are_both_told() {
            // It will not be read.
            self.parting = Parting::Ended;
            self.incoming.clear(carrier);
        }
        if !self.is_shut() {
            self.shut(carrier);
        }
    }

    pub(in crate::shard::pipe) fn has_remains(&self) -> bool {
        matches!(self.holder, Holder::Leftover(_))
    }

    /// Does the kernel have to take bytes of a closed socket?
    pub(in crate::shard::pipe) fn has_remaining_backlog(&self) -> bool {
        self.has_remains() && !self.backlog().is_empty()
    }

    /// The peer sent something that nobody will read.
    pub(in crate::shard::pipe) fn refuse(&mut self, carrier: &mut impl Carrier) {
        self.parting = Parting::Torn;
        self.say_closed(carrier);
        if let Holder::Leftover(half) = &mut self.holder {
            half.reset();
        }
        self.end();
        self.outgoing.backlog = Vec::new();
    }

    /// Its socket is closed: is there nothing left to say or to do?
    pub(in crate::shard::pipe) fn is_finished_with(&mut self, carrier: &mut impl Carrier) -> bool {
        if self.has_remains() { self.wind_up(carrier) } else { self.is_closed() }
    }

    /// Does what is left to do for a closed socket. True when that is all.
    pub(in crate::shard::pipe) fn wind_up(&mut self, carrier: &mut impl Carrier) -> bool {
        if self.wants_arming()
            && let Holder::Leftover(half) = &mut self.holder
        {
            half.arm(true);
            self.armed = true;
        }
        self.settle(carrier);
        let backlog = self.outgoing.ready();
        let Holder::Leftover(leftover) = &mut self.holder else { return false };
        if self.fault.is_dead() {
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
            && let Holder::Leftover(half) = &mut self.holder
        {
            half.arm(false);
        }
        // If the link has no room for it, another round says it.
        self.bond.peer().is_none() || self.say_closed(carrier)
    }

    /// The last message to the peer; None if there is no peer.
    fn closed(&self) -> Option<Message> {
        let (read, parting) = (Some(self.incoming.read), self.parting);
        self.bond.peer().map(|to| Message::Closed { to, read, parting })
    }

    pub(in crate::shard::pipe) fn say_closed(&self, carrier: &mut impl Carrier) -> bool {
        self.closed().is_some_and(|message| carrier.tell(self.link, message))
    }

    /// Is this what the peer calls it?
    pub(in crate::shard::pipe) fn is_called(&self, link: LinkId, own: Name) -> bool {
        self.link == link && self.own == own
    }

    /// Is it the end of this peer's?
    pub(in crate::shard::pipe) fn is_with(&self, link: LinkId, peer: Name) -> bool {
        self.link == link && self.bond == Bond::Confirmed(peer)
    }

    /// The link is over: what it brought can be read, the rest is the kernel's.
    pub(in crate::shard::pipe) fn cut(&mut self, carrier: &impl Carrier) -> Events {
        if self.bond == Bond::Over {
            return Events::NONE;
        }
        // Bytes that nobody will read. The peer has noted what it did read.
        let unread = self.unread_there(carrier) > 0 && self.outgoing.state != Sending::Reverted
            || !self.outgoing.behind.is_empty();
        if self.lacks_bytes() {
            self.fault.die();
        } else if unread {
            self.died_unread();
        }
        self.end();
        Events::CLOSED
    }

    /// The client is gone before it knew of this end. The bytes that a closed socket left are not read.
    pub(in crate::shard::pipe) fn leave_alone(&mut self) {
        if let Holder::Leftover(half) = &mut self.holder {
            half.reset();
        }
        let unread = self.outgoing.state != Sending::Reverted && self.unread_by_peer() > 0;
        if unread || !self.outgoing.behind.is_empty() {
            self.closed_unread(Parting::Whole);
        }
        self.end();
    }

    /// The socket is closed, and the peer knows.
    fn is_closed(&self) -> bool {
        matches!(self.holder, Holder::Closed)
    }

    /// There is no peer any more, and nothing to say to it.
    pub(super) fn end(&mut self) {
        self.bond = Bond::Over;
        self.incoming.state.sever();
        self.outgoing.state.sever();
        self.outgoing.close_up();
        if let Holder::Closing = self.holder {
            self.holder = Holder::Closed;
        }
        self.drop_half_once_read();
    }

    /// Says what is owed, and goes on with what waits for room on the link. What is said first comes
    /// first here.
    pub(in crate::shard::pipe) fn settle(&mut self, carrier: &mut impl Carrier) {
        if self.is_offered() && matches!(self.holder, Holder::Closing) {
            let message = Message::Withdraw { from: self.own, closed: true };
            if carrier.tell(self.link, message) {
                self.holder = Holder::Closed;
            }
        }
        let Some(to) = self.bond.peer() else { return };
        if self.outgoing.state == (Sending::Early { due: true }) {
            self.switch(carrier);
        }
        if self.incoming.credit_due {
            self.credit(carrier);
        }
        if self.outgoing.state == (Sending::Pipe { fin_due: true }) {
            self.tell_fin(carrier);
        }
        self.tell_overflow(carrier);
        if let Sending::Stopped { due: true, .. } = self.outgoing.state {
            let kernel = self.outgoing.kernel;
            if carrier.tell(self.link, Message::Stop { to, kernel }) {
                self.outgoing.state.stop_told();
            }
        }
        // An end that the peer is still to hear of comes first.
        if matches!(self.holder, Holder::Closing)
            && self.outgoing.state != (Sending::Pipe { fin_due: true })
            && self.say_closed(carrier)
        {
            self.holder = Holder::Closed;
        }
        self.give_back(carrier);
    }

    #[cold]
    pub(super) fn switch(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.bond.peer() else { return };
        if !self.outgoing.state.may_switch() {
            return;
        }
        let shut = self.is_shut();
        let message = Message::Switch { to, kernel: self.outgoing.kernel, shut };
        let told = carrier.tell(self.link, message);
        self.outgoing.state.switch(told);
        self.outgoing.kernel_told = self.outgoing.kernel;
    }

    /// Both have stopped: returns what was not read.
    pub(super) fn give_back(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.bond.peer() else { return };
        let is_told = match self.outgoing.state {
            Sending::Stopped { due, .. } => !due,
            Sending::Reverted => true,
            Sending::Early { .. } | Sending::Pipe { .. } => false,
        };
        let ready = is_told && self.incoming.state.is_to_return();
        if !ready || self.wants_arming() || self.wants_prefetch() {
            return;
        }
        self.incoming.state.give_back();
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
            let sent = carrier.send(self.link, kind, header, count, Rank::Urgent, |room| {
                let here = rest.len().min(room.len());
                let (now, later) = rest.split_at(here);
                bulk_copy(room, now);
                rest = later;
            });
            if !sent {
                return;
            }
            queue.consume(carrier, count);
            self.incoming.state.gave(count as u64);
        }
        if carrier.tell(self.link, Message::Stopped { to }) {
            self.incoming.state.all_given();
            if self.outgoing.state == Sending::Reverted {
                self.end();
            }
        }
    }

    /// The peer broke the rules.
    #[cold]
    pub(in crate::shard::pipe) fn condemn(&mut self, carrier: &mut impl Carrier) -> Events {
        self.parting = Parting::Torn;
        self.say_closed(carrier);
        self.incoming.clear(carrier);
        self.end();
        self.fault.die();
        Events::CLOSED
    }

    /// The link has room again.
    pub(in crate::shard::pipe) fn relieved(&mut self, carrier: &mut impl Carrier) -> Events {
        self.settle(carrier);
        self.crowded = false;
        if core::mem::take(&mut self.wants_room) { Events::WRITABLE } else { Events::NONE }
    }
}
