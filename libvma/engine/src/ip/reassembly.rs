//! The reassembly of fragmented datagrams (RFC 791 section 3.2, RFC 815; RFC 8200 section 4.5), bounded in time and
//! memory. It owns copies of the payloads, never frames: fragments that wait for a lost one must
//! not starve a ring.

use core::net::Ipv4Addr;
use core::time::Duration;

use crate::alloc::collections::BTreeMap;
use crate::alloc::vec::Vec;
use crate::drop_reason::DropReason;
use crate::time::Instant;
use crate::wire::ipv4::{Header, MAX_PAYLOAD_LEN, MAX_TOTAL_LEN};

/// The memory all waiting fragments may take: Linux's default.
#[doc(alias = "ipfrag_high_thresh")]
pub const MEMORY_LIMIT: usize = 4 << 20;

/// How long fragments wait, counted from the first to arrive: Linux's default (RFC 1122 3.3.2 asks
/// for 60 to 120 s, which at today's rates outlives the 16-bit identification many times over).
#[doc(alias = "ipfrag_time")]
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The same of IPv6 (RFC 8200 section 4.5).
#[doc(alias = "ip6frag_time")]
pub const TIMEOUT_OF_IPV6: Duration = Duration::from_secs(60);

/// A datagram is given up when its source has sent so many other fragments since its last one:
/// Linux's default. The identification has come round by then, as a rule, and the next fragment belongs
/// to another datagram.
#[doc(alias = "ipfrag_max_dist")]
const DISTANCE: u32 = 64;

/// The longest payload of IPv6. (Its first fragment does not tell the length of the whole datagram.)
const MAX_PAYLOAD_LEN_OF_IPV6: usize = 0xffff;

/// The rules in which the two families differ.
#[derive(Clone, Copy, Debug)]
struct Family {
    timeout: Duration,
    /// See [`DISTANCE`]. An identification of IPv6 does not come round so soon.
    distance: Option<u32>,
    max_payload_len: usize,
    /// Do fragments belong together only if they name the same protocol? Of IPv6 the first one's counts.
    by_protocol: bool,
}

const IPV4: Family = Family {
    timeout: TIMEOUT,
    distance: Some(DISTANCE),
    max_payload_len: MAX_PAYLOAD_LEN,
    by_protocol: true,
};

const IPV6: Family = Family {
    timeout: TIMEOUT_OF_IPV6,
    distance: None,
    max_payload_len: MAX_PAYLOAD_LEN_OF_IPV6,
    by_protocol: false,
};

/// Puts fragments together until datagrams are whole.
///
/// The order of calls: [`push`](Self::push) for every packet that [`Header::is_fragment`],
/// [`expire`](Self::expire) when [`next_deadline`](Self::next_deadline) has come (late or early
/// calls do no harm).
#[derive(Debug)]
pub struct Reassembler {
    datagrams: BTreeMap<Key, Datagram>,
    /// The waiting datagrams by age: arrival number to key. The timeout is the same for all, so
    /// this is also the order of their deadlines.
    by_age: BTreeMap<u64, Key>,
    /// Where waiting datagrams come from.
    sources: BTreeMap<Ipv4Addr, Source>,
    next_arrival: u64,
    /// The sum of [`Datagram::cost`].
    memory: usize,
    limit: usize,
    timed_out: usize,
    evicted: usize,
    family: Family,
}

/// A datagram whose fragments have all come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reassembled {
    /// The first fragment's, with the lengths of the whole: it is no fragment any more. (A payload of IPv6 may be
    /// longer than a header of IPv4 can say.)
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Default for Reassembler {
    fn default() -> Self {
        Self::with_limit(MEMORY_LIMIT)
    }
}

impl Reassembler {
    /// A reassembler that keeps [`memory`](Self::memory) at or below `limit`. Allocates nothing
    /// before a fragment comes.
    pub const fn with_limit(limit: usize) -> Self {
        Self::of(IPV4, limit)
    }

    /// One for the fragments of IPv6, as [`crate::translation`] makes them.
    pub const fn of_ipv6(limit: usize) -> Self {
        Self::of(IPV6, limit)
    }

