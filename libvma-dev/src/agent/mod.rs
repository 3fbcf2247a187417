//! The agent protocol: what a library tells the daemon `vmad` about its connections, and how the two
//! find each other.
//!
//! The layouts are those of the original's protocol version 3, byte for byte, so that an old library
//! understands a new daemon and the reverse. The original knows IPv4 only. Connections over IPv6 have a message of
//! their own, which a library sends only if the daemon's answer to INIT says that the daemon takes it. Datagrams over `AF_UNIX`; integers in the byte order of
//! the host, addresses and ports in that of the network. Only bytes live here: who may say what, and
//! what follows from it, is the daemon's (`libvma-utils`) and the library's (`libvma::agent`) own.

mod layout;
mod parse;
mod place;

pub use layout::{
    ABILITY_IPV6, EXIT_SIZE, Exit, FLOW_SIZE, FlowWire, HEADER_SIZE, Header, INIT_SIZE, InitWire,
    STATE_IPV6_SIZE, STATE_SIZE, StateIpv6Wire, StateWire, code, library_version,
};
pub use parse::{
    Accepted, Action, Flow, FlowKind, Init, Malformed, Message, State, StateBytes, TcpState, exit,
};
pub use place::{DEFAULT_NOTIFY_DIR, SOCKET, pid_file, pid_of_file, socket_file};

/// The protocol version both sides name.
pub const VERSION: u8 = 3;
