//! Losses: fast recovery by SACK and without, RACK, PRR, timeouts, and taking them back. The round trip is
//! 10 ms; ten full segments are the initial window (RFC 6928).

use super::super::script::{plain, selective};
use super::established;
use crate::tcp::Settings;
use crate::tcp::congestion::Algorithm;

/// RFC 8985 section 6.2 and RFC 6675 section 5: the third report starts the recovery. The timer of
/// the first segment starts over with its retransmission (Linux: tcp_xmit_retransmit_queue).
#[test]
fn the_timeout_counts_from_the_fast_retransmission() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         1   write 1460
         1   > PA 4381+1460 a1
         10  < A 1+0 a1 [1461-2921]
         10  < A 1+0 a1 [1461-4381]
         11  < A 1+0 a1 [1461-5841]
         11  > A 1+1460 a1
         221 > A 1+1460 a1
         641 > A 1+1460 a1
         641 end",
    );
}

/// Linux, tcp_clean_rtx_queue: a report of what left before the retransmission restarts the timer.
#[test]
fn reports_of_what_left_earlier_restart_the_timeout() {
    established(
        selective(),
        "0       write 14600
         0       > A 1+1460*9 a1
         0       > PA 13141+1460 a1
         10      < A 1+0 a1 [1461-2921]
         10      < A 1+0 a1 [1461-4381]
         10      < A 1+0 a1 [1461-5841]
         10      > A 1+1460 a1
         15      < A 1+0 a1 [1461-14601]
         225.625 > A 1+1460 a1         # SRTT is 10.625 ms now
         225.625 end",
    );
}

/// Ten of twenty segments are lost in slow start. RFC 3042: the first two reports let new data go; they do
/// not open the window (RFC 5681). RFC 8985: the third one shows that all ten are lost. RFC 9937: from
/// there on each report lets one segment go, and an acknowledgment of a retransmission two.
#[test]
fn ten_losses_in_slow_start_are_repaired_without_a_timeout() {
    established(
        selective(),
        "0  write 73000
         0  > A 1+1460*10 a1
         10 < A 1+0 a14601
         10 > A 14601+1460*20 a1
         10 cwnd 29200
         20 < A 1+0 a14601 [29201-30661]      # 14601 to 29201 is lost
         20 > A 43801+1460 a1
         22 < A 1+0 a14601 [29201-32121]
         22 > A 45261+1460 a1
         22 cwnd 29200
         24 < A 1+0 a14601 [29201-33581]
         24 > A 14601+1460 a1
         26 < A 1+0 a14601 [29201-35041]
         26 > A 16061+1460 a1
         28 < A 1+0 a14601 [29201-36501]
         28 > A 17521+1460 a1
         30 < A 1+0 a14601 [29201-37961]
         30 > A 18981+1460 a1
         32 < A 1+0 a14601 [29201-39421]
         32 > A 20441+1460 a1
         34 < A 1+0 a14601 [29201-40881]
         34 > A 21901+1460 a1
         36 < A 1+0 a14601 [29201-42341]
         36 > A 23361+1460 a1
         38 < A 1+0 a14601 [29201-43801]
         38 > A 24821+1460 a1
         38 ssthresh 20440                    # 0.7 of the window (RFC 9438 section 4.6)
         40 < A 1+0 a14601 [29201-45261]
         40 > A 26281+1460 a1
         42 < A 1+0 a14601 [29201-46721]
         42 > A 27741+1460 a1
         44 < A 1+0 a16061 [29201-46721]
         44 > A 46721+1460*2 a1
         46 < A 1+0 a17521 [29201-46721]
         46 > A 49641+1460*2 a1
         46 end",
    );
}

