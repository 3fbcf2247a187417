//! Multicast options: which groups a socket hears, and how it sends to groups (ip(7), ipv6(7), RFC 3678). `request` reads the arguments.
//!
//! The shadow joins too: the kernel so speaks IGMP and MLD for us, and receives what comes another way.

mod request;

use core::num::NonZeroU32;
use std::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::udp::lookup::{Membership, SourceMode};

use self::request::{By, Change, Read, Request};
use super::options::Options;
use super::{Socket, Stack, WhyOs, attach};
use crate::shard::SocketId;
use crate::sys::shadow;

/// How a socket sends to the groups of a family, and whether it hears groups that it has not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// IP_MULTICAST_IF, IPV6_MULTICAST_IF.
    pub interface: Option<NonZeroU32>,
    /// IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS.
    pub hops: u8,
    /// IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP.
    pub is_looped: bool,
    /// IP_MULTICAST_ALL, IPV6_MULTICAST_ALL: groups that some other socket joined are welcome too.
    pub all: bool,
}

impl Multicast {
    /// As a new socket has it.
    pub fn new(is_looped: bool) -> Multicast {
        Multicast { interface: None, hops: 1, is_looped, all: true }
    }
}

/// Takes a multicast option over that the kernel accepted. False if it is not one of ours.
pub fn after_set(stack: &Stack, id: SocketId, level: i32, name: i32, value: &[u8]) -> bool {
    if request::is_one(level, name) {
        match request::read(level, name, value) {
            Read::Served(request) => change(stack, id, request),
            Read::Kernels => {}
            Read::Unknown => attach::un_offload(stack, id, WhyOs::Arguments),
        }
        return true;
    }
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return true };
    let is_one = scalar(socket, level, name, value);
    let all = (socket.options.multicast.all, socket.options.ipv6_multicast.all);
    if is_one && let Some(filter) = state.filter_mut(id) {
        (filter.multicast_all, filter.ipv6_multicast_all) = all;
    }
    is_one
}

fn scalar(socket: &mut Socket, level: i32, name: i32, value: &[u8]) -> bool {
    let fd = socket.shadow();
    let now = || shadow::int_option(fd, level, name).unwrap_or(0);
    let options = &mut socket.options;
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) => options.multicast.hops = now() as u8,
        (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP) => options.multicast.is_looped = now() != 0,
        (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL) => options.multicast.all = now() != 0,
        (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) => interface_of_ipv4(options, value),
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => {
            options.ipv6_multicast.hops = now() as u8;
        }
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => {
            options.ipv6_multicast.is_looped = now() != 0;
        }
        (libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL) => options.ipv6_multicast.all = now() != 0,
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => {
            options.ipv6_multicast.interface = NonZeroU32::new(now() as u32);
        }
        _ => return false,
    }
    socket.route = None;
    true
}
const IPV6_MULTICAST_ALL: i32 = 29;

/// The kernel tells the address only; the index is in what was set.
fn interface_of_ipv4(options: &mut Options, value: &[u8]) {
    let word = |at: usize| value.get(at..)?.first_chunk::<4>().copied();
    let address = word(if value.len() >= 8 { 4 } else { 0 }).map(Ipv4Addr::from);
    options.multicast_source = address.filter(|address| !address.is_unspecified());
    options.multicast.interface = word(8).map(u32::from_ne_bytes).and_then(NonZeroU32::new);
}

fn change(stack: &Stack, id: SocketId, request: Request) {
    let Request { group, by, change } = request;
    let interface = match by {
        By::Index(index) => Some(index),
        By::Address(address) => interface_of(stack, address),
        // Of IPv6 the membership that came last, whatever its interface (ipv6_sock_mc_drop(), ip6_mc_source() of Linux); of IPv4
        // that on the interface of the route (ip_mc_find_dev()).
        By::Route if ipv6_stand_ins::is_group(group) && has_joined(stack, id, group) => None,
        By::Route => interface_for(stack, group),
    };
    let needs_interface = by != By::Route || !ipv6_stand_ins::is_group(group);
    if interface.is_none() && needs_interface {
        return attach::un_offload(stack, id, WhyOs::Arguments);
    }
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((_, socket)) = state.socket(id) else { return };
    apply(&mut socket.options.memberships, group, interface, change);
    drop(state);
    attach::refresh(stack, id);
}

