//! A listener that a forked child inherits and its parent never waited on: a worker's (nginx), or
//! that of a daemon. It is the child's to offload, as long as no other child may accept from it:
//! connections that wait in one process would not be accepted by another.

use super::candidate::Model;
use super::{Guard, Phase, Stack, Stream, listen, system, view};
use crate::process::inherit;
use crate::shard::SocketId;
use crate::socket::{Socket, options};

/// The parent's listener, as the child's memory has it.
pub struct InheritedListener {
    stream: Stream,
    forks: u32,
    options: options::Options,
    nonblocking: bool,
    descriptors: Vec<i32>,
}

/// None: it is none, or the parent serves it, or its state cannot be read (another thread changed
/// it during the fork).
pub fn find(parent: &Stack, id: SocketId) -> Option<InheritedListener> {
    let mut state = parent.shard.try_lock()?;
    let (_, socket) = state.socket(id)?;
    let stream = socket.stream.as_deref()?;
    (stream.phase == Phase::Listening { steered: false }).then(|| InheritedListener {
        stream: stream.clone(),
        forks: socket.forks,
        options: socket.options.clone(),
        nonblocking: socket.nonblocking,
        descriptors: socket.descriptors.clone(),
    })
}

impl InheritedListener {
    /// Was only one child forked since it was made, out of so many?
    pub fn has_one_owner(&self, forks: u32) -> bool {
        forks == self.forks.wrapping_add(1)
    }

    /// The model of its connections.
    pub fn model(&self) -> Model {
        listen::model(&self.options, &self.stream)
    }

    pub fn descriptors(&self) -> &[i32] {
        &self.descriptors
    }
}

/// Takes the listener over, with those of its numbers that are still open.
pub fn adopt(
    stack: &Stack,
    listener: InheritedListener,
    descriptors: Vec<i32>,
    forks: u32,
) -> Option<SocketId> {
    let shadow = *descriptors.first()?;
    let mut socket = Socket::new(shadow, listener.nonblocking, &stack.config);
    let backlog = listener.stream.backlog;
    socket.descriptors = descriptors;
    socket.options = listener.options;
    socket.stream = Some(Box::new(Stream {
        phase: Phase::Fresh,
        ahead: false,
        left: false,
        inherited_at: Some(forks),
        ..listener.stream
    }));
    let mut state = stack.shard.lock().ok()?;
    state.enable_tcp(|| system::setup(stack));
    let id = state.attach(socket, 0);
    drop(state);
    listen::listen(stack, id, backlog);
    Some(id)
}

/// May another child accept from this listener?
pub(super) fn is_shared(state: &mut Guard<'_>, id: SocketId) -> bool {
    let stream = state.socket(id).and_then(|(_, socket)| socket.stream.as_ref());
    let at = stream.and_then(|stream| stream.inherited_at);
    at.is_some_and(|forks| inherit::forks_of_parent() != Some(forks))
}

/// For the internal thread, now and then: listeners that have got other owners are the kernel's from now on. Connections that
/// wait are so, too: this process may be busy with another one.
pub fn review(stack: &Stack) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let mut waited_on = Vec::new();
    for id in state.ids() {
        let Some((_, socket)) = state.socket(id) else { continue };
        let is_left = socket.stream.as_deref().is_some_and(|stream| stream.left);
        let is_steered = !socket.flows.is_empty();
        let is_shared = inherit::is_child() && is_shared(&mut state, id);
        if is_steered && is_shared {
            leave_to_kernel(&mut state, id);
        }
        if (is_left || is_shared) && state.has_clients(id) {
            waited_on.push(id);
        }
    }
    drop(state);
    for id in waited_on {
        super::unaccepted::hand_over(stack, id);
    }
}

/// Was it a listener of the parent's, as far as the child's memory tells?
pub fn was_listener(parent: &Stack, id: SocketId) -> bool {
    parent.shard.try_lock().is_some_and(|mut state| {
        view(&mut state, id).is_some_and(|view| matches!(view.phase, Phase::Listening { .. }))
    })
}

/// Another process accepts from a listener, too: new connections are the kernel's, which gives them
/// to whoever asks first. Those that wait here are still to be accepted here. False if it is none.
pub fn leave_listener(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let Some((_, socket)) = state.socket(id) else { return false };
    let Some(stream) = socket.stream.as_mut() else { return false };
    if !matches!(stream.phase, Phase::Listening { .. }) {
        return false;
    }
    if !core::mem::replace(&mut stream.left, true) {
        leave_to_kernel(&mut state, id);
        drop(state);
        super::local::accept::unpost(stack, id);
    }
    true
}

/// A listener's connections over interfaces, those that wait to be accepted too, are the kernel's from now on. False if it is none.
pub fn leave_wire(stack: &Stack, id: SocketId) -> bool {
    if !super::is_listening(stack, id) {
        return false;
    }
    if let Ok(mut state) = stack.shard.lock() {
        leave_to_kernel(&mut state, id);
    }
    super::unaccepted::hand_over_of_wire(stack, id);
    true
}

/// Takes the flows of a listener away. What it has accepted, or is about to, lives on.
pub(super) fn leave_to_kernel(state: &mut Guard<'_>, id: SocketId) {
    state.catch_up();
    let Some((_, socket)) = state.socket(id) else { return };
    let flows = core::mem::take(&mut socket.flows);
    let local = socket.local;
    state.leave_listening(id);
    if let Some(local) = local {
        state.steer_accepted(local);
    }
    for (ring, flow) in flows {
        state.remove_flow(ring, flow);
    }
    // What came meanwhile goes on to the kernel, but for the ends of handshakes, whose connections are new.
    state.catch_up();
    if let Some(local) = local {
        state.steer_accepted(local);
    }
}

#[cfg(test)]
mod tests;
