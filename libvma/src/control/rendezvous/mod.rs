//! How processes of one host and user that run this library find each other: who has a socket
//! *posts* it under an abstract name ([`Key::name`]), who wants to send there calls that name, and
//! the two make a link by handing over memory and doorbells. The connection stays open: its end is
//! the end of the other process.
//!
//! Nothing is believed. Both sides ask the kernel for the other's user (SO_PEERCRED), messages have
//! one form (`wire`), and whoever says something else, or nothing for a second, is dropped. How
//! many connections wait, and how many descriptors all of this uses, is limited. Nothing here ever
//! waits; the owner calls [`Rendezvous::serve`] when [`Rendezvous::descriptor`] is readable or
//! something is due.
//!
//! What memory and links are is the [`Host`]'s matter: nothing here knows a ring or a shard.

mod attend;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

pub use wire::{Key, LENGTH, Message, ProcessId, Status, VERSION};

use crate::log::log_line;
use crate::sys::{Fd, random, unix_socket};

/// Who owns the memory of links.
pub trait Host {
    /// Memory that no peer has yet.
    type Memory;
    type Link: Copy + Eq;

    /// Memory for a link, and a bell that wakes this process for it.
    fn prepare(&mut self) -> Option<Self::Memory>;
    /// What the peer must get of it.
    fn share<'a>(&'a self, memory: &'a Self::Memory) -> BorrowedFd<'a>;
    /// What the peer is to wake this process by.
    fn bell<'a>(&'a self, memory: &'a Self::Memory) -> BorrowedFd<'a>;
    /// The peer took the memory: the link exists.
    fn make(&mut self, memory: Self::Memory, bell_of_peer: Fd) -> Option<Self::Link>;
    /// A peer brings memory. Nothing about it is to be believed. Returns what the peer is to wake
    /// this process by, too.
    fn take(&mut self, memory: Fd, bell_of_peer: Fd) -> Option<(Self::Link, Fd)>;
    fn is_alive(&mut self, link: Self::Link) -> bool;
    /// The peer is gone.
    fn end(&mut self, link: Self::Link);
    /// The peer ends, and leaves this process its half of a connection. Nothing about it is to be believed.
    fn inherit(&mut self, link: Self::Link, connection: u64, half: Fd);
    /// A bell of a thread of the peer's. Nothing about it is to be believed.
    fn take_bell(&mut self, link: Self::Link, number: u32, bell: Fd);
    /// A caller is about to be told that it has a link with us.
    fn answered(&mut self, link: Self::Link);
    /// Answers that were given before may be out of date.
    fn void_answers(&mut self);
    /// Only those that there is nobody may be.
    fn somebody_found(&mut self);
}

/// Who has a socket, as far as this process knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known<L> {
    Link(L),
    /// Nobody whom this process can talk to; asked again after `until`.
    Nobody {
        until: u64,
    },
    /// Somebody, who was asked at `since` and has not answered.
    Pending {
        since: u64,
    },
}

/// `M` is memory that is on offer, `L` a link.
pub struct Rendezvous<M, L> {
    process: ProcessId,
    /// Whose processes may have links with this one: [`NO_USER`] for nobody's.
    user: u32,
    watcher: Fd,
    watched: HashMap<u64, Watched<M, L>>,
    /// By what they are found; the number is the one in `watched`.
    posts: HashMap<Key, u64>,
    answers: HashMap<Key, Known<L>>,
    last_token: u64,
    /// Descriptors that all of this may use, but for threads' bells.
    budget: usize,
    /// Those that threads' bells may use.
    bell_budget: usize,
    /// The program needs their descriptors.
    posts_end: bool,
    /// Rises whenever a "nobody" may have become wrong.
    news: u64,
    /// Somebody who is none of us was met, and the log says so.
    met_strangers: bool,
    /// Callers turned away since posts were last heard all.
    turned_away: u32,
    /// Posts whose callers wait until the time given: there were too many, or no descriptors.
    unheard: Vec<u64>,
    hear_again: u64,
}

enum Watched<M, L> {
    Post {
        listener: Fd,
    },
    /// Connected and has not said what it wants.
    Guest {
        connection: Fd,
        until: u64,
    },
    /// We asked, and have no answer yet.
    Call {
        connection: Fd,
        key: Key,
        memory: M,
        since: u64,
    },
    Link {
        connection: Fd,
        peer: ProcessId,
        link: L,
        bells: Bells,
    },
}

