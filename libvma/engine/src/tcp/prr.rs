//! Proportional Rate Reduction (RFC 6937, with the progress test of RFC 9937): how much may be sent
//! on each ACK of a fast recovery. What to send, and whether it is lost, is decided elsewhere.

/// One fast recovery. Brings the data in flight down to the slow start threshold evenly over one
/// round trip, and back up to it when losses brought it lower.
///
/// For every ACK: [`on_ack`](Self::on_ack), set the congestion window to the data in flight plus its
/// answer, send, and report what was sent to [`on_sent`](Self::on_sent), retransmissions included.
#[derive(Clone, Debug, Default)]
pub struct Prr {
    /// Bytes the peer got during this recovery.
    delivered: u64,
    /// Bytes sent during this recovery.
    sent: u64,
    /// The data in flight when recovery began, in bytes: RecoverFS of the RFC.
    recover_flight: u32,
    ssthresh: u32,
    /// What the last ACK allowed and was not sent yet.
    allowance: u32,
}

impl Prr {
    /// Starts a recovery with `recover_flight` bytes outstanding (those the peer reported before
    /// left out), which is to end with `ssthresh` bytes in flight.
    pub fn start(recover_flight: u32, ssthresh: u32) -> Self {
        // At least one, because it divides.
        Self { recover_flight: recover_flight.max(1), ssthresh, ..Self::default() }
    }

    /// The bytes that may be sent now. `delivered` are the bytes this ACK newly reports,
    /// cumulatively or selectively; `in_flight` is the estimate after it (pipe of RFC 6675).
    /// `makes_progress` says that the ACK advances SND.UNA and reports no further loss, SafeACK of
    /// RFC 9937: only then is there room to grow beyond what leaves the network.
    pub fn on_ack(
        &mut self,
        delivered: u32,
        in_flight: u32,
        mss: u32,
        makes_progress: bool,
    ) -> u32 {
        // RFC 9937: an ACK that delivers nothing changes nothing, or a peer could clock data out by
        // repeating itself. The ACK that starts the recovery still gets its retransmission.
        if delivered == 0 && self.sent != 0 {
            return self.allowance;
        }
        self.delivered = self.delivered.saturating_add(u64::from(delivered));
        let unsent = self.delivered.saturating_sub(self.sent);
        let allowance = if in_flight > self.ssthresh {
            // The part of the target that this part of the old flight pays for, rounded up.
            self.delivered
                .saturating_mul(u64::from(self.ssthresh))
                .div_ceil(u64::from(self.recover_flight))
                .saturating_sub(self.sent)
        } else {
            // Packet conservation; and slow start, one segment an ACK, while losses stay away.
            let conserved = unsent.max(u64::from(delivered));
            let extra = if makes_progress { mss } else { 0 };
            let missing = self.ssthresh.saturating_sub(in_flight);
            conserved.saturating_add(u64::from(extra)).min(u64::from(missing))
        };
        let allowance = u32::try_from(allowance).unwrap_or(u32::MAX);
        // RFC 9937: the first retransmission goes out in any case.
        self.allowance = if self.sent == 0 { allowance.max(mss) } else { allowance };
        self.allowance
    }

    /// `bytes` were sent, new or again.
    pub fn on_sent(&mut self, bytes: u32) {
        self.sent = self.sent.saturating_add(u64::from(bytes));
        self.allowance = self.allowance.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MSS: u32 = 1000;

    /// Sends whole segments only, as a connection does; `in_flight` grows by what was sent.
    fn send(prr: &mut Prr, allowance: u32, in_flight: &mut u32) -> u32 {
        let sent = allowance / MSS * MSS;
        prr.on_sent(sent);
        *in_flight += sent;
        sent
    }

    #[test]
    fn sends_the_threshold_over_a_recovery() {
        // One of a hundred segments is lost, the other 99 are reported one by one.
        for ssthresh_segments in [30, 50, 70] {
            let ssthresh = ssthresh_segments * MSS;
            let mut prr = Prr::start(100 * MSS, ssthresh);
            let (mut in_flight, mut total) = (99 * MSS, 0);
            for _ in 0..99 {
                in_flight -= MSS;
                let allowance = prr.on_ack(MSS, in_flight, MSS, false);
                total += send(&mut prr, allowance, &mut in_flight);
            }
            assert!(total.abs_diff(ssthresh) <= MSS, "{total} of {ssthresh}");
            assert!(in_flight.abs_diff(ssthresh) <= MSS, "{in_flight} of {ssthresh}");
        }
    }

    #[test]
    fn the_reduction_is_even() {
        let mut prr = Prr::start(100 * MSS, 50 * MSS);
        let (mut in_flight, mut total) = (99 * MSS, 0);
        for ack in 1..=90 {
            in_flight -= MSS;
            let allowance = prr.on_ack(MSS, in_flight, MSS, false);
            total += send(&mut prr, allowance, &mut in_flight);
            assert!(total.abs_diff(ack * MSS / 2) <= MSS, "ACK {ack}: {total}");
        }
    }

    #[test]
    fn the_first_retransmission_is_always_allowed() {
        let mut prr = Prr::start(10 * MSS, 5 * MSS);
        assert_eq!(prr.on_ack(0, 9 * MSS, MSS, false), MSS);
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(0, 9 * MSS, MSS, false), 0);
    }

