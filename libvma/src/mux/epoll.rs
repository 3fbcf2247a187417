//! epoll(7) over offloaded and other descriptors.
//!
//! The program's epoll instance stays the kernel's, with everything the program put in, the
//! shadows of our sockets included: so the kernel keeps giving what is the kernel's (other
//! descriptors, writability, errors, packets that came another way), a forked child inherits
//! something that works, and un-offloading a socket needs nothing. Beside it an [`Epoll`] knows
//! which of our sockets are watched, and a readiness set of the shard lists those that became
//! readable, so that a wait costs what is ready, not what is watched.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OsTurn;
use crate::shard::{SetId, SocketId};
use crate::socket::wait::{Next, Wait};
use crate::socket::{Stack, WhyOs, attach};
use crate::sys::lock::Lock;
use crate::sys::wait::PollSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollId(pub u32);

/// `struct epoll_event`.
pub type Event = libc::epoll_event;

const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// What the library knows of the program's epoll instances.
pub struct Epolls {
    list: Lock<Vec<Option<Arc<Epoll>>>>,
    /// Held while one is made for a descriptor.
    pub making: Lock<()>,
}

pub struct Epoll {
    set: SetId,
    turn: OsTurn,
    /// Another way to wait for it exists that we do not see through: its sockets are the kernel's.
    nested: AtomicBool,
    /// The last wait asked the kernel first.
    kernel_led: AtomicBool,
    watched: Lock<Watched>,
}

#[derive(Default)]
struct Watched {
    /// By socket: its registrations, one for each descriptor of it that the program added.
    entries: HashMap<SocketId, Vec<Entry>>,
    /// Some entry is EPOLLONESHOT.
    any_oneshot: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    descriptor: i32,
    events: u32,
    data: u64,
    /// EPOLLONESHOT, and it has fired.
    spent: bool,
}

impl Default for Epolls {
    fn default() -> Self {
        Epolls { list: Lock::new(Vec::new()), making: Lock::new(()) }
    }
}

impl Epolls {
    pub fn get(&self, id: EpollId) -> Option<Arc<Epoll>> {
        self.list.lock().ok()?.get(id.0 as usize)?.clone()
    }

    pub fn add(&self, stack: &Stack) -> Option<(EpollId, Arc<Epoll>)> {
        let set = stack.shard.lock().ok()?.new_set();
        let epoll = Epoll {
            set,
            turn: OsTurn::default(),
            nested: AtomicBool::new(false),
            kernel_led: AtomicBool::new(false),
            watched: Lock::new(Watched::default()),
        };
        let epoll = Arc::new(epoll);
        let mut list = self.list.lock().ok()?;
        let index = list.iter().position(Option::is_none).unwrap_or(list.len());
        if index == list.len() {
            list.push(None);
        }
        if let Some(slot) = list.get_mut(index) {
            *slot = Some(epoll.clone());
        }
        Some((EpollId(index as u32), epoll))
    }

    /// The program closed the epoll descriptor.
    pub fn remove(&self, stack: &Stack, id: EpollId) {
        let Ok(mut list) = self.list.lock() else { return };
        let gone = list.get_mut(id.0 as usize).and_then(Option::take);
        drop(list);
        if let Some(epoll) = gone
            && let Ok(mut state) = stack.shard.lock()
        {
            state.end_set(epoll.set);
        }
    }
}

/// A change that the kernel has accepted for a socket of ours.
pub fn control(
    stack: &Stack,
    epoll: &Epoll,
    operation: i32,
    descriptor: i32,
    id: SocketId,
    event: Option<Event>,
) {
    let Ok(mut watched) = epoll.watched.lock() else { return };
    match (operation, event) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
            let why = watched
                .unclear(descriptor, id, event)
                .or_else(|| epoll.nested.load(Ordering::Relaxed).then_some(WhyOs::NestedEpoll));
            if let Some(why) = why {
                drop(watched);
                return attach::un_offload(stack, id, why);
            }
            let entry = Entry { descriptor, events: event.events, data: event.u64, spent: false };
            // Sockets that were closed without EPOLL_CTL_DEL.
            if let Ok(mut state) = stack.shard.lock() {
                watched.entries.retain(|id, _| state.socket(*id).is_some());
            }
            let entries = watched.entries.entry(id).or_default();
            entries.retain(|known| known.descriptor != descriptor);
            entries.push(entry);
            watched.any_oneshot |= event.events & ONESHOT != 0;
            drop(watched);
            if let Ok(mut state) = stack.shard.lock() {
                state.watch(epoll.set, id);
            }
        }
        (libc::EPOLL_CTL_DEL, _) => {
            let Some(entries) = watched.entries.get_mut(&id) else { return };
            entries.retain(|known| known.descriptor != descriptor);
            if !entries.is_empty() {
                return;
            }
            watched.entries.remove(&id);
            drop(watched);
            if let Ok(mut state) = stack.shard.lock() {
                state.unwatch(epoll.set, id);
            }
        }
        _ => {}
    }
}

