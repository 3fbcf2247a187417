//! What sockets ask of their pipes.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddrV4;

use super::message::Name;
use super::{Leftover, Offer, Pipe, SocketId, State, clock};
use crate::device::shm::{self, LinkId};
use crate::sys::user::Copied;

/// The kernel's half of a connection of a process that ends, which its peer needs.
pub struct LeftHalf {
    index: u32,
    pub link: LinkId,
    /// The peer's number of the connection.
    pub connection: u64,
    pub descriptor: i32,
}

impl<S> State<S> {
    /// The socket's pipe.
    #[inline]
    pub fn pipe(&mut self, id: SocketId) -> Option<&mut Pipe> {
        let index = self.socket(id)?.0.pipe?;
        self.pipes.get(index)
    }

    /// Does something to the socket's pipe, and sends what follows.
    #[inline]
    fn with_pipe<T>(
        &mut self,
        id: SocketId,
        call: impl FnOnce(&mut Pipe, &mut shm::Ring) -> T,
    ) -> Option<T> {
        let index = self.socket(id)?.0.pipe?;
        let (pipes, ring) = self.pipes_and_ring()?;
        let result = call(pipes.get(index)?, ring);
        if ring.unsent() > 0 {
            ring.kick();
        }
        Some(result)
    }

    /// Offers an end to who is at the other end of a link: the socket has a pipe from now on. False
    /// if the link is full.
    pub fn offer_pipe(&mut self, id: SocketId, link: LinkId, offer: Offer) -> bool {
        self.seek_pipe(id, offer)
            && (self.offer_late(id, link, offer) || {
                self.close_pipe(id);
                false
            })
    }

