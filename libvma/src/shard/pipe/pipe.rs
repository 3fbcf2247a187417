//! One end of a pipe: where each direction stands, and what follows from a message.

use std::io::{IoSlice, IoSliceMut};

use super::message::{Message, Name};
use super::queue::Queue;
use super::{Carrier, SocketId};
use crate::device::Received;
use crate::device::shm::LinkId;
use crate::net::tcp::Events;

/// What a pipe holds unread at most, unless the program sets its buffers.
/// Half of what the link holds.
pub const LARGEST_WINDOW: u64 = 2 << 20;
/// No window is smaller.
const SMALLEST_WINDOW: u64 = 2048;
/// Bytes of one message; while the peer copies one out, the next is written.
const PORTION: usize = 32 * 1024;

/// Where the next byte to read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In the kernel's socket; at most so many come from there now.
    Kernel { most: u64 },
    /// In the pipe.
    Pipe,
    /// There is none: the peer has sent its last.
    End,
}

/// Where the next byte to send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kernel,
    Pipe,
    /// Nowhere now: the pipe is being given up.
    Nowhere,
    /// Nowhere any more: writing was shut down.
    Shut,
}

/// How far a client's offer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    Offered,
    /// The answer to the withdrawal is still to come.
    Withdrawn,
    Confirmed,
    /// There is no peer any more.
    Over,
}

/// What could not be said because the link was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    switch: bool,
    credit: bool,
    fin: bool,
    stop: bool,
    closed: bool,
}

/// What the peer sends.
struct Incoming {
    /// Bytes of the kernel's that come before the pipe's; None until the peer has said how many.
    kernel: Option<u64>,
    /// Those that were taken before it said.
    kernel_taken: u64,
    queue: Queue,
    /// Bytes read by the program, or given back.
    read: u64,
    credited: u64,
    limit: u64,
    /// The limit that the peer knows.
    told_limit: u64,
    largest_limit: u64,
    fin: bool,
    /// The peer sends nothing by the pipe any more.
    stopped: bool,
    /// What was unread is being given back, or has been: the rest comes by the kernel.
    returned: bool,
}

/// What the program sends.
struct Outgoing {
    /// All bytes go by the pipe from here on.
    switched: bool,
    kernel: u64,
    sent: u64,
    read_by_peer: u64,
    window: u64,
    shut: bool,
    /// The kernel knows that.
    end_told: bool,
    /// We send nothing by the pipe any more.
    stopped: bool,
    /// All that the peer had not read is in the backlog.
    complete: bool,
    /// Bytes that came back, which go by the kernel first.
    backlog: Vec<u8>,
    /// What of the backlog has gone.
    gone: usize,
}

pub struct Pipe {
    pub(super) link: LinkId,
    pub(super) owner: Option<SocketId>,
    own: Name,
    peer: Option<Name>,
    bond: Bond,
    incoming: Incoming,
    outgoing: Outgoing,
    owed: Owed,
    /// All that we had to return is returned.
    stopped_said: bool,
    /// Something was returned.
    gave: bool,
    /// A writer waits for room.
    wants_room: bool,
    /// The server: the client knows that this process uses the connection.
    used: bool,
    established: bool,
    /// The peer broke the rules, or died with bytes of ours unread: both directions are over.
    dead: bool,
    /// An error that the program has not been told of.
    reset: bool,
    /// When it was offered, or withdrawn, in nanoseconds.
    pub since: u64,
}

impl Pipe {
    pub(super) fn new(link: LinkId, owner: SocketId, own: Name, limit: u64, now: u64) -> Pipe {
        let limit = clamped(limit);
        Pipe {
            link,
            owner: Some(owner),
            own,
            peer: None,
            bond: Bond::Offered,
            incoming: Incoming {
                kernel: None,
                kernel_taken: 0,
                queue: Queue::default(),
                read: 0,
                credited: 0,
                limit,
                told_limit: limit,
                largest_limit: limit,
                fin: false,
                stopped: false,
                returned: false,
            },
            outgoing: Outgoing {
                switched: false,
                kernel: 0,
                sent: 0,
                read_by_peer: 0,
                window: 0,
                shut: false,
                end_told: false,
                stopped: false,
                complete: false,
                backlog: Vec::new(),
                gone: 0,
            },
            owed: Owed::default(),
            stopped_said: false,
            gave: false,
            wants_room: false,
            used: true,
            established: false,
            dead: false,
            reset: false,
            since: now,
        }
    }

