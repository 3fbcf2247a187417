//! Room that the program was told of.
//!
//! poll(2) and its kin have said that the socket is writable. On Linux the next send() then takes at least one byte.
//! Here the room may be gone by then: other pipes have filled the link, or one of the ends gives the pipe up. The
//! bytes then go
//!
//! 1. by the kernel's connection, if the pipe is idle ([`super::overflow`]),
//! 2. else into one of the slots that usual messages leave free, at most [`SURE`] bytes. A busy pipe that went by the kernel
//!    here instead would do so often: a bulk transfer by eight connections sent one byte in a hundred by the kernel,
//! 3. by the kernel's connection, if these slots are taken, too.
//!
//! While the pipe is being given up, the bytes wait behind those that come back.

use std::io::IoSlice;

use super::transfer::{Cursor, SURE};
use super::{Outgoing, Pipe, Sending};
use crate::device::shm::Rank;
use crate::shard::pipe::Carrier;
use crate::sys::user::{self, Copied};

impl Pipe {
    /// The program is told that it may send.
    pub fn promise_room(&mut self) {
        self.promised = true;
    }

    /// Was the program told that it may send, and has not sent since?
    pub fn is_promised(&self) -> bool {
        self.promised
    }

    /// The link is full. Sends bytes of the pieces behind the first `skip`, of `total` in all, if the program was
    /// promised room. The peer may have made its window smaller since then; it takes what was sent before it said so.
    #[cold]
    pub(in crate::shard::pipe) fn write_promised(
        &mut self,
        carrier: &mut impl Carrier,
        data: &[IoSlice<'_>],
        skip: usize,
        total: usize,
    ) -> Copied {
        let promised = self.promised && !self.is_shut() && self.outgoing.state.is_by_pipe();
        let count = total.min(SURE);
        let Some(to) = self.bond.peer().filter(|_| promised && count > 0) else {
            return Copied::default();
        };
        if !user::all_give(data, skip, count) {
            return Copied { bytes: 0, fault: true };
        }
        let mut cursor = Cursor { data, at: 0, skip };
        let sent = self.send_portion(carrier, to, &mut cursor, count, Rank::Promised);
        self.wants_room = true;
        Copied { bytes: if sent { count } else { 0 }, fault: false }
    }

    /// Do bytes that the program sends now wait behind those that come back, or that the kernel has no room for?
    pub fn may_wait_behind(&self) -> bool {
        let stopped = matches!(
            self.outgoing.state,
            Sending::Stopped { by_pipe: true, .. } | Sending::Reverted
        );
        self.promised && stopped && !self.is_shut() && !self.is_dead()
    }

    /// The program's bytes wait ([`Pipe::may_wait_behind`]).
    pub fn wait_behind(&mut self, bytes: &[u8]) {
        self.promised = false;
        self.outgoing.behind.extend_from_slice(bytes);
        if self.outgoing.state == Sending::Reverted {
            self.outgoing.close_up();
        }
    }
}

impl Outgoing {
    /// All that comes back has come.
    pub(super) fn close_up(&mut self) {
        self.backlog.append(&mut self.behind);
    }
}
