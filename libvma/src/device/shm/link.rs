//! One link: the memory shared with one peer, our side's knowledge of both lanes, the peer's bell.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::head::{Head, chunk_at, set_chunk_at};
use super::lane::{
    ARMED, COMMON, Consumer, INLINE, Inline, Lane, Producer, Progress, RESERVE, Reader, Violation,
};
use super::own_bells::OwnBells;
use super::record::{self, Shape};
use super::segment::{CHUNK, Mapping, SharedLane};
use super::{Counters, LinkId, Side};
use crate::sys::time::monotonic_nanos;
use crate::sys::{Fd, errand, thread, unix_socket};

/// Holding more of the peer's chunks than this, whoever queues packets must copy them out.
const MANY_HELD: u32 = 1024 / 4 * 3;

/// After a packet found no room, others are refused without a look for so long.
const PATIENCE_NANOS: u64 = 500;

/// Connections whose readers are woken by one kick; records of more wake anybody.
const READERS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    /// The peer broke the layout; kept until it is unlinked.
    Broken,
    /// Unlinked, but somebody still holds frames of it.
    Closing,
}

pub struct Link {
    pub id: LinkId,
    pub state: State,
    memory: Mapping,
    /// The lanes' numbers.
    out: usize,
    r#in: usize,
    sending: Producer,
    receiving: Consumer,
    /// The end that becomes readable.
    pub bell: Fd,
    bell_of_peer: Arc<Fd>,
    pub own_bells: OwnBells,
    /// Heads that hold a record of this link.
    pub heads: u32,
    /// Packets are refused until then; 0 while there is room.
    patience: u64,
    /// Records were published since the peer's armed word was looked at.
    pub fresh: bool,
    /// Those of them that are for the readers of these connections; the first [`Link::addressed`] count.
    readers: [u32; READERS],
    addressed: usize,
    /// So many more are for nobody in particular.
    unaddressed: u32,
    /// Counted as one with more of the peer's chunks than is good for the peer.
    pub is_crowded: bool,
    /// The CPU that the peer knows of, and 1 more.
    cpu: u64,
    /// How often this side withdrew a socket, and how often it knows that the peer did.
    withdrawn: u64,
    withdrawn_by_peer: u64,
    pub counters: Counters,
}

