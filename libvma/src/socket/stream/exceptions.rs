//! Connections that are the kernel's though our flows cover them: those that it accepted before a
//! listener was steered to us, and those that were given to it. Which ones the kernel has is read
//! from /proc/net/tcp (proc_pid_net(5)).

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::Stack;
use crate::net::tcp::lookup::FlowKey;
use crate::shard::Flow;
use crate::shard::tcp::five_tuple;
use crate::sys::fd;

/// The connections that come from a listener stay whose they are. To be called before the flows
/// of the listener are added, and again afterwards.
pub fn except_older(stack: &Stack, local: SocketAddrV4) {
    let Ok(table) = fd::read_file(TABLE) else { return };
    let ours = |key: &FlowKey| {
        key.local_port == local.port() && (local.ip().is_unspecified() || key.local == *local.ip())
    };
    let older: Vec<FlowKey> = connections(&table).filter(ours).collect();
    let Ok(mut state) = stack.shard.lock() else { return };
    for key in older {
        if !state.has_connection(&key) {
            state.except(five_tuple(&key));
        }
    }
}

/// Ends exceptions whose connection is over, when there are more than `limit`; returns the next
/// limit. The kernel does not tell when that is, and an exception too many does no harm: the next
/// connection between the same ports is the kernel's, too.
pub fn expire(stack: &Stack, limit: usize) -> usize {
    let Ok(state) = stack.shard.lock() else { return limit };
    let mut over = state.exceptions();
    drop(state);
    let count = over.len();
    if count <= limit {
        return limit;
    }
    let Ok(table) = fd::read_file(TABLE) else { return count.saturating_mul(2) };
    let living: HashSet<Flow> = connections(&table).map(|key| five_tuple(&key)).collect();
    over.retain(|flow| !living.contains(flow));
    let Ok(mut state) = stack.shard.lock() else { return limit };
    for flow in &over {
        state.end_exception(*flow);
    }
    (count - over.len()).saturating_mul(2).max(FIRST_LIMIT)
}

/// So many exceptions are kept without looking whether they are still needed.
pub const FIRST_LIMIT: usize = 256;

const TABLE: &str = "/proc/net/tcp";

/// The connections in the kernel's table, half-open ones included.
fn connections(table: &[u8]) -> impl Iterator<Item = FlowKey> {
    let text = core::str::from_utf8(table).unwrap_or_default();
    text.lines().skip(1).filter_map(connection)
}

/// `sl local_address rem_address st ...`, numbers in hexadecimal; a listener has no peer.
fn connection(line: &str) -> Option<FlowKey> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, local_port) = address(words.next()?)?;
    let (remote, remote_port) = address(words.next()?)?;
    (remote_port != 0).then_some(FlowKey { local, local_port, remote, remote_port })
}

/// The bytes of the address as the machine reads them as a number.
fn address(word: &str) -> Option<(Ipv4Addr, u16)> {
    let (ip, port) = word.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    Some((Ipv4Addr::from(ip.to_ne_bytes()), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let table = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
            \x20  1: 0100630A:1B58 0200630A:D431 01 00000000:00000000 00:00000000\n\
            \x20  2: 0100\n";
        let found: Vec<FlowKey> = connections(table).collect();
        let key = FlowKey {
            local: Ipv4Addr::new(10, 99, 0, 1),
            local_port: 7000,
            remote: Ipv4Addr::new(10, 99, 0, 2),
            remote_port: 54321,
        };
        assert_eq!(found, [key]);
    }

    #[test]
    fn this_hosts_table_is_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let table = std::fs::read(TABLE).unwrap();
        let port = client.local_addr().unwrap().port();
        let mut found = connections(&table);
        assert!(found.any(|key| key.local_port == port && key.local == Ipv4Addr::LOCALHOST));
    }
}
