//! The messages as they lie in a datagram: packed, in the order of the original.

use zerocopy::byteorder::native_endian;
use zerocopy::byteorder::network_endian;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Message numbers (bits 0 to 5 of the first byte) and the bit of an acknowledgement.
pub mod code {
    /// A library introduces itself; always answered.
    pub const INIT: u8 = 0x01;
    /// A connection changed its state; never answered.
    pub const STATE: u8 = 0x02;
    /// A process ends orderly; never answered.
    pub const EXIT: u8 = 0x03;
    /// A flow is to be led to a TAP, or no longer; answered if the status of the request is 1.
    pub const FLOW: u8 = 0x04;
    /// STATE of a connection over IPv6. An extension of the original's protocol: only a daemon that has said
    /// [`super::ABILITY_IPV6`] is told it.
    pub const STATE_IPV6: u8 = 0x12;
    /// Set in an answer.
    pub const ACK: u8 = 0x80;
    /// The bits that hold the number.
    pub const NUMBER: u8 = 0x3F;
}

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = size_of::<Header>();
/// Bytes of an [`InitWire`].
pub const INIT_SIZE: usize = size_of::<InitWire>();
/// Bytes of a [`StateWire`].
pub const STATE_SIZE: usize = size_of::<StateWire>();
/// Bytes of a [`StateIpv6Wire`].
pub const STATE_IPV6_SIZE: usize = size_of::<StateIpv6Wire>();
/// Bytes of an [`Exit`].
pub const EXIT_SIZE: usize = size_of::<Exit>();
/// Bytes of a [`FlowWire`].
pub const FLOW_SIZE: usize = size_of::<FlowWire>();

/// A bit of [`Header::abilities`]: the daemon takes [`code::STATE_IPV6`].
pub const ABILITY_IPV6: u8 = 0x01;

/// What every message starts with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// A number of [`code`], with [`code::ACK`] in an answer.
    pub code: u8,
    /// [`super::VERSION`].
    pub version: u8,
    /// In a request 1 asks for an answer (FLOW only); in an answer 0 is success and 1 failure.
    pub status: u8,
    /// In the daemon's answer to INIT, what it understands beyond the original's protocol
    /// ([`ABILITY_IPV6`]). Zero in all other messages. The original's daemon answers with the zero that it was
    /// sent, and its library does not read the field.
    pub abilities: u8,
    /// The sender's process id, as it sees itself.
    pub pid: native_endian::I32,
}

/// INIT: a library introduces itself.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct InitWire {
    pub header: Header,
    /// See [`library_version`].
    pub library: native_endian::U32,
}

/// STATE: a connection's state.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct StateWire {
    pub header: Header,
    /// The socket's descriptor.
    pub fd: native_endian::U32,
    pub local_address: [u8; 4],
    pub peer_address: [u8; 4],
    pub local_port: network_endian::U16,
    pub peer_port: network_endian::U16,
    /// `SOCK_STREAM`.
    pub kind: u8,
    /// A number of [`super::TcpState`].
    pub state: u8,
}

/// STATE of a connection over IPv6: as [`StateWire`], with longer addresses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct StateIpv6Wire {
    pub header: Header,
    /// The socket's descriptor.
    pub fd: native_endian::U32,
    pub local_address: [u8; 16],
    pub peer_address: [u8; 16],
    pub local_port: network_endian::U16,
    pub peer_port: network_endian::U16,
    /// `SOCK_STREAM`.
    pub kind: u8,
    /// A number of [`super::TcpState`].
    pub state: u8,
}

/// EXIT: nothing but the header.
pub type Exit = Header;

/// FLOW: frames of a flow are to go to a TAP.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FlowWire {
    pub header: Header,
    /// A number of [`super::FlowKind`].
    pub kind: u8,
    /// A number of [`super::Action`].
    pub action: u8,
    /// Index of the interface the frames come by.
    pub interface: native_endian::U32,
    /// Index of the TAP.
    pub tap: native_endian::U32,
    /// The socket's local address.
    pub local_address: [u8; 4],
    pub local_port: network_endian::U16,
    /// Zero but in a 5-tuple.
    pub peer_address: [u8; 4],
    /// Zero but in a 5-tuple.
    pub peer_port: network_endian::U16,
}

/// A release `major.minor.revision-release` as INIT says it. A revision or release of 16 and more
/// runs into the fields above it, in the original as here: 9.8.84 is 0x9854 there, too.
pub const fn library_version(major: u32, minor: u32, revision: u32, release: u32) -> u32 {
    (major << 12) | (minor << 8) | (release << 4) | revision
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: DMN-02
    #[test]
    fn the_sizes_are_those_of_the_protocol() {
        assert_eq!([HEADER_SIZE, INIT_SIZE, STATE_SIZE, EXIT_SIZE, FLOW_SIZE], [8, 12, 26, 8, 30]);
        assert_eq!(STATE_IPV6_SIZE, 50);
    }

    #[test]
    fn a_large_revision_overlaps_as_in_the_original() {
        assert_eq!(library_version(9, 8, 84, 0), 0x9854);
    }
}
