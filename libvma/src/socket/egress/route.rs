//! How a destination is reached: asked of the control plane, once for many sends.

use core::num::NonZeroU32;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{STAND_IN, Shown, is_stand_in};
use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::ethernet::MacAddr;
use libvma_engine::wire::ipv4::protocol;

use super::super::attaching::Need;
use super::super::outstanding::Outstanding;
use super::super::{CachedRoute, Plane, Socket, Stack, State, Via, WhyOs, attach, local};
use crate::control::netlink::{Protocol, RouteKind, RouteQuery};
use crate::shard::{Flow, NextHop, RingId, SocketId, group_mac};
use crate::sys::loopback_end::Takes;
use crate::sys::sockaddr::Family;
use crate::sys::{loopback_end, shadow};

/// The way that the socket knows, if it is still good: of this epoch and this count of answers.
#[inline]
pub(super) fn cached(
    socket: &Socket,
    destination: SocketAddrV4,
    source: Option<Ipv4Addr>,
    (epoch, answers): (u64, u64),
) -> Option<Via> {
    let route = socket.route.as_deref()?;
    let passed = matches!(route.via, Via::Os(_));
    let holds = route.epoch == epoch
        && (!passed || route.answers == answers)
        && route.destination == *destination.ip()
        && route.source == source
        && route.port.is_none_or(|port| port == destination.port());
    holds.then_some(route.via)
}

/// Asks the kernel for the way to `destination`, and keeps the answer in the socket, as one of the epoch and the
/// count of answers before the search: a change during it voids the answer. None: the lock is not to be had.
pub(super) fn renew(
    stack: &Stack,
    id: SocketId,
    destination: SocketAddrV4,
    source: Option<Ipv4Addr>,
    (epoch, answers): (u64, u64),
) -> Option<Via> {
    let via = find_route(stack, id, destination, source);
    let mut state = stack.shard.lock().ok()?;
    let local_ring = state.local_ring_id();
    if let Some((_, socket)) = state.socket(id) {
        let Some(via) = via else {
            socket.route = None;
            return Some(Via::Os(WhyOs::LocalDestination));
        };
        let local = match via {
            Via::Ring { hop, .. } => Some(hop.ring) == local_ring,
            Via::Os(why) => why == WhyOs::LocalDestination,
        };
        socket.route = Some(Box::new(CachedRoute {
            by_kernel: if local { u16::MAX } else { 0 },
            answers,
            destination: *destination.ip(),
            source,
            port: local.then_some(destination.port()),
            epoch,
            via,
            outstanding: Outstanding::default(),
            envelope: None,
        }));
    }
    via
}

/// Has the kernel resolve the neighbour on the way to a destination, where nothing is sent to.
#[cold]
pub(super) fn resolve_neighbour(stack: &Stack, destination: Ipv4Addr) {
    if let Ok(mut plane) = stack.plane.lock()
        && let Some(plane) = plane.as_mut()
        && let Ok(route) = plane.control.route(&RouteQuery::to(destination))
    {
        plane.control.neighbour(route.oif, route.gateway.unwrap_or(destination));
    }
}

/// A router says that a datagram was too big for the path. Its MTU is the kernel's to tell, which has judged the message.
#[cold]
pub fn on_packet_too_big(stack: &Stack, key: &FlowKey) {
    let Ok(mut state) = stack.shard.lock() else { return };
    for id in state.ids() {
        let Some((_, socket)) = state.socket(id) else { continue };
        let is_sender = socket.local.is_some_and(|own| own.port() == key.local_port)
            && socket.route.as_ref().is_some_and(|route| route.destination == key.remote);
        if is_sender {
            socket.route = None;
        }
    }
}

