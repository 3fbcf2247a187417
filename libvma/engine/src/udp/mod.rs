//! UDP above the wire format: which sockets a datagram is for.

pub mod lookup;