/// The same where a device cuts segments: what a report lets go is not held back for a longer run.
#[test]
fn a_device_that_cuts_segments_holds_back_nothing_in_a_recovery() {
    established(
        selective(),
        "0  cuts 65000
         0  write 73000
         0  > A 1+14600 a1
         10 < A 1+0 a14601
         10 > A 14601+29200 a1
         20 < A 1+0 a14601 [16061-17521]
         20 > A 43801+1460 a1
         20 < A 1+0 a14601 [16061-18981]
         20 > A 45261+1460 a1
         20 < A 1+0 a14601 [16061-20441]
         20 > A 14601+1460 a1
         20 ssthresh 20440                    # so 0.7 segments for each that is reported
         20 < A 1+0 a14601 [16061-21901]
         20 < A 1+0 a14601 [16061-23361]
         20 > A 46721+1460 a1
         20 < A 1+0 a14601 [16061-24821]
         20 < A 1+0 a14601 [16061-26281]
         20 > A 48181+1460 a1
         20 < A 1+0 a14601 [16061-27741]
         20 > A 49641+1460 a1
         20 < A 1+0 a14601 [16061-29201]
         20 < A 1+0 a14601 [16061-30661]
         20 > A 51101+1460 a1
         20 < A 1+0 a14601 [16061-32121]
         20 > A 52561+1460 a1
         20 < A 1+0 a14601 [16061-33581]
         20 > A 54021+1460 a1
         20 end",
    );
}

/// RFC 8985 section 6.2: one report suffices after a quarter of the round trip.
#[test]
fn a_segment_that_one_report_overtook_is_late_after_a_quarter_of_the_round_trip() {
    established(
        selective(),
        "0    write 2920
         0    > A 1+1460 a1
         0    > PA 1461+1460 a1
         10   < A 1+0 a1 [1461-2921]
         12.5 > A 1+1460 a1
         22.5 < A 1+0 a2921
         22.5 end",
    );
}

/// RFC 8985 section 6.2: within that time it was only late.
#[test]
fn a_segment_that_is_late_is_not_repeated() {
    established(
        selective(),
        "0    write 2920
         0    > A 1+1460 a1
         0    > PA 1461+1460 a1
         10   < A 1+0 a1 [1461-2921]
         12   < A 1+0 a2921
         300  cwnd 14600
         300  end",
    );
}

/// RFC 8985 section 6.2: a retransmission is lost as well if what left later has arrived.
#[test]
fn a_lost_retransmission_is_repeated_without_a_timeout() {
    let settings = Settings { congestion: Algorithm::None, ..selective() };
    established(
        settings,
        "0  write 5840
         0  > A 1+1460 a1
         0  > A 1461+1460 a1
         0  > A 2921+1460 a1
         0  > PA 4381+1460 a1
         10 < A 1+0 a1 [1461-5841]
         10 > A 1+1460 a1
         11 write 1460
         11 > PA 5841+1460 a1
         21 < A 1+0 a1 [1461-7301]
         21 > A 1+1460 a1
         31 < A 1+0 a7301
         31 end",
    );
}

/// RFC 5681 section 3.2 and RFC 3042 without SACK: two new segments, then the retransmission.
#[test]
fn three_duplicates_repeat_the_first_segment() {
    established(
        plain(),
        "0  < A 1+0 a1
         0  write 17520
         0  > A 1+1460*10 a1
         10 < A 1+0 a1
         10 > A 14601+1460 a1
         10 < A 1+0 a1
         10 > PA 16061+1460 a1
         10 < A 1+0 a1
         10 > A 1+1460 a1
         20 < A 1+0 a17521
         20 cwnd 10220
         20 end",
    );
}

/// RFC 5681 section 3.1: NewReno halves what was out.
#[test]
fn newreno_halves() {
    established(
        Settings { congestion: Algorithm::NewReno, ..selective() },
        "0  write 14600
         0  > A 1+1460*9 a1
         0  > PA 13141+1460 a1
         10 < A 1+0 a1 [1461-2921]
         10 < A 1+0 a1 [1461-4381]
         10 < A 1+0 a1 [1461-5841]
         10 > A 1+1460 a1
         10 ssthresh 7300
         20 < A 1+0 a14601
         20 cwnd 7300
         20 end",
    );
}

/// RFC 5681 section 3.1: a timeout starts over with one segment, in slow start.
#[test]
fn a_timeout_starts_over_in_slow_start() {
    established(
        selective(),
        "0   write 14600
         0   > A 1+1460*9 a1
         0   > PA 13141+1460 a1
         22  > PA 13141+1460 a1
         232 > A 1+1460 a1
         232 cwnd 1460
         232 ssthresh 10220
         270 < A 1+0 a1461
         270 > A 1461+1460 a1
         270 > A 2921+1460 a1
         270 cwnd 2920
         300 < A 1+0 a4381
         300 > A 4381+1460 a1
         300 > A 5841+1460 a1
         300 > A 7301+1460 a1
         300 > A 8761+1460 a1
         300 cwnd 5840
         330 < A 1+0 a14601
         330 end",
    );
}

