//! Closes that reset: SO_LINGER with no time (`abort`), and unread data, in every state.

use super::super::script::{plain, selective};
use super::{connect, established};
use crate::tcp::Settings;

/// RFC 9293 section 3.10.5: what was not sent is thrown away, and the reset has the next number (SND.NXT).
#[test]
fn an_abort_throws_unsent_data_away() {
    established(
        plain(),
        "0  write 100000
         0  > A 1+1460*10 a1
         10 < A 1+0 a1461
         10 > A 14601+1460*2 a1
         11 abort
         11 > RA 17521+0 a1
         11 state Closed
         12 < A 1+0 a5841
         12 > R 5841+0
         500 end",
    );
}

/// The same while a segment is lost, and after its timeout.
#[test]
fn an_abort_in_a_recovery_has_the_next_number() {
    established(
        selective(),
        "0  write 100000
         0  > A 1+1460*10 a1
         10 < A 1+0 a1 [1461-5841]
         10 > A 1+1460 a1
         11 abort
         11 > RA 14601+0 a1
         500 end",
    );
    established(
        plain(),
        "0   write 100000
         0   > A 1+1460*10 a1
         210 > A 1+1460 a1
         300 abort
         300 > RA 14601+0 a1
         900 end",
    );
}

/// A closed window does not hold the reset back. In a window that has shrunk it has the last number that the peer takes (Linux:
/// tcp_acceptable_seq), and so has an acknowledgment.
#[test]
fn an_abort_does_not_wait_for_the_window() {
    established(
        plain(),
        "0  write 1000
         0  > PA 1+1000 a1
         10 < A 1+0 a1001 w=0
         11 write 1000
         12 abort
         12 > RA 1001+0 a1
         500 end",
    );
    established(
        plain(),
        "0  write 2920
         0  > A 1+1460 a1
         0  > PA 1461+1460 a1
         10 < A 1+0 a1461 w=100
         12 abort
         12 > RA 1561+0 a1
         500 end",
    );
    established(
        Settings::default(),
        "0  write 2896
         0  > A 1+1448 a1
         0  > PA 1449+1448 a1
         10 < A 1+0 a1449 w=11 ts=1000010/10010
         12 abort
         12 > RA 2897+0 a1
         500 end",
    );
    established(
        Settings::default(),
        "0  write 2896
         0  > A 1+1448 a1
         0  > PA 1449+1448 a1
         10 < A 1+0 a1449 w=3 ts=1000010/10010
         11 < A 1+100 a1449 w=3 ts=1000010/10010
         11 > A 1833+0 a101
         12 close
         12 > RA 1833+0 a101
         500 end",
    );
}

/// Small segments that wait (Nagle, TCP_CORK).
#[test]
fn an_abort_does_not_send_what_waits() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  write 100
         2  abort
         2  > RA 101+0 a1
         500 end",
    );
    established(
        plain(),
        "0  cork
         0  write 100
         2  abort
         2  > RA 1+0 a1
         500 end",
    );
}

/// The handshake has not ended.
#[test]
fn an_abort_before_the_answer_says_nothing() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    abort
         5    state Closed
         10   < SA 0+0 a1 mss=1460
         10   > R 1+0
         1500 end",
    );
}

/// RFC 9293 section 3.10.5: in SYN-RECEIVED the peer knows of the connection.
#[test]
fn an_abort_in_a_simultaneous_open_resets() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         7    abort
         7    > RA 1+0 a1
         1500 end",
    );
}

/// RFC 9293 section 3.10.5: the reset follows the FIN, if that has left.
#[test]
fn an_abort_in_fin_wait_1_resets() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  abort
         5  > RA 2+0 a1
         500 end",
    );
    established(
        plain(),
        "0  write 100000
         0  > A 1+1460*10 a1
         1  shutdown
         5  abort
         5  > RA 14601+0 a1
         500 end",
    );
}

/// RFC 9293 section 3.10.5, after shutdown().
#[test]
fn an_abort_in_fin_wait_2_resets() {
    established(
        plain(),
        "0   shutdown
         0   > FA 1+0 a1
         10  < A 1+0 a2
         20  abort
         20  > RA 2+0 a1
         500 end",
    );
}

/// RFC 9293 section 3.10.5: the reset acknowledges the FIN of the peer.
#[test]
fn an_abort_in_close_wait_resets() {
    established(
        plain(),
        "0  < FA 1+0 a1
         0  > A 1+0 a2
         5  write 100000
         5  > A 1+1460*10 a2
         6  abort
         6  > RA 14601+0 a2
         500 end",
    );
}

/// As on Linux: the peer has nothing more to say, and learns of it when it asks.
#[test]
fn an_abort_in_closing_says_nothing() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 1+0 a1
         5  > A 2+0 a2
         6  abort
         6  state Closed
         10 < A 2+0 a2
         10 > R 2+0
         500 end",
    );
}

