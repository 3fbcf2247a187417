//! Tests of whole connections: two of them over a simulated path, each of them against a script of
//! segments, and against other implementations.
//!
//! - [`sim`] is the simulated world: time, path, programs;
//! - [`script`] gives one connection segments by hand and reads what it sends, [`notation`] is how they are written;
//! - the other files are what is tested in it.

mod closing;
mod goodput;
mod losses;
mod notation;
mod opening;
mod options;
mod properties;
mod resume;
mod script;
mod sim;
mod states;
mod timelines;
mod timers;
mod transfer;
mod windows;
