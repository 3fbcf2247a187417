//! libvma: sockets of unmodified programs served without the kernel's network stack.
//!
//! The modules in the order in which a packet's reader meets them, from the program's `recv()` to
//! the wire. `docs/architecture.md` walks a datagram through them; its table of who may name whom
//! is checked by `ci/layers`.

#![deny(unsafe_code)]

// The program's side.
pub mod extra;
mod fd;
pub mod mux;
// Not in Rust programs: one that links a crate defining `close` gets that `close` inside its own std.
#[cfg(not(any(test, fuzzing)))]
#[allow(unsafe_code, reason = "C functions: raw pointers from the program, libc's own functions")]
pub mod preload;
pub mod socket;

// Where protocol and device meet.
pub mod shard;

// Protocol is the crate `libvma_engine`: bytes and time in, bytes and events out.

// The wire's side.
#[allow(unsafe_code, reason = "memory and rings shared with the kernel")]
pub mod device;

// Beside the path.
pub mod agent;
pub mod capture;
pub mod config;
pub mod control;
pub mod log;
pub mod process;
pub mod stats;
#[allow(unsafe_code, reason = "the edge to the kernel")]
pub mod sys;
