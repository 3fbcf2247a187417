//! Which metrics there are: their names, units, words of help and where their values are.

use libvma_dev::stats::{Counters, Multiplexer, Ring, Socket, Tcp, read_text};

use super::{Kind, Labels, Metric, Page};
use crate::delta::epolls;
use crate::sample::Sample;
use crate::words;

type Table<T, V = u64> = &'static [(Metric, fn(&T) -> V)];

const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    Metric { kind: Kind::Counter, name, unit, help }
}

const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    Metric { kind: Kind::Gauge, name, unit, help }
}

/// Of a socket, and summed up of all that a process ever had.
const COUNTERS: Table<Counters> = &[
    (counter("received", "packets", "Datagrams or segments received"), |c| c.rx_packets),
    (counter("received", "bytes", "Bytes received"), |c| c.rx_bytes),
    (counter("receive_eagain", "", "Receive calls that found nothing"), |c| c.rx_eagain),
    (counter("receive_errors", "", "Receive calls that failed"), |c| c.rx_errors),
    (counter("poll_hits", "", "Receive calls that found something while they polled"), |c| {
        c.rx_poll_hits
    }),
    (counter("poll_misses", "", "Receive calls that polled in vain"), |c| c.rx_poll_misses),
    (gauge("ready_max", "packets", "The most packets that ever waited to be read"), |c| {
        c.rx_ready_packets_max
    }),
    (gauge("ready_max", "bytes", "The most bytes that ever waited to be read"), |c| {
        c.rx_ready_bytes_max
    }),
    (counter("receive_dropped", "packets", "Lost for want of room in the buffer"), |c| {
        c.rx_dropped_packets
    }),
    (counter("receive_dropped", "bytes", "Lost for want of room in the buffer"), |c| {
        c.rx_dropped_bytes
    }),
    (counter("kernel_received", "packets", "Received by the kernel's socket"), |c| c.rx_os_packets),
    (counter("kernel_received", "bytes", "Received by the kernel's socket"), |c| c.rx_os_bytes),
    (counter("kernel_poll_hits", "", "Polls that found something at the kernel's socket"), |c| {
        c.rx_os_poll_hits
    }),
    (counter("kernel_receive_errors", "", "Receive calls that failed in the kernel"), |c| {
        c.rx_os_errors
    }),
    (counter("kernel_receive_eagain", "", "Receive calls that found nothing in the kernel"), |c| {
        c.rx_os_eagain
    }),
    (counter("receive_ring_migrations", "", "Moves to another ring for receiving"), |c| {
        c.rx_ring_migrations
    }),
    (counter("sent", "packets", "Datagrams or segments sent"), |c| c.tx_packets),
    (counter("sent", "bytes", "Bytes sent"), |c| c.tx_bytes),
    (counter("send_errors", "", "Send calls that failed"), |c| c.tx_errors),
    (counter("send_eagain", "", "Send calls that found no room"), |c| c.tx_eagain),
    (counter("send_dropped", "packets", "Lost for want of a frame or of room"), |c| c.tx_dropped),
    (counter("retransmitted", "packets", "Segments sent again"), |c| c.tx_retransmissions),
    (counter("kernel_sent", "packets", "Sent by the kernel's socket"), |c| c.tx_os_packets),
    (counter("kernel_sent", "bytes", "Sent by the kernel's socket"), |c| c.tx_os_bytes),
    (counter("kernel_send_errors", "", "Send calls that failed in the kernel"), |c| c.tx_os_errors),
    (counter("kernel_send_eagain", "", "Send calls that found no room in the kernel"), |c| {
        c.tx_os_eagain
    }),
    (counter("send_ring_migrations", "", "Moves to another ring for sending"), |c| {
        c.tx_ring_migrations
    }),
    (counter("dummy_sent", "packets", "Sends that only keep the path warm"), |c| {
        c.tx_dummy_packets
    }),
];

const ZERO_COPY_PACKETS: Metric =
    gauge("zero_copy", "packets", "Packets the program holds by zero copy");
const ZERO_COPY_BYTES: Metric =
    gauge("zero_copy", "bytes", "Bytes of the packets the program holds by zero copy");

const SOCKET: Table<Socket> = &[
    (gauge("ready", "packets", "Packets that wait to be read"), |s| s.ready_packets),
    (gauge("ready", "bytes", "Bytes that wait to be read"), |s| s.ready_bytes),
    (gauge("ready_limit", "bytes", "SO_RCVBUF"), |s| s.ready_limit),
    (ZERO_COPY_PACKETS, |s| s.zero_copy_packets),
    (ZERO_COPY_BYTES, |s| s.zero_copy_bytes),
    (gauge("unsent", "bytes", "Bytes not sent yet or not acknowledged"), |s| s.unsent_bytes),
];

