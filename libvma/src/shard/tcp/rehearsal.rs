//! A send on a stream that is not made (`shard::rehearsal`).

use crate::device::Ring;
use crate::shard::{SocketId, State};
use crate::sys::user;

/// Longer segments leave by another way, which has no frame to take back.
const MOST: usize = 4096;

impl<S> State<S> {
    /// Does what a send of these bytes as a segment does, but for the kick. False if it could not leave at once; None: no connection.
    #[cold]
    pub fn rehearse_stream(&mut self, id: SocketId, payload: &[u8]) -> Option<bool> {
        self.begin();
        let walks = !self.is_captured()
            && payload.len() <= MOST
            && user::is_readable(payload.as_ptr(), payload.len());
        let index = self.connection_of(id)?;
        let (tcp, mut io) = self.tcp()?;
        let ring = tcp.block(index)?.way.ring();
        let now = tcp.now();
        let (possible, queued) = tcp.with(&mut io, index, |connection, wire| {
            let possible = connection.rehearse(payload, now, walks.then_some(&mut *wire));
            let queued = walks && possible && !wire.refused;
            // It is not to be tried again.
            wire.refused = false;
            (possible, queued)
        })?;
        if queued
            && let Some(Ring::Xdp(ring)) = ring.and_then(|ring| io.rings.get_mut(ring.index()))
        {
            ring.take_back();
        }
        Some(possible)
    }
}
