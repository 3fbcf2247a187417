//! Send calls with VMA_SND_FLAGS_DUMMY, which put nothing on the wire.

use core::ffi::{c_int, c_uint, c_void};
use std::io::IoSlice;

use super::convert::{self, Destination, VectorError};
use super::{Found, errno, find, real, send, stream};
use crate::log::log_line;
use crate::socket::{egress, stream as streams};

pub use libvma_dev::extra::SEND_DUMMY as DUMMY;

/// Whether the flag means a dummy send on this descriptor. It has the value of MSG_SYN, which the kernel ignores: only
/// internet sockets give it the other meaning.
#[cold]
pub fn applies(fd: c_int) -> bool {
    match find(fd) {
        Found::Datagram(..) | Found::Stream(..) => true,
        Found::Kernel | Found::Counted => {
            let before = errno::get();
            let mut domain: c_int = libc::AF_UNSPEC;
            let mut len = size_of::<c_int>() as libc::socklen_t;
            // SAFETY: both are ours, and `len` is the size of `domain`.
            let status = unsafe {
                real::getsockopt(
                    fd,
                    libc::SOL_SOCKET,
                    libc::SO_DOMAIN,
                    (&raw mut domain).cast(),
                    &raw mut len,
                )
            };
            errno::set(before);
            status == 0 && matches!(domain, libc::AF_INET | libc::AF_INET6)
        }
    }
}

fn rehearse(
    fd: c_int,
    payload: &[IoSlice<'_>],
    to: Destination,
    flags: c_int,
    control: Option<&[u8]>,
) -> isize {
    let before = errno::get();
    let flags = flags & !DUMMY;
    let result = match (find(fd), to) {
        (Found::Datagram(..), Destination::Foreign) => Err(libc::EAFNOSUPPORT),
        (Found::Datagram(process, id), to) => {
            let to = match to {
                Destination::Given(to, named) => Some((to, named)),
                _ => None,
            };
            let request = send::request(payload, to, flags, control, false);
            egress::rehearse(&process.stack, id, &request)
        }
        (Found::Stream(process, id), _) => {
            streams::rehearsal::rehearse(&process.stack, id, payload, flags)
        }
        (Found::Kernel | Found::Counted, _) => Err(libc::EINVAL),
    };
    if result.is_ok() {
        errno::set(before);
    }
    errno::result(result)
}

/// So many bytes the original's message after getsockname() has.
static WARMING: [u8; 264] = [0; 264];

/// VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME: a dummy send, whatever comes of it. getsockname() has no effect on a connection, so that a program
/// can call it now and then while it waits for something to send.
#[cold]
pub fn after_getsockname(fd: c_int) {
    let before = errno::get();
    let sent = rehearse(fd, &[IoSlice::new(&WARMING)], Destination::Absent, 0, None);
    log_line!(Debug, "dummy message of getsockname() on fd {fd}: {sent}");
    errno::set(before);
}

/// # Safety
/// As sendto(2), with the flag.
#[cold]
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    address: *const libc::sockaddr,
    address_len: libc::socklen_t,
) -> isize {
    if len > 0 && !convert::is_plausible(buffer, len) {
        return errno::result(Err(libc::EFAULT));
    }
    // SAFETY: the program's buffer, by the contract of the call.
    let payload = [IoSlice::new(unsafe { convert::bytes(buffer.cast(), len) })];
    // SAFETY: the program's address, by the contract of the call.
    let to = unsafe { convert::destination(address, address_len) };
    if matches!(find(fd), Found::Stream(..))
        && let Some(error) = stream::wrong_destination(address, address_len)
    {
        return errno::result(Err(error));
    }
    rehearse(fd, &payload, to, flags, None)
}

/// # Safety
/// As sendmsg(2), with the flag.
#[cold]
pub unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    if !convert::is_plausible(message, size_of::<libc::msghdr>()) {
        return errno::result(Err(libc::EFAULT));
    }
    // SAFETY: a msghdr by the contract of the call.
    let header = unsafe { &*message };
    // SAFETY: the program's vector, by the contract of the call.
    match unsafe { convert::sources(header.msg_iov, header.msg_iovlen) } {
        Ok(payload) => {
            // SAFETY: the program's address, by the contract of the call.
            let to = unsafe { convert::destination(header.msg_name.cast(), header.msg_namelen) };
            // SAFETY: the program's control area, by the contract of the call.
            let control = unsafe { super::send::control(header) };
            rehearse(fd, payload.as_slice(), to, flags, control)
        }
        Err(VectorError::Buffer) => errno::result(Err(libc::EFAULT)),
        Err(VectorError::Vector(error)) => errno::result(Err(error)),
    }
}

/// # Safety
/// As sendmmsg(2), with the flag.
#[cold]
pub unsafe fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !convert::is_plausible(messages, 0) {
        return errno::result(Err(libc::EFAULT)) as c_int;
    }
    let mut sent = 0;
    // The kernel takes at most UIO_MAXIOV messages a call.
    while sent < count.min(1024) as usize {
        // SAFETY: the array has `count` entries, by the contract of the call.
        let entry = unsafe { messages.add(sent) };
        // SAFETY: a mmsghdr of the program's array starts with its msghdr.
        let len = unsafe { sendmsg(fd, entry.cast(), flags) };
        if len < 0 {
            break;
        }
        // SAFETY: an entry of the program's array.
        unsafe { (*entry).msg_len = len as c_uint };
        sent += 1;
    }
    if sent == 0 && count > 0 { -1 } else { sent as c_int }
}
