//! The arguments of the calls by which a socket joins and leaves groups and chooses sources (ip(7), RFC 3678).

use std::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins;
use libvma_engine::udp::lookup::SourceMode;

use crate::sys::sockaddr::Named;

/// A call that the kernel has accepted. Groups and sources of IPv6 are stand-ins.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub group: Ipv4Addr,
    pub by: By,
    pub change: Change,
}

/// How the call names the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Index(u32),
    /// One of its addresses.
    Address(Ipv4Addr),
    /// It leaves the choice to the kernel.
    Route,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Join,
    Leave,
    JoinSource(Ipv4Addr),
    LeaveSource(Ipv4Addr),
    Block(Ipv4Addr),
    Unblock(Ipv4Addr),
    /// The whole list of a membership.
    Filter(SourceMode, Vec<Ipv4Addr>),
}

/// A call, as far as it can be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A group that can be served.
    Served(Request),
    /// A group whose datagrams are the kernel's.
    Kernels,
    /// Not to be understood, or it names a source that has no stand-in.
    Unknown,
}

/// Does the option change memberships? Options of this number mean the same at both levels, but for IPV6_ADD_MEMBERSHIP and
/// IPV6_DROP_MEMBERSHIP.
pub fn is_one(level: i32, name: i32) -> bool {
    match level {
        libc::IPPROTO_IP => (libc::IP_ADD_MEMBERSHIP..=libc::MCAST_MSFILTER).contains(&name),
        libc::IPPROTO_IPV6 => {
            matches!(name, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP)
                || (libc::MCAST_JOIN_GROUP..=libc::MCAST_MSFILTER).contains(&name)
        }
        _ => false,
    }
}

pub fn read(level: i32, name: i32, value: &[u8]) -> Read {
    let Some(group) = group_of(level, name, value) else { return Read::Unknown };
    let group = match group {
        Group::Ipv4(group) => group,
        Group::Ipv6(group) => match ipv6_stand_ins::of(group) {
            Some(stand_in) => stand_in,
            None => return Read::Kernels,
        },
    };
    let request = match (level, name) {
        (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP..=libc::IP_MSFILTER) => of_ipv4(name, value),
        (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP) => by_index(value, 16, Change::Join),
        (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP) => by_index(value, 16, Change::Leave),
        _ => of_either(name, value).and_then(|change| by_index(value, 0, change)),
    };
    match request {
        Some((by, change)) => Read::Served(Request { group, by, change }),
        None => Read::Unknown,
    }
}

enum Group {
    Ipv4(Ipv4Addr),
    Ipv6(Ipv6Addr),
}

/// Where `group_req` and its relatives have the group, and the first source.
const GROUP: usize = 8;
const SOURCE: usize = GROUP + STORAGE;
/// Bytes of a `sockaddr_storage`.
const STORAGE: usize = 128;

fn group_of(level: i32, name: i32, value: &[u8]) -> Option<Group> {
    let by_name = (libc::MCAST_JOIN_GROUP..=libc::MCAST_MSFILTER).contains(&name);
    if by_name {
        // Linux does not look at the family everywhere: what is of another one than the level is not to be understood here.
        return match (level, Named::read(value.get(GROUP..)?)?) {
            (libc::IPPROTO_IP, Named::Ipv4(group)) => Some(Group::Ipv4(*group.ip())),
            (libc::IPPROTO_IPV6, Named::Ipv6(group)) => Some(Group::Ipv6(*group.ip())),
            _ => None,
        };
    }
    match level {
        libc::IPPROTO_IPV6 => Some(Group::Ipv6(value.first_chunk::<16>().copied()?.into())),
        _ => Some(Group::Ipv4(ipv4_at(value, 0)?)),
    }
}

/// Behind the group: `ip_mreq` and `ip_mreqn` have the interface, `ip_mreq_source` and `ip_msfilter` its address.
fn of_ipv4(name: i32, value: &[u8]) -> Option<(By, Change)> {
    let address = ipv4_at(value, 4)?;
    let by_address = if address.is_unspecified() { By::Route } else { By::Address(address) };
    let by = match number_at(value, 8) {
        Some(index) if index != 0 => By::Index(index),
        _ => by_address,
    };
    let source = |change: fn(Ipv4Addr) -> Change| Some((by_address, change(ipv4_at(value, 8)?)));
    match name {
        libc::IP_ADD_MEMBERSHIP => Some((by, Change::Join)),
        libc::IP_DROP_MEMBERSHIP => Some((by, Change::Leave)),
        libc::IP_ADD_SOURCE_MEMBERSHIP => source(Change::JoinSource),
        libc::IP_DROP_SOURCE_MEMBERSHIP => source(Change::LeaveSource),
        libc::IP_BLOCK_SOURCE => source(Change::Block),
        libc::IP_UNBLOCK_SOURCE => source(Change::Unblock),
        libc::IP_MSFILTER => {
            let count = number_at(value, 12)? as usize;
            let sources = (0..count).map(|at| ipv4_at(value, 16 + 4 * at));
            Some((
                by_address,
                Change::Filter(mode(number_at(value, 8)?)?, sources.collect::<Option<_>>()?),
            ))
        }
        _ => None,
    }
}

/// `group_req`, `group_source_req` and `group_filter`.
fn of_either(name: i32, value: &[u8]) -> Option<Change> {
    Some(match name {
        libc::MCAST_JOIN_GROUP => Change::Join,
        libc::MCAST_LEAVE_GROUP => Change::Leave,
        libc::MCAST_JOIN_SOURCE_GROUP => Change::JoinSource(source_at(value, SOURCE)?),
        libc::MCAST_LEAVE_SOURCE_GROUP => Change::LeaveSource(source_at(value, SOURCE)?),
        libc::MCAST_BLOCK_SOURCE => Change::Block(source_at(value, SOURCE)?),
        libc::MCAST_UNBLOCK_SOURCE => Change::Unblock(source_at(value, SOURCE)?),
        libc::MCAST_MSFILTER => {
            let (mode, count) = (mode(number_at(value, SOURCE)?)?, number_at(value, SOURCE + 4)?);
            let sources = (0..count as usize).map(|at| source_at(value, SOURCE + 8 + STORAGE * at));
            Change::Filter(mode, sources.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn by_index(value: &[u8], at: usize, change: Change) -> Option<(By, Change)> {
    let by = match number_at(value, at)? {
        0 => By::Route,
        index => By::Index(index),
    };
    Some((by, change))
}

/// MCAST_EXCLUDE and MCAST_INCLUDE of <linux/in.h>.
fn mode(number: u32) -> Option<SourceMode> {
    match number {
        0 => Some(SourceMode::Exclude),
        1 => Some(SourceMode::Include),
        _ => None,
    }
}

/// A source that is a link-local address has a stand-in, too, by which nothing comes.
fn source_at(value: &[u8], at: usize) -> Option<Ipv4Addr> {
    match Named::read(value.get(at..)?)? {
        Named::Ipv4(source) => Some(*source.ip()),
        Named::Ipv6(source) => ipv6_stand_ins::of_neighbour(*source.ip()),
    }
}

fn ipv4_at(value: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = value.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}

fn number_at(value: &[u8], at: usize) -> Option<u32> {
    ipv4_at(value, at).map(|bytes| u32::from_ne_bytes(bytes.octets()))
}

#[cfg(test)]
mod tests;
