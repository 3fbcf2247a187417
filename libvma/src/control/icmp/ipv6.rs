//! ICMPv6 (RFC 4443): a raw socket gets the messages without the header of IPv6, their checksums judged (RFC 3542 section 3.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::Error;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::ipv6::{HEADER_LEN, Header};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::{Kind, Notice, about};
use crate::sys::{Fd, shadow};

pub const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;

pub fn open() -> Result<Fd, Errno> {
    const ICMP6_FILTER: i32 = 1;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6))?;
    let socket = Fd::adopt(socket)?;
    // A bit for each of 256 types: blocked if it is set.
    let mut blocked = [u32::MAX; 8];
    let [first, ..] = &mut blocked;
    *first &= !(1 << UNREACHABLE | 1 << TOO_BIG | 1 << TIME_EXCEEDED);
    shadow::set_option(socket.raw(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked);
    Ok(socket)
}

/// Reads a message that quotes a packet of ours.
pub fn parse(message: &[u8]) -> Option<Notice> {
    let (&[kind, code, _, _, m0, m1, m2, m3], quoted) = message.split_first_chunk::<8>()?;
    // As much as found room.
    let header = Header::parse(quoted, usize::MAX).ok()?;
    let &[s0, s1, d0, d1, q0, q1, q2, q3] = quoted.get(HEADER_LEN..)?.first_chunk::<8>()?;
    let key = FlowKey {
        local: known(header.src)?,
        local_port: u16::from_be_bytes([s0, s1]),
        remote: known(header.dst)?,
        remote_port: u16::from_be_bytes([d0, d1]),
    };
    let kind = match (kind, code) {
        (TOO_BIG, _) => {
            // No link has less (RFC 8200 section 5), whatever is said.
            let mtu = u32::from_be_bytes([m0, m1, m2, m3]).max(1280);
            Kind::TooBig(ipv6_stand_ins::room(key.remote, mtu))
        }
        (UNREACHABLE, code) => Kind::Unreachable(meaning(code)),
        (TIME_EXCEEDED, _) => Kind::Unreachable(Error::HostUnreachable),
        _ => return None,
    };
    about(header.next_header, key, [q0, q1, q2, q3], kind)
}

fn known(address: Ipv6Addr) -> Option<Ipv4Addr> {
    ipv6_stand_ins::known(address)
}

/// The error that Linux makes of a code (RFC 4443 section 3.1).
fn meaning(code: u8) -> Error {
    match code {
        0 => Error::NetworkUnreachable,
        1 | 5 | 6 => Error::Prohibited,
        4 => Error::Refused,
        _ => Error::HostUnreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libvma_engine::wire::ipv4::protocol;

    const OURS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x1c, 0, 0, 0, 0, 1);
    const PEERS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x1c, 0, 0, 0, 0, 2);

    fn message(src: Ipv6Addr, kind: u8, code: u8, mtu: u32) -> Vec<u8> {
        let mut quoted = [0; HEADER_LEN];
        let payload_len = 1460;
        let (traffic_class, flow_label, hop_limit) = (0, 0, 64);
        let (dst, next_header) = (PEERS, protocol::TCP);
        Header { src, dst, traffic_class, flow_label, payload_len, next_header, hop_limit }
            .emit(&mut quoted);
        let mut bytes = vec![kind, code, 0, 0];
        bytes.extend(mtu.to_be_bytes());
        bytes.extend(quoted);
        bytes.extend([0x13, 0x88, 0, 80, 1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn a_quoted_segment_names_its_connection_if_it_may_be_ours() {
        let strangers = Ipv6Addr::new(0x2001, 0xdb8, 0x1c, 0, 0, 0, 0, 77);
        assert_eq!(parse(&message(strangers, TOO_BIG, 0, 1280)), None);
        let key = FlowKey {
            local: ipv6_stand_ins::of(OURS).unwrap(),
            local_port: 5000,
            remote: ipv6_stand_ins::of(PEERS).unwrap(),
            remote_port: 80,
        };
        let notice = parse(&message(OURS, TOO_BIG, 0, 1280));
        // 1280 bytes with the longer header.
        assert_eq!(notice, Some(Notice { key, seq: Some(0x0102_0304), kind: Kind::TooBig(1260) }));
        let kind = |kind, code| parse(&message(OURS, kind, code, 0)).map(|notice| notice.kind);
        for (code, error) in [
            (0, Error::NetworkUnreachable),
            (1, Error::Prohibited),
            (3, Error::HostUnreachable),
            (4, Error::Refused),
        ] {
            assert_eq!(kind(UNREACHABLE, code), Some(Kind::Unreachable(error)));
        }
        assert_eq!(kind(TIME_EXCEEDED, 0), Some(Kind::Unreachable(Error::HostUnreachable)));
        assert_eq!(kind(4, 0), None);
        let whole = message(OURS, UNREACHABLE, 0, 0);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None);
        }
    }
}
