//! When a send kicks its ring, and when it may leave that to a later one.
//!
//! A kick is a system call of some 300 ns. It is made with the send, so that no datagram waits,
//! unless the program demonstrably does nothing but send: after [`STREAK`] sends in a row, most of
//! them within [`GAP`] of the one before and no receive or poll call between them. From then on
//! up to [`BATCH`] datagrams share a kick. What is left when the program stops is sent by its next
//! call of any kind, or by the internal thread, which looks every [`TICK_NANOS`] whether it can have the
//! shard's lock.

use crate::sys::time::cycles;

/// Sends in a row before kicks are shared: a burst of market data is shorter, a blast is not.
const STREAK: u32 = 256;
/// In cycles: about 2 us on the machines of today.
const GAP: u64 = 6000;
/// An interrupt makes a gap now and then; that many quick sends make up for one.
const SETBACK: u32 = 32;
/// The program paused, for 50 us or more: what follows is something new.
const PAUSE: u64 = 150_000;
const BATCH: u32 = 16;
/// How often the internal thread looks for datagrams that wait; a datagram waits two looks at most,
/// unless another thread is at work in the shard.
pub const TICK_NANOS: u64 = 50_000;

#[derive(Default)]
pub struct Burst {
    in_a_row: u32,
    /// When the last send was, or in a blast the last kick.
    last: u64,
}

impl Burst {
    /// The program did something else.
    #[inline]
    pub fn end(&mut self) {
        self.in_a_row = 0;
    }

    /// A datagram was queued, `unsent` of them wait on the ring: may the kick wait, too?
    #[inline]
    pub fn may_wait(&mut self, unsent: u32) -> bool {
        // The first send after something else, as in every request and answer, reads no clock;
        // nor does a blast, but for its kicks.
        if self.in_a_row == 0 {
            self.in_a_row = 1;
            return false;
        }
        if self.in_a_row > STREAK && unsent < BATCH {
            return true;
        }
        self.judge(cycles(), u64::from(unsent.max(1)));
        false
    }

    /// Another `sends` datagrams were sent by `now`.
    fn judge(&mut self, now: u64, sends: u64) {
        let gap = now.wrapping_sub(core::mem::replace(&mut self.last, now));
        if self.in_a_row > 1 && gap > GAP * sends {
            let back = if gap > PAUSE { self.in_a_row } else { SETBACK };
            self.in_a_row = self.in_a_row.saturating_sub(back).max(1);
        } else {
            self.in_a_row = (self.in_a_row + sends as u32).min(2 * STREAK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many sends that stand alone, `gap` cycles apart.
    fn after(sends: u32, gap: u64) -> Burst {
        let mut burst = Burst::default();
        assert!(!burst.may_wait(1));
        for n in 0..u64::from(sends) {
            burst.judge(1_000_000 + n * gap, 1);
        }
        burst
    }

    #[test]
    fn a_short_burst_kicks_every_send() {
        for sends in 0..STREAK - 1 {
            assert!(!after(sends, 500).may_wait(1), "send {sends}");
        }
    }

    #[test]
    fn a_blast_shares_kicks_up_to_the_batch() {
        let mut burst = after(STREAK, 500);
        assert!(burst.may_wait(1));
        assert!(burst.may_wait(BATCH - 1));
        assert!(!burst.may_wait(BATCH));
    }

    #[test]
    fn a_pause_or_another_call_ends_it() {
        let mut burst = after(STREAK, 500);
        burst.judge(burst.last + PAUSE + 1, 1);
        assert!(!burst.may_wait(1));
        let mut burst = after(STREAK, 500);
        burst.end();
        assert!(!burst.may_wait(1));
    }

    #[test]
    fn an_interrupt_now_and_then_does_not_end_it() {
        let mut burst = after(2 * STREAK, 500);
        for _ in 0..10 {
            burst.judge(burst.last + GAP + 1, 1);
            for _ in 0..100 {
                burst.judge(burst.last + 500, 1);
            }
        }
        assert!(burst.may_wait(1));
    }

    #[test]
    fn a_steady_publisher_never_waits() {
        assert!(!after(10_000, GAP + 1).may_wait(1));
    }
}
