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
    /// The bus of the device that it is the driver's interface to: `pci`, `virtio`, `usb` ...; `None`
    /// for an interface without hardware, and before Linux 5.14.
    #[doc(alias = "IFLA_PARENT_DEV_BUS_NAME")]
    pub bus: Option<String>,
    /// The ifindex of the bridge, bond or VRF it belongs to.
    #[doc(alias = "IFLA_MASTER")]
    pub master: Option<u32>,
}

impl Link {
    /// Reads an `RTM_NEWLINK`; `None` if it does not describe an interface.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let header = header(payload)?;
        let (mut name, mut mtu, mut mac, mut kind, mut master) = (None, None, None, None, None);
        let (mut rx_queues, mut bus) = (1, None);
        for attribute in wire::attributes(payload, HEADER) {
            let value = attribute.value();
            match attribute.kind() {
                IFLA_ADDRESS => mac = wire::mac(value),
                IFLA_IFNAME => name = Some(wire::text(value)),
                IFLA_MTU => mtu = wire::number(value),
                IFLA_MASTER => master = wire::number(value),
                IFLA_NUM_RX_QUEUES => rx_queues = wire::number(value).unwrap_or(1),
                IFLA_PARENT_DEV_BUS_NAME => bus = Some(wire::text(value)),
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
            bus,
            rx_queues,
            master,
        })
    }

    /// Made of software alone: no device delivers its frames, the kernel does, in socket buffers.
    pub fn is_virtual(&self) -> bool {
        self.kind.is_some() && self.bus.is_none()
    }

    /// May the sender of a frame be on this machine, so that it left the checksum unfinished? A
    /// hypervisor's virtio device is the one with a bus that says so.
    pub fn has_local_peers(&self) -> bool {
        self.is_virtual() || self.bus.as_deref() == Some("virtio")
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
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
const IFLA_INFO_KIND: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: Option<&str>, bus: Option<&str>) -> Link {
        Link {
            index: 2,
            name: "x0".into(),
            mac: None,
            mtu: 1500,
            up: true,
            carrier: true,
            loopback: false,
            ether: true,
            kind: kind.map(str::to_owned),
            rx_queues: 1,
            bus: bus.map(str::to_owned),
            master: None,
        }
    }

    #[test]
    fn hardware_shows_by_its_bus_and_only_a_hypervisors_has_local_peers() {
        let cases = [
            (link(Some("bridge"), None), true, true),
            (link(Some("veth"), None), true, true),
            (link(None, Some("virtio")), false, true),
            (link(None, Some("pci")), false, false),
            // A port of a switch chip, which has both.
            (link(Some("dsa"), Some("mdio_bus")), false, false),
            (link(None, None), false, false),
        ];
        for (link, is_virtual, has_local_peers) in cases {
            assert_eq!(link.is_virtual(), is_virtual, "{link:?}");
            assert_eq!(link.has_local_peers(), has_local_peers, "{link:?}");
        }
    }
}
