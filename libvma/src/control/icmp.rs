//! Messages of routers and hosts about our packets (ICMP, RFC 792, and `ipv6`): the kernel has no socket for connections of ours,
//! so it drops these messages, but hands every process with a raw socket a copy. About datagrams it tells the shadow, but for the
//! path's MTU, which unconnected sockets are not told.

mod filter;
mod ipv6;

use std::net::Ipv4Addr;

use libvma_engine::tcp::Error;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ipv4::protocol;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};

use crate::sys::{Fd, shadow};

/// A message about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub key: FlowKey,
    /// The segment's sequence number. None: it was a datagram, too big.
    pub seq: Option<u32>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RFC 1191: the segment was too big for the next link, whose MTU this is.
    TooBig(u32),
    Unreachable(Error),
}

/// A raw socket for ICMP errors (icmp(7), raw(7)).
pub struct Icmp {
    socket: Fd,
    parse: fn(&[u8]) -> Option<Notice>,
}

impl Icmp {
    /// Needs CAP_NET_RAW.
    pub fn open() -> Result<Icmp, Errno> {
        const SOL_RAW: i32 = 255;
        const ICMP_FILTER: i32 = 1;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        let socket = Fd::adopt(socket)?;
        let wanted = 1 << UNREACHABLE | 1 << TIME_EXCEEDED;
        shadow::set_int_option(socket.raw(), SOL_RAW, ICMP_FILTER, !wanted);
        filter::leave_out_refused_datagrams(&socket, &filter::OF_IPV4);
        Ok(Icmp { socket, parse })
    }

    /// The same for ICMPv6.
    pub fn open_ipv6() -> Result<Icmp, Errno> {
        let socket = ipv6::open()?;
        filter::leave_out_refused_datagrams(&socket, &filter::OF_IPV6);
        Ok(Icmp { socket, parse: ipv6::parse })
    }

    pub fn raw(&self) -> i32 {
        self.socket.raw()
    }

