//! The calls that make, name, connect and configure sockets.

use core::ffi::{c_int, c_ulong, c_void};
use core::net::Ipv6Addr;

use libvma_dev::ipv6_stand_ins;

use super::cancel::cancellable;
use super::{
    Found, convert, errno, export, extra, file, find, fork, fresh, init, made, mux, ours, passed,
    real, rehearsal, retried, stream, take_over, xtreme,
};
use crate::config::rules::Protocol;
use crate::extra::Role;
use crate::fd::Object;
use crate::process::{self, Process, inherit};
use crate::socket::stream::listen::rings;
use crate::socket::{self, SocketId, WhyOs, attach, options, receive};
use crate::sys::fd::survives_exec;
use crate::sys::shadow;
use crate::sys::sockaddr::Family;

type SockAddr = *const libc::sockaddr;
type SockAddrOut = *mut libc::sockaddr;
type Len = *mut libc::socklen_t;

/// SOCK_NONBLOCK and SOCK_CLOEXEC share the argument with the type.
const TYPE_MASK: c_int = 0xf;
const F_SETOWN_EX: c_int = 15;

#[cold]
fn adopt(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let stream_or_datagram = matches!(kind & TYPE_MASK, libc::SOCK_STREAM | libc::SOCK_DGRAM);
    if !stream_or_datagram || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return;
    }
    let before = errno::get();
    let Some(process) = init::at_internet_socket() else { return };
    let offloads = |protocol| is_offloading(process, protocol);
    let udp = kind & TYPE_MASK == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
    let offloaded = udp && offloads(Protocol::Udp);
    if let Some(family) = Family::of_domain(domain).filter(|_| offloaded) {
        process.ensure_plane();
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        if let Some(id) = socket::open(&process.stack, fd, nonblocking, family) {
            process.fds.set(fd, Object::Socket(id));
        }
    }
    let tcp = kind & TYPE_MASK == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if let Some(family) = Family::of_domain(domain).filter(|_| tcp && offloads(Protocol::Tcp)) {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        if let Some(id) = socket::stream::open(&process.stack, fd, nonblocking, family) {
            process.fds.set(fd, Object::Stream(id));
        }
    }
    if process.stack.config.socketxtreme && udp {
        xtreme::join(process, fd, Role::Datagrams);
    }
    if domain == libc::AF_INET
        && (udp || tcp)
        && process.fds.get(fd).is_none()
        // Otherwise nobody could ask.
        && [Protocol::Udp, Protocol::Tcp].into_iter().any(offloads)
    {
        process.count_for_kernel(fd, tcp, WhyOs::NotOurs);
    }
    errno::set(before);
}

/// Are new sockets of the calling thread offloaded at all?
fn is_offloading(process: &Process, protocol: Protocol) -> bool {
    // SAFETY: takes nothing and cannot fail.
    let thread = || unsafe { libc::pthread_self() } as usize;
    let config = &process.stack.config;
    let wished = process.stack.extra.threads.wish(thread).unwrap_or(config.offloaded_sockets);
    wished && !config.rules.leave_all(protocol)
}

/// The user learns, once, that IPv6 is the kernel's: not when the socket is made, because many programs only try
/// whether there is IPv6.
///
/// # Safety
/// As [`convert::family`].
unsafe fn tell_ipv6(fd: c_int, address: SockAddr, len: libc::socklen_t) {
    // SAFETY: as promised.
    if unsafe { convert::family(address, len) } != Some(libc::AF_INET6 as libc::sa_family_t)
        || (len as usize) < size_of::<libc::sockaddr_in6>()
    {
        return;
    }
    let Some(process) = process::current() else { return };
    if ours(fd).is_some_and(|(process, id)| !socket::is_kernels(&process.stack, id)) {
        return;
    }
    if ![Protocol::Udp, Protocol::Tcp].iter().any(|one| process.stack.config.offloads(*one)) {
        return;
    }
    // SAFETY: that many bytes are readable, as promised; the pointer may be unaligned.
    let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
    let to = Ipv6Addr::from(address.sin6_addr.s6_addr);
    let is_served = to.to_canonical().is_loopback() || ipv6_stand_ins::is_served(to);
    if address.sin6_port != 0 && !is_served {
        let before = errno::get();
        WhyOs::Ipv6.tell(format_args!("fd {fd}"));
        errno::set(before);
    }
}

