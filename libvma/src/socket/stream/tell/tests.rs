use core::time::Duration;

use libvma_engine::wire::tcp::{Flags, Header};

use super::*;
use crate::socket::fixture::{KEY, Tcp, await_input, stack, stack_with};
use crate::socket::stream::shutdown::shutdown;

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;

fn number(tcp: &Tcp, level: i32, name: i32) -> Option<i32> {
    match option(&tcp.stack, tcp.id, level, name)? {
        Value::Number(number) => Some(number),
        Value::Bytes(bytes) => panic!("{bytes:?}"),
    }
}

fn bytes(tcp: &Tcp, level: i32, name: i32) -> Option<Vec<u8>> {
    match option(&tcp.stack, tcp.id, level, name)? {
        Value::Bytes(bytes) => Some(bytes),
        Value::Number(number) => panic!("{number}"),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn an_error_is_told_once_whoever_knows_of_it() {
    let tcp = Tcp::connected();
    tcp.arrive(Flags::RST, b"");
    tcp.with(|_, socket| socket.pending_error = libc::EHOSTUNREACH);
    let error = || number(&tcp, SOCKET, libc::SO_ERROR);
    assert_eq!(error(), Some(libc::EHOSTUNREACH), "it is the older one");
    assert_eq!((error(), error()), (Some(libc::ECONNRESET), Some(0)));
    let fresh = Tcp::new();
    assert_eq!(number(&fresh, SOCKET, libc::SO_ERROR), None, "the kernel knows");
}

#[test]
fn what_the_kernels_socket_is_not_told_is_answered_here() {
    let cubic = stack_with(&[("VMA_TCP_CC_ALGO", "1")]);
    let tcp = Tcp::of(cubic, Family::Ipv4);
    assert_eq!(number(&tcp, SOCKET, libc::SO_PEEK_OFF), None);
    tcp.with_stream(|stream| stream.peek_offset = Some(7));
    assert_eq!(number(&tcp, SOCKET, libc::SO_PEEK_OFF), Some(7));
    // TCP_CA_NAME_MAX.
    let name = bytes(&tcp, TCP, libc::TCP_CONGESTION).unwrap();
    assert_eq!((name.len(), name.iter().position(|byte| *byte == 0)), (16, Some(5)));
    assert!(name.starts_with(b"cubic\0"));
    assert!(number(&tcp, TCP, libc::TCP_NODELAY).is_none());
}

#[test]
fn a_connection_is_told_as_the_kernel_numbers_it() {
    let state = |tcp: &Tcp| bytes(tcp, TCP, libc::TCP_INFO).unwrap()[0];
    let tcp = Tcp::connected();
    assert_eq!(state(&tcp), 1);
    assert_eq!(state(&Tcp::connecting()), 2);
    shutdown(&tcp.stack, tcp.id, libc::SHUT_WR);
    assert_eq!(state(&tcp), 4);
    tcp.acknowledge(1);
    assert_eq!(state(&tcp), 5);
    tcp.arrive(Flags::FIN, b"");
    assert_eq!(state(&tcp), 7, "TIME-WAIT is no socket's on Linux");
    let waiting = Tcp::connected_as(TcpState::CloseWait, b"");
    assert_eq!(state(&waiting), 8);
    shutdown(&waiting.stack, waiting.id, libc::SHUT_WR);
    assert_eq!(state(&waiting), 9);
}

#[test]
fn the_answer_is_as_long_as_the_running_kernels() {
    let (own, kernels) = (Tcp::connected(), Tcp::new());
    let mut room = [0; 512];
    let len = shadow::option(kernels.raw(), TCP, libc::TCP_INFO, &mut room).unwrap();
    assert_eq!(bytes(&own, TCP, libc::TCP_INFO).unwrap().len(), len);
}

/// `struct tcp_info` of linux/tcp.h.
#[test]
fn numbers_are_where_and_in_the_units_that_the_kernel_has_them() {
    let tcp = Tcp::connected();
    let mut info = {
        let mut state = tcp.stack.shard.lock().unwrap();
        state.connection(tcp.id).unwrap().info(clock::now())
    };
    info.snd_mss = 1000;
    (info.timestamps, info.sack, info.window_scaling, info.ecn) = (true, false, true, true);
    (info.snd_scale, info.rcv_scale, info.ecn_seen) = (7, 9, true);
    (info.retransmits, info.is_recovering) = (300, true);
    (info.unacknowledged, info.cwnd, info.ssthresh) = (1001, 10_000, u32::MAX);
    (info.srtt, info.min_rtt) = (Some(Duration::from_millis(3)), None);
    (info.rto, info.since_sent) = (Duration::from_millis(200), Duration::from_secs(2));
    (info.advertised_mss, info.unsent) = (1460, 77);
    info.counters.bytes_acked = 1 << 40;
    let told = tcp_info(&info, 1400);
    assert_eq!(told[..7], [1, 3, 255, info.probes, 255, 0b1_1101, 0x97]);
    assert_eq!((word(&told, 8), word(&told, 44)), (200_000, 2000), "microseconds, milliseconds");
    assert_eq!((word(&told, 24), word(&told, 80)), (2, 10), "segments");
    assert_eq!(word(&told, 76), u32::MAX / 1000);
    assert_eq!((word(&told, 60), word(&told, 68)), (1400, 3000));
    assert_eq!(word(&told, 84), 1448, "less the time stamps of every segment");
    assert_eq!((word(&told, 144), word(&told, 148)), (77, u32::MAX));
    assert_eq!(told[120..128], (1u64 << 40).to_ne_bytes());
    info.ssthresh = 8000;
    info.snd_mss = 0;
    info.timestamps = false;
    let told = tcp_info(&info, 1400);
    assert_eq!((word(&told, 76), word(&told, 24)), (8000, 1001), "no segment size is no division");
    assert_eq!(word(&told, 84), 1460);
}

/// The kernel's accept queue and the library's are one to the program.
#[test]
fn a_listener_tells_of_the_clients_in_both_queues() {
    let tcp = Tcp::listening();
    tcp.put_client(1000, b"");
    tcp.put_client(1001, b"");
    let waiting = || word(&bytes(&tcp, TCP, libc::TCP_INFO).unwrap(), 24);
    assert_eq!(waiting(), 2);
    let address = shadow::local_address(tcp.raw()).unwrap();
    let _client = std::net::TcpStream::connect(address).unwrap();
    await_input(&tcp.shadow);
    assert_eq!(waiting(), 3);
    assert_eq!(bytes(&tcp, TCP, libc::TCP_INFO).unwrap()[0], 10, "it listens");
}

#[test]
fn the_path_is_told_to_the_family_that_asks() {
    let four = Tcp::connected();
    let mtu = |tcp: &Tcp| number(tcp, libc::IPPROTO_IP, libc::IP_MTU);
    assert_eq!(mtu(&four), Some(1500));
    let of_ipv6 = (libc::IPPROTO_IPV6, libc::IPV6_PATHMTU);
    assert!(bytes(&four, of_ipv6.0, of_ipv6.1).is_none());
    assert_eq!(number(&four, libc::IPPROTO_IPV6, libc::IPV6_MTU), None);
    let six = Tcp::of(stack(), Family::Ipv6);
    six.resume(TcpState::Established, b"");
    let told = bytes(&six, of_ipv6.0, of_ipv6.1).unwrap();
    // A struct ip6_mtuinfo, whose address is left out.
    assert_eq!((told.len(), word(&told, 28)), (32, 1500));
    assert!(told[..28].iter().all(|byte| *byte == 0));
    assert_eq!(number(&six, libc::IPPROTO_IPV6, libc::IPV6_MTU), Some(1500));
}

#[test]
fn the_peer_has_its_name_even_after_the_end() {
    let tcp = Tcp::connected();
    tcp.arrive(Flags::RST, b"");
    let expected = SocketName::new(KEY.remote_endpoint(), Family::Ipv4);
    assert_eq!(bytes(&tcp, SOCKET, libc::SO_PEERNAME).unwrap(), expected.bytes());
}

#[test]
fn what_can_be_read_ends_at_the_urgent_byte_unless_it_is_in_line() {
    for (inline, before) in [(0, 2), (1, 5)] {
        let tcp = Tcp::connected();
        tcp.set_number(SOCKET, libc::SO_OOBINLINE, inline);
        let flags = Flags::ACK.with(Flags::URG);
        tcp.arrive_as(&Header { flags, urgent: 3, ..tcp.header() }, b"ab!cd");
        let ask = |request| ioctl(&tcp.stack, tcp.id, request);
        assert_eq!(ask(libc::FIONREAD), Some(Ok(before)), "{inline}");
        const SIOCATMARK: u64 = 0x8905;
        assert_eq!(ask(SIOCATMARK), Some(Ok(0)));
        tcp.receive(2, 0);
        assert_eq!(ask(SIOCATMARK), Some(Ok(1)), "the next byte is the urgent one");
    }
}

#[test]
fn bytes_on_their_way_are_those_that_the_peer_has_not_acknowledged() {
    const SIOCOUTQNSD: u64 = 0x894b;
    let tcp = Tcp::connected();
    let queued = || {
        let ask = |request| ioctl(&tcp.stack, tcp.id, request).unwrap().unwrap();
        (ask(libc::TIOCOUTQ), ask(SIOCOUTQNSD))
    };
    tcp.send(b"four", 0);
    assert_eq!(queued(), (4, 0));
    tcp.set_number(TCP, libc::TCP_CORK, 1);
    tcp.send(b"three", 0);
    assert_eq!(queued(), (9, 5));
    tcp.acknowledge(4);
    assert_eq!(queued(), (5, 5));
    let attempt = Tcp::connecting();
    let ask = |request| ioctl(&attempt.stack, attempt.id, request);
    assert_eq!((ask(libc::TIOCOUTQ), ask(SIOCOUTQNSD)), (Some(Ok(0)), Some(Ok(0))));
    for phase in [Phase::Fresh, Phase::Listening { steered: true }] {
        let tcp = Tcp::in_phase(phase);
        assert_eq!(ioctl(&tcp.stack, tcp.id, libc::FIONREAD), None, "the kernel knows");
    }
    assert_eq!(ioctl(&tcp.stack, tcp.id, 0x1234), None);
}