    /// Hands what has arrived to `on`; a flood does not hold the caller.
    pub fn read(&self, mut on: impl FnMut(Notice)) {
        const MOST: usize = 256;
        let mut bytes = [0u8; 600];
        for _ in 0..MOST {
            match recv(self.socket.as_fd(), &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    if let Some(notice) = bytes.get(..len).and_then(self.parse) {
                        on(notice);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const FRAGMENTATION_NEEDED: u8 = 4;

/// Reads an IP packet with an ICMP message that quotes a packet of ours.
fn parse(packet: &[u8]) -> Option<Notice> {
    let icmp = packet.get(header_len(packet)?..)?;
    // Raw sockets get it before the kernel looks at the checksum.
    if Sum::of(icmp).fold() != 0xffff {
        return None;
    }
    let (&[kind, code, _, _, _, _, mtu0, mtu1], quoted) = icmp.split_first_chunk::<8>()?;
    let segment = quoted.get(header_len(quoted)?..)?;
    if fragment_offset(quoted)? != 0 {
        return None;
    }
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = segment.first_chunk::<8>()?;
    let address = |at: usize| {
        let octets: [u8; 4] = quoted.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets))
    };
    let key = FlowKey {
        local: address(12)?,
        local_port: u16::from_be_bytes([s0, s1]),
        remote: address(16)?,
        remote_port: u16::from_be_bytes([d0, d1]),
    };
    let mtu = u32::from(u16::from_be_bytes([mtu0, mtu1]));
    let kind = match (kind, code) {
        (UNREACHABLE, FRAGMENTATION_NEEDED) => Kind::TooBig(match mtu {
            0 => plateau(u32::from(u16::from_be_bytes([*quoted.get(2)?, *quoted.get(3)?]))),
            mtu => mtu,
        }),
        (UNREACHABLE, code) => Kind::Unreachable(meaning(code)),
        (TIME_EXCEEDED, 0) => Kind::Unreachable(Error::HostUnreachable),
        _ => return None,
    };
    about(*quoted.get(9)?, key, [q0, q1, q2, q3], kind)
}

/// A message about a packet of this protocol, whose ports are followed by those bytes.
fn about(protocol: u8, key: FlowKey, behind: [u8; 4], kind: Kind) -> Option<Notice> {
    match (protocol, kind) {
        (protocol::TCP, _) => Some(Notice { key, seq: Some(u32::from_be_bytes(behind)), kind }),
        (protocol::UDP, Kind::TooBig(_)) => Some(Notice { key, seq: None, kind }),
        _ => None,
    }
}

/// The length of an IPv4 header.
fn header_len(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let len = usize::from(first & 0xf) * 4;
    (first >> 4 == 4 && len >= 20).then_some(len)
}

fn fragment_offset(packet: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff)
}

/// A router that does not say the MTU: the next lower one of those in use (RFC 1191 section 7.1).
fn plateau(len: u32) -> u32 {
    const PLATEAUS: [u32; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 576, 552];
    PLATEAUS.into_iter().find(|mtu| *mtu < len).unwrap_or(552)
}

/// The error that Linux makes of a code (RFC 1122 section 3.2.2.1, RFC 1812 section 5.2.7.1).
fn meaning(code: u8) -> Error {
    match code {
        0 | 6 | 9 | 11 => Error::NetworkUnreachable,
        2 => Error::ProtocolUnreachable,
        3 => Error::Refused,
        _ => Error::HostUnreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, code: u8, mtu: u16, quoted_len: u16) -> Vec<u8> {
        let mut quoted = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        quoted[2..4].copy_from_slice(&quoted_len.to_be_bytes());
        quoted.extend([0x13, 0x88, 0, 80, 1, 2, 3, 4]);
        let mut icmp = vec![kind, code, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(quoted);
        let checksum = Sum::of(&icmp).checksum();
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = vec![0x45; 20];
        packet.extend(icmp);
        packet
    }

    #[test]
    fn a_quoted_segment_names_its_connection() {
        let notice = parse(&message(3, 4, 1400, 1500)).expect("a notice");
        assert_eq!(notice.key.local_endpoint().to_string(), "10.0.0.1:5000");
        assert_eq!(notice.key.remote_endpoint().to_string(), "10.0.0.2:80");
        assert_eq!((notice.seq, notice.kind), (Some(0x0102_0304), Kind::TooBig(1400)));
    }

    #[test]
    fn of_a_datagram_only_its_size_is_told() {
        let of_datagram = |kind, code| {
            let mut message = message(kind, code, 1400, 1500);
            message[20 + 8 + 9] = protocol::UDP;
            // The checksum of the message, changed likewise.
            let checksum = u16::from_be_bytes([message[22], message[23]]) - (17 - 6);
            message[22..24].copy_from_slice(&checksum.to_be_bytes());
            parse(&message).map(|notice| (notice.seq, notice.kind))
        };
        assert_eq!(of_datagram(3, 4), Some((None, Kind::TooBig(1400))));
        assert_eq!(of_datagram(3, 3), None);
    }

    #[test]
    fn a_router_that_tells_no_mtu_gets_the_next_plateau() {
        assert_eq!(parse(&message(3, 4, 0, 1500)).map(|it| it.kind), Some(Kind::TooBig(1492)));
        assert_eq!(parse(&message(3, 4, 0, 100)).map(|it| it.kind), Some(Kind::TooBig(552)));
    }

    #[test]
    fn codes_mean_what_they_mean_on_linux() {
        let meaning = |kind, code| match parse(&message(kind, code, 0, 1500))?.kind {
            Kind::Unreachable(error) => Some(error),
            Kind::TooBig(_) => None,
        };
        assert_eq!(meaning(3, 0), Some(Error::NetworkUnreachable));
        assert_eq!(meaning(3, 1), Some(Error::HostUnreachable));
        assert_eq!(meaning(3, 3), Some(Error::Refused));
        assert_eq!(meaning(11, 0), Some(Error::HostUnreachable));
        assert_eq!(meaning(11, 1), None);
    }

    #[test]
    fn damaged_and_cut_messages_are_nothing() {
        let good = message(3, 1, 0, 1500);
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), None);
        }
        let mut bad = good;
        bad[25] ^= 1;
        assert_eq!(parse(&bad), None);
    }
}
