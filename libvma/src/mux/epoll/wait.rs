//! epoll_wait(2): what is ready of ours and of the kernel's, in turns.

use std::sync::atomic::Ordering;

use super::{EDGE, Epoll, Event, ONESHOT};
use crate::mux::count::Counting;
use crate::mux::{READABLE, look, patience};
use crate::shard::SleeperId;
use crate::socket::Stack;
use crate::socket::block::{Guard, Look, Over, Round, Source, block};
use crate::socket::filter;
use crate::socket::shadow_news;
use crate::socket::wait::{Patience, Wait};
use crate::sys::wait::{PollFd, PollSet};
use crate::sys::{thread, user};

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

/// The events found so far.
struct Found<'a> {
    out: &'a mut [Event],
    count: usize,
    /// So many of them at least are of sockets of ours.
    ours: usize,
    shared: Marks,
    /// An event found no memory to be written to.
    failed: bool,
}

/// Which of the events are of registrations that the kernel has, too: its event of the same
/// registration goes into the same one. Those beyond count as such.
#[derive(Default)]
struct Marks([u64; 8]);

impl Marks {
    fn set(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    fn contains(&self, at: usize) -> bool {
        self.0.get(at / 64).is_none_or(|word| word >> (at % 64) & 1 == 1)
    }
}

/// epoll_wait(2) on an instance that watches sockets of ours.
pub fn wait(stack: &Stack, epoll: &Epoll, out: &mut [Event], call: Call<'_>) -> Result<usize, i32> {
    let (mut patience, mask) = patience(stack, call.mask);
    if epoll.pace.is_kernels() {
        patience = patience.without_polling();
    }
    let (handled, own_number) = thread::interruptions_and_id(false);
    let mut waiting = Waiting {
        epoll,
        handled,
        call,
        patience,
        found: Found { out, count: 0, ours: 0, shared: Marks::default(), failed: false },
        asked: false,
        kernel_spoke: true,
        since: None,
        counting: Counting::begin(&epoll.calls, own_number),
    };
    let result = match block(stack, &mut waiting, mask) {
        Ok(found) => found,
        Err(over) => {
            let asked = waiting.asked || !waiting.kernel_spoke;
            let looked = if asked { Ok(()) } else { waiting.ask_kernel(stack) };
            looked.and(match (over, waiting.found.count) {
                (Over::Interrupted, 0) => Err(libc::EINTR),
                (_, count) => Ok(count),
            })
        }
    };
    waiting.counting.end(&result);
    let found = *result.as_ref().unwrap_or(&0);
    let ours = waiting.found.ours;
    epoll.pace.note(ours, found.saturating_sub(ours), waiting.since);
    result
}

/// The events of an instance that are there now, without a wait: for a program that looks all the time, and does little else. The kernel is asked
/// in its turn (`VMA_RX_UDP_POLL_OS_RATIO`), not at every look. Returns how many events were written, and whether the kernel had any.
pub fn glance(
    stack: &Stack,
    epoll: &Epoll,
    out: &mut [Event],
    kernel: &mut dyn FnMut(&mut [Event]) -> Result<usize, i32>,
) -> (usize, bool) {
    if stack.extra.callbacks.are_any() && !thread::holds_locks() {
        filter::judge(stack);
    }
    let (handled, own_number) = thread::interruptions_and_id(false);
    let mut told_by_kernel = false;
    let kernel = &mut |room: &mut [Event]| {
        let found = kernel(room);
        told_by_kernel |= found != Ok(0);
        found
    };
    let mut disarm = |_| {};
    let mut waiting = Waiting {
        epoll,
        handled,
        call: Call { epfd: -1, timeout: Some(0), mask: None, kernel, disarm: &mut disarm },
        patience: Patience::Loops(0),
        found: Found { out, count: 0, ours: 0, shared: Marks::default(), failed: false },
        asked: false,
        kernel_spoke: true,
        since: None,
        counting: Counting::begin(&epoll.calls, own_number),
    };
    let Waiting { found, call, counting, .. } = &mut waiting;
    found.collect(stack, epoll, false, &mut *call.disarm, counting);
    let ratio = match stack.config.rx_udp_poll_os_ratio {
        // No sleep will ask it.
        0 => RARELY,
        ratio => ratio,
    };
    // A process whose rings are not open yet has nothing else to look at.
    if epoll.turn.is_now(ratio, true) || !stack.shard.is_live() {
        let _ = waiting.ask_kernel(stack);
    }
    let count = waiting.found.count;
    if count > 0 {
        waiting.counting.end(&Ok(count));
    }
    (count, told_by_kernel)
}

/// One look at the kernel per this many in a program that wants none.
const RARELY: u64 = 1000;

/// A call under way.
struct Waiting<'a, 'c> {
    epoll: &'a Epoll,
    call: Call<'c>,
    /// Signal handlers that had run when it began.
    handled: u32,
    patience: Patience,
    found: Found<'a>,
    /// The kernel was asked since the call began, or a sleep heard nothing of it.
    asked: bool,
    /// Of the last sleep: the kernel has something to report, or there was no sleep.
    kernel_spoke: bool,
    /// It waits since then, on the shard's clock; None while it has only looked.
    since: Option<u64>,
    counting: Counting<'a>,
}

impl<'a> Source<'a> for Waiting<'_, '_> {
    type Found = Result<usize, i32>;

