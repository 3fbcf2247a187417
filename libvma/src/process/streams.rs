//! TCP sockets whose descriptors go beyond us: what the process does with them.

use super::Process;
use crate::fd::Object;
use crate::mux::epoll;
use crate::shard::SocketId;
use crate::socket::stream::{self, give_back};
use crate::socket::{self, WhyOs, hand_over};

impl Process {
    /// Makes a stream the kernel's for good: its connection goes on there, its registrations in
    /// epoll instances move, none of its numbers is ours any more. False if that cannot be done
    /// now.
    pub fn release_stream(&self, id: SocketId, why: WhyOs) -> bool {
        if !give_back::give_back(&self.stack, id, why) {
            return false;
        }
        self.drop_stream(id);
        true
    }

    /// A forked child uses a socket that it inherited, a message carries it to another process, or
    /// something else happens that only the kernel's socket can serve.
    pub fn release(&self, id: SocketId, why: WhyOs) {
        if stream::leave_listener(&self.stack, id) {
            // Connections to come are anybody's, and those that wait, too.
            stream::hand_over_unaccepted(&self.stack, id);
        } else if socket::is_stream(&self.stack, id) {
            self.release_stream(id, why);
        } else {
            hand_over::pass(&self.stack, id, why);
        }
    }

    /// For the internal thread: sockets whose pipe to another process is over.
    pub fn tend_pipes(&self) {
        for id in stream::local::end::tend(&self.stack) {
            self.release_stream(id, WhyOs::LocalDestination);
        }
    }

    /// For the internal thread: an interface is gone, and the connections over it are the kernel's to keep.
    pub fn rescue_streams(&self, interface: u32) {
        for id in stream::stranded::over(&self.stack, interface) {
            self.release_stream(id, WhyOs::InterfaceGone);
        }
    }

    /// The shadow is what the socket was: forgets the socket.
    pub fn drop_stream(&self, id: SocketId) {
        self.drop_stream_for(id, WhyOs::NotOurs);
    }

    /// As [`Process::drop_stream`], for a reason that the socket itself does not know.
    pub fn drop_stream_for(&self, id: SocketId, why: WhyOs) {
        // Threads that wait on it go on with the kernel's socket; to them it is not closed.
        if let Ok(mut state) = self.stack.shard.lock() {
            state.depart(id);
        }
        let descriptors = socket::descriptors(&self.stack, id);
        let instances = epoll::hand_over(&self.stack, id);
        self.hand_to_kernel(id, Object::Stream(id), why);
        for instance in instances {
            descriptors.iter().for_each(|fd| self.note_instance(*fd, instance));
        }
    }
}