/// Asks the control plane how a destination is reached. None: within the host, by the kernel this time.
fn find_route(
    stack: &Stack,
    id: SocketId,
    to: SocketAddrV4,
    source: Option<Ipv4Addr>,
) -> Option<Via> {
    let destination = *to.ip();
    if is_stand_in(destination) {
        return way_to_ipv6_loopback(stack, id, to);
    }
    let is_ipv6 = ipv6_stand_ins::is_one(destination);
    let (query, own) = {
        let Ok(mut state) = stack.shard.lock() else { return Some(Via::Os(WhyOs::Reentered)) };
        let Some((_, socket)) = state.socket(id) else { return Some(Via::Os(WhyOs::NotOurs)) };
        let options = &socket.options;
        let bound = socket.local.map(|local| *local.ip());
        let bound = bound.filter(|ip| !ip.is_unspecified() && !ipv6_stand_ins::is_multicast(*ip));
        let by_ipv6 = socket.family == Family::Ipv6 && socket.takes != Takes::Ipv4;
        let is_served = match is_ipv6 {
            true => by_ipv6 && !options.sends_ipv6_by_kernel,
            false => socket.takes != Takes::Ipv6,
        };
        if !is_served || bound.is_some_and(|own| ipv6_stand_ins::is_one(own) != is_ipv6) {
            return Some(Via::Os(WhyOs::Ipv6));
        }
        let multicast_source = options.multicast_source.filter(|_| destination.is_multicast());
        let group = Some(destination).filter(|to| ipv6_stand_ins::is_multicast(*to));
        let multicast_device = group.and_then(|group| options.multicast(group).interface);
        let query = RouteQuery {
            src: source.or(bound).or(multicast_source),
            oif: options.device().or(multicast_device.map(NonZeroU32::get)),
            tos: options.wishes(is_ipv6).1,
            mark: options.mark,
            protocol: Some(Protocol::Udp),
            sport: socket.local.map(|local| local.port()),
            ..RouteQuery::to(destination)
        };
        let own = Own {
            // A datagram of IPv6 that does not fit is the kernel's in any case.
            ignores_path_mtu: options.ignore_path_mtu && !is_ipv6,
            of_ipv6: is_ipv6.then_some((options.ipv6_hops, options.ipv6_class)),
        };
        (query, own)
    };
    let found = match stack.plane.lock() {
        Err(_) => Err(WhyOs::Reentered),
        Ok(mut plane) => match plane.as_mut() {
            None => Err(WhyOs::NoControlPlane),
            // The kernel does not ask routes of IPv6 whose address it is.
            Some(plane)
                if is_ipv6 && source.is_some_and(|it| plane.control.interface_of(it).is_none()) =>
            {
                Err(WhyOs::ControlMessage)
            }
            Some(plane) => resolve(stack, plane, id, destination, &query, own),
        },
    };
    Some(match found {
        Ok(via) => via,
        // The kernel refuses what comes from an address that is not the host's.
        Err(WhyOs::LocalDestination) if source.is_some_and(|source| !is_own(stack, source)) => {
            Via::Os(WhyOs::ControlMessage)
        }
        Err(WhyOs::LocalDestination)
            if stack.config.local && query.oif.is_none() && !destination.is_unspecified() =>
        {
            if is_stranger(stack, id, to.port()) {
                return None;
            }
            match local_way(stack, id, query.src, query.sport.unwrap_or(0), to) {
                Some(Via::Ring { hop, source, hop_limit, class }) => {
                    let (hop_limit, class) = own.of_ipv6.map_or((hop_limit, class), |it| {
                        (Some(it.0.unwrap_or(USUAL_HOPS)), Some(it.1))
                    });
                    Via::Ring { hop, source, hop_limit, class }
                }
                _ => Via::Os(WhyOs::LocalDestination),
            }
        }
        Err(why) => {
            why.tell_remedy(format_args!("what goes to {}", Shown(to)));
            Via::Os(why)
        }
    })
}

