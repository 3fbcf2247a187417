//! A route lookup: the question as `RTM_GETROUTE` asks it, the answer as the kernel gives it
//! (rtnetlink(7)).

use core::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};

use super::{Errno, wire};

/// The transport a lookup is for; rules may match on it, and the multipath hash may include it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// What the kernel needs to know to route as it would for a socket.
///
/// The calling process's effective user id takes part too (rules match on it), without being asked
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteQuery {
    pub dst: Ipv4Addr,
    /// The source the socket is bound to, `None` for any; one that is no address of this host is
    /// refused.
    ///
    /// The source takes part in rules and in the choice among next hops (Linux 6.18 prefers the hop
    /// it belongs to), so it decides twice: `connect()` looks up once without a source to learn
    /// `prefsrc`, then again with it, and uses the second answer. An unbound `sendto()` looks up
    /// once.
    pub src: Option<Ipv4Addr>,
    /// The interface the socket is bound to (SO_BINDTODEVICE, IP_UNICAST_IF, IP_MULTICAST_IF).
    pub oif: Option<u32>,
    /// IP_TOS; routing ignores its two ECN bits.
    pub tos: u8,
    /// SO_MARK, 0 for none.
    pub mark: u32,
    pub protocol: Option<Protocol>,
    /// Ports, in the machine's byte order; 0 is the same as none.
    pub sport: Option<u16>,
    pub dport: Option<u16>,
}

impl RouteQuery {
    /// A query for `dst` with nothing else decided.
    pub fn to(dst: Ipv4Addr) -> Self {
        Self {
            dst,
            src: None,
            oif: None,
            tos: 0,
            mark: 0,
            protocol: None,
            sport: None,
            dport: None,
        }
    }

    pub(super) fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let (family, bits, dst) = named(self.dst);
        message.header.address_family = family;
        message.header.destination_prefix_length = bits;
        message.header.tos = self.tos;
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(dst));
        if let Some(src) = self.src {
            let (_, bits, src) = named(src);
            message.header.source_prefix_length = bits;
            attributes.push(RouteAttribute::Source(src));
        }
        attributes.extend(self.oif.map(RouteAttribute::Oif));
        if self.mark != 0 {
            attributes.push(RouteAttribute::Mark(self.mark));
        }
        attributes.extend(self.protocol.map(|protocol| {
            RouteAttribute::IpProto(match protocol {
                Protocol::Tcp => 6,
                Protocol::Udp => 17,
            })
        }));
        attributes.extend(self.sport.map(RouteAttribute::Sport));
        attributes.extend(self.dport.map(RouteAttribute::Dport));
        message
    }
}

/// An address as the kernel has it: its family, its bits and itself.
fn named(address: Ipv4Addr) -> (AddressFamily, u8, RouteAddress) {
    match ipv6_stand_ins::real(address) {
        Some(real) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(real)),
        None => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
    }
}

/// What the kernel does with a packet on this route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Sends it to the gateway, or to the destination itself if there is none.
    Unicast,
    /// Delivers it to this host.
    Local,
    /// Sends it to everyone on the link.
    Broadcast,
    /// Sends it to a multicast group.
    Multicast,
    /// Does not send it, and gives the socket this errno: ENETUNREACH (no route), EHOSTUNREACH
    /// (unreachable), EACCES (prohibit), EINVAL (blackhole), ENODEV (no such `oif`) ...
    Refused(Errno),
    /// Sends it in a way only the kernel can: through an encapsulation, an IPv6 gateway, a route
    /// type of another kind.
    Other,
}

/// The answer to a [`RouteQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub kind: RouteKind,
    /// The ifindex it leaves by, 0 if refused. For `Local` that is loopback's (or a VRF's).
    pub oif: u32,
    /// The next hop, `None` if the destination is on the link.
    pub gateway: Option<Ipv4Addr>,
    /// The source address for a socket that has none; the query's, if it had one.
    pub prefsrc: Option<Ipv4Addr>,
    /// Bytes of a packet with an IPv4 header ([`ipv6_stand_ins::room`]): the route's own MTU or the path MTU learnt so far, `None` where the
    /// interface's holds.
    pub mtu: Option<u32>,
    /// The TTL set on the route, `None` where the host's default holds.
    pub hop_limit: Option<u8>,
}

impl Route {
    pub(super) fn refused(errno: Errno) -> Self {
        let kind = RouteKind::Refused(errno);
        Self { kind, oif: 0, gateway: None, prefsrc: None, mtu: None, hop_limit: None }
    }

    /// Reads the `RTM_NEWROUTE` that answers `query`.
    pub(super) fn parse(payload: &[u8], query: &RouteQuery) -> Option<Self> {
        let header = RouteHeader::parse(payload).ok()?;
        let kind = match header.kind {
            RouteType::Unicast => RouteKind::Unicast,
            RouteType::Local => RouteKind::Local,
            RouteType::Broadcast => RouteKind::Broadcast,
            RouteType::Multicast => RouteKind::Multicast,
            _ => RouteKind::Other,
        };
        // The kernel names the source it chose, and is silent about one it was given.
        let prefsrc = query.src;
        let mut route = Self { kind, oif: 0, gateway: None, prefsrc, mtu: None, hop_limit: None };
        for attribute in wire::attributes(payload, HEADER) {
            let value = attribute.value();
            match attribute.kind() {
                RTA_OIF => route.oif = wire::number(value).unwrap_or(0),
                RTA_GATEWAY => {
                    route.gateway = wire::address(value, ipv6_stand_ins::of_neighbour);
                    // Read as on-link, it would send packets to nowhere.
                    if route.gateway.is_none() {
                        route.kind = RouteKind::Other;
                    }
                }
                RTA_PREFSRC => route.prefsrc = wire::address(value, ipv6_stand_ins::of),
                RTA_METRICS => {
                    for metric in wire::attributes(value, 0) {
                        let number = wire::number(metric.value()).filter(|number| *number != 0);
                        match metric.kind() {
                            RTAX_MTU => {
                                route.mtu = number.map(|mtu| ipv6_stand_ins::room(query.dst, mtu))
                            }
                            RTAX_HOPLIMIT => {
                                route.hop_limit = number.and_then(|hops| hops.try_into().ok())
                            }
                            _ => {}
                        }
                    }
                }
                // So would either.
                RTA_VIA | RTA_ENCAP => route.kind = RouteKind::Other,
                _ => {}
            }
        }
        Some(route)
    }
}

/// Bytes of `struct rtmsg`.
const HEADER: usize = 12;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const RTAX_MTU: u16 = 2;
const RTAX_HOPLIMIT: u16 = 10;
