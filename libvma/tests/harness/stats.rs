//! Reading what the library writes to VMA_STATS_FILE.

use std::path::Path;

/// Datagrams of a process, summed over its sockets: by the library, and (`_os`) by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub rx: u64,
    pub tx: u64,
    pub rx_os: u64,
    pub tx_os: u64,
    pub rx_dropped: u64,
}

impl Traffic {
    /// A process without traffic writes no file.
    pub fn read(path: &Path) -> Traffic {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut sum = Traffic::default();
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("] ") else { continue };
            let Some((what, numbers)) = rest.split_once(": ") else { continue };
            // `455 / 233020 / 0 [kilobytes/packets/errors]`
            let packets =
                numbers.split(" / ").nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
            match what {
                "Tx Offload" => sum.tx += packets,
                "Tx OS info" => sum.tx_os += packets,
                "Rx Offload" => sum.rx += packets,
                "Rx OS info" => sum.rx_os += packets,
                // `max 1 / dropped 0 (0.00%)`
                "Rx pkt " => sum.rx_dropped += dropped(numbers),
                _ => {}
            }
        }
        sum
    }
}

fn dropped(numbers: &str) -> u64 {
    let (_, rest) = numbers.split_once("dropped ").unwrap_or_default();
    rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}
