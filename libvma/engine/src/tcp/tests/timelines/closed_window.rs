//! A FIN and the peer's window, which it needs room in.

use super::super::script::plain;
use super::established;

/// RFC 9293 section 3.4: a FIN has a number, so it needs room in the window; section 3.8.6.1: until there is
/// some, the peer is asked. Linux asks with an old number.
#[test]
fn a_fin_waits_for_a_closed_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         10  shutdown
         10  state FinWait1
         220 > A 0+0 a1
         640 > A 0+0 a1
         750 < A 1+0 a1 w=1
         750 > FA 1+0 a1
         760 < A 1+0 a2 w=0
         760 state FinWait2
         760 end",
    );
}

/// The same for an orphan.
#[test]
fn a_fin_of_a_closed_program_waits_for_a_closed_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         10  close
         220 > A 0+0 a1
         230 < A 1+0 a1 w=1000
         230 > FA 1+0 a1
         240 < A 1+0 a2
         240 state FinWait2
         240 end",
    );
}

/// RFC 9293 section 3.6: the FIN leaves with the data that waited for the window.
#[test]
fn data_and_fin_wait_for_a_closed_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         0   write 100
         0   shutdown
         210 > A 0+0 a1
         220 < A 1+0 a1 w=1000
         220 > FPA 1+100 a1
         230 < A 1+0 a102
         230 state FinWait2
         230 end",
    );
}

/// RFC 9293 section 3.8.6.2.1: what a small window takes leaves after a while, and the FIN with the rest.
#[test]
fn a_fin_follows_data_through_a_small_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=60
         0   write 100
         0   shutdown
         210 > A 1+60 a1
         220 < A 1+0 a61 w=1000
         220 > FPA 61+40 a1
         230 < A 1+0 a102
         230 end",
    );
}

/// Data that fills the window leaves no room for the FIN.
#[test]
fn a_fin_waits_behind_data_that_fills_the_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=100
         0   write 100
         0   > PA 1+100 a1
         1   shutdown
         10  < A 1+0 a101 w=100
         10  > FA 101+0 a1
         20  < A 1+0 a102
         20  state FinWait2
         20  end",
    );
    established(
        plain(),
        "0   < A 1+0 a1 w=100
         0   write 100
         0   > PA 1+100 a1
         1   shutdown
         10  < A 1+0 a101 w=0
         220 > A 100+0 a1
         230 < A 1+0 a101 w=1
         230 > FA 101+0 a1
         240 < A 1+0 a102
         240 end",
    );
}

/// A window that takes the data and not the FIN gets the data at once. Linux keeps both in one segment, which waits for the
/// next window probe.
#[test]
fn data_leaves_for_a_window_without_room_for_the_fin() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         0   write 100
         0   shutdown
         210 > A 0+0 a1
         220 < A 1+0 a1 w=100
         220 > PA 1+100 a1
         230 < A 1+0 a101 w=100
         230 > FA 101+0 a1
         230 end",
    );
}

/// RFC 9293 section 3.8.6.1: what has left is repeated although the window has closed.
#[test]
fn a_fin_on_its_way_is_repeated_into_a_closed_window() {
    established(
        plain(),
        "0   shutdown
         0   > FA 1+0 a1
         5   < A 1+0 a1 w=0
         210 > FA 1+0 a1
         630 > FA 1+0 a1
         740 < A 1+0 a2 w=0
         740 state FinWait2
         750 < FA 1+0 a2 w=0
         750 > A 2+0 a2
         750 state TimeWait
         750 end",
    );
}

/// RFC 9293 section 3.6: the side that closes second waits for the window as well.
#[test]
fn a_last_fin_waits_for_a_closed_window() {
    established(
        plain(),
        "0   < FA 1+0 a1 w=0
         0   > A 1+0 a2
         10  shutdown
         10  state LastAck
         220 > A 0+0 a2
         230 < A 2+0 a1 w=10
         230 > FA 1+0 a2
         240 < A 2+0 a2
         240 state Closed
         240 end",
    );
}

/// RFC 9293 section 3.6 (figure 13): the peer's FIN arrives while ours waits for its window.
#[test]
fn a_fin_arrives_while_ours_waits_for_the_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         0   shutdown
         5   < FA 1+0 a1 w=0
         5   > A 1+0 a2
         5   state Closing
         210 > A 0+0 a2
         220 < A 2+0 a1 w=100
         220 > FA 1+0 a2
         230 < A 2+0 a2
         230 state TimeWait
         230 end",
    );
}
