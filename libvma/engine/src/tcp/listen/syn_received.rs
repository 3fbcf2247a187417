//! Segments for a half-open connection: SYN-RECEIVED of RFC 9293 section 3.10.7.4.

use core::time::Duration;

use super::super::reset_for;
use super::super::seq::Seq;
use super::{Context, Listener, Request, Verdict, timeout};
use crate::drop_reason::DropReason;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header};

impl Listener {
    /// SYN-RECEIVED after a passive open (RFC 9293 section 3.10.7.4), in the RFC's order.
    pub(super) fn on_request_segment(
        &mut self,
        now: Instant,
        id: u32,
        header: &Header,
        payload_len: u32,
        context: &Context<'_>,
    ) -> Verdict {
        let deferral = self.deferral();
        let is_full = self.is_full(context);
        let Some(request) = self.requests.get_mut(id) else { return Verdict::NotMine };
        let (flags, seq) = (header.flags, Seq::new(header.seq));
        let stamp = header.options.timestamps.filter(|_| request.timestamps);
        // PAWS (RFC 7323 section 5.3), of which RSTs are exempt.
        let is_old = !flags.contains(Flags::RST)
            && stamp.is_some_and(|stamp| is_before(stamp.value, request.recent_timestamp));

        let opening = flags.contains(Flags::SYN) && seq == request.irs;
        if opening && !flags.intersects(Flags::ACK.with(Flags::RST)) && !is_old {
            // The SYN once more: our SYN-ACK was lost, or is on its way.
            if let Some(stamp) = stamp {
                request.recent_timestamp = stamp.value;
            }
            if !may_reply(request, now) {
                return Verdict::Drop(DropReason::AckRateLimit);
            }
            request.retransmissions = request.retransmissions.saturating_add(1);
            let (reply, deadline) = (request.syn_ack(now), timeout(request.timeouts));
            self.requests.set_deadline(id, now.saturating_add(deadline));
            return Verdict::Reply(reply);
        }

        // A SYN at IRS is left of the window and trimmed, like any text there.
        let is_new_syn = flags.contains(Flags::SYN) && !opening;
        let len = payload_len.saturating_add(header.control_len());
        if is_old || !is_acceptable(request, seq, len) {
            if flags.contains(Flags::RST) {
                return Verdict::Drop(DropReason::StrayReset);
            }
            // Linux: text without SYN is no part of a loop of ACKs that answer each other.
            if (payload_len == 0 || is_new_syn) && !may_reply(request, now) {
                return Verdict::Drop(DropReason::AckRateLimit);
            }
            return Verdict::Reply(request.challenge(now));
        }
        if flags.contains(Flags::RST) {
            // RFC 5961 section 3.2: only the exact number ends it; others in the window may be
            // guesses, and a peer that means it answers the challenge with that number.
            if seq == request.rcv_nxt() {
                self.requests.remove(id);
                return Verdict::Drop(DropReason::RequestReset);
            }
            if !may_reply(request, now) {
                return Verdict::Drop(DropReason::AckRateLimit);
            }
            return Verdict::Reply(request.challenge(now));
        }
        if is_new_syn {
            // Back to LISTEN, in silence: the peer has forgotten the old attempt and sends its SYN
            // again, while a RST would tell its program that the port is closed.
            self.requests.remove(id);
            return Verdict::Drop(DropReason::RequestReset);
        }
        if let Some(verdict) = refused_ack(request, header, payload_len) {
            return verdict;
        }
        if let Some(stamp) = stamp
            && seq <= request.rcv_nxt()
        {
            request.recent_timestamp = stamp.value;
        }
        let is_bare = seq.plus(len) == request.rcv_nxt();
        if is_bare && deferral.is_some_and(|deferral| request.timeouts < deferral) {
            request.acked = true;
            return Verdict::Drop(DropReason::DeferAccept);
        }
        if is_full {
            // tcp_abort_on_overflow = 0: for the peer the connection exists; its data, or our next
            // SYN-ACK, leads here again.
            request.acked = true;
            return Verdict::Drop(DropReason::ListenOverflow);
        }
        match self.requests.remove(id) {
            Some(request) => Verdict::Established(request),
            None => Verdict::NotMine,
        }
    }
}

/// The verdict on a segment in the window that does not acknowledge our SYN, and only it.
fn refused_ack(request: &Request, header: &Header, payload_len: u32) -> Option<Verdict> {
    if !header.flags.contains(Flags::ACK) {
        return Some(Verdict::Drop(DropReason::BadTcpFlags));
    }
    if Seq::new(header.ack) == request.iss.plus(1) {
        return None;
    }
    Some(match reset_for(request.key, header, payload_len) {
        Some(reset) => Verdict::Reset(reset),
        None => Verdict::Drop(DropReason::StrayReset),
    })
}

/// Whether the time stamp `a` is older than `b` (RFC 7323 section 5.2).
fn is_before(a: u32, b: u32) -> bool {
    Seq::new(a) < Seq::new(b)
}

/// Whether some of the segment is in the window that the SYN-ACK announced: the table of RFC 9293
/// section 3.10.7.4.
fn is_acceptable(request: &Request, seq: Seq, len: u32) -> bool {
    let window = request.announced_window;
    let in_window = |seq: Seq| seq.since(request.rcv_nxt()) < window;
    match (len, window) {
        (0, 0) => seq == request.rcv_nxt(),
        (0, _) => in_window(seq),
        (_, 0) => false,
        _ => in_window(seq) || in_window(seq.plus(len).minus(1)),
    }
}

/// Whether another segment may be answered with an ACK or SYN-ACK, and notes that it is (RFC 5961
/// section 7).
fn may_reply(request: &mut Request, now: Instant) -> bool {
    let is_soon = |last: Instant| now.saturating_duration_since(last) < SHORTEST_REPLY_INTERVAL;
    if request.last_reply.is_some_and(is_soon) {
        return false;
    }
    request.last_reply = Some(now);
    true
}

/// Linux's tcp_invalid_ratelimit.
const SHORTEST_REPLY_INTERVAL: Duration = Duration::from_millis(500);