    const fn of(family: Family, limit: usize) -> Self {
        Self {
            datagrams: BTreeMap::new(),
            by_age: BTreeMap::new(),
            sources: BTreeMap::new(),
            next_arrival: 0,
            memory: 0,
            limit,
            timed_out: 0,
            evicted: 0,
            family,
        }
    }

    /// Takes in a fragment; the payload comes in one or more pieces, of which
    /// `header.payload_len()` bytes are read. Returns the datagram if this fragment was the last
    /// one missing.
    ///
    /// As on Linux, a fragment that overlaps others or contradicts them about the datagram's end
    /// condemns the whole datagram (RFC 5722 section 3 has the reason: overlaps only occur in
    /// attacks), and one that brings nothing new is dropped alone. A fragment that is wrong by
    /// itself is dropped alone too.
    pub fn push<'a>(
        &mut self,
        now: Instant,
        header: &Header,
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Reassembled>, DropReason> {
        self.push_identified(now, header, header.ident.into(), payload)
    }

    /// As [`push`](Self::push), of a fragment whose identification is longer than its header's.
    pub fn push_identified<'a>(
        &mut self,
        now: Instant,
        header: &Header,
        ident: u32,
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Reassembled>, DropReason> {
        // Otherwise a fragment could join others that are overdue, if the caller is late to expire
        // them.
        self.give_up_overdue(now);
        let span = Span::of(header, self.family.max_payload_len)?;
        let protocol = if self.family.by_protocol { header.protocol } else { 0 };
        let key = Key { src: header.src, dst: header.dst, ident, protocol };
        self.give_up_former(key);
        let arrival = self.next_arrival;
        let source = self.sources.entry(key.src).or_default();
        source.fragments = source.fragments.wrapping_add(1);
        let datagram = self.datagrams.entry(key).or_insert_with(|| {
            self.by_age.insert(arrival, key);
            source.waiting = source.waiting.saturating_add(1);
            self.next_arrival = arrival.wrapping_add(1);
            self.memory = self.memory.saturating_add(DATAGRAM_COST);
            Datagram::new(arrival, now.saturating_add(self.family.timeout))
        });
        datagram.last_fragment = source.fragments;
        let cost_before = datagram.cost();
        let inserted = datagram.insert(header, span, payload);
        self.memory = self.memory.saturating_sub(cost_before).saturating_add(datagram.cost());
        match inserted {
            Ok(()) if datagram.is_whole() => {
                let is_ipv6 = self.family.max_payload_len > MAX_PAYLOAD_LEN;
                self.remove(key)?.finish(is_ipv6).map(Some)
            }
            Ok(()) => {
                self.make_room(key)?;
                Ok(None)
            }
            Err(reason) => {
                let condemns =
                    matches!(reason, DropReason::FragmentOverlap | DropReason::FragmentEndConflict);
                if condemns || datagram.is_empty() {
                    self.remove(key)?;
                }
                Err(reason)
            }
        }
    }

    /// Gives up the datagrams whose time is over and returns how many were given up for that reason,
    /// or because another one came with their identification, since the last call, to be counted as [`DropReason::FragmentTimeout`].
    pub fn expire(&mut self, now: Instant) -> usize {
        self.give_up_overdue(now);
        core::mem::take(&mut self.timed_out)
    }

    /// How many datagrams were given up to make room for later ones since the last call, to be
    /// counted as
    /// [`DropReason::FragmentMemory`].
    pub fn take_evicted(&mut self) -> usize {
        core::mem::take(&mut self.evicted)
    }

