//! The connections that wait in the accept queue of a listener when this process ceases to listen. If another process
//! has the listener, too (the parent of a worker, another worker), they are that one's to accept: the kernel's
//! listener gets them, as it would have had them without us.

use super::{Guard, Phase, Stack, inherited, view};
use crate::control::netlink::Diag;
use crate::log::log_line;
use crate::process::inherit;
use crate::shard::SocketId;
use crate::shard::tcp::{Establisher, Waiting};
use crate::sys::thread;

/// How long a handshake that is under way gets to end.
const PATIENCE_MILLIS: u32 = 20;

/// To be called before the listener ends. What cannot be handed over is reset with it.
pub fn hand_over(stack: &Stack, id: SocketId) {
    let interfaces = {
        let Ok(mut state) = stack.shard.lock() else { return };
        if !may_be_shared(&mut state, id) || !state.has_clients(id) {
            return;
        }
        state.served_interfaces()
    };
    // Clients that connect from now on are the kernel's.
    inherited::leave_listener(stack, id);
    let (mut ways, diag) = (Vec::new(), Diag::open());
    for interface in interfaces {
        match Establisher::open(interface) {
            Ok(way) => ways.push((interface, way)),
            Err(error) => {
                log_line!(Debug, "connections that wait for accept() are not handed over: {error}")
            }
        }
    }
    let Some(mut diag) = diag.ok().filter(|_| !ways.is_empty()) else { return };
    await_handshakes(stack, id);
    let (mut given, mut reset) = (0, 0);
    // The lock is let go between them: each takes the kernel some time.
    while let Ok(mut state) = stack.shard.lock() {
        state.catch_up();
        let Some(accepted) = state.accept(id) else { break };
        let is_given = state.take_apart(&accepted, |interface, waiting| {
            let way = ways.iter().find(|(index, _)| *index == interface);
            way.is_some_and(|(_, way)| give(way, waiting, &mut diag))
        });
        if is_given {
            given += 1;
        } else {
            state.reject(accepted);
            reset += 1;
        }
    }
    log_line!(
        Debug,
        "connections that wait for accept(): {reset} are reset, so many are the kernel's now: {given}"
    );
}

/// Connections get their place in the accept queue when their handshake ends.
fn await_handshakes(stack: &Stack, id: SocketId) {
    for _ in 0..PATIENCE_MILLIS {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.catch_up();
        state.run_tcp();
        if !state.has_handshakes(id) {
            return;
        }
        drop(state);
        thread::nap_millis(1);
    }
}

/// True if the kernel has the connection, and all that the peer has sent.
fn give(way: &Establisher, waiting: &Waiting, diag: &mut Diag) -> bool {
    if way.expect(waiting.flow(), &waiting.handshake).is_err() {
        return false;
    }
    let is_put = waiting.frames.iter().all(|frame| way.put(frame).is_ok());
    let (own, peer) = waiting.ends();
    let found = diag.connection(own, peer).ok().flatten();
    if is_put && found.is_some_and(|found| found >= waiting.unread) {
        return true;
    }
    // Its accept queue is full, or a rule of the firewall is against it, or it has no room for all of the data.
    way.forget(waiting.flow());
    if let Some(reset) = found.and_then(|received| waiting.reset(received)) {
        let _ = way.put(&reset);
    }
    false
}

/// May another process have the listener, too?
fn may_be_shared(state: &mut Guard<'_>, id: SocketId) -> bool {
    let listens = view(state, id).is_some_and(|view| matches!(view.phase, Phase::Listening { .. }));
    listens
        && state.socket(id).is_some_and(|(_, socket)| {
            let inherited = |stream: &super::Stream| stream.left || stream.inherited_at.is_some();
            socket.forks != inherit::forks() || socket.stream.as_deref().is_some_and(inherited)
        })
}