/// The instance itself was added to another one, polled, or duplicated. Its sockets become the
/// kernel's, whose readiness is seen from everywhere.
pub fn nest(stack: &Stack, epoll: &Epoll) {
    if epoll.nested.swap(true, Ordering::Relaxed) {
        return;
    }
    let Ok(watched) = epoll.watched.lock() else { return };
    let sockets: Vec<SocketId> = watched.entries.keys().copied().collect();
    drop(watched);
    for id in sockets {
        attach::un_offload(stack, id, WhyOs::NestedEpoll);
    }
}

impl Watched {
    fn all(&self) -> impl Iterator<Item = (SocketId, &Entry)> {
        self.entries.iter().flat_map(|(id, entries)| entries.iter().map(|entry| (*id, entry)))
    }

    /// Would this registration be one that the kernel's events do not tell from another?
    fn unclear(&self, descriptor: i32, id: SocketId, event: Event) -> Option<WhyOs> {
        let oneshot = |events: u32| events & ONESHOT != 0;
        let mut others =
            self.all().filter(|(known, entry)| (*known, entry.descriptor) != (id, descriptor));
        let same = others.any(|(_, entry)| {
            entry.data == { event.u64 } && (oneshot(entry.events) || oneshot(event.events))
        });
        same.then_some(WhyOs::Ambiguous)
    }
}

/// A wait as the program asked for it, and the two things only libc can do for it.
pub struct Call<'a> {
    pub epfd: i32,
    /// Nanoseconds; None for ever.
    pub timeout: Option<u64>,
    pub mask: Option<&'a libc::sigset_t>,
    /// A wait of zero time on the kernel's instance.
    pub kernel: &'a mut dyn FnMut(&mut [Event]) -> Result<usize, i32>,
    /// Spends the kernel's half of a one-shot registration.
    pub disarm: &'a mut dyn FnMut(i32),
}

/// epoll_wait(2) on an instance that watches sockets of ours.
pub fn wait(stack: &Stack, epoll: &Epoll, out: &mut [Event], call: Call<'_>) -> Result<usize, i32> {
    let Call { epfd, timeout, mask, kernel, disarm } = call;
    let (patience, mask) = super::patience(stack, mask);
    let mut wait = Wait::new(patience, timeout, false);
    let mut asked = false;
    loop {
        let mut count = 0;
        // First by turns: with little room in `out` one side would starve the other.
        let turn = epoll.turn.is_now(stack.config.select_poll_os_ratio);
        let kernel_first = turn && !epoll.kernel_led.fetch_xor(true, Ordering::Relaxed);
        if kernel_first {
            count = ask_kernel(stack, epoll, out, 0, kernel)?;
        }
        count = collect(stack, epoll, out, count, disarm);
        if turn && !kernel_first {
            count = ask_kernel(stack, epoll, out, count, kernel)?;
        }
        asked |= turn;
        if count == 0 && !asked {
            asked = true;
            count = ask_kernel(stack, epoll, out, 0, kernel)?;
        }
        if count > 0 {
            return Ok(count);
        }
        // Unlike ppoll, epoll_pwait does not look at signals without a wait.
        if timeout == Some(0) {
            return Ok(0);
        }
        match wait.after_miss() {
            Next::PollAgain => {}
            Next::TimedOut => return Ok(0),
            Next::Interrupted => return Err(libc::EINTR),
            Next::Sleep => match sleep(stack, epoll, epfd, &mut wait, mask) {
                Next::TimedOut => return Ok(0),
                Next::Interrupted => return Err(libc::EINTR),
                Next::PollAgain | Next::Sleep => asked = false,
            },
        }
    }
}

/// Appends the kernel's events behind `count` of ours.
fn ask_kernel(
    stack: &Stack,
    epoll: &Epoll,
    out: &mut [Event],
    count: usize,
    kernel: &mut dyn FnMut(&mut [Event]) -> Result<usize, i32>,
) -> Result<usize, i32> {
    let Some((ours, room)) = out.split_at_mut_checked(count).filter(|(_, room)| !room.is_empty())
    else {
        return Ok(count);
    };
    let mut found = kernel(room)?;
    if found > 0 {
        if let Ok(mut state) = stack.shard.lock() {
            state.raise_os_doubt();
        }
        note_errors(stack, epoll, room.get(..found).unwrap_or_default());
        spend_by_data(stack, epoll, room.get_mut(..found).unwrap_or_default());
    }
    // What the kernel says of a registration that is reported already goes into the same event.
    let mut at = 0;
    while at < found {
        let Some(event) = room.get(at).copied() else { break };
        match ours.iter_mut().find(|known| { known.u64 } == { event.u64 }) {
            Some(known) => {
                known.events |= event.events;
                found -= 1;
                room.swap(at, found);
            }
            None => at += 1,
        }
    }
    Ok(count + found)
}