impl Link {
    pub fn new(id: LinkId, memory: Mapping, side: Side, bell: Fd, bell_of_peer: Fd) -> Link {
        let (out, r#in) = match side {
            Side::Maker => (0, 1),
            Side::Taker => (1, 0),
        };
        Link {
            id,
            state: State::Open,
            memory,
            out,
            r#in,
            sending: Producer::new::<SharedLane<'_>>(),
            receiving: Consumer::new(),
            bell,
            bell_of_peer: Arc::new(bell_of_peer),
            own_bells: OwnBells::default(),
            heads: 0,
            patience: 0,
            fresh: false,
            readers: [0; READERS],
            addressed: 0,
            unaddressed: 0,
            is_crowded: false,
            cpu: 0,
            withdrawn: 0,
            withdrawn_by_peer: 0,
            counters: Counters::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Says on which CPU this side runs; true if the peer is awake, and runs there, too.
    pub fn shares_cpu(&mut self, cpu: u32) -> bool {
        let own = u64::from(cpu) + 1;
        if core::mem::replace(&mut self.cpu, own) != own {
            self.memory.lane(self.r#in).cpu().store(own, Ordering::Relaxed);
        }
        let peers = self.memory.lane(self.out);
        // One that sleeps has armed the lane that it reads.
        peers.armed().load(Ordering::Relaxed) & ARMED == 0
            && peers.cpu().load(Ordering::Relaxed) == own
    }

    /// Says something that the peer may look up, also when this process is dead.
    #[inline]
    pub fn set_note(&self, number: usize, value: u64) {
        if let Some(note) = self.memory.lane(self.r#in).note(number) {
            note.store(value, Ordering::Release);
        }
    }

    /// What the peer has said.
    pub fn note_of_peer(&self, number: usize) -> Option<u64> {
        Some(self.memory.lane(self.out).note(number)?.load(Ordering::Acquire))
    }

    /// Lets the peer know before its next packet that a socket is not to be reached any more.
    pub fn withdraw(&mut self) {
        self.withdrawn += 1;
        self.memory.lane(self.r#in).withdrawn().store(self.withdrawn, Ordering::Release);
    }

    /// Has the peer withdrawn a socket since [`Link::has_withdrawn`] was asked last?
    #[inline(always)]
    pub fn is_withdrawn(&self) -> bool {
        self.memory.lane(self.out).withdrawn().load(Ordering::Acquire) != self.withdrawn_by_peer
    }

    /// The same; true once.
    #[inline(always)]
    pub fn has_withdrawn(&mut self) -> bool {
        let word = self.memory.lane(self.out).withdrawn().load(Ordering::Acquire);
        core::mem::replace(&mut self.withdrawn_by_peer, word) != word
    }

    // Receiving.

    /// Kind and shape of the next record.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<(u8, usize, Shape)>, Violation> {
        let Some(record) = self.receiving.peek(&self.memory.lane(self.r#in))? else {
            return Ok(None);
        };
        let (kind, len) = record::decode(record);
        let shape = Shape::of(kind, len).ok_or(Violation)?;
        Ok(Some((kind, len, shape)))
    }

    /// Copies the record that was peeked at.
    #[inline(always)]
    pub fn take(&mut self, bytes: &mut Inline, shape: Shape) -> Result<(), Violation> {
        let lane = self.memory.lane(self.r#in);
        let due = self.receiving.take(&lane, bytes, shape.used);
        for place in 0..shape.chunks {
            self.receiving.hold::<SharedLane<'_>>(chunk_at(bytes, place))?;
        }
        if due {
            self.relieve();
        }
        Ok(())
    }

    /// All pieces of a held record.
    #[inline]
    pub fn pieces<'a>(&'a self, head: &'a Head) -> impl Iterator<Item = &'a [u8]> {
        let lane = self.memory.lane(self.r#in);
        let inline = head.inline();
        let rest = head.rest();
        let chunks = (0..rest.div_ceil(CHUNK))
            .map(move |place| lane.chunk(head.chunk(place), rest - place * CHUNK));
        let inline = (!inline.is_empty()).then_some(inline);
        inline.into_iter().chain(chunks)
    }

    /// The first piece of a held record.
    #[inline]
    pub fn first_bytes<'a>(&'a self, head: &'a Head) -> &'a [u8] {
        let inline = head.inline();
        if inline.is_empty() { self.pieces(head).next().unwrap_or_default() } else { inline }
    }

    /// Gives a held record's chunks back.
    #[inline]
    pub fn give_back(&mut self, head: &Head) {
        if self.state != State::Open {
            return;
        }
        let lane = self.memory.lane(self.r#in);
        let mut due = false;
        for place in 0..head.rest().div_ceil(CHUNK) {
            due |= self.receiving.give_back(&lane, head.chunk(place));
        }
        if due {
            self.relieve();
        }
    }

    /// Does somebody here hold so much that the peer may run dry?
    #[inline]
    pub fn holds_many(&self) -> bool {
        self.receiving.held() > MANY_HELD
    }

    /// Was anything given back since [`Link::relieve`]?
    #[inline(always)]
    pub fn owes_relief(&self) -> bool {
        self.receiving.has_unannounced()
    }

    /// Rings the peer if it waits for what was given back.
    #[cold]
    pub fn relieve(&mut self) {
        if self.receiving.must_relieve(&self.memory.lane(self.r#in)) {
            fence();
            let bell = Producer::must_wake(&self.memory.lane(self.out));
            self.ring(bell.unwrap_or(COMMON));
        }
    }

    /// First half of falling asleep: everything read goes back, the bell is wanted.
    pub fn arm(&mut self) {
        let lane = self.memory.lane(self.r#in);
        self.receiving.publish(&lane);
        self.receiving.arm(&lane, COMMON);
    }

    /// The same for the own bell of a thread. False: the peer cannot ring it.
    pub fn arm_own(&mut self, bell: u32) -> bool {
        let rings = self.memory.lane(self.out).can_ring().load(Ordering::Acquire);
        let may = self.own_bells.prepare(bell, rings & 1 << bell != 0);
        if may {
            let lane = self.memory.lane(self.r#in);
            self.receiving.publish(&lane);
            self.receiving.arm(&lane, bell);
        }
        may
    }

    /// True if the bell was rung, or is about to be.
    pub fn disarm(&mut self, bell: u32) -> bool {
        let is_rung = self.receiving.disarm(&self.memory.lane(self.r#in), bell);
        self.own_bells.note_end_of_sleep(bell, is_rung);
        is_rung
    }

    /// The thread sleeps without its bell from now on, or is gone. True: a fence and a look must follow.
    pub fn stop_attending(&mut self, bell: u32) -> bool {
        self.receiving.stop_attending(&self.memory.lane(self.r#in), bell)
    }

    /// No thread attends any more.
    pub fn stop_all_attending(&mut self) -> bool {
        self.receiving.stop_all_attending(&self.memory.lane(self.r#in))
    }

    pub fn is_rung(&self, bell: u32) -> bool {
        Consumer::is_rung(&self.memory.lane(self.r#in), bell)
    }

    /// Writes down which thread reads a connection. True if the peer was told that it was another one's alone.
    pub fn set_reader(&mut self, number: u32, reader: Reader) -> bool {
        let lane = self.memory.lane(self.r#in);
        let Some(word) = lane.reader(number) else { return false };
        let Some(before) = self.own_bells.set_reader(number, reader) else { return false };
        word.store(reader.to_word(), Ordering::Relaxed);
        matches!(before, Reader::Alone(_))
    }

    /// The peer may arm the bell from now on.
    pub fn can_ring(&self) {
        let bells = self.own_bells.of_peer();
        self.memory.lane(self.r#in).can_ring().store(bells, Ordering::Release);
    }

    /// Is there anything to be taken?
    pub fn has_waiting(&self) -> bool {
        self.peek() != Ok(None) || self.has_relief()
    }

    pub fn hush(&self) {
        unix_socket::hush(&self.bell);
    }

    // Sending.

    /// Is there room for a message, with `reserve` slots behind it, now or after asking for relief?
    #[inline]
    pub fn has_room(&mut self, chunks: usize, reserve: u64) -> Result<bool, Violation> {
        if self.looks_roomy(chunks, reserve)? {
            return Ok(true);
        }
        self.has_room_after_all(chunks, reserve)
    }

    #[cold]
    fn has_room_after_all(&mut self, chunks: usize, reserve: u64) -> Result<bool, Violation> {
        // Somebody else's wish, which is not to be taken back.
        let waited = self.sending.is_starving();
        self.sending.starve(&self.memory.lane(self.out));
        let roomy = self.looks_roomy(chunks, reserve)?;
        if roomy && !waited {
            self.sending.sated(&self.memory.lane(self.out));
        } else {
            self.counters.full += 1;
        }
        if !roomy {
            self.wake_any();
        }
        Ok(roomy)
    }

    /// Wakes a thread to empty the lane, which may be full of what was left to threads that compute.
    /// A fence comes between the last record and this.
    #[cold]
    pub fn wake_any(&mut self) {
        if let Some(bell) = Producer::must_wake(&self.memory.lane(self.out)) {
            self.ring(bell);
        }
    }

    /// Is there room for a packet? Nobody is told later if there is not: it is lost, and others
    /// will be tried. In a blast most of these are refused without a look at the peer's cache lines,
    /// or senders that find no room would slow down the peer that makes it.
    #[inline]
    pub fn has_room_for_packet(&mut self, chunks: usize) -> Result<bool, Violation> {
        if self.patience == 0 && self.looks_roomy(chunks, RESERVE)? {
            return Ok(true);
        }
        self.has_room_for_packet_again(chunks)
    }

    #[cold]
    fn has_room_for_packet_again(&mut self, chunks: usize) -> Result<bool, Violation> {
        let now = monotonic_nanos();
        if self.patience != 0 && now >= self.patience && self.looks_roomy(chunks, RESERVE)? {
            self.patience = 0;
            return Ok(true);
        }
        if now >= self.patience {
            self.patience = now.saturating_add(PATIENCE_NANOS);
            fence();
            self.wake_any();
        }
        self.counters.full += 1;
        Ok(false)
    }

    /// Is there still a slot for the packet that was put together?
    #[inline(always)]
    pub fn has_slot(&mut self) -> Result<bool, Violation> {
        self.sending.has_slot(&self.memory.lane(self.out), 0)
    }

    #[inline(always)]
    fn looks_roomy(&mut self, chunks: usize, reserve: u64) -> Result<bool, Violation> {
        let lane = self.memory.lane(self.out);
        if chunks > 0 {
            self.sending.collect_for(&lane, chunks)?;
        }
        Ok(self.sending.free_chunks() >= chunks && self.sending.has_slot(&lane, reserve)?)
    }

    /// Chunks that a record could take now; `None` if there is no slot.
    pub fn room(&mut self) -> Result<Option<usize>, Violation> {
        let lane = self.memory.lane(self.out);
        self.sending.collect(&lane)?;
        let has_slot = self.sending.has_slot(&lane, RESERVE)?;
        Ok(has_slot.then(|| self.sending.free_chunks()))
    }

    /// Names `count` chunks in a record under construction; [`Link::has_room`] has said that there
    /// are as many.
    #[inline]
    pub fn lend(&mut self, bytes: &mut Inline, count: usize) {
        for place in 0..count {
            set_chunk_at(bytes, place, self.sending.lend().unwrap_or_default());
        }
    }

    /// The chunk at `place` of a record under construction.
    #[inline]
    pub fn chunk_mut(
        &mut self,
        bytes: &Inline,
        place: usize,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let mut lane = self.memory.lane(self.out);
        write(lane.chunk_mut(chunk_at(bytes, place), len));
    }

    /// Takes the chunks of a record back that is not sent after all.
    pub fn reclaim(&mut self, bytes: &Inline, count: usize) {
        for place in 0..count {
            self.sending.reclaim(chunk_at(bytes, place));
        }
    }

    #[inline(always)]
    pub fn publish(&mut self, kind: u8, len: usize, bytes: &Inline, shape: Shape) {
        let used = if shape.chunks > 0 { INLINE } else { shape.used };
        let lane = self.memory.lane(self.out);
        self.sending.publish(&lane, record::encode(kind, len), bytes, used);
        self.unaddressed += 1;
    }

    /// The last record is for the thread that reads a connection of the peer.
    #[inline(always)]
    pub fn address(&mut self, connection: u32) {
        let known = self.readers.get(..self.addressed).unwrap_or_default();
        if !known.contains(&connection) {
            let Some(place) = self.readers.get_mut(self.addressed) else { return };
            *place = connection;
            self.addressed += 1;
        }
        self.unaddressed = self.unaddressed.saturating_sub(1);
    }

    /// Rings the threads of the peer that sleep. A fence came between the last record and this.
    #[inline(always)]
    pub fn wake(&mut self) {
        for place in 0..core::mem::take(&mut self.addressed) {
            let Some(reader) = self.readers.get(place) else { break };
            let lane = self.memory.lane(self.out);
            if let Some(bell) = self.sending.must_wake_reader(&lane, *reader) {
                self.ring(bell);
            }
        }
        if core::mem::take(&mut self.unaddressed) > 0
            && let Some(bell) = Producer::must_wake(&self.memory.lane(self.out))
        {
            self.ring(bell);
        }
    }

    /// How far the records sent have come.
    #[inline]
    pub fn progress(&self) -> Progress {
        self.sending.progress()
    }

    pub fn is_starving(&self) -> bool {
        self.sending.is_starving()
    }

    /// Room was asked for and there is some; [`Link::is_relieved`] has not said so yet.
    pub fn has_relief(&self) -> bool {
        self.sending.has_relief(&self.memory.lane(self.out))
    }

    /// Room was asked for and there is some. True once.
    pub fn is_relieved(&mut self) -> bool {
        let is_relieved = self.sending.is_relieved(&self.memory.lane(self.out));
        if is_relieved {
            self.patience = 0;
        }
        is_relieved
    }

    #[cold]
    fn ring(&mut self, bell: u32) {
        self.counters.bells += 1;
        let bell = self.own_bells.of_peer_at(bell).unwrap_or(&self.bell_of_peer);
        // The peer that wakes may take this CPU, and with it the lock.
        if !thread::holds_locks() || !errand::note_bell(bell) {
            unix_socket::ring(bell);
        }
    }
}

/// All that a fence of the sending side is needed for.
#[inline(always)]
pub fn fence() {
    <SharedLane<'_> as Lane>::fence();
}
