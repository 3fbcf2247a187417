//! recv, recvfrom, recvmsg, recvmmsg, read, readv.

use core::ffi::{c_int, c_uint, c_void};
use std::io::IoSliceMut;

use super::cancel::cancellable;
use super::convert::{self, VectorError};
use super::{Found, burst, errno, find, passed, real, retire, stream};
use crate::process::Process;
use crate::socket::receive::{self, FromKernel, Received, Take};
use crate::socket::{Outcome, SocketId, clock};

/// What a receive call of ours came to.
pub(super) enum Reception {
    Done(Received),
    Failed,
    /// The kernel shall do it, blocking if it wants.
    Pass,
}

/// One receive call on a socket of ours; `os` does it on the kernel's socket without blocking.
pub(super) fn receive(
    process: &'static Process,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    control: Option<&mut [u8]>,
    mut os: impl FnMut() -> isize,
) -> Reception {
    receive_several(process, id, buffers, flags, control, &mut |_| one(os()))
}

/// The result of a call that takes one datagram.
fn one(result: isize) -> Result<FromKernel, i32> {
    usize::try_from(result).map(FromKernel::one).map_err(|_| errno::get())
}

/// As [`receive()`], with a call that may take several of the kernel's datagrams.
fn receive_several(
    process: &'static Process,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    control: Option<&mut [u8]>,
    os: &mut dyn FnMut(Take) -> Result<FromKernel, i32>,
) -> Reception {
    let before = errno::get();
    let request = receive::Request { buffers, flags, control, os };
    match receive::receive(&process.stack, id, request) {
        Outcome::Ours(received) => {
            // A look at the kernel's socket may have left EAGAIN behind.
            errno::set(before);
            Reception::Done(received)
        }
        Outcome::Errno(errno) => {
            errno::set(errno);
            Reception::Failed
        }
        Outcome::Os(_) => {
            retire(process, id);
            Reception::Pass
        }
    }
}

/// recvmsg on a socket of ours. If the message is the header of the first of several entries of recvmmsg(2), more that the kernel has
/// goes into the entries behind it. Returns the bytes, or -1, and how many entries are filled: more than one have their lengths.
///
/// # Safety
/// As recvmsg(2), or as recvmmsg(2) with so many entries.
unsafe fn receive_message(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    message: *mut libc::msghdr,
    entries: usize,
    flags: c_int,
) -> (isize, usize) {
    if !convert::can_read(message, size_of::<libc::msghdr>()) {
        errno::set(libc::EFAULT);
        return (-1, 0);
    }
    // SAFETY: a msghdr by the contract of the call; nothing is written before it is known to be writable.
    let header = unsafe { &mut *message };
    if !header.msg_name.is_null() && (header.msg_namelen as i32) < 0 {
        errno::set(libc::EINVAL);
        return (-1, 0);
    }
    // SAFETY: the program's vector, by the contract of the call.
    let mut buffers = match unsafe { convert::targets(header.msg_iov, header.msg_iovlen) } {
        Ok(buffers) => buffers,
        // SAFETY: a buffer that cannot be is never written to.
        Err(VectorError::Buffer) => return (unsafe { receive_nowhere(process, id, fd, flags) }, 1),
        Err(VectorError::Vector(errno)) => {
            errno::set(errno);
            return (-1, 0);
        }
    };
    // SAFETY: the program's control area, by the contract of the call; empty if it is null.
    let control = unsafe { convert::bytes_mut(header.msg_control.cast(), header.msg_controllen) };
    let control = Some(control);
    let has_room = buffers.as_mut_slice().iter().any(|buffer| !buffer.is_empty());
    let mut os = |take: Take| {
        if take == Take::Several && entries > 1 && has_room {
            // SAFETY: entries of the program's array.
            return unsafe { burst::take_from_kernel(fd, message.cast(), entries, flags) };
        }
        let flags = flags | libc::MSG_DONTWAIT;
        one(match has_room {
            // SAFETY: the same call, without blocking; it fills the program's header itself.
            true => unsafe { real::recvmsg(fd, message, flags) },
            // SAFETY: as said.
            false => unsafe { receive_message_without_room(fd, message, flags) },
        })
    };
    match receive_several(process, id, buffers.as_mut_slice(), flags, control, &mut os) {
        Reception::Done(Received::FromOs(taken)) if taken.datagrams > 1 => {
            (taken.bytes as isize, taken.datagrams as usize)
        }
        Reception::Done(Received::FromOs(taken)) => (taken.bytes as isize, 1),
        Reception::Done(Received::Datagram { len, source, family, flags, control }) => {
            if !convert::can_answer(header) {
                errno::set(libc::EFAULT);
                return (-1, 0);
            }
            let (name, name_len) = (header.msg_name.cast(), &mut header.msg_namelen);
            // SAFETY: the program's name buffer and its length, by the contract of the call.
            let named = unsafe { convert::put_address(source, family, name, name_len) };
            header.msg_controllen = control as _;
            header.msg_flags = flags;
            (errno::result(named.map(|()| len)), 1)
        }
        Reception::Failed => (-1, 0),
        Reception::Pass => {
            // SAFETY: the arguments are passed on as they came.
            let result = unsafe { real::recvmsg(fd, message, flags) };
            (passed::received(fd, flags, result), 1)
        }
    }
}

