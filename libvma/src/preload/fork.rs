//! fork and its kin. A child starts without anything of ours (`sys::fork_cell`); here its copies
//! of our descriptors are closed, so that the parent's flows end with the parent; sockets that it
//! goes on using are handed over by `process::inherit`.
//!
//! `vfork()` must not have a frame of ours under it: the child runs on it, and the parent returns
//! through what the child left. So the symbol is a jump. Its child shares our memory; whatever
//! changes that (close, dup2 ...) compares the process id first ([`is_vfork_child`]).

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{export, real};
use crate::process::{self, Process, inherit};
use crate::socket::block::Guard;
use crate::socket::report::kernels;
use crate::sys::fork_gate;
use crate::sys::heap::Heap;
use crate::sys::thread;

#[global_allocator]
static HEAP: Heap = Heap::empty();

/// Locked while this process forks, beside the heap: the gate, and the shard, for a child may take a listener out of
/// its copy.
type Locked = (fork_gate::Shut, Option<Guard<'static>>);

struct Held(UnsafeCell<Option<Locked>>);

// SAFETY: the cell is touched only by the thread that holds the heap.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has the heap and the parent's shard whole in children: no other thread is in the middle of either when they are copied. Before
/// any other handler is registered, so that both are held last and let go first: a handler of the program may wait for a thread
/// that makes a call of ours.
pub fn hook_memory() {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if !HOOKED.swap(true, Ordering::Relaxed) {
        let library = core::ptr::null_mut();
        // SAFETY: plain functions that live as long as the library, which is never unmapped.
        unsafe { real::__register_atfork(Some(hold), Some(release), Some(release), library) };
    }
}

extern "C" fn hold() {
    // The order of locks: the shard's, the gate, the heap's.
    let shard = process::current().and_then(|process| process.stack.shard.lock().ok());
    let gate = fork_gate::shut();
    HEAP.hold();
    // SAFETY: this thread holds the heap.
    unsafe { *HELD.0.get() = Some((gate, shard)) };
}

extern "C" fn release() {
    // SAFETY: this thread holds the heap, in a child as well.
    let locked = unsafe { (*HELD.0.get()).take() };
    HEAP.release();
    drop(locked);
}

/// A fork handler.
pub type Handler = Option<unsafe extern "C" fn()>;

/// Registers the fork handler with libc, which also runs it in daemon() and forkpty().
pub fn hook() {
    // SAFETY: plain functions that live as long as the library, which is never unmapped.
    unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
}

extern "C" fn before() {
    if let Some(process) = process::current() {
        // The child shares them.
        kernels::keep_all(&process.stack);
        crate::socket::stream::listen::give_up_ahead(&process.stack);
    }
    inherit::before_fork();
}

extern "C" fn in_child() {
    inherit::after_fork();
    super::mux::after_fork();
}

/// Does this code run in a vfork() child, on its parent's memory?
#[cold]
pub fn is_vfork_child(process: &Process) -> bool {
    thread::process_id() != process.id
}

/// As [`is_vfork_child`] without a system call, for frequent calls that no such child makes between
/// vfork() and exec: one that the program made by another way (clone) is not seen.
#[inline]
pub fn is_noted_vfork_child(process: &Process) -> bool {
    thread::is_vforked(process.id)
}

export! {
    /// pthread_atfork(3), of which this is libc's part. Constructors of other libraries come here before that of this one.
    fn __register_atfork(prepare: Handler, parent: Handler, child: Handler, library: *mut c_void) -> c_int {
        hook_memory();
        // SAFETY: passed on.
        unsafe { real::__register_atfork(prepare, parent, child, library) }
    }

    /// fork(2).
    fn fork() -> libc::pid_t {
        // SAFETY: passed on.
        unsafe { real::fork() }
    }

    /// _Fork(3), which runs no fork handlers.
    fn _Fork() -> libc::pid_t {
        before();
        hold();
        // SAFETY: passed on.
        let child = unsafe { real::_Fork() };
        release();
        if child == 0 {
            in_child();
        }
        child
    }

    /// daemon(3). libc forks inside, so its fork handlers run.
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
        // The parent ends inside, where nobody sees it.
        if let Some(process) = process::current() {
            process.before_daemon();
        }
        // SAFETY: passed on.
        unsafe { real::daemon(nochdir, noclose) }
    }
}

/// fork() by a system call: SYS_fork, or SYS_clone and SYS_clone3 without a stack of the child's own. The child
/// goes on in a copy of this frame.
///
/// # Safety
/// As syscall(2), of a call whose child shares no memory with this process.
#[cold]
pub unsafe fn by_number(number: core::ffi::c_long, arguments: [usize; 6]) -> core::ffi::c_long {
    if process::current().is_some() || inherit::is_child() {
        before();
    }
    hold();
    // SAFETY: as promised.
    let child = unsafe { real::syscall(number, arguments) };
    release();
    if child == 0 {
        thread::forget_id();
        in_child();
    }
    child
}

/// libc's other name of vfork.
///
/// # Safety
/// As the C function of this name.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> libc::pid_t {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// vfork(2).
///
/// # Safety
/// As the C function of this name.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // The stack is misaligned by the return address here, so one push aligns it for the call.
    core::arch::naked_asm!(
        "push rbx",
        "call {find}",
        "pop rbx",
        "jmp rax",
        find = sym find_vfork,
    )
}

/// vfork(2), as fork: without an assembly jump a child would return through our frame.
///
/// # Safety
/// As the C function of this name.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: passed on.
    unsafe { real::fork() }
}

#[cfg(target_arch = "x86_64")]
extern "C" fn find_vfork() -> *mut core::ffi::c_void {
    thread::note_vfork();
    if let Some(process) = process::current() {
        // A program that the child starts may have them.
        kernels::keep_all(&process.stack);
    }
    real::address(real::Symbol::vfork)
}
