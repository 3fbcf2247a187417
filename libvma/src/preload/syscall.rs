//! libc's variadic `syscall`: some programs close, receive and poll by number.
//!
//! libuv (node, uvloop) closes every descriptor by `syscall(SYS_close)` and registers epoll
//! interest through io_uring when `io_uring_setup` works, which nobody here would see; it falls
//! back to epoll_ctl when the answer is ENOSYS.

use core::ffi::{c_int, c_long};

use super::{Found, errno, file, find, leave, mux, real, receive, send, socket};
use crate::process;

/// libc's `syscall`. What makes a process or thread jumps on with every register as it was: the
/// child may run on another stack, or on this one before the parent does, and must not find a
/// frame of ours.
///
/// # Safety
/// As syscall(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    core::arch::naked_asm!(
        "cmp rdi, {clone}",
        "je 2f",
        "cmp rdi, {fork}",
        "je 2f",
        "cmp rdi, {vfork}",
        "je 2f",
        "cmp rdi, {clone3}",
        "je 2f",
        "jmp {by_number}",
        "2:",
        // The address of libc's function, kept by the constructor.
        "lea rax, [rip + {slot}]",
        "mov rax, [rax]",
        "test rax, rax",
        "je 3f",
        "jmp rax",
        "3:",
        "jmp {by_number}",
        clone = const libc::SYS_clone,
        fork = const libc::SYS_fork,
        vfork = const libc::SYS_vfork,
        clone3 = const libc::SYS_clone3,
        slot = sym real::SYSCALL,
        by_number = sym by_number,
    )
}

/// libc's `syscall`.
///
/// # Safety
/// As syscall(2).
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: passed on.
    unsafe { by_number(number, a, b, c, d, e, f) }
}

/// A pointer argument.
fn at<T>(argument: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut(argument)
}

/// The calls that concern descriptors of ours, by their C names; the others go on.
///
/// # Safety
/// As syscall(2).
unsafe extern "C" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // Those that must be seen whatever the descriptor is.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one forwarding an arm")]
    // SAFETY: each is the same call by its C name, with the arguments of this one.
    let result = unsafe {
        match number {
            libc::SYS_close => file::close(fd),
            libc::SYS_close_range => file::close_range(a as u32, b as u32, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => file::dup2(fd, b as c_int),
            libc::SYS_dup3 => file::dup3(fd, b as c_int, c as c_int),
            libc::SYS_dup => file::dup(fd),
            libc::SYS_fcntl => socket::fcntl(fd, b as c_int, c),
            libc::SYS_epoll_ctl => mux::epoll_ctl(fd, b as c_int, c as c_int, at(d)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => mux::epoll_wait(fd, at(b), c as c_int, d as c_int),
            // The kernel's signal set is shorter than libc's: calls with one go on.
            libc::SYS_epoll_pwait if e == 0 => mux::epoll_wait(fd, at(b), c as c_int, d as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => mux::poll(at(a), b as libc::nfds_t, c as c_int),
            libc::SYS_ppoll if d == 0 => {
                mux::ppoll(at(a), b as libc::nfds_t, at(c), core::ptr::null())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => mux::select(fd, at(b), at(c), at(d), at(e)),
            libc::SYS_exit_group => {
                leave::at_sudden_exit();
                return real::syscall(number, [a, b, c, d, e, f]);
            }
            libc::SYS_execve => {
                leave::before_exec(leave::By::Path, at(a));
                return real::syscall(number, [a, b, c, d, e, f]);
            }
            libc::SYS_execveat => {
                leave::before_exec(leave::By::Descriptor, core::ptr::null());
                return real::syscall(number, [a, b, c, d, e, f]);
            }
            libc::SYS_io_uring_setup if !process::allows_io_uring() => {
                errno::set(libc::ENOSYS);
                -1
            }
            _ if !matches!(find(fd), Found::Kernel) => {
                return on_socket(number, fd, [a, b, c, d, e, f]);
            }
            _ => return real::syscall(number, [a, b, c, d, e, f]),
        }
    };
    c_long::from(result)
}

/// A call whose first argument is a socket of ours, or one that is counted.
///
/// # Safety
/// As syscall(2).
unsafe fn on_socket(number: c_long, fd: c_int, arguments: [usize; 6]) -> c_long {
    let [_, b, c, d, e, f] = arguments;
    let (flags, len) = (d as c_int, c as libc::socklen_t);
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one forwarding an arm")]
    // SAFETY: each is the same call by its C name, with the arguments of this one.
    let result = unsafe {
        match number {
            libc::SYS_read => receive::read(fd, at(b), c),
            libc::SYS_readv => receive::readv(fd, at(b), c as c_int),
            libc::SYS_recvfrom => receive::recvfrom(fd, at(b), c, flags, at(e), at(f)),
            libc::SYS_recvmsg => receive::recvmsg(fd, at(b), c as c_int),
            libc::SYS_recvmmsg => receive::recvmmsg(fd, at(b), c as u32, flags, at(e)) as isize,
            libc::SYS_write => send::write(fd, at(b), c),
            libc::SYS_writev => send::writev(fd, at(b), c as c_int),
            libc::SYS_sendto => send::sendto(fd, at(b), c, flags, at(e), f as libc::socklen_t),
            libc::SYS_sendmsg => send::sendmsg(fd, at(b), c as c_int),
            libc::SYS_sendmmsg => send::sendmmsg(fd, at(b), c as u32, flags) as isize,
            libc::SYS_bind => socket::bind(fd, at(b), len) as isize,
            libc::SYS_connect => socket::connect(fd, at(b), len) as isize,
            libc::SYS_listen => socket::listen(fd, b as c_int) as isize,
            libc::SYS_accept => socket::accept(fd, at(b), at(c)) as isize,
            libc::SYS_accept4 => socket::accept4(fd, at(b), at(c), d as c_int) as isize,
            libc::SYS_getsockname => socket::getsockname(fd, at(b), at(c)) as isize,
            libc::SYS_getpeername => socket::getpeername(fd, at(b), at(c)) as isize,
            libc::SYS_getsockopt => {
                socket::getsockopt(fd, b as c_int, c as c_int, at(d), at(e)) as isize
            }
            libc::SYS_shutdown => socket::shutdown(fd, b as c_int) as isize,
            libc::SYS_setsockopt => {
                socket::setsockopt(fd, b as c_int, c as c_int, at(d), e as libc::socklen_t) as isize
            }
            libc::SYS_ioctl => socket::ioctl(fd, b as core::ffi::c_ulong, c) as isize,
            _ => return real::syscall(number, arguments),
        }
    };
    result as c_long
}
