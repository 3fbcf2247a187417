//! Connections that are the kernel's though our flows cover them: those that it accepted before a
//! listener was steered to us, and those that were given to it. The kernel is asked for those that
//! it has (sock_diag(7)); one without inet_diag tells them in /proc/net/tcp and, for sockets of
//! AF_INET6, in /proc/net/tcp6 (proc_pid_net(5)), which takes it four times as long.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use libvma_dev::ipv6_stand_ins::{self, covers};
use libvma_engine::tcp::lookup::FlowKey;

use super::Stack;
use crate::control::netlink;
use crate::log::log_line;
use crate::shard::Flow;
use crate::shard::tcp::five_tuple;
use crate::sys::fd;

/// The connections that come from a listener stay whose they are. To be called before the flows
/// of the listener are added, and again afterwards. They may be of sockets of the other family: a former
/// listener's, whose workers still serve its clients.
pub fn except_older(stack: &Stack, local: SocketAddrV4) {
    let ours = |key: &FlowKey| key.local_port == local.port() && covers(*local.ip(), key.local);
    let Some(mut older) = read(Some(local.port())) else { return };
    older.retain(ours);
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
    let Some(living) = read(None) else { return count.saturating_mul(2) };
    let living: HashSet<Flow> = living.iter().map(five_tuple).collect();
    over.retain(|flow| !living.contains(flow));
    let Ok(mut state) = stack.shard.lock() else { return limit };
    for flow in &over {
        state.end_exception(*flow);
    }
    (count - over.len()).saturating_mul(2).max(FIRST_LIMIT)
}

/// So many exceptions are kept without looking whether they are still needed.
pub const FIRST_LIMIT: usize = 256;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The kernel's connections over IPv4, those with the own port `port` if one is given, or more;
/// `None` if they are not to be known.
fn read(port: Option<u16>) -> Option<Vec<FlowKey>> {
    let key = |(local, remote): (SocketAddrV4, SocketAddrV4)| FlowKey {
        local: *local.ip(),
        local_port: local.port(),
        remote: *remote.ip(),
        remote_port: remote.port(),
    };
    match netlink::connections(port) {
        Ok(found) => Some(found.into_iter().map(key).collect()),
        Err(error) => {
            log_line!(Debug, "the kernel's connections are read from its tables: {error}");
            read_tables()
        }
    }
}

/// `None` if the first table cannot be read. There is no second one without IPv6.
fn read_tables() -> Option<Vec<FlowKey>> {
    let mut found = Vec::new();
    for (at, table) in TABLES.iter().enumerate() {
        match fd::read_file(table) {
            Ok(bytes) => found.extend(connections(&bytes)),
            Err(_) if at > 0 => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// The connections in one of the kernel's tables, half-open ones included.
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

/// An IPv4 address, an IPv4-mapped one, or the stand-in of an IPv6 one: every four bytes as the machine reads them as a number.
fn address(word: &str) -> Option<(Ipv4Addr, u16)> {
    const DIGITS: usize = 8;
    let (ip, port) = word.split_once(':')?;
    let mut octets = [0; 16];
    for (word, place) in ip.as_bytes().chunks(DIGITS).zip(octets.chunks_exact_mut(4)) {
        let word = u32::from_str_radix(core::str::from_utf8(word).ok()?, 16).ok()?;
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let ip = match ip.len() / DIGITS {
        1 => Ipv4Addr::from(*octets.first_chunk::<4>()?),
        4 => {
            let ip = Ipv6Addr::from(octets);
            ip.to_ipv4_mapped().or_else(|| ipv6_stand_ins::of(ip))?
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FlowKey = FlowKey {
        local: Ipv4Addr::new(10, 99, 0, 1),
        local_port: 7000,
        remote: Ipv4Addr::new(10, 99, 0, 2),
        remote_port: 54321,
    };

    #[test]
    #[cfg(target_endian = "little")]
    fn the_kernels_table_is_read() {
        let table = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
            \x20  1: 0100630A:1B58 0200630A:D431 01 00000000:00000000 00:00000000\n\
            \x20  2: 0100\n";
        let found: Vec<FlowKey> = connections(table).collect();
        assert_eq!(found, [KEY]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn of_ipv6_sockets_those_with_peers_that_can_be_served_are_read() {
        let table = b"  sl  local_address remote_address   st\n\
            \x20  0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A\n\
            \x20  1: 0000000000000000FFFF00000100630A:1B58 0000000000000000FFFF00000200630A:D431 01\n\
            \x20  2: 00000000000000000000000001000000:1B58 00000000000000000000000001000000:D432 01\n\
            \x20  3: B80D0120000000000000000001000000:1B58 B80D0120000000000000000002000000:D433 01\n";
        let found: Vec<FlowKey> = connections(table).collect();
        let stand_in = |text: &str| ipv6_stand_ins::of(text.parse().unwrap()).unwrap();
        let (local, remote) = (stand_in("2001:db8::1"), stand_in("2001:db8::2"));
        let six = FlowKey { local, remote, remote_port: 0xd433, ..KEY };
        assert_eq!(found, [KEY, six]);
    }

    #[test]
    fn this_hosts_table_is_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let table = std::fs::read(TABLES[0]).unwrap();
        let port = client.local_addr().unwrap().port();
        let mut found = connections(&table);
        assert!(found.any(|key| key.local_port == port && key.local == Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn a_table_whose_words_are_no_addresses_gives_no_connections() {
        for word in ["", "0100007F", "0100007F:", "0100007F:XY", "01:1F90", "0100007G:1F90"] {
            assert_eq!(address(word), None, "{word}");
            let table = format!("  sl  local remote st\n   0: {word} 0200630A:D431 01 0:0 0:0\n");
            assert_eq!(connections(table.as_bytes()).next(), None, "{word}");
        }
        assert_eq!(address("000000000100007F:1F90"), None, "two words are of no family");
    }
}
