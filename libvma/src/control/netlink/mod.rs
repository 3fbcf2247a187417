//! What the kernel knows about interfaces, addresses, routes and neighbours: asked ([`Netlink`])
//! and followed ([`Monitor`]).
//!
//! The kernel is the one source of truth: a route is looked up by the kernel itself (policy rules,
//! multipath and path MTU included), never recomputed here. Addresses of IPv6 are told by their stand-ins
//! ([`libvma_dev::ipv6_stand_ins`]), and asked for by them.
//!
//! To keep a table current, open the `Monitor` first, then read the table with `Netlink`, then
//! apply the changes: what happens in between arrives twice, never not at all. Both belong to the
//! network namespace of the thread that opened them, and after a fork the child must open its own:
//! two processes reading one socket steal each other's answers.
//!
//! Reading needs no capability. Wire format: rtnetlink(7), netlink(7).

mod address;
mod connections;
mod diag;
mod link;
mod monitor;
mod neighbour;
mod request;
mod route;
mod wire;

#[cfg(test)]
pub(super) mod tests;

pub use crate::sys::netlink::{Errno, Error};
pub use address::Address;
pub use connections::connections;
pub use diag::Diag;
pub use link::Link;
pub use monitor::{Change, Monitor};
pub use neighbour::{Neighbour, NudState};
pub use request::Netlink;
pub use route::{Protocol, Route, RouteKind, RouteQuery};
