//! What the kernel carries for sockets that are its own, counted by the calls that are passed on to it:
//! without a lock, and never freed, so that a call may count whatever happens to its socket meanwhile.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use libvma_dev::stats::Counters;

use crate::socket::stream::gate::Gate;

/// A socket of the kernel's that is counted. The number of one that is gone is not used again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelsId {
    slot: u32,
    generation: u32,
    is_stream: bool,
}

/// So many of the upper bits of a number are somebody else's.
const SPARE_BITS: u32 = 2;
const GENERATIONS: u32 = 1 << (32 - SPARE_BITS);
const STREAM: u64 = 1 << 31;

impl KernelsId {
    pub fn to_bits(self) -> u64 {
        let stream = if self.is_stream { STREAM } else { 0 };
        u64::from(self.generation) << 32 | stream | u64::from(self.slot)
    }

    pub fn from_bits(bits: u64) -> KernelsId {
        KernelsId {
            slot: (bits & (STREAM - 1)) as u32,
            generation: (bits >> 32) as u32 & (GENERATIONS - 1),
            is_stream: bits & STREAM != 0,
        }
    }

    pub fn is_stream(self) -> bool {
        self.is_stream
    }

    pub(super) fn slot(self) -> usize {
        self.slot as usize
    }

    pub(super) fn new(slot: u32, generation: u32, is_stream: bool) -> KernelsId {
        KernelsId { slot, generation: generation & (GENERATIONS - 1), is_stream }
    }
}

/// One socket's, on cache lines of its own.
#[derive(Default)]
#[repr(align(64))]
pub struct Traffic {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    rx_errors: AtomicU64,
    rx_eagain: AtomicU64,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    tx_errors: AtomicU64,
    tx_eagain: AtomicU64,
    /// The calls at work, if the socket's connection may be taken over.
    pub gate: Gate,
}

impl Traffic {
    #[inline]
    pub fn received(&self, outcome: Result<usize, i32>) {
        count(outcome, [&self.rx_packets, &self.rx_bytes, &self.rx_errors, &self.rx_eagain]);
    }

    #[inline]
    pub fn sent(&self, outcome: Result<usize, i32>) {
        count(outcome, [&self.tx_packets, &self.tx_bytes, &self.tx_errors, &self.tx_eagain]);
    }

    pub fn counters(&self) -> Counters {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counters {
            rx_os_packets: read(&self.rx_packets),
            rx_os_bytes: read(&self.rx_bytes),
            rx_os_errors: read(&self.rx_errors),
            rx_os_eagain: read(&self.rx_eagain),
            tx_os_packets: read(&self.tx_packets),
            tx_os_bytes: read(&self.tx_bytes),
            tx_os_errors: read(&self.tx_errors),
            tx_os_eagain: read(&self.tx_eagain),
            ..Counters::default()
        }
    }
}

#[inline]
fn count(outcome: Result<usize, i32>, [packets, bytes, errors, eagain]: [&AtomicU64; 4]) {
    let add = |number: &AtomicU64, more| {
        number.fetch_add(more, Ordering::Relaxed);
    };
    match outcome {
        Ok(len) => {
            add(packets, 1);
            add(bytes, len as u64);
        }
        Err(libc::EAGAIN) => add(eagain, 1),
        // The call did nothing, and will be made again.
        Err(libc::EINTR) => {}
        Err(_) => add(errors, 1),
    }
}

/// Places, in pages each of which is twice as large as the one before.
#[derive(Default)]
pub(super) struct Pages([OnceLock<Box<[Traffic]>>; PAGES]);

const PAGES: usize = 15;
const FIRST: usize = 64;

impl Pages {
    #[inline]
    pub fn get(&self, slot: usize) -> Option<&Traffic> {
        let (page, at) = place(slot);
        self.0.get(page)?.get()?.get(at)
    }

    /// None beyond two million.
    pub fn get_or_make(&self, slot: usize) -> Option<&Traffic> {
        let (page, at) = place(slot);
        let make = || (0..FIRST << page).map(|_| Traffic::default()).collect();
        self.0.get(page)?.get_or_init(make).get(at)
    }
}

#[inline]
fn place(slot: usize) -> (usize, usize) {
    let number = slot.saturating_add(FIRST);
    let page = (number.ilog2() - FIRST.ilog2()) as usize;
    (page, number - (FIRST << page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_another() {
        assert_eq!([0, 63, 64, 191, 192].map(place), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
        let pages = Pages::default();
        assert!(pages.get(64).is_none());
        pages.get_or_make(64).unwrap().sent(Ok(5));
        assert_eq!(pages.get(64).unwrap().counters().tx_os_bytes, 5);
        assert_eq!(pages.get(65).unwrap().counters(), Counters::default());
        assert!(pages.get_or_make(FIRST << PAGES).is_none());
    }

    #[test]
    fn names_fit_into_what_is_left_of_a_word() {
        for is_stream in [false, true] {
            let id = KernelsId::new(77, u32::MAX, is_stream);
            assert_eq!(id.to_bits() >> (64 - SPARE_BITS), 0);
            assert_eq!(KernelsId::from_bits(id.to_bits()), id);
        }
    }

    // covers: STAT-40, FIX-24
    #[test]
    fn what_would_block_is_no_error_and_a_signal_is_nothing() {
        let traffic = Traffic::default();
        for outcome in [Ok(7), Err(libc::EAGAIN), Err(libc::EINTR), Err(libc::EPIPE)] {
            traffic.received(outcome);
            traffic.sent(outcome);
        }
        let expected = Counters {
            rx_os_packets: 1,
            rx_os_bytes: 7,
            rx_os_errors: 1,
            rx_os_eagain: 1,
            tx_os_packets: 1,
            tx_os_bytes: 7,
            tx_os_errors: 1,
            tx_os_eagain: 1,
            ..Counters::default()
        };
        assert_eq!(traffic.counters(), expected);
    }
}
