//! A network interface as rtnetlink(7) describes it.

use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{LinkFlags, LinkHeader, LinkLayerType};

use super::wire;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The ifindex: unique in its network namespace at a time, and never 0.
    pub index: u32,
    pub name: String,
    /// The link-layer address, if it is one of Ethernet's length.
    pub mac: Option<[u8; 6]>,
    /// Bytes of an IP packet. 65536 on loopback, so no `u16`.
    pub mtu: u32,
    /// `IFF_UP`: set up by the administrator.
    pub up: bool,
    /// `IFF_RUNNING`: a carrier, and not dormant. The kernel notices up to a second late.
    pub carrier: bool,
    pub loopback: bool,
    /// Carries Ethernet frames.
    #[doc(alias = "ARPHRD_ETHER")]
    pub ether: bool,
    /// What made it: `veth`, `tun`, `bridge`, `bond`, `vlan` ...; `None` for a physical interface
    /// and loopback.
    #[doc(alias = "IFLA_INFO_KIND")]
    pub kind: Option<String>,
    /// Receive queues the interface was made with. An upper bound: those in use may be fewer, and
    /// netlink does not say how many.
    #[doc(alias = "IFLA_NUM_RX_QUEUES")]
    pub rx_queues: u32,
    /// The ifindex of the bridge, bond or VRF it belongs to.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
}

impl Link {
    /// Reads an `RTM_NEWLINK`; `None` if it does not describe an interface.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = header(payload)?;
        let (mut name, mut mtu, mut mac, mut kind, mut master) = (None, None, None, None, None);
        let mut rx_queues = 1;
        for attribute in wire::attributes(payload, HEADER) {
            let value = attribute.value();
            match attribute.kind() {
                IFLA_ADDRESS => mac = wire::mac(value),
                IFLA_IFNAME => name = Some(wire::text(value)),
                IFLA_MTU => mtu = wire::number(value),
                IFLA_MASTER => master = wire::number(value),
                IFLA_NUM_RX_QUEUES => rx_queues = wire::number(value).unwrap_or(1),
                IFLA_LINKINFO => {
                    kind = wire::attributes(value, 0)
                        .find(|info| info.kind() == IFLA_INFO_KIND)
                        .map(|info| wire::text(info.value()));
                }
                _ => {}
            }
        }
        Some(Self {
            index: header.index,
            // A wireless event is an RTM_NEWLINK with a name and little else: it describes no
            // interface.
            name: name?,
            mtu: mtu?,
            mac,
            up: header.flags.contains(LinkFlags::Up),
            carrier: header.flags.contains(LinkFlags::Running),
            loopback: header.flags.contains(LinkFlags::Loopback),
            ether: header.link_layer_type == LinkLayerType::Ether,
            kind,
            rx_queues,
            master,
        })
    }

    /// Reads the ifindex of an `RTM_DELLINK`; `None` if no interface went away.
    pub(super) fn parse_gone(payload: &[u8]) -> Option<u32> {
        header(payload).map(|header| header.index)
    }
}

fn header(payload: &[u8]) -> Option<LinkHeader> {
    // The bridge uses the same messages, in family AF_BRIDGE, for its ports: there RTM_DELLINK
    // means that an interface left the bridge, not that it went away.
    LinkHeader::parse(payload)
        .ok()
        .filter(|header| header.interface_family == AddressFamily::Unspec)
}

/// Bytes of `struct ifinfomsg`.
const HEADER: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