    #[test]
    fn an_ack_that_delivers_nothing_keeps_what_is_left() {
        let mut prr = Prr::start(10 * MSS, 5 * MSS);
        assert_eq!(prr.on_ack(6 * MSS, 4 * MSS, MSS, true), MSS);
        prr.on_sent(400);
        assert_eq!(prr.on_ack(0, 4 * MSS + 400, MSS, false), MSS - 400);
        prr.on_sent(MSS - 400);
        assert_eq!(prr.on_ack(0, 5 * MSS, MSS, false), 0);
    }

    #[test]
    fn after_a_burst_of_losses_it_conserves_packets_until_progress() {
        // 90 of 100 segments are lost: 9 in flight, far below the threshold.
        let mut bound = Prr::start(100 * MSS, 50 * MSS);
        bound.on_sent(MSS);
        bound.on_ack(MSS, 9 * MSS, MSS, false);
        assert_eq!(bound.on_ack(MSS, 8 * MSS, MSS, false), MSS);
        let mut slow_start = Prr::start(100 * MSS, 50 * MSS);
        slow_start.on_sent(MSS);
        slow_start.on_ack(MSS, 9 * MSS, MSS, true);
        assert_eq!(slow_start.on_ack(MSS, 8 * MSS, MSS, true), 2 * MSS);
    }

    #[test]
    fn never_exceeds_the_threshold_while_catching_up() {
        let mut prr = Prr::start(100 * MSS, 50 * MSS);
        assert_eq!(prr.on_ack(60 * MSS, 49 * MSS, MSS, true), MSS);
        assert_eq!(prr.on_ack(MSS, 50 * MSS, MSS, true), MSS, "nothing sent yet: forced");
        prr.on_sent(MSS);
        assert_eq!(prr.on_ack(MSS, 50 * MSS, MSS, true), 0);
    }

    proptest! {
        #[test]
        fn neither_panics_nor_floods(
            recover_flight: u32,
            ssthresh: u32,
            acks in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 0..50),
        ) {
            let mut prr = Prr::start(recover_flight, ssthresh);
            for (delivered, in_flight, makes_progress) in acks {
                let allowance = prr.on_ack(delivered, in_flight, MSS, makes_progress);
                prr.on_sent(allowance);
                if in_flight <= ssthresh {
                    prop_assert!(allowance <= (ssthresh - in_flight).max(MSS));
                }
            }
        }

        #[test]
        fn ends_at_the_threshold_whatever_is_lost(
            flight in 10u32..500,
            lost_per_mille in 1u32..400,
            reduction in 3u32..8,
        ) {
            let ssthresh = (flight * reduction / 10).max(2) * MSS;
            let lost = (flight * lost_per_mille / 1000).max(1);
            let mut prr = Prr::start(flight * MSS, ssthresh);
            let mut in_flight = (flight - lost) * MSS;
            // Two round trips: all that is in flight is delivered, and what is sent meanwhile.
            for _ in 0..2 {
                for _ in 0..in_flight / MSS {
                    in_flight -= MSS;
                    let allowance = prr.on_ack(MSS, in_flight, MSS, true);
                    send(&mut prr, allowance, &mut in_flight);
                }
            }
            prop_assert!(in_flight <= ssthresh + MSS);
            prop_assert!(in_flight + 2 * MSS >= ssthresh, "{} of {}", in_flight, ssthresh);
        }
    }
}
