//! The data of a segment, urgent data and the FIN (RFC 9293 section 3.10.7.4, sixth to eighth).

use super::input::{Arrival, give_back};
use super::timers::Timer;
use super::{Connection, State};
use crate::tcp::seq::Seq;
use crate::tcp::{Error, Events, Link, Piece};
use crate::time::Instant;
use crate::wire::tcp::Flags;

impl<B> Connection<B> {
    /// Sixth: the URG bit. Linux's reading (tcp_stdurg = 0): one urgent byte, the one before the
    /// pointer.
    pub(super) fn arrive_urgent(
        &mut self,
        arrival: &Arrival<'_>,
        link: &mut impl Link<B>,
    ) -> Events {
        if !arrival.has(Flags::URG) || arrival.header.urgent == 0 || !self.state.may_receive() {
            return Events::NONE;
        }
        let mark = arrival.seq.plus(u32::from(arrival.header.urgent).saturating_sub(1));
        let known = self.urgent.mark.is_some_and(|known| mark <= known);
        let passed = mark < self.rcv_nxt.minus(self.queue.len());
        if known || passed {
            return Events::NONE;
        }
        if self.is_at_hidden_mark() && !self.queue.is_empty() {
            // The old mark goes, and with it what would hide its byte from the reader.
            self.queue.consume(1, link);
        }
        self.urgent = super::Urgent { mark: Some(mark), ..super::Urgent::default() };
        Events::URGENT
    }

    /// Seventh: the text; and eighth, the FIN behind it.
    pub(super) fn arrive_text(
        &mut self,
        arrival: &Arrival<'_>,
        piece: Option<Piece<B>>,
        link: &mut impl Link<B>,
    ) -> Events {
        if arrival.len == 0 {
            give_back(piece, link);
            return Events::NONE;
        }
        if !self.state.may_receive() {
            // After the peer's FIN there is nothing to come. What begins before it is a repetition.
            give_back(piece, link);
            self.announced.due |= arrival.seq < self.rcv_nxt;
            return Events::NONE;
        }
        let payload = piece.as_ref().map_or(0, |piece| piece.len);
        let payload_end = arrival.seq.plus(payload);
        let is_new = payload_end > self.rcv_nxt;
        if self.orphan && is_new {
            // The program has closed the connection, and will read neither these data nor those that a FIN beyond them announces (RFC 2525
            // section 2.17; Linux: TCPAbortOnData).
            give_back(piece, link);
            let events = self.refuse_data();
            self.reset_due = !self.reset_stray(arrival, link);
            return events;
        }
        if self.reading_ended
            && self.fin_queued
            && is_new
            && matches!(self.state, State::FinWait1 | State::FinWait2)
        {
            // RFC 1122 section 4.2.2.13: both ways are shut, nobody will read it. The program is
            // told, unlike for an orphan.
            give_back(piece, link);
            let events = self.fail(Error::Reset);
            self.reset_due = !self.reset_stray(arrival, link);
            return events;
        }
        let fin = arrival.has(Flags::FIN).then_some(payload_end);
        let mut events = Events::NONE;
        if let Some(piece) = piece {
            events.insert(self.take_payload(arrival, piece, link));
        }
        if let Some(at) = fin {
            // Data beyond it waits: one of the two is made up. Linux, too, keeps what came first.
            let is_refuted = at > self.rcv_nxt && self.reassembly.end().is_some_and(|end| at < end);
            let again = is_refuted || self.fin_waiting.replace(at) == Some(at);
            if at > self.rcv_nxt {
                if again {
                    self.note_fin_again(at);
                }
                self.fin_is_latest |= !is_refuted;
                if payload == 0 {
                    self.answer_out_of_order();
                }
            }
        }
        if self.fin_waiting.is_some_and(|at| at <= self.rcv_nxt) {
            events.insert(self.reach_fin(arrival.now));
        }
        events
    }

    fn refuse_data(&mut self) -> Events {
        self.finish();
        Events::CLOSED
    }