/// The way to a destination at `::1`. None: by the kernel this time.
#[cold]
fn way_to_ipv6_loopback(stack: &Stack, id: SocketId, to: SocketAddrV4) -> Option<Via> {
    let (shadow, own) = {
        let Ok(mut state) = stack.shard.lock() else { return Some(Via::Os(WhyOs::Reentered)) };
        let Some((_, socket)) = state.socket(id) else { return Some(Via::Os(WhyOs::NotOurs)) };
        let own = socket.local.filter(|own| own.ip().is_unspecified() || is_stand_in(*own.ip()));
        let serves = stack.config.local
            && socket.family == Family::Ipv6
            && socket.options.device().is_none()
            && !socket.options.sends_ipv6_by_kernel;
        match own {
            Some(own) if serves => (socket.shadow(), own),
            _ => return Some(Via::Os(WhyOs::Ipv6)),
        }
    };
    if is_stranger(stack, id, to.port()) {
        return None;
    }
    // The host may have lost the address since a socket was bound to it.
    if !loopback_end::is_reachable() {
        return Some(Via::Os(WhyOs::Route));
    }
    let Some(Via::Ring { hop, source, .. }) = local_way(stack, id, Some(STAND_IN), own.port(), to)
    else {
        return Some(Via::Os(WhyOs::LocalDestination));
    };
    let option = |name| {
        let value = shadow::int_option(shadow, libc::IPPROTO_IPV6, name);
        value.and_then(|value| u8::try_from(value).ok())
    };
    let class = Some(option(libc::IPV6_TCLASS).unwrap_or(0));
    Some(Via::Ring { hop, source, hop_limit: option(libc::IPV6_UNICAST_HOPS), class })
}

/// Does a server answer one of many clients that ask once each?
fn is_stranger(stack: &Stack, id: SocketId, port: u16) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return false };
    let is_server = socket.named && socket.peer.is_none();
    is_server && socket.datagrams.get_or_insert_default().strangers.is_one(port)
}

fn is_own(stack: &Stack, address: Ipv4Addr) -> bool {
    address.is_loopback()
        || stack.plane.lock().is_ok_and(|plane| {
            plane.as_ref().is_some_and(|plane| plane.control.interface_of(address).is_some())
        })
}

/// Of a datagram of IPv6 within the host, if the program says nothing: the routes of its addresses have no word of it.
const USUAL_HOPS: u8 = 64;

/// The way to another process of this host that uses the library, too.
fn local_way(
    stack: &Stack,
    id: SocketId,
    bound: Option<Ipv4Addr>,
    port: u16,
    destination: SocketAddrV4,
) -> Option<Via> {
    let is_known_alike = |address: Ipv4Addr| {
        let plane = stack.plane.lock().ok();
        plane.is_some_and(|it| it.as_ref().is_some_and(|it| it.control.is_known_alike(address)))
    };
    let is_linked = |address| !ipv6_stand_ins::is_one(address) || is_known_alike(address);
    let source = match bound {
        Some(source) => source,
        // Not always the destination itself: a secondary address is reached from the primary one.
        None => {
            let mut plane = stack.plane.lock().ok()?;
            let query = RouteQuery::to(*destination.ip());
            plane.as_mut()?.control.route(&query).ok()?.prefsrc?
        }
    };
    if !is_linked(source) || !is_linked(*destination.ip()) {
        return None;
    }
    let from = SocketAddrV4::new(source, port);
    let found = local::find(stack, protocol::UDP, from, destination);
    if found != local::Found::Nobody {
        // For the answers.
        attach::post(stack, id);
    }
    let local::Found::Link(link, member) = found else { return None };
    let mut hop = stack.shard.lock().ok()?.hop_by(link, member, destination)?;
    hop.mtu = ipv6_stand_ins::room(*destination.ip(), hop.mtu);
    Some(Via::Ring { hop, source, hop_limit: None, class: None })
}

/// The socket's options that concern its packets.
#[derive(Clone, Copy)]
struct Own {
    ignores_path_mtu: bool,
    /// Hop limit, if one was said, and traffic class.
    of_ipv6: Option<(Option<u8>, u8)>,
}

