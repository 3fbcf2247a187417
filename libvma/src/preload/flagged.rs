//! preadv2 and pwritev2. A socket has no position, so only the one that stands for the current position is
//! accepted; what is left is readv and writev with flags.

use core::ffi::c_int;

use super::cancel::cancellable;
use super::{Found, errno, find, real, receive, send};

/// "At the current position".
const CURRENT: i64 = -1;
/// RWF_HIPRI, RWF_DSYNC, RWF_SYNC and RWF_APPEND, which mean nothing to a socket.
const WITHOUT_EFFECT: c_int = 0x01 | 0x02 | 0x04 | 0x10;
const RWF_NOWAIT: c_int = 0x08;

/// How a call is made without its flags.
enum As {
    /// The kernel has the right answer.
    Kernels,
    Vector,
    /// By sendmsg or recvmsg, which need not wait.
    Message,
}

fn judge(fd: c_int, offset: i64, flags: c_int) -> As {
    let ours = !matches!(find(fd), Found::Kernel | Found::Counted);
    if !ours || offset != CURRENT || flags & !(WITHOUT_EFFECT | RWF_NOWAIT) != 0 {
        return As::Kernels;
    }
    if flags & RWF_NOWAIT != 0 { As::Message } else { As::Vector }
}

fn message(vector: *const libc::iovec, count: c_int) -> Option<libc::msghdr> {
    let Ok(count) = usize::try_from(count) else {
        errno::set(libc::EINVAL);
        return None;
    };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector.cast_mut();
    message.msg_iovlen = count as _;
    Some(message)
}

cancellable! {
    /// preadv2(2).
    fn preadv2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        match judge(fd, offset, flags) {
            // SAFETY: passed on.
            As::Kernels => unsafe { real::preadv2(fd, vector, count, offset, flags) },
            // SAFETY: passed on.
            As::Vector => unsafe { receive::readv(fd, vector, count) },
            As::Message => {
                let Some(mut message) = message(vector, count) else { return -1 };
                // SAFETY: the program's vector, by the contract of the call.
                unsafe { receive::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) }
            }
        }
    }

    /// preadv64v2.
    fn preadv64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        // SAFETY: passed on.
        unsafe { preadv2(fd, vector, count, offset, flags) }
    }

    /// pwritev2(2).
    fn pwritev2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        match judge(fd, offset, flags) {
            // SAFETY: passed on.
            As::Kernels => unsafe { real::pwritev2(fd, vector, count, offset, flags) },
            // SAFETY: passed on.
            As::Vector => unsafe { send::writev(fd, vector, count) },
            As::Message => {
                let Some(message) = message(vector, count) else { return -1 };
                // SAFETY: the program's vector, by the contract of the call.
                unsafe { send::sendmsg(fd, &message, libc::MSG_DONTWAIT) }
            }
        }
    }

    /// pwritev64v2.
    fn pwritev64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        // SAFETY: passed on.
        unsafe { pwritev2(fd, vector, count, offset, flags) }
    }
}
