//! What a process tells of its sockets: the statistics file (`VMA_STATS_FILE`).

use std::fmt::Write;
use std::sync::OnceLock;

use crate::log::log_line;
use crate::sys::{self, Fd, fd};

/// What a socket has counted, in the manual's terms (features STAT-27, STAT-34).
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketCounters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_eagain: u64,
    pub rx_errors: u64,
    pub rx_dropped: u64,
    pub rx_ready_max: u64,
    pub rx_ready_bytes_max: u64,
    pub rx_os_packets: u64,
    pub rx_os_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    pub tx_drops: u64,
    pub tx_os_packets: u64,
    pub tx_os_bytes: u64,
    pub poll_hits: u64,
    pub poll_misses: u64,
}

/// The open statistics file, if one is configured.
pub struct StatsFile {
    path: String,
    file: OnceLock<Option<Fd>>,
}

impl StatsFile {
    /// `path` may hold one `%d`, which becomes the process id. Opened when first needed.
    pub fn new(path: &str) -> StatsFile {
        let path = path.replacen("%d", &sys::thread::process_id().to_string(), 1);
        StatsFile { path, file: OnceLock::new() }
    }

    pub fn is_configured(&self) -> bool {
        !self.path.is_empty()
    }

    /// Appends a socket's lines in one write; nothing if it had no traffic.
    pub fn append(&self, descriptor: i32, totals: &SocketCounters, rx_limit: usize) {
        if !self.is_configured() || !totals.any_traffic() {
            return;
        }
        let file = self.file.get_or_init(|| {
            fd::open_append(&self.path)
                .inspect_err(|errno| log_line!(Warning, "VMA_STATS_FILE={}: {errno}", self.path))
                .ok()
        });
        if let Some(file) = file {
            fd::write_fully(file.raw(), lines(descriptor, totals, rx_limit).as_bytes());
        }
    }
}

impl SocketCounters {
    fn any_traffic(&self) -> bool {
        let counts = [
            self.rx_packets,
            self.tx_packets,
            self.rx_os_packets,
            self.tx_os_packets,
            self.rx_dropped,
            self.tx_drops,
            self.rx_errors,
            self.tx_errors,
        ];
        counts.iter().any(|count| *count > 0)
    }
}

/// The manual's lines (section 11.1.1.6), which scripts parse.
fn lines(descriptor: i32, t: &SocketCounters, rx_limit: usize) -> String {
    let mut text = String::new();
    let mut line = |args: core::fmt::Arguments<'_>| {
        let _ = writeln!(text, "VMA: [fd={descriptor}] {args}");
    };
    let share =
        |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let polls = t.poll_hits + t.poll_misses;
    let dropped = share(t.rx_dropped, t.rx_packets + t.rx_dropped);
    line(format_args!(
        "Tx Offload: {} / {} / {} [kilobytes/packets/errors]",
        t.tx_bytes / 1024,
        t.tx_packets,
        t.tx_errors + t.tx_drops
    ));
    line(format_args!(
        "Tx OS info: {} / {} / 0 [kilobytes/packets/errors]",
        t.tx_os_bytes / 1024,
        t.tx_os_packets
    ));
    line(format_args!(
        "Rx Offload: {} / {} / {} [kilobytes/packets/errors]",
        t.rx_bytes / 1024,
        t.rx_packets,
        t.rx_errors
    ));
    line(format_args!(
        "Rx OS info: {} / {} / 0 [kilobytes/packets/errors]",
        t.rx_os_bytes / 1024,
        t.rx_os_packets
    ));
    line(format_args!(
        "Rx byte: max {} / dropped {} ({dropped:.2}%) / limit {}",
        t.rx_ready_bytes_max, t.rx_dropped, rx_limit
    ));
    line(format_args!(
        "Rx pkt : max {} / dropped {} ({dropped:.2}%)",
        t.rx_ready_max, t.rx_dropped
    ));
    line(format_args!(
        "Rx poll: {} / {} ({:.2}%) [miss/hit]",
        t.poll_misses,
        t.poll_hits,
        share(t.poll_hits, polls)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: STAT-34
    #[test]
    fn the_lines_are_those_of_the_manual() {
        let totals = SocketCounters {
            tx_bytes: 455 * 1024,
            tx_packets: 233_020,
            rx_bytes: 455 * 1024,
            rx_packets: 233_020,
            rx_ready_bytes_max: 200,
            rx_ready_max: 1,
            poll_hits: 233_020,
            ..SocketCounters::default()
        };
        let expected = "\
VMA: [fd=10] Tx Offload: 455 / 233020 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Tx OS info: 0 / 0 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx Offload: 455 / 233020 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx OS info: 0 / 0 / 0 [kilobytes/packets/errors]
VMA: [fd=10] Rx byte: max 200 / dropped 0 (0.00%) / limit 2000000
VMA: [fd=10] Rx pkt : max 1 / dropped 0 (0.00%)
VMA: [fd=10] Rx poll: 0 / 233020 (100.00%) [miss/hit]
";
        assert_eq!(lines(10, &totals, 2_000_000), expected);
    }
}
