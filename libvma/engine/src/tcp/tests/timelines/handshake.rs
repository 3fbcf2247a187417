//! Opening, and what both sides agree upon.

use super::super::script::{plain, selective};
use super::{accepted, connect, established};
use crate::tcp::{Buffer, Settings};

/// RFC 9293 section 3.5 (figure 6), with the options of RFC 7323 and RFC 2018.
#[test]
fn an_active_open_offers_all_options() {
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 mss=1460 sackok ws=6 ts=10000/0
         10 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/10000
         10 > A 1+0 a1 w=1023 ts=10010/1000000   # the SYN's 65535 in units of 64
         10 state Established
         10 end",
    );
}

/// A peer without options gets none.
#[test]
fn options_that_the_peer_does_not_offer_are_off() {
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 mss=1460 sackok
         10 < SA 0+0 a1
         10 > A 1+0 a1 w=65535 nots
         10 window 60000
         20 < A 1+0 a1 w=1000
         20 window 1000
         20 write 600
         20 > A 1+536 a1 nots             # RFC 9293 section 3.7.1: 536 without the option
         20 > PA 537+64 a1 nots
         30 < A 1+0 a601
         40 < A 101+10 a601
         40 > A 601+0 a1                  # and no SACK
         40 end",
    );
}

/// Linux, tcp_select_initial_window: the scale is that of the largest window which tcp_rmem, rmem_max and
/// TCP_WINDOW_CLAMP allow, or of SO_RCVBUF if that is set.
#[test]
fn the_window_scale_follows_the_buffers() {
    let automatic = Buffer { limit: 65_536, most: 3 << 20, automatic: true };
    let fixed = |limit| Buffer { limit, most: limit, automatic: false };
    let cases = [
        (automatic, 6 << 20, u32::MAX, 7),
        (automatic, 4 << 20, u32::MAX, 7),
        (automatic, 32 << 20, u32::MAX, 10),
        (automatic, u32::MAX, u32::MAX, 14),
        (automatic, 6 << 20, 100_000, 1),
        (automatic, 6 << 20, 65_535, 0),
        (fixed(65_535), 6 << 20, u32::MAX, 0),
        (fixed(65_536), 6 << 20, u32::MAX, 1),
        (fixed(1 << 20), 6 << 20, u32::MAX, 5),
    ];
    for (receive_buffer, largest_receive_buffer, window_clamp, scale) in cases {
        let settings = Settings {
            window_scaling: true,
            receive_buffer,
            largest_receive_buffer,
            window_clamp,
            ..plain()
        };
        connect(settings, &format!("0 connect\n0 > S 0+0 ws={scale}\n0 end"));
    }
}

/// RFC 7323 section 2.2: the window of a SYN is not scaled, all others are.
#[test]
fn windows_after_the_handshake_are_scaled() {
    connect(
        Settings { window_scaling: true, ..plain() },
        "0  connect
         0  > S 0+0 ws=6 w=65535
         10 < SA 0+0 a1 mss=1460 ws=7 w=1000
         10 > A 1+0 a1 w=1023
         10 window 1000
         20 < A 1+0 a1 w=1000
         20 window 128000
         20 end",
    );
}

/// RFC 7323 section 2.3: a larger scale is taken for 14.
#[test]
fn a_scale_beyond_fourteen_is_fourteen() {
    connect(
        Settings { window_scaling: true, ..plain() },
        "0  connect
         0  > S 0+0
         10 < SA 0+0 a1 mss=1460 ws=15 w=1000
         10 > A 1+0 a1
         20 < A 1+0 a1 w=1
         20 window 16384
         20 end",
    );
}

/// RFC 6298 section 2.1 and 5.5; tcp_syn_retries.
#[test]
fn a_syn_is_repeated() {
    connect(
        Settings { syn_retries: 3, ..plain() },
        "0     connect
         0     > S 0+0
         1000  > S 0+0
         3000  > S 0+0
         7000  > S 0+0
         14999 state SynSent
         15000 error TimedOut
         15000 end",
    );
}

