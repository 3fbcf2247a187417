//! Sends that are not made (VMA_SND_FLAGS_DUMMY): the same code as a send's, up to the kick. The frame is taken back from the
//! ring before the device can see it.

use libvma_engine::wire::{ipv4, udp};

use super::transmit::HEADERS;
use super::{Egress, State};
use crate::device::Ring;

impl<S> State<S> {
    /// Does what a send of this datagram does, but for the kick. A datagram that does not fit one packet, or would be captured, is left
    /// out.
    #[cold]
    pub fn rehearse(&mut self, egress: &Egress<'_>) {
        let fits = ipv4::HEADER_LEN + udp::HEADER_LEN + egress.len <= egress.hop.mtu as usize;
        if self.is_captured() || !fits || egress.loop_back {
            return;
        }
        let destination = egress.hop.destination_mac.0;
        match self.ring_mut(egress.hop.ring) {
            Some(ring @ Ring::Shm(_)) => {
                // A packet of a link is seen as soon as it is sent.
                if let Some(frame) = ring.allocate(destination, HEADERS + egress.len) {
                    ring.release(frame);
                }
            }
            Some(Ring::Xdp(_)) => {
                if self.send(egress).is_ok()
                    && let Some(Ring::Xdp(ring)) = self.ring_mut(egress.hop.ring)
                {
                    ring.take_back();
                }
            }
            None => {}
        }
    }
}
