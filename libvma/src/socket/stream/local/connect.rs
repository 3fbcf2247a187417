//! connect() to an address of this host: the offer first, then the kernel's connect. A peer that does not
//! answer in time gets the offer when it does.

use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::{STAND_IN, is_stand_in};
use libvma_engine::wire::ipv4::protocol;
use rustix::event::epoll;

use super::super::{Outcome, Phase, Stack, WhyOs, set_phase, view};
use super::Shard;
use crate::config::rules::Moment;
use crate::shard::pipe::Offer;
use crate::shard::{SocketId, clock};
use crate::socket::local::Reach;
use crate::socket::shadow_news::Kind;
use crate::socket::{State, local};
use crate::sys::{loopback_end, shadow};

/// connect(2) of a fresh socket. None: the destination is not on this host, or nobody there has the
/// library.
pub fn connect(
    stack: &Stack,
    id: SocketId,
    descriptor: i32,
    peer: SocketAddrV4,
) -> Option<Outcome<()>> {
    if !stack.config.local || peer.port() == 0 || !is_own(stack, *peer.ip()) {
        return None;
    }
    if stack.short_streams.expects(peer, clock::now().as_nanos()) {
        return Some(Outcome::Os(WhyOs::Short));
    }
    let bound = loopback_end::source(descriptor, peer)?;
    let source = if bound.ip().is_unspecified() { likely_source(*peer.ip()) } else { *bound.ip() };
    let from = |port| SocketAddrV4::new(source, port);
    let ruling = stack.config.rules.decide(Moment::Connect, peer, Some(from(bound.port())));
    if let Some(place) = ruling {
        return Some(Outcome::Os(WhyOs::Rule(place)));
    }
    let mut reach = local::find_patiently(stack, protocol::TCP, from(bound.port()), peer)?;
    if bound.port() == 0 && local::is_one_of_several(stack, from(0), peer) {
        // Which of the listeners gets the connection depends on the port. The kernel's connect() keeps
        // this one.
        shadow::bind_any(descriptor).ok()?;
        let port = loopback_end::source(descriptor, peer).map(|bound| bound.port())?;
        // If an old connection of that port is still known to the kernel, it says nothing of the next one.
        if let Some(exact) = local::find_patiently(stack, protocol::TCP, from(port), peer) {
            reach = exact;
        }
    }
    let socket = u32::try_from(local::inode(descriptor)?).ok()?;
    let offer = {
        let mut state = stack.shard.lock().ok()?;
        if view(&mut state, id)?.phase != Phase::Fresh {
            return None;
        }
        let limit = u32::try_from(super::limit(state.socket(id)?.1)).unwrap_or(u32::MAX);
        let offer = Offer { socket, destination: peer, limit };
        let has_pipe = match reach {
            Reach::Link(link) => state.offer_pipe(id, link, offer),
            Reach::Late(_) => state.seek_pipe(id, offer),
        };
        if !has_pipe {
            return None;
        }
        let (_, socket) = state.socket(id)?;
        socket.pending_error = 0;
        socket.state = State::Offloaded;
        set_phase(&mut state, id, Phase::Connecting);
        offer
    };
    if let Reach::Late(key) = reach {
        local::seek(stack, id, key, offer);
    }
    crate::socket::wait::yield_while_polling();
    Some(go_on(stack, id, descriptor, peer))
}

/// The kernel's connect(), again if it is under way.
pub fn go_on(stack: &Stack, id: SocketId, descriptor: i32, peer: SocketAddrV4) -> Outcome<()> {
    let result = loopback_end::connect(descriptor, peer);
    watch(stack, id, descriptor);
    let Ok(mut state) = stack.shard.lock() else { return Outcome::Errno(libc::EALREADY) };
    match result {
        Ok(()) => {
            set_phase(&mut state, id, Phase::Connected);
            super::establish(&mut state, id);
            Outcome::Ours(())
        }
        Err(errno) => {
            let lives =
                [libc::EINPROGRESS, libc::EALREADY, libc::EINTR, libc::EISCONN, libc::EAGAIN];
            if !lives.contains(&errno) {
                undo(&mut state, id);
            }
            Outcome::Errno(errno)
        }
    }
}

/// The attempt failed: the socket is as new.
pub fn undo(state: &mut Shard, id: SocketId) {
    state.close_pipe(id);
    set_phase(state, id, Phase::Fresh);
    if let Some((_, socket)) = state.socket(id) {
        socket.state = State::Undecided;
    }
    state.announce_change(id);
}

/// The internal thread shall tell of all that happens to the kernel's half.
pub fn watch(stack: &Stack, id: SocketId, descriptor: i32) {
    use epoll::EventFlags;
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.is_shadow_watched = true;
    }
    let events = EventFlags::IN
        | EventFlags::OUT
        | EventFlags::RDHUP
        | EventFlags::PRI
        | EventFlags::ERR
        | EventFlags::ET;
    stack.shadows.watch(Kind::Streams, descriptor, id, events);
}

/// The socket is the kernel's alone.
pub fn unwatch(stack: &Stack, descriptor: i32) {
    stack.shadows.forget(Kind::Streams, descriptor);
}

/// Is it an address of this host, and may links carry it?
pub fn is_own(stack: &Stack, address: Ipv4Addr) -> bool {
    if address.is_loopback() || is_stand_in(address) {
        return true;
    }
    let Ok(plane) = stack.plane.lock() else { return false };
    plane.as_ref().is_some_and(|plane| plane.control.is_known_alike(address))
}

/// What the kernel chooses unless the routes say something unusual.
pub(super) fn likely_source(destination: Ipv4Addr) -> Ipv4Addr {
    match destination {
        STAND_IN => STAND_IN,
        own if own.is_loopback() => Ipv4Addr::LOCALHOST,
        other => other,
    }
}
