//! libc's variadic `syscall`: some programs close, receive and poll by number.
//!
//! libuv (node, uvloop) closes every descriptor by `syscall(SYS_close)` and registers epoll
//! interest through io_uring when `io_uring_setup` works, which nobody here would see; it falls
//! back to epoll_ctl when the answer is ENOSYS.

use core::ffi::{c_int, c_long};

use super::{
    Found, convert, errno, file, find, flagged, fork, leave, mux, real, receive, rights, send,
    socket, transfer,
};
use crate::process;
use crate::socket::clock;

/// libc's `syscall`. What makes a thread, or a process that shares this one's memory, jumps on with every register
/// as it was: the child may run on another stack, or on this one before the parent does, and must not find a frame of
/// ours.
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
        "cmp rdi, {vfork}",
        "je 2f",
        "cmp rdi, {clone}",
        "je 4f",
        "cmp rdi, {clone3}",
        "je 5f",
        "jmp {by_number}",
        // clone: the child has a copy of the memory and goes on on this stack, or not?
        "4:",
        "test esi, {vm}",
        "jne 2f",
        "test rdx, rdx",
        "jne 2f",
        "jmp {by_number}",
        // clone3: the same, of `flags` and `stack` in struct clone_args.
        "5:",
        "cmp rsi, 65536",
        "jb 2f",
        "test dword ptr [rsi], {vm}",
        "jne 2f",
        "cmp qword ptr [rsi + 40], 0",
        "jne 2f",
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
        vfork = const libc::SYS_vfork,
        clone3 = const libc::SYS_clone3,
        vm = const libc::CLONE_VM,
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
pub(super) fn at<T>(argument: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut(argument)
}

/// A signal mask as system calls have it.
enum Mask {
    None,
    Set(libc::sigset_t),
}

impl Mask {
    fn as_ptr(&self) -> *const libc::sigset_t {
        match self {
            Mask::None => core::ptr::null(),
            Mask::Set(set) => set,
        }
    }
}

/// The kernel's signal sets are shorter than libc's. None if the kernel will refuse it.
///
/// # Safety
/// `mask` is the address of a set of `len` bytes, or 0.
unsafe fn mask_at(mask: usize, len: usize) -> Option<Mask> {
    if mask == 0 {
        return Some(Mask::None);
    }
    let from: *const u64 = at(mask);
    if len != size_of::<u64>() || !convert::can_read(from, len) {
        return None;
    }
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: as promised.
    let bits = unsafe { from.read_unaligned() };
    // SAFETY: libc's set begins with the kernel's.
    unsafe { core::ptr::from_mut(&mut set).cast::<u64>().write(bits) };
    Some(Mask::Set(set))
}

/// Unlike libc's functions, the system calls write back what is left of a timeout.
///
/// # Safety
/// `limit` is null or points to a timespec.
unsafe fn counting_down(
    limit: *mut libc::timespec,
    call: impl FnOnce(*const libc::timespec) -> c_int,
) -> c_int {
    let since = clock::now();
    let result = call(limit);
    // SAFETY: as promised.
    if let Ok(Some(nanos)) = unsafe { convert::timespec(limit) } {
        let spent = clock::now().saturating_duration_since(since).as_nanos();
        let left = nanos.saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX));
        let left = libc::timespec {
            tv_sec: (left / 1_000_000_000) as libc::time_t,
            tv_nsec: (left % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: not null, or there would be no limit; a timespec as promised.
        unsafe { limit.write(left) };
    }
    result
}

