//! Paths of connections while they live: routes, neighbours and path MTUs change.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::seq::Seq;
use libvma_engine::tcp::{Error, Events};

use super::{Stack, route};
use crate::control::icmp::{Kind, Notice};
use crate::control::netlink::{Protocol, RouteQuery};
use crate::socket::Plane;

/// Routes or neighbours changed: every connection gets the next hop it should have now. One that
/// waited for its neighbour sends.
pub fn refresh(stack: &Stack, plane: &mut Plane) {
    let Ok(state) = stack.shard.lock() else { return };
    let keys = state.connections_by_key();
    drop(state);
    // Many connections share a way.
    let by_ports = !keys.is_empty() && plane.control.ports_choose_hops();
    let mut known: HashMap<RouteQuery, Option<route::Way>> = HashMap::new();
    for key in keys {
        let query = query(&key, Wishes::of(stack, &key));
        let way = *known
            .entry(shared(&query, by_ports))
            .or_insert_with(|| route::find(stack, plane, &query).ok());
        if let Some(hop) = way.and_then(|way| way.hop)
            && let Ok(mut state) = stack.shard.lock()
        {
            state.set_hop(&key, hop);
        }
    }
}

/// A neighbour does not answer: connections that could not even send their SYN fail, the others
/// remember it (RFC 1122 section 4.2.3.9).
pub fn neighbour_failed(stack: &Stack, plane: &mut Plane, interface: u32, neighbour: Ipv4Addr) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let keys = state.connections_by_key();
    let waiting: Vec<FlowKey> = keys.into_iter().filter(|key| state.waits_for_hop(key)).collect();
    drop(state);
    if waiting.is_empty() || !plane.control.has_given_up(interface, neighbour) {
        return;
    }
    for key in waiting {
        let way = route::find(stack, plane, &query(&key, Wishes::of(stack, &key)));
        let concerned = way.is_ok_and(|way| {
            way.hop.is_none() && (way.interface, way.neighbour) == (interface, neighbour)
        });
        if concerned && let Ok(mut state) = stack.shard.lock() {
            state.on_notice(&key, |connection, now| {
                let quoted = connection.transplant(now).snd_una;
                connection.on_unreachable(Error::HostUnreachable, quoted)
            });
        }
    }
}

/// A router or the peer's host said something of a segment.
pub fn on_icmp(stack: &Stack, notice: &Notice, seq: u32) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let quoted = Seq::new(seq);
    state.on_notice(&notice.key, |connection, now| match notice.kind {
        Kind::TooBig(mtu) => {
            connection.on_packet_too_big(mtu, quoted, now);
            Events::NONE
        }
        Kind::Unreachable(error) => connection.on_unreachable(error, quoted),
    });
}

/// What a socket's options say of the way its packets take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wishes {
    /// SO_BINDTODEVICE.
    device: Option<u32>,
    /// IP_TOS.
    tos: u8,
    /// SO_MARK.
    mark: u32,
}

impl Wishes {
    fn of(stack: &Stack, key: &FlowKey) -> Wishes {
        let Ok(mut state) = stack.shard.lock() else { return Wishes::default() };
        let Some(id) = state.owner_of(key) else { return Wishes::default() };
        state.socket(id).map_or(Wishes::default(), |(_, socket)| Wishes {
            device: socket.options.device(),
            tos: socket.options.wishes(ipv6_stand_ins::is_one(key.remote)).1,
            mark: socket.options.mark,
        })
    }
}

fn query(key: &FlowKey, wishes: Wishes) -> RouteQuery {
    RouteQuery {
        src: Some(key.local),
        oif: wishes.device,
        tos: wishes.tos,
        mark: wishes.mark,
        protocol: Some(Protocol::Tcp),
        sport: Some(key.local_port),
        dport: Some(key.remote_port),
        ..RouteQuery::to(key.remote)
    }
}

/// The properties that connections with the same way have in common. Where ports choose among next hops of IPv4, each may have its own.
fn shared(query: &RouteQuery, by_ports: bool) -> RouteQuery {
    match by_ports && !ipv6_stand_ins::is_one(query.dst) {
        true => *query,
        false => RouteQuery { sport: None, dport: None, ..*query },
    }
}

#[cfg(test)]
mod tests;
