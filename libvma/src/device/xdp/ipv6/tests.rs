use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::HashSet;

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use libvma_dev::ipv6_stand_ins::{of, real};
use libvma_engine::wire::ethernet::{self, EtherType};
use libvma_engine::wire::udp::PartialChecksum;
use libvma_engine::wire::{ipv4, tcp};

use super::*;

const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x6f, 0, 0, 0, 0, 1);
const PEERS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x6f, 0, 0, 0, 0, 2);
const DATA: &[u8] = b"some data of odd length";

fn stand_in(address: Ipv6Addr) -> Ipv4Addr {
    of(address).unwrap()
}

/// A segment of the peer's, as another implementation makes it.
fn segment(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv6(from.octets(), to.octets(), 61)
        .tcp(4000, 80, 1000, 512)
        .ack(7);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, DATA).unwrap();
    bytes
}

#[test]
fn a_received_packet_is_one_of_ipv4_between_stand_ins_with_a_good_checksum() {
    let (ours, peers) = (stand_in(OURS), stand_in(PEERS));
    let mut packet = segment(PEERS, OURS);
    let len = packet.len();
    // Class 0x48.
    packet[14..16].copy_from_slice(&[0x64, 0x80]);
    // Padding, which a short frame has.
    packet.extend([0; 3]);
    assert_eq!(to_ipv4(&mut packet, len + 3, |_| {}), Ok(DIFFERENCE));
    let packet = &packet[DIFFERENCE..];
    let link = ethernet::Header::parse(packet).unwrap();
    assert_eq!((link.ethertype, link.src.0[5], link.dst.0[5]), (EtherType::IPV4, 2, 1));
    let rest = &packet[ethernet::HEADER_LEN..];
    let ip = ipv4::Header::parse(rest, rest.len()).unwrap();
    assert_eq!((ip.src, ip.dst, ip.ttl, ip.tos), (peers, ours, 61, 0x48));
    assert_eq!(ip.payload_len(), tcp::HEADER_LEN + DATA.len());
    let segment = &rest[ip.header_len()..][..ip.payload_len()];
    let (header, _) = tcp::Header::parse(segment, segment.len()).unwrap();
    assert_eq!((header.src_port, header.dst_port, header.seq), (4000, 80, 1000));
    header.verify(peers, ours, [segment], segment.len(), PartialChecksum::Reject).unwrap();
}

#[test]
fn what_is_sent_is_whole_for_another_implementation() {
    let mut packet = segment(PEERS, OURS);
    let len = packet.len();
    stand_in(OURS);
    to_ipv4(&mut packet, len, |_| {}).unwrap();
    let before = packet[DIFFERENCE..].to_vec();
    assert!(is_ipv6(&before));
    let after = whole(&before).unwrap();
    let read = SlicedPacket::from_ethernet(&after).unwrap();
    let Some(etherparse::NetSlice::Ipv6(ip)) = &read.net else { panic!("{read:?}") };
    let header = ip.header();
    assert_eq!((header.source_addr(), header.destination_addr()), (PEERS, OURS));
    assert_eq!((header.hop_limit(), usize::from(header.payload_length())), (61, len - 54));
    assert_ne!(header.flow_label().value(), 0);
    let Some(TransportSlice::Tcp(segment)) = &read.transport else { panic!("{read:?}") };
    assert_eq!(segment.payload(), DATA);
    let sum = segment.to_header().calc_checksum_ipv6(&header.to_header(), DATA).unwrap();
    assert_eq!(segment.checksum(), sum);
    let mut room = Room::new();
    let headers = &before[..before.len() - DATA.len()];
    assert_eq!(longer(headers, &mut room), Some(&after[..after.len() - DATA.len()]));
}

/// A fragment of the peer's: its header, and `len` bytes.
fn fragment(place: u16, next_header: u8, len: u16) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]).ipv6(
        PEERS.octets(),
        OURS.octets(),
        61,
    );
    let mut bytes = Vec::new();
    ip.write(&mut bytes, 44.into(), &vec![7; 8 + usize::from(len)]).unwrap();
    bytes[54..62].copy_from_slice(&[next_header, 0, 0, 0, 0xab, 0xcd, 0x12, 0x34]);
    bytes[56..58].copy_from_slice(&place.to_be_bytes());
    bytes
}

#[test]
fn a_received_fragment_is_one_of_ipv4_with_all_of_its_identification() {
    let (ours, peers) = (stand_in(OURS), stand_in(PEERS));
    // Of a later one the protocol means nothing: the shard, which refuses others, has one that it knows.
    for (place, protocol) in [(1, 17), (1448, 17), (1448 | 1, 60), (8, 44)] {
        let mut packet = fragment(place, protocol, 64);
        let len = packet.len();
        let by = to_ipv4(&mut packet, len, |_| {}).unwrap();
        assert_eq!(by, translation::DIFFERENCE_OF_FRAGMENT);
        let rest = &packet[by + ethernet::HEADER_LEN..];
        let ip = ipv4::Header::parse(rest, rest.len()).unwrap();
        assert_eq!((ip.src, ip.dst, ip.ttl, ip.protocol), (peers, ours, 61, 17));
        assert!(ip.is_fragment() && !ip.dont_fragment);
        assert_eq!(ip.fragment_offset(), usize::from(place & !7));
        assert_eq!(ip.more_fragments, place & 1 == 1);
        assert_eq!(rest[ip.header_len()..], [7; 64]);
        assert_eq!(ipv4::long_ident(rest), Some(0xabcd_1234));
    }
    let mut first = fragment(1, 60, 64);
    let len = first.len();
    assert_eq!(to_ipv4(&mut first, len, |_| {}), Err(DropReason::UnknownProtocol));
    for len in 54..62 {
        assert!(to_ipv4(&mut fragment(1, 17, 0)[..len].to_vec(), len, |_| {}).is_err());
    }
}

