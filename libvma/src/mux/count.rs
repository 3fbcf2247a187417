//! What the calls of poll, of select, and on each epoll instance have counted.
//!
//! A call that finds sockets of ours, the frequent case, counts under the shard's lock, by plain
//! additions. What else a call may come to costs a system call anyway, and counts by atomic ones.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libvma_dev::stats::{self, Multiplexer};

use super::OsTurn;
use super::epoll::Epolls;
use super::poll::Told;
use crate::shard::State;
use crate::shard::clock;
use crate::socket::Socket;

/// VMA_CPU_USAGE_STATS. Only then are clocks read for it.
static MEASURES: AtomicBool = AtomicBool::new(false);

/// From now on, the time that calls spend polling is measured.
pub fn measure_polling() {
    MEASURES.store(true, Ordering::Relaxed);
}

/// In cache lines of its own: what lies beside it is other threads' business.
#[derive(Default)]
#[repr(align(64))]
pub struct Calls {
    // Changed under the shard's lock only.
    hits: AtomicU64,
    ready: AtomicU64,
    // Changed by anybody.
    thread: AtomicU32,
    misses: AtomicU64,
    timeouts: AtomicU64,
    errors: AtomicU64,
    hits_of_kernel: AtomicU64,
    ready_of_kernel: AtomicU64,
    polling: Polling,
}

impl Calls {
    pub(super) fn statistics(&self) -> Multiplexer {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Multiplexer {
            poll_hits: read(&self.hits) + read(&self.hits_of_kernel),
            poll_misses: read(&self.misses),
            timeouts: read(&self.timeouts),
            errors: read(&self.errors),
            ready: read(&self.ready),
            ready_os: read(&self.ready_of_kernel),
            thread: self.thread.load(Ordering::Relaxed),
            polling_cpu: if is_measuring() { self.polling.share(now()) } else { 0 },
        }
    }

    pub(super) fn zero(&self) {
        let counts = [
            &self.hits,
            &self.ready,
            &self.misses,
            &self.timeouts,
            &self.errors,
            &self.hits_of_kernel,
            &self.ready_of_kernel,
        ];
        counts.into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// One call, as far as it counts.
pub struct Counting<'a> {
    calls: &'a Calls,
    thread: u32,
    slept: bool,
    /// It sleeps now.
    asleep: bool,
    /// Of ours, ready.
    ours: usize,
    /// Polling since then, if that is measured, on the shard's clock.
    since: Option<u64>,
    /// Fruitless polls since the clock was read.
    rounds: u32,
}

/// Fruitless polls between two readings of the clock: a call may poll without end.
const STRIDE: u32 = 1024;

impl<'a> Counting<'a> {
    #[inline]
    pub fn begin(calls: &'a Calls, thread: u32) -> Counting<'a> {
        let since = is_measuring().then(now);
        Counting { calls, thread, slept: false, asleep: false, ours: 0, since, rounds: 0 }
    }

    /// So many sockets of ours are ready. Takes the shard's state as a proof that its lock is held.
    #[inline]
    pub fn found_ours(&mut self, _locked: &State<Socket>, count: usize) {
        if count == 0 {
            return;
        }
        let add = |to: &AtomicU64, count: u64| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        };
        self.ours += count;
        add(&self.calls.ready, count as u64);
        add(&self.calls.hits, u64::from(!self.slept));
        self.calls.thread.store(self.thread, Ordering::Relaxed);
    }

    /// A poll found nothing.
    #[inline]
    pub fn missed(&mut self) {
        if self.since.is_some() {
            self.rounds += 1;
            if self.rounds.is_multiple_of(STRIDE) {
                self.add_up();
            }
        }
    }

    /// The call goes to sleep.
    pub fn sleeps(&mut self) {
        self.asleep = true;
        if !core::mem::replace(&mut self.slept, true) {
            self.calls.misses.fetch_add(1, Ordering::Relaxed);
        }
        if self.since.is_some() {
            self.add_up();
        }
    }

