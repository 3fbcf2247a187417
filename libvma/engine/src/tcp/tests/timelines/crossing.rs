//! Both sides open or close at once (RFC 9293 figures 7 and 13), and what else comes in those segments.

use super::super::script::plain;
use super::{connect, established};
use crate::tcp::Settings;

/// RFC 9293 section 3.5 (figure 7): SYN and ACK of both sides cross as well. What was received before is acknowledged at
/// once (section 3.10.7.4, first).
#[test]
fn the_answers_to_crossing_syns_cross() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0 mss=1460
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1 mss=1460
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 state Established
         10 write 10
         10 > PA 1+10 a1
         20 < A 1+0 a11
         20 end",
    );
}

/// RFC 7323 section 2.2 and 3.2, RFC 2018 section 2: the crossing SYN and the answer to it agree upon the options.
#[test]
fn crossing_syns_agree_upon_options() {
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 mss=1460 sackok ws=6 ts=10000/0
         5  < S 0+0 mss=1000 sackok ws=7 ts=1000000/0
         5  > SA 0+0 a1 mss=1460 sackok ws=6 ts=10005/1000000
         15 < A 1+0 a1 w=100 ts=1000010/10005
         15 window 12800
         20 < A 101+100 a1 w=100 ts=1000015/10005
         20 > A 1+0 a1 [101-201]
         25 < A 1+100 a1 w=100 ts=1000020/10005
         25 > A 1+0 a201
         30 write 1976
         30 > A 1+988 a201 ts=10030/1000020
         30 > PA 989+988 a201
         40 < A 201+0 a1977 w=100 ts=1000035/10030
         40 end",
    );
}

/// An option that the crossing SYN does not offer is off, in the answer as well.
#[test]
fn a_crossing_syn_without_options_switches_them_off() {
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 mss=1460 sackok ts=10000/0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1 mss=1460 nots
         15 < A 1+0 a1 w=1000
         15 window 1000
         15 write 10
         15 > PA 1+10 a1 nots
         25 < A 1+0 a11
         25 end",
    );
}

/// RFC 9293 section 3.10.7.3, fourth: data and FIN of a crossing SYN may wait for ESTABLISHED. As on Linux they are not taken,
/// and come again.
#[test]
fn data_and_fin_of_a_crossing_syn_come_again() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < SF 0+100 mss=1460
         5  > SA 0+0 a1
         15 < A 1+100 a1
         15 > A 1+0 a101
         15 state Established
         15 queued 100
         15 end",
    );
}

/// RFC 9293 section 3.10.7.4, seventh: the acknowledgment that ends SYN-RECEIVED brings data.
#[test]
fn the_first_data_ends_a_simultaneous_open() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         15 < PA 1+100 a1
         15 > A 1+0 a101
         15 state Established
         15 queued 100
         20 write 10
         20 > PA 1+10 a101
         30 < A 101+0 a11
         30 end",
    );
}

/// The same with its FIN.
#[test]
fn a_fin_ends_a_simultaneous_open() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         15 < FA 1+0 a1
         15 > A 1+0 a2
         15 state CloseWait
         20 shutdown
         20 > FA 1+0 a2
         30 < A 2+0 a2
         30 state Closed
         30 end",
    );
}

/// RFC 9293 section 3.10.7.4, fifth: an acknowledgment of something else is reset, and the connection stays.
#[test]
fn a_wrong_acknowledgment_in_syn_received_is_reset() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         10 < A 1+0 a5
         10 > R 5+0
         10 state SynReceived
         15 < A 1+0 a1
         15 state Established
         15 end",
    );
}

/// The SYN and the acknowledgment of ours are lost; the answer is repeated and has its own doubled pauses.
#[test]
fn the_answer_to_a_crossing_syn_is_repeated_until_it_is_acknowledged() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         1000 > SA 0+0 a1
         3000 > SA 0+0 a1
         3500 < SA 0+0 a1 mss=1460
         3500 > A 1+0 a1
         3500 state Established
         3500 end",
    );
}

