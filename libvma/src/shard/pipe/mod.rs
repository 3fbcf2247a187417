//! Pipes: the bytes of TCP connections between two processes of one host.
//!
//! The kernel makes the connection, between the shadows; then the bytes go through a link. Each
//! direction is a sequence of the kernel's bytes, then the pipe's, and the kernel's again when the
//! pipe is given up; every change comes at an exact position, so that no byte is lost or overtakes.
//!
//! 1. The client *offers* its end before it connects. Until it hears more its bytes go by the kernel.
//! 2. The server, when it has accepted, finds the offer and *confirms*. All its bytes go by the pipe.
//! 3. When the server's process uses the connection itself (it may as well leave it to a child), the
//!    client *switches*: so many of its bytes went by the kernel, the rest comes by the pipe.
//! 4. If the link is full because the peer does not poll, a connection that has little in it goes on
//!    *by the kernel* for a while. Every message with bytes says how many of them came before it.
//! 5. To *give the pipe up* both ends stop, return what they have not read, and send what is returned
//!    to them by the kernel, before all else. From then on the kernel's sockets are all there is.
//!
//! # States and messages
//!
//! `end::state` has the states and their transitions. A message that a state does not expect is a violation:
//! both directions are over (RST, as for a peer that died). A message that finds no room in the link is `due`, and
//! said with the next room; each message has its place in the order of the bytes.
//!
//! The connection:
//!
//! | state | next | by |
//! |---|---|---|
//! | Apart | Offered | client: there is a link, OFFER is said |
//! | | Confirmed | server: it finds the offer, or the one that it expects comes; CONFIRM is said |
//! | | Over | given up, or closed |
//! | Offered | Confirmed | CONFIRM |
//! | | Withdrawn | given up, or not taken for a second; WITHDRAW is said |
//! | Withdrawn | Over | WITHDRAWN |
//! | | Confirmed | CONFIRM that crossed WITHDRAW; if the connection leaves, it stops at once |
//! | Confirmed | Over | STOPPED was said and came; CLOSED; WITHDRAW (closed) of the client; the link is cut |
//!
//! The direction out (`Sending`):
//!
//! | state | bytes go | next | by |
//! |---|---|---|---|
//! | Early | by the kernel | Pipe | server: CONFIRM is said, if not late; else the peer uses the pipe (DATA, CREDIT) or this end is late: SWITCH is said |
//! | | | Stopped | given up, or STOP; STOP is said |
//! | Pipe | by the pipe; by the kernel while the link is full, which the next DATA, SWITCH or FIN tells | Stopped | as before |
//! | Stopped | nowhere, by the kernel if none went by the pipe | Reverted | STOPPED; before it RETURN fills the backlog |
//! | Reverted | by the kernel, behind the backlog | | |
//!
//! The direction in (`Receiving`):
//!
//! | state | bytes come | next | by |
//! |---|---|---|---|
//! | Early | by the kernel | Pipe, Ended | SWITCH (shut); client: CONFIRM that is not late |
//! | | | Returning | STOP: there is nothing to return |
//! | Pipe | by the pipe: DATA; by the kernel in between | Ended | FIN |
//! | Pipe, Ended | | Stopped | STOP; this end stops, too |
//! | Stopped | what came by the pipe | Returning | STOP is said here, too, the kernel's half is armed, and bytes of the kernel's between those of the queue are read |
//! | Returning | by the kernel | Returned | RETURN with all that was unread, and STOPPED are said |
//! | Returned | by the kernel | | |
//! | Severed | what is left in the queue, then by the kernel | | |
//!
//! When the connection is over, `Receiving` goes from Early, Pipe or Stopped to Severed, and `Sending` from any state
//! to Reverted.
//!
//! The peer's process may be killed in every state. The bytes that it sent before are in the link, or in the
//! kernel, and are read; then the kernel's FIN or RST ends the connection. The survivor's connection is reset
//!
//! - if bytes that it sent by the pipe are unread (the note in the link's memory says how many are not, or CLOSED does),
//! - if bytes that it has given back have not come by the kernel, or it had begun to give back,
//! - by the kernel: bytes in the dead peer's socket were unread, or its socket was *armed* (SO_LINGER of 0), as it
//!   is from before bytes come back until the kernel has them.
//!
//! `tests::kills` is the model of that. As on Linux, unread bytes are EPIPE to their sender if the peer had ended before
//! (FIN, CLOSED), and no error at all if both had: `end::fault`.
//!
//! `message` is what they say, `end` one end, `queue` what is unread, `table` all ends of a process,
//! `call` what sockets ask. Nothing here knows sockets or makes system calls; reading and writing
//! what is the kernel's is `socket::stream::local`'s.

mod call;
mod end;
mod message;
mod queue;
mod table;

#[cfg(test)]
mod tests;

use libvma_engine::frame::Frame;

pub use self::end::{LARGEST_WINDOW, Pipe, Turn, Way};
pub use self::message::Offer;
pub use self::table::Pipes;

use self::message::Message;
use super::{SocketId, State, clock};
use crate::device::Received;
use crate::device::shm::{self, LinkId, Rank};

