//! Headers of IPv6 as headers of IPv4, and back: for the rest of the engine, which knows IPv4, and for devices, which know no protocol.
//!
//! An IPv6 address and the IPv4 address that stands for it have the same ones' complement sum, so that no checksum changes. Who
//! stands for whom is the caller's to say.

use core::net::{Ipv4Addr, Ipv6Addr};

pub use crate::drop_reason::DropReason;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{ipv4, ipv6, tcp};

/// The header of IPv6 is longer by so much.
pub const DIFFERENCE: usize = ipv6::HEADER_LEN - ipv4::HEADER_LEN;

/// Of a fragment the header of IPv6 is longer by so much: its identification has 32 bits, for whose upper half the header of IPv4 has an
/// option.
pub const DIFFERENCE_OF_FRAGMENT: usize =
    ipv6::HEADER_LEN + ipv6::FRAGMENT_HEADER_LEN - FRAGMENT_LEN;

/// A header of IPv4 with an option.
const FRAGMENT_LEN: usize = ipv4::HEADER_LEN + ipv4::STREAM_IDENTIFIER.len();

/// Where the next header lies behind each of the two.
pub const BEHIND_IPV4: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
pub const BEHIND_IPV6: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// The same of a fragment.
pub const BEHIND_FRAGMENT: usize = BEHIND_IPV6 + ipv6::FRAGMENT_HEADER_LEN;

/// The longest headers: those of TCP with all options.
pub const LONGEST_HEADERS: usize = BEHIND_IPV6 + tcp::MAX_HEADER_LEN;

/// The segment size that a peer takes whose SYN has no MSS option: RFC 9293 section 3.7.1 (MUST-15); of IPv6 the packet that every link
/// carries (RFC 8200 section 5), less the headers.
pub fn default_mss(peer: Ipv4Addr) -> u16 {
    match peer.octets() {
        // A network that nobody is in, so that it can stand for IPv6.
        [0, ..] => 1220,
        _ => 536,
    }
}

/// Makes a packet of IPv6, of which `first` is the first piece and `len` the whole length, one of IPv4 that begins so many bytes later
/// as this returns: [`DIFFERENCE`], or of a fragment [`DIFFERENCE_OF_FRAGMENT`]. The stand-ins are those that `own` and `peer` have for the destination and the source; if there is none, `peer` says what becomes
/// of the packet.
pub fn to_ipv4(
    first: &mut [u8],
    len: usize,
    own: impl Fn(Ipv6Addr) -> Option<Ipv4Addr>,
    peer: impl FnOnce(Ipv6Addr) -> Result<Ipv4Addr, DropReason>,
) -> Result<usize, DropReason> {
    let Some((link, rest)) = first.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() else {
        return Err(DropReason::TooShort);
    };
    let mut link_header = ethernet::Header::parse(link)?;
    if link_header.ethertype != EtherType::IPV6 {
        return Err(DropReason::NotIpv4);
    }
    let header = ipv6::Header::parse(rest, len.saturating_sub(ethernet::HEADER_LEN))?;
    let fragment = ipv6::Fragment::of(&header, rest)?;
    let protocol = match fragment {
        None => header.next_header,
        Some(first) if first.offset == 0 => first.next_header,
        // The first one's counts (RFC 8200 section 4.5), and this is one that nobody refuses.
        Some(_) => ipv4::protocol::UDP,
    };
    if !matches!(protocol, ipv4::protocol::TCP | ipv4::protocol::UDP) {
        return Err(DropReason::UnknownProtocol);
    }
    let dst = own(header.dst).ok_or(DropReason::NotForUs)?;
    let src = peer(header.src)?;
    let payload = usize::from(header.payload_len);
    let mut ip =
        ipv4::Header::new(src, dst, protocol, payload).ok_or(DropReason::BadIpTotalLength)?;
    ip.tos = header.traffic_class;
    ip.ttl = header.hop_limit;
    ip.dont_fragment = fragment.is_none();
    link_header.ethertype = EtherType::IPV4;
    let by = if fragment.is_some() { DIFFERENCE_OF_FRAGMENT } else { DIFFERENCE };
    let place = first.get_mut(by..).and_then(|place| place.split_first_chunk_mut());
    let Some((link, rest)) = place else { return Err(DropReason::TooShort) };
    link_header.emit(link);
    match fragment {
        None => rest.first_chunk_mut().into_iter().for_each(|place| ip.emit(place)),
        Some(fragment) => emit_fragment(ip, fragment, rest)?,
    }
    Ok(by)
}

