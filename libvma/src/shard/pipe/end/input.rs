//! What follows from a message of the peer's, which is not believed beyond what it may say.

use libvma_engine::tcp::Events;

use super::{Bond, Pipe, Receiving, Sending, clamped};
use crate::device::Received;
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::{Message, Name, Parting};

/// The peer did what it must not.
#[derive(Debug)]
pub(in crate::shard::pipe) struct Violation;

impl Pipe {
    /// Takes a message to this pipe. What happened to its socket; an error: the peer is not to be
    /// believed.
    #[inline]
    pub(in crate::shard::pipe) fn input(
        &mut self,
        carrier: &mut impl Carrier,
        message: Message,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        if let Message::Data { read, kernel, .. } = message {
            return self.data(carrier, read, kernel, payload);
        }
        if let Message::Return { .. } = message {
            return self.take_back(carrier, payload);
        }
        if let Some(received) = payload {
            carrier.release(received.frame);
        }
        match message {
            Message::Credit { read, limit, .. } => self.credited(carrier, read, limit),
            Message::Confirm { from, limit, late, .. } => {
                self.confirmed(carrier, from, limit, late)
            }
            Message::Withdrawn { .. } => {
                let Bond::Withdrawn { .. } = self.bond else { return Ok(Events::NONE) };
                self.end();
                Ok(Events::CLOSED)
            }
            _ if !self.bond.is_confirmed() => Ok(Events::NONE),
            Message::Switch { kernel, shut, .. } => self.switched(kernel, shut),
            Message::Fin { kernel, .. } => {
                self.incoming.state.end()?;
                self.incoming.learn(kernel);
                Ok(Events::PEER_CLOSED)
            }
            // It has all that it needs to give nothing back.
            Message::Stop { .. } if self.half_left => Ok(Events::NONE),
            Message::Stop { kernel, .. } => {
                if self.incoming.state.stop()? {
                    self.incoming.learn(kernel);
                }
                self.stop(carrier);
                self.settle(carrier);
                Ok(Events::READABLE)
            }
            Message::Stopped { .. } => {
                self.outgoing.state.returned()?;
                self.outgoing.close_up();
                self.settle(carrier);
                if matches!(self.incoming.state, Receiving::Returned { .. }) {
                    self.end();
                }
                Ok(Events::CLOSED)
            }
            Message::Closed { read, parting, .. } => Ok(self.peer_closed(read, parting)),
            Message::Data { .. }
            | Message::Return { .. }
            | Message::Offer { .. }
            | Message::Withdraw { .. } => Ok(Events::NONE),
        }
    }

    /// The peer sends by the pipe from here on, behind so many bytes by the kernel; or, later, so many went by the
    /// kernel while the link was full.
    fn switched(&mut self, kernel: u64, shut: bool) -> Result<Events, Violation> {
        let incoming = &mut self.incoming;
        if incoming.state.switch(shut)? {
            incoming.kernel = kernel.saturating_sub(incoming.kernel_taken);
            incoming.kernel_told = kernel;
        } else {
            if kernel < incoming.kernel_told {
                return Err(Violation);
            }
            incoming.learn(kernel);
        }
        Ok(Events::READABLE)
    }

    fn peer_closed(&mut self, read: Option<u64>, parting: Parting) -> Events {
        // Bytes that it gave back before it closed were never read, nor those that were on their way then.
        let crossed = self.outgoing.state != Sending::Reverted
            && read.is_some_and(|read| read < self.outgoing.sent)
            || !self.outgoing.behind.is_empty();
        let returned = !self.outgoing.backlog.is_empty();
        // It closed before it knew that this was all.
        if self.lacks_bytes() {
            self.fault.die();
        } else if returned || crossed {
            self.closed_unread(if returned { Parting::Torn } else { parting });
        }
        self.end();
        self.outgoing.backlog = Vec::new();
        self.outgoing.gone = 0;
        Events::CLOSED
    }

