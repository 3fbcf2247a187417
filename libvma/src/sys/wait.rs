//! Sleeping until a descriptor is ready or a signal came, and waking such a sleeper.

use std::sync::atomic::AtomicU32;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use rustix::thread::futex;

use super::thread::SavedMask;
use super::{Fd, fd};

/// One descriptor to wait for; the layout of poll(2).
pub type PollFd = libc::pollfd;

/// ppoll(2) by raw system call: waits for `fds`, at most `timeout_nanos` (for ever if None), with
/// `mask` as the signal mask meanwhile. Returns how many are ready, or the errno.
pub fn ppoll(
    fds: &mut [PollFd],
    timeout_nanos: Option<u64>,
    mask: Option<&SavedMask>,
) -> Result<usize, i32> {
    ppoll_set(fds, timeout_nanos, mask.map(SavedMask::as_set))
}

/// As [`ppoll`], with the mask that an application gave.
pub fn ppoll_set(
    fds: &mut [PollFd],
    timeout_nanos: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, i32> {
    // The kernel writes the time left into it.
    let mut timeout = timeout_nanos.map(|nanos| libc::timespec {
        tv_sec: (nanos / 1_000_000_000).min(i64::MAX as u64) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let mask = mask.map_or(core::ptr::null(), core::ptr::from_ref);
    // The kernel's sigset is 8 bytes on every 64-bit Linux, libc's is larger.
    let arguments = [fds.as_mut_ptr() as usize, fds.len(), timeout as usize, mask as usize, 8, 0];
    // SAFETY: `fds` is a slice of pollfd of the length given; `timeout` and `mask` are null or point
    // to values that outlive the call; the kernel writes to `fds` (and the local timeout) only.
    let result = unsafe { raw_syscall(libc::SYS_ppoll, arguments) };
    if result < 0 { Err(-result as i32) } else { Ok(result as usize) }
}

/// The descriptors of one sleep. A receive call needs no allocation for it.
pub struct PollSet {
    inline: [PollFd; INLINE],
    count: usize,
    more: Vec<PollFd>,
    waker: i32,
}

/// A shadow, a waker, and the queues of a few rings.
const INLINE: usize = 40;

impl Default for PollSet {
    fn default() -> Self {
        let none = PollFd { fd: -1, events: 0, revents: 0 };
        PollSet { inline: [none; INLINE], count: 0, more: Vec::new(), waker: -1 }
    }
}

impl PollSet {
    pub fn add(&mut self, entry: PollFd) {
        if let Some(slot) = self.inline.get_mut(self.count) {
            *slot = entry;
            self.count += 1;
            return;
        }
        if self.more.is_empty() {
            self.more.extend_from_slice(&self.inline);
        }
        self.more.push(entry);
    }

    pub fn add_readable(&mut self, fd: i32) {
        self.add(PollFd { fd, events: libc::POLLIN, revents: 0 });
    }

    /// That of the sleeping thread.
    pub fn add_waker(&mut self, waker: i32) {
        self.add_readable(waker);
        self.waker = waker;
    }

    pub fn waker(&self) -> i32 {
        self.waker
    }

    pub fn as_mut_slice(&mut self) -> &mut [PollFd] {
        if self.more.is_empty() {
            self.inline.get_mut(..self.count).unwrap_or_default()
        } else {
            &mut self.more
        }
    }
}

/// Wakes one sleeper: an eventfd that the sleeper has among the descriptors it polls.
pub struct Waker(Fd);

impl Waker {
    pub fn new() -> rustix::io::Result<Waker> {
        Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?).map(Waker)
    }

    pub fn raw(&self) -> i32 {
        self.0.raw()
    }

    pub fn wake(&self) {
        // A full counter means that a wake-up is pending anyway.
        let _ = rustix::io::write(self.0.as_fd(), &1u64.to_ne_bytes());
    }

    /// How many wake-ups there were.
    pub fn clear(&self) -> u64 {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(self.0.as_fd(), &mut count);
        u64::from_ne_bytes(count)
    }
}

/// Sleeps until [`wake_all`] is called for a word that has this value, at most so long.
pub fn sleep_while(word: &AtomicU32, value: u32, longest_nanos: u64) {
    let longest = futex::Timespec {
        tv_sec: (longest_nanos / 1_000_000_000) as i64,
        tv_nsec: (longest_nanos % 1_000_000_000) as _,
    };
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&longest));
}

/// Wakes all threads that sleep by [`sleep_while`].
pub fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// A system call by its number, straight to the kernel. Returns what the kernel returns: a
/// negative errno on failure.
///
/// # Safety
/// The arguments must be what the call expects; pointers must be valid for what it does with them.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw_syscall(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call convention: number in rax, arguments in the six registers,
    // rcx and r11 clobbered. What the call does is the caller's promise.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
pub unsafe fn raw_syscall(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the arm64 system call convention: number in x8, arguments in x0 to x5.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number, inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack)
        );
    }
    result
}

/// Polls one descriptor number without waiting: its revents, 0 when nothing.
pub fn poll_now(raw: i32, events: i16) -> i16 {
    let mut one = [PollFd { fd: raw, events, revents: 0 }];
    match ppoll(&mut one, Some(0), None) {
        Ok(n) if n > 0 => one[0].revents,
        _ => 0,
    }
}

/// Borrow helper kept here so that callers of `wait` need no `unsafe`.
pub fn is_open(raw: i32) -> bool {
    if raw < 0 {
        return false;
    }
    // SAFETY: only asks the kernel about the number; it answers EBADF if it is closed.
    let borrowed = unsafe { fd::borrow(raw) };
    rustix::io::fcntl_getfd(borrowed.as_fd()).is_ok()
}
