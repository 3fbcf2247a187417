//! What somebody outside the process is told of connections: their states, so that their peers can be
//! told if the process dies. Who that is, and how it is told, is not known here.
//!
//! Only the last state counts, so a connection that changed is listed once, until the list is taken
//! ([`State::take_reports`]); one that came and went in between is never told of. Nothing is listed
//! until somebody listens. What has no room is not lost in silence: the listener begins anew.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_engine::tcp::State as TcpState;
use libvma_engine::tcp::lookup::FlowKey;

use super::{Block, Owner, Tcp};
use crate::shard::{SocketId, State};
use crate::sys::wait::Waker;

/// That there is something to take. Whoever takes it is woken once, until it has looked.
pub struct Pending {
    raised: AtomicBool,
    waker: Arc<Waker>,
}

impl Pending {
    pub fn new(waker: Arc<Waker>) -> Pending {
        Pending { raised: AtomicBool::new(false), waker }
    }

    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// To be called before the list is taken, so that what comes later raises it again.
    pub fn lower(&self) {
        self.raised.store(false, Ordering::Release);
    }

    fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// A connection's state, for somebody outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Names the connection as long as it lives: the descriptor that the program has for it, if there was
    /// one when it was first told of and no other connection is known by it; else a number from
    /// `NAMELESS` on.
    pub number: u32,
    pub key: FlowKey,
    pub state: TcpState,
}

/// No descriptor is so large.
pub const NAMELESS: u32 = 0x4000_0000;

/// Connections that ended and are not reported yet, at most.
const MOST_ENDED: usize = 1 << 16;
/// Connections that changed, beyond twice as many as there are.
const MOST_CHANGED: usize = 4096;

/// The shard's part.
pub(super) struct Watch {
    pending: Option<Arc<Pending>>,
    listening: bool,
    /// There was no room.
    lost: bool,
    /// Blocks that are `listed`, or were.
    changed: VecDeque<u32>,
    /// Those that were told of and are over.
    ended: VecDeque<Report>,
    /// Numbers that connections are known by.
    numbers: HashSet<u32>,
}

/// A connection's part.
pub(super) struct Watched {
    /// Its state when it was looked at last.
    state: TcpState,
    listed: bool,
    /// It is about to become the kernel's.
    withheld: bool,
    /// As it is known outside, Closed if it is not; and the number that it is known by.
    told: TcpState,
    number: u32,
}

impl Watched {
    pub const fn new() -> Watched {
        let none = TcpState::Closed;
        Watched { state: none, listed: false, withheld: false, told: none, number: 0 }
    }

    /// To be asked whenever the engine may have changed the connection's state: one comparison is all
    /// that a segment costs.
    #[inline]
    pub fn differs(&self, state: TcpState) -> bool {
        self.state != state
    }
}

impl Watch {
    pub fn new(pending: Option<Arc<Pending>>) -> Watch {
        Watch {
            pending,
            listening: false,
            lost: false,
            changed: VecDeque::new(),
            ended: VecDeque::new(),
            numbers: HashSet::new(),
        }
    }

    fn raise(&self) {
        if let Some(pending) = &self.pending {
            pending.raise();
        }
    }

    /// Nothing is known outside, nothing is to be told.
    fn forget(&mut self) {
        self.lost = false;
        // Not cleared but dropped: they may have been long once.
        (self.changed, self.ended, self.numbers) = Default::default();
    }

    fn lose(&mut self) {
        self.forget();
        self.lost = true;
    }
}

impl Tcp {
    /// A connection's state is another one than it was.
    #[cold]
    pub(super) fn note_state(&mut self, index: u32) {
        let blocks = self.blocks.len();
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let state = block.connection.state();
        let before = core::mem::replace(&mut block.watched.state, state);
        if !self.watch.listening {
            if before == TcpState::Closed {
                // Somebody may want to listen now that there is a connection.
                self.watch.raise();
            }
            return;
        }
        if block.watched.withheld || self.watch.lost {
            return;
        }
        if !core::mem::replace(&mut block.watched.listed, true) {
            self.watch.changed.push_back(index);
            if self.watch.changed.len() > MOST_CHANGED + 2 * blocks {
                self.watch.lose();
            }
        }
        self.watch.raise();
    }

    /// A connection is over, or somebody else's from now on.
    #[cold]
    pub(super) fn end_watch(&mut self, index: u32) {
        let Some(block) = self.blocks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        block.watched.state = TcpState::Closed;
        block.watched.listed = false;
        let told = core::mem::replace(&mut block.watched.told, TcpState::Closed);
        if told == TcpState::Closed || !self.watch.listening || self.watch.lost {
            return;
        }
        let number = block.watched.number;
        let key = block.connection.key();
        self.watch.numbers.remove(&number);
        self.watch.ended.push_back(Report { number, key, state: TcpState::Closed });
        if self.watch.ended.len() > MOST_ENDED {
            self.watch.lose();
        }
        self.watch.raise();
    }
}

