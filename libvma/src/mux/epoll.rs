//! epoll(7) over offloaded and other descriptors.
//!
//! The program's epoll instance stays the kernel's, with everything the program put in but
//! offloaded connections. The shadows of UDP sockets and of listeners are in it: so the kernel keeps
//! giving what is the kernel's (other descriptors, errors, packets that came another way), and
//! un-offloading such a socket needs nothing. A stream socket that does not listen is watched here
//! only, because the kernel takes its shadow for an unconnected socket; if it becomes the kernel's,
//! its registrations do ([`hand_over`]).
//!
//! What is registered lies with the sockets, in the readiness sets of the shard. `wait` is
//! epoll_wait(2).

mod registrations;
mod wait;

pub use registrations::are_told as is_instance;
pub use wait::{Call, glance, wait};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll;

use super::count::Calls;
use super::pace::Pace;
use super::{Seen, Turn, UNASKED, look};
use crate::shard::{Interest, Registration, SetId, SocketId, State};
use crate::socket::{Socket, Stack, WhyOs, attach};
use crate::sys::fd::{inode, with_borrowed};
use crate::sys::lock::Lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollId(pub u32);

/// `struct epoll_event`.
pub type Event = libc::epoll_event;

const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What EPOLLEXCLUSIVE may come with.
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;

/// What the library knows of the program's epoll instances.
pub struct Epolls {
    list: Lock<Vec<Option<Arc<Epoll>>>>,
    /// Held while one is made for a descriptor.
    pub making: Lock<()>,
}

pub struct Epoll {
    set: SetId,
    /// Every number of the program that refers to it.
    descriptors: Lock<Vec<i32>>,
    turn: Turn,
    pace: Pace,
    calls: Calls,
    /// Another way to wait for it exists that we do not see through: its sockets are the kernel's.
    nested: AtomicBool,
    /// The last wait asked the kernel first.
    kernel_led: AtomicBool,
    /// Some registration that the kernel has, too, is EPOLLONESHOT.
    any_oneshot: AtomicBool,
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

    pub(super) fn all(&self) -> Vec<Arc<Epoll>> {
        let list = self.list.lock();
        list.map_or_else(|_| Vec::new(), |list| list.iter().flatten().cloned().collect())
    }

