//! Datagrams that the program judges before they are queued (register_recv_callback): they are withheld from the socket's
//! queue until it has. One of a socket at a time is being judged, without the lock, so order is kept.

use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::sync::Arc;

use super::datagram::{Body, Datagram, Train};
use super::{SocketId, State};

/// Of all sockets that have a filter.
#[derive(Default)]
pub(super) struct Filters {
    sockets: HashMap<SocketId, Withheld>,
    /// Number of datagrams that are not being judged yet.
    waiting: usize,
}

#[derive(Default)]
struct Withheld {
    datagrams: VecDeque<Datagram>,
    /// One is being judged.
    judging: bool,
    /// The filter is gone: what waits is queued when the one being judged is done with.
    ended: bool,
}

/// A datagram of a socket with a filter.
pub struct Judged<B> {
    pub socket: SocketId,
    pub datagram: Datagram,
    /// Memory that begins with a copy of its bytes.
    pub payload: B,
    /// Datagrams and bytes in the queue.
    pub waiting: (u64, u64),
}

impl<S> State<S> {
    /// From now on what comes for the socket is withheld from its queue, or is not any more.
    pub fn set_filter(&mut self, id: SocketId, on: bool) {
        if on {
            let Some((endpoint, _)) = self.socket(id) else { return };
            endpoint.is_filtered = true;
            let filters = self.filters.get_or_insert_default();
            filters.sockets.entry(id).or_default().ended = false;
            return;
        }
        self.end_filter(id);
    }

