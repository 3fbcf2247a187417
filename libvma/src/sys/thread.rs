//! Identity of threads and processes, and their signal masks.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, compiler_fence};

/// What the library keeps per thread. No destructor, so it is usable at any moment of a thread; the
/// thread and its own signal handlers are the only ones to touch it, hence relaxed atomics.
#[repr(C)]
struct Local {
    /// Requests to the [heap](super::heap). The first field, where tests find it.
    allocations: AtomicU64,
    /// Locks of ours that the thread holds or waits for.
    locks: AtomicU32,
    /// The thread has noted errands.
    owes: AtomicBool,
    /// Signals put off because of them, a bit each.
    put_off: AtomicU64,
    /// Signal handlers that ran: all of them, and those without SA_RESTART.
    handlers: AtomicU32,
    unrestartable: AtomicU32,
    /// The eventfd that signal handlers write to, because the thread may be about to sleep; -1 for none.
    alarm: AtomicI32,
    /// How often handlers have.
    alarms: AtomicU32,
    /// Its number, as the kernel has it; 0 until somebody asks.
    id: AtomicU32,
    /// It called vfork(), and nobody has seen the parent go on since.
    vforked: AtomicBool,
    /// The library made it.
    is_own: AtomicBool,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            allocations: AtomicU64::new(0),
            locks: AtomicU32::new(0),
            owes: AtomicBool::new(false),
            put_off: AtomicU64::new(0),
            handlers: AtomicU32::new(0),
            unrestartable: AtomicU32::new(0),
            alarm: AtomicI32::new(-1),
            alarms: AtomicU32::new(0),
            id: AtomicU32::new(0),
            vforked: AtomicBool::new(false),
            is_own: AtomicBool::new(false),
        }
    };
}

