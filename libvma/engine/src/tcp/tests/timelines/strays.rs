//! Segments that the peer did not send, or sent long ago: what they must not do, and how they are answered.

use super::super::script::{plain, selective};
use super::established;
use crate::tcp::Settings;

/// RFC 5961 section 5: the acknowledgment is forged, and so is the time stamp. What the peer itself sends next is not old (RFC
/// 7323 section 5.3).
#[test]
fn the_stamp_of_an_impossible_acknowledgment_is_not_taken() {
    established(
        Settings { timestamps: true, ..plain() },
        "0  < A 1+10 a70001 ts=2000000/10010
         0  > A 1+0 a1 ts=10010/1000000
         10 < PA 1+100 a1 ts=1000020/10010
         10 > A 1+0 a101 ts=10020/1000020
         10 end",
    );
}

/// The peer has acknowledged our ISS: what it acknowledged before is of no connection, or made up, though it is within the
/// largest window (Linux: tcp_ack, by the bytes that were acknowledged).
#[test]
fn an_acknowledgment_from_before_the_connection_is_answered() {
    established(
        plain(),
        "0    < PA 1+100 a4294967196
         0    > A 1+0 a1
         600  write 100
         600  > PA 1+100 a1
         610  < A 1+0 a101
         620  < A 1+0 a4294967295
         620  > A 101+0 a1
         1200 < PA 1+100 a1            # of the connection
         1200 > A 101+0 a101
         1200 end",
    );
}

/// RFC 5961 section 7: the answer to an impossible acknowledgment is rare, also with data that came before.
#[test]
fn impossible_acknowledgments_of_old_data_are_answered_rarely() {
    established(
        plain(),
        "0  < PA 1+100 a1
         0  > A 1+0 a101
         10 < PA 1+100 a5000
         10 > A 1+0 a101
         20 < PA 1+100 a5000
         30 < PA 1+100 a1
         30 > A 1+0 a101
         30 end",
    );
}

/// Every segment of a synchronized peer acknowledges. Linux drops one that does not, wherever it lies.
#[test]
fn a_segment_without_ack_is_never_answered() {
    established(
        plain(),
        "0  < PA 1+100 a1
         0  > A 1+0 a101
         10 < P 50+10
         20 < P 100101+10
         30 < F 101+0
         30 end",
    );
    established(
        Settings { timestamps: true, ..plain() },
        "0  < PA 1+100 a1 ts=1000010/10010
         0  > A 1+0 a101
         10 < P 101+10 ts=900000/10010
         10 end",
    );
}

/// Linux, tcp_disordered_ack_check: an acknowledgment that the next one has overtaken is common and not answered. One that is as
/// old as this, and has the next number, is: the peer may have lost its clock.
#[test]
fn an_old_acknowledgment_is_answered_if_it_has_the_next_number() {
    established(
        Settings { timestamps: true, ..plain() },
        "0  < PA 1+100 a1 ts=1000010/10010
         0  > A 1+0 a101
         10 < A 1+0 a1 ts=900000/10010
         20 < A 101+0 a1 ts=900000/10010
         20 > A 1+0 a101
         20 end",
    );
}

/// An acknowledgment that is a bit older may have been overtaken, but its window is of no use any more.
#[test]
fn the_window_of_an_overtaken_acknowledgment_is_not_taken() {
    established(
        Settings { timestamps: true, ..plain() },
        "0   < A 1+0 a1 w=0 ts=1000100/10010
         10  write 100
         20  < A 1+0 a1 w=1000 ts=1000050/10010
         20  > A 1+0 a1
         100 < A 1+0 a1 w=1000 ts=1000200/10010
         100 > PA 1+100 a1
         110 < A 1+0 a101 ts=1000210/10110
         110 end",
    );
}

/// RFC 5961 section 4: the answer to a SYN is the same wherever it lies, and rare. It reports nothing.
#[test]
fn an_old_syn_is_answered_plainly() {
    established(
        selective(),
        "0  < PA 1+100 a1
         0  > A 1+0 a101
         10 < S 100+0
         10 > A 1+0 a101
         20 < S 100+0
         20 end",
    );
}

