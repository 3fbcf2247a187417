//! FIN and RST in every state.

use core::time::Duration;

use super::super::script::{plain, selective};
use super::{connect, established};
use crate::tcp::Settings;

/// RFC 9293 section 3.6 (figure 12), 3.10.8: TIME-WAIT lasts for 60 s (Linux).
#[test]
fn an_active_close() {
    established(
        plain(),
        "0     shutdown
         0     > FA 1+0 a1
         0     state FinWait1
         10    < A 1+0 a2
         10    state FinWait2
         20    < FA 1+0 a2
         20    > A 2+0 a2
         20    state TimeWait
         60019 state TimeWait
         60020 state Closed
         60020 end",
    );
}

/// RFC 9293 section 3.10.7.4, eighth: FIN and acknowledgment in one segment.
#[test]
fn a_fin_that_acknowledges_ours() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         10 < FA 1+0 a2
         10 > A 2+0 a2
         10 state TimeWait
         10 end",
    );
}

/// RFC 9293 section 3.6 (figure 13).
#[test]
fn both_close_at_once() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 1+0 a1
         5  > A 2+0 a2
         5  state Closing
         10 < A 2+0 a2
         10 state TimeWait
         10 end",
    );
}

/// RFC 9293 section 3.10.7.4: LAST-ACK ends with the acknowledgment. Section 3.10.7.1: what comes after
/// that is reset.
#[test]
fn a_passive_close_and_a_stray_segment() {
    established(
        plain(),
        "0  < FA 1+0 a1
         0  > A 1+0 a2
         0  state CloseWait
         5  write 100
         5  > PA 1+100 a2
         6  shutdown
         6  > FA 101+0 a2
         6  state LastAck
         15 < A 2+0 a102
         15 state Closed
         16 < A 2+0 a102
         16 > R 102+0
         17 < R 2+0                     # a reset is not answered
         17 end",
    );
}

/// RFC 9293 section 3.8.1: the FIN is repeated as data is.
#[test]
fn a_fin_is_repeated() {
    established(
        plain(),
        "0   < FA 1+0 a1
         0   > A 1+0 a2
         20  shutdown
         20  > FA 1+0 a2
         230 > FA 1+0 a2
         650 > FA 1+0 a2
         700 < A 2+0 a2
         700 state Closed
         700 end",
    );
}

/// RFC 9293 section 3.6: data first, and the FIN with the last of it.
#[test]
fn a_fin_follows_the_data() {
    established(
        plain(),
        "0  < A 1+0 a1 w=1460
         0  write 3000
         0  > A 1+1460 a1
         0  shutdown
         10 < A 1+0 a1461 w=60000
         10 > A 1461+1460 a1
         10 > FPA 2921+80 a1
         20 < A 1+0 a3002
         20 state FinWait2
         20 end",
    );
}

/// RFC 9293 section 3.10.7.4, eighth: a FIN again in CLOSE-WAIT, CLOSING and LAST-ACK is answered and
/// changes nothing.
#[test]
fn a_repeated_fin_is_acknowledged() {
    established(
        plain(),
        "0  < FA 1+0 a1
         0  > A 1+0 a2
         10 < FA 1+0 a1
         10 > A 1+0 a2
         10 state CloseWait
         20 shutdown
         20 > FA 1+0 a2
         30 < FA 1+0 a1
         30 > A 2+0 a2
         30 state LastAck
         30 end",
    );
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < FA 1+0 a1
         5  > A 2+0 a2
         15 < FA 1+0 a1
         15 > A 2+0 a2
         15 state Closing
         15 end",
    );
}

/// RFC 9293 section 3.10.7.4, eighth: a FIN in TIME-WAIT is answered and restarts the wait.
#[test]
fn a_fin_restarts_time_wait() {
    established(
        plain(),
        "0      shutdown
         0      > FA 1+0 a1
         10     < FA 1+0 a2
         10     > A 2+0 a2
         50000  < FA 1+0 a2
         50000  > A 2+0 a2
         109999 state TimeWait
         110000 state Closed
         110000 end",
    );
}

/// RFC 9293 section 3.10.7.4: a SYN in TIME-WAIT that is not newer is answered (RFC 5961).
#[test]
fn an_old_syn_in_time_wait_is_answered() {
    established(
        plain(),
        "0   shutdown
         0   > FA 1+0 a1
         10  < FA 1+0 a2
         10  > A 2+0 a2
         20  < S 0+0
         20  > A 2+0 a2
         20  state TimeWait
         20  end",
    );
}

