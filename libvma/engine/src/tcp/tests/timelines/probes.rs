//! The connection sends without an arrival: retransmission timeouts, loss probes, window probes, keep-alive,
//! time limits. After the handshake SRTT is 10 ms, so RTO is 210 ms (SRTT and Linux's 200 ms).

use core::time::Duration;

use super::super::script::{plain, selective};
use super::{connect, established};
use crate::tcp::{Millis, Settings};

/// RFC 8985 section 7.2: two round trips and the peer's delay of 200 ms end after RTO, so the probe leaves
/// at RTO. RFC 8985 section 7.3: the timeout after it is not doubled.
#[test]
fn the_probe_of_a_single_segment_takes_the_place_of_the_timeout() {
    established(
        selective(),
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         420  > PA 1+100 a1
         840  > PA 1+100 a1
         1680 > PA 1+100 a1
         1680 end",
    );
}

/// RFC 8985 section 7.1: without SACK there is no probe, and the pauses double from the first one.
#[test]
fn without_sack_the_timeout_comes_first() {
    established(
        plain(),
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         630  > PA 1+100 a1
         1470 > PA 1+100 a1
         1470 end",
    );
}

/// RFC 8985 section 7.2: two round trips and Linux's 2 ms if more than one segment is out.
#[test]
fn the_probe_of_several_segments_leaves_after_two_round_trips() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         22  > PA 2921+1460 a1
         232 > A 1+1460 a1         # RTO, counted from the probe
         652 > A 1+1460 a1         # doubled
         652 end",
    );
}

/// RFC 9293 section 3.8.6.3: the peer may delay the acknowledgment of less than two full segments.
#[test]
fn a_segments_worth_of_small_ones_is_a_single_one() {
    established(
        Settings { nodelay: true, ..selective() },
        "0   write 100
         0   > PA 1+100 a1
         1   write 100
         1   > PA 101+100 a1
         210 > PA 101+100 a1
         250 < A 1+0 a201
         250 end",
    );
}

/// Not new data, as RFC 8985 section 7.3 would have it: its acknowledgment may be delayed, that of a
/// repetition is not. There is one probe, then the timeout.
#[test]
fn the_probe_is_the_last_segment_also_if_there_is_new_data() {
    established(
        selective(),
        "0   write 17520
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > A 2921+1460 a1
         0   > A 4381+1460 a1
         0   > A 5841+1460 a1
         0   > A 7301+1460 a1
         0   > A 8761+1460 a1
         0   > A 10221+1460 a1
         0   > A 11681+1460 a1
         0   > A 13141+1460 a1
         22  > A 13141+1460 a1
         232 > A 1+1460 a1
         232 end",
    );
}

/// A repetition needs no room in the peer's window.
#[test]
fn the_probe_stays_within_the_peers_window() {
    established(
        selective(),
        "0   < A 1+0 a1 w=2920
         0   write 8760
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         22  > A 1461+1460 a1
         50  < A 1+0 a2921 w=0
         50  end",
    );
}

/// RFC 8985 section 7.2: 1 s while no round trip is measured. RFC 6298 section 5.7: RTO is 3 s then.
#[test]
fn the_probe_without_a_measurement_leaves_after_a_second() {
    connect(
        selective(),
        "0    connect
         0    > S 0+0 mss=1460 sackok
         1000 > S 0+0 mss=1460 sackok
         1100 < SA 0+0 a1 mss=1460 sackok
         1100 > A 1+0 a1
         1100 write 100
         1100 > PA 1+100 a1
         2100 > PA 1+100 a1
         5100 > PA 1+100 a1
         5100 end",
    );
}

/// RFC 8985 section 7.4.2, case 1: the peer has got both. Nothing was lost.
#[test]
fn a_probe_that_arrived_twice_costs_nothing() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         22  > PA 2921+1460 a1
         45  < A 1+0 a4381
         47  < A 1+0 a4381 [2921-4381]
         60  write 1460
         60  > PA 4381+1460 a1
         70  < A 1+0 a5841
         70  cwnd 14600
         70  end",
    );
}