    #[inline]
    fn look(&mut self, stack: &'a Stack, round: Round) -> Look<'a, Result<usize, i32>> {
        if round == Round::Woken {
            self.asked = !core::mem::replace(&mut self.kernel_spoke, true);
        }
        if let Err(errno) = self.look_at_both(stack, round == Round::First) {
            return Look::Found(Err(errno));
        }
        // Unlike ppoll, epoll_pwait does not look at signals without a wait.
        if self.found.count > 0 || self.call.timeout == Some(0) {
            return Look::Found(Ok(self.found.count));
        }
        self.counting.missed();
        Look::Nothing(None)
    }

    fn wait(&mut self, _: &Stack, _: Option<&mut Guard<'_>>) -> Wait {
        let wait = Wait::new(self.patience, self.call.timeout, false).since(self.handled);
        self.since = Some(wait.began());
        wait
    }

    fn enlist(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &mut PollSet) -> bool {
        state.sleep_on_set(self.epoll.set, sleeper);
        fds.add_readable(self.call.epfd);
        if state.listed(self.epoll.set) > 0 {
            return false;
        }
        self.counting.sleeps();
        self.kernel_spoke = false;
        true
    }

    fn listens(&self, state: &mut Guard<'_>) -> bool {
        state.watches_any(self.epoll.set)
    }

    fn leave(&mut self, state: &mut Guard<'_>, sleeper: SleeperId, fds: &[PollFd]) {
        self.counting.wakes();
        self.kernel_spoke |= fds.first().is_some_and(|instance| instance.revents != 0);
        state.leave_set(self.epoll.set, sleeper);
    }
}

impl Waiting<'_, '_> {
    /// Looks at ours, and at the kernel's if it is their turn.
    #[inline]
    fn look_at_both(&mut self, stack: &Stack, first: bool) -> Result<(), i32> {
        let epoll = self.epoll;
        // First by turns: with little room in `out` one side would starve the other.
        let turn = epoll.turn.is_now(stack.config.select_poll_os_ratio, first);
        let kernel_first = turn && !epoll.kernel_led.fetch_xor(true, Ordering::Relaxed);
        if kernel_first {
            self.ask_kernel(stack)?;
        }
        let disarm = &mut *self.call.disarm;
        if self.found.collect(stack, epoll, first, disarm, &mut self.counting) && first {
            self.patience = self.patience.without_polling();
        }
        if self.found.failed && self.found.count == 0 {
            return Err(libc::EFAULT);
        }
        if turn && !kernel_first {
            self.ask_kernel(stack)?;
        }
        self.asked |= turn;
        // A sleep that begins now asks the kernel as well. After one the kernel has been asked, or has something to tell.
        let sleeps =
            |this: &Self| first && this.call.timeout != Some(0) && this.patience.sleeps_soon();
        if self.found.count == 0 && !self.asked && !sleeps(self) {
            self.asked = true;
            self.ask_kernel(stack)?;
        }
        // The program's instance does not watch the shadow of a connection within the host. The library asks in turns only,
        // because at every call it would cost a spinning program a third of its speed.
        let only_looks = self.found.count == 0 && self.call.timeout == Some(0);
        if turn && only_looks && shadow_news::hear_of_pipes(stack) {
            let disarm = &mut *self.call.disarm;
            self.found.collect(stack, epoll, false, disarm, &mut self.counting);
        }
        Ok(())
    }

    fn ask_kernel(&mut self, stack: &Stack) -> Result<(), i32> {
        self.found.ask_kernel(stack, self.epoll, &mut *self.call.kernel)
    }
}

impl Found<'_> {
    /// Appends the kernel's events.
    fn ask_kernel(
        &mut self,
        stack: &Stack,
        epoll: &Epoll,
        kernel: &mut dyn FnMut(&mut [Event]) -> Result<usize, i32>,
    ) -> Result<(), i32> {
        let halves = self.out.split_at_mut_checked(self.count);
        let Some((ours, room)) = halves.filter(|(_, room)| !room.is_empty()) else {
            return Ok(());
        };
        let mut found = match kernel(room) {
            // The events before it count.
            Err(libc::EFAULT) if !ours.is_empty() => 0,
            found => found?,
        };
        if found > 0 {
            let events = room.get_mut(..found).unwrap_or_default();
            note_shadows(stack, epoll, events);
            spend_by_data(stack, epoll, events);
        }
        // What the kernel says of a registration that is reported already goes into the same event.
        let mut at = 0;
        while at < found {
            let Some(event) = room.get(at).copied() else { break };
            let shared = &self.shared;
            let mut known = ours.iter_mut().enumerate().filter(|(at, _)| shared.contains(*at));
            match known.find(|(_, known)| { known.u64 } == { event.u64 }) {
                Some((_, known)) => {
                    known.events |= event.events;
                    found -= 1;
                    room.swap(at, found);
                }
                None => at += 1,
            }
        }
        self.count += found;
        Ok(())
    }

