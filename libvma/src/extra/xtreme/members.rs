//! The sockets of a ring: which have news, and which thread serves one.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use libvma_dev::extra::SocketAddress;

use super::buffers::HEAD;
use crate::extra::pool::{Buffer, LARGE, Pool};
use crate::shard::{Interest, SocketId};

/// The longest packet: `vma_packet_desc_t` counts in 16 bits.
const PACKET_MOST: usize = u16::MAX as usize;

/// A packet of an Ethernet frame needs no more than this, its head included.
const FRAME: usize = 2048;

/// Memory that a program may have of one socket. More stays where it is: a connection's window closes, a datagram
/// socket's receive buffer fills.
const MOST_OF_CONNECTION: u64 = 4 << 20;
const MOST_OF_DATAGRAMS: u64 = 64 << 20;

const OUT: u32 = libc::EPOLLOUT as u32;
const OF_STREAM: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
/// Other events than that it can be written to.
const OTHERS: u32 =
    (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI) as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Datagrams,
    Listener,
    /// Of the program, which wants to know when it is there.
    Connecting,
    /// From a listener.
    Accepted,
}

/// A member's registration at the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub events: u32,
    pub data: u64,
}

/// The state that a member goes to when it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// There may be more.
    Again,
    /// It has nothing: the ring tells when that changes.
    Idle,
    /// It is no socket any more.
    Gone,
}

/// A member that is being served.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    pub descriptor: i32,
    pub generation: u32,
    pub role: Role,
    pub socket: Option<SocketId>,
    pub user_data: u64,
    /// EPOLL* bits of the ring since it was idle.
    pub events: u32,
    /// The kernel may have told of it: only a call that finds nothing says that nothing is left.
    pub must_drain: bool,
    /// EPOLL* bits that the program was told of.
    pub told: u32,
    /// Its stream is over.
    pub ended: bool,
    /// Of a connection, once it was asked for.
    pub peer: Option<SocketAddress>,
}

/// A member to be served, with memory for a packet.
pub struct Work {
    pub member: Serving,
    pub room: Room,
}

/// Memory for the longest packet, in two pieces: nearly all packets fit the first one.
pub struct Room {
    small: Buffer,
    large: Buffer,
}

impl Room {
    pub(super) fn new(pool: &Pool) -> Room {
        Room::with_large(pool, pool.take(LARGE))
    }

    pub(super) fn with_large(pool: &Pool, large: Buffer) -> Room {
        Room { small: pool.take(FRAME), large }
    }

    pub(super) fn give_back(self, pool: &Pool) {
        pool.give(self.small);
        pool.give(self.large);
    }

    /// Where a packet goes: behind the heads, and no more than it may have.
    pub fn slices(&mut self) -> [IoSliceMut<'_>; 2] {
        let small = self.small.get_mut(HEAD..).unwrap_or_default();
        let rest = PACKET_MOST - small.len().min(PACKET_MOST);
        let large = self.large.get_mut(HEAD..).unwrap_or_default();
        let rest = rest.min(large.len());
        [IoSliceMut::new(small), IoSliceMut::new(large.get_mut(..rest).unwrap_or_default())]
    }

    /// The buffers of a packet of so many bytes, with how many each has, and the large one if it is not among them.
    pub(super) fn split(self, len: usize) -> (Parts, Option<Buffer>) {
        let first = len.min(self.small.len().saturating_sub(HEAD));
        let (second, unused) = match len - first {
            0 => (None, Some(self.large)),
            rest => (Some((self.large, rest)), None),
        };
        (Parts([Some((self.small, first)), second]), unused)
    }
}

/// One or two buffers.
pub(super) struct Parts([Option<(Buffer, usize)>; 2]);

impl Parts {
    pub fn iter(&self) -> impl Iterator<Item = &(Buffer, usize)> {
        self.0.iter().flatten()
    }
}

impl IntoIterator for Parts {
    type Item = (Buffer, usize);
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<(Buffer, usize)>, 2>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

#[derive(Default)]
pub(super) struct Members {
    /// By descriptor.
    list: Vec<Option<Member>>,
    /// Descriptors of members with news.
    ready: VecDeque<i32>,
    /// Of the member that joined last.
    generation: u32,
}

struct Member {
    known: Serving,
    /// It is in the list of those with news.
    is_ready: bool,
    /// The thread that serves it; 0: none.
    thread: u32,
    /// Bytes of memory that the program has.
    lent: u64,
    /// It has news, and waits until the program gives memory back.
    is_parked: bool,
    /// There is room again for what the program has to send.
    has_room: bool,
}

impl Member {
    fn event(&self) -> Event {
        let known = &self.known;
        let of_role = match known.role {
            Role::Datagrams | Role::Listener => libc::EPOLLIN,
            Role::Connecting => OF_STREAM | Interest::SELECTIVE as i32,
            Role::Accepted => OF_STREAM | (Interest::SELECTIVE | Interest::QUIET) as i32,
        };
        let data = u64::from(known.generation) << 32 | u64::from(known.descriptor as u32);
        Event { events: (of_role | libc::EPOLLET) as u32, data }
    }

