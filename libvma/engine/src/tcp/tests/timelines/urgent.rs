//! Urgent data of the program (RFC 9293 section 3.8.5).

use super::super::script::plain;
use super::established;

/// The pointer does not wait for the window: the peer may read nothing until it learns of it. Every acknowledgment has it, and a window
/// probe with a number that the peer accepts.
#[test]
fn the_urgent_pointer_passes_a_closed_window() {
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         10  write 100 oob
         20  < PA 1+100 a1 w=0
         20  > AU 1+0 a101 u100
         30  < A 101+0 a1
         30  > PAU 1+100 a101 u100
         40  < A 101+0 a101
         40  end",
    );
    established(
        plain(),
        "0   < A 1+0 a1 w=0
         10  write 100 oob
         220 > AU 1+0 a1 u100
         220 > AU 0+0 a1 u101
         230 < A 1+0 a1
         230 > PAU 1+100 a1 u100
         240 < A 1+0 a101
         240 end",
    );
}

/// Neither TCP_CORK nor MSG_MORE holds back what is sent with it (Linux: tcp_nagle_test).
#[test]
fn urgent_data_is_not_held_back() {
    established(
        plain(),
        "0   cork
         0   write 100 oob
         0   > PAU 1+100 a1 u100
         1   write 100 more
         1   > PA 101+100 a1
         10  < A 1+0 a201
         10  end",
    );
}
