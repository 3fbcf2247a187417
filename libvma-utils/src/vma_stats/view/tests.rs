use libvma_dev::stats::{
    BLOCKING, CLOSED, Counters, Drop, Epoll, MULTICAST_LOOP, OFFLOADED, POOL_RX, POOL_TX, Pool,
    RING_SHM, RING_TAP, RING_XDP, Ring, Tcp, WITHIN_HOST, text,
};

use super::*;

fn counters() -> Counters {
    Counters {
        rx_packets: 140_479_898,
        rx_bytes: 274_374 * 1024 + 1023,
        rx_eagain: 7,
        rx_errors: 1,
        rx_poll_hits: 2,
        rx_poll_misses: 1,
        rx_ready_packets_max: 16,
        rx_ready_bytes_max: 23_520,
        rx_dropped_packets: 3,
        rx_dropped_bytes: 4410,
        rx_os_packets: 12,
        rx_os_bytes: 2048,
        rx_os_eagain: 3,
        rx_os_errors: 4,
        tx_packets: 5,
        tx_bytes: 1024,
        tx_eagain: 6,
        tx_errors: 8,
        tx_os_packets: 9,
        tx_os_bytes: 10_240,
        tx_os_eagain: 11,
        tx_os_errors: 13,
        ..Counters::default()
    }
}

fn datagram(descriptor: i32) -> Socket {
    Socket {
        used: 1,
        descriptor,
        inode: 33_679_757,
        kind: 2,
        flags: OFFLOADED | BLOCKING | MULTICAST_LOOP,
        local_port: 11_111,
        ready_packets: 1,
        ready_bytes: 1470,
        ready_limit: 16_777_216,
        counters: counters(),
        ..Socket::default()
    }
}

fn calls() -> Multiplexer {
    Multiplexer {
        poll_hits: 3,
        poll_misses: 1,
        timeouts: 2,
        errors: 1,
        ready: 30_372,
        ready_os: 15_185,
        thread: 42,
        polling_cpu: 70,
    }
}

fn of(sockets: Vec<Socket>) -> Taken {
    Taken { sockets, ..Taken::default() }
}

fn shown<'a>(taken: &'a Taken, details: Details, selection: &'a Selection) -> Shown<'a> {
    Shown { taken, details, selection }
}

fn table(width: Width, details: Details, taken: &Taken) -> String {
    let mut table = Table::new(width, details);
    let headers = table.headers();
    headers + &table.report(&shown(taken, details, &Selection::default()))
}

fn full_of(taken: &Taken, details: Details) -> String {
    full(&shown(taken, details, &Selection::default()))
}

const DASHES: &str =
    "-------------------------------------------------------------------------------\n";
const DOUBLE: &str = "======================================================\n";

// covers: STAT-30
#[test]
fn view_1_in_totals() {
    let expected = [
        " fd      ------------ total offloaded -------------   --------- total os ----------\n",
        "                pkt   Kbyte   eagain   error  poll%     pkt   Kbyte  eagain   error\n",
        " 14  Rx:  140479898  274374        7       1   66.7      12       2       3       4\n",
        "     Tx:          5       1        6       8              9      10      11      13\n",
        DASHES,
    ];
    assert_eq!(table(Width::Basic, Details::Totals, &of(vec![datagram(14)])), expected.concat());
}

// covers: STAT-13, STAT-27, STAT-28, STAT-29, STAT-42
#[test]
fn view_1_in_deltas_ends_with_the_multiplexers() {
    let mut taken = of(vec![datagram(1015)]);
    taken.snapshot.select = calls();
    taken.snapshot.epolls[3] = Epoll { used: 1, descriptor: 9, calls: calls() };
    taken.snapshot.epolls[4] = Epoll { used: 1, descriptor: 10, ..Epoll::default() };
    taken.snapshot.epolls[5] = Epoll { used: 0, descriptor: 11, calls: calls() };
    let expected = [
        " fd      --------------- offloaded ----------------         ---------- os ---------\n",
        "              pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s eagain/s error/s\n",
        " 1015 Rx:  140479898  274374        7       1   66.7      12       2       3       4\n",
        "     Tx:          5       1        6       8              9      10      11      13\n",
        "select  /s Rx Ready:15185/30372 [os/offload] Timeouts:2     Errors:1    Poll:75.00%   \
         Polling CPU:70%\n",
        "epoll[9]/s Rx Ready:15185/30372 [os/offload] Timeouts:2     Errors:1    Poll:75.00%   \
         Polling CPU:70%\n",
        DASHES,
    ];
    assert_eq!(table(Width::Basic, Details::Deltas, &taken), expected.concat());
}