    #[inline]
    pub(super) fn data(
        &mut self,
        carrier: &mut impl Carrier,
        read: u64,
        kernel: u64,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        let Some(payload) = payload else { return Err(Violation) };
        if self.incoming.unwanted && self.turns_away(carrier) {
            carrier.release(payload.frame);
            return Ok(Events::CLOSED);
        }
        let incoming = &mut self.incoming;
        let held = (incoming.held() as u64).saturating_sub(incoming.prefetched);
        let held = held + u64::from(payload.len);
        let allowed = held <= incoming.largest_limit && incoming.state.takes_bytes();
        // Without a peer the state is another, too.
        if !allowed {
            carrier.release(payload.frame);
            return if self.bond.is_confirmed() { Err(Violation) } else { Ok(Events::NONE) };
        }
        if kernel != incoming.kernel_told {
            incoming.learn(kernel);
        }
        if incoming.later.is_empty() {
            incoming.queue.push(carrier, payload);
        } else {
            incoming.push_later(carrier, payload);
        }
        incoming.messages += 1;
        if self.outgoing.state.may_switch() {
            self.switch(carrier);
        }
        Ok(Events::READABLE.union(self.read_by_peer(read)?))
    }

    /// The peer has read so many bytes of ours.
    #[inline]
    pub(super) fn read_by_peer(&mut self, read: u64) -> Result<Events, Violation> {
        let outgoing = &mut self.outgoing;
        if read > outgoing.sent {
            return Err(Violation);
        }
        outgoing.read_by_peer = outgoing.read_by_peer.max(read);
        if self.wants_room && self.is_writable() {
            self.wants_room = false;
            return Ok(Events::WRITABLE);
        }
        Ok(Events::NONE)
    }

    pub(super) fn credited(
        &mut self,
        carrier: &mut impl Carrier,
        read: u64,
        limit: u64,
    ) -> Result<Events, Violation> {
        if !self.bond.is_confirmed() {
            return Ok(Events::NONE);
        }
        self.outgoing.window = clamped(limit);
        if self.outgoing.state.may_switch() {
            self.switch(carrier);
        }
        self.read_by_peer(read)
    }

    pub(super) fn confirmed(
        &mut self,
        carrier: &mut impl Carrier,
        from: Name,
        limit: u32,
        late: bool,
    ) -> Result<Events, Violation> {
        let leaves = match self.bond {
            Bond::Offered => false,
            Bond::Withdrawn { leaves } => leaves,
            Bond::Apart | Bond::Confirmed(_) | Bond::Over => return Err(Violation),
        };
        self.bond = Bond::Confirmed(from);
        self.outgoing.window = clamped(limit.into());
        if !late {
            // The server's bytes all come by the pipe.
            self.incoming.state.switch(false)?;
        }
        if self.incoming.told_limit != self.incoming.limit {
            self.credit(carrier);
        }
        if leaves {
            self.stop(carrier);
        }
        Ok(Events::NONE)
    }

    pub(super) fn take_back(
        &mut self,
        carrier: &mut impl Carrier,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        let Some(Received { frame, len, .. }) = payload else { return Err(Violation) };
        if !self.bond.is_confirmed() {
            carrier.release(frame);
            return Ok(Events::NONE);
        }
        let outgoing = &mut self.outgoing;
        // What went by the kernel behind bytes that were not read comes back with them.
        let unread = outgoing.sent - outgoing.read_by_peer + outgoing.kernel;
        let allowed =
            outgoing.state.takes_back() && outgoing.backlog.len() as u64 + u64::from(len) <= unread;
        if allowed {
            let mut left = len as usize;
            for piece in carrier.pieces(&frame) {
                let piece = piece.get(..left).unwrap_or(piece);
                left -= piece.len();
                outgoing.backlog.extend_from_slice(piece);
            }
        }
        carrier.release(frame);
        if allowed { Ok(Events::NONE) } else { Err(Violation) }
    }
}
