//! Congestion control: how much may be in flight. When it grows, when it shrinks and by how much is
//! here; what is in flight, what is lost and when to send is not.
//!
//! - [`newreno`] is RFC 5681, a segment per round trip;
//! - [`cubic`] is RFC 9438, with the slow start of [`hystart`] (RFC 9406);
//! - [`none`](mod@none) lets the peer's receive window be the only limit.

pub mod cubic;
pub mod hystart;
pub mod newreno;
pub mod none;

#[cfg(test)]
mod tests;

use core::time::Duration;

use crate::tcp::rtt::RttEstimator;
use crate::time::Instant;

use cubic::Cubic;
use newreno::NewReno;

/// The slow start threshold of a connection that has seen no congestion: "arbitrarily high" (RFC
/// 5681 3.1).
pub const INFINITE_SSTHRESH: u32 = u32::MAX;

/// The largest window that could ever be used: what a window of 16 bits scaled by 14 can offer (RFC
/// 7323 2.3). Stopping here keeps every product below in 64 bits.
pub const MAX_CWND: u32 = 1 << 30;

/// How a connection's window answers to ACKs and losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "VMA_TCP_CC_ALGO")]
#[doc(alias = "TCP_CONGESTION")]
pub enum Algorithm {
    #[default]
    NewReno,
    Cubic,
    None,
}

impl Algorithm {
    /// From the kernel's name of it, as `TCP_CONGESTION` gives it.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::NewReno, Self::Cubic, Self::None].into_iter().find(|it| it.name() == name)
    }

    /// From the value of `VMA_TCP_CC_ALGO`.
    pub const fn from_parameter(value: u64) -> Option<Self> {
        match value {
            0 => Some(Self::NewReno),
            1 => Some(Self::Cubic),
            2 => Some(Self::None),
            _ => None,
        }
    }

    /// The kernel's name; `none` is unknown to it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NewReno => "reno",
            Self::Cubic => "cubic",
            Self::None => "none",
        }
    }
}

/// The congestion control of one connection.
///
/// An episode starts with [`on_loss`](Self::on_loss) or [`on_rto`](Self::on_rto) and ends with
/// [`on_recovery_exit`](Self::on_recovery_exit) or [`undo`](Self::undo). During a fast recovery
/// [`set_cwnd`](Self::set_cwnd) moves the window and [`on_ack`](Self::on_ack) does nothing; after a
/// timeout `on_ack` makes the window grow again at once.
///
/// No window is ever below one segment, and none in congestion avoidance is below two. Every event
/// comes with its time, whether or not an algorithm of today looks at it.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: Window,
    episode: Episode,
    /// What [`undo`](Self::undo) goes back to.
    prior: Option<Prior>,
    state: State,
}

/// The window itself, which every algorithm moves. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    cwnd: u32,
    ssthresh: u32,
    mss: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Episode {
    Open,
    FastRecovery,
    Timeout,
}

#[derive(Clone, Copy, Debug)]
struct Prior {
    cwnd: u32,
    ssthresh: u32,
}

#[derive(Clone, Debug)]
enum State {
    NewReno(NewReno),
    Cubic(Cubic),
    None,
}

impl Congestion {
    /// A connection's start. When its SYN was lost, it shall continue with
    /// `set_cwnd(mss)` (RFC 5681 3.1).
    pub fn new(algorithm: Algorithm, mss: u32) -> Self {
        let mss = bounded_mss(mss);
        let window = Window { cwnd: initial_window(mss), ssthresh: INFINITE_SSTHRESH, mss };
        Self { window, episode: Episode::Open, prior: None, state: State::new(algorithm) }
    }

    /// The handshake or path MTU discovery found another segment size. The window stays what it is
    /// in bytes, unless it is still the initial one.
    pub fn set_mss(&mut self, mss: u32) {
        let window = &mut self.window;
        let is_initial =
            window.ssthresh == INFINITE_SSTHRESH && window.cwnd == initial_window(window.mss);
        window.mss = bounded_mss(mss);
        window.ssthresh = window.ssthresh.max(window.minimum_ssthresh());
        let cwnd = if is_initial { initial_window(window.mss) } else { window.cwnd };
        window.set(cwnd);
    }

    /// Goes on with another algorithm from the present window and threshold.
    #[doc(alias = "TCP_CONGESTION")]
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        if algorithm != self.algorithm() {
            self.state = State::new(algorithm);
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        match self.state {
            State::NewReno(_) => Algorithm::NewReno,
            State::Cubic(_) => Algorithm::Cubic,
            State::None => Algorithm::None,
        }
    }

