//! The way to a peer: asked of the kernel, as for UDP, but a connection may wait for its neighbour.

use std::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::ethernet::MacAddr;

use crate::control::Control;
use crate::control::netlink::{RouteKind, RouteQuery};
use crate::shard::{NextHop, RingId};
use crate::socket::attaching::Need;
use crate::socket::{Plane, Stack, WhyOs, attach};

/// How a peer is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub ring: RingId,
    /// None: the kernel is resolving the neighbour's address.
    pub hop: Option<NextHop>,
    /// The source address.
    pub source: Ipv4Addr,
    pub hop_limit: Option<u8>,
    /// The neighbour: the peer itself or a gateway.
    pub neighbour: Ipv4Addr,
    pub interface: u32,
}

pub(super) fn find(stack: &Stack, plane: &mut Plane, query: &RouteQuery) -> Result<Way, WhyOs> {
    let destination = query.dst;
    let nobody = destination.is_unspecified() || ipv6_stand_ins::is_multicast(destination);
    if nobody || destination.is_loopback() {
        return Err(WhyOs::LocalDestination);
    }
    if plane.control.is_broadcast(destination) {
        return Err(WhyOs::Broadcast);
    }
    let route = plane.control.route_of_connection(query).map_err(|_| WhyOs::Route)?;
    match route.kind {
        RouteKind::Unicast => {}
        RouteKind::Local => return Err(WhyOs::LocalDestination),
        RouteKind::Broadcast => return Err(WhyOs::Broadcast),
        RouteKind::Multicast | RouteKind::Refused(_) | RouteKind::Other => {
            return Err(WhyOs::Route);
        }
    }
    let ring = attach::stream_ring(stack, plane, route.oif, Need::Connection)?;
    let source = query.src.or(route.prefsrc).ok_or(WhyOs::Route)?;
    let link = plane.control.link(route.oif).ok_or(WhyOs::Route)?;
    let source_mac = MacAddr(link.mac.ok_or(WhyOs::Route)?);
    let longest = ipv6_stand_ins::room(destination, stack.config.limit_mtu(link.mtu));
    let mtu = route.mtu.map_or(longest, |mtu| mtu.min(longest));
    let neighbour = route.gateway.unwrap_or(destination);
    let mut mac = plane.control.neighbour_in_use(route.oif, neighbour);
    if mac.is_none() {
        if ipv6_stand_ins::is_one(neighbour) && !Control::asks_without_packet(route.oif) {
            // The question that needs no packet would only keep the kernel from asking for its own.
            return Err(WhyOs::Neighbour);
        }
        mac = plane.control.neighbour(route.oif, neighbour);
    }
    let hop = mac.map(|mac| NextHop {
        ring,
        interface: route.oif,
        source_mac,
        destination_mac: MacAddr(mac),
        mtu,
    });
    Ok(Way { ring, hop, source, hop_limit: route.hop_limit, neighbour, interface: route.oif })
}