/// Descriptors of threads' bells that a link has, a bit for each.
#[derive(Clone, Copy, Default)]
struct Bells {
    /// Of this side's threads, by their numbers.
    given: u32,
    /// Of the peer's.
    taken: u32,
}

impl Bells {
    fn count(self) -> usize {
        (self.given.count_ones() + self.taken.count_ones()) as usize
    }
}

/// The side of a link whose thread a bell wakes.
#[derive(Clone, Copy)]
enum Whose {
    Own,
    Peers,
}

const SECOND: u64 = 1_000_000_000;
/// How long "nobody" holds.
pub const NEGATIVE_NANOS: u64 = SECOND;
/// How long the other side may take to say something.
pub const PATIENCE_NANOS: u64 = SECOND;
pub const MOST_GUESTS: usize = 64;
pub const MOST_CALLS: usize = 64;
/// Callers turned away in a second before a post's others must wait.
const MOST_TURNED_AWAY: u32 = 1000;
const MOST_ANSWERS: usize = 16_384;
/// Callers that may wait for this process to look.
const BACKLOG: i32 = 64;
/// Descriptors of a call: the connection, the memory, and both ends of the own bell.
const CALL: usize = 4;
/// Descriptors of a link: the connection and both bells.
const LINK: usize = 3;
/// Descriptors of threads' bells that a link has beside: one of each bell, of both sides' threads.
const MOST_BELLS: usize = 30;
/// The numbers of the threads that may have one; 0 is the bell of all.
const BELLS: core::ops::Range<u32> = 1..16;
/// Threads' bells may have one part in so many of all descriptors, and the rest may not have that part: neither
/// takes the other's.
const BELL_SHARE: usize = 4;
/// No process has it (setreuid(2) takes it for "unchanged").
const NO_USER: u32 = u32::MAX;
/// Beyond the budget that `sys::fd` can list for a forked child to close.
const MOST_DESCRIPTORS: usize = 384;

impl<M, L: Copy + Eq> Rendezvous<M, L> {
    /// For the network namespace that the calling thread is in. ENOSYS if there is nothing random
    /// to be had, EPERM if the process cannot tell its own user from others.
    pub fn open() -> Result<Self, Errno> {
        let process = ProcessId(random::bytes().ok_or(Errno::NOSYS)?);
        // Who is somebody else just now is asked again for every post and call.
        let user = unix_socket::sole_user().unwrap_or(NO_USER);
        if !can_tell_users(user) {
            return Err(Errno::PERM);
        }
        let watcher = Fd::adopt(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        let all = budget();
        Ok(Rendezvous {
            process,
            user,
            watcher,
            watched: HashMap::new(),
            posts: HashMap::new(),
            answers: HashMap::new(),
            last_token: 0,
            budget: all - all / BELL_SHARE,
            bell_budget: all / BELL_SHARE,
            posts_end: false,
            news: 0,
            met_strangers: false,
            turned_away: 0,
            unheard: Vec::new(),
            hear_again: 0,
        })
    }

    /// Readable when there is something to serve.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.watcher.as_fd()
    }

    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Changes whenever a "nobody" that was said before may be wrong now.
    pub fn news(&self) -> u64 {
        self.news
    }

    pub fn is_posted(&self, key: Key) -> bool {
        self.posts.contains_key(&key)
    }

    /// How many sockets are posted.
    pub fn posts(&self) -> usize {
        self.posts.len()
    }

    pub fn has_links(&self) -> bool {
        self.watched.values().any(|watched| matches!(watched, Watched::Link { .. }))
    }

    /// Lets others find a socket. EADDRINUSE if its name is taken: by a process that shares the
    /// socket, or by a stranger.
    pub fn post<H: Host<Memory = M, Link = L>>(
        &mut self,
        host: &mut H,
        key: Key,
    ) -> Result<(), Errno> {
        if self.posts.contains_key(&key) {
            return Ok(());
        }
        if !self.is_itself(host) {
            return Err(Errno::PERM);
        }
        if self.posts_end || self.posts.len() >= self.budget / 2 {
            return Err(Errno::MFILE);
        }
        self.afford(1)?;
        let listener = unix_socket::listen(&key.name(), BACKLOG)?;
        let token = self.watch(Watched::Post { listener })?;
        self.posts.insert(key, token);
        self.tell(Message::Posted { key });
        Ok(())
    }

