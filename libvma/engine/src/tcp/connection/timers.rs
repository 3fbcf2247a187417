//! What happens when nothing arrives: retransmission, probes, delayed acknowledgments, the end of
//! waiting.

use core::time::Duration;

use super::{Connection, State};
use crate::tcp::{Error, Events, Link, Millis};
use crate::time::Instant;

/// When to ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// ... send again what was not acknowledged (RFC 6298).
    Retransmission,
    /// ... probe for a loss at the tail (RFC 8985 section 7).
    LossProbe,
    /// ... look again for segments that are late (RFC 8985 section 6.3).
    Reordering,
    /// ... ask whether a closed window has opened (RFC 9293 section 3.8.6.1).
    Persist,
    /// ... acknowledge what no data of ours has acknowledged (RFC 9293 section 3.8.6.3).
    DelayedAck,
    /// ... see whether the peer is there (RFC 9293 section 3.8.4).
    KeepAlive,
    /// ... send what TCP_CORK or MSG_MORE holds back (tcp(7): 200 ms).
    Cork,
    /// ... be done: the end of TIME-WAIT, of an orphan's FIN-WAIT-2.
    End,
    /// ... give the memory of an idle connection back.
    Trim,
}

const COUNT: usize = 9;

/// One deadline each.
#[derive(Debug)]
pub(super) struct Timers {
    at: [Instant; COUNT],
    /// No timer is due before this, and perhaps none then: one that is stopped or moved back leaves
    /// it, and every segment does that.
    earliest: Instant,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Default for Timers {
    fn default() -> Self {
        Timers { at: [NEVER; COUNT], earliest: NEVER }
    }
}

impl Timers {
    #[inline]
    pub fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.at.get_mut(timer as usize) {
            *slot = at;
        }
        self.earliest = self.earliest.min(at);
    }

    #[inline]
    pub fn stop(&mut self, timer: Timer) {
        if let Some(slot) = self.at.get_mut(timer as usize) {
            *slot = NEVER;
        }
    }

    #[inline]
    pub fn get(&self, timer: Timer) -> Option<Instant> {
        self.at.get(timer as usize).copied().filter(|at| *at != NEVER)
    }

    /// When it is due; far in the future if it is not set.
    #[inline]
    fn when(&self, timer: Timer) -> Instant {
        self.at.get(timer as usize).copied().unwrap_or(NEVER)
    }

    #[inline]
    pub fn is_set(&self, timer: Timer) -> bool {
        self.get(timer).is_some()
    }

    /// When to look at the timers: it may be too early, never too late.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        (self.earliest != NEVER).then_some(self.earliest)
    }

    /// Is any timer due?
    #[inline]
    fn any_due(&mut self, now: Instant) -> bool {
        if self.earliest > now {
            return false;
        }
        self.refresh();
        self.earliest <= now
    }

    #[inline]
    fn refresh(&mut self) {
        self.earliest = self.at.iter().fold(NEVER, |least, at| least.min(*at));
    }

    /// Is the timer due? Then it is stopped.
    #[inline]
    fn take_due(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.get(timer).is_some_and(|at| at <= now);
        if due {
            self.stop(timer);
        }
        due
    }

    pub fn clear(&mut self) {
        *self = Timers::default();
    }
}

/// Timeouts of a SYN that could not leave: 1 + 2 + 4 s.
const UNRESOLVED: u32 = 2;
/// How long a corked segment waits (tcp(7)).
pub(super) const CORK: Duration = Duration::from_millis(200);
/// How long an idle connection keeps the memory that it needed.
pub(super) const TRIM: Duration = Duration::from_secs(1);
/// The least time before a loss probe: peers do acknowledge at once, but not always.
const LEAST_PROBE_NANOS: u64 = 2_000_000;
/// The least time before the first window probe, also if the least timeout is shorter (Linux: tcp_probe0_base).
const LEAST_PERSIST_NANOS: u64 = 200_000_000;
/// When the probe leaves while no round trip is measured (RFC 8985 section 7.2).
const UNMEASURED_PROBE_NANOS: u64 = 1_000_000_000;

