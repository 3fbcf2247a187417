//! The transmit rings of a queue: that of its own socket, and, as soon as threads send at the same time, those of
//! sockets beside it that share its memory and its completion ring.
//!
//! A kick takes the frames of a ring all the way (in copy mode through the peer's protocol, if the peer is on this
//! machine), one thread at a time. So each thread stays with a ring, and one that finds a ring at work takes another
//! one: it neither leaves its frames to the thread that kicks there nor waits for it. Frames of one flow stay in
//! order: while some of them wait in a ring the next ones go there.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::{set_xdp_tx_ring_size, xdp_mmap_offsets};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::ring::{CONTINUED, Cursor, Descriptor};
use crate::sys::{Fd, errand, release, thread};

/// Before this Linux, sockets that send in copy mode at the same time spoil the completion ring that they share.
const SINCE: (u32, u32) = (5, 11);
/// Rings of a queue, its own among them: a thread that has to kick all of them can note that.
const MOST: usize = errand::RINGS;
/// A transmit call handles at most 32 frames in copy mode, then says EAGAIN.
const KICKS_PER_FLUSH: u64 = 64;

/// Of what queue they are.
#[derive(Clone, Copy)]
pub struct Place {
    pub interface: u32,
    pub queue: u32,
    /// Descriptors of a ring: one for each frame that may be under way.
    pub size: u32,
}

struct TxRing {
    cursor: Cursor<Descriptor>,
    /// A bit for each flow that has frames here, by its number. Some may have left.
    flows: u64,
    /// The thread whose frames went here last; 0 is none.
    user: u32,
}

pub struct TxRings {
    place: Place,
    own: TxRing,
    beside: Vec<(TxRing, Fd)>,
    /// Where frames go: 0 is the queue's own, 1 the first beside it.
    aim: usize,
    /// No more are opened.
    is_full: bool,
}

impl TxRings {
    pub fn new(place: Place, cursor: Cursor<Descriptor>) -> TxRings {
        let own = TxRing { cursor, flows: 0, user: 0 };
        TxRings { place, own, beside: Vec::new(), aim: 0, is_full: false }
    }

    /// What is produced from now on is of this flow. `socket` is the queue's, here as below.
    #[inline]
    pub fn aim(&mut self, flow: u32, socket: &Fd) {
        if !self.beside.is_empty() {
            self.choose(flow, socket);
        } else if errand::may_put_off_kick() && !self.is_full && !self.own.is_free(socket) {
            // Whose frames wait there nobody has noted, so this one goes there, too.
            self.own.flows = u64::MAX;
            self.add(socket);
        }
    }

    fn choose(&mut self, flow: u32, socket: &Fd) {
        let mark = mark(flow);
        let thread = thread::cached_id();
        let (mut with_it, mut same, mut at_hand, mut free) = (None, None, None, None);
        for (number, (ring, socket)) in self.each(socket).enumerate() {
            let is_drained = ring.cursor.drained();
            if is_drained {
                ring.flows = 0;
            }
            let is_free = || !errand::is_kicked(socket.raw());
            if ring.user == thread && is_free() {
                same = same.or(Some(number));
            }
            if is_drained {
                free = free.or_else(|| is_free().then_some(number));
            } else if ring.flows & mark != 0 {
                with_it = with_it.or(Some(number));
            } else if ring.cursor.unpublished() > 0 {
                at_hand = at_hand.or(Some(number));
            }
        }
        self.aim = match with_it.or(same).or(free).or(at_hand) {
            Some(number) => number,
            None if self.add(socket) => self.beside.len(),
            None => flow as usize % (self.beside.len() + 1),
        };
        let ring = self.aimed();
        ring.flows |= mark;
        ring.user = thread;
    }

    #[inline]
    fn aimed(&mut self) -> &mut TxRing {
        match self.aim.checked_sub(1).and_then(|at| self.beside.get_mut(at)) {
            Some((ring, _)) => ring,
            None => &mut self.own,
        }
    }

