//! A send call with VMA_SND_FLAGS_DUMMY: all that a send does, but that nothing leaves.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::udp::MAX_DATA_LEN;

use super::super::ancillary::Ancillary;
use super::super::{Stack, State, Via, WhyOs};
use super::{Request, Way, is_ipv6, route, start};
use crate::shard::SocketId;
use crate::sys::loopback_end::Takes;
use crate::sys::sockaddr::Family;

/// Returns the number of bytes that a send would have sent. EINVAL: the socket is the kernel's. A datagram that would go by
/// the kernel, as one to an address of this host does, only counts.
#[cold]
pub fn rehearse(stack: &Stack, id: SocketId, request: &Request<'_>) -> Result<usize, i32> {
    let control = request.control.and_then(Ancillary::parse).unwrap_or_default();
    let len: usize = request.payload.iter().map(|piece| piece.len()).sum();
    if len > MAX_DATA_LEN {
        return Err(libc::EMSGSIZE);
    }
    // At most once each: bind the socket, ask for the way.
    let (mut bound, mut asked) = (false, false);
    loop {
        let mut state = stack.shard.lock().map_err(|_| libc::EAGAIN)?;
        if request.named == Family::Ipv6 && !is_ipv6(&mut state, id) {
            return Err(libc::EAFNOSUPPORT);
        }
        let key = (state.epoch(), state.answers());
        let (_, socket) = state.socket(id).ok_or(libc::EINVAL)?;
        let destination = request.to.or(socket.peer).ok_or(libc::EDESTADDRREQ)?;
        match socket.state {
            State::Os(_) => return Err(libc::EINVAL),
            State::Undecided => {
                let descriptor = socket.shadow();
                drop(state);
                let ends = (descriptor, destination);
                if core::mem::replace(&mut bound, true) || !start(stack, id, request, ends) {
                    return Err(libc::EINVAL);
                }
                continue;
            }
            // The kernel's word to a socket that takes IPv6 only.
            State::Offloaded
                if socket.takes == Takes::Ipv6 && !is_ipv6_address(*destination.ip()) =>
            {
                return Err(libc::EINVAL);
            }
            State::Offloaded => {}
        }
        let ancillary = control.towards(destination).unwrap_or_default();
        match route::cached(socket, destination, ancillary.source, key) {
            None if !core::mem::replace(&mut asked, true) => {
                drop(state);
                let via = route::renew(stack, id, destination, ancillary.source, key);
                if matches!(via, Some(Via::Os(WhyOs::Neighbour))) {
                    route::resolve_neighbour(stack, *destination.ip());
                }
                continue;
            }
            Some(Via::Ring { hop, source, hop_limit, class }) => {
                let way = Way { hop, source, hop_limit, class, after_kernel: 0, ancillary };
                walk(&mut state, id, request, len, destination, &way);
            }
            None | Some(Via::Os(_)) => {}
        }
        if let Some((endpoint, _)) = state.socket(id) {
            endpoint.counters.tx_dummy = endpoint.counters.tx_dummy.saturating_add(1);
        }
        return Ok(len);
    }
}

fn is_ipv6_address(address: Ipv4Addr) -> bool {
    is_stand_in(address) || ipv6_stand_ins::is_one(address)
}

fn walk(
    state: &mut super::Guard<'_>,
    id: SocketId,
    request: &Request<'_>,
    len: usize,
    destination: SocketAddrV4,
    way: &Way,
) {
    let Some((_, socket)) = state.socket(id) else { return };
    let mut egress = way.egress(socket, destination, request.payload, len);
    // Members in this process get nothing of it.
    egress.loop_back = false;
    state.rehearse(&egress);
}