    /// Queues what is withheld, unjudged: the socket is about to be somebody else's. Behind a datagram that is being
    /// judged it waits, and the socket is not retired before.
    #[cold]
    pub fn end_filter(&mut self, id: SocketId) {
        let Some(filters) = &mut self.filters else { return };
        let Some(withheld) = filters.sockets.get_mut(&id) else { return };
        withheld.ended = true;
        if withheld.judging {
            return;
        }
        let Some(withheld) = filters.sockets.remove(&id) else { return };
        filters.waiting = filters.waiting.saturating_sub(withheld.datagrams.len());
        for datagram in withheld.datagrams {
            self.queue_judged(id, datagram, true);
        }
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.is_filtered = false;
        }
    }

    /// Withholds a datagram that has found room; its waiters are told, for it is theirs to judge.
    #[cold]
    pub(super) fn withhold(&mut self, id: SocketId, datagram: Datagram) {
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.charged += datagram.charge();
        }
        let Train { segment, whole } = datagram.train;
        if segment == 0 || whole {
            let filters = self.filters.get_or_insert_default();
            filters.waiting += 1;
            filters.sockets.entry(id).or_default().datagrams.push_back(datagram);
        } else {
            let parts = self.uncouple_all(datagram, segment.into());
            let filters = self.filters.get_or_insert_default();
            filters.waiting += parts.len();
            filters.sockets.entry(id).or_default().datagrams.extend(parts);
        }
        self.announce(id);
    }

    /// The datagrams of a train, each with memory of its own.
    fn uncouple_all(&mut self, train: Datagram, size: usize) -> VecDeque<Datagram> {
        let bytes = self.bytes_of(&train);
        let mut after_kernel = train.after_kernel;
        let parts = bytes.chunks(size).map(|part| Datagram {
            body: Body::Heap(Arc::from(part)),
            len: part.len() as u32,
            skip: 0,
            train: Train::default(),
            after_kernel: core::mem::take(&mut after_kernel),
            ..train
        });
        let parts = parts.collect();
        self.release(train);
        parts
    }

    fn bytes_of(&self, datagram: &Datagram) -> Box<[u8]> {
        let mut bytes = vec![0; datagram.len as usize].into_boxed_slice();
        self.copy_out(datagram, &mut [IoSliceMut::new(&mut bytes)]);
        bytes
    }

    /// Is a datagram withheld that this thread may judge?
    pub fn has_withheld(&self) -> bool {
        self.filters.as_ref().is_some_and(|filters| {
            filters.waiting > 0
                && filters.sockets.values().any(|one| !one.judging && !one.datagrams.is_empty())
        })
    }

    /// Does the socket have one?
    pub fn withholds(&self, id: SocketId) -> bool {
        let withheld = self.filters.as_ref().and_then(|filters| filters.sockets.get(&id));
        withheld.is_some_and(|one| one.judging || !one.datagrams.is_empty())
    }

    /// The next datagram to be judged; [`State::judge`] tells what became of it. `memory` gives room for so many bytes.
    pub fn next_withheld<B: AsMut<[u8]>>(
        &mut self,
        memory: impl FnOnce(usize) -> B,
    ) -> Option<Judged<B>> {
        let filters = self.filters.as_mut()?;
        let (socket, withheld) = filters
            .sockets
            .iter_mut()
            .find(|(_, one)| !one.judging && !one.datagrams.is_empty())?;
        let socket = *socket;
        let datagram = withheld.datagrams.pop_front()?;
        withheld.judging = true;
        filters.waiting = filters.waiting.saturating_sub(1);
        let mut payload = memory(datagram.len as usize);
        self.copy_out(&datagram, &mut [IoSliceMut::new(payload.as_mut())]);
        let waiting = self.socket(socket).map_or((0, 0), |(endpoint, _)| endpoint.waiting());
        Some(Judged { socket, datagram, payload, waiting })
    }

    /// A datagram was judged: it is queued, or it is over.
    pub fn judge(&mut self, id: SocketId, datagram: Datagram, keep: bool) {
        let marks = if keep { 0 } else { datagram.after_kernel };
        self.queue_judged(id, datagram, keep);
        self.inherit_marks(id, marks);
        let Some(filters) = &mut self.filters else { return };
        let Some(withheld) = filters.sockets.get_mut(&id) else { return };
        withheld.judging = false;
        if withheld.ended {
            self.end_filter(id);
        } else if !withheld.datagrams.is_empty() {
            // Others may have waited for this one.
            self.announce(id);
        }
    }

    /// The program holds a packet of the socket: who waits for the socket is told once, as of one that can be received.
    pub fn note_held(&mut self, id: SocketId) {
        let Some((endpoint, _)) = self.socket(id) else { return };
        endpoint.has_held_news = true;
        self.announce(id);
    }

    fn queue_judged(&mut self, id: SocketId, datagram: Datagram, keep: bool) {
        let Some((endpoint, _)) = self.socket(id) else { return self.release(datagram) };
        endpoint.charged = endpoint.charged.saturating_sub(datagram.charge());
        if keep {
            endpoint.push(datagram);
            return self.announce(id);
        }
        endpoint.counters.rx_packets += 1;
        endpoint.counters.rx_bytes += u64::from(datagram.len);
        self.release(datagram);
    }

    /// After a dropped datagram the next one comes after those by the kernel that the dropped one was to come after.
    fn inherit_marks(&mut self, id: SocketId, marks: u16) {
        let filters = self.filters.as_mut();
        let next = filters.and_then(|filters| filters.sockets.get_mut(&id));
        if let Some(next) = next.and_then(|withheld| withheld.datagrams.front_mut()) {
            next.after_kernel = next.after_kernel.saturating_add(marks);
        } else if let Some((endpoint, _)) = self.socket(id) {
            endpoint.marked = endpoint.marked.saturating_add(marks);
        }
    }

    /// The socket goes, with all that is withheld.
    pub(super) fn discard_withheld(&mut self, id: SocketId) {
        let Some(filters) = &mut self.filters else { return };
        let Some(withheld) = filters.sockets.remove(&id) else { return };
        filters.waiting = filters.waiting.saturating_sub(withheld.datagrams.len());
        for datagram in withheld.datagrams {
            self.release(datagram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shard;
    use super::*;
    use core::net::{Ipv4Addr, SocketAddrV4};

    fn datagram(bytes: &[u8], segment: u16) -> Datagram {
        Datagram {
            body: Body::Heap(Arc::from(bytes)),
            len: bytes.len() as u32,
            skip: 0,
            train: Train { segment, whole: false },
            source: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 5),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            interface: 0,
            ttl: 64,
            tos: 0,
            after_kernel: 3,
            by_link: false,
            stamp: 1,
            drops_before: 0,
        }
    }

    fn next(state: &mut State<()>) -> Option<Judged<Box<[u8]>>> {
        state.next_withheld(|len| vec![0; len].into_boxed_slice())
    }

    fn filtered(state: &mut State<()>) -> SocketId {
        let id = state.attach((), 100_000);
        state.set_filter(id, true);
        id
    }

    #[test]
    fn datagrams_are_judged_one_by_one_and_in_order() {
        let shard = Shard::default();
        let mut state = shard.lock().expect("free");
        let id = filtered(&mut state);
        for bytes in [b"a", b"b", b"c"] {
            state.withhold(id, datagram(bytes, 0));
        }
        assert!(!state.socket(id).unwrap().0.is_readable() && state.has_withheld());
        let first = next(&mut state).expect("one waits");
        assert_eq!(&*first.payload, b"a");
        // The others wait for it.
        assert!(next(&mut state).is_none() && !state.has_withheld() && state.withholds(id));
        state.judge(id, first.datagram, false);
        let second = next(&mut state).expect("one waits");
        state.judge(id, second.datagram, true);
        let (endpoint, ()) = state.socket(id).unwrap();
        assert_eq!((endpoint.waiting(), endpoint.counters.rx_packets), ((1, 1), 1));
        // The callback goes while its last datagram is being judged.
        let third = next(&mut state).expect("one waits");
        state.withhold(id, datagram(b"d", 0));
        state.set_filter(id, false);
        assert!(state.socket(id).unwrap().0.is_filtered, "what comes would pass the third");
        state.judge(id, third.datagram, true);
        assert!(!state.socket(id).unwrap().0.is_filtered);
        assert!(!state.withholds(id) && !state.has_withheld());
        let mut order = Vec::new();
        while let Some(next) = state.pop(id) {
            order.extend(state.bytes_of(&next));
        }
        assert_eq!(order, b"bcd");
        assert_eq!(state.socket(id).unwrap().0.charged, 0);
    }

    #[test]
    fn a_train_is_judged_as_its_datagrams() {
        let shard = Shard::default();
        let mut state = shard.lock().expect("free");
        let id = filtered(&mut state);
        state.withhold(id, datagram(b"aabbc", 2));
        let mut seen = Vec::new();
        while let Some(next) = next(&mut state) {
            seen.push((next.payload.to_vec(), next.datagram.after_kernel));
            state.judge(id, next.datagram, false);
        }
        // Datagrams by the kernel come before the first of them; when that is dropped, before the next.
        assert_eq!(seen, [(b"aa".to_vec(), 3), (b"bb".to_vec(), 3), (b"c".to_vec(), 3)]);
        assert_eq!(state.socket(id).unwrap().0.marked, 3);
        assert_eq!(state.socket(id).unwrap().0.charged, 0);
    }

    #[test]
    fn a_datagram_that_is_being_judged_outlasts_the_end_of_its_filter() {
        let shard = Shard::default();
        let mut state = shard.lock().expect("free");
        let id = filtered(&mut state);
        state.withhold(id, datagram(b"a", 0));
        let judged = next(&mut state).expect("one waits");
        state.withhold(id, datagram(b"b", 0));
        // The socket becomes the kernel's: until this is over it is still looked at.
        state.end_filter(id);
        assert!(state.withholds(id) && next(&mut state).is_none());
        state.judge(id, judged.datagram, true);
        assert!(!state.withholds(id));
        let mut order = Vec::new();
        while let Some(next) = state.pop(id) {
            order.extend(state.bytes_of(&next));
        }
        assert_eq!(order, b"ab");
    }

    #[test]
    fn what_is_withheld_goes_with_its_socket() {
        let shard = Shard::default();
        let mut state = shard.lock().expect("free");
        let id = filtered(&mut state);
        state.withhold(id, datagram(b"a", 0));
        let judged = next(&mut state).expect("one waits");
        state.withhold(id, datagram(b"b", 0));
        state.detach(id);
        assert!(!state.has_withheld());
        state.judge(id, judged.datagram, true);
        assert!(next(&mut state).is_none());
    }
}
