//! The ends of a program: exit and exec. What they do to sockets is `process`'s to say.
//!
//! exec may take any number of arguments, and runs in vfork() children, too. So the symbols are
//! jumps: the hook runs, and libc's function finds every register as it was.

use core::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{export, fork, ours_stream, real};
use crate::process::{self, inherit};

/// The process ends: by the destructor, or by a function that does without.
#[cold]
pub fn at_exit() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let Some(process) = process::current() else { return };
    // A child of vfork() does not end its parent.
    if !fork::is_vfork_child(process) && !DONE.swap(true, Ordering::AcqRel) {
        process.at_exit();
    }
}

/// Another program is about to take over.
#[cold]
pub fn before_exec() {
    let before = super::errno::get();
    if let Some(process) = process::current() {
        process.before_exec();
    }
    inherit::before_exec();
    super::errno::set(before);
}

export! {
    /// _exit(2).
    fn _exit(status: c_int) -> ! {
        at_exit();
        // SAFETY: passed on.
        unsafe { real::_exit(status) };
        std::process::abort()
    }

    /// _Exit(3).
    fn _Exit(status: c_int) -> ! {
        // SAFETY: another name of it.
        unsafe { _exit(status) }
    }

    /// posix_spawn_file_actions_adddup2(3): the new program gets the socket.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int {
        if let Some((process, id)) = ours_stream(old) {
            process.release_stream(id, crate::socket::WhyOs::Passed);
        }
        // SAFETY: passed on.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, old, new) }
    }

    /// posix_spawn(3).
    fn posix_spawn(
        id: *mut libc::pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        inherit::before_fork();
        // SAFETY: passed on.
        unsafe { real::posix_spawn(id, path, actions, attributes, arguments, environment) }
    }

    /// posix_spawnp(3).
    fn posix_spawnp(
        id: *mut libc::pid_t,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        inherit::before_fork();
        // SAFETY: passed on.
        unsafe { real::posix_spawnp(id, file, actions, attributes, arguments, environment) }
    }
}

/// Defines functions of the exec family, whatever their arguments are.
macro_rules! exec {
    ($($(#[$meta:meta])* $name:ident $find:ident;)*) => {$(
        extern "C" fn $find() -> *mut c_void {
            before_exec();
            real::address(real::Symbol::$name)
        }

        $(#[$meta])*
        ///
        /// # Safety
        /// As the C function of this name.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            // Seven pushes on top of the return address align the stack for the call.
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {find}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                find = sym $find,
            )
        }
    )*};
}

exec! {
    /// execve(2).
    execve find_execve;
    /// execv(3).
    execv find_execv;
    /// execvp(3).
    execvp find_execvp;
    /// execvpe(3).
    execvpe find_execvpe;
    /// fexecve(3).
    fexecve find_fexecve;
    /// execl(3).
    execl find_execl;
    /// execle(3).
    execle find_execle;
    /// execlp(3).
    execlp find_execlp;
}
