//! The columns of the table of sockets, and which of them a screen has room for.

use super::numbers::{megabytes, percent, short};
use super::rows::SocketRow;

pub struct Column {
    /// In two lines.
    pub title: [&'static str; 2],
    pub width: u16,
    pub align: Align,
    /// The smaller, the longer it stays when the screen gets narrow.
    rank: u8,
    pub text: fn(&SocketRow) -> String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Of the first column, which takes what room is left.
const WIDEST_NAME: u16 = 20;

const fn left(
    title: [&'static str; 2],
    width: u16,
    rank: u8,
    text: fn(&SocketRow) -> String,
) -> Column {
    Column { title, width, align: Align::Left, rank, text }
}

const fn right(
    title: [&'static str; 2],
    width: u16,
    rank: u8,
    text: fn(&SocketRow) -> String,
) -> Column {
    Column { title, width, align: Align::Right, rank, text }
}

/// In the order of the screen.
const COLUMNS: &[Column] = &[
    left(["", "PROCESS"], 8, 0, |s| s.name.clone()),
    right(["", "FD"], 4, 0, |s| s.key.1.to_string()),
    left(["", "PRO"], 3, 0, |s| s.protocol.to_owned()),
    left(["", "LOCAL"], 21, LOCAL_RANK, |s| s.local.clone()),
    left(["", "PEER"], 21, LOCAL_RANK, |s| s.peer.clone()),
    left(["", "PEER (or *LOCAL)"], 22, ADDRESS_RANK, |s| {
        if s.peer.is_empty() && !s.local.is_empty() {
            format!("*{}", s.local)
        } else {
            s.peer.clone()
        }
    }),
    left(["", "STATE"], 11, 7, |s| s.state.to_owned()),
    left(["", "WHERE"], 7, 3, |s| s.served_by.to_owned()),
    right(["recv", "pkt/s"], 5, 0, |s| short(s.rx_packets)),
    right(["recv", "MB/s"], 5, 2, |s| short(megabytes(s.rx_bytes))),
    right(["sent", "pkt/s"], 5, 0, |s| short(s.tx_packets)),
    right(["sent", "MB/s"], 5, 2, |s| short(megabytes(s.tx_bytes))),
    right(["drops", "/s"], 5, 1, |s| short(s.drops)),
    right(["poll", "hit %"], 5, 5, |s| percent(s.poll_hits, "")),
    right(["round", "trip us"], 7, 6, |s| short(s.round_trip)),
    right(["re-", "sent/s"], 6, 8, |s| short(s.retransmissions)),
];

/// One column for both addresses, or one for each.
const ADDRESS_RANK: u8 = 1;
const LOCAL_RANK: u8 = 4;
/// The first to go.
const LEAST: u8 = 8;

/// Those that fit, with their widths; one place is between two.
pub fn fitting(width: u16) -> Vec<(&'static Column, u16)> {
    let mut best = COLUMNS.iter().filter(|column| column.rank == 0).collect();
    for most in 0..=LEAST {
        let both = most >= LOCAL_RANK;
        let chosen: Vec<&Column> = COLUMNS
            .iter()
            .filter(|column| column.rank <= most)
            .filter(|column| !(both && column.title[1].starts_with("PEER (")))
            .collect();
        if wide(&chosen) > width {
            break;
        }
        best = chosen;
    }
    let spare = width.saturating_sub(wide(&best));
    let widen = |index: usize, width: u16| {
        if index == 0 { (width + spare).min(WIDEST_NAME) } else { width }
    };
    best.into_iter().enumerate().map(|(i, column)| (column, widen(i, column.width))).collect()
}

fn wide(columns: &[&Column]) -> u16 {
    columns.iter().map(|column| column.width + 1).sum::<u16>().saturating_sub(1)
}