/// recv, recvfrom, read on a socket of ours.
///
/// # Safety
/// As recvfrom(2).
unsafe fn receive_plain(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    buffer: (*mut c_void, usize),
    flags: c_int,
    address: (*mut libc::sockaddr, *mut libc::socklen_t),
) -> isize {
    let good = buffer.1 == 0 || convert::is_plausible(buffer.0, buffer.1);
    let room = if good { buffer.1 } else { 0 };
    // SAFETY: the program's buffer, by the contract of the call.
    let bytes = unsafe { convert::bytes_mut(buffer.0.cast(), room) };
    let mut buffers = [IoSliceMut::new(bytes)];
    let os = || {
        let flags = flags | libc::MSG_DONTWAIT;
        if buffer.1 == 0 {
            // SAFETY: the program's address buffer, by the contract of the call.
            return unsafe { receive_without_room(fd, flags, address) };
        }
        // SAFETY: the same call, without blocking.
        unsafe { real::recvfrom(fd, buffer.0, buffer.1, flags, address.0, address.1) }
    };
    match receive(process, id, &mut buffers, flags, None, os) {
        Reception::Done(Received::FromOs(taken)) => taken.bytes as isize,
        Reception::Done(Received::Datagram { len, source, family, .. }) => {
            if !good {
                errno::set(libc::EFAULT);
                return -1;
            }
            // SAFETY: the program's address buffer, by the contract of the call.
            let named = unsafe { convert::put_address(source, family, address.0, address.1) };
            errno::result(named.map(|()| len))
        }
        Reception::Failed => -1,
        // SAFETY: passed on.
        Reception::Pass => passed::received(fd, flags, unsafe {
            real::recvfrom(fd, buffer.0, buffer.1, flags, address.0, address.1)
        }),
    }
}

/// A call without room for a byte. To that, a socket that the daemon has marked says 0 whatever waits (udp_bpf_recvmsg() of Linux): it is
/// asked with room for one.
///
/// # Safety
/// As recvfrom(2) of the address buffer.
#[cold]
unsafe fn receive_without_room(
    fd: c_int,
    flags: c_int,
    address: (*mut libc::sockaddr, *mut libc::socklen_t),
) -> isize {
    let mut byte = [0_u8; 1];
    let buffer = byte.as_mut_ptr().cast();
    // SAFETY: a buffer of one byte, and the program's address buffer.
    let received = unsafe { real::recvfrom(fd, buffer, 1, flags, address.0, address.1) };
    if flags & libc::MSG_TRUNC == 0 { received.min(0) } else { received }
}

