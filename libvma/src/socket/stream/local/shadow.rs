//! The kernel's half of the connection. Nothing here blocks.

use std::io::IoSlice;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::sys::fd::with_borrowed;
use crate::sys::wait::poll_now;

fn plain<T>(result: Option<Result<T, Errno>>) -> Result<T, i32> {
    result.unwrap_or(Err(Errno::BADF)).map_err(|errno| errno.raw_os_error())
}

pub fn receive(descriptor: i32, buffer: &mut [u8], flags: i32) -> Result<usize, i32> {
    let flags = RecvFlags::from_bits_retain(flags as u32) | RecvFlags::DONTWAIT;
    plain(with_borrowed(descriptor, |fd| rustix::net::recv(fd, buffer, flags)))
        .map(|(count, _)| count)
}

pub fn send(descriptor: i32, bytes: &[u8], flags: i32) -> Result<usize, i32> {
    let flags =
        SendFlags::from_bits_retain(flags as u32) | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    plain(with_borrowed(descriptor, |fd| rustix::net::send(fd, bytes, flags)))
}

/// Sends several buffers as one.
pub fn send_all(descriptor: i32, buffers: &[IoSlice<'_>], flags: i32) -> Result<usize, i32> {
    let flags =
        SendFlags::from_bits_retain(flags as u32) | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut control = SendAncillaryBuffer::default();
    plain(with_borrowed(descriptor, |fd| rustix::net::sendmsg(fd, buffers, &mut control, flags)))
}

pub fn shutdown(descriptor: i32, how: i32) {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        _ => Shutdown::Both,
    };
    with_borrowed(descriptor, |fd| rustix::net::shutdown(fd, how));
}

/// Ends the connection by RST.
pub fn reset(descriptor: i32) {
    with_borrowed(descriptor, |fd| rustix::net::connect_unspec(fd));
}

/// Is the error of a send one that goes by?
pub fn is_passing(errno: i32) -> bool {
    // EBADF: the number was closed behind our back; the end of the socket is about to be noticed.
    [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM, libc::EINTR, libc::EBADF].contains(&errno)
}

/// SO_LINGER: None is off; with a time of 0 closing resets the connection.
pub fn set_linger(descriptor: i32, seconds: Option<u32>) {
    let time = seconds.map(|seconds| core::time::Duration::from_secs(u64::from(seconds)));
    with_borrowed(descriptor, |fd| rustix::net::sockopt::set_socket_linger(fd, time));
}

/// What poll(2) says of it.
pub fn events(descriptor: i32) -> i16 {
    poll_now(descriptor, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI)
}

/// How many bytes can be read.
pub fn unread(descriptor: i32) -> u64 {
    with_borrowed(descriptor, |fd| rustix::io::ioctl_fionread(fd)).and_then(Result::ok).unwrap_or(0)
}

/// Is the handshake over, and did it end well?
pub fn is_connected(descriptor: i32) -> bool {
    let told = poll_now(descriptor, libc::POLLOUT);
    told & libc::POLLOUT != 0 && told & (libc::POLLERR | libc::POLLHUP) == 0
}

/// Is it connected, as getpeername(2) sees it?
pub fn has_peer(descriptor: i32) -> bool {
    crate::sys::shadow::peer_name(descriptor).is_some()
}

/// Has the peer's end, or the whole connection, ended?
pub fn is_at_end(descriptor: i32) -> bool {
    poll_now(descriptor, libc::POLLRDHUP) != 0
}