    /// Polls the rings and reports our ready sockets behind the events that are there already. True if no
    /// more can come by the rings.
    fn collect(
        &mut self,
        stack: &Stack,
        epoll: &Epoll,
        first: bool,
        disarm: &mut dyn FnMut(i32),
        counting: &mut Counting<'_>,
    ) -> bool {
        let from_kernel = self.count;
        let mut spent = None;
        let Ok(mut state) = stack.shard.lock() else { return false };
        if first {
            state.poll();
        } else {
            state.poll_patiently();
        }
        let last = state.last_entry(epoll.set);
        while self.count < self.out.len() && spent.is_none() && !self.failed {
            let Some(id) = state.next_listed(epoll.set, last) else { break };
            let Some(seen) = look(&mut state, id) else { continue };
            let mut stays = false;
            let mut told = 0;
            for interest in state.interests(epoll.set, id) {
                if !core::mem::take(&mut interest.news) || interest.spent {
                    continue;
                }
                let about = interest.take_about();
                let events = interest.events & seen.events & about;
                // Of a shadow the kernel tells everything but what can be read here. A listener that
                // was shut down is the shadow's alone.
                let readable = interest.events & READABLE != 0;
                let kernels = if seen.shared { !readable } else { interest.in_kernel };
                if events == 0 || kernels {
                    continue;
                }
                let (known, room) = self.out.split_at_mut(self.count);
                // The kernel reported the same registration.
                let same = known
                    .iter_mut()
                    .take(if seen.shared { from_kernel } else { 0 })
                    .find(|event| { event.u64 } == interest.data);
                match (same, room.first_mut()) {
                    (Some(event), _) => event.events |= events,
                    (None, Some(slot)) => {
                        if !user::is_writable(slot, size_of::<Event>()) {
                            interest.keep_news(about);
                            stays = true;
                            self.failed = true;
                            continue;
                        }
                        *slot = Event { events, u64: interest.data };
                        if seen.shared {
                            self.shared.set(self.count);
                        }
                        self.count += 1;
                    }
                    (None, None) => {
                        interest.keep_news(about);
                        stays = true;
                        continue;
                    }
                }
                told |= events;
                if interest.events & ONESHOT != 0 {
                    interest.spent = true;
                    if interest.in_kernel {
                        spent = Some(interest.descriptor);
                    }
                } else if interest.events & EDGE == 0 {
                    // Level-triggered: it stays until it is found not to be ready.
                    interest.news = true;
                    stays = true;
                }
            }
            seen.tell(&mut state, id, told);
            if stays {
                state.relist(epoll.set, id);
            }
        }
        self.ours += self.count - from_kernel;
        counting.found_ours(&state, self.count - from_kernel);
        let is_all = !state.may_polling_pay();
        drop(state);
        if let Some(descriptor) = spent {
            disarm(descriptor);
            // More of them wait in the list: this call has something to return already.
        }
        is_all
    }
}

/// The kernel's word is of some descriptor that may be a shadow: a receive call asks its shadow then,
/// and the next call on one that had an error reports it. Only the program's data names them.
fn note_shadows(stack: &Stack, epoll: &Epoll, events: &[Event]) {
    let Ok(mut state) = stack.shard.lock() else { return };
    state.raise_os_doubt();
    let error = |event: &&Event| event.events & libc::EPOLLERR as u32 != 0;
    if !events.iter().any(|event| error(&event)) {
        return;
    }
    for id in state.shared_members(epoll.set) {
        let failed = state.interests(epoll.set, id).iter().any(|interest| {
            events.iter().filter(error).any(|event| { event.u64 } == interest.data)
        });
        if failed && let Some((_, socket)) = state.socket(id) {
            socket.order.note_error();
        }
    }
}

/// The kernel fired one-shot registrations: the same ones must not fire here, so what is ready
/// here goes into the same event.
fn spend_by_data(stack: &Stack, epoll: &Epoll, fired: &mut [Event]) {
    if !epoll.any_oneshot.load(Ordering::Relaxed) {
        return;
    }
    let Ok(mut state) = stack.shard.lock() else { return };
    for id in state.shared_members(epoll.set) {
        let Some(seen) = look(&mut state, id) else { continue };
        for interest in state.interests(epoll.set, id) {
            if interest.events & ONESHOT != 0
                && interest.in_kernel
                && let Some(event) = fired.iter_mut().find(|event| { event.u64 } == interest.data)
            {
                interest.spent = true;
                event.events |= interest.events & seen.events & READABLE;
            }
        }
    }
}

#[cfg(test)]
mod tests;
