//! The program writes, and the segments leave at the right time.

use super::super::script::plain;
use super::{connect, established};
use crate::tcp::Settings;

/// RFC 9293 section 3.7.4: a small segment waits while another one is out.
#[test]
fn nagle_lets_one_small_segment_out() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  write 100
         2  write 100
         10 < A 1+0 a101
         10 > PA 101+200 a1
         20 < A 1+0 a301
         20 end",
    );
}

/// Minshall's modification, as Linux has it: only small segments hold back small ones.
#[test]
fn nagle_does_not_wait_for_full_segments() {
    established(
        plain(),
        "0  write 1470
         0  > A 1+1460 a1
         0  > PA 1461+10 a1
         1  write 10
         10 < A 1+0 a1461               # the small one is still out
         20 < A 1+0 a1471
         20 > PA 1471+10 a1
         30 < A 1+0 a1481
         30 end",
    );
}

/// A full segment leaves at once.
#[test]
fn a_segment_that_fills_up_leaves() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  write 1000
         2  write 1000
         2  > A 101+1460 a1
         10 < A 1+0 a101
         10 > PA 1561+540 a1
         20 < A 1+0 a2101
         20 end",
    );
}

/// RFC 9293 section 3.7.4 (MUST-17), tcp(7): TCP_NODELAY.
#[test]
fn without_nagle_each_write_leaves() {
    established(
        Settings { nodelay: true, ..plain() },
        "0  write 100
         0  > PA 1+100 a1
         1  write 100
         1  > PA 101+100 a1
         2  write 1
         2  > PA 201+1 a1
         10 < A 1+0 a202
         10 end",
    );
}

/// tcp(7): setting TCP_NODELAY flushes what waits.
#[test]
fn switching_nagle_off_flushes() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  write 100
         5  nodelay
         5  > PA 101+100 a1
         10 < A 1+0 a201
         10 end",
    );
}

/// tcp(7), TCP_CORK: only full segments, until the cork is taken out.
#[test]
fn cork_holds_back_what_is_not_full() {
    established(
        plain(),
        "0  cork
         0  write 1000
         1  write 1000
         1  > A 1+1460 a1
         5  uncork
         5  > PA 1461+540 a1
         10 < A 1+0 a2001
         10 end",
    );
}

/// tcp(7), TCP_CORK: for 200 ms at most.
#[test]
fn cork_holds_back_for_200_ms() {
    established(
        plain(),
        "0   cork
         0   write 1000
         200 > PA 1+1000 a1
         250 < A 1+0 a1001
         300 write 10
         500 > PA 1001+10 a1
         550 < A 1+0 a1011
         550 end",
    );
}

/// tcp(7): setting TCP_NODELAY flushes corked data, once.
#[test]
fn nodelay_flushes_corked_data() {
    established(
        plain(),
        "0   cork
         0   write 100
         5   nodelay
         5   > PA 1+100 a1
         10  < A 1+0 a101
         20  write 100
         220 > PA 101+100 a1
         270 < A 1+0 a201
         270 end",
    );
}

/// A FIN takes corked data along.
#[test]
fn a_fin_takes_corked_data_along() {
    established(
        plain(),
        "0  cork
         0  write 100
         5  shutdown
         5  > FPA 1+100 a1
         10 < A 1+0 a102
         10 state FinWait2
         10 end",
    );
}

/// send(2), MSG_MORE: the bytes wait for the next call without it.
#[test]
fn more_waits_for_what_follows() {
    established(
        Settings { nodelay: true, ..plain() },
        "0   write 100 more
         1   write 100 more
         2   write 10
         2   > PA 1+210 a1
         10  < A 1+0 a211
         20  write 10 more
         220 > PA 211+10 a1             # as TCP_CORK
         270 < A 1+0 a221
         270 end",
    );
}

/// The flag is that of one call. What a segment of the peer finds held back leaves as Nagle's algorithm lets it, as on Linux: the
/// peer may have answered all that there is.
#[test]
fn more_ends_with_what_arrives() {
    established(
        plain(),
        "0  write 2000 more
         0  > A 1+1460 a1
         10 < A 1+0 a1461
         10 > PA 1461+540 a1
         20 < A 1+0 a2001
         20 write 100 more
         30 < A 1+0 a2001 w=50000
         30 > PA 2001+100 a1
         40 < A 1+0 a2101
         40 end",
    );
}