    /// For the epoll instance of these descriptors.
    pub fn add(&self, stack: &Stack, descriptors: Vec<i32>) -> Option<(EpollId, Arc<Epoll>)> {
        let set = stack.shard.lock().ok()?.new_set(*descriptors.first()?);
        let epoll = Epoll {
            set,
            descriptors: Lock::new(descriptors),
            turn: Turn::default(),
            pace: Pace::default(),
            calls: Calls::default(),
            nested: AtomicBool::new(false),
            kernel_led: AtomicBool::new(false),
            any_oneshot: AtomicBool::new(false),
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

    /// The program closed one of its descriptors; the last one ends it.
    pub fn close(&self, stack: &Stack, id: EpollId, descriptor: i32) {
        let Some(epoll) = self.get(id) else { return };
        let Ok(mut descriptors) = epoll.descriptors.lock() else { return };
        descriptors.retain(|other| *other != descriptor);
        let living = descriptors.first().copied();
        drop(descriptors);
        let Ok(mut state) = stack.shard.lock() else { return };
        if let Some(living) = living {
            return state.rename_set(epoll.set, living);
        }
        state.end_set(epoll.set);
        drop(state);
        if let Ok(mut list) = self.list.lock()
            && let Some(slot) = list.get_mut(id.0 as usize)
        {
            *slot = None;
        }
    }
}

impl Epoll {
    /// dup(): one more descriptor.
    pub fn duplicate(&self, descriptor: i32) {
        if let Ok(mut descriptors) = self.descriptors.lock() {
            descriptors.push(descriptor);
        }
    }

    /// The descriptors of our sockets by which they are in it.
    pub fn watched(&self, stack: &Stack) -> Vec<i32> {
        let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
        let mut watched = Vec::new();
        for id in state.members(self.set) {
            let interests = state.interests(self.set, id);
            watched.extend(interests.iter().map(|interest| interest.descriptor));
        }
        watched
    }

    /// A number of the program that refers to it; -1 if none does.
    pub fn descriptor(&self) -> i32 {
        let descriptors = self.descriptors.lock().ok();
        descriptors.and_then(|list| list.first().copied()).unwrap_or(-1)
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub fn is_nested(&self) -> bool {
        self.nested.load(Ordering::Relaxed)
    }
}

/// An epoll_ctl(2) on a socket of ours.
#[derive(Clone, Copy)]
pub struct Change {
    pub operation: i32,
    pub descriptor: i32,
    pub id: SocketId,
    /// None for EPOLL_CTL_DEL.
    pub event: Option<Event>,
}

impl Change {
    fn interest(&self, stack: &Stack, in_kernel: bool) -> Option<Interest> {
        let event = self.event?;
        // The kernel has no use for these bits, and a program may have set them.
        let unused = match stack.config.socketxtreme {
            true => 0,
            false => Interest::SELECTIVE | Interest::QUIET,
        };
        Some(Interest {
            descriptor: self.descriptor,
            events: event.events & !unused | UNASKED,
            data: event.u64,
            spent: false,
            in_kernel,
            news: false,
            about: Interest::about_registering(event.events),
        })
    }
}

/// A change that the kernel has accepted for a shadow. An error: the socket must become the
/// kernel's.
pub fn control_shared(stack: &Stack, epoll: &Epoll, change: &Change) -> Result<(), WhyOs> {
    let Ok(mut state) = stack.shard.lock() else { return Ok(()) };
    match (change.operation, change.interest(stack, true)) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(interest)) => {
            if epoll.is_nested() {
                return Err(WhyOs::NestedEpoll);
            }
            if is_ambiguous(&mut state, epoll, change.id, &interest) {
                return Err(WhyOs::Ambiguous);
            }
            if interest.events & ONESHOT != 0 {
                epoll.any_oneshot.store(true, Ordering::Relaxed);
            }
            let seen = look(&mut state, change.id);
            register(&mut state, epoll.set, change.id, interest, seen);
        }
        (libc::EPOLL_CTL_DEL, _) => {
            state.unwatch(epoll.set, change.id, change.descriptor);
        }
        _ => {}
    }
    Ok(())
}

/// Would this registration be one that the kernel's events do not tell from another?
fn is_ambiguous(state: &mut State<Socket>, epoll: &Epoll, id: SocketId, new: &Interest) -> bool {
    let oneshot = |events: u32| events & ONESHOT != 0;
    if !oneshot(new.events) && !epoll.any_oneshot.load(Ordering::Relaxed) {
        return false;
    }
    state.shared_members(epoll.set).into_iter().any(|member| {
        state.interests(epoll.set, member).iter().any(|known| {
            (member, known.descriptor) != (id, new.descriptor)
                && known.in_kernel
                && known.data == new.data
                && (oneshot(known.events) || oneshot(new.events))
        })
    })
}

/// A change for a stream of which the kernel's instance knows nothing: its checks are made here.
/// None: the kernel has a say, or the socket is gone.
pub fn control_alone(stack: &Stack, epoll: &Epoll, change: &Change) -> Option<Result<(), i32>> {
    let Ok(mut state) = stack.shard.lock() else { return Some(Err(libc::ENOENT)) };
    let Change { operation, descriptor, id, .. } = *change;
    let seen = look(&mut state, id).filter(|seen| !seen.shared)?;
    if operation == libc::EPOLL_CTL_DEL {
        let known = state.unwatch(epoll.set, id, descriptor);
        return Some(if known { Ok(()) } else { Err(libc::ENOENT) });
    }
    let interest = change.interest(stack, false).ok_or(libc::EFAULT);
    Some(interest.and_then(|interest| change_alone(&mut state, epoll, change, interest, seen)))
}

fn change_alone(
    state: &mut State<Socket>,
    epoll: &Epoll,
    change: &Change,
    interest: Interest,
    seen: Seen,
) -> Result<(), i32> {
    let Change { operation, descriptor, id, .. } = *change;
    let events = interest.events;
    let allowed = match operation {
        libc::EPOLL_CTL_ADD => events & EXCLUSIVE == 0 || events & !WITH_EXCLUSIVE == 0,
        libc::EPOLL_CTL_MOD => events & EXCLUSIVE == 0,
        _ => false,
    };
    if !allowed {
        return Err(libc::EINVAL);
    }
    let known = state.interests(epoll.set, id).iter().find(|known| known.descriptor == descriptor);
    match (operation, known) {
        (libc::EPOLL_CTL_ADD, Some(_)) => return Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD, None) => return Err(libc::ENOENT),
        (libc::EPOLL_CTL_MOD, Some(known)) if known.events & EXCLUSIVE != 0 => {
            return Err(libc::EINVAL);
        }
        _ => {}
    }
    register(state, epoll.set, id, interest, Some(seen));
    Ok(())
}

/// What is ready when it is registered is news.
fn register(
    state: &mut State<Socket>,
    set: SetId,
    id: SocketId,
    interest: Interest,
    seen: Option<Seen>,
) {
    let ready = seen.is_some_and(|seen| seen.events & interest.events != 0);
    state.watch(set, id, Interest { news: ready, ..interest });
}

