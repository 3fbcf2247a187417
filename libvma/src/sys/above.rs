//! Descriptor numbers that the program cannot get.
//!
//! The kernel gives a process numbers below its soft limit (RLIMIT_NOFILE), and does not ask for the limit when a number is
//! used. So the library's own descriptors lie at or above it, and the program opens as many as without the library. To get such a
//! number takes a larger limit for the moment of one call, and the program must not see that one:
//!
//! * If the program has no other thread than the caller, and no signal handler can run, nothing of it can ask: the limit is
//!   raised and put back. 1 us.
//! * Else a task makes the call that shares memory and descriptors with the process, but not the limits (clone(2) without
//!   CLONE_THREAD), and ends. 50 us.
//!
//! A hard limit that is no larger than the soft one takes CAP_SYS_RESOURCE. Without that the descriptors stay below the limit.

use core::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};

use super::fd::FLOORS;
use super::thread;
use super::wait::raw_syscall;

/// The lowest number: what a program usually finds low is low.
const LOWEST: u64 = 1000;
/// The most numbers that may be the library's.
const ROOM: u64 = 1024;
/// The kernel keeps a table up to the highest number, and fork() copies it. Where the limit is larger than this, the descriptors
/// lie below it; they are a small part of what the program may open.
const LARGEST: u64 = 16_384;
/// Where the soft limit is larger than this, a program without sockets gets no longer table: that would be 128 KiB and more.
const LARGEST_MADE: u64 = 4096;

/// The hard limit is the soft one, and the process may not raise it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// A copy of a descriptor that lies below the limit. None if there is no better number.
pub fn copy(fd: BorrowedFd<'_>) -> Option<RawFd> {
    let raised = Raised::new()?;
    if fd.as_raw_fd() as u64 >= raised.floor {
        return None;
    }
    let command = libc::F_DUPFD_CLOEXEC as usize;
    let arguments = [fd.as_raw_fd() as usize, command, raised.floor as usize, 0, 0, 0];
    let copy = raised.call(libc::SYS_fcntl, arguments);
    RawFd::try_from(copy).ok().filter(|copy| *copy >= 0)
}

/// Has the kernel make its table of descriptors long enough for all of the library's numbers, while the program has one thread: where
/// others share the table, the kernel waits for a grace period of RCU each time that it grows (`expand_fdtable()` in fs/file.c), and
/// the program's first socket() would take 10 to 30 ms. exec() keeps the table; fork() makes a short one anew.
#[cold]
pub fn make_room() {
    if !thread::is_alone() {
        return;
    }
    let raised = Raised::new();
    if raised.as_ref().is_some_and(|raised| raised.floor > LARGEST_MADE) {
        return;
    }
    let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    let any = any.into_raw_fd();
    let copied =
        |number: u64| [any as usize, libc::F_DUPFD_CLOEXEC as usize, number as usize, 0, 0, 0];
    // An attempt without the right would be an entry in the audit log for each program that starts.
    let above = raised
        .filter(|raised| !raised.beyond_hard || rustix::process::geteuid().is_root())
        .map(|raised| raised.call(libc::SYS_fcntl, copied(raised.limits.rlim_cur - 1)));
    let copy = above.filter(|copy| *copy >= 0).or_else(|| {
        let last = FLOORS[0] as u64 + ROOM - 1;
        let numbers = [last].into_iter().chain(FLOORS.map(|floor| floor as u64));
        // SAFETY: numbers only.
        let below = |number| unsafe { raw_syscall(libc::SYS_fcntl, copied(number)) };
        numbers.map(below).find(|copy| *copy >= 0)
    });
    for fd in [Some(any), copy.and_then(|copy| RawFd::try_from(copy).ok())].into_iter().flatten() {
        // SAFETY: open, and not used after this line.
        unsafe { rustix::io::close(fd) };
    }
}