    /// When to call [`expire`](Self::expire) next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let (_, key) = self.by_age.first_key_value()?;
        self.datagrams.get(key).map(|datagram| datagram.deadline)
    }

    /// The bytes of memory held by waiting fragments, bookkeeping included.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The number of datagrams that wait for fragments.
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    fn give_up_overdue(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some((_, key)) = self.by_age.first_key_value() {
                let _ = self.remove(*key);
            }
            self.timed_out = self.timed_out.saturating_add(1);
        }
    }

    /// Gives up a datagram whose identification has come round.
    fn give_up_former(&mut self, key: Key) {
        let Some(distance) = self.family.distance else { return };
        let Some(datagram) = self.datagrams.get(&key) else { return };
        let source = self.sources.get(&key.src);
        let since =
            source.map_or(0, |source| source.fragments.wrapping_sub(datagram.last_fragment));
        if since >= distance {
            let _ = self.remove(key);
            self.timed_out = self.timed_out.saturating_add(1);
        }
    }

    /// Gives up the oldest datagrams until the memory bound holds. `current`, which just grew, goes
    /// last.
    fn make_room(&mut self, current: Key) -> Result<(), DropReason> {
        while self.memory > self.limit {
            let Some(oldest) = self.by_age.values().copied().find(|key| *key != current) else {
                self.remove(current)?;
                return Err(DropReason::FragmentMemory);
            };
            let _ = self.remove(oldest);
            self.evicted = self.evicted.saturating_add(1);
        }
        Ok(())
    }

    /// Takes a datagram out of all accounts.
    fn remove(&mut self, key: Key) -> Result<Datagram, DropReason> {
        // Never absent: callers hold a key from the map. An error instead of a panic costs nothing.
        let datagram = self.datagrams.remove(&key).ok_or(DropReason::FragmentMemory)?;
        self.by_age.remove(&datagram.arrival);
        if let Some(source) = self.sources.get_mut(&key.src) {
            source.waiting = source.waiting.saturating_sub(1);
            if source.waiting == 0 {
                self.sources.remove(&key.src);
            }
        }
        self.memory = self.memory.saturating_sub(datagram.cost());
        Ok(datagram)
    }
}

/// What fragments of one datagram have in common (RFC 791 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    ident: u32,
    protocol: u8,
}

/// The sender of fragments; kept as long as one of its datagrams waits.
#[derive(Debug, Default)]
struct Source {
    /// How many have come.
    fragments: u32,
    /// Datagrams that wait.
    waiting: u32,
}

/// The place of a fragment in its datagram: not empty, and within what a datagram can hold.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
    last: bool,
}

impl Span {
    fn of(header: &Header, max_payload_len: usize) -> Result<Self, DropReason> {
        let (start, len, last) =
            (header.fragment_offset(), header.payload_len(), !header.more_fragments);
        if len == 0 || !last && !len.is_multiple_of(8) {
            return Err(DropReason::FragmentBadLength);
        }
        let end = start.saturating_add(len);
        if end > max_payload_len {
            return Err(DropReason::FragmentTooBig);
        }
        Ok(Self { start, end, last })
    }
}

/// The fragments of one datagram so far.
///
/// Fragments mostly come in order, so what is complete from the start lies in one vector that
/// grows, is handed out without another copy, and never holds a byte that did not arrive. Only what
/// comes early waits beside it.
#[derive(Debug)]
struct Datagram {
    arrival: u64,
    deadline: Instant,
    /// The source's count of fragments when the last one of this datagram came.
    last_fragment: u32,
    /// The header of the fragment at offset 0.
    first: Option<Header>,
    /// The payload from 0 on, without a hole.
    head: Vec<u8>,
    /// Fragments behind a hole, by offset. They neither overlap nor touch `head`.
    early: BTreeMap<usize, Vec<u8>>,
    /// The sum of [`EARLY_COST`] and length over `early`.
    early_cost: usize,
    /// The highest end of any fragment; the datagram's own once `end_known`.
    end: usize,
    end_known: bool,
}

impl Datagram {
    fn new(arrival: u64, deadline: Instant) -> Self {
        Self {
            arrival,
            deadline,
            last_fragment: 0,
            first: None,
            head: Vec::new(),
            early: BTreeMap::new(),
            early_cost: 0,
            end: 0,
            end_known: false,
        }
    }