/// RFC 5961 section 7, for a SYN that is as old by its time stamp.
#[test]
fn syns_with_old_stamps_are_answered_rarely() {
    established(
        Settings { timestamps: true, ..plain() },
        "0  < S 101+0 ts=900000/10010
         0  > A 1+0 a1
         10 < S 101+0 ts=900000/10010
         10 end",
    );
}

/// The peer's next number is behind all that it has sent, some of which was lost. As Linux has it (tcp_validate_incoming), a reset
/// with that number is taken if the peer knows from our reports that we know it: a peer that is gone answers no challenge.
#[test]
fn a_reset_behind_a_hole_is_taken() {
    established(
        selective(),
        "0  < A 1001+1000 a1
         0  > A 1+0 a1 [1001-2001]
         10 < A 3001+1000 a1
         10 > A 1+0 a1 [3001-4001] [1001-2001]
         20 < R 2001+0
         20 > A 1+0 a1 [3001-4001] [1001-2001]
         30 < RA 4001+0 a1
         30 error Reset
         30 end",
    );
    established(
        selective(),
        "0   < FA 1001+1000 a1
         0   > A 1+0 a1 [1001-2002]
         100 < R 2001+0
         100 > A 1+0 a1 [1001-2002]
         110 < RA 2002+0 a1
         110 error Reset
         110 end",
    );
}

/// Some peers do not count the FIN that they have sent before (Linux: tcp_reset_check).
#[test]
fn a_reset_with_the_number_of_the_fin_is_taken() {
    established(
        plain(),
        "0   < FA 1+0 a1
         0   > A 1+0 a2
         100 < R 1+0
         100 error BrokenPipe
         100 end",
    );
}

/// Linux, tcp_ack: an acknowledgment from before the last one is easy to guess, and its time stamp is not taken. The peer's own
/// segments are not old after it (RFC 7323 section 5.3).
#[test]
fn the_stamp_of_an_old_acknowledgment_is_not_taken() {
    established(
        Settings { timestamps: true, ..plain() },
        "0  write 1000
         0  > PA 1+1000 a1
         10 < A 1+0 a1001 w=30000 ts=1000020/10010
         20 < A 1+0 a501 w=30001 ts=5000000/10010
         30 < PA 1+100 a1001 w=30000 ts=1000040/10020
         30 > A 1001+0 a101 ts=10040/1000040
         30 end",
    );
    established(
        Settings { timestamps: true, ..plain() },
        "0  write 1000
         0  > PA 1+1000 a1
         10 < A 1+0 a1001 w=30000 ts=1000020/10010
         20 < PA 1+100 a501 w=30001 ts=5000000/10010
         20 > A 1001+0 a101 ts=10030/1000020
         30 < PA 101+100 a1001 w=30000 ts=1000040/10020
         30 > A 1001+0 a201 ts=10040/1000040
         30 end",
    );
}

/// A FIN and data beyond it contradict each other. As on Linux a FIN among what waits is a repetition, and a reset has the number
/// behind all.
#[test]
fn a_fin_below_data_that_waits_is_ignored() {
    established(
        selective(),
        "0  < FA 101+100 a1
         0  > A 1+0 a1 [101-202]
         10 < FA 101+50 a1
         10 > A 1+0 a1 [101-152] [101-202]
         20 < A 1+100 a1
         20 > A 1+0 a202
         20 state CloseWait
         20 end",
    );
    established(
        selective(),
        "0  < A 101+100 a1
         0  > A 1+0 a1 [101-201]
         10 < FA 101+50 a1
         10 > A 1+0 a1 [101-152] [101-201]
         20 < A 1+100 a1
         20 > A 1+0 a201
         20 state Established
         30 < A 301+100 a1
         30 > A 1+0 a201 [301-401]
         40 < FA 301+50 a1
         40 > A 1+0 a201 [301-352] [301-401]
         50 < RA 401+0 a1
         50 error Reset
         50 end",
    );
}
