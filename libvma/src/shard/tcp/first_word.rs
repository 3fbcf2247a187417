//! Peers to which the program speaks first: HTTP servers, caches, and not those that greet (SMTP, SSH, MySQL).
//!
//! If each of the last connections to a peer began with data of the program's own, soon after the handshake, the first data of
//! the next connection are expected to do so, too, and carry the acknowledgment of its handshake: a segment less to make, send and
//! receive. A wrong guess delays that acknowledgment by 20 ms, once.

use libvma_engine::tcp::lookup::FlowKey;

/// So many connections in a row prove the habit.
const PROOF: u8 = 16;
/// Peers that are remembered; those that meet in one place displace each other.
const PLACES: usize = 32;

#[derive(Clone, Copy, Default)]
struct Row {
    /// The peer's address and port.
    peer: u64,
    /// Connections to it, one after another, in which the program spoke first; [`PROOF`] at most.
    count: u8,
}

#[derive(Default)]
pub(super) struct FirstWords {
    rows: [Row; PLACES],
}

fn peer(key: &FlowKey) -> u64 {
    u64::from(u32::from(key.remote)) << 16 | u64::from(key.remote_port)
}

fn place(peer: u64) -> usize {
    (peer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
}

impl FirstWords {
    /// Will the program speak first on a connection to this peer?
    pub fn expects(&self, key: &FlowKey) -> bool {
        let peer = peer(key);
        self.rows.get(place(peer)).is_some_and(|row| row.peer == peer && row.count >= PROOF)
    }

    /// A connection that the program had made is over for it.
    pub fn note(&mut self, key: &FlowKey, spoke_first: bool) {
        let peer = peer(key);
        let Some(row) = self.rows.get_mut(place(peer)) else { return };
        if row.peer != peer {
            *row = Row { peer, count: 0 };
        }
        row.count = if spoke_first { row.count.saturating_add(1).min(PROOF) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn key(last: u8, local_port: u16) -> FlowKey {
        FlowKey {
            local: Ipv4Addr::new(10, 0, 0, 1),
            local_port,
            remote: Ipv4Addr::new(10, 0, 0, last),
            remote_port: 80,
        }
    }

    #[test]
    fn a_row_of_first_words_is_a_habit_and_one_silence_ends_it() {
        let mut words = FirstWords::default();
        for port in 0..u16::from(PROOF) {
            assert!(!words.expects(&key(2, 999)));
            words.note(&key(2, port), true);
        }
        assert!(words.expects(&key(2, 999)));
        assert!(!words.expects(&key(3, 999)), "that is another peer");
        words.note(&key(2, 50), false);
        assert!(!words.expects(&key(2, 999)));
    }

    #[test]
    fn peers_that_meet_in_one_place_displace_each_other() {
        let mut words = FirstWords::default();
        let meets = |last: &u8| place(peer(&key(*last, 0))) == place(peer(&key(2, 0)));
        let other = (3..=255).find(meets).unwrap();
        (0..PROOF).for_each(|_| words.note(&key(2, 1), true));
        words.note(&key(other, 1), true);
        assert!(!words.expects(&key(2, 1)) && !words.expects(&key(other, 1)));
    }
}
