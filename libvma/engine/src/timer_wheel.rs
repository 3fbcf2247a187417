//! Deadlines of many timers, one per id: a hierarchical timing wheel (Varghese and Lauck, 1987).
//! What expires is returned, never called; no clock is read.
//!
//! A deadline lies on the level of the highest digit, to the base 64, in which its tick differs
//! from the current one. Since the digits above agree, everything on a level is due before anything
//! on the levels above it, so finding the next deadline is two bit scans. When time reaches a slot
//! of a higher level its timers move down; each moves at most once per level.

use crate::alloc;
use alloc::boxed::Box;
use alloc::vec::Vec;

use super::time::Instant;

/// Deadlines by id, with a resolution of [`TICK_NANOS`]: a timer expires never before its deadline
/// and less than one tick behind it.
///
/// Ids are the caller's, and best small and dense: the memory is that of the largest one, 24 bytes
/// each. Scheduling, rescheduling and cancelling take constant time.
pub struct TimerWheel {
    /// Every tick up to here has been looked at.
    elapsed: u64,
    /// By id.
    timers: Vec<Timer>,
    /// The first timer of each circular list: that of slot `s` on level `l` is number
    /// `l * SLOTS + s`, that of the expired ones is [`DUE`].
    heads: Box<[u32; LISTS]>,
    /// Which slots of a level are not empty.
    slots: [u64; LEVELS],
    /// Which levels are not empty.
    levels: u8,
    len: usize,
}

/// The resolution of all timers.
pub const TICK_NANOS: u64 = 1_000_000;

impl TimerWheel {
    pub fn new(now: Instant) -> TimerWheel {
        TimerWheel {
            elapsed: now.as_nanos() / TICK_NANOS,
            timers: Vec::new(),
            heads: Box::new([NONE; LISTS]),
            slots: [0; LEVELS],
            levels: 0,
            len: 0,
        }
    }

    /// Sets the deadline of `id`, in place of the one it has. A deadline in the past is due at
    /// once. Allocates only if `id` is the largest so far. `u32::MAX` is no id and is ignored.
    #[inline]
    pub fn schedule(&mut self, id: u32, at: Instant) {
        if id as usize >= self.timers.len() {
            self.make_room(id);
        }
        let list = self.list_for(at);
        let Some(timer) = self.timers.get_mut(id as usize) else { return };
        timer.at = at;
        if timer.list == list {
            return; // as when a retransmission timer restarts with each acknowledgment
        }
        if timer.list == IDLE {
            self.len = self.len.saturating_add(1);
        } else {
            self.unlink(id);
        }
        self.link(id, list);
    }

    /// Forgets the deadline of `id`; whether there was one.
    #[inline]
    pub fn cancel(&mut self, id: u32) -> bool {
        if self.timers.get(id as usize).is_none_or(|timer| timer.list == IDLE) {
            return false;
        }
        self.unlink(id);
        self.len = self.len.saturating_sub(1);
        true
    }

    /// The deadline as it was given to [`TimerWheel::schedule`].
    #[inline]
    pub fn deadline_of(&self, id: u32) -> Option<Instant> {
        self.timers.get(id as usize).filter(|timer| timer.list != IDLE).map(|timer| timer.at)
    }

