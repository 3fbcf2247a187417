//! The passive opener: LISTEN and SYN-RECEIVED of RFC 9293 section 3.10.7, the SYN queue and the
//! accept queue, both bounded (the accept queue by listen()'s backlog), and SYN cookies when the first one is full.
//!
//! A half-open connection is a [`Request`] of some hundred bytes. Only the segment that completes
//! the handshake makes a connection of it, and that the caller does, as it also sends the replies
//! and owns the connections whose ids wait in the accept queue.

use crate::alloc;
use alloc::collections::VecDeque;
use core::time::Duration;

mod queue;
mod request;
mod settings;
mod syn_received;

pub use request::Request;
pub use settings::ListenSettings;

use super::EcnField;
use super::isn::{Secret, timestamp_clock};
use super::lookup::FlowKey;
use super::seq::Seq;
use super::syn_cookie::{self, StampedOptions};
use crate::drop_reason::DropReason;
use crate::time::Instant;
use crate::translation::default_mss;
use crate::wire::tcp::{Flags, Header};
use queue::RequestQueue;

/// What a segment for a listener is judged with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub secret: &'a Secret,
    /// The MSS to announce on the path to the peer.
    pub our_mss: u16,
    /// No further connection can be taken, for reasons beyond this listener's own accept queue.
    pub accept_queue_full: bool,
    /// Of the segment's IP header.
    pub ecn: EcnField,
}

/// What becomes of a segment for a listener.
#[derive(Debug)]
pub enum Verdict {
    /// Nothing more.
    Drop(DropReason),
    /// Send this: a SYN-ACK or an ACK.
    Reply(Header),
    /// Send this RST; the half-open connection stays.
    Reset(Header),
    /// The segment completes the handshake: make a connection of the request, give it this same
    /// segment, and its id to [`Listener::push_accepted`].
    Established(Request),
    /// No half-open connection has to do with it: send what
    /// [`reset_for`](super::reset_for) makes of it.
    NotMine,
}

/// Data bytes of a segment with which a connection that nobody has accepted is given to the kernel's listener.
pub const HANDED_SEGMENT: u16 = 2800;

/// The window of a connection until the program accepts it, of a receive buffer of so many bytes: what the kernel takes at
/// once if the connection is given to its listener. Its own first window is as large, but for what it rounds down to
/// whole segments.
pub fn first_window(buffer: u32, peer_mss: u16) -> u32 {
    let window = buffer.min(u32::from(u16::MAX));
    let segment = u32::from(peer_mss.max(HANDED_SEGMENT));
    window.saturating_sub(segment).max(window.wrapping_shr(1))
}

/// A port in LISTEN.
pub struct Listener {
    settings: ListenSettings,
    backlog: u32,
    requests: RequestQueue,
    /// Connections that wait for accept(), the oldest first.
    accepted: VecDeque<u32>,
    /// When a cookie was last sent: only for a while after that are they looked for.
    last_cookie: Option<Instant>,
    /// The second in which `syns` counts.
    syn_second: Instant,
    syns: u32,
}

impl Listener {
    /// The caller has bounded `backlog` by the system's limit (somaxconn). `seed` is random.
    pub fn new(settings: ListenSettings, backlog: u32, seed: u64, now: Instant) -> Listener {
        Listener {
            settings,
            backlog,
            requests: RequestQueue::new(seed, now),
            accepted: VecDeque::new(),
            last_cookie: None,
            syn_second: now,
            syns: 0,
        }
    }

    pub fn settings(&self) -> &ListenSettings {
        &self.settings
    }

    /// What changes holds for later segments.
    pub fn settings_mut(&mut self) -> &mut ListenSettings {
        &mut self.settings
    }

    /// A second listen() changes the backlog and nothing else.
    pub fn set_backlog(&mut self, backlog: u32) {
        self.backlog = backlog;
    }

    /// The number of half-open connections.
    #[inline]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// Whose handshake is under way.
    pub fn half_open(&self) -> impl Iterator<Item = FlowKey> {
        self.requests.keys()
    }

    #[inline]
    pub fn is_half_open(&self, key: &FlowKey) -> bool {
        self.requests.find(key).is_some()
    }

    /// A segment for this port that belongs to no connection.
    pub fn on_segment(
        &mut self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        payload_len: u32,
        context: &Context<'_>,
    ) -> Verdict {
        // No implementation sends it; RFC 9293 lets it pass as a SYN, Linux drops it.
        if header.flags.contains(Flags::SYN.with(Flags::FIN)) {
            return Verdict::Drop(DropReason::BadTcpFlags);
        }
        match self.requests.find(&key) {
            Some(id) => self.on_request_segment(now, id, header, payload_len, context),
            None => self.on_listen_segment(now, key, header, context),
        }
    }

