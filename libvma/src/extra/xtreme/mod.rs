//! SocketXtreme: a program polls one ring for completions instead of calling receive functions socket by socket.
//!
//! The ring is an epoll instance in which the library registers the program's sockets, edge-triggered, so it covers every device,
//! shared memory and the kernel's sockets alike. Here is the state behind it: which sockets are members, which of them
//! have news, and the buffers that the program has. `preload::xtreme` looks at the ring and receives.
//!
//! One thread at a time serves a member, so its packets keep their order; different members are served in parallel.

mod buffers;
mod members;

pub use members::{After, Event, Role, Room, Work};

use std::collections::HashMap;

use self::buffers::Buffers;
use self::members::Members;
use super::Amount;
use super::pool::Pool;
use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// A packet in memory of the library, as a completion tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The address of its first `vma_buff_t`.
    pub list: u64,
    pub buffers: usize,
    pub len: usize,
}

/// A buffer that is none of those that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

#[derive(Default)]
pub struct Xtreme {
    inner: Lock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The descriptor of the ring, once the program has asked for it.
    ring: Option<i32>,
    members: Members,
    buffers: Buffers,
    /// Memory for the next packet.
    spare: Option<Room>,
}

impl Xtreme {
    pub fn ring(&self) -> Option<i32> {
        self.inner.lock().ok()?.ring
    }

    /// The ring has this descriptor from now on, or the one that another thread was faster with, which is returned.
    pub fn open_ring(&self, descriptor: i32) -> i32 {
        let Ok(mut inner) = self.inner.lock() else { return descriptor };
        *inner.ring.get_or_insert(descriptor)
    }

    /// A descriptor of the program is closed, or names another file.
    pub fn forget(&self, descriptor: i32) {
        let Ok(mut inner) = self.inner.lock() else { return };
        inner.ring = inner.ring.filter(|ring| *ring != descriptor);
        inner.members.remove(descriptor);
    }

    /// A socket is a member from now on. Returns its event of the ring, and the ring if there is one.
    pub fn join(
        &self,
        descriptor: i32,
        role: Role,
        socket: Option<SocketId>,
        user_data: u64,
    ) -> Option<(Event, Option<i32>)> {
        let mut inner = self.inner.lock().ok()?;
        let event = inner.members.insert(descriptor, role, socket, user_data)?;
        Some((event, inner.ring))
    }

    /// The members and their events, for a ring that was just made.
    pub fn members(&self) -> Vec<(i32, Event)> {
        self.inner.lock().map_or_else(|_| Vec::new(), |inner| inner.members.all())
    }

    /// The ring tells of these events of a member, perhaps on the kernel's word. An event of a former member of the number is ignored.
    pub fn note(&self, data: u64, events: u32, by_kernel: bool) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.members.note(data, events, by_kernel);
        }
    }

    /// The next member with news, for the calling thread to serve, and memory for a packet. [`Xtreme::done`] must follow.
    pub fn next(&self, pool: &Pool, thread: u32) -> Option<Work> {
        let mut inner = self.inner.lock().ok()?;
        let member = inner.members.next(thread)?;
        let room = inner.spare.take().unwrap_or_else(|| Room::new(pool));
        Some(Work { member, room })
    }

    /// A member was served: `packet` bytes lie in the work's memory and are the program's from now on.
    pub fn done(
        &self,
        pool: &Pool,
        work: Work,
        after: After,
        packet: Option<usize>,
    ) -> Option<Lent> {
        let mut guard = self.inner.lock().ok()?;
        let inner = &mut *guard;
        let Work { member, room } = work;
        let mut lent = None;
        let mut charge = 0;
        match packet {
            Some(len) => {
                let (kept, unused) = room.split(len);
                charge = kept.iter().map(|(bytes, _)| bytes.len() as u64).sum();
                lent = inner.buffers.lend(kept.into_iter(), len, &member);
                if let Some(large) = unused {
                    inner.spare.get_or_insert_with(|| Room::with_large(pool, large));
                }
            }
            None if inner.spare.is_none() => inner.spare = Some(room),
            None => room.give_back(pool),
        }
        inner.members.done(&member, after, charge);
        lent
    }

    /// The program gives a packet back: each of its buffers has one reference less.
    pub fn free_packet(&self, pool: &Pool, list: u64) -> Result<(), Unknown> {
        let mut guard = self.inner.lock().map_err(|_| Unknown)?;
        let inner = &mut *guard;
        let mut next = Some(list);
        let mut result = Err(Unknown);
        while let Some(at) = next {
            let Some(freed) = inner.buffers.release(at) else { break };
            result = Ok(());
            next = freed.next;
            inner.settle(pool, freed);
        }
        result
    }

    /// One more reference to a buffer. Returns how many there are.
    pub fn refer(&self, buffer: u64) -> Result<u32, Unknown> {
        let mut inner = self.inner.lock().map_err(|_| Unknown)?;
        inner.buffers.refer(buffer).ok_or(Unknown)
    }

    /// One reference less. Returns how many are left.
    pub fn free_buffer(&self, pool: &Pool, buffer: u64) -> Result<u32, Unknown> {
        let mut guard = self.inner.lock().map_err(|_| Unknown)?;
        let freed = guard.buffers.release(buffer).ok_or(Unknown)?;
        let left = freed.left;
        guard.settle(pool, freed);
        Ok(left)
    }

    /// The value that completions of a socket have.
    pub fn set_user_data(&self, is: impl Fn(i32, Option<SocketId>) -> bool, value: u64) -> bool {
        self.inner.lock().is_ok_and(|mut inner| inner.members.set_user_data(is, value))
    }

    pub fn user_data(&self, descriptor: i32) -> Option<u64> {
        let mut inner = self.inner.lock().ok()?;
        inner.members.user_data(descriptor)
    }

    /// Adds what the program has of each socket.
    pub fn add_amounts(&self, all: &mut Amount, of_sockets: &mut HashMap<SocketId, Amount>) {
        if let Ok(inner) = self.inner.lock() {
            inner.buffers.add_amounts(all, of_sockets);
        }
    }
}

impl Inner {
    /// Memory whose last reference is gone is used again, and its socket may have more.
    fn settle(&mut self, pool: &Pool, freed: buffers::Freed) {
        if let Some(bytes) = freed.bytes {
            self.members.credit(freed.descriptor, freed.generation, bytes.len() as u64);
            pool.give(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