/// Writes the header of IPv4, with an option, of a fragment.
#[cold]
fn emit_fragment(
    ip: ipv4::Header,
    fragment: ipv6::Fragment,
    out: &mut [u8],
) -> Result<(), DropReason> {
    let payload = ip.payload_len().checked_sub(ipv6::FRAGMENT_HEADER_LEN);
    let len = payload.and_then(|len| len.checked_add(ipv4::STREAM_IDENTIFIER.len()));
    let len = len.ok_or(DropReason::FragmentBadLength)?;
    let ip = ip.for_fragment(fragment.offset.into(), len, fragment.more);
    let mut ip = ip.ok_or(DropReason::BadIpTotalLength)?;
    let [i0, i1, i2, i3] = fragment.ident.to_be_bytes();
    ip.ident = u16::from_be_bytes([i2, i3]);
    let mut header = [0; ipv4::HEADER_LEN];
    ip.emit(&mut header);
    let [kind, size, ..] = ipv4::STREAM_IDENTIFIER;
    let option = [kind, size, i0, i1];
    let [first, .., c0, c1, _, _, _, _, _, _, _, _] = &mut header;
    *first = 0x40 | (FRAGMENT_LEN / 4) as u8;
    (*c0, *c1) = (0, 0);
    let sum = Sum::of(&header).then(Sum::of(&option)).checksum().to_be_bytes();
    let [_, .., c0, c1, _, _, _, _, _, _, _, _] = &mut header;
    [*c0, *c1] = sum;
    let (place, rest) = out.split_at_mut_checked(header.len()).ok_or(DropReason::TooShort)?;
    place.copy_from_slice(&header);
    *rest.first_chunk_mut().ok_or(DropReason::TooShort)? = option;
    Ok(())
}

/// The Ethernet and IPv6 header in the place of a packet's Ethernet and IPv4 header. None: it is no packet of IPv4 without options, or its
/// addresses stand for none.
pub fn headers(
    packet: &[u8],
    real: impl Fn(Ipv4Addr) -> Option<Ipv6Addr>,
) -> Option<[u8; BEHIND_IPV6]> {
    let (link, rest) = packet.split_first_chunk::<{ ethernet::HEADER_LEN }>()?;
    let (&[_, tos, l0, l1, _, _, _, _, ttl, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3], rest) =
        rest.split_first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let ports = rest.first_chunk::<4>().map_or(0, |ports| u32::from_be_bytes(*ports));
    let (src, dst) = ([s0, s1, s2, s3], [d0, d1, d2, d3]);
    let header = ipv6::Header {
        src: real(src.into())?,
        dst: real(dst.into())?,
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

/// Where in its datagram a fragment of IPv4 to send, without options, begins, in units of 8 bytes. None: it is none.
#[inline]
pub fn fragment_offset(packet: &[u8]) -> Option<u16> {
    const PLACE: usize = ethernet::HEADER_LEN + 6;
    let place = u16::from_be_bytes(*packet.get(PLACE..)?.first_chunk()?);
    (place & 0x3fff != 0).then_some(place & 0x1fff)
}

/// As [`headers`], of a fragment, which gets this identification.
#[cold]
pub fn fragment_headers(
    packet: &[u8],
    real: impl Fn(Ipv4Addr) -> Option<Ipv6Addr>,
    ident: u32,
) -> Option<[u8; BEHIND_FRAGMENT]> {
    let ip = packet.get(ethernet::HEADER_LEN..)?;
    let &[_, _, _, _, _, _, p0, p1, _, next_header, ..] =
        ip.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    // Without what is behind them, where the first fragment alone has ports: one flow label for all.
    let before = headers(packet.get(..BEHIND_IPV4)?, real)?;
    let place = u16::from_be_bytes([p0, p1]);
    let fragment = ipv6::Fragment {
        next_header,
        offset: (place & 0x1fff) << 3,
        more: place & 0x2000 != 0,
        ident,
    };
    let mut out = [0; BEHIND_FRAGMENT];
    let (front, behind) = out.split_first_chunk_mut::<BEHIND_IPV6>()?;
    *front = before;
    let (_, header) = front.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let [_, _, _, _, l0, l1, next, ..] = header.first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
    let len = u16::from_be_bytes([*l0, *l1]).checked_add(ipv6::FRAGMENT_HEADER_LEN as u16)?;
    [*l0, *l1] = len.to_be_bytes();
    *next = ipv6::FRAGMENT;
    fragment.emit(behind.first_chunk_mut()?);
    Some(out)
}

/// Routers that share load look at it, and not at ports (RFC 6438): each flow has its own (RFC 6437 section 2), as Linux's
/// net.ipv6.auto_flowlabels gives one.
fn flow_label(src: u32, dst: u32, ports: u32) -> u32 {
    let mixed = (src ^ dst.rotate_left(16) ^ ports).wrapping_mul(0x9e37_79b1);
    // 0 says that there is none.
    (mixed >> 12).max(1)
}
