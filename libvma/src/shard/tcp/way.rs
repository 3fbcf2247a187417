//! A connection's way out: its ring, and the Ethernet and IP header of its segments, prepared once. A
//! segment changes what depends on it.

use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::{ethernet, ipv4};

use crate::shard::{NextHop, RingId};

/// Ethernet and IP.
pub(super) const LEAD: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
/// Without the addresses, which the connection knows: there are many connections.
const KEPT: usize = LEAD - 8;

/// ECT(0) (RFC 3168 section 5).
const ECT0: u8 = 0b10;
const ECN_MASK: u8 = 0b11;

const SOURCE_MAC: usize = 6;
const TOS: usize = ethernet::HEADER_LEN + 1;
const TOTAL_LEN: usize = ethernet::HEADER_LEN + 2;
const IDENT: usize = ethernet::HEADER_LEN + 4;
const TTL: usize = ethernet::HEADER_LEN + 8;
const CHECKSUM: usize = ethernet::HEADER_LEN + 10;

/// What a connection gives to its segments besides their own headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub ttl: u8,
    pub tos: u8,
}

pub(super) struct Way {
    /// None while the neighbour is being resolved.
    ring: Option<RingId>,
    /// Total length and identification are zero; in the place of the checksum stands the folded sum
    /// of the IP header's other words.
    kept: [u8; KEPT],
}

/// What a segment's Ethernet and IP header say besides what they all do.
#[derive(Clone, Copy)]
pub(super) struct Lead {
    /// TCP header and payload; with the IP header below 64 KiB.
    pub len: u16,
    pub ident: u16,
    pub ecn_capable: bool,
}

impl Way {
    pub fn new(key: &FlowKey, hop: Option<&NextHop>, envelope: Envelope) -> Way {
        let mut way = Way { ring: None, kept: [0; KEPT] };
        way.set_envelope(key, envelope);
        if let Some(hop) = hop {
            way.set_hop(hop);
        }
        way
    }

    #[inline]
    pub fn ring(&self) -> Option<RingId> {
        self.ring
    }

    #[inline]
    pub fn destination_mac(&self) -> [u8; 6] {
        let [d0, d1, d2, d3, d4, d5, ..] = self.kept;
        [d0, d1, d2, d3, d4, d5]
    }

    /// Returns the former ring.
    pub fn set_hop(&mut self, hop: &NextHop) -> Option<RingId> {
        let macs = [(0, hop.destination_mac), (SOURCE_MAC, hop.source_mac)];
        for (at, mac) in macs {
            if let Some(field) = self.kept.get_mut(at..at + 6) {
                field.copy_from_slice(&mac.0);
            }
        }
        self.ring.replace(hop.ring)
    }

    pub fn envelope(&self) -> Envelope {
        let byte = |at: usize| self.kept.get(at).copied().unwrap_or_default();
        Envelope { ttl: byte(TTL), tos: byte(TOS) }
    }

    /// The two bits of ECN in `tos` are each segment's own.
    pub fn set_envelope(&mut self, key: &FlowKey, envelope: Envelope) {
        let Some(mut ip) = ipv4::Header::new(key.local, key.remote, ipv4::protocol::TCP, 0) else {
            return;
        };
        ip.ttl = envelope.ttl;
        ip.tos = envelope.tos & !ECN_MASK;
        // RFC 1191: the path MTU is discovered by segments that may not be cut.
        ip.dont_fragment = true;
        let mut header = [0; ipv4::HEADER_LEN];
        ip.emit(&mut header);
        let (before, own) = self.kept.split_at_mut(ethernet::HEADER_LEN);
        if let [.., high, low] = before {
            [*high, *low] = ethernet::EtherType::IPV4.0.to_be_bytes();
        }
        for (place, byte) in own.iter_mut().zip(header) {
            *place = byte;
        }
        put(&mut self.kept, TOTAL_LEN, 0);
        // The sum of all other words is what the checksum is the complement of, less the length.
        let sum = !word(&header, CHECKSUM - ethernet::HEADER_LEN);
        let (sum, borrow) = sum.overflowing_sub(ipv4::HEADER_LEN as u16);
        put(&mut self.kept, CHECKSUM, sum.wrapping_sub(u16::from(borrow)));
    }

