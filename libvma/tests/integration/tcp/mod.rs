//! TCP programs that people run, under the library at one end and at both, and what TCP owes them
//! when processes end or cables are bad. A file for each family of programs.

mod ahead;
mod certified;
pub mod closed_peer;
pub mod curl;
mod departure;
mod faults;
mod half_close;
mod iperf3;
mod ipv6;
mod listener;
mod neighbours;
mod nginx;
mod own_bells;
mod python;
mod redis;
mod reincarnation;
mod replaced;
mod routes;
mod sharing;
mod short_connections;
mod small_writes;
mod soak;
mod sockperf;
mod ssh;
