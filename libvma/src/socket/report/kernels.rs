//! Sockets that are the kernel's for good, or always were: what is told of them.
//!
//! A call on one comes here only to be counted ([`super::traffic`]), and close() and dup() to say so.
//! What was closed by a way that nobody sees is noticed when a reader asks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libvma_dev::stats::{self, BLOCKING, Counters, Socket as Told};

use super::told_address;
use super::traffic::{KernelsId, Pages, Traffic};
use crate::socket::stream::candidate::{Candidate, Model};
use crate::socket::{SocketId, Stack, State, WhyOs, counters};
use crate::sys::lock::Lock;
use crate::sys::{fd, loopback_end, shadow};

/// All of them in a process.
pub struct Kernels {
    /// Locked after the shard and before what has ended, if together.
    list: Lock<List>,
    traffic: Pages,
    /// Some socket may have been a candidate: until the first one there is nothing to look for.
    any_candidate: AtomicBool,
}

impl Default for Kernels {
    fn default() -> Kernels {
        let list = Lock::new(List::default());
        Kernels { list, traffic: Pages::default(), any_candidate: AtomicBool::new(false) }
    }
}

#[derive(Default)]
struct List {
    all: Vec<Option<One>>,
    /// Places without one, the one that is free for longest first.
    free: VecDeque<u32>,
    generation: u32,
}

#[derive(Clone)]
struct One {
    id: KernelsId,
    was: Before,
    /// The program's numbers of it.
    descriptors: Vec<i32>,
    /// Of the socket; not known until a reader asks, as most are gone before one does.
    inode: Option<u64>,
    /// The kernel has carried that much when it was set to zero, or when the place was taken.
    since: Counters,
}

/// What a socket was before it became the kernel's.
#[derive(Clone)]
pub struct Before {
    /// Its name here, if it had one.
    pub id: Option<SocketId>,
    pub is_stream: bool,
    pub why: WhyOs,
    /// What it had counted.
    counters: Counters,
    /// Of the receive buffer, in bytes; None: the kernel knows.
    limit: Option<usize>,
    descriptors: Vec<i32>,
    /// Its connection may be taken over.
    candidate: Option<Box<Candidate>>,
    /// It is a listener whose connections may be taken over.
    model: Option<Arc<Model>>,
}

impl Before {
    /// One that was the kernel's from the start.
    pub fn nothing(descriptor: i32, is_stream: bool, why: WhyOs) -> Before {
        let (counters, descriptors) = (Counters::default(), vec![descriptor]);
        let (id, limit, candidate, model) = (None, None, None, None);
        Before { id, is_stream, why, counters, limit, descriptors, candidate, model }
    }

    /// A listener from which other processes accept as well, by these numbers.
    pub fn shared_listener(descriptors: Vec<i32>, model: Arc<Model>) -> Before {
        let nothing = Before::nothing(-1, true, WhyOs::Passed);
        Before { descriptors, model: Some(model), ..nothing }
    }

    /// Its connection may be taken over.
    pub fn with(self, candidate: Option<Box<Candidate>>) -> Before {
        Before { candidate, ..self }
    }

    pub fn descriptors(&self) -> &[i32] {
        &self.descriptors
    }
}

/// A socket that is about to be detached, because it is the kernel's now; `why` if it does not say
/// so itself. From here on its counters are told as the kernel's. None if it is not to be told of.
pub fn of_socket(stack: &Stack, id: SocketId, why: WhyOs) -> Option<Before> {
    let mut state = stack.shard.lock().ok()?;
    let (counters, limit) = counters(&mut state, id)?;
    let (_, socket) = state.socket(id)?;
    let why = if let State::Os(why) = socket.state { why } else { why };
    if why == WhyOs::ProcessEnds || core::mem::replace(&mut socket.goes_on, true) {
        return None;
    }
    let is_stream = socket.stream.is_some();
    let descriptors = socket.descriptors.clone();
    let begins_here = why == WhyOs::Attaching && is_stream;
    let candidate = Candidate::connecting(socket).filter(|_| begins_here).map(Box::new);
    // Children that are forked from now on inherit the kernel's listener.
    let is_shared = why == WhyOs::Passed;
    let model = is_shared.then(|| Model::of_listener(socket)).flatten().map(Arc::new);
    let (id, limit) = (Some(id), Some(limit));
    Some(Before { id, is_stream, why, counters, limit, descriptors, candidate, model })
}