/// RFC 9293 section 3.10.7.4, seventh: FIN-WAIT-1 and FIN-WAIT-2 receive.
#[test]
fn a_half_closed_connection_receives() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         5  < A 1+100 a1
         5  > A 2+0 a101
         10 < A 101+100 a2
         10 > A 2+0 a201
         10 state FinWait2
         20 < FPA 201+100 a2
         20 > A 2+0 a302
         20 state TimeWait
         20 queued 300
         20 end",
    );
}

/// A FIN out of order is kept and reported with its data (RFC 2018), and reached when the hole is filled.
#[test]
fn a_fin_beyond_a_hole_waits() {
    established(
        selective(),
        "0 < FA 101+50 a1
         0 > A 1+0 a1 [101-152]
         0 state Established
         1 < A 1+100 a1
         1 > A 1+0 a152
         1 state CloseWait
         1 end",
    );
}

/// The same for a FIN without data, which is all that waits: the segment before it is the next one in order.
#[test]
fn a_lone_fin_beyond_a_hole_waits() {
    established(
        selective(),
        "0 < FA 101+0 a1
         0 > A 1+0 a1 [101-102]
         1 < A 1+100 a1
         1 > A 1+0 a102
         1 state CloseWait
         1 end",
    );
    established(
        selective(),
        "0 < A 101+100 a1
         0 > A 1+0 a1 [101-201]
         1 < FA 301+0 a1
         1 > A 1+0 a1 [301-302] [101-201]
         2 < A 201+50 a1
         2 > A 1+0 a1 [101-251] [301-302]
         3 < A 1+100 a1
         3 > A 1+0 a251 [301-302]
         4 < A 251+20 a1
         4 > A 1+0 a271 [301-302]
         5 < A 271+30 a1
         5 > A 1+0 a302
         5 end",
    );
    established(
        plain(),
        "0 < FA 101+0 a1
         0 > A 1+0 a1
         1 < A 1+100 a1
         1 > A 1+0 a102
         1 end",
    );
}

/// RFC 9293 section 3.10.7.4, second: what a reset means in each state. As Linux (tcp_reset), the program
/// learns of it also while its FIN is on the way.
#[test]
fn a_reset_in_every_state() {
    let established_first = [
        ("", 1, "Reset"),
        ("0 < FA 1+0 a1\n0 > A 1+0 a2\n", 2, "BrokenPipe"),
        ("0 shutdown\n0 > FA 1+0 a1\n", 1, "Reset"),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < A 1+0 a2\n", 1, "Reset"),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < FA 1+0 a1\n0 > A 2+0 a2\n", 2, "Reset"),
        ("0 < FA 1+0 a1\n0 > A 1+0 a2\n20 shutdown\n20 > FA 1+0 a2\n", 2, "Reset"),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < FA 1+0 a2\n0 > A 2+0 a2\n", 2, "none"),
    ];
    for (before, next, error) in established_first {
        let lines = format!("{before}50 < R {next}+0\n50 error {error}\n50 state Closed\n1000 end");
        established(plain(), &lines);
    }
}

/// RFC 5961 section 3: a reset in the window that is not the next number is answered, outside of it
/// nothing happens. In TIME-WAIT it is not answered, as on Linux.
#[test]
fn a_reset_in_the_window_is_answered() {
    let states = [
        ("", 1, 1),
        ("0 < FA 1+0 a1\n0 > A 1+0 a2\n", 2, 1),
        ("0 shutdown\n0 > FA 1+0 a1\n", 1, 2),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < A 1+0 a2\n", 1, 2),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < FA 1+0 a1\n0 > A 2+0 a2\n", 2, 2),
        ("0 < FA 1+0 a1\n0 > A 1+0 a2\n20 shutdown\n20 > FA 1+0 a2\n", 2, 2),
        ("0 shutdown\n0 > FA 1+0 a1\n0 < FA 1+0 a2\n0 > A 2+0 a2\n", 2, 0),
    ];
    for (before, next, ours) in states {
        let (beyond, within) = (next + 100_000, next + 5);
        let mut lines = format!("{before}50 < R {beyond}+0\n60 < R {within}+0\n");
        if ours > 0 {
            lines += &format!("60 > A {ours}+0 a{next}\n");
        }
        lines += "60 error none\n60 end";
        established(plain(), &lines);
    }
}

