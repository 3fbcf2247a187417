//! Connections whose interface is gone. The kernel keeps its own, which know addresses and no interface, and
//! they go on when another interface has the address: so these are handed to the kernel at once. Were
//! they kept until there is a new interface to steer, the kernel would answer what comes by it
//! meanwhile with resets.

use super::{Stack, give_back};
use crate::control::Control;
use crate::shard::SocketId;
use crate::socket::Plane;

/// Forgets the interfaces that are gone; returns them.
pub fn forget_interfaces(plane: &mut Plane) -> Vec<u32> {
    let is_gone = |control: &Control, interface: u32| control.link(interface).is_none();
    let gone = plane.rings.keys().copied().filter(|known| is_gone(&plane.control, *known));
    let gone: Vec<u32> = gone.collect();
    plane.rings.retain(|interface, _| !gone.contains(interface));
    gone
}

/// The sockets whose connections went by an interface. What programs have closed already is handed over
/// here.
pub fn over(stack: &Stack, interface: u32) -> Vec<SocketId> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    let keys = state.connections_over(interface);
    if keys.is_empty() {
        return Vec::new();
    }
    state.catch_up();
    state.run_tcp();
    for orphan in keys.iter().filter_map(|key| state.orphan_of(key)).collect::<Vec<_>>() {
        give_back::hand_over_orphan(&mut state, orphan);
    }
    keys.iter().filter_map(|key| state.owner_of(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::RingId;
    use crate::socket::WhyOs;
    use crate::socket::fixture::{Tcp, stack_with_plane};

    #[test]
    fn interfaces_that_are_gone_lose_their_rings_and_what_is_known_of_them() {
        let stack = stack_with_plane(&[]);
        let mut plane = stack.plane.lock().unwrap();
        let plane = plane.as_mut().unwrap();
        const GONE: [u32; 2] = [i32::MAX as u32 - 1, i32::MAX as u32];
        for (interface, ring) in [
            (1, Ok(RingId::nowhere())),
            (GONE[0], Ok(RingId::nowhere())),
            (GONE[1], Err(WhyOs::Route)),
        ] {
            plane.rings.insert(interface, ring);
        }
        let mut gone = forget_interfaces(plane);
        gone.sort_unstable();
        assert_eq!(gone, GONE);
        assert_eq!(plane.rings.keys().collect::<Vec<_>>(), [&1]);
        // Interfaces that were refused get another chance when something about them changes.
        plane.rings.insert(2, Err(WhyOs::RingRefused));
        crate::socket::attach::update_interfaces(&stack, plane);
        assert_eq!(plane.rings.keys().collect::<Vec<_>>(), [&1]);
    }

    #[test]
    fn a_connection_that_goes_by_no_ring_is_stranded_with_no_interface() {
        let tcp = Tcp::connected();
        assert_eq!(over(&tcp.stack, 7), []);
        assert_eq!(over(&tcp.stack, 1), [], "its next hop names that one, and has no ring");
        assert_eq!(tcp.tcp_state(), Some(libvma_engine::tcp::State::Established));
    }
}
