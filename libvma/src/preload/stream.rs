//! What the exported functions do with a TCP socket of ours.

mod settings;

pub use settings::{after_flags, after_owner, ioctl, option, set_option};

use core::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::convert::{self, Destination, VectorError};
use super::{errno, made, passed, real};
use crate::fd::Object;
use crate::process::Process;
use crate::socket::stream::listen::{Adopted, Found as Accepted};
use crate::socket::stream::{self, connect as connects, listen, local};
use crate::socket::{Outcome, SocketId, WhyOs};
use crate::sys::sockaddr::{Family, SocketName};
use crate::sys::wait;

type SockAddr = *const libc::sockaddr;
type SockAddrOut = *mut libc::sockaddr;
type Len = *mut libc::socklen_t;

const AF_UNSPEC: libc::sa_family_t = libc::AF_UNSPEC as libc::sa_family_t;

fn failed(error: i32) -> c_int {
    errno::set(error);
    -1
}

/// # Safety
/// As connect(2).
pub unsafe fn connect(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    address: SockAddr,
    len: libc::socklen_t,
) -> c_int {
    if convert::is_sane(len) && !convert::asked_readable(address, len as usize) {
        // The kernel reads the address before anything else.
        return failed(libc::EFAULT);
    }
    let family = stream::family(&process.stack, id);
    // SAFETY: as promised.
    let peer = match unsafe { convert::peer(family, address, len) } {
        Destination::Given(peer, _) => peer,
        // An address is not even looked at.
        Destination::Foreign
            // SAFETY: as promised.
            if unsafe { convert::family(address, len) }.is_some_and(|family| family != AF_UNSPEC)
                && stream::is_connected(&process.stack, id) =>
        {
            SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)
        }
        Destination::Foreign | Destination::Absent => {
            // SAFETY: as promised.
            if unsafe { convert::family(address, len) } == Some(AF_UNSPEC)
                && connects::disconnect(&process.stack, id)
            {
                process.drop_stream(id);
            }
            // SAFETY: as promised.
            let is_ipv6 = family == Family::Ipv6 && unsafe { convert::is_ipv6(address, len) };
            if is_ipv6 && stream::is_fresh(&process.stack, id) {
                let before = errno::get();
                process.drop_stream_for(id, WhyOs::Ipv6);
                errno::set(before);
                // SAFETY: as promised.
                return unsafe { super::socket::connect_by_kernel(fd, address, len) };
            }
            // SAFETY: passed on.
            return unsafe { real::connect(fd, address, len) };
        }
    };
    let before = errno::get();
    process.ensure_plane();
    match connects::connect(&process.stack, id, peer) {
        Outcome::Ours(()) => {
            errno::set(before);
            0
        }
        Outcome::Errno(error) => failed(error),
        Outcome::Os(why) => {
            // That it takes IPv6 only the program has said itself; its call fails.
            if why != WhyOs::Ipv6 {
                why.tell(format_args!("fd {fd}"));
            }
            process.drop_stream_for(id, why);
            errno::set(before);
            // SAFETY: passed on.
            unsafe { real::connect(fd, address, len) }
        }
    }
}

/// # Safety
/// As accept4(2).
pub unsafe fn accept(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    (address, len): (SockAddrOut, Len),
    flags: c_int,
) -> c_int {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return failed(libc::EINVAL);
    }
    // SAFETY: as promised.
    unsafe { accept_as(process, id, fd, (address, len), (flags, true)) }
}

/// As [`accept`], but it never waits.
///
/// # Safety
/// As accept4(2).
pub unsafe fn accept_now(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    address: (SockAddrOut, Len),
) -> c_int {
    // SAFETY: as promised.
    unsafe { accept_as(process, id, fd, address, (0, false)) }
}

