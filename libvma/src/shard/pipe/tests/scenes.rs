//! One thing at a time.

use super::host::{Host, hosts, settle, with_unread};
use super::rest::Rest;
use crate::device::shm::Rank;
use crate::shard::pipe::message::{Message, Name};
use crate::shard::pipe::{Carrier, Turn, Way};

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn bytes_go_by_the_kernel_until_the_server_uses_the_pipe() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    assert_eq!(client.send(b"early"), 5);
    assert!(server.deliver());
    assert!(server.accept(1 << 20));
    assert!(client.deliver());
    // Confirmed, but the server may leave the connection to a child.
    assert_eq!(client.pipe().way(), Way::Kernel);
    assert_eq!(client.send(b" kernel"), 7);
    assert_eq!(server.receive(100), 12);
    assert!(client.deliver());
    assert_eq!(client.pipe().way(), Way::Pipe);
    assert_eq!(client.send(b" pipe"), 5);
    settle(&mut client, &mut server);
    assert_eq!(server.got, b"early kernel pipe");
    assert_eq!(server.send(b"answer"), 6);
    settle(&mut client, &mut server);
    assert_eq!(client.got, b"answer");
    assert_eq!(client.held() + server.held(), 0);
}

#[test]
fn the_switch_waits_for_the_kernels_bytes() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    client.send(b"0123456789");
    server.deliver();
    server.accept(1 << 20);
    server.send(b"!");
    client.deliver();
    client.deliver();
    client.send(b"abc");
    while server.deliver() {}
    assert_eq!(server.pipe().turn(), Turn::Kernel { most: 10 });
    assert_eq!(server.receive(4), 4);
    assert_eq!(server.pipe().turn(), Turn::Kernel { most: 6 });
    assert_eq!(server.receive(100), 6);
    assert_eq!(server.pipe().turn(), Turn::Pipe);
    assert_eq!(server.receive(2), 2);
    assert_eq!(server.receive(2), 1);
    assert_eq!(server.got, b"0123456789abc");
}

#[test]
fn an_offer_that_comes_after_accept_switches_both_directions() {
    let (mut client, mut server) = hosts();
    client.seek(1 << 20);
    assert_eq!(client.send(b"early"), 5);
    server.accept_early(1 << 20);
    assert_eq!(server.send(b"from the kernel"), 15);
    assert_eq!((client.pipe().way(), server.pipe().way()), (Way::Kernel, Way::Kernel));
    assert_eq!((client.receive(4), server.receive(2)), (4, 2));
    client.offer_late(1 << 20);
    assert!(server.deliver());
    // The server switches at once, and has used the connection already.
    assert_eq!((server.pipe().way(), client.pipe().way()), (Way::Pipe, Way::Kernel));
    assert_eq!(server.send(b", by the pipe"), 13);
    assert_eq!(client.send(b" kernel"), 7);
    while client.deliver() {}
    assert_eq!(client.pipe().turn(), Turn::Kernel { most: 11 });
    assert_eq!(client.pipe().way(), Way::Pipe);
    assert_eq!(client.send(b" pipe"), 5);
    settle(&mut client, &mut server);
    assert_eq!(client.got, b"from the kernel, by the pipe");
    assert_eq!(server.got, b"early kernel pipe");
    assert_eq!(client.held() + server.held(), 0);
}

#[test]
fn a_late_server_that_leaves_the_connection_to_a_child_is_not_switched_to() {
    let (mut client, mut server) = hosts();
    client.seek(1 << 20);
    server.accept_early(1 << 20);
    client.offer_late(1 << 20);
    while server.deliver() || client.deliver() {}
    assert_eq!(client.pipe().way(), Way::Kernel);
    assert_eq!(client.send(b"request"), 7);
    server.stop();
    settle(&mut client, &mut server);
    assert_eq!(server.got, b"request");
    assert!(client.pipe().is_dissolved() && server.pipe().is_dissolved());
}

#[test]
fn an_end_before_the_offer_is_the_kernels_and_stays_one() {
    let (mut client, mut server) = hosts();
    client.seek(1 << 20);
    server.accept_early(1 << 20);
    server.send(b"last words");
    server.shut();
    client.offer_late(1 << 20);
    client.send(b"still heard");
    client.shut();
    settle(&mut client, &mut server);
    assert_eq!((&client.got[..], &server.got[..]), (&b"last words"[..], &b"still heard"[..]));
    assert!(client.at_end && server.at_end);
}

