//! Datagrams of IPv6 for the kernel. One in one piece has a fragment header all the same (RFC 6946), and one in several has destination
//! options that mean nothing: the steering programs leave both to the kernel.

use core::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins::real;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ethernet::{self, EtherType, MacAddr};
use libvma_engine::wire::ipv4::protocol::UDP;
use libvma_engine::wire::ipv6::{self, FRAGMENT, FRAGMENT_HEADER_LEN};
use libvma_engine::wire::udp::{self, PartialChecksum};

use super::{PIECE, SOURCE, ident};
use crate::shard::datagram::Datagram;

/// RFC 8200 section 4.6.
const DESTINATION_OPTIONS: u8 = 60;
/// A fragment header follows. Of no other length, four bytes of padding.
const NO_OPTIONS: [u8; 8] = [FRAGMENT, 0, 1, 4, 0, 0, 0, 0];

/// A datagram, or a train of them, and where it goes.
pub struct Packet<'a> {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Source and destination.
    pub ports: (u16, u16),
    pub data: &'a [u8],
}

impl<'a> Packet<'a> {
    /// None: it is one of IPv4.
    pub fn of(datagram: &Datagram, port: u16, data: &'a [u8]) -> Option<Packet<'a>> {
        Some(Packet {
            src: real(*datagram.source.ip())?,
            dst: real(datagram.destination)?,
            traffic_class: datagram.tos,
            hop_limit: datagram.ttl,
            ports: (datagram.source.port(), port),
            data,
        })
    }

    /// Reads a frame that came. None: it is none with a good datagram.
    pub fn read(frame: &'a [u8], partial: PartialChecksum) -> Option<Packet<'a>> {
        let (_, packet) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
        let ip = ipv6::Header::parse(packet, packet.len()).ok()?;
        let payload = packet.get(ipv6::HEADER_LEN..)?.get(..ip.payload_len.into())?;
        let header = udp::Header::parse(payload, payload.len()).ok()?;
        let data = payload.get(udp::HEADER_LEN..)?.get(..header.data_len())?;
        let (src, dst) = (of_the_same_sum(ip.src), of_the_same_sum(ip.dst));
        // RFC 8200 section 8.1.
        let is_good = header.checksum != 0 && header.verify(src, dst, [data], partial).is_ok();
        (ip.next_header == UDP && is_good).then_some(Packet {
            src: ip.src,
            dst: ip.dst,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            ports: (header.src_port, header.dst_port),
            data,
        })
    }

    /// The frames of it to an interface with this MAC address: one, or its fragments. None: it is too long.
    pub fn frames(&self, destination: MacAddr) -> Option<impl Iterator<Item = Vec<u8>> + use<>> {
        let header = udp::Header::new(self.ports.0, self.ports.1, self.data.len())?;
        let (src, dst) = (of_the_same_sum(self.src), of_the_same_sum(self.dst));
        let mut whole = vec![0; udp::HEADER_LEN];
        header.checksummed(src, dst, Sum::of(self.data)).emit(whole.first_chunk_mut()?);
        whole.extend_from_slice(self.data);
        let ident = ident();
        let (src, dst, traffic_class, hop_limit) =
            (self.src, self.dst, self.traffic_class, self.hop_limit);
        let count = whole.len().div_ceil(PIECE);
        Some((0..count).filter_map(move |number| {
            let at = number * PIECE;
            let piece = whole.get(at..whole.len().min(at + PIECE))?;
            let ip = ipv6::Header {
                src,
                dst,
                traffic_class,
                flow_label: 0,
                payload_len: u16::try_from(FRAGMENT_HEADER_LEN + piece.len()).ok()?,
                next_header: FRAGMENT,
                hop_limit,
            };
            let more = u16::from(number + 1 < count);
            let frame = frame(destination, &ip, u16::try_from(at).ok()? | more, ident, piece);
            if count > 1 { past_steering(&frame) } else { Some(frame) }
        }))
    }
}

/// `place` is the offset, a multiple of 8, and in its lowest bit whether more fragments follow.
fn frame(destination: MacAddr, ip: &ipv6::Header, place: u16, ident: u16, piece: &[u8]) -> Vec<u8> {
    let mut link = [0; ethernet::HEADER_LEN];
    ethernet::Header { dst: destination, src: SOURCE, ethertype: EtherType::IPV6 }.emit(&mut link);
    let mut header = [0; ipv6::HEADER_LEN];
    ip.emit(&mut header);
    let ([high, low], [i, d]) = (place.to_be_bytes(), ident.to_be_bytes());
    let fragment: [u8; FRAGMENT_HEADER_LEN] = [UDP, 0, high, low, 0, 0, i, d];
    [&link[..], &header, &fragment, piece].concat()
}

/// A frame with a fragment header, with another header in front of that. None: it has none, or is too long.
pub fn past_steering(frame: &[u8]) -> Option<Vec<u8>> {
    let (link, packet) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
    let mut ip = ipv6::Header::parse(packet, packet.len()).ok()?;
    let behind = packet.get(ipv6::HEADER_LEN..)?.get(..ip.payload_len.into())?;
    if ip.next_header != FRAGMENT {
        return None;
    }
    ip.next_header = DESTINATION_OPTIONS;
    ip.payload_len = ip.payload_len.checked_add(NO_OPTIONS.len() as u16)?;
    let mut header = [0; ipv6::HEADER_LEN];
    ip.emit(&mut header);
    Some([&link[..], &header, &NO_OPTIONS, behind].concat())
}

/// An address with the same sum in a pseudo-header.
fn of_the_same_sum(address: Ipv6Addr) -> Ipv4Addr {
    let [high, low] = Sum::of(&address.octets()).fold().to_be_bytes();
    Ipv4Addr::new(0, 0, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(data: &[u8]) -> Packet<'_> {
        Packet {
            src: "2001:db8::2".parse().unwrap(),
            dst: "2001:db8::1".parse().unwrap(),
            traffic_class: 4,
            hop_limit: 9,
            ports: (4000, 7000),
            data,
        }
    }

    #[test]
    fn the_fragments_of_a_datagram_make_it_whole_again() {
        for len in [0, 1, 1464, 1465, 9000, udp::MAX_DATA_LEN] {
            let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut whole = Vec::new();
            let frames: Vec<_> =
                packet(&data).frames(MacAddr([2, 0, 0, 0, 0, 1])).unwrap().collect();
            for (number, frame) in frames.iter().enumerate() {
                let (_, rest) = frame.split_at(ethernet::HEADER_LEN);
                let ip = ipv6::Header::parse(rest, rest.len()).expect("a good header");
                let mut fragment = &rest[ipv6::HEADER_LEN..];
                // The program judges fragments, but not those behind another header.
                let first = if frames.len() > 1 { DESTINATION_OPTIONS } else { FRAGMENT };
                assert_eq!((ip.next_header, ip.hop_limit, ip.traffic_class), (first, 9, 4));
                if first == DESTINATION_OPTIONS {
                    assert_eq!(fragment[..8], NO_OPTIONS);
                    fragment = &fragment[8..];
                }
                let place = u16::from_be_bytes([fragment[2], fragment[3]]);
                let more = u16::from(number + 1 < frames.len());
                assert_eq!(
                    (fragment[0], usize::from(place)),
                    (UDP, whole.len() | usize::from(more))
                );
                whole.extend_from_slice(&fragment[8..]);
            }
            // As it would come in one piece.
            let ip = ipv6::Header {
                src: packet(&data).src,
                dst: packet(&data).dst,
                traffic_class: 4,
                flow_label: 0,
                payload_len: u16::try_from(whole.len()).unwrap(),
                next_header: UDP,
                hop_limit: 9,
            };
            let mut header = [0; ipv6::HEADER_LEN];
            ip.emit(&mut header);
            let mut frame = [&[0; ethernet::HEADER_LEN][..], &header, &whole].concat();
            let read = Packet::read(&frame, PartialChecksum::Reject).expect("a good checksum");
            assert_eq!((read.data, read.ports), (&data[..], (4000, 7000)));
            *frame.last_mut().unwrap() ^= 1;
            assert!(Packet::read(&frame, PartialChecksum::Reject).is_none());
        }
    }
}
