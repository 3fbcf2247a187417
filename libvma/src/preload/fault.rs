//! SIGSEGV and SIGBUS: a bad pointer that the program gave to a call is EFAULT; every other fault is the program's.
//!
//! `sys/user.rs` touches what a call is about to read or write. Such a touch may fault; then the handler here lets its
//! thread go on behind it. For anything else the handler does what the kernel would have done without it:
//!
//! * The program's own handler is called, on the stack and with the mask that it was installed with, since the kernel has
//!   both from the program's own action. sigaction() and its kin tell the program of its action only (`signal.rs`).
//! * The default action: the handler puts it back, and the instruction faults again. So the process ends by the same signal
//!   with the same registers and address, and leaves the same core.
//!
//! Its limits: a thread that blocks SIGSEGV is killed by the kernel when it faults (sigprocmask(2)), and a program
//! that installs a handler by a system call of its own (Go) has only that one. While the program ignores the signal (SIG_IGN,
//! which exec() must inherit) the handler is not installed, either. There a bad pointer of a send, a receive or a wait is a crash, as
//! it is without the touch: knowing the mask costs those calls a system call. All others ask the kernel (`sys/user/asked.rs`).

use core::ffi::{c_int, c_void};

use super::{fork, real};
use crate::process;
use crate::sys::thread;

/// The signals of a bad pointer: not mapped or not allowed, and beyond the end of a file.
pub const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Flags that the kernel has otherwise than the program gave them. With the default action: SA_ONSTACK, so that a stack overflow
/// finds room if the thread has another stack.
pub const CHANGED: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;

pub fn address() -> usize {
    (on_fault as unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)) as usize
}

/// Is the handler of use on this processor?
pub fn is_watched(signal: c_int) -> bool {
    cfg!(target_arch = "x86_64") && SIGNALS.contains(&signal)
}

/// The flags that the kernel gets for an action of the program.
pub fn flags(action: &libc::sigaction) -> c_int {
    let kept = action.sa_flags & !(libc::SA_SIGINFO | libc::SA_RESETHAND) | libc::SA_SIGINFO;
    if action.sa_sigaction == libc::SIG_DFL { kept | libc::SA_ONSTACK } else { kept }
}

/// Goes on at the program's handler with a jump, not a call. So that returns to the kernel's frame, and exceptions
/// (-fnon-call-exceptions), backtraces and longjmp() find the stack as if the kernel had called it.
///
/// # Safety
/// Called by the kernel, as the handler of a signal.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn on_fault(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    core::arch::naked_asm!(
        // Three words align the stack.
        "push rdi",
        "push rsi",
        "push rdx",
        "call {judge}",
        "mov r11, rax",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test r11, r11",
        "jz 2f",
        "xor eax, eax",
        "jmp r11",
        "2: ret",
        judge = sym judge,
    )
}

/// Never installed.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn on_fault(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

/// The address of the program's handler, which is to run; 0 if there is nothing more to do.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the handler is never installed")
)]
extern "C" fn judge(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel gives every SA_SIGINFO handler its siginfo.
    let code = unsafe { info.as_ref() }.map_or(0, |info| info.si_code);
    // SAFETY: as above; the context is a ucontext_t.
    let frame = unsafe { context.cast::<libc::ucontext_t>().as_mut() };
    if is_fault(code) && frame.is_some_and(go_on) {
        return 0;
    }
    let (handler, flags) = super::signal::installed(signal);
    if flags & libc::SA_RESETHAND != 0 {
        if process::current().is_some_and(fork::is_vfork_child) {
            // Only of the child: the parent, whose memory this is, keeps its handler.
            set_default(signal);
        } else {
            super::signal::forget_handler(signal, handler);
        }
    }
    match handler {
        libc::SIG_DFL => {
            end(signal, info, code);
            0
        }
        libc::SIG_IGN => 0,
        handler => handler,
    }
}

/// Does the instruction fault again if the thread goes on? Others send signals, and the kernel tells of memory that it
/// found broken (BUS_MCEERR_AO).
fn is_fault(code: c_int) -> bool {
    const BUS_MCEERR_AO: c_int = 5;
    code > 0 && code != BUS_MCEERR_AO
}

/// Lets a thread go on that touched a bad pointer for a call. False: it did something else.
#[cfg(target_arch = "x86_64")]
fn go_on(frame: &mut libc::ucontext_t) -> bool {
    let Some(at) = frame.uc_mcontext.gregs.get_mut(libc::REG_RIP as usize) else { return false };
    let Some(landing) = crate::sys::user::landing(*at as usize) else { return false };
    *at = landing as i64;
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn go_on(_: &mut libc::ucontext_t) -> bool {
    false
}

/// The default action ends the process when the handler returns.
#[cold]
fn end(signal: c_int, info: *const libc::siginfo_t, code: c_int) {
    set_default(signal);
    // SAFETY: the kernel gives every SA_SIGINFO handler its siginfo.
    let info = unsafe { info.as_ref() };
    if let Some(info) = info.filter(|_| !is_fault(code)) {
        thread::send_again(signal, info);
    }
}

fn set_default(signal: c_int) {
    // SAFETY: all-zero bytes are a valid sigaction, that of the default.
    let action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a valid action; sigaction is async-signal-safe.
    unsafe { real::sigaction(signal, &action, core::ptr::null_mut()) };
}