impl<B> Connection<B> {
    /// Does what is due, and sends what follows from it. Early or repeated calls do nothing.
    pub fn on_timer(&mut self, now: Instant, link: &mut impl Link<B>) -> Events {
        if !self.timers.any_due(now) {
            return Events::NONE;
        }
        let mut events = Events::NONE;
        if self.timers.take_due(Timer::End, now) {
            self.finish();
            return Events::CLOSED;
        }
        if self.timers.take_due(Timer::Trim, now) {
            self.buffer.trim();
            self.board.trim();
            self.queue.trim();
        }
        if self.timers.take_due(Timer::DelayedAck, now) {
            self.announced.on_delay_over();
        }
        if self.timers.take_due(Timer::Reordering, now) {
            self.detect_losses(now, 0);
        }
        if self.timers.take_due(Timer::LossProbe, now) {
            self.on_loss_probe(now, link);
        }
        if self.timers.take_due(Timer::Retransmission, now) {
            events.insert(self.on_retransmission_timeout(now));
        }
        if self.timers.take_due(Timer::Persist, now) {
            events.insert(self.on_persist(now, link));
        }
        if self.timers.take_due(Timer::KeepAlive, now) {
            events.insert(self.on_keep_alive(now, link));
        }
        if self.timers.take_due(Timer::Cork, now) {
            self.more_follows = false;
            self.push_corked(now, link);
        }
        self.timers.refresh();
        self.output(now, link);
        events
    }

    /// RFC 6298 section 5.
    fn on_retransmission_timeout(&mut self, now: Instant) -> Events {
        if self.board.is_empty() {
            return self.on_unsent_syn(now);
        }
        if self.stalled_since.is_none() {
            self.stalled_since = self.board.first().map(|sent| sent.at);
        }
        if self.has_given_up(now) {
            return self.give_up();
        }
        self.counters.timeouts = self.counters.timeouts.wrapping_add(1);
        self.enter_loss(now);
        self.rtt.backoff();
        self.timers.set(Timer::Retransmission, self.timeout(now));
        Events::NONE
    }

    /// The SYN could not leave for so long: nobody resolves the neighbour's address (arp(7) gives up
    /// after three seconds).
    fn on_unsent_syn(&mut self, now: Instant) -> Events {
        if self.state != State::SynSent {
            return Events::NONE;
        }
        if self.rtt.timeouts() >= UNRESOLVED {
            return self.fail(Error::HostUnreachable);
        }
        self.rtt.backoff();
        self.timers.set(Timer::Retransmission, self.timeout(now));
        Events::NONE
    }

    /// The time that an acknowledgment has, in nanoseconds: RFC 6298's timeout within the program's limits.
    #[inline]
    pub(super) fn rto_nanos(&self) -> u64 {
        let most = self.settings.most_rto.nanos();
        self.rtt.rto_within(self.settings.least_rto_nanos(), most)
    }

    /// The same as a duration.
    pub(super) fn rto(&self) -> Duration {
        Duration::from_nanos(self.rto_nanos())
    }

    /// When RTO is over, but not beyond the end of TCP_USER_TIMEOUT.
    #[inline]
    pub(super) fn timeout(&self, now: Instant) -> Instant {
        let at = now.plus_nanos(self.rto_nanos());
        let Some(limit) = self.settings.user_timeout else { return at };
        let end = self.stalled_since.unwrap_or(now).saturating_add(limit);
        if end > now { at.min(end) } else { at }
    }

    /// R2 of RFC 9293 section 3.8.3: retransmissions, or time (RFC 5482).
    fn has_given_up(&self, now: Instant) -> bool {
        // As on Linux: the handshake and a closed window included.
        if let (Some(limit), Some(since)) = (self.settings.user_timeout, self.stalled_since) {
            let is_over = now.saturating_duration_since(since) >= limit;
            if is_over || self.state.is_synchronized() {
                return is_over;
            }
        }
        // RFC 9293 section 3.8.6.1: a peer that closes its window and answers is there.
        let answers =
            now.saturating_duration_since(self.last_received) < self.settings.most_rto.into();
        if self.snd_wnd == 0 && answers && !self.orphan && self.state.is_synchronized() {
            return false;
        }
        let limit = match self.state {
            State::SynSent | State::SynReceived => self.settings.syn_retries,
            _ if self.orphan => self.settings.orphan_retries,
            _ => self.settings.retries,
        };
        self.rtt.timeouts() >= u32::from(limit)
    }