/// A segment that leaves because TCP_CORK ends may be small, and the next small one waits for its acknowledgment.
#[test]
fn nagle_counts_what_was_corked() {
    established(
        plain(),
        "0  cork
         0  write 100
         1  uncork
         1  > PA 1+100 a1
         2  write 10
         11 < A 1+0 a101
         11 > PA 101+10 a1
         21 < A 1+0 a111
         21 end",
    );
}

/// RFC 9293 section 3.8.6.2.1: TCP_NODELAY ends Nagle's algorithm, and nothing else.
#[test]
fn switching_nagle_off_does_not_fill_a_silly_window() {
    established(
        plain(),
        "0  < A 1+0 a1 w=10
         0  write 1000
         10 nodelay
         20 < A 1+0 a1
         20 > PA 1+1000 a1
         30 < A 1+0 a1001
         30 end",
    );
}

/// RFC 9293 section 3.9.1 (MUST-61): PSH on the last segment of what was written.
#[test]
fn the_last_segment_is_pushed() {
    established(
        plain(),
        "0  write 4000
         0  > A 1+1460 a1
         0  > A 1461+1460 a1
         0  > PA 2921+1080 a1
         10 < A 1+0 a4001
         10 end",
    );
}

/// RFC 9293 section 3.8.6: nothing leaves beyond the peer's window.
#[test]
fn the_peers_window_is_not_exceeded() {
    established(
        plain(),
        "0  < A 1+0 a1 w=2920
         0  write 5840
         0  > A 1+1460 a1
         0  > A 1461+1460 a1
         10 < A 1+0 a1461 w=1460        # the same edge
         20 < A 1+0 a2921 w=2920
         20 > A 2921+1460 a1
         20 > PA 4381+1460 a1
         30 < A 1+0 a5841
         30 end",
    );
}

/// RFC 9293 section 3.8.6.2.1: not the rest of a window, but half of the largest one the peer has offered.
#[test]
fn a_rest_of_the_window_is_not_used() {
    established(
        plain(),
        "0  < A 1+0 a1 w=2000
         0  write 5840
         0  > A 1+1460 a1
         10 < A 1+0 a1461 w=2000
         10 > A 1461+1460 a1
         20 < A 1+0 a2921 w=60000
         20 > A 2921+1460 a1
         20 > PA 4381+1460 a1
         30 < A 1+0 a5841
         30 end",
    );
}

/// The same with a peer whose window never holds a segment.
#[test]
fn half_of_a_tiny_window_is_used() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         10 < SA 0+0 a1 mss=1460 w=1000
         10 > A 1+0 a1
         10 write 2000
         10 > A 1+1000 a1
         20 < A 1+0 a1001 w=499
         30 < A 1+0 a1001 w=500
         30 > A 1001+500 a1
         40 < A 1+0 a1501 w=1000
         40 > PA 1501+500 a1
         50 < A 1+0 a2001 w=1000
         50 end",
    );
}

/// RFC 9293 section 3.8.6 (MUST-34): a window that shrinks is survived: what is out stays out.
#[test]
fn a_window_that_shrinks_stops_new_data_only() {
    established(
        plain(),
        "0   < A 1+0 a1 w=4380
         0   write 5840
         0   > A 1+1460 a1
         0   > A 1461+1460 a1
         0   > A 2921+1460 a1
         10  < A 1+0 a1461 w=0          # the edge moves left
         20  < A 1+0 a4381 w=0
         231.25 > A 4380+0 a1           # a window probe; SRTT is 11.25 ms now
         250 < A 1+0 a4381 w=1460
         250 > PA 4381+1460 a1
         260 < A 1+0 a5841
         260 end",
    );
}

/// RFC 6093 and Linux: the urgent pointer is one beyond the byte.
#[test]
fn an_urgent_byte_is_pointed_at() {
    established(
        plain(),
        "0  write 5 oob
         0  > PAU 1+5 a1 u5
         10 < A 1+0 a6
         10 write 5
         10 > PA 6+5 a1
         20 < A 1+0 a11
         20 end",
    );
}

/// RFC 9293 section 3.8.3: a retransmission carries the acknowledgment of its own time.
#[test]
fn a_retransmission_acknowledges_what_came_meanwhile() {
    established(
        plain(),
        "0   write 100
         0   > PA 1+100 a1
         5   < A 1+50 a1
         5   > A 101+0 a51
         210 > PA 1+100 a51
         220 < A 51+0 a101
         220 end",
    );
}

/// Data that the device cuts into segments leave as one run, and are pushed once.
#[test]
fn a_device_that_cuts_gets_a_run() {
    established(
        plain(),
        "0  cuts 65000
         0  write 14600
         0  > PA 1+14600 a1
         10 < A 1+0 a14601
         10 end",
    );
}

