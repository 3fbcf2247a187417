//! The IPv4 header (RFC 791 section 3.1). Addresses are not judged, options are stepped over,
//! nothing is reassembled.

use core::net::Ipv4Addr;

use super::checksum::Sum;
use crate::drop_reason::DropReason;

/// The length of a header without options, which is the only kind emitted.
pub const HEADER_LEN: usize = 20;

/// The largest datagram, header included.
pub const MAX_TOTAL_LEN: usize = 0xffff;

/// The largest payload of a datagram whose header has no options.
pub const MAX_PAYLOAD_LEN: usize = MAX_TOTAL_LEN - HEADER_LEN;

/// An option of which the last two bytes may be anything (RFC 791 section 3.1). Nobody uses it: in it lies the upper half of an
/// identification of IPv6, of which [`crate::translation`] has made one of IPv4.
pub const STREAM_IDENTIFIER: [u8; 4] = [136, 4, 0, 0];

/// The identification of a packet with that option first, by all of its 32 bits.
pub fn long_ident(packet: &[u8]) -> Option<u32> {
    let (&[first, _, _, _, i2, i3, ..], rest) = packet.split_first_chunk::<HEADER_LEN>()?;
    let &[kind, _, i0, i1] = rest.first_chunk()?;
    let has_option = first & 0x0f > (HEADER_LEN / 4) as u8 && kind == STREAM_IDENTIFIER[0];
    has_option.then_some(u32::from_be_bytes([i0, i1, i2, i3]))
}

/// IP protocol numbers.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
}

/// An IPv4 header that is valid: the lengths fit each other and the fragment offset fits its field.
/// What any value suits is public; what depends on the rest is set by the constructors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub protocol: u8,
    pub ttl: u8,
    pub tos: u8,
    pub ident: u16,
    pub dont_fragment: bool,
    pub more_fragments: bool,
    /// In units of 8 bytes, at most 0x1fff.
    fragment_units: u16,
    /// 20 to 60, a multiple of 4.
    header_len: u8,
    /// Not below `header_len`.
    total_len: u16,
}

