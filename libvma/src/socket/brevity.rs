//! Destinations whose sockets end after a request or two: connections within the host, for which
//! agreeing upon a pipe costs more than they have to gain from it, and UDP sockets that live for one question
//! (resolvers open one for each), for which the flows do. They are the kernel's alone, as long as this goes on.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::{Shard, Socket, State};
use crate::shard::SocketId;
use crate::sys::lock::Lock;

/// A UDP socket of so few datagrams was a short one.
const FEW_DATAGRAMS: u64 = 8;

/// The key of UDP sockets that were bound to any port.
pub const AUTOMATIC: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// The key of a UDP socket that ends, and whether it was short. None: it was not one of those
/// that may be, or has not been served.
pub fn was_short(state: &mut Shard, id: SocketId) -> Option<(SocketAddrV4, bool)> {
    let (endpoint, socket) = state.socket(id)?;
    let key = socket.brevity_key().filter(|_| socket.state == State::Offloaded)?;
    let counts = &endpoint.counters;
    let served = counts.rx_packets.saturating_add(counts.tx_packets);
    let by_kernel = counts.rx_os_packets.saturating_add(counts.tx_os_packets);
    Some((key, served.saturating_add(by_kernel) <= FEW_DATAGRAMS))
}

impl Socket {
    /// The key under which UDP sockets like it are remembered, if it may be one of many that live for one question.
    pub fn brevity_key(&self) -> Option<SocketAddrV4> {
        self.datagrams.as_ref()?.brevity_key
    }

    /// The first destination of a UDP socket that was not bound is its key.
    pub fn note_first_destination(&mut self, destination: SocketAddrV4) {
        if self.state == State::Undecided && !self.named && self.options.memberships.is_empty() {
            let datagrams = self.datagrams.get_or_insert_default();
            datagrams.brevity_key.get_or_insert(destination);
        }
    }
}

/// A judgement of the last sockets of this process for each destination.
pub struct Brevity {
    records: Lock<Vec<Record>>,
    /// So much time between the ends of two short ones, in nanoseconds, and the row begins anew.
    pause: u64,
    /// The longest time between two samples, in nanoseconds.
    rarest_nanos: u64,
}

struct Record {
    destination: SocketAddrV4,
    /// How many short ones in a row there were.
    row: u32,
    /// When the last one ended.
    last: u64,
    /// When one was last served nevertheless.
    tried: u64,
    /// How long after that the next one is.
    sample_nanos: u64,
}

/// So many are needed for a judgement.
const ENOUGH: u32 = 32;
/// How long that holds, unless others end and say the same.
const HOLDS_NANOS: u64 = 200_000_000;
/// Time between sockets that are served nevertheless, to see whether they are short still.
const SAMPLE_NANOS: u64 = 5_000_000;
/// The same for connections that have been short for long. Each sample costs as much as several short connections by the kernel.
/// A judgement holds for longer than that, so samples alone keep it alive.
const RARE_SAMPLE_NANOS: u64 = 80_000_000;
const MOST: usize = 64;

impl Brevity {
    /// Of connections within the host.
    pub const fn of_streams() -> Brevity {
        Brevity { records: Lock::new(Vec::new()), pause: u64::MAX, rarest_nanos: RARE_SAMPLE_NANOS }
    }

    /// Of UDP sockets. A few hundred a second cost little to be served, so a row is only what comes quickly.
    pub const fn of_datagrams() -> Brevity {
        Brevity { records: Lock::new(Vec::new()), pause: 10_000_000, rarest_nanos: SAMPLE_NANOS }
    }

    /// Is a new socket to be the kernel's?
    pub fn expects(&self, destination: SocketAddrV4, now: u64) -> bool {
        let Ok(mut records) = self.records.lock() else { return false };
        let record = records.iter_mut().find(|record| record.destination == destination);
        let Some(record) = record.filter(|record| record.row >= ENOUGH) else { return false };
        if now.saturating_sub(record.last) > HOLDS_NANOS.min(self.pause) {
            return false;
        }
        let samples = now.saturating_sub(record.tried) >= record.sample_nanos;
        if samples {
            record.tried = now;
            record.sample_nanos = (record.sample_nanos * 2).min(self.rarest_nanos);
        }
        !samples
    }

    /// A connection that had a pipe, or the offer of one, or a socket that was served, has ended.
    pub fn note(&self, destination: SocketAddrV4, was_short: bool, now: u64) {
        let Ok(mut records) = self.records.lock() else { return };
        let known = records.iter().position(|record| record.destination == destination);
        if let Some(record) = known.and_then(|at| records.get_mut(at)) {
            let goes_on = was_short && now.saturating_sub(record.last) <= self.pause;
            record.row = if goes_on { record.row.saturating_add(1) } else { u32::from(was_short) };
            if !goes_on {
                record.sample_nanos = SAMPLE_NANOS;
            }
            record.last = now;
            return;
        }
        if records.len() >= MOST
            && let Some(oldest) =
                (0..records.len()).min_by_key(|at| records.get(*at).map(|one| one.last))
        {
            records.swap_remove(oldest);
        }
        let row = u32::from(was_short);
        records.push(Record { destination, row, last: now, tried: 0, sample_nanos: SAMPLE_NANOS });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const THERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);