/// The same in LAST-ACK (Linux: tcp_disconnect).
#[test]
fn an_abort_in_last_ack_says_nothing() {
    established(
        plain(),
        "0  < FA 1+0 a1
         0  > A 1+0 a2
         20 shutdown
         20 > FA 1+0 a2
         21 abort
         21 state Closed
         30 < A 2+0 a2
         30 > R 2+0
         500 end",
    );
}

/// A peer that would miss data is told (Linux: tcp_disconnect).
#[test]
fn an_abort_in_last_ack_with_unsent_data_resets() {
    established(
        plain(),
        "0  < FA 1+0 a1
         0  > A 1+0 a2
         5  write 100000
         5  > A 1+1460*10 a2
         20 shutdown
         21 abort
         21 > RA 14601+0 a2
         500 end",
    );
}

/// TIME-WAIT does not belong to the program any more: it goes on.
#[test]
fn an_abort_in_time_wait_says_nothing() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         10 < FA 1+0 a2
         10 > A 2+0 a2
         11 abort
         20 < FA 1+0 a2
         20 > A 2+0 a2
         500 end",
    );
}

/// RFC 2525 section 2.17, after shutdown().
#[test]
fn unread_data_resets_in_fin_wait_1() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < A 1+100 a1
         5  > A 2+0 a101
         6  close
         6  > RA 2+0 a101
         500 end",
    );
}

/// The same in FIN-WAIT-2.
#[test]
fn unread_data_resets_in_fin_wait_2() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < A 1+100 a2
         5  > A 2+0 a101
         6  close
         6  > RA 2+0 a101
         500 end",
    );
}

/// The same in CLOSE-WAIT: what was not sent is thrown away.
#[test]
fn unread_data_resets_in_close_wait() {
    established(
        plain(),
        "0  < FA 101+0 a1
         0  > A 1+0 a1
         1  < A 1+100 a1
         1  > A 1+0 a102
         5  write 100000
         5  > A 1+1460*10 a102
         6  close
         6  > RA 14601+0 a102
         500 end",
    );
}

/// Unread data, unlike SO_LINGER, resets in CLOSING as well.
#[test]
fn unread_data_resets_in_closing() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 1+100 a1
         5  > A 2+0 a102
         6  close
         6  > RA 2+0 a102
         500 end",
    );
}

/// The same in LAST-ACK.
#[test]
fn unread_data_resets_in_last_ack() {
    established(
        plain(),
        "0  < FA 101+0 a1
         0  > A 1+0 a1
         1  < A 1+100 a1
         1  > A 1+0 a102
         60 shutdown
         60 > FA 1+0 a102
         61 close
         61 > RA 2+0 a102
         500 end",
    );
}

/// TIME-WAIT goes on, whatever the program has not read.
#[test]
fn unread_data_in_time_wait_says_nothing() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 1+100 a2
         5  > A 2+0 a102
         6  close
         20 < FA 1+100 a2
         20 > A 2+0 a102
         500 end",
    );
}

/// A single byte that was not read is enough.
#[test]
fn unread_data_resets_bulk() {
    established(
        plain(),
        "0  < A 1+100 a1
         0  > A 1+0 a101
         5  write 100000
         5  > A 1+1460*10 a101
         6  read 99
         7  close
         7  > RA 14601+0 a101
         500 end",
    );
}

/// Data beyond a hole was never there for the program.
#[test]
fn data_beyond_a_hole_is_not_unread() {
    established(
        plain(),
        "0  < A 101+100 a1
         0  > A 1+0 a1
         6  close
         6  > FA 1+0 a1
         10 < A 1+0 a2
         20 end",
    );
}

/// RFC 9293 section 3.10.4: everything was read.
#[test]
fn data_that_was_read_does_not_reset() {
    established(
        plain(),
        "0  < A 1+100 a1
         0  > A 1+0 a101
         1  read 100
         6  close
         6  > FA 1+0 a101
         10 < A 101+0 a2
         20 end",
    );
}

/// An urgent byte is data, too.
#[test]
fn an_urgent_byte_that_was_not_read_resets() {
    established(
        plain(),
        "0  < UA 1+1 a1 u=1
         0  > A 1+0 a2
         6  close
         6  > RA 1+0 a2
         20 end",
    );
}

/// RFC 1122 section 4.2.2.13: a FIN beyond a hole says that data is on its way, which nobody will read.
#[test]
fn a_fin_beyond_a_hole_resets_a_closed_program() {
    established(
        plain(),
        "0  close
         0  > FA 1+0 a1
         5  < A 1+0 a1
         10 < FA 1001+0 a1
         10 > R 1+0
         10 end",
    );
}
