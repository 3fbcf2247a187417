//! One direction of a link: who writes which word, in which order. Nothing here knows where the
//! memory is, so that the same code runs over a mapping and under the model checker.
//!
//! A lane is a ring of slots with one [`Producer`] and one [`Consumer`]:
//!
//! * The **control word** of a slot is its lap (how often the ring went round, 32 bits) and what
//!   the record is. The producer stores it last, with release order, and the consumer polls it:
//!   there is no producer index to share, a record costs the cache lines it fills.
//! * The consumer publishes its **position** now and then; until the producer has seen it pass a
//!   slot, it does not write to that slot again.
//! * Payload that does not fit a slot lies in **chunks**. They belong to the producer, are lent
//!   with a record, and come back through the **return ring**, whose entries carry their lap, too.
//! * **armed**: the consumer sleeps and wants a bell rung: one bit for each bell. The bit 0 is the common
//!   bell's, the others belong to threads. For each of these a second bit says that the thread *attends*:
//!   it looks at the lane before it sleeps again. A thread sets this bit when it arms its bell, and clears
//!   it before a sleep without that bell. **reader**: which thread reads a connection, as the consumer
//!   last knew ([`Reader`]); the producer heeds it only as far as the armed word bears it out.
//!   **starved**: the producer found no
//!   room and wants its own bell rung when there is some. All are Dekker's pattern: one side
//!   writes its word, fences and looks at the other's; so does the other side, and at least one
//!   of the two sees the other's word.
//!
//! The other side may write anything at any time. Whatever is read here is read once, into a
//! register, and is either the value that the protocol expects or a [`Violation`].

#[cfg(test)]
mod model;

use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Bytes of a slot after its control word.
pub const INLINE: usize = 120;

/// Of these as many share the first cache line with the control word.
pub const NEAR: usize = 56;

/// What a slot holds beside its control word.
pub type Inline = [u8; INLINE];

/// The consumer publishes its position after this many records.
pub const PUBLISH_EVERY: u64 = 64;

/// Slots that usual records leave free.
pub const RESERVE: u64 = 64;

/// The consumer asks after so many returned chunks whether the producer waits for them.
const ANNOUNCE_EVERY: u32 = 64;

/// The producer looks for returned chunks after it lent so many: a look at every record would take
/// the cache line of the return ring from the consumer for every entry.
const COLLECT_EVERY: usize = 16;

/// Bells of one consumer: the common one, and those of threads.
pub const BELLS: usize = 16;

/// The bell that every record rings which is for no thread in particular.
pub const COMMON: u32 = 0;

const ALONE: u64 = 1 << 63;

/// The bits of the armed word that say which bells are armed. Those above them say which threads attend.
pub const ARMED: u64 = (1 << BELLS) - 1;

const fn is_armed(bell: u32) -> u64 {
    1 << bell
}

/// The thread of this bell looks at the lane before its next sleep.
const fn attends(bell: u32) -> u64 {
    match bell {
        COMMON => 0,
        bell => 1 << (bell + 32),
    }
}

/// The thread that reads a connection, by the number of its bell (1 and up). It is a hint: a thread that
/// wakes reads all records, and wakes the other threads for theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    #[default]
    Unknown,
    /// This thread, and perhaps others.
    First(u32),
    /// This thread and no other: nobody is woken while it runs.
    Alone(u32),
}

impl Reader {
    pub fn to_word(self) -> u64 {
        match self {
            Reader::Unknown => 0,
            Reader::First(bell) => u64::from(bell),
            Reader::Alone(bell) => u64::from(bell) | ALONE,
        }
    }

    /// Any word is one: the other side may write rubbish.
    fn from_word(word: u64) -> Reader {
        let bell = (word & !ALONE) as u32;
        match (bell as usize) < BELLS && word & !ALONE == u64::from(bell) && bell != COMMON {
            false => Reader::Unknown,
            true if word & ALONE != 0 => Reader::Alone(bell),
            true => Reader::First(bell),
        }
    }
}

/// The other side broke the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// An atomic word that both sides see.
pub trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
}

/// The memory of one direction. Slot and entry numbers count on for ever; the lane takes them
/// modulo its size, so no number leads out of it.
pub trait Lane {
    type Word: Word;
    /// Slots of the ring, a power of two.
    const SLOTS: u64;
    /// Chunks, and entries of the return ring; a power of two of at most 1024.
    const CHUNKS: u64;
    fn control(&self, slot: u64) -> &Self::Word;
    fn returned(&self, entry: u64) -> &Self::Word;
    fn position(&self) -> &Self::Word;
    fn armed(&self) -> &Self::Word;
    fn starved(&self) -> &Self::Word;
    /// Of the connection of this number; `None` if it has no word.
    fn reader(&self, number: u32) -> Option<&Self::Word>;
    /// Copies the first cache line, or the whole slot if `used` is more than [`NEAR`].
    fn write(&self, slot: u64, bytes: &Inline, used: usize);
    fn read(&self, slot: u64, bytes: &mut Inline, used: usize);
    /// A sequentially consistent fence.
    fn fence();
}

