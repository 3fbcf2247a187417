//! What came between two snapshots of a process.
//!
//! Sockets, epoll instances and reasons are matched by what they are, for a place can have been given
//! to another meanwhile; so a ring must be the same as what was in its place. What was not there
//! before came whole.

use libvma_dev::stats::{Counters, Epoll, Multiplexer, Ring, Snapshot, Socket, Tcp};

use crate::sample::Sample;

/// The differences, in the order of the later snapshot; what is no counter is as it is now.
pub struct Delta {
    pub nanoseconds: u64,
    pub totals: Counters,
    /// One for each of the later snapshot's sockets.
    pub sockets: Vec<SocketDelta>,
    /// Places in use only.
    pub epolls: Vec<Epoll>,
    pub rings: Vec<Ring>,
    pub poll: Multiplexer,
    pub select: Multiplexer,
    /// Of each place for a reason.
    pub drops: Vec<u64>,
}

pub struct SocketDelta {
    pub counters: Counters,
    pub timeouts: u64,
    pub out_of_order: u64,
}

impl Delta {
    /// None before the second snapshot.
    pub fn of(sample: &Sample) -> Option<Delta> {
        let before = sample.before.as_ref()?;
        let (now, then) = (&sample.taken.snapshot, &before.snapshot);
        let sockets = sample.taken.sockets.iter().map(|socket| {
            let earlier = before.sockets.iter().find(|earlier| same(earlier, socket));
            socket_since(socket, earlier)
        });
        Some(Delta {
            nanoseconds: now.taken.saturating_sub(then.taken),
            totals: now.totals.since(&then.totals),
            sockets: sockets.collect(),
            epolls: epolls(now).map(|epoll| epoll_since(epoll, then)).collect(),
            rings: rings_since(now, then),
            poll: multiplexer_since(&now.poll, &then.poll),
            select: multiplexer_since(&now.select, &then.select),
            drops: drops_since(now, then),
        })
    }

    /// None if no time passed, so that there is no rate.
    pub fn seconds(&self) -> Option<f64> {
        (self.nanoseconds > 0).then_some(self.nanoseconds as f64 / 1e9)
    }
}

pub fn epolls(snapshot: &Snapshot) -> impl Iterator<Item = &Epoll> {
    snapshot.epolls.iter().filter(|epoll| epoll.used == 1)
}

pub fn rings(snapshot: &Snapshot) -> impl Iterator<Item = &Ring> {
    snapshot.rings.iter().filter(|ring| ring.kind != 0)
}

fn same(one: &Socket, other: &Socket) -> bool {
    let key = |socket: &Socket| (socket.descriptor, socket.inode, socket.kind);
    key(one) == key(other)
}

fn socket_since(socket: &Socket, earlier: Option<&Socket>) -> SocketDelta {
    let (counters, tcp) =
        earlier.map_or((Counters::default(), Tcp::default()), |e| (e.counters, e.tcp));
    SocketDelta {
        counters: socket.counters.since(&counters),
        timeouts: socket.tcp.timeouts.saturating_sub(tcp.timeouts),
        out_of_order: socket.tcp.out_of_order.saturating_sub(tcp.out_of_order),
    }
}

fn epoll_since(epoll: &Epoll, then: &Snapshot) -> Epoll {
    let earlier = epolls(then).find(|earlier| earlier.descriptor == epoll.descriptor);
    let calls = earlier.map(|earlier| earlier.calls).unwrap_or_default();
    Epoll { calls: multiplexer_since(&epoll.calls, &calls), ..*epoll }
}

fn multiplexer_since(now: &Multiplexer, then: &Multiplexer) -> Multiplexer {
    Multiplexer {
        poll_hits: now.poll_hits.saturating_sub(then.poll_hits),
        poll_misses: now.poll_misses.saturating_sub(then.poll_misses),
        timeouts: now.timeouts.saturating_sub(then.timeouts),
        errors: now.errors.saturating_sub(then.errors),
        ready: now.ready.saturating_sub(then.ready),
        ready_os: now.ready_os.saturating_sub(then.ready_os),
        thread: now.thread,
        polling_cpu: now.polling_cpu,
    }
}

fn rings_since(now: &Snapshot, then: &Snapshot) -> Vec<Ring> {
    let places = now.rings.iter().zip(&then.rings);
    places.filter(|(ring, _)| ring.kind != 0).map(|(ring, then)| ring_since(ring, then)).collect()
}

/// `earlier` is what was in its place.
fn ring_since(ring: &Ring, earlier: &Ring) -> Ring {
    let key = |ring: &Ring| (ring.kind, ring.interface, ring.name);
    let earlier = if key(ring) == key(earlier) { *earlier } else { Ring::default() };
    let since = |now: u64, then: u64| now.saturating_sub(then);
    Ring {
        rx_packets: since(ring.rx_packets, earlier.rx_packets),
        rx_bytes: since(ring.rx_bytes, earlier.rx_bytes),
        tx_packets: since(ring.tx_packets, earlier.tx_packets),
        tx_bytes: since(ring.tx_bytes, earlier.tx_bytes),
        rx_dropped: since(ring.rx_dropped, earlier.rx_dropped),
        tx_dropped: since(ring.tx_dropped, earlier.tx_dropped),
        retransmissions: since(ring.retransmissions, earlier.retransmissions),
        interrupts_requested: since(ring.interrupts_requested, earlier.interrupts_requested),
        interrupts_received: since(ring.interrupts_received, earlier.interrupts_received),
        kicks: since(ring.kicks, earlier.kicks),
        rx_messages: since(ring.rx_messages, earlier.rx_messages),
        tx_messages: since(ring.tx_messages, earlier.tx_messages),
        device_memory_bytes: since(ring.device_memory_bytes, earlier.device_memory_bytes),
        device_memory_packets: since(ring.device_memory_packets, earlier.device_memory_packets),
        device_memory_full: since(ring.device_memory_full, earlier.device_memory_full),
        ..*ring
    }
}

fn drops_since(now: &Snapshot, then: &Snapshot) -> Vec<u64> {
    let earlier = |reason: &[u8]| {
        let drop = then.drops.iter().find(|drop| drop.reason == reason);
        drop.map_or(0, |drop| drop.count)
    };
    now.drops.iter().map(|drop| drop.count.saturating_sub(earlier(&drop.reason))).collect()
}
