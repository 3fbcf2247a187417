//! Explicit congestion notification (RFC 3168).

use super::super::script::{ACK, Script, Segment, plain, segment, selective};
use super::{connect, listening};
use crate::tcp::{EcnField, Settings};
use crate::wire::tcp::Flags;

/// RFC 3168 section 6.1.1: a peer that does not answer with ECE has no ECN.
#[test]
fn a_peer_without_ecn_gets_none() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0 noect
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 write 100
         10 > PA 1+100 a1 noect
         20 < A 1+100 a101 ce
         20 > A 101+0 a101
         20 end",
    );
}

/// RFC 3168 section 6.1.1.1: a SYN that gets no answer may have been dropped for its bits, and comes again without them (Linux:
/// tcp_ecn_fallback). An answer to the first one counts all the same.
#[test]
fn a_syn_that_is_repeated_does_not_ask_for_ecn() {
    connect(
        Settings { ecn: true, ..plain() },
        "0    connect
         0    > SEC 0+0
         1000 > S 0+0
         1200 < SA 0+0 a1 mss=1460
         1200 > A 1+0 a1
         1200 write 100
         1200 > PA 1+100 a1 noect
         1210 < A 1+0 a101
         1210 end",
    );
    connect(
        Settings { ecn: true, ..plain() },
        "0    connect
         0    > SEC 0+0
         1000 > S 0+0
         1200 < SAE 0+0 a1 mss=1460
         1200 > A 1+0 a1
         1200 write 100
         1200 > PAC 1+100 a1 ect
         1210 < A 1+0 a101
         1210 end",
    );
}

/// RFC 3168 section 6.1.1: a crossing SYN that asks for ECN is answered with ECE, another is not.
#[test]
fn crossing_syns_agree_upon_ecn() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         5  < SEC 0+0 mss=1460
         5  > SAE 0+0 a1
         15 < A 1+0 a1
         15 write 100
         15 > PA 1+100 a1 ect
         25 < A 1+0 a101
         25 end",
    );
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1
         15 < A 1+0 a1
         15 write 100
         15 > PA 1+100 a1 noect
         25 < A 1+0 a101
         25 end",
    );
}

/// RFC 3168 section 6.1.2: the sender has reduced its window, and may have one segment out only: CWR is acknowledged at once.
#[test]
fn a_confirmation_is_acknowledged_at_once() {
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460
         10  > A 1+0 a1
         10  pingpong
         20  < AC 1+100 a1
         20  > A 1+0 a101
         20  end",
    );
}

/// RFC 3168 section 6.1.3: CE of a segment with CWR begins another echo.
#[test]
fn congestion_with_a_confirmation_is_echoed_again() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         11 < A 1+100 a1 ce
         11 > AE 1+0 a101
         12 < AC 101+100 a1 ce
         12 > AE 1+0 a201
         13 < AC 201+100 a1
         13 > A 1+0 a301
         13 end",
    );
}

/// RFC 3168 section 6.1.4: CE of a segment without data means nothing.
#[test]
fn congestion_of_an_acknowledgment_is_not_echoed() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         11 < A 1+0 a1 ce
         12 < A 1+100 a1
         12 > A 1+0 a101
         12 end",
    );
}

/// RFC 3168 section 6.1.3: data carries the echo as well; section 6.1.4: only data is capable of ECN.
#[test]
fn data_carries_the_echo() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1 noect
         11 < A 1+100 a1 ce
         11 > AE 1+0 a101 noect
         12 write 100
         12 > PAE 1+100 a101 ect
         20 < A 101+0 a101
         21 shutdown
         21 > FAE 101+0 a101 noect
         30 < A 101+0 a102
         30 end",
    );
}

/// RFC 3168 section 6.1.2: a window that shrinks for a loss is confirmed as well, with the next new data.
#[test]
fn a_reduction_for_a_loss_is_confirmed() {
    connect(
        Settings { ecn: true, ..selective() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460 sackok
         10 > A 1+0 a1
         10 write 7300
         10 > A 1+1460*4 a1 ect
         10 > PA 5841+1460 a1 ect
         20 < A 1+0 a1 [1461-5841]
         20 > A 1+1460 a1 noect
         30 < A 1+0 a7301
         31 write 100
         31 > PAC 7301+100 a1 ect
         40 < A 1+0 a7401
         40 end",
    );
}

/// The same after a timeout.
#[test]
fn a_reduction_for_a_timeout_is_confirmed() {
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460
         10  > A 1+0 a1
         10  write 100
         10  > PA 1+100 a1 ect
         220 > PA 1+100 a1 noect
         230 < A 1+0 a101
         231 write 100
         231 > PAC 101+100 a1 ect
         240 < A 1+0 a201
         240 end",
    );
}

/// RFC 3168 section 6.1.2: once for a window; what is echoed beyond it is confirmed again.
#[test]
fn an_echo_of_the_next_window_is_confirmed_again() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 write 100
         10 > PA 1+100 a1 ect
         20 < AE 1+0 a101
         21 write 100
         21 > PAC 101+100 a1 ect
         30 < AE 1+0 a201
         31 write 100
         31 > PAC 201+100 a1 ect
         40 < A 1+0 a301
         41 write 100
         41 > PA 301+100 a1 ect
         50 < A 1+0 a401
         50 end",
    );
}

