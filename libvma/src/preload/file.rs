//! Descriptors come and go: close, dup, and everything that makes a new number.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::cancel::cancellable;
use super::{errno, export, fork, fresh, made, passed, real, retried, take_over};
use crate::fd::Object;
use crate::process::{self, Process, inherit};
use crate::socket::report::kernels;
use crate::socket::{self, SocketId, Stack, WhyOs, attach};
use crate::sys::above;
use crate::sys::fd::internal;

/// Takes a number of the program out of our tables. The kernel's half is the caller's.
#[cold]
pub fn forget(process: &'static Process, fd: c_int) {
    forget_as(process, fd, socket::close);
}

/// As [`forget`], if the number names another file already.
#[cold]
pub fn forget_lost(process: &'static Process, fd: c_int) {
    forget_as(process, fd, socket::close_lost);
}

fn forget_as(
    process: &'static Process,
    fd: c_int,
    close: impl FnOnce(&Stack, SocketId, c_int) -> bool,
) {
    if fork::is_vfork_child(process) {
        // The parent's tables; the child closes its own copy of the descriptor only.
        return;
    }
    if process.stack.config.socketxtreme {
        process.stack.extra.xtreme.forget(fd);
    }
    match process.fds.take(fd) {
        Some(Object::Socket(id) | Object::Stream(id)) => {
            close(&process.stack, id, fd);
        }
        Some(Object::Epoll(id)) => process.epolls.close(&process.stack, id, fd),
        Some(Object::Kernels(id)) => kernels::forget(&process.stack, id, fd),
        None => {}
    }
}

/// Another number for the same open file description.
#[cold]
pub fn alias(process: &'static Process, old: c_int, new: c_int) {
    match process.fds.get(old) {
        Some(Object::Socket(id)) if socket::duplicate(&process.stack, id, new) => {
            process.fds.set(new, Object::Socket(id));
        }
        Some(Object::Stream(id)) if socket::duplicate(&process.stack, id, new) => {
            process.fds.set(new, Object::Stream(id));
        }
        Some(Object::Epoll(id)) => {
            if let Some(instance) = process.epolls.get(id) {
                instance.duplicate(new);
                process.fds.set(new, Object::Epoll(id));
            }
        }
        Some(Object::Kernels(id)) if kernels::duplicate(&process.stack, id, new) => {
            process.fds.set(new, Object::Kernels(id));
        }
        _ => {}
    }
    if (0..=2).contains(&new) {
        // stdin, stdout or stderr of this program, or of one that it is about to start.
        hand_over(new);
    }
}

/// Functions inside libc are about to read and write the descriptor, which nobody sees: its socket is the
/// kernel's from here on.
#[cold]
pub fn hand_over(fd: c_int) {
    let Some(process) = ours(fd) else { return };
    if fork::is_vfork_child(process) {
        return;
    }
    let before = errno::get();
    take_over::keep(fd);
    match process.fds.get(fd) {
        Some(Object::Socket(id)) => {
            attach::un_offload(&process.stack, id, WhyOs::Stream);
            process.hand_to_kernel(id, Object::Socket(id), WhyOs::Stream);
        }
        Some(Object::Stream(id)) => process.release(id, WhyOs::Stream),
        Some(Object::Epoll(_) | Object::Kernels(_)) | None => {}
    }
    errno::set(before);
}

#[inline]
fn ours(fd: c_int) -> Option<&'static Process> {
    let process = process::current()?;
    process.fds.get(fd).map(|_| process)
}

/// Is it one of the library's own descriptors, which the program cannot know of?
pub(super) fn is_internal(fd: c_int) -> bool {
    (process::current().is_some() || inherit::is_child()) && internal::contains(fd)
}

/// dup2 and dup3: the target is closed first, so that its waiters wake (the JDK closes sockets by
/// dup2 of a marker), then it may become an alias of ours.
fn onto(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // A child that puts an inherited socket in another's place is about to use it (inetd).
    inherit::touch(old);
    if let Some(process) = ours(old)
        && let Some(Object::Socket(id) | Object::Stream(id)) = process.fds.get(old)
        && fork::is_vfork_child(process)
    {
        inherit::ask_own_parent(process, id);
    }
    if is_internal(new) {
        // Beyond the limit there is no number for the program; below it the library could not avoid this one.
        errno::set(if above::is_beyond(new) { libc::EBADF } else { libc::EBUSY });
        return -1;
    }
    let _calls = (passed::during(old), passed::during(new));
    if old != new && crate::sys::wait::is_open(old) {
        inherit::drop_inherited(new);
        if let Some(process) = ours(new) {
            forget(process, new);
        }
    }
    let result = call();
    if result >= 0
        && old != new
        && let Some(process) = ours(old)
        && !fork::is_vfork_child(process)
    {
        alias(process, old, new);
    }
    result
}

