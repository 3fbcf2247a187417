//! The messages by which a process without privileges gets a ring on an interface from the daemon `vmad`.
//!
//! The process connects to [`SOCKET`] (unix(7), SOCK_SEQPACKET), once for each ring, and sends [`Request`]s; each is answered by
//! an [`Answer`], in order. The ring is the process's as long as the connection is there. OPEN is answered three times if
//! it is granted: the answers carry the descriptors of [`HANDED`]. ADD carries the descriptor of
//! the process's own kernel socket that has the flow's address and port: whoever cannot show it gets no flow. Before there is a ring the
//! daemon takes no descriptors, and sendmsg(2) says EPERM (Linux 6.16).
//!
//! OPEN is [`OPENING`] bytes in every version of these messages, so that a side understands which version the other one speaks; every
//! other request is a whole [`Request`].
//!
//! Integers are in the byte order of the host, addresses and ports in that of the network. An IPv4 address is mapped (RFC 4291
//! section 2.5.5.2). Only UDP is granted.

use core::net::{IpAddr, Ipv6Addr};

use zerocopy::byteorder::network_endian;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the daemon listens.
pub const SOCKET: &str = "/var/run/vma_grant.sock";
/// Both sides name it; another one is refused with EPROTONOSUPPORT. Version 1 had IPv4 only.
pub const VERSION: u32 = 2;
/// Bytes of OPEN: the numbers of a [`Request`], and zeros.
pub const OPENING: usize = 32;

/// The descriptors that come with the answers to OPEN, two with each: the maps of the steering program that the process maps
/// (chunks that frames are written to, slots that tell of them, words that both sides count by), and a TAP. Frames that
/// are written to the TAP leave by the interface, if they have the source of a flow; it becomes readable when a frame comes
/// while the process sleeps.
pub const HANDED: [[&str; 2]; 3] = [["chunks", "slots"], ["bells", "waiters"], ["control", "tap"]];

/// So many addresses does the daemon remember as the kernel's, for one ring.
pub const MOST_STRANGERS: u32 = 1024;

/// Values of [`Request::kind`].
pub mod kind {
    /// A ring on `interface`, of so many `chunks` and `slots`.
    pub const OPEN: u32 = 1;
    /// Datagrams of a flow are to come by the ring, as far as the kernel would give them to the socket that comes along. It must have the
    /// flow's destination; the daemon has closed it when it answers.
    pub const ADD: u32 = 2;
    /// No longer.
    pub const REMOVE: u32 = 3;
    /// The interface has another MAC address or MTU.
    pub const REFRESH: u32 = 4;
    /// Datagrams of the IPv6 address `source` are the kernel's, because the process has no room for the address: until the ring ends,
    /// or a flow names it, whose end does not bring this back. After [`MOST_STRANGERS`](super::MOST_STRANGERS) of them those of every
    /// address that no flow names are.
    pub const STRANGER: u32 = 5;
}

/// A process's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// One of [`kind`].
    pub kind: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Its number in the process's network namespace.
    pub interface: u32,
    /// Frames of 2 KiB to receive into; a power of two.
    pub chunks: u32,
    /// A power of two.
    pub slots: u32,
    /// Of the peer.
    pub source_port: network_endian::U16,
    /// Of the end here.
    pub port: network_endian::U16,
    /// Of the flow's peer; zeros if the flow is any peer's, as the port.
    pub source: [u8; 16],
    /// Of the flow's end here.
    pub destination: [u8; 16],
}

/// Bytes of an [`Answer`]'s text.
pub const TEXT: usize = 124;

/// The daemon's answer to a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Answer {
    /// 0, or why not.
    pub errno: i32,
    /// The same in words, for who has to change it; UTF-8, filled up with zeros.
    pub text: [u8; TEXT],
}

impl Request {
    /// Of this kind, and nothing else.
    pub fn new(kind: u32) -> Request {
        Request {
            kind,
            version: VERSION,
            interface: 0,
            chunks: 0,
            slots: 0,
            source_port: 0.into(),
            port: 0.into(),
            source: [0; 16],
            destination: [0; 16],
        }
    }