/// RFC 8985 section 7.4.2, case 2: the second acknowledgment says the same without D-SACK.
#[test]
fn a_second_acknowledgment_of_the_probe_says_that_nothing_was_lost() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         22  > PA 2921+1460 a1
         45  < A 1+0 a4381
         47  < A 1+0 a4381
         60  write 1460
         60  > PA 4381+1460 a1
         70  < A 1+0 a5841
         70  cwnd 14600
         70  end",
    );
}

/// RFC 8985 section 7.4.2, case 3: what follows is acknowledged, and nothing else was said: the original
/// was lost. The window falls to 0.7 of the 3 segments that were out (RFC 9438 section 4.6).
#[test]
fn a_probe_that_repaired_a_loss_counts_as_one_with_the_next_acknowledgment() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         10  < A 1+0 a2921
         220 > PA 2921+1460 a1      # the last one alone: RTO after the acknowledgment
         240 < A 1+0 a4381
         240 cwnd 14600
         250 write 1460
         250 > PA 4381+1460 a1
         260 < A 1+0 a5841
         260 cwnd 2920
         260 end",
    );
}

/// RFC 8985 section 7.2: the timer starts anew with new data and with acknowledgments of it.
#[test]
fn the_probe_timer_starts_over_with_every_acknowledgment() {
    established(
        selective(),
        "0   write 5840
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > A 2921+1460 a1
         0   > PA 4381+1460 a1
         10  < A 1+0 a1461
         20  < A 1+0 a2921           # SRTT 11.25 ms
         44.5 > PA 4381+1460 a1
         70  < A 1+0 a5841
         70  end",
    );
}

/// RFC 8985 section 7.2: no probe while something is reported. The segment is late at a quarter of
/// the round trip (section 6.2).
#[test]
fn a_report_takes_the_place_of_the_probe() {
    established(
        selective(),
        "0    write 4380
         0    > A 1+1460 a1
         0    > A 1461+1460 a1
         0    > PA 2921+1460 a1
         10   < A 1+0 a1 [1461-2921]
         12.5 > A 1+1460 a1
         222.5 > A 1+1460 a1
         222.5 end",
    );
}

/// A FIN is probed for as data is.
#[test]
fn a_fin_is_probed_for() {
    established(
        selective(),
        "0   shutdown
         0   > FA 1+0 a1
         210 > FA 1+0 a1
         420 > FA 1+0 a1
         840 > FA 1+0 a1
         900 < A 1+0 a2
         900 state FinWait2
         900 end",
    );
}

/// A device without room takes no probe: the timeout is not put off for it.
#[test]
fn a_probe_that_cannot_leave_leaves_the_timeout_alone() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > PA 2921+1460 a1
         1   full
         30  room
         210 > A 1+1460 a1
         210 end",
    );
}

/// RFC 6298 section 5.5: every timeout doubles RTO, and a measurement (here by the time stamp) takes the
/// doubling back.
#[test]
fn a_measurement_takes_the_doubling_back() {
    established(
        Settings { timestamps: true, ..plain() },
        "0    write 100
         0    > PA 1+100 a1 ts=10010/1000000
         210  > PA 1+100 a1 ts=10220/1000000
         630  > PA 1+100 a1 ts=10640/1000000
         690  < A 1+0 a101 ts=1000690/10640
         690  write 100
         690  > PA 101+100 a1 ts=10700/1000690
         906.25  > PA 101+100 a1
         1338.75 > PA 101+100 a1
         1338.75 end",
    );
}

/// RFC 6298 section 5 (Karn): without time stamps the acknowledgment of what left twice measures nothing, so the timeout
/// stays doubled until one of what left once comes.
#[test]
fn the_timeout_stays_doubled_until_something_is_measured() {
    established(
        plain(),
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         630  > PA 1+100 a1
         690  < A 1+0 a101
         690  write 100
         690  > PA 101+100 a1
         1530 > PA 101+100 a1            # 210 ms, doubled twice; Linux's wheel rounds up by an eighth
         1720 < A 1+0 a201
         1720 write 100
         1720 > PA 201+100 a1
         1730 < A 1+0 a301
         1730 write 100
         1730 > PA 301+100 a1
         1940 > PA 301+100 a1
         1940 end",
    );
}

