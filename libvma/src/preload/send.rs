//! send, sendto, sendmsg, sendmmsg, write, writev.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::size_of;
use std::io::IoSlice;
use std::net::SocketAddrV4;

use super::cancel::cancellable;
use super::convert::{self, Destination, VectorError};
use super::rehearsal::{self, DUMMY};
use super::{Found, burst, errno, find, ours, passed, real, retire, stream, take_over};
use crate::process::{self, Process};
use crate::socket::{Outcome, RingId, SocketId, WhyOs, egress};
use crate::sys::sockaddr::Family;

/// One send call on a socket of ours. None: the kernel shall do it.
pub(super) fn transmit(
    process: &'static Process,
    id: SocketId,
    request: &egress::Request<'_>,
) -> Option<Result<(usize, RingId), ()>> {
    match egress::send(&process.stack, id, request) {
        Outcome::Ours(sent) => Some(Ok(sent)),
        Outcome::Errno(errno) => {
            errno::set(errno);
            Some(Err(()))
        }
        Outcome::Os(_) => {
            retire(process, id);
            None
        }
    }
}

/// A send call that is not part of a burst.
#[inline]
fn transmit_one(
    found: Found,
    fd: c_int,
    payload: &[IoSlice<'_>],
    to: Destination,
    flags: c_int,
    control: Option<&[u8]>,
    os: impl FnOnce() -> isize,
) -> isize {
    let os = || passed::sent(fd, os());
    let (process, id) = match found {
        Found::Datagram(process, id) => (process, id),
        Found::Stream(process, id) => {
            return stream::send(process, id, fd, payload, flags, os);
        }
        Found::Kernel | Found::Counted => return os(),
    };
    let to = match to {
        Destination::Absent => None,
        Destination::Given(address, named) => Some((address, named)),
        Destination::Foreign => return os(),
    };
    let request = request(payload, to, flags, control, false);
    match transmit(process, id, &request) {
        Some(Ok((len, _))) => len as isize,
        Some(Err(())) => -1,
        None => os(),
    }
}

/// A send call, to an address of a family if it names one.
#[inline]
pub(super) fn request<'a>(
    payload: &'a [IoSlice<'a>],
    to: Option<(SocketAddrV4, Family)>,
    flags: c_int,
    control: Option<&'a [u8]>,
    more_follow: bool,
) -> egress::Request<'a> {
    let (to, named) = to.map_or((None, Family::Ipv4), |(to, named)| (Some(to), named));
    egress::Request { payload, to, named, flags, control, more_follow }
}

/// The control messages of a send call; empty ones are not to be read here.
///
/// # Safety
/// The header's control area is the program's, of the length it says.
pub(super) unsafe fn control(header: &libc::msghdr) -> Option<&[u8]> {
    // More than any program has.
    const MOST: usize = 4096;
    let (at, len) = (header.msg_control, header.msg_controllen);
    if len == 0 {
        return None;
    }
    let readable = len <= MOST && convert::can_read(at, len);
    // SAFETY: as promised.
    Some(if readable { unsafe { convert::bytes(at.cast(), len) } } else { &[] })
}

/// A send call from memory that is none.
#[cold]
fn transmit_nowhere(fd: c_int, flags: c_int, os: impl FnOnce() -> isize) -> isize {
    let os = || passed::sent(fd, os());
    match find(fd) {
        Found::Stream(process, id) => stream::send_from_nowhere(process, id, fd, flags, os),
        Found::Datagram(..) | Found::Kernel | Found::Counted => os(),
    }
}

