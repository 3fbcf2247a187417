//! Processes, sockets and rings as they are shown: rates per second, by the clock of the snapshots.

use libvma_dev::stats::{Counters, POOL_RX, POOL_TX, Ring, Socket, Tcp, read_text};

use crate::delta::{Delta, epolls, rings};
use crate::sample::Sample;
use crate::words;

/// Without a value before the second snapshot.
pub type Rate = Option<f64>;

#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub processes: Vec<ProcessRow>,
    pub sockets: Vec<SocketRow>,
    pub rings: Vec<RingRow>,
}

#[derive(Clone, Debug)]
pub struct ProcessRow {
    pub process: u32,
    pub name: String,
    /// It told nothing new since the cycle before.
    pub silent: bool,
    pub sockets: u32,
    /// Of those, without a place of their own.
    pub hidden: u32,
    pub packets: Rate,
    pub bytes: Rate,
    pub drops: Rate,
    /// Percent of the time that the busiest of poll, select and the epoll instances polls.
    pub polling: u32,
    /// Of the pools for receiving and sending.
    pub frames_free: [Option<u32>; 2],
}

/// What a socket stays recognizable by from cycle to cycle.
pub type SocketKey = (u32, i32, u64);

#[derive(Clone, Debug)]
pub struct SocketRow {
    pub key: SocketKey,
    pub name: String,
    pub protocol: &'static str,
    pub local: String,
    pub peer: String,
    pub state: &'static str,
    pub served_by: &'static str,
    pub reason: String,
    /// With what the kernel carried.
    pub rx_packets: Rate,
    pub rx_bytes: Rate,
    pub tx_packets: Rate,
    pub tx_bytes: Rate,
    pub drops: Rate,
    pub retransmissions: Rate,
    /// Percent of the receive calls that found something while they polled.
    pub poll_hits: Option<f64>,
    /// Microseconds.
    pub round_trip: Option<f64>,
    pub ready_packets: u64,
    pub ready_bytes: u64,
    /// Held by the program.
    pub held_packets: u64,
    pub held_bytes: u64,
    pub unsent_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct RingRow {
    pub process: u32,
    pub name: String,
    pub kind: &'static str,
    pub interface: String,
    pub rx_packets: Rate,
    pub rx_bytes: Rate,
    pub tx_packets: Rate,
    pub tx_bytes: Rate,
    pub drops: Rate,
    /// Frames that wait for packets.
    pub frames: u32,
}

impl Rows {
    pub fn of(samples: &[Sample]) -> Rows {
        let mut rows = Rows::default();
        for sample in samples {
            let delta = Delta::of(sample);
            let delta = delta.as_ref();
            rows.processes.push(process(sample, delta));
            for (index, of) in sample.taken.sockets.iter().enumerate() {
                rows.sockets.push(socket(sample, of, delta, index));
            }
            for (index, of) in rings(&sample.taken.snapshot).enumerate() {
                rows.rings.push(ring(sample, of, delta, index));
            }
        }
        rows
    }
}

/// How often per second, if so much came in the time of the difference.
fn per_second(delta: Option<&Delta>, count: impl FnOnce(&Delta) -> Option<u64>) -> Rate {
    let delta = delta?;
    Some(count(delta)? as f64 / delta.seconds()?)
}

fn process(sample: &Sample, delta: Option<&Delta>) -> ProcessRow {
    let snapshot = &sample.taken.snapshot;
    let packets = |c: &Counters| c.rx_packets + c.rx_os_packets + c.tx_packets + c.tx_os_packets;
    let bytes = |c: &Counters| c.rx_bytes + c.rx_os_bytes + c.tx_bytes + c.tx_os_bytes;
    let lost = |delta: &Delta| {
        // What found no room in a socket's buffer is among the reasons.
        let rings: u64 = delta.rings.iter().map(|ring| ring.rx_dropped).sum();
        delta.drops.iter().sum::<u64>() + delta.totals.tx_dropped + rings
    };
    let calls =
        epolls(snapshot).map(|epoll| &epoll.calls).chain([&snapshot.poll, &snapshot.select]);
    let free = |kind| snapshot.pools.iter().find(|pool| pool.kind == kind).map(|pool| pool.free);
    ProcessRow {
        process: sample.process,
        name: program(sample),
        silent: delta.is_some_and(|delta| delta.nanoseconds == 0),
        sockets: snapshot.sockets_open,
        hidden: snapshot.sockets_hidden,
        packets: per_second(delta, |d| Some(packets(&d.totals))),
        bytes: per_second(delta, |d| Some(bytes(&d.totals))),
        drops: per_second(delta, |d| Some(lost(d))),
        polling: calls.map(|calls| calls.polling_cpu).max().unwrap_or_default(),
        frames_free: [free(POOL_RX), free(POOL_TX)],
    }
}

fn socket(sample: &Sample, socket: &Socket, delta: Option<&Delta>, index: usize) -> SocketRow {
    let rate = |count: fn(&Counters) -> u64| {
        per_second(delta, |delta| delta.sockets.get(index).map(|d| count(&d.counters)))
    };
    let polls = delta.and_then(|delta| delta.sockets.get(index)).map(|delta| {
        (delta.counters.rx_poll_hits, delta.counters.rx_poll_hits + delta.counters.rx_poll_misses)
    });
    SocketRow {
        key: (sample.process, socket.descriptor, socket.inode),
        name: program(sample),
        protocol: words::protocol(socket),
        local: words::local(socket).unwrap_or_default(),
        peer: words::peer(socket).unwrap_or_default(),
        state: words::tcp_state(socket).unwrap_or_default(),
        served_by: words::served_by(socket),
        reason: read_text(&socket.reason).to_owned(),
        rx_packets: rate(|c| c.rx_packets + c.rx_os_packets),
        rx_bytes: rate(|c| c.rx_bytes + c.rx_os_bytes),
        tx_packets: rate(|c| c.tx_packets + c.tx_os_packets),
        tx_bytes: rate(|c| c.tx_bytes + c.tx_os_bytes),
        drops: rate(|c| c.rx_dropped_packets + c.tx_dropped),
        retransmissions: rate(|c| c.tx_retransmissions),
        poll_hits: polls
            .filter(|(_, all)| *all > 0)
            .map(|(hit, all)| hit as f64 * 100.0 / all as f64),
        round_trip: (socket.tcp != Tcp::default()).then_some(socket.tcp.round_trip.into()),
        ready_packets: socket.ready_packets,
        ready_bytes: socket.ready_bytes,
        held_packets: socket.zero_copy_packets,
        held_bytes: socket.zero_copy_bytes,
        unsent_bytes: socket.unsent_bytes,
    }
}

fn ring(sample: &Sample, ring: &Ring, delta: Option<&Delta>, index: usize) -> RingRow {
    let rate =
        |count: fn(&Ring) -> u64| per_second(delta, |delta| delta.rings.get(index).map(count));
    RingRow {
        process: sample.process,
        name: program(sample),
        kind: words::ring_kind(ring.kind),
        interface: read_text(&ring.name).to_owned(),
        rx_packets: rate(|r| r.rx_packets),
        rx_bytes: rate(|r| r.rx_bytes),
        tx_packets: rate(|r| r.tx_packets),
        tx_bytes: rate(|r| r.tx_bytes),
        drops: rate(|r| r.rx_dropped + r.tx_dropped),
        frames: ring.buffers,
    }
}

fn program(sample: &Sample) -> String {
    if sample.name.is_empty() { "?".to_owned() } else { sample.name.clone() }
}