// covers: STAT-09
#[test]
fn view_2_has_the_queue_between() {
    let expected = [
        " fd      ----------------------- total offloaded -------------------------   \
         --------- total os ----------\n",
        "                pkt   Kbyte   eagain   error  poll%   ---- queue pkt -----     pkt   \
         Kbyte  eagain   error\n",
        "                                                       cur     max    drop \n",
        " 14  Rx:  140479898  274374        7       1   66.7      1      16       3      12       \
         2       3       4\n",
        "     Tx:          5       1        6       8                                     9      \
         10      11      13\n",
        DASHES,
    ];
    assert_eq!(table(Width::Extra, Details::Totals, &of(vec![datagram(14)])), expected.concat());
    let deltas = table(Width::Extra, Details::Deltas, &Taken::default());
    let expected = [
        " fd      ---------------------------- offloaded --------------------------         \
         ---------- os ---------\n",
        "              pkt/s Kbyte/s eagain/s error/s  poll% ----- queue pkt ------   pkt/s \
         Kbyte/s eagain/s error/s\n",
        "                                                       cur     max  drop/s \n",
    ];
    assert_eq!(deltas, expected.concat());
}

#[test]
fn no_socket_is_no_row_and_no_line_between() {
    let empty = Taken::default();
    let mut table = Table::new(Width::Basic, Details::Totals);
    assert_eq!(table.report(&shown(&empty, Details::Totals, &Selection::default())), "");
    assert_eq!(full_of(&empty, Details::Totals), DOUBLE.repeat(3));
}

#[test]
fn headers_come_again_after_24_lines() {
    let taken = of((0..4).map(datagram).collect());
    let mut table = Table::new(Width::Basic, Details::Totals);
    let selection = Selection::default();
    let mut lines = Vec::new();
    for _ in 0..5 {
        let report = table.report(&shown(&taken, Details::Totals, &selection));
        lines.push(report.lines().count());
    }
    // 2 and 9 and 9 are less than 24, with 9 more they are not.
    assert_eq!(lines, [9, 9, 9, 11, 9]);
}

// covers: STAT-18
#[test]
fn only_chosen_sockets_are_shown_and_all_multiplexers() {
    let mut taken = of(vec![datagram(3), datagram(4), datagram(19)]);
    taken.snapshot.poll = calls();
    let mut selection = Selection::default();
    selection.add("4-16").unwrap();
    let of_view = |text: String| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().next().unwrap_or("").to_owned()).collect()
    };
    let mut table = Table::new(Width::Basic, Details::Totals);
    let lines = of_view(table.report(&shown(&taken, Details::Totals, &selection)));
    assert_eq!(lines[..3], ["4", "Tx:", "poll"]);
    let text = full(&shown(&taken, Details::Totals, &selection));
    assert!(text.contains("\tFd=[4]\n") && text.contains("\tpoll\n"), "{text}");
    assert!(!text.contains("Fd=[3]") && !text.contains("Fd=[19]"), "{text}");
}

