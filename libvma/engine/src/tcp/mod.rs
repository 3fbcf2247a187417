//! TCP (RFC 9293), sans-IO: a connection takes the time and a segment, or a call of the program,
//! and yields segments, events and its next deadline. No clock, device, lock or system call here.
//!
//! - [`connection`] is one connection: the state machine of RFC 9293 section 3.10;
//! - [`listen`] is the passive opener with its half-open requests;
//! - `send_buffer`, `receive_queue` and `reassembly` hold data on the way out and in;
//! - `scoreboard` knows what is in flight, [`rtt`], [`congestion`] and [`prr`] how much may be;
//! - [`seq`], [`isn`], [`syn_cookie`] are sequence numbers and where they start;
//! - [`lookup`] finds a connection by its addresses and ports;
//! - [`settings`] is what socket options and the system set.
//!
//! Received payload is a [`Piece`] of a body `B` of which the engine knows nothing: on a device it
//! is a frame in place, in a test a vector. Bytes to send are copied once, into the send buffer,
//! and from there by [`Link::emit`] into whatever the device sends.

pub mod congestion;
pub mod connection;
pub mod isn;
pub mod listen;
pub mod lookup;
pub mod prr;
mod rack;
mod reassembly;
mod receive_queue;
pub mod rtt;
mod scoreboard;
mod send_buffer;
pub mod seq;
pub mod settings;
pub mod syn_cookie;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Info, SendFlags, State};
pub use settings::{Buffer, Millis, Settings};

use crate::tcp::lookup::FlowKey;
use crate::wire::tcp::{Flags, Header};

/// The ECN field of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnField {
    /// Not-ECT.
    #[default]
    NotCapable,
    /// ECT(0) or ECT(1).
    Capable,
    /// CE: a router would have dropped the packet.
    Congestion,
}

impl EcnField {
    /// Of a TOS byte or traffic class.
    #[inline]
    pub fn of(tos: u8) -> EcnField {
        match tos & 3 {
            0 => EcnField::NotCapable,
            3 => EcnField::Congestion,
            _ => EcnField::Capable,
        }
    }
}

/// Received payload: the bytes `offset .. offset + len` of a body's payload.
#[derive(Debug)]
pub struct Piece<B> {
    pub body: B,
    pub offset: u32,
    pub len: u32,
}

impl<B> Piece<B> {
    /// Drops `count` bytes at the front.
    fn trim_front(&mut self, count: u32) {
        let count = count.min(self.len);
        self.offset = self.offset.saturating_add(count);
        self.len = self.len.saturating_sub(count);
    }

    /// Keeps the first `len` bytes.
    fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }
}

/// A segment to send, or several that a device shall cut.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Complete but for the checksum.
    pub header: Header,
    /// The payload is the first followed by the second.
    pub payload: [&'a [u8]; 2],
    /// Payload beyond this size is for the device to cut into segments.
    pub segment_size: u32,
    /// ECT(0) in the IP header (RFC 3168 section 6.1).
    pub ecn_capable: bool,
}

/// What a connection asks of whoever runs it, for the length of one call.
pub trait Link<B> {
    /// Sends a segment. False if there is no room now: the connection tries again at the next
    /// [`Connection::output`].
    fn emit(&mut self, segment: &Outgoing<'_>) -> bool;

    /// Takes back received payload that the connection is done with, or never wanted.
    fn release(&mut self, body: B);

    /// May append `next` to `tail`, which it follows in the stream; gives it back if not.
    fn coalesce(&mut self, tail: &mut Piece<B>, next: Piece<B>) -> Option<Piece<B>> {
        let _ = tail;
        Some(next)
    }

    /// A piece is about to be kept until the program reads it: the last chance to copy it out of
    /// scarce memory.
    fn hold(&mut self, piece: Piece<B>) -> Piece<B> {
        piece
    }

    /// The same for a piece that arrived out of order, of which a peer can make many.
    fn stash(&mut self, piece: Piece<B>) -> Piece<B> {
        self.hold(piece)
    }
}

/// How packets to the peer travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Of IP packets, in bytes.
    pub mtu: u32,
    /// The most payload the device cuts into segments by itself; 0 if it does not.
    pub segmentation_limit: u32,
}

macro_rules! bit_set {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $bit:ident = $value:expr;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            pub const NONE: $name = $name(0);
            $($(#[$doc])* pub const $bit: $name = $name($value);)+

            #[inline]
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            #[inline]
            pub const fn intersects(self, other: $name) -> bool {
                self.0 & other.0 != 0
            }

            #[inline]
            pub const fn union(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            #[inline]
            pub fn insert(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }
    };
}

bit_set! {
    /// What happened in a call, for whoever waits on the socket.
    Events {
        /// More can be read, or the end was reached.
        READABLE = 1;
        /// Room in the send buffer was made.
        WRITABLE = 1 << 1;
        /// The handshake is complete.
        ESTABLISHED = 1 << 2;
        /// The peer's FIN was reached.
        PEER_CLOSED = 1 << 3;
        /// The connection failed; [`Connection::take_error`] says how.
        ERROR = 1 << 4;
        /// Urgent data was announced.
        URGENT = 1 << 5;
        /// Nothing is left of the connection (CLOSED).
        CLOSED = 1 << 6;
    }
}

bit_set! {
    /// What poll(2) says of a socket.
    Readiness {
        IN = 1;
        OUT = 1 << 1;
        RDHUP = 1 << 2;
        HUP = 1 << 3;
        ERR = 1 << 4;
        PRI = 1 << 5;
    }
}

/// Why a connection failed, or a call on it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// ECONNREFUSED: a RST answered the SYN.
    Refused,
    /// ECONNRESET.
    Reset,
    /// ETIMEDOUT: retransmissions, keep-alives or TCP_USER_TIMEOUT.
    TimedOut,
    /// EHOSTUNREACH.
    HostUnreachable,
    /// ENETUNREACH.
    NetworkUnreachable,
    /// EACCES: a router, or the host, does not let it pass (of IPv6).
    Prohibited,
    /// ENOPROTOOPT: the host said that it has no TCP.
    ProtocolUnreachable,
    /// EPIPE: the sending side is shut down.
    BrokenPipe,
    /// ENOTCONN.
    NotConnected,
}

/// The RST that answers a segment for which there is no connection (RFC 9293 section 3.10.7.1).
/// None for a segment that is itself a RST.
pub fn reset_for(key: FlowKey, header: &Header, payload_len: u32) -> Option<Header> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset = Header {
        src_port: key.local_port,
        dst_port: key.remote_port,
        flags: Flags::RST,
        ..Header::default()
    };
    if header.flags.contains(Flags::ACK) {
        reset.seq = header.ack;
    } else {
        reset.flags = Flags::RST.with(Flags::ACK);
        reset.ack = header.seq.wrapping_add(sequence_len(header, payload_len));
    }
    Some(reset)
}

/// SEG.LEN: payload, SYN and FIN (RFC 9293 section 3.4).
#[inline]
fn sequence_len(header: &Header, payload_len: u32) -> u32 {
    payload_len
        .wrapping_add(u32::from(header.flags.contains(Flags::SYN)))
        .wrapping_add(u32::from(header.flags.contains(Flags::FIN)))
}
