//! Arbitrary bytes as a received frame: no header parser panics, and what parses survives being
//! emitted and parsed again. Nothing with state is fuzzed here.
#![no_main]

use std::cell::RefCell;
use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use libvma_engine::translation::{
    BEHIND_IPV6, DIFFERENCE, DropReason, fragment_headers, headers, to_ipv4,
};
use libvma_engine::wire::checksum::{Sum, copy_and_sum};
use libvma_engine::wire::udp::PartialChecksum;
use libvma_engine::wire::{ethernet, ipv4, udp};

fuzz_target!(|frame: &[u8]| {
    // As it came, where the checksum stops nearly everything; then with a right one.
    receive(frame);
    translate(frame);
    let mut repaired = frame.to_vec();
    if repair_ip_checksum(&mut repaired).is_some() {
        receive(&repaired);
    }
});

/// Translation makes a packet of IPv4 of one of IPv6, and the same packet of IPv6 of that again, but for the flow label.
fn translate(frame: &[u8]) {
    let met = RefCell::new(Vec::new());
    let stand_in = |address| {
        met.borrow_mut().push(address);
        Some(Ipv4Addr::new(0, 1, 0, met.borrow().len() as u8))
    };
    let mut bytes = frame.to_vec();
    let peer = |address| stand_in(address).ok_or(DropReason::BadSourceAddress);
    let Ok(by) = to_ipv4(&mut bytes, frame.len(), stand_in, peer) else {
        return;
    };
    let packet = &bytes[by..];
    let bytes = &packet[ethernet::HEADER_LEN..];
    let ip = ipv4::Header::parse(bytes, bytes.len()).expect("a packet of IPv4");
    let real = |address: Ipv4Addr| met.borrow().get(usize::from(address.octets()[3]) - 1).copied();
    let back = if by == DIFFERENCE {
        headers(packet, real)
            .expect("addresses that were met")
            .to_vec()
    } else if ip.is_fragment() {
        let all = ipv4::long_ident(bytes).expect("an identification");
        assert_eq!(all as u16, ip.ident);
        // As one is sent: without the option.
        let mut sent = [0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
        sent[..ethernet::HEADER_LEN].copy_from_slice(&packet[..ethernet::HEADER_LEN]);
        ip.emit(sent[ethernet::HEADER_LEN..].first_chunk_mut().expect("room"));
        let back = fragment_headers(&sent, real, all);
        let mut back = back.expect("addresses that were met").to_vec();
        // Receivers ignore the reserved fields.
        back[BEHIND_IPV6 + 1] = frame[BEHIND_IPV6 + 1];
        back[BEHIND_IPV6 + 3] |= frame[BEHIND_IPV6 + 3] & 6;
        // Nor at the protocol of a later one.
        if ip.fragment_offset() > 0 {
            assert_eq!(ip.protocol, ipv4::protocol::UDP);
            back[BEHIND_IPV6] = frame[BEHIND_IPV6];
        }
        back
    } else {
        return;
    };
    let label = 15..18;
    assert_eq!(back[..label.start], frame[..label.start]);
    assert_eq!(back[label.start] >> 4, frame[label.start] >> 4);
    assert_eq!(back[label.end..], frame[label.end..back.len()]);
}

fn receive(frame: &[u8]) {
    let Ok(link) = ethernet::Header::parse(frame) else {
        return;
    };
    let mut link_bytes = [0; ethernet::HEADER_LEN];
    link.emit(&mut link_bytes);
    assert_eq!(link_bytes, frame[..ethernet::HEADER_LEN]);

    let packet = &frame[ethernet::HEADER_LEN..];
    let Ok(ip) = ipv4::Header::parse(packet, packet.len()) else {
        return;
    };
    assert!(ip.header_len() >= ipv4::HEADER_LEN && ip.total_len() <= packet.len());
    let mut ip_bytes = [0; ipv4::HEADER_LEN];
    ip.emit(&mut ip_bytes);
    let again = ipv4::Header::parse(&ip_bytes, packet.len()).expect("an emitted header parses");
    assert_eq!(again.payload_len(), ip.payload_len());
    if ip.header_len() == ipv4::HEADER_LEN {
        assert_eq!(again, ip);
    }

    let payload = &packet[ip.header_len()..ip.total_len()];
    let Ok(datagram) = udp::Header::parse(payload, payload.len()) else {
        return;
    };
    let mut udp_bytes = [0; udp::HEADER_LEN];
    datagram.emit(&mut udp_bytes);
    assert_eq!(udp_bytes, payload[..udp::HEADER_LEN]);

    let data = &payload[udp::HEADER_LEN..][..datagram.data_len()];
    let mut copy = vec![0; data.len()];
    let sum = copy_and_sum(&mut copy, data);
    assert_eq!((copy.as_slice(), sum), (data, Sum::of(data)));
    // Cut anywhere, also at odd places, the data verifies alike.
    let cut = usize::from(datagram.src_port) % (data.len() + 1);
    let (left, right) = data.split_at(cut);
    for partial in [PartialChecksum::Reject, PartialChecksum::Accept] {
        let whole = datagram.verify_sum(ip.src, ip.dst, sum, partial);
        assert_eq!(
            datagram.verify(ip.src, ip.dst, [left, right], partial),
            whole
        );
        let checksummed = datagram.checksummed(ip.src, ip.dst, sum);
        assert_ne!(checksummed.checksum, 0);
        assert_eq!(checksummed.verify(ip.src, ip.dst, [data], partial), Ok(()));
    }
}

/// `None` if the frame holds no IPv4 header.
fn repair_ip_checksum(frame: &mut [u8]) -> Option<()> {
    let packet = frame.get_mut(ethernet::HEADER_LEN..)?;
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let header = packet.get_mut(..header_len)?;
    header.get_mut(10..12)?.fill(0);
    let checksum = Sum::of(header).checksum();
    header
        .get_mut(10..12)?
        .copy_from_slice(&checksum.to_be_bytes());
    Some(())
}
