//! Clocks. Only `shard::clock` turns these into the protocol's time.

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds.
#[inline]
pub fn monotonic_nanos() -> u64 {
    nanos(ClockId::Monotonic)
}

/// CLOCK_REALTIME in nanoseconds, for receive time stamps.
#[inline]
pub fn realtime_nanos() -> u64 {
    nanos(ClockId::Realtime)
}

/// A counter that rises steadily and is cheap to read; its unit is about a third of a nanosecond
/// where the processor has a time stamp counter, a nanosecond elsewhere.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux lets user space read it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return monotonic_nanos();
}

/// CLOCK_MONOTONIC when the process began, to a hundredth of a second; now, if /proc is not to be
/// had. A process older than the last suspension of the machine may get a time before 0, wrapped.
pub fn process_start_nanos() -> u64 {
    // Field 22 of proc(5)'s stat, in hundredths of a second (USER_HZ) of CLOCK_BOOTTIME; the
    // second field may hold blanks, but no bracket follows it.
    let stat = super::fd::read_file("/proc/self/stat").unwrap_or_default();
    let text = String::from_utf8_lossy(&stat);
    let fields = text.rsplit_once(')').map(|(_, rest)| rest);
    let start = fields.and_then(|rest| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
    let age = start.map_or(0, |ticks| nanos(ClockId::Boottime).saturating_sub(ticks * 10_000_000));
    monotonic_nanos().wrapping_sub(age)
}

/// Does [`cycles`] count at one rate for ever, whatever the processor's frequency and sleep states?
/// Asks the processor, which in a virtual machine takes microseconds.
pub fn cycles_are_steady() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::__cpuid;
        const POWER_MANAGEMENT: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        __cpuid(0x8000_0000).eax >= POWER_MANAGEMENT
            && __cpuid(POWER_MANAGEMENT).edx & INVARIANT != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Neither clock is negative, and u64 nanoseconds last until the year 2554.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