#[test]
fn a_pipe_that_stays_apart_is_the_kernels_when_it_is_given_up() {
    let (mut client, mut server) = hosts();
    client.seek(1 << 20);
    server.accept_early(1 << 20);
    client.stop();
    assert!(client.pipe().is_dissolved());
    // And one whose offer comes too late.
    let (mut client, mut other) = hosts();
    client.seek(1 << 20);
    other.accept_early(1 << 20);
    other.stop();
    client.offer_late(1 << 20);
    settle(&mut client, &mut other);
    client.send(b"by the kernel");
    client.stop();
    settle(&mut client, &mut other);
    assert!(client.pipe().is_dissolved() && other.pipe().is_dissolved());
    assert_eq!(other.got, b"by the kernel");
    // A closed one is expected no more.
    assert!(server.with(|pipe, carrier| pipe.close(carrier)));
    let index = server.index.take().expect("a pipe");
    server.pipes.remove(index);
    assert!(server.pipes.is_empty());
}

#[test]
fn a_window_is_never_exceeded_and_opens_again() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(5000);
    server.receive(1);
    while client.deliver() {}
    let data = bytes(100_000);
    let mut at = 0;
    while at < data.len() {
        let sent = client.send(&data[at..]);
        at += sent;
        assert!(client.pipe().unread_by_peer() <= 5000);
        if sent == 0 {
            assert!(!client.pipe().is_writable());
            while server.deliver() {}
            server.receive(1700);
            while client.deliver() {}
        }
    }
    settle(&mut client, &mut server);
    assert_eq!(server.got, data);
    assert_eq!(server.held(), 0);
}

#[test]
fn an_end_comes_after_the_last_byte() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"last words");
    server.shut();
    settle(&mut client, &mut server);
    assert_eq!(client.got, b"last words");
    assert!(client.at_end && !server.at_end);
    client.send(b"still heard");
    client.shut();
    settle(&mut client, &mut server);
    assert_eq!(server.got, b"still heard");
    assert!(server.at_end);
}

#[test]
fn an_end_that_was_told_stays_one_when_the_peer_has_closed() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    settle(&mut client, &mut server);
    server.shut();
    client.shut();
    while client.deliver() {}
    while server.deliver() {}
    assert_eq!(client.pipe().turn(), Turn::End);
    // The kernel's end of the server's comes a moment later.
    assert!(server.with(|pipe, carrier| pipe.close(carrier)));
    while client.deliver() {}
    assert!(client.pipe().is_over());
    assert_eq!(client.pipe().turn(), Turn::End);
}

#[test]
fn what_was_not_read_goes_by_the_kernel_when_the_pipe_is_given_up() {
    let (mut client, mut server) = with_unread(b"unread by the client");
    client.send(b"unread by the server");
    while server.deliver() {}
    client.stop();
    while server.deliver() || client.deliver() {}
    assert!(client.pipe().is_over() && server.pipe().is_over());
    assert_eq!(server.pipe().backlog(), b"unread by the client");
    assert_eq!(client.pipe().backlog(), b"unread by the server");
    server.tend();
    client.tend();
    assert!(client.pipe().is_over() && client.pipe().backlog().is_empty());
    server.send(b", and more");
    settle(&mut client, &mut server);
    assert_eq!(client.got, b"unread by the client, and more");
    assert_eq!(server.got, b"unread by the server");
    assert!(client.pipe().is_dissolved() && server.pipe().is_dissolved());
    assert_eq!(client.held() + server.held(), 0);
}

#[test]
fn a_shut_end_is_the_kernels_after_the_pipe() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    while client.deliver() {}
    client.send(b"request");
    client.shut();
    while server.deliver() {}
    server.stop();
    settle(&mut client, &mut server);
    assert_eq!(server.got, b"request");
    assert!(server.at_end);
}

#[test]
fn an_offer_that_nobody_takes_is_withdrawn() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    assert!(server.pipes.has_offers());
    client.stop();
    settle(&mut client, &mut server);
    assert!(!server.pipes.has_offers());
    assert!(client.pipe().is_dissolved());
}

#[test]
fn a_withdrawal_that_crosses_the_confirmation_is_void() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"hello");
    client.with(|pipe, carrier| pipe.withdraw(carrier, 0));
    settle(&mut client, &mut server);
    assert!(!client.pipe().is_over());
    client.send(b"there");
    settle(&mut client, &mut server);
    assert_eq!((&client.got[..], &server.got[..]), (&b"hello"[..], &b"there"[..]));
}

#[test]
fn a_client_that_leaves_before_it_is_confirmed_leaves_afterwards() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"hello");
    client.stop();
    settle(&mut client, &mut server);
    assert!(client.pipe().is_dissolved() && server.pipe().is_dissolved());
    assert_eq!(client.got, b"hello");
}