/// connect(2) of a stream that is not ours, or of the shadow of one that is.
///
/// # Safety
/// As connect(2).
pub(super) unsafe fn connect_by_kernel(
    fd: c_int,
    address: SockAddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real::connect(fd, address, len) };
    // SAFETY: as promised.
    unsafe { tell_connected(fd, address, len, result) }
}

/// The kernel has connected a socket, with this result.
///
/// # Safety
/// As connect(2).
unsafe fn tell_connected(
    fd: c_int,
    address: SockAddr,
    len: libc::socklen_t,
    result: c_int,
) -> c_int {
    // One without a route may be a try only.
    if result == 0 || errno::get() == libc::EINPROGRESS {
        // SAFETY: the program's address, which the kernel has taken.
        unsafe { tell_ipv6(fd, address, len) };
    }
    result
}

/// A listener that takes IPv6 only, and is not found by processes of this host, is the kernel's.
fn leave_to_ipv6(process: &Process, id: SocketId, fd: c_int) {
    let before = errno::get();
    process.drop_stream_for(id, WhyOs::Ipv6);
    if !shadow::local_name(fd).is_some_and(|own| own.is_loopback()) {
        WhyOs::Ipv6.tell(format_args!("fd {fd}"));
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

cancellable! {
    /// connect(2). A UDP socket may connect again, or disconnect with AF_UNSPEC.
    fn connect(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int {
        if let Found::Stream(process, id) = find(fd) {
            // SAFETY: the program's address, by the contract of the call.
            let result = unsafe { stream::connect(process, id, fd, address, len) };
            return xtreme::after_connect(fd, result);
        }
        // SAFETY: the program's address, by the contract of the call.
        let result = refreshed(fd, unsafe { real::connect(fd, address, len) });
        let result = xtreme::after_connect(fd, result);
        // SAFETY: as above.
        unsafe { tell_connected(fd, address, len, result) }
    }

    /// accept(2).
    fn accept(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        if let Found::Stream(process, id) = find(fd) {
            // SAFETY: the program's address buffer, by the contract of the call.
            return xtreme::after_accept(unsafe { stream::accept(process, id, fd, (address, len), 0) });
        }
        // SAFETY: passed on.
        xtreme::after_accept(passed::accepted(fd, made(|| unsafe { real::accept(fd, address, len) })))
    }

    /// accept4(2).
    fn accept4(fd: c_int, address: SockAddrOut, len: Len, flags: c_int) -> c_int {
        if let Found::Stream(process, id) = find(fd) {
            // SAFETY: the program's address buffer, by the contract of the call.
            let accepted = unsafe { stream::accept(process, id, fd, (address, len), flags) };
            return xtreme::after_accept(accepted);
        }
        // SAFETY: passed on.
        let accepted = made(|| unsafe { real::accept4(fd, address, len, flags) });
        xtreme::after_accept(passed::accepted(fd, accepted))
    }
}

export! {
    /// socket(2).
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: passed on.
        let fd = made(|| unsafe { real::socket(domain, kind, protocol) });
        if fd >= 0 {
            adopt(fd, domain, kind, protocol);
        }
        fd
    }

    /// bind(2).
    fn bind(fd: c_int, address: SockAddr, len: libc::socklen_t) -> c_int {
        if let Found::Stream(process, id) = find(fd) {
            if socket::stream::is_connected(&process.stack, id) {
                // The shadow of an accepted connection is not bound. The kernel reads the address first.
                let unreadable =
                    convert::is_sane(len) && !convert::asked_readable(address, len as usize);
                errno::set(if unreadable { libc::EFAULT } else { libc::EINVAL });
                return -1;
            }
            socket::stream::before_bind(&process.stack, id);
        }
        if let Some(process) = process::current()
            && !fork::is_vfork_child(process)
        {
            socket::stream::free_ports(&process.stack);
        }
        // SAFETY: passed on.
        let result = unsafe { real::bind(fd, address, len) };
        if result == 0
            && let Some((process, id)) = ours(fd)
        {
            let before = errno::get();
            // SAFETY: the program's address, which the kernel has taken.
            let automatic = unsafe { convert::is_any_port(address, len) };
            attach::name(&process.stack, id, automatic);
            errno::set(before);
        }
        // Not before the kernel has read the address, which may be no memory.
        if result == 0
            && let Found::Stream(process, id) = find(fd)
            // SAFETY: the program's address, which the kernel has taken.
            && unsafe { convert::is_any_port(address, len) }
        {
            let before = errno::get();
            socket::stream::note_any_port(&process.stack, id);
            errno::set(before);
        }
        // Of a stream listen() or connect() decides.
        if result == 0 && !matches!(find(fd), Found::Stream(..)) {
            // SAFETY: the program's address, which the kernel has taken.
            unsafe { tell_ipv6(fd, address, len) };
        }
        result
    }

    /// listen(2).
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let Found::Stream(process, id) = find(fd) else {
            // SAFETY: passed on.
            let result = unsafe { real::listen(fd, backlog) };
            if result == 0 {
                xtreme::after_listen(fd);
            }
            return result;
        };
        if socket::stream::is_connected(&process.stack, id) {
            errno::set(libc::EINVAL);
            return -1;
        }
        process.ensure_plane();
        let awaited = rings::is_awaited(&process.stack);
        if !awaited {
            rings::prepare(&process.stack, id);
        }
        // SAFETY: passed on.
        let result = unsafe { real::listen(fd, backlog) };
        if result == 0 {
            if awaited {
                rings::prepare(&process.stack, id);
            }
            socket::stream::listen::listen(&process.stack, id, backlog);
            if socket::stream::serves_no_family(&process.stack, id) {
                socket::stream::listen::undo(&process.stack, id);
                leave_to_ipv6(process, id, fd);
            } else {
                mux::after_listen(process, id);
            }
        }
        if result == 0 {
            xtreme::after_listen(fd);
        }
        result
    }

    /// getsockname(2): the shadow knows, but not of a connection.
    fn getsockname(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        let _call = passed::during(fd);
        let found = find(fd);
        let local = match &found {
            Found::Stream(process, id) => socket::stream::local_address(&process.stack, *id),
            _ => None,
        };
        let result = match local {
            // SAFETY: the program's address buffer, by the contract of the call.
            Some(local) => unsafe { stream::put_name(Ok(local), address, len) },
            // SAFETY: passed on.
            None => unsafe { real::getsockname(fd, address, len) },
        };
        if let Found::Datagram(process, _) | Found::Stream(process, _) = found
            && process.stack.config.dummy_at_getsockname
        {
            rehearsal::after_getsockname(fd);
        }
        result
    }

    /// getpeername(2): the shadow knows, but not of a connection.
    fn getpeername(fd: c_int, address: SockAddrOut, len: Len) -> c_int {
        let _call = passed::during(fd);
        if let Found::Stream(process, id) = find(fd)
            && let Some(peer) = socket::stream::peer_address(&process.stack, id)
        {
            // SAFETY: the program's address buffer, by the contract of the call.
            return unsafe { stream::put_name(peer, address, len) };
        }
        // SAFETY: passed on.
        unsafe { real::getpeername(fd, address, len) }
    }

    /// shutdown(2): a connection's is ours. What it does to a UDP socket the kernel does best, so the socket is its own
    /// from here on; what was received stays readable.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let _call = passed::during(fd);
        match find(fd) {
            Found::Datagram(process, id) => {
                attach::un_offload(&process.stack, id, WhyOs::ShutDown);
            }
            Found::Stream(process, id) => {
                if let Some(result) = stream::shutdown(process, id, how) {
                    return result;
                }
            }
            Found::Kernel | Found::Counted => {}
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
        let _call = passed::during(fd);
        if level == libc::SOL_SOCKET
            && extra::OPTIONS.contains(&name)
            // SAFETY: the program's value, by the contract of the call.
            && let Some(result) = unsafe { extra::set_option(fd, name, value, len) }
        {
            return result;
        }
        if let Found::Stream(process, id) = find(fd) {
            // SAFETY: the program's value, by the contract of the call.
            return unsafe { stream::set_option(process, id, fd, (level, name), value, len) };
        }
        // SAFETY: passed on.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        if result == 0 {
            take_over::note_option(fd, (level, name), value, len);
        }
        if result == 0
            && let Some((process, id)) = ours(fd)
        {
            let before = errno::get();
            // SAFETY: the kernel has read `len` bytes there, or none were needed.
            let value = unsafe { convert::bytes(value.cast(), len as usize) };
            let refused = options::after_set(&process.stack, id, level, name, value);
            errno::set(before);
            if let Err(errno) = refused {
                errno::set(errno);
                return -1;
            }
        }
        result
    }

    /// getsockopt(2): the shadow holds every option.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: Len) -> c_int {
        if fd == -1
            // SAFETY: the program's buffer and its length, by the contract of the call.
            && let Some(result) = unsafe { extra::table(level, name, value, len) }
        {
            return result;
        }
        let _call = passed::during(fd);
        if level == libc::SOL_SOCKET
            && extra::OPTIONS.contains(&name)
            // SAFETY: the program's buffer and its length, by the contract of the call.
            && let Some(result) = unsafe { extra::option(fd, name, value, len) }
        {
            return result;
        }
        if let Found::Stream(process, id) = find(fd)
            // SAFETY: the program's buffer and its length, by the contract of the call.
            && let Some(result) = unsafe { stream::option(process, id, (level, name), value, len) }
        {
            return result;
        }
        // SAFETY: passed on.
        let result = unsafe { real::getsockopt(fd, level, name, value, len) };
        if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            // SAFETY: the kernel has written so many bytes.
            unsafe { add_kept_error(fd, value.cast(), len) };
        }
        result
    }

    /// fcntl(2). The third argument is a number or a pointer; either fits a register.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        if file::is_internal(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        let _call = passed::during(fd);
        // SAFETY: passed on.
        after_fcntl(fd, command, retried(|| unsafe { real::fcntl(fd, command, argument) }))
    }

    /// fcntl64.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        if file::is_internal(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        let _call = passed::during(fd);
        // SAFETY: passed on.
        after_fcntl(fd, command, retried(|| unsafe { real::fcntl64(fd, command, argument) }))
    }

    /// sockatmark(3), whose ioctl inside libc is not interposed.
    fn sockatmark(fd: c_int) -> c_int {
        if matches!(find(fd), Found::Stream(..)) {
            const SIOCATMARK: c_ulong = 0x8905;
            let mut mark: c_int = 0;
            let argument = core::ptr::from_mut(&mut mark).expose_provenance();
            // SAFETY: SIOCATMARK writes an int.
            return if unsafe { ioctl(fd, SIOCATMARK, argument) } < 0 { -1 } else { mark };
        }
        // SAFETY: passed on.
        unsafe { real::sockatmark(fd) }
    }

    /// ioctl(2).
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        let _call = passed::during(fd);
        let (process, id) = match find(fd) {
            Found::Datagram(process, id) => (process, id),
            // SAFETY: the program's argument, by the contract of the call.
            Found::Stream(process, id) => unsafe {
                return stream::ioctl(process, id, fd, request, argument);
            },
            // SAFETY: passed on.
            Found::Kernel | Found::Counted => return unsafe { real::ioctl(fd, request, argument) },
        };
        if request == libc::FIONREAD as c_ulong && argument != 0
            && let Some(len) = receive::next_len(&process.stack, id)
        {
            let out: *mut c_int = core::ptr::with_exposed_provenance_mut(argument);
            if !convert::asked_writable(out, size_of::<c_int>()) {
                errno::set(libc::EFAULT);
                return -1;
            }
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

/// SO_ERROR of a UDP socket, of which the kernel knows nothing: what recvmmsg() has kept for the next call.
///
/// # Safety
/// The kernel has written `*len` bytes to `value`.
#[cold]
unsafe fn add_kept_error(fd: c_int, value: *mut c_int, len: Len) {
    // SAFETY: as promised.
    let whole = unsafe { *len } as usize == size_of::<c_int>();
    if let Some((process, id)) = ours(fd)
        && whole
        // SAFETY: as promised; the program's pointer may be unaligned.
        && unsafe { value.read_unaligned() } == 0
        && let Some(error) = receive::take_kept_error(&process.stack, id)
    {
        // SAFETY: as above.
        unsafe { value.write_unaligned(error) };
    }
}

fn after_fcntl(fd: c_int, command: c_int, result: c_int) -> c_int {
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            fresh(result);
            inherit::touch(fd);
            if let Some(process) = process::current() {
                file::alias(process, fd, result);
            }
        }
        libc::F_SETFL => match find(fd) {
            Found::Datagram(process, id) => options::after_flags(&process.stack, id),
            Found::Stream(process, id) => stream::after_flags(process, id),
            Found::Kernel | Found::Counted => {}
        },
        libc::F_SETOWN | F_SETOWN_EX => stream::after_owner(fd),
        // A child that makes it survive exec means it for the new program.
        libc::F_SETFD if inherit::is_child() && survives_exec(fd) => inherit::touch(fd),
        _ => {}
    }
    result
}
