//! A snapshot as one line of JSON, as docs/monitoring.md describes it. Names and units are fixed here;
//! nothing here knows how or when snapshots are taken.

use libvma_dev::stats::{
    BLOCKING, Counters, MULTICAST_LOOP, Multiplexer, Pool, Ring, Snapshot, Socket, Tcp, read_text,
};
use serde_json::{Map, Value, json};

use crate::delta::{Delta, epolls, rings};
use crate::sample::Sample;
use crate::words;

/// Raised when a name goes or changes its meaning; new names come without.
const SCHEMA: u32 = 1;

/// Fields under their own names, or under another: `field as "name"`. All fields of the type are
/// written down, so that a new one stops the build until it is told or passed over (`field as _`).
macro_rules! object {
    ($value:expr => $type:ident { $($field:ident $(as $name:tt)?),* $(,)? }) => {{
        let $type { $($field),* } = $value;
        let mut map = Map::new();
        $(object!(@insert map $field $($name)?);)*
        map
    }};
    (@insert $map:ident $field:ident) => {
        $map.insert(stringify!($field).to_owned(), json!($field));
    };
    (@insert $map:ident $field:ident _) => { let _ = $field; };
    (@insert $map:ident $field:ident $name:literal) => {
        $map.insert($name.to_owned(), json!($field));
    };
}

/// Without the end of the line.
pub fn document(sample: &Sample) -> String {
    let snapshot = &sample.taken.snapshot;
    let drops = snapshot.drops.iter().map(|drop| drop.count);
    let mut document = json!({
        "schema": SCHEMA,
        "process": sample.process,
        "name": sample.name,
        "taken_nanoseconds": snapshot.taken,
        "sockets_open": snapshot.sockets_open,
        "sockets_hidden": snapshot.sockets_hidden,
        "zero_copy_packets": snapshot.zero_copy_packets,
        "zero_copy_bytes": snapshot.zero_copy_bytes,
        "totals": counters(&snapshot.totals),
        "sockets": sample.taken.sockets.iter().map(socket).collect::<Vec<_>>(),
        "poll": multiplexer(&snapshot.poll),
        "select": multiplexer(&snapshot.select),
        "epolls": epolls(snapshot)
            .map(|epoll| with_descriptor(epoll.descriptor, multiplexer(&epoll.calls)))
            .collect::<Vec<_>>(),
        "rings": rings(snapshot).map(ring).collect::<Vec<_>>(),
        "pools": snapshot.pools.iter().filter(|pool| pool.kind != 0).map(pool).collect::<Vec<_>>(),
        "drops": by_reason(snapshot, drops),
    });
    if let Some(delta) = Delta::of(sample) {
        document["delta"] = differences(sample, &delta);
    }
    document.to_string()
}

fn differences(sample: &Sample, delta: &Delta) -> Value {
    let sockets = sample.taken.sockets.iter().zip(&delta.sockets).map(|(socket, delta)| {
        let mut map = with_descriptor(socket.descriptor, Map::new());
        map.insert("inode".to_owned(), json!(socket.inode));
        map.insert("counters".to_owned(), json!(counters(&delta.counters)));
        map.insert("tcp_timeouts".to_owned(), json!(delta.timeouts));
        map.insert("tcp_out_of_order_segments".to_owned(), json!(delta.out_of_order));
        map
    });
    json!({
        "nanoseconds": delta.nanoseconds,
        "totals": counters(&delta.totals),
        "sockets": sockets.collect::<Vec<_>>(),
        "poll": multiplexer(&delta.poll),
        "select": multiplexer(&delta.select),
        "epolls": delta.epolls.iter()
            .map(|epoll| with_descriptor(epoll.descriptor, multiplexer(&epoll.calls)))
            .collect::<Vec<_>>(),
        "rings": delta.rings.iter().map(ring).collect::<Vec<_>>(),
        "drops": by_reason(&sample.taken.snapshot, delta.drops.iter().copied()),
    })
}