    fn give_up(&mut self) -> Events {
        let error = self.soft_error.take().unwrap_or(Error::TimedOut);
        self.fail(error)
    }

    /// A loss at the tail brings no later acknowledgment to see it by (RFC 8985 section 7.3): the last
    /// segment leaves again. Not new data, which that section would rather have: a receiver answers what
    /// it has already got at once (RFC 5681 section 4.2), and may keep the acknowledgment of one new
    /// segment for its delay, 40 ms with Linux. Where acknowledgments are lost, that is most of the time.
    fn on_loss_probe(&mut self, now: Instant, link: &mut impl Link<B>) {
        // One probe at a time (RFC 8985 section 7.3).
        if self.board.is_empty() || self.phase.repairs() || self.probe_end.is_some() {
            return;
        }
        // TCP_USER_TIMEOUT counts from the original transmission, not from the probe.
        if self.stalled_since.is_none() {
            self.stalled_since = self.board.first().map(|sent| sent.at);
        }
        if self.has_given_up(now) {
            // The retransmission timer is due as well, and ends the connection.
            return;
        }
        // The time stamp of an earlier probe says nothing about this one.
        self.retransmission_stamp = None;
        self.probe_flight = self.snd_nxt.since(self.snd_una);
        if !self.repeat_tail(now, link) {
            // The device has no room: the retransmission timer stays as it is.
            return;
        }
        self.probe_end = Some(self.snd_nxt);
        self.timers.stop(Timer::LossProbe);
        // The timeout restarts without backoff (RFC 8985 section 7.3).
        self.timers.set(Timer::Retransmission, self.timeout(now));
    }

    /// Sends the last segment again. False if it could not leave.
    fn repeat_tail(&mut self, now: Instant, link: &mut impl Link<B>) -> bool {
        let Some(last) = self.board.last().copied() else { return false };
        let start = last.start.max(last.end.minus(self.mss.min(last.len())));
        self.retransmit(start, last.end, now, link)
    }

    /// RFC 9293 section 3.8.6.1.
    fn on_persist(&mut self, now: Instant, link: &mut impl Link<B>) -> Events {
        if !self.board.is_empty() || self.snd_nxt >= self.sending_end() {
            return Events::NONE;
        }
        let limit = if self.orphan { self.settings.orphan_retries } else { self.settings.retries };
        let stalled = now.saturating_duration_since(self.last_received);
        let out_of_time = self.settings.user_timeout.is_some_and(|most| stalled >= most);
        // A peer that answers probes may keep a program waiting, but not a connection whose program
        // is gone.
        let unwanted = self.orphan && self.rtt.timeouts() >= u32::from(limit);
        if unwanted || (self.probes >= limit || out_of_time) && self.probes > 0 {
            return self.give_up();
        }
        self.probes = self.probes.saturating_add(1);
        if !self.send_against_silly_window(now, link) {
            self.send_probe(now, link);
        }
        self.rtt.backoff();
        if self.board.is_empty() {
            let most = self.settings.most_rto;
            let pause = persist_nanos(self.rto_nanos(), self.rtt.timeouts(), most);
            self.timers.set(Timer::Persist, now.plus_nanos(pause));
        }
        Events::NONE
    }

    /// RFC 9293 section 3.8.4.
    fn on_keep_alive(&mut self, now: Instant, link: &mut impl Link<B>) -> Events {
        if !self.settings.keep_alive || !self.state.is_synchronized() {
            return Events::NONE;
        }
        let idle = now.saturating_duration_since(self.last_received);
        if !self.board.is_empty() || self.snd_nxt < self.sending_end() {
            // Retransmissions see to it.
            self.timers.set(Timer::KeepAlive, now.saturating_add(self.settings.keep_idle.into()));
            return Events::NONE;
        }
        if idle < self.settings.keep_idle.into() {
            self.probes = 0;
            let at = self.last_received.saturating_add(self.settings.keep_idle.into());
            self.timers.set(Timer::KeepAlive, at);
            return Events::NONE;
        }
        // TCP_USER_TIMEOUT overrides the count (tcp(7)).
        let given_up = match self.settings.user_timeout {
            Some(limit) => idle >= limit && self.probes > 0,
            None => self.probes >= self.settings.keep_count,
        };
        if given_up {
            self.reset_due = true;
            let events = self.give_up();
            self.send_reset(now, link);
            return events;
        }
        self.probes = self.probes.saturating_add(1);
        self.send_probe(now, link);
        self.timers.set(Timer::KeepAlive, now.saturating_add(self.settings.keep_interval.into()));
        Events::NONE
    }