/// The same of recvmsg(2).
///
/// # Safety
/// As recvmsg(2).
#[cold]
unsafe fn receive_message_without_room(
    fd: c_int,
    message: *mut libc::msghdr,
    flags: c_int,
) -> isize {
    let mut byte = [0_u8; 1];
    let mut place = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: a msghdr that can be read and written, by the contract of the call.
    let header = unsafe { &mut *message };
    let (vector, count) = (header.msg_iov, header.msg_iovlen);
    (header.msg_iov, header.msg_iovlen) = (&raw mut place, 1);
    // SAFETY: the program's header with a vector of one byte.
    let received = unsafe { real::recvmsg(fd, message, flags) };
    (header.msg_iov, header.msg_iovlen) = (vector, count);
    if received > 0 {
        header.msg_flags |= libc::MSG_TRUNC;
    }
    if flags & libc::MSG_TRUNC == 0 { received.min(0) } else { received }
}

/// A receive call with a bad buffer: it waits as any other, and the datagram is lost to it.
///
/// # Safety
/// As recv(2); nothing is written.
unsafe fn receive_nowhere(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    flags: c_int,
) -> isize {
    // SAFETY: the buffer is one that `receive_plain` does not write to.
    unsafe {
        receive_plain(process, id, fd, (core::ptr::without_provenance_mut(1), 1), flags, NOWHERE)
    }
}

const NOWHERE: (*mut libc::sockaddr, *mut libc::socklen_t) =
    (core::ptr::null_mut(), core::ptr::null_mut());