    /// As it is sent: [`OPENING`] bytes for OPEN, all for any other.
    pub fn message(&self) -> &[u8] {
        let bytes = self.as_bytes();
        let len = if self.kind == kind::OPEN { OPENING } else { bytes.len() };
        bytes.get(..len).unwrap_or(bytes)
    }

    /// The request that a message holds, of any version if it is OPEN. `None`: it holds none.
    pub fn of_message(message: &[u8]) -> Option<Request> {
        let mut request = Request::new(0);
        request.as_mut_bytes().get_mut(..message.len())?.copy_from_slice(message);
        (request.message().len() == message.len()).then_some(request)
    }

    /// The flow's end here.
    pub fn local(&self) -> (IpAddr, u16) {
        (Ipv6Addr::from(self.destination).to_canonical(), self.port.get())
    }

    /// The flow's peer, if it has only one.
    pub fn peer(&self) -> Option<(IpAddr, u16)> {
        let source = Ipv6Addr::from(self.source);
        let is_any = source.is_unspecified() && self.source_port.get() == 0;
        (!is_any).then(|| (source.to_canonical(), self.source_port.get()))
    }
}

/// The form in which a [`Request`] has an address.
pub fn address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl Answer {
    /// Done as asked.
    pub fn done() -> Answer {
        Answer { errno: 0, text: [0; TEXT] }
    }

    /// `text` is cut where there is no more room.
    pub fn refusal(errno: i32, text: &str) -> Answer {
        let mut answer = Answer { errno, ..Answer::done() };
        for (place, byte) in answer.text.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        answer
    }

    /// The words, as far as they are UTF-8.
    pub fn words(&self) -> &str {
        let len = self.text.iter().position(|byte| *byte == 0).unwrap_or(TEXT);
        let text = self.text.get(..len).unwrap_or_default();
        match core::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                let valid = text.get(..error.valid_up_to()).unwrap_or_default();
                core::str::from_utf8(valid).unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_on_every_byte() {
        let mut request = Request::new(kind::ADD);
        request.interface = 7;
        request.destination = address(IpAddr::from([10, 0, 0, 1]));
        request.port = 5000.into();
        let bytes = request.message();
        assert_eq!(bytes.len(), 56);
        assert_eq!(bytes[22..24], [0x13, 0x88]);
        assert_eq!(bytes[40..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]);
        assert_eq!(Request::of_message(bytes), Some(request));
        assert_eq!((request.local(), request.peer()), (([10, 0, 0, 1].into(), 5000), None));
        let peer = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
        request.source = address(peer);
        request.source_port = 9.into();
        assert_eq!(request.peer(), Some((peer, 9)));
    }

    /// The one message that both sides understand whose versions differ.
    #[test]
    fn an_opening_has_one_length_in_all_versions() {
        let mut request = Request::new(kind::OPEN);
        request.version = 1;
        request.chunks = 1024;
        assert_eq!(request.message().len(), OPENING);
        assert_eq!(Request::of_message(request.message()), Some(request));
        for len in [0, 1, OPENING - 1, OPENING + 1, 56, 57] {
            let mut bytes = request.as_bytes().to_vec();
            bytes.resize(len, 0);
            assert_eq!(Request::of_message(&bytes), None, "{len} bytes");
        }
        let other = Request::new(kind::ADD);
        assert_eq!(Request::of_message(&other.as_bytes()[..OPENING]), None);
    }

    #[test]
    fn a_long_text_is_cut_where_a_letter_ends() {
        let answer = Answer::refusal(1, &"ä".repeat(80));
        assert_eq!(answer.words(), "ä".repeat(TEXT / 2));
        assert_eq!(Answer::refusal(1, "short").words(), "short");
        assert_eq!(Answer::refusal(1, &format!("x{}", "ä".repeat(80))).words().len(), TEXT - 1);
    }
}