#[test]
fn a_client_that_was_shut_before_it_switched_has_ended() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    client.send(b"all");
    client.shut();
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    while client.deliver() {}
    // The kernel's half-close is not the peer's death.
    while server.deliver() {
        assert!(!server.pipe().would_tell_its_end());
    }
    settle(&mut client, &mut server);
    assert_eq!(server.got, b"all");
    assert!(server.at_end);
}

#[test]
fn a_client_that_closed_before_it_knew_is_gone() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    assert!(client.with(|pipe, carrier| pipe.close(carrier)));
    let index = client.index.take().expect("a pipe");
    client.pipes.remove(index);
    while client.deliver() || server.deliver() {}
    assert!(server.pipe().is_over());
    assert_eq!(server.pipe().way(), Way::Kernel);
}

#[test]
fn a_closed_end_leaves_what_it_sent() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"farewell");
    assert!(server.with(|pipe, carrier| pipe.close(carrier)));
    while client.deliver() {}
    assert_eq!(client.pipe().way(), Way::Kernel);
    assert_eq!(client.pipe().turn(), Turn::Pipe);
    assert_eq!(client.receive(100), 8);
    assert_eq!(client.pipe().turn(), Turn::Kernel { most: u64::MAX });
    assert!(!client.pipe().is_reset());
}

fn cut(host: &mut super::host::Host) {
    host.pipes.cut(&mut host.carrier, super::host::link());
}

#[test]
fn a_peer_that_died_and_had_read_everything_ends() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"12345");
    client.deliver();
    client.deliver();
    assert_eq!(client.receive(100), 5);
    assert_eq!(server.pipe().unread_by_peer(), 5);
    cut(&mut server);
    assert!(!server.pipe().is_reset());
}

#[test]
fn a_peer_that_died_with_bytes_unread_resets() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"12345");
    client.deliver();
    client.deliver();
    cut(&mut server);
    assert!(server.pipe().take_reset());
    assert!(!server.pipe().take_reset());
    // The kernel says so, too, which is no news; unless the call that told it had bytes to tell of.
    assert_eq!(server.pipe().tell_kernels_reset(), None);
    server.pipe().note_reset();
    assert!(!server.pipe().take_reset());
    server.pipe().keep_reset();
    assert!(server.pipe().take_reset());
    cut(&mut client);
    assert!(!client.pipe().is_reset());
    assert_eq!(client.receive(100), 5);
}

#[test]
fn what_is_not_allowed_resets_the_pipe_only() {
    let allowed = |message: fn(Name) -> Message, payload: usize| {
        let (mut client, mut server) = hosts();
        client.offer(5000);
        server.deliver();
        server.accept(1 << 20);
        while client.deliver() {}
        let index = client.index.expect("a pipe");
        let to = client.pipes.name(index).expect("a name");
        let (kind, header) = message(to).encode();
        assert!(server.carrier.send(
            super::host::link(),
            kind,
            header,
            payload,
            Rank::Usual,
            |_| {}
        ));
        while client.deliver() {}
        !client.pipe().is_reset()
    };
    assert!(allowed(|to| Message::Data { to, read: 0, kernel: 0 }, 5000));
    assert!(!allowed(|to| Message::Data { to, read: 0, kernel: 0 }, 5001));
    assert!(!allowed(|to| Message::Data { to, read: 1, kernel: 0 }, 1));
    assert!(!allowed(|to| Message::Data { to, read: 0, kernel: 0 }, 0));
    assert!(!allowed(|to| Message::Credit { to, read: 1, limit: 1 }, 0));
    assert!(!allowed(|to| Message::Return { to }, 1));
    assert!(!allowed(|to| Message::Stopped { to }, 0));
    assert!(!allowed(|to| Message::Switch { to, kernel: 0, shut: true }, 0));
    assert!(!allowed(|to| Message::Confirm { to, from: to, limit: 1, late: false }, 0));
    assert!(allowed(|to| Message::Withdrawn { to }, 0));
    assert!(allowed(|to| Message::Fin { to, kernel: 0 }, 0));
}

#[test]
fn messages_to_nobody_are_dropped_with_their_payload() {
    let (mut client, mut server) = hosts();
    client.offer(5000);
    server.deliver();
    let to = Name { index: 9, generation: 9 };
    let (kind, header) = Message::Data { to, read: 0, kernel: 0 }.encode();
    client.carrier.send(super::host::link(), kind, header, 40, Rank::Usual, |_| {});
    assert!(server.deliver());
    assert_eq!(server.held(), 0);
}