fn resolve(
    stack: &Stack,
    plane: &mut Plane,
    id: SocketId,
    destination: Ipv4Addr,
    query: &RouteQuery,
    own: Own,
) -> Result<Via, WhyOs> {
    if destination.is_unspecified() || destination.is_loopback() {
        return Err(WhyOs::LocalDestination);
    }
    if plane.control.is_broadcast(destination) {
        return Err(WhyOs::Broadcast);
    }
    let route = plane.control.route(query).map_err(|_| WhyOs::Route)?;
    match route.kind {
        RouteKind::Unicast | RouteKind::Multicast => {}
        RouteKind::Local => return Err(WhyOs::LocalDestination),
        RouteKind::Broadcast => return Err(WhyOs::Broadcast),
        RouteKind::Refused(_) | RouteKind::Other => return Err(WhyOs::Route),
    }
    let ring = attach::ring(stack, plane, route.oif, Need::Socket)?;
    let source = query.src.or(route.prefsrc).ok_or(WhyOs::Route)?;
    if !may_send(stack, id, ring, source) {
        return Err(WhyOs::FlowRefused);
    }
    let link = plane.control.link(route.oif).ok_or(WhyOs::Route)?;
    let source_mac = MacAddr(link.mac.ok_or(WhyOs::Route)?);
    let path_mtu = route.mtu.filter(|_| !own.ignores_path_mtu);
    let longest = ipv6_stand_ins::room(destination, stack.config.limit_mtu(link.mtu));
    let mtu = path_mtu.map_or(longest, |mtu| mtu.min(longest));
    let destination_mac = match group_mac(destination) {
        Some(_) if shares_group(stack, plane, id, destination, route.oif) => {
            return Err(WhyOs::LocalMembers);
        }
        // A router that is to spread it gets it alone.
        Some(mac) if route.gateway.is_none() => mac,
        _ => {
            let next = route.gateway.unwrap_or(destination);
            MacAddr(plane.control.neighbour_in_use(route.oif, next).ok_or(WhyOs::Neighbour)?)
        }
    };
    let hop = NextHop { ring, interface: route.oif, source_mac, destination_mac, mtu };
    Ok(match own.of_ipv6 {
        None => Via::Ring { hop, source, hop_limit: route.hop_limit, class: None },
        Some((hops, class)) => {
            Via::Ring { hop, source, hop_limit: hops.or(route.hop_limit), class: Some(class) }
        }
    })
}

/// By a ring that the daemon has granted, frames leave from the address and port of a flow only.
fn may_send(stack: &Stack, id: SocketId, ring: RingId, source: Ipv4Addr) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    if state.ring(ring).is_none_or(|ring| ring.grant().is_none()) {
        return true;
    }
    let has = |(on, flow): &(RingId, Flow)| *on == ring && flow.destination().1 == source;
    state.socket(id).is_some_and(|(_, socket)| socket.flows.iter().any(has))
}

/// Does a socket that is not ours listen to the group on this host, while the sender wants local
/// members to hear it (IP_MULTICAST_LOOP)? Then only the kernel can deliver to everybody.
fn shares_group(
    stack: &Stack,
    plane: &Plane,
    id: SocketId,
    group: Ipv4Addr,
    interface: u32,
) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return true };
    if !state.socket(id).is_some_and(|(_, socket)| socket.loops_multicast()) {
        return false;
    }
    let mut ours = 0;
    for id in state.ids() {
        if let Some((_, socket)) = state.socket(id)
            && socket.state == State::Offloaded
        {
            let joined = socket.options.memberships.iter();
            ours += joined.filter(|m| m.group == group && m.interface == interface).count() as u32;
        }
    }
    drop(state);
    plane.control.members_on_host(group, interface).is_none_or(|members| members > ours)
}

#[cfg(test)]
mod tests;
