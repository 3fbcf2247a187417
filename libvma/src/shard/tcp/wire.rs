//! Segments out: headers, checksum and payload into frames of a ring, in one copy.

use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{Link, Outgoing, Piece};
use libvma_engine::wire::checksum::{Sum, copy_and_sum};
use libvma_engine::wire::ipv4;
use libvma_engine::wire::tcp::{Flags, Header, MAX_HEADER_LEN};

use super::body::{self, Body, Heaps};
use super::way::{LEAD, Lead, Way};
use crate::device::Ring;
use crate::log::log_line;
use crate::shard::transmit::flow_number;

/// A segment beyond this size takes the way of the super-frames where there is one: the kernel
/// copies it from the send buffer itself, nobody sums it, and it has no limit of pieces (AF_XDP:
/// MAX_SKB_FRAGS, some 36 KB in chunks of 2 KiB).
const LARGE: usize = 4096;

/// A connection's way out, for the length of one call of the engine.
pub struct Wire<'a> {
    pub(super) rings: &'a mut [Ring],
    pub(super) ident: &'a mut u16,
    pub(super) heaps: &'a mut Heaps,
    pub(super) way: &'a Way,
    pub(super) key: FlowKey,
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
        let Some(id) = self.way.ring() else { return false };
        // A ring never goes away.
        let Some(ring) = self.rings.get_mut(id.index()) else { return true };
        let [first, second] = segment.payload;
        let len = first.len() + second.len();
        let header_len = segment.header.header_len();
        if header_len + len > ipv4::MAX_PAYLOAD_LEN {
            return true;
        }
        *self.ident = self.ident.wrapping_add(1);
        let lead = Lead {
            len: (header_len + len) as u16,
            ident: *self.ident,
            ecn_capable: segment.ecn_capable,
        };
        let cut = len > segment.segment_size as usize;
        if cut && ring.segmentation_limit() == 0 {
            self.uncut = true;
            self.refused = true;
            return false;
        }
        let done = if cut || len > LARGE && ring.segmentation_limit() > 0 {
            let (src, dst) = (self.key.local, self.key.remote);
            let header = segment.header.partially_checksummed(src, dst, len);
            let mut bytes = [0u8; LEAD + MAX_HEADER_LEN];
            if let Some((front, rest)) = bytes.split_first_chunk_mut() {
                self.way.write(&self.key, lead, front);
                header.emit(rest);
            }
            let headers = bytes.get(..LEAD + header_len).unwrap_or_default();
            let size = u16::try_from(segment.segment_size).unwrap_or(u16::MAX);
            ring.transmit_segmented(headers, segment.payload, size)
        } else {
            let header = (&self.key, &segment.header);
            transmit(ring, self.way.destination_mac(), header, segment.payload, |out| {
                self.way.write(&self.key, lead, out)
            })
        };
        self.refused |= !done;
        // PSH marks the end of the data.
        if done && self.eager && segment.header.flags.contains(Flags::PSH) {
            ring.kick_soon();
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

/// Writes one packet, its Ethernet and IP header by `lead`, and queues it on the ring. False if no frame
/// is free.
#[inline]
pub(super) fn transmit(
    ring: &mut Ring,
    destination: [u8; 6],
    (key, header): (&FlowKey, &Header),
    payload: [&[u8]; 2],
    lead: impl Fn(&mut [u8; LEAD]),
) -> bool {
    let skip = LEAD + header.header_len();
    let [first, second] = payload;
    let len = first.len() + second.len();
    let Some(frame) = ring.allocate(destination, skip + len) else { return false };
    ring.aim(flow_number(key.local_port, key.remote_port));
    let headers = |sum: Sum, bytes: &mut [u8]| {
        if let Some((front, rest)) = bytes.split_first_chunk_mut() {
            lead(front);
            header.emit_checksummed(key.local, key.remote, sum, len, rest);
        }
    };
    // The payload first: the checksum in the headers before it comes from that copy. A chain has its sum
    // with its last piece only, and is walked again for the headers in the first.
    let mut pieces = payload;
    let mut sum = Sum::ZERO;
    let mut is_whole = false;
    ring.write(&frame, |offset, bytes| {
        let data = if offset == 0 { bytes.get_mut(skip..) } else { Some(&mut *bytes) };
        if let Some(data) = data {
            sum = sum.then(fill(&mut pieces, data));
        }
        if bytes.len() == skip + len {
            headers(sum, bytes);
            is_whole = true;
        }
    });
    if !is_whole {
        ring.write(&frame, |offset, bytes| {
            if offset == 0 {
                headers(sum, bytes);
            }
        });
    }
    ring.transmit(frame);
    log_line!(Finer, "{} bytes leave for {}: {header:?}", len, key.remote);
    true
}

/// Fills `out` from the pieces and takes what was copied off them.
#[inline]
fn fill(pieces: &mut [&[u8]; 2], mut out: &mut [u8]) -> Sum {
    if let [only, []] = pieces
        && only.len() == out.len()
    {
        return copy_and_sum(out, core::mem::take(only));
    }
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