/// Of connections only.
const CONNECTION: Table<Socket> = &[
    (gauge("tcp_state", "", "1 = ESTABLISHED ... 10 = LISTEN, as the kernel numbers them"), |s| {
        s.tcp_state.into()
    }),
    (gauge("congestion_window", "bytes", "Congestion window"), |s| s.tcp.congestion_window.into()),
    (gauge("slow_start_threshold", "bytes", "Slow start threshold"), |s| {
        s.tcp.slow_start_threshold.into()
    }),
    (gauge("segment_size", "bytes", "Largest segment"), |s| s.tcp.segment_size.into()),
    (gauge("send_window", "bytes", "What the peer has room for"), |s| s.tcp.send_window.into()),
    (gauge("receive_window", "bytes", "What we told the peer to have room for"), |s| {
        s.tcp.receive_window.into()
    }),
    (counter("timeouts", "", "Retransmission timeouts"), |s| s.tcp.timeouts),
    (counter("out_of_order", "segments", "Segments received out of order"), |s| s.tcp.out_of_order),
];

const CONNECTION_TIMES: Table<Tcp, f64> = &[
    (gauge("round_trip", "seconds", "Smoothed round-trip time"), |t| seconds(t.round_trip)),
    (gauge("round_trip_variance", "seconds", "How much the round-trip time varies"), |t| {
        seconds(t.round_trip_variance)
    }),
    (gauge("retransmission_timeout", "seconds", "Retransmission timeout"), |t| {
        seconds(t.retransmission_timeout)
    }),
];

const RING: Table<Ring> = &[
    (counter("received", "packets", "Packets received"), |r| r.rx_packets),
    (counter("received", "bytes", "Bytes received"), |r| r.rx_bytes),
    (counter("sent", "packets", "Packets sent"), |r| r.tx_packets),
    (counter("sent", "bytes", "Bytes sent"), |r| r.tx_bytes),
    (counter("receive_dropped", "packets", "Lost by the device for want of frames"), |r| {
        r.rx_dropped
    }),
    (counter("send_dropped", "packets", "Lost for want of frames or of room"), |r| r.tx_dropped),
    (counter("retransmitted", "packets", "Segments sent again"), |r| r.retransmissions),
    (counter("sleeps", "", "Sleeps on the ring"), |r| r.interrupts_requested),
    (counter("wakeups", "", "Wake-ups by the ring"), |r| r.interrupts_received),
    (counter("kicks", "", "System calls that tell the device, or bells that wake a peer"), |r| {
        r.kicks
    }),
    (counter("received", "messages", "Pieces of connections received within the host"), |r| {
        r.rx_messages
    }),
    (counter("sent", "messages", "Pieces of connections sent within the host"), |r| r.tx_messages),
    (gauge("drained_max", "packets", "Most packets taken at once"), |r| r.drained_max.into()),
    (gauge("queued", "packets", "Packets that wait to be taken"), |r| r.queued.into()),
    (gauge("receive_frames", "", "Frames that wait for packets"), |r| r.buffers.into()),
    (gauge("links", "", "Processes linked within the host"), |r| r.links.into()),
    (gauge("moderation", "packets", "Packets per interrupt"), |r| r.moderation_packets.into()),
    (gauge("device_memory_allocated", "bytes", "On-device memory"), |r| r.device_memory.into()),
    (counter("device_memory_sent", "bytes", "Bytes sent from on-device memory"), |r| {
        r.device_memory_bytes
    }),
    (counter("device_memory_sent", "packets", "Packets sent from on-device memory"), |r| {
        r.device_memory_packets
    }),
    (counter("device_memory_full", "packets", "Packets that found no on-device memory"), |r| {
        r.device_memory_full
    }),
];

const MULTIPLEXER: Table<Multiplexer> = &[
    (counter("poll_hits", "", "Calls that found something while they polled"), |m| m.poll_hits),
    (counter("poll_misses", "", "Calls that slept"), |m| m.poll_misses),
    (counter("timeouts", "", "Calls that ended by their timeout"), |m| m.timeouts),
    (counter("errors", "", "Calls that failed"), |m| m.errors),
    (counter("ready_offloaded", "", "Offloaded descriptors told ready"), |m| m.ready),
    (counter("ready_kernel", "", "Descriptors of the kernel told ready"), |m| m.ready_os),
];

const MODERATION_PERIOD: Metric = gauge("moderation_period", "seconds", "Time per interrupt");
const POLLING: Metric =
    gauge("polling_cpu", "ratio", "Share of time spent polling; 0 without VMA_CPU_USAGE_STATS");
const SOCKETS_OPEN: Metric = gauge("sockets", "", "Open sockets");
const SOCKETS_HIDDEN: Metric =
    gauge("sockets_hidden", "", "Open sockets without a place of their own (VMA_STATS_FD_NUM)");
const SERVED: Metric = gauge("served", "", "1: who carries the packets, and why the kernel does");
const DROPS: Metric = counter("drops", "packets", "Received and not delivered, by reason");
const POOL_FREE: Metric = gauge("free", "frames", "Frames that are free");
const POOL_EMPTY: Metric = counter("no_buffers", "", "How often no frame was free");

