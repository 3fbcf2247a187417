//! What is put off to the end of a batch of segments: answers, news for sockets; and the timers.
//!
//! A connection that got thirty segments in one batch so sends five acknowledgments instead of
//! fifteen (`Tcp::feed`), and its program is woken once.

use libvma_engine::tcp::Events;
use libvma_engine::time::Instant;

use super::{Io, NEVER, Owner, Tcp};
use crate::shard::{SocketId, State, clock};

/// Without segments the clock is read once in so many polls.
const CLOCK_STRIDE: u32 = 64;
/// Connections that are looked after because they hold data.
const MOST_HOLDING: usize = 64;
/// How long a connection waits that found no room on its ring.
const RETRY_NANOS: u64 = 1_000_000;
/// How long after a close() the internal thread looks more often.
const CLOSING_NANOS: u64 = 100_000_000;

impl<S> State<S> {
    /// Time passed since the last call on the shard: its next reading is a new one. Every poll begins
    /// by itself, and so do all commands but reading.
    #[inline]
    pub fn begin(&mut self) {
        if let Some(tcp) = self.tcp.as_deref_mut() {
            tcp.now = None;
        }
    }

    /// After a poll of the rings that brought `packets`.
    #[inline]
    pub(in crate::shard) fn after_poll(&mut self, packets: usize) {
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        tcp.idle += 1;
        if packets == 0 && tcp.idle < CLOCK_STRIDE && tcp.touched.is_empty() {
            return;
        }
        self.tcp_work();
    }

    /// May what follows from the segments just taken wait until their reader has its bytes, and
    /// perhaps has answered? If it is about the reader's connection alone, nothing leaves by it at
    /// once, and nobody else waits for the news. The next poll does it, at the latest that of the
    /// internal thread.
    #[inline]
    pub(in crate::shard) fn may_put_off(&mut self, reader: SocketId) -> bool {
        let Some((endpoint, _)) = self.socket(reader) else { return false };
        if endpoint.is_waited_for() || endpoint.is_watched() {
            return false;
        }
        let Some(index) = endpoint.connection else { return false };
        let Some(tcp) = self.tcp.as_deref_mut() else { return false };
        if tcp.touched != [index] || tcp.news != [reader] {
            return false;
        }
        let Some(block) = tcp.block(index) else { return false };
        block.connection.queued() > 0
            && !block.connection.wants_output()
            && self.rings.iter().all(|ring| ring.unsent() == 0)
    }

    /// Data is held until the peer acknowledges what is out. The acknowledgment may be there already;
    /// if it is not, somebody must look for it though the program may not call for a long time.
    #[cold]
    pub(super) fn look_after_held(&mut self, id: SocketId) {
        self.expect_anybody(id);
        self.poll();
        let Some(index) = self.connection_of(id) else { return };
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        let Some(block) = tcp.block(index) else { return };
        let named = (index, block.serial);
        if block.connection.holds_data() && tcp.holding.last() != Some(&named) {
            tcp.unattended |= tcp.holding.is_empty();
            tcp.holding.push(named);
            if tcp.holding.len() > MOST_HOLDING {
                tcp.review_holding();
            }
        }
    }

    /// When the time ends in which a peer may send to a connection that was closed a moment ago.
    pub fn closing_until(&self) -> Instant {
        self.tcp.as_deref().map_or(Instant::from_nanos(0), |tcp| tcp.closing_until)
    }

    /// Did data begin to be held that the internal thread does not know of? Told once.
    #[inline]
    pub fn take_unattended(&mut self) -> bool {
        self.tcp.as_deref_mut().is_some_and(|tcp| core::mem::take(&mut tcp.unattended))
    }

    /// Is there data that leaves when the peer acknowledges?
    pub fn holds_data(&mut self) -> bool {
        self.tcp.as_deref_mut().is_some_and(Tcp::review_holding)
    }

    /// Runs what is due now, for a thread that did nothing for a while.
    pub fn run_tcp(&mut self) {
        if self.tcp.is_some() {
            self.begin();
            self.tcp_work();
        }
    }

    /// Sends what connections have to send, runs timers, tells sockets.
    pub(in crate::shard) fn tcp_work(&mut self) {
        let Some((tcp, mut io)) = self.tcp() else { return };
        tcp.idle = 0;
        let now = tcp.now();
        for _ in 0..tcp.touched.len() {
            tcp.finish_one(&mut io);
        }
        tcp.run_timers(&mut io, now);
        self.after_tcp();
    }

