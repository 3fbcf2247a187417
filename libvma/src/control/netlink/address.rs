//! An address of an interface as rtnetlink(7) describes it, of IPv6 its stand-in ([`ipv6_stand_ins`]).

use core::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;

use super::wire;

/// An address of an interface that the library may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub ifindex: u32,
    /// The interface's own address, also where a point-to-point peer has another one.
    #[doc(alias = "IFA_LOCAL")]
    pub addr: Ipv4Addr,
    /// Bits, 0 to 32, or 128.
    pub prefix_len: u8,
    /// The directed broadcast address, where one was set.
    #[doc(alias = "IFA_BROADCAST")]
    pub broadcast: Option<Ipv4Addr>,
}

impl Address {
    /// Reads an `RTM_NEWADDR` or `RTM_DELADDR`; `None` if it is not about an address of IPv4, or of IPv6 one that has a stand-in.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = AddressHeader::parse(payload).ok()?;
        if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
            return None;
        }
        let (mut address, mut local, mut broadcast) = (None, None, None);
        let own = |value: &[u8]| wire::address(value, ipv6_stand_ins::of);
        for attribute in wire::attributes(payload, HEADER) {
            match attribute.kind() {
                IFA_ADDRESS => address = own(attribute.value()),
                IFA_LOCAL => local = own(attribute.value()),
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

/// Is the address in an `RTM_NEWADDR` the host's, and not one that another host may have (RFC 4862 section 5.4)?
pub(super) fn is_ours(payload: &[u8]) -> bool {
    wire::attributes(payload, HEADER).all(|attribute| {
        let flags = wire::number(attribute.value()).unwrap_or(0);
        attribute.kind() != IFA_FLAGS || flags & NOT_YET_OURS == 0
    })
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
const IFA_FLAGS: u16 = 8;
/// IFA_F_TENTATIVE and IFA_F_DADFAILED.
const NOT_YET_OURS: u32 = 0x40 | 0x08;