    /// On an error nothing is changed.
    fn insert<'a>(
        &mut self,
        header: &Header,
        span: Span,
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), DropReason> {
        let beyond_end = self.end_known && span.end > self.end;
        if beyond_end || span.last && span.end < self.end {
            return Err(DropReason::FragmentEndConflict);
        }
        self.check_new(span)?;
        let len = span.end.saturating_sub(span.start);
        if span.start == self.head.len() {
            append(&mut self.head, payload, len)?;
            self.join_early();
        } else {
            let mut fragment = Vec::new();
            append(&mut fragment, payload, len)?;
            self.early_cost = self.early_cost.saturating_add(early_cost(&fragment));
            self.early.insert(span.start, fragment);
        }
        if span.start == 0 {
            self.first = Some(*header);
        }
        self.end = self.end.max(span.end);
        self.end_known |= span.last;
        Ok(())
    }

    /// That no byte of `span` is there yet.
    fn check_new(&self, span: Span) -> Result<(), DropReason> {
        let contained_or_overlapping = |end: usize| {
            if span.end <= end {
                Err(DropReason::FragmentDuplicate)
            } else {
                Err(DropReason::FragmentOverlap)
            }
        };
        if span.start < self.head.len() {
            return contained_or_overlapping(self.head.len());
        }
        // The nearest fragment that begins before the span's end decides, for those before it end
        // before it.
        let Some((start, fragment)) = self.early.range(..span.end).next_back() else {
            return Ok(());
        };
        let end = start.saturating_add(fragment.len());
        if end <= span.start {
            return Ok(());
        }
        if *start <= span.start {
            return contained_or_overlapping(end);
        }
        Err(DropReason::FragmentOverlap)
    }

    /// Moves early fragments to the head as long as they continue it.
    fn join_early(&mut self) {
        while let Some(entry) = self.early.first_entry() {
            if *entry.key() != self.head.len() {
                return;
            }
            let fragment = entry.remove();
            self.early_cost = self.early_cost.saturating_sub(early_cost(&fragment));
            self.head.extend_from_slice(&fragment);
        }
    }

    fn is_whole(&self) -> bool {
        self.end_known && self.head.len() == self.end
    }

    fn is_empty(&self) -> bool {
        self.head.is_empty() && self.early.is_empty()
    }

    fn finish(self, is_ipv6: bool) -> Result<Reassembled, DropReason> {
        let first = self.first.ok_or(DropReason::FragmentTooBig)?;
        let room = MAX_TOTAL_LEN.saturating_sub(first.header_len());
        let len = self.head.len();
        // Options make the header longer than `Span` assumed, so the whole may still not fit.
        let header = first.for_fragment(0, if is_ipv6 { len.min(room) } else { len }, false);
        let header = header.ok_or(DropReason::FragmentTooBig)?;
        Ok(Reassembled { header, payload: self.head })
    }

    fn cost(&self) -> usize {
        DATAGRAM_COST.saturating_add(self.head.capacity()).saturating_add(self.early_cost)
    }
}

/// Appends exactly `len` bytes of the pieces, or nothing.
fn append<'a>(
    out: &mut Vec<u8>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    len: usize,
) -> Result<(), DropReason> {
    let (before, capacity) = (out.len(), out.capacity());
    out.try_reserve(len).map_err(|_| DropReason::FragmentMemory)?;
    let mut left = len;
    for piece in pieces {
        let piece = piece.get(..left).unwrap_or(piece);
        out.extend_from_slice(piece);
        left = left.saturating_sub(piece.len());
    }
    if left != 0 {
        // The room reserved goes too: nobody checks the memory bound for a fragment that is
        // dropped.
        out.truncate(before);
        out.shrink_to(capacity);
        return Err(DropReason::TooShort);
    }
    Ok(())
}

fn early_cost(fragment: &Vec<u8>) -> usize {
    fragment.capacity().saturating_add(EARLY_COST)
}

/// A generous guess at the bookkeeping of one datagram: its rows in three maps.
const DATAGRAM_COST: usize = 256;

/// The same for one early fragment: its row in a map, and the allocator's rounding. Without it,
/// 8-byte fragments would take many times the memory bound.
const EARLY_COST: usize = 64;

#[cfg(test)]
mod tests;
