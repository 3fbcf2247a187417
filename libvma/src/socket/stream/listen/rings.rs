//! The moment at which the rings that a listener needs are opened.

use super::super::{Stack, view};
use crate::shard::SocketId;
use crate::socket::attach;
use crate::sys::sockaddr::Family;
use crate::sys::{loopback_end, shadow};

/// May a client come as soon as the socket listens? To a process that has just been a client itself the server may connect back (active
/// FTP, `iperf -r`): that connection is the kernel's rather than refused while the interface is attached.
pub fn is_awaited(stack: &Stack) -> bool {
    let Ok(plane) = stack.plane.lock() else { return false };
    plane.as_ref().is_some_and(|plane| !plane.wanted.is_empty())
}

/// Opens the rings that the listener will need, which takes milliseconds in which the kernel would
/// answer clients: before it listens, unless [`is_awaited`].
pub fn prepare(stack: &Stack, id: SocketId) {
    let place = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Some(view) = view(&mut state, id) else { return };
        let Some((_, socket)) = state.socket(id) else { return };
        let device = socket.options.device();
        let mut any_port = false;
        if let Some(stream) = socket.stream.as_mut() {
            // The kernel binds a socket that listens.
            stream.unbound = false;
            any_port = stream.any_port;
        }
        let is_ipv6 = shadow::family(view.shadow) == Family::Ipv6;
        loopback_end::listening(view.shadow).map(|local| (local, device, any_port, is_ipv6))
    };
    if let Some((local, device, any_port, is_ipv6)) = place
        && !attach::may_be_brief(stack, any_port)
        && stack.config.rules.decide_listener(local, is_ipv6).is_none()
    {
        attach::open_rings(stack, *local.ip(), device);
    }
}