/// The kernel's half of a connection whose socket is closed while the peer has not read everything. It
/// is closed when it is dropped.
pub trait Leftover: Send {
    /// Sends bytes; how many, None if the connection never takes any more.
    fn write(&mut self, bytes: &[u8]) -> Option<usize>;

    /// When the kernel closes it, whatever the reason, it ends the connection by RST, or by FIN.
    fn arm(&mut self, resets: bool);

    /// Ends the connection by RST.
    fn reset(&mut self);

    /// Ends the connection by FIN. If bytes came by it, which nobody reads, closing it adds an RST.
    fn shut(&mut self);

    /// Throws away what came by it: with the RST, what the kernel has not delivered yet would be lost.
    fn discard(&mut self);

    fn descriptor(&self) -> i32;
}

/// What pipes need of the ring.
pub(super) trait Carrier {
    /// Sends a message of `len` bytes, which `fill` writes piece by piece. False: the link is full.
    fn send(
        &mut self,
        link: LinkId,
        kind: u8,
        header: [u64; 3],
        len: usize,
        rank: Rank,
        fill: impl FnMut(&mut [u8]),
    ) -> bool;

    /// How many bytes a message could carry now.
    fn room(&mut self, link: LinkId) -> usize;

    fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]>;

    fn release(&mut self, frame: Frame);

    fn is_short_of_frames(&self) -> bool;

    /// Leaves a word that the peer finds even if this process is dead by then.
    fn set_note(&mut self, link: LinkId, number: u32, value: u64);

    fn note_of_peer(&self, link: LinkId, number: u32) -> Option<u64>;

    /// Any thread may read the connection of this number, which was another one's before.
    fn forget_reader(&mut self, link: LinkId, number: u32);

    /// Sends a message without bytes. False: the link is full.
    fn tell(&mut self, link: LinkId, message: Message) -> bool {
        let (kind, header) = message.encode();
        self.send(link, kind, header, 0, Rank::Urgent, |_| {})
    }
}

impl Carrier for shm::Ring {
    #[inline]
    fn send(
        &mut self,
        link: LinkId,
        kind: u8,
        header: [u64; 3],
        len: usize,
        rank: Rank,
        fill: impl FnMut(&mut [u8]),
    ) -> bool {
        let sent = self.send_message(link, kind, header, len, rank, fill).is_ok();
        // All that is not urgent is for the reader of one connection.
        if sent
            && rank != Rank::Urgent
            && let Some(reader) = header.first().and_then(|name| message::Name::from_bits(*name))
        {
            self.address(link, reader.index);
        }
        sent
    }

    #[inline]
    fn room(&mut self, link: LinkId) -> usize {
        shm::Ring::room(self, link)
    }

    #[inline]
    fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]> {
        shm::Ring::pieces(self, frame)
    }

    #[inline]
    fn release(&mut self, frame: Frame) {
        shm::Ring::release(self, frame);
    }

    #[inline]
    fn set_note(&mut self, link: LinkId, number: u32, value: u64) {
        shm::Ring::set_note(self, link, number as usize, value);
    }

    fn forget_reader(&mut self, link: LinkId, number: u32) {
        // Nothing was sent to the new one yet.
        let _ = self.set_reader(link, number, shm::Reader::Unknown);
    }

    fn note_of_peer(&self, link: LinkId, number: u32) -> Option<u64> {
        shm::Ring::note_of_peer(self, link, number as usize)
    }

    #[inline]
    fn is_short_of_frames(&self) -> bool {
        shm::Ring::is_short_of_frames(self)
    }
}

impl<S> State<S> {
    #[inline]
    fn pipes_and_ring(&mut self) -> Option<(&mut Pipes, &mut shm::Ring)> {
        let id = self.local.ring?;
        match self.rings.get_mut(id.index())? {
            crate::device::Ring::Shm(ring) => Some((&mut self.pipes, ring)),
            crate::device::Ring::Xdp(_) => None,
        }
    }

    /// A message came by a link.
    #[inline]
    pub(in crate::shard) fn input_message(
        &mut self,
        link: LinkId,
        kind: u8,
        header: [u64; 3],
        payload: Option<Received>,
    ) {
        let Some((pipes, ring)) = self.pipes_and_ring() else { return };
        let Some(message) = Message::decode(kind, header) else {
            if let Some(received) = payload {
                ring.release(received.frame);
            }
            return;
        };
        let told = pipes.input(ring, link, message, payload);
        if ring.unsent() > 0 {
            ring.kick();
        }
        if let Some((socket, events)) = told {
            self.announce_news(socket, events);
        }
    }

    /// The link has room again.
    pub(in crate::shard) fn relief(&mut self, link: LinkId) {
        let Some((pipes, ring)) = self.pipes_and_ring() else { return };
        let told = pipes.relieved(ring, link);
        ring.kick();
        for (socket, events) in told {
            self.announce_news(socket, events);
        }
    }

    /// The link is over; what came by it has been taken.
    pub(in crate::shard) fn pipe_link_gone(&mut self, link: LinkId) {
        let Some((pipes, ring)) = self.pipes_and_ring() else { return };
        for (socket, events) in pipes.cut(ring, link) {
            self.announce_news(socket, events);
        }
    }
}
