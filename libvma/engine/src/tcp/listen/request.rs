//! One half-open connection of a listener: SYN-RECEIVED in as few bytes as a SYN flood deserves.

use super::super::isn::timestamp_clock;
use super::super::lookup::FlowKey;
use super::super::seq::Seq;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header, Options, Timestamps};

/// A SYN that was answered, and what both sides agreed on with it.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: FlowKey,
    /// The peer's initial sequence number.
    pub irs: Seq,
    /// Ours.
    pub iss: Seq,
    /// The MSS option of the SYN, or the default.
    pub peer_mss: u16,
    /// The MSS option of our SYN-ACK.
    pub our_mss: u16,
    /// The window in the SYN, which is never scaled.
    pub window: u16,
    /// The window in our SYN-ACK, not scaled either: below 64 KiB.
    pub announced_window: u32,
    /// The peer's window scale. None: windows are not scaled, in neither direction.
    pub window_scale: Option<u8>,
    /// Ours, if the peer has one.
    pub our_window_scale: u8,
    pub sack_permitted: bool,
    pub timestamps: bool,
    /// TS.Recent (RFC 7323 section 4.3).
    pub recent_timestamp: u32,
    /// What our time stamps are ahead of the clock.
    pub timestamp_offset: u32,
    /// ECN is agreed upon (RFC 3168 section 6.1.1).
    pub ecn: bool,
    /// When the SYN came. With `is_from_cookie` nobody knows, and this is now.
    pub created: Instant,
    /// How often the SYN-ACK was sent again.
    pub retransmissions: u8,
    /// Made from a SYN cookie: it is no measure of the round-trip time.
    pub is_from_cookie: bool,
    /// How often its timer expired.
    pub(super) timeouts: u8,
    /// The peer has acknowledged our SYN, but was ignored (TCP_DEFER_ACCEPT, full accept queue).
    pub(super) acked: bool,
    /// When the last reply to something other than the first SYN left.
    pub(super) last_reply: Option<Instant>,
}

impl Request {
    /// An earlier acknowledgment of our SYN was ignored, so the present one is no measure of the
    /// round-trip time.
    pub(in crate::tcp) fn was_ignored(&self) -> bool {
        self.acked
    }

    /// RCV.NXT: nothing but the SYN was received.
    #[inline]
    pub(super) fn rcv_nxt(&self) -> Seq {
        self.irs.plus(1)
    }

    /// The answer to the SYN.
    pub(super) fn syn_ack(&self, now: Instant) -> Header {
        self.syn_ack_at(timestamp_clock(now))
    }

    /// The same at a given reading of the time stamp clock.
    pub(super) fn syn_ack_at(&self, clock: u32) -> Header {
        let flags = Flags::SYN.with(Flags::ACK);
        Header {
            seq: self.iss.raw(),
            // RFC 3168 section 6.1.1: an ECN-setup SYN-ACK has ECE and not CWR.
            flags: if self.ecn { flags.with(Flags::ECE) } else { flags },
            window: u16::try_from(self.announced_window).unwrap_or(u16::MAX),
            options: Options {
                mss: Some(self.our_mss),
                window_scale: self.window_scale.map(|_| self.our_window_scale),
                sack_permitted: self.sack_permitted,
                timestamps: self.stamp(clock),
                ..Options::default()
            },
            ..self.reply()
        }
    }

    /// The answer to an unacceptable segment (RFC 9293 section 3.10.7.4), and the challenge of RFC
    /// 5961.
    pub(super) fn challenge(&self, now: Instant) -> Header {
        // RFC 7323 section 2.2: only the window of a segment with SYN is not scaled.
        let shift = self.window_scale.map_or(0, |_| self.our_window_scale);
        Header {
            seq: self.iss.plus(1).raw(),
            flags: Flags::ACK,
            window: (self.announced_window >> (shift & 15)) as u16,
            options: Options { timestamps: self.stamp(timestamp_clock(now)), ..Options::default() },
            ..self.reply()
        }
    }

    /// What ends the connection on the peer's side.
    pub(super) fn reset(&self) -> Header {
        let seq = self.iss.plus(1).raw();
        Header { seq, flags: Flags::RST.with(Flags::ACK), ..self.reply() }
    }

    /// What all replies have.
    fn reply(&self) -> Header {
        Header {
            src_port: self.key.local_port,
            dst_port: self.key.remote_port,
            ack: self.rcv_nxt().raw(),
            ..Header::default()
        }
    }

    fn stamp(&self, clock: u32) -> Option<Timestamps> {
        self.timestamps.then(|| Timestamps {
            value: clock.wrapping_add(self.timestamp_offset),
            echo: self.recent_timestamp,
        })
    }
}