    /// Nobody shall find the socket any more, and who knows it forgets it.
    pub fn unpost(&mut self, key: Key) {
        if let Some(token) = self.posts.remove(&key) {
            self.remove(token);
            self.tell(Message::Gone { key });
        }
    }

    /// The program needs the descriptors of all posts, and of those that were to come. Returns how many there were.
    pub fn end_posts(&mut self) -> usize {
        self.posts_end = true;
        let keys: Vec<Key> = self.posts.keys().copied().collect();
        keys.iter().for_each(|key| self.unpost(*key));
        keys.len()
    }

    /// Who has a socket? Asks whoever has its name if that is not known.
    pub fn ask<H: Host<Memory = M, Link = L>>(
        &mut self,
        host: &mut H,
        key: Key,
        now: u64,
    ) -> Known<L> {
        if self.is_posted(key) {
            return Known::Nobody { until: now };
        }
        match self.answers.get(&key).copied() {
            Some(Known::Link(link)) if !host.is_alive(link) => self.forget_dead_links(host),
            Some(Known::Nobody { until }) if until <= now => {}
            Some(known) => return known,
            None => {}
        }
        let known = match self.call(host, key, now) {
            Ok(()) => Known::Pending { since: now },
            Err(Errno::AGAIN) => return Known::Nobody { until: now },
            Err(_) => Known::Nobody { until: now.saturating_add(NEGATIVE_NANOS) },
        };
        if self.answers.len() >= MOST_ANSWERS {
            self.answers.retain(|_, known| matches!(known, Known::Link(_) | Known::Pending { .. }));
        }
        self.answers.insert(key, known);
        known
    }

    fn call<H: Host<Memory = M, Link = L>>(
        &mut self,
        host: &mut H,
        key: Key,
        now: u64,
    ) -> Result<(), Errno> {
        let is_call = |watched: &&Watched<M, L>| matches!(watched, Watched::Call { .. });
        if self.watched.values().filter(is_call).count() >= MOST_CALLS {
            return Err(Errno::AGAIN);
        }
        if !self.is_itself(host) {
            return Err(Errno::PERM);
        }
        self.afford(CALL)?;
        let connection = unix_socket::connect(&key.name())?;
        if unix_socket::peer_user(&connection) != Some(self.user) {
            self.note_stranger("another user's");
            return Err(Errno::PERM);
        }
        let memory = host.prepare().ok_or(Errno::NOMEM)?;
        let hello = Message::Hello { process: self.process, key }.emit();
        unix_socket::send(&connection, &hello, &[host.share(&memory), host.bell(&memory)])?;
        self.watch(Watched::Call { connection, key, memory, since: now }).map(drop)
    }

    /// When [`Rendezvous::expire`] has something to do; None if nothing is awaited.
    pub fn due(&self) -> Option<u64> {
        let due = |watched: &Watched<M, L>| match watched {
            Watched::Guest { until, .. } => Some(*until),
            Watched::Call { since, .. } => Some(since.saturating_add(PATIENCE_NANOS)),
            Watched::Post { .. } | Watched::Link { .. } => None,
        };
        let again = Some(self.hear_again).filter(|_| !self.unheard.is_empty());
        self.watched.values().filter_map(due).chain(again).min()
    }

    /// Callers of a post wait for up to a second: looking at them again at once would help nobody.
    fn stop_hearing(&mut self, post: u64, now: u64) {
        if let Some(watched) = self.watched.get(&post) {
            let _ = epoll::delete(&self.watcher, watched.descriptor().as_fd());
        }
        if self.unheard.is_empty() {
            self.hear_again = now.saturating_add(SECOND);
        }
        self.unheard.push(post);
    }

    fn hear_all(&mut self) {
        self.turned_away = 0;
        for post in core::mem::take(&mut self.unheard) {
            if let Some(watched) = self.watched.get(&post) {
                let data = epoll::EventData::new_u64(post);
                let descriptor = watched.descriptor().as_fd();
                let _ = epoll::add(&self.watcher, descriptor, data, epoll::EventFlags::IN);
            }
        }
    }

