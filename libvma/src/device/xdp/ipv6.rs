//! Packets of IPv6, which everybody above has as packets of IPv4 between the stand-ins of their addresses
//! ([`libvma_dev::ipv6_stand_ins`]). Only the header changes, in place: the stand-ins are such that checksums remain right.

use libvma_dev::ipv6_stand_ins;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::frame::Extent;
use libvma_engine::wire::ethernet::{self, EtherType};
use libvma_engine::wire::{ipv4, ipv6, tcp};

/// The header of IPv6 is longer by so much.
pub const DIFFERENCE: usize = ipv6::HEADER_LEN - ipv4::HEADER_LEN;

/// Where the next header lies behind each of the two.
const BEHIND_IPV4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
const BEHIND_IPV6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;

/// In front of a packet to send there is room for the longer header, and what follows is aligned as it would be without.
pub const HEADROOM: usize = 32;
const _: () = assert!(HEADROOM >= DIFFERENCE);

/// Makes a received packet of IPv6, of which `first` is the first piece and `len` the whole length, one of IPv4 that begins
/// [`DIFFERENCE`] bytes later. A peer that was not known gets a stand-in here.
pub fn to_ipv4(first: &mut [u8], len: usize) -> Result<(), DropReason> {
    let Some((link, rest)) = first.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() else {
        return Err(DropReason::TooShort);
    };
    let mut link_header = ethernet::Header::parse(link)?;
    if link_header.ethertype != EtherType::IPV6 {
        return Err(DropReason::NotIpv4);
    }
    let header = ipv6::Header::parse(rest, len.saturating_sub(ethernet::HEADER_LEN))?;
    if !matches!(header.next_header, ipv4::protocol::TCP | ipv4::protocol::UDP) {
        return Err(DropReason::UnknownProtocol);
    }
    let dst = ipv6_stand_ins::known(header.dst).ok_or(DropReason::NotForUs)?;
    let src = ipv6_stand_ins::of(header.src).ok_or(DropReason::BadSourceAddress)?;
    let payload = usize::from(header.payload_len);
    let mut ip = ipv4::Header::new(src, dst, header.next_header, payload)
        .ok_or(DropReason::BadIpTotalLength)?;
    ip.tos = header.traffic_class;
    ip.ttl = header.hop_limit;
    ip.dont_fragment = true;
    link_header.ethertype = EtherType::IPV4;
    let place = first.get_mut(DIFFERENCE..).and_then(|place| place.split_first_chunk_mut());
    let Some((link, rest)) = place else { return Err(DropReason::TooShort) };
    link_header.emit(link);
    rest.first_chunk_mut().into_iter().for_each(|place| ip.emit(place));
    Ok(())
}

/// Is a packet to send, of IPv4, to a stand-in?
#[inline]
pub fn is_ipv6(packet: &[u8]) -> bool {
    // The first byte of the destination: nothing else goes to 0.0.0.0/8.
    packet.get(BEHIND_IPV4 - 4) == Some(&0)
}

/// The headers of a packet to send: with those of IPv4 before, with those of IPv6 in front of the same payload. None: there are no such
/// addresses any more, or it is none.
pub fn headers(packet: &[u8]) -> Option<[u8; BEHIND_IPV6]> {
    let (link, rest) = packet.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
    let (&[_, tos, l0, l1, _, _, _, _, ttl, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3], rest) =
        rest.split_first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let ports = rest.first_chunk::<4>().map_or(0, |ports| u32::from_be_bytes(*ports));
    let (src, dst) = ([s0, s1, s2, s3], [d0, d1, d2, d3]);
    let header = ipv6::Header {
        src: ipv6_stand_ins::real(src.into())?,
        dst: ipv6_stand_ins::real(dst.into())?,
        traffic_class: tos,
        flow_label: flow_label(u32::from_be_bytes(src), u32::from_be_bytes(dst), ports),
        payload_len: u16::from_be_bytes([l0, l1]).checked_sub(ipv4::HEADER_LEN as u16)?,
        next_header: protocol,
        hop_limit: ttl,
    };
    let mut out = [0; BEHIND_IPV6];
    let (place, rest) = out.split_first_chunk_mut()?;
    *place = *link;
    let [.., high, low] = place;
    [*high, *low] = EtherType::IPV6.0.to_be_bytes();
    header.emit(rest.first_chunk_mut()?);
    Some(out)
}

/// The longest headers: those of TCP with all options.
pub const LONGEST_HEADERS: usize = BEHIND_IPV6 + tcp::MAX_HEADER_LEN;

/// As [`headers`], with what is behind them.
pub fn longer<'a>(before: &[u8], room: &'a mut [u8; LONGEST_HEADERS]) -> Option<&'a [u8]> {
    let rest = before.get(BEHIND_IPV4..)?;
    let out = room.get_mut(..BEHIND_IPV6 + rest.len())?;
    let (front, behind) = out.split_first_chunk_mut()?;
    *front = headers(before)?;
    behind.copy_from_slice(rest);
    Some(out)
}

/// A packet with the other headers.
pub fn whole(before: &[u8]) -> Option<Vec<u8>> {
    let mut packet = headers(before)?.to_vec();
    packet.extend_from_slice(before.get(BEHIND_IPV4..)?);
    Some(packet)
}

/// Routers that share load look at it, and not at ports (RFC 6438): each flow has its own (RFC 6437 section 2), as Linux's
/// net.ipv6.auto_flowlabels gives one.
fn flow_label(src: u32, dst: u32, ports: u32) -> u32 {
    let mixed = (src ^ dst.rotate_left(16) ^ ports).wrapping_mul(0x9e37_79b1);
    // 0 says that there is none.
    (mixed >> 12).max(1)
}

/// Where a packet lies whose header has grown by [`DIFFERENCE`] to the front, or shrunk (received ones).
pub fn grown(extent: Extent) -> Extent {
    let by = DIFFERENCE as u32;
    Extent { offset: extent.offset.saturating_sub(by.into()), len: extent.len.saturating_add(by) }
}

pub fn shrunk(extent: Extent) -> Extent {
    let by = DIFFERENCE as u32;
    Extent { offset: extent.offset.saturating_add(by.into()), len: extent.len.saturating_sub(by) }
}

#[cfg(test)]
mod tests;