/// RFC 5681 section 3.1: one segment after lost SYNs; the threshold stays "arbitrarily high".
#[test]
fn two_lost_syns_leave_one_segment_and_no_threshold() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         1000 > S 0+0
         3000 > S 0+0
         3100 < SA 0+0 a1 mss=1460
         3100 > A 1+0 a1
         3100 cwnd 1460
         3100 ssthresh 4294967295
         3100 write 4380
         3100 > A 1+1460 a1
         3110 < A 1+0 a1461
         3110 > A 1461+1460 a1
         3110 > PA 2921+1460 a1
         3120 < A 1+0 a4381
         3120 end",
    );
}

/// RFC 6928 section 2: a single repetition of the SYN may not have been needed.
#[test]
fn a_single_lost_syn_leaves_the_initial_window() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         1000 > S 0+0
         1100 < SA 0+0 a1 mss=1460
         1100 > A 1+0 a1
         1100 cwnd 14600
         1100 write 4380
         1100 > A 1+1460 a1
         1100 > A 1461+1460 a1
         1100 > PA 2921+1460 a1
         1110 < A 1+0 a4381
         1110 end",
    );
}

/// After a lost SYN, losses of the first flight are repaired as any others.
#[test]
fn a_lost_syn_is_over_with_the_handshake() {
    connect(
        selective(),
        "0    connect
         0    > S 0+0 mss=1460 sackok
         1000 > S 0+0 mss=1460 sackok
         1100 < SA 0+0 a1 mss=1460 sackok
         1100 > A 1+0 a1
         1100 write 7300
         1100 > A 1+1460 a1
         1100 > A 1461+1460 a1
         1100 > A 2921+1460 a1
         1100 > A 4381+1460 a1
         1100 > PA 5841+1460 a1
         1110 < A 1+0 a1 [1461-2921]
         1110 < A 1+0 a1 [1461-4381]
         1110 < A 1+0 a1 [1461-5841]
         1110 > A 1+1460 a1
         1120 < A 1+0 a7301
         1120 ssthresh 5110               # 0.7 of five segments
         1120 end",
    );
}

/// RFC 9293 section 3.10.7.3: a reset of our SYN.
#[test]
fn a_reset_refuses() {
    connect(
        plain(),
        "0 connect
         0 > S 0+0
         4 < R 0+0                        # without ACK: not for us
         4 state SynSent
         5 < RA 0+0 a1
         5 error Refused
         5 state Closed
         5 end",
    );
}

/// RFC 9293 section 3.5.1 (figure 9): an acknowledgment of something else is reset. Linux sends the SYN
/// again after 2 ms.
#[test]
fn an_old_connection_of_the_peer_is_reset() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < A 100+0 a5000
         5  > R 5000+0
         7  > S 0+0
         50 < SA 0+0 a1 mss=1460
         50 > A 1+0 a1
         50 end",
    );
}

/// RFC 9293 section 3.5 (figure 7).
#[test]
fn both_open_at_once() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0 mss=1460
         5  < S 0+0 mss=1460
         5  > SA 0+0 a1 mss=1460
         5  state SynReceived
         15 < A 1+0 a1
         15 state Established
         15 write 10
         15 > PA 1+10 a1
         15 end",
    );
}

/// The answer of a simultaneous open is repeated, too; for a SYN that comes again, as well.
#[test]
fn the_answer_to_a_crossing_syn_is_repeated() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         5    < S 0+0 mss=1460
         5    > SA 0+0 a1
         1000 > SA 0+0 a1
         1500 < S 0+0 mss=1460            # the peer has not got it
         1500 > SA 0+0 a1
         1510 < R 1+0
         1510 error Reset                # Linux: tcp_reset
         1510 end",
    );
}

/// RFC 5961 section 4: a SYN, also one with ACK, is answered by an acknowledgment.
#[test]
fn a_repeated_syn_ack_is_acknowledged() {
    established(
        plain(),
        "0 < SA 0+0 a1 mss=1460
         0 > A 1+0 a1
         0 state Established
         0 end",
    );
}

