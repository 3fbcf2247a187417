//! A socket's block.

use std::fmt::Write;

use libvma_dev::stats::{
    BLOCKING, CLOSED, Counters, MULTICAST_LOOP, Socket, Tcp, WITHIN_HOST, read_text,
};

use crate::message::printable;

use super::super::{address, ip_of, kilobytes, netstat, percent};
use super::double;

pub fn block(text: &mut String, socket: &Socket, per: &str) {
    double(text);
    let _ = writeln!(text, "\tFd=[{}]", socket.descriptor);
    configuration(text, socket);
    let before = text.len();
    activity(text, socket, per);
    let idle = text.len() == before;
    let counters = &socket.counters;
    if counters.rx_ring_migrations > 0 || counters.tx_ring_migrations > 0 {
        let (rx, tx) = (counters.rx_ring_migrations, counters.tx_ring_migrations);
        let _ = writeln!(text, "Ring migrations Rx: {rx}, Tx: {tx}");
    }
    if counters.tx_retransmissions > 0 {
        let _ = writeln!(text, "Retransmissions: {}", counters.tx_retransmissions);
    }
    if idle {
        text.push_str("Rx and Tx where not active\n");
    }
    more(text, socket);
}

fn configuration(text: &mut String, socket: &Socket) {
    let kind = match socket.kind {
        netstat::STREAM => "TCP",
        netstat::DATAGRAM => "UDP",
        netstat::RAW => "RAW",
        _ => "???",
    };
    let blocking = if socket.flags & BLOCKING > 0 { "Blocked" } else { "Non-blocked" };
    let _ = write!(text, "- {kind}, {blocking}");
    if socket.kind == netstat::DATAGRAM {
        let looped = if socket.flags & MULTICAST_LOOP > 0 { "Enabled " } else { "Disabled" };
        let _ = write!(text, ", MC Loop {looped}");
        if socket.multicast_interface != [0; 4] {
            let _ = write!(text, ", MC IF = [{}]", address(socket.multicast_interface));
        }
    }
    text.push('\n');
    for (what, ip, end) in [
        ("Local Address  ", socket.local, socket.local_end()),
        ("Foreign Address", socket.peer, socket.peer_end()),
    ] {
        if ip != [0; 4] || end.port() > 0 {
            let _ = writeln!(text, "- {what} = [{}:{}]", ip_of(end), end.port());
        }
    }
    for group in socket.memberships() {
        let _ = writeln!(text, "- Member of = [{group}]");
    }
    if socket.rx_thread > 0 || socket.tx_thread > 0 {
        let (rx, tx) = (socket.rx_thread, socket.tx_thread);
        let _ = writeln!(text, "- Thread Id Rx: {rx:>5}, Tx: {tx:>5}");
    }
}

/// What it has sent and received; nothing if that is nothing.
fn activity(text: &mut String, socket: &Socket, per: &str) {
    let c: &Counters = &socket.counters;
    let tx = [c.tx_bytes, c.tx_packets, c.tx_eagain, c.tx_errors];
    let tx_os = [c.tx_os_bytes, c.tx_os_packets, c.tx_os_eagain, c.tx_os_errors];
    traffic(text, "Tx Offload", tx, per);
    traffic(text, "Tx OS info", tx_os, per);
    if c.tx_dummy_packets > 0 {
        let _ = writeln!(text, "Tx Dummy messages : {}", c.tx_dummy_packets);
    }
    let rx = [c.rx_bytes, c.rx_packets, c.rx_eagain, c.rx_errors];
    let rx_os = [c.rx_os_bytes, c.rx_os_packets, c.rx_os_eagain, c.rx_os_errors];
    traffic(text, "Rx Offload", rx, per);
    traffic(text, "Rx OS info", rx_os, per);
    if c.rx_packets > 0 || socket.ready_packets > 0 {
        let _ = writeln!(
            text,
            "Rx byte: cur {} / max {} / dropped{per} {} / limit {}",
            socket.ready_bytes, c.rx_ready_bytes_max, c.rx_dropped_bytes, socket.ready_limit
        );
        let _ = writeln!(
            text,
            "Rx pkt : cur {} / max {} / dropped{per} {}",
            socket.ready_packets, c.rx_ready_packets_max, c.rx_dropped_packets
        );
    }
    if socket.zero_copy_packets > 0 {
        let _ = writeln!(text, "Rx zero copy buffers: cur {}", socket.zero_copy_packets);
    }
    let (hits, misses) = (c.rx_poll_hits, c.rx_poll_misses);
    if hits > 0 || misses > 0 {
        let share = percent(hits, misses);
        let _ = writeln!(text, "Rx poll: {misses} / {hits} ({share:.2}%) [miss/hit]");
    }
}

fn traffic(text: &mut String, what: &str, numbers: [u64; 4], per: &str) {
    let [bytes, packets, eagains, errors] = numbers;
    if numbers.iter().any(|number| *number > 0) {
        let _ = writeln!(
            text,
            "{what}: {} / {packets} / {eagains} / {errors} \
             [kilobytes/packets/eagains/errors]{per}",
            kilobytes(bytes)
        );
    }
}

/// What the original does not tell.
fn more(text: &mut String, socket: &Socket) {
    if socket.zero_copy_packets > 0 {
        let _ = writeln!(text, "Rx zero copy bytes: cur {}", socket.zero_copy_bytes);
    }
    if socket.counters.tx_dropped > 0 {
        let _ = writeln!(text, "Tx dropped: {}", socket.counters.tx_dropped);
    }
    if socket.kind == netstat::STREAM {
        tcp(text, netstat::state(socket.tcp_state), &socket.tcp);
    }
    if socket.flags & WITHIN_HOST > 0 {
        text.push_str("- Peer is a process of this host, reached by shared memory\n");
    }
    if socket.flags & CLOSED > 0 {
        text.push_str("- Closed by the program, its connection is being finished\n");
    }
    let reason = read_text(&socket.reason);
    if !reason.is_empty() {
        let _ = writeln!(text, "- Why not offloaded: {}", printable(reason));
    }
}

fn tcp(text: &mut String, state: &str, tcp: &Tcp) {
    if *tcp == Tcp::default() {
        let _ = writeln!(text, "TCP: {state} [state]");
        return;
    }
    let _ = writeln!(
        text,
        "TCP: {state} / {} / {} / {} [state/rtt usec/cwnd bytes/ssthresh bytes]",
        tcp.round_trip, tcp.congestion_window, tcp.slow_start_threshold
    );
    let _ = writeln!(
        text,
        "TCP windows: {} / {} / {} [send/receive/segment bytes]",
        tcp.send_window, tcp.receive_window, tcp.segment_size
    );
    let _ = writeln!(
        text,
        "TCP recovery: {} / {} / {} / {} [rttvar usec/rto usec/timeouts/out of order]",
        tcp.round_trip_variance, tcp.retransmission_timeout, tcp.timeouts, tcp.out_of_order
    );
}
