//! Which socket of this network namespace a packet would reach, as the kernel finds it
//! (sock_diag(7), inet_diag): connected before listening, exact before wildcard, bound devices and
//! the spreading of SO_REUSEPORT included.
//!
//! Exact questions only, which cost some microseconds and need no capability. The kernel has a
//! module per protocol for it, UDP's is not everywhere.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use libvma_dev::ipv6_loopback::{is_stand_in, real};
use libvma_dev::ipv6_stand_ins;
use netlink_packet_core::NLMSG_ERROR;
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

use super::{Errno, Error, wire};
use crate::sys::Fd;
use crate::sys::netlink::{Deadline, Received, Socket};

/// A way to ask.
pub struct Diag {
    socket: Socket,
    sequence: u32,
    tcp: Support,
    udp: Support,
}

/// A socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// The number that fstat(2) has for it.
    pub inode: u64,
    /// Whose it is: the user that made it, as a rule.
    pub user: u32,
}

/// Does the kernel answer for a protocol?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Support {
    Untried,
    There,
    Missing,
}

impl Diag {
    /// Opens it, for the network namespace the calling thread is in.
    ///
    /// # Errors
    /// Those of [`Socket::open_diag`].
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open_diag()?;
        Ok(Self { socket, sequence: 0, tcp: Support::Untried, udp: Support::Untried })
    }

    /// Can the kernel be asked about UDP (17) or TCP (6)? Where it cannot it says "nobody", so the
    /// first time a socket that is certainly there is looked for.
    pub fn supports(&mut self, protocol: u8) -> bool {
        let known = match protocol {
            TCP => self.tcp,
            UDP => self.udp,
            _ => return false,
        };
        if known != Support::Untried {
            return known == Support::There;
        }
        let support = match self.probe(protocol) {
            Some(true) => Support::There,
            Some(false) => Support::Missing,
            // No sample could be made: that may pass.
            None => return false,
        };
        match protocol {
            TCP => self.tcp = support,
            _ => self.udp = support,
        }
        support == Support::There
    }

    fn probe(&mut self, protocol: u8) -> Option<bool> {
        let (sample, kind) = match protocol {
            TCP => (SocketType::STREAM, rustix::net::ipproto::TCP),
            _ => (SocketType::DGRAM, rustix::net::ipproto::UDP),
        };
        let sample =
            socket_with(AddressFamily::INET, sample, SocketFlags::CLOEXEC, Some(kind)).ok()?;
        let sample = Fd::adopt_briefly(sample).ok()?;
        bind(sample.as_fd(), &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        if protocol == TCP {
            listen(sample.as_fd(), 1).ok()?;
        }
        let port = SocketAddrV4::try_from(getsockname(sample.as_fd()).ok()?).ok()?.port();
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        // Port 9 (discard): whether anybody has it does not matter.
        Some(matches!(self.receiver(protocol, at(9), at(port)), Ok(Some(_))))
    }

    /// The socket that a packet on the loopback interface, from `source` to `destination`, would
    /// reach; `None` if there is none. Both ends may be at `::1`, or at other addresses of IPv6.
    ///
    /// # Errors
    /// The request's errno: ETIMEDOUT if no answer came in a second.
    pub fn receiver(
        &mut self,
        protocol: u8,
        source: SocketAddrV4,
        destination: SocketAddrV4,
    ) -> Result<Option<Receiver>, Error> {
        let (source_ip, destination_ip) = (*source.ip(), *destination.ip());
        if is_stand_in(source_ip) != is_stand_in(destination_ip)
            || ipv6_stand_ins::is_one(source_ip) != ipv6_stand_ins::is_one(destination_ip)
        {
            return Ok(None);
        }
        self.ask(protocol, source, destination, receiver).map(Option::flatten)
    }

    /// The sequence numbers that have come by a TCP connection of the kernel's since its handshake: the peer's bytes, and one
    /// for its end (`tcpi_bytes_received`, tcp(7)); `None` if there is no connection, or if it is over.
    ///
    /// # Errors
    /// As [`Diag::receiver`].
    pub fn connection(
        &mut self,
        own: SocketAddrV4,
        peer: SocketAddrV4,
    ) -> Result<Option<u64>, Error> {
        self.ask(TCP, peer, own, received).map(Option::flatten)
    }

    fn ask<T>(
        &mut self,
        protocol: u8,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence, protocol, source, destination);
        self.socket.send(&request)?;
        let deadline = Deadline::after(PATIENCE);
        let mut buffer = Vec::with_capacity(ANSWER);
        loop {
            let datagram = match self.socket.receive(&mut buffer)? {
                Some(Received::Messages(datagram)) => datagram,
                Some(Received::Truncated(_)) => continue,
                None => {
                    self.socket.wait(deadline)?;
                    continue;
                }
            };
            for message in wire::messages(datagram) {
                // The rest of an answer we gave up on, after a timeout.
                if message.sequence != self.sequence || message.port != self.socket.port() {
                    continue;
                }
                match message.kind {
                    SOCK_DIAG_BY_FAMILY => {
                        return read(message.payload)
                            .map(Some)
                            .ok_or(Error { call: CALL, errno: Errno::BADMSG });
                    }
                    NLMSG_ERROR => {
                        return match message.errno() {
                            Some(Errno::NOENT) | None => Ok(None),
                            Some(errno) => Err(Error { call: CALL, errno }),
                        };
                    }
                    _ => {}
                }
            }
        }
    }
}