// covers: STAT-31
#[test]
fn view_3_tells_all_of_a_datagram_socket() {
    let mut socket = Socket {
        local: [0; 4],
        multicast_interface: [10, 0, 0, 7],
        group_count: 1,
        rx_thread: 4711,
        zero_copy_packets: 2,
        zero_copy_bytes: 300,
        ..datagram(14)
    };
    socket.groups[0] = mapped([224, 7, 7, 7]);
    socket.counters.tx_dummy_packets = 4;
    socket.counters.rx_ring_migrations = 5;
    socket.counters.tx_dropped = 6;
    let expected = [
        DOUBLE,
        "\tFd=[14]\n",
        "- UDP, Blocked, MC Loop Enabled , MC IF = [10.0.0.7]\n",
        "- Local Address   = [0.0.0.0:11111]\n",
        "- Member of = [224.7.7.7]\n",
        "- Thread Id Rx:  4711, Tx:     0\n",
        "Tx Offload: 1 / 5 / 6 / 8 [kilobytes/packets/eagains/errors]/s\n",
        "Tx OS info: 10 / 9 / 11 / 13 [kilobytes/packets/eagains/errors]/s\n",
        "Tx Dummy messages : 4\n",
        "Rx Offload: 274374 / 140479898 / 7 / 1 [kilobytes/packets/eagains/errors]/s\n",
        "Rx OS info: 2 / 12 / 3 / 4 [kilobytes/packets/eagains/errors]/s\n",
        "Rx byte: cur 1470 / max 23520 / dropped/s 4410 / limit 16777216\n",
        "Rx pkt : cur 1 / max 16 / dropped/s 3\n",
        "Rx zero copy buffers: cur 2\n",
        "Rx poll: 1 / 2 (66.67%) [miss/hit]\n",
        "Ring migrations Rx: 5, Tx: 0\n",
        "Rx zero copy bytes: cur 300\n",
        "Tx dropped: 6\n",
        &DOUBLE.repeat(3),
        "\tZERO COPY\nPackets held:        3\nBytes held:          400\n",
        DOUBLE,
        DASHES,
    ];
    let mut taken = of(vec![socket]);
    // One is of a socket that is closed.
    (taken.snapshot.zero_copy_packets, taken.snapshot.zero_copy_bytes) = (3, 400);
    assert_eq!(full_of(&taken, Details::Deltas), expected.concat());
}

#[test]
fn view_3_tells_of_a_connection_how_it_is() {
    let tcp = Tcp {
        round_trip: 52,
        round_trip_variance: 9,
        retransmission_timeout: 204_000,
        congestion_window: 14_480,
        slow_start_threshold: 65_535,
        segment_size: 1448,
        send_window: 29_200,
        receive_window: 30_000,
        timeouts: 1,
        out_of_order: 2,
    };
    let mut socket = Socket {
        used: 1,
        descriptor: 17,
        kind: 1,
        tcp_state: 1,
        flags: OFFLOADED | WITHIN_HOST | CLOSED,
        local: [22, 0, 0, 4],
        local_port: 58_795,
        peer: [22, 0, 0, 3],
        peer_port: 6666,
        tcp,
        ..Socket::default()
    };
    socket.counters.tx_retransmissions = 3;
    let kernel = Socket { descriptor: 18, tcp: Tcp::default(), tcp_state: 10, ..socket };
    let kernel = Socket { flags: 0, reason: text("no route"), ..kernel };
    let expected = [
        DOUBLE,
        "\tFd=[17]\n",
        "- TCP, Non-blocked\n",
        "- Local Address   = [22.0.0.4:58795]\n",
        "- Foreign Address = [22.0.0.3:6666]\n",
        "Retransmissions: 3\n",
        "Rx and Tx where not active\n",
        "TCP: ESTABLISHED / 52 / 14480 / 65535 [state/rtt usec/cwnd bytes/ssthresh bytes]\n",
        "TCP windows: 29200 / 30000 / 1448 [send/receive/segment bytes]\n",
        "TCP recovery: 9 / 204000 / 1 / 2 [rttvar usec/rto usec/timeouts/out of order]\n",
        "- Peer is a process of this host, reached by shared memory\n",
        "- Closed by the program, its connection is being finished\n",
    ];
    let text = full_of(&of(vec![socket, kernel]), Details::Totals);
    assert!(text.starts_with(&expected.concat()), "{text}");
    assert!(text.contains("\nTCP: LISTEN [state]\n- Why not offloaded: no route\n"), "{text}");
}

