//! The statistics of each socket as lines of text, when it is closed (`VMA_STATS_FILE`).

use std::fmt::Write;
use std::sync::OnceLock;

use crate::log::{self, Level, log_line};
use crate::sys::{self, Fd, fd};

/// What a socket has counted, in the manual's terms (features STAT-27, STAT-34).
pub use libvma_dev::stats::Counters as SocketCounters;

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

    /// Do the lines go anywhere?
    pub fn is_wanted(&self) -> bool {
        !self.path.is_empty() || log::enabled(Level::Debug)
    }

    /// Appends a socket's lines in one write, and tells them to a log of level debug; nothing if it
    /// had no traffic.
    pub fn append(&self, descriptor: i32, totals: &SocketCounters, rx_limit: usize) {
        if !self.is_wanted() || !any_traffic(totals) {
            return;
        }
        let text = lines(descriptor, totals, rx_limit);
        for line in text.lines() {
            log_line!(Debug, "{}", line.strip_prefix("VMA: ").unwrap_or(line));
        }
        if self.path.is_empty() {
            return;
        }
        let file = self.file.get_or_init(|| {
            fd::open_append(&self.path)
                .inspect_err(|errno| log_line!(Warning, "VMA_STATS_FILE={}: {errno}", self.path))
                .ok()
        });
        if let Some(file) = file {
            fd::write_fully(file.raw(), text.as_bytes());
        }
    }
}

fn any_traffic(totals: &SocketCounters) -> bool {
    let counts = [
        totals.rx_packets,
        totals.tx_packets,
        totals.rx_os_packets,
        totals.tx_os_packets,
        totals.rx_dropped_packets,
        totals.tx_dropped,
        totals.rx_errors,
        totals.tx_errors,
    ];
    counts.iter().any(|count| *count > 0)
}

/// The manual's lines (section 11.1.1.6), which scripts parse.
fn lines(descriptor: i32, t: &SocketCounters, rx_limit: usize) -> String {
    let mut text = String::new();
    let mut line = |args: core::fmt::Arguments<'_>| {
        let _ = writeln!(text, "VMA: [fd={descriptor}] {args}");
    };
    let share =
        |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let polls = t.rx_poll_hits + t.rx_poll_misses;
    let bytes = share(t.rx_dropped_bytes, t.rx_bytes + t.rx_dropped_bytes);
    let packets = share(t.rx_dropped_packets, t.rx_packets + t.rx_dropped_packets);
    line(format_args!(
        "Tx Offload: {} / {} / {} [kilobytes/packets/errors]",
        t.tx_bytes / 1024,
        t.tx_packets,
        t.tx_errors + t.tx_dropped
    ));
    line(format_args!(
        "Tx OS info: {} / {} / {} [kilobytes/packets/errors]",
        t.tx_os_bytes / 1024,
        t.tx_os_packets,
        t.tx_os_errors
    ));
    line(format_args!(
        "Rx Offload: {} / {} / {} [kilobytes/packets/errors]",
        t.rx_bytes / 1024,
        t.rx_packets,
        t.rx_errors
    ));
    line(format_args!(
        "Rx OS info: {} / {} / {} [kilobytes/packets/errors]",
        t.rx_os_bytes / 1024,
        t.rx_os_packets,
        t.rx_os_errors
    ));
    line(format_args!(
        "Rx byte: max {} / dropped {} ({bytes:.2}%) / limit {}",
        t.rx_ready_bytes_max, t.rx_dropped_bytes, rx_limit
    ));
    line(format_args!(
        "Rx pkt : max {} / dropped {} ({packets:.2}%)",
        t.rx_ready_packets_max, t.rx_dropped_packets
    ));
    line(format_args!(
        "Rx poll: {} / {} ({:.2}%) [miss/hit]",
        t.rx_poll_misses,
        t.rx_poll_hits,
        share(t.rx_poll_hits, polls)
    ));
    if t.tx_retransmissions > 0 {
        line(format_args!("Retransmissions: {}", t.tx_retransmissions));
    }
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
            rx_ready_packets_max: 1,
            rx_poll_hits: 233_020,
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
        let lossy = SocketCounters { tx_retransmissions: 7, ..totals };
        let expected = format!("{expected}VMA: [fd=10] Retransmissions: 7\n");
        assert_eq!(lines(10, &lossy, 2_000_000), expected);
    }
}
