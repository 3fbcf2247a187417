//! A link that is full: what goes by the kernel, and in which order it is read.

use super::host::{Host, hosts, settle};

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A client and a server whose link is full, with bytes of the client's in the link, in the kernel, in the link
/// again and in the kernel again.
fn overflowing() -> (Host, Host, Vec<u8>) {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    while client.deliver() {}
    while server.deliver() {}
    let data = bytes(4000);
    let mut at = 0;
    for most in [10, 12] {
        client.carrier.most = most;
        at += client.send(&data[at..at + 1100]);
        at += client.send(&data[at..at + 700]);
        assert!(client.overflowed > 0);
        client.carrier.most = 64;
    }
    assert_eq!(at, 3600);
    (client, server, data[..3600].to_vec())
}

#[test]
fn what_a_full_link_does_not_take_goes_by_the_kernel() {
    let (mut client, mut server, data) = overflowing();
    assert!(client.overflowed < 3600);
    settle(&mut client, &mut server);
    assert!(server.got == data);
    // By the pipe again.
    let before = client.overflowed;
    client.send(b"and more");
    client.shut();
    settle(&mut client, &mut server);
    assert!(server.got.ends_with(b"and more") && server.at_end && client.overflowed == before);
    assert_eq!(client.held() + server.held(), 0);
}

/// A client and a server that are agreed upon, whose link takes so many messages of the client's with bytes.
fn agreed(messages: usize) -> (Host, Host) {
    let (mut client, mut server) = hosts();
    client.offer(1 << 20);
    server.deliver();
    server.accept(1 << 20);
    server.receive(1);
    settle(&mut client, &mut server);
    client.carrier.most = 8 + messages;
    (client, server)
}

#[test]
fn a_full_link_lets_an_idle_pipe_send_its_allowance_by_the_kernel() {
    const ALLOWANCE: usize = 64 * 1024;
    let (mut client, mut server) = agreed(0);
    let data = bytes(1000);
    let all_it_can = |client: &mut Host| {
        let before = client.overflowed;
        while client.send(&data) > 0 {}
        client.overflowed - before
    };
    let first = all_it_can(&mut client);
    assert!((ALLOWANCE..ALLOWANCE + 1000).contains(&first), "{first}");
    client.now += 500_000_000;
    let second = all_it_can(&mut client);
    assert!((ALLOWANCE / 2 - 1000..ALLOWANCE / 2 + 1000).contains(&second), "{second}");
    client.now += 60_000_000_000;
    let third = all_it_can(&mut client);
    assert!((ALLOWANCE..ALLOWANCE + 1000).contains(&third), "{third}");
    client.carrier.most = 64;
    settle(&mut client, &mut server);
    assert!(server.got == client.sent && client.overflowed == first + second + third);
}

/// The kernel takes a part of a large send only: what was asked for counts.
#[test]
fn a_bulk_transfer_has_used_its_allowance_at_once() {
    let (mut client, _server) = agreed(0);
    client.kernel_room = 16 * 1024;
    let data = bytes(128 * 1024);
    assert_eq!((client.send(&data), client.overflowed), (16 * 1024, 16 * 1024));
    client.kernel_room = usize::MAX;
    assert_eq!(client.send(&data), 0);
    client.now += 900_000_000;
    assert_eq!(client.send(b"a"), 0);
    client.now += 200_000_000;
    assert_eq!(client.send(b"a"), 1);
}

#[test]
fn a_pipe_that_fills_the_link_itself_waits_for_it() {
    for (messages, len) in [(64, 1), (64, 200), (17, 1000)] {
        let (mut client, mut server) = agreed(messages);
        let data = bytes(len);
        while client.send(&data) > 0 {}
        assert!(client.overflowed == 0 && client.sent.len() == messages * len, "{messages} {len}");
        settle(&mut client, &mut server);
        assert!(server.got == client.sent, "{messages} {len}");
    }
}

