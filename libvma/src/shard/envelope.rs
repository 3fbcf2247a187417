//! The headers of a socket's datagrams to another process of this host, prepared once: every datagram
//! then changes what depends on its length, and goes by a short way.

use std::io::IoSlice;
use std::net::SocketAddrV4;

use libvma_engine::wire::{ethernet, ipv4, udp};

use super::local::PLAIN;
use super::transmit::{Egress, emit_link_and_ip};
use super::{Endpoint, RingId, SocketId, State};
use crate::device::Ring;
use crate::device::shm::{self, Full, LinkId, Progress};

/// The most bytes of a datagram that goes this way: what a slot of a link holds.
pub const MOST: usize = shm::INLINE - PLAIN;

/// Everything that stands in a datagram before its payload, without UDP's checksum: nothing on the
/// way can spoil it.
#[derive(Clone, Copy)]
pub struct Envelope {
    headers: [u8; PLAIN],
    /// The sum of the IP header's words, lengths and identification left out.
    sum: u32,
    link: LinkId,
    pub ring: RingId,
    pub destination: SocketAddrV4,
}

impl Envelope {
    /// For datagrams like this one; None if they do not go by a link.
    pub fn new(egress: &Egress<'_>) -> Option<Envelope> {
        let link = LinkId::from_mac(egress.hop.destination_mac.0)?;
        let udp = udp::Header::new(egress.source.port(), egress.destination.port(), 0)?;
        let (source, destination) = (*egress.source.ip(), *egress.destination.ip());
        let mut ip = ipv4::Header::new(source, destination, ipv4::protocol::UDP, 0)?;
        ip.ttl = egress.ttl;
        ip.tos = egress.tos;
        ip.dont_fragment = egress.dont_fragment;
        let mut headers = [0; PLAIN];
        emit_link_and_ip(egress.hop, &ip, &mut headers);
        let at = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
        udp.emit(headers.get_mut(at..)?.first_chunk_mut()?);
        // What is written for every datagram.
        for at in [TOTAL_LEN, TOTAL_LEN + 1, CHECKSUM, CHECKSUM + 1] {
            *headers.get_mut(at)? = 0;
        }
        let words = headers.get(ethernet::HEADER_LEN..at)?.chunks_exact(2);
        let sum = words.map(|word| match word {
            [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
            _ => 0,
        });
        let destination = egress.destination;
        Some(Envelope { headers, sum: sum.sum(), link, ring: egress.hop.ring, destination })
    }

    /// The headers of a datagram of `len` bytes, at most [`MOST`].
    #[inline]
    fn write(&self, len: usize, ident: u16, out: &mut [u8; PLAIN]) {
        let total = (len + ipv4::HEADER_LEN + udp::HEADER_LEN) as u16;
        let sum = self.sum + u32::from(total) + u32::from(ident);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        *out = self.headers;
        let mut put = |at: usize, word: u16| {
            if let Some(field) = out.get_mut(at..at + 2) {
                field.copy_from_slice(&word.to_be_bytes());
            }
        };
        put(TOTAL_LEN, total);
        put(IDENT, ident);
        put(CHECKSUM, checksum);
        put(UDP_LEN, (len + udp::HEADER_LEN) as u16);
    }
}

const TOTAL_LEN: usize = ethernet::HEADER_LEN + 2;
const IDENT: usize = ethernet::HEADER_LEN + 4;
const CHECKSUM: usize = ethernet::HEADER_LEN + 10;
const UDP_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + 4;

impl<S> State<S> {
    /// A socket, and the ring that is shared with other processes.
    #[inline]
    pub fn socket_and_links(
        &mut self,
        id: SocketId,
    ) -> Option<(&mut Endpoint, &mut S, &mut shm::Ring)> {
        let Ring::Shm(ring) = self.rings.get_mut(self.local.ring?.index())? else { return None };
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let (endpoint, socket) = slot.content.as_mut()?;
        Some((endpoint, socket, ring))
    }
}

/// Sends a datagram of at most [`MOST`] bytes; `kick` tells the peer at once if it sleeps. `Full`
/// whenever the long way is the right one.
#[inline]
pub fn send(
    ring: &mut shm::Ring,
    envelope: &Envelope,
    payload: &[IoSlice<'_>],
    len: usize,
    kick: bool,
) -> Result<Progress, Full> {
    let progress = ring.send_packet(envelope.link, PLAIN + len, |number, bytes| {
        let Some((headers, mut rest)) = bytes.split_first_chunk_mut() else { return };
        envelope.write(len, number as u16, headers);
        for piece in payload {
            let Some((target, left)) = rest.split_at_mut_checked(piece.len()) else { break };
            target.copy_from_slice(piece);
            rest = left;
        }
    })?;
    if kick {
        ring.kick();
    }
    Ok(progress)
}