cancellable! {
    /// read(2).
    fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize {
        match find(fd) {
            // A read of nothing takes no datagram, unlike a recv of nothing.
            Found::Datagram(process, id) if len > 0 => {
                // SAFETY: passed on.
                unsafe { receive_plain(process, id, fd, (buffer, len), 0, NOWHERE) }
            }
            Found::Stream(process, id) if len > 0 => {
                // SAFETY: passed on.
                let os = || passed::received(fd, 0, unsafe { real::read(fd, buffer, len) });
                // SAFETY: passed on.
                unsafe { stream::receive_into(process, id, (buffer, len), 0, os) }
            }
            Found::Counted => match passed::begin(fd) {
                // SAFETY: passed on.
                Some(call) => call.received(0, unsafe { real::read(fd, buffer, len) }),
                // SAFETY: passed on.
                None => unsafe { read(fd, buffer, len) },
            },
            // SAFETY: passed on.
            _ => unsafe { real::read(fd, buffer, len) },
        }
    }

    /// readv(2).
    fn readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
        let found = find(fd);
        let (process, id) = match found {
            Found::Datagram(process, id) | Found::Stream(process, id)
                if (1..=1024).contains(&count) =>
            {
                (process, id)
            }
            Found::Counted => {
                return match passed::begin(fd) {
                    // SAFETY: passed on.
                    Some(call) => call.received(0, unsafe { real::readv(fd, vector, count) }),
                    // SAFETY: passed on.
                    None => unsafe { readv(fd, vector, count) },
                };
            }
            // SAFETY: passed on.
            _ => return unsafe { real::readv(fd, vector, count) },
        };
        // SAFETY: the program's vector, by the contract of the call.
        let mut buffers = match unsafe { convert::targets(vector, count as usize) } {
            Ok(buffers) => buffers,
            Err(VectorError::Buffer) if matches!(found, Found::Stream(..)) => {
                errno::set(libc::EFAULT);
                return -1;
            }
            // SAFETY: a buffer that cannot be is never written to.
            Err(VectorError::Buffer) => return unsafe { receive_nowhere(process, id, fd, 0) },
            Err(VectorError::Vector(errno)) => {
                errno::set(errno);
                return -1;
            }
        };
        if buffers.as_slice().iter().all(|buffer| buffer.is_empty()) {
            return 0;
        }
        if matches!(found, Found::Stream(..)) {
            // SAFETY: passed on.
            let os = || passed::received(fd, 0, unsafe { real::readv(fd, vector, count) });
            return stream::receive(process, id, buffers.as_mut_slice(), 0, os);
        }
        let os = || {
            // SAFETY: all-zero bytes are a valid msghdr.
            let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
            message.msg_iov = vector.cast_mut();
            message.msg_iovlen = count as _;
            // SAFETY: the program's vector again, without blocking.
            unsafe { real::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) }
        };
        match receive(process, id, buffers.as_mut_slice(), 0, None, os) {
            Reception::Done(Received::FromOs(taken)) => taken.bytes as isize,
            Reception::Done(Received::Datagram { len, .. }) => len as isize,
            Reception::Failed => -1,
            // SAFETY: passed on.
            Reception::Pass => passed::received(fd, 0, unsafe { real::readv(fd, vector, count) }),
        }
    }

    /// recv(2).
    fn recv(fd: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
        match find(fd) {
            // SAFETY: passed on.
            Found::Datagram(process, id) => unsafe {
                receive_plain(process, id, fd, (buffer, len), flags, NOWHERE)
            },
            Found::Stream(process, id) => {
                // SAFETY: passed on.
                let os = || passed::received(fd, flags, unsafe { real::recv(fd, buffer, len, flags) });
                // SAFETY: passed on.
                unsafe { stream::receive_into(process, id, (buffer, len), flags, os) }
            }
            Found::Counted => match passed::begin(fd) {
                // SAFETY: passed on.
                Some(call) => call.received(flags, unsafe { real::recv(fd, buffer, len, flags) }),
                // SAFETY: passed on.
                None => unsafe { recv(fd, buffer, len, flags) },
            },
            // SAFETY: passed on.
            Found::Kernel => unsafe { real::recv(fd, buffer, len, flags) },
        }
    }

    /// recvfrom(2).
    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: usize,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t,
    ) -> isize {
        match find(fd) {
            // SAFETY: passed on.
            Found::Datagram(process, id) => unsafe {
                receive_plain(process, id, fd, (buffer, len), flags, (address, address_len))
            },
            Found::Stream(process, id) => {
                let os = || {
                    // SAFETY: passed on.
                    let result =
                        unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) };
                    passed::received(fd, flags, result)
                };
                // SAFETY: passed on.
                let result =
                    unsafe { stream::receive_into(process, id, (buffer, len), flags, os) };
                // SAFETY: passed on.
                unsafe { stream::no_source(result, address, address_len) }
            }
            Found::Counted => match passed::begin(fd) {
                // SAFETY: passed on.
                Some(call) => call.received(flags, unsafe {
                    real::recvfrom(fd, buffer, len, flags, address, address_len)
                }),
                // SAFETY: passed on.
                None => unsafe { recvfrom(fd, buffer, len, flags, address, address_len) },
            },
            // SAFETY: passed on.
            Found::Kernel => unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) },
        }
    }

    /// recvmsg(2).
    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        match find(fd) {
            // SAFETY: passed on.
            Found::Datagram(process, id) => unsafe {
                receive_message(process, id, fd, message, 1, flags).0
            },
            // SAFETY: passed on.
            Found::Stream(process, id) => unsafe {
                stream::receive_message(process, id, fd, message, flags)
            },
            Found::Counted => match passed::begin(fd) {
                // SAFETY: passed on.
                Some(call) => call.received(flags, unsafe { real::recvmsg(fd, message, flags) }),
                // SAFETY: passed on.
                None => unsafe { recvmsg(fd, message, flags) },
            },
            // SAFETY: passed on.
            Found::Kernel => unsafe { real::recvmsg(fd, message, flags) },
        }
    }

    /// recvmmsg(2): as many messages as there are, or as asked for. The timeout is looked at after
    /// each message, as the kernel does.
    fn recvmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut libc::timespec,
    ) -> c_int {
        let found = find(fd);
        let (Found::Datagram(process, id) | Found::Stream(process, id)) = found else {
            let Some(call) = passed::begin_as(found, fd) else {
                // SAFETY: passed on.
                return unsafe { recvmmsg(fd, messages, count, flags, timeout) };
            };
            // SAFETY: passed on.
            let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
            if matches!(found, Found::Counted) {
                // SAFETY: the kernel has filled in as many as it says.
                unsafe { passed::received_messages(fd, flags, messages, received) };
            }
            call.end();
            return received;
        };
        // SAFETY: null or a timespec, by the contract of the call.
        let limit = match unsafe { convert::timespec(timeout) } {
            Ok(limit) => limit,
            Err(errno) => {
                errno::set(errno);
                return -1;
            }
        };
        let before = errno::get();
        let since = clock::now();
        let mut flags_now = flags & !libc::MSG_WAITFORONE;
        // Each one is looked at after it.
        let one_by_one = limit.is_some() || flags & libc::MSG_PEEK != 0;
        let mut received = 0;
        while received < count as usize {
            let entry = messages.wrapping_add(received);
            // A mmsghdr starts with its msghdr.
            let header = entry.cast::<libc::msghdr>();
            let entries = if one_by_one { 1 } else { count as usize - received };
            let (len, filled) = match found {
                // SAFETY: a msghdr of the program's array.
                Found::Stream(..) => unsafe {
                    (stream::receive_message(process, id, fd, header, flags_now), 1)
                },
                // SAFETY: as above, with the entries behind it.
                _ => unsafe { receive_message(process, id, fd, header, entries, flags_now) },
            };
            if len < 0 {
                if received > 0 && matches!(found, Found::Datagram(..)) {
                    // What was received counts now, the error on the next call (recvmmsg(2)).
                    receive::keep_error(&process.stack, id, errno::get());
                }
                break;
            }
            // SAFETY: an entry of the program's array, whose header was there.
            if filled == 1 && !unsafe { convert::tell_length(entry, len) } {
                break;
            }
            received += filled;
            if flags & libc::MSG_WAITFORONE != 0 {
                flags_now |= libc::MSG_DONTWAIT;
            }
            let spent = clock::now().saturating_duration_since(since);
            if limit.is_some_and(|limit| spent.as_nanos() >= u128::from(limit)) {
                break;
            }
        }
        if received == 0 && count > 0 {
            return -1;
        }
        if let Some(limit) = limit {
            if !convert::can_write(timeout, size_of::<libc::timespec>()) {
                errno::set(libc::EFAULT);
                return -1;
            }
            // SAFETY: a timespec, by the contract of the call.
            let out = unsafe { &mut *timeout };
            let spent = clock::now().saturating_duration_since(since).as_nanos();
            let left = limit.saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX));
            out.tv_sec = (left / 1_000_000_000) as libc::time_t;
            out.tv_nsec = (left % 1_000_000_000) as libc::c_long;
        }
        errno::set(before);
        received as c_int
    }

    /// recv with a check of the buffer's size, by which _FORTIFY_SOURCE replaces it.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: usize, size: usize, flags: c_int) -> isize {
        if len > size || matches!(find(fd), Found::Kernel) {
            // SAFETY: passed on; it ends the process if the buffer is too small.
            return unsafe { real::__recv_chk(fd, buffer, len, size, flags) };
        }
        // SAFETY: passed on.
        unsafe { recv(fd, buffer, len, flags) }
    }

    /// As `__recv_chk`, for recvfrom.
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: usize,
        size: usize,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_len: *mut libc::socklen_t,
    ) -> isize {
        if len > size || matches!(find(fd), Found::Kernel) {
            // SAFETY: passed on; it ends the process if the buffer is too small.
            return unsafe {
                real::__recvfrom_chk(fd, buffer, len, size, flags, address, address_len)
            };
        }
        // SAFETY: passed on.
        unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
    }

    /// As `__recv_chk`, for read.
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: usize, size: usize) -> isize {
        if len > size || matches!(find(fd), Found::Kernel) {
            // SAFETY: passed on; it ends the process if the buffer is too small.
            return unsafe { real::__read_chk(fd, buffer, len, size) };
        }
        // SAFETY: passed on.
        unsafe { read(fd, buffer, len) }
    }
}