/// It is to be counted from now on.
pub fn enter(stack: &Stack, before: Before) -> Option<KernelsId> {
    if before.descriptors.is_empty() {
        return None;
    }
    let mut list = stack.kernels.list.lock().ok()?;
    let list = &mut *list;
    let slot = match list.free.pop_front() {
        Some(slot) => slot,
        None => u32::try_from(list.all.len()).ok()?,
    };
    let traffic = stack.kernels.traffic.get_or_make(slot as usize)?;
    let since = traffic.counters();
    if before.candidate.is_some() || before.model.is_some() {
        stack.kernels.any_candidate.store(true, Ordering::Release);
    }
    if before.candidate.is_some() {
        // The interface of a shared listener is not wanted before one of its connections lives.
        traffic.gate.open(before.why == WhyOs::Passed);
    }
    list.generation = list.generation.wrapping_add(1);
    let id = KernelsId::new(slot, list.generation, before.is_stream);
    let descriptors = before.descriptors.clone();
    let one = Some(One { id, was: before, descriptors, inode: None, since });
    match list.all.get_mut(slot as usize) {
        Some(place) => *place = one,
        None => list.all.push(one),
    }
    Some(id)
}

/// Where a call on it counts.
#[inline]
pub fn traffic(stack: &Stack, id: KernelsId) -> Option<&Traffic> {
    stack.kernels.traffic.get(id.slot())
}

/// The model of the connections of a listener that a parent had shared already when it forked, in the child's copy of
/// its memory.
pub fn inherited_model(parent: &Stack, id: KernelsId) -> Option<Arc<Model>> {
    // It may have been locked when the memory was copied.
    parent.kernels.list.try_lock()?.find(id)?.was.model.clone()
}

/// The reason that it is the kernel's; for a listener, the model of its connections if they may be taken over.
pub fn why(stack: &Stack, id: KernelsId) -> Option<(WhyOs, Option<Arc<Model>>)> {
    let mut list = stack.kernels.list.lock().ok()?;
    list.find(id).map(|one| (one.was.why, one.was.model.clone()))
}

/// The socket stays the kernel's: it is shared with another process, or used by code that no call of ours sees.
///
/// If a thread is taking it over, waits: the caller looks again what its descriptors are.
#[cold]
pub fn keep(stack: &Stack, id: KernelsId) {
    if let Ok(mut list) = stack.kernels.list.lock()
        && let Some(one) = list.find(id)
    {
        one.was.candidate = None;
    }
    if let Some(traffic) = traffic(stack, id) {
        traffic.gate.retire();
        traffic.gate.wait();
    }
}

/// All sockets that are the kernel's stay so: another process is about to share them.
pub fn keep_all(stack: &Stack) {
    if !has_candidates(stack) {
        return;
    }
    let candidates: Vec<KernelsId> = match stack.kernels.list.lock() {
        Ok(list) => {
            let candidates = list.all.iter().flatten().filter(|one| one.was.candidate.is_some());
            candidates.map(|one| one.id).collect()
        }
        Err(_) => return,
    };
    for id in candidates {
        keep(stack, id);
    }
}

/// May a socket be one that can be taken over?
#[inline]
pub fn has_candidates(stack: &Stack) -> bool {
    stack.kernels.any_candidate.load(Ordering::Relaxed)
}

/// Does something with what is known of a candidate. None if it is none.
pub fn with_candidate<T>(
    stack: &Stack,
    id: KernelsId,
    with: impl FnOnce(&mut Candidate, &[i32]) -> T,
) -> Option<T> {
    let mut list = stack.kernels.list.lock().ok()?;
    let one = list.find(id)?;
    Some(with(one.was.candidate.as_mut()?, &one.descriptors))
}

/// A shared listener's connections are like nothing that is known from now on: they stay the kernel's.
pub fn forget_model(stack: &Stack, id: KernelsId) {
    if let Ok(mut list) = stack.kernels.list.lock()
        && let Some(one) = list.find(id)
    {
        one.was.model = None;
    }
}

/// The socket is served again: what it has counted so far goes on there.
pub fn leave(stack: &Stack, id: KernelsId) -> Option<Counters> {
    let mut list = stack.kernels.list.lock().ok()?;
    let one = list.take(id)?;
    let mut counters = one.was.counters;
    counters.add(&one.carried(stack));
    Some(counters)
}

/// dup(): one more number of it.
pub fn duplicate(stack: &Stack, id: KernelsId, descriptor: i32) -> bool {
    let Ok(mut list) = stack.kernels.list.lock() else { return false };
    list.find(id).map(|one| one.descriptors.push(descriptor)).is_some()
}

/// One of its numbers is closed, or means something else; with the last one it is gone.
pub fn forget(stack: &Stack, id: KernelsId, descriptor: i32) {
    let Ok(mut list) = stack.kernels.list.lock() else { return };
    let Some(one) = list.find(id) else { return };
    one.descriptors.retain(|own| *own != descriptor);
    if !one.descriptors.is_empty() {
        return;
    }
    let Some(one) = list.take(id) else { return };
    if one.was.candidate.is_some()
        && let Some(traffic) = traffic(stack, id)
    {
        traffic.gate.retire();
    }
    let carried = one.carried(stack);
    if let Ok(mut ended) = stack.ended.lock() {
        ended.add(&carried);
    }
    drop(list);
    one.record(stack, descriptor, &carried);
}

