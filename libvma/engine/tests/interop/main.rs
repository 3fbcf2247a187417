//! The engine against other implementations of TCP: smoltcp, in simulated time, and the kernel of
//! this machine, over a TUN device in a network namespace (which needs root).

mod against_smoltcp;
mod host;
mod kernel;
mod kernel_failures;
#[path = "../../src/tcp/tests/notation.rs"]
mod notation;
mod random_lines;
#[allow(dead_code, reason = "the engine's own tests use all of it")]
#[path = "../../src/tcp/tests/script.rs"]
mod script;
mod time_lines;
mod tun;

// The modules that the files of the engine's own tests name by `crate`.
use libvma_engine::{tcp, time, wire};
