//! Control messages of a send call (cmsg(3), ip(7), udp(7)): those that the library serves.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{STAND_IN, is_stand_in};
use libvma_dev::ipv6_stand_ins;

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = size_of::<libc::cmsghdr>();
/// The loopback interface's index in every network namespace.
const LOOPBACK: u32 = 1;

/// What the control messages of a send call ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// UDP_SEGMENT: instead of what the socket's option says.
    pub segment: Option<u16>,
    /// IP_TOS and IP_TTL, likewise.
    pub tos: Option<u8>,
    pub ttl: Option<u8>,
    /// IP_PKTINFO that names no interface: where it comes from.
    pub source: Option<Ipv4Addr>,
    /// IPV6_TCLASS and IPV6_HOPLIMIT, which are for IPv6 packets.
    class: Option<u8>,
    hops: Option<u8>,
    /// IPV6_PKTINFO that names no interface, or `::1`: the stand-in of the address that it comes from.
    ipv6_source: Option<Ipv4Addr>,
    /// There are messages of IPv6, which a socket of AF_INET ignores.
    pub for_ipv6: bool,
}

impl Ancillary {
    /// Do the headers look as they would without the control messages?
    #[inline]
    pub fn is_plain(&self) -> bool {
        let Ancillary { segment: _, tos, ttl, source, class, hops, ipv6_source, for_ipv6: _ } =
            self;
        let of_ipv6 = class.is_some() || hops.is_some() || ipv6_source.is_some();
        tos.is_none() && ttl.is_none() && source.is_none() && !of_ipv6
    }

    /// The messages that count for a packet to there: the kernel leaves out those of the other family. None: it refuses them.
    #[inline]
    pub fn towards(self, destination: SocketAddrV4) -> Option<Ancillary> {
        let Ancillary { segment, source, class, hops, ipv6_source, for_ipv6, .. } = self;
        let is_loopback = is_stand_in(*destination.ip());
        if !is_loopback && !ipv6_stand_ins::is_one(*destination.ip()) {
            return ipv6_source.is_none().then_some(self);
        }
        let fits = ipv6_source.is_none_or(|source| is_stand_in(source) == is_loopback);
        if source.is_some() || !fits {
            return None;
        }
        let none = Ancillary::default();
        Some(Ancillary { segment, tos: class, ttl: hops, source: ipv6_source, for_ipv6, ..none })
    }

