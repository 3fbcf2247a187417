//! Buffers as small as SO_RCVBUF and SO_SNDBUF make them, and peers whose buffers are that small. Linux counts memory in its
//! buffers and the engine payload, so the windows of both are the same only while few segments wait.

use super::super::script::plain;
use super::connect;
use crate::tcp::{Buffer, Settings};

/// SO_RCVBUF becomes twice the window; 1152 bytes are the least.
fn rcvbuf(limit: u32, settings: Settings) -> Settings {
    Settings { receive_buffer: Buffer { limit, most: limit, automatic: false }, ..settings }
}

/// SO_SNDBUF becomes twice of what the program says, 4608 bytes at least.
fn sndbuf(half: u32, settings: Settings) -> Settings {
    let limit = half * 2;
    Settings { send_buffer: Buffer { limit, most: limit, automatic: false }, ..settings }
}

/// RFC 9293 section 3.8.6: the least receive buffer is smaller than a segment, and yet a window that opens and closes.
#[test]
fn the_least_receive_buffer_is_the_window() {
    connect(
        rcvbuf(1152, plain()),
        "0   connect
         0   > S 0+0 mss=1460 w=1152
         10  < SA 0+0 a1 mss=1460
         10  > A 1+0 a1 w=1152
         20  < A 1+1152 a1
         20  > A 1+0 a1153 w=0
         300 < A 1152+0 a1               # a window probe
         300 > A 1+0 a1153 w=0
         310 < A 1153+1 a1               # one with a byte
         310 > A 1+0 a1153 w=0
         400 read 1152
         400 > A 1+0 a1153 w=1152
         410 < A 1153+1152 a1
         410 > A 1+0 a2305 w=0
         420 read 1152
         420 > A 1+0 a2305 w=1152
         420 end",
    );
}

/// RFC 9293 section 3.8.6.2.2: the window opens by half of the buffer.
#[test]
fn half_of_a_small_buffer_opens_the_window() {
    connect(
        rcvbuf(1152, plain()),
        "0  connect
         0  > S 0+0 w=1152
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1 w=1152
         20 < A 1+576 a1
         20 > A 1+0 a577 w=576
         21 read 100
         22 read 475
         23 read 1
         23 > A 1+0 a577 w=1152
         30 < A 577+1152 a1
         30 > A 1+0 a1729 w=0
         31 read 1152
         31 > A 1+0 a1729 w=1152
         31 end",
    );
}

/// The same with a buffer of two segments.
#[test]
fn a_buffer_of_two_segments_opens_by_one() {
    connect(
        rcvbuf(2920, plain()),
        "0  connect
         0  > S 0+0 w=2920
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1 w=2920
         20 < A 1+1460 a1
         20 > A 1+0 a1461 w=1460
         21 read 1459
         22 read 1
         22 > A 1+0 a1461 w=2920
         23 end",
    );
}

/// RFC 9293 section 3.8.6.3 (SHLD-19), TCP_MAX_QUICKACKS: a buffer that fills up changes nothing. Linux waits for the program,
/// or 40 ms.
#[test]
fn a_buffer_that_fills_up_does_not_delay_acknowledgments() {
    connect(
        rcvbuf(2920, plain()),
        "0  connect
         0  > S 0+0 w=2920
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1 w=2920
         20 < A 1+1460 a1
         20 > A 1+0 a1461 w=1460
         21 < A 1461+1460 a1
         21 > A 1+0 a2921 w=0
         30 read 1460
         30 > A 1+0 a2921 w=1460
         40 read 1460
         40 > A 1+0 a2921 w=2920
         40 end",
    );
}

/// The window is the buffer. Linux, where windows are not scaled, offers whole segments of it.
#[test]
fn the_window_is_the_whole_buffer() {
    connect(
        rcvbuf(4000, plain()),
        "0  connect
         0  > S 0+0 w=4000
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1 w=4000
         20 < A 1+1460 a1
         20 > A 1+0 a1461 w=2540
         21 end",
    );
}

/// RFC 9293 section 3.10.7.4: of a segment that is larger than the buffer what fits is taken. Linux takes all of it while
/// nothing else waits.
#[test]
fn a_segment_beyond_a_small_buffer_is_cut_off() {
    connect(
        rcvbuf(1152, plain()),
        "0  connect
         0  > S 0+0 w=1152
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1 w=1152
         20 < A 1+1460 a1
         20 > A 1+0 a1153 w=0
         30 read 1152
         30 > A 1+0 a1153 w=1152
         30 end",
    );
}

/// The least send buffer holds three segments, and takes more when they are acknowledged.
#[test]
fn the_least_send_buffer_is_filled_again() {
    connect(
        sndbuf(2304, plain()),
        "0  connect
         0  > S 0+0
         10 < SA 0+0 a1 mss=1460
         10 > A 1+0 a1
         20 write 4608
         20 > A 1+1460*3 a1
         20 > PA 4381+228 a1
         21 write 100                    # there is no room
         30 < A 1+0 a4609
         31 write 4380
         31 > A 4609+1460*2 a1
         31 > PA 7529+1460 a1
         40 < A 1+0 a8989
         40 end",
    );
}

/// A peer whose window is one small segment gets such segments.
#[test]
fn a_window_of_one_small_segment_is_used() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         10 < SA 0+0 a1 mss=536 w=536
         10 > A 1+0 a1
         20 write 1172
         20 > A 1+536 a1
         30 < A 1+0 a537 w=536
         30 > A 537+536 a1
         40 < A 1+0 a1073 w=536
         40 > PA 1073+100 a1
         50 < A 1+0 a1173 w=536
         50 end",
    );
}

/// RFC 9293 section 3.8.6.2.1: what is left is not cut for a window that is too small for it.
#[test]
fn the_rest_waits_for_a_window_that_takes_it() {
    connect(
        plain(),
        "0  connect
         0  > S 0+0
         10 < SA 0+0 a1 mss=536 w=1072
         10 > A 1+0 a1
         20 write 1572
         20 > A 1+536*2 a1
         30 < A 1+0 a1073 w=499
         40 < A 1+0 a1073 w=500
         40 > PA 1073+500 a1
         50 < A 1+0 a1573 w=1072
         50 end",
    );
}
