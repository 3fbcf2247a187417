//! The five views as text: pure functions of what was taken.
//!
//! Scripts parse these lines. Their words, order, widths and spaces at a line's end do not change;
//! lines that are new stand at the end of a block.

mod basic;
mod deltas;
mod full;
mod groups;
mod multiplexer;
mod netstat;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use libvma_dev::stats::{Multiplexer, Snapshot, Socket, Taken};

use crate::options::{Details, Selection};

pub use basic::{Table, Width};
pub use deltas::deltas;
pub use full::full;
pub use groups::groups;
pub use netstat::{HEADER as NETSTAT_HEADER, netstat};

/// What one report shows.
pub struct Shown<'a> {
    /// In deltas, what came since the report before.
    pub taken: &'a Taken,
    pub details: Details,
    pub selection: &'a Selection,
}

impl<'a> Shown<'a> {
    fn sockets(&self) -> impl Iterator<Item = &'a Socket> {
        self.taken.sockets.iter().filter(|socket| self.selection.has(socket.descriptor))
    }

    /// Behind labels.
    fn postfix(&self) -> &'static str {
        match self.details {
            Details::Totals => "",
            Details::Deltas => "/s",
        }
    }
}

/// Those that have counted anything, with their names.
fn multiplexers(snapshot: &Snapshot) -> impl Iterator<Item = (String, &Multiplexer)> {
    let two = [("poll".to_owned(), &snapshot.poll), ("select".to_owned(), &snapshot.select)];
    let used = snapshot.epolls.iter().filter(|epoll| epoll.used == 1);
    let epolls = used.map(|epoll| (format!("epoll[{}]", epoll.descriptor), &epoll.calls));
    two.into_iter().chain(epolls).filter(|(_, calls)| {
        let counted = [calls.ready, calls.ready_os, calls.timeouts, calls.errors];
        counted.into_iter().chain([calls.poll_hits, calls.poll_misses]).any(|count| count > 0)
    })
}

fn kilobytes(bytes: u64) -> u64 {
    bytes / 1024
}

/// Share of hits.
fn percent(hits: u64, misses: u64) -> f64 {
    if hits == 0 { 0.0 } else { 100.0 * hits as f64 / (hits as f64 + misses as f64) }
}

/// The address of an end of a socket.
fn ip_of(end: SocketAddr) -> String {
    match end {
        SocketAddr::V6(end) => format!("[{}]", end.ip()),
        SocketAddr::V4(end) => end.ip().to_string(),
    }
}

fn address(address: [u8; 4]) -> std::net::Ipv4Addr {
    address.into()
}

/// Between reports.
fn dashes() -> String {
    "-".repeat(79) + "\n"
}