/// io_submit: the kernel itself will use the descriptors.
///
/// # Safety
/// `list` points to so many pointers to struct iocb.
unsafe fn hand_over_blocks(list: *const *const c_int, count: usize) {
    /// aio_fildes in struct iocb (linux/aio_abi.h), in ints.
    const DESCRIPTOR: usize = 5;
    let plausible = convert::asked_readable(list, count.saturating_mul(size_of::<usize>()));
    for at in 0..if plausible { count } else { 0 } {
        // SAFETY: as promised.
        let block = unsafe { list.add(at) };
        // SAFETY: as promised.
        let block = unsafe { *block };
        if convert::asked_readable(block, 64) {
            let descriptor = block.wrapping_add(DESCRIPTOR);
            // SAFETY: a block has 64 bytes.
            file::hand_over(unsafe { descriptor.read_unaligned() });
        }
    }
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
            libc::SYS_sendfile => return transfer::sendfile(fd, b as c_int, at(c), d) as c_long,
            libc::SYS_splice => {
                return transfer::splice(fd, at(b), c as c_int, at(d), e, f as u32) as c_long;
            }
            // The position is in two halves, of which the upper one is of no use with 64 bits.
            libc::SYS_preadv2 => {
                return flagged::preadv2(fd, at(b), c as c_int, d as i64, f as c_int) as c_long;
            }
            libc::SYS_pwritev2 => {
                return flagged::pwritev2(fd, at(b), c as c_int, d as i64, f as c_int) as c_long;
            }
            // On any socket: they may carry descriptors of ours.
            libc::SYS_sendmsg => return send::sendmsg(fd, at(b), c as c_int) as c_long,
            libc::SYS_sendmmsg => send::sendmmsg(fd, at(b), c as u32, d as c_int),
            libc::SYS_io_submit => {
                hand_over_blocks(at(c), b);
                return real::syscall(number, [a, b, c, d, e, f]);
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => return fork::by_number(number, [a, b, c, d, e, f]),
            libc::SYS_clone if a & libc::CLONE_VM as usize == 0 && b == 0 => {
                return fork::by_number(number, [a, b, c, d, e, f]);
            }
            libc::SYS_clone3 => return fork::by_number(number, [a, b, c, d, e, f]),
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
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_capset => {
                return rights::by_number(number, [a, b, c, d, e, f]);
            }
            libc::SYS_io_uring_setup if !process::allows_io_uring() => {
                errno::set(libc::ENOSYS);
                -1
            }
            _ => {
                let arguments = [a, b, c, d, e, f];
                return match wait_by_number(number, arguments) {
                    Some(result) => result,
                    None if matches!(find(fd), Found::Kernel) => real::syscall(number, arguments),
                    None => on_socket(number, fd, arguments),
                };
            }
        }
    };
    c_long::from(result)
}

/// The calls that wait for readiness. None: another call.
///
/// # Safety
/// As syscall(2).
unsafe fn wait_by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one forwarding an arm")]
    // SAFETY: each is the same call by its C name, with the arguments of this one.
    let result = unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => mux::epoll_wait(fd, at(b), c as c_int, d as c_int),
            libc::SYS_epoll_pwait => {
                let Some(mask) = mask_at(e, f) else {
                    // Of a length that only the kernel can judge.
                    return Some(real::syscall(number, arguments));
                };
                mux::epoll_pwait(fd, at(b), c as c_int, d as c_int, mask.as_ptr())
            }
            libc::SYS_epoll_pwait2 => {
                let Some(mask) = mask_at(e, f) else {
                    // Of a length that only the kernel can judge.
                    return Some(real::syscall(number, arguments));
                };
                mux::epoll_pwait2(fd, at(b), c as c_int, at(d), mask.as_ptr())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => mux::poll(at(a), b as libc::nfds_t, c as c_int),
            libc::SYS_ppoll => {
                let Some(mask) = mask_at(d, e) else {
                    // Of a length that only the kernel can judge.
                    return Some(real::syscall(number, arguments));
                };
                counting_down(at(c), |limit| {
                    mux::ppoll(at(a), b as libc::nfds_t, limit, mask.as_ptr())
                })
            }
            libc::SYS_pselect6 => {
                // Of the mask and its length.
                let pair: *const [usize; 2] = at(f);
                let [mask, len] = pair.as_ref().copied().unwrap_or_default();
                let Some(mask) = mask_at(mask, len) else {
                    // Of a length that only the kernel can judge.
                    return Some(real::syscall(number, arguments));
                };
                counting_down(at(e), |limit| {
                    mux::pselect(fd, at(b), at(c), at(d), limit, mask.as_ptr())
                })
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => mux::select(fd, at(b), at(c), at(d), at(e)),
            _ => return None,
        }
    };
    Some(c_long::from(result))
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
