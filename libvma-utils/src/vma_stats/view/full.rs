//! View 3: a block for each socket, multiplexer, completion queue, ring and buffer pool.

mod ring;
mod socket;

use std::fmt::Write;

use libvma_dev::stats::{POOL_RX, POOL_TX, read_text};

use super::{Shown, dashes, multiplexers};
use crate::message::printable;

pub fn full(shown: &Shown<'_>) -> String {
    let mut text = String::new();
    let mut any = false;
    for one in shown.sockets() {
        socket::block(&mut text, one, shown.postfix());
        any = true;
    }
    for (name, calls) in multiplexers(&shown.taken.snapshot) {
        super::multiplexer::block(&mut text, &name, calls, shown.postfix());
    }
    ring::queues(&mut text, shown);
    ring::rings(&mut text, shown);
    pools(&mut text, shown);
    held(&mut text, shown);
    drops(&mut text, shown);
    if any {
        text.push_str(&dashes());
    }
    text
}

fn pools(text: &mut String, shown: &Shown<'_>) {
    let pools = shown.taken.snapshot.pools.iter().enumerate().filter(|(_, pool)| pool.kind > 0);
    for (number, pool) in pools {
        double(text);
        let _ = match pool.kind {
            POOL_RX => writeln!(text, "\tBUFFER_POOL(RX)=[{number}]"),
            POOL_TX => writeln!(text, "\tBUFFER_POOL(TX)=[{number}]"),
            _ => writeln!(text, "\tBUFFER_POOL=[{number}]"),
        };
        line(text, "Size:", pool.free);
        line(text, "No buffers error:", pool.no_buffers);
    }
    double(text);
}

/// Packets that the program holds by zero copy, of all sockets and of those that are closed; nothing if there are none.
fn held(text: &mut String, shown: &Shown<'_>) {
    let snapshot = &shown.taken.snapshot;
    if snapshot.zero_copy_packets == 0 {
        return;
    }
    text.push_str("\tZERO COPY\n");
    line(text, "Packets held:", snapshot.zero_copy_packets);
    line(text, "Bytes held:", snapshot.zero_copy_bytes);
    double(text);
}

/// Why packets were not delivered; nothing if all were.
fn drops(text: &mut String, shown: &Shown<'_>) {
    let mut drops = shown.taken.snapshot.drops.iter().filter(|drop| drop.count > 0).peekable();
    if drops.peek().is_none() {
        return;
    }
    text.push_str("\tDROPPED\n");
    for drop in drops {
        let _ = writeln!(text, "{:>12} {}", drop.count, printable(read_text(&drop.reason)));
    }
    double(text);
}

pub(super) fn double(text: &mut String) {
    text.push_str(&"=".repeat(54));
    text.push('\n');
}

/// A label and what it is about.
fn line(text: &mut String, label: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{label:<20} {value}");
}