    /// Ends a batch, or a command: kicks the rings, tells the sockets.
    #[inline]
    pub(super) fn after_tcp(&mut self) {
        for ring in &mut self.rings {
            if ring.unsent() > 0 {
                // What a busy device did not take is tried again by the internal thread.
                self.unsent |= ring.kick_soon();
            }
        }
        if self.tcp.as_deref().is_some_and(|tcp| !tcp.news.is_empty()) {
            self.tell_news();
        }
    }

    fn tell_news(&mut self) {
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        let mut news = core::mem::take(&mut tcp.news);
        for id in news.drain(..) {
            let index = self.socket(id).and_then(|(endpoint, _)| endpoint.connection);
            // A listener's are connections to accept.
            let mut events = Events::READABLE;
            if let Some(index) = index
                && let Some(tcp) = self.tcp.as_deref_mut()
                && let Some(block) = tcp.block(index)
                && block.owner == Owner::Socket(id)
            {
                events = core::mem::take(&mut block.events);
            }
            self.announce_news(id, events);
        }
        if let Some(tcp) = self.tcp.as_deref_mut() {
            tcp.news = news;
        }
    }

    /// When TCP has something to do though nothing comes; None if never.
    pub fn tcp_deadline(&self) -> Option<Instant> {
        let tcp = self.tcp.as_deref()?;
        let due = [tcp.timers.next(), tcp.listeners_due, tcp.retired.due()];
        let next = due.into_iter().flatten().min();
        if tcp.touched.is_empty() {
            return next;
        }
        // A full ring, or a link that is down, is tried again soon, but not without a pause.
        let again = clock::now().plus_nanos(RETRY_NANOS);
        Some(next.map_or(again, |next| next.min(again)))
    }

    /// Are there connections or listeners that somebody must drive?
    pub fn has_tcp(&self) -> bool {
        self.tcp.as_deref().is_some_and(|tcp| {
            tcp.blocks.len() > tcp.free.len()
                || !tcp.retired.is_empty()
                || tcp.listeners.iter().any(Option::is_some)
        })
    }
}

impl Tcp {
    /// A segment that the peer sends to a closed connection is answered by a reset, though the program may not call for a long
    /// time. A busy program closes many: the internal thread is told now and then only.
    pub(super) fn look_after_closed(&mut self, now: Instant) {
        if now >= self.closing_until {
            self.closing_until = now.plus_nanos(CLOSING_NANOS);
            self.unattended = true;
        }
    }

    /// Forgets those that hold nothing any more; is one left?
    fn review_holding(&mut self) -> bool {
        let blocks = &self.blocks;
        self.holding.retain(|(index, serial)| {
            let block = blocks.get(*index as usize).and_then(Option::as_deref);
            block.is_some_and(|it| it.serial == *serial && it.connection.holds_data())
        });
        // What is left is looked after as soon as there is one.
        self.holding.truncate(MOST_HOLDING / 2);
        !self.holding.is_empty()
    }

    /// The output of the connection that waits longest for it.
    pub(super) fn finish_one(&mut self, io: &mut Io<'_>) {
        if self.touched.is_empty() {
            return;
        }
        let index = self.touched.remove(0);
        let now = self.now();
        let Some(block) = self.block(index) else { return };
        block.touched = false;
        block.batched = 0;
        self.with(io, index, |connection, wire| connection.output(now, wire));
        self.settle(io, index);
    }

    /// The connection's output is made after the next poll, if the program sends nothing before.
    pub(super) fn touch(&mut self, index: u32) {
        let Some(block) = self.block(index) else { return };
        if !core::mem::replace(&mut block.touched, true) {
            self.touched.push(index);
        }
    }

    fn run_timers(&mut self, io: &mut Io<'_>, now: Instant) {
        while let Some(index) = self.timers.pop_due(now) {
            let Some(block) = self.block(index) else { continue };
            block.armed = NEVER;
            let due = block.connection.deadline().is_some_and(|deadline| deadline <= now);
            if due {
                let events =
                    self.with(io, index, |connection, wire| connection.on_timer(now, wire));
                self.note(index, events.unwrap_or_default());
            }
            self.settle(io, index);
        }
        if self.listeners_due.is_some_and(|due| due <= now) {
            self.run_listeners(io, now);
        }
        if self.retired.due().is_some_and(|due| due <= now) {
            self.end_retired(io);
        }
    }

    /// The connection's output now, after a command.
    #[inline]
    pub(super) fn output(&mut self, io: &mut Io<'_>, index: u32) {
        let now = self.now();
        self.with(io, index, |connection, wire| {
            if connection.wants_output() {
                connection.output(now, wire);
            }
        });
        self.settle(io, index);
    }

    /// The socket is told at the end of the batch.
    pub(super) fn tell(&mut self, id: SocketId) {
        if self.news.last() != Some(&id) {
            self.news.push(id);
        }
    }
}
