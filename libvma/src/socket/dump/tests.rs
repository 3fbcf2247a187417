use libvma_engine::wire::tcp::Flags;

use super::*;
use crate::socket::WhyOs;
use crate::socket::fixture::{Linked, Tcp, Udp};
use crate::socket::report::kernels::Before;
use crate::socket::stream::shutdown::shutdown;

fn of_tcp(tcp: &Tcp) -> Vec<String> {
    lines(&tcp.stack, tcp.id, 9)
}

fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|one| one == line)
}

#[test]
fn a_datagram_socket_is_told_with_its_addresses_and_queue() {
    let linked = Linked::new();
    linked.send(b"waits");
    linked.server.stack.shard.lock().unwrap().catch_up();
    let told = lines(&linked.server.stack, linked.server.id, 9);
    assert!(has(&told, "Fd number : 9"));
    assert!(has(&told, &format!("Bind info : {}", linked.to())));
    assert!(has(&told, "Connection info : 0.0.0.0:0"));
    assert!(has(&told, "Protocol : PROTO_UDP"));
    assert!(has(&told, "Is blocking : false") && has(&told, "Is offloaded : true"));
    assert!(has(&told, "Rx ready list size : 1"));
    let stamps = "Socket timestamp : m_b_rcvtstamp false, m_b_rcvtstampns true, m_n_tsing_flags 24";
    linked.server.with(|_, socket| {
        socket.options.timestamp_ns = true;
        socket.options.timestamping_software = true;
        socket.state = State::Os(WhyOs::Passed);
    });
    let told = lines(&linked.server.stack, linked.server.id, 9);
    assert!(has(&told, stamps), "{told:?}");
    assert!(has(&told, &format!("Served by the kernel because : {}", WhyOs::Passed)));
}

/// The names of the original's engine.
#[test]
fn the_state_of_a_connection_has_the_names_that_people_look_for() {
    let states = |tcp: &Tcp| {
        let told = of_tcp(tcp);
        let of = |name: &str| {
            let line = told.iter().find_map(|line| line.strip_prefix(name));
            line.unwrap_or("").to_owned()
        };
        (of("Socket state : "), of("Connection state : "), of("PCB state : "))
    };
    let expected = |socket: &str, connection: &str, engine: &str| {
        (socket.to_owned(), connection.to_owned(), engine.to_owned())
    };
    let fresh = Tcp::new();
    assert_eq!(states(&fresh), expected("TCP_SOCK_INITED", "TCP_CONN_INIT", ""));
    fresh.with(|_, socket| socket.local = Some(crate::socket::fixture::ANY_PORT));
    assert_eq!(states(&fresh), expected("TCP_SOCK_BOUND", "TCP_CONN_INIT", ""));
    let listening = expected("TCP_SOCK_ACCEPT_READY", "TCP_CONN_INIT", "LISTEN");
    assert_eq!(states(&Tcp::listening()), listening);
    let connecting = expected("TCP_SOCK_ASYNC_CONNECT", "TCP_CONN_CONNECTING", "SYN_SENT");
    assert_eq!(states(&Tcp::connecting()), connecting);
    let tcp = Tcp::connected();
    let connected = |socket, engine| expected(socket, "TCP_CONN_CONNECTED", engine);
    assert_eq!(states(&tcp), connected("TCP_SOCK_CONNECTED_RDWR", "ESTABLISHED"));
    shutdown(&tcp.stack, tcp.id, libc::SHUT_WR);
    assert_eq!(states(&tcp), connected("TCP_SOCK_CONNECTED_RD", "FIN_WAIT_1"));
    let waiting = Tcp::connected_as(TcpState::CloseWait, b"");
    assert_eq!(states(&waiting), connected("TCP_SOCK_CONNECTED_WR", "CLOSE_WAIT"));
    waiting.arrive(Flags::RST, b"");
    let failed = expected("TCP_SOCK_BOUND", "TCP_CONN_ERROR", "CLOSED");
    assert_eq!(states(&waiting), failed);
}

