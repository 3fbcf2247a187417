//! Read back by a parser that takes nothing but what the specification allows of what we use.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use libvma_dev::stats::{
    CLOSED, Drop, OFFLOADED, POOL_RX, Pool, RING_XDP, Ring, Socket, Taken, Tcp, text as padded,
};

use super::*;

/// By name and labels as they stand there, unescaped.
type Values = BTreeMap<(String, BTreeMap<String, String>), f64>;

fn parse(page: &str) -> Values {
    let body = page.strip_suffix("# EOF\n").expect("ends with EOF");
    let mut values = Values::new();
    let mut families = HashSet::new();
    // Name, type, and what was told of it.
    let mut family: Option<(String, String, BTreeSet<String>)> = None;
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let [what, name, text] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            if what == "TYPE" {
                assert!(matches!(text, "counter" | "gauge"), "{line}");
                assert!(is_name(name) && families.insert(name.to_owned()), "{line}");
                family = Some((name.to_owned(), text.to_owned(), BTreeSet::new()));
            }
            let (current, _, told) = family.as_mut().expect(line);
            assert!(current == name && told.insert(what.to_owned()), "{line}");
            match what {
                "TYPE" => {}
                "UNIT" => assert!(name.ends_with(&format!("_{text}")), "{line}"),
                "HELP" => assert!(!text.is_empty(), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').expect(line);
        let (family, kind, told) = family.as_ref().expect(line);
        assert!(told.contains("TYPE") && told.contains("HELP"), "{line}");
        let suffix = if kind == "counter" { "_total" } else { "" };
        assert_eq!(name, format!("{family}{suffix}"), "values follow their metric");
        let (labels, value) = labels(rest);
        let value: f64 = value.strip_prefix(' ').expect(line).parse().expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(values.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
    }
    values
}

fn labels(mut rest: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect(rest);
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect("closed") {
                (at, '"') => break at,
                (_, '\\') => match characters.next().expect("escaped").1 {
                    'n' => value.push('\n'),
                    other @ ('\\' | '"') => value.push(other),
                    other => panic!("\\{other}"),
                },
                (_, other) => value.push(other),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        rest = &after[end + 1..];
        match rest.as_bytes()[0] {
            b',' => rest = &rest[1..],
            b'}' => return (labels, &rest[1..]),
            other => panic!("{other}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(fits)
}

fn process(process: u32, name: &str) -> Sample {
    let mut taken = Taken::default();
    taken.snapshot.sockets_open = 2;
    taken.snapshot.totals.rx_packets = u64::MAX;
    taken.snapshot.poll.poll_hits = 5;
    taken.snapshot.poll.polling_cpu = 50;
    taken.snapshot.epolls[7].used = 1;
    taken.snapshot.epolls[7].descriptor = 4;
    taken.snapshot.epolls[7].calls.timeouts = 6;
    let ring = Ring {
        kind: RING_XDP,
        name: padded("eth0"),
        tx_bytes: 8,
        moderation_period: 20,
        ..Ring::default()
    };
    (taken.snapshot.rings[0], taken.snapshot.rings[2]) = (ring, ring);
    taken.snapshot.pools[0] = Pool { kind: POOL_RX, free: 9, no_buffers: 1 };
    taken.snapshot.drops[0] = Drop { reason: padded("too_short"), count: 3 };
    let mut socket = Socket {
        used: 1,
        descriptor: 7,
        kind: 1,
        tcp_state: 1,
        flags: OFFLOADED,
        local: [10, 0, 0, 1],
        local_port: 80,
        tcp: Tcp { round_trip: 1_500, ..Tcp::default() },
        ..Socket::default()
    };
    socket.counters.tx_bytes = 77;
    let udp = Socket {
        descriptor: 8,
        kind: 2,
        tcp_state: 0,
        flags: 0,
        tcp: Tcp::default(),
        reason: padded("no route"),
        ..socket
    };
    taken.sockets.extend([socket, udp]);
    Sample { process, name: name.to_owned(), taken, before: None }
}

fn value(values: &Values, name: &str, labels: &[(&str, &str)]) -> f64 {
    let found: Vec<f64> = values
        .iter()
        .filter(|((n, all), _)| {
            n == name && labels.iter().all(|(k, v)| all.get(*k).map(String::as_str) == Some(*v))
        })
        .map(|(_, value)| *value)
        .collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0]
}

// covers: STAT-25
#[test]
fn everything_of_two_processes_is_read_back() {
    let odd = "a \"b\" \\n\nc";
    let page = text(&[process(1, odd), process(2, "plain")]);
    let values = parse(&page);
    let get = |name: &str, labels: &[(&str, &str)]| value(&values, name, labels);
    assert_eq!(get("vma_process_sockets", &[("name", odd), ("pid", "1")]), 2.0);
    assert_eq!(get("vma_process_received_packets_total", &[("pid", "2")]), u64::MAX as f64);
    let socket =
        [("pid", "1"), ("fd", "7"), ("protocol", "TCP"), ("local", "10.0.0.1:80"), ("peer", "")];
    assert_eq!(get("vma_socket_sent_bytes_total", &socket), 77.0);
    assert_eq!(get("vma_socket_round_trip_seconds", &[("pid", "1")]), 0.0015);
    assert_eq!(
        get(
            "vma_socket_served",
            &[("pid", "2"), ("fd", "8"), ("by", "kernel"), ("reason", "no route")]
        ),
        1.0
    );
    assert_eq!(
        get(
            "vma_ring_sent_bytes_total",
            &[("pid", "1"), ("ring", "2"), ("kind", "xdp"), ("interface", "eth0")]
        ),
        8.0
    );
    assert_eq!(get("vma_ring_moderation_period_seconds", &[("pid", "1"), ("ring", "0")]), 0.00002);
    assert_eq!(get("vma_pool_free_frames", &[("pid", "2"), ("kind", "rx")]), 9.0);
    assert_eq!(get("vma_drops_packets_total", &[("pid", "2"), ("reason", "too_short")]), 3.0);
    assert_eq!(get("vma_multiplexer_poll_hits_total", &[("pid", "1"), ("call", "poll")]), 5.0);
    assert_eq!(get("vma_multiplexer_polling_cpu_ratio", &[("pid", "1"), ("call", "poll")]), 0.5);
    assert_eq!(
        get("vma_multiplexer_timeouts_total", &[("pid", "1"), ("call", "epoll"), ("fd", "4")]),
        6.0
    );
    assert!(!page.contains("vma_socket_tcp_state{pid=\"1\",name=\"plain\",fd=\"8\""));
}

#[test]
fn no_process_is_an_empty_page() {
    assert_eq!(text(&[]), "# EOF\n");
}

#[test]
fn what_would_stand_there_twice_stands_there_once() {
    let mut sample = process(1, "p");
    let socket = sample.taken.sockets[0];
    // Closed, of the descriptor that is open again; and one that cannot be told apart.
    let closed = Socket { flags: OFFLOADED | CLOSED, peer_port: 9, ..socket };
    sample.taken.sockets.extend([closed, socket]);
    let page = text(&[sample]);
    parse(&page);
    assert_eq!(page.matches("vma_socket_sent_bytes_total{").count(), 2);
}