/// How often the ring went round at this number, from 1: fresh memory (0) is the lap before.
#[inline(always)]
fn lap(number: u64, size: u64) -> u32 {
    ((number / size) as u32).wrapping_add(1)
}

/// Is an entry the one expected, still the one of the lap before, or nonsense?
#[inline(always)]
fn entry(word: u64, expected: u32) -> Result<Option<u32>, Violation> {
    let found = (word >> 32) as u32;
    if found == expected.wrapping_sub(1) {
        return Ok(None);
    }
    if found == expected { Ok(Some(word as u32)) } else { Err(Violation) }
}

/// One bit per chunk.
struct Chunks([u64; 16]);

impl Chunks {
    const NONE: Chunks = Chunks([0; 16]);

    /// Sets the bit; false if it is set already, or there is no such chunk.
    #[inline]
    fn insert(&mut self, chunk: u32) -> bool {
        let bit = 1 << (chunk % 64);
        match self.0.get_mut(chunk as usize / 64) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    /// Clears the bit; false if it is not set.
    #[inline]
    fn remove(&mut self, chunk: u32) -> bool {
        let bit = 1 << (chunk % 64);
        match self.0.get_mut(chunk as usize / 64) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                true
            }
            _ => false,
        }
    }
}

/// How far the records of a lane have come, as the sending side knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// So many were sent since the lane was made.
    pub sent: u64,
    /// So many of them were read; the consumer tells it now and then only.
    pub read: u64,
}

/// The sending side's own knowledge.
pub struct Producer {
    /// Number of the next slot to write.
    next: u64,
    /// The consumer's position as last read.
    passed: u64,
    /// Chunks that may be lent. Last in, first out: the same few stay in the caches.
    free: Vec<u16>,
    lent: Chunks,
    /// Number of the next entry of the return ring to read.
    returns: u64,
    /// Chunks lent since the return ring was looked at.
    lent_since: usize,
    /// The starved word was set, and nobody was told yet that it is cleared.
    starving: bool,
}

impl Producer {
    pub fn new<L: Lane>() -> Producer {
        Producer {
            next: 0,
            passed: 0,
            free: (0..L::CHUNKS as u16).rev().collect(),
            lent: Chunks::NONE,
            returns: 0,
            lent_since: 0,
            starving: false,
        }
    }

    /// Is a slot free, with `reserve` more behind it?
    #[inline(always)]
    pub fn has_slot<L: Lane>(&mut self, lane: &L, reserve: u64) -> Result<bool, Violation> {
        if self.next.wrapping_sub(self.passed) < L::SLOTS - reserve {
            return Ok(true);
        }
        let position = lane.position().load(Acquire);
        // It neither moves back nor overtakes what was written.
        if position.wrapping_sub(self.passed) > self.next.wrapping_sub(self.passed) {
            return Err(Violation);
        }
        self.passed = position;
        Ok(self.next.wrapping_sub(position) < L::SLOTS - reserve)
    }

    #[inline]
    pub fn progress(&self) -> Progress {
        Progress { sent: self.next, read: self.passed }
    }

    /// Takes back what the consumer has returned, if `wanted` chunks cannot be had without or it is
    /// time to.
    #[inline]
    pub fn collect_for<L: Lane>(&mut self, lane: &L, wanted: usize) -> Result<(), Violation> {
        if self.free.len() >= wanted && self.lent_since + wanted <= COLLECT_EVERY {
            return Ok(());
        }
        self.collect(lane)
    }

    /// Takes back what the consumer has returned.
    #[inline]
    pub fn collect<L: Lane>(&mut self, lane: &L) -> Result<(), Violation> {
        self.lent_since = 0;
        loop {
            let word = lane.returned(self.returns).load(Acquire);
            let Some(chunk) = entry(word, lap(self.returns, L::CHUNKS))? else { return Ok(()) };
            if !self.lent.remove(chunk) {
                return Err(Violation);
            }
            self.free.push(chunk as u16);
            self.returns += 1;
        }
    }

    /// Chunks that [`Producer::lend`] has now.
    #[inline]
    pub fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// A chunk to fill and to name in the next record.
    #[inline]
    pub fn lend(&mut self) -> Option<u16> {
        let chunk = self.free.pop()?;
        self.lent.insert(u32::from(chunk));
        self.lent_since += 1;
        Some(chunk)
    }