/// As the shard cuts one, of 1448 bytes.
fn fragment_to_send(offset: usize, more: bool) -> Vec<u8> {
    let ip = ipv4::Header::new(stand_in(OURS), stand_in(PEERS), 17, 0).unwrap();
    let mut ip = ip.for_fragment(offset, 1448, more).unwrap();
    (ip.ident, ip.tos, ip.ttl) = (0x1234, 0x48, 9);
    let mut packet = vec![7; BEHIND_IPV4 + 1448];
    let mac = ethernet::MacAddr([2; 6]);
    let link = ethernet::Header { dst: mac, src: mac, ethertype: EtherType::IPV4 };
    link.emit(packet.first_chunk_mut().unwrap());
    ip.emit(packet[ethernet::HEADER_LEN..].first_chunk_mut().unwrap());
    packet
}

/// The identification of IPv4 comes round, here at once.
#[test]
fn no_identification_of_a_datagram_that_leaves_in_fragments_is_used_again_soon() {
    let ident = |offset, more, idents: &mut Idents| {
        let front = fragment_headers(&fragment_to_send(offset, more), idents).unwrap();
        u32::from_be_bytes(*front[58..].first_chunk().unwrap())
    };
    let mut idents = Idents::new();
    let mut used = HashSet::new();
    for n in 0..70_000 {
        let first = ident(0, true, &mut idents);
        assert_eq!(ident(1448, false, &mut idents), first);
        assert!(used.insert(first), "datagram {n}");
    }
    // Rings begin somewhere else (by chance in the same place once in 2^32 times).
    let begins: HashSet<u32> = (0..8).map(|_| ident(0, true, &mut Idents::new())).collect();
    assert!(begins.len() > 1);
}

#[test]
fn fragments_that_are_sent_are_of_one_flow_and_one_datagram() {
    let mut labels = Vec::new();
    let mut idents = Idents::new();
    for (offset, more) in [(0, true), (1448, true), (2896, false)] {
        let packet = fragment_to_send(offset, more);
        let front = fragment_headers(&packet, &mut idents).unwrap();
        let sent = [&front[..], &packet[BEHIND_IPV4..]].concat();
        let read = SlicedPacket::from_ethernet(&sent).unwrap();
        let Some(etherparse::NetSlice::Ipv6(ip)) = &read.net else { panic!("{read:?}") };
        let header = ip.header();
        assert_eq!((header.source_addr(), header.destination_addr()), (OURS, PEERS));
        assert_eq!((header.hop_limit(), header.traffic_class()), (9, 0x48));
        assert_eq!(header.payload_length(), 8 + 1448);
        labels.push((header.flow_label(), front[58..62].to_vec()));
        assert_eq!(front[54..58], [17, 0, (offset >> 8) as u8, offset as u8 | u8::from(more)]);
    }
    labels.dedup();
    assert_eq!(labels.len(), 1);
    let mut whole = segment(PEERS, OURS);
    let len = whole.len();
    to_ipv4(&mut whole, len, |_| {}).unwrap();
    assert_eq!(fragment_headers(&whole[DIFFERENCE..], &mut idents), None);
}

#[test]
fn what_nobody_here_can_have_asked_for_is_refused() {
    let refused = |packet: &[u8]| to_ipv4(&mut packet.to_vec(), packet.len(), |_| {}).unwrap_err();
    stand_in(OURS);
    let good = segment(PEERS, OURS);
    let nobody = Ipv6Addr::new(0x2001, 0xdb8, 0x6f, 0, 0, 0, 0, 99);
    assert_eq!(refused(&segment(PEERS, nobody)), DropReason::NotForUs);
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for from in [group, Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED] {
        assert_eq!(refused(&segment(from, OURS)), DropReason::BadSourceAddress, "{from}");
    }
    for (at, byte, reason) in [
        (12, 8, DropReason::NotIpv4),
        (14, 0x45, DropReason::BadIpVersion),
        // A header of destination options.
        (20, 60, DropReason::UnknownProtocol),
        (19, 200, DropReason::BadIpTotalLength),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(refused(&bad), reason, "byte {at}");
    }
    for len in 0..BEHIND_IPV6 {
        assert!(to_ipv4(&mut good[..len].to_vec(), good.len(), |_| {}).is_err(), "{len} bytes");
    }
}

#[test]
fn a_packet_of_ipv4_is_none_of_ipv6() {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut packet = Vec::new();
    builder.udp(1, 2).write(&mut packet, DATA).unwrap();
    assert!(!is_ipv6(&packet) && !is_ipv6(&[]));
    assert_eq!(to_ipv4(&mut packet.clone(), packet.len(), |_| {}), Err(DropReason::NotIpv4));
    // Addresses that nobody has met.
    packet[26..34].copy_from_slice(&[0, 7, 1, 2, 0, 7, 1, 3]);
    assert!(is_ipv6(&packet) && real([0, 7, 1, 2].into()).is_none());
    assert_eq!(headers(&packet), None);
}

#[test]
fn a_peer_for_whom_no_stand_in_is_left_is_the_kernels() {
    stand_in(OURS);
    let alike = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 0x57, 0, 0, 0, 0x100 + n, 0x200 - n);
    let full = (0..=255).map(alike).find(|address| of(*address).is_none()).unwrap();
    let mut strangers = Vec::new();
    let mut packet = segment(full, OURS);
    let len = packet.len();
    let outcome = to_ipv4(&mut packet, len, |address| strangers.push(address));
    assert_eq!((outcome, strangers), (Err(DropReason::KernelsConnection), vec![full]));
}
