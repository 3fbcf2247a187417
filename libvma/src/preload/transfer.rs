//! sendfile and splice: bytes between a TCP socket of ours and a file or pipe, through a buffer,
//! since the kernel's own copy would go to the shadow.

use core::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};

use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags};

use super::cancel::cancellable;
use super::{Found, convert, errno, find, passed, real};
use crate::process::Process;
use crate::socket::stream::{self, receive, send};
use crate::socket::{Outcome, SocketId};
use crate::sys::{fd, shadow};

/// Bytes at a time.
const PIECE: usize = 64 * 1024;
/// MAX_RW_COUNT of the kernel.
const MOST: usize = 0x7fff_f000;
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// # Safety
/// `offset` is null or points to a file offset.
unsafe fn send_file(
    process: &'static Process,
    id: SocketId,
    input: c_int,
    offset: *mut i64,
    count: usize,
) -> Result<usize, c_int> {
    let given = !offset.is_null();
    if given && !convert::asked_readable(offset, 8) {
        return Err(libc::EFAULT);
    }
    // Before the kernel looks at what it is.
    if shadow::status_flags(input) & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(libc::EBADF);
    }
    let start = match given {
        // SAFETY: as promised.
        true => unsafe { offset.read() },
        // SAFETY: no pointer is involved.
        false => match unsafe { libc::lseek(input, 0, libc::SEEK_CUR) } {
            // A pipe or socket is no source of sendfile().
            -1 if errno::get() == libc::ESPIPE => return Err(libc::EINVAL),
            -1 => return Err(errno::get()),
            at => at,
        },
    };
    if start < 0 {
        return Err(libc::EINVAL);
    }
    let count = count.min(MOST);
    let mut buffer = vec![0u8; PIECE.min(count.max(1))];
    let mut sent = 0;
    let result = loop {
        let want = buffer.len().min(count - sent);
        if want == 0 || sent > 0 && send::is_failed(&process.stack, id) {
            break Ok(());
        }
        let at = start.saturating_add(sent as i64);
        // SAFETY: `buffer` has room for `want` bytes.
        let got = unsafe { libc::pread(input, buffer.as_mut_ptr().cast(), want, at) };
        let got = match usize::try_from(got) {
            Ok(0) => break Ok(()),
            Ok(got) => got,
            Err(_) => break Err(errno::get()),
        };
        let more = sent + got < count && got == want;
        let flags = if more { libc::MSG_MORE } else { 0 };
        let bytes = buffer.get(..got).unwrap_or_default();
        match send::send(&process.stack, id, &[IoSlice::new(bytes)], flags) {
            Outcome::Ours(len) => {
                sent += len;
                if len < got {
                    break Ok(());
                }
            }
            Outcome::Errno(errno) => break Err(errno),
            Outcome::Os(_) => break Err(libc::ENOTCONN),
        }
    };
    if let Err(errno) = result
        && sent == 0
    {
        return Err(errno);
    }
    let end = start.saturating_add(sent as i64);
    if given {
        if !convert::asked_writable(offset, 8) {
            return Err(libc::EFAULT);
        }
        // SAFETY: as promised.
        unsafe { offset.write(end) };
    } else {
        // SAFETY: no pointer is involved.
        unsafe { libc::lseek(input, end, libc::SEEK_SET) };
    }
    Ok(sent)
}

fn finish(result: Result<usize, c_int>) -> isize {
    if result == Err(libc::EPIPE) {
        // SAFETY: takes no pointer; the kernel signals the calling thread, too.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    errno::result(result)
}

/// Is it a pipe's end for reading, or for writing? The kernel says what is wrong with another one.
fn is_end_of_pipe(descriptor: c_int, access: c_int) -> bool {
    let found = fd::with_borrowed(descriptor, |fd| rustix::fs::fstat(fd));
    let is_pipe = matches!(found, Some(Ok(found))
        if FileType::from_raw_mode(found.st_mode) == FileType::Fifo);
    // A FIFO may be open for both.
    let open_for = shadow::status_flags(descriptor) & libc::O_ACCMODE;
    is_pipe && (open_for == access || open_for == libc::O_RDWR)
}

/// From a pipe to a socket.
fn drain_pipe(
    process: &'static Process,
    id: SocketId,
    pipe: c_int,
    len: usize,
    flags: c_uint,
) -> Result<usize, c_int> {
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
    if nonblocking && crate::sys::wait::poll_now(pipe, libc::POLLIN) == 0 {
        return Err(libc::EAGAIN);
    }
    // What is taken from the pipe must find room, so the room comes first. SPLICE_F_NONBLOCK is
    // for the pipe; the socket has its own way.
    let room = match send::wait_for_room(&process.stack, id) {
        Outcome::Ours(room) => room,
        Outcome::Errno(errno) => return Err(errno),
        Outcome::Os(_) => return Err(libc::ENOTCONN),
    };
    let mut buffer = vec![0u8; len.min(PIECE).min(room)];
    // SAFETY: `buffer` has that much room.
    let got = unsafe { real::read(pipe, buffer.as_mut_ptr().cast(), buffer.len()) };
    let Ok(got) = usize::try_from(got) else { return Err(errno::get()) };
    let bytes = buffer.get(..got).unwrap_or_default();
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    match send::send(&process.stack, id, &[IoSlice::new(bytes)], more) {
        Outcome::Ours(sent) => Ok(sent),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Os(_) => Err(libc::ENOTCONN),
    }
}

/// From a socket to a pipe.
fn fill_pipe(
    process: &'static Process,
    id: SocketId,
    pipe: c_int,
    len: usize,
    flags: c_uint,
) -> Result<usize, c_int> {
    let waits =
        flags & libc::SPLICE_F_NONBLOCK == 0 && shadow::status_flags(pipe) & libc::O_NONBLOCK == 0;
    let mut buffer = vec![0u8; len.min(PIECE)];
    let take = |buffer: &mut [u8], flags| match receive::receive(
        &process.stack,
        id,
        &mut [IoSliceMut::new(buffer)],
        flags,
    ) {
        Outcome::Ours(got) => Ok(got),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Os(_) => Err(libc::ENOTCONN),
    };
    // SPLICE_F_NONBLOCK is for the pipe; the socket has its own way.
    let got = take(&mut buffer, libc::MSG_PEEK)?;
    if got == 0 {
        return Ok(0);
    }
    let put = into_pipe(pipe, buffer.get(..got).unwrap_or_default(), waits)?;
    // What the pipe took is read.
    take(buffer.get_mut(..put).unwrap_or_default(), libc::MSG_DONTWAIT)?;
    Ok(put)
}

/// Writes what the pipe has room for; waits until that is something.
fn into_pipe(pipe: c_int, bytes: &[u8], waits: bool) -> Result<usize, c_int> {
    let bytes = [IoSlice::new(bytes)];
    loop {
        // A plain write would wait until there is room for all of it.
        let flags = ReadWriteFlags::NOWAIT;
        let write = |pipe: BorrowedFd<'_>| rustix::io::pwritev2(pipe, &bytes, u64::MAX, flags);
        match fd::with_borrowed(pipe, write).unwrap_or(Err(Errno::BADF)) {
            Ok(put) => return Ok(put),
            Err(Errno::AGAIN) if waits => {}
            Err(error) => return Err(error.raw_os_error()),
        }
        let mut wait = [libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 }];
        // libc's own function: a cancellation point, at which nothing of ours is held but a buffer.
        // SAFETY: one pollfd, which outlives the call.
        if unsafe { real::poll(wait.as_mut_ptr(), 1, -1) } < 0 {
            return Err(errno::get());
        }
    }
}