// covers: STAT-29, STAT-31, STAT-36
#[test]
fn view_3_tells_of_multiplexers_queues_rings_and_pools() {
    let mut taken = Taken::default();
    let snapshot = &mut taken.snapshot;
    snapshot.poll = Multiplexer { poll_hits: 0, poll_misses: 0, ..calls() };
    snapshot.epolls[0] = Epoll { used: 1, descriptor: 9, calls: calls() };
    snapshot.rings[0] = Ring {
        kind: RING_XDP,
        name: text("eth0"),
        rx_packets: 786_133,
        rx_bytes: 1_192_953 * 1024,
        tx_packets: 2,
        tx_bytes: 100,
        rx_dropped: 6,
        retransmissions: 8,
        interrupts_requested: 786_137,
        interrupts_received: 78_613,
        moderation_packets: 10,
        moderation_period: 181,
        device_memory: 4096,
        device_memory_bytes: 2048,
        device_memory_packets: 3,
        device_memory_full: 1,
        drained_max: 511,
        queued: 4,
        buffers: 500,
        kicks: 12,
        ..Ring::default()
    };
    snapshot.rings[2] = Ring { kind: RING_TAP, name: text("t0"), buffers: 32, ..Ring::default() };
    snapshot.rings[3] = Ring {
        kind: RING_SHM,
        links: 2,
        tx_messages: 5,
        rx_messages: 6,
        tx_dropped: 7,
        ..Ring::default()
    };
    snapshot.pools[0] = Pool { kind: POOL_RX, free: 168_000, no_buffers: 1 };
    snapshot.pools[1] = Pool { kind: POOL_TX, free: 199_488, no_buffers: 0 };
    snapshot.drops[1] = Drop { reason: text("no socket"), count: 5 };
    let queue = |number: u32, lines: [&str; 4]| {
        let [dropped, queued, drained, buffers] = lines;
        format!(
            "{DOUBLE}\tCQ=[{number}]\nPackets dropped:     {dropped}\nPackets queue len:   \
             {queued}\nDrained max:         {drained}\nBuffer pool size:    {buffers}\n"
        )
    };
    let expected = [
        DOUBLE,
        "\tpoll\nPolling CPU:70%\n- Thread Id:    42\nRx fds ready: 15185 / 30372 [os/offload]\n",
        DOUBLE,
        "\tepoll[9]\nPolling CPU:70%\n- Thread Id:    42\n",
        "Rx fds ready: 15185 / 30372 [os/offload]\nPolls [miss/hit]: 1 / 3 (75.00%)\n",
        "Timeouts: 2\nErrors: 1\n",
        DOUBLE,
        &queue(0, ["6    ", "4", "511", "500"]),
        &queue(2, ["0    ", "0", "0", "32"]),
        &queue(3, ["0    ", "0", "0", "0"]),
        DOUBLE,
        DOUBLE,
        "\tRING_ETH=[0]\n",
        "Tx Offload:          0 / 2 [kilobytes/packets]    \n",
        "Rx Offload:          1192953 / 786133 [kilobytes/packets]    \n",
        "Retransmissions:     8    \n",
        "Interrupts:          786137 / 78613 [requests/received]    \n",
        "Moderation:          10 / 181 [frames/usec period]    \n",
        "Dev Mem Alloc:       4096\n",
        "Dev Mem Stats:       2 / 3 / 1 [kilobytes/packets/oob]    \n",
        "Interface:           eth0\nDevice:              AF_XDP\n",
        "Dropped:             6 / 0 [received/sent]    \n",
        "Wake-ups sent:       12    \n",
        DOUBLE,
        "\tRING_TAP=[2]\n",
        "Tx Offload:          0 / 0 [kilobytes/packets]    \n",
        "Rx Offload:          0 / 0 [kilobytes/packets]    \n",
        "Rx Buffers:          32\nTap Device:          t0\n",
        "Interface:           t0\nDevice:              TAP\n",
        DOUBLE,
        "\tRING_ETH=[3]\n",
        "Tx Offload:          0 / 0 [kilobytes/packets]    \n",
        "Rx Offload:          0 / 0 [kilobytes/packets]    \n",
        "Interface:           -\nDevice:              shared memory\nLinks:               2\n",
        "Messages:            5 / 6 [sent/received]    \n",
        "Dropped:             0 / 7 [received/sent]    \n",
        DOUBLE,
        DOUBLE,
        "\tBUFFER_POOL(RX)=[0]\nSize:                168000\nNo buffers error:    1\n",
        DOUBLE,
        "\tBUFFER_POOL(TX)=[1]\nSize:                199488\nNo buffers error:    0\n",
        DOUBLE,
        "\tDROPPED\n           5 no socket\n",
        DOUBLE,
    ];
    assert_eq!(full_of(&taken, Details::Totals), expected.concat());
    let deltas = full_of(&taken, Details::Deltas);
    for line in [
        "Polling CPU/s:70%\n",
        "Rx fds ready: 15185 / 30372 [os/offload]/s\n",
        "Polls [miss/hit]/s: 1 / 3 (75.00%)\n",
        "Timeouts/s: 2\nErrors/s: 1\n",
        "Packets dropped:     6 /s \n",
        "Rx Offload:          1192953 / 786133 [kilobytes/packets] /s \n",
    ] {
        assert!(deltas.contains(line), "{line}{deltas}");
    }
}