    /// The server's end of an offer. False: the link is full, and there is no pipe.
    pub(super) fn confirm(&mut self, carrier: &mut impl Carrier, peer: Name, limit: u64) -> bool {
        let message = Message::Confirm { to: peer, from: self.own, limit: self.incoming.limit };
        if !carrier.tell(self.link, message) {
            return false;
        }
        self.peer = Some(peer);
        self.bond = Bond::Confirmed;
        self.outgoing.window = clamped(limit);
        self.outgoing.switched = true;
        self.used = false;
        self.established = true;
        true
    }

    #[inline]
    pub fn turn(&self) -> Turn {
        let incoming = &self.incoming;
        match incoming.kernel {
            None => return Turn::Kernel { most: u64::MAX },
            Some(0) => {}
            Some(most) => return Turn::Kernel { most },
        }
        if !incoming.queue.is_empty() && !incoming.returned {
            return Turn::Pipe;
        }
        if self.dead {
            return Turn::End;
        }
        if incoming.returned || self.bond == Bond::Over {
            return Turn::Kernel { most: u64::MAX };
        }
        if incoming.fin { Turn::End } else { Turn::Pipe }
    }

    #[inline]
    pub fn way(&self) -> Way {
        let outgoing = &self.outgoing;
        if outgoing.shut || self.dead {
            Way::Shut
        } else if self.bond == Bond::Over || outgoing.complete {
            if outgoing.backlog.is_empty() { Way::Kernel } else { Way::Nowhere }
        } else if outgoing.stopped {
            if outgoing.switched { Way::Nowhere } else { Way::Kernel }
        } else if outgoing.switched {
            Way::Pipe
        } else {
            Way::Kernel
        }
    }

    /// Is the client still waiting for the other side to say that it uses the pipe?
    pub fn is_pending(&self) -> bool {
        !self.outgoing.switched && self.bond != Bond::Over
    }

    pub fn is_offered(&self) -> bool {
        matches!(self.bond, Bond::Offered | Bond::Withdrawn)
    }

    /// Bytes that can be read from the pipe when it is its turn.
    #[inline]
    pub fn readable(&self) -> usize {
        if self.incoming.returned { 0 } else { self.incoming.queue.len() }
    }

    /// Has the peer said that it sends no more?
    pub fn is_finished(&self) -> bool {
        self.incoming.fin
    }

    pub fn is_shut(&self) -> bool {
        self.outgoing.shut
    }

    /// From here on everything is the kernel's to say.
    pub fn is_over(&self) -> bool {
        self.bond == Bond::Over
    }

    /// The client's connection stands: its handshake has ended well.
    pub fn is_established(&self) -> bool {
        self.established
    }

    pub fn set_established(&mut self) {
        self.established = true;
    }

    /// Would an end that the kernel tells of be the peer's death? One that lives tells of its end by the
    /// pipe.
    #[inline]
    pub fn would_tell_its_end(&self) -> bool {
        let incoming = &self.incoming;
        let by_pipe = incoming.kernel == Some(0) && !incoming.fin && !incoming.stopped;
        self.bond == Bond::Confirmed && by_pipe
    }

    /// Did the peer die with bytes of ours unread? Told once.
    pub fn take_reset(&mut self) -> bool {
        core::mem::take(&mut self.reset)
    }

    /// The kernel has told of a reset, and does so once.
    pub fn note_reset(&mut self) {
        self.reset = true;
    }

