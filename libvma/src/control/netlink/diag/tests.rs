use super::*;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

fn inode_of(socket: &impl AsRawFd) -> u64 {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    let text = link.to_string_lossy().into_owned();
    text.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
}

/// The socket as it is found: with our user.
fn of(socket: &impl AsRawFd) -> Receiver {
    Receiver { inode: inode_of(socket), user: rustix::process::geteuid().as_raw() }
}

fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(ip), port)
}

fn v4(address: std::net::SocketAddr) -> SocketAddrV4 {
    match address {
        std::net::SocketAddr::V4(address) => address,
        std::net::SocketAddr::V6(_) => panic!("IPv4 was asked for"),
    }
}

#[test]
fn both_protocols_are_there() {
    let mut diag = Diag::open().unwrap();
    assert!(diag.supports(UDP));
    assert!(diag.supports(TCP));
    assert!(!diag.supports(132));
}

#[test]
fn a_datagram_reaches_the_most_specific_socket() {
    let mut diag = Diag::open().unwrap();
    let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = v4(connected.local_addr().unwrap()).port();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = v4(peer.local_addr().unwrap());
    connected.connect(sender).unwrap();
    let to = at([127, 0, 0, 1], port);
    assert_eq!(diag.receiver(UDP, sender, to), Ok(Some(of(&connected))));
    // Connected to somebody else, and no other socket has the port.
    assert_eq!(diag.receiver(UDP, at([127, 0, 0, 1], 9), to), Ok(None));
    assert_eq!(diag.receiver(UDP, to, sender), Ok(Some(of(&peer))));
}

#[test]
fn a_wildcard_socket_has_every_address() {
    let mut diag = Diag::open().unwrap();
    let any = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = v4(any.local_addr().unwrap()).port();
    let from = at([127, 0, 0, 1], 9);
    assert_eq!(diag.receiver(UDP, from, at([127, 3, 2, 1], port)), Ok(Some(of(&any))));
    drop(any);
    assert_eq!(diag.receiver(UDP, from, at([127, 3, 2, 1], port)), Ok(None));
}

#[test]
fn a_connection_reaches_its_listener() {
    let mut diag = Diag::open().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = v4(listener.local_addr().unwrap());
    let from = at([127, 0, 0, 1], 9);
    assert_eq!(diag.receiver(TCP, from, to), Ok(Some(of(&listener))));
    drop(listener);
    assert_eq!(diag.receiver(TCP, from, to), Ok(None));
}

#[test]
fn a_socket_s_user_is_told() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give something away.
        return;
    }
    let mut diag = Diag::open().unwrap();
    let given = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = v4(given.local_addr().unwrap());
    rustix::fs::fchown(&given, Some(rustix::fs::Uid::from_raw(54_321)), None).unwrap();
    let found = diag.receiver(UDP, at([127, 0, 0, 1], 9), to);
    assert_eq!(found, Ok(Some(Receiver { inode: inode_of(&given), user: 54_321 })));
}

#[test]
fn what_is_no_answer_is_told_apart() {
    assert_eq!(receiver(&[0; 71]), None);
    assert_eq!(receiver(&[0; 72]), Some(None));
    let mut answer = [0; 72];
    answer[64..68].copy_from_slice(&5u32.to_ne_bytes());
    assert_eq!(receiver(&answer), Some(None));
    answer[68..].copy_from_slice(&7u32.to_ne_bytes());
    assert_eq!(receiver(&answer), Some(Some(Receiver { inode: 7, user: 5 })));
}

/// The same port of both families: two listeners, or one of both that a more specific one takes connections from.
#[test]
fn connections_of_ipv6_reach_the_listener_that_the_kernel_gives_them() {
    use libvma_dev::ipv6_loopback::end;
    let mut diag = Diag::open().unwrap();
    let four = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = v4(four.local_addr().unwrap()).port();
    let ask_six = |diag: &mut Diag| diag.receiver(TCP, end(9), end(port));
    let ask_four =
        |diag: &mut Diag| diag.receiver(TCP, at([127, 0, 0, 1], 9), at([127, 0, 0, 1], port));
    assert_eq!(ask_six(&mut diag), Ok(None));
    let six = TcpListener::bind(("::1", port)).unwrap();
    assert_eq!(ask_six(&mut diag), Ok(Some(of(&six))));
    assert_eq!(ask_four(&mut diag), Ok(Some(of(&four))));
    drop(six);
    assert_eq!(ask_six(&mut diag), Ok(None));
    drop(four);
    let both = TcpListener::bind(("::", port)).unwrap();
    assert_eq!(ask_six(&mut diag), Ok(Some(of(&both))));
    assert_eq!(ask_four(&mut diag), Ok(Some(of(&both))));
}

#[test]
fn the_other_end_of_a_connection_of_ipv6_is_found() {
    use libvma_dev::ipv6_loopback::end;
    let mut diag = Diag::open().unwrap();
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, from) = listener.accept().unwrap();
    let (own, peer) = (end(listener.local_addr().unwrap().port()), end(from.port()));
    assert_eq!(diag.receiver(TCP, own, peer), Ok(Some(of(&client))));
    assert_eq!(diag.receiver(TCP, peer, own), Ok(Some(of(&server))));
}

#[test]
fn datagrams_of_ipv6_reach_the_socket_that_the_kernel_gives_them() {
    use libvma_dev::ipv6_loopback::end;
    let mut diag = Diag::open().unwrap();
    let four = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = v4(four.local_addr().unwrap()).port();
    let ask = |diag: &mut Diag| diag.receiver(UDP, end(9), end(port));
    assert_eq!(ask(&mut diag), Ok(None));
    let six = UdpSocket::bind(("::1", port)).unwrap();
    assert_eq!(ask(&mut diag), Ok(Some(of(&six))));
    // Connected to another one.
    six.connect("[::1]:10").unwrap();
    assert_eq!(ask(&mut diag), Ok(None));
    assert_eq!(diag.receiver(UDP, end(10), end(port)), Ok(Some(of(&six))));
}

/// One address of either family is a question that has no answer, not one about another socket.
#[test]
fn ends_of_two_families_have_no_connection() {
    use libvma_dev::ipv6_loopback::end;
    let mut diag = Diag::open().unwrap();
    let both = TcpListener::bind("[::]:0").unwrap();
    let port = both.local_addr().unwrap().port();
    assert_eq!(diag.receiver(TCP, at([127, 0, 0, 1], 9), end(port)), Ok(None));
}