    /// Arms keep-alive as the option says now.
    pub(super) fn arm_keep_alive(&mut self, now: Instant) {
        if self.settings.keep_alive && self.state.is_synchronized() {
            let due = self.last_received.saturating_add(self.settings.keep_idle.into()).max(now);
            self.timers.set(Timer::KeepAlive, due);
        } else {
            self.timers.stop(Timer::KeepAlive);
        }
    }

    /// After something was sent or acknowledged: the timers of what is in flight.
    #[inline(always)]
    pub(super) fn arm_for_flight(&mut self, now: Instant, restart: bool) {
        if self.board.is_empty() {
            self.timers.stop(Timer::Retransmission);
            self.timers.stop(Timer::LossProbe);
            self.timers.stop(Timer::Reordering);
            return;
        }
        if restart || !self.timers.is_set(Timer::Retransmission) {
            self.timers.set(Timer::Retransmission, self.timeout(now));
        }
        self.arm_loss_probe(now);
    }

    /// RFC 8985 section 7.2, with the margins of Linux (tcp_schedule_loss_probe). The probe leaves at the
    /// latest when the retransmission timer would expire, and takes the place of that timeout.
    #[inline(always)]
    fn arm_loss_probe(&mut self, now: Instant) {
        let wanted = !self.phase.repairs()
            && self.sack
            && self.probe_end.is_none()
            && self.board.sacked() == 0
            && self.state.is_synchronized();
        if !wanted {
            return self.timers.stop(Timer::LossProbe);
        }
        // The peer may delay the acknowledgment of a segment's worth (RFC 9293 section 3.8.6.3), also if it
        // came in several, as a small write and its FIN do.
        let single = self.board.in_flight() <= self.mss;
        // Linux takes its own least timeout for the delay of the peer (tcp_rto_min()).
        let margin = if single { self.settings.least_rto_nanos() } else { LEAST_PROBE_NANOS };
        let wait = match self.rtt.srtt_nanos() {
            0 => UNMEASURED_PROBE_NANOS,
            srtt => srtt.saturating_mul(2).saturating_add(margin),
        };
        let at = now.plus_nanos(wait).min(self.timers.when(Timer::Retransmission));
        self.timers.set(Timer::LossProbe, at);
    }
}

/// The pause before the next window probe, after so many. A function of its own for the profile, by which
/// the timers' common cases are laid out.
#[inline(never)]
pub(super) fn persist_nanos(rto_nanos: u64, doublings: u32, most: Millis) -> u64 {
    let least = LEAST_PERSIST_NANOS.wrapping_shl(doublings.min(16));
    rto_nanos.max(least.min(most.nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn the_next_look_is_never_too_late() {
        let mut timers = Timers::default();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Retransmission, at(50));
        timers.set(Timer::DelayedAck, at(20));
        assert_eq!(timers.next(), Some(at(20)));
        // Too early from here on, until somebody looks.
        timers.stop(Timer::DelayedAck);
        timers.set(Timer::Retransmission, at(70));
        assert!(!timers.any_due(at(20)));
        assert_eq!(timers.next(), Some(at(70)));
        assert!(!timers.any_due(at(69)));
        assert!(timers.any_due(at(70)) && timers.take_due(Timer::Retransmission, at(70)));
        assert!(!timers.any_due(at(70)));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn an_earlier_timer_is_next_at_once() {
        let mut timers = Timers::default();
        timers.set(Timer::KeepAlive, at(90));
        assert!(!timers.any_due(at(10)));
        timers.set(Timer::Persist, at(30));
        assert_eq!(timers.next(), Some(at(30)));
        timers.clear();
        assert_eq!(timers.next(), None);
    }
}