/// All of them, with what they were; and what all sockets have counted that are no more, with what
/// the kernel has carried for these.
pub(super) fn all(stack: &Stack) -> (Vec<(KernelsId, Option<SocketId>)>, Counters) {
    let Ok(list) = stack.kernels.list.lock() else { return Default::default() };
    let mut sum = stack.ended.lock().map_or_else(|_| Counters::default(), |ended| *ended);
    let living = list.all.iter().flatten();
    let names = living
        .inspect(|one| sum.add(&one.carried(stack)))
        .map(|one| (one.id, one.was.id))
        .collect();
    (names, sum)
}

/// How it stands. None if it is gone.
pub fn tell(stack: &Stack, id: KernelsId) -> Option<Told> {
    let one = stack.kernels.list.lock().ok()?.find(id)?.clone();
    // Without the lock: the number may be a file's by now, on a disk that does not answer.
    let Some((living, inode)) = one.living() else {
        one.descriptors.iter().for_each(|number| forget(stack, id, *number));
        return None;
    };
    if one.inode.is_none()
        && let Some(told) = stack.kernels.list.lock().ok()?.find(id)
    {
        told.inode = Some(inode);
    }
    Some(one.describe(stack, living, inode))
}

/// These sockets count from here on; all of them, if none is named. The totals go on.
pub(super) fn set_to_zero(stack: &Stack, descriptors: &[i32]) {
    let Ok(mut list) = stack.kernels.list.lock() else { return };
    let Ok(mut ended) = stack.ended.lock() else { return };
    for one in list.all.iter_mut().flatten() {
        let named = one.descriptors.iter().any(|own| descriptors.contains(own));
        if named || descriptors.is_empty() {
            ended.add(&one.carried(stack));
            one.since = carried_ever(stack, one.id);
            one.was.counters = Counters::default();
        }
    }
}

/// The process ends: the sockets that are open report their counters.
pub fn at_exit(stack: &Stack) {
    let Ok(list) = stack.kernels.list.lock() else { return };
    for one in list.all.iter().flatten() {
        let descriptor = one.descriptors.first().copied().unwrap_or(-1);
        one.record(stack, descriptor, &one.carried(stack));
    }
}

fn carried_ever(stack: &Stack, id: KernelsId) -> Counters {
    traffic(stack, id).map_or_else(Counters::default, Traffic::counters)
}

/// SO_RCVBUF, in bytes.
fn limit(descriptor: i32) -> u64 {
    let limit = shadow::int_option(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF);
    limit.and_then(|limit| u64::try_from(limit).ok()).unwrap_or(0)
}

impl List {
    fn find(&mut self, id: KernelsId) -> Option<&mut One> {
        self.all.get_mut(id.slot())?.as_mut().filter(|one| one.id == id)
    }

    fn take(&mut self, id: KernelsId) -> Option<One> {
        self.find(id)?;
        self.free.push_back(id.slot() as u32);
        self.all.get_mut(id.slot())?.take()
    }
}

impl One {
    /// By the kernel since it is its own.
    fn carried(&self, stack: &Stack) -> Counters {
        carried_ever(stack, self.id).since(&self.since)
    }

    fn record(&self, stack: &Stack, descriptor: i32, carried: &Counters) {
        if !stack.stats.is_wanted() {
            return;
        }
        let mut counters = self.was.counters;
        counters.add(carried);
        let limit = self.was.limit.unwrap_or_else(|| limit(descriptor) as usize);
        stack.stats.append(descriptor, &counters, limit);
    }

    /// A descriptor that still is this socket's, and its inode.
    fn living(&self) -> Option<(i32, u64)> {
        self.descriptors.iter().find_map(|number| {
            let inode = fd::socket_inode(*number)?;
            self.inode.is_none_or(|known| known == inode).then_some((*number, inode))
        })
    }

    /// What the kernel says of it.
    fn describe(&self, stack: &Stack, descriptor: i32, inode: u64) -> Told {
        let is_stream = self.was.is_stream;
        let (local, peer) = match is_stream {
            true => (loopback_end::shown(descriptor), loopback_end::peer(descriptor)),
            false => (loopback_end::shown_of_datagrams(descriptor), loopback_end::peer(descriptor)),
        };
        let ((local, local_port), (peer, peer_port)) = (told_address(local), told_address(peer));
        let blocking = shadow::status_flags(descriptor) & libc::O_NONBLOCK == 0;
        let mut state = [0; 1];
        if is_stream {
            // The first byte of struct tcp_info.
            shadow::option(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state);
        }
        let mut counters = self.was.counters;
        counters.add(&self.carried(stack));
        Told {
            used: 1,
            descriptor,
            inode,
            kind: if is_stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM } as u32,
            tcp_state: u32::from(state[0]),
            flags: if blocking { BLOCKING } else { 0 },
            ready_limit: limit(descriptor),
            local,
            local_port,
            peer,
            peer_port,
            counters,
            reason: stats::text(&self.was.why.to_string()),
            ..Told::default()
        }
    }
}

#[cfg(test)]
mod tests;
