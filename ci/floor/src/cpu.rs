//! Pinning the calling thread to one CPU.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread to `cpu`, or leaves it where the caller's mask (taskset) allows.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pin to cpu {cpu}"))
}