    /// Drops who has been silent for too long.
    pub fn expire<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, now: u64) {
        let is_late = |watched: &Watched<M, L>| match watched {
            Watched::Guest { until, .. } => *until <= now,
            Watched::Call { since, .. } => since.saturating_add(PATIENCE_NANOS) <= now,
            Watched::Post { .. } | Watched::Link { .. } => false,
        };
        let late = self.watched.iter().filter(|(_, watched)| is_late(watched));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            if let Some(Watched::Call { key, .. }) = self.remove(token) {
                self.answer(host, key, Known::Nobody { until: now.saturating_add(NEGATIVE_NANOS) });
            }
        }
        self.answers.retain(|_, known| !matches!(known, Known::Nobody { until } if *until <= now));
        if self.unheard.is_empty() || self.hear_again <= now {
            self.hear_all();
        }
    }

    /// Now and then: links that the host cut off, and a process that changed its user.
    pub fn review<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H) {
        self.forget_dead_links(host);
        self.is_itself(host);
    }

    /// Is this process its user and nobody else? If not, nobody may find or be found: what one
    /// user's process says and learns is not the other's.
    fn is_itself<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H) -> bool {
        let user = unix_socket::sole_user();
        if let Some(user) = user
            && user != self.user
        {
            self.change_user(host, if can_tell_users(user) { user } else { NO_USER });
        }
        user.is_some() && user == Some(self.user)
    }

    /// The process is another user's for good: it has no peers any more, and other ones to find.
    #[cold]
    fn change_user<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, user: u32) {
        self.user = user;
        let is_post = |watched: &Watched<M, L>| matches!(watched, Watched::Post { .. });
        let others = self.watched.iter().filter(|(_, watched)| !is_post(watched));
        let others: Vec<u64> = others.map(|(token, _)| *token).collect();
        for token in others {
            if let Some(Watched::Link { link, .. }) = self.remove(token) {
                host.end(link);
            }
        }
        for watched in self.watched.values() {
            if let Watched::Post { listener } = watched {
                let _ = unix_socket::renew_credentials(listener, BACKLOG);
            }
        }
        self.answers.clear();
        self.news += 1;
        host.void_answers();
    }

    /// Leaves a peer this process's half of one of its connections. EAGAIN: it has not heard what was said before;
    /// ENOTCONN: there is no such link.
    pub fn leave(&self, to: L, connection: u64, half: BorrowedFd<'_>) -> Result<(), Errno> {
        let message = Message::Half { connection }.emit();
        let peer = self.watched.values().find_map(|watched| match watched {
            Watched::Link { connection, link, .. } if *link == to => Some(connection),
            _ => None,
        });
        unix_socket::send(peer.ok_or(Errno::NOTCONN)?, &message, &[half])
    }

    /// Gives a peer a bell of a thread of this process, which has the other end. It may be given again: the peer
    /// keeps the first that it gets.
    pub fn give_bell(&mut self, to: L, number: u32, bell: &Fd) -> Result<(), Errno> {
        let is_to =
            |watched: &Watched<M, L>| matches!(watched, Watched::Link { link, .. } if *link == to);
        let found = self.watched.iter().find(|(_, watched)| is_to(watched));
        let token = found.map(|(token, _)| *token).ok_or(Errno::NOTCONN)?;
        if !self.afford_bell(token, number, Whose::Own) {
            return Err(Errno::MFILE);
        }
        let message = Message::Bell { number: number.into() }.emit();
        let peer = self.watched.get(&token).map(Watched::descriptor).ok_or(Errno::NOTCONN)?;
        unix_socket::send(peer, &message, &[bell.as_fd()])
    }

    /// A link is to have a bell, which it may have already. False if there are too many, or no bell has this number.
    fn afford_bell(&mut self, token: u64, number: u32, whose: Whose) -> bool {
        if !BELLS.contains(&number) {
            return false;
        }
        let bit = 1u32 << number;
        let count = |watched: &Watched<M, L>| match watched {
            Watched::Link { bells, .. } => bells.count(),
            _ => 0,
        };
        let may = self.watched.values().map(count).sum::<usize>() < self.bell_budget;
        let Some(Watched::Link { bells, .. }) = self.watched.get_mut(&token) else { return false };
        let may = may && bells.count() < MOST_BELLS;
        let known = match whose {
            Whose::Own => &mut bells.given,
            Whose::Peers => &mut bells.taken,
        };
        if may {
            *known |= bit;
        }
        *known & bit != 0
    }

    fn forget_dead_links<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H) {
        let mut dead = Vec::new();
        for (token, watched) in &self.watched {
            if let Watched::Link { link, .. } = watched
                && !host.is_alive(*link)
            {
                dead.push(*token);
            }
        }
        for token in dead {
            self.end_link(host, token);
        }
    }

    /// The link by which a process can be reached.
    fn link_with(&self, process: ProcessId) -> Option<L> {
        self.watched.values().find_map(|watched| match watched {
            Watched::Link { peer, link, .. } if *peer == process => Some(*link),
            _ => None,
        })
    }

    fn end_link<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, token: u64) {
        let Some(Watched::Link { link, .. }) = self.remove(token) else { return };
        self.answers.retain(|_, known| *known != Known::Link(link));
        self.news += 1;
        host.end(link);
        host.void_answers();
    }

    /// An answer that was awaited, or that replaces another one.
    fn answer<H: Host<Memory = M, Link = L>>(&mut self, host: &mut H, key: Key, known: Known<L>) {
        self.answers.insert(key, known);
        host.somebody_found();
    }

    /// Who said "nobody" before may be found now.
    fn forget_negatives(&mut self) {
        self.answers.retain(|_, known| !matches!(known, Known::Nobody { .. }));
        self.news += 1;
    }

    /// Every peer learns it; one that does not read finds out by itself.
    fn tell(&self, message: Message) {
        let bytes = message.emit();
        for watched in self.watched.values() {
            if let Watched::Link { connection, .. } = watched {
                let _ = unix_socket::send(connection, &bytes, &[]);
            }
        }
    }

    fn watch(&mut self, watched: Watched<M, L>) -> Result<u64, Errno> {
        self.last_token += 1;
        let token = self.last_token;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.watcher, watched.descriptor().as_fd(), data, epoll::EventFlags::IN)?;
        self.watched.insert(token, watched);
        Ok(token)
    }

    fn remove(&mut self, token: u64) -> Option<Watched<M, L>> {
        let watched = self.watched.remove(&token)?;
        // Closing alone leaves it there as long as a child has a copy.
        let _ = epoll::delete(&self.watcher, watched.descriptor().as_fd());
        Some(watched)
    }

    /// May so many more descriptors be used?
    fn afford(&self, more: usize) -> Result<(), Errno> {
        let used = self.watched.values().map(|watched| match watched {
            Watched::Post { .. } => 1,
            Watched::Call { .. } => CALL,
            // With both bells; a guest is to become one.
            Watched::Guest { .. } | Watched::Link { .. } => LINK,
        });
        match used.sum::<usize>().saturating_add(more) <= self.budget {
            true => Ok(()),
            false => Err(Errno::MFILE),
        }
    }

    #[cold]
    fn note_stranger(&mut self, whose: &str) {
        if !core::mem::replace(&mut self.met_strangers, true) {
            log_line!(
                Debug,
                "{whose} process is on a name of ours; the kernel serves such sockets"
            );
        }
    }
}

impl<M, L> Watched<M, L> {
    fn descriptor(&self) -> &Fd {
        match self {
            Watched::Post { listener } => listener,
            Watched::Guest { connection, .. }
            | Watched::Call { connection, .. }
            | Watched::Link { connection, .. } => connection,
        }
    }
}

/// The most descriptors that posts may take. If they count against the program's limit, a quarter of that.
fn budget() -> usize {
    if crate::sys::above::is_possible() {
        return MOST_DESCRIPTORS;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    (limit / 4).min(MOST_DESCRIPTORS)
}

/// In a user namespace all users that it does not know have one number, which may be the own one.
fn can_tell_users(user: u32) -> bool {
    /// What the kernel calls a user it has no number for.
    const OVERFLOW: u32 = 65_534;
    user != OVERFLOW
        || crate::sys::fd::read_file("/proc/self/uid_map").is_ok_and(|map| {
            let map = String::from_utf8_lossy(&map).into_owned();
            map.split_whitespace().eq(["0", "0", "4294967295"])
        })
}