    // covers: API-05
    #[test]
    fn short_connections_are_the_kernels_while_they_go_on() {
        let brevity = Brevity::of_streams();
        let other = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 81);
        for now in 0..u64::from(ENOUGH) {
            assert!(!brevity.expects(THERE, now));
            brevity.note(THERE, true, now);
        }
        let now = SAMPLE_NANOS + 100;
        // One for a look, the others are the kernel's.
        assert!(!brevity.expects(THERE, now));
        assert!(brevity.expects(THERE, now + 1) && brevity.expects(THERE, now + 2));
        assert!(!brevity.expects(other, now + 3));
        assert!(!brevity.expects(THERE, now + 2 * SAMPLE_NANOS));
        // The judgement is too old.
        assert!(!brevity.expects(THERE, now + 2 * HOLDS_NANOS));
        // One that is not short is the end of it.
        brevity.note(THERE, true, now);
        assert!(brevity.expects(THERE, now + 2 * SAMPLE_NANOS + 1));
        brevity.note(THERE, false, now);
        assert!(!brevity.expects(THERE, now + 2 * SAMPLE_NANOS + 2));
    }

    #[test]
    fn samples_of_connections_that_stay_short_become_rare_until_one_is_long() {
        let brevity = Brevity::of_streams();
        let samples_in = |from: u64, nanos: u64, are_short: bool| {
            let step = 100_000;
            let times = (from..from + nanos).step_by(step);
            let sampled = times.filter(|now| {
                let sampled = !brevity.expects(THERE, *now);
                if sampled {
                    brevity.note(THERE, are_short, *now);
                }
                sampled
            });
            sampled.count()
        };
        (0..ENOUGH).for_each(|_| brevity.note(THERE, true, 0));
        let second = 1_000_000_000;
        let first = samples_in(0, second, true);
        let later = samples_in(second, second, true);
        assert!((12..=16).contains(&first), "{first}");
        assert!((12..=13).contains(&later), "{later}");
        brevity.note(THERE, false, 2 * second);
        (0..ENOUGH).for_each(|_| brevity.note(THERE, true, 2 * second));
        assert!(samples_in(2 * second, 16 * SAMPLE_NANOS, true) >= 3);
    }

    #[test]
    fn udp_sockets_are_a_row_only_in_quick_succession() {
        let brevity = Brevity::of_datagrams();
        let quick = 1_000_000;
        let mut now = 0;
        let mut note = |pause: u64, times: u32| {
            for _ in 0..times {
                now += pause;
                brevity.note(THERE, true, now);
            }
            now + 1
        };
        let slow = note(20_000_000, 2 * ENOUGH);
        assert!(!brevity.expects(THERE, slow));
        note(quick, ENOUGH);
        let later = note(2 * SAMPLE_NANOS, 1);
        brevity.expects(THERE, later);
        assert!(brevity.expects(THERE, later + 1));
        let after_a_pause = note(20_000_000, 1);
        assert!(!brevity.expects(THERE, after_a_pause + SAMPLE_NANOS));
    }

    #[test]
    fn the_destination_that_was_not_used_for_longest_is_forgotten() {
        let brevity = Brevity::of_streams();
        for port in 0..MOST as u16 + 1 {
            brevity.note(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), true, u64::from(port));
        }
        let records = brevity.records.lock().unwrap();
        assert_eq!(records.len(), MOST);
        assert!(records.iter().all(|record| record.destination.port() != 0));
    }

    /// A socket that was bound, or that joined a group, is there for more than one question.
    #[test]
    fn the_first_destination_of_an_unnamed_socket_is_its_key() {
        use crate::socket::fixture::Udp;
        let key = |named: bool, state: State, joined: bool| {
            let udp = Udp::new();
            udp.with(|_, socket| {
                (socket.named, socket.state) = (named, state);
                if joined {
                    socket.options.memberships.push(libvma_engine::udp::lookup::Membership {
                        group: Ipv4Addr::new(239, 1, 1, 1),
                        interface: 1,
                        mode: libvma_engine::udp::lookup::SourceMode::Exclude,
                        sources: Vec::new(),
                    });
                }
                socket.note_first_destination(THERE);
                socket.note_first_destination(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 81));
                socket.brevity_key()
            })
        };
        assert_eq!(key(false, State::Undecided, false), Some(THERE));
        assert_eq!(key(true, State::Undecided, false), None);
        assert_eq!(key(false, State::Offloaded, false), None);
        assert_eq!(key(false, State::Undecided, true), None);
    }

    #[test]
    fn a_socket_of_few_datagrams_was_short_whoever_carried_them() {
        use crate::socket::fixture::Udp;
        let short = |served: u64, by_kernel: u64, state: State| {
            let udp = Udp::new();
            udp.with(|endpoint, socket| {
                socket.note_first_destination(THERE);
                socket.state = state;
                let counters = &mut endpoint.counters;
                (counters.rx_packets, counters.tx_os_packets) = (served, by_kernel);
            });
            was_short(&mut udp.stack.shard.lock().unwrap(), udp.id)
        };
        assert_eq!(short(4, 4, State::Offloaded), Some((THERE, true)));
        assert_eq!(short(4, 5, State::Offloaded), Some((THERE, false)));
        assert_eq!(short(9, 0, State::Offloaded), Some((THERE, false)));
        assert_eq!(short(1, 0, State::Undecided), None, "it has not been served");
    }
}