/// Puts a copy of a descriptor in the place of `number`, at once, whatever the limit is.
pub fn replace(fd: BorrowedFd<'_>, number: RawFd) -> bool {
    let arguments = [fd.as_raw_fd() as usize, number as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: numbers only; the caller owns the descriptor that is closed.
    let below = unsafe { raw_syscall(libc::SYS_dup3, arguments) };
    below >= 0 || Raised::new().is_some_and(|raised| raised.call(libc::SYS_dup3, arguments) >= 0)
}

/// Does the library live above the limit, so that it need not spare descriptors?
pub fn is_possible() -> bool {
    Raised::new().is_some()
}

/// Is this a number that the kernel gives the program under no circumstances?
pub fn is_beyond(fd: RawFd) -> bool {
    limits().is_some_and(|(soft, _)| fd as u64 >= soft)
}

/// The limits for a call.
struct Raised {
    limits: libc::rlimit64,
    floor: u64,
    /// They take CAP_SYS_RESOURCE.
    beyond_hard: bool,
}

impl Raised {
    fn new() -> Option<Raised> {
        let (soft, hard) = limits()?;
        let floor = soft.max(LOWEST);
        if soft > LARGEST {
            return None;
        }
        let wanted = floor + ROOM;
        let beyond_hard = hard <= floor;
        if beyond_hard && REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let current = if beyond_hard { wanted } else { wanted.min(hard) };
        let limits = libc::rlimit64 { rlim_cur: current, rlim_max: hard.max(current) };
        Some(Raised { limits, floor, beyond_hard })
    }

    /// Makes a system call whose arguments are numbers.
    fn call(&self, number: c_long, arguments: [usize; 6]) -> isize {
        let mut job =
            Job { limits: self.limits, number, arguments, result: -(libc::EAGAIN as isize) };
        // A signal handler could see the limit, or could fork.
        let saved = thread::block_signals();
        if thread::is_alone() {
            job.run_here();
        } else {
            job.run_beside();
        }
        thread::restore_signals(&saved);
        if self.beyond_hard && job.result == -(libc::EPERM as isize) {
            REFUSED.store(true, Ordering::Relaxed);
        }
        job.result
    }
}

fn limits() -> Option<(u64, u64)> {
    let mut own = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer, which outlives the call.
    (unsafe { set_limits(core::ptr::null(), &mut own) } >= 0)
        .then_some((own.rlim_cur, own.rlim_max))
}

/// # Safety
/// prlimit64(2): each is null or a limit that outlives the call.
unsafe fn set_limits(new: *const libc::rlimit64, old: *mut libc::rlimit64) -> isize {
    let arguments = [0, libc::RLIMIT_NOFILE as usize, new as usize, old as usize, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { raw_syscall(libc::SYS_prlimit64, arguments) }
}

struct Job {
    limits: libc::rlimit64,
    number: c_long,
    arguments: [usize; 6],
    result: isize,
}

impl Job {
    fn run_here(&mut self) {
        let mut own = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both outlive the call.
        let raised = unsafe { set_limits(&self.limits, &mut own) };
        if raised < 0 {
            self.result = raised;
            return;
        }
        // SAFETY: the arguments are numbers, `Raised::call` promises.
        self.result = unsafe { raw_syscall(self.number, self.arguments) };
        // SAFETY: it outlives the call, which cannot fail: a limit may always be lowered.
        unsafe { set_limits(&own, core::ptr::null_mut()) };
    }

    /// The task is not traced by a debugger of the program, sends no signal when it ends, and its caller waits until then. If there
    /// cannot be one (too many processes, a filter), the result stays an error.
    fn run_beside(&mut self) {
        const SIZE: usize = 4096;
        #[repr(align(16))]
        struct Stack([u8; SIZE]);
        let mut stack = Stack([0; SIZE]);
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_UNTRACED;
        let job = core::ptr::from_mut(self).cast();
        let top = stack.0.as_mut_ptr_range().end.cast::<c_void>();
        // clone() changes it if it fails.
        // SAFETY: takes no argument; the place of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it is as long there as the thread.
        let before = unsafe { errno.read() };
        // SAFETY: the stack grows down from its end, and is large enough for three system calls without a signal handler: all
        // signals are blocked, in the task as well. CLONE_VFORK: this frame, with the stack and the job, stays until the task has
        // ended. The task shares this thread's thread-local storage, which neither it nor the waiting thread uses.
        let task = unsafe { libc::clone(run_as_task, top, flags, job) };
        // SAFETY: as above.
        unsafe { errno.write(before) };
        if task > 0 {
            let arguments = [task as usize, 0, libc::__WALL as usize, 0, 0, 0];
            // SAFETY: no pointer is passed. It has ended, so this does not wait.
            unsafe { raw_syscall(libc::SYS_wait4, arguments) };
        }
    }
}

extern "C" fn run_as_task(job: *mut c_void) -> c_int {
    // SAFETY: `Job::run_beside` passes its job, and waits until this task has ended.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.run_here();
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::sync::atomic::AtomicUsize;

    fn limit(soft: u64) -> Rlimit {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: before.maximum })
            .unwrap();
        getrlimit(Resource::Nofile)
    }

    /// A copy that is one: it lies above the limit, and is the same file.
    fn is_copied_above(soft: u64) -> bool {
        let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let Some(copied) = copy(file.as_fd()) else { return false };
        // SAFETY: open, and nobody else's.
        let copied = unsafe { super::super::fd::own(copied) };
        rustix::io::write(&copied, &7u64.to_ne_bytes()).unwrap();
        let mut count = [0; 8];
        rustix::io::read(&file, &mut count).unwrap();
        let flags = rustix::io::fcntl_getfd(&copied).unwrap();
        copied.as_raw_fd() as u64 >= soft
            && count == 7u64.to_ne_bytes()
            && flags.contains(rustix::io::FdFlags::CLOEXEC)
    }

    #[test]
    fn a_copy_lies_above_the_limit_and_no_thread_sees_a_larger_one() {
        let own = limit(1200);
        let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(getrlimit(Resource::Nofile).current, own.current);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
            while asked.load(Ordering::Relaxed) < 1000 {
                assert!(is_copied_above(1200));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(getrlimit(Resource::Nofile).maximum, own.maximum);
        // No task is left.
        assert!(rustix::process::wait(rustix::process::WaitOptions::empty()).is_err());
    }

    #[test]
    fn a_program_of_one_thread_has_its_limit_back() {
        let own = limit(1200);
        // SAFETY: the child makes system calls, allocates nothing and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let alone = thread::is_alone();
            let copied = is_copied_above(1200);
            let same = getrlimit(Resource::Nofile).current == own.current
                && getrlimit(Resource::Nofile).maximum == own.maximum;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!(alone && copied && same))) };
        }
        let mut status = -1;
        // SAFETY: room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn a_number_above_the_limit_gets_another_file() {
        limit(1200);
        let (first, second) = (EventfdFlags::CLOEXEC, EventfdFlags::CLOEXEC);
        let (first, second) = (eventfd(0, first).unwrap(), eventfd(5, second).unwrap());
        let high = copy(first.as_fd()).unwrap();
        assert!(replace(second.as_fd(), high));
        // SAFETY: open, and nobody else's.
        let high = unsafe { super::super::fd::own(high) };
        let mut count = [0; 8];
        rustix::io::read(&high, &mut count).unwrap();
        assert_eq!(count, 5u64.to_ne_bytes());
    }

    #[test]
    fn descriptors_stay_below_a_large_limit() {
        if getrlimit(Resource::Nofile).maximum.is_none_or(|hard| hard > LARGEST) {
            limit(LARGEST + 1);
            assert!(!is_possible());
            limit(LARGEST);
        }
        assert!(is_possible());
    }
}