/// The server sends and closes; the client, which has read nothing, gives the bytes back.
fn given_back_to_a_closed_socket(room: Option<usize>) -> (Host, Host, Rest) {
    let (mut client, mut server) = with_unread(b"farewell");
    let rest = Rest::default();
    rest.half().room = room;
    let leftover = rest.held();
    assert!(server.with(|pipe, carrier| pipe.must_remain(carrier)));
    server.with(|pipe, carrier| pipe.remain(carrier, leftover));
    client.stop();
    while server.deliver() || client.deliver() {}
    (client, server, rest)
}

#[test]
fn what_comes_back_to_a_closed_socket_waits_for_the_kernel() {
    let (mut client, mut server, rest) = given_back_to_a_closed_socket(Some(3));
    assert!(server.pipes.is_pressing());
    {
        let half = rest.half();
        assert_eq!(half.taken, b"far");
        assert!(half.armed && !half.reset, "it dies with bytes of the peer's");
    }
    server.pipes.wind_up(&mut server.carrier);
    server.pipes.wind_up(&mut server.carrier);
    assert!(!server.pipes.is_pressing() && server.pipes.is_empty());
    let half = rest.half();
    assert_eq!(half.taken, b"farewell");
    assert!(!half.armed && !half.reset);
    assert!(client.pipe().is_over() && client.pipe().lacks_bytes());
}

#[test]
fn what_comes_back_and_the_kernel_does_not_take_resets() {
    let (_, server, rest) = given_back_to_a_closed_socket(None);
    assert!(rest.half().reset);
    assert!(server.pipes.is_empty() && !server.pipes.is_pressing());
}

#[test]
fn nobody_gives_back_to_a_half_that_is_not_armed() {
    // The server dies between its last message and the kernel's taking its bytes.
    let (mut client, mut server) = with_unread(b"12345678");
    let index = server.index.take();
    client.stop();
    while server.deliver() || client.deliver() {}
    assert!(!client.pipe().is_over());
    server.index = index;
    assert!(server.pipe().wants_arming());
    server.pipe().arm(true);
    server.with(|pipe, carrier| pipe.settle(carrier));
    while server.deliver() || client.deliver() {}
    assert!(client.pipe().is_over() && server.pipe().backlog() == b"12345678");
}

#[test]
fn what_was_given_back_must_come_by_the_kernel() {
    let (mut client, mut server) = with_unread(b"12345678");
    server.kernel_room = 5;
    client.stop();
    while server.deliver() || client.deliver() {}
    assert!(client.pipe().is_over() && server.pipe().is_over());
    server.tend();
    assert_eq!(client.receive(100), 5);
    // If the kernel's connection ended now, three bytes would be lost.
    assert!(client.pipe().lacks_bytes() && !client.pipe().is_dissolved());
    server.tend();
    assert_eq!(client.receive(100), 3);
    assert!(!client.pipe().lacks_bytes() && client.pipe().is_dissolved());
    client.pipe().note_loss();
    assert_eq!(client.pipe().turn(), Turn::End);
    assert!(client.pipe().take_reset());
}

#[test]
fn a_peer_that_closes_in_the_middle_of_giving_up_resets() {
    // The server has asked for its bytes, and closes before it has all of them.
    let (mut client, mut server) = with_unread(b"12345678");
    server.stop();
    assert!(server.pipe().has_bytes_on_their_way());
    assert!(client.deliver());
    assert!(client.pipe().lacks_bytes());
    assert!(server.with(|pipe, carrier| pipe.close(carrier)));
    while client.deliver() {}
    assert!(client.pipe().is_dead() && client.pipe().is_reset());
}

#[test]
fn a_backlog_that_the_kernel_refuses_is_an_error_to_its_program() {
    let (mut client, mut server) = with_unread(b"12345678");
    client.stop();
    while server.deliver() || client.deliver() {}
    assert!(server.pipe().has_bytes_on_their_way());
    server.pipe().lose_backlog();
    assert!(server.pipe().backlog().is_empty() && server.pipe().take_reset());
}

#[test]
fn bytes_left_for_a_client_that_is_gone_end_with_it() {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.send(b"banner");
    // Both close at once: the client has not seen the confirmation, the server not the withdrawal.
    assert!(client.with(|pipe, carrier| pipe.close(carrier)));
    let index = client.index.take().expect("a pipe");
    client.pipes.remove(index);
    let rest = Rest::default();
    let leftover = rest.held();
    assert!(server.with(|pipe, carrier| pipe.must_remain(carrier)));
    server.with(|pipe, carrier| pipe.remain(carrier, leftover));
    while client.deliver() || server.deliver() {}
    server.pipes.wind_up(&mut server.carrier);
    assert!(server.pipes.is_empty(), "the descriptor is kept for ever");
    assert!(rest.half().reset, "a copy of the client's socket sees an end");
}