/// RFC 2525 section 2.17: unread data at close is told by a reset.
#[test]
fn close_with_unread_data_resets() {
    established(
        plain(),
        "0 < A 1+10 a1
         0 > A 1+0 a11
         1 close
         1 > RA 1+0 a11
         1 state Closed
         2 < A 11+10 a1
         2 > R 1+0
         2 end",
    );
}

/// RFC 9293 section 3.6.1: data for a closed program is told by a reset.
#[test]
fn data_after_close_is_reset() {
    established(
        plain(),
        "0  close
         0  > FA 1+0 a1
         10 < A 1+0 a2
         20 < A 1+10 a2
         20 > R 2+0
         20 state Closed
         20 end",
    );
}

/// tcp(7), tcp_fin_timeout: an orphan in FIN-WAIT-2 is given up, and the late FIN is reset.
#[test]
fn an_orphan_waits_for_a_fin_for_a_time() {
    established(
        Settings { fin_timeout: Some(Duration::from_secs(7)), ..plain() },
        "0    close
         0    > FA 1+0 a1
         10   < A 1+0 a2
         7009 state FinWait2
         7010 state Closed
         7020 < FA 1+0 a2
         7020 > R 2+0
         7020 end",
    );
}

/// RFC 9293 section 3.10.4: a connection whose SYN is not answered is gone without a word.
#[test]
fn close_before_the_answer_says_nothing() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    close
         5    state Closed
         10   < SA 0+0 a1 mss=1460
         10   > R 1+0
         5000 end",
    );
}

/// RFC 9293 section 3.10.5: ABORT.
#[test]
fn abort_resets() {
    established(
        plain(),
        "0 write 100
         0 > PA 1+100 a1
         1 abort
         1 > RA 101+0 a1
         1 state Closed
         1 end",
    );
}

/// socket(7), SO_LINGER with no time.
#[test]
fn close_without_lingering_resets() {
    established(
        Settings { reset_on_close: true, ..plain() },
        "0 write 100
         0 > PA 1+100 a1
         1 close
         1 > RA 101+0 a1
         1 end",
    );
}

/// tcp_orphan_retries: a connection whose program is gone is given up earlier.
#[test]
fn an_orphan_is_given_up_after_its_retries() {
    established(
        Settings { orphan_retries: 2, ..plain() },
        "0    close
         0    > FA 1+0 a1
         210  > FA 1+0 a1
         630  > FA 1+0 a1
         1469 state FinWait1
         1470 state Closed
         1470 end",
    );
}

/// RFC 9293 section 3.10.7.4, fifth: an acknowledgment of the data but not of the FIN.
#[test]
fn data_and_fin_are_acknowledged_apart() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         5  shutdown
         5  > FA 101+0 a1
         10 < A 1+0 a101
         10 state FinWait1
         20 < A 1+0 a102
         20 state FinWait2
         20 end",
    );
}

/// RFC 9293 section 3.6: the peer closes while data of ours is out.
#[test]
fn a_fin_arrives_while_data_is_out() {
    established(
        plain(),
        "0   write 100
         0   > PA 1+100 a1
         5   < FA 1+0 a1
         5   > A 101+0 a2
         210 > PA 1+100 a2
         250 < A 2+0 a101
         260 shutdown
         260 > FA 101+0 a2
         270 < A 2+0 a102
         270 state Closed
         270 end",
    );
}

/// RFC 9293 section 3.10.7.4: a segment in TIME-WAIT that is not a FIN is answered if it is not acceptable.
#[test]
fn old_data_in_time_wait_is_answered() {
    established(
        plain(),
        "0   < A 1+100 a1
         0   > A 1+0 a101
         1   read 100
         5   shutdown
         5   > FA 1+0 a101
         10  < FA 101+0 a2
         10  > A 2+0 a102
         50  < A 1+100 a2
         50  > A 2+0 a102
         50  state TimeWait
         50  end",
    );
}

/// RFC 5961 section 5: an acknowledgment of what was never sent is answered, also while closing.
#[test]
fn an_impossible_acknowledgment_while_closing_is_answered() {
    established(
        plain(),
        "0  shutdown
         0  > FA 1+0 a1
         10 < A 1+0 a3
         10 > A 2+0 a1
         10 state FinWait1
         20 < A 1+0 a2
         20 state FinWait2
         20 end",
    );
}
