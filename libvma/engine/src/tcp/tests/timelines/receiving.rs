//! Segments arrive, and the connection acknowledges them at the right time. `pingpong` ends the acknowledgments at once that a new
//! connection gives (tcp(7), TCP_QUICKACK).

use super::super::script::{plain, selective};
use super::{connect, established};
use crate::tcp::{Buffer, Millis, Settings};

fn buffer(limit: u32, settings: Settings) -> Settings {
    Settings { receive_buffer: Buffer { limit, most: limit, automatic: false }, ..settings }
}

/// RFC 9293 section 3.8.6.3; Linux: 40 ms.
#[test]
fn an_acknowledgment_waits_for_40_ms() {
    established(
        plain(),
        "0   pingpong
         0   < A 1+100 a1
         40  > A 1+0 a101
         100 < A 101+100 a1
         100 > A 1+0 a201                # the program did not answer: at once, as at first
         100 end",
    );
}

/// RFC 9293 section 3.8.6.3 (SHLD-19): every second full segment.
#[test]
fn the_second_full_segment_is_acknowledged() {
    established(
        plain(),
        "0  pingpong
         0  < A 1+1460 a1
         5  < A 1461+1460 a1
         5  > A 1+0 a2921
         6  < A 2921+1460 a1
         7  < A 4381+1460 a1
         7  > A 1+0 a5841
         8  < A 5841+1460 a1
         48 > A 1+0 a7301
         48 end",
    );
}

/// Linux, TCP_MAX_QUICKACKS: the first 16 are acknowledged at once, for the peer's slow start.
#[test]
fn the_first_segments_are_acknowledged_at_once() {
    let mut lines = String::new();
    for n in 0..16 {
        lines += &format!("{n} < A {}+100 a1\n{n} > A 1+0 a{}\n", 1 + n * 100, 101 + n * 100);
    }
    lines += "16 < A 1601+100 a1
              56 > A 1+0 a1701
              56 end";
    established(plain(), &lines);
}

/// tcp(7), TCP_QUICKACK: what is owed leaves, and what comes is acknowledged at once.
#[test]
fn quick_acknowledgments_are_switched_on() {
    established(
        plain(),
        "0  pingpong
         0  < PA 1+100 a1
         5  read 100
         10 quickack
         10 > A 1+0 a101
         20 < A 101+100 a1
         20 > A 1+0 a201
         20 end",
    );
}

/// An answer carries the acknowledgment.
#[test]
fn an_answer_carries_the_acknowledgment() {
    established(
        plain(),
        "0   pingpong
         0   < PA 1+100 a1
         1   read 100
         10  write 10
         10  > PA 1+10 a101
         20  < A 101+0 a11
         20  end",
    );
}

/// Linux, tcp_cleanup_rbuf: a program that has read all and does not answer lets the acknowledgment of a
/// pushed segment go.
#[test]
fn a_read_of_all_acknowledges_what_was_pushed() {
    let mut lines = String::new();
    for n in 0..16 {
        lines += &format!("{n} < A {}+100 a1\n{n} > A 1+0 a{}\n", 1 + n * 100, 101 + n * 100);
    }
    lines += "50  read 1600
              100 < PA 1601+100 a1
              110 read 50
              120 read 50
              120 > A 1+0 a1701
              120 end";
    established(plain(), &lines);
}

/// RFC 5681 section 4.2, RFC 2018 section 4: each segment out of order is answered at once, the latest
/// range first, and so is the one that fills a hole.
#[test]
fn a_hole_is_reported_at_once() {
    established(
        selective(),
        "0 pingpong
         0 < A 101+100 a1
         0 > A 1+0 a1 [101-201]
         1 < A 301+100 a1
         1 > A 1+0 a1 [301-401] [101-201]
         2 < A 201+50 a1
         2 > A 1+0 a1 [101-251] [301-401]
         3 < A 1+100 a1
         3 > A 1+0 a251 [301-401]
         4 < A 251+50 a1
         4 > A 1+0 a401
         4 end",
    );
}

/// RFC 5681 section 4.2 without SACK.
#[test]
fn a_hole_is_answered_by_duplicates() {
    established(
        plain(),
        "0 pingpong
         0 < A 101+100 a1
         0 > A 1+0 a1
         1 < A 201+100 a1
         1 > A 1+0 a1
         2 < A 1+100 a1
         2 > A 1+0 a301
         2 end",
    );
}

/// RFC 2883 section 4: what was received before is reported in the first block.
#[test]
fn repetitions_are_reported() {
    established(
        selective(),
        "0 pingpong
         0 < A 1+1460 a1
         0 < A 1461+1460 a1
         0 > A 1+0 a2921
         1 < A 1+1460 a1
         1 > A 1+0 a2921 [1-1461]
         2 < A 4381+1460 a1
         2 > A 1+0 a2921 [4381-5841]
         3 < A 4381+1460 a1
         3 > A 1+0 a2921 [4381-5841] [4381-5841]
         3 end",
    );
}

