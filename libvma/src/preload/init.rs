//! What runs when, before `main` and after it.
//!
//! | moment | what | may call |
//! |---|---|---|
//! | constructor | find libc's functions, watch quick_exit() and fork() for the memory of children, make room for descriptors | dlsym, at_quick_exit, pthread_atfork, system calls: std is not ready before `main` |
//! | first Internet socket | `process::first_socket`: configuration, banner, tables | everything |
//! | the same | fork and signal hooks | pthread_atfork, sigaction |
//! | first UDP socket | `Process::ensure_plane`: netlink, internal thread | everything |
//! | first bind, connect or send | ring of the interface | everything |
//! | destructor, _exit | `Process::at_exit`: connections to the kernel, counters to the file | system calls |
//! | exec | `Process::before_exec`: connections to the kernel | system calls |

use std::sync::atomic::{AtomicBool, Ordering};

use super::{crash, fork, real, signal};
use crate::process::{self, Process};
use crate::sys::above;

/// Finds libc's functions, is told of quick_exit() and of forks, and makes room for the library's descriptors while there are no
/// threads. A call that comes before this (another library's constructor) finds its function by itself.
extern "C" fn constructor() {
    real::resolve_all();
    super::leave::watch_quick_exit();
    fork::hook_memory();
    above::make_room();
}

extern "C" fn destructor() {
    super::leave::at_exit();
}

mod sections {
    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: extern "C" fn() = super::constructor;
    #[used]
    #[unsafe(link_section = ".fini_array")]
    static DESTRUCTOR: extern "C" fn() = super::destructor;
}

/// Survives fork: the hooks are inherited.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// The process, at an Internet socket of the program.
pub fn at_internet_socket() -> Option<&'static Process> {
    let process = process::first_socket()?;
    if !HOOKED.swap(true, Ordering::AcqRel) {
        fork::hook();
        signal::wrap_existing();
        if process.stack.config.handle_sigintr {
            signal::announce_interrupts();
        }
        if process.stack.config.handle_sigsegv {
            crash::watch();
        }
    }
    Some(process)
}

super::export! {
    /// For programs that load the library by dlopen(): nothing has to be done before dlclose(),
    /// which does not unmap it. Returns 0.
    fn vma_exit() -> core::ffi::c_int { 0 }
}
