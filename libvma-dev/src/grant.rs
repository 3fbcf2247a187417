//! The messages by which a process without privileges gets a ring on an interface from the daemon `vmad`.
//!
//! The process connects to [`SOCKET`] (unix(7), SOCK_SEQPACKET), once for each ring, and sends [`Request`]s; each is answered by
//! an [`Answer`], in order. The ring is the process's as long as the connection is there. OPEN is answered three times if
//! it is granted: the answers carry the descriptors of [`HANDED`]. ADD carries the descriptor of
//! the process's own kernel socket that has the flow's address and port: whoever cannot show it gets no flow. Before there is a ring the
//! daemon takes no descriptors, and sendmsg(2) says EPERM (Linux 6.16).
//!
//! Integers are in the byte order of the host, addresses and ports in that of the network. Only UDP over IPv4 is granted.

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where the daemon listens.
pub const SOCKET: &str = "/var/run/vma_grant.sock";
/// Both sides name it; another one is refused.
pub const VERSION: u32 = 1;

/// The descriptors that come with the answers to OPEN, two with each: the maps of the steering program that the process maps
/// (chunks that frames are written to, slots that tell of them, words that both sides count by), and a TAP. Frames that
/// are written to the TAP leave by the interface, if they have the source of a flow; it becomes readable when a frame comes
/// while the process sleeps.
pub const HANDED: [[&str; 2]; 3] = [["chunks", "slots"], ["bells", "waiters"], ["control", "tap"]];

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
    /// Of the flow's peer; zeros if the flow is any peer's, as the port.
    pub source: [u8; 4],
    /// Of the flow's end here.
    pub destination: [u8; 4],
    /// Of the peer.
    pub source_port: network_endian::U16,
    /// Of the end here.
    pub port: network_endian::U16,
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
            source: [0; 4],
            destination: [0; 4],
            source_port: 0.into(),
            port: 0.into(),
        }
    }

    /// The flow's end here.
    pub fn local(&self) -> (Ipv4Addr, u16) {
        (self.destination.into(), self.port.get())
    }

    /// The flow's peer, if it has only one.
    pub fn peer(&self) -> Option<(Ipv4Addr, u16)> {
        let peer = (Ipv4Addr::from(self.source), self.source_port.get());
        (peer != (Ipv4Addr::UNSPECIFIED, 0)).then_some(peer)
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
        request.destination = [10, 0, 0, 1];
        request.port = 5000.into();
        let bytes = request.as_bytes();
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[24..], [10, 0, 0, 1, 0, 0, 0x13, 0x88]);
        assert_eq!(Request::read_from_bytes(bytes), Ok(request));
        assert_eq!((request.local(), request.peer()), ((Ipv4Addr::new(10, 0, 0, 1), 5000), None));
    }

    #[test]
    fn a_long_text_is_cut_where_a_letter_ends() {
        let answer = Answer::refusal(1, &"ä".repeat(80));
        assert_eq!(answer.words(), "ä".repeat(TEXT / 2));
        assert_eq!(Answer::refusal(1, "short").words(), "short");
        assert_eq!(Answer::refusal(1, &format!("x{}", "ä".repeat(80))).words().len(), TEXT - 1);
    }
}
