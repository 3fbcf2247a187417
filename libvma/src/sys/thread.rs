//! Identity of threads and processes, and their signal masks.

use std::cell::Cell;

thread_local! {
    /// Its address names the thread; no destructor, so it is usable at any moment of a thread.
    static MARK: Cell<u8> = const { Cell::new(0) };
    /// Signal handlers that ran on this thread: all of them, and those without SA_RESTART.
    /// See `preload::signal`.
    static HANDLERS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// A non-zero value that no other living thread has. No system call.
#[inline]
pub fn mark() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// How many signal handlers have run on this thread; only those without SA_RESTART if the call
/// that asks is one that the kernel restarts.
#[inline]
pub fn interruptions(restartable: bool) -> u32 {
    let (all, unrestartable) = HANDLERS.with(Cell::get);
    if restartable { unrestartable } else { all }
}

/// Notes that a handler runs now. Async-signal-safe: a plain store to this thread's memory.
pub fn count_handler(restarts: bool) {
    HANDLERS.with(|count| {
        let (all, unrestartable) = count.get();
        count.set((all.wrapping_add(1), unrestartable.wrapping_add(u32::from(!restarts))));
    });
}

pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Sleeps; signals may cut it short.
pub fn nap_millis(millis: u64) {
    let _ = super::wait::ppoll(&mut [], Some(millis * 1_000_000), None);
}

/// The program runs with other rights than its caller's (AT_SECURE).
pub fn is_secure() -> bool {
    // SAFETY: getauxval reads what the kernel gave the process; no pointer is involved.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub fn process_id() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// A signal mask as it was, to be put back.
pub struct SavedMask(libc::sigset_t);

impl SavedMask {
    pub fn as_set(&self) -> &libc::sigset_t {
        &self.0
    }
}

/// Blocks every signal on this thread.
pub fn block_signals() -> SavedMask {
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    let mut old = all;
    // SAFETY: `all` is a sigset_t that outlives the call.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: both pointers are to sigset_t values that outlive the call. libc's function is not
    // one that the library exports.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old) };
    SavedMask(old)
}

/// Would this mask change anything for the calling thread?
pub fn mask_differs(mask: &libc::sigset_t) -> bool {
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut now: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `now` outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, core::ptr::null(), &mut now) };
    (1..=64).any(|signal| {
        // SAFETY: a valid set and a signal number in range.
        let wanted = unsafe { libc::sigismember(mask, signal) };
        // SAFETY: as above.
        wanted != unsafe { libc::sigismember(&now, signal) }
    })
}

pub fn restore_signals(saved: &SavedMask) {
    // SAFETY: the set came from pthread_sigmask and outlives the call; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &saved.0, core::ptr::null_mut()) };
}

/// Names the calling thread, so that `ps -L` and a debugger tell whose it is.
pub fn name_current(name: &core::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Pins the calling thread to one CPU; false if the kernel refuses (no such CPU).
pub fn pin_current(cpu: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}
