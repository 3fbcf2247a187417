//! Packets of a link that stand for ones over `::1` ([`libvma_dev::ipv6_loopback`]), as packets of IPv6.

use libvma_dev::ipv6_loopback::STAND_IN;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// Its checksum.
const UDP_CHECKSUM: usize = 6;

/// Is it an IPv4 header without options, from the stand-in?
pub fn stands_for_ipv6(first: &[u8]) -> bool {
    let source = first.get(ETHERNET + 12..ETHERNET + 16);
    first.get(12..=ETHERNET) == Some(&[8, 0, 0x45]) && source == Some(&STAND_IN.octets()[..])
}

/// The packet with another header, and how many bytes it has; `bytes` are perhaps not all of them. The checksum, which links do
/// without and IPv6 has to have (RFC 8200 section 8.1), is right if they are.
pub fn packet(bytes: &[u8], len: usize) -> Option<(Vec<u8>, usize)> {
    let (header, payload) = bytes.get(ETHERNET..)?.split_at_checked(IPV4)?;
    let [_, tos, _, _, _, _, _, _, hops, protocol, ..] = *header else { return None };
    let count = u16::try_from(len.checked_sub(ETHERNET + IPV4)?).ok()?;
    let (class, [high, low]) = (tos, count.to_be_bytes());
    let mut made = bytes.get(..12)?.to_vec();
    made.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0, high, low, protocol, hops]);
    let mut address = [0; 16];
    *address.last_mut()? = 1;
    made.extend([address, address].concat());
    made.extend_from_slice(payload);
    if payload.len() == usize::from(count)
        && let Some(place) = made.get_mut(ETHERNET + IPV6 + UDP_CHECKSUM..)?.first_chunk_mut()
    {
        *place = [0, 0];
        // Both addresses, the length, the protocol, and the datagram.
        let addresses = 2;
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
