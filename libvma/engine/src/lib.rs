//! The sans-IO protocol engine: bytes and time in, bytes and events out. No system call, clock,
//! global or device here.
//!
//! In the order a received packet meets them:
//!
//! - [`wire`] parses and emits headers (Ethernet, IPv4, UDP) and sums checksums;
//! - [`ip`] puts fragments together and takes datagrams apart;
//! - [`udp`] is the datagram protocol itself;
//! - [`tcp`] is the other one;
//! - [`bulk_copy`] copies bytes, however many;
//! - [`drop_reason`] names every reason for which a frame stops on the way;
//! - [`timer_wheel`] finds due deadlines in constant time, [`siphash`] is the keyed hash;
//! - [`time`] is the only notion of time: a number the caller hands in.
//!
//! Everything that could differ between two runs is an argument, so the same input gives the same
//! output, and a failing test is a recording. Nothing a peer sends may panic: slices are never
//! indexed and sums never overflow.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::arithmetic_side_effects,
        reason = "a test that panics has done its job"
    )
)]

extern crate alloc;

pub mod bulk_copy;
pub mod drop_reason;
pub mod frame;
pub mod ip;
pub mod siphash;
pub mod tcp;
pub mod time;
pub mod timer_wheel;
pub mod translation;
pub mod udp;
pub mod wire;
