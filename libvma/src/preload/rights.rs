//! Calls by which a program gives up the rights of root. Connections that may have to become the kernel's later, because a child or
//! another program uses them, become it before: afterwards nobody could make them so.

use core::ffi::{c_int, c_void};

use libc::uid_t;

use super::{convert, errno, export, real};
use crate::process;
use crate::sys::rights::{Change, Half, SAME};

/// User ids are about to change.
#[cold]
pub fn before_change(change: Change) {
    let before = errno::get();
    if let Some(process) = process::current()
        && change.ends_rights()
    {
        process.before_rights_end();
    }
    errno::set(before);
}

/// What capset(2) gets first: the version, and a thread, or 0 for the one that calls.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    _version: u32,
    thread: c_int,
}

/// The capabilities of a thread are about to change. What cannot be read is the kernel's to refuse.
///
/// # Safety
/// The pointers are what capset(2) was called with.
#[cold]
pub unsafe fn before_capset(header: *const Header, sets: *const Half) {
    let before = errno::get();
    if let Some(process) = process::current()
        && convert::asked_readable(header, size_of::<Header>())
        && convert::asked_readable(sets, size_of::<Half>())
    {
        // SAFETY: readable, as was asked just now.
        let header = unsafe { header.read_unaligned() };
        // SAFETY: the same.
        let sets = unsafe { sets.read_unaligned() };
        if header.thread == 0 && sets.ends_rights() {
            process.before_rights_end();
        }
    }
    errno::set(before);
}

export! {
    /// setuid(2).
    fn setuid(user: uid_t) -> c_int {
        before_change(Change::All(user));
        // SAFETY: passed on.
        unsafe { real::setuid(user) }
    }

    /// seteuid(2).
    fn seteuid(user: uid_t) -> c_int {
        before_change(Change::Each([SAME, user, SAME]));
        // SAFETY: passed on.
        unsafe { real::seteuid(user) }
    }

    /// setreuid(2).
    fn setreuid(user: uid_t, effective: uid_t) -> c_int {
        before_change(Change::RealAndEffective(user, effective));
        // SAFETY: passed on.
        unsafe { real::setreuid(user, effective) }
    }

    /// setresuid(2).
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        before_change(Change::Each([user, effective, saved]));
        // SAFETY: passed on.
        unsafe { real::setresuid(user, effective, saved) }
    }

    /// capset(2).
    fn capset(header: *mut c_void, sets: *const c_void) -> c_int {
        // SAFETY: what the function was called with.
        unsafe { before_capset(header.cast(), sets.cast()) };
        // SAFETY: passed on.
        unsafe { real::capset(header, sets) }
    }
}
