//! Headers as they lie on the wire: parse and emit, nothing else. No state, no policy and no socket
//! is known here.
//!
//! A parsed header is valid by construction: what a constructor or `parse` returned can be emitted,
//! and its lengths can be trusted. `emit` takes an array of the header's exact size;
//! `slice.first_chunk_mut()` gives one.

pub mod checksum;
pub mod ethernet;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;
