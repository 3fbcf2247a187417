//! The congestion window: how it begins, grows and falls. Losses are in [`recovery`](super::recovery).

use super::super::script::{plain, selective};
use super::{MSS, accepted, connect, established};
use crate::net::tcp::Settings;
use crate::net::tcp::congestion::Algorithm;

fn run(at: u32, from: u32, count: u32) -> String {
    (0..count).map(|n| format!("{at} > A {}+{MSS} a1\n", from + n * MSS)).collect()
}

/// RFC 6928: ten segments. RFC 5681 section 3.1: slow start adds what is acknowledged.
#[test]
fn slow_start_sends_two_segments_for_each_that_is_acknowledged() {
    let mut lines = "0 write 43800\n".to_owned();
    lines += &run(0, 1, 10);
    lines += "0 cwnd 14600\n10 < A 1+0 a1461\n";
    lines += &run(10, 14_601, 2);
    lines += "10 cwnd 16060\n10 < A 1+0 a4381\n";
    lines += &run(10, 17_521, 4);
    lines += "10 cwnd 18980\n10 end";
    established(plain(), &lines);
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
    let mut lines = "0 write 43800\n".to_owned();
    lines += &run(0, 1, 10);
    lines += "10 < A 1+0 a14601\n";
    lines += &run(10, 14_601, 10);
    let rest: String = run(10, 29_201, 9);
    lines += &rest;
    lines += "10   > PA 42341+1460 a1
              10   cwnd 29200
              20   < A 1+0 a43801
              1000 write 29200\n";
    lines += &run(1000, 43_801, 10);
    lines += "1000 cwnd 14600
              1000 end";
    established(plain(), &lines);
}

/// RFC 5681 section 3.1: congestion avoidance adds a segment for a window that is acknowledged.
#[test]
fn congestion_avoidance_adds_a_segment_a_round_trip() {
    let mut lines = "0 write 14600\n".to_owned();
    lines += &run(0, 1, 9);
    lines += "0  > PA 13141+1460 a1
              10 < A 1+0 a1 [1461-2921]
              10 < A 1+0 a1 [1461-4381]
              10 < A 1+0 a1 [1461-5841]
              10 > A 1+1460 a1
              20 < A 1+0 a14601
              20 cwnd 7300
              20 write 43800\n";
    lines += &run(20, 14_601, 5);
    lines += "30 < A 1+0 a21901\n";
    lines += &run(30, 21_901, 6);
    lines += "30 cwnd 8760\n40 < A 1+0 a30661\n";
    lines += &run(40, 30_661, 7);
    lines += "40 cwnd 10220\n40 end";
    established(Settings { congestion: Algorithm::NewReno, ..selective() }, &lines);
}

/// RFC 9438 section 4.3: where the curve is slower than Reno would be, the window grows by 9/17 of a segment
/// for each window that is acknowledged.
#[test]
fn cubic_grows_as_reno_at_short_round_trips() {
    let mut lines = "0 write 14600\n".to_owned();
    lines += &run(0, 1, 9);
    lines += "0  > PA 13141+1460 a1
              10 < A 1+0 a1 [1461-2921]
              10 < A 1+0 a1 [1461-4381]
              10 < A 1+0 a1 [1461-5841]
              10 > A 1+1460 a1
              20 < A 1+0 a14601
              20 cwnd 10220
              20 write 58400\n";
    lines += &run(20, 14_601, 7);
    lines += "30 < A 1+0 a24821\n";
    lines += &run(30, 24_821, 7);
    lines += "40 < A 1+0 a35041\n";
    lines += &run(40, 35_041, 8);
    lines += "40 cwnd 11680\n40 end";
    established(selective(), &lines);
}

/// RFC 3168 section 6.1.2: ECE reduces the window once for what is out, and CWR says so with the
/// next new data, once.
#[test]
fn an_echo_reduces_once_and_is_confirmed() {
    let mut lines = "0  connect
                     0  > SEC 0+0
                     10 < SAE 0+0 a1 mss=1460
                     10 > A 1+0 a1
                     10 write 14600\n"
        .to_owned();
    lines += &(0..9).map(|n| format!("10 > A {}+{MSS} a1 ect\n", 1 + n * MSS)).collect::<String>();
    lines += "10 > PA 13141+1460 a1 ect
              20 < AE 1+0 a1461
              20 cwnd 9198                # 0.7 of the nine that are left
              20 < AE 1+0 a2921
              20 cwnd 9198
              20 < A 1+0 a14601
              21 write 2920
              21 > AC 14601+1460 a1 ect
              21 > PA 16061+1460 a1 ect
              21 end";
    connect(Settings { ecn: true, ..plain() }, &lines);
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
    let mut lines = "0 < A 1+0 a1 w=29200\n0 write 43800\n".to_owned();
    lines += &run(0, 1, 20);
    lines += "0 end";
    established(Settings { congestion: Algorithm::None, ..plain() }, &lines);
}
