//! The calls that make, name, connect and configure sockets.

use core::ffi::{c_int, c_ulong, c_void};

use super::{convert, errno, export, file, fresh, init, ours, real};
use crate::fd::Object;
use crate::process;
use crate::socket::{self, WhyOs, attach, options, receive};

type SockAddr = *const libc::sockaddr;
type SockAddrOut = *mut libc::sockaddr;
type Len = *mut libc::socklen_t;

/// SOCK_NONBLOCK and SOCK_CLOEXEC share the argument with the type.
const TYPE_MASK: c_int = 0xf;

#[cold]
fn adopt(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let stream_or_datagram = matches!(kind & TYPE_MASK, libc::SOCK_STREAM | libc::SOCK_DGRAM);
    if !stream_or_datagram || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return;
    }
    let before = errno::get();
    let Some(process) = init::at_internet_socket() else { return };
    let udp = kind & TYPE_MASK == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
    if domain == libc::AF_INET && udp && process.stack.config.offloaded_sockets {
        process.ensure_plane();
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        if let Some(id) = socket::open(&process.stack, fd, nonblocking) {
            process.fds.set(fd, Object::Socket(id));
        }
    }
    errno::set(before);
}

/// The shadow's addresses changed.
fn refreshed(fd: c_int, result: c_int) -> c_int {
    if result == 0
        && let Some((process, id)) = ours(fd)
    {
        let before = errno::get();
        attach::refresh(&process.stack, id);
        errno::set(before);
    }
    result
}

export! {
    /// socket(2).
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: passed on.
        let fd = fresh(unsafe { real::socket(domain, kind, protocol) });
        if fd >= 0 {
            adopt(fd, domain, kind, protocol);
        }
        fd
    }

    /// bind(2).
    fn bind(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int {
        // SAFETY: passed on.
        refreshed(fd, unsafe { real::bind(fd, address, len) })
    }

    /// connect(2). A UDP socket may connect again, or disconnect with AF_UNSPEC.
    fn connect(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int {
        // SAFETY: passed on.
        refreshed(fd, unsafe { real::connect(fd, address, len) })
    }

    /// listen(2).
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        // SAFETY: passed on.
        unsafe { real::listen(fd, backlog) }
    }

    /// accept(2).
    fn accept(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        // SAFETY: passed on.
        fresh(unsafe { real::accept(fd, address, len) })
    }

    /// accept4(2).
    fn accept4(fd: c_int, address: SockAddrOut, len: Len, flags: c_int) -> c_int {
        // SAFETY: passed on.
        fresh(unsafe { real::accept4(fd, address, len, flags) })
    }

    /// getsockname(2): the shadow knows.
    fn getsockname(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        // SAFETY: passed on.
        unsafe { real::getsockname(fd, address, len) }
    }

    /// getpeername(2): the shadow knows.
    fn getpeername(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        // SAFETY: passed on.
        unsafe { real::getpeername(fd, address, len) }
    }

    /// shutdown(2): what it does to a UDP socket the kernel does best, so the socket is its own
    /// from here on; what was received stays readable.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some((process, id)) = ours(fd) {
            attach::un_offload(&process.stack, id, WhyOs::ShutDown);
        }
        // SAFETY: passed on.
        unsafe { real::shutdown(fd, how) }
    }

    /// setsockopt(2).
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: libc::socklen_t,
    ) -> c_int {
        // SAFETY: passed on.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if result == 0
            && let Some((process, id)) = ours(fd)
        {
            let before = errno::get();
            // SAFETY: the kernel has read `len` bytes there, or none were needed.
            let value = unsafe { convert::bytes(value.cast(), len as usize) };
            options::after_set(&process.stack, id, level, name, value);
            errno::set(before);
        }
        result
    }

    /// getsockopt(2): the shadow holds every option.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: Len) -> c_int {
        // SAFETY: passed on.
        unsafe { real::getsockopt(fd, level, name, value, len) }
    }

    /// fcntl(2). The third argument is a number or a pointer; either fits a register.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: passed on.
        after_fcntl(fd, command, unsafe { real::fcntl(fd, command, argument) })
    }

    /// fcntl64.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: passed on.
        after_fcntl(fd, command, unsafe { real::fcntl64(fd, command, argument) })
    }

    /// ioctl(2).
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        let Some((process, id)) = ours(fd) else {
            // SAFETY: passed on.
            return unsafe { real::ioctl(fd, request, argument) };
        };
        if request == libc::FIONREAD as c_ulong && argument != 0
            && let Some(len) = receive::next_len(&process.stack, id)
        {
            let out: *mut c_int = core::ptr::with_exposed_provenance_mut(argument);
            // SAFETY: FIONREAD's argument points to an int, by the contract of the call.
            unsafe { out.write(len as c_int) };
            return 0;
        }
        // SAFETY: passed on.
        let result = unsafe { real::ioctl(fd, request, argument) };
        if result == 0
            && matches!(request, r if r == libc::FIONBIO as c_ulong || r == libc::FIOASYNC as c_ulong)
        {
            options::after_flags(&process.stack, id);
        }
        result
    }
}

fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            fresh(result);
            if let Some(process) = process::current() {
                file::alias(process, fd, result);
            }
        }
        libc::F_SETFL => {
            if let Some((process, id)) = ours(fd) {
                options::after_flags(&process.stack, id);
            }
        }
        _ => {}
    }
    result
}
