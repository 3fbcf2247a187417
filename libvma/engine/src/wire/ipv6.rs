//! The IPv6 header (RFC 8200 section 3). Addresses are not judged, and of extension headers that of a fragment alone is read.

use core::net::Ipv6Addr;

use crate::drop_reason::DropReason;

pub const HEADER_LEN: usize = 40;

/// RFC 8200 section 4.5.
pub const FRAGMENT_HEADER_LEN: usize = 8;
/// The next header's number.
pub const FRAGMENT: u8 = 44;

/// An IPv6 header: every combination of its fields is valid, but for a flow label beyond 20 bits, of which the lower ones are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    /// As IPv4's TOS (RFC 2474).
    pub traffic_class: u8,
    /// RFC 6437.
    pub flow_label: u32,
    /// Extension headers included.
    pub payload_len: u16,
    /// A protocol number of IPv4, or that of an extension header.
    pub next_header: u8,
    pub hop_limit: u8,
}

impl Header {
    /// Parses the header at the start of `bytes`, the first linear piece of a packet that has `available` bytes in all. Any bytes
    /// beyond the payload are link padding.
    #[inline]
    pub fn parse(bytes: &[u8], available: usize) -> Result<Self, DropReason> {
        let bytes = bytes.get(..available).unwrap_or(bytes);
        let Some((&[v, c, f, l, p0, p1, next_header, hop_limit], rest)) = bytes.split_first_chunk()
        else {
            return Err(DropReason::TooShort);
        };
        let Some((src, rest)) = rest.split_first_chunk::<16>() else {
            return Err(DropReason::TooShort);
        };
        let Some((dst, _)) = rest.split_first_chunk::<16>() else {
            return Err(DropReason::TooShort);
        };
        if v >> 4 != 6 {
            return Err(DropReason::BadIpVersion);
        }
        let payload_len = u16::from_be_bytes([p0, p1]);
        if HEADER_LEN + usize::from(payload_len) > available {
            return Err(DropReason::BadIpTotalLength);
        }
        Ok(Self {
            src: Ipv6Addr::from(*src),
            dst: Ipv6Addr::from(*dst),
            traffic_class: v << 4 | c >> 4,
            flow_label: u32::from_be_bytes([0, c & 0x0f, f, l]),
            payload_len,
            next_header,
            hop_limit,
        })
    }

    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let [_, high, f, l] = self.flow_label.to_be_bytes();
        let [p0, p1] = self.payload_len.to_be_bytes();
        let class = self.traffic_class;
        let fixed = [
            6 << 4 | class >> 4,
            class << 4 | high & 0x0f,
            f,
            l,
            p0,
            p1,
            self.next_header,
            self.hop_limit,
        ];
        let (front, rest) = out.split_at_mut(fixed.len());
        let (src, dst) = rest.split_at_mut(16);
        front.copy_from_slice(&fixed);
        src.copy_from_slice(&self.src.octets());
        dst.copy_from_slice(&self.dst.octets());
    }
}

/// A fragment header behind that of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub next_header: u8,
    /// In bytes, a multiple of 8.
    pub offset: u16,
    pub more: bool,
    pub ident: u32,
}

impl Fragment {
    /// Reads it from the packet that begins with this header. None: another header follows.
    #[inline]
    pub fn of(header: &Header, packet: &[u8]) -> Result<Option<Self>, DropReason> {
        if header.next_header != FRAGMENT {
            return Ok(None);
        }
        let bytes = packet.get(HEADER_LEN..).and_then(|rest| rest.first_chunk());
        let &[next_header, _, high, low, i0, i1, i2, i3] = bytes.ok_or(DropReason::TooShort)?;
        let place = u16::from_be_bytes([high, low]);
        let (offset, more) = (place & !7, place & 1 != 0);
        Ok(Some(Self { next_header, offset, more, ident: u32::from_be_bytes([i0, i1, i2, i3]) }))
    }

    #[inline]
    pub fn emit(&self, out: &mut [u8; FRAGMENT_HEADER_LEN]) {
        let [high, low] = (self.offset | u16::from(self.more)).to_be_bytes();
        let [i0, i1, i2, i3] = self.ident.to_be_bytes();
        *out = [self.next_header, 0, high, low, i0, i1, i2, i3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
        dst: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
        traffic_class: 0xb9,
        flow_label: 0xabcde,
        payload_len: 0x1234,
        next_header: 6,
        hop_limit: 64,
    };

    fn bytes() -> [u8; HEADER_LEN] {
        let mut bytes = [0xee; HEADER_LEN];
        HEADER.emit(&mut bytes);
        bytes
    }

    #[test]
    fn fields_lie_where_the_rfc_has_them() {
        let bytes = bytes();
        assert_eq!(bytes[..8], [0x6b, 0x9a, 0xbc, 0xde, 0x12, 0x34, 6, 64]);
        assert_eq!(bytes[8..24], HEADER.src.octets());
        assert_eq!(bytes[24..], HEADER.dst.octets());
        assert_eq!(Header::parse(&bytes, 0x2000), Ok(HEADER));
        let mut out = [0; HEADER_LEN];
        Header { flow_label: 0xfffa_bcde, ..HEADER }.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = bytes();
        let whole = HEADER_LEN + 0x1234;
        assert!(Header::parse(&good, whole).is_ok());
        assert_eq!(Header::parse(&good, whole - 1), Err(DropReason::BadIpTotalLength));
        for len in 0..HEADER_LEN {
            assert_eq!(Header::parse(&good[..len], whole), Err(DropReason::TooShort));
            assert_eq!(Header::parse(&good, len), Err(DropReason::TooShort));
        }
        let mut four = good;
        four[0] = 0x45;
        assert_eq!(Header::parse(&four, whole), Err(DropReason::BadIpVersion));
    }
}
