//! Segments out: headers, checksum and payload into frames of a ring, in one copy.

use super::body::{self, Body, Heaps};
use crate::device::Ring;
use crate::net::tcp::lookup::FlowKey;
use crate::net::tcp::{Link, Outgoing, Piece};
use crate::net::wire::checksum::{Sum, copy_and_sum};
use crate::net::wire::tcp::{Flags, Header, MAX_HEADER_LEN};
use crate::net::wire::{ethernet, ipv4};
use crate::shard::NextHop;
use crate::shard::transmit::emit_link_and_ip;

/// Ethernet and IP.
const LEAD: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
/// ECT(0) (RFC 3168 section 5).
const ECT0: u8 = 0b10;
const ECN_MASK: u8 = 0b11;

/// A segment beyond this size takes the way of the super-frames where there is one: the kernel
/// copies it from the send buffer itself, nobody sums it, and it has no limit of pieces (AF_XDP:
/// MAX_SKB_FRAGS, some 36 KB in chunks of 2 KiB).
const LARGE: usize = 4096;

/// What a connection gives to its segments besides their own headers.
#[derive(Clone, Copy)]
pub struct Envelope {
    pub ttl: u8,
    pub tos: u8,
}

/// A connection's way out, for the length of one call of the engine.
pub struct Wire<'a> {
    pub(super) rings: &'a mut [Ring],
    pub(super) ident: &'a mut u16,
    pub(super) heaps: &'a mut Heaps,
    /// None while the neighbour is being resolved.
    pub(super) hop: Option<NextHop>,
    pub(super) key: FlowKey,
    pub(super) envelope: Envelope,
    /// There was no room on the ring.
    pub(super) refused: bool,
    /// The ring no longer cuts segments.
    pub(super) uncut: bool,
    /// The last segment of the data leaves at once, ahead of the bookkeeping, which the peer need not
    /// wait for. Else the end of the batch kicks the ring.
    pub(super) eager: bool,
}

impl Link<Body> for Wire<'_> {
    #[inline]
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool {
        let Some(hop) = &self.hop else { return false };
        // A ring never goes away.
        let Some(ring) = self.rings.get_mut(hop.ring.index()) else { return true };
        let [first, second] = segment.payload;
        let len = first.len() + second.len();
        let header_len = segment.header.header_len();
        let (src, dst) = (self.key.local, self.key.remote);
        let Some(mut ip) = ipv4::Header::new(src, dst, ipv4::protocol::TCP, header_len + len)
        else {
            return true;
        };
        *self.ident = self.ident.wrapping_add(1);
        ip.ident = *self.ident;
        ip.ttl = self.envelope.ttl;
        ip.tos = self.envelope.tos & !ECN_MASK;
        if segment.ecn_capable {
            ip.tos |= ECT0;
        }
        // RFC 1191: the path MTU is discovered by segments that may not be cut.
        ip.dont_fragment = true;
        let cut = len > segment.segment_size as usize;
        if cut && ring.segmentation_limit() == 0 {
            self.uncut = true;
            self.refused = true;
            return false;
        }
        let done = if cut || len > LARGE && ring.segmentation_limit() > 0 {
            let header = segment.header.partially_checksummed(src, dst, len);
            let mut bytes = [0u8; LEAD + MAX_HEADER_LEN];
            emit_link_and_ip(hop, &ip, &mut bytes);
            header.emit(bytes.get_mut(LEAD..).unwrap_or_default());
            let headers = bytes.get(..LEAD + header_len).unwrap_or_default();
            let size = u16::try_from(segment.segment_size).unwrap_or(u16::MAX);
            ring.transmit_segmented(headers, segment.payload, size)
        } else {
            transmit(ring, hop, &ip, &segment.header, segment.payload)
        };
        self.refused |= !done;
        // PSH marks the end of the data.
        if done && self.eager && segment.header.flags.contains(Flags::PSH) {
            ring.kick();
        }
        done
    }

    fn release(&mut self, body: Body) {
        body::release(self.rings, self.heaps, body);
    }

    fn coalesce(&mut self, tail: &mut Piece<Body>, next: Piece<Body>) -> Option<Piece<Body>> {
        body::coalesce(self.rings, self.heaps, tail, next)
    }

    fn hold(&mut self, piece: Piece<Body>) -> Piece<Body> {
        body::hold(self.rings, self.heaps, piece)
    }

    fn stash(&mut self, piece: Piece<Body>) -> Piece<Body> {
        body::stash(self.rings, self.heaps, piece)
    }
}

/// Writes one packet and queues it on the ring. False if no frame is free.
#[inline]
pub(super) fn transmit(
    ring: &mut Ring,
    hop: &NextHop,
    ip: &ipv4::Header,
    header: &Header,
    payload: [&[u8]; 2],
) -> bool {
    let header_len = header.header_len();
    let lead = LEAD + header_len;
    let [first, second] = payload;
    let len = first.len() + second.len();
    let Some(frame) = ring.allocate(hop.destination_mac.0, lead + len) else { return false };
    let mut sum = Sum::ZERO;
    if len > 0 {
        // The payload first: the checksum in the headers before it comes from that copy.
        let mut pieces = payload;
        ring.write(&frame, |offset, bytes| {
            let data = if offset == 0 { bytes.get_mut(lead..) } else { Some(bytes) };
            if let Some(data) = data {
                sum = sum.then(fill(&mut pieces, data));
            }
        });
    }
    let header = header.checksummed(ip.src, ip.dst, sum, len);
    ring.write(&frame, |offset, bytes| {
        if offset == 0 {
            emit_link_and_ip(hop, ip, bytes);
            header.emit(bytes.get_mut(LEAD..).unwrap_or_default());
        }
    });
    ring.transmit(frame);
    true
}

/// Fills `out` from the pieces and takes what was copied off them.
#[inline]
fn fill(pieces: &mut [&[u8]; 2], mut out: &mut [u8]) -> Sum {
    let mut sum = Sum::ZERO;
    for piece in pieces {
        let count = piece.len().min(out.len());
        let (source, left) = piece.split_at(count);
        let (target, room) = out.split_at_mut(count);
        sum = sum.then(copy_and_sum(target, source));
        *piece = left;
        out = room;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_goes_across_pieces_and_sums_as_one() {
        let mut pieces: [&[u8]; 2] = [b"abc", b"defgh"];
        let (mut first, mut second) = ([0u8; 4], [0u8; 4]);
        let sum = fill(&mut pieces, &mut first).then(fill(&mut pieces, &mut second));
        assert_eq!((&first, &second), (b"abcd", b"efgh"));
        assert_eq!(sum.fold(), Sum::of(b"abcdefgh").fold());
        assert!(pieces.iter().all(|piece| piece.is_empty()));
    }
}
