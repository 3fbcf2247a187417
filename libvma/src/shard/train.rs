//! Trains out: a payload that leaves as datagrams of equal size (UDP_SEGMENT).
//!
//! Within the host a train is one packet with a mark, which the receiver cuts or, with UDP_GRO, takes whole. An
//! interface whose packets the kernel cuts gets it as one, too; elsewhere each datagram is a frame.

use libvma_engine::wire::{ethernet, ipv4, udp};

use super::State;
use super::transmit::{Egress, Gather, HEADERS, SendError, emit_link_and_ip};
use crate::device::Ring;
use crate::sys::user;

impl<S> State<S> {
    /// Queues the datagrams of a train that are behind the first `done` bytes; `done` then tells how many are
    /// queued, also if not all are.
    pub fn send_train(
        &mut self,
        egress: &Egress<'_>,
        segment: u16,
        done: &mut usize,
    ) -> Result<(), SendError> {
        if *done == 0 && !user::all_give(egress.payload, egress.skip, egress.len) {
            // As a whole.
            return Err(SendError::Fault);
        }
        let ring = self.rings.get_mut(egress.hop.ring.index()).ok_or(SendError::NoRing)?;
        if ring.is_local() {
            self.send_marked(egress, segment)?;
            *done = egress.len;
        } else if *done == 0
            // A copy for members in this process is made of each datagram.
            && !egress.loop_back
            && ring.carries_trains()
            && send_uncut(ring, egress, segment, self.ident.wrapping_add(1))
        {
            // As many as there will be.
            let count = egress.len.div_ceil(segment.into());
            self.ident = self.ident.wrapping_add(count as u16);
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

/// True if it has left; if not, its datagrams can leave one by one.
fn send_uncut(ring: &mut Ring, egress: &Egress<'_>, segment: u16, ident: u16) -> bool {
    let (source, destination) = (*egress.source.ip(), *egress.destination.ip());
    let ports = (egress.source.port(), egress.destination.port());
    let mut pieces = Gather::behind(egress.payload, egress.skip);
    let (first, second) = (pieces.next_piece(), pieces.next_piece().unwrap_or_default());
    let payload = [first.unwrap_or_default(), second];
    if pieces.next_piece().is_some() {
        return false;
    }
    let len = egress.len + udp::HEADER_LEN;
    let (Some(udp), Some(mut ip)) = (
        udp::Header::new(ports.0, ports.1, egress.len),
        ipv4::Header::new(source, destination, ipv4::protocol::UDP, len),
    ) else {
        return false;
    };
    ip.ttl = egress.ttl;
    ip.tos = egress.tos;
    ip.ident = ident;
    ip.dont_fragment = egress.dont_fragment;
    let mut headers = [0; HEADERS];
    emit_link_and_ip(egress.hop, &ip, &mut headers);
    let at = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
    if let Some(out) = headers.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        udp.partially_checksummed(source, destination).emit(out);
    }
    ring.transmit_segmented(&headers, payload, segment)
}