    /// Does the kernel not know yet that the program sends no more? To be asked when it is shut.
    pub fn take_untold_end(&mut self) -> bool {
        !core::mem::replace(&mut self.outgoing.end_told, true)
    }

    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// Bytes that are to go by the kernel before all others.
    pub fn backlog(&self) -> &[u8] {
        let outgoing = &self.outgoing;
        let ready = outgoing.complete || self.bond == Bond::Over;
        outgoing.backlog.get(outgoing.gone..).filter(|_| ready).unwrap_or_default()
    }

    /// The kernel took so many bytes of the backlog.
    pub fn backlog_gone(&mut self, count: usize) {
        let outgoing = &mut self.outgoing;
        outgoing.gone += count;
        if outgoing.gone >= outgoing.backlog.len() {
            outgoing.backlog = Vec::new();
            outgoing.gone = 0;
        }
    }

    /// Is the kernel's socket all there is to the connection?
    pub fn is_dissolved(&self) -> bool {
        self.bond == Bond::Over
            && self.readable() == 0
            && self.outgoing.backlog.is_empty()
            && !self.incoming.fin
            && !self.dead
            && !self.reset
    }

    /// The program read bytes from the kernel.
    pub fn kernel_read(&mut self, count: u64) {
        match &mut self.incoming.kernel {
            None => self.incoming.kernel_taken += count,
            Some(left) => *left = left.saturating_sub(count),
        }
    }

    /// The program sent bytes by the kernel.
    pub fn kernel_sent(&mut self, count: u64) {
        self.outgoing.kernel += count;
    }

