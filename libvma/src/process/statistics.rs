//! The process's statistics file: when it is there, and what readers get of it.
//!
//! Until a reader asks nothing is gathered; the internal thread looks at the file now and then
//! whether one does. The file is taken away at the end of the process; a forked child begins with none, and
//! makes its own when it has a socket. exec cannot take it away, for it may fail, and nobody knows how long
//! it takes: then the file loses its lock when it succeeds, by which readers and the next program see
//! that nobody writes there any more.

use libvma_dev::stats::{Control, EPOLLS, Epoll, Snapshot};

use super::{Process, dump};
use crate::socket::report::Report;
use crate::stats::control::{Asked, Seen};
use crate::stats::publish::Publisher;
use crate::sys::lock::Lock;
use crate::sys::time::monotonic_nanos;
use crate::{log, mux};

const MILLISECOND: u64 = 1_000_000;
/// How often the file is looked at, and for so long after somebody asked for something more often.
const PATIENCE: u64 = 100 * MILLISECOND;
const LIVELY_PATIENCE: u64 = 10 * MILLISECOND;
const LIVELY: u64 = 10_000 * MILLISECOND;
/// Programs that have lived for so long take away the files of killed ones when they end.
const TIDY_AGE: u64 = 100 * MILLISECOND;
/// A daemon() whose parent lives by now has failed.
const DAEMON_FAILED: u64 = 1000 * MILLISECOND;

/// The file, for whoever ends the process.
pub struct Statistics(Lock<File>);

enum File {
    /// None is wanted, or it could not be made.
    None,
    Open(Publisher),
    /// Taken away at this time, because the process is about to end inside of libc.
    Away(u64),
    /// The process ends.
    Over,
}

impl Statistics {
    pub fn new() -> Statistics {
        Statistics(Lock::new(File::None))
    }

    /// The process is about to end where nobody sees it, and is likely to.
    pub fn withdraw(&self) {
        let Ok(mut file) = self.0.lock() else { return };
        if matches!(*file, File::Open(_)) {
            replace(&mut file, File::Away(monotonic_nanos()));
        }
    }

    /// The process ends.
    pub fn end(&self) {
        let Ok(mut file) = self.0.lock() else { return };
        // Not in the internal thread: a directory that it opens has a low number for a moment, which the program would
        // miss. A program that ends at once leaves it to others.
        if let File::Open(publisher) = &*file
            && publisher.age() >= TIDY_AGE
        {
            publisher.tidy();
        }
        replace(&mut file, File::Over);
    }
}

fn replace(file: &mut File, next: File) {
    if let File::Open(publisher) = core::mem::replace(file, next) {
        publisher.remove();
    }
}

/// Serves readers; in the internal thread.
pub struct Attendant {
    /// What readers had asked for when it was looked last; None without a file.
    seen: Option<Seen>,
    report: Report,
    snapshot: Box<Snapshot>,
    next: u64,
    lively_until: u64,
}

impl Attendant {
    /// Makes the file.
    pub fn new(process: &Process) -> Attendant {
        let mut attendant = Attendant {
            seen: None,
            report: Report::new(process.stack.config.stats_sockets as usize),
            snapshot: Box::default(),
            next: u64::MAX,
            lively_until: 0,
        };
        attendant.make(process);
        attendant
    }

    fn make(&mut self, process: &Process) {
        let Ok(mut file) = process.statistics.0.lock() else { return };
        if matches!(*file, File::Over) {
            return;
        }
        let config = &process.stack.config;
        let control = Control {
            log_level: log::level() as i32,
            log_details: i32::from(log::details()),
            ..Control::default()
        };
        let made = Publisher::create(&config.stats_directory, config.stats_sockets, &control);
        self.seen = made.is_some().then(|| Seen::new(control));
        self.next = made.as_ref().map_or(u64::MAX, |_| monotonic_nanos().saturating_add(PATIENCE));
        *file = made.map_or(File::None, File::Open);
    }

    /// Nanoseconds until the file is to be looked at; None: never.
    pub fn patience(&self) -> Option<u64> {
        (self.next != u64::MAX).then(|| self.next.saturating_sub(monotonic_nanos()))
    }

    /// Looks whether a reader asks for something, if it is time.
    pub fn attend(&mut self, process: &Process) {
        let now = monotonic_nanos();
        if now < self.next {
            return;
        }
        self.next = now.saturating_add(PATIENCE);
        let control = match process.statistics.0.lock().as_deref() {
            Ok(File::Open(publisher)) => publisher.control(),
            Ok(File::Away(since)) if now.saturating_sub(*since) < DAEMON_FAILED => None,
            Ok(File::Away(_)) => {
                self.seen = None;
                None
            }
            Ok(File::None | File::Over) => {
                self.next = u64::MAX;
                return;
            }
            Err(_) => None,
        };
        let Some(seen) = &mut self.seen else { return self.make(process) };
        let Some(control) = control else { return };
        let asked = seen.look(control);
        if !asked.is_nothing() {
            self.lively_until = now.saturating_add(LIVELY);
            self.serve(process, &asked);
        }
        if now < self.lively_until {
            self.next = now.saturating_add(LIVELY_PATIENCE);
        }
    }

    fn serve(&mut self, process: &Process, asked: &Asked) {
        if let Some(level) = asked.level {
            log::set_level(level);
        }
        if let Some(details) = asked.details {
            log::set_details(details);
        }
        if let Some(wanted) = asked.dump {
            dump::dump(process, wanted.descriptor, wanted.level);
        }
        if let Some(descriptors) = &asked.zero {
            self.report.set_to_zero(&process.stack, descriptors);
            if descriptors.is_empty() {
                mux::zero_statistics(&process.poll_turn, &process.epolls);
            }
        }
        if let Some(number) = asked.snapshot {
            self.publish(process, number);
        }
    }

    fn publish(&mut self, process: &Process, answered: u32) {
        let snapshot = &mut *self.snapshot;
        snapshot.answered = answered;
        let epolls;
        (snapshot.poll, snapshot.select, epolls) =
            mux::statistics(&process.poll_turn, &process.epolls);
        snapshot.epolls = [Epoll::default(); EPOLLS];
        for (place, epoll) in snapshot.epolls.iter_mut().zip(epolls) {
            *place = epoll;
        }
        let sockets = self.report.gather(&process.stack, snapshot);
        if let Ok(mut file) = process.statistics.0.lock()
            && let File::Open(publisher) = &mut *file
        {
            publisher.write(snapshot, sockets);
        }
    }
}
