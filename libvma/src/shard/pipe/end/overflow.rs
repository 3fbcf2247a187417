//! What goes by the kernel while the link is full.
//!
//! All pipes between two processes share the slots of one link. If the peer does not poll, many connections
//! fill them together. A connection that has little in the link itself then sends by the kernel's connection,
//! which has a send buffer of its own (SO_SNDBUF), tells poll(2) the truth about it, and delivers what it
//! took even if this process is killed. With the next room in the link the bytes go by the pipe again.
//!
//! A bulk transfer waits for the link, which is faster. It is told from an idle connection by what it has
//! unread, and by an allowance: however often a connection finds the link full, it may ask for [`ALLOWANCE`]
//! bytes by the kernel at once, and for as many again in a second. One large send uses that up. But if poll(2)
//! and its kin have said that a connection may send, one send is not refused (`promise`).
//!
//! The reader learns how many bytes went by the kernel, and between which bytes of the pipe, from the next
//! message of the pipe. If it finds them in the kernel's socket before, it takes what is in the link first:
//! whatever was sent ahead of them is there.

use super::{Incoming, Pipe, Receiving};
use crate::device::Received;
use crate::device::shm::Rank;
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::Message;
use crate::shard::pipe::queue::Queue;

/// Bytes of the kernel's, and the pipe's bytes behind them.
pub(super) struct Part {
    pub kernel: u64,
    pub queue: Queue,
}

/// Bytes that one pipe may ask to send by the kernel while the link is full.
const ALLOWANCE: u64 = 64 * 1024;
/// After so long a byte may go again: the whole allowance in a second.
const NANOS_PER_BYTE: u64 = 1_000_000_000 / ALLOWANCE;

/// An idle pipe has fewer messages unread. A sixteenth of the slots of a link: a pipe with more shares the
/// fault that the link is full.
const FEW_MESSAGES: u64 = 64;
/// And fewer bytes: unread bytes of a bulk transfer keep the chunks of the link.
const FEW_BYTES: u64 = 16 * 1024;

/// What of the allowance is used up.
#[derive(Default)]
pub(super) struct Allowance {
    used: u64,
    /// Up to then (nanoseconds) it has grown back.
    since: u64,
}

impl Allowance {
    fn is_left(&mut self, now: u64) -> bool {
        let grown = now.saturating_sub(self.since) / NANOS_PER_BYTE;
        if grown >= self.used {
            *self = Allowance { used: 0, since: now };
        } else {
            self.used -= grown;
            self.since += grown * NANOS_PER_BYTE;
        }
        self.used < ALLOWANCE
    }
}

impl Incoming {
    /// Bytes that were read. Those that came by the kernel do not count for the peer.
    #[cold]
    pub fn take_prefetched(&mut self, count: u64) -> u64 {
        let kernels = self.prefetched.min(count);
        self.prefetched -= kernels;
        count - kernels
    }

    /// Bytes of the pipe that are not read.
    #[inline]
    pub fn held(&self) -> usize {
        self.queue.len() + self.later_len
    }

    /// So many bytes in all go by the kernel ahead of the next byte of the pipe.
    #[cold]
    pub fn learn(&mut self, total: u64) {
        let more = total.saturating_sub(self.kernel_told);
        if more == 0 {
            return;
        }
        self.kernel_told = total;
        match self.later.back_mut() {
            Some(last) if last.queue.is_empty() => last.kernel += more,
            None if self.queue.is_empty() => self.kernel += more,
            _ => self.later.push_back(Part { kernel: more, queue: Queue::default() }),
        }
    }

    #[cold]
    pub fn push_later(&mut self, carrier: &mut impl Carrier, payload: Received) {
        let Some(last) = self.later.back_mut() else { return carrier.release(payload.frame) };
        self.later_len += payload.len as usize;
        last.queue.push(carrier, payload);
    }

    /// Goes on to the next part if this one is read.
    pub fn advance(&mut self) {
        while self.kernel == 0
            && self.queue.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.kernel = next.kernel;
            self.later_len -= next.queue.len();
            self.queue = next.queue;
        }
    }

    pub fn clear(&mut self, carrier: &mut impl Carrier) {
        self.queue.clear(carrier);
        for mut part in self.later.drain(..) {
            part.queue.clear(carrier);
        }
        self.later_len = 0;
    }
}

impl Pipe {
    /// The link is full. May the program's next bytes go by the kernel?
    pub(in crate::shard::pipe) fn may_overflow(
        &mut self,
        carrier: &impl Carrier,
        now: u64,
    ) -> bool {
        // A window that looks full is not the link's doing.
        self.crowded
            && self.outgoing.state.is_by_pipe()
            && !self.is_shut()
            && !self.is_dead()
            && self.window_left() > 0
            && self.is_idle(carrier)
            && (self.promised || self.outgoing.allowance.is_left(now))
    }