    /// A time before which nothing expires, `None` without timers. It is exact (to the tick) for
    /// deadlines within the current 64 ticks; for later ones [`TimerWheel::pop_due`] called at that
    /// time finds nothing, perhaps, and the next answer is closer.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let tick = match self.head(DUE) {
            NONE => self.next_slot()?.start,
            _ => self.elapsed,
        };
        Some(Instant::from_nanos(tick.saturating_mul(TICK_NANOS)))
    }

    /// Takes out one timer whose deadline is not after `now`; `None` if there is no more. Earlier
    /// deadlines come first, except within a tick.
    ///
    /// A caller that schedules what it took for `now` or before gets it again and again.
    #[inline]
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let now = now.as_nanos() / TICK_NANOS;
        // Within a tick nothing becomes due that is not in that list.
        if self.elapsed >= now && self.head(DUE) == NONE { None } else { self.advance(now) }
    }

    #[inline(never)]
    fn advance(&mut self, now: u64) -> Option<u32> {
        loop {
            match self.head(DUE) {
                NONE => {}
                id => {
                    self.cancel(id);
                    return Some(id);
                }
            }
            match self.next_slot() {
                Some(slot) if slot.start <= now => self.cascade(slot),
                _ => {
                    self.elapsed = self.elapsed.max(now);
                    return None;
                }
            }
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The earliest slot that is not empty.
    #[inline]
    fn next_slot(&self) -> Option<Slot> {
        let level = self.levels.trailing_zeros();
        let slot = self.slots.get(level as usize)?.trailing_zeros();
        // At most 8 levels of 6 bits.
        let shift = level.wrapping_mul(SLOT_BITS);
        let below = (1u64 << shift.wrapping_add(SLOT_BITS)).wrapping_sub(1);
        let start = self.elapsed & !below | u64::from(slot) << shift;
        Some(Slot { list: (level << SLOT_BITS | slot) as u16, start })
    }

    /// Moves time to the start of `slot`, the earliest, and its timers to where they belong then.
    #[cold]
    fn cascade(&mut self, slot: Slot) {
        self.elapsed = slot.start;
        loop {
            let id = self.head(slot.list);
            let Some(at) = self.timers.get(id as usize).map(|timer| timer.at) else { break };
            self.unlink(id);
            self.link(id, self.list_for(at));
        }
    }

    /// The list a timer belongs to now.
    #[inline]
    fn list_for(&self, at: Instant) -> u16 {
        // Rounded up: never early.
        let tick = at.as_nanos().div_ceil(TICK_NANOS);
        if tick <= self.elapsed {
            return DUE;
        }
        // The largest tick, 2^64 ns, has 45 bits, which is within 8 levels of 6.
        let level = (tick ^ self.elapsed).checked_ilog2().unwrap_or(0) / SLOT_BITS;
        let slot = (tick >> level.wrapping_mul(SLOT_BITS)) as u32 & SLOT_MASK;
        (level << SLOT_BITS | slot) as u16
    }

    #[inline]
    fn head(&self, list: u16) -> u32 {
        self.heads.get(usize::from(list)).copied().unwrap_or(NONE)
    }

    /// Appends an idle timer to a list.
    #[inline]
    fn link(&mut self, id: u32, list: u16) {
        let first = self.head(list);
        let last = self.timers.get(first as usize).map_or(id, |first| first.prev);
        let Some(timer) = self.timers.get_mut(id as usize) else { return };
        timer.list = list;
        timer.prev = last;
        timer.next = if first == NONE { id } else { first };
        if first == NONE {
            if let Some(head) = self.heads.get_mut(usize::from(list)) {
                *head = id;
            }
            self.mark(list, true);
            return;
        }
        if let Some(last) = self.timers.get_mut(last as usize) {
            last.next = id;
        }
        if let Some(first) = self.timers.get_mut(first as usize) {
            first.prev = id;
        }
    }

    /// Takes a timer out of its list; it is idle then.
    #[inline]
    fn unlink(&mut self, id: u32) {
        let Some(timer) = self.timers.get_mut(id as usize) else { return };
        let Timer { at: _, next, prev, list } = *timer;
        timer.list = IDLE;
        let Some(head) = self.heads.get_mut(usize::from(list)) else { return };
        if next == id {
            *head = NONE;
            self.mark(list, false);
            return;
        }
        if *head == id {
            *head = next;
        }
        if let Some(next) = self.timers.get_mut(next as usize) {
            next.prev = prev;
        }
        if let Some(prev) = self.timers.get_mut(prev as usize) {
            prev.next = next;
        }
    }

    /// Notes that a list is no longer empty, or is.
    #[inline]
    fn mark(&mut self, list: u16, occupied: bool) {
        let level = list >> SLOT_BITS;
        // The list of expired timers belongs to no level.
        let Some(slots) = self.slots.get_mut(usize::from(level)) else { return };
        let bit = 1u64 << (u32::from(list) & SLOT_MASK);
        if occupied {
            *slots |= bit;
            self.levels |= 1 << level;
        } else {
            *slots &= !bit;
            if *slots == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    #[cold]
    fn make_room(&mut self, id: u32) {
        if id != NONE {
            self.timers.resize((id as usize).saturating_add(1), Timer::default());
        }
    }
}

/// A slot that is not empty, and the first tick it covers.
#[derive(Clone, Copy)]
struct Slot {
    list: u16,
    start: u64,
}

/// One id.
#[derive(Clone, Copy)]
struct Timer {
    at: Instant,
    /// The neighbours in the circular list.
    next: u32,
    prev: u32,
    /// The list it is in, or [`IDLE`].
    list: u16,
}

impl Default for Timer {
    fn default() -> Timer {
        Timer { at: Instant::default(), next: NONE, prev: NONE, list: IDLE }
    }
}

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_MASK: u32 = SLOTS as u32 - 1;
const LEVELS: usize = 8;

/// The list of the timers whose tick has come.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const LISTS: usize = LEVELS * SLOTS + 1;

/// The list of a timer that is in none.
const IDLE: u16 = u16::MAX;

/// No timer.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests;
