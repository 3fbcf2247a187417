//! Sockets of the program that become the kernel's, or were so from the start: their numbers stand for
//! nothing of ours any more, but the calls on them are counted.

use std::sync::Arc;

use libvma_dev::ipv6_stand_ins;

use super::{Process, inherit};
use crate::fd::Object;
use crate::shard::SocketId;
use crate::socket::report::kernels::{self, Before};
use crate::socket::report::traffic::KernelsId;
use crate::socket::stream;
use crate::socket::stream::candidate::{Candidate, Model};
use crate::socket::{self, WhyOs};
use crate::sys::shadow;
use crate::sys::sockaddr::{Family, Named};

impl Process {
    /// Forgets a socket by all its numbers, which are the kernel's from here on; `why` if it does not
    /// say so itself. `object` is what the numbers stand for.
    pub fn hand_to_kernel(&self, id: SocketId, object: Object, why: WhyOs) {
        let before = kernels::of_socket(&self.stack, id, why);
        let descriptors = match &before {
            Some(before) => before.descriptors().to_vec(),
            None => socket::descriptors(&self.stack, id),
        };
        let kernels = before.and_then(|before| kernels::enter(&self.stack, before));
        for fd in descriptors {
            // A number that the program closes at this moment is that call's to forget.
            let done = match kernels {
                Some(kernels) => self.fds.replace(fd, object, Object::Kernels(kernels)),
                None => self.fds.take_if(fd, object),
            };
            if done {
                socket::close(&self.stack, id, fd);
            } else if let Some(kernels) = kernels {
                kernels::forget(&self.stack, kernels, fd);
            }
        }
    }

    /// Counts what the kernel carries for a socket of its own.
    pub fn count_for_kernel(&self, fd: i32, is_stream: bool, why: WhyOs) {
        self.count(fd, Before::nothing(fd, is_stream, why));
    }

    /// The same for a connection that the kernel accepted for a listener of ours, and that may be taken over.
    pub fn count_accepted(&self, fd: i32, listener: SocketId) {
        if !self.count_ipv6(fd, stream::family(&self.stack, listener)) {
            let candidate = Candidate::accepted(&self.stack, listener).map(Box::new);
            self.count(fd, Before::nothing(fd, true, WhyOs::NotOurs).with(candidate));
        }
    }

    /// The same for one of a listener of the kernel's.
    pub fn count_accepted_beside(&self, fd: i32, listener: KernelsId) {
        let Some((why, model)) = kernels::why(&self.stack, listener) else { return };
        // The parent itself has nobody who would end its connections.
        let Some(model) = model.filter(|_| inherit::is_child()) else {
            return self.count_for_kernel(fd, true, why);
        };
        if !self.count_ipv6(fd, model.family()) {
            let candidate = Some(Box::new(Candidate::of_listener(model)));
            self.count(fd, Before::nothing(fd, true, why).with(candidate));
        }
    }

    /// Counts it if it is a connection over IPv6.
    fn count_ipv6(&self, fd: i32, listener: Family) -> bool {
        if listener == Family::Ipv6
            && let Some(own @ Named::Ipv6(address)) = shadow::local_name(fd)
            && !ipv6_stand_ins::is_host(*address.ip())
        {
            if !own.is_loopback() {
                WhyOs::Ipv6.tell(format_args!("fd {fd}"));
            }
            self.count_for_kernel(fd, true, WhyOs::Ipv6);
            return true;
        }
        false
    }

    /// A listener that this process has inherited, and from which others accept, too, is the kernel's by these
    /// numbers; its connections may be taken over.
    pub fn share_listener(&self, descriptors: &[i32], model: Arc<Model>) {
        let before = Before::shared_listener(descriptors.to_vec(), model);
        if let Some(id) = kernels::enter(&self.stack, before) {
            for fd in descriptors {
                self.fds.set(*fd, Object::Kernels(id));
            }
        }
    }

    /// An epoll instance watches a connection that may be taken over.
    pub fn note_instance(&self, fd: i32, instance: i32) {
        if kernels::has_candidates(&self.stack)
            && let Some(Object::Kernels(id)) = self.fds.get(fd)
        {
            let note = |candidate: &mut Candidate, _: &[i32]| candidate.note_instance(instance);
            kernels::with_candidate(&self.stack, id, note);
        }
    }

    fn count(&self, fd: i32, before: Before) {
        if let Some(id) = kernels::enter(&self.stack, before) {
            self.fds.set(fd, Object::Kernels(id));
        }
    }
}