/// The kernel reported an error on a shadow: the next call on its socket must report it.
fn note_errors(stack: &Stack, epoll: &Epoll, events: &[Event]) {
    for event in events.iter().filter(|event| event.events & libc::EPOLLERR as u32 != 0) {
        let Ok(mut state) = stack.shard.lock() else { return };
        let Ok(watched) = epoll.watched.lock() else { return };
        for (id, _) in watched.all().filter(|(_, entry)| entry.data == { event.u64 }) {
            if let Some((_, socket)) = state.socket(id) {
                socket.os_error = true;
            }
        }
    }
}

/// The kernel fired one-shot registrations: the same ones must not fire here, so what is ready
/// here goes into the same event. The kernel names them by the program's data only.
fn spend_by_data(stack: &Stack, epoll: &Epoll, fired: &mut [Event]) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Ok(mut watched) = epoll.watched.lock() else { return };
    if !watched.any_oneshot {
        return;
    }
    for (id, entries) in &mut watched.entries {
        for entry in entries.iter_mut().filter(|entry| entry.events & ONESHOT != 0) {
            if let Some(event) = fired.iter_mut().find(|event| { event.u64 } == entry.data) {
                entry.spent = true;
                if state.socket(*id).is_some_and(|(endpoint, _)| endpoint.is_readable()) {
                    event.events |= entry.events & READABLE;
                }
            }
        }
    }
}

/// Polls the rings and reports our readable sockets behind `count` events that are there already.
fn collect(
    stack: &Stack,
    epoll: &Epoll,
    out: &mut [Event],
    mut count: usize,
    disarm: &mut dyn FnMut(i32),
) -> usize {
    let from_kernel = count;
    let mut spent = None;
    let Ok(mut state) = stack.shard.lock() else { return count };
    state.poll();
    let listed = state.listed(epoll.set);
    if listed == 0 {
        return count;
    }
    let Ok(mut watched) = epoll.watched.lock() else { return count };
    for _ in 0..listed {
        if count == out.len() || spent.is_some() {
            break;
        }
        let Some(id) = state.next_listed(epoll.set) else { break };
        let Some(entries) = watched.entries.get_mut(&id) else { continue };
        if !state.socket(id).is_some_and(|(endpoint, _)| endpoint.is_readable()) {
            continue;
        }
        let mut stays = false;
        for entry in entries.iter_mut() {
            // One event with all that holds; a UDP socket can always be written to.
            let events = entry.events & (READABLE | WRITABLE);
            if entry.events & READABLE == 0 || entry.spent {
                continue;
            }
            // Level-triggered: it stays until it is found empty. So does what finds no room.
            stays |= entry.events & (EDGE | ONESHOT) == 0 || count == out.len();
            let (known, room) = out.split_at_mut(count);
            let known = known.get_mut(..from_kernel).unwrap_or_default();
            match (known.iter_mut().find(|event| { event.u64 } == entry.data), room.first_mut()) {
                // The kernel reported the same registration.
                (Some(event), _) => event.events |= events,
                (None, Some(slot)) => {
                    *slot = Event { events, u64: entry.data };
                    count += 1;
                }
                (None, None) => continue,
            }
            if entry.events & ONESHOT != 0 {
                entry.spent = true;
                spent = Some(entry.descriptor);
            }
        }
        if stays {
            state.relist(epoll.set, id);
        }
    }
    drop(watched);
    drop(state);
    if let Some(descriptor) = spent {
        disarm(descriptor);
        // More of them wait in the list: this call has something to return already.
    }
    count
}

fn sleep(
    stack: &Stack,
    epoll: &Epoll,
    epfd: i32,
    wait: &mut Wait,
    mask: Option<&libc::sigset_t>,
) -> Next {
    let Ok(mut state) = stack.shard.lock() else { return Next::PollAgain };
    let Some((sleeper, waker)) = state.new_sleeper() else {
        drop(state);
        crate::sys::thread::nap_millis(1);
        return Next::PollAgain;
    };
    state.sleep_on_set(epoll.set, sleeper);
    let mut fds = PollSet::default();
    fds.add_readable(epfd);
    fds.add_readable(waker);
    state.sleep_on_rings(|fd| fds.add_readable(fd));
    let missed = state.listed(epoll.set) > 0;
    drop(state);
    let next = if missed { Next::PollAgain } else { wait.sleep(fds.as_mut_slice(), mask) };
    if let Ok(mut state) = stack.shard.lock() {
        state.leave_set(epoll.set, sleeper);
        state.end_sleeper(sleeper);
    }
    next
}
