//! The congestion window: how it begins, grows and falls. Losses are in [`recovery`](super::recovery).

use super::super::script::{plain, selective};
use super::{accepted, connect, established};
use crate::tcp::congestion::Algorithm;
use crate::tcp::{Millis, Settings};

/// RFC 6928: ten segments. RFC 5681 section 3.1: slow start adds what is acknowledged.
#[test]
fn slow_start_sends_two_segments_for_each_that_is_acknowledged() {
    established(
        plain(),
        "0  write 43800
         0  > A 1+1460*10 a1
         0  cwnd 14600
         10 < A 1+0 a1461
         10 > A 14601+1460*2 a1
         10 cwnd 16060
         10 < A 1+0 a4381
         10 > A 17521+1460*4 a1
         10 cwnd 18980
         10 end",
    );
}

/// RFC 6928: the initial window counts segments of the peer's size.
#[test]
fn the_initial_window_follows_the_segment_size() {
    accepted(plain(), "0 cwnd 5360\n0 end");
}

/// RFC 7661, RFC 9438 section 5.8: a window that is not used does not grow.
#[test]
fn an_unused_window_does_not_grow() {
    established(
        plain(),
        "0  write 2920
         0  > A 1+1460 a1
         0  > PA 1461+1460 a1
         10 < A 1+0 a2921
         10 cwnd 14600
         10 end",
    );
}

/// RFC 2861 as Linux has it (tcp_slow_start_after_idle): half for each RTO, not below the initial window.
#[test]
fn idle_time_shrinks_the_window() {
    established(
        plain(),
        "0    write 43800
         0    > A 1+1460*10 a1
         10   < A 1+0 a14601
         10   > A 14601+1460*10 a1
         10   > A 29201+1460*9 a1
         10   > PA 42341+1460 a1
         10   cwnd 29200
         20   < A 1+0 a43801
         1000 write 29200
         1000 > A 43801+1460*10 a1
         1000 cwnd 14600
         1000 end",
    );
}

/// The same with a shorter least timeout (TCP_RTO_MIN_US): RTO is 60 ms.
#[test]
fn idle_time_is_counted_in_timeouts_of_the_program() {
    established(
        Settings { least_rto: Millis::from_millis(50), nodelay: true, ..plain() },
        "0   write 43800
         0   > A 1+1460*10 a1
         10  < A 1+0 a14601
         10  > A 14601+1460*10 a1
         10  > A 29201+1460*9 a1
         10  > PA 42341+1460 a1
         20  < A 1+0 a43801
         20  cwnd 29200
         100 write 1460
         100 > PA 43801+1460 a1
         100 cwnd 14600
         100 end",
    );
}

/// RFC 5681 section 3.1: congestion avoidance adds a segment for a window that is acknowledged.
#[test]
fn congestion_avoidance_adds_a_segment_a_round_trip() {
    established(
        Settings { congestion: Algorithm::NewReno, ..selective() },
        "0  write 14600
         0  > A 1+1460*9 a1
         0  > PA 13141+1460 a1
         10 < A 1+0 a1 [1461-2921]
         10 < A 1+0 a1 [1461-4381]
         10 < A 1+0 a1 [1461-5841]
         10 > A 1+1460 a1
         20 < A 1+0 a14601
         20 cwnd 7300
         20 write 43800
         20 > A 14601+1460*5 a1
         30 < A 1+0 a21901
         30 > A 21901+1460*6 a1
         30 cwnd 8760
         40 < A 1+0 a30661
         40 > A 30661+1460*7 a1
         40 cwnd 10220
         40 end",
    );
}

/// RFC 9438 section 4.3: where the curve is slower than Reno would be, the window grows by 9/17 of a segment
/// for each window that is acknowledged.
#[test]
fn cubic_grows_as_reno_at_short_round_trips() {
    established(
        selective(),
        "0  write 14600
         0  > A 1+1460*9 a1
         0  > PA 13141+1460 a1
         10 < A 1+0 a1 [1461-2921]
         10 < A 1+0 a1 [1461-4381]
         10 < A 1+0 a1 [1461-5841]
         10 > A 1+1460 a1
         20 < A 1+0 a14601
         20 cwnd 10220
         20 write 58400
         20 > A 14601+1460*7 a1
         30 < A 1+0 a24821
         30 > A 24821+1460*7 a1
         40 < A 1+0 a35041
         40 > A 35041+1460*8 a1
         40 cwnd 11680
         40 end",
    );
}

/// RFC 3168 section 6.1.2: ECE reduces the window once for what is out, and CWR says so with the
/// next new data, once.
#[test]
fn an_echo_reduces_once_and_is_confirmed() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 write 14600
         10 > A 1+1460*9 a1 ect
         10 > PA 13141+1460 a1 ect
         20 < AE 1+0 a1461
         20 ssthresh 10220           # 0.7 of what was out
         20 < AE 1+0 a2921
         20 ssthresh 10220
         20 < A 1+0 a14601
         20 cwnd 10220
         21 write 2920
         21 > AC 14601+1460 a1 ect
         21 > PA 16061+1460 a1 ect
         21 end",
    );
}

/// RFC 3168 section 6.1.5: a retransmission is not ECN-capable; `ect` is missing, and so no line has it.
#[test]
fn a_retransmission_is_not_capable_of_ecn() {
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460
         10  > A 1+0 a1
         10  write 100
         10  > PA 1+100 a1 ect
         220 > PA 1+100 a1 noect
         220 end",
    );
}

/// RFC 3168 section 6.1.1.1: a peer that reflects the bits has not understood them.
#[test]
fn a_peer_that_reflects_the_bits_gets_no_ecn() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAEC 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 write 100
         10 > PA 1+100 a1 noect
         10 end",
    );
}

/// Without congestion control the peer's window alone decides.
#[test]
fn without_congestion_control_the_peers_window_decides() {
    established(
        Settings { congestion: Algorithm::None, ..plain() },
        "0 < A 1+0 a1 w=29200
         0 write 43800
         0 > A 1+1460*20 a1
         0 end",
    );
}