/// RFC 6298 section 5.3: an acknowledgment of new data restarts the timer.
#[test]
fn an_acknowledgment_restarts_the_timeout() {
    established(
        plain(),
        "0   write 2920
         0   > A 1+1460 a1
         0   > PA 1461+1460 a1
         10  < A 1+0 a1461
         220 > PA 1461+1460 a1
         225 < A 1+0 a2921
         225 end",
    );
}

/// RFC 9293 section 3.8.6.1: window probes, first after RTO, with doubled pauses. Linux asks with an old
/// number and no data.
#[test]
fn a_closed_window_is_asked_about() {
    established(
        plain(),
        "0    < A 1+0 a1 w=0
         0    write 100
         210  > A 0+0 a1
         225  < A 1+0 a1 w=0
         630  > A 0+0 a1
         650  < A 1+0 a1 w=0
         1470 > A 0+0 a1
         1550 < A 1+0 a1 w=1000
         1550 > PA 1+100 a1
         1760 > PA 1+100 a1          # RTO is not what the probes had
         1780 < A 1+0 a101
         1780 end",
    );
}

/// RFC 9293 section 3.8.6.1: a window that closes while data is out is asked about after that data.
#[test]
fn a_window_that_closes_on_the_way_is_asked_about() {
    established(
        plain(),
        "0   < A 1+0 a1 w=1460
         0   write 2920
         0   > A 1+1460 a1
         10  < A 1+0 a1461 w=0
         220 > A 1460+0 a1
         240 < A 1+0 a1461 w=1460
         240 > PA 1461+1460 a1
         250 < A 1+0 a2921
         250 end",
    );
}

/// RFC 9293 section 3.8.6.2.1: after the override timeout a small window is used.
#[test]
fn a_small_window_is_used_after_a_while() {
    established(
        plain(),
        "0   < A 1+0 a1 w=100
         0   write 1460
         210 > A 1+100 a1
         220 < A 1+0 a101 w=60000
         220 > PA 101+1360 a1
         230 < A 1+0 a1461
         230 end",
    );
}

fn keep_alive() -> Settings {
    Settings {
        keep_alive: true,
        keep_idle: Millis::from_secs(10),
        keep_interval: Millis::from_secs(2),
        keep_count: 3,
        ..plain()
    }
}

/// RFC 9293 section 3.8.4 and tcp(7): after the idle time a probe, TCP_KEEPCNT of them, then a reset.
// covers: FIX-01
#[test]
fn a_silent_peer_is_given_up_after_the_probes() {
    established(
        keep_alive(),
        "10000 > A 0+0 a1
         12000 > A 0+0 a1
         14000 > A 0+0 a1
         16000 > RA 1+0 a1
         16000 error TimedOut
         16000 state Closed
         16000 end",
    );
}

/// RFC 9293 section 3.8.4: an answer starts the idle time over.
#[test]
fn an_answer_to_keep_alive_starts_it_over() {
    established(
        keep_alive(),
        "10000 > A 0+0 a1
         12000 > A 0+0 a1
         12001 < A 1+0 a1
         22001 > A 0+0 a1
         24001 > A 0+0 a1
         24002 < A 1+0 a1
         24002 end",
    );
}

/// RFC 9293 section 3.8.4: data in flight is retransmitted, and no probe is sent.
#[test]
fn keep_alive_waits_for_what_arrives() {
    established(
        keep_alive(),
        "5000  write 100
         5000  > PA 1+100 a1
         5010  < A 1+0 a101
         15010 > A 100+0 a1
         15011 < PA 1+10 a101
         15011 > A 101+0 a11
         25011 > A 100+0 a11
         25012 < A 11+0 a101
         25012 end",
    );
}

/// tcp(7): TCP_USER_TIMEOUT takes the place of TCP_KEEPCNT.
#[test]
fn the_user_timeout_ends_keep_alive() {
    established(
        Settings { user_timeout: Some(Duration::from_secs(11)), ..keep_alive() },
        "10000 > A 0+0 a1
         12000 > RA 1+0 a1
         12000 error TimedOut
         12000 end",
    );
}

