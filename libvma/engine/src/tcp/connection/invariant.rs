//! What keeps a connection from waiting for ever: whatever it owes its peer, some timer is set that
//! brings it back to it, also if nothing ever arrives. For tests; see also `timers`.

use super::timers::Timer;
use super::{Connection, State};

impl<B> Connection<B> {
    /// What is owed without a timer that sees to it; None as it should be. To be asked when
    /// [`Connection::output`] was called since the last change, and found room on its link.
    pub fn is_forgotten(&self) -> Option<&'static str> {
        let timers = &self.timers;
        if self.state == State::Closed {
            return None;
        }
        let in_flight = !self.board.is_empty();
        if in_flight && self.state != State::TimeWait && !timers.is_set(Timer::Retransmission) {
            return Some("something is in flight without a retransmission timer");
        }
        if self.board.to_retransmit() > 0 && !in_flight {
            return Some("something is lost that was never sent");
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            let timer = timers.is_set(Timer::Retransmission);
            return (!timer).then_some("a handshake without a retransmission timer");
        }
        let unsent = self.snd_nxt < self.data_end() || self.fin_queued && !self.fin_sent();
        let is_held = timers.is_set(Timer::Persist) || timers.is_set(Timer::Cork);
        if unsent && !in_flight && !is_held && self.state != State::TimeWait {
            return Some(
                "something is unsent, and nothing is in flight whose acknowledgment frees it",
            );
        }
        let unacknowledged = self.rcv_nxt != self.announced.acknowledged;
        if unacknowledged && !self.announced.due && !timers.is_set(Timer::DelayedAck) {
            return Some("something received is not acknowledged, and no timer will do it");
        }
        if self.announced.due {
            return Some("an acknowledgment is due that has not left");
        }
        let ends = self.state == State::TimeWait || self.orphan && self.state == State::FinWait2;
        if ends && !timers.is_set(Timer::End) {
            return Some("the end of the wait is not set");
        }
        None
    }
}