impl Header {
    /// A header without options for an unfragmented datagram, TTL 64. `None` if the payload exceeds
    /// [`MAX_PAYLOAD_LEN`].
    #[inline]
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload_len: usize) -> Option<Self> {
        let total_len = u16::try_from(payload_len.checked_add(HEADER_LEN)?).ok()?;
        Some(Self {
            src,
            dst,
            protocol,
            ttl: 64,
            tos: 0,
            ident: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_units: 0,
            header_len: HEADER_LEN as u8,
            total_len,
        })
    }

    /// The same header for the fragment of `payload_len` bytes at `offset`. `None` if the offset is
    /// not a multiple of 8 below 65536, or if the payload makes the packet exceed
    /// [`MAX_TOTAL_LEN`].
    #[inline]
    pub fn for_fragment(
        self,
        offset: usize,
        payload_len: usize,
        more_fragments: bool,
    ) -> Option<Self> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let fragment_units =
            u16::try_from(offset / 8).ok().filter(|units| *units <= OFFSET_MASK)?;
        let total_len = u16::try_from(payload_len.checked_add(self.header_len())?).ok()?;
        Some(Self { more_fragments, fragment_units, total_len, ..self })
    }

    /// Parses and verifies the header at the start of `bytes`, the first linear piece of a packet
    /// that has `available` bytes in all. Any bytes beyond the total length are link padding.
    ///
    /// RFC 1122 3.2.1.1 and 3.2.1.2: a wrong version or checksum is silently discarded. The checks
    /// come in Linux's order, so that a corrupted length counts as a bad checksum.
    #[inline]
    pub fn parse(bytes: &[u8], available: usize) -> Result<Self, DropReason> {
        let bytes = bytes.get(..available).unwrap_or(bytes);
        let Some(
            &[
                first,
                tos,
                l0,
                l1,
                i0,
                i1,
                f0,
                f1,
                ttl,
                protocol,
                _,
                _,
                s0,
                s1,
                s2,
                s3,
                d0,
                d1,
                d2,
                d3,
            ],
        ) = bytes.first_chunk::<HEADER_LEN>()
        else {
            return Err(DropReason::TooShort);
        };
        if first >> 4 != 4 {
            return Err(DropReason::BadIpVersion);
        }
        let header_len = (first & 0x0f).saturating_mul(4);
        if usize::from(header_len) < HEADER_LEN {
            return Err(DropReason::BadIpHeaderLength);
        }
        let Some(header) = bytes.get(..usize::from(header_len)) else {
            return Err(DropReason::TooShort);
        };
        if Sum::of(header).fold() != 0xffff {
            return Err(DropReason::BadIpChecksum);
        }
        let total_len = u16::from_be_bytes([l0, l1]);
        if total_len < u16::from(header_len) || usize::from(total_len) > available {
            return Err(DropReason::BadIpTotalLength);
        }
        let fragment = u16::from_be_bytes([f0, f1]);
        Ok(Self {
            src: Ipv4Addr::new(s0, s1, s2, s3),
            dst: Ipv4Addr::new(d0, d1, d2, d3),
            protocol,
            ttl,
            tos,
            ident: u16::from_be_bytes([i0, i1]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_units: fragment & OFFSET_MASK,
            header_len,
            total_len,
        })
    }

    /// Writes the header, checksum included. Options are not carried along: the packet written has
    /// 20 bytes of header and [`Header::payload_len`] bytes of payload.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let total_len = self
            .total_len
            .saturating_sub(u16::from(self.header_len))
            .saturating_add(HEADER_LEN as u16);
        let [l0, l1] = total_len.to_be_bytes();
        let [i0, i1] = self.ident.to_be_bytes();
        let mut fragment = self.fragment_units;
        if self.dont_fragment {
            fragment |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= MORE_FRAGMENTS;
        }
        let [f0, f1] = fragment.to_be_bytes();
        let [s0, s1, s2, s3] = self.src.octets();
        let [d0, d1, d2, d3] = self.dst.octets();
        let (tos, ttl, protocol) = (self.tos, self.ttl, self.protocol);
        // Summed in registers: the words are at hand, and reading back bytes just stored would
        // stall.
        let sum = Sum::of(&[0x45, tos, l0, l1, i0, i1, f0, f1])
            .then(Sum::of(&[ttl, protocol, 0, 0, 0, 0, 0, 0]))
            .then(Sum::of(&[s0, s1, s2, s3, d0, d1, d2, d3]));
        let [c0, c1] = sum.checksum().to_be_bytes();
        *out = [
            0x45, tos, l0, l1, i0, i1, f0, f1, ttl, protocol, c0, c1, s0, s1, s2, s3, d0, d1, d2,
            d3,
        ];
    }

    /// The length of the header with its options, in bytes: where the payload begins.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.header_len)
    }

    /// The length of the packet, header included.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.total_len)
    }

    #[inline]
    pub fn payload_len(&self) -> usize {
        self.total_len().saturating_sub(self.header_len())
    }

    /// Where this packet's payload belongs in its datagram's, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.fragment_units).saturating_mul(8)
    }

    /// Whether this packet is a part of a datagram only.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_units != 0
    }
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// From Wikipedia's worked example of the header checksum, with a payload of 95 bytes.
    const EXAMPLE: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    fn rewritten(index: usize, value: u8) -> [u8; 20] {
        let mut bytes = EXAMPLE;
        bytes[index] = value;
        checksummed(bytes)
    }

    fn checksummed<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
        bytes[10..12].fill(0);
        let checksum = Sum::of(&bytes).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn parses_and_emits_the_known_header() {
        let header = Header::parse(&EXAMPLE, 0x73).unwrap();
        assert_eq!(header.src, Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(header.dst, Ipv4Addr::new(192, 168, 0, 199));
        assert_eq!(
            (header.protocol, header.ttl, header.tos, header.ident),
            (protocol::UDP, 64, 0, 0)
        );
        assert!(header.dont_fragment && !header.more_fragments && !header.is_fragment());
        assert_eq!((header.header_len(), header.total_len(), header.payload_len()), (20, 0x73, 95));
        let mut out = [0; 20];
        header.emit(&mut out);
        assert_eq!(out, EXAMPLE);
    }

    #[test]
    fn each_defect_has_its_reason() {
        assert_eq!(Header::parse(&EXAMPLE[..19], 0x73), Err(DropReason::TooShort));
        assert_eq!(Header::parse(&EXAMPLE, 19), Err(DropReason::TooShort));
        assert_eq!(Header::parse(&rewritten(0, 0x65), 0x73), Err(DropReason::BadIpVersion));
        assert_eq!(Header::parse(&rewritten(0, 0x44), 0x73), Err(DropReason::BadIpHeaderLength));
        assert_eq!(Header::parse(&rewritten(0, 0x46), 0x73), Err(DropReason::TooShort));
        assert_eq!(Header::parse(&EXAMPLE, 0x72), Err(DropReason::BadIpTotalLength));
        assert_eq!(Header::parse(&rewritten(3, 19), 0x73), Err(DropReason::BadIpTotalLength));
        let mut corrupt = EXAMPLE;
        corrupt[8] ^= 1;
        assert_eq!(Header::parse(&corrupt, 0x73), Err(DropReason::BadIpChecksum));
    }

    #[test]
    fn padding_behind_the_packet_is_not_payload() {
        let bytes = [rewritten(3, 21).as_slice(), &[0; 26]].concat();
        assert_eq!(Header::parse(&bytes, bytes.len()).unwrap().payload_len(), 1);
    }

    #[test]
    fn options_are_stepped_over() {
        let mut bytes = [0x01; 24];
        bytes[..20].copy_from_slice(&EXAMPLE);
        bytes[0] = 0x46;
        let header = Header::parse(&checksummed(bytes), 0x73).unwrap();
        assert_eq!((header.header_len(), header.payload_len()), (24, 91));
        assert_eq!(Header::parse(&checksummed(bytes)[..22], 0x73), Err(DropReason::TooShort));
        // Re-emitted without them, the payload keeps its length.
        let mut out = [0; 20];
        header.emit(&mut out);
        let again = Header::parse(&out, 0x73).unwrap();
        assert_eq!((again.header_len(), again.payload_len()), (20, 91));
    }

    #[test]
    fn constructors_refuse_what_does_not_fit() {
        let any = Ipv4Addr::UNSPECIFIED;
        assert!(Header::new(any, any, 17, MAX_PAYLOAD_LEN).is_some());
        assert!(Header::new(any, any, 17, MAX_PAYLOAD_LEN + 1).is_none());
        assert!(Header::new(any, any, 17, usize::MAX).is_none());
        let header = Header::new(any, any, 17, 0).unwrap();
        assert!(header.for_fragment(65528, 8, false).is_some());
        assert!(header.for_fragment(65536, 8, false).is_none());
        assert!(header.for_fragment(4, 8, false).is_none());
        assert!(header.for_fragment(0, usize::MAX, false).is_none());
    }

    proptest! {
        #[test]
        fn parse_inverts_emit(
            src: u32, dst: u32, protocol: u8, ttl: u8, tos: u8, ident: u16,
            dont_fragment: bool, more: bool,
            units in 0usize..=0x1fff, payload_len in 0usize..=MAX_PAYLOAD_LEN,
        ) {
            let header = Header::new(src.into(), dst.into(), protocol, payload_len).unwrap();
            let header = Header { ttl, tos, ident, dont_fragment, ..header };
            let header = header.for_fragment(units * 8, payload_len, more).unwrap();
            let mut out = [0; 20];
            header.emit(&mut out);
            prop_assert_eq!(Header::parse(&out, HEADER_LEN + payload_len), Ok(header));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), available: usize) {
            if let Ok(header) = Header::parse(&bytes, available) {
                prop_assert!(header.total_len() <= available);
            }
        }

        #[test]
        fn no_well_summed_bytes_panic(mut bytes: [u8; 60], available in 0usize..70000) {
            bytes[0] = 0x40 | bytes[0] & 0x0f;
            let header_len = usize::from(bytes[0] & 0x0f) * 4;
            bytes[10..12].fill(0);
            let checksum = Sum::of(&bytes[..header_len]).checksum();
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            if let Ok(header) = Header::parse(&bytes, available) {
                prop_assert_eq!(header.header_len(), header_len);
                prop_assert_eq!(header.header_len() + header.payload_len(), header.total_len());
            }
        }
    }
}
