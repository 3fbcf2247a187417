//! A send that is not made: the segment is handed to the link, and nothing of the connection changes.

use super::{Connection, State};
use crate::tcp::{Link, Outgoing};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header};

impl<B> Connection<B> {
    /// Hands the segment that would carry these bytes now to the link, if there is one. False, without a segment, if they
    /// could not leave at once as one: the windows, what waits before them, or their number.
    pub fn rehearse(&self, payload: &[u8], now: Instant, link: Option<&mut impl Link<B>>) -> bool {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let offered = self.snd_una.plus(self.snd_wnd).ahead_of(self.snd_nxt);
        let in_flight = self.board.in_flight();
        let may_leave = matches!(self.state, State::Established | State::CloseWait)
            && !self.fin_queued
            && self.error.is_none()
            && (1..=self.mss).contains(&len)
            && self.snd_nxt == self.data_end()
            && len <= offered
            && in_flight.saturating_add(len) <= self.congestion.cwnd();
        if !may_leave {
            return false;
        }
        let Some(link) = link else { return true };
        let mut segment = Outgoing {
            header: Header::default(),
            payload: [payload, &[]],
            segment_size: self.mss,
            ecn_capable: self.ecn.enabled,
        };
        let flags = Flags::ACK.with(Flags::PSH);
        self.fill_common(&mut segment.header, now, self.snd_nxt, flags);
        let window = self.announced.edge.ahead_of(self.rcv_nxt);
        let units = window.wrapping_shr(u32::from(self.rcv_scale)).min(u32::from(u16::MAX));
        segment.header.window = units as u16;
        link.emit(&segment);
        true
    }
}
