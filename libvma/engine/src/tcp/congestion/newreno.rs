//! The linear increase and the halving of RFC 5681, counted in bytes (RFC 3465).

use super::Window;

/// What NewReno adds to a window.
#[derive(Clone, Debug, Default)]
pub struct NewReno {
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl NewReno {
    pub(super) fn on_ack(&mut self, window: &mut Window, acked_bytes: u32) {
        let acked_bytes =
            if window.is_slow_start() { window.slow_start(acked_bytes) } else { acked_bytes };
        // RFC 3465 2.1: a segment for every window of bytes acknowledged. No division, and at most
        // one segment for one ACK.
        self.acked = self.acked.saturating_add(acked_bytes);
        if self.acked >= window.cwnd {
            self.acked = self.acked.saturating_sub(window.cwnd).min(window.cwnd);
            window.grow(window.mss);
        }
    }

    /// RFC 5681 equation 4.
    pub(super) fn reduce(&mut self, window: &mut Window, flight: u32) {
        self.acked = 0;
        window.set_ssthresh(flight >> 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::tests::{Flow, MSS};
    use crate::tcp::congestion::{Algorithm, INFINITE_SSTHRESH};

    // covers: NET-36
    #[test]
    fn slow_start_doubles_every_round_trip() {
        let mut flow = Flow::new(Algorithm::NewReno, 10_000);
        assert_eq!(flow.congestion.cwnd(), 10 * MSS);
        for round in 1..8 {
            flow.round();
            assert_eq!(flow.congestion.cwnd(), (10 * MSS) << round);
        }
    }

    #[test]
    fn congestion_avoidance_adds_a_segment_every_round_trip() {
        let mut flow = Flow::new(Algorithm::NewReno, 10_000);
        flow.lose_at(100 * MSS);
        assert_eq!(flow.congestion.cwnd(), 50 * MSS);
        for round in 1..=200 {
            flow.round();
            assert_eq!(flow.congestion.cwnd(), (50 + round) * MSS);
        }
    }

    #[test]
    fn an_ack_for_a_whole_window_adds_one_segment() {
        let mut window = Window { cwnd: 20 * MSS, ssthresh: 10 * MSS, mss: MSS };
        let mut reno = NewReno::default();
        for round in 1..10 {
            let cwnd = window.cwnd;
            reno.on_ack(&mut window, cwnd);
            assert_eq!(window.cwnd, (20 + round) * MSS);
        }
    }

    #[test]
    fn a_stretch_ack_across_the_threshold_is_shared_out() {
        let mut window = Window { cwnd: 8 * MSS, ssthresh: 10 * MSS, mss: MSS };
        let mut reno = NewReno::default();
        reno.on_ack(&mut window, 8 * MSS);
        assert_eq!((window.cwnd, reno.acked), (10 * MSS, 6 * MSS));
        reno.on_ack(&mut window, 4 * MSS);
        assert_eq!((window.cwnd, reno.acked), (11 * MSS, 0));
    }

    #[test]
    fn a_loss_halves_the_flight() {
        let mut flow = Flow::new(Algorithm::NewReno, 1000);
        assert_eq!(flow.congestion.ssthresh(), INFINITE_SSTHRESH);
        flow.congestion.set_cwnd(100 * MSS);
        flow.congestion.on_loss(flow.now, 60 * MSS);
        assert_eq!((flow.congestion.cwnd(), flow.congestion.ssthresh()), (100 * MSS, 30 * MSS));
    }
}
