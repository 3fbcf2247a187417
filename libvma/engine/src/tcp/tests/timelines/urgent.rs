//! Urgent data of the program (RFC 9293 section 3.8.5).

use super::super::script::plain;
use super::established;
use crate::tcp::Settings;

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

/// The pointer has 16 bits. It says as much as it can of a byte that is further ahead (Linux: tcp_transmit_skb); the additional window
/// probe is for one that it reaches.
#[test]
fn an_urgent_byte_that_is_far_ahead_is_told_of() {
    established(
        Settings { window_scaling: true, ..plain() },
        "0   < A 1+0 a1 w=0
         10  write 70000 oob
         220 > AU 0+0 a1 u65535
         300 < A 1+0 a1 w=12
         300 > AU 1+1460 a1 u65535
         310 < A 1+0 a1461 w=0
         310 end",
    );
    established(
        Settings { window_scaling: true, ..plain() },
        "0   < A 1+0 a1 w=0
         10  write 65536 oob
         220 > AU 0+0 a1 u65535
         300 < A 1+0 a1 w=12
         300 > AU 1+1460 a1 u65535
         310 < A 1+0 a1461 w=12
         310 > AU 1461+1460 a1 u64076
         320 < A 1+0 a2921 w=0
         320 end",
    );
}

/// Linux, tcp_transmit_skb: so does a reset tell of it.
#[test]
fn a_reset_tells_of_the_urgent_byte() {
    established(
        plain(),
        "0  < A 1+0 a1 w=0
         10 write 100 oob
         20 abort
         20 > RAU 1+0 a1 u100
         20 end",
    );
}