/// A passive open measures the round trip by its SYN-ACK (RFC 6298 section 2.2). The peer announced no MSS.
#[test]
fn a_passive_open_knows_the_round_trip() {
    accepted(
        plain(),
        "0   write 600
         0   > A 1+536 a1
         0   > PA 537+64 a1
         210 > A 1+536 a1
         220 < A 1+0 a601
         220 end",
    );
}

/// RFC 7323 section 3.2 and 4.3: what is echoed is the stamp of the segment that advanced the window.
#[test]
fn stamps_are_echoed_from_the_segment_that_advanced() {
    established(
        Settings { timestamps: true, ..selective() },
        "0  < A 1+100 a1 ts=1000010/10010
         0  > A 1+0 a101 ts=10010/1000010
         5  < A 201+100 a1 ts=1000015/10010
         5  > A 1+0 a101 [201-301] ts=10015/1000010
         7  < A 101+100 a1 ts=1000012/10010
         7  > A 1+0 a301 ts=10017/1000012
         7  end",
    );
}

/// RFC 7323 section 5.3: an old stamp is answered and the segment not taken. A reset is exempt.
#[test]
fn an_old_stamp_is_answered() {
    established(
        Settings { timestamps: true, ..plain() },
        "0 < A 1+100 a1 ts=1000010/10010
         0 > A 1+0 a101
         5 < A 101+100 a1 ts=1000008/10010
         5 > A 1+0 a101 ts=10015/1000010
         5 queued 100
         6 < A 101+100 a1 ts=1000009/10010    # one tick is allowed (Linux: TCP_PAWS_WINDOW)
         6 > A 1+0 a201 ts=10016/1000010
         6 queued 200
         7 < R 201+0 ts=1/0
         7 error Reset
         7 end",
    );
}

/// RFC 9293 section 3.10.7.3, second: a reset counts if it acknowledges the SYN.
#[test]
fn a_reset_of_something_else_does_not_refuse() {
    connect(
        plain(),
        "0    connect
         0    > S 0+0
         4    < R 0+0
         4    < F 0+0
         5    < RA 0+0 a5                 # the end of an old connection: the SYN again (Linux)
         7    > S 0+0
         50   state SynSent
         2007 > S 0+0
         2400 < RA 0+0 a1
         2400 error Refused
         2400 end",
    );
}

/// RFC 9293 section 3.10.7.3, first: a SYN that acknowledges something else is reset, and the SYN sent again.
#[test]
fn a_syn_ack_of_something_else_is_reset() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         5  < SA 0+0 a5 mss=1460
         5  > R 5+0
         7  > S 0+0
         50 < SA 0+0 a1 mss=1460
         50 > A 1+0 a1
         50 end",
    );
}

/// RFC 7323 section 3.2: a segment without the stamps that were agreed upon is taken, as on Linux.
#[test]
fn a_segment_without_stamps_is_taken() {
    established(
        Settings { timestamps: true, ..plain() },
        "0 < A 1+100 a1
         0 > A 1+0 a101 ts=10010/1000000
         0 queued 100
         0 end",
    );
}

/// RFC 7323 does not say so, but an echo that no SYN of this connection had is an old segment's (Linux: tcp_rcv_synsent_state_process).
#[test]
fn an_answer_with_an_echo_that_was_never_sent_is_reset() {
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 ts=10000/0
         10 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/9000
         10 > R 1+0
         20 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/10500
         20 > R 1+0
         30 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/10000
         30 > A 1+0 a1
         30 state Established
         30 end",
    );
    // The echo of the SYN that was lost, and that of a peer that does not know what to echo.
    connect(
        Settings::default(),
        "0    connect
         0    > S 0+0 ts=10000/0
         1000 > S 0+0 ts=11000/0
         1010 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/10000
         1010 > A 1+0 a1
         1010 end",
    );
    connect(
        Settings::default(),
        "0  connect
         0  > S 0+0 ts=10000/0
         10 < SA 0+0 a1 mss=1460 sackok ws=7 ts=1000000/0
         10 > A 1+0 a1
         10 end",
    );
}
