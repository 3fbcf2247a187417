//! A connection that began in the kernel, because its interface was being attached or because a worker accepted it
//! from a listener that others have, too, and may be taken over when it turns out to live: what is kept of its socket
//! until then.

use std::sync::Arc;

use libvma_engine::tcp::lookup::FlowKey;

use super::{Inherited, Phase, Stack, Stream, listen};
use crate::process::inherit;
use crate::shard::SocketId;
use crate::socket::options::Options;
use crate::socket::{Socket, State};
use crate::sys::repair::Origin;
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

/// The options and settings that a connection's socket gets. All connections of a listener share one.
pub struct Model {
    pub(super) options: Options,
    pub(super) stream: Stream,
}

impl Model {
    /// Of the connections of a listener.
    pub fn of_listener(socket: &Socket) -> Option<Model> {
        let stream = socket.stream.as_deref()?;
        matches!(stream.phase, Phase::Listening { .. })
            .then(|| listen::model(&socket.options, stream))
    }

    pub fn family(&self) -> Family {
        self.stream.family
    }
}

#[derive(Clone)]
pub struct Candidate {
    pub origin: Origin,
    model: Arc<Model>,
    /// Options that the program has set since.
    changes: Vec<Inherited>,
    /// Epoll instances that may watch it.
    pub watched_by: Vec<i32>,
    /// How often the process had forked when the connection was made.
    forks: u32,
    /// Several processes accept from its listener: it would end if this one were killed, and must.
    pub is_of_many: bool,
}

impl Candidate {
    /// Of a socket whose connect() is about to be the kernel's.
    pub fn connecting(socket: &Socket) -> Option<Candidate> {
        let stream = socket.stream.as_deref()?;
        let mut stream = stream.clone();
        stream.phase = Phase::Connected;
        // The taken over shadow keeps its port, as if it had been bound.
        (stream.holds_port, stream.unbound) = (true, false);
        let model = Model { options: socket.options.clone(), stream };
        Some(Candidate::new(Origin::Connected, Arc::new(model)))
    }

    /// Of a connection that the kernel accepted for a listener of ours.
    pub fn accepted(stack: &Stack, listener: SocketId) -> Option<Candidate> {
        let mut state = stack.shard.lock().ok()?;
        let (_, socket) = state.socket(listener)?;
        let model = listen::model(&socket.options, socket.stream.as_deref()?);
        Some(Candidate::new(Origin::Accepted, Arc::new(model)))
    }

    /// Of a connection that the kernel accepted for a listener of its own.
    pub fn of_listener(model: Arc<Model>) -> Candidate {
        Candidate { is_of_many: true, ..Candidate::new(Origin::Accepted, model) }
    }

    fn new(origin: Origin, model: Arc<Model>) -> Candidate {
        let (changes, watched_by, forks) = (Vec::new(), Vec::new(), inherit::forks());
        Candidate { origin, model, changes, watched_by, forks, is_of_many: false }
    }

    /// Has a child of this process the connection, too?
    pub fn is_shared(&self) -> bool {
        self.forks != inherit::forks()
    }

    /// The program has set an option of the kernel's socket.
    pub fn note_option(&mut self, level: i32, name: i32, value: &[u8]) {
        self.changes.retain(|known| (known.level, known.name) != (level, name));
        self.changes.push(Inherited { level, name, value: value.to_vec() });
    }

    /// An epoll instance watches the connection from now on.
    pub fn note_instance(&mut self, epfd: i32) {
        if !self.watched_by.contains(&epfd) {
            self.watched_by.push(epfd);
        }
    }

    /// The options that the program has set since the connection was the kernel's.
    pub fn changes(&self) -> &[Inherited] {
        &self.changes
    }

    /// Has nothing been noted since the other one was copied from this one?
    pub fn is_as(&self, copy: &Candidate) -> bool {
        self.changes == copy.changes && self.watched_by == copy.watched_by
    }

    /// The socket as it is to be served.
    pub fn socket(
        &self,
        stack: &Stack,
        descriptors: &[i32],
        nonblocking: bool,
        key: &FlowKey,
    ) -> Option<Socket> {
        let mut socket = Socket::new(*descriptors.first()?, nonblocking, &stack.config);
        (socket.local, socket.peer) = (Some(key.local_endpoint()), Some(key.remote_endpoint()));
        socket.descriptors = descriptors.to_vec();
        socket.options = self.model.options.clone();
        socket.state = State::Offloaded;
        let mut stream = Box::new(self.model.stream.clone());
        // The program may have changed it by IPV6_ADDRFORM.
        stream.family = shadow::family(socket.shadow());
        socket.stream = Some(stream);
        Some(socket)
    }
}

#[cfg(test)]
mod tests;
