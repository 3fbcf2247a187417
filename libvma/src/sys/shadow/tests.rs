use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::*;

#[test]
fn a_datagram_of_ipv6_leaves_from_the_loopback_address() {
    let receiver = UdpSocket::bind("[::1]:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let to = ipv6_loopback::end(receiver.local_addr().unwrap().port());
    // The port is free again.
    let vacant = UdpSocket::bind("[::1]:0").unwrap().local_addr().unwrap();
    let from = ipv6_loopback::end(vacant.port());
    assert!(send_as(from, b"abcde", 2, to));
    for piece in ["ab", "cd", "e"] {
        let mut room = [0; 16];
        let (len, peer) = receiver.recv_from(&mut room).unwrap();
        assert_eq!((&room[..len], peer), (piece.as_bytes(), vacant));
    }
    let there = UdpSocket::bind(vacant).unwrap();
    assert!(!send_as(from, b"x", 0, to));
    drop(there);
}

#[test]
fn a_datagram_leaves_from_the_address_named_and_a_train_in_pieces() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    let SocketAddr::V4(to) = receiver.local_addr().unwrap() else { panic!("it is of IPv4") };
    let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Not the one that the route would give.
    let from = Ipv4Addr::new(127, 0, 0, 2);
    let source = SocketAddr::from((from, sender.local_addr().unwrap().port()));
    for (payload, segment, pieces) in
        [("abc", 0, vec!["abc"]), ("abcde", 2, vec!["ab", "cd", "e"]), ("", 0, vec![""])]
    {
        assert!(send_to(sender.as_raw_fd(), payload.as_bytes(), segment, from, to));
        for piece in pieces {
            let mut room = [0; 16];
            let (len, peer) = receiver.recv_from(&mut room).unwrap();
            assert_eq!((&room[..len], peer), (piece.as_bytes(), source));
        }
    }
}
