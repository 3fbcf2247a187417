//! The end of the process, or of its program (exec): whatever is not over becomes the kernel's to
//! finish, because the rings and the engine end here.
//!
//! exit() runs the library's destructor, _exit() and exec are interposed. A signal that kills, and a
//! system call that nobody sees, end connections as they stand: the flows vanish with the process,
//! and the kernel answers the next segment with a reset. The daemon `vmad`, if there is one, does not wait
//! for that segment.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Process, inherit};
use crate::agent::wards::Wards;
use crate::fd::Object;
use crate::shard::SocketId;
use crate::socket::stream::{self, give_back};
use crate::socket::{self, WhyOs};
use crate::sys::rights::Ending;
use crate::sys::time::monotonic_nanos;
use crate::sys::{fd, repair, thread, wait};

/// What the internal thread is to do for a thread that leaves: nothing, hand over, or it has.
static LEAVING: AtomicU32 = AtomicU32::new(STAYS);
const STAYS: u32 = 0;
const LEAVES: u32 = 1;
const HAS_LEFT: u32 = 2;
/// More than the patience of what it does.
const LONGEST_LEAVE_NANOS: u64 = 3_000_000_000;

impl Process {
    /// The process ends by a call that signal handlers may make, whatever they interrupted: this
    /// thread must neither allocate nor wait for a lock, so the internal thread does it.
    pub fn at_sudden_exit(&self) {
        if !self.requests.as_ref().is_some_and(inherit::RequestTable::is_served) {
            return self.at_exit();
        }
        LEAVING.store(LEAVES, Ordering::Release);
        fd::write_fully(self.stack.internal_waker_descriptor(), &1u64.to_ne_bytes());
        let end = monotonic_nanos() + LONGEST_LEAVE_NANOS;
        while LEAVING.load(Ordering::Acquire) != HAS_LEFT {
            let left = end.saturating_sub(monotonic_nanos());
            if left == 0 {
                return;
            }
            wait::sleep_while(&LEAVING, LEAVES, left);
        }
    }

    /// In the internal thread: does what a thread that leaves waits for.
    pub fn serve_leaver(&self) {
        if LEAVING.load(Ordering::Acquire) == LEAVES {
            self.at_exit();
            LEAVING.store(HAS_LEFT, Ordering::Release);
            wait::wake_all(&LEAVING);
        }
    }

    /// The process ends.
    pub fn at_exit(&self) {
        if thread::process_id() != self.id {
            // A vfork() child: the sockets are its parent's.
            return;
        }
        stream::watch::end(&self.stack);
        socket::hand_over::shared_queues(&self.stack);
        for id in stream::local::end::leave(&self.stack) {
            self.drop_stream(id);
        }
        for id in self.hand_over_streams() {
            give_back::end(&self.stack, id);
        }
        give_back::finish_orphans(&self.stack);
        socket::at_exit(&self.stack);
        self.statistics.end();
        if let Some(requests) = &self.requests {
            requests.set_served(false);
        }
        self.wards.iter().for_each(Wards::retire);
        if let Some(capturing) = &self.capturing {
            capturing.finish();
        }
        socket::leave_interfaces(&self.stack);
    }

    /// Another program is likely to take the place of this one, with those descriptors that are not
    /// close-on-exec. What the kernel does not take stays ours: exec may fail.
    pub fn before_exec(&self) {
        if thread::process_id() == self.id {
            stream::watch::withdraw(&self.stack);
            socket::hand_over::shared_queues(&self.stack);
            for id in self.datagrams(fd::survives_exec) {
                self.release(id, WhyOs::ProcessEnds);
            }
            // The next program accepts from the listeners that it gets.
            for (_, id) in self.kept_streams() {
                stream::hand_over_unaccepted(&self.stack, id);
            }
            self.hand_over_streams();
            give_back::finish_orphans(&self.stack);
            if let Some(requests) = &self.requests {
                requests.set_served(false);
            }
            self.wards.iter().for_each(Wards::retire);
            if let Some(capturing) = &self.capturing {
                capturing.flush();
            }
        } else {
            // A vfork() child. The parent's other threads run on, so its internal thread can do it.
            for (_, id) in self.kept_streams() {
                if !stream::is_listening(&self.stack, id) {
                    inherit::ask_own_parent(self, id);
                }
            }
        }
    }

    /// The program is about to give up for good the right by which connections are given to the kernel. Whatever may have to be the
    /// kernel's later is so now: a child's or another program's use of it would find nobody.
    pub fn before_rights_end(&self) -> Option<Ending> {
        if thread::process_id() != self.id || !repair::is_allowed() {
            return None;
        }
        // Until the call is made no other thread begins anything that would have to be handed over.
        let ending = Ending::begin();
        for id in give_back::streams(&self.stack) {
            // Within the host nothing needs the right; what is not connected may be served there later.
            let stack = &self.stack;
            let is_of_wire =
                || stream::is_connected(stack, id) && !stream::local::is_local(stack, id);
            if !stream::leave_wire(stack, id) && is_of_wire() {
                self.release_stream(id, WhyOs::CannotBeGivenBack);
            }
        }
        Some(ending)
    }

    /// Another program is about to be started that inherits those descriptors that are not
    /// close-on-exec.
    pub fn before_program(&self) {
        if thread::process_id() == self.id {
            for (_, id) in self.kept_streams() {
                // One that goes over a cable stays: most such programs use none, and it comes back
                // from the kernel to nobody.
                if stream::local::is_local(&self.stack, id) {
                    self.release_stream(id, WhyOs::Passed);
                }
            }
        }
    }

    /// The process is about to end and to leave a child behind that goes on (daemon()). Listeners
    /// are the child's to take over.
    pub fn before_daemon(&self) {
        if thread::process_id() == self.id {
            stream::watch::withdraw(&self.stack);
            for id in self.datagrams(|_| true) {
                self.release(id, WhyOs::ProcessEnds);
            }
            for id in self.hand_over(give_back::connections(&self.stack)) {
                give_back::end(&self.stack, id);
            }
            give_back::finish_orphans(&self.stack);
            self.statistics.withdraw();
            if let Some(capturing) = &self.capturing {
                capturing.hand_over();
            }
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

    /// UDP sockets, by the descriptors that are wanted.
    fn datagrams(&self, wanted: impl Fn(i32) -> bool) -> Vec<SocketId> {
        let kept = |descriptor: i32| match self.fds.get(descriptor) {
            Some(Object::Socket(id)) if wanted(descriptor) => Some(id),
            _ => None,
        };
        self.fds.within(0, u32::MAX).into_iter().filter_map(kept).collect()
    }

    /// Returns those that the kernel did not take.
    fn hand_over_streams(&self) -> Vec<SocketId> {
        self.hand_over(give_back::streams(&self.stack))
    }

    fn hand_over(&self, mut streams: Vec<SocketId>) -> Vec<SocketId> {
        streams.retain(|id| !self.release_stream(*id, WhyOs::ProcessEnds));
        streams
    }
}
