//! An entry of the kernel's ARP table as rtnetlink(7) describes it.

use core::net::Ipv4Addr;

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

/// An entry of the kernel's ARP table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub ifindex: u32,
    pub addr: Ipv4Addr,
    /// The address last known, which may be out of date: see `state`.
    pub mac: Option<[u8; 6]>,
    pub state: NudState,
}

impl Neighbour {
    /// Reads an `RTM_NEWNEIGH` or `RTM_DELNEIGH`; `None` if it is not about an IPv4 neighbour.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = NeighbourHeader::parse(payload).ok()?;
        // RTNLGRP_NEIGH has every family's: IPv6 neighbours, and AF_BRIDGE for forwarding tables.
        if header.family != AddressFamily::Inet {
            return None;
        }
        let (mut addr, mut mac) = (None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute.kind() {
                NDA_DST => addr = wire::ipv4(attribute.value()),
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
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = ifindex;
    message.header.flags = flags;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(addr)));
    message
}

/// Bytes of `struct ndmsg`.
const HEADER: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
