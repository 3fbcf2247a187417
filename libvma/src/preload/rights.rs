//! Calls by which a program gives up the rights of root. Connections that may have to become the kernel's later, because a child or
//! another program uses them, become it before: afterwards nobody could make them so.

use core::ffi::{c_int, c_long, c_void};

use libc::uid_t;

use super::{convert, errno, export, real};
use crate::process::{self, Process};
use crate::sys::rights::{Change, Ending, Half, SAME};

/// User ids are about to change. The result is to be held until they have.
#[cold]
fn before_change(change: Change) -> Option<Ending> {
    let before = errno::get();
    let process = process::current().filter(|_| change.ends_rights());
    let ending = process.and_then(Process::before_rights_end);
    errno::set(before);
    ending
}

/// The first argument of capset(2): the version, and a thread, or 0 for the one that calls.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    _version: u32,
    thread: c_int,
}

/// libcap-ng names its thread.
fn is_own(thread: c_int) -> bool {
    thread == 0 || rustix::thread::gettid().as_raw_nonzero().get() == thread
}

/// As [`before_change`], for the capabilities of a thread. The kernel refuses what cannot be read.
///
/// # Safety
/// The pointers are what capset(2) was called with.
#[cold]
unsafe fn before_capset(header: *const Header, sets: *const Half) -> Option<Ending> {
    let before = errno::get();
    let process = process::current().filter(|_| {
        convert::asked_readable(header, size_of::<Header>())
            && convert::asked_readable(sets, size_of::<Half>())
    });
    let ending = process.and_then(|process| {
        // SAFETY: readable, as was asked just now.
        let header = unsafe { header.read_unaligned() };
        // SAFETY: the same.
        let sets = unsafe { sets.read_unaligned() };
        let ends = is_own(header.thread) && sets.ends_rights();
        if ends { process.before_rights_end() } else { None }
    });
    errno::set(before);
    ending
}

/// One of the functions below, called by its number.
///
/// # Safety
/// As syscall(2) with this number.
pub unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> c_long {
    let [first, second, third, ..] = arguments;
    let [user, effective, saved] = [first, second, third].map(|user| user as uid_t);
    let _ending = match number {
        libc::SYS_setuid => before_change(Change::All(user)),
        libc::SYS_setreuid => before_change(Change::RealAndEffective(user, effective)),
        libc::SYS_setresuid => before_change(Change::Each([user, effective, saved])),
        // SAFETY: the arguments of capset(2).
        _ => unsafe { before_capset(super::syscall::at(first), super::syscall::at(second)) },
    };
    // SAFETY: passed on.
    unsafe { real::syscall(number, arguments) }
}

export! {
    /// setuid(2).
    fn setuid(user: uid_t) -> c_int {
        let _ending = before_change(Change::All(user));
        // SAFETY: passed on.
        unsafe { real::setuid(user) }
    }

    /// seteuid(2).
    fn seteuid(user: uid_t) -> c_int {
        let _ending = before_change(Change::Each([SAME, user, SAME]));
        // SAFETY: passed on.
        unsafe { real::seteuid(user) }
    }

    /// setreuid(2).
    fn setreuid(user: uid_t, effective: uid_t) -> c_int {
        let _ending = before_change(Change::RealAndEffective(user, effective));
        // SAFETY: passed on.
        unsafe { real::setreuid(user, effective) }
    }

    /// setresuid(2).
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        let _ending = before_change(Change::Each([user, effective, saved]));
        // SAFETY: passed on.
        unsafe { real::setresuid(user, effective, saved) }
    }

    /// capset(2).
    fn capset(header: *mut c_void, sets: *const c_void) -> c_int {
        // SAFETY: what the function was called with.
        let _ending = unsafe { before_capset(header.cast(), sets.cast()) };
        // SAFETY: passed on.
        unsafe { real::capset(header, sets) }
    }
}
