//! Formats for programs: a stream of documents about all processes that are meant.

use std::time::Instant;

use crate::collect::Collector;
use crate::interrupt::Interrupt;
use crate::message::print;
use crate::options::{Choice, Options};
use crate::report::End;
use crate::sample::Sample;

/// Every cycle what `format` makes of the samples, until the cycles, or the one process that is
/// named, have ended.
pub fn stream(options: &Options, format: impl Fn(&[Sample]) -> String) -> anyhow::Result<End> {
    let mut collector = Collector::new(options);
    let mut interrupt = Interrupt::new()?;
    let mut cycle: u64 = 0;
    loop {
        let start = Instant::now();
        let samples = collector.collect();
        if samples.is_empty() && matches!(options.choice, Choice::Process(_)) {
            return Ok(if cycle == 0 { End::Failed } else { End::Done });
        }
        print(&format(&samples))?;
        cycle += 1;
        let rest = options.interval.saturating_sub(start.elapsed());
        if cycle == options.cycles || interrupt.sleep(rest)? {
            return Ok(End::Done);
        }
    }
}
