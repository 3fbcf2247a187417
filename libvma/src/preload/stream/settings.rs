//! setsockopt, getsockopt, ioctl and fcntl on a TCP socket of ours.

use core::ffi::{c_int, c_ulong, c_void};

use super::{Len, failed};
use crate::preload::{Found, convert, errno, find, real};
use crate::process::Process;
use crate::socket::stream::options::Effect;
use crate::socket::stream::tell::Value;
use crate::socket::stream::{self, options, tell};
use crate::socket::{SocketId, WhyOs};

/// # Safety
/// As setsockopt(2).
pub unsafe fn set_option(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let before = errno::get();
    if level == libc::IPPROTO_TCP
        && options::FREQUENT.contains(&name)
        && len as usize == size_of::<c_int>()
        && convert::asked_readable(value, size_of::<c_int>())
        // SAFETY: it can be read.
        && options::set_alone(&process.stack, id, name, unsafe { value.cast::<c_int>().read_unaligned() })
    {
        return 0;
    }
    let good = len > 0 && (len as c_int) > 0 && convert::asked_readable(value, len as usize);
    // SAFETY: the program's value, by the contract of the call; empty if it cannot be one.
    let bytes = if good { unsafe { convert::bytes(value.cast(), len as usize) } } else { &[] };
    if good && let Some(answer) = options::before_set(&process.stack, id, level, name, bytes) {
        if answer == 0 {
            // As far as the kernel has it: connections it accepts inherit it.
            // SAFETY: passed on.
            unsafe { real::setsockopt(fd, level, name, value, len) };
            errno::set(before);
            return 0;
        }
        return failed(answer);
    }
    if options::needs_connection(&process.stack, id, (level, name), bytes) {
        let why = WhyOs::Option { level, name };
        if let Err(errno) = why.judge(process.stack.config.exceptions) {
            return failed(errno);
        }
        why.tell_remedy(format_args!("fd {fd}"));
        process.release_stream(id, why);
    }
    // SAFETY: passed on.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0
        && let Effect::Os(why) = options::after_set(&process.stack, id, level, name, bytes)
    {
        if let Err(errno) = why.judge(process.stack.config.exceptions) {
            return failed(errno);
        }
        why.tell_remedy(format_args!("fd {fd}"));
        process.release_stream(id, why);
    }
    if result == 0 {
        errno::set(before);
    }
    result
}

/// None: the shadow answers.
///
/// # Safety
/// As getsockopt(2).
pub unsafe fn option(
    process: &'static Process,
    id: SocketId,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    len: Len,
) -> Option<c_int> {
    // A bad pointer is the kernel's to refuse, before anything is taken.
    if !convert::asked_readable(len, 4) || !convert::is_plausible(value, 1) {
        return None;
    }
    // SAFETY: a length by the contract of the call.
    let room = usize::try_from(unsafe { len.read() } as c_int).ok()?;
    let number;
    let told = tell::option(&process.stack, id, level, name)?;
    let bytes = match &told {
        Value::Number(value) => {
            number = value.to_ne_bytes();
            &number[..]
        }
        Value::Bytes(bytes) => bytes,
    };
    if (level, name) == (libc::SOL_SOCKET, libc::SO_PEERNAME) && room > bytes.len() {
        // As the kernel: it takes the room for the length that is expected.
        return Some(failed(libc::EINVAL));
    }
    if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_PATHMTU) && room < bytes.len() {
        return Some(failed(libc::EINVAL));
    }
    let bytes = bytes.get(..room).unwrap_or(bytes);
    // In the order of most options of the kernel.
    if !convert::asked_writable(len, 4) || !convert::asked_writable(value, bytes.len()) {
        return Some(failed(libc::EFAULT));
    }
    // SAFETY: the program has room for that many bytes, by the contract of the call.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), bytes.len()) };
    // SAFETY: as above.
    unsafe { len.write(bytes.len() as libc::socklen_t) };
    Some(0)
}

/// # Safety
/// As ioctl(2).
pub unsafe fn ioctl(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    request: c_ulong,
    argument: usize,
) -> c_int {
    let out: *mut c_int = core::ptr::with_exposed_provenance_mut(argument);
    if convert::is_plausible(out, size_of::<c_int>())
        && let Some(told) = tell::ioctl(&process.stack, id, request)
    {
        return match told {
            Ok(_) if !convert::asked_writable(out, size_of::<c_int>()) => failed(libc::EFAULT),
            Ok(number) => {
                // SAFETY: these requests point to an int, by the contract of the call.
                unsafe { out.write(number) };
                0
            }
            Err(error) => failed(error),
        };
    }
    // SAFETY: passed on.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result == 0 && matches!(request, FIOSETOWN | SIOCSPGRP) {
        after_owner(fd);
    }
    let flags = [libc::FIONBIO as c_ulong, libc::FIOASYNC as c_ulong];
    if result == 0 && flags.contains(&request) {
        after_flags(process, id);
    }
    result
}

const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;

/// The program wants SIGURG, which comes from the kernel's socket only.
pub fn after_owner(fd: c_int) {
    if let Found::Stream(process, id) = find(fd)
        // SAFETY: F_GETOWN takes no pointer.
        && unsafe { real::fcntl(fd, libc::F_GETOWN, 0) } != 0
    {
        process.release_stream(id, WhyOs::Arguments);
    }
}

pub fn after_flags(process: &'static Process, id: SocketId) {
    if stream::after_flags(&process.stack, id) {
        // SIGIO comes from the kernel's socket only.
        process.release_stream(id, WhyOs::Arguments);
    }
}
