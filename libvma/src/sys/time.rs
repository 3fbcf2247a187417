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

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Neither clock is negative, and u64 nanoseconds last until the year 2554.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