/// The thread is about to take a lock. Returns a non-zero value that no other living thread has.
#[inline]
pub fn enter_lock() -> usize {
    LOCAL.with(|local| {
        local.locks.store(local.locks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        std::ptr::from_ref(local).addr()
    })
}

/// The thread has given a lock back, or did not get it. Does the errands, lets in what was put off.
#[inline]
pub fn leave_lock() {
    LOCAL.with(|local| {
        compiler_fence(Ordering::SeqCst);
        let left = local.locks.load(Ordering::Relaxed) - 1;
        if left == 0 && local.owes.load(Ordering::Relaxed) {
            local.owes.store(false, Ordering::Relaxed);
            super::errand::run();
        }
        local.locks.store(left, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if left == 0 && local.put_off.load(Ordering::Relaxed) != 0 {
            let_in(local.put_off.swap(0, Ordering::Relaxed));
        }
    });
}

/// The thread asks for memory.
#[inline]
pub fn count_allocation() {
    LOCAL.with(|local| {
        local.allocations.store(local.allocations.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    });
}

/// The thread, which holds a lock, has [noted errands](super::errand).
pub fn owe_errands() {
    LOCAL.with(|local| local.owes.store(true, Ordering::Relaxed));
}

/// For a signal handler: did it interrupt code that holds a lock of ours?
pub fn holds_locks() -> bool {
    LOCAL.with(|local| local.locks.load(Ordering::Relaxed) > 0)
}

/// For a signal handler that must not run now: the signal stays blocked when the interrupted code
/// goes on (`mask` is the one that sigreturn restores), is pending again, and comes back when the
/// last lock is given back. The handler that calls this must run with the signal blocked: otherwise the
/// signal interrupts the handler at once.
pub fn put_off(signal: i32, info: &libc::siginfo_t, mask: &mut libc::sigset_t) {
    // SAFETY: a valid set and the number of a signal that has just been delivered.
    unsafe { libc::sigaddset(mask, signal) };
    LOCAL.with(|local| local.put_off.fetch_or(1 << (signal - 1), Ordering::Relaxed));
    send_again(signal, info);
}

/// Sends this thread a signal that it has got already. Async-signal-safe.
pub fn send_again(signal: i32, info: &libc::siginfo_t) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let info = core::ptr::from_ref(info) as usize;
    let arguments = [process_id() as usize, thread as usize, signal as usize, info, 0, 0];
    // SAFETY: `info` outlives the call; a process may send itself any siginfo.
    unsafe { super::wait::raw_syscall(libc::SYS_rt_tgsigqueueinfo, arguments) };
}

/// Unblocks a signal on this thread; true if it was blocked. Async-signal-safe.
pub fn unblock(signal: i32) -> bool {
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    let mut old = set;
    // SAFETY: a valid set; a number out of range is refused.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: both sets outlive the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut old) };
    // SAFETY: a valid set.
    unsafe { libc::sigismember(&old, signal) == 1 }
}

#[cold]
fn let_in(signals: u64) {
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    for signal in (1..=64).filter(|signal| signals >> (signal - 1) & 1 == 1) {
        // SAFETY: a valid set and a signal number in range.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the set outlives the call; no old one is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, core::ptr::null_mut()) };
}

/// How many signal handlers have run on this thread; only those without SA_RESTART if the call
/// that asks is one that the kernel restarts.
#[inline]
pub fn interruptions(restartable: bool) -> u32 {
    LOCAL.with(|local| {
        let counter = if restartable { &local.unrestartable } else { &local.handlers };
        counter.load(Ordering::Relaxed)
    })
}

/// [`interruptions`] and [`cached_id`] for the price of one: finding the thread's memory is most of
/// it.
#[inline]
pub fn interruptions_and_id(restartable: bool) -> (u32, u32) {
    LOCAL.with(|local| {
        let counter = if restartable { &local.unrestartable } else { &local.handlers };
        (counter.load(Ordering::Relaxed), id_of(local))
    })
}

/// The number of this thread, without a system call but for the first time. A child made by fork()
/// has to [`forget_id`] first.
#[inline]
pub fn cached_id() -> u32 {
    LOCAL.with(id_of)
}

#[inline]
fn id_of(local: &Local) -> u32 {
    match local.id.load(Ordering::Relaxed) {
        0 => learn_id(local),
        id => id,
    }
}

#[cold]
fn learn_id(local: &Local) -> u32 {
    let id = thread_id() as u32;
    local.id.store(id, Ordering::Relaxed);
    id
}

/// This process may be another one than that which this thread's memory was copied from.
pub fn forget_id() {
    LOCAL.with(|local| local.id.store(0, Ordering::Relaxed));
}

/// Notes that a handler runs now. Async-signal-safe: it changes this thread's memory only.
pub fn count_handler(restarts: bool) {
    LOCAL.with(|local| {
        local.handlers.fetch_add(1, Ordering::Relaxed);
        local.unrestartable.fetch_add(u32::from(!restarts), Ordering::Relaxed);
        let alarm = local.alarm.load(Ordering::Relaxed);
        if alarm >= 0 {
            local.alarms.fetch_add(1, Ordering::Relaxed);
            super::fd::with_borrowed(alarm, |fd| rustix::io::write(fd, &1u64.to_ne_bytes()));
        }
    });
}

/// An alarm that is set, and how often it was written to.
#[derive(Clone, Copy)]
pub struct Alarm {
    eventfd: i32,
    writes: u32,
}

/// The thread is about to sleep on this eventfd, among others. A handler that runs before it does makes
/// it readable, so that the sleep ends at once: cheaper than to block all signals until it has begun.
/// Returns the alarm of a sleep that the caller has interrupted, for [`end_alarm`].
pub fn set_alarm(eventfd: i32) -> Alarm {
    exchange_alarm(Alarm { eventfd, writes: 0 })
}

/// The sleep is over: what handlers have written is taken back, and what others have stays.
pub fn end_alarm(before: Alarm) {
    let Alarm { eventfd, writes } = exchange_alarm(before);
    if writes == 0 {
        return;
    }
    super::fd::with_borrowed(eventfd, |fd| {
        let mut count = [0u8; 8];
        let read = rustix::io::read(fd, &mut count);
        let others = u64::from_ne_bytes(count).saturating_sub(u64::from(writes));
        if read.is_ok() && others > 0 {
            let _ = rustix::io::write(fd, &others.to_ne_bytes());
        }
    });
}

/// A child that fork() made out of a handler: the sleep that was interrupted is the parent's.
pub fn forget_alarm() {
    exchange_alarm(Alarm { eventfd: -1, writes: 0 });
}

fn exchange_alarm(new: Alarm) -> Alarm {
    LOCAL.with(|local| {
        compiler_fence(Ordering::SeqCst);
        // A handler in between finds no alarm, or the new one.
        let eventfd = local.alarm.swap(-1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let writes = local.alarms.swap(new.writes, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        local.alarm.store(new.eventfd, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Alarm { eventfd, writes }
    })
}

/// The threads of the library's own that live, in the process of that number.
static OWN_THREADS: AtomicI32 = AtomicI32::new(0);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Starts a thread of the library's own. Signals are the application's: the caller blocks them, so that its handlers do not run
/// there.
pub fn start_own(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let run = || {
        LOCAL.with(|local| local.is_own.store(true, Ordering::Relaxed));
        run();
        OWN_THREADS.fetch_sub(1, Ordering::AcqRel);
    };
    if OWNER.swap(process_id(), Ordering::AcqRel) != process_id() {
        // Those of a parent are not here.
        OWN_THREADS.store(0, Ordering::Release);
    }
    let builder = std::thread::Builder::new().name(name.into()).stack_size(256 * 1024);
    builder.spawn(run)?;
    // Only now: `is_alone` must never count one that is not there.
    OWN_THREADS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Is the caller the program's only thread? False if that is not known.
pub fn is_alone() -> bool {
    if LOCAL.with(|local| local.is_own.load(Ordering::Relaxed)) {
        return false;
    }
    let is_owner = OWNER.load(Ordering::Acquire) == process_id();
    let own = if is_owner { OWN_THREADS.load(Ordering::Acquire) } else { 0 };
    // A directory has two links, and one more for each directory in it.
    rustix::fs::stat("/proc/self/task").is_ok_and(|tasks| {
        i64::try_from(tasks.st_nlink).is_ok_and(|links| links == 3 + i64::from(own))
    })
}

/// The CPU that this thread runs on at the moment.
pub fn current_cpu() -> u32 {
    // SAFETY: takes no argument.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}

/// The thread is about to call vfork(): it may be the child from now on, which has its memory.
/// (Elsewhere vfork() is fork().)
#[cfg(target_arch = "x86_64")]
pub fn note_vfork() {
    LOCAL.with(|local| local.vforked.store(true, Ordering::Relaxed));
}

/// May this be a vfork() child of the process `own`? Costs a system call only after a vfork().
#[inline]
pub fn is_vforked(own: i32) -> bool {
    LOCAL.with(|local| {
        let vforked = local.vforked.load(Ordering::Relaxed) && process_id() != own;
        if !vforked {
            local.vforked.store(false, Ordering::Relaxed);
        }
        vforked
    })
}

pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Sleeps; signals may cut it short.
pub fn nap_millis(millis: u64) {
    nap_micros(millis * 1000);
}

pub fn nap_micros(micros: u64) {
    let _ = super::wait::ppoll(&mut [], Some(micros * 1000), None);
}

/// The program runs with other rights than its caller's (AT_SECURE).
pub fn is_secure() -> bool {
    // SAFETY: getauxval reads what the kernel gave the process; no pointer is involved.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Ends the process at once, without its own clean-up.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process; std's exit would call the program's functions.
    unsafe { libc::_exit(status) }
}

/// Does a process exist, be it a zombie?
pub fn is_alive(process: i32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let Some(process) = Pid::from_raw(process) else { return false };
    !matches!(test_kill_process(process), Err(rustix::io::Errno::SRCH))
}

/// Is this the number of a thread of this process?
pub fn is_thread(thread: u32) -> bool {
    let arguments = [process_id() as usize, thread as usize, 0, 0, 0, 0];
    // SAFETY: signal 0 sends nothing; it takes no pointer.
    unsafe { super::wait::raw_syscall(libc::SYS_tgkill, arguments) == 0 }
}

pub fn parent_id() -> Option<i32> {
    rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get())
}

pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
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

/// Does the signal wait to be let in by this thread?
pub fn is_pending(signal: i32) -> bool {
    // SAFETY: an all-zero sigset_t is a valid (empty) set.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigpending(&mut set) };
    // SAFETY: a valid set and a signal number in range.
    unsafe { libc::sigismember(&set, signal) == 1 }
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

/// Lets the calling thread run on these CPUs only; false if the kernel refuses (none of them is
/// there for us).
pub fn pin_current(cpus: &[usize]) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// Puts the calling thread into the cpuset (or cgroup) of this directory.
pub fn join_cpuset(directory: &str) -> rustix::io::Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    // cpuset(7) and version 1 of cgroups; version 2 with threads.
    let tasks = super::fd::overwrite(&format!("{directory}/tasks"), thread.as_bytes());
    tasks.or_else(|_| {
        super::fd::overwrite(&format!("{directory}/cgroup.threads"), thread.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::wait::Waker;

    #[test]
    fn an_alarm_in_a_handler_leaves_the_interrupted_one_as_it_was() {
        let (outer, inner) = (Waker::new().unwrap(), Waker::new().unwrap());
        let before = set_alarm(outer.raw());
        count_handler(false);
        // The handler sleeps, too, is interrupted, and somebody else wakes it.
        let interrupted = set_alarm(inner.raw());
        count_handler(false);
        inner.wake();
        end_alarm(interrupted);
        assert_eq!(inner.clear(), 1, "what somebody else wrote stays");
        count_handler(false);
        end_alarm(before);
        assert_eq!((outer.clear(), inner.clear()), (0, 0));
        count_handler(false);
        assert_eq!((outer.clear(), inner.clear()), (0, 0), "nobody sleeps");
    }

    #[test]
    fn a_threads_number_is_its_own_and_learnt_anew_when_forgotten() {
        assert_eq!(cached_id(), thread_id() as u32);
        assert_eq!(interruptions_and_id(false).1, cached_id());
        let other = std::thread::spawn(|| (cached_id(), thread_id() as u32)).join().unwrap();
        assert_eq!(other.0, other.1);
        assert_ne!(other.0, cached_id());
        // As in a child, whose copy of the memory has its parent's number.
        LOCAL.with(|local| local.id.store(other.0, Ordering::Relaxed));
        forget_id();
        assert_eq!(cached_id(), thread_id() as u32);
    }
}