/// RFC 5681 section 3.1: a second timeout does not lower the threshold again.
#[test]
fn only_the_first_timeout_lowers_the_threshold() {
    established(
        plain(),
        "0   write 14600
         0   > A 1+1460*9 a1
         0   > PA 13141+1460 a1
         210 > A 1+1460 a1
         210 ssthresh 10220
         630 > A 1+1460 a1
         630 ssthresh 10220
         630 end",
    );
}

/// RFC 3522, RFC 4015: the acknowledgment echoes the stamp of the original, so the timeout was wrong.
#[test]
fn a_timeout_that_was_wrong_is_taken_back() {
    established(
        Settings { timestamps: true, ..plain() },
        "0   write 2896
         0   > A 1+1448 a1 ts=10010/1000000
         0   > PA 1449+1448 a1 ts=10010/1000000
         210 > A 1+1448 a1 ts=10220/1000000
         210 cwnd 1448
         220 < A 1+0 a1449 ts=1000300/10010
         220 cwnd 14480
         220 < A 1+0 a2897 ts=1000300/10010
         220 end",
    );
}

/// RFC 2018 section 8: a peer that does not acknowledge what it reported may have taken it back. Linux
/// (tcp_check_sack_reneging) gives it half a round trip, or 10 ms; then all is repeated.
#[test]
fn a_report_that_is_taken_back_is_repeated() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         10  < A 1+0 a1 [1461-4381]
         12.5 > A 1+1460 a1
         25  < A 1+0 a1461             # and nothing of what was reported
         35  > A 1461+1460 a1
         60  < A 1+0 a2921
         60  > PA 2921+1460 a1
         70  < A 1+0 a4381
         70  end",
    );
}

/// RFC 2883, RFC 8985 section 6.2: what was reported before is not in flight; a D-SACK changes nothing.
#[test]
fn a_duplicate_report_releases_nothing() {
    established(
        selective(),
        "0  write 29200
         0  > A 1+1460*10 a1
         10 < A 1+0 a2921
         10 > A 14601+1460*4 a1
         10 < A 1+0 a2921 [1-1461]
         10 < A 1+0 a2921 [1461-2921]
         10 end",
    );
}

/// RFC 8985 section 6.2 step 4: once reordering was seen, three reports do not suffice; a quarter of the
/// round trip decides.
#[test]
fn after_reordering_a_segment_may_be_late() {
    established(
        selective(),
        "0    write 14600
         0    > A 1+1460*9 a1
         0    > PA 13141+1460 a1
         10   < A 1+0 a1 [1461-4381]
         11   < A 1+0 a4381
         11   < A 1+0 a14601
         30   write 14600
         30   > A 14601+1460*9 a1
         30   > PA 27741+1460 a1
         40   < A 1+0 a14601 [16061-21901]
         42.5 > A 14601+1460 a1
         70   < A 1+0 a29201
         70   end",
    );
}

/// RFC 8985 section 6.2 step 4: what arrived twice widens the reordering window by a quarter of the round
/// trip, but not what was a probe.
#[test]
fn a_probe_that_arrived_twice_does_not_widen_the_reordering_window() {
    established(
        selective(),
        "0    write 14600
         0    > A 1+1460*9 a1
         0    > PA 13141+1460 a1
         10   < A 1+0 a1 [1461-4381]
         10   < A 1+0 a4381
         10   < A 1+0 a11681
         32   > PA 13141+1460 a1
         42   < A 1+0 a14601 [13141-14601]
         50   write 14600
         50   > A 14601+1460*9 a1
         50   > PA 27741+1460 a1
         60   < A 1+0 a14601 [16061-21901]
         62.5 > A 14601+1460 a1
         90   < A 1+0 a29201
         90   end",
    );
}