/// A `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn request(
    sequence: u32,
    protocol: u8,
    source: SocketAddrV4,
    destination: SocketAddrV4,
) -> [u8; REQUEST] {
    // The kernel looks up the socket that `id.src` is the own address of; for UDP it takes the two
    // the other way round (udp_dump_one).
    let (own, peer) = match protocol {
        UDP => (source, destination),
        _ => (destination, source),
    };
    let mut bytes = [0u8; REQUEST];
    let mut rest = &mut bytes[..];
    let mut put = |field: &[u8]| {
        if let Some((place, behind)) = core::mem::take(&mut rest).split_at_mut_checked(field.len())
        {
            place.copy_from_slice(field);
            rest = behind;
        }
    };
    put(&(REQUEST as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&0u32.to_ne_bytes());
    // Family, protocol, extensions, padding, states: an exact question has no states.
    let extensions = if protocol == TCP { 1 << (INET_DIAG_INFO - 1) } else { 0 };
    let ends = [own, peer];
    let is_ipv6 = ends.iter().all(|end| real(*end).is_some());
    put(&[if is_ipv6 { AF_INET6 } else { AF_INET }, protocol, extensions, 0]);
    put(&u32::MAX.to_ne_bytes());
    put(&own.port().to_be_bytes());
    put(&peer.port().to_be_bytes());
    for end in ends {
        if let Some(real) = real(end).filter(|_| is_ipv6) {
            put(&real.ip().octets());
        } else {
            put(&end.ip().octets());
            put(&[0; 12]);
        }
    }
    put(&LOOPBACK.to_ne_bytes());
    // Any cookie.
    put(&u64::MAX.to_ne_bytes());
    bytes
}

/// The socket in a `struct inet_diag_msg`; `None` inside if it has no inode, as a connection that
/// its program has closed.
fn receiver(payload: &[u8]) -> Option<Option<Receiver>> {
    let number = |at: usize| {
        let bytes = payload.get(at..).and_then(|bytes| bytes.first_chunk())?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let (user, inode) = (number(USER_AT)?, u64::from(number(INODE_AT)?));
    Some((inode != 0).then_some(Receiver { inode, user }))
}

/// The sequence numbers that have come by a connection, of a `struct inet_diag_msg` and the `struct tcp_info` behind it;
/// `None` inside if it tells of another socket, or of one that only waits until the connection is forgotten.
fn received(payload: &[u8]) -> Option<Option<u64>> {
    let state = payload.get(STATE_AT)?;
    if !CONNECTED.contains(state) {
        return Some(None);
    }
    let mut attributes = wire::attributes(payload, ATTRIBUTES_AT);
    let info = attributes.find(|attribute| attribute.kind() == INET_DIAG_INFO.into())?;
    let bytes = info.value().get(RECEIVED_AT..)?.first_chunk()?;
    Some(Some(u64::from_ne_bytes(*bytes)))
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const CALL: &str = "SOCK_DIAG_BY_FAMILY";
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// Bytes of a `struct nlmsghdr` and a `struct inet_diag_req_v2`.
const REQUEST: usize = 16 + 56;
/// Of an answer with the `struct tcp_info` of coming kernels.
const ANSWER: usize = 4096;
/// Of `idiag_state`, and its values from ESTABLISHED to CLOSING, but for SYN-SENT, SYN-RECEIVED, TIME-WAIT, CLOSED, LISTEN.
const STATE_AT: usize = 1;
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];
/// The attribute that is a `struct tcp_info`, and `tcpi_bytes_received` in it.
const INET_DIAG_INFO: u8 = 2;
const RECEIVED_AT: usize = 128;
/// Of the attributes behind a `struct inet_diag_msg`.
const ATTRIBUTES_AT: usize = 72;
/// Of `idiag_uid` in a `struct inet_diag_msg`: the user's number in our user namespace.
const USER_AT: usize = 64;
/// Of `idiag_inode`.
const INODE_AT: usize = 68;
/// The loopback interface's index in every network namespace.
const LOOPBACK: u32 = 1;
/// The kernel answers while it is asked.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
