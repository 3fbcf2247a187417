//! The exported C symbols and nothing else: is the descriptor ours or libc's, C types to Rust
//! values and back, errno.
//!
//! `symbols` is the list of names, `real` finds libc's definitions, `init` is what runs when;
//! `socket`, `receive`, `send`, `rehearsal`, `extra`, `lend`, `flagged`, `print`, `stream`, `mux`, `passed`, `file`, `fork`, `leave`, `transfer`, `inside_libc`, `signal`, `fault`, `cancel`, `crash`, `syscall`, `take_over`, `xtreme` and
//! `aliases` hold the functions by theme. `calls.list` says of every function of libc and of every system call what is done about it.
//! A function here is: look the descriptor up, convert, call `socket::` or `mux::`, set errno.

mod aliases;
mod burst;
mod cancel;
mod convert;
mod crash;
mod errno;
mod extra;
mod fault;
mod file;
mod flagged;
mod fork;
mod init;
mod inside_libc;
mod leave;
mod lend;
mod mux;
mod passed;
mod print;
mod real;
mod receive;
mod rehearsal;
mod rights;
mod send;
mod signal;
mod socket;
mod stream;
mod symbols;
mod syscall;
mod take_over;
mod trace;
mod transfer;
mod xtreme;

/// Defines C functions under their C names. The whole module exists only in the shared object: a
/// Rust program that links the crate (tests, fuzz targets, benches) must keep libc's.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            #[inline(always)]
            unsafe fn call($($arg: $type),*) -> $ret $body

            $crate::preload::traced!($name($($arg),*))
        }
    )*};
}
use export;

/// Calls `call`, which has the arguments of the function `name`; the debug library logs it.
macro_rules! traced {
    ($name:ident($($arg:ident),*)) => {
        if $crate::log::is_built($crate::log::Level::Fine)
            && $crate::log::enabled($crate::log::Level::Fine)
        {
            let level = $crate::preload::trace::level(&[$(&$arg),*]);
            // SAFETY: passed on.
            let result = unsafe { call($($arg),*) };
            $crate::preload::trace::called(level, stringify!($name), &[$(&$arg),*], &result);
            result
        } else {
            // SAFETY: passed on.
            unsafe { call($($arg),*) }
        }
    };
}
use traced;

use core::ffi::c_int;

use crate::fd::Object;
use crate::process::{self, Process, inherit};
use crate::socket::{SocketId, WhyOs};

/// What a descriptor is.
#[derive(Clone, Copy)]
enum Found {
    /// Nothing of ours.
    Kernel,
    /// A socket of the kernel's, whose traffic is counted.
    Counted,
    Datagram(&'static Process, SocketId),
    Stream(&'static Process, SocketId),
}

/// The socket behind a descriptor.
#[inline]
fn find(fd: c_int) -> Found {
    match known(fd) {
        None if inherit::is_child() => {
            // It may be this process's own now.
            inherit::touch(fd);
            known(fd).unwrap_or(Found::Kernel)
        }
        found => found.unwrap_or(Found::Kernel),
    }
}

#[inline]
fn known(fd: c_int) -> Option<Found> {
    let process = process::current()?;
    Some(match process.fds.get(fd)? {
        Object::Socket(id) => Found::Datagram(process, id),
        Object::Stream(id) => Found::Stream(process, id),
        Object::Epoll(_) => Found::Kernel,
        Object::Kernels(_) => Found::Counted,
    })
}

/// The UDP socket behind a descriptor, if it is ours.
#[inline]
fn ours(fd: c_int) -> Option<(&'static Process, SocketId)> {
    match find(fd) {
        Found::Datagram(process, id) => Some((process, id)),
        Found::Kernel | Found::Counted | Found::Stream(..) => None,
    }
}

/// The kernel made a descriptor of this number. If it was ours, the program closed it in a way
/// that nobody saw (a raw system call, io_uring): forget the old one.
#[inline]
fn fresh(fd: c_int) -> c_int {
    inherit::drop_inherited(fd);
    if fd >= 0
        && let Some(process) = process::current()
    {
        if process.fds.get(fd).is_some() {
            file::forget_lost(process, fd);
        } else if process.stack.config.socketxtreme {
            process.stack.extra.xtreme.forget(fd);
        }
    }
    fd
}

/// A call that makes descriptors. If the program has as many as it may, those that the library keeps for
/// closed connections are given up for it.
fn retried(call: impl Fn() -> c_int) -> c_int {
    let before = errno::get();
    let result = call();
    if result >= 0
        || errno::get() != libc::EMFILE
        || !process::current().is_some_and(|process| {
            // Whose descriptors are copies.
            !fork::is_vfork_child(process) && process.release_kept_descriptors()
        })
    {
        return result;
    }
    let result = call();
    if result >= 0 {
        errno::set(before);
    }
    result
}

/// A call that makes one descriptor.
fn made(call: impl Fn() -> c_int) -> c_int {
    fresh(retried(call))
}

/// A socket that is the kernel's for good, with nothing of ours left to read, costs no lock any more.
fn retire(process: &'static Process, id: SocketId) {
    if crate::socket::is_retired(&process.stack, id) {
        process.hand_to_kernel(id, Object::Socket(id), WhyOs::NotOurs);
    }
}