    /// Sends SYN-ACKs again and gives up on peers that do not answer. Early calls do nothing.
    pub fn on_timer(&mut self, now: Instant, mut emit: impl FnMut(FlowKey, Header)) {
        let deferral = self.deferral();
        while let Some(id) = self.requests.pop_due(now) {
            let Some(request) = self.requests.get_mut(id) else { continue };
            let retries_are_over = request.timeouts >= self.settings.syn_ack_retries;
            // Linux: while data is waited for, the handshake is complete for the peer, and the last
            // retransmission is what makes it say so once more (TCP_DEFER_ACCEPT in tcp(7)).
            let (expired, resend) = match deferral {
                None => (retries_are_over, true),
                Some(deferral) => (
                    retries_are_over && (!request.acked || request.timeouts >= deferral),
                    !request.acked || request.timeouts.saturating_add(1) >= deferral,
                ),
            };
            if expired {
                self.requests.remove(id);
                continue;
            }
            request.timeouts = request.timeouts.saturating_add(1);
            if resend {
                request.retransmissions = request.retransmissions.saturating_add(1);
                emit(request.key, request.syn_ack(now));
            }
            let deadline = now.saturating_add(timeout(request.timeouts));
            self.requests.set_deadline(id, deadline);
        }
    }

    /// A time before which [`Listener::on_timer`] has nothing to do.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.requests.deadline()
    }

    /// An ICMP error that ends a connection attempt, for the segment that it quotes. Whether a
    /// request ended: only the SYN-ACK's own number proves that the sender saw it (RFC 5927 4.1).
    pub fn on_unreachable(&mut self, key: &FlowKey, quoted: Seq) -> bool {
        let Some(id) = self.requests.find(key) else { return false };
        if self.requests.get_mut(id).is_none_or(|request| request.iss != quoted) {
            return false;
        }
        self.requests.remove(id).is_some()
    }

    /// The port is closed: resets the half-open connections. The caller resets those in the accept
    /// queue.
    pub fn close(&mut self, mut emit: impl FnMut(FlowKey, Header)) {
        for request in self.requests.drain() {
            emit(request.key, request.reset());
        }
    }

    /// Appends a connection to the accept queue.
    #[inline]
    pub fn push_accepted(&mut self, id: u32) {
        self.accepted.push_back(id);
    }

    /// A connection that [`Listener::pop_accepted`] gave is the next one again.
    pub fn put_back_accepted(&mut self, id: u32) {
        self.accepted.push_front(id);
    }

    /// What accept() returns: the oldest connection.
    #[inline]
    pub fn pop_accepted(&mut self) -> Option<u32> {
        self.accepted.pop_front()
    }

    /// Takes a connection out of the accept queue; whether it was there.
    pub fn remove_accepted(&mut self, id: u32) -> bool {
        let place = self.accepted.iter().position(|accepted| *accepted == id);
        place.is_some_and(|place| self.accepted.remove(place).is_some())
    }

    /// How many wait for accept().
    pub fn accepted_len(&self) -> usize {
        self.accepted.len()
    }

    /// Whether accept() would not block.
    #[inline]
    pub fn is_readable(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// LISTEN (RFC 9293 section 3.10.7.2).
    fn on_listen_segment(
        &mut self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        context: &Context<'_>,
    ) -> Verdict {
        if header.flags.contains(Flags::RST) {
            return Verdict::Drop(DropReason::StrayReset);
        }
        if header.flags.contains(Flags::ACK) {
            return match self.request_from_cookie(now, key, header, context) {
                None => Verdict::NotMine,
                Some(_) if self.is_full(context) => Verdict::Drop(DropReason::ListenOverflow),
                Some(request) => Verdict::Established(request),
            };
        }
        if !header.flags.contains(Flags::SYN) {
            return Verdict::Drop(DropReason::BadTcpFlags);
        }
        self.on_syn(now, key, header, context)
    }

    /// A SYN of a new connection. Data with it is ignored: the peer sends it again (TCP Fast Open
    /// is not offered).
    fn on_syn(
        &mut self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        context: &Context<'_>,
    ) -> Verdict {
        if !self.admit_syn(now) {
            return Verdict::Drop(DropReason::SynRate);
        }
        let most = self.backlog.max(self.settings.least_requests);
        let use_cookie = self.requests.len() >= most as usize;
        if use_cookie && !self.settings.syn_cookies {
            return Verdict::Drop(DropReason::RequestQueueFull);
        }
        if self.is_full(context) {
            return Verdict::Drop(DropReason::ListenOverflow);
        }
        let mut request = self.request_from_syn(now, key, header, context);
        if use_cookie {
            self.last_cookie = Some(now);
            return Verdict::Reply(bake(&mut request, now, context));
        }
        request.iss = context.secret.initial_sequence(now, &key);
        let reply = request.syn_ack(now);
        self.requests.insert(request, now.saturating_add(timeout(0)));
        Verdict::Reply(reply)
    }

    /// What a SYN asks for, as far as the settings allow it; ISS is missing.
    fn request_from_syn(
        &self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        context: &Context<'_>,
    ) -> Request {
        let (settings, options) = (&self.settings, &header.options);
        let stamp = options.timestamps.filter(|_| settings.timestamps);
        let peer_mss = options.mss.unwrap_or_else(|| default_mss(key.remote));
        // RFC 3168 section 6.1.1: an ECN-setup SYN has both, and must not be capable: who sets the field in each packet has not
        // read the RFC, or somebody on the way sets it (Linux: tcp_ecn_create_request).
        let asks_for_ecn = header.flags.contains(Flags::ECE.with(Flags::CWR))
            && context.ecn == EcnField::NotCapable;
        Request {
            key,
            irs: Seq::new(header.seq),
            iss: Seq::default(),
            peer_mss,
            our_mss: context.our_mss,
            window: header.window,
            announced_window: first_window(settings.window, peer_mss),
            window_scale: options.window_scale.filter(|_| settings.window_scaling),
            our_window_scale: settings.our_window_scale,
            sack_permitted: options.sack_permitted && settings.sack,
            timestamps: stamp.is_some(),
            recent_timestamp: stamp.map_or(0, |stamp| stamp.value),
            timestamp_offset: context.secret.timestamp_offset(&key),
            ecn: asks_for_ecn && settings.ecn,
            created: now,
            retransmissions: 0,
            is_from_cookie: false,
            timeouts: 0,
            acked: false,
            last_reply: None,
        }
    }

    /// The request that was answered with a cookie, if this ACK brings a good one.
    fn request_from_cookie(
        &self,
        now: Instant,
        key: FlowKey,
        header: &Header,
        context: &Context<'_>,
    ) -> Option<Request> {
        let since_cookie = now.saturating_duration_since(self.last_cookie?);
        if header.flags.contains(Flags::SYN) || since_cookie >= syn_cookie::LIFETIME {
            return None;
        }
        let irs = Seq::new(header.seq).minus(1);
        let iss = Seq::new(header.ack).minus(1);
        let peer_mss = syn_cookie::check(context.secret, now, &key, irs, iss)?;
        // The options of this segment are not those of the SYN, but show whether time stamps are on.
        let mut request = self.request_from_syn(now, key, header, context);
        let stamp = header.options.timestamps.filter(|_| self.settings.timestamps);
        let kept = stamp.map(|stamp| {
            StampedOptions::from_clock(stamp.echo.wrapping_sub(request.timestamp_offset))
        });
        request.irs = irs;
        request.iss = iss;
        request.peer_mss = peer_mss;
        request.window_scale = kept.and_then(|kept| kept.window_scale);
        request.sack_permitted = kept.is_some_and(|kept| kept.sack_permitted);
        request.ecn = kept.is_some_and(|kept| kept.ecn);
        request.is_from_cookie = true;
        Some(request)
    }

    /// Whether no connection can be taken. Linux's accept queue holds one more than the backlog.
    fn is_full(&self, context: &Context<'_>) -> bool {
        context.accept_queue_full || self.accepted.len() > self.backlog as usize
    }

    /// Counts a SYN; whether it is within the rate.
    fn admit_syn(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.syn_second) >= Duration::from_secs(1) {
            self.syn_second = now;
            self.syns = 0;
        }
        self.syns = self.syns.saturating_add(1);
        self.settings.max_syn_rate == 0 || self.syns <= self.settings.max_syn_rate
    }

    /// TCP_DEFER_ACCEPT as Linux counts it: the number of timeouts that span the time.
    fn deferral(&self) -> Option<u8> {
        let mut left = self.settings.defer_accept?;
        let mut timeouts = 0u8;
        while !left.is_zero() && timeouts < u8::MAX {
            left = left.saturating_sub(timeout(timeouts));
            timeouts = timeouts.saturating_add(1);
        }
        Some(timeouts)
    }
}

/// Makes the request's ISS a cookie and returns the SYN-ACK that keeps it in the network.
fn bake(request: &mut Request, now: Instant, context: &Context<'_>) -> Header {
    let (key, irs, peer_mss) = (request.key, request.irs, request.peer_mss);
    request.iss = syn_cookie::make(context.secret, now, &key, irs, peer_mss);
    let clock = timestamp_clock(now);
    if !request.timestamps {
        request.window_scale = None;
        request.sack_permitted = false;
        request.ecn = false;
        return request.syn_ack_at(clock);
    }
    let (window_scale, sack_permitted) = (request.window_scale, request.sack_permitted);
    let kept = StampedOptions { window_scale, sack_permitted, ecn: request.ecn };
    request.syn_ack_at(kept.into_clock(clock))
}

/// How long a SYN-ACK is waited for after so many timeouts (RFC 6298 sections 2.1 and 5.5).
fn timeout(timeouts: u8) -> Duration {
    let seconds = 1u64.checked_shl(u32::from(timeouts)).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(LONGEST_TIMEOUT)
}

/// Linux's TCP_RTO_MAX.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
