//! Segments that arrive again: the reports of them (D-SACK), and their acknowledgments.

use super::super::script::{plain, selective};
use super::established;
use crate::tcp::Settings;

/// RFC 7323 section 4.3: the repetition begins below what was acknowledged last, and its stamp is newer. Without it the peer would
/// take the acknowledgment for that of the original.
#[test]
fn the_stamp_of_a_repetition_is_echoed() {
    established(
        Settings { timestamps: true, ..plain() },
        "0   < PA 1+100 a1 ts=1000010/10010
         0   > A 1+0 a101 ts=10010/1000010
         300 < PA 1+100 a1 ts=1000310/10010
         300 > A 1+0 a101 ts=10310/1000310
         300 end",
    );
}

/// RFC 2883 section 4: the first part of a range that waits comes again with what was missing before it.
#[test]
fn what_fills_a_hole_and_more_is_reported() {
    established(
        selective(),
        "0  < A 1001+1000 a1
         0  > A 1+0 a1 [1001-2001]
         10 < A 1+1400 a1
         10 > A 1+0 a2001 [1001-1401]
         10 end",
    );
}

/// RFC 2018 section 4: the first block has what has just arrived, a FIN as well; and RFC 2883 section 4 for a FIN that comes again.
#[test]
fn the_range_that_a_fin_ends_is_reported_first() {
    established(
        selective(),
        "0   < A 2001+1000 a1
         0   > A 1+0 a1 [2001-3001]
         10  < A 1001+500 a1
         10  > A 1+0 a1 [1001-1501] [2001-3001]
         20  < FA 3001+0 a1
         20  > A 1+0 a1 [2001-3002] [1001-1501]
         100 < FA 3001+0 a1
         100 > A 1+0 a1 [3001-3002] [2001-3002] [1001-1501]
         100 end",
    );
    established(
        selective(),
        "0   < A 1001+500 a1
         0   > A 1+0 a1 [1001-1501]
         10  < FA 2001+500 a1
         10  > A 1+0 a1 [2001-2502] [1001-1501]
         10  end",
    );
}

/// The peer repeats after a timeout and has a window of one segment: what follows is acknowledged at once, though the program answers
/// (Linux: tcp_enter_quickack_mode).
#[test]
fn after_a_repetition_acknowledgments_are_not_delayed() {
    established(
        plain(),
        "0   < PA 1+100 a1
         0   > A 1+0 a101
         1   write 10
         1   > PA 1+10 a101
         11  < PA 1+100 a11
         11  > A 11+0 a101
         21  < PA 101+100 a11
         21  > A 11+0 a201
         21  end",
    );
}

/// Data that the peer's window holds back is no answer, and carries no acknowledgment.
#[test]
fn data_that_waits_for_the_window_does_not_delay_acknowledgments() {
    established(
        plain(),
        "0   < PA 1+100 a1 w=0
         0   > A 1+0 a101
         10  write 2000
         20  < PA 101+100 a1 w=0
         20  > A 1+0 a201
         20  end",
    );
}