pub fn write(page: &mut Page, samples: &[Sample]) {
    let processes = || samples.iter().map(|sample| (Labels::of(sample), &sample.taken.snapshot));
    page.metric("process_", &SOCKETS_OPEN, processes().map(|(l, s)| (l, s.sockets_open)));
    page.metric("process_", &SOCKETS_HIDDEN, processes().map(|(l, s)| (l, s.sockets_hidden)));
    // More than the sum of its sockets if some of them are closed.
    page.metric("process_", &ZERO_COPY_PACKETS, processes().map(|(l, s)| (l, s.zero_copy_packets)));
    page.metric("process_", &ZERO_COPY_BYTES, processes().map(|(l, s)| (l, s.zero_copy_bytes)));
    let totals: Vec<_> = processes().map(|(labels, s)| (labels, s.totals)).collect();
    table(page, "process_", COUNTERS, &totals);
    sockets(page, samples);
    rings(page, samples);
    multiplexers(page, samples);
    let pools = || {
        samples.iter().flat_map(|sample| {
            let pools = sample.taken.snapshot.pools.iter().filter(|pool| pool.kind != 0);
            pools.map(|pool| (Labels::of(sample).with("kind", words::pool_kind(pool.kind)), pool))
        })
    };
    page.metric("pool_", &POOL_FREE, pools().map(|(labels, pool)| (labels, pool.free)));
    page.metric("pool_", &POOL_EMPTY, pools().map(|(labels, pool)| (labels, pool.no_buffers)));
    let drops = samples.iter().flat_map(|sample| {
        let drops = sample.taken.snapshot.drops.iter();
        drops.map(move |drop| (sample, read_text(&drop.reason), drop.count))
    });
    let drops = drops.filter(|(_, reason, _)| !reason.is_empty());
    page.metric("", &DROPS, drops.map(|(s, reason, n)| (Labels::of(s).with("reason", reason), n)));
}

fn sockets(page: &mut Page, samples: &[Sample]) {
    let mut all = Vec::new();
    for sample in samples {
        // What is closed can share its descriptor and addresses with what is open, and is in the
        // process's sums.
        for socket in sample.taken.sockets.iter().filter(|socket| !words::is_closed(socket)) {
            let labels = Labels::of(sample)
                .with("fd", &socket.descriptor.to_string())
                .with("protocol", words::protocol(socket))
                .with("local", &words::local(socket).unwrap_or_default())
                .with("peer", &words::peer(socket).unwrap_or_default());
            all.push((labels, *socket));
        }
    }
    let served = all.iter().map(|(labels, socket)| {
        let labels = labels.clone().with("by", words::served_by(socket));
        (labels.with("reason", read_text(&socket.reason)), 1)
    });
    page.metric("socket_", &SERVED, served);
    let counters: Vec<_> = all.iter().map(|(l, socket)| (l.clone(), socket.counters)).collect();
    table(page, "socket_", COUNTERS, &counters);
    table(page, "socket_", SOCKET, &all);
    all.retain(|(_, socket)| socket.tcp_state != 0);
    table(page, "socket_", CONNECTION, &all);
    all.retain(|(_, socket)| socket.tcp != Tcp::default());
    let connections: Vec<_> =
        all.into_iter().map(|(labels, socket)| (labels, socket.tcp)).collect();
    table(page, "socket_", CONNECTION_TIMES, &connections);
}

fn rings(page: &mut Page, samples: &[Sample]) {
    let mut all = Vec::new();
    for sample in samples {
        for (place, ring) in sample.taken.snapshot.rings.iter().enumerate() {
            if ring.kind != 0 {
                let labels = Labels::of(sample)
                    .with("ring", &place.to_string())
                    .with("kind", words::ring_kind(ring.kind))
                    .with("interface", read_text(&ring.name));
                all.push((labels, *ring));
            }
        }
    }
    table(page, "ring_", RING, &all);
    let periods = all.iter().map(|(l, ring)| (l.clone(), seconds(ring.moderation_period)));
    page.metric("ring_", &MODERATION_PERIOD, periods);
}

fn multiplexers(page: &mut Page, samples: &[Sample]) {
    let mut all = Vec::new();
    for sample in samples {
        let snapshot = &sample.taken.snapshot;
        let labels = |call, fd: &str| Labels::of(sample).with("call", call).with("fd", fd);
        all.push((labels("poll", ""), snapshot.poll));
        all.push((labels("select", ""), snapshot.select));
        for epoll in epolls(snapshot) {
            all.push((labels("epoll", &epoll.descriptor.to_string()), epoll.calls));
        }
    }
    table(page, "multiplexer_", MULTIPLEXER, &all);
    let shares = all.iter().map(|(l, calls)| (l.clone(), f64::from(calls.polling_cpu) / 100.0));
    page.metric("multiplexer_", &POLLING, shares);
}

fn table<T, V: std::fmt::Display>(
    page: &mut Page,
    prefix: &str,
    table: Table<T, V>,
    things: &[(Labels, T)],
) {
    for (metric, value) in table {
        page.metric(prefix, metric, things.iter().map(|(l, thing)| (l.clone(), value(thing))));
    }
}

fn seconds(microseconds: u32) -> f64 {
    f64::from(microseconds) / 1e6
}