    /// Has the peer read all but little of what went by the pipe?
    fn is_idle(&mut self, carrier: &impl Carrier) -> bool {
        let bytes = self.unread_there(carrier);
        let outgoing = &self.outgoing;
        // If they are of the usual length.
        let messages = bytes.saturating_mul(outgoing.messages) / outgoing.sent.max(1);
        bytes < FEW_BYTES && messages < FEW_MESSAGES
    }

    /// The link was full, and the program's send went by the kernel. It asked for so many bytes.
    pub fn note_overflow(&mut self, asked: usize) {
        self.promised = false;
        let allowance = &mut self.outgoing.allowance;
        allowance.used = allowance.used.saturating_add(asked as u64).min(2 * ALLOWANCE);
    }

    /// Tells the reader of bytes that went by the kernel, unless it knows.
    pub(super) fn tell_overflow(&mut self, carrier: &mut impl Carrier) {
        let outgoing = &self.outgoing;
        if outgoing.kernel == outgoing.kernel_told || !outgoing.state.is_by_pipe() {
            return;
        }
        let Some(to) = self.bond.peer() else { return };
        let kernel = outgoing.kernel;
        let (kind, header) = Message::Switch { to, kernel, shut: false }.encode();
        // No rank: as many pipes may have to say so as fill the link.
        if carrier.send(self.link, kind, header, 0, Rank::Usual, |_| {}) {
            self.outgoing.kernel_told = kernel;
        }
    }

    pub(super) fn tell_fin(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.bond.peer() else { return };
        let kernel = self.outgoing.kernel;
        let told = carrier.tell(self.link, Message::Fin { to, kernel });
        self.outgoing.state.end(told);
        if told {
            self.outgoing.kernel_told = kernel;
        }
    }

    /// May the kernel's socket have bytes that the peer has not told of?
    pub fn may_find_bytes(&self) -> bool {
        self.bond.is_confirmed() && self.incoming.state.is_by_pipe() && !self.is_dead()
    }

    /// The kernel's bytes come first until the peer says where they end: it may have said so already, and have
    /// sent more of them behind bytes of the pipe. What the kernel's socket has may be read after all that came
    /// by the link has been taken.
    pub fn may_have_switched(&self) -> bool {
        self.incoming.state == Receiving::Early
    }

    /// The kernel's socket had so many bytes, and since then all that had come by the link was taken: what the
    /// peer did not tell of comes after that.
    pub fn find_bytes(&mut self, count: u64) {
        if self.may_find_bytes() {
            let total = self.incoming.kernel_taken.saturating_add(count);
            self.incoming.learn(total);
        }
    }

    /// Must bytes of the kernel's be read before those of the pipe can be given back? What is given back comes
    /// by the kernel again, behind all that is there.
    pub fn wants_prefetch(&self) -> bool {
        let gives_back = self.bond.is_confirmed()
            && self.outgoing.state.has_stopped()
            && self.incoming.state == Receiving::Stopped;
        self.owner().is_some()
            && (gives_back || self.has_peers_half())
            && !self.incoming.later.is_empty()
    }

    /// Are there bytes of the kernel's behind those that can be read from the pipe?
    pub fn has_bytes_behind(&self) -> bool {
        !self.incoming.later.is_empty()
    }

    /// Takes bytes of the kernel's that come between those of the pipe into the queue, where they are in order.
    /// `read` gets a buffer to fill, and says how much it did; 0: there is nothing now.
    pub fn prefetch(&mut self, mut read: impl FnMut(&mut [u8]) -> usize) {
        const PORTION: u64 = 16 * 1024;
        // FIONREAD and MSG_PEEK consume nothing: the queue must not grow without end by them.
        let most = if self.wants_prefetch() { u64::MAX } else { self.incoming.limit };
        let incoming = &mut self.incoming;
        if incoming.later.is_empty() {
            return;
        }
        let kernel = core::mem::take(&mut incoming.kernel);
        if kernel > 0 {
            let queue = core::mem::take(&mut incoming.queue);
            incoming.later_len += queue.len();
            incoming.later.push_front(Part { kernel, queue });
        }
        let mut buffer = Vec::new();
        while let Some(next) = incoming.later.front_mut() {
            while next.kernel > 0 {
                if incoming.prefetched >= most {
                    return incoming.advance();
                }
                buffer.resize(next.kernel.min(PORTION) as usize, 0);
                let count = read(&mut buffer);
                if count == 0 {
                    return incoming.advance();
                }
                incoming.queue.push_bytes(buffer.get(..count).unwrap_or_default());
                incoming.kernel_taken += count as u64;
                incoming.prefetched += count as u64;
                next.kernel = next.kernel.saturating_sub(count as u64);
            }
            let Some(mut part) = incoming.later.pop_front() else { return };
            incoming.later_len -= part.queue.len();
            incoming.queue.append(&mut part.queue);
        }
    }
}
