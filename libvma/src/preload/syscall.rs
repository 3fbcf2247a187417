//! libc's variadic `syscall`: some programs close and poll by number.
//!
//! libuv (node, uvloop) closes every descriptor by `syscall(SYS_close)` and registers epoll
//! interest through io_uring when `io_uring_setup` works, which nobody here would see; it falls
//! back to epoll_ctl when the answer is ENOSYS.

use core::ffi::{c_int, c_long};

use super::{errno, file, real, receive, send};
use crate::process;

/// libc's `syscall`. What is not ours jumps on with every register as it was: a call such as
/// clone() on a new stack must not find a frame of ours.
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
        "cmp rdi, {close}", "je 2f",
        "cmp rdi, {close_range}", "je 2f",
        "cmp rdi, {dup2}", "je 2f",
        "cmp rdi, {dup3}", "je 2f",
        "cmp rdi, {io_uring_setup}", "je 2f",
        "cmp rdi, {recvmmsg}", "je 2f",
        "cmp rdi, {sendmmsg}", "je 2f",
        // The address of libc's function, kept by the constructor.
        "lea rax, [rip + {slot}]",
        "mov rax, [rax]",
        "test rax, rax", "je 2f",
        "jmp rax",
        "2:",
        "jmp {ours}",
        close = const libc::SYS_close,
        close_range = const libc::SYS_close_range,
        dup2 = const libc::SYS_dup2,
        dup3 = const libc::SYS_dup3,
        io_uring_setup = const libc::SYS_io_uring_setup,
        recvmmsg = const libc::SYS_recvmmsg,
        sendmmsg = const libc::SYS_sendmmsg,
        slot = sym real::SYSCALL,
        ours = sym ours,
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
    unsafe { ours(number, a, b, c, d, e, f) }
}

/// The calls that concern descriptors of ours.
///
/// # Safety
/// As syscall(2).
unsafe extern "C" fn ours(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        // SAFETY: the same call by its C name, with the arguments of this one.
        libc::SYS_close => c_long::from(unsafe { file::close(a as c_int) }),
        libc::SYS_close_range => {
            // SAFETY: as above.
            c_long::from(unsafe { file::close_range(a as u32, b as u32, c as c_int) })
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        libc::SYS_dup2 => c_long::from(unsafe { file::dup2(a as c_int, b as c_int) }),
        libc::SYS_dup3 => {
            // SAFETY: as above.
            c_long::from(unsafe { file::dup3(a as c_int, b as c_int, c as c_int) })
        }
        libc::SYS_recvmmsg => {
            let messages = core::ptr::with_exposed_provenance_mut(b);
            let timeout = core::ptr::with_exposed_provenance_mut(e);
            // SAFETY: as above.
            c_long::from(unsafe {
                receive::recvmmsg(a as c_int, messages, c as u32, d as c_int, timeout)
            })
        }
        libc::SYS_sendmmsg => {
            let messages = core::ptr::with_exposed_provenance_mut(b);
            // SAFETY: as above.
            c_long::from(unsafe { send::sendmmsg(a as c_int, messages, c as u32, d as c_int) })
        }
        libc::SYS_io_uring_setup if !process::allows_io_uring() => {
            errno::set(libc::ENOSYS);
            -1
        }
        // SAFETY: passed on.
        _ => unsafe { real::syscall(number, [a, b, c, d, e, f]) },
    }
}
