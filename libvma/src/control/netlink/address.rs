//! An IPv4 address of an interface as rtnetlink(7) describes it.

use core::net::Ipv4Addr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;

use super::wire;

/// An IPv4 address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ifindex: u32,
    /// The interface's own address, also where a point-to-point peer has another one.
    #[doc(alias = "IFA_LOCAL")]
    pub addr: Ipv4Addr,
    /// Bits, 0 to 32.
    pub prefix_len: u8,
    /// The directed broadcast address, where one was set.
    #[doc(alias = "IFA_BROADCAST")]
    pub broadcast: Option<Ipv4Addr>,
}

impl Address {
    /// Reads an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if it is not about IPv4.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = AddressHeader::parse(payload).ok()?;
        if header.family != AddressFamily::Inet {
            return None;
        }
        let (mut address, mut local, mut broadcast) = (None, None, None);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute.kind() {
                IFA_ADDRESS => address = wire::ipv4(attribute.value()),
                IFA_LOCAL => local = wire::ipv4(attribute.value()),
                IFA_BROADCAST => broadcast = wire::ipv4(attribute.value()),
                _ => {}
            }
        }
        Some(Self {
            ifindex: header.index,
            // IFA_ADDRESS is the peer's on a point-to-point interface, and the same as IFA_LOCAL
            // elsewhere.
            addr: local.or(address)?,
            prefix_len: header.prefix_len,
            broadcast,
        })
    }
}

/// Is an `RTM_NEWADDR` or `RTM_DELADDR` about an IPv6 address of the loopback interface?
pub(super) fn is_ipv6_of_loopback(payload: &[u8]) -> bool {
    let header = AddressHeader::parse(payload);
    header.is_ok_and(|header| header.family == AddressFamily::Inet6 && header.index == LOOPBACK)
}

/// The loopback interface's index in every network namespace.
const LOOPBACK: u32 = 1;
/// Bytes of `struct ifaddrmsg`.
const HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