    /// A lent chunk that was not sent after all.
    pub fn reclaim(&mut self, chunk: u16) {
        if self.lent.remove(u32::from(chunk)) {
            self.free.push(chunk);
        }
    }

    /// Writes a record into the slot that [`Producer::has_slot`] has found.
    #[inline(always)]
    pub fn publish<L: Lane>(&mut self, lane: &L, record: u32, bytes: &Inline, used: usize) {
        lane.write(self.next, bytes, used);
        let word = u64::from(lap(self.next, L::SLOTS)) << 32 | u64::from(record);
        lane.control(self.next).store(word, Release);
        self.next += 1;
    }

    /// The bell to ring for a record that is for no thread in particular, if the consumer sleeps: the common
    /// one if it is armed, else that of any thread. Asked after [`Lane::fence`]; each bell is named once per
    /// sleep.
    #[inline(always)]
    pub fn must_wake<L: Lane>(lane: &L) -> Option<u32> {
        match lane.armed().load(Relaxed) & ARMED {
            0 => None,
            armed => Producer::claim_any(lane, armed),
        }
    }

    fn claim_any<L: Lane>(lane: &L, armed: u64) -> Option<u32> {
        // A bell that is disarmed meanwhile was a thread's that is awake now, and may be about to leave.
        let mut bells = (COMMON..BELLS as u32).filter(|bell| armed & is_armed(*bell) != 0);
        bells.find(|bell| Producer::claim(lane, *bell))
    }

    /// The same for a record of this connection. Its reader's word is read here, after the fence: what the
    /// consumer wrote there before it looked at the lane for the last time is heeded. Only a reader that
    /// attends is left to itself, and only while the lane has room: any other thread is woken otherwise.
    #[inline]
    pub fn must_wake_reader<L: Lane>(&mut self, lane: &L, number: u32) -> Option<u32> {
        let armed = lane.armed().load(Relaxed);
        if armed & ARMED == 0 {
            return None;
        }
        let word = lane.reader(number).map_or(0, |reader| reader.load(Relaxed));
        let reader = Reader::from_word(word);
        if let Reader::First(bell) | Reader::Alone(bell) = reader
            && armed & is_armed(bell) != 0
            && Producer::claim(lane, bell)
        {
            return Some(bell);
        }
        match reader {
            Reader::Alone(bell) if armed & attends(bell) != 0 && !self.is_half_full(lane) => None,
            _ => Producer::must_wake(lane),
        }
    }

    /// Is more than half of the slots or chunks taken? A consumer that breaks the layout has this answered by
    /// yes; who sends next finds the violation.
    fn is_half_full<L: Lane>(&mut self, lane: &L) -> bool {
        let half = L::CHUNKS as usize / 2;
        self.has_slot(lane, L::SLOTS / 2 - 1) != Ok(true)
            || self.free.len() < half && (self.collect(lane).is_err() || self.free.len() < half)
    }

    #[inline]
    fn claim<L: Lane>(lane: &L, bell: u32) -> bool {
        lane.armed().fetch_and(!is_armed(bell), Ordering::AcqRel) & is_armed(bell) != 0
    }

    /// There was no room: asks for relief. The caller looks again afterwards, and calls
    /// [`Producer::sated`] if there is room by now.
    #[cold]
    pub fn starve<L: Lane>(&mut self, lane: &L) {
        self.starving = true;
        lane.starved().store(1, Relaxed);
        L::fence();
    }

    pub fn sated<L: Lane>(&mut self, lane: &L) {
        self.starving = false;
        lane.starved().store(0, Relaxed);
    }

    pub fn is_starving(&self) -> bool {
        self.starving
    }

    /// Room was asked for and there is some now.
    pub fn has_relief<L: Lane>(&self, lane: &L) -> bool {
        self.starving && lane.starved().load(Acquire) == 0
    }

    /// The same, but true once.
    pub fn is_relieved<L: Lane>(&mut self, lane: &L) -> bool {
        let relieved = self.has_relief(lane);
        if relieved {
            self.starving = false;
        }
        relieved
    }
}

/// The receiving side's own knowledge.
pub struct Consumer {
    /// Number of the next slot to read.
    next: u64,
    /// Up to here the producer knows.
    published: u64,
    held: Chunks,
    held_count: u32,
    /// Number of the next entry of the return ring to write.
    returns: u64,
    /// Returns and publications since the starved word was looked at.
    unannounced: u32,
}

impl Consumer {
    pub fn new() -> Consumer {
        Consumer {
            next: 0,
            published: 0,
            held: Chunks::NONE,
            held_count: 0,
            returns: 0,
            unannounced: 0,
        }
    }