/// RFC 5961 section 3: a reset of a simultaneous open must have the next number.
#[test]
fn a_reset_in_syn_received_has_the_next_number() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         10 < R 1+0
         10 error Reset
         10 state Closed
         10 end",
    );
}

/// RFC 9293 section 3.10.4: CLOSE in SYN-RECEIVED sends a FIN behind the SYN, which is still repeated.
#[test]
fn close_in_a_simultaneous_open_sends_a_fin() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         10 close
         10 > FA 1+0 a1
         10 state FinWait1
         20 < A 1+0 a2
         20 state FinWait2
         30 < FA 1+0 a2
         30 > A 2+0 a2
         30 state TimeWait
         30 end",
    );
}

/// The same, and the answer to the SYN is lost: what the peer misses first is repeated first.
#[test]
fn a_syn_is_repeated_before_the_fin_behind_it() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         10   close
         10   > FA 1+0 a1
         1000 > SA 0+0 a1
         1200 < A 1+0 a2
         1200 state FinWait2
         1200 end",
    );
}

/// RFC 9293 section 3.6 (figure 13), with data before both FINs.
#[test]
fn data_and_fins_cross() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  shutdown
         1  > FA 101+0 a1
         5  < FPA 1+50 a1
         5  > A 102+0 a52
         5  state Closing
         5  queued 50
         10 < A 52+0 a101                # the data, and not the FIN
         10 state Closing
         11 < A 52+0 a102
         11 state TimeWait
         11 end",
    );
}

/// In CLOSING data behind the peer's FIN is ignored, and its FIN again is acknowledged.
#[test]
fn a_fin_that_crosses_is_repeated() {
    established(
        plain(),
        "0   shutdown
         0   > FA 1+0 a1
         5   < FPA 1+50 a1
         5   > A 2+0 a52
         100 < FPA 1+50 a1
         100 > A 2+0 a52
         210 > FA 1+0 a52
         220 < A 52+0 a2
         220 state TimeWait
         220 end",
    );
}

/// The peer's FIN crosses ours and overtakes its data.
#[test]
fn a_fin_that_crosses_beyond_a_hole_waits() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 101+50 a1
         5  > A 2+0 a1
         5  state FinWait1
         6  < A 1+100 a1
         6  > A 2+0 a152
         6  state Closing
         10 < A 152+0 a2
         10 state TimeWait
         10 end",
    );
}

/// RFC 1122 section 4.2.2.13: data that crosses the FIN of a closed program is reset, with its FIN.
#[test]
fn data_that_crosses_the_fin_of_a_closed_program_is_reset() {
    established(
        plain(),
        "0 close
         0 > FA 1+0 a1
         5 < FPA 1+50 a1
         5 > R 1+0
         5 state Closed
         5 end",
    );
}

/// A FIN that acknowledges the data and crosses our FIN.
#[test]
fn a_fin_that_acknowledges_the_data_only_leads_to_closing() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  shutdown
         1  > FA 101+0 a1
         10 < FA 1+0 a101
         10 > A 102+0 a2
         10 state Closing
         12 < A 2+0 a102
         12 state TimeWait
         12 end",
    );
}

/// A simultaneous open that was closed at once: the pieces that the other side misses come one after the other.
#[test]
fn the_syn_is_acknowledged_before_the_fin_behind_it() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         10   close
         10   > FA 1+0 a1
         20   < A 1+0 a1
         30   < A 1+0 a2
         30   state FinWait2
         30   end",
    );
}

/// SHUT_WR in SYN-RECEIVED: the FIN follows the acknowledgment of the SYN.
#[test]
fn shutdown_in_a_simultaneous_open_sends_a_fin() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         10   shutdown
         20   < A 1+0 a1
         20   > FA 1+0 a1
         30   < A 1+0 a2
         30   state FinWait2
         30   end",
    );
}

/// The crossing SYN closes the window; its answer opens it.
#[test]
fn a_crossing_syn_has_a_window() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460 w=0
         5    > SA 0+0 a1
         15   < A 1+0 a1 w=100
         15   window 100
         15   write 100
         15   > PA 1+100 a1
         25   < A 1+0 a101
         25   end",
    );
}
