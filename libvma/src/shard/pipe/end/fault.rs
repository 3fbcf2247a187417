//! The error of a connection whose peer is gone, as Linux has it in each state: bytes that were lost behind the
//! peer's end are EPIPE to their sender, bytes that were lost before it ECONNRESET, and bytes behind both ends
//! nothing. The reader never takes a part of what was sent for all of it.

use super::{Pipe, Turn};
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::Parting;

impl Pipe {
    /// Is the connection over, though the kernel does not know?
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.fault.is_dead()
    }

    /// Are both directions over, though the kernel does not know?
    pub fn has_ended(&self) -> bool {
        self.is_dead() || self.are_both_told()
    }

    /// Has each end been told of the other's? On Linux the connection is over by then, in TIME-WAIT or closed, and
    /// nothing of the peer's concerns it any more.
    pub fn are_both_told(&self) -> bool {
        self.is_shut() && self.is_finished()
    }

    /// Is the peer's end here, and nothing before it still to come by the kernel, which may not have all of it?
    fn has_the_end(&self) -> bool {
        self.is_finished() && self.incoming.kernel_taken >= self.incoming.kernel_told
    }

    /// The peer closed its socket, and has not read all that was sent to it.
    #[cold]
    pub(super) fn closed_unread(&mut self, parting: Parting) {
        match parting {
            Parting::Ended => {}
            Parting::Whole => self.fault.die_behind_the_end(),
            Parting::Torn if self.has_the_end() => self.fault.die_behind_the_end(),
            Parting::Torn => self.fault.die(),
        }
    }

    /// The peer died with bytes of ours unread.
    #[cold]
    pub(super) fn died_unread(&mut self) {
        if !self.has_the_end() {
            self.fault.die();
        } else if !self.is_shut() {
            self.fault.die_behind_the_end();
        }
    }

    /// The program reads no more.
    pub fn shut_reading(&mut self) {
        self.incoming.unwanted = true;
    }

    /// Bytes came to an end that is shut down both ways. As on Linux (tcp_rcv_state_process(); RFC 1122 section 4.2.2.13) this
    /// resets the connection, lest the peer send for ever what nobody takes. False if the link has no room to tell the
    /// peer: then the next bytes do.
    #[cold]
    #[inline(never)]
    pub(super) fn turns_away(&mut self, carrier: &mut impl Carrier) -> bool {
        if !self.is_shut() || !self.bond.is_confirmed() {
            return false;
        }
        if !self.say_closed(carrier) {
            return false;
        }
        self.fault.die();
        self.end();
        true
    }

    /// The kernel says that the connection is reset, and what it said is not told to the program yet.
    #[cold]
    pub fn note_reset(&mut self) {
        if !self.has_the_end() {
            self.fault.reset();
        } else if !self.is_shut() {
            self.fault.die_behind_the_end();
        }
    }

    /// The kernel's word of a reset, which it says once: the error that the program is to be told, unless it knows.
    #[cold]
    pub fn tell_kernels_reset(&mut self) -> Option<i32> {
        let here = self.has_the_end() && !matches!(self.turn(), Turn::Kernel { .. });
        if here && self.is_shut() {
            return None;
        }
        if self.fault.is_behind_the_end() && !here {
            // Bytes of the peer's that were still to come by the kernel are lost.
            self.note_loss();
        }
        let known = self.fault.tell(true);
        let error = if here { libc::EPIPE } else { libc::ECONNRESET };
        (!known).then_some(error)
    }

    /// The place of the next byte to read when both directions are over, and there is none in the queue.
    #[cold]
    #[inline(never)]
    pub(super) fn turn_of_the_dead(&self) -> Turn {
        // Its end may still be to come by the kernel, with bytes before it that it did not tell of.
        let ends_by_kernel = self.fault.is_behind_the_end() && !self.is_finished();
        if ends_by_kernel { Turn::Kernel { most: u64::MAX } } else { Turn::End }
    }

    /// Is a read to fail by a reset (ECONNRESET)? Told once. As on Linux it is not told of bytes that were lost behind
    /// the peer's end, but reads that end.
    pub fn take_reset(&mut self) -> bool {
        !self.fault.is_behind_the_end() && self.take_fault() == Some(libc::ECONNRESET)
    }

    /// Is a send that can go nowhere to fail by a reset? If not it fails by EPIPE, and that is told by it, too.
    #[cold]
    #[inline(never)]
    pub fn take_reset_to_send(&mut self) -> bool {
        self.take_fault() == Some(libc::ECONNRESET)
    }

    /// The error that the program is to be told, once.
    #[cold]
    #[inline(never)]
    pub fn take_fault(&mut self) -> Option<i32> {
        if !self.fault.is_untold() {
            return None;
        }
        self.fault.tell(true);
        let behind = self.fault.is_behind_the_end();
        Some(if behind { libc::EPIPE } else { libc::ECONNRESET })
    }

    /// The events that poll(2) tells of the kernel's socket, without an error that is none to the program: behind both ends.
    #[cold]
    #[inline(never)]
    pub fn without_late_error(&self, events: i16) -> i16 {
        let late = self.are_both_told() && !matches!(self.turn(), Turn::Kernel { .. });
        if late { events & !libc::POLLERR } else { events }
    }
}