/// The change that the kernel has made. Without an interface it is to the membership that came last.
fn apply(groups: &mut Vec<Membership>, group: Ipv4Addr, interface: Option<u32>, change: Change) {
    let is_it = |one: &Membership| {
        one.group == group && interface.is_none_or(|interface| one.interface == interface)
    };
    let at = groups.iter().rposition(is_it);
    let membership = match (at.and_then(|at| groups.get_mut(at)), interface, &change) {
        (Some(membership), ..) => membership,
        (None, Some(interface), Change::Join | Change::JoinSource(_)) => {
            let mode = SourceMode::Exclude;
            groups.push(Membership { group, interface, mode, sources: Vec::new() });
            let Some(last) = groups.last_mut() else { return };
            last
        }
        _ => return,
    };
    let is_left = match change {
        Change::Join => false,
        Change::Leave => true,
        Change::JoinSource(source) => add(membership, SourceMode::Include, source),
        Change::Block(source) => add(membership, SourceMode::Exclude, source),
        Change::LeaveSource(source) | Change::Unblock(source) => {
            membership.sources.retain(|known| *known != source);
            membership.is_of_nobody()
        }
        Change::Filter(mode, sources) => {
            (membership.mode, membership.sources) = (mode, sources);
            membership.is_of_nobody()
        }
    };
    if is_left && let Some(at) = groups.iter().rposition(is_it) {
        groups.remove(at);
    }
}

/// A membership that had no list of sources takes on the mode of the first one. False: it stays.
fn add(membership: &mut Membership, mode: SourceMode, source: Ipv4Addr) -> bool {
    membership.mode = mode;
    membership.sources.push(source);
    false
}

fn has_joined(stack: &Stack, id: SocketId, group: Ipv4Addr) -> bool {
    stack.shard.lock().is_ok_and(|mut state| {
        let socket = state.socket(id).map(|(_, socket)| socket);
        socket.is_some_and(|socket| socket.options.memberships.iter().any(|it| it.group == group))
    })
}

fn interface_of(stack: &Stack, address: Ipv4Addr) -> Option<u32> {
    stack.plane.lock().ok()?.as_mut()?.control.interface_of(address)
}