cancellable! {
    /// sendfile(2).
    fn sendfile(out: c_int, input: c_int, offset: *mut libc::off_t, count: usize) -> isize {
        match find(out) {
            // SAFETY: the program's offset, by the contract of the call.
            Found::Stream(process, id) => match unsafe {
                send_file(process, id, input, offset, count)
            } {
                Err(libc::ENOTCONN) if stream::has_departed(&process.stack, id) => {
                    // SAFETY: passed on.
                    passed::sent(out, unsafe { real::sendfile(out, input, offset, count) })
                }
                result => finish(result),
            },
            // SAFETY: passed on.
            Found::Kernel => unsafe { real::sendfile(out, input, offset, count) },
            // From a file to a UDP socket of ours it is the kernel's socket that sends.
            found @ (Found::Datagram(..) | Found::Counted) => {
                let Some(call) = passed::begin_as(found, out) else {
                    // SAFETY: passed on.
                    return unsafe { sendfile(out, input, offset, count) };
                };
                // SAFETY: passed on.
                call.sent(unsafe { real::sendfile(out, input, offset, count) })
            }
        }
    }

    /// sendfile64.
    fn sendfile64(out: c_int, input: c_int, offset: *mut libc::off64_t, count: usize) -> isize {
        match find(out) {
            // SAFETY: the program's offset, by the contract of the call.
            Found::Stream(process, id) => match unsafe {
                send_file(process, id, input, offset, count)
            } {
                Err(libc::ENOTCONN) if stream::has_departed(&process.stack, id) => {
                    // SAFETY: passed on.
                    passed::sent(out, unsafe { real::sendfile64(out, input, offset, count) })
                }
                result => finish(result),
            },
            // SAFETY: passed on.
            Found::Kernel => unsafe { real::sendfile64(out, input, offset, count) },
            found @ (Found::Datagram(..) | Found::Counted) => {
                let Some(call) = passed::begin_as(found, out) else {
                    // SAFETY: passed on.
                    return unsafe { sendfile64(out, input, offset, count) };
                };
                // SAFETY: passed on.
                call.sent(unsafe { real::sendfile64(out, input, offset, count) })
            }
        }
    }

    /// splice(2).
    fn splice(
        input: c_int,
        input_offset: *mut c_void,
        out: c_int,
        out_offset: *mut c_void,
        len: usize,
        flags: c_uint,
    ) -> isize {
        let known = flags & !SPLICE_FLAGS == 0;
        let plain = known && input_offset.is_null() && out_offset.is_null() && len > 0;
        match (find(input), find(out)) {
            (_, Found::Stream(process, id)) if plain && is_end_of_pipe(input, libc::O_RDONLY) => {
                finish(drain_pipe(process, id, input, len, flags))
            }
            (Found::Stream(process, id), _) if plain && is_end_of_pipe(out, libc::O_WRONLY) => {
                // A pipe without a reader has raised SIGPIPE itself.
                errno::result(fill_pipe(process, id, out, len, flags))
            }
            // It will refuse that, if one is ours.
            (from, to) => {
                let calls = (passed::begin_as(from, input), passed::begin_as(to, out));
                let (Some(taking), Some(giving)) = calls else {
                    // SAFETY: passed on.
                    return unsafe { splice(input, input_offset, out, out_offset, len, flags) };
                };
                // SAFETY: passed on.
                let moved =
                    unsafe { real::splice(input, input_offset, out, out_offset, len, flags) };
                if matches!(from, Found::Counted) {
                    passed::received(input, 0, moved);
                }
                if matches!(to, Found::Counted) {
                    passed::sent(out, moved);
                }
                taking.end();
                giving.end();
                moved
            }
        }
    }
}
