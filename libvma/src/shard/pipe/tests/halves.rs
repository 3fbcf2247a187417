//! A process ends while its peer has bytes unread, and leaves it its half of the kernel's connection.

use super::host::{Host, with_unread};
use super::rest::Rest;
use crate::shard::pipe::{Turn, Way};

/// The client has read nothing of eight bytes, and the server is gone.
fn left() -> (Host, Rest) {
    let (mut client, mut server) = with_unread(b"farewell");
    assert!(server.exit_leaving(&mut client));
    while client.deliver() {}
    client.lose_link();
    let half = client.peers_half.clone().expect("it was left");
    (client, half)
}

#[test]
fn a_half_is_closed_by_fin_when_all_is_read() {
    let (mut client, half) = left();
    assert_eq!(client.receive(7), 7);
    assert!(
        !half.half().closed && half.half().armed,
        "a child would see an end before the last byte"
    );
    assert_eq!(client.receive(7), 1);
    assert!(half.half().closed && !half.half().armed && half.half().shut);
    assert_eq!(client.pipe().turn(), Turn::End);
}

#[test]
fn who_gets_the_connection_gets_the_bytes_by_the_half() {
    let (mut client, half) = left();
    assert_eq!(client.receive(3), 3);
    half.half().room = Some(2);
    client.hand_on();
    assert_eq!(half.half().taken, b"ew");
    assert!(client.pipes.is_pressing() && half.half().armed, "it is killed with the rest");
    half.half().room = Some(9);
    client.pipes.wind_up(&mut client.carrier);
    assert_eq!(half.half().taken, b"ewell");
    assert!(half.half().closed && !half.half().armed && client.pipes.is_empty());
    assert_eq!(client.held(), 0);
}

#[test]
fn a_send_to_who_is_gone_is_taken_once() {
    let (mut client, half) = left();
    assert_eq!(client.pipe().way(), Way::Kernel);
    assert_eq!(client.send(b"x"), 1);
    assert_eq!(client.pipe().way(), Way::Shut);
    // All of it can be read, as on Linux.
    assert_eq!(client.receive(100), 8);
    assert_eq!(client.pipe().take_fault(), Some(libc::EPIPE));
    assert!(half.half().closed);
}

#[test]
fn nothing_is_left_that_is_not_needed() {
    let exits = |read: usize, unread: bool| {
        let (mut client, mut server) = with_unread(b"farewell");
        client.receive(read);
        if unread {
            client.send(b"x");
        }
        server.exit_leaving(&mut client)
    };
    assert!(exits(7, false));
    assert!(!exits(8, false), "all is read");
    assert!(!exits(7, true), "the connection ends by RST");
}

#[test]
fn who_has_left_its_half_takes_nothing_back() {
    let (mut client, mut server) = with_unread(b"farewell");
    assert!(server.with(|pipe, carrier| pipe.leave_half(carrier)).is_some());
    client.stop();
    while server.deliver() || client.deliver() {}
    // It was said before the server is gone: with the answer the client would send the bytes to nobody.
    assert!(client.pipe().unread() == 8 && !client.pipe().lacks_bytes());
    server.pipe().keep_half();
    assert!(server.with(|pipe, carrier| pipe.leave_half(carrier)).is_some());
}

#[test]
fn a_second_half_is_dropped() {
    let (mut client, half) = left();
    let other = Rest::default();
    client.pipe().take_half(other.held());
    assert!(other.half().closed);
    assert!(!half.half().closed);
}