/// Descriptors of ours that a message hands to another process: their packets must reach the
/// kernel's socket, which is what the other process gets.
///
/// # Safety
/// `message` is a msghdr whose control area is readable.
#[cold]
unsafe fn release_passed(process: &'static Process, message: *const libc::msghdr) {
    // SAFETY: as promised.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null or a header inside the control area, by CMSG_FIRSTHDR and CMSG_NXTHDR.
    while let Some(entry) = unsafe { header.as_ref() } {
        if (entry.cmsg_level, entry.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the data follows the header.
            let data = unsafe { libc::CMSG_DATA(header) };
            let len = entry.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
            // SAFETY: `len` bytes of data belong to the entry, by its length field.
            let data = unsafe { convert::bytes(data, len) };
            for number in data.chunks_exact(4) {
                let fd = number.try_into().map_or(-1, c_int::from_ne_bytes);
                take_over::keep(fd);
                if let Found::Datagram(_, id) | Found::Stream(_, id) = find(fd) {
                    process.release(id, WhyOs::Passed);
                }
            }
        }
        // SAFETY: `header` is an entry of the message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// As [`look_for_descriptors`], in each message of a burst.
///
/// # Safety
/// As the arguments of sendmmsg(2).
unsafe fn look_for_descriptors_in(messages: *mut libc::mmsghdr, count: c_uint) {
    if !convert::is_plausible(messages, 0) {
        return;
    }
    // The kernel takes no more (UIO_MAXIOV).
    for at in 0..count.min(1024) as usize {
        let entry = messages.wrapping_add(at);
        // SAFETY: a mmsghdr of the program's array starts with its msghdr.
        unsafe { look_for_descriptors(entry.cast()) };
    }
}

/// # Safety
/// `message` is null or a msghdr.
#[inline]
unsafe fn look_for_descriptors(message: *const libc::msghdr) {
    if process::current().is_none() || !convert::can_read(message, size_of::<libc::msghdr>()) {
        return;
    }
    // SAFETY: as promised.
    if let Some(header) = unsafe { message.as_ref() }
        && !header.msg_control.is_null()
        && header.msg_controllen >= size_of::<libc::cmsghdr>()
        // The kernel says EFAULT.
        && convert::can_read(header.msg_control, header.msg_controllen)
        && let Some(process) = process::current()
    {
        // SAFETY: the control area is the program's, of the length it says.
        unsafe { release_passed(process, message) };
    }
}

cancellable! {
    /// write(2).
    fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
        // SAFETY: passed on.
        let os = || unsafe { real::write(fd, buffer, len) };
        let found = match find(fd) {
            Found::Kernel => return os(),
            Found::Counted => match passed::begin(fd) {
                Some(call) => return call.sent(os()),
                // SAFETY: passed on.
                None => return unsafe { write(fd, buffer, len) },
            },
            found => found,
        };
        let stream = matches!(found, Found::Stream(..));
        if !(len == 0 && stream || convert::is_plausible(buffer, len)) {
            return transmit_nowhere(fd, 0, os);
        }
        // SAFETY: the program's buffer, by the contract of the call.
        let payload = [IoSlice::new(unsafe { convert::bytes(buffer.cast(), len) })];
        transmit_one(found, fd, &payload, Destination::Absent, 0, None, os)
    }

    /// writev(2).
    fn writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
        // SAFETY: passed on.
        let os = || unsafe { real::writev(fd, vector, count) };
        let found = match find(fd) {
            Found::Kernel => return os(),
            Found::Counted => match passed::begin(fd) {
                Some(call) => return call.sent(os()),
                // SAFETY: passed on.
                None => return unsafe { writev(fd, vector, count) },
            },
            found => found,
        };
        if !(0..=1024).contains(&count) {
            return passed::sent(fd, os());
        }
        // SAFETY: the program's vector, by the contract of the call.
        match unsafe { convert::sources(vector, count as usize) } {
            // A write of nothing sends nothing, unlike a send of nothing.
            Ok(payload) if payload.as_slice().iter().any(|part| !part.is_empty()) => {
                transmit_one(found, fd, payload.as_slice(), Destination::Absent, 0, None, os)
            }
            Err(VectorError::Buffer) => transmit_nowhere(fd, 0, os),
            _ => passed::sent(fd, os()),
        }
    }

    /// send(2).
    fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
        if flags & DUMMY != 0 && rehearsal::applies(fd) {
            // SAFETY: passed on.
            return unsafe { rehearsal::sendto(fd, buffer, len, flags, core::ptr::null(), 0) };
        }
        // SAFETY: passed on.
        let os = || unsafe { real::send(fd, buffer, len, flags) };
        let found = match find(fd) {
            Found::Kernel => return os(),
            Found::Counted => match passed::begin(fd) {
                Some(call) => return call.sent(os()),
                // SAFETY: passed on.
                None => return unsafe { send(fd, buffer, len, flags) },
            },
            found => found,
        };
        if len > 0 && !convert::is_plausible(buffer, len) {
            return transmit_nowhere(fd, flags, os);
        }
        // SAFETY: the program's buffer, by the contract of the call.
        let payload = [IoSlice::new(unsafe { convert::bytes(buffer.cast(), len) })];
        transmit_one(found, fd, &payload, Destination::Absent, flags, None, os)
    }

    /// sendto(2).
    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        len: usize,
        flags: c_int,
        address: *const libc::sockaddr,
        address_len: libc::socklen_t,
    ) -> isize {
        if flags & DUMMY != 0 && rehearsal::applies(fd) {
            // SAFETY: passed on.
            return unsafe { rehearsal::sendto(fd, buffer, len, flags, address, address_len) };
        }
        // SAFETY: passed on.
        let os = || unsafe { real::sendto(fd, buffer, len, flags, address, address_len) };
        let found = match find(fd) {
            Found::Kernel => return os(),
            Found::Counted => match passed::begin(fd) {
                Some(call) => return call.sent(os()),
                // SAFETY: passed on.
                None => return unsafe { sendto(fd, buffer, len, flags, address, address_len) },
            },
            found => found,
        };
        if matches!(found, Found::Stream(..))
            && let Some(error) = stream::wrong_destination(address, address_len)
        {
            errno::set(error);
            return -1;
        }
        if len > 0 && !convert::is_plausible(buffer, len) {
            return transmit_nowhere(fd, flags, os);
        }
        // SAFETY: the program's buffer, by the contract of the call.
        let payload = [IoSlice::new(unsafe { convert::bytes(buffer.cast(), len) })];
        // SAFETY: the program's address, by the contract of the call.
        let to = unsafe { convert::destination(address, address_len) };
        transmit_one(found, fd, &payload, to, flags, None, os)
    }

    /// sendmsg(2).
    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        if flags & DUMMY != 0 && rehearsal::applies(fd) {
            // SAFETY: passed on.
            return unsafe { rehearsal::sendmsg(fd, message, flags) };
        }
        // SAFETY: null, or a msghdr by the contract of the call.
        unsafe { look_for_descriptors(message) };
        // SAFETY: passed on.
        let os = || unsafe { real::sendmsg(fd, message, flags) };
        let found = match find(fd) {
            Found::Kernel => return os(),
            Found::Counted => match passed::begin(fd) {
                Some(call) => return call.sent(os()),
                // SAFETY: passed on.
                None => return unsafe { sendmsg(fd, message, flags) },
            },
            found => found,
        };
        if !convert::can_read(message, size_of::<libc::msghdr>()) {
            return passed::sent(fd, os());
        }
        // SAFETY: a msghdr by the contract of the call.
        let header = unsafe { &*message };
        // SAFETY: the program's vector, by the contract of the call.
        match unsafe { convert::sources(header.msg_iov, header.msg_iovlen) } {
            Ok(payload) => {
                if matches!(found, Found::Stream(..))
                    // SAFETY: the program's control area, by the contract of the call.
                    && let Some(error) = unsafe { stream::wrong_control(header) }
                {
                    errno::set(error);
                    return -1;
                }
                // SAFETY: the program's address, by the contract of the call.
                let to = unsafe {
                    convert::destination(header.msg_name.cast(), header.msg_namelen)
                };
                // SAFETY: as above.
                let control = unsafe { control(header) };
                transmit_one(found, fd, payload.as_slice(), to, flags, control, os)
            }
            Err(VectorError::Buffer) => transmit_nowhere(fd, flags, os),
            Err(VectorError::Vector(_)) => passed::sent(fd, os()),
        }
    }

    /// sendmmsg(2): a burst shares one kick of the ring.
    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if flags & DUMMY != 0 && rehearsal::applies(fd) {
            // SAFETY: passed on.
            return unsafe { rehearsal::sendmmsg(fd, messages, count, flags) };
        }
        if matches!(find(fd), Found::Stream(..)) && convert::is_plausible(messages, 0) {
            // SAFETY: the program's array, by the contract of the call.
            return unsafe { stream::send_messages(fd, messages, count, flags) };
        }
        let Some((process, id)) = ours(fd).filter(|_| convert::is_plausible(messages, 0)) else {
            // SAFETY: the program's array, by the contract of the call.
            unsafe { look_for_descriptors_in(messages, count) };
            let Some(call) = passed::begin_as(find(fd), fd) else {
                // SAFETY: passed on.
                return unsafe { sendmmsg(fd, messages, count, flags) };
            };
            // SAFETY: passed on.
            let sent = unsafe { real::sendmmsg(fd, messages, count, flags) };
            if matches!(find(fd), Found::Counted) {
                // SAFETY: the kernel has filled in as many as it says.
                unsafe { passed::sent_messages(fd, messages, sent) };
            }
            call.end();
            return sent;
        };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { burst::send(process, id, fd, messages, count, flags) }
    }
}
