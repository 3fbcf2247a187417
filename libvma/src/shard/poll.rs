//! Polling the rings, in the manners that callers need: once, for a while, until nothing is left.
//! What happens to a frame is in `receive`.

use std::io::IoSliceMut;

use super::{Direct, RingId, SocketId, State};
use crate::device::Ring;
use crate::log::log_line;
use crate::sys::errand;

/// One call takes at most this many packets per ring, so that no caller works for the others
/// without end.
pub(super) const BUDGET: usize = 32;

/// Enough for every frame of a ring.
const CATCH_UP: usize = 256;

/// Polls under one holding of the lock; some 50 ns.
const PATIENCE: usize = 8;

impl<S> State<S> {
    /// Takes what the rings have received. Returns how many packets that were.
    #[inline]
    pub fn poll(&mut self) -> usize {
        let packets = self.poll_rings();
        self.after_poll(packets);
        packets
    }

    /// The same, for somebody who reads from a stream next: timers and news may wait until that is
    /// done (`may_put_off`).
    #[inline]
    pub fn poll_for_reader(&mut self, id: SocketId) -> usize {
        let packets = self.poll_rings();
        if packets == 0 || !self.may_put_off(id) {
            self.after_poll(packets);
        }
        packets
    }

    #[inline]
    fn poll_rings(&mut self) -> usize {
        self.polls = self.polls.wrapping_add(1);
        self.burst.end();
        self.begin();
        if self.dozing.is_some() {
            self.rouse();
        }
        if self.unsent || errand::take_left_over() {
            self.kick_all();
        }
        if self.is_captured() {
            return self.poll_captured();
        }
        let mut packets = 0;
        for index in 0..self.rings.len() {
            let before = packets;
            for _ in 0..BUDGET {
                let id = RingId(index as u16);
                match self.rings.get_mut(index) {
                    Some(Ring::Xdp(ring)) => {
                        let Some(received) = ring.receive() else { break };
                        log_line!(Finer, "ring {index}: a frame of {} bytes came", received.len);
                        self.input(id, received);
                    }
                    Some(Ring::Shm(ring)) => {
                        let Some(arrival) = ring.receive() else { break };
                        ring.begin_arrival(&arrival);
                        log_line!(Finer, "ring {index}: {arrival:?} came");
                        self.input_local(id, arrival);
                        if let Some(Ring::Shm(ring)) = self.rings.get_mut(index) {
                            ring.end_arrival();
                        }
                    }
                    None => break,
                }
                packets += 1;
            }
            if packets > before {
                if let Some(Ring::Xdp(ring)) = self.rings.get_mut(index) {
                    ring.note_read();
                }
                self.note_drained(index, packets - before);
            }
        }
        packets
    }

    /// The same, for the receiver of datagrams on a socket, until there is one for it.
    #[inline]
    pub fn poll_patiently_for(
        &mut self,
        id: SocketId,
        out: &mut [IoSliceMut<'_>],
    ) -> Option<Direct> {
        for _ in 0..PATIENCE {
            let direct = self.take_from_links(id, out);
            if direct.is_some() || self.poll() > 0 {
                return direct;
            }
        }
        None
    }

    /// Polls, and goes on while there is much: for a caller that will look at the kernel's socket
    /// next, which has what is newer.
    pub fn poll_well(&mut self) {
        if self.poll() >= BUDGET {
            self.catch_up();
        }
    }

    /// Takes what the rings have received, for a caller whose own segment leaves before the answers to it: the caller runs
    /// [`State::run_tcp`] after that.
    pub fn take_received(&mut self) {
        if self.poll_rings() >= BUDGET {
            self.catch_up();
        }
    }

    /// Polls a few times over, for a caller that has nothing else to do: a packet is seen sooner
    /// than by polls with the lock's hand-over between them.
    #[inline]
    pub fn poll_patiently(&mut self) {
        for _ in 0..PATIENCE {
            if self.poll() > 0 {
                return;
            }
        }
    }

    /// The same, for the reader of a stream.
    #[inline]
    pub fn poll_patiently_for_reader(&mut self, id: SocketId) {
        for _ in 0..PATIENCE {
            if self.poll_for_reader(id) > 0 {
                return;
            }
        }
    }

    /// Takes what has arrived so far, as far as that can be said while more arrives: before a
    /// socket's wishes change, because what came before goes by the old ones. False if there may be more.
    pub fn catch_up(&mut self) -> bool {
        let is_stuck = |ring: &Ring| matches!(ring, Ring::Shm(ring) if ring.is_out_of_frames());
        (0..CATCH_UP).any(|_| self.poll() == 0) && !self.rings.iter().any(is_stuck)
    }
}