    /// None if there is anything that only the kernel can do, or has to refuse.
    pub fn parse(mut control: &[u8]) -> Option<Ancillary> {
        let mut found = Ancillary::default();
        if control.len() < HEADER {
            return None;
        }
        while let Some(header) = control.get(..HEADER) {
            let len = usize::from_ne_bytes(*header.first_chunk()?);
            let number = |at: usize| {
                let bytes = header.get(at..)?.first_chunk()?;
                Some(i32::from_ne_bytes(*bytes))
            };
            let data = control.get(HEADER..len)?;
            match (number(8)?, number(12)?) {
                (libc::IPPROTO_UDP, libc::UDP_SEGMENT) => {
                    found.segment = Some(u16::from_ne_bytes(data.try_into().ok()?));
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    found.tos = Some(match *data {
                        [tos] => tos,
                        _ => i32::from_ne_bytes(data.try_into().ok()?).try_into().ok()?,
                    });
                }
                (libc::IPPROTO_IP, libc::IP_TTL) => {
                    let ttl = i32::from_ne_bytes(data.try_into().ok()?);
                    found.ttl = Some(u8::try_from(ttl).ok().filter(|ttl| *ttl > 0)?);
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // The interface, what it is to come from, and what means nothing here.
                    let [0, 0, 0, 0, a, b, c, d, _, _, _, _] = *data else { return None };
                    let source = Ipv4Addr::new(a, b, c, d);
                    found.source = Some(Some(source).filter(|source| !source.is_unspecified())?);
                }
                // The kernel judges each, and the last one counts.
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                    if found.source.is_some() || found.ipv6_source.is_some() =>
                {
                    return None;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let (address, interface) = data.split_first_chunk::<16>()?;
                    let interface = u32::from_ne_bytes(interface.try_into().ok()?);
                    let address = Ipv6Addr::from(*address);
                    match address.to_ipv4_mapped() {
                        Some(ip) if interface == 0 && !ip.is_unspecified() => {
                            found.source = Some(ip);
                        }
                        None if address.is_loopback() && interface <= LOOPBACK => {
                            found.ipv6_source = Some(STAND_IN);
                        }
                        None if interface == 0 => {
                            found.ipv6_source = Some(ipv6_stand_ins::of(address)?);
                        }
                        _ => return None,
                    }
                    found.for_ipv6 = true;
                }
                (libc::IPPROTO_IPV6, kind @ (libc::IPV6_TCLASS | libc::IPV6_HOPLIMIT)) => {
                    let value = i32::from_ne_bytes(data.try_into().ok()?);
                    // -1 is what the socket has.
                    let value = u8::try_from(value).ok()?;
                    match (kind, value) {
                        (libc::IPV6_TCLASS, class) => found.class = Some(class),
                        (_, 0) => return None,
                        (_, hops) => found.hops = Some(hops),
                    }
                    found.for_ipv6 = true;
                }
                _ => return None,
            }
            control = control.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        Some(found)
    }
}

/// Is one of the control messages UDP_SEGMENT, or may one be that cannot be read?
#[cold]
#[inline(never)]
pub fn may_be_train(mut control: &[u8]) -> bool {
    const SEGMENT: [i32; 2] = [libc::IPPROTO_UDP, libc::UDP_SEGMENT];
    if control.is_empty() {
        return true;
    }
    // The kernel does not look at a rest that is shorter than a header.
    while let Some((len, kind)) = control.split_first_chunk() {
        let len = usize::from_ne_bytes(*len);
        if len < HEADER || kind.starts_with(SEGMENT.map(i32::to_ne_bytes).as_flattened()) {
            return true;
        }
        let next = len.checked_next_multiple_of(ALIGN);
        control = next.and_then(|next| control.get(next..)).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    fn segment(size: u16) -> Vec<u8> {
        message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes())
    }

    /// A `struct in6_pktinfo`.
    fn info6(source: &str, interface: u32) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().unwrap();
        [&source.octets()[..], &interface.to_ne_bytes()].concat()
    }

