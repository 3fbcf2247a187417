//! Sent frames, for a capture (`VMA_PCAP`). Received ones are the shard's to hand in.

use libvma_engine::frame::Frame;

use super::Ring;
use crate::capture::{Direction, Tap};
use crate::sys::time::realtime_nanos;

impl Ring {
    /// Sent packets are captured here from now on.
    pub fn set_tap(&mut self, tap: Tap) {
        self.tap = Some(Box::new(tap));
    }

    /// Called for every frame, captured or not: a branch in the callers would void what the compiler's profile
    /// says of them.
    #[inline(never)]
    pub(super) fn capture(&self, frame: &Frame) {
        if self.tap.is_some() {
            let pieces = self.tx.extents(frame).map(|extent| self.umem.bytes(extent));
            hand_in(self.tap.as_deref(), &pieces.collect::<Vec<_>>());
        }
    }
}

/// A frame that is sent.
#[inline(never)]
pub(super) fn hand_in(tap: Option<&Tap>, pieces: &[&[u8]]) {
    if let Some(tap) = tap {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        tap.packet(Direction::Out, realtime_nanos(), len, pieces.iter().copied(), None);
    }
}