    /// The bytes that may be in flight.
    pub fn cwnd(&self) -> u32 {
        if self.is_unlimited() { none::CWND } else { self.window.cwnd }
    }

    /// The bytes at which exponential growth ends; [`INFINITE_SSTHRESH`] before any congestion.
    pub fn ssthresh(&self) -> u32 {
        if self.is_unlimited() { none::SSTHRESH } else { self.window.ssthresh }
    }

    pub fn is_slow_start(&self) -> bool {
        self.cwnd() < self.ssthresh()
    }

    /// `acked_bytes` were newly acknowledged of the `in_flight_before` that were out.
    /// `is_cwnd_limited` says whether the window was what kept the sender from sending more: a
    /// window nobody fills proves nothing and does not grow (RFC 7661, RFC 9438 5.8).
    #[inline]
    pub fn on_ack(
        &mut self,
        now: Instant,
        acked_bytes: u32,
        in_flight_before: u32,
        rtt: &RttEstimator,
        is_cwnd_limited: bool,
    ) {
        if self.episode == Episode::FastRecovery || acked_bytes == 0 {
            return;
        }
        match &mut self.state {
            State::NewReno(reno) if is_cwnd_limited => reno.on_ack(&mut self.window, acked_bytes),
            State::Cubic(cubic) => {
                let ack = cubic::Ack { now, acked_bytes, in_flight_before, rtt, is_cwnd_limited };
                cubic.on_ack(&mut self.window, &ack);
            }
            State::NewReno(_) | State::None => {}
        }
    }

    /// Fast retransmit starts, with `in_flight` bytes outstanding (RFC 5681 3.2). Sets the
    /// threshold; the window is for proportional rate reduction to bring there.
    pub fn on_loss(&mut self, _now: Instant, in_flight: u32) {
        if self.is_unlimited() {
            return;
        }
        self.remember();
        self.episode = Episode::FastRecovery;
        self.reduce_ssthresh(in_flight);
    }

    /// The retransmission timer expired, with `in_flight` bytes outstanding. `first` when these are
    /// not retransmissions already: repeated timeouts must not lower the threshold further (RFC
    /// 5681 3.1).
    pub fn on_rto(&mut self, _now: Instant, in_flight: u32, first: bool) {
        if self.is_unlimited() {
            return;
        }
        self.remember();
        self.episode = Episode::Timeout;
        if first {
            self.reduce_ssthresh(in_flight);
        }
        if let State::Cubic(cubic) = &mut self.state {
            cubic.on_timeout();
        }
        self.window.set(self.window.mss);
    }

    /// The peer echoes congestion (ECE). The reaction is that to a loss, and final: nothing was lost, so nothing
    /// can turn out to be spurious (RFC 3168 6.1.2). At most once per window of data, which the caller sees to.
    pub fn on_echo(&mut self, _now: Instant, in_flight: u32) {
        if self.is_unlimited() {
            return;
        }
        self.prior = None;
        self.episode = Episode::FastRecovery;
        self.reduce_ssthresh(in_flight);
    }

    /// A loss probe has repaired a loss: the window shrinks at once, and nothing is left to recover from.
    pub fn on_repaired_loss(&mut self, _now: Instant, in_flight: u32) {
        if self.is_unlimited() {
            return;
        }
        self.prior = None;
        self.reduce_ssthresh(in_flight);
        self.window.set(self.window.cwnd.min(self.window.ssthresh));
    }

    /// All that was out when the episode began is acknowledged. A fast recovery ends at the
    /// threshold (RFC 6937 3); after a timeout slow start just goes on.
    pub fn on_recovery_exit(&mut self, _now: Instant) {
        if self.episode == Episode::FastRecovery {
            self.window.set(self.window.ssthresh);
        }
        self.episode = Episode::Open;
    }

    /// The episode was a mistake: nothing had been lost (RFC 3522, RFC 3708, RFC 5682). Window and
    /// threshold are as if it had not been (RFC 4015 3.2, RFC 9438 4.9). False: there is nothing to undo.
    pub fn undo(&mut self) -> bool {
        let Some(prior) = self.prior.take() else { return false };
        self.episode = Episode::Open;
        self.window.ssthresh = prior.ssthresh.max(self.window.minimum_ssthresh());
        self.window.set(self.window.cwnd.max(prior.cwnd));
        if let State::Cubic(cubic) = &mut self.state {
            cubic.undo();
        }
        true
    }

