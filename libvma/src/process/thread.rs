//! The internal thread: what no application thread is doing. It follows netlink, watches the
//! shadows, drains rings that nobody polls, and ages things.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::AsRawFd;
use rustix::io::Errno;

use super::Process;
use super::drive::Drive;
use super::guardian::Guardian;
use super::statistics::Attendant;
use crate::config::Config;
use crate::control::icmp::Icmp;
use crate::control::netlink::{Change, Monitor};
use crate::log::log_line;
use crate::shard::TICK_NANOS;
use crate::socket::shadow_news::{self, DATAGRAMS_REST, Kind};
use crate::socket::sharing::Reviews;
use crate::socket::{attach, egress, local, stream};
use crate::sys::thread;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::{PollFd, PollSet, ppoll};

const SECOND: u64 = 1_000_000_000;
/// How long a closed socket's bytes wait for another try of the kernel's.
const PRESSING_NANOS: u64 = 5_000_000;

static REFUSED: AtomicBool = AtomicBool::new(false);

/// Starts the thread. Without it everything works but changes are not followed; said once.
pub fn start(process: &'static Process, monitor: Monitor) {
    // Signals are the application's: its handlers must not run here.
    let saved = thread::block_signals();
    set_served(process, true);
    process.stack.attaching.set_served(true);
    // Here, not in the thread: what it opens has a low number for a moment, which the program, on its
    // own way by then, would miss when the kernel numbers its next descriptor.
    let readers = Attendant::new(process);
    let spawned = thread::start_own("vma", move || run(process, monitor, readers));
    thread::restore_signals(&saved);
    if let Err(error) = spawned {
        set_served(process, false);
        process.stack.attaching.set_served(false);
        process.statistics.end();
        if !REFUSED.swap(true, Ordering::Relaxed) {
            log_line!(Warning, "the internal thread could not be started: {error}");
        }
    }
}

fn run(process: &'static Process, monitor: Monitor, readers: Attendant) {
    settle(&process.stack.config);
    let mut rounds = Rounds::new(process, monitor, readers);
    loop {
        rounds.next();
    }
}

/// The places of the first descriptors of a round.
const CHANGES: usize = 0;
const SHADOWS_OF_STREAMS: usize = 1;
const SHADOWS_OF_DATAGRAMS: usize = 2;
const WAKER: usize = 3;
const ICMP: usize = 4;
const ICMP_OF_IPV6: usize = 5;
const LOCAL: usize = 6;
const WATCH: usize = 7;
const CHILDREN: usize = 8;

/// The thread's state from round to round.
struct Rounds {
    process: &'static Process,
    monitor: Monitor,
    readers: Attendant,
    drive: Drive,
    reviews: Reviews,
    /// For IPv4 and IPv6.
    icmp: [Option<Icmp>; 2],
    icmp_tried: bool,
    last_second: u64,
    last_refresh: u64,
    /// No news of UDP sockets is heard until then.
    datagrams_rest: u64,
    /// Frames of a blast wait for their kick.
    unsent: bool,
    seen_kicks: u64,
    /// Closed sockets' bytes wait for another try.
    pressing: bool,
    exceptions: usize,
    guardian: Guardian,
    /// When something other than readers is due, in rounds that only looked for readers.
    due: u64,
}

impl Rounds {
    fn new(process: &'static Process, monitor: Monitor, readers: Attendant) -> Rounds {
        let now = monotonic_nanos();
        Rounds {
            process,
            monitor,
            readers,
            drive: Drive::new(&process.stack),
            reviews: Reviews::default(),
            icmp: [None, None],
            icmp_tried: false,
            last_second: now,
            last_refresh: now,
            datagrams_rest: now,
            unsent: false,
            seen_kicks: 0,
            pressing: false,
            exceptions: stream::exceptions::FIRST_LIMIT,
            guardian: Guardian::default(),
            due: u64::MAX,
        }
    }