    /// Writes the headers of a segment of the connection `key`.
    #[inline]
    pub fn write(&self, key: &FlowKey, lead: Lead, out: &mut [u8; LEAD]) {
        let total = lead.len.saturating_add(ipv4::HEADER_LEN as u16);
        let ect = if lead.ecn_capable { ECT0 } else { 0 };
        let known = u32::from(word(&self.kept, CHECKSUM));
        let sum = known + u32::from(total) + u32::from(lead.ident) + u32::from(ect);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        let (kept, addresses) = out.split_at_mut(KEPT);
        kept.copy_from_slice(&self.kept);
        let (source, destination) = addresses.split_at_mut(4);
        source.copy_from_slice(&key.local.octets());
        destination.copy_from_slice(&key.remote.octets());
        put(out, TOTAL_LEN, total);
        put(out, IDENT, lead.ident);
        put(out, CHECKSUM, checksum);
        if let Some(tos) = out.get_mut(TOS) {
            *tos |= ect;
        }
    }
}

#[inline]
fn put(out: &mut [u8], at: usize, word: u16) {
    if let Some(field) = out.get_mut(at..at + 2) {
        field.copy_from_slice(&word.to_be_bytes());
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use libvma_engine::wire::ethernet::{EtherType, MacAddr};
    use proptest::prelude::*;

    use super::*;

    fn hop(last: u8) -> NextHop {
        NextHop {
            ring: RingId(0),
            interface: 1,
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, last]),
            mtu: 1500,
        }
    }

    fn written(way: &Way, key: &FlowKey, lead: Lead) -> (ethernet::Header, ipv4::Header) {
        let mut out = [0xee; LEAD];
        way.write(key, lead, &mut out);
        let (first, rest) = out.split_at(ethernet::HEADER_LEN);
        let available = usize::from(lead.len) + ipv4::HEADER_LEN;
        let ip = ipv4::Header::parse(rest, available).expect("a good header and checksum");
        (ethernet::Header::parse(first).expect("a whole header"), ip)
    }

    proptest! {
        #[test]
        fn headers_are_those_of_the_way_and_of_the_segment(
            addresses: (u32, u32), ttl: u8, tos: u8,
            len in 0u16..=65515, ident: u16, ecn_capable: bool,
        ) {
            let (local, remote) = (addresses.0.into(), addresses.1.into());
            let key = FlowKey { local, local_port: 1, remote, remote_port: 2 };
            let way = Way::new(&key, Some(&hop(2)), Envelope { ttl, tos });
            let (link, ip) = written(&way, &key, Lead { len, ident, ecn_capable });
            prop_assert_eq!(link.ethertype, EtherType::IPV4);
            prop_assert_eq!((link.src, link.dst), (hop(2).source_mac, hop(2).destination_mac));
            prop_assert_eq!((ip.src, ip.dst, ip.protocol), (local, remote, ipv4::protocol::TCP));
            prop_assert_eq!((ip.ttl, ip.tos & !ECN_MASK), (ttl, tos & !ECN_MASK));
            prop_assert_eq!(ip.tos & ECN_MASK, if ecn_capable { ECT0 } else { 0 });
            prop_assert_eq!((ip.ident, ip.payload_len()), (ident, usize::from(len)));
            prop_assert!(ip.dont_fragment && !ip.is_fragment());
        }
    }

    #[test]
    fn changes_show_in_the_next_segment() {
        let key = FlowKey {
            local: [10, 0, 0, 1].into(),
            local_port: 1,
            remote: [10, 0, 0, 2].into(),
            remote_port: 2,
        };
        let lead = Lead { len: 40, ident: 7, ecn_capable: false };
        let mut way = Way::new(&key, None, Envelope { ttl: 64, tos: 0 });
        assert_eq!((way.ring(), way.set_hop(&hop(2))), (None, None));
        assert_eq!(written(&way, &key, lead).0.dst, hop(2).destination_mac);
        assert_eq!(way.set_hop(&hop(3)), Some(RingId(0)));
        way.set_envelope(&key, Envelope { ttl: 9, tos: 0x10 });
        assert_eq!(way.envelope(), Envelope { ttl: 9, tos: 0x10 });
        assert_eq!(
            (way.ring(), way.destination_mac()),
            (Some(RingId(0)), hop(3).destination_mac.0)
        );
        let (link, ip) = written(&way, &key, lead);
        assert_eq!((link.dst, ip.ttl, ip.tos), (hop(3).destination_mac, 9, 0x10));
    }
}
