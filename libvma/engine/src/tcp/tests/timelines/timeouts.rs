//! The limits of the retransmission timeout that the host sets (net.ipv4.tcp_rto_min_us, tcp_rto_max_ms), and what follows from
//! them. Those of a socket are in [`probes`](super::probes).

use super::super::script::{plain, selective};
use super::{connect, established};
use crate::tcp::{Millis, Settings};

/// The settings are those of the host, not of the socket. Linux has them as settings of its network namespace.
fn of_the_host(settings: Settings) -> Settings {
    settings
}

/// RFC 6298 section 2.4: the least timeout is what the round trip is exceeded by.
#[test]
fn the_least_timeout_of_the_host_is_kept() {
    established(
        of_the_host(Settings { least_rto: Millis::from_millis(50), ..plain() }),
        "0   write 100
         0   > PA 1+100 a1
         60  > PA 1+100 a1
         180 > PA 1+100 a1
         400 < A 1+0 a101
         400 end",
    );
}

/// RFC 8985 section 7.2: the loss probe allows for an acknowledgment that is delayed as long as ours may be.
#[test]
fn the_loss_probe_follows_the_least_timeout_of_the_host() {
    established(
        of_the_host(Settings { least_rto: Millis::from_millis(100), ..selective() }),
        "0   write 100
         0   > PA 1+100 a1
         110 > PA 1+100 a1
         130 < A 1+0 a101
         130 end",
    );
}

/// Linux, tcp_probe0_base: the peer's window is not asked about more often for a shorter timeout.
#[test]
fn window_probes_do_not_follow_a_shorter_timeout() {
    established(
        of_the_host(Settings { least_rto: Millis::from_millis(50), ..plain() }),
        "0   < A 1+0 a1 w=0
         0   write 100
         200 > A 0+0 a1
         600 > A 0+0 a1
         720 < A 1+0 a1 w=1000
         720 > PA 1+100 a1
         730 < A 1+0 a101
         730 end",
    );
}

/// Linux, tcp_delack_max: an acknowledgment is not delayed for longer than the peer's timeout, which is taken for one like the
/// own.
#[test]
fn acknowledgments_follow_the_least_timeout_of_the_host() {
    established(
        of_the_host(Settings { least_rto: Millis::from_millis(11), ..plain() }),
        "0  pingpong
         0  < A 1+100 a1
         10 > A 1+0 a101
         10 end",
    );
}

/// RFC 6298 section 5.5: the doubling ends at the largest timeout.
#[test]
fn the_largest_timeout_of_the_host_is_kept() {
    established(
        of_the_host(Settings { most_rto: Millis::from_millis(1000), ..plain() }),
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         630  > PA 1+100 a1
         1470 > PA 1+100 a1
         2470 > PA 1+100 a1
         3470 > PA 1+100 a1
         3900 < A 1+0 a101
         3900 end",
    );
}

/// The same for the SYN.
#[test]
fn a_syn_follows_the_largest_timeout_of_the_host() {
    connect(
        of_the_host(Settings { most_rto: Millis::from_millis(1000), ..plain() }),
        "0    connect
         0    > S 0+0
         1000 > S 0+0
         2000 > S 0+0
         3000 > S 0+0
         3500 < SA 0+0 a1 mss=1460
         3500 > A 1+0 a1
         3500 end",
    );
}