#[test]
fn the_numbers_of_a_connection_are_those_of_its_queues() {
    let tcp = Tcp::connected_as(TcpState::Established, b"unread");
    tcp.set_number(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    tcp.send(b"four", 0);
    let told = of_tcp(&tcp);
    assert!(has(&told, "First unsent : NULL"));
    assert!(has(&told, "First unacked : seqno 1000, len 4, seqno + len 1004"), "{told:?}");
    assert!(has(&told, "Acknowledge : lastack 1000"));
    assert!(has(&told, "PCB flags : 0x40"), "TF_NODELAY");
    assert!(has(&told, "Window scaling : DISABLED"));
    assert!(has(&told, "Congestion : cwnd 14600"));
    assert!(told.iter().any(|line| line.starts_with("Receive buffer : m_rcvbuff_current 6,")));
    tcp.acknowledge(4);
    let idle = of_tcp(&tcp);
    assert!(has(&idle, "First unacked : NULL"));
    let timer = idle.iter().find(|line| line.starts_with("Retransmission")).unwrap();
    assert!(timer.contains("rtime -1,"), "no timer runs: {timer}");
}

#[test]
fn a_socket_of_the_kernel_is_told_with_the_reason() {
    let udp = Udp::new();
    crate::sys::shadow::bind(udp.raw(), crate::socket::fixture::ANY_PORT).unwrap();
    let before = Before::nothing(udp.raw(), false, WhyOs::Short);
    let id = kernels::enter(&udp.stack, before).unwrap();
    kernels::traffic(&udp.stack, id).unwrap().received(Ok(2048));
    let told = lines_of_kernels(&udp.stack, id, 9);
    assert!(has(&told, &format!("Bind info : {}", udp.address())));
    assert!(has(&told, "Protocol : PROTO_UDP") && has(&told, "Is offloaded : false"));
    assert!(has(&told, &format!("Served by the kernel because : {}", WhyOs::Short)));
    assert!(has(&told, "Rx OS info : 2 KB / 1 / 0 / 0 [bytes/packets/eagains/errors]"));
    kernels::forget(&udp.stack, id, udp.raw());
    assert_eq!(lines_of_kernels(&udp.stack, id, 9), [""; 0]);
    assert_eq!(lines(&udp.stack, SocketId::from_bits(99 << 32).unwrap(), 9), [""; 0]);
}

#[test]
fn a_queue_is_told_by_its_first_and_last_segment() {
    let mut lines = Vec::new();
    queue(&mut lines, "unsent", 5, 0, 1460);
    queue(&mut lines, "unacked", 12_678_066, 14, 1460);
    queue(&mut lines, "unsent", u32::MAX, 3000, 1460);
    let expected = [
        "First unsent : NULL",
        "First unacked : seqno 12678066, len 14, seqno + len 12678080",
        "Last unacked : seqno 12678066, len 14, seqno + len 12678080",
        "First unsent : seqno 4294967295, len 1460, seqno + len 1459",
        "Last unsent : seqno 2919, len 80, seqno + len 2999",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn only_what_was_active_is_told() {
    let mut lines = Vec::new();
    activity(&mut lines, &Counters::default(), 100);
    assert_eq!(lines, ["Socket activity : Rx and Tx where not active"]);
    let counters = Counters {
        rx_packets: 3,
        rx_bytes: 3072,
        rx_dropped_packets: 1,
        rx_dropped_bytes: 1024,
        rx_ready_packets_max: 2,
        rx_ready_bytes_max: 2048,
        rx_poll_hits: 3,
        rx_poll_misses: 1,
        tx_os_packets: 2,
        tx_os_bytes: 2048,
        ..Counters::default()
    };
    lines.clear();
    activity(&mut lines, &counters, 212_992);
    let expected = [
        "Tx OS info : 2 KB / 2 / 0 [bytes/packets/errors]",
        "Rx Offload : 3 KB / 3 / 0 / 0 [bytes/packets/eagains/errors]",
        "Rx byte : max 2048 / dropped 1024 (25.00%) / limit 212992",
        "Rx pkt : max 2 / dropped 1 (25.00%)",
        "Rx poll : 1 / 3 (75.00%) [miss/hit]",
    ];
    assert_eq!(lines, expected);
}