    /// Sleeps until there is something to do, and does it.
    fn next(&mut self) {
        let process = self.process;
        let stack = &process.stack;
        let mut set = PollSet::default();
        let timeout = self.prepare(&mut set);
        let began = monotonic_nanos();
        self.due = self.due.min(timeout.map_or(u64::MAX, |timeout| began.saturating_add(timeout)));
        let left = (self.due != u64::MAX).then(|| self.due.saturating_sub(began));
        let fds = set.as_mut_slice();
        let result = ppoll(fds, left.into_iter().chain(self.readers.patience()).min(), None);
        self.readers.attend(process);
        if result == Ok(0) && monotonic_nanos() < self.due {
            return;
        }
        self.due = u64::MAX;
        if matches!(result, Err(errno) if errno != libc::EINTR) {
            thread::nap_millis(100);
        }
        self.hear(fds);
        if !(self.unsent && result == Ok(0)) && stack.hold.left().is_none() {
            self.drive.step(stack);
        }
        self.reviews.attend(stack);
        super::attaching::attend(process);
        stream::watch::attend(stack, fired(fds, WATCH));
        self.tend_shard(fired(fds, WAKER));
        self.tick();
    }

    /// Collects the descriptors that end the sleep; returns the nanoseconds until the next task.
    fn prepare(&mut self, set: &mut PollSet) -> Option<u64> {
        let stack = &self.process.stack;
        set.add_readable(self.monitor.as_fd().as_raw_fd());
        set.add_readable(stack.shadows.raw(Kind::Streams));
        let rest = self.datagrams_rest.saturating_sub(monotonic_nanos());
        set.add_readable(if rest == 0 { stack.shadows.raw(Kind::Datagrams) } else { -1 });
        set.add_readable(stack.internal_waker.as_ref().map_or(-1, |waker| waker.raw()));
        for icmp in &self.icmp {
            set.add_readable(icmp.as_ref().map_or(-1, Icmp::raw));
        }
        set.add_readable(stack.local.descriptor());
        let watch = stream::watch::prepare(stack, set);
        set.add_readable(self.guardian.descriptor());
        let mut timeout = match stack.hold.left() {
            None => self.drive.prepare(stack, set),
            // Packets stay in the rings.
            held => held,
        };
        if self.unsent {
            timeout = Some(TICK_NANOS);
        } else if self.pressing {
            timeout = timeout.into_iter().chain([PRESSING_NANOS]).min();
        }
        let others = stack.local.patience().into_iter().chain(self.reviews.patience());
        let others = others.chain(stack.attaching.patience()).chain(self.guardian.patience());
        let rest = Some(rest).filter(|rest| *rest > 0);
        timeout.into_iter().chain(others).chain(watch).chain(rest).min()
    }

    /// Handles the descriptors that ended the sleep.
    fn hear(&mut self, fds: &[PollFd]) {
        let process = self.process;
        let stack = &process.stack;
        if fired(fds, CHANGES) {
            follow(process, &mut self.monitor);
        }
        if fired(fds, SHADOWS_OF_STREAMS) {
            shadow_news::hear(stack, Kind::Streams);
        }
        if fired(fds, SHADOWS_OF_DATAGRAMS) {
            shadow_news::hear(stack, Kind::Datagrams);
            // A call that polls and never asks the kernel relies on this thread.
            if stack.config.rx_udp_poll_os_ratio != 0 {
                self.datagrams_rest = monotonic_nanos() + DATAGRAMS_REST;
            }
        }
        if fired(fds, WAKER)
            && let Some(waker) = &stack.internal_waker
        {
            waker.clear();
            self.reviews.wake();
            process.serve_leaver();
            if let Some(requests) = &process.requests {
                requests.serve(process);
            }
            if let Some(wards) = &process.wards {
                self.guardian.answer(wards);
            }
        }
        if (fired(fds, CHILDREN) || self.guardian.patience() == Some(0))
            && let Some(wards) = &process.wards
        {
            self.guardian.attend(wards);
        }
        for (icmp, place) in self.icmp.iter().zip([ICMP, ICMP_OF_IPV6]) {
            if fired(fds, place)
                && let Some(icmp) = icmp
            {
                icmp.read(|notice| match notice.seq {
                    Some(seq) => stream::path::on_icmp(stack, &notice, seq),
                    None => egress::on_packet_too_big(stack, &notice.key),
                });
            }
        }
        let local = &stack.local;
        if fired(fds, LOCAL) || local.patience() == Some(0) || local.are_bells_wanted() {
            local::serve(stack);
        }
        if !self.icmp_tried && stack.shard.try_lock().is_some_and(|state| state.has_interface()) {
            self.icmp_tried = true;
            self.icmp = [Icmp::open(), Icmp::open_ipv6()].map(heard);
        }
    }

