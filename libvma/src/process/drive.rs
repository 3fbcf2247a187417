//! Driving the rings when no thread of the program does: what arrives is answered, what was lost is
//! sent again, connections come to their end.
//!
//! A thread that polls, or sleeps on the rings, does all that itself, and must not be fought for the
//! lock and the packets. So the internal thread looks once in an interval whether anybody polled.
//! Only if nobody did, and there are connections, it sleeps on the rings' descriptors itself, and it
//! stops as soon as somebody else polls again. Links with other processes count as connections do.

use libvma_engine::time::Instant;

use crate::shard;
use crate::socket::{Socket, Stack, filter};
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::PollSet;

const SECOND: u64 = 1_000_000_000;
/// A program left data behind that is held until the peer acknowledges, or a connection that the peer may still send
/// to: how soon to look whether it polls. Doubles as long as it does, because then it needs nobody.
const SOON: u64 = 100_000;
/// VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING=0: others that poll run the timers, unless they are late.
const LATE: u64 = 1_000_000;
/// While nobody polls and there are but links, the intervals grow up to this, or the one configured
/// if that is longer. They are as long when nothing happens at all ([`DOZES_AFTER`]).
const LONGEST_QUIET: u64 = 100_000_000;
/// After so many intervals in which nobody polled and nothing came, this thread sleeps for longer, and on the
/// rings' descriptors if no thread of the program does: an idle program shall not wake a hundred times a second. Packets, and
/// polls of the program, bring the interval back.
const DOZES_AFTER: u32 = 100;

pub struct Drive {
    /// VMA_PROGRESS_ENGINE_INTERVAL; 0 is never, but connections come to their end all the same.
    interval: u64,
    /// VMA_PROGRESS_ENGINE_WCE_MAX: packets taken in one go.
    most: u64,
    /// VMA_INTERNAL_THREAD_ARM_CQ: whoever else polls, every packet wakes this thread, too.
    armed: bool,
    /// How late a timer may be before this thread runs it though others poll.
    late: u64,
    /// The count of polls when this thread last looked.
    seen: u64,
    /// Nobody else polls.
    alone: bool,
    /// When the present interval ends.
    next: u64,
    /// The interval while data is held. At its least, this thread sleeps on the rings all the same.
    soon: u64,
    /// It does so now.
    lurks: bool,
    /// The time after a close() that this thread knows of.
    closing_until: Instant,
    /// Times in a row that this thread looked and nobody else had polled.
    quiet: u32,
}

impl Drive {
    pub fn new(stack: &Stack) -> Drive {
        Drive {
            interval: stack.config.progress_interval_msec * 1_000_000,
            most: stack.config.progress_most,
            armed: stack.config.internal_thread_arm,
            late: if stack.config.internal_thread_timers { 0 } else { LATE },
            seen: 0,
            alone: false,
            next: 0,
            soon: SOON,
            lurks: false,
            closing_until: Instant::from_nanos(0),
            quiet: 0,
        }
    }

    /// Before the thread sleeps: how long, in nanoseconds, and on which rings.
    pub fn prepare(&mut self, stack: &Stack, set: &mut PollSet) -> Option<u64> {
        let Some(mut state) = stack.shard.try_lock() else { return Some(self.tick()) };
        if !stack.shard.is_live() {
            // Nothing to drain: only events wake the thread. Without draining, things still age.
            return state.has_tcp().then_some(SECOND);
        }
        let now = monotonic_nanos();
        let may_wait = !state.has_tcp() && !state.has_interfaces();
        let closing_until = state.closing_until();
        if closing_until != self.closing_until {
            self.closing_until = closing_until;
            self.soon = SOON;
        }
        let waits = state.holds_data() || now < closing_until.as_nanos();
        let holds = self.interval > 0 && !self.alone && waits;
        let dozes = self.may_doze(stack) && !waits;
        let mut tick = if may_wait || dozes { self.quiet_tick() } else { self.tick() };
        if holds {
            tick = tick.min(self.soon);
        }
        self.lurks = holds && self.soon == SOON;
        if self.next <= now || self.next > now.saturating_add(tick) {
            self.next = now.saturating_add(tick);
        }
        let mut wake = self.next;
        let concerns = state.has_tcp() || state.has_links() || dozes;
        let drives = self.alone && concerns || self.lurks || self.armed;
        if drives && !state.has_sleepers() {
            state.sleep_on_all(|fd| set.add_readable(fd));
        }
        if (drives && !state.has_sleepers() || self.late == 0)
            && let Some(deadline) = state.tcp_deadline()
        {
            wake = wake.min(deadline.as_nanos());
        }
        match stack.internal_waker.clone().filter(|_| dozes) {
            Some(waker) => state.doze(waker),
            None => state.end_doze(),
        }
        Some(wake.saturating_sub(now))
    }

    /// Has nothing happened for so long that this thread may sleep for longer?
    fn may_doze(&self, stack: &Stack) -> bool {
        let is_idle = self.alone && self.quiet >= DOZES_AFTER;
        // Without a waker no call could end the sleep.
        let may_be_woken = stack.internal_waker.is_some();
        is_idle
            && may_be_woken
            && self.interval > 0
            && !self.armed
            && !stack.extra.callbacks.are_any()
    }

    fn tick(&self) -> u64 {
        if self.interval > 0 { self.interval } else { SECOND }
    }

    fn quiet_tick(&self) -> u64 {
        let longest = LONGEST_QUIET.max(self.tick());
        self.tick().saturating_mul(1 << self.quiet.min(16)).min(longest)
    }

    /// After the sleep: takes what has arrived if nobody else did since the last time.
    pub fn step(&mut self, stack: &Stack) {
        let Some(mut state) = stack.shard.try_lock() else {
            self.alone = false;
            return;
        };
        state.end_doze();
        let now = monotonic_nanos();
        let is_late = |due: Instant| due.as_nanos() + self.late < now;
        if self.armed {
            self.drain(&mut state);
            state.run_tcp();
        } else if state.polls() != self.seen {
            // What woke this thread is more likely the acknowledgment that data waits for than not.
            if (self.alone || self.lurks) && state.holds_data() {
                self.drain(&mut state);
            }
            self.alone = false;
            self.quiet = 0;
            if self.lurks || now >= self.next {
                self.soon = self.soon.saturating_mul(2).min(self.interval.max(SOON));
            }
            // A program that polls now and then is late for timers.
            if state.tcp_deadline().is_some_and(is_late) {
                state.run_tcp();
            }
        } else if self.alone || self.lurks || now >= self.next {
            self.alone = true;
            self.soon = SOON;
            self.quiet = self.quiet.saturating_add(1);
            if self.interval > 0 || state.has_tcp() || state.has_links() {
                if self.drain(&mut state) > 0 {
                    state.replace_listener();
                    if state.has_interfaces() {
                        self.quiet = 0;
                    }
                }
                state.run_tcp();
            }
        } else if self.late == 0 && state.tcp_deadline().is_some_and(is_late) {
            state.run_tcp();
        }
        self.seen = state.polls();
        if stack.extra.callbacks.are_any() {
            filter::note_arrivals(stack, &mut state);
        }
    }

    /// Takes what has arrived, but not for ever: others want the lock.
    /// Returns how many packets that were.
    fn drain(&self, state: &mut shard::State<Socket>) -> u64 {
        let mut taken = 0;
        loop {
            let packets = state.poll() as u64;
            taken += packets;
            if packets == 0 || taken >= self.most {
                return taken;
            }
        }
    }
}