    /// And polls again, if it did.
    pub fn wakes(&mut self) {
        if core::mem::take(&mut self.asleep) {
            self.since = self.since.map(|_| now());
        }
    }

    /// What the call returns.
    #[inline]
    pub fn end(mut self, result: &Result<usize, i32>) {
        if *result != Ok(self.ours) || self.ours == 0 {
            self.end_by_kernel(result);
        }
        if self.since.is_some() {
            self.add_up();
        }
    }

    /// The end of a call in which the kernel took part.
    #[cold]
    fn end_by_kernel(&self, result: &Result<usize, i32>) {
        let calls = self.calls;
        calls.thread.store(self.thread, Ordering::Relaxed);
        match *result {
            Ok(0) => calls.timeouts.fetch_add(1, Ordering::Relaxed),
            Ok(count) => {
                let hit = self.ours == 0 && !self.slept;
                calls.hits_of_kernel.fetch_add(u64::from(hit), Ordering::Relaxed);
                let kernels = count.saturating_sub(self.ours) as u64;
                calls.ready_of_kernel.fetch_add(kernels, Ordering::Relaxed)
            }
            Err(_) => calls.errors.fetch_add(1, Ordering::Relaxed),
        };
    }

    #[cold]
    fn add_up(&mut self) {
        if let Some(since) = &mut self.since {
            let now = now();
            self.calls.polling.add(now, now.saturating_sub(*since));
            *since = now;
        }
    }
}

fn is_measuring() -> bool {
    MEASURES.load(Ordering::Relaxed)
}

fn now() -> u64 {
    clock::now().as_nanos()
}

/// The share of its time that a process spends polling, over the last full second. Of two threads
/// that poll it is the sum.
#[derive(Default)]
struct Polling {
    /// When the present second began; 0: none has.
    began: AtomicU64,
    /// Nanoseconds of polling since.
    spent: AtomicU64,
    /// Percent, of the second before.
    before: AtomicU32,
}

const SECOND: u64 = 1_000_000_000;

impl Polling {
    fn add(&self, now: u64, nanos: u64) {
        let began = self.began.load(Ordering::Relaxed);
        let spent = self.spent.fetch_add(nanos, Ordering::Relaxed).wrapping_add(nanos);
        if now.saturating_sub(began) < SECOND {
            return;
        }
        // One thread begins the next second.
        let mine = self.began.compare_exchange(began, now, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            self.spent.fetch_sub(spent, Ordering::Relaxed);
            let share = if began == 0 { 0 } else { percent(spent, now - began) };
            self.before.store(share, Ordering::Relaxed);
        }
    }

    fn share(&self, now: u64) -> u32 {
        let past = now.saturating_sub(self.began.load(Ordering::Relaxed));
        // Nobody was there to begin the next second: the one that was begun goes on.
        match past >= 2 * SECOND {
            true => percent(self.spent.load(Ordering::Relaxed), past),
            false => self.before.load(Ordering::Relaxed),
        }
    }
}

fn percent(part: u64, whole: u64) -> u32 {
    u32::try_from(part.saturating_mul(100) / whole.max(1)).unwrap_or(u32::MAX)
}

/// What poll, select and all epoll instances have counted.
pub fn statistics(turn: &OsTurn, epolls: &Epolls) -> (Multiplexer, Multiplexer, Vec<stats::Epoll>) {
    let epolls = epolls.all().into_iter().map(|epoll| stats::Epoll {
        used: 1,
        descriptor: epoll.descriptor(),
        calls: epoll.calls().statistics(),
    });
    let [poll, select] = [Told::Unasked, Told::Asked].map(|told| turn.calls(told).statistics());
    (poll, select, epolls.collect())
}

/// They count from here on.
pub fn zero_statistics(turn: &OsTurn, epolls: &Epolls) {
    [Told::Unasked, Told::Asked].into_iter().for_each(|told| turn.calls(told).zero());
    epolls.all().iter().for_each(|epoll| epoll.calls().zero());
}

#[cfg(test)]
mod tests;