    fn most(&self) -> u64 {
        match self.known.role {
            Role::Datagrams => MOST_OF_DATAGRAMS,
            _ => MOST_OF_CONNECTION,
        }
    }
}

impl Members {
    fn get(&mut self, descriptor: i32) -> Option<&mut Member> {
        self.list.get_mut(usize::try_from(descriptor).ok()?)?.as_mut()
    }

    fn of(&mut self, descriptor: i32, generation: u32) -> Option<&mut Member> {
        self.get(descriptor).filter(|member| member.known.generation == generation)
    }

    pub fn insert(
        &mut self,
        descriptor: i32,
        role: Role,
        socket: Option<SocketId>,
        user_data: u64,
    ) -> Option<Event> {
        let at = usize::try_from(descriptor).ok()?;
        if self.list.len() <= at {
            self.list.resize_with(at + 1, || None);
        }
        self.generation = self.generation.wrapping_add(1);
        let known = Serving {
            descriptor,
            generation: self.generation,
            role,
            socket,
            user_data,
            events: 0,
            must_drain: false,
            told: if role == Role::Accepted { OUT } else { 0 },
            ended: false,
            peer: None,
        };
        let member = Member {
            known,
            is_ready: false,
            thread: 0,
            lent: 0,
            is_parked: false,
            has_room: false,
        };
        let event = member.event();
        *self.list.get_mut(at)? = Some(member);
        Some(event)
    }

    pub fn remove(&mut self, descriptor: i32) {
        let at = usize::try_from(descriptor).ok();
        if let Some(slot) = at.and_then(|at| self.list.get_mut(at)) {
            *slot = None;
        }
    }

    pub fn all(&self) -> Vec<(i32, Event)> {
        let members = self.list.iter().flatten();
        members.map(|member| (member.known.descriptor, member.event())).collect()
    }

    pub fn note(&mut self, data: u64, events: u32, by_kernel: bool) {
        let descriptor = data as u32 as i32;
        if let Some(member) = self.of(descriptor, (data >> 32) as u32) {
            member.known.events |= events;
            member.known.must_drain |= by_kernel;
            member.has_room |= events & OUT != 0 && events & OTHERS == 0;
            self.list_ready(descriptor);
        }
    }

    fn list_ready(&mut self, descriptor: i32) {
        if let Some(member) = self.get(descriptor)
            && !core::mem::replace(&mut member.is_ready, true)
        {
            self.ready.push_back(descriptor);
        }
    }

    /// The next one with news that no other thread serves. A thread that seems to serve one itself has left that call by longjmp.
    pub fn next(&mut self, thread: u32) -> Option<Serving> {
        for _ in 0..self.ready.len() {
            let descriptor = self.ready.pop_front()?;
            // A number may be listed twice, for a member that is gone and for its successor.
            let Some(member) = self.get(descriptor).filter(|member| member.is_ready) else {
                continue;
            };
            if member.thread != 0 && member.thread != thread {
                self.ready.push_back(descriptor);
                continue;
            }
            member.is_ready = false;
            if member.lent >= member.most() {
                member.is_parked = true;
                continue;
            }
            if core::mem::take(&mut member.has_room) {
                member.known.told &= !OUT;
            }
            member.thread = thread;
            return Some(member.known);
        }
        None
    }

    /// `charge` bytes of memory went to the program.
    pub fn done(&mut self, served: &Serving, after: After, charge: u64) {
        let Some(member) = self.of(served.descriptor, served.generation) else { return };
        member.thread = 0;
        member.lent += charge;
        let Serving { told, ended, peer, .. } = *served;
        // The ring may have told more meanwhile, and the program may have set another value.
        member.known = Serving { told, ended, peer, ..member.known };
        match after {
            After::Again => self.list_ready(served.descriptor),
            // Events that the ring has told of meanwhile stay.
            After::Idle if !member.is_ready => {
                member.known.events = 0;
                member.known.must_drain = false;
            }
            After::Idle => {}
            After::Gone => self.remove(served.descriptor),
        }
    }

    /// The program has given memory of a member back.
    pub fn credit(&mut self, descriptor: i32, generation: u32, bytes: u64) {
        let Some(member) = self.of(descriptor, generation) else { return };
        member.lent = member.lent.saturating_sub(bytes);
        if member.is_parked && member.lent < member.most() {
            member.is_parked = false;
            self.list_ready(descriptor);
        }
    }

    pub fn set_user_data(
        &mut self,
        is: impl Fn(i32, Option<SocketId>) -> bool,
        value: u64,
    ) -> bool {
        let mut any = false;
        for member in self.list.iter_mut().flatten() {
            if is(member.known.descriptor, member.known.socket) {
                member.known.user_data = value;
                any = true;
            }
        }
        any
    }

    pub fn user_data(&mut self, descriptor: i32) -> Option<u64> {
        self.get(descriptor).map(|member| member.known.user_data)
    }
}