    /// What the next slot holds, if it was written.
    #[inline(always)]
    pub fn peek<L: Lane>(&self, lane: &L) -> Result<Option<u32>, Violation> {
        entry(lane.control(self.next).load(Acquire), lap(self.next, L::SLOTS))
    }

    /// Copies the slot that was peeked at, and goes on to the next. True if it is time to ask
    /// [`Consumer::must_relieve`].
    #[inline(always)]
    pub fn take<L: Lane>(&mut self, lane: &L, bytes: &mut Inline, used: usize) -> bool {
        lane.read(self.next, bytes, used);
        self.next += 1;
        let due = self.next.wrapping_sub(self.published) >= PUBLISH_EVERY.min(L::SLOTS / 2);
        if due {
            self.publish(lane);
        }
        due
    }

    /// Gives the slots that were read back to the producer.
    #[inline]
    pub fn publish<L: Lane>(&mut self, lane: &L) {
        if self.published != self.next {
            // Release: the slots were read before.
            lane.position().store(self.next, Release);
            self.published = self.next;
            self.unannounced += 1;
        }
    }

    /// Takes a chunk that a record named.
    #[inline]
    pub fn hold<L: Lane>(&mut self, chunk: u16) -> Result<(), Violation> {
        if u64::from(chunk) >= L::CHUNKS || !self.held.insert(u32::from(chunk)) {
            return Err(Violation);
        }
        self.held_count += 1;
        Ok(())
    }

    /// Gives a chunk back. True if it is time to ask [`Consumer::must_relieve`].
    #[inline]
    pub fn give_back<L: Lane>(&mut self, lane: &L, chunk: u16) -> bool {
        if !self.held.remove(u32::from(chunk)) {
            return false;
        }
        self.held_count -= 1;
        let word = u64::from(lap(self.returns, L::CHUNKS)) << 32 | u64::from(chunk);
        // Release: the payload was read before.
        lane.returned(self.returns).store(word, Release);
        self.returns += 1;
        self.unannounced += 1;
        self.unannounced >= ANNOUNCE_EVERY
    }

    /// Chunks taken and not given back.
    #[inline]
    pub fn held(&self) -> u32 {
        self.held_count
    }

    /// Was anything given back that a waiting producer was not told of?
    #[inline]
    pub fn has_unannounced(&self) -> bool {
        self.unannounced != 0
    }

    /// Does the producer wait for what was given back? Then its bell must be rung.
    #[inline]
    pub fn must_relieve<L: Lane>(&mut self, lane: &L) -> bool {
        self.unannounced = 0;
        L::fence();
        lane.starved().load(Relaxed) != 0 && lane.starved().swap(0, Ordering::AcqRel) != 0
    }

    /// Before a sleep: asks for the bell. After a fence, [`Consumer::peek`] tells whether a record
    /// came before the producer could know. From then on a bell's thread attends.
    pub fn arm<L: Lane>(&mut self, lane: &L, bell: u32) {
        let wanted = is_armed(bell) | attends(bell);
        // Still armed if nobody rang since: the line stays where it is.
        if lane.armed().load(Relaxed) & wanted != wanted {
            lane.armed().fetch_or(wanted, Relaxed);
        }
    }

    /// The thread sleeps no more. True if the bell was rung, or is about to be: a record may have rung it that is
    /// not this thread's. A fence and a look at the lane must follow before the thread leaves.
    pub fn disarm<L: Lane>(&mut self, lane: &L, bell: u32) -> bool {
        lane.armed().fetch_and(!is_armed(bell), Ordering::AcqRel) & is_armed(bell) == 0
    }

    /// The thread does not look at the lane by itself any more. True if it did: a fence and a look at the lane must
    /// follow, because the producer may have left a record to the thread.
    pub fn stop_attending<L: Lane>(&mut self, lane: &L, bell: u32) -> bool {
        let attended = lane.armed().load(Relaxed) & attends(bell) != 0;
        if attended {
            lane.armed().fetch_and(!attends(bell), Relaxed);
        }
        attended
    }

    /// The same for all threads.
    pub fn stop_all_attending<L: Lane>(&mut self, lane: &L) -> bool {
        let attended = lane.armed().load(Relaxed) & !ARMED != 0;
        if attended {
            lane.armed().fetch_and(ARMED, Relaxed);
        }
        attended
    }

    /// Was the bell rung since it was armed? The producer's word alone: only what came by this lane is
    /// concerned.
    pub fn is_rung<L: Lane>(lane: &L, bell: u32) -> bool {
        lane.armed().load(Relaxed) & is_armed(bell) == 0
    }
}
