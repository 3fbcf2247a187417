//! Which destinations have connections that end after a request or two. Agreeing upon a pipe costs more than
//! such a connection has to gain from it, so they are the kernel's alone, as long as this goes on.

use std::net::SocketAddrV4;

use crate::sys::lock::Lock;

/// What the last connections of this process to each destination were like.
pub struct Brevity(Lock<Vec<Record>>);

struct Record {
    destination: SocketAddrV4,
    /// How many short ones in a row there were.
    row: u32,
    /// When the last one ended.
    last: u64,
    /// When one was last tried with a pipe.
    tried: u64,
}

/// So many are needed for a judgement.
const ENOUGH: u32 = 32;
/// How long that holds, unless others end and say the same.
const HOLDS_NANOS: u64 = 200_000_000;
/// Time between connections that get a pipe nevertheless, to see whether they are short still.
const SAMPLE_NANOS: u64 = 5_000_000;
const MOST: usize = 64;

impl Brevity {
    pub const fn new() -> Brevity {
        Brevity(Lock::new(Vec::new()))
    }

    /// Is a new connection to be the kernel's?
    pub fn expects(&self, destination: SocketAddrV4, now: u64) -> bool {
        let Ok(mut records) = self.0.lock() else { return false };
        let record = records.iter_mut().find(|record| record.destination == destination);
        let Some(record) = record.filter(|record| record.row >= ENOUGH) else { return false };
        if now.saturating_sub(record.last) > HOLDS_NANOS {
            return false;
        }
        let samples = now.saturating_sub(record.tried) >= SAMPLE_NANOS;
        if samples {
            record.tried = now;
        }
        !samples
    }

    /// A connection that had a pipe, or the offer of one, has ended.
    pub fn note(&self, destination: SocketAddrV4, was_short: bool, now: u64) {
        let Ok(mut records) = self.0.lock() else { return };
        let known = records.iter().position(|record| record.destination == destination);
        if let Some(record) = known.and_then(|at| records.get_mut(at)) {
            record.row = if was_short { record.row.saturating_add(1) } else { 0 };
            record.last = now;
            return;
        }
        if records.len() >= MOST
            && let Some(oldest) =
                (0..records.len()).min_by_key(|at| records.get(*at).map(|one| one.last))
        {
            records.swap_remove(oldest);
        }
        records.push(Record { destination, row: u32::from(was_short), last: now, tried: 0 });
    }
}

impl Default for Brevity {
    fn default() -> Self {
        Self::new()
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
        let brevity = Brevity::new();
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
        assert!(!brevity.expects(THERE, now + SAMPLE_NANOS));
        // Nobody says so any more.
        assert!(!brevity.expects(THERE, now + 2 * HOLDS_NANOS));
        // One that is not short is the end of it.
        brevity.note(THERE, true, now);
        assert!(brevity.expects(THERE, now + SAMPLE_NANOS + 1));
        brevity.note(THERE, false, now);
        assert!(!brevity.expects(THERE, now + SAMPLE_NANOS + 2));
    }

    #[test]
    fn the_destination_that_was_not_used_for_longest_is_forgotten() {
        let brevity = Brevity::new();
        for port in 0..MOST as u16 + 1 {
            brevity.note(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), true, u64::from(port));
        }
        let records = brevity.0.lock().unwrap();
        assert_eq!(records.len(), MOST);
        assert!(records.iter().all(|record| record.destination.port() != 0));
    }
}
