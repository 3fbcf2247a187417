//! The connections that wait in the accept queue of a listener when this process ceases to serve it. If another process
//! has the listener, too (the parent of a worker, another worker), or the program that this one executes, or this one by the
//! kernel, they are to be accepted there: the kernel's listener gets them, as it would have had them without us.

use super::{Guard, Phase, Stack, inherited, view};
use crate::control::netlink::Diag;
use crate::log::log_line;
use crate::process::inherit;
use crate::shard::SocketId;
use crate::shard::tcp::{Establisher, Waiting};
use crate::sys::{rights, shadow, thread};

/// How long a handshake that is under way gets to end.
const PATIENCE_MILLIS: u32 = 50;

/// So often the kernel gets the segments of a connection, a millisecond apart.
const TRIES: u32 = 10;

/// As [`hand_over`], if another process may have the listener: its descriptor may be about to be closed.
pub fn hand_over_shared(stack: &Stack, id: SocketId) {
    if stack.shard.lock().is_ok_and(|mut state| may_be_shared(&mut state, id)) {
        hand_over(stack, id);
    }
}

/// To be called before the listener ends here, and lives on as the kernel's. Connections that cannot be handed over are reset
/// when it ends.
pub fn hand_over(stack: &Stack, id: SocketId) {
    if is_waited_for(stack, id) {
        // Clients that connect from now on are the kernel's.
        inherited::leave_listener(stack, id);
        give_all(stack, id);
    }
}

/// The same for a listener whose flows are gone already, and that goes on within the host.
pub fn hand_over_of_wire(stack: &Stack, id: SocketId) {
    if is_waited_for(stack, id) {
        give_all(stack, id);
    }
}

fn is_waited_for(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    view(&mut state, id).is_some_and(|view| matches!(view.phase, Phase::Listening { .. }))
        && state.has_clients(id)
}

fn give_all(stack: &Stack, id: SocketId) {
    let _raised = rights::raise();
    let (interfaces, room) = {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Some(view) = view(&mut state, id) else { return };
        // Half of a buffer is the window, as the host's settings have it.
        let room =
            shadow::int_option(view.shadow, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0) / 2;
        (state.served_interfaces(), usize::try_from(room).unwrap_or(0))
    };
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
        let is_given = state.take_apart(&accepted, room, |interface, waiting| {
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
    let flow = waiting.flow();
    if way.expect(flow, &waiting.handshake).is_err() {
        return false;
    }
    let (own, peer) = waiting.ends();
    // Without data: nobody can be done with the connection before it was seen.
    let is_made = repeat(|| {
        way.put(&waiting.opening).is_ok() && matches!(diag.connection(own, peer), Ok(Some(_)))
    });
    if !is_made {
        // Its accept queue is full, or a rule of the firewall is against it.
        way.forget(flow);
        return false;
    }
    // From now on another process may have accepted it, have read, and have closed it.
    let mut so_far = 0;
    let is_over = repeat(|| {
        for segment in waiting.segments.iter().filter(|segment| segment.end > so_far) {
            let _ = way.put(&segment.frame);
        }
        match diag.connection(own, peer) {
            Ok(Some(bytes)) => so_far = bytes,
            Ok(None) => return true,
            Err(_) => return false,
        }
        so_far >= waiting.sent
    });
    if !is_over && let Some(reset) = waiting.reset(so_far) {
        // It has no room for all of the data, which nobody would send again.
        let _ = way.put(&reset);
    }
    is_over
}

/// The kernel may be busy with other packets, and take a segment later than it is put.
fn repeat(mut is_done: impl FnMut() -> bool) -> bool {
    (0..TRIES).any(|number| {
        if number > 0 {
            thread::nap_millis(1);
        }
        is_done()
    })
}

/// May another process have the listener, too?
fn may_be_shared(state: &mut Guard<'_>, id: SocketId) -> bool {
    state.socket(id).is_some_and(|(_, socket)| {
        let inherited = |stream: &super::Stream| stream.left || stream.inherited_at.is_some();
        socket.forks != inherit::forks() || socket.stream.as_deref().is_some_and(inherited)
    })
}

#[cfg(test)]
mod tests;
