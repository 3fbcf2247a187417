//! When a thread that waits does not poll: others want the CPU.
//!
//! A poll that goes on while more threads want to run than there are CPUs keeps the very thread from
//! running that would end it, up to a slice of the scheduler (milliseconds). So a wait looks at others after
//! some microseconds, and then now and then. A thread that found the CPUs crowded gives the others a
//! few turns and then sleeps, also in its next waits, for a pause that grows as long as it finds them so.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys::load::{self, Load};
use crate::sys::thread;
use crate::sys::time::monotonic_nanos;

/// The first pause.
const SHORTEST: u64 = 100_000;
/// Looking costs a microsecond if a number of the machine's tells.
const LONGEST: u64 = 10_000_000;
/// It may cost a slice of the scheduler if the CPU has to be given away for it.
const LONGEST_BY_YIELD: u64 = 1_000_000_000;

/// Of a thread; only the thread itself and its signal handlers touch it.
struct Mood {
    /// It does not poll before this time; 0 if it may.
    until: AtomicU64,
    /// The pause that led there.
    pause: AtomicU64,
}

thread_local! {
    static MOOD: Mood = const { Mood { until: AtomicU64::new(0), pause: AtomicU64::new(0) } };
}

/// If each of the others took longer, one of them computes, and does not wait.
const LONG_TURN: u64 = 100_000;

thread_local! {
    /// As [`MOOD`], for giving the CPU away instead of sleeping.
    static TURNS: Mood = const { Mood { until: AtomicU64::new(0), pause: AtomicU64::new(0) } };
}

/// After so many waits one after the other that gave turns in vain, the thread stops giving any for a while.
const MANY_IN_VAIN: u32 = 4;

thread_local! {
    /// As [`TURNS`], for turns after which the thread sleeps all the same.
    static IN_VAIN: Mood = const { Mood { until: AtomicU64::new(0), pause: AtomicU64::new(0) } };
    /// Waits that gave turns in vain since the last one whose turns paid.
    static WAITS_IN_VAIN: AtomicU32 = const { AtomicU32::new(0) };
}

/// May a thread that finds the CPUs crowded let the others have a turn, and poll again? Where all of
/// them wait for each other that is far cheaper than sleeping and being woken.
pub fn may_take_turns() -> bool {
    let now = monotonic_nanos();
    [&TURNS, &IN_VAIN].iter().all(|mood| mood.with(|it| now >= it.until.load(Ordering::Relaxed)))
}

/// A wait that gave turns has ended, or sleeps now (`in_vain`). A wait in vain costs the turns and the sleep. Beside a server on kernel
/// sockets that computes, most waits are in vain; the thread sleeps at once then, for a pause.
pub fn note_end_of_turns(in_vain: bool) {
    let (before, now) = WAITS_IN_VAIN.with(|waits| {
        let before = waits.load(Ordering::Relaxed);
        let now = if in_vain { before.saturating_add(1) } else { 0 };
        waits.store(now, Ordering::Relaxed);
        (before, now)
    });
    if before.max(now) >= MANY_IN_VAIN {
        IN_VAIN.with(|mood| mood.note(in_vain, LONGEST));
    }
}

/// The pause in which the thread gives no turns, in nanoseconds.
#[cfg(test)]
pub fn pause_of_turns() -> u64 {
    IN_VAIN.with(|mood| mood.pause.load(Ordering::Relaxed))
}

/// Lets the others have a turn. False if nobody took it.
pub fn give_turn(load: &Load) -> bool {
    let before = monotonic_nanos();
    thread::yield_now();
    let after = monotonic_nanos();
    let turn = after.saturating_sub(before);
    TURNS.with(|mood| mood.note_turn(turn, || load.threads_per_cpu(after)));
    was_taken(turn)
}

/// Did another thread run meanwhile?
fn was_taken(turn: u64) -> bool {
    turn > load::EMPTY_YIELD_NANOS
}

/// What a wait that begins may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    Poll,
    /// Only if nobody else wants the CPU: [`look`].
    LookFirst,
    Sleep,
}

#[inline]
pub fn advice() -> Advice {
    match MOOD.with(|mood| mood.until.load(Ordering::Relaxed)) {
        0 => Advice::Poll,
        until if monotonic_nanos() < until => Advice::Sleep,
        _ => Advice::LookFirst,
    }
}

/// Does anybody else want the CPU? Not to be asked with a lock held. `thorough` if the CPU may be given
/// away for a moment, though there seem to be enough.
#[cold]
pub fn look(load: &Load, thorough: bool) -> bool {
    let roams = load.roams();
    // While there are more threads than CPUs nothing is given away: it would be gone for a slice.
    let (crowded, longest) = match roams {
        true if load.is_crowded() => (true, LONGEST),
        true => (thorough && load::gave_way(), LONGEST),
        false => (load::gave_way(), LONGEST_BY_YIELD),
    };
    MOOD.with(|mood| mood.note(crowded, longest));
    crowded
}

impl Mood {
    /// The others had the CPU for so many nanoseconds. A turn that no thread took tells nothing of how long
    /// theirs are.
    fn note_turn(&self, turn: u64, threads_per_cpu: impl FnOnce() -> u64) {
        if was_taken(turn) {
            // All of them may have had one.
            let is_long = turn > LONG_TURN && turn > threads_per_cpu().saturating_mul(LONG_TURN);
            self.note(is_long, LONGEST_BY_YIELD);
        }
    }

    fn note(&self, crowded: bool, longest: u64) {
        let pause = self.pause.load(Ordering::Relaxed);
        let (pause, until) = if crowded {
            let pause = pause.saturating_mul(2).clamp(SHORTEST, longest);
            (pause, monotonic_nanos().saturating_add(pause))
        } else {
            // One look in a calm moment is not the end of a busy time.
            (pause / 4, 0)
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.until.store(until, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_no_thread_took_do_not_shorten_the_pauses() {
        let mood = Mood { until: AtomicU64::new(0), pause: AtomicU64::new(0) };
        let pause = || mood.pause.load(Ordering::Relaxed);
        for doubled in [SHORTEST, 2 * SHORTEST, 4 * SHORTEST] {
            mood.note_turn(3_000_000, || 2);
            let until = mood.until.load(Ordering::Relaxed);
            mood.note_turn(load::EMPTY_YIELD_NANOS, || 2);
            assert_eq!((pause(), mood.until.load(Ordering::Relaxed)), (doubled, until));
        }
        // Not long where two threads share the CPU.
        mood.note_turn(2 * LONG_TURN, || 2);
        assert_eq!((pause(), mood.until.load(Ordering::Relaxed)), (SHORTEST, 0));
    }

    #[test]
    fn pauses_grow_while_the_cpus_are_crowded_and_shrink_after() {
        let mood = Mood { until: AtomicU64::new(0), pause: AtomicU64::new(0) };
        let mut pauses = Vec::new();
        for crowded in [true, true, true, false, true, false, false, false] {
            mood.note(crowded, 300_000);
            pauses.push(mood.pause.load(Ordering::Relaxed));
            assert_eq!(mood.until.load(Ordering::Relaxed) > 0, crowded);
        }
        let expected = [100_000, 200_000, 300_000, 75_000, 150_000, 37_500, 9_375, 2_343];
        assert_eq!(pauses, expected);
    }
}