#[test]
fn one_send_of_an_idle_pipe_whose_program_was_told_it_may_is_not_refused() {
    let (mut client, mut server) = agreed(0);
    let data = bytes(1000);
    while client.send(&data) > 0 {}
    let allowance = client.overflowed;
    client.pipe().promise_room();
    assert_eq!(client.send(&data), 1000);
    assert_eq!((client.send(&data), client.overflowed), (0, allowance + 1000));
    // A send by the pipe keeps the promise, too.
    client.carrier.most = 64;
    client.pipe().promise_room();
    assert_eq!(client.send(&data), 1000);
    client.carrier.most = 0;
    assert_eq!((client.send(&data), client.overflowed), (0, allowance + 1000));
    client.carrier.most = 64;
    settle(&mut client, &mut server);
    assert!(server.got == client.sent);
}

#[test]
fn an_end_is_here_when_what_went_by_the_kernel_before_it_is() {
    let (mut client, mut server) = agreed(0);
    let data = bytes(1000);
    client.carrier.most = 8;
    assert_eq!((client.send(&data), client.overflowed), (1000, 1000));
    client.carrier.most = 64;
    assert_eq!(client.send(&data[..300]), 300);
    client.shut();
    while server.deliver() {}
    let readable = [0, 999, 1000, 2000].map(|there| server.pipe().readable_with(|| there));
    assert_eq!(readable, [0, 999, 1300, 1300]);
    let mut ends = [0, 999, 1000].map(|there| server.pipe().is_end_here(|| there));
    assert_eq!(ends, [false, false, true]);
    assert_eq!(server.receive(400), 400);
    ends = [0, 599, 600].map(|there| server.pipe().is_end_here(|| there));
    assert_eq!(ends, [false, false, true]);
    settle(&mut client, &mut server);
    assert!(server.at_end && server.got == client.sent && server.pipe().is_end_here(|| 0));
}

#[test]
fn bytes_between_those_of_the_kernel_come_back_in_order() {
    let (mut client, mut server, data) = overflowing();
    while server.deliver() {}
    assert_eq!(server.receive(500), 500);
    server.stop();
    settle(&mut client, &mut server);
    assert!(server.got == data);
    assert!(client.pipe().is_dissolved() && server.pipe().is_dissolved());
    assert_eq!(client.held() + server.held(), 0);
}

#[test]
fn all_bytes_can_be_had_in_one_queue() {
    let (mut client, mut server, data) = overflowing();
    while server.deliver() {}
    server.prefetch();
    let there = server.pipe().readable();
    assert!(there > 1500, "{there}");
    settle(&mut client, &mut server);
    assert!(server.got == data);
    client.with(|pipe, carrier| assert!(!pipe.must_remain(carrier), "all was read"));
}

#[test]
fn looks_take_no_more_than_the_reader_lets_lie_unread() {
    const LIMIT: u64 = 3000;
    let (mut client, mut server) = agreed(1);
    server.with(|pipe, carrier| pipe.set_limit(carrier, LIMIT));
    while client.deliver() {}
    let data = bytes(1000);
    while client.send(&data) > 0 {}
    assert!(client.overflowed > 50_000);
    client.carrier.most = 64;
    // It tells how many bytes went by the kernel before it.
    assert_eq!(client.send(&data), 1000);
    while server.deliver() {}
    for _ in 0..10 {
        server.prefetch();
    }
    // A portion of 16 KiB more at most.
    let there = server.pipe().readable();
    assert!((3000..3000 + 1000 + 16 * 1024).contains(&there), "{there}");
    settle(&mut client, &mut server);
    assert!(server.got == client.sent);
}

#[test]
fn bytes_in_the_kernel_of_a_peer_that_died_come_last() {
    let (client, mut server, data) = overflowing();
    drop(client);
    while server.deliver() {}
    server.pipes.cut(&mut server.carrier, super::host::link());
    while server.receive(1000) > 0 {}
    assert!(server.got == data);
}
