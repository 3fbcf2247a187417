//! What a shared-memory ring has counted: the sums over its links, those that are gone included.

use libvma_dev::stats;

use super::{Counters, Ring};
use crate::device::Tally;

impl Counters {
    pub(super) fn add(&mut self, other: &Counters) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.messages_in += other.messages_in;
        self.messages_out += other.messages_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.full += other.full;
        self.bells += other.bells;
    }
}

impl Ring {
    /// Bytes are those of packets, with headers, and of messages' payload.
    pub fn statistics(&self) -> stats::Ring {
        let sum = self.sum();
        stats::Ring {
            kind: stats::RING_SHM,
            interface: self.interface.index,
            name: stats::text(&self.interface.name),
            rx_packets: sum.packets_in,
            rx_bytes: sum.bytes_in,
            tx_packets: sum.packets_out,
            tx_bytes: sum.bytes_out,
            tx_dropped: self.tally.lost,
            interrupts_requested: self.tally.sleeps,
            interrupts_received: self.tally.wakes,
            kicks: sum.bells,
            rx_messages: sum.messages_in,
            tx_messages: sum.messages_out,
            drained_max: self.tally.drained_max,
            buffers: self.heads.free(),
            links: self.open.len() as u32,
            ..stats::Ring::default()
        }
    }

    /// Records that may still be held, and how often something found no room in a link. What can be
    /// sent is in no pool of ours: it is the peer's to give back.
    pub fn pools(&self) -> [stats::Pool; 2] {
        [
            stats::Pool { kind: stats::POOL_RX, free: self.heads.free(), no_buffers: 0 },
            stats::Pool { kind: stats::POOL_TX, free: 0, no_buffers: self.sum().full },
        ]
    }

    /// Counts from here on.
    pub fn zero_statistics(&mut self) {
        self.tally = Tally::default();
        self.ended = Counters::default();
        for link in self.places.iter_mut().filter_map(|place| place.link.as_deref_mut()) {
            link.counters = Counters::default();
        }
    }

    pub fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn sum(&self) -> Counters {
        let mut sum = self.ended;
        for link in self.places.iter().filter_map(|place| place.link.as_deref()) {
            sum.add(&link.counters);
        }
        sum
    }
}
