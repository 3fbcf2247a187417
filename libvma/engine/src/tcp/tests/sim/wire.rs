//! One direction of a simulated path: what a packet meets on its way.

use core::time::Duration;
use std::collections::BinaryHeap;

use super::Rng;
use crate::time::Instant;

/// The ECN field of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    NotCapable,
    Capable,
    CongestionExperienced,
}

/// A packet: the TCP segment in it, and what the IP header would say.
#[derive(Clone, Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub ecn: Ecn,
}

impl Packet {
    /// The length of the IP packet.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 + 20
    }
}

/// What a path does to packets. Probabilities are per million.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    pub delay: Duration,
    /// Added to the delay, at random, without changing the order.
    pub jitter: Duration,
    pub loss: u32,
    pub duplication: u32,
    /// So many packets are late by up to `lateness`, and overtaken.
    pub late: u32,
    pub lateness: Duration,
    /// One bit is wrong, and the checksum says so.
    pub corruption: u32,
    /// One bit of the header is wrong, and the checksum fits.
    pub forgery: u32,
    /// Bits per second; 0 is no limit.
    pub rate: u64,
    /// Bytes that wait for the rate; more are dropped.
    pub queue: u64,
    /// With more bytes than this in the queue, packets that are capable of it are marked.
    pub mark_beyond: u64,
    /// The largest packet.
    pub mtu: u32,
    /// The sender is told (ICMP) of packets that are too large.
    pub tells: bool,
}

impl Conditions {
    /// Nothing bad happens.
    pub fn perfect(delay: Duration) -> Conditions {
        Conditions {
            delay,
            jitter: Duration::ZERO,
            loss: 0,
            duplication: 0,
            late: 0,
            lateness: Duration::ZERO,
            corruption: 0,
            forgery: 0,
            rate: 0,
            queue: u64::MAX,
            mark_beyond: u64::MAX,
            mtu: 65_535,
            tells: true,
        }
    }
}

#[derive(Debug)]
struct Travelling {
    arrival: Instant,
    /// Decides between packets that arrive at one instant, and between none else.
    order: u64,
    packet: Packet,
}

impl PartialEq for Travelling {
    fn eq(&self, other: &Travelling) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Travelling {}

impl PartialOrd for Travelling {
    fn partial_cmp(&self, other: &Travelling) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Travelling {
    fn cmp(&self, other: &Travelling) -> core::cmp::Ordering {
        (other.arrival, other.order).cmp(&(self.arrival, self.order))
    }
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    pub sent: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub late: u64,
    pub damaged: u64,
    pub overflowed: u64,
    pub marked: u64,
    pub too_big: u64,
}

/// One direction.
#[derive(Debug)]
pub struct Wire {
    pub conditions: Conditions,
    pub fate: Fate,
    rng: Rng,
    travelling: BinaryHeap<Travelling>,
    /// When the last bit of what was sent has left.
    busy_until: Instant,
    last_arrival: Instant,
    order: u64,
}

impl Wire {
    pub fn new(conditions: Conditions, rng: Rng) -> Wire {
        Wire {
            conditions,
            fate: Fate::default(),
            rng,
            travelling: BinaryHeap::new(),
            busy_until: Instant::default(),
            last_arrival: Instant::default(),
            order: 0,
        }
    }

    /// A packet leaves. Some: it is too large, and the sender is to be told so.
    pub fn send(&mut self, now: Instant, mut packet: Packet) -> Option<Packet> {
        let conditions = self.conditions;
        self.fate.sent += 1;
        if packet.len() > u64::from(conditions.mtu) {
            self.fate.too_big += 1;
            return conditions.tells.then_some(packet);
        }
        let start = self.busy_until.max(now);
        let left = if conditions.rate == 0 {
            now
        } else {
            let waits = start.saturating_duration_since(now).as_nanos();
            let queued = (waits * u128::from(conditions.rate) / 8_000_000_000) as u64;
            if queued + packet.len() > conditions.queue {
                self.fate.overflowed += 1;
                return None;
            }
            if queued > conditions.mark_beyond && packet.ecn == Ecn::Capable {
                self.fate.marked += 1;
                packet.ecn = Ecn::CongestionExperienced;
            }
            let nanos = packet.len() * 8_000_000_000 / conditions.rate;
            self.busy_until = start.saturating_add(Duration::from_nanos(nanos));
            self.busy_until
        };
        if self.rng.chance(conditions.loss) {
            self.fate.lost += 1;
            return None;
        }
        if self.rng.chance(conditions.corruption) {
            self.fate.damaged += 1;
            self.flip_any_bit(&mut packet);
        }
        if self.rng.chance(conditions.forgery) {
            self.fate.damaged += 1;
            self.forge(&mut packet);
        }
        let jitter = self.rng.below(conditions.jitter.as_nanos() as u64 + 1);
        let mut arrival =
            left.saturating_add(conditions.delay).saturating_add(Duration::from_nanos(jitter));
        arrival = arrival.max(self.last_arrival);
        if self.rng.chance(conditions.duplication) {
            self.fate.duplicated += 1;
            let lag = self.rng.below(2 * conditions.delay.as_nanos() as u64 + 1);
            self.put(arrival.saturating_add(Duration::from_nanos(lag)), packet.clone());
        }
        if self.rng.chance(conditions.late) {
            self.fate.late += 1;
            let lag = self.rng.below(conditions.lateness.as_nanos() as u64 + 1);
            self.put(arrival.saturating_add(Duration::from_nanos(lag)), packet);
            return None;
        }
        self.last_arrival = arrival;
        self.put(arrival, packet);
        None
    }

    fn put(&mut self, arrival: Instant, packet: Packet) {
        self.order += 1;
        self.travelling.push(Travelling { arrival, order: self.order, packet });
    }

    /// When the next packet arrives.
    pub fn next(&self) -> Option<Instant> {
        self.travelling.peek().map(|travelling| travelling.arrival)
    }

    /// A packet that has arrived by now.
    pub fn receive(&mut self, now: Instant) -> Option<Packet> {
        if self.next()? > now {
            return None;
        }
        self.travelling.pop().map(|travelling| travelling.packet)
    }

    pub fn is_empty(&self) -> bool {
        self.travelling.is_empty()
    }

    fn flip_any_bit(&mut self, packet: &mut Packet) {
        let bit = self.rng.below(packet.bytes.len() as u64 * 8) as usize;
        packet.bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Flips a bit of what follows the ports and mends the checksum.
    fn forge(&mut self, packet: &mut Packet) {
        // Corruption may have been there before.
        let header = usize::from(packet.bytes[12] >> 4) * 4;
        let header = header.clamp(20, packet.bytes.len());
        let at = 4 + self.rng.below(header as u64 - 4) as usize;
        // The checksum itself, and the data offset, which would be no header any more.
        if matches!(at, 12 | 16 | 17) {
            return;
        }
        let sum = |bytes: &[u8]| {
            let words = bytes
                .chunks(2)
                .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
            words.sum::<u32>()
        };
        let before = sum(&packet.bytes);
        packet.bytes[at] ^= 1 << self.rng.below(8);
        let after = sum(&packet.bytes);
        // RFC 1624: the complement of the checksum moves as the sum does.
        let checksum = u32::from(packet.bytes[16]) << 8 | u32::from(packet.bytes[17]);
        let mut mended = i64::from(!(checksum as u16)) + i64::from(after) - i64::from(before);
        mended = mended.rem_euclid(0xffff);
        let [high, low] = (!(mended as u16)).to_be_bytes();
        packet.bytes[16] = high;
        packet.bytes[17] = low;
    }
}
