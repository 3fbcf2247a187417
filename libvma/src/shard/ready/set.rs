//! Readiness sets: what an epoll instance knows of offloaded sockets.
//!
//! A set lists the sockets to which something happened since they were last looked at, so that a
//! wait costs what is ready, not what is watched. Who looks says what is ready now and puts back
//! (`relist`) what stays ready. As in the kernel, each registration is listed by itself: news that
//! it does not wait for leave it alone.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashSet, VecDeque};

use libvma_engine::tcp::Events;

use super::SleeperId;
use super::own_bells::Waiters;
use crate::shard::{SocketId, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetId(u32);

/// What the program registered a descriptor for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    pub descriptor: i32,
    /// As epoll_ctl(2) has them, with those that are told unasked.
    pub events: u32,
    pub data: u64,
    /// EPOLLONESHOT, and it has fired.
    pub spent: bool,
    /// The kernel's instance has this registration, too.
    pub in_kernel: bool,
    /// Something happened that it waits for since it was looked at.
    pub news: bool,
    /// The events that the news are about. A registration that is not selective is told of all that holds.
    pub about: u32,
}

impl Interest {
    /// A registration with this bit among its events, which the kernel has no use for, is told of an event only if the news
    /// are about it: that it can be written to only after it could not.
    pub const SELECTIVE: u32 = 1 << 27;

    /// With this one, that it can be written to is no news when it is registered.
    pub const QUIET: u32 = 1 << 26;

    /// The events that a new registration tells of.
    pub const fn about_registering(events: u32) -> u32 {
        if events & Interest::QUIET != 0 { !OUT } else { u32::MAX }
    }

    /// The same as long as there is no news.
    #[inline]
    pub const fn about_nothing(events: u32) -> u32 {
        ((events & Interest::SELECTIVE) >> 27).wrapping_sub(1)
    }

    /// The events that the news are about, which are told now.
    #[inline]
    pub const fn take_about(&mut self) -> u32 {
        core::mem::replace(&mut self.about, Interest::about_nothing(self.events))
    }

    /// Keeps news that could not be told, about these events.
    #[inline]
    pub const fn keep_news(&mut self, about: u32) {
        self.news = true;
        self.about |= about;
    }
}

/// A registration, with the descriptor of the epoll instance it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub instance: i32,
    pub interest: Interest,
}

/// One set's interest in a socket: a registration for each descriptor of it that was added.
pub(in crate::shard) struct Watch {
    set: SetId,
    /// The number of its entry in the set's list; 0 if there is none.
    listed: u64,
    interests: Vec<Interest>,
}

pub(in crate::shard) struct Set {
    /// Of the epoll instance.
    descriptor: i32,
    /// Those with news, in the order in which they got them, by the number of the entry. One that
    /// was not watched any more meanwhile is in it still, but its number is nobody's.
    listed: VecDeque<(SocketId, u64)>,
    /// Of the last entry.
    entry: u64,
    pub(super) sleepers: Vec<SleeperId>,
    pub(super) waiters: Waiters,
    members: Members,
    /// Members whose shadow the kernel's instance watches, too.
    shared: Members,
    /// What watches that ended have left: programs add and remove a socket with each request.
    spare: Vec<Vec<Interest>>,
}

type Members = HashSet<SocketId, BuildHasherDefault<Mixer>>;

/// A hash for names that we give ourselves: nobody chooses them so that they collide.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        // The golden ratio, which spreads consecutive numbers (Knuth).
        let mixed = (self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Watches that ended leave so many of theirs.
const SPARE: usize = 64;

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDBAND | libc::EPOLLPRI) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;

/// The events that such news are about: Linux wakes readers, writers, or everyone.
fn concerns(news: Events) -> u32 {
    let changes =
        Events::ESTABLISHED.union(Events::PEER_CLOSED).union(Events::ERROR).union(Events::CLOSED);
    if news.intersects(changes) {
        return u32::MAX;
    }
    let reading = news.intersects(Events::READABLE.union(Events::URGENT));
    let writing = news.intersects(Events::WRITABLE);
    (if reading { IN } else { 0 }) | (if writing { OUT } else { 0 })
}

impl Watch {
    /// Returns whether the news concern any registration.
    fn note(&mut self, events: u32) -> bool {
        let mut any = false;
        for interest in &mut self.interests {
            if !interest.spent && interest.events & events != 0 {
                interest.news = true;
                interest.about |= events;
                any = true;
            }
        }
        any
    }
}

