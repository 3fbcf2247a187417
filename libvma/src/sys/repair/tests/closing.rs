//! Connections that are being closed when they are given away.

use super::taken::{SIOCOUTQ, outgoing};
use super::*;
use crate::sys::repair::forge::{self, Segment};
use std::io::ErrorKind;

#[test]
fn the_peer_has_closed() {
    with_wire(|wire| peer_has_closed(wire, fresh(), CLOSE_WAIT));
}

fn peer_has_closed(wire: &Wire, installed: TcpStream, state: u8) {
    let (mut ours, mut theirs) = wire.opened();
    chat(&mut ours, &mut theirs);
    say(&mut theirs, &text(4, 9_000));
    theirs.shutdown(Shutdown::Write).unwrap();
    until("FIN-WAIT-2", || kernel_state(&theirs) == FIN_WAIT_2);
    let taken = Taken::from(ours, &theirs);
    assert_eq!((taken.state, taken.unread.len()), (State::CloseWait, 9_000));
    let mut ours = installed;
    taken.install(ours.as_raw_fd()).unwrap();
    assert_eq!(kernel_state(&ours), state);
    expect(&mut ours, &text(4, 9_000));
    expect_end(&mut ours);
    say(&mut ours, b"last words");
    expect(&mut theirs, b"last words");
    ours.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut theirs);
    if state == CLOSE_WAIT {
        until("closed", || kernel_state(&ours) == CLOSED);
    }
}

#[test]
fn the_peer_has_closed_and_the_socket_is_bound_to_a_device() {
    with_wire(|wire| {
        let installed = fresh();
        let name = b"v0";
        // SAFETY: `name` is readable for its length.
        let result = unsafe {
            let at = name.as_ptr().cast();
            libc::setsockopt(installed.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, at, 2)
        };
        assert_eq!(result, 0);
        let index = |stream: &TcpStream| {
            shadow::int_option(stream.as_raw_fd(), libc::SOL_SOCKET, BIND_TO_INDEX).unwrap()
        };
        assert_ne!(index(&installed), 0);
        let twin = installed.try_clone().unwrap();
        peer_has_closed(wire, installed, CLOSE_WAIT);
        assert_ne!(index(&twin), 0);
    });
}

/// The program sees the same.
#[test]
fn the_peer_has_closed_and_there_is_no_loopback() {
    with_wire(|wire| {
        wire::ip("link set lo down\n");
        peer_has_closed(wire, fresh(), ESTABLISHED);
    });
}

#[test]
fn we_have_closed_and_the_peer_has_not_acknowledged() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        wire.cut();
        say(&mut ours, &text(4, 9_000));
        ours.shutdown(Shutdown::Write).unwrap();
        let taken = Taken::from(ours, &theirs);
        assert_eq!((taken.state, taken.sent.len()), (State::FinWait1, 9_000));
        let mut ours = taken.installed();
        assert_eq!(kernel_state(&ours), FIN_WAIT_1);
        wire.mend();
        expect(&mut theirs, &text(4, 9_000));
        expect_end(&mut theirs);
        say(&mut theirs, b"last words");
        drop(theirs);
        expect(&mut ours, b"last words");
        expect_end(&mut ours);
        until("closed", || kernel_state(&ours) == CLOSED);
    });
}

#[test]
fn we_have_closed_and_the_peer_has_acknowledged() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        ours.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut theirs);
        until("FIN-WAIT-2", || kernel_state(&ours) == FIN_WAIT_2);
        let taken = Taken::from(ours, &theirs);
        let mut ours = taken.installed();
        until("FIN-WAIT-2", || kernel_state(&ours) == FIN_WAIT_2);
        say(&mut theirs, b"last words");
        expect(&mut ours, b"last words");
        drop(theirs);
        expect_end(&mut ours);
        until("closed", || kernel_state(&ours) == CLOSED);
    });
}

/// The peer closed first, we then too, and our FIN was lost.
#[test]
fn both_have_closed_one_after_the_other() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        theirs.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut ours);
        wire.cut();
        say(&mut ours, b"last words");
        ours.shutdown(Shutdown::Write).unwrap();
        let taken = Taken::from(ours, &theirs);
        assert_eq!(taken.state, State::LastAck);
        let mut ours = taken.installed();
        assert_eq!(kernel_state(&ours), LAST_ACK);
        wire.mend();
        expect(&mut theirs, b"last words");
        expect_end(&mut theirs);
        expect_end(&mut ours);
        until("closed", || kernel_state(&ours) == CLOSED);
    });
}