/// The interface that the group's route leaves by.
fn interface_for(stack: &Stack, group: Ipv4Addr) -> Option<u32> {
    let mut plane = stack.plane.lock().ok()?;
    let query = crate::control::netlink::RouteQuery::to(group);
    let route = plane.as_mut()?.control.route(&query).ok()?;
    Some(route.oif).filter(|index| *index != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stand-in of a group of IPv6.
    const GROUP: Ipv4Addr = Ipv4Addr::new(0, 129, 1, 1);
    const ONE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const TWO: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn after(steps: impl IntoIterator<Item = (Option<u32>, Change)>) -> Vec<Membership> {
        let mut groups = Vec::new();
        for (interface, change) in steps {
            apply(&mut groups, GROUP, interface, change);
        }
        groups
    }

    fn membership(interface: u32, mode: SourceMode, sources: &[Ipv4Addr]) -> Membership {
        Membership { group: GROUP, interface, mode, sources: sources.to_vec() }
    }

    #[test]
    fn a_group_that_is_left_without_an_interface_is_the_one_joined_last() {
        let all = after([
            (Some(1), Change::Join),
            (Some(2), Change::Join),
            (Some(3), Change::Join),
            (None, Change::Leave),
            (Some(1), Change::Leave),
        ]);
        assert_eq!(all, [membership(2, SourceMode::Exclude, &[])]);
    }

    #[test]
    fn the_first_source_says_the_mode() {
        let joined = after([(Some(1), Change::Join), (Some(1), Change::JoinSource(ONE))]);
        assert_eq!(joined, [membership(1, SourceMode::Include, &[ONE])]);
        let chosen = after([(Some(1), Change::JoinSource(ONE)), (None, Change::JoinSource(TWO))]);
        assert_eq!(chosen, [membership(1, SourceMode::Include, &[ONE, TWO])]);
        let blocked = after([(Some(1), Change::Join), (Some(1), Change::Block(ONE))]);
        assert_eq!(blocked, [membership(1, SourceMode::Exclude, &[ONE])]);
    }

    #[test]
    fn a_membership_of_no_source_is_none() {
        let left = [(Some(1), Change::JoinSource(ONE)), (Some(1), Change::LeaveSource(ONE))];
        assert_eq!(after(left), []);
        let filter = |mode, sources| (Some(1), Change::Filter(mode, sources));
        let all = after([(Some(1), Change::Join), filter(SourceMode::Include, vec![TWO])]);
        assert_eq!(all, [membership(1, SourceMode::Include, &[TWO])]);
        let none = [(Some(1), Change::Join), filter(SourceMode::Include, Vec::new())];
        assert_eq!(after(none), []);
        let unblocked = [(Some(1), Change::Block(ONE)), (Some(1), Change::Unblock(ONE))];
        assert_eq!(after(unblocked), []);
        let again =
            [(Some(1), Change::Join), (Some(1), Change::Block(ONE)), (None, Change::Unblock(ONE))];
        assert_eq!(after(again), [membership(1, SourceMode::Exclude, &[])]);
    }

    /// ip(7): a `struct ip_mreqn`, `struct ip_mreq` or `struct in_addr`.
    #[test]
    fn the_interface_of_a_sender_is_read_by_the_length_of_the_argument() {
        let (group, address) = ([239, 1, 1, 1], [10, 0, 0, 1]);
        let read = |value: &[u8]| {
            let stack = crate::socket::fixture::stack();
            let mut options = Options::new(&stack.config);
            interface_of_ipv4(&mut options, value);
            (options.multicast_source, options.multicast.interface.map(NonZeroU32::get))
        };
        let source = Some(Ipv4Addr::from(address));
        assert_eq!(read(&address), (source, None));
        assert_eq!(read(&[group, address].concat()), (source, None));
        let numbered = |index: u32| [group, address, index.to_ne_bytes()].concat();
        assert_eq!(read(&numbered(7)), (source, Some(7)));
        assert_eq!(read(&numbered(0)), (source, None));
        assert_eq!(read(&[0; 4]), (None, None), "any interface again");
        assert_eq!(read(&[]), (None, None));
    }

    #[test]
    fn a_group_is_sent_to_as_the_kernel_was_told_for_its_family() {
        use crate::socket::fixture::{Udp, stack};
        use crate::sys::sockaddr::Family;
        let udp = Udp::of(stack(), Family::Ipv6);
        let of = |six: bool| {
            udp.with(|_, socket| {
                let it = if six { socket.options.ipv6_multicast } else { socket.options.multicast };
                (it.hops, it.is_looped, it.all, it.interface.map(NonZeroU32::get))
            })
        };
        let before = (1, true, true, None);
        assert_eq!((of(false), of(true)), (before, before));
        udp.set_number(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 9);
        udp.set_number(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0);
        udp.set_number(libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0);
        assert_eq!((of(false), of(true)), ((9, false, false, None), before));
        assert!(udp.with(|_, socket| socket.loops_multicast()), "that goes by the socket's family");
        udp.set_number(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, 7);
        udp.set_number(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0);
        udp.set_number(libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        udp.set_number(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, 1);
        assert_eq!(of(true), (7, false, false, Some(1)));
        assert!(!udp.with(|_, socket| socket.loops_multicast()));
        let groups = [Ipv4Addr::new(239, 1, 1, 1), GROUP];
        let hops = udp.with(|_, socket| groups.map(|group| socket.options.multicast(group).hops));
        assert_eq!(hops, [9, 7]);
    }

    #[test]
    fn a_source_that_is_left_leaves_the_others() {
        let left = after([
            (Some(1), Change::JoinSource(ONE)),
            (Some(1), Change::JoinSource(TWO)),
            (Some(1), Change::LeaveSource(ONE)),
            (Some(1), Change::LeaveSource(Ipv4Addr::new(10, 0, 0, 9))),
        ]);
        assert_eq!(left, [membership(1, SourceMode::Include, &[TWO])]);
        // A group that was not joined cannot be left, nor filtered.
        for change in
            [Change::Leave, Change::Block(ONE), Change::Filter(SourceMode::Include, vec![])]
        {
            assert_eq!(after([(Some(1), change)]), []);
        }
        assert_eq!(after([(None, Change::Join)]), [], "no interface leads there");
    }

    #[test]
    fn a_group_is_joined_on_the_interface_of_the_address_that_the_program_names() {
        use crate::socket::State;
        use crate::socket::fixture::{Udp, stack_with_plane};
        use crate::sys::sockaddr::Family;
        let join = |address: [u8; 4]| {
            let udp = Udp::of(stack_with_plane(&[]), Family::Ipv4);
            let value = [[239, 1, 1, 1], address].concat();
            let level = libc::IPPROTO_IP;
            assert!(after_set(&udp.stack, udp.id, level, libc::IP_ADD_MEMBERSHIP, &value));
            let joined = udp.with(|_, socket| {
                socket.options.memberships.iter().map(|it| it.interface).collect::<Vec<_>>()
            });
            (joined, udp.state())
        };
        assert_eq!(join([127, 0, 0, 1]), (vec![1], State::Undecided));
        let nowhere = join([192, 0, 2, 77]);
        assert_eq!(nowhere, (vec![], State::Os(WhyOs::Arguments)), "the kernel knows better");
    }
}