/// # Safety
/// As accept4(2).
unsafe fn accept_as(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    (address, len): (SockAddrOut, Len),
    (flags, may_wait): (c_int, bool),
) -> c_int {
    let before = errno::get();
    process.ensure_plane();
    let mut os = || {
        if !may_wait && wait::poll_now(fd, libc::POLLIN) == 0 {
            return Err(libc::EAGAIN);
        }
        // SAFETY: passed on.
        match made(|| unsafe { real::accept4(fd, address, len, flags) }) {
            -1 => Err(errno::get()),
            accepted => Ok(accepted),
        }
    };
    let accepted = match listen::accept(&process.stack, id, may_wait, &mut os) {
        Outcome::Ours(Accepted::Ours(accepted)) => accepted,
        Outcome::Ours(Accepted::Os(accepted)) => {
            let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
            let adopted = local::accept::adopt(&process.stack, id, accepted, nonblocking);
            match adopted {
                Some(child) => {
                    process.fds.set(accepted, Object::Stream(child));
                }
                None => {
                    passed::accepted(fd, accepted);
                }
            }
            errno::set(before);
            return accepted;
        }
        Outcome::Errno(error) => return failed(error),
        Outcome::Os(_) => {
            process.drop_stream(id);
            errno::set(before);
            if !may_wait && wait::poll_now(fd, libc::POLLIN) == 0 {
                return failed(libc::EAGAIN);
            }
            // SAFETY: passed on.
            return passed::accepted(
                fd,
                made(|| unsafe { real::accept4(fd, address, len, flags) }),
            );
        }
    };
    let (domain, kind) = (listen::family_of(&accepted).domain(), libc::SOCK_STREAM | flags);
    // SAFETY: no pointer is involved.
    let shadow = made(|| unsafe { real::socket(domain, kind, 0) });
    if shadow < 0 {
        let error = errno::get();
        listen::put_back(&process.stack, id, accepted);
        return failed(error);
    }
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let adopted = listen::adopt(&process.stack, accepted, shadow, nonblocking);
    let Some(Adopted { id: child, peer, inherited }) = adopted else {
        // The listener was closed meanwhile.
        // SAFETY: the descriptor was made above and nobody knows it.
        unsafe { real::close(shadow) };
        return failed(libc::EBADF);
    };
    crate::socket::stream::begin_as_configured(&process.stack, shadow);
    for option in &inherited {
        let (value, len) = (option.value.as_ptr().cast(), option.value.len() as libc::socklen_t);
        // SAFETY: a value of that length.
        unsafe { real::setsockopt(shadow, option.level, option.name, value, len) };
    }
    process.fds.set(shadow, Object::Stream(child));
    errno::set(before);
    let told = match address.is_null() {
        true => Ok(()),
        // SAFETY: as promised.
        false => unsafe { convert::put_name(&peer, address, len) },
    };
    match told {
        Ok(()) => shadow,
        Err(error) => {
            // SAFETY: the descriptor is ours to close: the program never hears of it.
            unsafe { super::file::close(shadow) };
            failed(error)
        }
    }
}

/// # Safety
/// As getsockname(2).
pub unsafe fn put_name(found: Result<SocketName, i32>, address: SockAddrOut, len: Len) -> c_int {
    let found = match found {
        Ok(found) => found,
        Err(error) => return failed(error),
    };
    // SAFETY: as promised.
    match unsafe { convert::put_name(&found, address, len) } {
        Ok(()) => 0,
        Err(error) => failed(error),
    }
}

/// None: the shadow's call is to be made, too.
pub fn shutdown(process: &'static Process, id: SocketId, how: c_int) -> Option<c_int> {
    match stream::shutdown::shutdown(&process.stack, id, how) {
        Outcome::Ours(()) => Some(0),
        Outcome::Errno(error) => Some(failed(error)),
        Outcome::Os(_) => None,
    }
}

/// A receive call into a list of buffers.
#[inline]
pub fn receive(
    process: &'static Process,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    os: impl FnOnce() -> isize,
) -> isize {
    match stream::receive::receive(&process.stack, id, buffers, flags) {
        Outcome::Ours(len) => len as isize,
        Outcome::Errno(error) => failed(error) as isize,
        Outcome::Os(_) => os(),
    }
}