/// RFC 2018 section 4: no more than four blocks, three beside time stamps.
#[test]
fn as_many_ranges_as_fit_are_reported() {
    established(
        Settings { timestamps: true, ..selective() },
        "0 < A 101+10 a1 ts=1000010/10010
         0 > A 1+0 a1 [101-111]
         0 < A 201+10 a1 ts=1000010/10010
         0 > A 1+0 a1 [201-211] [101-111]
         0 < A 301+10 a1 ts=1000010/10010
         0 > A 1+0 a1 [301-311] [201-211] [101-111]
         0 < A 401+10 a1 ts=1000010/10010
         0 > A 1+0 a1 [401-411] [301-311] [201-211]
         0 end",
    );
}

/// RFC 9293 section 3.10.7.4: of a segment that overlaps only the new part is taken.
#[test]
fn of_an_overlap_the_new_part_is_taken() {
    established(
        plain(),
        "0 < A 1+100 a1
         0 > A 1+0 a101
         1 < A 51+100 a1
         1 > A 1+0 a151
         1 queued 150
         1 end",
    );
}

/// RFC 9293 section 3.8.6: a full buffer closes the window, a probe is answered, and reading opens it.
#[test]
fn a_full_buffer_closes_the_window() {
    established(
        buffer(2920, plain()),
        "0   < A 1+1460 a1
         0   > A 1+0 a1461 w=1460
         1   < A 1461+1460 a1
         1   > A 1+0 a2921 w=0
         200 < A 2920+0 a1              # a probe as Linux sends it
         200 > A 1+0 a2921 w=0
         800 < A 2921+1 a1              # a probe with a byte
         800 > A 1+0 a2921 w=0
         900 read 2920
         900 > A 1+0 a2921 w=2920
         900 end",
    );
}

/// Linux: a bare FIN takes no memory, so a closed window does not refuse it. With data it does, and the FIN comes again.
#[test]
fn a_fin_into_a_closed_window_is_taken_without_data() {
    established(
        buffer(2920, plain()),
        "0  < A 1+1460 a1
         0  > A 1+0 a1461 w=1460
         1  < A 1461+1460 a1
         1  > A 1+0 a2921 w=0
         10 < FA 2921+10 a1
         10 > A 1+0 a2921 w=0
         10 state Established
         20 < FA 2921+0 a1
         20 > A 1+0 a2922 w=0
         20 state CloseWait
         30 read 2920
         30 end",
    );
    established(
        buffer(2920, plain()),
        "0  < A 1+1460 a1
         0  > A 1+0 a1461 w=1460
         1  < A 1461+1460 a1
         1  > A 1+0 a2921 w=0
         10 < FA 2921+10 a1
         10 > A 1+0 a2921 w=0
         30 read 2920
         30 > A 1+0 a2921 w=2920
         40 < FA 2921+10 a1
         40 > A 1+0 a2932
         40 queued 10
         40 state CloseWait
         40 end",
    );
}

/// RFC 9293 section 3.8.6.2.2: the window opens by a segment, or half of the buffer.
#[test]
fn a_window_does_not_open_by_bytes() {
    established(
        buffer(2920, plain()),
        "0  < A 1+1460 a1
         0  > A 1+0 a1461 w=1460
         1  < A 1461+1460 a1
         1  > A 1+0 a2921 w=0
         10 read 1000
         11 read 459
         12 read 1
         12 > A 1+0 a2921 w=1460
         12 end",
    );
}

/// RFC 9293 section 3.10.7.4: bytes beyond the window are cut off.
#[test]
fn bytes_beyond_the_window_are_not_taken() {
    established(
        buffer(2000, plain()),
        "0 < A 1+3000 a1
         0 > A 1+0 a2001 w=0
         0 queued 2000
         0 end",
    );
}

/// RFC 9293 section 3.10.7.4, first: what lies outside of the window is answered. RFC 5961 section 7 and
/// Linux's tcp_invalid_ratelimit: once in 500 ms.
#[test]
fn what_lies_beyond_the_window_is_answered_rarely() {
    established(
        plain(),
        "0   < A 100000+0 a1
         0   > A 1+0 a1
         100 < A 100000+0 a1
         450 < A 100000+0 a1
         550 < A 100000+0 a1
         550 > A 1+0 a1
         550 end",
    );
}

/// Linux, tcp_oow_rate_limited: data is always answered, no loop is made of it.
#[test]
fn data_beyond_the_window_is_always_answered() {
    established(
        plain(),
        "0   < A 100000+10 a1
         0   > A 1+0 a1
         100 < A 100000+10 a1
         100 > A 1+0 a1
         110 < FA 100000+10 a1
         110 > A 1+0 a1
         110 queued 0
         110 end",
    );
}

