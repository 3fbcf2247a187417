//! What a slot can hold: a packet or a message, all in the slot or with chunks. No memory here.
//!
//! | | in the slot | in chunks |
//! |---|---|---|
//! | packet (kind 0) | its first 120 bytes, or its first 56 if it has chunks | the rest |
//! | message | three words of header, then up to 96 bytes of payload | payload, if it is longer |
//!
//! The numbers of the chunks stand in the slot's second cache line, two bytes each.

use super::lane::{INLINE, NEAR};
use super::segment::CHUNK;

/// Most chunks of one record: what the second cache line has room for.
pub const MOST_CHUNKS: usize = (INLINE - NEAR) / 2;

/// Bytes of a message's header.
pub const HEADER: usize = 24;

/// Least bytes of a packet: an Ethernet header.
pub const LEAST_PACKET: usize = 14;

/// Most bytes of a packet.
pub const MOST_PACKET: usize = NEAR + MOST_CHUNKS * CHUNK;

/// Most bytes of a message's payload.
pub const MOST_PAYLOAD: usize = MOST_CHUNKS * CHUNK;

/// Most bytes of a message's payload without chunks.
pub const MOST_INLINE_PAYLOAD: usize = INLINE - HEADER;

/// Where the bytes of a record lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Payload in the slot: from here ...
    pub start: usize,
    /// ... to here.
    pub end: usize,
    /// Chunks after it.
    pub chunks: usize,
    /// Bytes of the slot in use.
    pub used: usize,
}

impl Shape {
    /// The shape of a record; `None` if there is no such record. A packet has all its headers in
    /// the slot.
    #[inline(always)]
    pub fn of(kind: u8, len: usize) -> Option<Shape> {
        if kind == 0 { Shape::packet(len) } else { Shape::message(len) }
    }

    #[inline(always)]
    pub fn packet(len: usize) -> Option<Shape> {
        if len <= INLINE {
            let shape = Shape { start: 0, end: len, chunks: 0, used: len };
            return (len >= LEAST_PACKET).then_some(shape);
        }
        let chunks = (len - NEAR).div_ceil(CHUNK);
        (chunks <= MOST_CHUNKS).then_some(Shape { start: 0, end: NEAR, chunks, used: INLINE })
    }

    #[inline(always)]
    pub fn message(len: usize) -> Option<Shape> {
        if len <= MOST_INLINE_PAYLOAD {
            let end = HEADER + len;
            return Some(Shape { start: HEADER, end, chunks: 0, used: end });
        }
        let chunks = len.div_ceil(CHUNK);
        let shape = Shape { start: HEADER, end: HEADER, chunks, used: INLINE };
        (chunks <= MOST_CHUNKS).then_some(shape)
    }
}

/// The half of a control word that says what the record is.
#[inline(always)]
pub fn encode(kind: u8, len: usize) -> u32 {
    debug_assert!(len < 1 << 24);
    u32::from(kind) << 24 | len as u32
}

/// The kind and the length.
#[inline(always)]
pub fn decode(record: u32) -> (u8, usize) {
    ((record >> 24) as u8, (record & 0x00ff_ffff) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_holds_exactly_the_length() {
        for len in 0..=MOST_PACKET + 1 {
            for kind in [0, 1] {
                let fits = match kind {
                    0 => (LEAST_PACKET..=MOST_PACKET).contains(&len),
                    _ => len <= MOST_PAYLOAD,
                };
                let shape = Shape::of(kind, len);
                assert_eq!(shape.is_some(), fits, "kind {kind}, {len} bytes");
                let Some(shape) = shape else { continue };
                let left = len - (shape.end - shape.start);
                assert_eq!(shape.chunks, left.div_ceil(CHUNK));
                assert!(shape.end <= shape.used && shape.used <= INLINE);
                assert!(shape.chunks == 0 || shape.end <= NEAR);
                assert_eq!(decode(encode(kind, len)), (kind, len));
            }
        }
    }

    #[test]
    fn the_smallest_datagrams_and_messages_take_one_cache_line() {
        assert!(Shape::packet(14 + 20 + 8 + 14).is_some_and(|shape| shape.used <= NEAR));
        assert!(Shape::message(32).is_some_and(|shape| shape.used <= NEAR));
        assert!(Shape::packet(14 + 20 + 8 + 64).is_some_and(|shape| shape.chunks == 0));
    }
}