fn mapped(group: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(group).to_ipv6_mapped().octets()
}

// covers: STAT-11, STAT-32
#[test]
fn view_4_lists_groups_with_their_sockets() {
    let mut one = datagram(15);
    (one.group_count, one.groups[0]) = (1, mapped([224, 4, 1, 3]));
    let mut other = datagram(19);
    other.group_count = 3;
    (other.groups[0], other.groups[1]) = (mapped([224, 4, 1, 2]), mapped([224, 4, 1, 3]));
    other.groups[2] = "ff3e:40:2001:db8::1:3".parse::<std::net::Ipv6Addr>().unwrap().octets();
    // More than there are places.
    let mut broken = datagram(20);
    (broken.group_count, broken.groups) = (u32::MAX, [mapped([224, 4, 1, 2]); 20]);
    let text =
        |sockets, selection: &Selection| groups(&shown(&of(sockets), Details::Totals, selection));
    let all = Selection::default();
    let expected = [
        "\nVMA Group Memberships Information\n",
        "Group                fd number\n",
        "------------------------------\n",
        "[224.4.1.3]           15 19 \n",
        "[224.4.1.2]           19 \n",
        "[ff3e:40:2001:db8::1:3] 19 \n",
        DASHES,
    ];
    assert_eq!(text(vec![one, other], &all), expected.concat());
    assert_eq!(text(vec![datagram(3)], &all), DASHES);
    assert_eq!(text(vec![broken], &all).matches("20 ").count(), 20);
    let mut selection = Selection::default();
    selection.add("16").unwrap();
    assert_eq!(text(vec![one, other], &selection), DASHES);
}

// covers: STAT-12, STAT-33
#[test]
fn view_5_is_like_netstat() {
    let widths = [
        ("Proto", 5),
        ("Offloaded", 9),
        ("Recv-Q", 20),
        ("Send-Q", 20),
        ("Local Address", 22),
        ("Foreign Address", 21),
        ("State", 11),
        ("Inode", 10),
    ];
    let header: String = widths.map(|(word, width)| format!("{word:<width$} ")).concat();
    assert_eq!(NETSTAT_HEADER, header + "PID/Program name\n");
    let listener = Socket {
        kind: 1,
        tcp_state: 10,
        inode: 33_679_919,
        unsent_bytes: 12_345,
        flags: 0,
        local: [192, 168, 100, 100],
        local_port: 11_111,
        peer: [1, 2, 3, 4],
        peer_port: 80,
        ..datagram(5)
    };
    let unbound = Socket { local_port: 0, ..datagram(6) };
    let nobody = Socket { inode: 0, ..datagram(7) };
    let taken = of(vec![datagram(4), listener, unbound, nobody]);
    let expected = [
        "udp   Yes       1470                 0                    0.0.0.0:11111          \
         0.0.0.0:*                         33679757   1576/sockperf\n",
        "tcp   No        1470                 12345                192.168.100.100:11111 \
         1.2.3.4:80            LISTEN      33679919   1576/sockperf\n",
        "udp   Yes       1470                 0                                           \
         0.0.0.0:*                         33679757   1576/sockperf\n",
    ];
    assert_eq!(netstat(1576, "sockperf", &taken), expected.concat());
    assert!(netstat(1576, "", &taken).ends_with(" 1576/-\n"));
}