/// RFC 5961 section 5: an acknowledgment of what was never sent, or of very long ago.
#[test]
fn an_impossible_acknowledgment_is_answered() {
    established(
        plain(),
        "0    write 100
         0    > PA 1+100 a1
         1    < A 1+0 a102
         1    > A 101+0 a1
         10   < A 1+0 a101
         600  < A 1+10 a4294900000
         600  > A 101+0 a1
         600  queued 0
         1200 < A 1+10 a1               # old, but not too old: a duplicate
         1200 > A 101+0 a11
         1200 end",
    );
}

/// RFC 9293 section 3.10.7.4, fifth: a segment without ACK is dropped.
#[test]
fn a_segment_without_ack_is_dropped() {
    established(
        plain(),
        "0  < . 1+10
         0  queued 0
         50 end",
    );
}

/// RFC 5961 section 4: a SYN is answered, wherever it lies.
#[test]
fn a_syn_is_answered() {
    established(
        plain(),
        "0   < S 1+0
         0   > A 1+0 a1
         600 < S 50000+0
         600 > A 1+0 a1
         600 state Established
         600 end",
    );
}

/// RFC 9293 section 3.8.5, RFC 6093: the urgent byte.
#[test]
fn an_urgent_byte_arrives_apart() {
    established(
        plain(),
        "0 < PAU 1+10 a1 u=10
         0 > A 1+0 a11
         0 queued 10
         0 end",
    );
}

/// RFC 3168 section 6.1.1 and 6.1.3: ECN is agreed upon, and congestion is echoed until CWR comes.
#[test]
fn congestion_is_echoed_until_it_was_reacted_to() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         11 < A 1+100 a1 ce
         11 > AE 1+0 a101
         12 < A 101+100 a1
         12 > AE 1+0 a201
         13 < AC 201+100 a1
         13 > A 1+0 a301
         13 end",
    );
}

/// RFC 3168 section 6.1.3: CE is echoed at once, not after the delay.
#[test]
fn congestion_is_echoed_at_once() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 pingpong
         11 < A 1+100 a1 ce
         11 > AE 1+0 a101
         11 end",
    );
}

/// Without agreement CE means nothing.
#[test]
fn without_ecn_congestion_is_not_echoed() {
    established(
        plain(),
        "0 < A 1+100 a1 ce
         0 > A 1+0 a101
         0 end",
    );
}

/// RFC 9293 section 3.8.4: a keep-alive probe is answered. Without data at most twice a second (Linux).
#[test]
fn a_keep_alive_probe_is_answered() {
    established(
        selective(),
        "0   < A 0+0 a1
         0   > A 1+0 a1
         100 < A 0+0 a1
         600 < A 0+0 a1
         600 > A 1+0 a1
         600 end",
    );
}

/// RFC 9293 section 3.8.4 with an old byte, RFC 2883: always answered, and reported.
#[test]
fn a_keep_alive_probe_with_a_byte_is_always_answered() {
    established(
        selective(),
        "0   < A 1+10 a1
         0   > A 1+0 a11
         10  < A 10+1 a1
         10  > A 1+0 a11 [10-11]
         100 < A 10+1 a1
         100 > A 1+0 a11 [10-11]
         100 end",
    );
}

/// RFC 9293 section 3.10.7.4, seventh: after the peer's FIN there is no text; it is ignored.
#[test]
fn data_behind_a_fin_is_ignored() {
    established(
        plain(),
        "0   < FA 1+0 a1
         0   > A 1+0 a2
         50  < A 2+10 a1
         100 queued 0
         100 state CloseWait
         100 end",
    );
}

/// RFC 9293 section 3.8.6.3: what arrives out of order and fills the hole is acknowledged with it.
#[test]
fn a_filled_hole_ends_the_reports() {
    established(
        selective(),
        "0  < A 1461+1460 a1
         0  > A 1+0 a1 [1461-2921]
         5  < A 2921+1460 a1
         5  > A 1+0 a1 [1461-4381]
         10 < A 1+1460 a1
         10 > A 1+0 a4381
         20 < A 4381+1460 a1
         20 > A 1+0 a5841
         20 end",
    );
}

/// RFC 2018: ranges that touch are one.
#[test]
fn ranges_grow_together() {
    established(
        selective(),
        "0  < A 101+100 a1
         0  > A 1+0 a1 [101-201]
         1  < A 401+100 a1
         1  > A 1+0 a1 [401-501] [101-201]
         2  < A 201+200 a1
         2  > A 1+0 a1 [101-501]
         2  end",
    );
}

/// TCP_DELACK_MAX_US, and TCP_RTO_MIN_US: the peer's timeout is taken for one like the own.
#[test]
fn an_acknowledgment_waits_as_long_as_the_program_says() {
    established(
        Settings { most_ack_delay: Millis::from_millis(20), ..plain() },
        "0  pingpong
         0  < A 1+100 a1
         20 > A 1+0 a101
         20 end",
    );
    established(
        Settings { least_rto: Millis::from_millis(21), ..plain() },
        "0  pingpong
         0  < A 1+100 a1
         20 > A 1+0 a101
         20 end",
    );
}
