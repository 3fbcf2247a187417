//! Calls on Internet sockets that the kernel has done: their results, on the way to the program, are told
//! to who counts them. A descriptor that is no such socket costs nothing, for nobody asks here.
//!
//! Afterwards, and by what the number stands for then: the call itself may have made the socket the
//! kernel's.

use core::ffi::c_int;

use super::{Found, errno, known, take_over};
use crate::fd::Object;
use crate::process;
use crate::socket::report::{
    kernels,
    traffic::{KernelsId, Traffic},
};
use crate::socket::stream::gate::{Entry, Inside};
use crate::socket::{egress, receive};

/// A call that the kernel does on a socket of its own, until its result is told by one of the methods.
///
/// While it lasts, a connection that might be taken over is not.
pub struct Call {
    fd: c_int,
    candidate: Option<(KernelsId, Inside<'static>)>,
}

/// Begins a call on what a descriptor was found to be. None: a socket that was the kernel's is not any more,
/// look again.
#[inline]
pub fn begin_as(found: Found, fd: c_int) -> Option<Call> {
    match found {
        Found::Counted => begin(fd),
        _ => Some(Call { fd, candidate: None }),
    }
}

/// As [`begin_as`], of a descriptor that was found to be [`Found::Counted`].
#[inline]
pub fn begin(fd: c_int) -> Option<Call> {
    let process = process::current()?;
    let id = match process.fds.get(fd) {
        Some(Object::Kernels(id)) => id,
        Some(Object::Socket(_) | Object::Stream(_)) => return None,
        // Closed meanwhile: the kernel knows what to say.
        Some(Object::Epoll(_)) | None => return Some(Call { fd, candidate: None }),
    };
    let Some(traffic) = kernels::traffic(&process.stack, id) else {
        return Some(Call { fd, candidate: None });
    };
    match traffic.gate.enter() {
        Entry::Free => {
            // It may have been taken over since it was found.
            let same = process.fds.get(fd) == Some(Object::Kernels(id));
            same.then_some(Call { fd, candidate: None })
        }
        Entry::Inside(inside) => Some(Call { fd, candidate: Some((id, inside)) }),
        Entry::Closed => {
            traffic.gate.wait();
            None
        }
    }
}

/// As [`begin`], for calls that look at the descriptor themselves afterwards: the kernel's connection stays
/// what it is as long as this is kept.
#[inline]
pub fn during(fd: c_int) -> Option<Call> {
    let process = process::current()?;
    if !matches!(process.fds.get(fd), Some(Object::Kernels(_))) {
        return None;
    }
    begin(fd).filter(|call| call.candidate.is_some())
}

impl Call {
    /// Counts the result of a receive call with these flags, and ends the call.
    #[inline]
    pub fn received(self, flags: c_int, result: isize) -> isize {
        received(self.fd, flags, result);
        self.end();
        result
    }

    /// Counts the result of a send call, and ends the call.
    #[inline]
    pub fn sent(self, result: isize) -> isize {
        sent(self.fd, result);
        self.end();
        result
    }

    /// The call is over; if the connection may be taken over, and it is time, it is.
    #[inline]
    pub fn end(self) {
        if let Some((id, inside)) = self.candidate {
            drop(inside);
            take_over::consider(self.fd, id);
        }
    }
}

/// What a receive call with these flags came to. A look takes nothing, and errors have a queue of
/// their own.
#[inline]
pub fn received(fd: c_int, flags: c_int, result: isize) -> isize {
    if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0 {
        note(fd, Way::In, result);
    }
    result
}

/// What a send call came to.
#[inline]
pub fn sent(fd: c_int, result: isize) -> isize {
    note(fd, Way::Out, result);
    result
}

/// What recvmmsg() came to.
///
/// # Safety
/// `messages` is what the kernel's call was made with.
pub unsafe fn received_messages(
    fd: c_int,
    flags: c_int,
    messages: *const libc::mmsghdr,
    result: c_int,
) -> c_int {
    // SAFETY: as promised.
    unsafe { each(messages, result, |len| received(fd, flags, len)) };
    result
}

/// What sendmmsg() came to.
///
/// # Safety
/// `messages` is what the kernel's call was made with.
pub unsafe fn sent_messages(fd: c_int, messages: *const libc::mmsghdr, result: c_int) -> c_int {
    // SAFETY: as promised.
    unsafe { each(messages, result, |len| sent(fd, len)) };
    result
}

/// # Safety
/// The kernel has filled in as many of the messages as `result` says.
unsafe fn each(
    messages: *const libc::mmsghdr,
    result: c_int,
    mut note: impl FnMut(isize) -> isize,
) {
    let Ok(count) = usize::try_from(result) else {
        note(result as isize);
        return;
    };
    for at in 0..count {
        // SAFETY: as promised.
        let entry = unsafe { messages.add(at) };
        // SAFETY: as promised.
        note(unsafe { (*entry).msg_len } as isize);
    }
}

/// A listener's descriptor gave a connection that only the kernel knows of: it is the kernel's for the same
/// reason.
pub fn accepted(listener: c_int, accepted: c_int) -> c_int {
    if accepted >= 0
        && let Some(process) = process::current()
    {
        match process.fds.get(listener) {
            Some(Object::Kernels(id)) => process.count_accepted_beside(accepted, id),
            Some(Object::Stream(id)) => process.count_accepted(accepted, id),
            _ => {}
        }
    }
    accepted
}

#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

#[inline]
fn note(fd: c_int, way: Way, result: isize) {
    let outcome = usize::try_from(result).map_err(|_| errno::get());
    if let Some(process) = process::current()
        && let Some(Object::Kernels(id)) = process.fds.get(fd)
    {
        let Some(traffic) = kernels::traffic(&process.stack, id) else { return };
        // The end of a stream, or nothing written to it.
        if id.is_stream() && result == 0 {
            return;
        }
        return match way {
            Way::In => Traffic::received(traffic, outcome),
            Way::Out => Traffic::sent(traffic, outcome),
        };
    }
    note_ours(fd, way, outcome);
}

/// The socket is ours all the same: only this call was not.
#[cold]
fn note_ours(fd: c_int, way: Way, outcome: Result<usize, i32>) {
    if let Some(Found::Datagram(process, id) | Found::Stream(process, id)) = known(fd) {
        match way {
            Way::In => receive::after_os(&process.stack, id, outcome),
            Way::Out => egress::after_os(&process.stack, id, outcome),
        }
    }
}
