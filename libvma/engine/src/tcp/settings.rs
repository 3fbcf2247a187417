//! What socket options, parameters and the system's defaults set for a connection. Nothing that
//! changes by itself.

use core::time::Duration;

use super::congestion::Algorithm;
use super::rtt::{MAX_RTO, MIN_VARIANCE};

/// A time of up to seven weeks, in a quarter of the room of a [`Duration`]: each connection has several. The kernel, too, rounds
/// such times up to its ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(u32);

impl Millis {
    pub const fn from_secs(seconds: u32) -> Millis {
        Millis(seconds.saturating_mul(1000))
    }

    pub const fn from_millis(millis: u32) -> Millis {
        Millis(millis)
    }

    pub const fn from_micros(micros: u32) -> Millis {
        Millis(micros.div_ceil(1000))
    }

    const fn of(time: Duration) -> Millis {
        Millis(time.as_millis() as u32)
    }

    #[inline]
    pub(super) fn nanos(self) -> u64 {
        u64::from(self.0) * 1_000_000
    }
}

impl From<Millis> for Duration {
    #[inline]
    fn from(time: Millis) -> Duration {
        Duration::from_millis(time.0.into())
    }
}

/// A buffer of a socket, in payload bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Now.
    pub limit: u32,
    /// The most that automatic tuning makes of it.
    pub most: u32,
    /// Tuned automatically: neither SO_SNDBUF nor SO_RCVBUF was set.
    pub automatic: bool,
}

/// Options of a connection, with Linux's defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// TCP_NODELAY: no Nagle algorithm.
    pub nodelay: bool,
    /// TCP_CORK: no partial segments.
    pub cork: bool,
    /// Acknowledge at once, always (VMA_TCP_QUICKACK).
    pub always_quick_ack: bool,
    /// The first acknowledgments wait for something of the program's that carries them: those of the peer's first data, which are
    /// a request or the reply to one, and that of its SYN, where the program connects.
    pub first_ack_waits: bool,
    /// SO_KEEPALIVE.
    pub keep_alive: bool,
    /// TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT (RFC 1122 section 4.2.3.6).
    pub keep_idle: Millis,
    pub keep_interval: Millis,
    pub keep_count: u8,
    /// TCP_USER_TIMEOUT (RFC 5482).
    pub user_timeout: Option<Duration>,
    /// TCP_LINGER2: how long FIN-WAIT-2 lasts after close. None: the connection ends at once.
    pub fin_timeout: Option<Duration>,
    /// SO_LINGER with a time of 0: close resets.
    pub reset_on_close: bool,
    /// TCP_MAXSEG.
    pub max_segment: Option<u16>,
    /// TCP_WINDOW_CLAMP; u32::MAX is none.
    pub window_clamp: u32,
    /// TCP_NOTSENT_LOWAT; u32::MAX is none.
    pub unsent_low_water: u32,
    /// TCP_SYNCNT: retransmissions of a SYN.
    pub syn_retries: u8,
    /// TCP_RTO_MIN_US: what the retransmission timeout exceeds the round-trip time by, at least.
    pub least_rto: Millis,
    /// TCP_RTO_MAX_MS.
    pub most_rto: Millis,
    /// TCP_DELACK_MAX_US.
    pub most_ack_delay: Millis,
    /// Retransmissions of data before giving up (tcp_retries2).
    pub retries: u8,
    /// The same after close (tcp_orphan_retries).
    pub orphan_retries: u8,
    pub congestion: Algorithm,
    pub send_buffer: Buffer,
    pub receive_buffer: Buffer,
    /// Bytes, overhead included, up to which a receive buffer of this host may grow (tcp_rmem, rmem_max). The
    /// window scale is announced for it.
    pub largest_receive_buffer: u32,
    /// SO_RCVLOWAT.
    pub receive_low_water: u32,
    /// SO_OOBINLINE.
    pub urgent_inline: bool,
    /// Ask for ECN when connecting; it is always granted to a peer that asks (tcp_ecn = 1).
    pub ecn: bool,
    /// A SYN that is sent again does not ask for it (tcp_ecn_fallback).
    pub ecn_fallback: bool,
    pub timestamps: bool,
    pub window_scaling: bool,
    pub sack: bool,
    /// RST does not end TIME-WAIT (tcp_rfc1337).
    pub rfc_1337: bool,
    /// How long TIME-WAIT lasts.
    pub time_wait_millis: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            nodelay: false,
            cork: false,
            always_quick_ack: false,
            first_ack_waits: false,
            keep_alive: false,
            keep_idle: Millis::from_secs(7200),
            keep_interval: Millis::from_secs(75),
            keep_count: 9,
            user_timeout: None,
            fin_timeout: Some(Duration::from_secs(60)),
            reset_on_close: false,
            max_segment: None,
            window_clamp: u32::MAX,
            unsent_low_water: u32::MAX,
            syn_retries: 6,
            least_rto: Millis::of(MIN_VARIANCE),
            most_rto: Millis::of(MAX_RTO),
            most_ack_delay: Millis::from_millis(200),
            retries: 15,
            orphan_retries: 8,
            congestion: Algorithm::Cubic,
            send_buffer: Buffer { limit: 87_040, most: 4 << 20, automatic: true },
            receive_buffer: Buffer { limit: 65_536, most: 3 << 20, automatic: true },
            largest_receive_buffer: 0,
            receive_low_water: 1,
            urgent_inline: false,
            ecn: false,
            ecn_fallback: true,
            timestamps: true,
            window_scaling: true,
            sack: true,
            rfc_1337: false,
            time_wait_millis: 60_000,
        }
    }
}

impl Settings {
    #[inline]
    pub(super) fn least_rto_nanos(&self) -> u64 {
        self.least_rto.nanos()
    }

    /// The longest delay of an acknowledgment: shorter than the peer's timeout, which is taken for one like the
    /// own (Linux: tcp_delack_max()).
    #[inline]
    pub(super) fn ack_delay(&self) -> Duration {
        const USUAL: Duration = Duration::from_millis(40);
        const TICK: Duration = Duration::from_millis(1);
        let least = Duration::from(self.least_rto);
        let most = Duration::from(self.most_ack_delay).min(least.saturating_sub(TICK).max(TICK));
        most.min(USUAL)
    }
}
