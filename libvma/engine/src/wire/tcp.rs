//! The TCP header (RFC 9293 section 3.1) and its checksum. Sequence numbers are plain numbers here:
//! no connection is known and nothing is judged but the layout.

use core::net::Ipv4Addr;

mod options;

pub use options::{MAX_WINDOW_SCALE, Options, SackBlock, SackBlocks, TIMESTAMPS_LEN, Timestamps};

use options::NOPS_AND_TIMESTAMPS;

use super::checksum::{Sum, pseudo_header};
use super::ipv4::protocol;
use super::udp::PartialChecksum;
use crate::drop_reason::DropReason;

/// The length of a header without options.
pub const HEADER_LEN: usize = 20;

/// The length of the longest header: the data offset counts up to 15 words.
pub const MAX_HEADER_LEN: usize = 60;

/// A header. Every value can be emitted; the data offset follows from the options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: u32,
    /// Meaningless without [`Flags::ACK`].
    pub ack: u32,
    pub flags: Flags,
    /// As it lies on the wire: not scaled.
    pub window: u16,
    pub checksum: u16,
    /// Meaningless without [`Flags::URG`].
    pub urgent: u16,
    pub options: Options,
}

impl Header {
    /// A SYN that answers nothing.
    pub fn is_opening(&self) -> bool {
        self.flags.contains(Flags::SYN)
            && !self.flags.intersects(Flags::ACK.with(Flags::RST).with(Flags::FIN))
    }

    /// Parses the header at the start of `bytes`, the first linear piece of an IP payload of
    /// `ip_payload_len` bytes. Also returns the header's length, which is where the data begins.
    #[inline]
    pub fn parse(bytes: &[u8], ip_payload_len: usize) -> Result<(Header, usize), DropReason> {
        let mut header = Header::default();
        let len = header.parse_from(bytes, ip_payload_len)?;
        Ok((header, len))
    }

    /// The same in place, into a default header.
    #[inline]
    pub fn parse_from(&mut self, bytes: &[u8], ip_payload_len: usize) -> Result<usize, DropReason> {
        let bytes = bytes.get(..ip_payload_len).unwrap_or(bytes);
        let Some((fixed, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(DropReason::TooShort);
        };
        let (&[ports, seq, ack, control, last], _) = fixed.as_chunks::<4>() else {
            return Err(DropReason::TooShort);
        };
        // By words, as senders write them: a load across two fresh stores would wait for both.
        let [ports, control, last] = [ports, control, last].map(u32::from_be_bytes);
        let len = (control >> 28).wrapping_mul(4) as usize;
        if len < HEADER_LEN || len > ip_payload_len {
            return Err(DropReason::BadTcpHeaderLength);
        }
        let Some(options) = rest.get(..len.saturating_sub(HEADER_LEN)) else {
            return Err(DropReason::TooShort);
        };
        self.src_port = (ports >> 16) as u16;
        self.dst_port = ports as u16;
        self.seq = u32::from_be_bytes(seq);
        self.ack = u32::from_be_bytes(ack);
        self.flags = Flags((control >> 16) as u8);
        self.window = control as u16;
        self.checksum = (last >> 16) as u16;
        self.urgent = last as u16;
        self.options.parse_into(options);
        Ok(len)
    }

    /// The length of this header on the wire: 20 to 60 bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN.saturating_add(self.options.len_on_wire())
    }

