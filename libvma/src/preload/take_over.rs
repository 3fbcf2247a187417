//! Connections that began in the kernel, while their interface was being attached or in a worker of a shared listener:
//! after a call on one, when it is time, it is taken over, and its descriptors stand for a socket of ours.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{convert, errno, mux};
use crate::fd::Object;
use crate::mux::epoll::{self, Epoll};
use crate::process::{self, Process};
use crate::socket::report::kernels;
use crate::socket::report::traffic::KernelsId;
use crate::socket::stream::take_over::{self, Plan};
use crate::socket::{Shard, SocketId};
use crate::sys::shadow;

/// A call on a candidate has ended.
#[inline]
pub fn consider(fd: c_int, id: KernelsId) {
    let Some(process) = process::current() else { return };
    let attached = process.stack.attaching.attached();
    if kernels::traffic(&process.stack, id).is_some_and(|traffic| traffic.gate.is_due(attached)) {
        attempt(process, fd, id);
    }
}

#[cold]
fn attempt(process: &'static Process, fd: c_int, id: KernelsId) {
    let before = errno::get();
    if shadow::is_within_host(fd) {
        kernels::keep(&process.stack, id);
        return errno::set(before);
    }
    // A worker that only accepts has none before its first connection that lives.
    process.ensure_plane();
    let plan = kernels::with_candidate(&process.stack, id, |candidate, descriptors| Plan {
        id,
        candidate: candidate.clone(),
        descriptors: descriptors.to_vec(),
    });
    if let Some(plan) = plan {
        let watched_by = plan.candidate.watched_by.iter();
        // One that is closed by now watches nothing, and its number may be any file's.
        let living = watched_by.filter(|epfd| epoll::is_instance(**epfd));
        let instances =
            living.filter_map(|epfd| Some((*epfd, mux::instance(process, *epfd)?))).collect();
        let descriptors = plan.descriptors.clone();
        let mut publisher = Publisher { process, kernels: id, descriptors, instances };
        if let Err(why) = take_over::take_over(&process.stack, &plan, &mut publisher) {
            crate::log::log_line!(Debug, "fd {fd} stays the kernel's: {why}");
            if why.is_final() {
                kernels::keep(&process.stack, id);
            }
        }
    }
    errno::set(before);
}

struct Publisher {
    process: &'static Process,
    kernels: KernelsId,
    descriptors: Vec<c_int>,
    instances: Vec<(c_int, Arc<Epoll>)>,
}

impl Publisher {
    fn replace(&self, object: Object, by: Object) {
        for descriptor in &self.descriptors {
            self.process.fds.replace(*descriptor, object, by);
        }
    }
}

impl take_over::Publisher for Publisher {
    fn publish(&mut self, state: &mut Shard, id: SocketId) -> bool {
        let done = epoll::take_over(state, id, &self.instances);
        if done {
            self.replace(Object::Kernels(self.kernels), Object::Stream(id));
        }
        done
    }

    fn withdraw(&mut self, state: &mut Shard, id: SocketId) {
        self.replace(Object::Stream(id), Object::Kernels(self.kernels));
        epoll::give_back(state, id);
    }
}

/// If the descriptor's socket is the kernel's it stays so: other processes, or code that no call of ours sees,
/// use it. A thread may have taken it over at this very moment: then it is a socket of ours afterwards.
pub fn keep(fd: c_int) {
    if let Some(process) = process::current()
        && kernels::has_candidates(&process.stack)
        && let Some(Object::Kernels(id)) = process.fds.get(fd)
    {
        kernels::keep(&process.stack, id);
    }
}

/// The kernel has accepted an option of a socket of its own.
#[inline]
pub fn note_option(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: libc::socklen_t,
) {
    if let Some(process) = process::current()
        && kernels::has_candidates(&process.stack)
        && let Some(Object::Kernels(id)) = process.fds.get(fd)
    {
        // SAFETY: the kernel has read `len` bytes there, or none were needed.
        let value = unsafe { convert::bytes(value.cast(), len as usize) };
        let noted = kernels::with_candidate(&process.stack, id, |candidate, _| {
            candidate.note_option(level, name, value);
        });
        if noted.is_none() {
            kernels::forget_model(&process.stack, id);
        }
    }
}

/// An epoll instance has got, or lost, a socket.
#[inline]
pub fn note_instance(epfd: c_int, fd: c_int) {
    if let Some(process) = process::current() {
        process.note_instance(fd, epfd);
    }
}