/// What a full device refused leaves when it has room.
#[test]
fn a_device_without_room_delays_only() {
    established(
        plain(),
        "0  full
         0  write 100
         5  room
         5  > PA 1+100 a1
         15 < A 1+0 a101
         15 end",
    );
}

/// RFC 9293 section 3.6: a FIN does not wait for Nagle's algorithm, and takes the data along.
#[test]
fn a_fin_ends_nagles_wait() {
    established(
        plain(),
        "0  write 100
         0  > PA 1+100 a1
         1  write 50
         5  shutdown
         5  > FPA 101+50 a1
         20 < A 1+0 a152
         20 end",
    );
}

/// tcp(7), TCP_NODELAY: TCP_CORK that is set later overrides it.
#[test]
fn cork_overrides_nodelay() {
    established(
        Settings { nodelay: true, ..plain() },
        "0  cork
         0  write 100
         5  write 100
         10 uncork
         10 > PA 1+200 a1
         20 < A 1+0 a201
         20 end",
    );
}

/// RFC 9293 section 3.7.1: no segment is larger than the peer's MSS.
#[test]
fn segments_follow_the_peers_mss() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0 mss=1460
         10 < SA 0+0 a1 mss=1000
         10 > A 1+0 a1
         20 write 2500
         20 > A 1+1000*2 a1
         20 > PA 2001+500 a1
         30 < A 1+0 a2501
         30 end",
    );
}

/// RFC 9293 section 3.7.1: nor larger than the path and the time stamps leave room for.
#[test]
fn segments_leave_room_for_time_stamps() {
    established(
        Settings { timestamps: true, ..plain() },
        "0  write 3000
         0  > A 1+1448*2 a1
         0  > PA 2897+104 a1
         10 < A 1+0 a3001 ts=1000010/10010
         10 end",
    );
}

/// RFC 9293 section 3.8.5: each segment before the urgent byte points at it.
#[test]
fn each_segment_points_at_the_urgent_byte() {
    established(
        plain(),
        "0  write 3000 oob
         0  > AU 1+1460 a1 u3000
         0  > AU 1461+1460 a1 u1540
         0  > PAU 2921+80 a1 u80
         10 < A 1+0 a3001
         10 end",
    );
}

/// RFC 9293 section 3.10.7.4: a window of a duplicate with the same numbers counts if it is larger.
#[test]
fn a_window_update_releases_data() {
    established(
        plain(),
        "0  < A 1+0 a1 w=1460
         0  write 4380
         0  > A 1+1460 a1
         10 < A 1+0 a1 w=2920
         10 > A 1461+1460 a1
         20 < A 1+0 a2921 w=2920
         20 > PA 2921+1460 a1
         30 < A 1+0 a4381
         30 end",
    );
}

/// Linux, tcp_rcv_established: data of the peer that acknowledges nothing and changes no window says nothing of what MSG_MORE holds back.
#[test]
fn data_of_the_peer_does_not_release_what_more_holds() {
    established(
        Settings { nodelay: true, ..plain() },
        "0  write 100
         0  > PA 1+100 a1
         10 < A 1+0 a101
         20 write 100 more
         30 < PA 1+100 a101
         30 > A 101+0 a101
         40 write 50
         40 > PA 101+150 a101
         50 < A 101+0 a251
         60 write 100 more
         70 < PA 101+100 a251 w=30000
         70 > PA 251+100 a201
         80 < A 201+0 a351
         80 end",
    );
}

/// But data that the peer sends again does: it may have missed all that answers it.
#[test]
fn repeated_data_of_the_peer_releases_what_more_holds() {
    established(
        plain(),
        "0  < PA 1+100 a1
         0  > A 1+0 a101
         10 write 100 more
         20 < PA 1+100 a1
         20 > PA 1+100 a101
         30 < A 101+0 a101
         30 end",
    );
}

/// Acknowledgments ride on answers, also on those that TCP_CORK has held back until they were complete.
#[test]
fn corked_answers_are_answers() {
    established(
        plain(),
        "0  < PA 1+100 a1
         0  > A 1+0 a101
         5  read 100
         6  cork
         7  write 100
         8  uncork
         8  > PA 1+100 a101
         20 < A 101+0 a101
         30 < PA 101+100 a101
         35 read 100
         36 cork
         37 write 100
         38 uncork
         38 > PA 101+100 a201
         38 end",
    );
}