/// A listener that was watched before it listened: from now on its shadow is, too.
pub fn share(stack: &Stack, id: SocketId) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let registrations = state.share_registrations(id);
    drop(state);
    registrations
        .iter()
        .for_each(|registration| tell_kernel(registration, registration.interest.descriptor));
}

/// Has the kernel nothing to say of the socket? Then its registrations are made here only.
pub fn is_alone(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    look(&mut state, id).is_some_and(|seen| !seen.shared)
}

/// Is the stream the kernel's, though the program's numbers still stand for a socket of ours?
pub fn is_kernels(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    let socket = state.socket(id).map(|(_, socket)| socket);
    socket.is_some_and(|socket| {
        socket.stream.is_some() && matches!(socket.state, crate::socket::State::Os(_))
    })
}

/// Is the socket registered anywhere?
pub fn is_watched(stack: &Stack, id: SocketId) -> bool {
    let Ok(mut state) = stack.shard.lock() else { return false };
    state.socket(id).is_some_and(|(endpoint, _)| endpoint.is_watched())
}

/// A stream becomes the kernel's: so do its registrations. Its shadow is already what it will be.
///
/// Returns the instances that have one.
pub fn hand_over(stack: &Stack, id: SocketId) -> Vec<i32> {
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    give_back(&mut state, id)
}

/// As [`hand_over`], under the lock.
pub fn give_back(state: &mut State<Socket>, id: SocketId) -> Vec<i32> {
    let registrations = state.share_registrations(id);
    let Some((_, socket)) = state.socket(id) else { return Vec::new() };
    let descriptors = socket.descriptors.clone();
    state.leave_sets(id);
    for registration in &registrations {
        let own = registration.interest.descriptor;
        // A registration outlives the number it was made by.
        let living = if descriptors.contains(&own) { Some(&own) } else { descriptors.first() };
        if let Some(descriptor) = living {
            tell_kernel(registration, *descriptor);
        }
    }
    registrations.iter().map(|registration| registration.instance).collect()
}

/// A connection that the kernel had is served here from now on: its registrations leave the kernel's instances
/// for the readiness sets. False, and nothing is changed, if one cannot be told or moved.
pub fn take_over(state: &mut State<Socket>, id: SocketId, instances: &[(i32, Arc<Epoll>)]) -> bool {
    let Some((_, socket)) = state.socket(id) else { return false };
    let descriptors = socket.descriptors.clone();
    let Some(inode) = descriptors.first().map(|fd| inode(*fd)) else { return false };
    let mut moved = Vec::new();
    for (number, instance) in instances {
        let Some(registered) = registrations::of(*number, inode) else { return false };
        for interest in registered {
            if instance.is_nested() || !descriptors.contains(&interest.descriptor) {
                return false;
            }
            moved.push((*number, instance.set, interest));
        }
    }
    for (number, set, interest) in moved {
        with_borrowed(number, |instance| {
            with_borrowed(interest.descriptor, |fd| {
                let _ = epoll::delete(instance, fd);
            });
        });
        let seen = look(state, id);
        register(state, set, id, interest, seen);
    }
    true
}

/// Puts a registration into the kernel's instance.
fn tell_kernel(registration: &Registration, descriptor: i32) {
    let Registration { instance, interest } = registration;
    // One that has fired tells of errors and ends at most, once; the kernel has no better.
    let events = if interest.spent { ONESHOT } else { interest.events };
    let events = epoll::EventFlags::from_bits_retain(events);
    let data = epoll::EventData::new_u64(interest.data);
    with_borrowed(*instance, |instance| {
        with_borrowed(descriptor, |descriptor| {
            let _ = epoll::add(instance, descriptor, data, events);
        });
    });
}

/// The instance itself was added to another one, or polled. Its sockets become the
/// kernel's, whose readiness is seen from everywhere; the streams among them are returned, for the
/// caller to give back.
#[must_use]
pub fn nest(stack: &Stack, epoll: &Epoll) -> Vec<SocketId> {
    if epoll.nested.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let Ok(mut state) = stack.shard.lock() else { return Vec::new() };
    let mut streams = state.members(epoll.set);
    let mut datagrams = Vec::new();
    streams.retain(|id| {
        let stream = state.socket(*id).is_some_and(|(_, socket)| socket.stream.is_some());
        if !stream {
            datagrams.push(*id);
        }
        stream
    });
    drop(state);
    for id in datagrams {
        attach::un_offload(stack, id, WhyOs::NestedEpoll);
    }
    streams
}
