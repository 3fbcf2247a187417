//! The error of an end whose peer closes, or dies, with bytes unread: what Linux has in each state.

use super::host::{Host, hosts, settle};
use crate::shard::pipe::{Turn, Way};

fn agreed() -> (Host, Host) {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    settle(&mut client, &mut server);
    (client, server)
}

/// The peer's process has closed the socket, and goes on.
fn close(host: &mut Host) {
    host.with(|pipe, carrier| pipe.close(carrier));
}

fn hear(host: &mut Host) {
    while host.deliver() {}
}

#[test]
fn bytes_unread_before_any_end_are_a_reset() {
    let (mut client, mut server) = agreed();
    client.send(b"unread");
    hear(&mut server);
    close(&mut server);
    hear(&mut client);
    assert_eq!((client.pipe().turn(), client.pipe().way()), (Turn::End, Way::Shut));
    assert_eq!(client.pipe().take_fault(), Some(libc::ECONNRESET));
    assert_eq!(client.pipe().take_fault(), None);
}

#[test]
fn bytes_unread_behind_the_peers_end_break_the_sender() {
    for killed in [false, true] {
        let (mut client, mut server) = agreed();
        server.send(b"last");
        server.shut();
        client.send(b"unread");
        hear(&mut server);
        if killed {
            client.lose_link();
        } else {
            close(&mut server);
            hear(&mut client);
        }
        assert_eq!(client.pipe().way(), Way::Shut);
        // The reader is not told.
        assert!(!client.pipe().take_reset());
        assert_eq!((client.receive(100), client.receive(100)), (4, 0));
        assert!(client.at_end && client.pipe().is_reset());
        assert_eq!(client.pipe().take_fault(), Some(libc::EPIPE), "killed: {killed}");
        assert!(!client.pipe().is_reset());
        // A reset by the kernel below is no news.
        assert_eq!(client.pipe().tell_kernels_reset(), None);
    }
}

#[test]
fn a_send_that_fails_by_a_broken_pipe_tells_of_it() {
    let (mut client, mut server) = agreed();
    server.shut();
    client.send(b"unread");
    hear(&mut server);
    close(&mut server);
    hear(&mut client);
    assert!(!client.pipe().take_reset_to_send());
    assert_eq!(client.pipe().take_fault(), None);
}

#[test]
fn bytes_unread_behind_both_ends_are_no_error() {
    for killed in [false, true] {
        let (mut client, mut server) = agreed();
        server.shut();
        client.send(b"unread");
        client.shut();
        hear(&mut server);
        if killed {
            client.lose_link();
        } else {
            close(&mut server);
            hear(&mut client);
        }
        assert_eq!((client.pipe().turn(), client.pipe().take_fault()), (Turn::End, None));
        // Nor is what the kernel makes of its own bytes.
        assert_eq!(client.pipe().tell_kernels_reset(), None);
        assert_eq!(client.pipe().without_late_error(libc::POLLERR | libc::POLLIN), libc::POLLIN);
    }
}

#[test]
fn bytes_that_cross_a_whole_end_break_the_sender_and_the_rest_is_read() {
    let (mut client, mut server) = agreed();
    server.send(b"all");
    close(&mut server);
    client.send(b"crosses");
    hear(&mut client);
    assert_eq!(client.pipe().way(), Way::Shut);
    assert!(!client.pipe().take_reset());
    assert_eq!(client.receive(100), 3);
    // Bytes of an overflow, which nobody has told of, come before the kernel's end.
    assert_eq!(client.pipe().turn(), Turn::Kernel { most: u64::MAX });
    assert_eq!(client.pipe().take_fault(), Some(libc::EPIPE));
}

#[test]
fn a_reset_that_takes_bytes_of_the_kernels_is_told_to_the_reader_of_a_broken_pipe() {
    let (mut client, mut server) = agreed();
    close(&mut server);
    client.send(b"crosses");
    hear(&mut client);
    assert_eq!(client.pipe().tell_kernels_reset(), Some(libc::ECONNRESET));
    assert_eq!(client.pipe().turn(), Turn::End);
    client.pipe().keep_reset();
    assert!(client.pipe().take_reset());
}

#[test]
fn an_end_with_bytes_still_to_come_by_the_kernel_is_a_reset() {
    let (mut client, mut server) = agreed();
    server.carrier.most = 9;
    server.send(b"by the pipe");
    server.send(b"by the kernel");
    assert!(server.overflowed > 0);
    server.carrier.most = 64;
    server.shut();
    hear(&mut client);
    client.send(b"unread");
    // Killed: the kernel may not have delivered what it had taken.
    client.lose_link();
    assert_eq!(client.pipe().take_fault(), Some(libc::ECONNRESET));
}

#[test]
fn bytes_to_a_client_that_closed_before_it_knew_break_the_sender() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"banner");
    close(&mut client);
    hear(&mut server);
    assert_eq!(server.pipe().way(), Way::Shut);
    assert_eq!(server.pipe().turn(), Turn::Kernel { most: u64::MAX });
    assert_eq!(server.pipe().take_fault(), Some(libc::EPIPE));
}

#[test]
fn bytes_to_an_end_that_is_shut_both_ways_break_the_sender() {
    let (mut client, mut server) = agreed();
    client.send(b"before");
    hear(&mut server);
    server.shut();
    server.pipe().shut_reading();
    hear(&mut client);
    assert_eq!(client.pipe().way(), Way::Pipe);
    client.send(b"behind");
    hear(&mut server);
    // The bytes from before are there to read, and then the reset.
    assert_eq!(server.receive(100), 6);
    assert_eq!((server.pipe().turn(), server.pipe().way()), (Turn::End, Way::Shut));
    assert_eq!(server.pipe().take_fault(), Some(libc::ECONNRESET));
    hear(&mut client);
    assert_eq!(client.pipe().way(), Way::Shut);
    assert_eq!((client.receive(100), client.at_end), (0, true));
    assert_eq!(client.pipe().take_fault(), Some(libc::EPIPE));
}

#[test]
fn an_end_that_is_shut_for_reading_only_takes_bytes() {
    let (mut client, mut server) = agreed();
    server.pipe().shut_reading();
    client.send(b"bytes");
    hear(&mut server);
    assert_eq!(server.receive(100), 5);
    assert_eq!(client.pipe().way(), Way::Pipe);
}
