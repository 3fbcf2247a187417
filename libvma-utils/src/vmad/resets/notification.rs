//! What one peer is told, and when: the decisions, without any clock or socket.
//!
//! | when                        | not answered yet   | answered  |
//! |-----------------------------|--------------------|-----------|
//! | at once                     | SYN                |           |
//! | [`EARLY`] later             | SYN and FIN probe  | FIN probe |
//! | the retry interval later    | SYN and FIN probe  | FIN probe |
//! | the retry interval later    | end                | end       |
//!
//! So there are three SYNs at most, as in the original. Two things differ, both so that the peer
//! hears of it within 100 ms even if a packet is lost:
//!
//! * The second SYN does not wait for the whole retry interval (a second): a lost SYN is made up
//!   for at once.
//! * Linux answers SYNs on one connection with no more than one challenge ACK in 500 ms
//!   (`net.ipv4.tcp_invalid_ratelimit`), so after a lost *answer* an early SYN is worth nothing.
//!   The limit is on segments without content: a FIN with a random sequence number, all but surely
//!   out of the window, must be answered with an ACK (RFC 9293 section 3.10.7.4), and is, each
//!   time.
//!
//! The probe has a second use. That a peer answered does not say that the RST which followed
//! reached it. A peer that has no connection any more answers the probe with RST, and one that
//! still has it gives our kernel a second occasion.

use std::time::Duration;

use super::segment::{Answer, Content};

/// One peer's state.
pub struct Notification {
    /// Which entry of the timetable is ours.
    pub ticket: u64,
    rounds: u8,
    /// What the peer expects next, once it said so.
    expects: Option<u32>,
}

/// What is to be done at a notification's moment.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// Send these, and look again `next` later.
    Send {
        syn: bool,
        probe: bool,
        next: Duration,
    },
    GiveUp,
}

/// What follows from a segment of the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The peer still had the connection; our kernel resets it. A RST of our own has this sequence
    /// number.
    Alive { expects: u32 },
    /// Nothing is left to do, but a half-open connection of the peer that is worth a RST of our own.
    HalfOpen { expects: u32 },
    /// The peer has no such connection any more, or another one.
    Done,
}

/// How early a second SYN follows the first: some round trips in a data centre, and a third of the
/// 100 ms.
pub const EARLY: Duration = Duration::from_millis(30);

/// SYNs, at most.
const ROUNDS: u8 = 3;

impl Notification {
    pub fn new(ticket: u64) -> Self {
        Self { ticket, rounds: 0, expects: None }
    }

    /// Whether the peer ever answered.
    pub fn answered(&self) -> bool {
        self.expects.is_some()
    }

    /// Whether all was said.
    pub fn is_last_round(&self) -> bool {
        self.rounds == ROUNDS
    }

    /// The next row of the table.
    pub fn due(&mut self, retry_interval: Duration) -> Due {
        if self.is_last_round() {
            return Due::GiveUp;
        }
        self.rounds += 1;
        let first = self.rounds == 1;
        Due::Send {
            syn: !self.answered(),
            probe: !first,
            next: if first { EARLY.min(retry_interval) } else { retry_interval },
        }
    }

    /// A segment of the peer on this very connection.
    pub fn hear(&mut self, answer: Answer) -> Heard {
        match answer.content {
            Content::Rst => Heard::Done,
            Content::SynAck => Heard::HalfOpen { expects: answer.acknowledges },
            // Nobody sends on a dead connection, so what its peer expects cannot change: this is a
            // later connection with the same ends, and it is not ours to reset.
            Content::Ack if self.expects.is_some_and(|known| known != answer.acknowledges) => {
                Heard::Done
            }
            Content::Ack => {
                self.expects = Some(answer.acknowledges);
                Heard::Alive { expects: answer.acknowledges }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ack(acknowledges: u32) -> Answer {
        Answer { content: Content::Ack, acknowledges }
    }

    // covers: DMN-09
    #[test]
    fn a_silent_peer_gets_three_syns_the_last_after_the_retry_interval() {
        let mut notification = Notification::new(0);
        let send = |probe, next| Due::Send { syn: true, probe, next };
        assert_eq!(notification.due(SECOND), send(false, EARLY));
        assert_eq!(notification.due(SECOND), send(true, SECOND));
        assert_eq!(notification.due(3 * SECOND), send(true, 3 * SECOND));
        assert_eq!(notification.due(SECOND), Due::GiveUp);
    }

    #[test]
    fn a_retry_interval_below_the_early_one_counts() {
        let short = Duration::from_millis(5);
        let mut notification = Notification::new(0);
        assert_eq!(notification.due(short), Due::Send { syn: true, probe: false, next: short });
    }

    #[test]
    fn a_peer_that_answered_gets_no_further_syn_but_probes() {
        let mut notification = Notification::new(0);
        notification.due(SECOND);
        assert_eq!(notification.hear(ack(7)), Heard::Alive { expects: 7 });
        assert_eq!(notification.due(SECOND), Due::Send { syn: false, probe: true, next: SECOND });
        let rst = Answer { content: Content::Rst, acknowledges: 0 };
        assert_eq!(notification.hear(rst), Heard::Done);
    }

    #[test]
    fn a_later_connection_with_the_same_ends_is_left_alone() {
        let mut notification = Notification::new(0);
        notification.due(SECOND);
        notification.hear(ack(7));
        assert_eq!(notification.hear(ack(7)), Heard::Alive { expects: 7 });
        assert_eq!(notification.hear(ack(8)), Heard::Done);
    }

    #[test]
    fn a_listener_is_not_left_half_open() {
        let mut notification = Notification::new(0);
        notification.due(SECOND);
        let answer = Answer { content: Content::SynAck, acknowledges: 9 };
        assert_eq!(notification.hear(answer), Heard::HalfOpen { expects: 9 });
    }
}