cancellable! {
    /// close(2).
    fn close(fd: c_int) -> c_int {
        inherit::drop_inherited(fd);
        let _call = passed::during(fd);
        if let Some(process) = ours(fd) {
            forget(process, fd);
        } else if is_internal(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        // SAFETY: passed on.
        unsafe { real::close(fd) }
    }
}

export! {
    /// close_range(2); the library's own descriptors stay.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOEXEC: c_int = 4;
        if process::current().is_none() && !inherit::is_child() {
            // SAFETY: passed on.
            return unsafe { real::close_range(first, last, flags) };
        }
        let mut calls = Vec::new();
        if first <= last
            && flags & CLOEXEC == 0
            && let Some(process) = process::current()
        {
            let within = process.fds.within(first, last);
            calls.extend(within.iter().filter_map(|fd| passed::during(*fd)));
            within.into_iter().for_each(|fd| forget(process, fd));
        }
        let mut from = first;
        while let Some(kept) = c_int::try_from(from)
            .ok()
            .and_then(internal::next_at_or_above)
            .and_then(|fd| c_uint::try_from(fd).ok())
            .filter(|kept| *kept <= last)
        {
            if kept > from {
                // SAFETY: a range without descriptors of ours.
                let result = unsafe { real::close_range(from, kept - 1, flags) };
                if result != 0 {
                    return result;
                }
            }
            if kept == last {
                return 0;
            }
            from = kept + 1;
        }
        // SAFETY: as above.
        unsafe { real::close_range(from, last, flags) }
    }

    /// closefrom(3).
    fn closefrom(first: c_int) -> () {
        let first = c_uint::try_from(first).unwrap_or(0);
        // SAFETY: closing is what the caller asks for.
        unsafe { close_range(first, c_uint::MAX, 0) };
    }

    /// dup(2).
    fn dup(fd: c_int) -> c_int {
        // As with dup2: the lowest number may be the one that it wants (inetd).
        inherit::touch(fd);
        let _call = passed::during(fd);
        // SAFETY: passed on.
        let new = made(|| unsafe { real::dup(fd) });
        if new >= 0 && let Some(process) = ours(fd) {
            alias(process, fd, new);
        }
        new
    }

    /// dup2(2).
    fn dup2(old: c_int, new: c_int) -> c_int {
        // SAFETY: passed on.
        onto(old, new, || unsafe { real::dup2(old, new) })
    }

    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        // SAFETY: passed on.
        let call = || unsafe { real::dup3(old, new, flags) };
        if flags & !libc::O_CLOEXEC != 0 {
            // The kernel refuses, and leaves `new` alone.
            return call();
        }
        onto(old, new, call)
    }

    /// open(2).
    fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: passed on; libc reads `mode` only if the flags say that there is one.
        made(|| unsafe { real::open(path, flags, mode) })
    }

    /// open64.
    fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: as open.
        made(|| unsafe { real::open64(path, flags, mode) })
    }

    /// openat(2).
    fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: as open.
        made(|| unsafe { real::openat(directory, path, flags, mode) })
    }

    /// openat64.
    fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: as open.
        made(|| unsafe { real::openat64(directory, path, flags, mode) })
    }

    /// creat(2).
    fn creat(path: *const c_char, mode: libc::mode_t) -> c_int {
        // SAFETY: passed on.
        made(|| unsafe { real::creat(path, mode) })
    }

    /// pipe(2).
    fn pipe(fds: *mut c_int) -> c_int {
        // SAFETY: passed on.
        let result = retried(|| unsafe { real::pipe(fds) });
        // SAFETY: the kernel has filled in two numbers when it returns 0.
        unsafe { fresh_pair(result, fds) }
    }

    /// pipe2(2).
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        // SAFETY: passed on.
        let result = retried(|| unsafe { real::pipe2(fds, flags) });
        // SAFETY: as pipe.
        unsafe { fresh_pair(result, fds) }
    }

    /// socketpair(2).
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        // SAFETY: passed on.
        let result = retried(|| unsafe { real::socketpair(domain, kind, protocol, fds) });
        // SAFETY: as pipe.
        unsafe { fresh_pair(result, fds) }
    }

    /// The resolver closes its sockets.
    fn __res_iclose(state: *mut c_void, free_addresses: bool) -> () {
        // Its sockets are made inside libc, which does not call our socket(): none is ours.
        // SAFETY: passed on.
        unsafe { real::__res_iclose(state, free_addresses) };
    }
}

/// # Safety
/// If `result` is 0, `fds` points to two descriptors.
unsafe fn fresh_pair(result: c_int, fds: *mut c_int) -> c_int {
    if result == 0 {
        for at in 0..2 {
            // SAFETY: as promised.
            let fd = unsafe { fds.add(at) };
            // SAFETY: as promised.
            fresh(unsafe { *fd });
        }
    }
    result
}
