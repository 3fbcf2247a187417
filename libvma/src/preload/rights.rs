//! Calls by which a program gives up the rights of root. Connections that may have to become the kernel's later, because a child or
//! another program uses them, become it before: afterwards nobody could make them so.

use core::ffi::{c_int, c_void};

use libc::uid_t;

use super::{convert, errno, export, real};
use crate::process;
use crate::sys::rights::{self, Change, Half, SAME};

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

/// libcap-ng names its thread.
fn is_own(thread: c_int) -> bool {
    thread == 0 || rustix::thread::gettid().as_raw_nonzero().get() == thread
}

/// The call is over: whether the rights are, the kernel says.
#[cold]
pub fn after_change() {
    rights::set_ending(false);
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
        if is_own(header.thread) && sets.ends_rights() {
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
        let result = unsafe { real::setuid(user) };
        after_change();
        result
    }

    /// seteuid(2).
    fn seteuid(user: uid_t) -> c_int {
        before_change(Change::Each([SAME, user, SAME]));
        // SAFETY: passed on.
        let result = unsafe { real::seteuid(user) };
        after_change();
        result
    }

    /// setreuid(2).
    fn setreuid(user: uid_t, effective: uid_t) -> c_int {
        before_change(Change::RealAndEffective(user, effective));
        // SAFETY: passed on.
        let result = unsafe { real::setreuid(user, effective) };
        after_change();
        result
    }

    /// setresuid(2).
    fn setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        before_change(Change::Each([user, effective, saved]));
        // SAFETY: passed on.
        let result = unsafe { real::setresuid(user, effective, saved) };
        after_change();
        result
    }

    /// capset(2).
    fn capset(header: *mut c_void, sets: *const c_void) -> c_int {
        // SAFETY: what the function was called with.
        unsafe { before_capset(header.cast(), sets.cast()) };
        // SAFETY: passed on.
        let result = unsafe { real::capset(header, sets) };
        after_change();
        result
    }
}
