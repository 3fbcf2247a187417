//! Two shards of one process, with a link between them.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_engine::udp::lookup::Filter;

use super::*;
use crate::shard::datagram::charge;
use crate::shard::{Egress, LinkId, Segment, SendError, Shard, Side};
use crate::sys::Fd;

const PORT: u16 = 5000;
const ENOUGH: usize = 1 << 20;

struct Pair {
    sender: Shard<()>,
    receiver: Shard<()>,
    link: LinkId,
    id: SocketId,
}

/// A second descriptor of the same file.
fn duplicate(fd: rustix::fd::BorrowedFd<'_>) -> Fd {
    Fd::adopt(rustix::io::dup(fd).unwrap()).unwrap()
}

/// `limit` is the receiving socket's buffer.
fn pair(limit: usize) -> Pair {
    let (sender, receiver) = (Shard::default(), Shard::default());
    sender.open_local_ring().unwrap();
    receiver.open_local_ring().unwrap();
    let made = Segment::create().unwrap();
    let taken = Segment::take(duplicate(made.fd())).unwrap();
    let (here, there) = (duplicate(made.bell()), duplicate(taken.bell()));
    let link = sender.lock().unwrap().local_ring().unwrap().link(made, Side::Maker, there);
    receiver.lock().unwrap().local_ring().unwrap().link(taken, Side::Taker, here).unwrap();
    let mut state = receiver.lock().unwrap();
    let id = state.attach((), limit);
    let filter = Filter {
        local: Ipv4Addr::LOCALHOST,
        port: PORT,
        peer: None,
        device: None,
        reuse_port: false,
        member: 0,
        multicast_all: false,
        ipv6_multicast_all: false,
        is_ipv6: false,
        ipv6_only: false,
        ipv4_only: true,
        memberships: Vec::new(),
    };
    state.bind(id, filter);
    drop(state);
    Pair { sender, receiver, link: link.unwrap(), id }
}

impl Pair {
    fn send(&self, len: usize) -> Result<(), SendError> {
        self.send_cut(len, 0)
    }

    fn send_cut(&self, len: usize, segment: u16) -> Result<(), SendError> {
        let mut state = self.sender.lock().unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT);
        let hop = state.hop_by(self.link, 1, to).unwrap();
        let bytes = vec![0; len];
        let egress = Egress {
            hop: &hop,
            source: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40_000),
            destination: to,
            ttl: 64,
            tos: 0,
            dont_fragment: false,
            never_fragment: false,
            checksum: true,
            loop_back: false,
            after_kernel: 0,
            payload: &[IoSlice::new(&bytes)],
            skip: 0,
            len,
        };
        let result = match segment {
            0 => state.send(&egress),
            _ => state.send_train(&egress, segment, &mut 0),
        };
        state.kick(hop.ring);
        result
    }

    fn received(&self) -> Counters {
        self.receiver.lock().unwrap().counters_of(self.id).unwrap()
    }

    /// Takes a datagram; how many were lost before it.
    fn take(&self) -> u32 {
        let mut state = self.receiver.lock().unwrap();
        let datagram = state.pop(self.id).unwrap();
        let mut room = [0; 2048];
        state.copy_out(&datagram, &mut [IoSliceMut::new(&mut room)]);
        let lost = datagram.drops_before;
        state.release(datagram);
        lost
    }
}

/// Takes what a receive call would: its bytes, and how many were lost before it.
fn take_next(pair: &Pair) -> Option<(u32, u32)> {
    let mut state = pair.receiver.lock().unwrap();
    let mut datagram = state.pop(pair.id)?;
    let rest = datagram.uncouple();
    let got = (datagram.len, datagram.drops_before);
    match rest {
        None => state.release(datagram),
        Some(rest) => {
            datagram.move_up(rest);
            state.put_back(pair.id, datagram);
        }
    }
    Some(got)
}

#[test]
fn a_train_takes_the_room_of_its_datagrams() {
    let pair = pair(3 * charge(1000));
    pair.send_cut(4500, 1000).unwrap();
    pair.send(1000).unwrap();
    pair.receiver.lock().unwrap().poll();
    let received = pair.received();
    assert_eq!((received.rx_dropped_packets, received.rx_dropped_bytes), (3, 2500));
    assert_eq!((0..4).map(|_| take_next(&pair)).collect::<Vec<_>>(), {
        // The losses before the train was queued: none.
        let one = Some((1000, 0));
        [one, one, one, None]
    });
    // The one that found no room counts, too; one fits always.
    pair.send_cut(900, 400).unwrap();
    pair.receiver.lock().unwrap().poll();
    let got: Vec<_> = core::iter::from_fn(|| take_next(&pair)).collect();
    assert_eq!(got, [(400, 3), (400, 3), (100, 3)]);
    assert_eq!(pair.receiver.lock().unwrap().socket(pair.id).unwrap().0.waiting(), (0, 0));
}

#[test]
fn the_short_end_of_a_train_needs_less_room() {
    let pair = pair(2 * charge(1000) + charge(100));
    pair.send_cut(2100, 1000).unwrap();
    pair.receiver.lock().unwrap().poll();
    let got: Vec<_> = core::iter::from_fn(|| take_next(&pair)).collect();
    assert_eq!(got, [(1000, 0), (1000, 0), (100, 0)]);
}