impl<S> State<S> {
    /// Somebody listens from now on, and is to be told of every connection that there is.
    pub fn watch_connections(&mut self) {
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        tcp.watch.forget();
        tcp.watch.listening = true;
        for (index, block) in tcp.blocks.iter_mut().enumerate() {
            let Some(block) = block.as_deref_mut() else { continue };
            block.watched.told = TcpState::Closed;
            block.watched.listed = !block.watched.withheld && is_worth_telling(block);
            if block.watched.listed {
                tcp.watch.changed.push_back(index as u32);
            }
        }
    }

    /// Nobody listens any more.
    pub fn stop_watching(&mut self) {
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        tcp.watch.listening = false;
        tcp.watch.forget();
        for block in tcp.blocks.iter_mut().flatten() {
            block.watched.told = TcpState::Closed;
            block.watched.listed = false;
        }
    }

    /// Takes at most `most` reports off the list, those of connections that are over first.
    /// `descriptor` says by what number the program knows a socket. False: there was no room for
    /// some, so begin anew.
    pub fn take_reports(
        &mut self,
        most: usize,
        descriptor: impl Fn(&S) -> Option<u32>,
        mut report: impl FnMut(Report),
    ) -> bool {
        if self.tcp.as_deref().is_none_or(|tcp| !tcp.watch.listening) {
            return true;
        }
        for _ in 0..most {
            let Some(tcp) = self.tcp.as_deref_mut() else { return true };
            if tcp.watch.lost {
                return false;
            }
            if let Some(ended) = tcp.watch.ended.pop_front() {
                report(ended);
                continue;
            }
            let Some(index) = tcp.watch.changed.pop_front() else { return true };
            let owner = tcp.block(index).map(|block| block.owner);
            let named = match owner {
                Some(Owner::Socket(id)) => self.socket(id).and_then(|(_, one)| descriptor(one)),
                _ => None,
            };
            if let Some(one) = self.tcp.as_deref_mut().and_then(|tcp| tcp.report(index, named)) {
                report(one);
            }
        }
        true
    }

    /// Are there connections that are over and not reported?
    pub fn has_ended_reports(&self) -> bool {
        self.tcp.as_deref().is_some_and(|tcp| !tcp.watch.ended.is_empty())
    }

    /// The socket's connection is about to become the kernel's: outside it is over, and nothing more is
    /// said of it. True if that is to be reported.
    pub fn withhold_connection(&mut self, id: SocketId) -> bool {
        let Some(index) = self.socket(id).and_then(|(endpoint, _)| endpoint.connection) else {
            return false;
        };
        let Some(tcp) = self.tcp.as_deref_mut() else { return false };
        let Some(block) = tcp.block(index) else { return false };
        block.watched.withheld = true;
        let known = block.watched.told != TcpState::Closed;
        tcp.end_watch(index);
        known
    }

    /// The kernel did not take it: it is told of again.
    pub fn resume_watching(&mut self, id: SocketId) {
        let index = self.socket(id).and_then(|(endpoint, _)| endpoint.connection);
        if let Some(index) = index
            && let Some(tcp) = self.tcp.as_deref_mut()
            && let Some(block) = tcp.block(index)
        {
            block.watched.withheld = false;
            tcp.note_state(index);
        }
    }
}

impl Tcp {
    /// What is to be said of a connection that was listed; None if it is as it was told.
    fn report(&mut self, index: u32, descriptor: Option<u32>) -> Option<Report> {
        let block = self.blocks.get_mut(index as usize)?.as_deref_mut()?;
        // Another one may have got the index of one that was listed.
        if !core::mem::replace(&mut block.watched.listed, false) || !is_worth_telling(block) {
            return None;
        }
        let state = block.connection.state();
        let before = core::mem::replace(&mut block.watched.told, state);
        if before == state {
            return None;
        }
        if before == TcpState::Closed {
            let free = descriptor.filter(|number| !self.watch.numbers.contains(number));
            block.watched.number = free.unwrap_or(NAMELESS | index);
            self.watch.numbers.insert(block.watched.number);
        }
        let number = block.watched.number;
        Some(Report { number, key: block.connection.key(), state })
    }
}

fn is_worth_telling(block: &Block) -> bool {
    block.known && block.connection.state() != TcpState::Closed
}

#[cfg(test)]
mod tests;