    /// Writes the header with its options to the start of `out` and returns its length; 0 if `out`
    /// is too short.
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        if let Some(timestamps) = self.options.only_timestamps() {
            let Some(out) = out.first_chunk_mut::<{ HEADER_LEN + TIMESTAMPS_LEN }>() else {
                return 0;
            };
            let (fixed, options) = out.split_at_mut(HEADER_LEN);
            put_words(fixed, self.fixed_words(HEADER_LEN + TIMESTAMPS_LEN));
            put_words(options, [NOPS_AND_TIMESTAMPS, timestamps.value, timestamps.echo]);
            return HEADER_LEN + TIMESTAMPS_LEN;
        }
        if self.options.is_empty() {
            let Some(out) = out.first_chunk_mut::<HEADER_LEN>() else {
                return 0;
            };
            put_words(out, self.fixed_words(HEADER_LEN));
            return HEADER_LEN;
        }
        self.emit_any(out)
    }

    /// The same with any options, which few segments have: apart, so that the others stay short.
    #[inline(never)]
    fn emit_any(&self, out: &mut [u8]) -> usize {
        let len = self.header_len();
        let Some(out) = out.get_mut(..len) else {
            return 0;
        };
        let (fixed, options) = out.split_at_mut(HEADER_LEN);
        put_words(fixed, self.fixed_words(len));
        let mut places = options.as_chunks_mut::<4>().0.iter_mut();
        self.options.for_each_word(|word| {
            if let Some(place) = places.next() {
                *place = word.to_be_bytes();
            }
        });
        len
    }

    /// The same header with the checksum over it and the `payload_len` bytes behind it, whose sum
    /// is `payload`.
    #[inline]
    #[must_use]
    pub fn checksummed(
        self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        payload: Sum,
        payload_len: usize,
    ) -> Header {
        let checksum = self.checksum_with(src, dst, payload, payload_len);
        Header { checksum, ..self }
    }

    /// Writes the header with the checksum that [`Header::checksummed`] gives it to the start of `out`
    /// and returns its length; 0 if `out` is too short.
    #[inline]
    pub fn emit_checksummed(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        payload: Sum,
        payload_len: usize,
        out: &mut [u8],
    ) -> usize {
        const LEN: usize = HEADER_LEN + TIMESTAMPS_LEN;
        let Some(timestamps) = self.options.only_timestamps() else {
            return self.checksummed(src, dst, payload, payload_len).emit(out);
        };
        // Nearly every segment: no copy of the header, and each word is made once.
        let Some(out) = out.first_chunk_mut::<LEN>() else { return 0 };
        let fixed_words = self.fixed_words(LEN);
        let stamps = [NOPS_AND_TIMESTAMPS, timestamps.value, timestamps.echo];
        let mut words =
            self.sum_but_options(src, dst, fixed_words, LEN.saturating_add(payload_len));
        stamps.into_iter().for_each(|word| words = words.wrapping_add(u64::from(word)));
        let checksum = Sum::ZERO.then_u16(fold(words)).then(payload).checksum();
        let [ports, seq, ack, control, _] = fixed_words;
        let last = u32::from(checksum) << 16 | u32::from(self.urgent);
        let (fixed, options) = out.split_at_mut(HEADER_LEN);
        put_words(fixed, [ports, seq, ack, control, last]);
        put_words(options, stamps);
        LEN
    }

    /// The checksum that [`Header::checksummed`] puts into the header, whatever is there now.
    #[inline]
    pub fn checksum_with(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        payload: Sum,
        payload_len: usize,
    ) -> u16 {
        let len = self.header_len();
        let total = len.saturating_add(payload_len);
        let mut words = self.sum_but_options(src, dst, self.fixed_words(len), total);
        self.options.for_each_word(|word| words = words.wrapping_add(u64::from(word)));
        Sum::ZERO.then_u16(fold(words)).then(payload).checksum()
    }

    /// The words of the pseudo header and of the fixed header, without a checksum, added up for a
    /// segment of `total_len` bytes. They are summed on their way from the fields to the wire, not read
    /// back from there: wide loads of just written narrow stores would stall.
    #[inline(always)]
    fn sum_but_options(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        fixed_words: [u32; 5],
        total_len: usize,
    ) -> u64 {
        let [ports, seq, ack, control, _] = fixed_words;
        let len = u32::from(segment_len(total_len));
        let pseudo = [src.to_bits(), dst.to_bits(), u32::from(protocol::TCP), len];
        let fixed = [ports, seq, ack, control, u32::from(self.urgent)];
        let words = pseudo.into_iter().chain(fixed).map(u64::from);
        words.fold(0, u64::wrapping_add)
    }

    /// The same header with the pseudo header's sum only, for a device that adds the rest
    /// ([`PartialChecksum`] describes the form).
    #[inline]
    #[must_use]
    pub fn partially_checksummed(self, src: Ipv4Addr, dst: Ipv4Addr, payload_len: usize) -> Header {
        let checksum = pseudo_sum(src, dst, self.header_len().saturating_add(payload_len));
        Header { checksum, ..self }
    }

    /// Verifies the checksum of the segment that begins with this header and is `segment_len` bytes
    /// long (the IP payload), given in pieces. Bytes beyond are link padding and not looked at.
    ///
    /// The header's own bytes must be among the pieces: options nobody here knows count too.
    #[inline]
    pub fn verify<'a>(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        segment: impl IntoIterator<Item = &'a [u8]>,
        segment_len: usize,
        partial: PartialChecksum,
    ) -> Result<(), DropReason> {
        let pseudo = pseudo_header_of(src, dst, segment_len);
        if partial == PartialChecksum::Accept && self.checksum == pseudo.fold() {
            // No byte need be read.
            return Ok(());
        }
        let mut left = segment_len;
        let mut sum = pseudo;
        for piece in segment {
            let piece = piece.get(..left).unwrap_or(piece);
            sum = sum.then(Sum::of(piece));
            left = left.saturating_sub(piece.len());
        }
        if left != 0 {
            return Err(DropReason::TooShort);
        }
        match sum.fold() {
            0xffff => Ok(()),
            _ => Err(DropReason::BadTcpChecksum),
        }
    }

    /// How many sequence numbers SYN and FIN take besides the data (RFC 9293 section 3.4).
    #[inline]
    pub fn control_len(&self) -> u32 {
        u32::from(self.flags.contains(Flags::SYN))
            .wrapping_add(u32::from(self.flags.contains(Flags::FIN)))
    }

    /// The first 20 bytes of a header of `len` bytes, as words in host byte order.
    #[inline(always)]
    fn fixed_words(&self, len: usize) -> [u32; 5] {
        // `len` is 20 to 60, so the number of words fits the four bits of the data offset.
        let offset = (len as u32 >> 2) << 28;
        [
            u32::from(self.src_port) << 16 | u32::from(self.dst_port),
            self.seq,
            self.ack,
            offset | u32::from(self.flags.0) << 16 | u32::from(self.window),
            u32::from(self.checksum) << 16 | u32::from(self.urgent),
        ]
    }
}

