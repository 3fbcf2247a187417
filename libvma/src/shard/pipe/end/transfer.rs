//! Bytes out of the queue and into the link, and what each end tells the other about it.

use std::io::{IoSlice, IoSliceMut};

use libvma_engine::bulk_copy::bulk_copy;

use super::{PORTION, Pipe, Receiving, Writing, clamped};
use crate::device::shm::Rank;
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::{Message, Name};
use crate::sys::user::{self, Copied};

/// So much goes into a slot: no need to ask for room.
pub(super) const SURE: usize = 88;

/// A place in the pieces of a send call.
pub(super) struct Cursor<'a, 'b> {
    pub data: &'a [IoSlice<'b>],
    /// The piece.
    pub at: usize,
    /// Bytes of the piece that are gone.
    pub skip: usize,
}

impl Cursor<'_, '_> {
    /// Copies the next bytes.
    #[inline]
    fn fill(&mut self, mut room: &mut [u8]) {
        while !room.is_empty() {
            let Some(piece) = self.data.get(self.at) else { return };
            let rest = piece.get(self.skip..).unwrap_or_default();
            let here = rest.len().min(room.len());
            let (target, left) = room.split_at_mut(here);
            bulk_copy(target, rest);
            room = left;
            self.skip += here;
            if self.skip >= piece.len() {
                self.skip -= piece.len();
                self.at += 1;
            }
        }
    }
}

