//! libc's other names of functions that are interposed, which some programs link to.

use core::ffi::{c_char, c_int, c_void};

use super::cancel::cancellable;
use super::{export, file, fork, leave, mux, real, receive, send, signal, socket};

type SockAddr = *const libc::sockaddr;
type FdSet = *mut libc::fd_set;

cancellable! {
    /// close.
    fn __close(fd: c_int) -> c_int {
        // SAFETY: passed on.
        unsafe { file::close(fd) }
    }

    /// connect.
    fn __connect(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int {
        // SAFETY: passed on.
        unsafe { socket::connect(fd, address, len) }
    }

    /// poll.
    fn __poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        // SAFETY: passed on.
        unsafe { mux::poll(fds, count, timeout) }
    }

    /// read.
    fn __read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
        // SAFETY: passed on.
        unsafe { receive::read(fd, buffer, len) }
    }

    /// select.
    fn __select(
        count: c_int,
        read: FdSet,
        write: FdSet,
        except: FdSet,
        timeout: *mut libc::timeval,
    ) -> c_int {
        // SAFETY: passed on.
        unsafe { mux::select(count, read, write, except, timeout) }
    }

    /// send.
    fn __send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
        // SAFETY: passed on.
        unsafe { send::send(fd, buffer, len, flags) }
    }

    /// write.
    fn __write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
        // SAFETY: passed on.
        unsafe { send::write(fd, buffer, len) }
    }
}

export! {
    /// dup2.
    fn __dup2(old: c_int, new: c_int) -> c_int {
        // SAFETY: passed on.
        unsafe { file::dup2(old, new) }
    }

    /// fcntl.
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: passed on.
        unsafe { socket::fcntl(fd, command, argument) }
    }

    /// fork.
    fn __fork() -> libc::pid_t {
        // SAFETY: passed on.
        unsafe { fork::fork() }
    }

    /// open.
    fn __open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: passed on.
        unsafe { file::open(path, flags, mode) }
    }

    /// open64.
    fn __open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
        // SAFETY: passed on.
        unsafe { file::open64(path, flags, mode) }
    }

    /// open without a mode, by which _FORTIFY_SOURCE replaces it.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: passed on; it ends the process if the flags want a mode.
        super::made(|| unsafe { real::__open_2(path, flags) })
    }

    /// As `__open_2`.
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        super::made(|| unsafe { real::__open64_2(path, flags) })
    }

    /// As `__open_2`.
    fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        super::made(|| unsafe { real::__openat_2(directory, path, flags) })
    }

    /// As `__open_2`.
    fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as above.
        super::made(|| unsafe { real::__openat64_2(directory, path, flags) })
    }

    /// creat64.
    fn creat64(path: *const c_char, mode: libc::mode_t) -> c_int {
        // SAFETY: passed on.
        unsafe { file::creat(path, mode) }
    }

    /// pipe.
    fn __pipe(fds: *mut c_int) -> c_int {
        // SAFETY: passed on.
        unsafe { file::pipe(fds) }
    }

    /// popen.
    fn _IO_popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        // SAFETY: passed on.
        unsafe { leave::popen(command, mode) }
    }

    /// sigaction.
    fn __sigaction(
        number: c_int,
        action: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        // SAFETY: passed on.
        unsafe { signal::sigaction(number, action, old) }
    }
}
