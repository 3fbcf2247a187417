//! The ends of a program: exit and exec. What they do to sockets is `process`'s to say.
//!
//! exec may take any number of arguments, and runs in vfork() children, too. So the symbols are
//! jumps: the hook runs, and libc's function finds every register as it was.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;

use super::{Found, convert, export, find, fork, real, take_over};
use crate::process::{self, Process, inherit};
use crate::socket::report::kernels;

/// The process ends by exit(): the destructor.
#[cold]
pub fn at_exit() {
    if let Some(process) = first_to_leave() {
        process.at_exit();
    }
}

/// The process ends by a function that does without the destructor.
#[cold]
pub fn at_sudden_exit() {
    if let Some(process) = first_to_leave() {
        process.at_sudden_exit();
    }
}

/// The process ends by quick_exit(). libc runs the handlers of at_quick_exit() in reverse order, so that of the
/// constructor comes after the program's.
pub fn watch_quick_exit() {
    extern "C" fn leaves(_: *mut c_void) {
        at_sudden_exit();
    }
    unsafe extern "C" {
        fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void)
        -> c_int;
    }
    // SAFETY: a function that lives as long as the process: the library is never unmapped.
    unsafe { __cxa_at_quick_exit(leaves, core::ptr::null_mut()) };
}

fn first_to_leave() -> Option<&'static Process> {
    static DONE: AtomicBool = AtomicBool::new(false);
    let process = process::current()?;
    // A child of vfork() does not end its parent.
    (!fork::is_vfork_child(process) && !DONE.swap(true, Ordering::AcqRel)).then_some(process)
}

/// What a function of the exec family names its program by.
#[derive(Clone, Copy)]
pub enum By {
    Path,
    /// A path, or a name that is searched for.
    Name,
    Descriptor,
}

/// Another program is about to take over.
///
/// # Safety
/// `program` is what the C function was called with; a string unless it is a descriptor.
#[cold]
pub unsafe fn before_exec(by: By, program: *const c_char) {
    let before = super::errno::get();
    let found = match by {
        By::Descriptor => true,
        // SAFETY: as promised.
        By::Path | By::Name => unsafe { is_found(by, program) },
    };
    if found {
        if let Some(process) = process::current() {
            process.before_exec();
        }
        inherit::before_exec();
    }
    super::errno::set(before);
}

/// Is there such a program? If not, exec fails, and this one goes on. In a vfork() child, too, so
/// nothing is allocated.
///
/// # Safety
/// As [`before_exec`].
unsafe fn is_found(by: By, program: *const c_char) -> bool {
    if !convert::asked_readable(program, 1) {
        return false;
    }
    // SAFETY: a string, by the contract of the call.
    let program = unsafe { CStr::from_ptr(program) };
    if matches!(by, By::Path) || program.to_bytes().contains(&b'/') {
        return is_executable(program);
    }
    // SAFETY: a constant string; what it points to stays as long as nobody changes the environment,
    // which nobody may during exec.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = match path.is_null() {
        true => c"/bin:/usr/bin",
        // SAFETY: not null, so it is a string of the environment.
        false => unsafe { CStr::from_ptr(path) },
    };
    let mut room = [0; libc::PATH_MAX as usize];
    path.to_bytes().split(|byte| *byte == b':').any(|directory| {
        let directory = if directory.is_empty() { b"." } else { directory };
        let pieces = [directory, b"/", program.to_bytes_with_nul()];
        let mut len = 0;
        for piece in pieces {
            let Some(slot) = room.get_mut(len..len + piece.len()) else { return false };
            slot.copy_from_slice(piece);
            len += piece.len();
        }
        CStr::from_bytes_until_nul(&room).is_ok_and(is_executable)
    })
}

fn is_executable(path: &CStr) -> bool {
    rustix::fs::stat(path).is_ok_and(|file| {
        FileType::from_raw_mode(file.st_mode).is_file() && file.st_mode & 0o111 != 0
    })
}

/// Another program is started beside this one by functions of libc whose fork and exec nobody sees:
/// what it inherits by number must be the kernel's.
#[cold]
fn before_program() {
    inherit::before_fork();
    let before = super::errno::get();
    if let Some(process) = process::current() {
        kernels::keep_all(&process.stack);
        process.before_program();
    }
    super::errno::set(before);
}

/// _exit(2). It has no result that could be logged.
///
/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    at_sudden_exit();
    // SAFETY: passed on.
    unsafe { real::_exit(status) };
    std::process::abort()
}

/// _Exit(3).
///
/// # Safety
/// As the C function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: another name of it.
    unsafe { _exit(status) }
}

export! {
    /// system(3).
    fn system(command: *const c_char) -> c_int {
        if !command.is_null() {
            before_program();
        }
        // SAFETY: passed on.
        unsafe { real::system(command) }
    }

    /// popen(3).
    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
        before_program();
        // SAFETY: passed on.
        unsafe { real::popen(command, mode) }
    }

    /// wordexp(3) may start a shell.
    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
        before_program();
        // SAFETY: passed on.
        unsafe { real::wordexp(words, result, flags) }
    }

    /// posix_spawn_file_actions_adddup2(3): the new program gets the socket.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int {
        take_over::keep(old);
        if let Found::Datagram(process, id) | Found::Stream(process, id) = find(old) {
            process.release(id, crate::socket::WhyOs::Passed);
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
        before_program();
        // SAFETY: passed on.
        unsafe { real::posix_spawn(id, path, actions, attributes, arguments, environment) }
    }

    /// pidfd_spawn(3).
    fn pidfd_spawn(
        id: *mut c_int,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        before_program();
        // SAFETY: passed on.
        unsafe { real::pidfd_spawn(id, path, actions, attributes, arguments, environment) }
    }

    /// pidfd_spawnp(3).
    fn pidfd_spawnp(
        id: *mut c_int,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        before_program();
        // SAFETY: passed on.
        unsafe { real::pidfd_spawnp(id, file, actions, attributes, arguments, environment) }
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
        before_program();
        // SAFETY: passed on.
        unsafe { real::posix_spawnp(id, file, actions, attributes, arguments, environment) }
    }
}

/// Defines functions of the exec family, whatever their arguments are.
macro_rules! exec {
    ($($(#[$meta:meta])* $name:ident $find:ident $by:ident;)*) => {$(
        unsafe extern "C" fn $find(program: *const c_char) -> *mut c_void {
            // SAFETY: the first argument of the function, which its caller vouches for.
            unsafe { before_exec(By::$by, program) };
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
            // The first argument stays where it is. Seven pushes on top of the return address align the stack for the call.
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
    execve find_execve Path;
    /// execv(3).
    execv find_execv Path;
    /// execvp(3).
    execvp find_execvp Name;
    /// execvpe(3).
    execvpe find_execvpe Name;
    /// fexecve(3).
    fexecve find_fexecve Descriptor;
    /// execveat(2).
    execveat find_execveat Descriptor;
    /// execl(3).
    execl find_execl Path;
    /// execle(3).
    execle find_execle Path;
    /// execlp(3).
    execlp find_execlp Name;
}