#[test]
fn a_train_that_is_taken_whole_is_one_message() {
    let pair = pair(charge(4500));
    pair.receiver.lock().unwrap().socket(pair.id).unwrap().0.takes_trains = true;
    pair.send_cut(4500, 1000).unwrap();
    pair.send_cut(900, 400).unwrap();
    pair.receiver.lock().unwrap().poll();
    assert_eq!(take_next(&pair), Some((4500, 0)));
    assert_eq!(take_next(&pair), None);
    let received = pair.received();
    assert_eq!((received.rx_dropped_packets, received.rx_dropped_bytes), (3, 900));
    pair.send_cut(900, 400).unwrap();
    pair.receiver.lock().unwrap().poll();
    assert_eq!(take_next(&pair), Some((900, 1)));
}

fn ring(shard: &Shard<()>) -> stats::Ring {
    *shard.lock().unwrap().ring_statistics().first().unwrap()
}

// covers: STAT-36, STAT-38
#[test]
fn a_ring_counts_what_goes_over_its_links() {
    const HEADERS: u64 = 14 + 20 + 8;
    let pair = pair(ENOUGH);
    // Twice asleep, woken once.
    pair.receiver.lock().unwrap().sleep_on_rings(|_| {});
    for len in [1, 100, 1000] {
        pair.send(len).unwrap();
    }
    pair.receiver.lock().unwrap().sleep_on_rings(|_| {});
    assert_eq!(pair.receiver.lock().unwrap().poll(), 3);
    let (sent, received) = (ring(&pair.sender), ring(&pair.receiver));
    assert_eq!((sent.tx_packets, sent.tx_bytes), (3, 1101 + 3 * HEADERS));
    assert_eq!((received.rx_packets, received.rx_bytes), (3, 1101 + 3 * HEADERS));
    assert_eq!((sent.rx_packets, received.tx_packets), (0, 0));
    assert_eq!((sent.kicks, received.kicks), (1, 0));
    assert_eq!((received.interrupts_requested, received.interrupts_received), (2, 1));
    assert_eq!((received.drained_max, sent.drained_max), (3, 0));
    assert_eq!((received.kind, received.links), (stats::RING_SHM, 1));
    assert_eq!(stats::read_text(&received.name), "lo");
    // The three datagrams are held.
    let free = pair.receiver.lock().unwrap().pool_statistics()[0].free;
    assert_eq!(received.buffers, free);
    (0..3).for_each(|_| assert_eq!(pair.take(), 0));
    assert_eq!(pair.receiver.lock().unwrap().pool_statistics()[0].free, free + 3);

    // What an ended link has carried stays counted.
    pair.sender.lock().unwrap().link_gone(pair.link);
    let after = ring(&pair.sender);
    assert_eq!((after.tx_packets, after.tx_bytes, after.links), (3, sent.tx_bytes, 0));
    pair.sender.lock().unwrap().zero_rings();
    let zero = ring(&pair.sender);
    assert_eq!((zero.tx_packets, zero.tx_bytes, zero.kicks), (0, 0, 0));
}

// covers: STAT-36
#[test]
fn a_full_link_and_what_is_lost_there_are_counted() {
    let pair = pair(ENOUGH);
    let mut sent = 0;
    while pair.send(64) == Ok(()) {
        sent += 1;
    }
    let mut state = pair.sender.lock().unwrap();
    let [_, pool] = state.pool_statistics();
    assert_eq!((pool.kind, pool.no_buffers), (stats::POOL_TX, 1));
    let own = state.local_ring_id().unwrap();
    state.note_lost(own);
    let told = state.ring_statistics()[0];
    assert_eq!((told.tx_packets, told.tx_dropped), (sent, 1));
}

// covers: STAT-25, STAT-38
#[test]
fn a_full_buffer_drops_and_counts_packets_and_bytes() {
    // Room for some, not for all.
    let pair = pair(4096);
    (0..20).for_each(|_| pair.send(500).unwrap());
    assert_eq!(pair.receiver.lock().unwrap().poll(), 20);
    let counters = pair.received();
    let queued = counters.rx_ready_packets_max;
    assert!((1..20).contains(&queued), "{queued} queued");
    assert_eq!(counters.rx_ready_bytes_max, queued * 500);
    assert_eq!(counters.rx_dropped_packets, 20 - queued);
    assert_eq!(counters.rx_dropped_bytes, (20 - queued) * 500);

    // SO_RXQ_OVFL goes on counting when the counters are set to zero.
    pair.receiver.lock().unwrap().zero_counters(pair.id);
    assert_eq!(pair.received(), Counters::default());
    (0..queued).for_each(|_| assert_eq!(pair.take(), 0));
    pair.send(500).unwrap();
    pair.receiver.lock().unwrap().poll();
    assert_eq!(u64::from(pair.take()), 20 - queued);
    assert_eq!(pair.received().rx_dropped_packets, 0);
    assert_eq!(pair.received().rx_ready_bytes_max, 500);
}

// covers: STAT-26
#[test]
fn what_a_connection_carried_counts_from_the_last_zeroing() {
    let before = Carried { received: 5, sent: 7, retransmissions: 1 };
    let now = Carried { received: 8, sent: 7, retransmissions: 3 };
    let zeroed = Counts::default().plus(&before.negated());
    let told = zeroed.plus(&now).told();
    assert_eq!((told.rx_packets, told.tx_packets, told.tx_retransmissions), (3, 0, 2));
    // The next connection of the socket begins at nothing, and adds to what the last one left.
    let told = zeroed.plus(&now).plus(&before).told();
    assert_eq!((told.rx_packets, told.tx_packets, told.tx_retransmissions), (8, 7, 3));
}
