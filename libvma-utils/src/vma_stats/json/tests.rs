use libvma_dev::stats::{Drop, Epoll, OFFLOADED, POOL_RX, RING_SHM, Taken, WITHIN_HOST, text};

use super::*;

fn process() -> Sample {
    let mut taken = Taken::default();
    taken.snapshot.taken = 3_000_000_000;
    taken.snapshot.totals.rx_packets = 12;
    (taken.snapshot.zero_copy_packets, taken.snapshot.zero_copy_bytes) = (3, 400);
    taken.snapshot.epolls[3].used = 1;
    taken.snapshot.epolls[3].descriptor = 9;
    taken.snapshot.epolls[3].calls.poll_hits = 70;
    taken.snapshot.rings[1] =
        Ring { kind: RING_SHM, name: text("lo"), rx_packets: 40, buffers: 8, ..Ring::default() };
    taken.snapshot.pools[0] = Pool { kind: POOL_RX, free: 100, no_buffers: 2 };
    taken.snapshot.drops[5] = Drop { reason: text("too_short"), count: 6 };
    taken.sockets.push(Socket {
        used: 1,
        descriptor: 7,
        inode: 99,
        kind: 1,
        tcp_state: 1,
        flags: OFFLOADED | WITHIN_HOST | BLOCKING,
        local: [10, 0, 0, 1],
        local_port: 5001,
        zero_copy_packets: 2,
        zero_copy_bytes: 300,
        group_count: 1,
        groups: [std::net::Ipv4Addr::new(224, 1, 1, 1).to_ipv6_mapped().octets();
            libvma_dev::stats::GROUPS],
        counters: Counters { tx_packets: 50, rx_ready_bytes_max: 11, ..Counters::default() },
        tcp: Tcp { round_trip: 35, ..Tcp::default() },
        ..Socket::default()
    });
    Sample { process: 42, name: "a \"b\"\n".to_owned(), taken, before: None }
}

fn parsed(sample: &Sample) -> Value {
    let line = document(sample);
    assert!(!line.contains('\n'), "one line: {line}");
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_snapshot_is_told_by_name_and_unit() {
    let told = parsed(&process());
    assert_eq!((&told["schema"], &told["process"]), (&json!(1), &json!(42)));
    assert_eq!(told["name"], "a \"b\"\n");
    assert_eq!(told["totals"]["rx_packets"], 12);
    let socket = &told["sockets"][0];
    assert_eq!(
        [&socket["protocol"], &socket["state"], &socket["local"], &socket["served_by"]],
        ["TCP", "ESTABLISHED", "10.0.0.1:5001", "host"]
    );
    assert!(socket["peer"].is_null() && socket["kernel_reason"].is_null());
    assert!(socket["rx_thread"].is_null());
    assert_eq!(socket["blocking"], true);
    assert_eq!(socket["multicast_groups"], json!(["224.1.1.1"]));
    assert_eq!(socket["tcp"]["round_trip_microseconds"], 35);
    assert_eq!(socket["counters"]["tx_packets"], 50);
    assert_eq!([&socket["zero_copy_packets"], &socket["zero_copy_bytes"]], [2, 300]);
    assert_eq!([&told["zero_copy_packets"], &told["zero_copy_bytes"]], [3, 400]);
    assert_eq!(told["epolls"], json!([told["epolls"][0]]), "only places in use");
    assert_eq!(
        (&told["epolls"][0]["descriptor"], &told["epolls"][0]["poll_hits"]),
        (&json!(9), &json!(70))
    );
    assert_eq!(told["rings"].as_array().unwrap().len(), 1);
    assert_eq!(
        (
            &told["rings"][0]["kind"],
            &told["rings"][0]["interface"],
            &told["rings"][0]["receive_frames"]
        ),
        (&json!("shm"), &json!("lo"), &json!(8))
    );
    assert_eq!(told["pools"], json!([{"kind": "rx", "free_frames": 100, "no_buffers": 2}]));
    assert_eq!(told["drops"], json!({"too_short": 6}));
    assert!(told.get("delta").is_none(), "the first has none");
}

#[test]
fn a_connection_of_the_kernel_has_no_tcp_block() {
    let mut sample = process();
    sample.taken.sockets[0].tcp = Tcp::default();
    sample.taken.sockets[0].flags = 0;
    sample.taken.sockets[0].reason = text("the rules say so");
    let told = parsed(&sample);
    assert!(told["sockets"][0].get("tcp").is_none());
    assert_eq!(told["sockets"][0]["served_by"], "kernel");
    assert_eq!(told["sockets"][0]["kernel_reason"], "the rules say so");
}

#[test]
fn differences_are_of_the_same_things() {
    let mut sample = process();
    let mut before = sample.taken.clone();
    before.snapshot.taken = 1_000_000_000;
    before.snapshot.totals.rx_packets = 2;
    before.snapshot.rings[1].rx_packets = 30;
    before.snapshot.drops[5].count = 1;
    before.sockets[0].counters.tx_packets = 20;
    // In another place.
    before.snapshot.epolls[0] = before.snapshot.epolls[3];
    before.snapshot.epolls[0].calls.poll_hits = 60;
    before.snapshot.epolls[3] = Epoll::default();
    // The same descriptor, but another socket than before.
    sample.taken.sockets.push(Socket { inode: 100, ..sample.taken.sockets[0] });
    sample.before = Some(before);
    let delta = &parsed(&sample)["delta"];
    assert_eq!(delta["nanoseconds"], 2_000_000_000u64);
    assert_eq!(delta["totals"]["rx_packets"], 10);
    let sent = |n: usize| &delta["sockets"][n]["counters"]["tx_packets"];
    assert_eq!((sent(0), sent(1)), (&json!(30), &json!(50)));
    assert_eq!(delta["sockets"][0]["counters"]["rx_ready_bytes_max"], 11, "maxima as they are");
    assert_eq!(delta["epolls"][0]["poll_hits"], 10);
    assert_eq!(delta["rings"][0]["rx_packets"], 10);
    assert_eq!(delta["drops"], json!({"too_short": 5}));
}

#[test]
fn a_ring_that_took_anothers_place_came_whole() {
    let mut sample = process();
    let mut before = sample.taken.clone();
    before.snapshot.rings[1].name = text("eth0");
    sample.before = Some(before);
    assert_eq!(parsed(&sample)["delta"]["rings"][0]["rx_packets"], 40);
}
