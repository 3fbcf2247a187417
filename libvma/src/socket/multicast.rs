//! Multicast options: which groups a socket hears, and how it sends to groups (ip(7)).
//!
//! The shadow joins too: the kernel so speaks IGMP for us, and receives what comes another way.

use std::net::Ipv4Addr;

use libvma_engine::udp::lookup::{Membership, SourceMode};

use super::{Socket, Stack, WhyOs, attach};
use crate::shard::SocketId;
use crate::sys::shadow;

/// Takes a multicast option over that the kernel accepted. False if it is not one of ours.
pub fn after_set(stack: &Stack, id: SocketId, name: i32, value: &[u8]) -> bool {
    match name {
        libc::IP_MULTICAST_TTL
        | libc::IP_MULTICAST_LOOP
        | libc::IP_MULTICAST_ALL
        | libc::IP_MULTICAST_IF => {
            let Ok(mut state) = stack.shard.lock() else { return false };
            let Some((_, socket)) = state.socket(id) else { return true };
            scalar(socket, name, value);
            let filter_all = socket.options.multicast_all;
            if let Some(filter) = state.filter_mut(id) {
                filter.multicast_all = filter_all;
            }
            true
        }
        libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP => {
            let Some((group, interface)) = request(stack, value) else { return pass(stack, id) };
            let named = value.get(4..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0));
            change(stack, id, |groups| {
                if name == libc::IP_DROP_MEMBERSHIP && !named {
                    // No interface given: the first membership of the group, as the kernel does.
                    if let Some(first) = groups.iter().position(|m| m.group == group) {
                        groups.remove(first);
                    }
                    return;
                }
                groups.retain(|m| (m.group, m.interface) != (group, interface));
                if name == libc::IP_ADD_MEMBERSHIP {
                    let mode = SourceMode::Exclude;
                    groups.push(Membership { group, interface, mode, sources: Vec::new() });
                }
            })
        }
        libc::IP_ADD_SOURCE_MEMBERSHIP
        | libc::IP_DROP_SOURCE_MEMBERSHIP
        | libc::IP_BLOCK_SOURCE
        | libc::IP_UNBLOCK_SOURCE => {
            let Some((group, interface, source)) = source_request(stack, value) else {
                return pass(stack, id);
            };
            change(stack, id, |groups| change_source(groups, name, group, interface, source))
        }
        // The protocol-independent forms and whole filters: the kernel's, and with them the socket.
        libc::MCAST_JOIN_GROUP..=libc::MCAST_MSFILTER | libc::IP_MSFILTER => pass(stack, id),
        _ => false,
    }
}

fn scalar(socket: &mut Socket, name: i32, value: &[u8]) {
    let fd = socket.shadow();
    let now = || shadow::int_option(fd, libc::IPPROTO_IP, name).unwrap_or(0);
    let options = &mut socket.options;
    socket.route = None;
    match name {
        libc::IP_MULTICAST_TTL => options.multicast_ttl = now() as u8,
        libc::IP_MULTICAST_LOOP => options.multicast_loop = now() != 0,
        libc::IP_MULTICAST_ALL => options.multicast_all = now() != 0,
        _ => {
            // The kernel tells the address only; the index is in what was set.
            let address = ipv4_at(value, if value.len() >= 8 { 4 } else { 0 });
            let index = value.get(8..12).and_then(|bytes| bytes.try_into().ok());
            options.multicast_source = address.filter(|address| !address.is_unspecified());
            options.multicast_interface = index.map(u32::from_ne_bytes).filter(|index| *index != 0);
        }
    }
}

fn change(stack: &Stack, id: SocketId, edit: impl FnOnce(&mut Vec<Membership>)) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return true };
    edit(&mut socket.options.memberships);
    drop(state);
    attach::refresh(stack, id);
    true
}

fn change_source(
    groups: &mut Vec<Membership>,
    name: i32,
    group: Ipv4Addr,
    interface: u32,
    source: Ipv4Addr,
) {
    let at = groups.iter().position(|m| (m.group, m.interface) == (group, interface));
    let membership = match at.and_then(|at| groups.get_mut(at)) {
        Some(membership) => membership,
        None => {
            let mode = SourceMode::Include;
            groups.push(Membership { group, interface, mode, sources: Vec::new() });
            let Some(last) = groups.last_mut() else { return };
            last
        }
    };
    match name {
        libc::IP_ADD_SOURCE_MEMBERSHIP | libc::IP_BLOCK_SOURCE => membership.sources.push(source),
        _ => membership.sources.retain(|known| *known != source),
    }
    let empty = membership.mode == SourceMode::Include && membership.sources.is_empty();
    if empty {
        groups.retain(|m| (m.group, m.interface) != (group, interface));
    }
}

fn pass(stack: &Stack, id: SocketId) -> bool {
    attach::un_offload(stack, id, WhyOs::Arguments);
    true
}

/// `ip_mreq` or `ip_mreqn`: the group and the interface the kernel chose for it.
fn request(stack: &Stack, value: &[u8]) -> Option<(Ipv4Addr, u32)> {
    let group = ipv4_at(value, 0)?;
    let address = ipv4_at(value, 4)?;
    let index = value.get(8..12).and_then(|bytes| bytes.try_into().ok());
    let index = index.map(i32::from_ne_bytes).and_then(|index| u32::try_from(index).ok());
    let interface = match index.filter(|index| *index != 0) {
        Some(index) => index,
        None => interface_for(stack, group, address)?,
    };
    Some((group, interface))
}

/// `ip_mreq_source`: group, interface address, source.
fn source_request(stack: &Stack, value: &[u8]) -> Option<(Ipv4Addr, u32, Ipv4Addr)> {
    let group = ipv4_at(value, 0)?;
    let interface = interface_for(stack, group, ipv4_at(value, 4)?)?;
    Some((group, interface, ipv4_at(value, 8)?))
}

/// The interface with this address; for 0.0.0.0 the one that the group's route leaves by.
fn interface_for(stack: &Stack, group: Ipv4Addr, address: Ipv4Addr) -> Option<u32> {
    let mut plane = stack.plane.lock().ok()?;
    let control = &mut plane.as_mut()?.control;
    if !address.is_unspecified() {
        return control.interface_of(address);
    }
    let query = crate::control::netlink::RouteQuery::to(group);
    control.route(&query).ok().map(|route| route.oif).filter(|index| *index != 0)
}

fn ipv4_at(value: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = value.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}