/// RFC 3168 section 6.1.6: window probes are not capable of ECN.
#[test]
fn a_window_probe_is_not_capable_of_ecn() {
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460 w=0
         10  > A 1+0 a1
         10  write 100
         220 > A 0+0 a1 noect
         230 < A 1+0 a1 w=1000
         230 > PA 1+100 a1 ect
         240 < A 1+0 a101
         240 end",
    );
}

/// The same, where a loss probe repaired the loss.
#[test]
fn a_reduction_for_a_probe_is_confirmed() {
    connect(
        Settings { ecn: true, ..selective() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460 sackok
         10  > A 1+0 a1
         10  write 4380
         10  > A 1+1460*2 a1 ect
         10  > PA 2921+1460 a1 ect
         20  < A 1+0 a2921
         230 > PA 2921+1460 a1 noect
         300 < A 1+0 a4381
         301 write 100
         301 > PA 4381+100 a1 ect
         310 < A 1+0 a4481
         311 write 100
         311 > PAC 4481+100 a1 ect
         320 < A 1+0 a4581
         320 end",
    );
}

/// RFC 4015: a timeout that was not needed is taken back, and there is nothing to confirm.
#[test]
fn a_reduction_that_was_taken_back_is_not_confirmed() {
    connect(
        Settings { ecn: true, timestamps: true, ..plain() },
        "0   connect
         0   > SEC 0+0 ts=10000/0
         10  < SAE 0+0 a1 mss=1460 ts=1000000/10000
         10  > A 1+0 a1
         10  write 100
         10  > PA 1+100 a1 ts=10010/1000000 ect
         220 > PA 1+100 a1 ts=10220/1000000 noect
         250 < A 1+0 a101 ts=1000200/10010
         251 write 100
         251 > PA 101+100 a1 ect
         260 < A 1+0 a201 ts=1000210/10251
         260 end",
    );
}

/// RFC 3168 section 6.1.1: a listener grants ECN to a peer that asks for it (Linux: tcp_ecn = 2).
#[test]
fn a_listener_grants_ecn() {
    listening(
        plain(),
        "0  < SEC 0+0 mss=1460
         0  > SAE 0+0 a1 noect
         10 < A 1+0 a1
         11 write 100
         11 > PA 1+100 a1 ect
         20 < A 1+0 a101
         21 < A 1+100 a101 ce
         21 > AE 101+0 a101 noect
         22 < AC 101+100 a101
         22 > A 101+0 a201 noect
         22 end",
    );
}

/// Both bits ask for it, and no single one.
#[test]
fn a_listener_grants_ecn_for_both_bits_only() {
    listening(
        plain(),
        "0  < SE 0+0 mss=1460
         0  > SA 0+0 a1
         10 < A 1+0 a1
         11 write 100
         11 > PA 1+100 a1 noect
         20 < A 1+0 a101
         20 end",
    );
    listening(
        plain(),
        "0  < SC 0+0 mss=1460
         0  > SA 0+0 a1
         10 < A 1+0 a1
         11 write 100
         11 > PA 1+100 a1 noect
         20 < A 1+0 a101
         20 end",
    );
    listening(
        plain(),
        "0  < S 0+0 mss=1460
         0  > SA 0+0 a1
         10 < A 1+0 a1
         11 < A 1+100 a1 ce
         11 > A 1+0 a101
         12 write 100
         12 > PA 1+100 a101 noect
         20 < AE 101+0 a101
         20 write 100
         20 > PA 101+100 a101
         30 < A 101+0 a201
         30 end",
    );
}

/// A peer that asks, gets no answer, and asks again without the bits has none (RFC 3168 section 6.1.1.1).
#[test]
fn a_repeated_syn_without_the_bits() {
    listening(
        plain(),
        "0    < SEC 0+0 mss=1460
         0    > SAE 0+0 a1
         500 < S 0+0 mss=1460
         500 > SAE 0+0 a1
         510 < A 1+0 a1
         511 write 100
         511 > PA 1+100 a1 ect
         520 < A 1+0 a101
         520 end",
    );
}

/// RFC 3168 section 6.1.3: the peer's window may be small, and no acknowledgment with the echo is delayed.
#[test]
fn acknowledgments_with_the_echo_are_not_delayed() {
    listening(
        plain(),
        "0  < SEC 0+0 mss=1460
         0  > SAE 0+0 a1
         10 < A 1+0 a1
         11 pingpong
         20 < A 1+100 a1 ce
         20 > AE 1+0 a101
         21 < A 101+100 a1 ce
         21 > AE 1+0 a201
         22 < A 201+100 a1 ce
         22 > AE 1+0 a301
         70 < A 301+100 a1
         70 > AE 1+0 a401
         150 end",
    );
}

/// RFC 3168 section 6.1.2, RFC 6937: the window falls by three tenths over the round trip that follows.
#[test]
fn the_window_falls_over_a_round_trip() {
    listening(
        selective(),
        "0  < SEC 0+0 mss=1460 sackok
         0  > SAE 0+0 a1
         10 < A 1+0 a1
         11 write 100000
         11 > A 1+1460*10 a1 ect
         20 < AE 1+0 a1461
         20 > AC 14601+1460 a1 ect
         24 < AE 1+0 a14601
         24 > A 16061+1460*6 a1 ect
         25 end",
    );
}

/// An echo with the acknowledgment of a whole window, which is what counts.
#[test]
fn an_echo_of_a_whole_window_leaves_seven_tenths() {
    listening(
        selective(),
        "0  < SEC 0+0 mss=1460 sackok
         0  > SAE 0+0 a1
         10 < A 1+0 a1
         11 write 100000
         11 > A 1+1460*10 a1 ect
         20 < AE 1+0 a14601
         20 > AC 14601+1460 a1 ect
         20 > A 16061+1460*6 a1 ect
         21 < AE 1+0 a14601
         22 end",
    );
}

/// Data of the peer says nothing of segments that have left (RFC 9937 section 6.2: DeliveredData), also without SACK.
#[test]
fn data_of_the_peer_sends_nothing_in_a_reduction() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         10 write 43800
         10 > A 1+1460*10 a1 ect
         20 < AE 1+0 a2921
         20 > AC 14601+1460 a1 ect
         21 < A 1+100 a2921
         21 > A 16061+0 a101
         22 < A 101+100 a2921
         22 > A 16061+0 a201
         23 < A 201+100 a2921
         23 > A 16061+0 a301
         24 end",
    );
}

