//! What the rendezvous needs of the shard: memory, the bell, and links made and ended.

use rustix::fd::BorrowedFd;

use super::answers;
use super::search;
use crate::control::rendezvous::Host;
use crate::log::log_line;
use crate::shard::{LinkId, Segment, Side, check_bell};
use crate::socket::{Stack, stream};
use crate::sys::Fd;

pub(super) struct Owner<'a> {
    stack: &'a Stack,
}

impl<'a> Owner<'a> {
    pub fn new(stack: &'a Stack) -> Owner<'a> {
        Owner { stack }
    }

    /// The ring is opened for the first link.
    fn ensure_ring(&mut self) -> Option<()> {
        if self.stack.shard.lock().ok()?.local_ring_id().is_some() {
            return Some(());
        }
        if let Err(error) = self.stack.shard.open_local_ring() {
            log_line!(Warning, "no memory is shared with other processes: {error}");
            return None;
        }
        // It sleeps on the ring, too.
        self.stack.wake_internal_thread();
        Some(())
    }

    fn link(&mut self, segment: Segment, side: Side, bell_of_peer: Fd) -> Option<LinkId> {
        let mut state = self.stack.shard.lock().ok()?;
        let linked = state.local_ring()?.link(segment, side, bell_of_peer);
        let link = match linked {
            Ok(link) => link,
            Err(error) => {
                log_line!(Debug, "no link with another process: {error}");
                return None;
            }
        };
        self.stack.shard.note_liveness(&state);
        // Who sleeps did not tell this peer to ring.
        state.wake_all();
        self.stack.wake_internal_thread();
        log_line!(Debug, "linked with another process");
        Some(link)
    }
}

impl Host for Owner<'_> {
    type Memory = Segment;
    type Link = LinkId;

    fn prepare(&mut self) -> Option<Segment> {
        self.ensure_ring()?;
        let made = Segment::create();
        if let Err(error) = &made {
            log_line!(Debug, "no memory for another process: {error}");
        }
        made.ok()
    }

    fn share<'a>(&'a self, memory: &'a Segment) -> BorrowedFd<'a> {
        memory.fd()
    }

    fn bell<'a>(&'a self, memory: &'a Segment) -> BorrowedFd<'a> {
        memory.bell()
    }

    fn make(&mut self, memory: Segment, bell_of_peer: Fd) -> Option<LinkId> {
        self.link(memory, Side::Maker, bell_of_peer)
    }

    fn take(&mut self, memory: Fd, bell_of_peer: Fd) -> Option<(LinkId, Fd)> {
        self.ensure_ring()?;
        match Segment::take(memory) {
            Ok(segment) => {
                let bell = Fd::copy_of(segment.bell()).ok()?.above_the_limit();
                Some((self.link(segment, Side::Taker, bell_of_peer)?, bell))
            }
            Err(error) => {
                log_line!(Debug, "another process's memory is refused: {error}");
                None
            }
        }
    }

    fn is_alive(&mut self, link: LinkId) -> bool {
        let Ok(mut state) = self.stack.shard.lock() else { return true };
        state.local_ring().is_some_and(|ring| ring.links().any(|live| live == link))
    }

    fn end(&mut self, link: LinkId) {
        let Ok(mut state) = self.stack.shard.lock() else { return };
        // What it sent before its end is delivered.
        state.catch_up();
        state.link_gone(link);
        self.stack.shard.note_liveness(&state);
        state.wake_all();
    }

    fn inherit(&mut self, link: LinkId, connection: u64, half: Fd) {
        if let Ok(mut state) = self.stack.shard.lock() {
            stream::local::half::inherit(&mut state, link, connection, half);
        }
    }

    fn take_bell(&mut self, link: LinkId, number: u32, bell: Fd) {
        // Closing what a peer sends may take as long as the peer likes: not under the lock.
        if let Err(error) = check_bell(&bell) {
            log_line!(Debug, "a bell of another process's thread is refused: {error}");
            return;
        }
        let refused = match self.stack.shard.lock() {
            Ok(mut state) => match state.local_ring() {
                Some(ring) => ring.take_bell(link, number, bell),
                None => Some(bell),
            },
            Err(_) => return,
        };
        drop(refused);
    }

    fn answered(&mut self, link: LinkId) {
        search::expect_offers(self.stack, link);
    }

    fn somebody_found(&mut self) {
        if let Ok(mut state) = self.stack.shard.lock() {
            state.next_answers();
        }
        answers::wake_all(&self.stack.local);
    }

    fn void_answers(&mut self) {
        if let Ok(mut state) = self.stack.shard.lock() {
            state.next_epoch();
        }
    }
}