    /// With their sockets.
    fn each<'a>(&'a mut self, socket: &'a Fd) -> impl Iterator<Item = (&'a mut TxRing, &'a Fd)> {
        let beside = self.beside.iter_mut().map(|(ring, socket)| (ring, &*socket));
        core::iter::once((&mut self.own, socket)).chain(beside)
    }

    #[inline]
    pub fn produce(&mut self, piece: Descriptor) {
        self.aimed().cursor.produce(piece);
    }

    /// Takes back the piece that was produced last, if it waits for a kick, and is one that others of its packet follow
    /// or not, as `continued` says.
    pub fn take_back(&mut self, continued: bool) -> Option<Descriptor> {
        let cursor = &mut self.aimed().cursor;
        let last = cursor.last_unpublished()?;
        if (last.options & CONTINUED != 0) != continued {
            return None;
        }
        cursor.unproduce();
        Some(last)
    }

    /// Pieces that wait for a kick.
    #[inline]
    pub fn unsent(&self) -> u32 {
        let beside = self.beside.iter().map(|(ring, _)| ring.cursor.unpublished());
        self.own.cursor.unpublished() + beside.sum::<u32>()
    }

    /// Has everything left?
    #[inline]
    pub fn are_drained(&mut self) -> bool {
        self.own.cursor.drained() && self.beside.iter_mut().all(|(ring, _)| ring.cursor.drained())
    }

    /// Lets the kernel send what waits; of what was published before, a thread that is at it may have to. The number of
    /// calls.
    #[inline]
    pub fn kick(&mut self, socket: &Fd) -> u64 {
        self.kick_each(socket, |socket| errand::leave_to_kicker(socket.raw()))
    }

    /// As [`TxRings::kick`], waiting for other threads, too.
    #[cold]
    pub fn finish(&mut self, socket: &Fd) -> u64 {
        self.kick_each(socket, |_| false)
    }

    #[inline]
    fn kick_each(&mut self, socket: &Fd, is_left: impl Fn(&Fd) -> bool) -> u64 {
        let mut calls = 0;
        for (ring, socket) in self.each(socket) {
            if ring.cursor.unpublished() > 0 || !ring.cursor.drained() && !is_left(socket) {
                calls += ring.kick(socket);
            }
        }
        calls
    }

    /// Notes the kicks as [errands](errand): how many, and whether all that are due are noted.
    pub fn put_off_kick(&mut self, socket: &Fd) -> (u64, bool) {
        let (mut noted, mut due) = (0, u64::from(self.own.is_due()));
        noted += u64::from(due > 0 && errand::note_kick(socket.raw()));
        for (ring, socket) in &mut self.beside {
            if ring.is_due() {
                due += 1;
                noted += u64::from(errand::note_kick(socket.raw()));
            }
        }
        (noted, noted == due)
    }

    /// Opens one more. False if none can be.
    #[cold]
    fn add(&mut self, socket: &Fd) -> bool {
        if self.is_full {
            return false;
        }
        // Who may not open one now (privileges given up, no descriptors left) does with those there are.
        let may_share = release::is_since(SINCE.0, SINCE.1);
        let opened = may_share.then(|| TxRing::open(self.place, socket).ok()).flatten();
        self.is_full = opened.is_none() || self.beside.len() + 2 >= MOST;
        opened.map(|ring| self.beside.push(ring)).is_some()
    }

    /// Another thread may be about to kick one of them.
    pub fn retire(&mut self) {
        self.beside.drain(..).for_each(|(_, socket)| socket.retire());
    }
}

impl TxRing {
    /// A socket that shares the memory of a queue's, and its completion ring: it has none of its own.
    fn open(place: Place, owner: &Fd) -> Result<(TxRing, Fd), Errno> {
        let Place { interface, queue, size } = place;
        let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        let socket = Fd::adopt(socket)?;
        set_xdp_tx_ring_size(&socket, size)?;
        let offsets = xdp_mmap_offsets(&socket)?;
        let at = libc::XDP_PGOFF_TX_RING as u64;
        let cursor = Cursor::producer(&socket, at, &offsets.tx, size)?;
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue),
            shared_umem_fd: owner.as_fd(),
        };
        rustix::net::bind(&socket, &address)?;
        Ok((TxRing { cursor, flows: 0, user: 0 }, socket))
    }

    /// Is no other thread at work here?
    fn is_free(&mut self, socket: &Fd) -> bool {
        let is_idle = || !errand::is_kicked(socket.raw());
        self.cursor.unpublished() > 0 || self.cursor.drained() && is_idle()
    }

    #[inline]
    fn kick(&mut self, socket: &Fd) -> u64 {
        self.cursor.publish();
        let mut calls = 0;
        while !self.cursor.drained() && self.cursor.needs_wakeup() && calls < KICKS_PER_FLUSH {
            calls += 1;
            match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
                // EAGAIN: its batch is full, frames remain. EBUSY: the device is, try again.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR) => {}
                // No memory for a packet now, link down ...: the frames stay queued for the next.
                Err(_) => break,
            }
        }
        calls
    }

    /// Publishes what was produced. Does it take a kick?
    fn is_due(&mut self) -> bool {
        let is_new = self.cursor.unpublished() > 0;
        self.cursor.publish();
        is_new && self.cursor.needs_wakeup()
    }
}

/// The bit of a flow.
fn mark(flow: u32) -> u64 {
    // The upper bits of the product depend on all of the number's.
    1 << (flow.wrapping_mul(0x9e37_79b1) >> 26)
}

#[cfg(test)]
mod tests;