    #[test]
    fn a_train_is_told_by_its_message() {
        let other = message(libc::IPPROTO_IP, libc::IP_TTL, &9i32.to_ne_bytes());
        assert!(!may_be_train(&other));
        assert!(may_be_train(&segment(100)));
        assert!(may_be_train(&[&other[..], &segment(100)].concat()));
        // Not read, of no length, longer than all of it.
        assert!(may_be_train(&[]));
        assert!(may_be_train(&[0; HEADER]));
        let mut long = other;
        long[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert!(!may_be_train(&long));
    }

    #[test]
    fn the_last_of_a_kind_counts() {
        let both = [segment(100), segment(1200)].concat();
        assert_eq!(
            Ancillary::parse(&both),
            Some(Ancillary { segment: Some(1200), ..Ancillary::default() })
        );
        // Without the padding behind the last one, as programs say the length, too.
        let short = &both[..both.len() - 6];
        assert_eq!(
            Ancillary::parse(short),
            Some(Ancillary { segment: Some(1200), ..Ancillary::default() })
        );
    }

    #[test]
    fn what_quic_says_of_its_packets_is_understood() {
        let info = [0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0];
        let all = [
            message(libc::IPPROTO_IP, libc::IP_TOS, &2i32.to_ne_bytes()),
            segment(1200),
            message(libc::IPPROTO_IP, libc::IP_PKTINFO, &info),
        ];
        let found = Ancillary::parse(&all.concat()).unwrap();
        let source = Some(Ipv4Addr::new(10, 0, 0, 1));
        let expected =
            Ancillary { segment: Some(1200), tos: Some(2), source, ..Ancillary::default() };
        assert_eq!(found, expected);
        let short = message(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        assert_eq!(Ancillary::parse(&short).unwrap().tos, Some(3));
        let ttl = message(libc::IPPROTO_IP, libc::IP_TTL, &255i32.to_ne_bytes());
        assert_eq!(Ancillary::parse(&ttl).unwrap().ttl, Some(255));
        let six = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::ffff:10.0.0.1", 0));
        let expected = Ancillary { source, for_ipv6: true, ..Ancillary::default() };
        assert_eq!(Ancillary::parse(&six).unwrap(), expected);
    }

    #[test]
    fn each_family_of_packets_has_its_own_messages() {
        let all = [
            message(libc::IPPROTO_IP, libc::IP_TOS, &4i32.to_ne_bytes()),
            segment(1200),
            message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &2i32.to_ne_bytes()),
            message(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &9i32.to_ne_bytes()),
        ];
        let found = Ancillary::parse(&all.concat()).unwrap();
        assert!(!found.is_plain() && found.for_ipv6);
        let six = libvma_dev::ipv6_loopback::end(80);
        let four = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
        let told = |to| found.towards(to).map(|found| (found.tos, found.ttl, found.segment));
        assert_eq!(told(six), Some((Some(2), Some(9), Some(1200))));
        assert_eq!(told(four), Some((Some(4), None, Some(1200))));
        for interface in [0, 1] {
            let info = info6("::1", interface);
            let info = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            let found = Ancillary::parse(&info).unwrap();
            assert!(!found.is_plain());
            assert_eq!(found.towards(six).unwrap().source, Some(STAND_IN));
            assert_eq!(found.towards(four), None);
        }
        let info = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::ffff:10.0.0.1", 0));
        assert_eq!(Ancillary::parse(&info).unwrap().towards(six), None);
    }

    #[test]
    fn a_packet_of_ipv6_comes_from_an_address_of_ipv6() {
        let peer = ipv6_stand_ins::of("2001:db8::2".parse().unwrap()).unwrap();
        let (peer, four) =
            (SocketAddrV4::new(peer, 80), SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80));
        let from = |text| {
            let info = message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6(text, 0));
            Ancillary::parse(&info).unwrap()
        };
        let own = ipv6_stand_ins::of("2001:db8::1".parse().unwrap()).unwrap();
        assert_eq!(from("2001:db8::1").towards(peer).unwrap().source, Some(own));
        assert_eq!(from("2001:db8::1").towards(four), None);
        assert_eq!(from("2001:db8::1").towards(libvma_dev::ipv6_loopback::end(80)), None);
        assert_eq!(from("::1").towards(peer), None);
        assert_eq!(from("::ffff:10.0.0.1").towards(peer), None);
    }

    #[test]
    fn what_is_wrong_or_unknown_is_the_kernels() {
        let good = segment(1200);
        for bad in [
            vec![],
            vec![0; 15],
            vec![0; 32],
            good[..17].to_vec(),
            message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[1]),
            message(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &[1, 0, 0, 0]),
            message(libc::IPPROTO_UDP, libc::UDP_GRO, &[1, 0, 0, 0]),
            message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0; 4]),
            [good.clone(), vec![0xff; 16]].concat(),
            message(libc::IPPROTO_IP, libc::IP_TOS, &256i32.to_ne_bytes()),
            message(libc::IPPROTO_IP, libc::IP_TOS, &[1, 0]),
            message(libc::IPPROTO_IP, libc::IP_TTL, &0i32.to_ne_bytes()),
            message(libc::IPPROTO_IP, libc::IP_TTL, &[64]),
            // An interface; nothing; too short.
            message(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0]),
            message(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0; 12]),
            message(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0; 8]),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::ffff:10.0.0.1", 1)),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::ffff:0.0.0.0", 0)),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("2001:db8::1", 2)),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("fe80::1", 0)),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::ffff:10.0.0.1", 0)[..19]),
            message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info6("::1", 2)),
            message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &(-1i32).to_ne_bytes()),
            message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &256i32.to_ne_bytes()),
            message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[2]),
            message(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &0i32.to_ne_bytes()),
        ] {
            assert_eq!(Ancillary::parse(&bad), None, "{bad:?}");
        }
    }
}