impl<S> State<S> {
    /// A set for the epoll instance of this descriptor.
    pub fn new_set(&mut self, descriptor: i32) -> SetId {
        let index = match self.sets.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.sets.push(None);
                self.sets.len() - 1
            }
        };
        if let Some(slot) = self.sets.get_mut(index) {
            *slot = Some(Set {
                descriptor,
                listed: VecDeque::new(),
                entry: 0,
                sleepers: Vec::new(),
                waiters: Waiters::default(),
                members: Members::default(),
                shared: Members::default(),
                spare: Vec::new(),
            });
        }
        SetId(index as u32)
    }

    /// The epoll instance is known by this descriptor now.
    pub fn rename_set(&mut self, id: SetId, descriptor: i32) {
        if let Some(set) = self.set_mut(id) {
            set.descriptor = descriptor;
        }
    }

    pub fn end_set(&mut self, id: SetId) {
        // The number will name another set.
        let Some(set) = self.sets.get_mut(id.0 as usize).and_then(Option::take) else { return };
        for sleeper in set.sleepers {
            self.wake(sleeper);
        }
        for member in set.members {
            if let Some((endpoint, _)) = self.socket(member) {
                endpoint.watches.retain(|watch| watch.set != id);
            }
        }
    }

    pub fn sleep_on_set(&mut self, id: SetId, sleeper: SleeperId) {
        if let Some(set) = self.set_mut(id) {
            set.sleepers.push(sleeper);
        }
        self.note_waiter(id, sleeper);
    }

    pub fn leave_set(&mut self, set: SetId, sleeper: SleeperId) {
        if let Some(set) = self.set_mut(set) {
            set.sleepers.retain(|other| *other != sleeper);
        }
    }

    /// Registers a descriptor of the socket, or changes its registration. If it has news already
    /// (`interest.news`) it is listed, and whoever waits at the set wakes.
    pub fn watch(&mut self, id: SetId, socket: SocketId, interest: Interest) {
        if self.set_mut(id).is_none() {
            return;
        }
        let Some(watch) = self.watch_or_new(id, socket) else { return };
        match watch.interests.iter_mut().find(|known| known.descriptor == interest.descriptor) {
            Some(known) => *known = interest,
            None => watch.interests.push(interest),
        }
        let mut is_first = false;
        if let Some(set) = self.set_mut(id) {
            is_first = set.members.is_empty();
            set.members.insert(socket);
            if interest.in_kernel {
                set.shared.insert(socket);
            }
        }
        if interest.news {
            self.relist(id, socket);
        }
        // A thread that waits at a set without sockets does not listen to the rings.
        if interest.news || is_first {
            self.wake_set(id);
        }
    }

    fn watch_or_new(&mut self, id: SetId, socket: SocketId) -> Option<&mut Watch> {
        let (endpoint, _) = self.socket(socket)?;
        let known = endpoint.watches.iter().position(|watch| watch.set == id);
        let at = known.unwrap_or(endpoint.watches.len());
        if known.is_none() {
            let interests = self.set_mut(id)?.spare.pop().unwrap_or_default();
            self.expect_anybody(socket);
            let (endpoint, _) = self.socket(socket)?;
            endpoint.watches.push(Watch { set: id, listed: 0, interests });
            endpoint.was_watched = true;
        }
        self.socket(socket)?.0.watches.get_mut(at)
    }

    /// Takes a registration back; false if there is none.
    pub fn unwatch(&mut self, id: SetId, socket: SocketId, descriptor: i32) -> bool {
        let Some((endpoint, _)) = self.socket(socket) else { return false };
        let Some(at) = endpoint.watches.iter().position(|watch| watch.set == id) else {
            return false;
        };
        let Some(watch) = endpoint.watches.get_mut(at) else { return false };
        let before = watch.interests.len();
        watch.interests.retain(|interest| interest.descriptor != descriptor);
        let found = watch.interests.len() < before;
        if watch.interests.is_empty() {
            let Watch { interests, .. } = endpoint.watches.remove(at);
            self.forget_member(id, socket);
            if let Some(set) = self.set_mut(id)
                && set.spare.len() < SPARE
            {
                set.spare.push(interests);
            }
        }
        found
    }

    fn forget_member(&mut self, id: SetId, socket: SocketId) {
        if let Some(set) = self.set_mut(id) {
            set.members.remove(&socket);
            set.shared.remove(&socket);
        }
    }

    /// What this set's registrations of a socket are.
    pub fn interests(&mut self, id: SetId, socket: SocketId) -> &mut [Interest] {
        let watches = self.socket(socket).map(|(endpoint, _)| &mut endpoint.watches);
        match watches.and_then(|watches| watches.iter_mut().find(|watch| watch.set == id)) {
            Some(watch) => &mut watch.interests,
            None => &mut [],
        }
    }

    /// The sockets that a set watches.
    pub fn members(&mut self, id: SetId) -> Vec<SocketId> {
        self.set_mut(id).map_or_else(Vec::new, |set| set.members.iter().copied().collect())
    }

    /// Those whose shadow the kernel's instance watches, too.
    pub fn shared_members(&mut self, id: SetId) -> Vec<SocketId> {
        self.set_mut(id).map_or_else(Vec::new, |set| set.shared.iter().copied().collect())
    }

    /// The registrations of a socket in all sets that the kernel does not have. They count as the
    /// kernel's, too, from now on.
    pub fn share_registrations(&mut self, socket: SocketId) -> Vec<Registration> {
        let Some((endpoint, _)) = self.socket(socket) else { return Vec::new() };
        let mut found = Vec::new();
        for watch in &mut endpoint.watches {
            for interest in watch.interests.iter_mut().filter(|interest| !interest.in_kernel) {
                interest.in_kernel = true;
                found.push((watch.set, *interest));
            }
        }
        let mut registrations = Vec::new();
        for (id, interest) in found {
            let Some(set) = self.set_mut(id) else { continue };
            set.shared.insert(socket);
            registrations.push(Registration { instance: set.descriptor, interest });
        }
        registrations
    }

    /// No set watches the socket any more.
    pub fn leave_sets(&mut self, socket: SocketId) {
        let watches =
            self.socket(socket).map(|(endpoint, _)| core::mem::take(&mut endpoint.watches));
        for watch in watches.unwrap_or_default() {
            self.forget_member(watch.set, socket);
        }
    }

    /// The number of the last entry of the set's list.
    pub fn last_entry(&self, set: SetId) -> u64 {
        let slot = self.sets.get(set.0 as usize);
        slot.and_then(Option::as_ref).map_or(0, |set| set.entry)
    }

    /// The next socket in the set's list, taken out of it, among the entries up to `last`. Start
    /// with the last one there is ([`State::last_entry`]): what is put back meanwhile is not met
    /// again.
    pub fn next_listed(&mut self, id: SetId, last: u64) -> Option<SocketId> {
        loop {
            let (socket, entry) =
                self.set_mut(id)?.listed.pop_front_if(|(_, entry)| *entry <= last)?;
            if let Some(watch) = self.watch_of(id, socket)
                && watch.listed == entry
            {
                watch.listed = 0;
                return Some(socket);
            }
        }
    }

    /// Does it watch any socket of ours?
    pub fn watches_any(&self, set: SetId) -> bool {
        let slot = self.sets.get(set.0 as usize);
        slot.and_then(Option::as_ref).is_some_and(|set| !set.members.is_empty())
    }

    /// How many sockets the set lists now, at most.
    pub fn listed(&self, set: SetId) -> usize {
        let slot = self.sets.get(set.0 as usize);
        slot.and_then(Option::as_ref).map_or(0, |set| set.listed.len())
    }

    /// Puts a socket (back) at the end of the set's list.
    pub fn relist(&mut self, id: SetId, socket: SocketId) {
        let Some(set) = self.set_mut(id) else { return };
        let entry = set.entry + 1;
        let Some(watch) = self.watch_of(id, socket) else { return };
        if watch.listed != 0 {
            return;
        }
        watch.listed = entry;
        let Some(set) = self.set_mut(id) else { return };
        set.entry = entry;
        set.listed.push_back((socket, entry));
        if set.listed.len() > 2 * set.members.len() + SPARE {
            self.weed(id);
        }
    }

    /// Takes what is not watched any more out of the list: more than half of it.
    #[cold]
    fn weed(&mut self, id: SetId) {
        let Some(set) = self.set_mut(id) else { return };
        let mut listed = core::mem::take(&mut set.listed);
        listed.retain(|(socket, entry)| {
            self.watch_of(id, *socket).is_some_and(|watch| watch.listed == *entry)
        });
        if let Some(set) = self.set_mut(id) {
            set.listed = listed;
        }
    }

    fn watch_of(&mut self, id: SetId, socket: SocketId) -> Option<&mut Watch> {
        self.socket(socket)?.0.watches.iter_mut().find(|watch| watch.set == id)
    }

    pub(super) fn announce_to_sets(&mut self, socket: SocketId, news: Events) {
        let events = concerns(news);
        let mut at = 0;
        while let Some((endpoint, _)) = self.socket(socket)
            && let Some(watch) = endpoint.watches.get_mut(at)
        {
            let id = watch.set;
            if watch.note(events) {
                self.relist(id, socket);
                self.wake_set(id);
                self.expect_at(id, socket);
            }
            at += 1;
        }
    }

    fn wake_set(&mut self, id: SetId) {
        let mut member = 0;
        while let Some(sleeper) = self.set_mut(id).and_then(|set| set.sleepers.get(member).copied())
        {
            self.wake_for_news(sleeper);
            member += 1;
        }
    }

    pub(super) fn set_mut(&mut self, id: SetId) -> Option<&mut Set> {
        self.sets.get_mut(id.0 as usize)?.as_mut()
    }
}

#[cfg(test)]
mod tests;