    /// The socket has a pipe from now on, and offers it when there is a link ([`State::offer_late`]).
    pub fn seek_pipe(&mut self, id: SocketId, offer: Offer) -> bool {
        let now = clock::now().as_nanos();
        if self.local.ring.is_none() || self.socket(id).is_none() {
            return false;
        }
        let (index, pipe) = self.pipes.add(id, u64::from(offer.limit), now);
        pipe.destination = Some(offer.destination);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.pipe = Some(index);
        }
        true
    }

    /// There is a link now. False if it is full, or the pipe is not apart any more.
    pub fn offer_late(&mut self, id: SocketId, link: LinkId, offer: Offer) -> bool {
        let now = clock::now().as_nanos();
        let offered =
            self.with_pipe(id, |pipe, ring| pipe.is_apart() && pipe.offer(ring, link, offer, now));
        offered.unwrap_or(false)
    }

    pub fn has_offers(&self) -> bool {
        self.pipes.has_offers()
    }

    /// Has the client whose socket has this inode offered a pipe for a connection to there?
    pub fn has_offer(&self, client: u32, local: SocketAddrV4) -> bool {
        self.pipes.has_offer(client, local)
    }

    /// A connection was accepted: if its client, whose socket has this inode, has offered a pipe, this socket
    /// gets its other end.
    pub fn accept_pipe(
        &mut self,
        client: u32,
        local: SocketAddrV4,
        limit: u64,
        socket: impl FnOnce() -> S,
    ) -> Option<SocketId> {
        let (link, from, offer) = self.pipes.take_offer(client, local)?;
        let id = self.attach(socket(), 0);
        let now = clock::now().as_nanos();
        let index = match self.pipes_and_ring() {
            Some((pipes, ring)) => {
                let (index, pipe) = pipes.add(id, limit, now);
                let confirmed = pipe.confirm(ring, link, from, offer.limit);
                ring.kick();
                if !confirmed {
                    pipes.remove(index);
                }
                confirmed.then_some(index)
            }
            None => None,
        };
        if index.is_none() {
            self.detach(id);
            return None;
        }
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.pipe = index;
        }
        Some(id)
    }

    /// A connection was accepted whose client is expected to offer a pipe: this socket gets the other end, and
    /// is the kernel's until then.
    pub fn expect_offer(
        &mut self,
        client: u32,
        local: SocketAddrV4,
        limit: u64,
        socket: S,
    ) -> Option<SocketId> {
        self.local.ring?;
        let id = self.attach(socket, 0);
        let (index, _) = self.pipes.add(id, limit, clock::now().as_nanos());
        self.pipes.expect_offer(index, client, local);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.pipe = Some(index);
        }
        Some(id)
    }

    /// Copies what is unread into the buffers, of which `filled` bytes are in use, and takes it off
    /// the queue. To `peek` from a byte of the queue on leaves it there.
    #[inline]
    pub fn pipe_read(
        &mut self,
        id: SocketId,
        out: &mut [IoSliceMut<'_>],
        filled: usize,
        peek: Option<usize>,
    ) -> usize {
        let read = self.with_pipe(id, |pipe, ring| {
            let count = pipe.copy_out(ring, peek.unwrap_or(0), out, filled);
            if peek.is_none() {
                pipe.consume(ring, count);
            }
            count
        });
        read.unwrap_or(0)
    }

    /// Throws bytes away.
    pub fn pipe_discard(&mut self, id: SocketId, count: usize) {
        self.with_pipe(id, |pipe, ring| pipe.consume(ring, count));
    }

    /// This process uses the connection.
    #[inline]
    pub fn use_pipe(&mut self, id: SocketId) {
        self.with_pipe(id, |pipe, ring| pipe.use_it(ring));
    }

    /// Sends bytes of the pieces behind the first `skip`, of `total` in all; returns how many found
    /// room, and whether memory behind them is not there.
    #[inline]
    pub fn pipe_write(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        skip: usize,
        total: usize,
    ) -> Copied {
        let written = self
            .with_pipe(id, |pipe, ring| pipe.write(ring, data, skip, total.saturating_sub(skip)));
        written.unwrap_or_default()
    }

    /// The same of bytes that the program may send though the link is full: it was promised room.
    #[cold]
    pub fn pipe_write_promised(
        &mut self,
        id: SocketId,
        data: &[IoSlice<'_>],
        skip: usize,
        total: usize,
    ) -> Copied {
        let written = self.with_pipe(id, |pipe, ring| {
            pipe.write_promised(ring, data, skip, total.saturating_sub(skip))
        });
        written.unwrap_or_default()
    }

    /// How many bytes of the socket's find room now, in one message.
    pub fn pipe_room(&mut self, id: SocketId) -> usize {
        self.with_pipe(id, |pipe, ring| pipe.room(ring)).unwrap_or(0)
    }

    /// The link has no room: may the socket's next bytes go by the kernel?
    #[cold]
    pub fn may_pipe_overflow(&mut self, id: SocketId) -> bool {
        let now = clock::now().as_nanos();
        self.with_pipe(id, |pipe, ring| pipe.may_overflow(ring, now)).unwrap_or(false)
    }

    /// The program sends no more.
    pub fn shut_pipe(&mut self, id: SocketId) {
        self.with_pipe(id, |pipe, ring| pipe.shut(ring));
    }

    /// How many bytes may be unread.
    pub fn limit_pipe(&mut self, id: SocketId, limit: u64) {
        self.with_pipe(id, |pipe, ring| pipe.set_limit(ring, limit));
    }

    /// Begins to give the connection to the kernel, or takes an offer back.
    pub fn stop_pipe(&mut self, id: SocketId) {
        let now = clock::now().as_nanos();
        self.with_pipe(id, |pipe, ring| pipe.leave(ring, now));
    }

    /// Takes back an offer that nobody has taken; a pipe that is apart is over.
    pub fn withdraw_pipe(&mut self, id: SocketId) {
        let now = clock::now().as_nanos();
        self.with_pipe(id, |pipe, ring| pipe.withdraw(ring, now));
    }

    /// Goes on with what waited for something of the socket's.
    pub fn settle_pipe(&mut self, id: SocketId) {
        self.with_pipe(id, |pipe, ring| pipe.settle(ring));
    }

    /// Before bytes come back: the kernel ends the connection by RST if nobody sends them on.
    pub fn arm_pipe(&mut self, id: SocketId) {
        self.with_pipe(id, |pipe, ring| {
            pipe.arm(true);
            pipe.settle(ring);
        });
    }

    /// Has something come back that is to go by the kernel, or is about to? Asking settles it.
    pub fn take_returned(&mut self) -> bool {
        self.pipes.take_returned()
    }

    /// Is there something that the peer has not read yet, or may give back?
    pub fn pipe_must_remain(&mut self, id: SocketId) -> bool {
        /// What remains is dear (a descriptor).
        const MOST: usize = 200;
        let needed = self.with_pipe(id, |pipe, ring| pipe.must_remain(ring)).unwrap_or(false);
        needed && self.pipes.remaining() < MOST
    }

    /// The socket is closed; its pipe goes on until the peer has everything.
    pub fn leave_pipe(&mut self, id: SocketId, leftover: Box<dyn Leftover>) {
        self.keep_carried(id);
        self.with_pipe(id, |pipe, ring| pipe.remain(ring, leftover));
        self.wind_up_pipes();
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.pipe = None;
        }
    }

    /// The process ends: which of its halves the peers need. `descriptor` tells the one of a socket's, unless it is to be
    /// kept, `is_read` whether nothing waits in one.
    pub fn halves_to_leave(
        &mut self,
        descriptor: impl Fn(&S) -> Option<i32>,
        is_read: impl Fn(i32) -> bool,
    ) -> Vec<LeftHalf> {
        let mut halves = Vec::new();
        for index in 0..self.pipes.len() {
            let Some(pipe) = self.pipes.get(index) else { continue };
            let (owner, remains) = (pipe.owner(), pipe.remains());
            let half = match owner {
                Some(id) => self.socket(id).and_then(|(_, socket)| descriptor(socket)),
                None => remains,
            };
            let Some(descriptor) = half.filter(|half| is_read(*half)) else { continue };
            let Some((pipes, ring)) = self.pipes_and_ring() else { break };
            let leaves = pipes.get(index).and_then(|pipe| pipe.leave_half(ring));
            if let Some((link, to)) = leaves {
                halves.push(LeftHalf { index, link, connection: to.to_bits(), descriptor });
            }
            ring.kick();
        }
        halves
    }

    /// A peer has got a half, or cannot have it. The pipe of a closed socket is over then.
    pub fn half_is_left(&mut self, half: &LeftHalf, left: bool) {
        let Some((pipes, ring)) = self.pipes_and_ring() else { return };
        let Some(pipe) = pipes.get(half.index) else { return };
        if !left {
            return pipe.keep_half();
        }
        if pipe.has_remains() {
            // If the link has no room to say it, its end does.
            pipe.say_closed(ring);
            pipes.remove(half.index);
            ring.kick();
        }
    }

    /// The socket whose pipe the peer at the end of the link knows by this number.
    pub fn pipe_owner(&mut self, link: LinkId, connection: u64) -> Option<SocketId> {
        let name = Name::from_bits(connection)?;
        let pipe = self.pipes.get(name.index)?;
        pipe.owner().filter(|_| pipe.is_called(link, name))
    }

    /// The peer has ended, and left its half.
    pub fn take_peers_half(&mut self, id: SocketId, half: Box<dyn Leftover>) {
        self.with_pipe(id, |pipe, _| pipe.take_half(half));
    }

    /// The connection is handed on, and the peer has ended: its half takes what is unread, and the socket has no pipe any more.
    /// False if that is not possible.
    pub fn pour_pipe(&mut self, id: SocketId) -> bool {
        if !self.with_pipe(id, |pipe, ring| pipe.pour(ring)).unwrap_or(false) {
            return false;
        }
        self.keep_carried(id);
        self.wind_up_pipes();
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.pipe = None;
        }
        true
    }

    /// For the internal thread: pipes that outlive their sockets.
    pub fn wind_up_pipes(&mut self) {
        if let Some((pipes, ring)) = self.pipes_and_ring() {
            pipes.wind_up(ring);
            ring.kick();
        }
    }

    /// Do closed sockets have bytes that the kernel had no room for? The internal thread tries again
    /// soon, by [`State::wind_up_pipes`].
    pub fn has_pressing_pipes(&self) -> bool {
        self.pipes.is_pressing()
    }

    /// Does a peer give bytes back to a closed socket, or is about to, which the kernel has not taken yet?
    pub fn awaits_returns_to_closed(&mut self) -> bool {
        self.pipes.all().any(|pipe| pipe.has_remains() && pipe.has_bytes_on_their_way())
    }

    /// Can the program send by the pipe now?
    pub fn is_pipe_writable(&mut self, id: SocketId) -> bool {
        let writable = self.with_pipe(id, |pipe, ring| {
            pipe.look_at_link(ring);
            pipe.is_writable()
        });
        writable.unwrap_or(false)
    }

    /// The socket has no pipe any more.
    pub fn close_pipe(&mut self, id: SocketId) {
        self.keep_carried(id);
        let Some(index) = self.socket(id).and_then(|(endpoint, _)| endpoint.pipe.take()) else {
            return;
        };
        let Some((pipes, ring)) = self.pipes_and_ring() else { return };
        let Some(pipe) = pipes.get(index) else { return };
        let ended = pipe.close(ring);
        ring.kick();
        if ended {
            pipes.remove(index);
        }
    }

    /// Sockets whose pipe is over, or has waited for the other end for longer: the kernel's.
    pub fn idle_pipes(&mut self, offered_before: u64) -> Vec<SocketId> {
        let idle = |pipe: &mut Pipe| {
            let waits = pipe.is_offered() || pipe.is_apart();
            let late = waits && pipe.since < offered_before;
            pipe.owner().filter(|_| late || pipe.is_dissolved())
        };
        self.pipes.all().filter_map(idle).collect()
    }

    /// The peer is gone, though it did not say so.
    pub fn cut_pipe(&mut self, id: SocketId) {
        if let Some(events) = self.with_pipe(id, |pipe, ring| pipe.cut(ring)) {
            self.announce_news(id, events);
        }
    }

    /// All sockets with a pipe.
    pub fn pipe_owners(&mut self) -> Vec<SocketId> {
        self.pipes.all().filter_map(|pipe| pipe.owner()).collect()
    }

    pub fn has_pipes(&self) -> bool {
        !self.pipes.is_empty()
    }
}