/// recv, read.
///
/// # Safety
/// As recv(2).
#[inline]
pub unsafe fn receive_into(
    process: &'static Process,
    id: SocketId,
    (buffer, len): (*mut c_void, usize),
    flags: c_int,
    os: impl FnOnce() -> isize,
) -> isize {
    if flags & libc::MSG_TRUNC != 0 && flags & libc::MSG_OOB == 0 {
        return match stream::receive::discard(&process.stack, id, len, flags) {
            Outcome::Ours(len) => len as isize,
            Outcome::Errno(error) => failed(error) as isize,
            Outcome::Os(_) => os(),
        };
    }
    if len > 0 && !convert::is_plausible(buffer, len) {
        return failed(libc::EFAULT) as isize;
    }
    // SAFETY: the program's buffer, by the contract of the call.
    let bytes = unsafe { convert::bytes_mut(buffer.cast(), len) };
    receive(process, id, &mut [IoSliceMut::new(bytes)], flags, os)
}

/// recvfrom(2) tells no source of a stream's bytes.
///
/// # Safety
/// `address` is null, or `len` points to a length.
pub unsafe fn no_source(result: isize, address: SockAddrOut, len: Len) -> isize {
    if result < 0 || address.is_null() {
        return result;
    }
    if !convert::can_read(len, 4) {
        return failed(libc::EFAULT) as isize;
    }
    // SAFETY: as promised, and there. The bytes are gone all the same.
    if (unsafe { len.read() } as i32) < 0 {
        return failed(libc::EINVAL) as isize;
    }
    if !convert::can_write(len, 4) {
        return failed(libc::EFAULT) as isize;
    }
    // SAFETY: as above.
    unsafe { len.write(0) };
    result
}

/// recvmsg.
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn receive_message(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    if !convert::can_read(message, size_of::<libc::msghdr>()) {
        return failed(libc::EFAULT) as isize;
    }
    // SAFETY: a msghdr by the contract of the call; nothing is written before it is known to be writable.
    let header = unsafe { &mut *message };
    if !header.msg_name.is_null() && (header.msg_namelen as i32) < 0 {
        return failed(libc::EINVAL) as isize;
    }
    // SAFETY: the program's vector, by the contract of the call.
    let mut buffers = match unsafe { convert::targets(header.msg_iov, header.msg_iovlen) } {
        Ok(buffers) => buffers,
        Err(VectorError::Buffer) => return failed(libc::EFAULT) as isize,
        Err(VectorError::Vector(error)) => return failed(error) as isize,
    };
    // SAFETY: passed on.
    let os = || passed::received(fd, flags, unsafe { real::recvmsg(fd, message, flags) });
    match stream::receive::receive(&process.stack, id, buffers.as_mut_slice(), flags) {
        // The bytes are gone all the same.
        Outcome::Ours(_) if !convert::can_answer(header) => failed(libc::EFAULT) as isize,
        Outcome::Ours(len) => {
            if !header.msg_name.is_null() {
                header.msg_namelen = 0;
            }
            header.msg_controllen = 0;
            header.msg_flags = flags & (libc::MSG_CMSG_CLOEXEC | libc::MSG_OOB);
            len as isize
        }
        Outcome::Errno(error) => failed(error) as isize,
        Outcome::Os(_) => os(),
    }
}

/// What is wrong with a destination that a stream ignores otherwise.
pub fn wrong_destination(address: SockAddr, len: libc::socklen_t) -> Option<c_int> {
    if address.is_null() || len == 0 {
        return None;
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Some(libc::EINVAL);
    }
    (!convert::can_read(address, len as usize)).then_some(libc::EFAULT)
}

/// A send call from a list of buffers.
#[inline]
pub fn send(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    payload: &[IoSlice<'_>],
    flags: c_int,
    os: impl FnOnce() -> isize,
) -> isize {
    match stream::send::send(&process.stack, id, payload, flags) {
        // Only then does the number stand for the same socket: a closed one may be a file's by now.
        Outcome::Ours(len)
            if process.fds.get(fd) != Some(Object::Stream(id))
                && stream::has_departed(&process.stack, id) =>
        {
            send_rest(fd, payload, flags, len)
        }
        Outcome::Ours(len) => len as isize,
        Outcome::Errno(error) => {
            if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
                // SAFETY: takes no pointer; the kernel signals the calling thread, too.
                unsafe { libc::raise(libc::SIGPIPE) };
            }
            failed(error) as isize
        }
        Outcome::Os(_) => {
            if flags & libc::MSG_FASTOPEN != 0 && stream::is_fresh(&process.stack, id) {
                // The kernel connects.
                process.drop_stream(id);
            } else if flags & libc::MSG_OOB != 0 && local::is_local(&process.stack, id) {
                // Only the kernel's connection has an urgent byte.
                process.release_stream(id, WhyOs::Arguments);
            }
            os()
        }
    }
}

