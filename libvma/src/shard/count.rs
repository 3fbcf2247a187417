//! What sockets and rings have counted, put together from where it is counted: a socket's own
//! counters, its TCP connection, its pipe to a process of this host.

use libvma_dev::stats::{self, Counters};

use super::{RingId, SocketId, State};
use crate::device::Ring;

/// What a socket counts itself. Every socket has these, so there are no more than are needed, and
/// what cannot become large is small.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_poll_hits: u64,
    pub rx_poll_misses: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub rx_ready_packets_max: u32,
    pub rx_ready_bytes_max: u32,
    pub rx_eagain: u64,
    pub tx_eagain: u64,
    pub rx_dropped_packets: u64,
    pub rx_dropped_bytes: u64,
    pub tx_dropped: u64,
    pub rx_os_packets: u64,
    pub rx_os_bytes: u64,
    pub rx_os_poll_hits: u64,
    pub tx_os_packets: u64,
    pub tx_os_bytes: u64,
    pub rx_errors: u32,
    pub tx_errors: u32,
    pub rx_os_errors: u32,
    pub rx_os_eagain: u32,
    pub tx_os_errors: u32,
    pub tx_os_eagain: u32,
    /// Of connections that were the socket's.
    tx_retransmissions: u32,
    /// Sends that were not made (VMA_SND_FLAGS_DUMMY).
    pub tx_dummy: u32,
}

impl Counts {
    /// What the kernel has carried for the socket before it was served.
    pub fn add_kernels(&mut self, told: &Counters) {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        self.rx_os_packets += told.rx_os_packets;
        self.rx_os_bytes += told.rx_os_bytes;
        self.tx_os_packets += told.tx_os_packets;
        self.tx_os_bytes += told.tx_os_bytes;
        for (own, more) in [
            (&mut self.rx_os_errors, told.rx_os_errors),
            (&mut self.rx_os_eagain, told.rx_os_eagain),
            (&mut self.tx_os_errors, told.tx_os_errors),
            (&mut self.tx_os_eagain, told.tx_os_eagain),
        ] {
            *own = own.saturating_add(small(more));
        }
    }

    fn told(&self) -> Counters {
        Counters {
            rx_packets: self.rx_packets,
            rx_bytes: self.rx_bytes,
            rx_eagain: self.rx_eagain,
            rx_errors: self.rx_errors.into(),
            rx_poll_hits: self.rx_poll_hits,
            rx_poll_misses: self.rx_poll_misses,
            rx_ready_packets_max: self.rx_ready_packets_max.into(),
            rx_ready_bytes_max: self.rx_ready_bytes_max.into(),
            rx_dropped_packets: self.rx_dropped_packets,
            rx_dropped_bytes: self.rx_dropped_bytes,
            rx_os_packets: self.rx_os_packets,
            rx_os_bytes: self.rx_os_bytes,
            rx_os_poll_hits: self.rx_os_poll_hits,
            rx_os_errors: self.rx_os_errors.into(),
            rx_os_eagain: self.rx_os_eagain.into(),
            tx_packets: self.tx_packets,
            tx_bytes: self.tx_bytes,
            tx_errors: self.tx_errors.into(),
            tx_eagain: self.tx_eagain,
            tx_dropped: self.tx_dropped,
            tx_retransmissions: self.tx_retransmissions.into(),
            tx_os_packets: self.tx_os_packets,
            tx_os_bytes: self.tx_os_bytes,
            tx_os_errors: self.tx_os_errors.into(),
            tx_os_eagain: self.tx_os_eagain.into(),
            tx_dummy_packets: self.tx_dummy.into(),
            // Nothing of ours migrates.
            ..Counters::default()
        }
    }
}

impl<S> State<S> {
    /// Everything a socket has counted. The most that ever waited includes what waits now.
    pub fn counters_of(&mut self, id: SocketId) -> Option<Counters> {
        let carried = self.carried(id);
        let waiting = self.waiting_bytes(id);
        let mut counters = self.socket(id)?.0.counters.plus(&carried).told();
        counters.rx_ready_bytes_max = counters.rx_ready_bytes_max.max(waiting);
        Some(counters)
    }

    /// The socket counts from here on.
    pub fn zero_counters(&mut self, id: SocketId) {
        let carried = self.carried(id);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.counters = Counts::default().plus(&carried.negated());
        }
    }

    /// The connection or pipe leaves its socket, which keeps what was counted there.
    pub(super) fn keep_carried(&mut self, id: SocketId) {
        let carried = self.carried(id);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.counters = endpoint.counters.plus(&carried);
        }
    }

    /// What was counted by the socket's connection or pipe.
    fn carried(&mut self, id: SocketId) -> Carried {
        if let Some(connection) = self.connection(id) {
            let counters = connection.counters();
            return Carried {
                received: counters.segments_in,
                sent: counters.segments_out,
                retransmissions: counters.retransmissions as u32,
            };
        }
        let messages = self.pipe(id).map(|pipe| pipe.messages());
        let (received, sent) = messages.unwrap_or_default();
        Carried { received, sent, retransmissions: 0 }
    }

    fn waiting_bytes(&mut self, id: SocketId) -> u64 {
        match self.connection(id) {
            Some(connection) => u64::from(connection.queued()),
            None => self.pipe(id).map_or(0, |pipe| pipe.readable() as u64),
        }
    }

    /// What every ring has counted. Asks the kernel for what that counted.
    pub fn ring_statistics(&mut self) -> Vec<stats::Ring> {
        self.count_retransmissions();
        self.rings.iter().map(Ring::statistics).collect()
    }

    /// The frames of all rings together, for receiving and for sending.
    pub fn pool_statistics(&self) -> [stats::Pool; 2] {
        let mut all = [stats::POOL_RX, stats::POOL_TX]
            .map(|kind| stats::Pool { kind, ..stats::Pool::default() });
        for pools in self.rings.iter().map(Ring::pools) {
            for (sum, pool) in all.iter_mut().zip(pools) {
                sum.free += pool.free;
                sum.no_buffers += pool.no_buffers;
            }
        }
        all
    }

    /// The rings count from here on.
    pub fn zero_rings(&mut self) {
        self.count_retransmissions();
        self.rings.iter_mut().for_each(Ring::zero_statistics);
    }

    /// One poll took so many packets from a ring.
    #[inline]
    pub(super) fn note_drained(&mut self, ring: usize, packets: usize) {
        if let Some(ring) = self.rings.get_mut(ring) {
            let tally = ring.tally();
            tally.drained_max = tally.drained_max.max(packets as u32);
        }
    }

    /// A packet is lost that found no frame or no room.
    pub fn note_lost(&mut self, ring: RingId) {
        if let Some(ring) = self.rings.get_mut(ring.index()) {
            ring.tally().lost += 1;
        }
    }
}

/// What is counted where the packets are made, not at the socket.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    received: u64,
    sent: u64,
    retransmissions: u32,
}

impl Carried {
    /// What is added later gives zero together with this.
    fn negated(self) -> Carried {
        Carried {
            received: self.received.wrapping_neg(),
            sent: self.sent.wrapping_neg(),
            retransmissions: self.retransmissions.wrapping_neg(),
        }
    }
}

impl Counts {
    fn plus(mut self, carried: &Carried) -> Counts {
        self.rx_packets = self.rx_packets.wrapping_add(carried.received);
        self.tx_packets = self.tx_packets.wrapping_add(carried.sent);
        self.tx_retransmissions = self.tx_retransmissions.wrapping_add(carried.retransmissions);
        self
    }
}

#[cfg(test)]
mod tests;