/// RFC 3168 section 6.1.3: the confirmation counts if it had to come again, but not that of a segment which later ones have overtaken.
#[test]
fn a_confirmation_may_be_repeated_but_not_old() {
    connect(
        Settings { ecn: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         20 < A 1+100 a1 ce
         20 > AE 1+0 a101
         30 < AC 1+100 a1
         30 > A 1+0 a101
         40 < A 101+100 a1
         40 > A 1+0 a201
         40 end",
    );
    connect(
        Settings { ecn: true, nodelay: true, ..plain() },
        "0  connect
         0  > SEC 0+0
         10 < SAE 0+0 a1 mss=1460
         10 > A 1+0 a1
         11 write 100
         11 > PA 1+100 a1 ect
         20 < A 1+100 a101 ce
         20 > AE 101+0 a101
         30 < AC 101+0 a1
         40 < A 101+100 a101
         40 > AE 101+0 a201
         40 end",
    );
}

/// RFC 3168 section 6.1.1: a SYN is not ECN-capable; who sets the field in each packet, or has it set on the way, gets no ECN
/// (Linux: tcp_ecn_create_request).
#[test]
fn a_capable_syn_gets_no_ecn() {
    listening(
        plain(),
        "0  < SEC 0+0 mss=1460 ect
         0  > SA 0+0 a1
         10 < A 1+0 a1
         10 end",
    );
    listening(
        plain(),
        "0  < SEC 0+0 mss=1460 ce
         0  > SA 0+0 a1
         10 < A 1+0 a1
         10 end",
    );
    listening(
        plain(),
        "0  < SEC 0+0 mss=1460
         0  > SAE 0+0 a1
         10 < A 1+0 a1
         10 end",
    );
}

/// RFC 3168 section 6.1.5: retransmissions are not ECN-capable. Where the peer's data are, one that is not comes again as a rule, and its
/// sender waits for the acknowledgment (Linux: TCP_ECN_SEEN).
#[test]
fn data_that_is_not_capable_any_more_is_acknowledged_at_once() {
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460
         10  > A 1+0 a1
         10  pingpong
         20  < A 1+100 a1
         60  > A 1+0 a101
         70  pingpong
         100 < A 101+100 a1 noect
         100 > A 1+0 a201
         100 end",
    );
    // Of a peer that never sets the field it says nothing.
    connect(
        Settings { ecn: true, ..plain() },
        "0   connect
         0   > SEC 0+0
         10  < SAE 0+0 a1 mss=1460
         10  > A 1+0 a1
         10  pingpong
         20  < A 1+100 a1 noect
         60  > A 1+0 a101
         70  pingpong
         100 < A 101+100 a1 noect
         140 > A 1+0 a201
         140 end",
    );
}

/// Linux sends acknowledgments that are not capable: they stay on the short way.
#[test]
fn an_acknowledgment_is_usual_whatever_its_field() {
    let settings = Settings { ecn: true, ..plain() };
    let answer = Script::answer(&settings);
    let mut script = Script::connecting(settings);
    script.give(Segment { flags: answer.flags.with(Flags::ECE), ..answer });
    assert!(!script.info().ecn_seen);
    script.give(segment(ACK, 1, 1, 100));
    assert!(script.info().ecn_seen);
    let fields = [EcnField::NotCapable, EcnField::Capable, EcnField::Congestion];
    let usual = |len| fields.map(|field| script.connection.is_usual(len, field));
    assert_eq!(usual(100), [false, true, false]);
    assert_eq!(usual(0), [true; 3]);
}
