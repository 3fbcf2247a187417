//! How many threads of the machine want to run at this moment, and whether one of them wants the
//! caller's CPU.

use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Fd, fd, thread, time};

/// A sched_yield() that finds nobody takes 0.3 to 0.7 us, two changes of threads much longer.
pub const EMPTY_YIELD_NANOS: u64 = 2_500;

/// An answer of [`Load::threads_per_cpu`] is good for so many nanoseconds. Threads that take turns ask with each of
/// them, and reading the file takes as long as a system call for a message.
const GOOD_FOR: u64 = 1_000_000;

/// Who else runs on the machine.
pub struct Load {
    /// proc(5)'s loadavg, opened while the process is free to: it may leave for a chroot.
    file: Option<Fd>,
    cpus: u32,
    /// The last answer about threads per CPU, and when it was given.
    answer: AtomicU64,
    answered: AtomicU64,
}

impl Load {
    pub fn open() -> Load {
        Load {
            file: open(),
            cpus: online_cpus(),
            answer: AtomicU64::new(1),
            answered: AtomicU64::new(0),
        }
    }

    /// Without any knowledge of the machine.
    #[cfg(test)]
    pub fn unknown() -> Load {
        Load { file: None, cpus: u32::MAX, answer: AtomicU64::new(1), answered: AtomicU64::new(0) }
    }

    /// May the calling thread run on every CPU? Then one of them is free as long as there are no more
    /// threads than CPUs; a thread that may not has to [give way](gave_way) to know.
    pub fn roams(&self) -> bool {
        self.file.is_some() && sched_getaffinity(None).is_ok_and(|set| count(&set) >= self.cpus)
    }

    /// Do more threads want to run than there are CPUs?
    pub fn is_crowded(&self) -> bool {
        self.running().is_some_and(|running| running > self.cpus)
    }

    /// Threads that run on a CPU or wait for it, rounded up; one if that is not known. The answer may be a
    /// millisecond old.
    pub fn threads_per_cpu(&self, now: u64) -> u64 {
        // Two threads that ask at once both read, and either answer is right.
        if now.saturating_sub(self.answered.load(Ordering::Acquire)) < GOOD_FOR {
            return self.answer.load(Ordering::Relaxed);
        }
        let running = self.running().unwrap_or(1);
        let answer = u64::from(running.div_ceil(self.cpus.max(1)).max(1));
        self.answer.store(answer, Ordering::Relaxed);
        self.answered.store(now, Ordering::Release);
        answer
    }

    /// Threads that run or want to, the caller among them.
    fn running(&self) -> Option<u32> {
        let mut text = [0; 64];
        let length = rustix::io::pread(self.file.as_ref()?, &mut text, 0).ok()?;
        running_in(text.get(..length)?)
    }
}

/// The fourth field: "0.20 0.18 0.12 1/80 11206".
fn running_in(text: &[u8]) -> Option<u32> {
    let field = text.split(|byte| *byte == b' ').nth(3)?;
    let number = field.split(|byte| *byte == b'/').next()?;
    core::str::from_utf8(number).ok()?.parse().ok()
}

fn open() -> Option<Fd> {
    let file = fd::open_read("/proc/loadavg").ok()?;
    // Containers may have a file system of their own over it: slow, and it counts other things.
    fstatfs(&file).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC).then_some(file)
}

/// From "0-3,8"; unknown is as many as can be.
fn online_cpus() -> u32 {
    let text = fd::read_file("/sys/devices/system/cpu/online").unwrap_or_default();
    core::str::from_utf8(&text).ok().and_then(cpus_in).unwrap_or(u32::MAX)
}

fn cpus_in(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn count(set: &CpuSet) -> u32 {
    set.count()
}

/// Lets others run on this CPU; true if somebody did.
pub fn gave_way() -> bool {
    let before = time::monotonic_nanos();
    thread::yield_now();
    time::monotonic_nanos().saturating_sub(before) > EMPTY_YIELD_NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_of_no_others_counts_itself() {
        assert_eq!(Load::unknown().threads_per_cpu(time::monotonic_nanos()), 1);
    }

    #[test]
    fn an_answer_is_good_for_a_while() {
        let load = Load::unknown();
        load.answer.store(7, Ordering::Relaxed);
        load.answered.store(GOOD_FOR, Ordering::Relaxed);
        assert_eq!(load.threads_per_cpu(2 * GOOD_FOR - 1), 7);
        assert_eq!(load.threads_per_cpu(2 * GOOD_FOR), 1, "read again");
        assert_eq!(load.threads_per_cpu(2 * GOOD_FOR + 1), 1);
    }

    #[test]
    fn the_kernels_files_are_understood() {
        assert_eq!(running_in(b"0.20 0.18 0.12 13/80 11206\n"), Some(13));
        assert_eq!(running_in(b"0.20 0.18"), None);
        for (list, cpus) in [("0\n", 1), ("0-3", 4), ("0-1,4,6-7\n", 5)] {
            assert_eq!(cpus_in(list), Some(cpus), "{list}");
        }
        assert_eq!((cpus_in(""), cpus_in("3-0")), (None, None));
    }

    #[test]
    fn threads_that_spin_are_counted() {
        let load = Load::open();
        let own = load.running().expect("Linux has the file");
        assert!(own >= 1 && load.cpus >= 1 && load.cpus < 10_000);
        let stop = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..load.cpus + 1 {
                scope.spawn(|| {
                    while !stop.load(core::sync::atomic::Ordering::Relaxed) {
                        core::hint::spin_loop();
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = time::monotonic_nanos();
            let (crowded, threads) = (load.is_crowded(), load.threads_per_cpu(now));
            stop.store(true, core::sync::atomic::Ordering::Relaxed);
            assert!(crowded && threads >= 2);
        });
    }
}
