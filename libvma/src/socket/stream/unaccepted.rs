//! The connections that wait in the accept queue of a listener when this process ceases to listen. If another process
//! has the listener, too (the parent of a worker, another worker), they are that one's to accept: the kernel's
//! listener gets them, as it would have had them without us.

use super::{Guard, Phase, Stack, inherited, view};
use crate::log::log_line;
use crate::process::inherit;
use crate::shard::SocketId;
use crate::shard::tcp::Establisher;
use crate::sys::thread;

/// How long a handshake that is under way gets to end.
const PATIENCE_MILLIS: u32 = 20;

/// To be called before the listener ends. What cannot be handed over waits on, and is reset with it.
pub fn hand_over(stack: &Stack, id: SocketId) {
    let interfaces = {
        let Ok(mut state) = stack.shard.lock() else { return };
        if !may_be_shared(&mut state, id) || !state.has_clients(id) {
            return;
        }
        // Those that come from now on are the kernel's.
        inherited::leave_to_kernel(&mut state, id);
        state.served_interfaces()
    };
    let mut establishers = Vec::new();
    for interface in interfaces {
        match Establisher::open(interface) {
            Ok(establisher) => establishers.push((interface, establisher)),
            Err(error) => {
                log_line!(Debug, "connections that wait for accept() are not handed over: {error}")
            }
        }
    }
    if establishers.is_empty() {
        return;
    }
    for _ in 0..PATIENCE_MILLIS {
        let Ok(mut state) = stack.shard.lock() else { return };
        state.catch_up();
        state.run_tcp();
        if !state.has_handshakes(id) {
            break;
        }
        drop(state);
        thread::nap_millis(1);
    }
    let Ok(mut state) = stack.shard.lock() else { return };
    state.catch_up();
    let mut count = 0;
    while let Some(accepted) = state.accept(id) {
        let of = |interface: u32| {
            let mut establishers = establishers.iter();
            establishers.find(|(index, _)| *index == interface).map(|(_, establisher)| establisher)
        };
        let taken = state.take_apart(&accepted, |interface, flow, handshake| {
            of(interface).is_some_and(|establisher| establisher.expect(flow, handshake).is_ok())
        });
        let Some(taken) = taken else {
            state.reject(accepted);
            continue;
        };
        count += 1;
        let establisher = of(taken.interface);
        for frame in &taken.frames {
            // A segment that does not get there the peer sends again.
            let _ = establisher.map(|establisher| establisher.put(frame));
        }
    }
    log_line!(Debug, "connections that wait for accept() and are the kernel's now: {count}");
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
