//! Tests of whole connections: two of them over a simulated path, each of them against a script of
//! segments, and against other implementations.
//!
//! - [`sim`] is the simulated world: time, path, programs;
//! - the other files are what is tested in it.

mod closing;
mod goodput;
mod properties;
mod script;
mod sim;
mod states;
mod timers;
mod transfer;
mod windows;
