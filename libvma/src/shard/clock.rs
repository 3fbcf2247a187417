//! The only place that makes protocol time from the machine's clock.

use core::ops::RangeInclusive;

use libvma_engine::time::Instant;

use crate::sys::time::{cycles, cycles_are_steady, monotonic_nanos};

#[inline]
pub fn now() -> Instant {
    Instant::from_nanos(monotonic_nanos())
}

/// Something that differs between processes, for the first IPv4 identification. Not a secret.
pub fn seed() -> u16 {
    let nanos = monotonic_nanos();
    (nanos ^ (nanos >> 16)) as u16
}

/// [`now`] by the processor's counter, at a third of the price: the system's clock is read once in
/// `SPAN` and the time between counted. It never goes back, and its error is a few nanoseconds. A counter that
/// jumps does it no more harm than some spans: nothing is counted beyond one.
///
/// One user at a time: it lies under the shard's lock.
pub struct Clock {
    steady: bool,
    /// Nanoseconds per cycle, by 2^32; 0 while that is not known.
    rate: u64,
    /// When the system's clock was read last, by it and by the counter.
    anchor: Reading,
    /// Cycles from the anchor on that may be counted.
    span: u64,
    /// What was told last.
    last: u64,
}

#[derive(Clone, Copy)]
struct Reading {
    nanos: u64,
    cycles: u64,
}

/// Short enough that a rate that is a little wrong does not matter, and long enough that nobody
/// notices the readings.
const SPAN: u64 = 1_000_000;
/// A rate is taken over this time at least: two readings are uncertain by some 50 ns.
const BASE: u64 = SPAN / 2;
/// From 8 GHz to 250 MHz.
const RATES: RangeInclusive<u64> = 1 << 29..=1 << 34;
/// Readings to begin with.
const ATTEMPTS: u32 = 8;
/// An interruption between the two halves of a reading makes it void. A third of a microsecond.
const DOUBT: u64 = 1000;

impl Clock {
    pub fn new() -> Clock {
        let certain = (0..ATTEMPTS).find_map(|_| Reading::take().certain);
        Clock {
            steady: certain.is_some() && cycles_are_steady(),
            rate: 0,
            anchor: certain.unwrap_or(Reading { nanos: 0, cycles: 0 }),
            span: 0,
            last: 0,
        }
    }

    #[inline]
    pub fn now(&mut self) -> Instant {
        let past = cycles().wrapping_sub(self.anchor.cycles);
        let nanos = if past < self.span {
            self.anchor.nanos.wrapping_add(scaled(past, self.rate))
        } else {
            self.read()
        };
        self.last = self.last.max(nanos);
        Instant::from_nanos(self.last)
    }

    /// Reads the system's clock, and counts on from there if that is certain enough.
    #[cold]
    fn read(&mut self) -> u64 {
        if !self.steady {
            return monotonic_nanos();
        }
        let taken = Reading::take();
        if let Some(reading) = taken.certain {
            self.anchor_at(reading);
        }
        taken.nanos
    }

    fn anchor_at(&mut self, now: Reading) {
        let time = now.nanos.saturating_sub(self.anchor.nanos);
        let passed = now.cycles.wrapping_sub(self.anchor.cycles);
        if time >= BASE {
            // A rate that no counter has (the machine was suspended) counts nothing.
            let rate = (u128::from(time) << 32) / u128::from(passed.max(1));
            self.rate = u64::try_from(rate).ok().filter(|rate| RATES.contains(rate)).unwrap_or(0);
        } else if self.rate == 0 {
            // Too early to know.
            return;
        }
        let span = (u128::from(SPAN) << 32).checked_div(u128::from(self.rate));
        self.span = span.map_or(0, |span| u64::try_from(span).unwrap_or(0));
        self.anchor = now;
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// A reading of both clocks.
struct Taken {
    nanos: u64,
    /// None if too much time passed between the two.
    certain: Option<Reading>,
}

impl Reading {
    fn take() -> Taken {
        let before = cycles();
        let nanos = monotonic_nanos();
        let taken = cycles().wrapping_sub(before);
        let reading = Reading { nanos, cycles: before.wrapping_add(taken / 2) };
        Taken { nanos, certain: (taken <= DOUBT).then_some(reading) }
    }
}

#[inline]
fn scaled(cycles: u64, rate: u64) -> u64 {
    ((u128::from(cycles) * u128::from(rate)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::{Duration, Instant as Wall};

    use super::*;

    /// Reads the clock between two readings of the system's; how far it lies outside of them.
    fn error(clock: &mut Clock) -> u64 {
        let before = monotonic_nanos();
        let told = clock.now().as_nanos();
        let after = monotonic_nanos();
        before.saturating_sub(told).max(told.saturating_sub(after))
    }

    #[test]
    fn it_keeps_to_the_systems_clock_and_never_goes_back() {
        let mut clock = Clock::new();
        let (began, mut last, mut readings, mut far) = (Wall::now(), Instant::default(), 0, 0);
        while began.elapsed() < Duration::from_secs(1) {
            // Rests of all lengths: within a span, and beyond.
            if readings % 512 == 0 {
                std::thread::sleep(Duration::from_micros(readings / 512 % 4000));
            }
            let now = clock.now();
            assert!(now >= last);
            last = now;
            readings += 1;
            far += u64::from(error(&mut clock) > 10_000);
        }
        // A clock that is wrong is wrong for a span, not now and then.
        assert!(far * 1000 <= readings, "{far} of {readings} readings are far off");
    }

    #[test]
    fn it_is_one_clock_for_all_threads() {
        let clock = Mutex::new((Clock::new(), Instant::default()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        let mut held = clock.lock().expect("nobody panicked");
                        let now = held.0.now();
                        assert!(now >= held.1);
                        held.1 = now;
                    }
                });
            }
        });
    }

    #[test]
    fn a_counter_that_jumps_does_no_more_than_a_spans_harm() {
        for jump in
            [1 << 20, 1 << 40, 1 << 62, 0u64.wrapping_sub(1 << 20), 0u64.wrapping_sub(1 << 40)]
        {
            let mut clock = Clock::new();
            let began = Wall::now();
            while began.elapsed() < Duration::from_millis(3) {
                clock.now();
            }
            clock.anchor.cycles = clock.anchor.cycles.wrapping_add(jump);
            for _ in 0..1000 {
                let off = error(&mut clock);
                assert!(off <= SPAN + 5_000_000, "{off} ns off after a jump of {jump:#x}");
            }
            // And is over soon.
            let began = Wall::now();
            while began.elapsed() < Duration::from_millis(5) {
                clock.now();
            }
            let best = (0..100).map(|_| error(&mut clock)).min();
            assert!(best.is_some_and(|off| off <= 10_000), "{best:?} ns off 5 ms after {jump:#x}");
        }
    }

    #[test]
    fn without_a_steady_counter_it_is_the_systems() {
        let mut clock = Clock { steady: false, ..Clock::new() };
        for _ in 0..1000 {
            assert_eq!(error(&mut clock), 0);
        }
    }
}