    #[inline]
    pub(super) fn copy_out(
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
    pub(super) fn consume(&mut self, carrier: &mut impl Carrier, count: usize) {
        let incoming = &mut self.incoming;
        incoming.queue.consume(carrier, count);
        incoming.read += count as u64;
        carrier.set_note(self.link, self.own.index, incoming.read);
        // The answer carries it; without one it is said now and then.
        if incoming.read - incoming.credited >= incoming.limit / 4 {
            self.credit(carrier);
        }
    }

    /// The program reads: the client may use the pipe.
    #[inline]
    pub(super) fn use_it(&mut self, carrier: &mut impl Carrier) {
        if !self.used {
            self.used = true;
            self.credit(carrier);
        }
    }

    #[cold]
    fn credit(&mut self, carrier: &mut impl Carrier) {
        let (Some(to), Bond::Confirmed) = (self.peer, self.bond) else { return };
        let incoming = &mut self.incoming;
        let message = Message::Credit { to, read: incoming.read, limit: incoming.limit };
        self.owed.credit = !carrier.tell(self.link, message);
        if !self.owed.credit {
            incoming.credited = incoming.read;
            incoming.told_limit = incoming.limit;
        }
    }

    /// How much the program may have unread from now on.
    pub(super) fn set_limit(&mut self, carrier: &mut impl Carrier, limit: u64) {
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
    fn window_left(&self) -> u64 {
        let outgoing = &self.outgoing;
        outgoing.window.saturating_sub(outgoing.sent - outgoing.read_by_peer)
    }

    /// Would Linux call the socket writable (a third of the buffer is free)?
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.window_left() > self.outgoing.window / 3
    }

    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Bytes that the peer has not read yet, as far as it has said.
    pub fn unread_by_peer(&self) -> u64 {
        self.outgoing.sent - self.outgoing.read_by_peer
    }

    /// Sends bytes of the pieces behind the first `skip`; returns how many found room.
    #[inline]
    pub(super) fn write(
        &mut self,
        carrier: &mut impl Carrier,
        data: &[IoSlice<'_>],
        mut skip: usize,
        total: usize,
    ) -> usize {
        let Some(to) = self.peer else { return 0 };
        let mut written = 0;
        let mut at = 0;
        while written < total {
            let mut count = PORTION.min(self.free()).min(total - written);
            if count > SURE {
                count = count.min(carrier.room(self.link));
            }
            if count == 0 {
                break;
            }
            let incoming = &mut self.incoming;
            let (kind, header) = Message::Data { to, read: incoming.read }.encode();
            let sent = carrier.send(self.link, kind, header, count, false, |mut room| {
                while !room.is_empty() {
                    let Some(piece) = data.get(at) else { return };
                    let rest = piece.get(skip..).unwrap_or_default();
                    let here = rest.len().min(room.len());
                    let (target, left) = room.split_at_mut(here);
                    target.copy_from_slice(rest.get(..here).unwrap_or_default());
                    room = left;
                    skip += here;
                    if skip >= piece.len() {
                        skip -= piece.len();
                        at += 1;
                    }
                }
            });
            if !sent {
                break;
            }
            incoming.credited = incoming.read;
            self.used = true;
            self.outgoing.sent += count as u64;
            written += count;
        }
        self.wants_room |= written < total;
        written
    }

    /// The program sends no more.
    pub(super) fn shut(&mut self, carrier: &mut impl Carrier) {
        self.outgoing.shut = true;
        if let (Some(to), Bond::Confirmed) = (self.peer, self.bond)
            && self.outgoing.switched
            && !self.outgoing.stopped
        {
            self.owed.fin = !carrier.tell(self.link, Message::Fin { to });
        }
    }

    /// Is the end of what the program sends the kernel's to tell? (Else the peer has it by the pipe.)
    pub fn is_end_the_kernels(&self) -> bool {
        !self.outgoing.switched || self.bond == Bond::Over || self.outgoing.complete
    }

    /// Begins to give the connection to the kernel.
    pub(super) fn stop(&mut self, carrier: &mut impl Carrier) {
        if self.bond == Bond::Confirmed && !self.outgoing.stopped {
            self.outgoing.stopped = true;
            self.owed.stop = true;
            self.settle(carrier);
        }
    }

    /// Takes a client's offer back. True if nobody has it any more.
    pub(super) fn withdraw(&mut self, carrier: &mut impl Carrier, now: u64) -> bool {
        if self.is_offered() {
            self.bond = Bond::Withdrawn;
            self.since = now;
            carrier.tell(self.link, Message::Withdraw { from: self.own, closed: false });
        }
        self.bond == Bond::Over
    }

    /// The socket is closed. False: it is not said yet, the pipe stays until it is.
    pub(super) fn close(&mut self, carrier: &mut impl Carrier) -> bool {
        self.owner = None;
        self.incoming.queue.clear(carrier);
        if self.bond == Bond::Over {
            return true;
        }
        self.owed.closed = true;
        self.settle(carrier);
        !self.owed.closed
    }

    /// Is it the end of this peer's?
    pub(super) fn is_with(&self, link: LinkId, peer: Name) -> bool {
        self.link == link && self.peer == Some(peer)
    }

    /// The link is over: what it brought can be read, the rest is the kernel's.
    pub(super) fn cut(&mut self, carrier: &impl Carrier) -> Events {
        if self.bond == Bond::Over {
            return Events::NONE;
        }
        // Bytes that nobody will read. The peer has noted what it did read.
        let noted = self.peer.and_then(|peer| carrier.note_of_peer(self.link, peer.index));
        let outgoing = &mut self.outgoing;
        let noted = noted.filter(|noted| *noted <= outgoing.sent).unwrap_or(0);
        outgoing.read_by_peer = outgoing.read_by_peer.max(noted);
        self.dead = self.outgoing.sent > self.outgoing.read_by_peer && !self.outgoing.complete
            || self.gave
            || self.incoming.returned && !self.incoming.queue.is_empty();
        self.reset |= self.dead;
        self.end();
        Events::CLOSED
    }

    /// The client is gone before it knew of this end.
    pub(super) fn leave_alone(&mut self) {
        self.end();
    }

    /// Is the connection over, though the kernel does not know?
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Are both directions over, though the kernel does not know?
    pub fn has_ended(&self) -> bool {
        self.dead || self.outgoing.shut && self.incoming.fin
    }

    /// Is there something that could not be said?
    pub(super) fn owes(&self) -> bool {
        self.owed != Owed::default()
    }

    fn end(&mut self) {
        self.bond = Bond::Over;
        self.peer = None;
        self.owed = Owed::default();
        self.incoming.kernel.get_or_insert(0);
    }

    /// Says what is owed, and goes on with what waits for room on the link. What is said first comes
    /// first here.
    pub(super) fn settle(&mut self, carrier: &mut impl Carrier) {
        if self.is_offered() && self.owed.closed {
            let message = Message::Withdraw { from: self.own, closed: true };
            self.owed.closed = !carrier.tell(self.link, message);
        }
        let Some(to) = self.peer else { return };
        if self.owed.switch {
            self.switch(carrier);
        }
        if self.owed.credit {
            self.credit(carrier);
        }
        if self.owed.fin && !self.outgoing.stopped {
            self.owed.fin = !carrier.tell(self.link, Message::Fin { to });
        }
        if self.owed.stop {
            self.owed.stop = !carrier.tell(self.link, Message::Stop { to });
        }
        if self.owed.closed && !self.owed.fin {
            self.owed.closed = !carrier.tell(self.link, Message::Closed { to });
        }
        self.give_back(carrier);
    }

    #[cold]
    fn switch(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.peer else { return };
        if self.outgoing.switched || self.outgoing.stopped {
            self.owed.switch = false;
            return;
        }
        let message = Message::Switch { to, kernel: self.outgoing.kernel };
        self.owed.switch = !carrier.tell(self.link, message);
        self.outgoing.switched = !self.owed.switch;
        if self.outgoing.switched && self.outgoing.shut {
            self.owed.fin = !carrier.tell(self.link, Message::Fin { to });
        }
    }

    /// Both have stopped: returns what was not read.
    fn give_back(&mut self, carrier: &mut impl Carrier) {
        let Some(to) = self.peer else { return };
        let ready = self.outgoing.stopped && !self.owed.stop && self.incoming.stopped;
        if !ready || self.stopped_said {
            return;
        }
        self.incoming.returned = true;
        self.incoming.kernel.get_or_insert(0);
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
            let sent = carrier.send(self.link, kind, header, count, true, |room| {
                let here = rest.len().min(room.len());
                let (now, later) = rest.split_at(here);
                room.split_at_mut(here).0.copy_from_slice(now);
                rest = later;
            });
            if !sent {
                return;
            }
            queue.consume(carrier, count);
            self.gave = true;
        }
        self.stopped_said = carrier.tell(self.link, Message::Stopped { to });
        if self.stopped_said && self.outgoing.complete {
            self.end();
        }
    }

    /// Takes a message to this pipe. What happened to its socket; an error: the peer is not to be
    /// believed.
    #[inline]
    pub(super) fn input(
        &mut self,
        carrier: &mut impl Carrier,
        message: Message,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        if let Message::Data { read, .. } = message {
            return self.data(carrier, read, payload);
        }
        if let Message::Return { .. } = message {
            return self.take_back(carrier, payload);
        }
        if let Some(received) = payload {
            carrier.release(received.frame);
        }
        match message {
            Message::Credit { read, limit, .. } => self.credited(carrier, read, limit),
            Message::Confirm { from, limit, .. } => self.confirmed(carrier, from, limit),
            Message::Withdrawn { .. } => {
                if self.bond != Bond::Withdrawn {
                    return Ok(Events::NONE);
                }
                self.end();
                Ok(Events::CLOSED)
            }
            _ if self.bond != Bond::Confirmed => Ok(Events::NONE),
            Message::Switch { kernel, .. } => {
                let incoming = &mut self.incoming;
                if incoming.returned {
                    return Ok(Events::NONE);
                }
                if incoming.kernel.is_some() {
                    return Err(Violation);
                }
                incoming.kernel = Some(kernel.saturating_sub(incoming.kernel_taken));
                Ok(Events::READABLE)
            }
            Message::Fin { .. } => {
                if self.incoming.stopped || self.incoming.kernel.is_none() {
                    return Err(Violation);
                }
                self.incoming.fin = true;
                Ok(Events::PEER_CLOSED)
            }
            Message::Stop { .. } => {
                self.incoming.stopped = true;
                // Whatever it said of its end, the kernel says it again.
                self.incoming.fin = false;
                self.stop(carrier);
                self.settle(carrier);
                Ok(Events::READABLE)
            }
            Message::Stopped { .. } => {
                if !self.incoming.stopped || !self.outgoing.stopped {
                    return Err(Violation);
                }
                self.outgoing.complete = true;
                self.settle(carrier);
                if self.stopped_said {
                    self.end();
                }
                Ok(Events::CLOSED)
            }
            Message::Closed { .. } => {
                // Nobody is there to read.
                self.outgoing.backlog = Vec::new();
                self.outgoing.gone = 0;
                self.end();
                Ok(Events::CLOSED)
            }
            Message::Data { .. }
            | Message::Return { .. }
            | Message::Offer { .. }
            | Message::Withdraw { .. } => Ok(Events::NONE),
        }
    }

    #[inline]
    fn data(
        &mut self,
        carrier: &mut impl Carrier,
        read: u64,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        let Some(payload) = payload else { return Err(Violation) };
        let incoming = &mut self.incoming;
        let held = incoming.queue.len() as u64 + u64::from(payload.len);
        let allowed = held <= incoming.largest_limit
            && !incoming.fin
            && !incoming.stopped
            && incoming.kernel.is_some();
        if self.bond != Bond::Confirmed || !allowed {
            carrier.release(payload.frame);
            return if self.bond == Bond::Confirmed { Err(Violation) } else { Ok(Events::NONE) };
        }
        incoming.queue.push(carrier, payload);
        if !self.outgoing.switched {
            self.switch(carrier);
        }
        Ok(Events::READABLE.union(self.read_by_peer(read)?))
    }

    /// The peer has read so many bytes of ours.
    #[inline]
    fn read_by_peer(&mut self, read: u64) -> Result<Events, Violation> {
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

    fn credited(
        &mut self,
        carrier: &mut impl Carrier,
        read: u64,
        limit: u64,
    ) -> Result<Events, Violation> {
        if self.bond != Bond::Confirmed {
            return Ok(Events::NONE);
        }
        self.outgoing.window = clamped(limit);
        if !self.outgoing.switched {
            self.switch(carrier);
        }
        self.read_by_peer(read)
    }

    fn confirmed(
        &mut self,
        carrier: &mut impl Carrier,
        from: Name,
        limit: u64,
    ) -> Result<Events, Violation> {
        if !self.is_offered() {
            return Err(Violation);
        }
        self.bond = Bond::Confirmed;
        self.peer = Some(from);
        self.outgoing.window = clamped(limit);
        // The server's bytes all come by the pipe.
        self.incoming.kernel = Some(0);
        if self.incoming.told_limit != self.incoming.limit {
            self.credit(carrier);
        }
        Ok(Events::NONE)
    }

    fn take_back(
        &mut self,
        carrier: &mut impl Carrier,
        payload: Option<Received>,
    ) -> Result<Events, Violation> {
        let Some(Received { frame, len }) = payload else { return Err(Violation) };
        let outgoing = &mut self.outgoing;
        let unread = outgoing.sent - outgoing.read_by_peer;
        let allowed = outgoing.stopped
            && !outgoing.complete
            && outgoing.backlog.len() as u64 + u64::from(len) <= unread;
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

    /// The peer broke the rules.
    #[cold]
    pub(super) fn condemn(&mut self, carrier: &mut impl Carrier) -> Events {
        if let Some(to) = self.peer {
            carrier.tell(self.link, Message::Closed { to });
        }
        self.incoming.queue.clear(carrier);
        self.end();
        (self.dead, self.reset) = (true, true);
        Events::CLOSED
    }

    /// The link has room again.
    pub(super) fn relieved(&mut self, carrier: &mut impl Carrier) -> Events {
        self.settle(carrier);
        if core::mem::take(&mut self.wants_room) { Events::WRITABLE } else { Events::NONE }
    }
}

/// Both ends do this.
fn clamped(limit: u64) -> u64 {
    limit.clamp(SMALLEST_WINDOW, LARGEST_WINDOW)
}

/// So much goes into a slot: no need to ask for room.
const SURE: usize = 88;

/// The peer did what it must not.
#[derive(Debug)]
pub(super) struct Violation;
