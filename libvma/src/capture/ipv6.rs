//! Packets of a link that stand for ones of IPv6 ([`libvma_dev::ipv6_loopback`], [`libvma_dev::ipv6_stand_ins`]), as such.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{is_stand_in, real};
use libvma_dev::ipv6_stand_ins;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Its checksum.
const UDP_CHECKSUM: usize = 6;

/// Is it an IPv4 header without options, from a stand-in?
pub fn stands_for_ipv6(first: &[u8]) -> bool {
    let source = first.get(ETHERNET + 12..).and_then(|rest| rest.first_chunk::<4>());
    let is_one = |source: &[u8; 4]| {
        let source = Ipv4Addr::from(*source);
        is_stand_in(source) || ipv6_stand_ins::is_one(source)
    };
    first.get(12..=ETHERNET) == Some(&[8, 0, 0x45]) && source.is_some_and(is_one)
}

/// The packet with another header, and how many bytes it has; `bytes` are perhaps not all of them. The checksum, which links do
/// without and IPv6 has to have (RFC 8200 section 8.1), is right if they are.
pub fn packet(bytes: &[u8], len: usize) -> Option<(Vec<u8>, usize)> {
    let (header, payload) = bytes.get(ETHERNET..)?.split_at_checked(IPV4)?;
    let [_, tos, _, _, _, _, _, _, hops, protocol, _, _, ref ends @ ..] = *header else {
        return None;
    };
    let count = u16::try_from(len.checked_sub(ETHERNET + IPV4)?).ok()?;
    let (class, [high, low]) = (tos, count.to_be_bytes());
    let mut made = bytes.get(..12)?.to_vec();
    made.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, high, low, protocol, hops]);
    let mut addresses = 0;
    for end in ends.as_chunks::<4>().0 {
        let address = real(SocketAddrV4::new(Ipv4Addr::from(*end), 0))?.ip().octets();
        addresses += address.chunks(2).map(value).sum::<u64>();
        made.extend(address);
    }
    made.extend_from_slice(payload);
    if payload.len() == usize::from(count)
        && let Some(place) = made.get_mut(ETHERNET + IPV6 + UDP_CHECKSUM..)?.first_chunk_mut()
    {
        *place = [0, 0];
        // Both addresses, the length, the protocol, and the datagram.
        let words = payload.chunks(2).enumerate().filter(|(at, _)| *at != UDP_CHECKSUM / 2);
        let sum: u64 = words.map(|(_, word)| value(word)).sum();
        let mut sum = sum + addresses + u64::from(count) + u64::from(protocol);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let checksum = !(sum as u16);
        // None at all is written as 0.
        *place = if checksum == 0 { [0xff; 2] } else { checksum.to_be_bytes() };
    }
    Some((made, len + IPV6 - IPV4))
}

fn value(word: &[u8]) -> u64 {
    match *word {
        [high, low] => u64::from(u16::from_be_bytes([high, low])),
        [high] => u64::from(high) << 8,
        _ => 0,
    }
}
