//! The half of the kernel's connection that a process leaves to its peer when it ends.
//!
//! Bytes that a program has sent are the peer's, in the peer's memory, even if its program has not read them. If that
//! hands the connection on afterwards (fork, exec, SCM_RIGHTS), they must come by the kernel, which takes them at the sender's
//! half only. A living sender gets them back (STOP, RETURN). One that ends cannot, so it says its end by the pipe and leaves
//! the half itself, a descriptor, to the peer, which closes it when its program has read all, or writes the bytes to it.
//!
//! Until then the half is armed: if the peer is killed, a forked child that has the connection sees a reset, and never an end
//! before the bytes.

use super::{Holder, Pipe, Sending};
use crate::device::shm::LinkId;
use crate::shard::pipe::message::Name;
use crate::shard::pipe::{Carrier, Leftover};

impl Pipe {
    /// The process ends: if the peer needs the kernel's half of this end, it is told that the program sends no more. Returns the
    /// link to the peer, and the peer's name of the connection.
    pub(in crate::shard::pipe) fn leave_half(
        &mut self,
        carrier: &mut impl Carrier,
    ) -> Option<(LinkId, Name)> {
        let to = self.bond.peer()?;
        let stopped = self.outgoing.state.has_stopped();
        if stopped || self.incoming.held() > 0 || self.is_dead() || self.unread_there(carrier) == 0
        {
            return None;
        }
        if !self.is_shut() {
            self.shut(carrier);
        }
        self.half_left = self.outgoing.state == (Sending::Pipe { fin_due: false });
        self.half_left.then_some((self.link, to))
    }

    /// The peer did not take it.
    pub(in crate::shard::pipe) fn keep_half(&mut self) {
        self.half_left = false;
    }

    /// Is it the peer that ends the kernel's connection?
    pub fn has_left_half(&self) -> bool {
        self.half_left
    }

    /// The descriptor of a closed socket.
    pub(in crate::shard::pipe) fn remains(&self) -> Option<i32> {
        match &self.holder {
            Holder::Leftover(half) => Some(half.descriptor()),
            Holder::Socket(_) | Holder::Closing | Holder::Closed => None,
        }
    }

    /// The peer ends, and this is its half. A second one is none.
    pub(in crate::shard::pipe) fn take_half(&mut self, mut half: Box<dyn Leftover>) {
        if self.peers_half.is_none() {
            half.arm(true);
            self.peers_half = Some(half);
            self.drop_half_once_read();
        }
    }

    pub fn has_peers_half(&self) -> bool {
        self.peers_half.is_some()
    }

    /// Nothing is left that would have to go by the peer's half: the kernel tells of its end.
    pub(super) fn drop_half_once_read(&mut self) {
        if self.is_over()
            && self.incoming.held() == 0
            && let Some(half) = self.peers_half.take()
        {
            end_by_fin(half);
        }
    }

    /// The program sent to a peer that has ended. As on Linux the first such bytes are taken, and the next send fails.
    #[cold]
    pub(super) fn sent_to_nobody(&mut self) {
        self.fault.die_behind_the_end();
    }

    /// The connection is handed on, and the peer has ended: the unread bytes go by its half, for which the pipe stays. False
    /// if there is no such half.
    pub(in crate::shard::pipe) fn pour(&mut self, carrier: &mut impl Carrier) -> bool {
        if !self.is_over() || self.wants_prefetch() {
            return false;
        }
        let Some(mut half) = self.peers_half.take() else { return false };
        half.discard();
        let mut bytes = vec![0; self.incoming.queue.len()];
        self.incoming.queue.fill(carrier, &mut bytes);
        self.incoming.clear(carrier);
        self.outgoing.backlog = bytes;
        self.outgoing.gone = 0;
        self.armed = true;
        // The socket's, which has none any more.
        self.fault = super::Fault::None;
        self.holder = Holder::Leftover(half);
        true
    }
}

fn end_by_fin(mut half: Box<dyn Leftover>) {
    half.arm(false);
    half.shut();
}
