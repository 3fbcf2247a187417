//! listen() and accept(): others find the listener; whose connection the kernel accepted may have
//! offered a pipe.

use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::ipv4::protocol;

use super::super::candidate::Model;
use super::super::{Guard, Stack, Stream, listen};
use super::connect;
use crate::shard::SocketId;
use crate::socket::{Socket, State, local};
use crate::sys::loopback_end;

/// Other processes of this host find the listener from now on.
pub fn post(stack: &Stack, id: SocketId) {
    if !stack.config.local {
        return;
    }
    let place = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Some((_, socket)) = state.socket(id) else { return };
        let left = socket.stream.as_ref().is_none_or(|stream| stream.left);
        let wanted = socket.posted.is_none() && !left;
        socket.local.filter(|_| wanted).map(|local| (socket.shadow(), local))
    };
    let Some((descriptor, address)) = place else { return };
    let address = match *address.ip() {
        ipv6_stand_ins::ANY => address,
        own if !own.is_unspecified() && !connect::is_own(stack, own) => return,
        _ => address,
    };
    let Some(posted) = local::post(stack, protocol::TCP, descriptor, address) else { return };
    let mut unused = Some(posted);
    if let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        let before = socket.posted.replace(Box::new(posted)).map(|before| *before);
        unused = before.filter(|before| *before != posted);
    }
    if let Some(posted) = unused {
        local::unpost(stack, posted);
    }
}

/// Nobody is to find the listener any more: it ends, or others accept from it, too.
pub fn unpost(stack: &Stack, id: SocketId) {
    let posted = {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.socket(id).and_then(|(_, socket)| socket.posted.take())
    };
    if let Some(posted) = posted {
        local::unpost(stack, *posted);
    }
}

pub fn is_posted(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.socket(id).is_some_and(|(_, socket)| socket.posted.is_some())
}

/// Before a fork: listeners that nobody has waited on may be the child's to serve.
pub fn unpost_idle(stack: &Stack) {
    let ids = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let mut ids = state.ids();
        ids.retain(|id| {
            state.socket(*id).is_some_and(|(_, socket)| {
                let waits = |stream: &Stream| !stream.phase.is_waited_on();
                socket.posted.is_some() && socket.stream.as_deref().is_some_and(waits)
            })
        });
        ids
    };
    ids.into_iter().for_each(|id| unpost(stack, id));
}

/// The kernel accepted a connection, of which this is the descriptor: its socket, if its client has
/// offered a pipe. Else it is the kernel's.
pub fn adopt(
    stack: &Stack,
    listener: SocketId,
    descriptor: i32,
    nonblocking: bool,
) -> Option<SocketId> {
    let has_offers = stack.shard.is_live() && {
        let mut state = stack.shard.lock().ok()?;
        state.catch_up();
        state.has_offers()
    };
    if !has_offers && !expects_offer(stack, listener) {
        return None;
    }
    // (Of a client of another host no stand-in is made for that.)
    let peer = loopback_end::known_peer(descriptor)?;
    let own = loopback_end::local(descriptor)?;
    // An offer is believed for connections of this user's processes only.
    let client = local::own_users_socket(stack, protocol::TCP, own, peer)?;
    let accept = |is_expected: bool| {
        let mut state = stack.shard.lock().ok()?;
        if is_expected {
            state.catch_up();
        }
        let mut socket = heir_of(stack, &mut state, listener, descriptor, nonblocking)?;
        (socket.local, socket.peer) = (Some(own), Some(peer));
        let limit = super::limit(&socket);
        if is_expected && !state.has_offer(client, own) {
            return state.expect_offer(client, own, limit, socket);
        }
        state.accept_pipe(client, own, limit, move || socket)
    };
    let id = match accept(!has_offers) {
        None if has_offers && expects_offer(stack, listener) => accept(true),
        Some(id) if has_offers => {
            note_offer(stack, id);
            Some(id)
        }
        accepted => accepted,
    }?;
    crate::socket::wait::yield_while_polling();
    connect::watch(stack, id, descriptor);
    Some(id)
}

/// The connection's pipe was offered before the client connected.
fn note_offer(stack: &Stack, id: SocketId) {
    let link = {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.pipe(id).map(|pipe| pipe.link())
    };
    if let Some(link) = link {
        local::offer_came(stack, link);
    }
}

/// May an offer come late, from a process that has only just heard that it has a link with us?
fn expects_offer(stack: &Stack, listener: SocketId) -> bool {
    is_posted(stack, listener) && local::expects_offers(stack)
}

/// A socket with what a connection takes from its listener.
fn heir_of(
    stack: &Stack,
    state: &mut Guard<'_>,
    listener: SocketId,
    descriptor: i32,
    nonblocking: bool,
) -> Option<Socket> {
    let (_, parent) = state.socket(listener)?;
    let Model { options, stream } = listen::model(&parent.options, parent.stream.as_deref()?);
    let mut socket = Socket::new(descriptor, nonblocking, &stack.config);
    socket.options = options;
    socket.state = State::Offloaded;
    socket.order.note_readable();
    socket.stream = Some(Box::new(stream));
    Some(socket)
}
