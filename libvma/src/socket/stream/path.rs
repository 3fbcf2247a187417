//! Paths of connections while they live: routes, neighbours and path MTUs change.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::{Stack, route};
use crate::control::icmp::{Kind, Notice};
use crate::control::netlink::{Protocol, RouteQuery};
use crate::net::tcp::lookup::FlowKey;
use crate::net::tcp::seq::Seq;
use crate::net::tcp::{Error, Events};
use crate::socket::Plane;

/// Routes or neighbours changed: every connection gets the next hop it should have now. One that
/// waited for its neighbour sends.
pub fn refresh(stack: &Stack, plane: &mut Plane) {
    let Ok(state) = stack.shard.lock() else { return };
    let keys = state.connections_by_key();
    drop(state);
    // Many connections share a way.
    let mut known: HashMap<(Ipv4Addr, Ipv4Addr), Option<route::Way>> = HashMap::new();
    for key in keys {
        let way = *known
            .entry((key.local, key.remote))
            .or_insert_with(|| route::find(stack, plane, &query(&key)).ok());
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
    for key in waiting {
        let way = route::find(stack, plane, &query(&key));
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
pub fn on_icmp(stack: &Stack, notice: &Notice) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let quoted = Seq::new(notice.seq);
    state.on_notice(&notice.key, |connection, now| match notice.kind {
        Kind::TooBig(mtu) => {
            connection.on_packet_too_big(mtu, quoted, now);
            Events::NONE
        }
        Kind::Unreachable(error) => connection.on_unreachable(error, quoted),
    });
}

fn query(key: &FlowKey) -> RouteQuery {
    RouteQuery {
        src: Some(key.local),
        protocol: Some(Protocol::Tcp),
        sport: Some(key.local_port),
        dport: Some(key.remote_port),
        ..RouteQuery::to(key.remote)
    }
}