impl Pipe {
    #[inline]
    pub(in crate::shard::pipe) fn copy_out(
        &self,
        carrier: &impl Carrier,
        skip: usize,
        out: &mut [IoSliceMut<'_>],
        filled: usize,
    ) -> usize {
        self.incoming.queue.copy_out(carrier, skip, out, filled, usize::MAX)
    }

    /// The program has read bytes.
    #[inline]
    pub(in crate::shard::pipe) fn consume(&mut self, carrier: &mut impl Carrier, count: usize) {
        let incoming = &mut self.incoming;
        incoming.queue.consume(carrier, count);
        if !incoming.later.is_empty() {
            incoming.advance();
        }
        incoming.read += match incoming.prefetched {
            0 => count as u64,
            _ => incoming.take_prefetched(count as u64),
        };
        carrier.set_note(self.link, self.own.index, incoming.read);
        // The answer carries it; without one it is said now and then.
        let last = incoming.state == Receiving::Ended && incoming.queue.is_empty();
        if incoming.read - incoming.credited >= incoming.limit / 4 || last {
            self.credit(carrier);
        }
        if self.peers_half.is_some() {
            self.drop_half_once_read();
        }
    }

    /// The program reads: the client may use the pipe.
    #[inline]
    pub(in crate::shard::pipe) fn use_it(&mut self, carrier: &mut impl Carrier) {
        if !self.used {
            self.used = true;
            self.credit(carrier);
        }
    }

    #[cold]
    pub(super) fn credit(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.bond.peer() else { return };
        let incoming = &mut self.incoming;
        let message = Message::Credit { to, read: incoming.read, limit: incoming.limit };
        incoming.credit_due = !carrier.tell(self.link, message);
        if !incoming.credit_due {
            incoming.credited = incoming.read;
            incoming.told_limit = incoming.limit;
        }
    }

    /// How much the program may have unread from now on.
    pub(in crate::shard::pipe) fn set_limit(&mut self, carrier: &mut impl Carrier, limit: u64) {
        let limit = clamped(limit);
        if limit != self.incoming.limit {
            self.incoming.limit = limit;
            self.incoming.largest_limit = self.incoming.largest_limit.max(limit);
            self.credit(carrier);
        }
    }

    /// How many bytes may be sent.
    #[inline]
    pub fn free(&self) -> usize {
        usize::try_from(self.window_left()).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(super) fn window_left(&self) -> u64 {
        self.outgoing.window.saturating_sub(self.unread_by_peer())
    }

    /// Would Linux call the socket writable (a third of the buffer is free)?
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.has_free_third() && !self.crowded
    }

    #[inline]
    pub fn has_free_third(&self) -> bool {
        self.window_left() > self.outgoing.window / 3
    }

    /// Has the link got room meanwhile? If not, it will tell.
    pub(in crate::shard::pipe) fn look_at_link(&mut self, carrier: &mut impl Carrier) {
        self.crowded = self.crowded && carrier.room(self.link) == 0;
    }

    /// So many bytes find room now, in one message; none if the link is full.
    pub(in crate::shard::pipe) fn room(&mut self, carrier: &mut impl Carrier) -> usize {
        let (free, room) = (self.free(), carrier.room(self.link));
        self.crowded = room == 0 && free > 0;
        free.min(room).min(PORTION)
    }

    /// Messages with bytes that came, and that were sent.
    pub fn messages(&self) -> (u64, u64) {
        (self.incoming.messages, self.outgoing.messages)
    }

    /// Bytes of the pipe that the program has read, and that it has sent.
    pub fn positions(&self) -> (u64, u64) {
        (self.incoming.read, self.outgoing.sent)
    }

    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Bytes that the peer has not read yet, as far as it has said.
    #[inline]
    pub fn unread_by_peer(&self) -> u64 {
        self.outgoing.sent - self.outgoing.read_by_peer
    }

    /// Sends bytes of the pieces behind the first `skip`; returns how many found room. Only those are looked at.
    #[inline]
    pub(in crate::shard::pipe) fn write(
        &mut self,
        carrier: &mut impl Carrier,
        data: &[IoSlice<'_>],
        skip: usize,
        total: usize,
    ) -> Copied {
        let Some(to) = self.bond.peer() else { return Copied::default() };
        let (mut written, mut fault) = (0, false);
        let mut cursor = Cursor { data, at: 0, skip };
        while written < total {
            let mut count = PORTION.min(self.free()).min(total - written);
            if count > SURE {
                count = count.min(carrier.room(self.link));
            }
            if count == 0 {
                break;
            }
            if !user::all_give(data.get(cursor.at..).unwrap_or_default(), cursor.skip, count) {
                fault = true;
                break;
            }
            if !self.send_portion(carrier, to, &mut cursor, count, Rank::Usual) {
                break;
            }
            written += count;
        }
        let waits = written < total && !fault;
        self.crowded = waits && self.free() > 0;
        self.wants_room |= waits;
        Copied { bytes: written, fault }
    }

    /// Sends so many bytes in one message, if it finds room.
    #[inline(always)]
    pub(super) fn send_portion(
        &mut self,
        carrier: &mut impl Carrier,
        to: Name,
        cursor: &mut Cursor<'_, '_>,
        count: usize,
        rank: Rank,
    ) -> bool {
        let (read, kernel) = (self.incoming.read, self.outgoing.kernel);
        let (kind, header) = Message::Data { to, read, kernel }.encode();
        let sent = carrier.send(self.link, kind, header, count, rank, |room| cursor.fill(room));
        if sent {
            self.incoming.credited = read;
            self.used = true;
            self.promised = false;
            let outgoing = &mut self.outgoing;
            outgoing.sent += count as u64;
            outgoing.messages += 1;
            outgoing.kernel_told = kernel;
        }
        sent
    }

    /// The program sends no more.
    pub(in crate::shard::pipe) fn shut(&mut self, carrier: &mut impl Carrier) {
        if self.outgoing.writing == Writing::Open {
            self.outgoing.writing = Writing::Shut;
        }
        if self.outgoing.state.is_by_pipe() {
            self.tell_fin(carrier);
        }
    }

    /// Is the end of what the program sends the kernel's to tell? (Else the peer has it by the pipe.)
    pub fn is_end_the_kernels(&self) -> bool {
        self.outgoing.state.is_end_the_kernels()
    }
}
