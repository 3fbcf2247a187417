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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::NotOffloadable;
    use crate::socket::fixture::stack_with_plane;

    /// The flows of a listener on a host of which only the loopback interface has a ring.
    fn flows(bound: Ipv4Addr, device: Option<u32>, takes_ipv6: bool) -> Vec<Flow> {
        let stack = stack_with_plane(&[]);
        let mut plane = stack.plane.lock().unwrap();
        let plane = plane.as_mut().unwrap();
        plane.rings.insert(1, Ok(RingId::nowhere()));
        let local = SocketAddrV4::new(bound, 80);
        let (wanted, _) = wanted(&stack, plane, local, device, takes_ipv6);
        assert!(wanted.iter().all(|(ring, _)| *ring == RingId::nowhere()));
        wanted.into_iter().map(|(_, flow)| flow).collect()
    }

    fn flow(destination: Ipv4Addr) -> Flow {
        Flow::ThreeTuple { protocol: protocol::TCP, destination, port: 80 }
    }

    #[test]
    fn a_listener_is_steered_its_own_address_or_every_one_of_its_interfaces() {
        let (own, any) = (Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED);
        assert_eq!(flows(own, None, false), [flow(own)]);
        assert_eq!(flows(Ipv4Addr::new(192, 0, 2, 77), None, false), []);
        let all = flows(any, Some(1), false);
        assert!(all.contains(&flow(own)));
        let is_ipv4 = |flow: &Flow| !ipv6_stand_ins::is_one(flow.destination().1);
        assert!(all.iter().all(is_ipv4));
        let both = flows(any, Some(1), true);
        assert!(all.iter().all(|flow| both.contains(flow)));
        let six = flows(ipv6_stand_ins::ANY, Some(1), true);
        assert!(six.iter().all(|flow| !is_ipv4(flow) && both.contains(flow)));
        let stack = stack_with_plane(&[]);
        let plane = stack.plane.lock().unwrap();
        let addresses = plane.as_ref().unwrap().control.addresses();
        let mut of_loopback = addresses.iter().filter(|own| own.ifindex == 1);
        let has_ipv6 = of_loopback.any(|own| ipv6_stand_ins::is_one(own.addr));
        assert_eq!(!six.is_empty(), has_ipv6);
    }

    /// A reason that may pass must not be hidden by that of the loopback interface.
    #[test]
    fn an_interface_without_a_ring_is_the_reason_for_too_few_flows() {
        let stack = stack_with_plane(&[]);
        let mut plane = stack.plane.lock().unwrap();
        let plane = plane.as_mut().unwrap();
        let reason = |plane: &mut Plane, device| {
            let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
            let (flows, why) = wanted(&stack, plane, local, Some(device), false);
            assert!(flows.is_empty());
            why
        };
        assert_eq!(reason(plane, 1), WhyOs::Interface(NotOffloadable::Loopback));
        let other = i32::MAX as u32;
        assert_eq!(reason(plane, other), WhyOs::Interface(NotOffloadable::NoInterface));
        plane.rings.insert(other, Err(WhyOs::RingRefused));
        assert_eq!(reason(plane, other), WhyOs::RingRefused);
    }
}