/// Both at once: each got the other's FIN, and we no acknowledgment of ours.
#[test]
fn both_have_closed_at_once() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        wire.cut();
        ours.shutdown(Shutdown::Write).unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        wire.deliver_theirs();
        until("CLOSING", || kernel_state(&ours) == CLOSING);
        wire.cut();
        let taken = Taken::from(ours, &theirs);
        assert_eq!(taken.state, State::Closing);
        let mut ours = taken.installed();
        assert_eq!(kernel_state(&ours), CLOSING);
        wire.mend();
        expect_end(&mut theirs);
        expect_end(&mut ours);
        until("closed", || kernel_state(&ours) == CLOSED);
        until("closed", || matches!(kernel_state(&theirs), CLOSED | TIME_WAIT));
    });
}

/// Our acknowledgment of the peer's FIN was lost, and our program has gone: the kernel says nothing by
/// itself, and acknowledges the FIN when that is repeated.
#[test]
fn the_last_acknowledgment_was_lost() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        ours.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut theirs);
        until("FIN-WAIT-2", || kernel_state(&ours) == FIN_WAIT_2);
        let mut taken = Taken::from(ours, &theirs);
        wire.cut();
        theirs.shutdown(Shutdown::Write).unwrap();
        // The FIN is lost. To the peer that is the same as if its acknowledgment was.
        taken.state = State::TimeWait;
        taken.receive_next = taken.receive_next.wrapping_add(1);
        let ours = taken.installed();
        assert_eq!(kernel_state(&ours), FIN_WAIT_2);
        drop(ours);
        wire.mend();
        until("closed", || kernel_state(&theirs) == CLOSED);
        assert_eq!(theirs.take_error().unwrap().map(|error| error.to_string()), None);
    });
}

/// The peer has gone, and resets what repeats our last acknowledgment. In TIME-WAIT no program learns of that
/// (RFC 9293 section 3.10.7.4): the holder of the descriptor reads what is left, and the end.
#[test]
fn a_reset_in_time_wait_is_not_seen() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        say(&mut theirs, &text(4, 9_000));
        ours.shutdown(Shutdown::Write).unwrap();
        expect_end(&mut theirs);
        until("FIN-WAIT-2", || kernel_state(&ours) == FIN_WAIT_2);
        let mut taken = Taken::from(ours, &theirs);
        wire.cut();
        (taken.state, taken.is_held) = (State::TimeWait, true);
        taken.receive_next = taken.receive_next.wrapping_add(1);
        let mut ours = taken.installed();
        // Before the peer's FIN and behind it: the kernel takes a reset at exactly RCV.NXT only.
        for before in [1, 0] {
            let mut reset = taken.clone();
            (reset.state, reset.receive_next) = (State::Closed, taken.receive_next - before);
            reset.with_snapshot(|snapshot| forge::send(snapshot, Segment::Reset)).unwrap();
        }
        expect(&mut ours, &text(4, 9_000));
        expect_end(&mut ours);
        assert_eq!(kernel_state(&ours), CLOSED);
    });
}

/// The connection is over on both sides: the next holder of the descriptor reads what is left, and the end
/// or the error that nobody was told of.
#[test]
fn it_is_over_and_something_is_unread() {
    for failed in [false, true] {
        with_wire(move |wire| {
            let (mut ours, mut theirs) = wire.opened();
            chat(&mut ours, &mut theirs);
            say(&mut theirs, &text(4, 9_000));
            let mut taken = Taken::from(ours, &theirs);
            wire.cut();
            (taken.state, taken.failed) = (State::Closed, failed);
            let mut ours = taken.installed();
            assert_eq!(kernel_state(&ours), CLOSED);
            expect(&mut ours, &text(4, 9_000));
            let error = |result: std::io::Result<usize>| result.map_err(|error| error.kind());
            if failed {
                assert_eq!(error(ours.read(&mut [0])), Err(ErrorKind::ConnectionReset));
            }
            expect_end(&mut ours);
            assert_eq!(error(ours.write(&[0])), Err(ErrorKind::BrokenPipe));
        });
    }
}

/// What a process leaves behind when it exits.
#[test]
fn the_kernel_finishes_what_nobody_has_open_any_more() {
    with_wire(|wire| {
        let (mut ours, mut theirs) = wire.opened();
        chat(&mut ours, &mut theirs);
        wire.cut();
        say(&mut ours, &text(0, 30_000));
        let taken = Taken::from(ours, &theirs);
        drop(taken.installed());
        wire.mend();
        expect(&mut theirs, &text(0, 30_000));
        expect_end(&mut theirs);
        until("acknowledged", || outgoing(theirs.as_raw_fd(), SIOCOUTQ) == 0);
    });
}
