//! Netlink framing: a datagram into messages, a message into attributes, an attribute into a value.
//!
//! Only the attributes we want are decoded, one by one. The parsers of `netlink-packet-route` read
//! all of them and refuse the whole message if one is in a shape they do not know, and every kernel
//! release adds some.

use core::net::{Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_ALIGNTO, NLMSG_ALIGNTO, NetlinkBuffer, NlaBuffer, NlasIterator};

use super::Errno;

pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_DELRULE: u16 = 33;
pub const RTM_NEWNEXTHOP: u16 = 104;
pub const RTM_DELNEXTHOP: u16 = 105;

const _: () = assert!(NLMSG_ALIGNTO == 4 && NLA_ALIGNTO == 4, "rtnetlink(7) pads to 4 bytes");

/// One message of a datagram.
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// The errno in an `NLMSG_ERROR` or `NLMSG_DONE`, `None` if it says success.
    pub fn errno(&self) -> Option<Errno> {
        // `NLMSG_DONE` may be empty, which means success.
        let code = self.payload.first_chunk::<4>().map_or(0, |code| i32::from_ne_bytes(*code));
        match code {
            0 => None,
            // Netlink carries it negated. `Errno` panics outside the kernel's range.
            -4095..=-1 => Some(Errno::from_raw_os_error(code.saturating_neg())),
            _ => Some(Errno::BADMSG),
        }
    }
}

/// The messages of one datagram, in order; ends at the first that does not fit into it.
pub struct Messages<'a> {
    rest: &'a [u8],
}

pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

impl Messages<'_> {
    /// Whether the iteration ended before the datagram did.
    pub fn cut_short(&self) -> bool {
        !self.rest.is_empty()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let rest = self.rest;
        // The accessors below panic on a buffer that was not checked.
        let message = NetlinkBuffer::new_checked(rest).ok()?;
        let padded = usize::try_from(message.length()).ok()?.next_multiple_of(4);
        // The last one of a datagram may come without its padding.
        self.rest = rest.get(padded..).unwrap_or(&[]);
        Some(Message {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            port: message.port_number(),
            payload: message.payload(),
        })
    }
}

/// The attributes of `payload` after its fixed header of `header` bytes; ends at the first broken
/// one.
pub fn attributes(payload: &[u8], header: usize) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(payload.get(header..).unwrap_or(&[])).map_while(Result::ok)
}

/// A number in the machine's byte order, as most of rtnetlink's are.
pub fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

pub fn ipv4(value: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
}

/// An address of either family, of IPv6 its stand-in.
pub fn address(
    value: &[u8],
    stand_in: impl FnOnce(Ipv6Addr) -> Option<Ipv4Addr>,
) -> Option<Ipv4Addr> {
    match <[u8; 16]>::try_from(value) {
        Ok(octets) => stand_in(octets.into()),
        Err(_) => ipv4(value),
    }
}

/// An Ethernet address; `None` for other lengths (InfiniBand's is 20 bytes, a tunnel's 4).
pub fn mac(value: &[u8]) -> Option<[u8; 6]> {
    value.try_into().ok()
}

/// A zero-terminated string. A name that is not UTF-8 is legal for an interface, so it is kept as
/// well as it goes.
pub fn text(value: &[u8]) -> String {
    let name = value.split(|byte| *byte == 0).next().unwrap_or(value);
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = 16 + payload.len();
        let mut bytes = (length as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(9u32.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn datagram_yields_its_messages_in_order() {
        let datagram = [message(16, b"abcde"), message(17, b"")].concat();
        let mut found = messages(&datagram);
        let first = found.next().unwrap();
        assert_eq!(
            (first.kind, first.sequence, first.port, first.payload),
            (16, 7, 9, &b"abcde"[..])
        );
        assert_eq!(found.next().unwrap().kind, 17);
        assert!(found.next().is_none());
        assert!(!found.cut_short());
    }

    #[test]
    fn last_message_may_lack_its_padding() {
        let mut datagram = message(16, b"abcde");
        datagram.truncate(16 + 5);
        let mut found = messages(&datagram);
        assert_eq!(found.next().unwrap().payload, b"abcde");
        assert!(found.next().is_none());
        assert!(!found.cut_short());
    }

    #[test]
    fn every_prefix_and_every_length_is_survived() {
        let whole = [message(16, b"abcd"), message(17, b"efgh")].concat();
        for end in 0..whole.len() {
            let mut found = messages(&whole[..end]);
            assert!(found.by_ref().count() <= 1);
            assert_eq!(found.cut_short(), end != 0 && end != 20);
        }
        for length in 0..=255u32 {
            for claim in [length, u32::MAX - length] {
                let mut datagram = whole.clone();
                datagram[..4].copy_from_slice(&claim.to_ne_bytes());
                assert!(messages(&datagram).count() <= 3);
            }
        }
    }

    #[test]
    fn broken_attribute_ends_the_list() {
        let payload =
            [&[0xee; 4][..], &8u16.to_ne_bytes(), &4u16.to_ne_bytes(), &1500u32.to_ne_bytes()]
                .concat();
        assert_eq!(
            attributes(&payload, 4).map(|a| (a.kind(), number(a.value()))).collect::<Vec<_>>(),
            [(4, Some(1500))]
        );
        assert_eq!(attributes(&payload, 99).count(), 0);
        for length in [0u16, 3, 9, u16::MAX] {
            let mut broken = payload.clone();
            broken[4..6].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&broken, 4).count(), 0);
        }
    }

    #[test]
    fn errno_is_negated_and_never_out_of_range() {
        let said = |code: i32| {
            Message { kind: 2, flags: 0, sequence: 0, port: 0, payload: &code.to_ne_bytes() }
                .errno()
        };
        assert_eq!(said(0), None);
        assert_eq!(said(-101), Some(Errno::NETUNREACH));
        for strange in [1, 101, -4096, i32::MIN, i32::MAX] {
            assert_eq!(said(strange), Some(Errno::BADMSG));
        }
        assert_eq!(Message { kind: 3, flags: 0, sequence: 0, port: 0, payload: &[] }.errno(), None);
    }

    #[test]
    fn values_of_the_wrong_length_are_nothing() {
        assert_eq!((number(&[1; 3]), ipv4(&[1; 16]), mac(&[1; 20])), (None, None, None));
        assert_eq!(text(b"eth0\0\0"), "eth0");
        assert_eq!(text(b"eth0"), "eth0");
        assert_eq!(text(b""), "");
    }
}
