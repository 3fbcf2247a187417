//! What goes by the kernel while the link is full.
//!
//! All pipes between two processes share the slots of one link. If the peer does not poll, many connections
//! fill them together. A connection that has little in the link itself then sends by the kernel's connection,
//! which has a send buffer of its own (SO_SNDBUF), tells poll(2) the truth about it, and delivers what it
//! took even if this process is killed. With the next room in the link the bytes go by the pipe again.
//!
//! The reader learns how many bytes went by the kernel, and between which bytes of the pipe, from the next
//! message of the pipe. If it finds them in the kernel's socket before, it takes what is in the link first:
//! whatever was sent ahead of them is there.

use super::{Bond, Incoming, Pipe};
use crate::device::Received;
use crate::device::shm::Progress;
use crate::shard::pipe::Carrier;
use crate::shard::pipe::message::Message;
use crate::shard::pipe::queue::Queue;

/// Bytes of the kernel's, and the pipe's bytes behind them.
pub(super) struct Part {
    pub kernel: u64,
    pub queue: Queue,
}

/// How much of what is in the link belongs to one pipe, roughly: the positions in the link of two marks, which
/// are set every so many messages or bytes.
#[derive(Default)]
pub(super) struct Share {
    messages: u32,
    bytes: usize,
    /// Records that had been sent by the link at the last mark, and at the one before it.
    last: u64,
    before: u64,
}

/// A sixteenth of the slots of a link, which serves eight pipes or fewer without the kernel.
const MESSAGES: u32 = 64;
const BYTES: usize = 32 * 1024;

impl Share {
    /// Counts a message. True if it is time for a mark.
    #[inline]
    pub fn add(&mut self, bytes: usize) -> bool {
        self.messages += 1;
        self.bytes += bytes;
        self.messages >= MESSAGES || self.bytes >= BYTES
    }

    pub fn mark(&mut self, progress: Progress) {
        *self = Share { messages: 0, bytes: 0, before: self.last, last: progress.sent };
    }

    /// Has the peer taken all but less than twice the amount of a mark?
    fn is_small(&self, progress: Progress) -> bool {
        self.before <= progress.read
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
            None if self.queue.is_empty() => *self.kernel.get_or_insert(0) += more,
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
        while self.kernel == Some(0)
            && self.queue.is_empty()
            && let Some(next) = self.later.pop_front()
        {
            self.kernel = Some(next.kernel);
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
    pub(in crate::shard::pipe) fn may_overflow(&mut self, carrier: &impl Carrier) -> bool {
        // A window that looks full is not the link's doing. Unread bytes of a bulk transfer keep its chunks.
        let few = self.crowded && self.unread_there(carrier) < 2 * BYTES as u64;
        let outgoing = &self.outgoing;
        few && self.bond == Bond::Confirmed
            && outgoing.switched
            && !outgoing.stopped
            && !outgoing.shut
            && !self.dead
            && self.window_left() > 0
            && outgoing.share.is_small(carrier.progress(self.link))
    }

    /// Tells the reader of bytes that went by the kernel, unless it knows.
    pub(super) fn tell_overflow(&mut self, carrier: &mut impl Carrier) {
        let outgoing = &self.outgoing;
        if outgoing.kernel == outgoing.kernel_told || !outgoing.switched || outgoing.stopped {
            return;
        }
        let Some(to) = self.peer else { return };
        let kernel = outgoing.kernel;
        if carrier.tell(self.link, Message::Switch { to, kernel, shut: false }) {
            self.outgoing.kernel_told = kernel;
        }
    }

    pub(super) fn tell_fin(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.peer else { return };
        let kernel = self.outgoing.kernel;
        self.owed.fin = !carrier.tell(self.link, Message::Fin { to, kernel });
        if !self.owed.fin {
            self.outgoing.kernel_told = kernel;
        }
    }

    /// May the kernel's socket have bytes that the peer has not told of?
    pub fn may_find_bytes(&self) -> bool {
        let incoming = &self.incoming;
        self.bond == Bond::Confirmed
            && incoming.kernel.is_some()
            && !incoming.stopped
            && !incoming.returned
            && !self.dead
    }

    /// The kernel's bytes come first until the peer says where they end: it may have said so already, and have
    /// sent more of them behind bytes of the pipe. What the kernel's socket has may be read after all that came
    /// by the link has been taken.
    pub fn may_have_switched(&self) -> bool {
        self.bond != Bond::Over && self.incoming.kernel.is_none()
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
        self.bond == Bond::Confirmed
            && self.owner.is_some()
            && self.outgoing.stopped
            && self.incoming.stopped
            && !self.incoming.returned
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
        let incoming = &mut self.incoming;
        if incoming.later.is_empty() {
            return;
        }
        if let Some(kernel) = incoming.kernel.take_if(|kernel| *kernel > 0) {
            let queue = core::mem::take(&mut incoming.queue);
            incoming.later_len += queue.len();
            incoming.later.push_front(Part { kernel, queue });
        }
        incoming.kernel.get_or_insert(0);
        let mut buffer = Vec::new();
        while let Some(next) = incoming.later.front_mut() {
            while next.kernel > 0 {
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
