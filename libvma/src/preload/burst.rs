//! sendmmsg and recvmmsg on UDP sockets of ours. Messages in a row that are the kernel's share one call of it.

use core::ffi::{c_int, c_uint};
use core::mem::size_of;
use core::ptr;

use super::convert::{self, Destination};
use super::send::{control, request, transmit};
use super::{errno, passed, real};
use crate::process::Process;
use crate::socket::receive::FromKernel;
use crate::socket::{RingId, SocketId, egress};

/// The kernel takes so many messages a call, and parts a message, at most (UIO_MAXIOV).
const MOST: usize = 1024;

/// So many go to the kernel at once at most: the first one is not to wait until thousands are judged.
const LONGEST_ROW: usize = 32;

/// So many come from the kernel at once at most; then the rings are looked at again.
const MOST_FROM_KERNEL: usize = 16;

/// sendmmsg(2): a burst shares one kick of the ring.
///
/// # Safety
/// As sendmmsg(2); `messages` can be the address of something.
pub(super) unsafe fn send(
    process: &'static Process,
    id: SocketId,
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let before = errno::get();
    let mut pending = None;
    let mut sent = 0;
    let count = (count as usize).min(MOST);
    while sent < count {
        let entry = messages.wrapping_add(sent);
        if !convert::can_read(entry, size_of::<libc::mmsghdr>()) {
            errno::set(libc::EFAULT);
            break;
        }
        // SAFETY: an entry of the program's array, by the contract of the call, and it is there.
        let ours = unsafe { with_request(entry, flags, |it| transmit(process, id, it)) };
        match ours.flatten() {
            Some(Ok((len, ring))) => {
                if pending.is_some_and(|other| other != ring) {
                    flush(process, &mut pending);
                }
                pending = Some(ring);
                // SAFETY: as above.
                if !unsafe { convert::tell_length(entry, len as isize) } {
                    break;
                }
                sent += 1;
            }
            Some(Err(())) => break,
            None => {
                // In order: what is queued leaves before the kernel sends.
                flush(process, &mut pending);
                let is_kernels =
                    |it: &egress::Request<'_>| egress::is_kernels(&process.stack, id, it);
                let end = count.min(sent + LONGEST_ROW);
                let more = (sent + 1..end).map(|at| messages.wrapping_add(at)).take_while(|next| {
                    // SAFETY: as above, if it is there.
                    convert::can_read(*next, size_of::<libc::mmsghdr>())
                        && unsafe { with_request(*next, flags, is_kernels) }.unwrap_or(true)
                });
                let row = 1 + more.count();
                // SAFETY: entries of the program's array.
                let done = unsafe { real::sendmmsg(fd, entry, row as c_uint, flags) };
                // SAFETY: the kernel has filled in as many as it says.
                unsafe { passed::sent_messages(fd, entry, done) };
                sent += usize::try_from(done).unwrap_or(0);
                if done < row as c_int {
                    break;
                }
            }
        }
    }
    flush(process, &mut pending);
    if sent == 0 && count > 0 {
        return -1;
    }
    errno::set(before);
    sent as c_int
}

/// The function's answer for an entry's message. None: the message has no request to ask about, the kernel knows what it is.
///
/// # Safety
/// The entry can be read, and its header is one of sendmsg(2).
unsafe fn with_request<T>(
    entry: *const libc::mmsghdr,
    flags: c_int,
    what: impl FnOnce(&egress::Request<'_>) -> T,
) -> Option<T> {
    // SAFETY: as promised.
    let header = unsafe { &(*entry).msg_hdr };
    // SAFETY: the program's vector, by the contract of the call.
    let payload = unsafe { convert::sources(header.msg_iov, header.msg_iovlen) }.ok()?;
    // SAFETY: the program's address, by the contract of the call.
    let to = match unsafe { convert::destination(header.msg_name.cast(), header.msg_namelen) } {
        Destination::Absent => None,
        Destination::Given(to, named) => Some((to, named)),
        Destination::Foreign => return None,
    };
    // SAFETY: the program's control area, by the contract of the call.
    let control = unsafe { control(header) };
    Some(what(&request(payload.as_slice(), to, flags, control, true)))
}

fn flush(process: &'static Process, pending: &mut Option<RingId>) {
    if let Some(ring) = pending.take() {
        egress::kick(&process.stack, ring);
    }
}

/// Takes datagrams that wait in the kernel's socket, without blocking: into the first entry, and into those behind it that have room for a
/// byte each. Returns how many there are, and their bytes; the length of the first one is in its entry.
///
/// # Safety
/// As recvmmsg(2) with these entries, the first of which can be read.
pub(super) unsafe fn take_from_kernel(
    fd: c_int,
    entries: *mut libc::mmsghdr,
    count: usize,
    flags: c_int,
) -> Result<FromKernel, i32> {
    // SAFETY: as promised.
    let more = (1..count.min(MOST_FROM_KERNEL))
        .take_while(|at| unsafe { has_room(entries.wrapping_add(*at)) });
    let count = 1 + more.count();
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: as promised; the kernel looks at what the entries point to.
    let taken = unsafe { real::recvmmsg(fd, entries, count as c_uint, flags, ptr::null_mut()) };
    let Ok(datagrams) = u32::try_from(taken) else { return Err(errno::get()) };
    let bytes = (0..datagrams as usize).map(|at| {
        let entry = entries.wrapping_add(at);
        // SAFETY: the kernel has filled in as many as it says.
        unsafe { (*entry).msg_len as usize }
    });
    let bytes = bytes.sum();
    Ok(FromKernel { datagrams, bytes })
}

/// # Safety
/// An entry of recvmmsg(2), if it can be read.
unsafe fn has_room(entry: *const libc::mmsghdr) -> bool {
    if !convert::can_read(entry, size_of::<libc::mmsghdr>()) {
        return false;
    }
    // SAFETY: it can be read.
    let header = unsafe { &(*entry).msg_hdr };
    // The kernel tells of an entry that it refuses by the next call.
    let is_named = header.msg_name.is_null() || (header.msg_namelen as c_int) >= 0;
    is_named
        && (1..=MOST).contains(&header.msg_iovlen)
        && convert::can_read(header.msg_iov, size_of::<libc::iovec>())
        // SAFETY: as said.
        && unsafe { (*header.msg_iov).iov_len } > 0
}
