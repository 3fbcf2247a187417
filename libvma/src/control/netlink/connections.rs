//! The TCP connections that the kernel has in this network namespace (sock_diag(7), inet_diag),
//! half-open ones and those in TIME-WAIT included, of sockets of both families.
//!
//! One request lists both families, by the older of its two forms: the newer one wants one of
//! them. The kernel walks its table of connections for it, some milliseconds where memory is
//! large, so this is not for a call that a program makes often.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use core::time::Duration;

use libvma_dev::ipv6_stand_ins;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};

use super::{Errno, Error, wire};
use crate::sys::netlink::{Deadline, Received, Socket};

/// The two ends of each connection, the own one first; those with this own port only, if one is given. Of those over IPv6 the
/// stand-ins: with a port each address that can has one now, without one only those are told that have one.
///
/// # Errors
/// Those of [`Socket::open_diag`], and the request's errno: ENOENT if the kernel has no inet_diag,
/// ETIMEDOUT if no answer came in a second.
#[doc(alias = "TCPDIAG_GETSOCK")]
pub fn connections(port: Option<u16>) -> Result<Vec<(SocketAddrV4, SocketAddrV4)>, Error> {
    let socket = Socket::open_diag()?;
    socket.send(&request(port))?;
    let deadline = Deadline::after(PATIENCE);
    let stand_in = if port.is_some() { ipv6_stand_ins::of } else { ipv6_stand_ins::known };
    let mut found = Vec::new();
    let mut buffer = Vec::with_capacity(BUFFER);
    loop {
        let datagram = match socket.receive(&mut buffer)? {
            Some(Received::Messages(datagram)) => datagram,
            Some(Received::Truncated(_)) => {
                return Err(Error { call: CALL, errno: Errno::BADMSG });
            }
            None => {
                socket.wait(deadline)?;
                continue;
            }
        };
        for message in wire::messages(datagram) {
            match message.kind {
                TCPDIAG_GETSOCK => found.extend(connection(message.payload, stand_in)),
                NLMSG_DONE | NLMSG_ERROR => {
                    return match message.errno() {
                        None => Ok(found),
                        Some(errno) => Err(Error { call: CALL, errno }),
                    };
                }
                _ => {}
            }
        }
    }
}

/// A `struct nlmsghdr`, a `struct inet_diag_req`, and a filter if there is a port.
fn request(port: Option<u16>) -> Vec<u8> {
    let filter = port.map(filter).unwrap_or_default();
    let length = REQUEST + filter.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(TCPDIAG_GETSOCK.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    // Sequence and port; then family, two lengths and extensions, which a dump does not look at,
    // and a `struct inet_diag_sockid`, which an exact question has.
    bytes.resize(16 + 4 + 48, 0);
    bytes.extend(STATES.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(filter);
    bytes
}

/// The attribute with a program of `struct inet_diag_bc_op`: each compares, and on a miss jumps
/// behind the end, which means no.
fn filter(port: u16) -> Vec<u8> {
    const OPERATION: u8 = 4;
    const OPERATIONS: u8 = 4;
    let mut bytes = Vec::new();
    bytes.extend((4 + u16::from(OPERATIONS * OPERATION)).to_ne_bytes());
    bytes.extend(INET_DIAG_REQ_BYTECODE.to_ne_bytes());
    let mut left = OPERATIONS * OPERATION;
    for code in [INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE] {
        // On to the next pair, or four bytes too far.
        bytes.extend([code, 2 * OPERATION]);
        bytes.extend(u16::from(left + OPERATION).to_ne_bytes());
        // The number it compares with.
        bytes.extend([0, 0]);
        bytes.extend(port.to_ne_bytes());
        left -= 2 * OPERATION;
    }
    bytes
}

/// The ends in a `struct inet_diag_msg`; `None` if they are IPv6 addresses without stand-ins.
fn connection(
    payload: &[u8],
    stand_in: fn(Ipv6Addr) -> Option<Ipv4Addr>,
) -> Option<(SocketAddrV4, SocketAddrV4)> {
    let family = *payload.first()?;
    let port = |at: usize| Some(u16::from_be_bytes(*payload.get(at..)?.first_chunk()?));
    let address = |at: usize| {
        let bytes: &[u8; 16] = payload.get(at..)?.first_chunk()?;
        match family {
            AF_INET => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
            AF_INET6 => {
                let address = Ipv6Addr::from(*bytes);
                address.to_ipv4_mapped().or_else(|| stand_in(address))
            }
            _ => None,
        }
    };
    let end = |address_at, port_at| Some(SocketAddrV4::new(address(address_at)?, port(port_at)?));
    Some((end(8, 4)?, end(24, 6)?))
}

const CALL: &str = "TCPDIAG_GETSOCK";
const TCPDIAG_GETSOCK: u16 = 18;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Bytes of a `struct nlmsghdr` and a `struct inet_diag_req`.
const REQUEST: usize = 16 + 60;
/// Bit n is state n (`TCP_ESTABLISHED` 1 to `TCP_NEW_SYN_RECV` 12): all that have a peer.
const STATES: u32 = 0x1ffe & !(1 << TCP_CLOSE) & !(1 << TCP_LISTEN);
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_BC_S_GE: u8 = 2;
const INET_DIAG_BC_S_LE: u8 = 3;
/// The kernel fills a page or 32 KiB at a time (netlink_dump).
const BUFFER: usize = 32 * 1024;
/// The kernel answers while it is asked.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    fn v4(address: SocketAddr) -> SocketAddrV4 {
        match address.ip().to_canonical() {
            std::net::IpAddr::V4(ip) => SocketAddrV4::new(ip, address.port()),
            std::net::IpAddr::V6(_) => panic!("IPv4 was asked for"),
        }
    }

    fn ends(stream: &TcpStream) -> (SocketAddrV4, SocketAddrV4) {
        (v4(stream.local_addr().unwrap()), v4(stream.peer_addr().unwrap()))
    }

    #[test]
    fn the_connections_of_a_port_are_listed_and_no_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(Some(port)), Ok(Vec::new()));
        let clients: Vec<TcpStream> =
            (0..3).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let mut expected: Vec<_> =
            clients.iter().map(ends).map(|(client, server)| (server, client)).collect();
        let mut found = connections(Some(port)).unwrap();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        for client in &clients {
            assert!(connections(None).unwrap().contains(&ends(client)));
        }
    }

    #[test]
    fn ipv6_sockets_with_ipv4_peers_are_listed_and_no_ipv6_peers() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _other = TcpStream::connect(("::1", port)).unwrap();
        let (client, server) = ends(&client);
        assert_eq!(connections(Some(port)), Ok(vec![(server, client)]));
    }

    #[test]
    fn a_connection_that_is_over_is_listed_while_it_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (client_end, server_end) = ends(&client);
        let (server, _) = listener.accept().unwrap();
        drop(server);
        drop(client);
        let found = connections(Some(port));
        assert_eq!(found, Ok(vec![(server_end, client_end)]));
    }

    /// More than one datagram of them.
    #[test]
    fn a_thousand_connections_are_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients: Vec<_> = (0..400)
            .map(|_| (TcpStream::connect(("127.0.0.1", port)).unwrap(), listener.accept().unwrap()))
            .collect();
        assert_eq!(connections(Some(port)).unwrap().len(), clients.len());
    }

    #[test]
    fn a_short_message_is_no_connection() {
        assert_eq!(connection(&[AF_INET; 39], |_| None), None);
        assert_eq!(connection(&[], |_| None), None);
    }
}
