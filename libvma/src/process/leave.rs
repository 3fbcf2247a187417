//! The end of the process, or of its program (exec): whatever is not over becomes the kernel's to
//! finish, because the rings and the engine end here.
//!
//! exit() runs the library's destructor, _exit() and exec are interposed. A signal that kills, and a
//! system call that nobody sees, end connections as they stand: the flows vanish with the process,
//! and the kernel answers the next segment with a reset.

use super::{Process, inherit};
use crate::fd::Object;
use crate::shard::SocketId;
use crate::socket::stream::give_back;
use crate::socket::{self, WhyOs};
use crate::sys::{fd, thread};

impl Process {
    /// The process ends.
    pub fn at_exit(&self) {
        if thread::process_id() != self.id {
            // A vfork() child: the sockets are its parent's.
            return;
        }
        self.hand_over_streams();
        socket::at_exit(&self.stack);
    }

    /// Another program takes the place of this one, with those descriptors that are not
    /// close-on-exec.
    pub fn before_exec(&self) {
        if thread::process_id() == self.id {
            self.hand_over_streams();
        } else {
            // A vfork() child. The parent's other threads run on, so its internal thread can do it.
            for (_, id) in self.kept_streams() {
                inherit::ask_own_parent(self, id);
            }
        }
    }

    /// The process is about to end and to leave a child behind that goes on (daemon()). Sockets that
    /// are not connected are the child's to take over.
    pub fn before_daemon(&self) {
        if thread::process_id() == self.id {
            self.hand_over(give_back::connections(&self.stack));
        }
    }

    /// Descriptors of connections that an exec leaves open.
    pub fn kept_streams(&self) -> Vec<(i32, SocketId)> {
        let kept = |descriptor: i32| match self.fds.get(descriptor) {
            Some(Object::Stream(id)) if fd::survives_exec(descriptor) => Some((descriptor, id)),
            _ => None,
        };
        self.fds.within(0, u32::MAX).into_iter().filter_map(kept).collect()
    }

    fn hand_over_streams(&self) {
        self.hand_over(give_back::streams(&self.stack));
    }

    fn hand_over(&self, streams: Vec<SocketId>) {
        for id in streams {
            if !self.release_stream(id, WhyOs::ProcessEnds) {
                give_back::end(&self.stack, id);
            }
        }
        give_back::finish_orphans(&self.stack);
    }
}
