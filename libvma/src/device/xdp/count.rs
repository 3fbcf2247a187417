//! What a ring of the XDP device has counted, together with what the kernel has.

use libvma_dev::stats;

use super::inlet::Inlet;
use super::outlet::Outlet;
use super::{Queue, Ring};
use crate::device::Tally;

#[derive(Default)]
pub(super) struct Traffic {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    /// Times that no frame was free to receive into, or to send.
    pub rx_none: u64,
    pub tx_none: u64,
    /// `rx_packets` when somebody slept on the ring; None after that was judged.
    asleep: Option<u64>,
    /// The kernel's count of lost packets from which ours starts.
    lost_before: u64,
}

impl Ring {
    /// Bytes are those of whole frames; a super-frame is one packet.
    pub fn statistics(&self) -> stats::Ring {
        let (traffic, tally) = (&self.traffic, &self.tally);
        stats::Ring {
            kind: stats::RING_XDP,
            interface: self.interface.index,
            name: stats::text(&self.interface.name),
            rx_packets: traffic.rx_packets,
            rx_bytes: traffic.rx_bytes,
            tx_packets: traffic.tx_packets,
            tx_bytes: traffic.tx_bytes,
            rx_dropped: self.lost_by_kernel().saturating_sub(traffic.lost_before),
            tx_dropped: tally.lost + self.lost_by_link(),
            retransmissions: tally.retransmissions,
            interrupts_requested: tally.sleeps,
            interrupts_received: tally.wakes + u64::from(self.was_woken()),
            kicks: self.queues.iter().map(|queue| queue.kicks).sum(),
            drained_max: tally.drained_max,
            queued: self.queues.iter().map(|queue| queue.inlet.waiting()).sum(),
            buffers: self.queues.iter().map(|queue| queue.posted).sum(),
            ..stats::Ring::default()
        }
    }

    pub fn pools(&self) -> [stats::Pool; 2] {
        let pool =
            |kind, free: usize, no_buffers| stats::Pool { kind, free: free as u32, no_buffers };
        [
            pool(stats::POOL_RX, self.rx.available(), self.traffic.rx_none),
            pool(stats::POOL_TX, self.tx.available(), self.traffic.tx_none),
        ]
    }

    /// Counts from here on.
    pub fn zero_statistics(&mut self) {
        self.tally = Tally::default();
        self.traffic = Traffic { lost_before: self.lost_by_kernel(), ..Traffic::default() };
        for queue in &mut self.queues {
            queue.kicks = 0;
            if let Outlet::Packets(packets) = &mut queue.outlet {
                packets.lost = 0;
            }
        }
    }

    pub fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// Somebody is about to sleep on the ring.
    pub(super) fn note_sleep(&mut self) {
        self.tally.wakes += u64::from(self.was_woken());
        self.tally.sleeps += 1;
        self.traffic.asleep = Some(self.traffic.rx_packets);
    }

    /// A packet ends the sleep of everybody who sleeps on the ring.
    fn was_woken(&self) -> bool {
        self.traffic.asleep.is_some_and(|before| self.traffic.rx_packets > before)
    }

    /// Frames that a packet socket's link has not taken.
    fn lost_by_link(&self) -> u64 {
        let lost = |queue: &Queue| match &queue.outlet {
            Outlet::Packets(packets) => packets.lost,
            Outlet::Rings { .. } => 0,
        };
        self.queues.iter().map(lost).sum()
    }

    /// Packets that the kernel had for the ring, and found no frame for, or no room. (A fill ring
    /// that was empty is the reason of the former, not more of them.)
    fn lost_by_kernel(&self) -> u64 {
        let lost = self.queues.iter().map(|queue| {
            if let Inlet::Ingress(ingress) = &queue.inlet {
                return ingress.lost();
            }
            let told = rustix::net::sockopt::xdp_statistics(&queue.socket);
            told.map_or(0, |told| told.rx_dropped + told.rx_ring_full.unwrap_or(0))
        });
        lost.sum()
    }
}

#[cfg(test)]
mod tests;
