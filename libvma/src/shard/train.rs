//! Trains out: a payload that leaves as datagrams of equal size (UDP_SEGMENT).
//!
//! Within the host a train is one packet with a mark, which the receiver cuts or, with UDP_GRO, takes whole.

use super::State;
use super::transmit::{Egress, SendError};

impl<S> State<S> {
    /// Queues the datagrams of a train that are behind the first `done` bytes; `done` then tells how many are
    /// queued, also if not all are.
    pub fn send_train(
        &mut self,
        egress: &Egress<'_>,
        segment: u16,
        done: &mut usize,
    ) -> Result<(), SendError> {
        let ring = self.rings.get(egress.hop.ring.index()).ok_or(SendError::NoRing)?;
        if ring.is_local() {
            self.send_marked(egress, segment)?;
            *done = egress.len;
        }
        while *done < egress.len {
            let len = (egress.len - *done).min(segment.into());
            self.send(&Egress { skip: *done, len, ..*egress })?;
            *done += len;
        }
        Ok(())
    }
}