/// The pseudo header's sum for a segment of `total_len` bytes (header and data), folded but not
/// complemented: what a device that completes the checksum wants to find in its place.
#[inline]
pub fn pseudo_sum(src: Ipv4Addr, dst: Ipv4Addr, total_len: usize) -> u16 {
    pseudo_header_of(src, dst, total_len).fold()
}

/// The control bits (RFC 9293 section 3.1, RFC 3168 section 6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    pub const NONE: Flags = Flags(0);
    pub const FIN: Flags = Flags(0x01);
    pub const SYN: Flags = Flags(0x02);
    pub const RST: Flags = Flags(0x04);
    pub const PSH: Flags = Flags(0x08);
    pub const ACK: Flags = Flags(0x10);
    pub const URG: Flags = Flags(0x20);
    pub const ECE: Flags = Flags(0x40);
    pub const CWR: Flags = Flags(0x80);

    #[inline]
    pub const fn from_bits(bits: u8) -> Flags {
        Flags(bits)
    }

    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    #[must_use]
    pub const fn with(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }

    #[inline]
    #[must_use]
    pub const fn without(self, others: Flags) -> Flags {
        Flags(self.0 & !others.0)
    }

    /// Whether all of `others` are set.
    #[inline]
    pub const fn contains(self, others: Flags) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of `others` is set.
    #[inline]
    pub const fn intersects(self, others: Flags) -> bool {
        self.0 & others.0 != 0
    }
}

/// Writes `words` in network byte order.
#[inline]
fn put_words<const N: usize>(out: &mut [u8], words: [u32; N]) {
    for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
}

#[inline]
fn pseudo_header_of(src: Ipv4Addr, dst: Ipv4Addr, total_len: usize) -> Sum {
    pseudo_header(src, dst, protocol::TCP, segment_len(total_len))
}

/// The length in the pseudo header. An IP payload is below 64 KiB; a longer one is a caller's
/// mistake, which costs its checksum.
#[inline]
fn segment_len(total_len: usize) -> u16 {
    u16::try_from(total_len).unwrap_or(u16::MAX)
}

/// The ones-complement sum of the 16-bit halves of at most 2^16 summed words.
#[inline]
fn fold(words: u64) -> u16 {
    let sum = (words & 0xffff).wrapping_add((words >> 16) & 0xffff).wrapping_add(words >> 32);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16); // at most 0x10001
    (sum & 0xffff).wrapping_add(sum >> 16) as u16
}

#[cfg(test)]
mod tests;