    /// Nothing was sent for `idle`, and now something will be. Halves the window for every `rto` that
    /// passed, down to the restart window: the gentler form of RFC 5681 4.1 that RFC 2861 describes
    /// and Linux has. The threshold remembers what was (RFC 2861 3.2).
    #[doc(alias = "tcp_slow_start_after_idle")]
    pub fn after_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        if self.is_unlimited() {
            return;
        }
        let window = &mut self.window;
        let halvings = idle.as_nanos().checked_div(rto.as_nanos()).unwrap_or(0);
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        let restart_window = initial_window(window.mss).min(window.cwnd);
        let cwnd = window.cwnd.checked_shr(halvings).unwrap_or(0).max(restart_window);
        let shrinks = cwnd < window.cwnd;
        if shrinks {
            let three_quarters = window.cwnd.saturating_sub(window.cwnd >> 2);
            window.set_ssthresh(window.ssthresh.max(three_quarters));
            window.set(cwnd);
        }
        if let State::Cubic(cubic) = &mut self.state {
            cubic.after_idle(now, idle, shrinks);
        }
    }

    /// Sets the window, within bounds. For the recovery in progress, and for a start with less than
    /// the initial window.
    pub fn set_cwnd(&mut self, bytes: u32) {
        if !self.is_unlimited() {
            self.window.set(bytes);
        }
    }

    /// Starts with the window and the threshold that another stack has found, as far as they are known.
    pub fn resume(&mut self, cwnd: Option<u32>, ssthresh: Option<u32>) {
        if self.is_unlimited() {
            return;
        }
        if let Some(ssthresh) = ssthresh {
            self.window.set_ssthresh(ssthresh);
        }
        if let Some(cwnd) = cwnd {
            self.window.set(cwnd);
        }
    }

    fn is_unlimited(&self) -> bool {
        matches!(self.state, State::None)
    }

    /// What an undo restores is the state before the episode, whatever follows within it: a timeout
    /// during fast recovery does not make the reduced window the one to go back to.
    fn remember(&mut self) {
        if self.episode != Episode::Open {
            return;
        }
        self.prior = Some(Prior { cwnd: self.window.cwnd, ssthresh: self.window.ssthresh });
        if let State::Cubic(cubic) = &mut self.state {
            cubic.remember();
        }
    }

    fn reduce_ssthresh(&mut self, in_flight: u32) {
        let flight = self.window.flight(in_flight);
        match &mut self.state {
            State::NewReno(reno) => reno.reduce(&mut self.window, flight),
            State::Cubic(cubic) => cubic.reduce(&mut self.window, flight),
            State::None => {}
        }
    }
}

impl State {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::NewReno => Self::NewReno(NewReno::default()),
            Algorithm::Cubic => Self::Cubic(Cubic::default()),
            Algorithm::None => Self::None,
        }
    }
}

impl Window {
    fn is_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    fn set(&mut self, cwnd: u32) {
        self.cwnd = cwnd.clamp(self.mss, MAX_CWND);
    }

    fn grow(&mut self, bytes: u32) {
        self.set(self.cwnd.saturating_add(bytes));
    }

    /// Exponential growth up to the threshold, by all that was acknowledged (RFC 3465 2.2 with
    /// Linux's limit: none, because one ACK may stand for many). What is left over is for
    /// congestion avoidance.
    fn slow_start(&mut self, acked_bytes: u32) -> u32 {
        let room = self.ssthresh.saturating_sub(self.cwnd);
        let step = acked_bytes.min(room);
        self.grow(step);
        acked_bytes.saturating_sub(step)
    }

    /// RFC 5681 equation 4 and RFC 9438 4.6 have the same lower bound.
    fn set_ssthresh(&mut self, bytes: u32) {
        self.ssthresh = bytes.max(self.minimum_ssthresh());
    }

    fn minimum_ssthresh(&self) -> u32 {
        self.mss.saturating_mul(2)
    }

    /// FlightSize as the threshold is computed from it: without what limited transmit sent beyond
    /// the window (RFC 5681 3.2 step 2).
    fn flight(&self, in_flight: u32) -> u32 {
        in_flight.min(self.cwnd)
    }
}

/// RFC 6928 section 2: ten segments, but no more than 14600 bytes unless that were less than two.
fn initial_window(mss: u32) -> u32 {
    let ten = mss.saturating_mul(10);
    ten.min(mss.saturating_mul(2).max(14_600))
}

/// A segment is never empty, and never longer than IPv4's total length can say.
fn bounded_mss(mss: u32) -> u32 {
    mss.clamp(1, 0xffff)
}
