//! Following the kernel: every change of an interface, address, route, rule or neighbour as it
//! happens.

use core::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use netlink_packet_core::NLMSG_OVERRUN;

use super::request::BUFFER;
use super::wire::{self, Message};
use super::{Address, Errno, Error, Link, Neighbour, address};
use crate::sys::netlink::{Received, Socket};

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface appeared, or is no longer as it was; this is how it is now.
    Link(Link),
    /// The interface with this ifindex went away, or to another network namespace.
    LinkGone(u32),
    /// An address appeared, or is no longer as it was.
    AddressAdded(Address),
    AddressGone(Address),
    /// Route lookups may have other answers now. At most one per [`Monitor::read`], after the other
    /// changes.
    RouteChanged,
    /// A neighbour appeared or changed its address or state.
    Neighbour(Neighbour),
    NeighbourGone {
        ifindex: u32,
        addr: Ipv4Addr,
    },
    /// Changes were lost: read everything again. Comes last, when nothing older is left to arrive.
    #[doc(alias = "ENOBUFS")]
    Resync,
}

/// A subscription to the kernel's changes.
///
/// Not announced by the kernel, so not here: a path MTU or redirect it learnt, and a confirmation
/// that keeps a neighbour `Reachable`.
pub struct Monitor {
    socket: Socket,
    buffer: Vec<u8>,
    /// Messages were lost, and older ones may still be queued.
    lost: bool,
}

impl Monitor {
    /// Subscribes, in the network namespace the calling thread is in. Needs no capability.
    ///
    /// # Errors
    /// Those of [`Socket::open`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(GROUPS)?, buffer: Vec::with_capacity(BUFFER), lost: false })
    }

    /// As [`Monitor::open`], but for what moves routes only.
    ///
    /// # Errors
    /// Those of [`Socket::open`].
    pub fn open_routes() -> Result<Self, Error> {
        let groups = GROUPS & !NEIGHBOURS;
        Ok(Self { socket: Socket::open(groups)?, buffer: Vec::with_capacity(BUFFER), lost: false })
    }

    /// Readable when [`Monitor::read`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands what has happened since the last call to `on`, oldest first, and gives the number of
    /// changes.
    ///
    /// Never blocks. Stops after 1024 datagrams so that a storm cannot hold the caller; the
    /// descriptor then stays readable.
    ///
    /// # Errors
    /// `recvfrom` with its errno; ENOBUFS is no error but a [`Change::Resync`].
    pub fn read(&mut self, on: &mut impl FnMut(Change)) -> Result<usize, Error> {
        let mut count = 0usize;
        let mut routes = false;
        let mut tell = |change: Change| {
            count = count.saturating_add(1);
            on(change);
        };
        let mut drained = false;
        let mut failure = None;
        for _ in 0..DATAGRAMS {
            match self.socket.receive(&mut self.buffer) {
                Ok(Some(Received::Messages(datagram))) => {
                    let mut messages = wire::messages(datagram);
                    for message in messages.by_ref() {
                        self.lost |= message.kind == NLMSG_OVERRUN;
                        let change = decode(&message);
                        routes |= moves_routes(&message, change.as_ref());
                        change.map(&mut tell);
                    }
                    self.lost |= messages.cut_short();
                }
                Ok(Some(Received::Truncated(length))) => {
                    self.buffer.clear();
                    self.buffer.reserve_exact(length);
                    self.lost = true;
                }
                Ok(None) => {
                    drained = true;
                    break;
                }
                // The queue overflowed. It still holds what came before.
                Err(Error { errno: Errno::NOBUFS, .. }) => self.lost = true,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if routes {
            tell(Change::RouteChanged);
        }
        // Told earlier, the caller's fresh copy would be overwritten by the old messages still
        // queued.
        if drained && self.lost {
            self.lost = false;
            tell(Change::Resync);
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(count),
        }
    }
}

fn decode(message: &Message<'_>) -> Option<Change> {
    let payload = message.payload;
    match message.kind {
        wire::RTM_NEWLINK => Link::parse(payload).map(Change::Link),
        wire::RTM_DELLINK => Link::parse_gone(payload).map(Change::LinkGone),
        wire::RTM_NEWADDR if address::is_ours(payload) => {
            Address::parse(payload).map(Change::AddressAdded)
        }
        wire::RTM_NEWADDR => Address::parse(payload).map(Change::AddressGone),
        wire::RTM_DELADDR => Address::parse(payload).map(Change::AddressGone),
        wire::RTM_NEWNEIGH => Neighbour::parse(payload).map(Change::Neighbour),
        wire::RTM_DELNEIGH => Neighbour::parse(payload)
            .map(|gone| Change::NeighbourGone { ifindex: gone.ifindex, addr: gone.addr }),
        _ => None,
    }
}

/// Whether route lookups may have other answers after this message, which meant this change.
fn moves_routes(message: &Message<'_>, change: Option<&Change>) -> bool {
    match message.kind {
        // It matters whether the host has `::1`.
        wire::RTM_NEWADDR | wire::RTM_DELADDR if address::is_ipv6_of_loopback(message.payload) => {
            true
        }
        wire::RTM_NEWROUTE
        | wire::RTM_DELROUTE
        | wire::RTM_NEWRULE
        | wire::RTM_DELRULE
        | wire::RTM_NEWNEXTHOP
        | wire::RTM_DELNEXTHOP => true,
        // The kernel does not announce the IPv4 routes that go with an interface or an address.
        wire::RTM_NEWLINK | wire::RTM_DELLINK | wire::RTM_NEWADDR | wire::RTM_DELADDR => {
            change.is_some()
        }
        _ => false,
    }
}

/// RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV6_IFADDR, _IPV6_ROUTE, _IPV6_RULE and _NEXTHOP: group n is bit
/// n - 1.
const GROUPS: u32 =
    1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18 | 1 << 31;

/// RTNLGRP_NEIGH
const NEIGHBOURS: u32 = 1 << 2;

/// How many datagrams one `read` takes at most.
const DATAGRAMS: u32 = 1024;
