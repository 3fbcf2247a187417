//! The only place that makes protocol time from the machine's clock.

use crate::net::time::Instant;
use crate::sys::time::monotonic_nanos;

#[inline]
pub fn now() -> Instant {
    Instant::from_nanos(monotonic_nanos())
}

/// Something that differs between processes, for the first IPv4 identification. Not a secret.
pub fn seed() -> u16 {
    let nanos = monotonic_nanos();
    (nanos ^ (nanos >> 16)) as u16
}