/// RFC 6582 section 3.2 step 3: a partial acknowledgment repeats the next segment.
#[test]
fn a_partial_acknowledgment_repeats_the_next_segment() {
    established(
        plain(),
        "0  < A 1+0 a1
         0  write 14600
         0  > A 1+1460*9 a1
         0  > PA 13141+1460 a1
         10 < A 1+0 a1
         10 < A 1+0 a1
         10 < A 1+0 a1
         10 > A 1+1460 a1
         12 < A 1+0 a1
         13 < A 1+0 a1
         14 < A 1+0 a1
         20 < A 1+0 a4381
         20 > A 4381+1460 a1
         30 < A 1+0 a14601
         30 end",
    );
}

/// RFC 6675 section 5: several holes are filled in one round trip.
#[test]
fn several_holes_are_filled_in_one_round_trip() {
    established(
        selective(),
        "0  write 14600
         0  > A 1+1460*9 a1
         0  > PA 13141+1460 a1
         10 < A 1+0 a1 [1461-2921]
         11 < A 1+0 a1 [4381-5841] [1461-2921]
         12 < A 1+0 a1 [7301-8761] [4381-5841] [1461-2921]
         12 > A 1+1460 a1
         13 < A 1+0 a1 [7301-10221] [4381-5841] [1461-2921]
         13 > A 2921+1460 a1
         14 < A 1+0 a1 [7301-11681] [4381-5841] [1461-2921]
         14 > A 5841+1460 a1
         15 < A 1+0 a1 [7301-13141] [4381-5841] [1461-2921]
         16 < A 1+0 a1 [7301-14601] [4381-5841] [1461-2921]
         22 < A 1+0 a2921 [7301-14601] [4381-5841]
         24 < A 1+0 a5841 [7301-14601]
         25 < A 1+0 a14601
         25 end",
    );
}

/// Linux, tcp_retrans_try_collapse: small segments that are lost are repeated as one.
#[test]
fn small_segments_leave_again_as_one_after_a_timeout() {
    established(
        Settings { nodelay: true, ..plain() },
        "0   write 100
         0   > PA 1+100 a1
         1   write 100
         1   > PA 101+100 a1
         2   write 100
         2   > PA 201+100 a1
         210 > PA 1+300 a1
         220 < A 1+0 a301
         230 end",
    );
}

/// Data that the peer has reported is not repeated.
#[test]
fn a_small_segment_before_reported_ones_leaves_alone() {
    established(
        Settings { nodelay: true, ..selective() },
        "0   write 100
         0   > PA 1+100 a1
         1   write 100
         1   > PA 101+100 a1
         2   write 100
         2   > PA 201+100 a1
         3   write 100
         3   > PA 301+100 a1
         10  < A 1+0 a1 [101-401]
         10  > A 1+100 a1
         20  < A 1+0 a401
         30 end",
    );
}

/// The same in a fast recovery.
#[test]
fn small_segments_that_are_lost_leave_again_as_one() {
    established(
        Settings { nodelay: true, ..selective() },
        "0   write 100
         0   > PA 1+100 a1
         1   write 100
         1   > PA 101+100 a1
         2   write 100
         2   > PA 201+100 a1
         3   write 100
         3   > PA 301+100 a1
         4   write 100
         4   > PA 401+100 a1
         5   write 100
         5   > PA 501+100 a1
         15  < A 1+0 a1 [301-601]
         15  > A 1+300 a1
         25  < A 1+0 a601
         30 end",
    );
}

/// The same, but none is longer than a full segment.
#[test]
fn segments_that_do_not_fit_into_one_leave_apart() {
    established(
        Settings { nodelay: true, ..plain() },
        "0   write 1000
         0   > PA 1+1000 a1
         1   write 1000
         1   > PA 1001+1000 a1
         2   write 100
         2   > PA 2001+100 a1
         2   write 100
         2   > PA 2101+100 a1
         210 > A 1+1000 a1
         220 < A 1+0 a1001
         220 > PA 1001+1200 a1
         230 < A 1+0 a2201
         240 end",
    );
}

/// The same with the FIN behind them.
#[test]
fn a_fin_leaves_again_with_the_small_segments_before_it() {
    established(
        Settings { nodelay: true, ..plain() },
        "0   write 100
         0   > PA 1+100 a1
         1   write 100
         1   > PA 101+100 a1
         2   shutdown
         2   > FA 201+0 a1
         210 > FPA 1+200 a1
         220 < A 1+0 a202
         230 end",
    );
}
