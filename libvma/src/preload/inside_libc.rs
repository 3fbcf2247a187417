//! Functions of libc that use a descriptor by libc's own `read`, `write` and `setsockopt`, which no library can
//! interpose: stdio streams, asynchronous I/O, source filters. A socket of ours is handed over to the kernel ahead.

use core::ffi::{c_char, c_int, c_void};

use super::{Found, convert, export, file, find, ours, real};
use crate::socket::{WhyOs, attach, stream};

/// Hands over what a control block of asynchronous I/O is for.
///
/// # Safety
/// `block` is null or points to an aiocb.
unsafe fn hand_over_block(block: *const c_void) {
    // The descriptor is the first member, in aiocb64, too.
    if convert::asked_readable(block, size_of::<c_int>()) {
        // SAFETY: as promised.
        file::hand_over(unsafe { block.cast::<c_int>().read_unaligned() });
    }
}

/// # Safety
/// `list` points to so many pointers, each null or to an aiocb.
unsafe fn hand_over_blocks(list: *const *const c_void, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    if !convert::asked_readable(list, count.saturating_mul(size_of::<*const c_void>())) {
        return;
    }
    for at in 0..count {
        // SAFETY: as promised.
        let block = unsafe { list.add(at) };
        // SAFETY: as promised.
        let block = unsafe { *block };
        // SAFETY: as promised.
        unsafe { hand_over_block(block) };
    }
}

/// libc has changed which sources a socket hears.
fn after_filter(fd: c_int, result: c_int) -> c_int {
    if result == 0
        && let Some((process, id)) = ours(fd)
    {
        // As for the options that do the same.
        attach::un_offload(&process.stack, id, WhyOs::Arguments);
    }
    result
}

export! {
    /// fdopen(3).
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        file::hand_over(fd);
        // SAFETY: passed on.
        unsafe { real::fdopen(fd, mode) }
    }

    /// libc's other name of fdopen.
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        // SAFETY: passed on.
        unsafe { fdopen(fd, mode) }
    }

    /// aio_read(3).
    fn aio_read(block: *mut c_void) -> c_int {
        // SAFETY: an aiocb, by the contract of the call.
        unsafe { hand_over_block(block) };
        // SAFETY: passed on.
        unsafe { real::aio_read(block) }
    }

    /// aio_read64.
    fn aio_read64(block: *mut c_void) -> c_int {
        // SAFETY: an aiocb, by the contract of the call.
        unsafe { hand_over_block(block) };
        // SAFETY: passed on.
        unsafe { real::aio_read64(block) }
    }

    /// aio_write(3).
    fn aio_write(block: *mut c_void) -> c_int {
        // SAFETY: an aiocb, by the contract of the call.
        unsafe { hand_over_block(block) };
        // SAFETY: passed on.
        unsafe { real::aio_write(block) }
    }

    /// aio_write64.
    fn aio_write64(block: *mut c_void) -> c_int {
        // SAFETY: an aiocb, by the contract of the call.
        unsafe { hand_over_block(block) };
        // SAFETY: passed on.
        unsafe { real::aio_write64(block) }
    }

    /// lio_listio(3).
    fn lio_listio(
        mode: c_int,
        list: *const *const c_void,
        count: c_int,
        event: *mut c_void,
    ) -> c_int {
        // SAFETY: the program's list, by the contract of the call.
        unsafe { hand_over_blocks(list, count) };
        // SAFETY: passed on.
        unsafe { real::lio_listio(mode, list, count, event) }
    }

    /// lio_listio64.
    fn lio_listio64(
        mode: c_int,
        list: *const *const c_void,
        count: c_int,
        event: *mut c_void,
    ) -> c_int {
        // SAFETY: the program's list, by the contract of the call.
        unsafe { hand_over_blocks(list, count) };
        // SAFETY: passed on.
        unsafe { real::lio_listio64(mode, list, count, event) }
    }

    /// backtrace_symbols_fd(3).
    fn backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) -> () {
        file::hand_over(fd);
        // SAFETY: passed on.
        unsafe { real::backtrace_symbols_fd(buffer, size, fd) };
    }

    /// libc's other name of backtrace_symbols_fd.
    fn __backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) -> () {
        // SAFETY: passed on.
        unsafe { backtrace_symbols_fd(buffer, size, fd) };
    }

    /// setsourcefilter(3).
    fn setsourcefilter(
        fd: c_int,
        interface: u32,
        group: *const libc::sockaddr,
        group_len: libc::socklen_t,
        mode: u32,
        count: u32,
        sources: *const libc::sockaddr_storage,
    ) -> c_int {
        // SAFETY: passed on.
        after_filter(fd, unsafe {
            real::setsourcefilter(fd, interface, group, group_len, mode, count, sources)
        })
    }

    /// setipv4sourcefilter(3).
    fn setipv4sourcefilter(
        fd: c_int,
        interface: libc::in_addr,
        group: libc::in_addr,
        mode: u32,
        count: u32,
        sources: *const libc::in_addr,
    ) -> c_int {
        // SAFETY: passed on.
        after_filter(fd, unsafe {
            real::setipv4sourcefilter(fd, interface, group, mode, count, sources)
        })
    }

    /// bindresvport(3).
    fn bindresvport(fd: c_int, address: *mut libc::sockaddr_in) -> c_int {
        if let Found::Stream(process, id) = find(fd) {
            stream::before_bind(&process.stack, id);
        }
        // SAFETY: passed on.
        let result = unsafe { real::bindresvport(fd, address) };
        if result == 0
            && let Some((process, id)) = ours(fd)
        {
            attach::name(&process.stack, id, false);
        }
        result
    }
}
