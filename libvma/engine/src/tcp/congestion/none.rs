//! No congestion control: for networks in which nothing is ever congested, or somebody else controls
//! it. The peer's receive window alone bounds the flight, and no loss changes anything.

/// The window: more than any peer can offer ([`MAX_CWND`](super::MAX_CWND)), and far enough from the
/// end of its type for sums.
pub const CWND: u32 = u32::MAX / 2;

/// The threshold. Being no more than the window, it says that there is no slow start; being no less,
/// that a recovery is to end where it began.
pub const SSTHRESH: u32 = CWND;

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::tcp::congestion::tests::{Flow, MSS};
    use crate::tcp::congestion::{Algorithm, MAX_CWND};

    // covers: NET-36
    #[test]
    fn nothing_changes_the_window() {
        const { assert!(CWND > MAX_CWND) };
        let mut flow = Flow::new(Algorithm::None, 1000);
        let hour = Duration::from_secs(3600);
        flow.congestion.on_loss(flow.now, 100 * MSS);
        flow.congestion.set_cwnd(MSS);
        flow.congestion.on_recovery_exit(flow.now);
        flow.congestion.on_rto(flow.now, 100 * MSS, true);
        flow.congestion.on_repaired_loss(flow.now, 100 * MSS);
        flow.congestion.undo();
        flow.congestion.after_idle(flow.now, hour, Duration::from_secs(1));
        flow.ack(MSS);
        assert_eq!((flow.congestion.cwnd(), flow.congestion.ssthresh()), (CWND, SSTHRESH));
        assert!(!flow.congestion.is_slow_start());
        // And what it did not do leaves no trace behind.
        flow.congestion.set_algorithm(Algorithm::Cubic);
        assert_eq!(flow.congestion.cwnd(), 10 * MSS);
        assert!(flow.congestion.is_slow_start());
    }
}
