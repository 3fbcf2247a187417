//! Blocks of rings, and of their completion queues, which come first.

use libvma_dev::stats::{RING_SHM, RING_TAP, RING_VERBS, RING_XDP, Ring, read_text};

use crate::message::printable;

use super::super::{Shown, kilobytes};
use super::{double, line};

pub fn queues(text: &mut String, shown: &Shown<'_>) {
    let per = shown.postfix();
    for (number, ring) in used(shown) {
        double(text);
        text.push_str(&format!("\tCQ=[{number}]\n"));
        line(text, "Packets dropped:", format_args!("{} {per:<3}", ring.rx_dropped));
        line(text, "Packets queue len:", ring.queued);
        line(text, "Drained max:", ring.drained_max);
        line(text, "Buffer pool size:", ring.buffers);
    }
    double(text);
}

pub fn rings(text: &mut String, shown: &Shown<'_>) {
    let per = shown.postfix();
    for (number, ring) in used(shown) {
        double(text);
        let title = if ring.kind == RING_TAP { "RING_TAP" } else { "RING_ETH" };
        text.push_str(&format!("\t{title}=[{number}]\n"));
        for (label, bytes, packets) in [
            ("Tx Offload:", ring.tx_bytes, ring.tx_packets),
            ("Rx Offload:", ring.rx_bytes, ring.rx_packets),
        ] {
            let bytes = kilobytes(bytes);
            line(text, label, format_args!("{bytes} / {packets} [kilobytes/packets] {per:<3}"));
        }
        if ring.retransmissions > 0 {
            line(text, "Retransmissions:", format_args!("{} {per:<3}", ring.retransmissions));
        }
        match ring.kind {
            RING_TAP => {
                line(text, "Rx Buffers:", ring.buffers);
                line(text, "Tap Device:", printable(read_text(&ring.name)));
            }
            _ => plain(text, ring, per),
        }
        more(text, ring, per);
    }
    double(text);
}

fn plain(text: &mut String, ring: &Ring, per: &str) {
    let (requested, received) = (ring.interrupts_requested, ring.interrupts_received);
    if requested > 0 || received > 0 {
        let numbers = format_args!("{requested} / {received} [requests/received] {per:<3}");
        line(text, "Interrupts:", numbers);
    }
    let (packets, period) = (ring.moderation_packets, ring.moderation_period);
    if packets > 0 || period > 0 {
        let numbers = format_args!("{packets} / {period} [frames/usec period] {per:<3}");
        line(text, "Moderation:", numbers);
    }
    if ring.device_memory > 0 {
        line(text, "Dev Mem Alloc:", ring.device_memory);
        line(
            text,
            "Dev Mem Stats:",
            format_args!(
                "{} / {} / {} [kilobytes/packets/oob] {per:<3}",
                kilobytes(ring.device_memory_bytes),
                ring.device_memory_packets,
                ring.device_memory_full
            ),
        );
    }
}

/// What the original does not tell.
fn more(text: &mut String, ring: &Ring, per: &str) {
    let device = match ring.kind {
        RING_XDP => "AF_XDP",
        RING_SHM => "shared memory",
        RING_TAP => "TAP",
        RING_VERBS => "verbs",
        _ => "???",
    };
    let name = read_text(&ring.name);
    line(text, "Interface:", if name.is_empty() { "-".to_owned() } else { printable(name) });
    line(text, "Device:", device);
    if ring.kind == RING_SHM {
        line(text, "Links:", ring.links);
        let (tx, rx) = (ring.tx_messages, ring.rx_messages);
        line(text, "Messages:", format_args!("{tx} / {rx} [sent/received] {per:<3}"));
    }
    if ring.rx_dropped > 0 || ring.tx_dropped > 0 {
        let (rx, tx) = (ring.rx_dropped, ring.tx_dropped);
        line(text, "Dropped:", format_args!("{rx} / {tx} [received/sent] {per:<3}"));
    }
    if ring.kicks > 0 {
        line(text, "Wake-ups sent:", format_args!("{} {per:<3}", ring.kicks));
    }
}

fn used<'a>(shown: &Shown<'a>) -> impl Iterator<Item = (usize, &'a Ring)> {
    shown.taken.snapshot.rings.iter().enumerate().filter(|(_, ring)| ring.kind > 0)
}
