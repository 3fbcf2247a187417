//! The internal thread: what no application thread is doing. It follows netlink, watches the
//! shadows, drains rings that nobody polls, and ages things.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll;
use rustix::fd::AsRawFd;
use rustix::time::Timespec;

use super::Process;
use super::drive::Drive;
use super::statistics::Attendant;
use crate::config::Config;
use crate::control::icmp::Icmp;
use crate::control::netlink::{Change, Monitor};
use crate::log::log_line;
use crate::shard::{SocketId, TICK_NANOS};
use crate::socket::sharing::Reviews;
use crate::socket::{Stack, attach, local, stream};
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
    let spawned = std::thread::Builder::new()
        .name("vma".into())
        .stack_size(256 * 1024)
        .spawn(move || run(process, monitor, readers));
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

fn run(process: &'static Process, mut monitor: Monitor, mut readers: Attendant) {
    let stack = &process.stack;
    settle(&stack.config);
    // Path MTUs and neighbours that the kernel changes without a message are asked for again.
    let refresh_nanos = stack.config.refresh_msec * 1_000_000;
    let mut drive = Drive::new(stack);
    let mut reviews = Reviews::default();
    let (mut icmp, mut icmp_tried) = (None, false);
    let (mut last_second, mut last_refresh) = (monotonic_nanos(), monotonic_nanos());
    let (mut unsent, mut seen_kicks) = (false, 0);
    let mut pressing = false;
    let mut exceptions = stream::exceptions::FIRST_LIMIT;
    // When something other than readers is due, in rounds that only looked for readers.
    let mut due = u64::MAX;
    loop {
        let shadows = stack.shadows.as_ref().map_or(-1, |fd| fd.raw());
        let waker = stack.internal_waker.as_ref().map_or(-1, |waker| waker.raw());
        let mut set = PollSet::default();
        set.add_readable(monitor.as_fd().as_raw_fd());
        set.add_readable(shadows);
        set.add_readable(waker);
        set.add_readable(icmp.as_ref().map_or(-1, Icmp::raw));
        set.add_readable(stack.local.descriptor());
        let watch = stream::watch::prepare(stack, &mut set);
        let mut timeout = drive.prepare(stack, &mut set);
        if unsent {
            timeout = Some(TICK_NANOS);
        } else if pressing {
            timeout = timeout.into_iter().chain([PRESSING_NANOS]).min();
        }
        let others = stack.local.patience().into_iter().chain(reviews.patience());
        let others = others.chain(stack.attaching.patience());
        timeout = timeout.into_iter().chain(others).chain(watch).min();
        let began = monotonic_nanos();
        due = due.min(timeout.map_or(u64::MAX, |timeout| began.saturating_add(timeout)));
        let left = (due != u64::MAX).then(|| due.saturating_sub(began));
        let fds = set.as_mut_slice();
        let result = ppoll(fds, left.into_iter().chain(readers.patience()).min(), None);
        readers.attend(process);
        if result == Ok(0) && monotonic_nanos() < due {
            continue;
        }
        due = u64::MAX;
        if matches!(result, Err(errno) if errno != libc::EINTR) {
            thread::nap_millis(100);
        }
        if fired(fds, 0) {
            follow(process, &mut monitor);
        }
        if fired(fds, 1) {
            note_shadows(stack);
        }
        let woken = fired(fds, 2);
        if woken && let Some(waker) = &stack.internal_waker {
            waker.clear();
            reviews.wake();
            process.serve_leaver();
            if let Some(requests) = &process.requests {
                requests.serve(process);
            }
        }
        if fired(fds, 3)
            && let Some(icmp) = &icmp
        {
            icmp.read(|notice| stream::path::on_icmp(stack, &notice));
        }
        if fired(fds, 4) || stack.local.patience() == Some(0) {
            local::serve(stack);
        }
        if icmp.is_none() && !icmp_tried && stack.shard.try_lock().is_some_and(|s| s.has_tcp()) {
            icmp_tried = true;
            icmp = open_icmp();
        }
        if !(unsent && result == Ok(0)) {
            drive.step(stack);
        }
        reviews.attend(stack);
        super::attaching::attend(process);
        stream::watch::attend(stack, fired(fds, 5));
        if let Some(mut state) = stack.shard.try_lock() {
            if state.take_returned() {
                stream::local::flush_all(&mut state);
            }
            if state.has_pressing_pipes() {
                state.wind_up_pipes();
            }
            pressing = state.has_pressing_pipes();
        }
        // Whoever polls sends what waits, and would be held up, time and again, if it shares this CPU.
        unsent = match stack.shard.try_lock() {
            Some(mut state) => state.finish_blast(&mut seen_kicks),
            None => unsent || woken,
        };
        let now = monotonic_nanos();
        if now.saturating_sub(last_second) >= SECOND {
            last_second = now;
            set_served(process, true);
            exceptions = stream::exceptions::expire(stack, exceptions);
            stream::inherited::review(stack);
            process.tend_pipes();
            if let Some(mut state) = stack.shard.try_lock() {
                state.expire_fragments();
                // A group may have got members on this host, which no message tells.
                attach::void_doubtful_routes(&mut state);
            }
        }
        if now.saturating_sub(last_refresh) >= refresh_nanos {
            last_refresh = now;
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

fn open_icmp() -> Option<Icmp> {
    let opened = Icmp::open();
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

/// A shadow has data or an error: its socket must look, and whoever waits for it.
fn note_shadows(stack: &Stack) {
    let Some(watcher) = &stack.shadows else { return };
    let mut events = [const { core::mem::MaybeUninit::uninit() }; 64];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let Ok((events, _)) = epoll::wait(watcher, &mut events, Some(&now)) else { return };
    let Ok(mut state) = stack.shard.lock() else { return };
    for event in events {
        let data = event.data;
        let Some(id) = SocketId::from_bits(data.u64()) else { continue };
        let flags = event.flags;
        if let Some((_, socket)) = state.socket(id) {
            socket.order.note_readable();
            if flags.contains(epoll::EventFlags::ERR) {
                socket.order.note_error();
            }
        }
        if stream::local::has_pipe(&mut state, id) {
            stream::local::flush(&mut state, id);
            state.announce_change(id);
        } else {
            state.announce(id);
        }
    }
}