    /// Does for the shard's connections and rings the work that program threads have left undone.
    fn tend_shard(&mut self, woken: bool) {
        let stack = &self.process.stack;
        if let Some(mut state) = stack.shard.try_lock() {
            if state.take_returned() {
                stream::local::flush_all(&mut state);
            }
            if state.has_pressing_pipes() {
                state.wind_up_pipes();
            }
            self.pressing = state.has_pressing_pipes();
        }
        // Whoever polls sends what waits, and would be held up, time and again, if it shares this CPU.
        self.unsent = match stack.shard.try_lock() {
            Some(mut state) => state.finish_blast(&mut self.seen_kicks),
            None => self.unsent || woken,
        };
    }

    /// Runs the tasks of each second, and the refresh of routes.
    fn tick(&mut self) {
        let process = self.process;
        let stack = &process.stack;
        let now = monotonic_nanos();
        if now.saturating_sub(self.last_second) >= SECOND {
            self.last_second = now;
            set_served(process, true);
            self.exceptions = stream::exceptions::expire(stack, self.exceptions);
            stream::inherited::review(stack);
            process.tend_pipes();
            if let Some(mut state) = stack.shard.try_lock() {
                state.expire_fragments();
                // A group may have got members on this host, which no message tells.
                attach::void_doubtful_routes(&mut state);
            }
        }
        // Path MTUs and neighbours that the kernel changes without a message are asked for again.
        if now.saturating_sub(self.last_refresh) >= stack.config.refresh_msec * 1_000_000 {
            self.last_refresh = now;
            if let Ok(mut state) = stack.shard.lock() {
                state.next_epoch();
            }
        }
    }
}

/// Where the thread runs: first the set, then the CPUs within it.
fn settle(config: &Config) {
    let cpuset = &config.internal_thread_cpuset;
    if !cpuset.is_empty()
        && let Err(errno) = thread::join_cpuset(cpuset)
    {
        log_line!(Warning, "VMA_INTERNAL_THREAD_CPUSET={cpuset}: {errno}");
    }
    let cpus = &config.internal_thread_cpus;
    if !cpus.is_empty() && !thread::pin_current(cpus) {
        log_line!(Warning, "VMA_INTERNAL_THREAD_AFFINITY: there is no CPU of {cpus:?} for us");
    }
}

/// Children and other processes are answered. Said again now and then: an exec that failed took it
/// back.
fn set_served(process: &Process, served: bool) {
    process.stack.local.set_served(served);
    if let Some(requests) = &process.requests {
        requests.set_served(served);
    }
}

fn heard(opened: Result<Icmp, Errno>) -> Option<Icmp> {
    if let Err(errno) = &opened {
        log_line!(Debug, "ICMP errors about connections are not heard: {errno}");
    }
    opened.ok()
}

fn fired(fds: &[PollFd], at: usize) -> bool {
    fds.get(at).is_some_and(|entry| entry.revents != 0)
}

/// Takes the kernel's changes over and lets live sockets see them.
fn follow(process: &Process, monitor: &mut Monitor) {
    let stack = &process.stack;
    let mut changes: Vec<Change> = Vec::new();
    if let Err(error) = monitor.read(&mut |change| changes.push(change)) {
        log_line!(Warning, "{error}");
    }
    let Ok(mut slot) = stack.plane.lock() else { return };
    let Some(plane) = slot.as_mut() else { return };
    let mut effect = crate::control::Effect::default();
    let mut unanswered = Vec::new();
    for change in changes {
        let one = plane.control.apply(change);
        effect.next_hops |= one.next_hops;
        effect.flows |= one.flows;
        unanswered.extend(one.unanswered);
    }
    let gone = match effect.flows {
        true => stream::stranded::forget_interfaces(plane),
        false => Vec::new(),
    };
    drop(slot);
    for interface in gone {
        process.rescue_streams(interface);
    }
    let Ok(mut slot) = stack.plane.lock() else { return };
    let Some(plane) = slot.as_mut() else { return };
    if effect.flows {
        attach::update_interfaces(stack, plane);
        let _ = attach::reconsider(stack, plane);
    }
    // Looking routes up again, below, has the kernel try anew.
    for (interface, neighbour) in unanswered {
        stream::path::neighbour_failed(stack, plane, interface, neighbour);
    }
    if effect.next_hops {
        if let Ok(mut state) = stack.shard.lock() {
            state.next_epoch();
        }
        stream::path::refresh(stack, plane);
    }
}