    fn take_payload(
        &mut self,
        arrival: &Arrival<'_>,
        mut piece: Piece<B>,
        link: &mut impl Link<B>,
    ) -> Events {
        let mut start = arrival.seq;
        let end = start.plus(piece.len);
        if start < self.rcv_nxt {
            // Old in front: report it (RFC 2883).
            self.note_duplicate(start, end.min(self.rcv_nxt));
            self.announced.due = true;
            piece.trim_front(self.rcv_nxt.since(start));
            start = self.rcv_nxt;
        }
        if end > self.announced.edge {
            // Beyond the window.
            let room = self.announced.edge.ahead_of(start);
            piece.truncate(room);
            self.announced.due = true;
        }
        if piece.len == 0 || self.reading_ended && self.orphan {
            link.release(piece.body);
            return Events::NONE;
        }
        if start > self.rcv_nxt {
            return self.take_out_of_order(start, piece, link);
        }
        let before = self.rcv_nxt;
        self.note_overlap(end);
        self.take_in_order(piece, link);
        let filled = !self.reassembly.is_empty() || self.fin_waiting.is_some();
        while let Some(next) = self.reassembly.take(self.rcv_nxt, link) {
            self.take_in_order(next, link);
        }
        self.note_data(self.rcv_nxt.since(before), arrival.has(Flags::PSH), arrival.now);
        if filled {
            // RFC 5681 section 4.2: the filling of a gap is acknowledged at once.
            self.announced.due = true;
        }
        Events::READABLE
    }

    /// The data that is next, up to `end`, repeats the first range that waits, or a part of it (RFC 2883 section 4).
    #[inline]
    fn note_overlap(&mut self, end: Seq) {
        if let Some((left, right)) = self.reassembly.first()
            && self.duplicate.is_none()
        {
            self.note_duplicate(left, right.min(end));
        }
    }

    /// A FIN that waits has come again, perhaps with data that have, too.
    fn note_fin_again(&mut self, at: Seq) {
        let left = match self.duplicate {
            Some(block) if Seq::new(block.right) == at => Seq::new(block.left),
            Some(_) => return,
            None => at,
        };
        self.note_duplicate(left, at.plus(1));
    }

    fn take_in_order(&mut self, piece: Piece<B>, link: &mut impl Link<B>) {
        let len = piece.len;
        self.rcv_nxt = self.rcv_nxt.plus(len);
        self.counters.bytes_received = self.counters.bytes_received.wrapping_add(u64::from(len));
        // Also after SHUT_RD: Linux only makes an empty queue read as the end.
        self.queue.push(piece, link);
    }

    fn take_out_of_order(
        &mut self,
        start: Seq,
        piece: Piece<B>,
        link: &mut impl Link<B>,
    ) -> Events {
        self.counters.out_of_order = self.counters.out_of_order.wrapping_add(1);
        if let Some(block) = self.reassembly.insert(start, piece, link) {
            self.duplicate.get_or_insert(block);
        }
        self.fin_is_latest = false;
        self.answer_out_of_order();
        Events::NONE
    }

    /// RFC 5681 section 4.2: at once, and once for each where they are counted.
    fn answer_out_of_order(&mut self) {
        if self.announced.due && !self.sack {
            self.announced.repeats = self.announced.repeats.saturating_add(1);
        }
        self.announced.due = true;
    }

    /// Eighth: the peer's FIN is next.
    fn reach_fin(&mut self, now: Instant) -> Events {
        self.fin_waiting = None;
        self.rcv_nxt = self.rcv_nxt.plus(1);
        self.peer_closed = true;
        // The FIN is acknowledged together with the data before it, when the program has read them.
        self.announced.due |= !self.announced.is_asked() || self.state != State::Established;
        self.announced.edge = self.announced.edge.max(self.rcv_nxt);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.timers.stop(Timer::End);
                self.enter_time_wait(now);
            }
            _ => {}
        }
        Events::READABLE.union(Events::PEER_CLOSED)
    }
}