fn socket(socket: &Socket) -> Value {
    let ip = |address: [u8; 4]| std::net::Ipv4Addr::from(address).to_string();
    let known = |thread: u32| (thread != 0).then_some(thread);
    let reason = read_text(&socket.reason);
    let mut object = json!({
        "descriptor": socket.descriptor,
        "inode": socket.inode,
        "protocol": words::protocol(socket),
        "state": words::tcp_state(socket),
        "local": words::local(socket),
        "peer": words::peer(socket),
        "served_by": words::served_by(socket),
        "kernel_reason": (!reason.is_empty()).then_some(reason),
        "closed": words::is_closed(socket),
        "blocking": socket.flags & BLOCKING != 0,
        "rx_thread": known(socket.rx_thread),
        "tx_thread": known(socket.tx_thread),
        "multicast_loop": socket.flags & MULTICAST_LOOP != 0,
        "multicast_interface":
            (socket.multicast_interface != [0; 4]).then(|| ip(socket.multicast_interface)),
        "multicast_groups": socket.memberships().map(|group| group.to_string()).collect::<Vec<_>>(),
        "ready_packets": socket.ready_packets,
        "ready_bytes": socket.ready_bytes,
        "ready_limit_bytes": socket.ready_limit,
        "zero_copy_packets": socket.zero_copy_packets,
        "zero_copy_bytes": socket.zero_copy_bytes,
        "unsent_bytes": socket.unsent_bytes,
        "counters": counters(&socket.counters),
    });
    if socket.tcp != Tcp::default() {
        object["tcp"] = json!(tcp(&socket.tcp));
    }
    object
}

fn counters(counters: &Counters) -> Map<String, Value> {
    object!(counters => Counters {
        rx_packets,
        rx_bytes,
        rx_eagain,
        rx_errors,
        rx_poll_hits,
        rx_poll_misses,
        rx_ready_packets_max,
        rx_ready_bytes_max,
        rx_dropped_packets,
        rx_dropped_bytes,
        rx_os_packets,
        rx_os_bytes,
        rx_os_poll_hits,
        rx_os_errors,
        rx_os_eagain,
        rx_ring_migrations,
        tx_packets,
        tx_bytes,
        tx_errors,
        tx_eagain,
        tx_dropped as "tx_dropped_packets",
        tx_retransmissions as "tx_retransmitted_packets",
        tx_os_packets,
        tx_os_bytes,
        tx_os_errors,
        tx_os_eagain,
        tx_ring_migrations,
        tx_dummy_packets,
    })
}

fn tcp(tcp: &Tcp) -> Map<String, Value> {
    object!(tcp => Tcp {
        round_trip as "round_trip_microseconds",
        round_trip_variance as "round_trip_variance_microseconds",
        retransmission_timeout as "retransmission_timeout_microseconds",
        congestion_window as "congestion_window_bytes",
        slow_start_threshold as "slow_start_threshold_bytes",
        segment_size as "segment_size_bytes",
        send_window as "send_window_bytes",
        receive_window as "receive_window_bytes",
        timeouts,
        out_of_order as "out_of_order_segments",
    })
}

fn multiplexer(calls: &Multiplexer) -> Map<String, Value> {
    let mut object = object!(calls => Multiplexer {
        poll_hits,
        poll_misses,
        timeouts,
        errors,
        ready as "ready_offloaded",
        ready_os,
        thread as _,
        polling_cpu as "polling_cpu_percent",
    });
    object.insert("thread".to_owned(), json!((calls.thread != 0).then_some(calls.thread)));
    object
}

fn ring(ring: &Ring) -> Value {
    let mut object = Map::new();
    object.insert("kind".to_owned(), json!(words::ring_kind(ring.kind)));
    object.insert("interface".to_owned(), json!(read_text(&ring.name)));
    object.append(&mut object!(ring => Ring {
        kind as _,
        interface as "interface_index",
        name as _,
        rx_packets,
        rx_bytes,
        tx_packets,
        tx_bytes,
        rx_dropped as "rx_dropped_packets",
        tx_dropped as "tx_dropped_packets",
        retransmissions as "retransmitted_packets",
        interrupts_requested,
        interrupts_received,
        kicks,
        rx_messages,
        tx_messages,
        drained_max as "drained_max_packets",
        queued as "queued_packets",
        buffers as "receive_frames",
        links,
        moderation_packets,
        moderation_period as "moderation_period_microseconds",
        device_memory as "device_memory_allocated_bytes",
        reserved as _,
        device_memory_bytes,
        device_memory_packets,
        device_memory_full as "device_memory_full_packets",
    }));
    Value::Object(object)
}

fn pool(pool: &Pool) -> Value {
    json!({
        "kind": words::pool_kind(pool.kind),
        "free_frames": pool.free,
        "no_buffers": pool.no_buffers,
    })
}

fn by_reason(snapshot: &Snapshot, counts: impl Iterator<Item = u64>) -> Map<String, Value> {
    let reasons = snapshot.drops.iter().map(|drop| read_text(&drop.reason));
    let named = reasons.zip(counts).filter(|(reason, _)| !reason.is_empty());
    named.map(|(reason, count)| (reason.to_owned(), json!(count))).collect()
}

fn with_descriptor(descriptor: i32, rest: Map<String, Value>) -> Map<String, Value> {
    let mut map = Map::from_iter([("descriptor".to_owned(), json!(descriptor))]);
    map.extend(rest);
    map
}

#[cfg(test)]
mod tests;
