//! The Ethernet II header and MAC addresses. Which addresses are ours is not known here, and VLAN
//! tags are a device's business: a tagged frame simply has the type [`EtherType::VLAN`].

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::drop_reason::DropReason;

/// The length of the header on the wire.
pub const HEADER_LEN: usize = 14;

/// An Ethernet II header: every combination of its fields is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub dst: MacAddr,
    pub src: MacAddr,
    pub ethertype: EtherType,
}

impl Header {
    /// Parses the header at the start of a frame; its payload begins at [`HEADER_LEN`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) =
            frame.first_chunk::<HEADER_LEN>()
        else {
            return Err(DropReason::TooShort);
        };
        Ok(Self {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            ethertype: EtherType(u16::from_be_bytes([t0, t1])),
        })
    }

    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let MacAddr([d0, d1, d2, d3, d4, d5]) = self.dst;
        let MacAddr([s0, s1, s2, s3, s4, s5]) = self.src;
        let [t0, t1] = self.ethertype.0.to_be_bytes();
        *out = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1];
    }
}

/// What an Ethernet frame carries (IANA "IEEE 802 Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    pub const IPV4: EtherType = EtherType(0x0800);
    pub const ARP: EtherType = EtherType(0x0806);
    pub const IPV6: EtherType = EtherType(0x86dd);
    pub const VLAN: EtherType = EtherType(0x8100);
}

/// An EUI-48 address in the order of transmission.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// The address that carries an IPv4 multicast group: its low 23 bits behind 01:00:5e (RFC 1112
    /// section 6.4). 32 groups share each one, so a receiver must still compare the group.
    #[inline]
    pub const fn multicast_for(group: Ipv4Addr) -> Self {
        let [_, b, c, d] = group.octets();
        MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// As [`MacAddr::multicast_for`], of an IPv6 group: its low 32 bits behind 33:33 (RFC 2464 section 7).
    #[inline]
    pub const fn multicast_for_ipv6(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        MacAddr([0x33, 0x33, a, b, c, d])
    }

    /// The group bit: multicast or broadcast.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        let MacAddr([first, ..]) = self;
        first & 0x01 != 0
    }

    #[inline]
    pub const fn is_broadcast(self) -> bool {
        matches!(self, Self::BROADCAST)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MacAddr([a, b, c, d, e, g]) = self;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runt_is_too_short() {
        assert_eq!(Header::parse(&[0; 13]), Err(DropReason::TooShort));
        assert!(Header::parse(&[0; 14]).is_ok());
    }

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let frame = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45];
        let header = Header::parse(&frame).unwrap();
        assert!(header.dst.is_broadcast() && header.dst.is_multicast());
        assert_eq!(header.src, MacAddr([2, 0, 0, 0, 0, 1]));
        assert!(!header.src.is_broadcast() && !header.src.is_multicast());
        assert_eq!(header.ethertype, EtherType::IPV4);
    }

    #[test]
    fn multicast_group_maps_its_low_23_bits() {
        let mac = MacAddr::multicast_for(Ipv4Addr::new(239, 255, 1, 2));
        assert_eq!(mac, MacAddr([0x01, 0x00, 0x5e, 0x7f, 1, 2]));
        assert_eq!(mac, MacAddr::multicast_for(Ipv4Addr::new(224, 127, 1, 2)));
        assert!(mac.is_multicast() && !mac.is_broadcast());
        assert_eq!(mac.to_string(), "01:00:5e:7f:01:02");
    }

    #[test]
    fn multicast_group_of_ipv6_maps_its_low_32_bits() {
        let mac = MacAddr::multicast_for_ipv6(Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0xab01, 0x0203));
        assert_eq!(mac, MacAddr([0x33, 0x33, 0xab, 1, 2, 3]));
        assert!(mac.is_multicast());
    }

    proptest! {
        #[test]
        fn parse_inverts_emit(dst: [u8; 6], src: [u8; 6], ethertype: u16) {
            let (dst, src, ethertype) = (MacAddr(dst), MacAddr(src), EtherType(ethertype));
            let header = Header { dst, src, ethertype };
            let mut bytes = [0; HEADER_LEN];
            header.emit(&mut bytes);
            prop_assert_eq!(Header::parse(&bytes), Ok(header));
        }
    }
}
