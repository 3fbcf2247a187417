//! Which other UDP sockets of this network namespace have a port (/proc/net/udp and /proc/net/udp6).
//!
//! The kernel tells nobody of a new socket or of one more member of a group, so the tables are read
//! again. The files stay open: one opened anew would take a low descriptor number for a moment, which the
//! program could notice.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use libvma_dev::ipv6_stand_ins;

use crate::sys::Fd;
use crate::sys::fd::{open_read, read_again};
use crate::sys::sockaddr::Family;
use crate::sys::time::monotonic_nanos;

#[derive(Default)]
pub struct UdpTable {
    /// Open from the first look on; those that cannot be opened are missing.
    files: Option<Vec<Fd>>,
    /// By port.
    rows: Vec<Row>,
    bytes: Vec<u8>,
    read_at: u64,
    cost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    port: u16,
    /// 0.0.0.0 for any; of IPv6 the stand-in, if it has one.
    address: Ipv4Addr,
    /// An IPv6 socket, which may or may not take IPv4 packets.
    is_ipv6: bool,
    inode: u64,
}

/// A table may be older than the look at it by so many times what reading it costs.
const MOST_COST: u64 = 10;

impl UdpTable {
    /// Reads the tables, unless that was done just now. `own` tells the sockets that do not count.
    pub fn refresh(&mut self, own: impl FnOnce() -> HashSet<u64>) {
        let age = monotonic_nanos().saturating_sub(self.read_at);
        if self.files.is_none() || age > self.cost.saturating_mul(MOST_COST) {
            self.read(own);
        }
    }

    /// Reads the tables.
    pub fn read(&mut self, own: impl FnOnce() -> HashSet<u64>) {
        let paths = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
        let open = || paths.iter().filter_map(|path| open_read(path).ok()).collect();
        let began = monotonic_nanos();
        self.rows.clear();
        for file in self.files.get_or_insert_with(open) {
            if read_again(file, &mut self.bytes).is_ok() {
                let lines = self.bytes.split(|byte| *byte == b'\n').skip(1);
                self.rows.extend(lines.filter_map(Row::parse));
            }
        }
        // After the reading: a socket opened meanwhile is among them.
        let own = own();
        self.rows.retain(|row| !own.contains(&row.inode));
        self.rows.sort_unstable();
        self.read_at = monotonic_nanos();
        self.cost = self.read_at.saturating_sub(began);
    }

    /// The inodes of the sockets that may receive what is sent to an address and port, beside a socket of the
    /// family that has them. A unicast packet of IPv4 prefers an IPv4 socket to an IPv6 socket of any address, so
    /// that is left out beside an IPv4 socket. Which IPv6 sockets take one family only the tables do not tell.
    pub fn receivers(
        &self,
        address: Ipv4Addr,
        port: u16,
        beside: Family,
    ) -> impl Iterator<Item = u64> {
        let from = self.rows.partition_point(|row| row.port < port);
        let on_port = self.rows.get(from..).unwrap_or_default();
        let on_port = on_port.iter().take_while(move |row| row.port == port);
        let takes = move |row: &&Row| {
            let rivals = match ipv6_stand_ins::is_one(address) {
                true => row.is_ipv6,
                false => !row.is_ipv6 || beside == Family::Ipv6 || address.is_multicast(),
            };
            row.address == address || row.address.is_unspecified() && rivals
        };
        on_port.filter(takes).map(|row| row.inode)
    }
}

impl Row {
    /// A line of either file. None if it is a socket at an address that the library has not met, or one of the kernel's own.
    fn parse(line: &[u8]) -> Option<Row> {
        let line = core::str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace().skip(1);
        let (address, port) = words.next()?.split_once(':')?;
        let inode = words.nth(7)?.parse().ok().filter(|inode| *inode != 0)?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let (address, is_ipv6) = match address.len() {
            8 => (Ipv4Addr::from(word(address)?), false),
            _ => (mapped(address)?, true),
        };
        Some(Row { port, address, is_ipv6, inode })
    }
}

/// Four bytes of an address, which are printed as one number in the machine's byte order.
fn word(text: &str) -> Option<[u8; 4]> {
    Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes())
}

/// The IPv4 address that an IPv6 address of a socket stands for, or that stands for it.
fn mapped(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 16];
    for (at, place) in octets.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *place = word(text.get(at * 8..at * 8 + 8)?)?;
    }
    let address = Ipv6Addr::from(octets);
    match address.is_unspecified() {
        true => Some(Ipv4Addr::UNSPECIFIED),
        false => address.to_ipv4_mapped().or_else(|| ipv6_stand_ins::known(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn rows_of_both_families_are_read() {
        let four = "  123: 010200E0:1388 00000000:0000 07 00000000:00000000 00:00000000 00000000 \
                    1000        0 4711 2 0000000000000000 0";
        let row = Row::parse(four.as_bytes()).unwrap();
        let expected =
            Row { port: 5000, address: Ipv4Addr::new(224, 0, 2, 1), is_ipv6: false, inode: 4711 };
        assert_eq!(row, expected);
        let six = |address: &str| {
            let zero = "00000000000000000000000000000000:0000";
            let rest = "07 00000000:00000000 00:00000000 00000000 0 0 12 2 0000000000000000 0";
            Row::parse(format!("1: {address}:1388 {zero} {rest}").as_bytes())
        };
        let any = six("00000000000000000000000000000000").unwrap();
        assert_eq!((any.address, any.is_ipv6), (Ipv4Addr::UNSPECIFIED, true));
        let mapped = six("0000000000000000FFFF00000100630A").unwrap();
        assert_eq!(mapped.address, Ipv4Addr::new(10, 99, 0, 1));
        assert_eq!(six("000080FE00000000000000000100630A"), None);
        assert_eq!(Row::parse(b"  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn receivers_are_bound_to_the_address_or_to_any() {
        let group = Ipv4Addr::new(224, 1, 2, 3);
        let own = Ipv4Addr::new(10, 0, 0, 1);
        let row = |port, address, is_ipv6, inode| Row { port, address, is_ipv6, inode };
        let mut table = UdpTable {
            rows: vec![
                row(7, group, false, 1),
                row(7, own, false, 2),
                row(7, Ipv4Addr::UNSPECIFIED, false, 3),
                row(7, Ipv4Addr::UNSPECIFIED, true, 4),
                row(8, group, false, 5),
                row(6, group, false, 6),
            ],
            ..UdpTable::default()
        };
        table.rows.sort_unstable();
        let beside = |family, address, port| {
            let mut inodes: Vec<u64> = table.receivers(address, port, family).collect();
            inodes.sort_unstable();
            inodes
        };
        let receivers = |address, port| beside(Family::Ipv4, address, port);
        assert_eq!(receivers(group, 7), [1, 3, 4]);
        assert_eq!(receivers(own, 7), [2, 3]);
        assert_eq!(receivers(own, 8), []);
        assert_eq!(beside(Family::Ipv6, own, 7), [2, 3, 4]);
        assert_eq!(beside(Family::Ipv6, group, 7), [1, 3, 4]);
    }
}
