//! Which flows a listener wants, of what interfaces. Installing them is `listen`.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_stand_ins::{self, covers};
use libvma_engine::wire::ipv4::protocol;

use super::{Stack, WhyOs};
use crate::shard::{Flow, RingId};
use crate::socket::attaching::Need;
use crate::socket::{Plane, attach};

/// The flows, and why there are not more: of an interface that is not served.
pub fn wanted(
    stack: &Stack,
    plane: &mut Plane,
    local: SocketAddrV4,
    device: Option<u32>,
    takes_ipv6: bool,
) -> (Vec<(RingId, Flow)>, WhyOs) {
    let bound = *local.ip();
    let interfaces = match device {
        None if bound.is_unspecified() && takes_ipv6 => {
            plane.control.addressed_interfaces(|_| true)
        }
        _ => attach::interfaces(&plane.control, bound, device),
    };
    let mut wanted = Vec::new();
    let mut why = WhyOs::NoInterface;
    for interface in interfaces {
        let ring = match attach::stream_ring(stack, plane, interface, Need::Socket) {
            Ok(ring) => ring,
            Err(reason) => {
                if why == WhyOs::NoInterface || !attach::may_pass(why) {
                    why = reason;
                }
                continue;
            }
        };
        let flow = |destination| {
            (ring, Flow::ThreeTuple { protocol: protocol::TCP, destination, port: local.port() })
        };
        if !bound.is_unspecified() && bound != ipv6_stand_ins::ANY {
            wanted.push(flow(bound));
            continue;
        }
        let is_served = |address: Ipv4Addr| {
            covers(bound, address) && (takes_ipv6 || !ipv6_stand_ins::is_one(address))
        };
        let own = plane.control.addresses().iter().filter(|own| own.ifindex == interface);
        wanted.extend(own.map(|own| own.addr).filter(|own| is_served(*own)).map(flow));
    }
    (wanted, why)
}
