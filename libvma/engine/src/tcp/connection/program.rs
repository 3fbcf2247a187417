//! The calls of the program (RFC 9293 section 3.10.1 to 3.10.6). What they make due leaves with the
//! next [`Connection::output`].

use super::timers::Timer;
use super::{Connection, State};
use crate::tcp::seq::Seq;
use crate::tcp::{Error, Events, Link, Path, Piece, Readiness, Settings};
use crate::time::Instant;

/// How a send call wants its bytes sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendFlags {
    /// MSG_MORE: the last partial segment waits.
    pub more: bool,
    /// MSG_OOB: the last byte is urgent.
    pub urgent: bool,
}

impl<B> Connection<B> {
    /// Takes as many of the bytes as there is room for, and says how many.
    #[inline]
    pub fn send<'a>(
        &mut self,
        now: Instant,
        data: impl IntoIterator<Item = &'a [u8]>,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        self.may_write()?;
        let mut room = self.send_room();
        let mut taken = 0usize;
        let mut all = true;
        for part in data {
            let (part, rest) = part.split_at_checked(room).unwrap_or((part, &[]));
            self.buffer.append(part);
            taken = taken.saturating_add(part.len());
            room = room.saturating_sub(part.len());
            if !rest.is_empty() {
                all = false;
                break;
            }
        }
        // Whoever waits for room is told when there is some again.
        self.wants_room |= !all || !self.is_writable_with(room);
        if taken > 0 {
            self.more_follows = flags.more;
            if flags.urgent && all {
                self.snd_up = Some(self.data_end());
            }
            self.note_answer(now);
        }
        Ok(taken)
    }

    /// EPIPE, ENOTCONN, or what the connection failed with.
    pub fn may_write(&mut self) -> Result<(), Error> {
        match self.state {
            State::Established | State::CloseWait if !self.fin_queued => Ok(()),
            // RFC 9293 section 3.10.2: data may be queued before the handshake is complete.
            State::SynReceived => Ok(()),
            _ => match self.error.take() {
                Some(error) => Err(error),
                None if self.state == State::SynSent => Err(Error::NotConnected),
                None => Err(Error::BrokenPipe),
            },
        }
    }

    /// Bytes that a send call would take now.
    #[inline]
    pub fn send_room(&self) -> usize {
        (self.send_limit() as usize).saturating_sub(self.buffer.len())
    }

    /// SO_SNDBUF, or what the flow needs of it: twice the congestion window, as Linux has it; and four
    /// times what was acknowledged so far. Linux's congestion window is there soon, if nothing is lost; ours
    /// is not when the peer reads so fast that it is never full.
    #[inline]
    fn send_limit(&self) -> u32 {
        let buffer = &self.settings.send_buffer;
        if !buffer.automatic {
            return buffer.limit;
        }
        // A window that shrinks leaves the buffer as large as what is out needs: new data follows as that
        // is acknowledged.
        let outstanding = self.snd_nxt.ahead_of(self.snd_una);
        let acknowledged = u32::try_from(self.counters.bytes_acked).unwrap_or(u32::MAX);
        let flow = self.congestion.cwnd().max(outstanding);
        let wanted = flow.saturating_mul(2).max(acknowledged.saturating_mul(4));
        buffer.limit.max(wanted.min(buffer.most))
    }

    /// Would a send call take a worthwhile amount (Linux: a third of the buffer is free)?
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable_with(self.send_room())
    }

    /// The same with what [`Connection::send_room`] says, for who knows it already.
    #[inline]
    fn is_writable_with(&self, room: usize) -> bool {
        let unsent = self.data_end().ahead_of(self.snd_nxt);
        room >= self.buffer.len().wrapping_shr(1)
            && room > 0
            && unsent < self.settings.unsent_low_water
    }

    /// May a read take what is queued without a look at anything else: no mark, no end, no error?
    #[inline]
    pub fn is_plainly_readable(&self) -> bool {
        self.state == State::Established
            && self.error.is_none()
            && self.urgent.mark.is_none()
            && !self.reading_ended
    }

    /// What can be read, in order. A read must not cross the urgent mark: see
    /// [`Connection::readable`].
    pub fn pieces(&self) -> impl Iterator<Item = &Piece<B>> {
        self.queue.pieces()
    }

    /// What can be read, if it is one piece, as it is mostly.
    #[inline]
    pub fn only_piece(&self) -> Option<&Piece<B>> {
        self.queue.only_piece()
    }

    /// Bytes that one read may take: all that was received in order, or up to the urgent byte.
    #[inline]
    pub fn readable(&self) -> u32 {
        let queued = self.queue.len();
        match self.bytes_to_mark() {
            Some(0) | None => queued,
            Some(distance) => queued.min(distance),
        }
    }

    /// Everything received in order, the urgent byte included (FIONREAD).
    pub fn queued(&self) -> u32 {
        self.queue.len()
    }

    /// The distance to the urgent byte from where the program reads; None if there is none ahead.
    pub fn bytes_to_mark(&self) -> Option<u32> {
        let mark = self.urgent.mark?;
        let at = self.read_position();
        (mark >= at).then(|| mark.since(at))
    }

    /// The next byte to read is the urgent one, and is read by MSG_OOB only: a plain read leaves it
    /// out.
    pub fn is_at_hidden_mark(&self) -> bool {
        !self.settings.urgent_inline && self.bytes_to_mark() == Some(0)
    }

    /// Is the urgent byte there and not read (POLLPRI)?
    pub fn has_urgent(&self) -> bool {
        self.urgent.mark.is_some() && !self.urgent.was_read
    }

    /// Marks the urgent byte read (MSG_OOB).
    pub fn take_urgent(&mut self) {
        self.urgent.was_read = true;
    }

    /// Where the program reads next.
    fn read_position(&self) -> Seq {
        let fin = u32::from(self.peer_closed);
        self.rcv_nxt.minus(fin).minus(self.queue.len())
    }

    /// The program has read `count` bytes.
    #[inline]
    pub fn consume(&mut self, now: Instant, count: u32, link: &mut impl Link<B>) {
        self.queue.consume(count, link);
        if let Some(mark) = self.urgent.mark
            && mark < self.read_position()
        {
            self.urgent.mark = None;
        }
        self.note_read(count, now);
    }

    /// The program has read the first piece, all of it; for a connection that
    /// [`Connection::is_plainly_readable`]. The caller gives its body back.
    #[inline(always)]
    pub fn take_piece(&mut self, now: Instant) -> Option<Piece<B>> {
        let piece = self.queue.take_piece()?;
        self.note_read(piece.len, now);
        Some(piece)
    }

    /// Nothing is left to read, and nothing will come. A failure that was not told yet comes first,
    /// unless the peer's FIN came before it.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.queue.is_empty() && self.is_receiving_ended()
    }

    /// Nothing will come beyond what is queued, as far as the program is concerned.
    #[inline]
    pub fn is_receiving_ended(&self) -> bool {
        let ended = self.reading_ended || self.state == State::Closed;
        self.peer_closed || ended && self.error.is_none()
    }

    /// SO_ERROR: what the connection failed with, told once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    pub fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// SHUT_WR: FIN follows the data.
    pub fn shutdown_write(&mut self) -> Result<(), Error> {
        match self.state {
            // As Linux: the FIN of a program that is still there waits for the end of the handshake.
            State::SynReceived if !self.orphan => {}
            State::Established | State::SynReceived => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            State::SynSent | State::Closed => return Err(Error::NotConnected),
            _ => return Ok(()),
        }
        self.fin_queued = true;
        self.more_follows = false;
        Ok(())
    }

    /// SHUT_RD: from here on an empty queue is the end. What comes all the same can be read (as on
    /// Linux).
    pub fn shutdown_read(&mut self) {
        self.reading_ended = true;
    }

    pub fn is_reading_ended(&self) -> bool {
        self.reading_ended
    }

    /// The program closed the last descriptor. Data that was written still goes out; unread data, or
    /// SO_LINGER with no time, resets (RFC 2525 section 2.17, RFC 1122 section 4.2.2.13).
    pub fn close(&mut self, now: Instant, link: &mut impl Link<B>) {
        let unread = !self.queue.is_empty();
        self.orphan = true;
        self.reading_ended = true;
        self.drain(link);
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.finish(),
            _ if unread => self.finish_by_reset(true),
            _ if self.settings.reset_on_close => self.abort(),
            State::FinWait2 => {
                self.wait_for_fin(now);
            }
            _ => {
                // States that have sent a FIN already stay as they are.
                let _ = self.shutdown_write();
            }
        }
    }

    /// RFC 9293 section 3.10.5: RST, if the peer knows of us. As on Linux (tcp_disconnect), a peer that has
    /// got and said everything is not told, and TIME-WAIT goes on.
    pub fn abort(&mut self) {
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.finish(),
            State::Closing | State::LastAck => {
                self.finish_by_reset(self.snd_nxt < self.sending_end());
            }
            _ => self.finish_by_reset(true),
        }
    }

    /// CLOSED; what was not sent is thrown away. The peer is to be told, or it is not.
    fn finish_by_reset(&mut self, is_told: bool) {
        self.finish();
        self.reset_due = is_told;
    }

    /// What poll(2) says (as Linux's tcp_poll).
    pub fn readiness(&self) -> Readiness {
        let mut ready = Readiness::NONE;
        if self.error.is_some() {
            ready.insert(Readiness::ERR);
        }
        let receiving_ended = self.reading_ended || self.peer_closed || self.state == State::Closed;
        let sending_ended = self.fin_queued || self.state == State::Closed;
        if receiving_ended && sending_ended {
            ready.insert(Readiness::HUP);
        }
        if receiving_ended {
            ready.insert(Readiness::IN.union(Readiness::RDHUP));
        }
        if matches!(self.state, State::SynSent) {
            return ready;
        }
        let hidden = u32::from(self.is_at_hidden_mark());
        if self.queue.len().saturating_sub(hidden) >= self.settings.receive_low_water.max(1) {
            ready.insert(Readiness::IN);
        }
        if sending_ended || self.state != State::SynReceived && self.is_writable() {
            ready.insert(Readiness::OUT);
        }
        let received = self.rcv_nxt.minus(u32::from(self.peer_closed));
        if self.has_urgent() && self.urgent.mark.is_some_and(|mark| mark < received) {
            ready.insert(Readiness::PRI);
        }
        ready
    }

    /// The program watches for room: an event is due when there is some.
    pub fn want_room(&mut self) {
        self.wants_room = !self.is_writable();
    }

    /// Changes options; what they change at once is due at the next output.
    pub fn set(&mut self, now: Instant, change: impl FnOnce(&mut Settings)) {
        let patience = self.settings.user_timeout;
        change(&mut self.settings);
        if self.settings.congestion != self.congestion.algorithm() {
            self.congestion.set_algorithm(self.settings.congestion);
        }
        if !self.settings.cork {
            self.timers.stop(Timer::Cork);
        }
        if !self.settings.receive_buffer.automatic {
            self.retune(now);
        }
        self.arm_keep_alive(now);
        if patience != self.settings.user_timeout
            && let Some(armed) = self.timers.get(Timer::Retransmission)
        {
            self.timers.set(Timer::Retransmission, armed.min(self.timeout(now)));
        }
    }

    /// A segment has arrived that says more than that the peer sends: what MSG_MORE holds back leaves as Nagle's algorithm lets it. As
    /// on Linux the flag is that of the call, and a program whose peer has answered may wait for more of it.
    #[inline]
    pub(super) fn end_more(&mut self) {
        if self.more_follows {
            self.more_follows = false;
            if !self.settings.cork {
                self.timers.stop(Timer::Cork);
            }
        }
    }

    /// TCP_NODELAY and the end of TCP_CORK push what waits (tcp(7)).
    pub fn push(&mut self, now: Instant, link: &mut impl Link<B>) {
        self.more_follows = false;
        self.timers.stop(Timer::Cork);
        self.push_corked(now, link);
    }

    /// TCP_QUICKACK.
    pub fn set_quick_ack(&mut self, quick: bool) {
        self.announced.set_quick(quick);
        if quick && self.rcv_nxt != self.announced.acknowledged && self.state.is_synchronized() {
            self.announced.due = true;
        }
    }

    /// Makes the next output acknowledge all data received, also if the acknowledgment was to wait.
    #[cold]
    #[inline(never)]
    pub fn acknowledge(&mut self) {
        if self.rcv_nxt != self.announced.acknowledged && self.state.is_synchronized() {
            self.announced.due = true;
        }
    }

    pub fn is_quick_ack(&self) -> bool {
        self.announced.is_quick()
    }

    /// Another route, or another MTU of the same (RFC 9293 section 3.7.2). What the path was found
    /// to carry stays known while the route is the same.
    pub fn set_path(&mut self, path: Path) {
        if path.mtu != self.route_mtu {
            self.route_mtu = path.mtu;
            self.path = path;
            self.update_mss();
        }
        self.path.segmentation_limit = path.segmentation_limit;
    }

    pub fn path(&self) -> Path {
        self.path
    }

    /// ICMP: fragmentation needed (RFC 1191 section 3). `quoted` is the sequence number in the
    /// message: one that is not in flight did not come from the path (RFC 5927 section 4).
    pub fn on_packet_too_big(&mut self, mtu: u32, quoted: Seq, now: Instant) {
        if quoted < self.snd_una || quoted >= self.snd_nxt || mtu >= self.path.mtu {
            return;
        }
        self.path.mtu = mtu.max(LEAST_MTU);
        self.update_mss();
        // What was too big is lost, at once, and not by congestion (RFC 1191 section 6.5).
        let most = self.mss;
        self.board.mark_lost(|sent| sent.len() > most);
        if self.board.to_retransmit() > 0 && self.timers.is_set(Timer::Retransmission) {
            self.arm_for_flight(now, true);
        }
    }

    /// ICMP: unreachable. A handshake ends by it, a connection remembers it in case it times out
    /// (RFC 1122 section 4.2.3.9, RFC 5461).
    pub fn on_unreachable(&mut self, error: Error, quoted: Seq) -> Events {
        // A SYN that could not even leave is as unreachable as one on its way.
        let unsent = self.state == State::SynSent && self.snd_nxt == self.iss;
        if !unsent && (quoted < self.snd_una || quoted >= self.snd_nxt) {
            return Events::NONE;
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return self.fail(error);
        }
        self.soft_error = Some(error);
        Events::NONE
    }
}

/// RFC 791: every path carries that much; Linux: net.ipv4.route.min_pmtu.
const LEAST_MTU: u32 = 552;
