//! The shard's half of a socket: its queue, who waits for it, and what it has counted.

use std::collections::VecDeque;

use super::count::Counts;
use super::datagram::{Datagram, Train};
use super::ready::{SleeperId, Watch};
use super::{SocketId, State};

pub(super) struct Slot<S> {
    /// Of the present content, or of the last one.
    pub generation: u32,
    pub content: Option<(Endpoint, S)>,
}

pub struct Endpoint {
    pub(super) queue: VecDeque<Datagram>,
    /// Sum of the charges of the queue.
    pub(super) charged: usize,
    /// Payload bytes in the queue.
    pub(super) bytes: u64,
    /// SO_RCVBUF, in the kernel's units.
    pub limit: usize,
    /// Stamp datagrams on arrival.
    pub wants_stamp: bool,
    /// Note the interface of datagrams on arrival.
    pub wants_interface: bool,
    /// Trains are received whole (UDP_GRO).
    pub takes_trains: bool,
    /// The program judges datagrams before they are queued. Implies `wants_stamp`.
    pub(super) is_filtered: bool,
    /// A callback of the program holds a packet of which no waiting call has told so far.
    pub has_held_news: bool,
    pub(super) sleepers: Vec<SleeperId>,
    pub(super) watches: Vec<Watch>,
    /// A set watches it, or did when the kernel's word was last acted upon.
    pub(super) was_watched: bool,
    /// The last [`State::os_doubt`] this socket has acted on.
    pub(super) os_doubt: u64,
    /// The number by which the kernel knows the socket; -1 if it is not told here.
    pub shadow: i32,
    /// The next datagram comes after so many others by the kernel, as one said that was dropped.
    pub(super) marked: u16,
    /// Of a stream socket: its pipe to another process of this host.
    pub(super) pipe: Option<u32>,
    /// Of a stream socket: its connection, or what it listens with.
    pub(super) connection: Option<u32>,
    pub(super) listener: Option<u32>,
    /// Datagrams that found no room (SO_RXQ_OVFL): unlike the counters, nothing sets it to zero.
    pub(super) drops: u32,
    /// Threads of the last receive and send calls; 0 is none.
    pub rx_thread: u32,
    pub tx_thread: u32,
    pub counters: Counts,
}

impl Endpoint {
    pub(super) fn new(limit: usize) -> Endpoint {
        Endpoint {
            queue: VecDeque::new(),
            charged: 0,
            bytes: 0,
            limit,
            wants_stamp: false,
            wants_interface: false,
            takes_trains: false,
            is_filtered: false,
            has_held_news: false,
            sleepers: Vec::new(),
            watches: Vec::new(),
            was_watched: false,
            os_doubt: 0,
            shadow: -1,
            marked: 0,
            pipe: None,
            connection: None,
            listener: None,
            drops: 0,
            rx_thread: 0,
            tx_thread: 0,
            counters: Counts::default(),
        }
    }

    #[inline]
    pub fn is_readable(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Packets in the queue, datagrams or trains, and their payload bytes.
    pub fn waiting(&self) -> (u64, u64) {
        (self.queue.len() as u64, self.bytes)
    }

    /// Datagrams in the queue, those of trains among them.
    pub fn datagrams(&self) -> u64 {
        self.queue.iter().map(|queued| u64::from(queued.train.count(queued.len))).sum()
    }

    /// The datagram that the next receive call gets.
    #[inline]
    pub fn front(&self) -> Option<&Datagram> {
        self.queue.front()
    }

    /// Whatever the kernel's socket has now comes before the next datagram.
    pub fn begin_after_kernel(&mut self) {
        self.marked = u16::MAX;
    }

    /// One of those that come before the next datagram was read from the kernel's socket.
    pub fn note_kernels(&mut self) {
        if let Some(next) = self.queue.front_mut()
            && next.after_kernel != u16::MAX
        {
            next.after_kernel = next.after_kernel.saturating_sub(1);
        }
    }

    #[inline]
    pub(super) fn has_room(&self, charge: usize) -> bool {
        // One datagram always fits, however small the buffer is.
        self.charged == 0 || self.charged + charge <= self.limit
    }

    /// How many bytes of a train find room; None if not one datagram does. One that is cut counts as its
    /// datagrams do.
    #[cold]
    pub(super) fn room_for(&self, train: Train, len: usize) -> Option<usize> {
        if train.whole {
            return self.has_room(train.charge(len)).then_some(len);
        }
        // With a last one that is shorter.
        if self.charged + train.charge(len) <= self.limit {
            return Some(len);
        }
        let (segment, one) = (usize::from(train.segment), train.charge(train.segment.into()));
        let left = self.limit.saturating_sub(self.charged);
        let count = (left / one).max(usize::from(self.charged == 0));
        (count > 0).then(|| (count * segment).min(len))
    }

    /// Datagrams found no room; returns how many they were.
    #[cold]
    pub fn count_lost(&mut self, train: Train, len: usize) -> u32 {
        let count = train.count(len as u32);
        self.counters.rx_dropped_packets += u64::from(count);
        self.counters.rx_dropped_bytes += len as u64;
        // A message is one for SO_RXQ_OVFL.
        self.drops = self.drops.wrapping_add(if train.whole { 1 } else { count });
        count
    }

    #[inline]
    pub(super) fn push(&mut self, datagram: Datagram) {
        self.charged += datagram.charge();
        self.bytes += u64::from(datagram.len);
        self.queue.push_back(datagram);
        let counters = &mut self.counters;
        counters.rx_ready_packets_max = counters.rx_ready_packets_max.max(self.queue.len() as u32);
        counters.rx_ready_bytes_max = counters.rx_ready_bytes_max.max(self.bytes as u32);
    }

    pub(super) fn push_front(&mut self, datagram: Datagram) {
        self.charged += datagram.charge();
        self.bytes += u64::from(datagram.len);
        self.queue.push_front(datagram);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Datagram> {
        let datagram = self.queue.pop_front()?;
        self.charged -= datagram.charge();
        self.bytes -= u64::from(datagram.len);
        Some(datagram)
    }

    /// Does the program judge what comes?
    pub fn is_filtered(&self) -> bool {
        self.is_filtered
    }

    /// Does a thread sleep on the socket itself?
    pub fn is_waited_for(&self) -> bool {
        !self.sleepers.is_empty()
    }

    /// Is it a stream whose peer is a process of this host?
    #[inline]
    pub fn has_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    pub fn is_watched(&self) -> bool {
        !self.watches.is_empty()
    }
}

impl<S> State<S> {
    /// Frees what a socket has queued.
    pub(super) fn discard_queue(&mut self, id: SocketId) {
        while let Some(datagram) = self.socket(id).and_then(|(endpoint, _)| endpoint.pop()) {
            self.release(datagram);
        }
    }
}
