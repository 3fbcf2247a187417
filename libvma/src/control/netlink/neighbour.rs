//! An entry of the kernel's neighbour table as rtnetlink(7) describes it, of IPv6 by its stand-in ([`ipv6_stand_ins`]).

use core::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage,
    NeighbourState,
};

use super::wire;

/// The state of a neighbour (`NUD_*`; RFC 4861 section 7.3.2 has the common ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "NUD")]
pub enum NudState {
    /// Just made, nothing asked yet. Also any state this version does not know.
    None,
    /// Being resolved for the first time.
    Incomplete,
    /// Confirmed a short while ago.
    Reachable,
    /// Known, but not confirmed for a while; good to send to, and the kernel confirms it when it
    /// sends itself.
    Stale,
    /// As `Stale`, with a probe to be sent soon unless something confirms it.
    Delay,
    /// As `Stale`, with probes under way.
    Probe,
    /// Did not answer.
    Failed,
    /// Needs no resolution: loopback, point-to-point, multicast and broadcast.
    NoArp,
    /// Set by the administrator.
    Permanent,
}

impl NudState {
    /// Whether packets may be sent to the address known (the kernel's `NUD_VALID`).
    #[doc(alias = "NUD_VALID")]
    pub fn is_valid(self) -> bool {
        match self {
            Self::Reachable
            | Self::Stale
            | Self::Delay
            | Self::Probe
            | Self::NoArp
            | Self::Permanent => true,
            Self::None | Self::Incomplete | Self::Failed => false,
        }
    }

    /// Whether the kernel would do something if it were told to use this neighbour.
    pub(super) fn wants_probe(self) -> bool {
        matches!(self, Self::None | Self::Stale | Self::Failed)
    }
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub ifindex: u32,
    pub addr: Ipv4Addr,
    /// The address last known, which may be out of date: see `state`.
    pub mac: Option<[u8; 6]>,
    pub state: NudState,
}

impl Neighbour {
    /// Reads an `RTM_NEWNEIGH` or `RTM_DELNEIGH`; `None` if it is about a neighbour that nobody here has asked for.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = NeighbourHeader::parse(payload).ok()?;
        // RTNLGRP_NEIGH has every family's, AF_BRIDGE's forwarding tables among them.
        if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
            return None;
        }
        let (mut addr, mut mac) = (None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute.kind() {
                NDA_DST => addr = wire::address(attribute.value(), ipv6_stand_ins::known),
                NDA_LLADDR => mac = wire::mac(attribute.value()),
                _ => {}
            }
        }
        let state = match header.state {
            NeighbourState::Incomplete => NudState::Incomplete,
            NeighbourState::Reachable => NudState::Reachable,
            NeighbourState::Stale => NudState::Stale,
            NeighbourState::Delay => NudState::Delay,
            NeighbourState::Probe => NudState::Probe,
            NeighbourState::Failed => NudState::Failed,
            NeighbourState::Noarp => NudState::NoArp,
            NeighbourState::Permanent => NudState::Permanent,
            _ => NudState::None,
        };
        Some(Self { ifindex: header.ifindex, addr: addr?, mac, state })
    }
}

/// A message that names one neighbour, for a request.
pub(super) fn named(ifindex: u32, addr: Ipv4Addr, flags: NeighbourFlags) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    let (family, address) = match ipv6_stand_ins::real(addr) {
        Some(real) => (AddressFamily::Inet6, NeighbourAddress::Inet6(real)),
        None => (AddressFamily::Inet, NeighbourAddress::Inet(addr)),
    };
    message.header.family = family;
    message.header.ifindex = ifindex;
    message.header.flags = flags;
    message.attributes.push(NeighbourAttribute::Destination(address));
    message
}

/// Bytes of `struct ndmsg`.
const HEADER: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