/// RFC 5482: counted from the original, whatever probes and timeouts repeat.
#[test]
fn the_user_timeout_counts_from_the_original() {
    established(
        Settings { user_timeout: Some(Duration::from_secs(1)), ..selective() },
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         420  > PA 1+100 a1
         840  > PA 1+100 a1
         999  state Established
         1000 error TimedOut
         1000 state Closed
         1000 end",
    );
}

/// RFC 5482: a limit below RTO ends the connection before anything is repeated.
#[test]
fn a_user_timeout_below_the_timeout_repeats_nothing() {
    established(
        Settings { user_timeout: Some(Duration::from_millis(100)), ..selective() },
        "0   write 100
         0   > PA 1+100 a1
         99  state Established
         100 error TimedOut
         100 end",
    );
}

/// tcp_retries2: the connection ends when the pause after the last retransmission is over.
#[test]
fn data_is_given_up_after_the_retries() {
    established(
        Settings { retries: 3, ..plain() },
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         630  > PA 1+100 a1
         1470 > PA 1+100 a1
         3149 state Established
         3150 error TimedOut
         3150 end",
    );
}

/// The same with all options.
#[test]
fn the_probe_carries_its_own_stamp() {
    established(
        Settings { timestamps: true, ..selective() },
        "0   write 100
         0   > PA 1+100 a1 ts=10010/1000000
         210 > PA 1+100 a1 ts=10220/1000000
         420 > PA 1+100 a1 ts=10430/1000000
         500 < A 1+0 a101 ts=1000500/10430
         500 end",
    );
}

/// RFC 8985 section 7.3: the probe repairs the loss, and no timeout follows.
#[test]
fn an_answered_probe_ends_the_wait() {
    established(
        selective(),
        "0   write 4380
         0   > A 1+1460*2 a1
         0   > PA 2921+1460 a1
         22  > PA 2921+1460 a1
         50  < A 1+0 a4381
         400 write 10
         400 > PA 4381+10 a1
         410 < A 1+0 a4391
         410 end",
    );
}

/// RFC 8985 section 7.4.1: the probe shows by its report that what is before it was lost.
#[test]
fn a_reported_probe_starts_the_recovery() {
    established(
        selective(),
        "0   write 5840
         0   > A 1+1460*3 a1
         0   > PA 4381+1460 a1
         22  > PA 4381+1460 a1
         50  < A 1+0 a1 [4381-5841]
         50  > A 1+1460 a1
         60  < A 1+0 a1461 [4381-5841]
         60  > A 1461+1460*2 a1
         70  < A 1+0 a5841
         70  end",
    );
}

/// TCP_RTO_MIN_US: what the timeout exceeds the round-trip time by.
#[test]
fn a_least_timeout_of_the_program_is_kept() {
    established(
        Settings { least_rto: Millis::from_millis(50), ..plain() },
        "0   write 100
         0   > PA 1+100 a1
         60  > PA 1+100 a1
         180 > PA 1+100 a1
         420 > PA 1+100 a1
         420 end",
    );
}

/// RFC 8985 section 7.2: the peer's delay is taken for no longer than the own least timeout.
#[test]
fn a_least_timeout_of_the_program_holds_for_the_probe() {
    established(
        Settings { least_rto: Millis::from_millis(100), ..selective() },
        "0   write 100
         0   > PA 1+100 a1
         110 > PA 1+100 a1
         220 > PA 1+100 a1
         440 > PA 1+100 a1
         440 end",
    );
}

/// TCP_RTO_MAX_MS.
#[test]
fn a_largest_timeout_of_the_program_is_kept() {
    established(
        Settings { most_rto: Millis::from_millis(1000), ..plain() },
        "0    write 100
         0    > PA 1+100 a1
         210  > PA 1+100 a1
         630  > PA 1+100 a1
         1470 > PA 1+100 a1
         2470 > PA 1+100 a1
         3470 > PA 1+100 a1
         3470 end",
    );
}
