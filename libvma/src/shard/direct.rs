//! From a link straight into the caller's buffer: a datagram for the very socket that a thread receives
//! on, which has none queued, needs no queue.

use std::io::IoSliceMut;
use std::net::SocketAddrV4;

use super::local::PLAIN;
use super::poll::BUDGET;
use super::receive::Parsed;
use super::{SocketId, State};
use crate::device::shm::Arrival;
use crate::sys::user;

/// What a caller got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    pub source: SocketAddrV4,
    /// Bytes of the datagram, and those for which there was room.
    pub len: usize,
    pub copied: usize,
}

impl<S> State<S> {
    /// Takes what links bring until it is a datagram for this socket, which has none queued. What
    /// is for others is delivered to them.
    #[inline]
    pub fn take_from_links(&mut self, id: SocketId, out: &mut [IoSliceMut<'_>]) -> Option<Direct> {
        let ring_id = self.local.direct?;
        let [out] = out else { return None };
        // What is queued comes first.
        let (endpoint, _) = self.socket(id)?;
        if endpoint.is_readable() || endpoint.marked > 0 {
            return None;
        }
        for _ in 0..BUDGET {
            let arrival = self.local_ring()?.receive()?;
            let Arrival::Packet(received) = arrival else {
                self.input_local(ring_id, arrival);
                continue;
            };
            let plain = self.read_plain(ring_id, &received);
            let Some(plain) = plain.filter(|plain| {
                let Parsed { after_kernel, segment, .. } = plain.parsed;
                plain.index == id.index && after_kernel == 0 && segment == 0
            }) else {
                self.input_packet(ring_id, received);
                if self.socket(id)?.0.is_readable() {
                    return None;
                }
                continue;
            };
            let len = plain.parsed.udp.data_len();
            let count = len.min(out.len());
            let ring = self.local_ring()?;
            let bytes = ring.first_bytes(&received.frame);
            let (Some(target), Some(payload)) =
                (out.get_mut(..count), bytes.get(PLAIN..PLAIN + count))
            else {
                // In several pieces.
                self.input_packet(ring_id, received);
                return None;
            };
            if !user::takes(target) {
                // The datagram is lost by the way of the others.
                self.input_packet(ring_id, received);
                return None;
            }
            target.copy_from_slice(payload);
            ring.release(received.frame);
            let source = SocketAddrV4::new(plain.parsed.ip.src, plain.parsed.udp.src_port);
            return Some(Direct { source, len, copied: count });
        }
        None
    }
}
