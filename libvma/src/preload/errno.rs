//! The calling thread's errno.

use core::ffi::c_int;

pub fn set(value: c_int) {
    // SAFETY: takes nothing and cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: libc returns this thread's errno, valid as long as the thread lives.
    unsafe { *place = value };
}

pub fn get() -> c_int {
    // SAFETY: takes nothing and cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as in `set`.
    unsafe { *place }
}

/// The C convention: the value, or -1 and errno.
pub fn result(result: Result<usize, i32>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}
