//! Where sequence numbers and time stamps of a connection start, so that nobody off the path
//! guesses them and a new connection's do not mix with those of the old one between the same
//! endpoints. No state: everything follows from a secret, the addresses and the time.

use super::lookup::FlowKey;
use super::seq::Seq;
use crate::siphash::Key;
use crate::time::Instant;

/// What an off-path attacker must not know. One serves any number of connections.
#[derive(Clone)]
pub struct Secret {
    starts: Key,
    cookies: Key,
}

impl Secret {
    /// `bytes` come from the system's random numbers, once.
    pub fn new(bytes: [u8; 32]) -> Secret {
        let (halves, _) = bytes.as_chunks::<16>();
        let half = |index| halves.get(index).copied().unwrap_or_default();
        Secret { starts: Key::new(half(0)), cookies: Key::new(half(1)) }
    }

    /// Sequence numbers and time stamps follow from `bytes` from now on, cookies from what they did.
    pub fn set_starts(&mut self, bytes: [u8; 16]) {
        self.starts = Key::new(bytes);
    }

    /// The initial sequence number of a connection that is opened now.
    ///
    /// RFC 6528 section 3: a clock, which keeps successive connections between the same endpoints apart,
    /// plus a secret per endpoints. The clock ticks every 64 ns, as Linux's does, so that it is ahead of
    /// connections of up to 15 MB/s; RFC 9293 section 3.4.1 has one of 4 microseconds.
    pub fn initial_sequence(&self, now: Instant, key: &FlowKey) -> Seq {
        let (addresses, ports) = key.to_bits();
        let start = self.starts.hash([addresses, u64::from(ports), SEQUENCE]);
        Seq::new(start as u32).plus((now.as_nanos() / 64) as u32)
    }

    /// What a connection adds to [`timestamp_clock`] in its TSval (RFC 7323 section 5.4: so that
    /// the clock tells nobody since when this host is up).
    ///
    /// One per pair of addresses, as Linux has it: a host that judges time stamps across
    /// connections sees a clock that never runs backwards.
    pub fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        let (addresses, _) = key.to_bits();
        self.starts.hash([addresses, 0, TIMESTAMP]) as u32
    }

    /// A hash for [`syn_cookie`](super::syn_cookie).
    pub(super) fn cookie_hash(&self, key: &FlowKey, salt: u64) -> u32 {
        let (addresses, ports) = key.to_bits();
        self.cookies.hash([addresses, u64::from(ports), salt]) as u32
    }
}

/// The clock of the timestamps option, in milliseconds (RFC 7323 section 5.4: 1 ms to 1 s).
#[inline]
pub fn timestamp_clock(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

/// What tells the uses of one key apart.
const SEQUENCE: u64 = 1;
const TIMESTAMP: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use core::time::Duration;

    const KEY: FlowKey = FlowKey {
        local: Ipv4Addr::new(10, 0, 0, 1),
        local_port: 80,
        remote: Ipv4Addr::new(10, 0, 0, 2),
        remote_port: 40_000,
    };

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 32])
    }

    #[test]
    fn initial_sequence_advances_with_the_clock() {
        let then = Instant::from_nanos(77_000_000_000_123);
        let later = then.saturating_add(Duration::from_micros(64));
        let first = secret(1).initial_sequence(then, &KEY);
        assert_eq!(secret(1).initial_sequence(later, &KEY).since(first), 1000);
        let wrapped = then.saturating_add(Duration::from_nanos(64 << 32));
        assert_eq!(secret(1).initial_sequence(wrapped, &KEY), first);
    }

    #[test]
    fn initial_sequence_depends_on_the_secret_and_each_endpoint() {
        let now = Instant::from_nanos(5);
        let base = secret(1).initial_sequence(now, &KEY);
        assert_ne!(secret(2).initial_sequence(now, &KEY), base);
        for key in [
            FlowKey { local: Ipv4Addr::new(10, 0, 0, 3), ..KEY },
            FlowKey { local_port: 81, ..KEY },
            FlowKey { remote: Ipv4Addr::new(10, 0, 0, 3), ..KEY },
            FlowKey { remote_port: 40_001, ..KEY },
        ] {
            assert_ne!(secret(1).initial_sequence(now, &key), base);
        }
    }

    #[test]
    fn timestamp_offset_is_one_per_pair_of_hosts() {
        let base = secret(1).timestamp_offset(&KEY);
        assert_eq!(secret(1).timestamp_offset(&FlowKey { remote_port: 1, ..KEY }), base);
        assert_ne!(secret(2).timestamp_offset(&KEY), base);
        let other = FlowKey { remote: Ipv4Addr::new(10, 0, 0, 3), ..KEY };
        assert_ne!(secret(1).timestamp_offset(&other), base);
        assert_ne!(base, secret(1).initial_sequence(Instant::default(), &KEY).raw());
    }

    #[test]
    fn timestamp_clock_counts_milliseconds_and_wraps() {
        assert_eq!(timestamp_clock(Instant::from_nanos(1_999_999)), 1);
        assert_eq!(timestamp_clock(Instant::from_nanos((5 + (1 << 32)) * 1_000_000)), 5);
    }
}
