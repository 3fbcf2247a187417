//! Packets of IPv6, which everybody above has as packets of IPv4 between the stand-ins of their addresses
//! ([`libvma_dev::ipv6_stand_ins`]). Only the header changes, in place, by [`libvma_engine::translation`].

use core::net::Ipv6Addr;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::frame::Extent;
use libvma_engine::translation::{
    self, BEHIND_FRAGMENT, BEHIND_IPV4, BEHIND_IPV6, DropReason, LONGEST_HEADERS,
};

pub use libvma_engine::translation::DIFFERENCE;

use crate::sys::{random, thread};

/// In front of a packet to send there is room for the longer header, and what follows is aligned as it would be without.
pub const HEADROOM: usize = 32;
/// So much longer is the header of a fragment to send.
pub const DIFFERENCE_OF_FRAGMENT: usize = BEHIND_FRAGMENT - BEHIND_IPV4;
const _: () = assert!(HEADROOM >= DIFFERENCE_OF_FRAGMENT);

/// See [`translation::to_ipv4`]. A peer that was not known gets a stand-in here; if none is left for it, it is a stranger, and the
/// packet the kernel's.
pub fn to_ipv4(
    first: &mut [u8],
    len: usize,
    stranger: impl FnOnce(Ipv6Addr),
) -> Result<usize, DropReason> {
    translation::to_ipv4(first, len, ipv6_stand_ins::known, |address| {
        if !ipv6_stand_ins::is_host(address) {
            return Err(DropReason::BadSourceAddress);
        }
        ipv6_stand_ins::of(address).ok_or_else(|| {
            stranger(address);
            DropReason::KernelsConnection
        })
    })
}

/// Is a packet to send, of IPv4, to a stand-in?
#[inline]
pub fn is_ipv6(packet: &[u8]) -> bool {
    // The first byte of the destination: nothing else goes to 0.0.0.0/8.
    packet.get(BEHIND_IPV4 - 4) == Some(&0)
}

/// The headers of IPv6 for a packet to send. None: there are no such addresses, or it is no packet.
pub fn headers(packet: &[u8]) -> Option<[u8; BEHIND_IPV6]> {
    translation::headers(packet, ipv6_stand_ins::real)
}

/// The headers of a fragment. None, too: it is none.
#[inline]
pub fn fragment_headers(packet: &[u8], idents: &mut Idents) -> Option<[u8; BEHIND_FRAGMENT]> {
    let ident = idents.of(translation::fragment_offset(packet)?);
    translation::fragment_headers(packet, ipv6_stand_ins::real, ident)
}

/// The identifications of the datagrams that leave as fragments: each has the next number (RFC 8200 section 4.5). Rings and processes
/// begin somewhere else, as they send from the same addresses.
pub struct Idents(u32);

impl Idents {
    pub fn new() -> Idents {
        let guessed = (thread::process_id() as u32).wrapping_mul(0x9e37_79b1);
        Idents(random::bytes().map_or(guessed, |[a, b, c, d, ..]| u32::from_be_bytes([a, b, c, d])))
    }

    /// Of the fragment that begins there. Those of a datagram leave one after the other, the first one first.
    fn of(&mut self, offset: u16) -> u32 {
        self.0 = self.0.wrapping_add(u32::from(offset == 0));
        self.0
    }
}

/// As [`headers`], with what is behind them.
pub fn longer<'a>(before: &[u8], room: &'a mut Room) -> Option<&'a [u8]> {
    let rest = before.get(BEHIND_IPV4..)?;
    let out = room.0.get_mut(..BEHIND_IPV6 + rest.len())?;
    let (front, behind) = out.split_first_chunk_mut()?;
    *front = headers(before)?;
    behind.copy_from_slice(rest);
    Some(out)
}

/// Room for headers.
pub struct Room([u8; LONGEST_HEADERS]);

impl Room {
    pub fn new() -> Room {
        Room([0; LONGEST_HEADERS])
    }
}

/// A packet with the other headers.
pub fn whole(before: &[u8]) -> Option<Vec<u8>> {
    let mut packet = headers(before)?.to_vec();
    packet.extend_from_slice(before.get(BEHIND_IPV4..)?);
    Some(packet)
}

/// Where a packet lies whose header has grown by so much to the front, or shrunk (received ones).
pub fn grown(extent: Extent, by: usize) -> Extent {
    let by = by as u32;
    Extent { offset: extent.offset.saturating_sub(by.into()), len: extent.len.saturating_add(by) }
}

pub fn shrunk(extent: Extent, by: usize) -> Extent {
    let by = by as u32;
    Extent { offset: extent.offset.saturating_add(by.into()), len: extent.len.saturating_sub(by) }
}

#[cfg(test)]
mod tests;