/// A send call from memory that is none: if nothing else is wrong, that is.
#[cold]
pub fn send_from_nowhere(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    flags: c_int,
    os: impl FnOnce() -> isize,
) -> isize {
    match send(process, id, fd, &[], flags, os) {
        0 => failed(libc::EFAULT) as isize,
        other => other,
    }
}

/// What is wrong with the control messages of a send call, which are of no use on a stream, but
/// looked at.
///
/// # Safety
/// The message's control area is the program's.
pub unsafe fn wrong_control(message: &libc::msghdr) -> Option<c_int> {
    const IGNORED: [c_int; 2] = [libc::SCM_RIGHTS, libc::SCM_CREDENTIALS];
    /// SO_MARK, SO_PRIORITY, SO_TIMESTAMPING old and new, SCM_TXTIME, SCM_TS_OPT_ID.
    const KNOWN: [c_int; 6] = [libc::SO_MARK, libc::SO_PRIORITY, 37, 65, 61, 81];
    const LEAD: usize = size_of::<libc::cmsghdr>();
    if message.msg_controllen == 0 {
        return None;
    }
    if !convert::can_read(message.msg_control, message.msg_controllen) {
        return Some(libc::EFAULT);
    }
    let mut at = 0usize;
    while message.msg_controllen.saturating_sub(at) >= LEAD {
        let entry = message.msg_control.wrapping_byte_add(at).cast::<libc::cmsghdr>();
        // SAFETY: a header's length of bytes is there; the program's pointer may be unaligned.
        let entry = unsafe { entry.read_unaligned() };
        let len = entry.cmsg_len;
        if len < LEAD || len > message.msg_controllen - at {
            return Some(libc::EINVAL);
        }
        let kind = entry.cmsg_type;
        if entry.cmsg_level == libc::SOL_SOCKET
            && !IGNORED.contains(&kind)
            && !KNOWN.contains(&kind)
        {
            return Some(libc::EINVAL);
        }
        at = at.saturating_add(len.next_multiple_of(size_of::<usize>()));
    }
    None
}

/// The socket became the kernel's during the call, which sent `len` bytes before: a blocking call
/// does not end there.
#[cold]
fn send_rest(fd: c_int, payload: &[IoSlice<'_>], flags: c_int, len: usize) -> isize {
    let mut skip = len;
    let mut rest: Vec<IoSlice<'_>> = Vec::with_capacity(payload.len());
    for piece in payload {
        let here = skip.min(piece.len());
        skip -= here;
        rest.extend(piece.get(here..).filter(|left| !left.is_empty()).map(IoSlice::new));
    }
    if rest.is_empty() {
        return len as isize;
    }
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    // An IoSlice is an iovec by its contract; the kernel only reads there.
    message.msg_iov = rest.as_mut_ptr().cast();
    message.msg_iovlen = rest.len() as _;
    // SAFETY: a message of living buffers.
    let more = passed::sent(fd, unsafe { real::sendmsg(fd, &message, flags) });
    len as isize + more.max(0)
}

/// sendmmsg: as so many sendmsg.
///
/// # Safety
/// As sendmmsg(2).
pub unsafe fn send_messages(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let before = errno::get();
    let mut sent = 0;
    while sent < count.min(1024) as usize {
        let entry = messages.wrapping_add(sent);
        // SAFETY: a mmsghdr of the program's array starts with its msghdr.
        let len = unsafe { super::send::sendmsg(fd, entry.cast(), flags) };
        if len < 0 {
            break;
        }
        // SAFETY: an entry of the program's array, whose header was there.
        if !unsafe { convert::tell_length(entry, len) } {
            break;
        }
        sent += 1;
    }
    if sent == 0 && count > 0 {
        return -1;
    }
    errno::set(before);
    sent as c_int
}
