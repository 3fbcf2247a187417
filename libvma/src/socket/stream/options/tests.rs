use super::*;
use crate::socket::fixture::{Tcp, stack};
use crate::socket::stream::Phase;

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const TCP: i32 = libc::IPPROTO_TCP;

/// The settings that new connections of the socket begin with, which must be those of its connection.
fn settings<T: PartialEq + core::fmt::Debug>(tcp: &Tcp, look: impl Fn(&Settings) -> T) -> T {
    let own = tcp.with_stream(|stream| look(&stream.settings));
    let mut state = tcp.stack.shard.lock().unwrap();
    if let Some(connection) = state.connection(tcp.id) {
        assert_eq!(look(connection.settings()), own, "the connection has another value");
    }
    own
}

fn two_numbers(first: i32, second: i32) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&first.to_ne_bytes());
    value[4..].copy_from_slice(&second.to_ne_bytes());
    value
}

fn seconds_and_micros(seconds: i64, micros: i64) -> [u8; 16] {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&seconds.to_ne_bytes());
    value[8..].copy_from_slice(&micros.to_ne_bytes());
    value
}

#[test]
fn an_option_that_only_the_kernel_can_serve_takes_the_connection_there() {
    // Some by name: the lists themselves may be wrong.
    for option in [(TCP, libc::TCP_ULP), (SOCKET, libc::SO_ATTACH_FILTER), (IP, libc::IP_OPTIONS)] {
        assert!(FOREIGN.contains(&option), "{option:?}");
    }
    for option in [(SOCKET, libc::SO_TIMESTAMP), (IP, libc::IP_RECVERR)] {
        assert!(FOREIGN_IF_ON.contains(&option), "{option:?}");
    }
    for (level, name) in
        [(TCP, libc::TCP_NODELAY), (SOCKET, libc::SO_KEEPALIVE), (IP, libc::IP_TTL)]
    {
        let tcp = Tcp::new();
        let effect = after_set(&tcp.stack, tcp.id, level, name, &1i32.to_ne_bytes());
        assert!(matches!(effect, Effect::Done), "{level} {name}");
    }
    for (level, name) in FOREIGN {
        let tcp = Tcp::new();
        let effect = after_set(&tcp.stack, tcp.id, *level, *name, &[0; 4]);
        let why = WhyOs::Option { level: *level, name: *name };
        assert!(matches!(effect, Effect::Os(told) if told == why), "{level} {name}");
    }
    for (level, name) in FOREIGN_IF_ON {
        let tcp = Tcp::new();
        let foreign = |on: i32| {
            let value = on.to_ne_bytes();
            matches!(after_set(&tcp.stack, tcp.id, *level, *name, &value), Effect::Os(_))
        };
        assert!(!foreign(0) && foreign(1), "{level} {name}");
    }
}

#[test]
fn only_the_two_usual_ways_of_path_mtu_discovery_are_served() {
    for (kind, is_served) in [
        (libc::IP_PMTUDISC_DONT, false),
        (libc::IP_PMTUDISC_WANT, true),
        (libc::IP_PMTUDISC_DO, true),
        (libc::IP_PMTUDISC_PROBE, false),
    ] {
        let tcp = Tcp::new();
        assert_eq!(tcp.set_number(IP, libc::IP_MTU_DISCOVER, kind).is_none(), is_served, "{kind}");
    }
}

/// An option of IPv6 matters to a connection over IPv6 only; a socket without one remembers it.
#[test]
fn an_option_of_ipv6_is_foreign_to_connections_over_ipv6() {
    let peer = ipv6_stand_ins::of("2001:db8::2".parse().unwrap()).unwrap();
    for (over_ipv6, name, number, expected) in [
        (false, libc::IPV6_RECVERR, 0, (false, true)),
        (true, libc::IPV6_RECVERR, 0, (true, true)),
        (true, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_WANT, (false, false)),
        (true, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, (true, true)),
        (true, libc::IPV6_RECVHOPLIMIT, 1, (false, false)),
    ] {
        let tcp = Tcp::of(stack(), Family::Ipv6);
        if over_ipv6 {
            tcp.with(|_, socket| socket.peer = Some(std::net::SocketAddrV4::new(peer, 80)));
        }
        let is_foreign = tcp.set_number(IPV6, name, number).is_some();
        let by_kernel = tcp.with(|_, socket| socket.options.sends_ipv6_by_kernel);
        assert_eq!((is_foreign, by_kernel), expected, "{over_ipv6} {name} {number}");
    }
}

#[test]
fn an_answer_that_depends_on_the_connection_is_not_asked_of_the_unconnected_shadow() {
    let zero = 0i32.to_ne_bytes();
    let cases: [(i32, i32, &[u8], i32); 6] = [
        (TCP, libc::TCP_FASTOPEN, &zero, libc::EINVAL),
        (TCP, libc::TCP_FASTOPEN_CONNECT, &zero, libc::EINVAL),
        (TCP, TCP_FASTOPEN_NO_COOKIE, &zero, libc::EINVAL),
        (TCP, libc::TCP_QUEUE_SEQ, &zero, libc::EPERM),
        (TCP, libc::TCP_WINDOW_CLAMP, &zero, libc::EINVAL),
        (IPV6, libc::IPV6_V6ONLY, &zero, libc::EINVAL),
    ];
    for (phase, is_connected) in [
        (Phase::Fresh, false),
        (Phase::Listening { steered: true }, false),
        (Phase::Connecting, true),
        (Phase::Connected, true),
    ] {
        let tcp = Tcp::of(stack(), Family::Ipv6);
        tcp.with_stream(|stream| stream.phase = phase);
        for (level, name, value, errno) in cases {
            let answer = before_set(&tcp.stack, tcp.id, level, name, value);
            assert_eq!(answer, is_connected.then_some(errno), "{phase:?} {level} {name}");
        }
        let ask = |name, value: &[u8]| before_set(&tcp.stack, tcp.id, TCP, name, value);
        // A clamp that is set, and values that the kernel refuses by their length, are its to judge.
        assert_eq!(ask(libc::TCP_WINDOW_CLAMP, &4000i32.to_ne_bytes()), None);
        assert_eq!(ask(libc::TCP_WINDOW_CLAMP, &[0]), None);
        assert_eq!(ask(libc::TCP_QUEUE_SEQ, &[0]), None);
        // Programs copy where it fails.
        let zero_copy = before_set(&tcp.stack, tcp.id, SOCKET, libc::SO_ZEROCOPY, &zero);
        assert_eq!(zero_copy, Some(libc::ENOPROTOOPT));
    }
    let ipv4 = Tcp::in_phase(Phase::Connected);
    assert_eq!(before_set(&ipv4.stack, ipv4.id, IPV6, libc::IPV6_V6ONLY, &zero), None);
}

#[test]
fn congestion_control_is_the_engines_if_it_knows_the_name() {
    let tcp = Tcp::connected();
    let ask = |name: &[u8]| before_set(&tcp.stack, tcp.id, TCP, libc::TCP_CONGESTION, name);
    assert_eq!(ask(b"reno\0rest"), Some(0));
    assert_eq!(settings(&tcp, |it| it.congestion.name()), "reno");
    assert_eq!(ask(b"cubic"), Some(0));
    assert_eq!(settings(&tcp, |it| it.congestion.name()), "cubic");
    assert_eq!((ask(b"vegas"), ask(b"\xff"), ask(b"")), (None, None, None));
    assert_eq!(settings(&tcp, |it| it.congestion.name()), "cubic");
}

#[test]
fn the_kernels_socket_gets_the_connection_before_an_option_that_judges_it() {
    let family = libc::AF_INET.to_ne_bytes();
    let addrform = (IPV6, libc::IPV6_ADDRFORM);
    for (phase, is_connected) in [(Phase::Fresh, false), (Phase::Connected, true)] {
        let (four, six) = (Tcp::new(), Tcp::of(stack(), Family::Ipv6));
        for tcp in [&four, &six] {
            tcp.with_stream(|stream| stream.phase = phase);
        }
        let needs =
            |tcp: &Tcp, option, value: &[u8]| needs_connection(&tcp.stack, tcp.id, option, value);
        for option in OF_CONNECTION {
            assert_eq!(needs(&four, *option, &[0; 4]), is_connected, "{option:?}");
        }
        for option in [(TCP, libc::TCP_REPAIR), (TCP, libc::TCP_ULP), (IP, libc::IP_OPTIONS)] {
            assert_eq!(needs(&four, option, &[0; 4]), is_connected, "{option:?}");
        }
        assert!(!needs(&four, (TCP, libc::TCP_NODELAY), &[1, 0, 0, 0]));
        assert_eq!(needs(&six, addrform, &family), is_connected);
        assert!(!needs(&six, addrform, &libc::AF_INET6.to_ne_bytes()));
        assert!(!needs(&four, addrform, &family), "it is of that family");
    }
}

/// sk_clone_lock() and inet_csk_clone_lock() of Linux: what an accepted socket begins with.
#[test]
fn an_accepted_socket_inherits_what_was_set_last_but_for_what_is_a_sockets_own() {
    let tcp = Tcp::new();
    let inherited = || {
        tcp.with_stream(|stream| {
            let all = stream.inherited.iter();
            all.map(|it| (it.level, it.name, int(&it.value))).collect::<Vec<_>>()
        })
    };
    tcp.with_stream(|stream| stream.inherited.clear());
    for (level, name) in NOT_INHERITED {
        after_set(&tcp.stack, tcp.id, *level, *name, &1i32.to_ne_bytes());
    }
    for (level, name) in [
        (SOCKET, libc::SO_REUSEPORT),
        (TCP, libc::TCP_DEFER_ACCEPT),
        (IP, libc::IP_ADD_MEMBERSHIP),
        (IP, libc::IP_DROP_MEMBERSHIP),
        (IP, MCAST_MSFILTER),
        (IPV6, libc::IPV6_ADD_MEMBERSHIP),
        (IPV6, IPV6_LEAVE_ANYCAST),
        (IPV6, MCAST_JOIN_GROUP),
    ] {
        after_set(&tcp.stack, tcp.id, level, name, &[0; 12]);
    }
    assert_eq!(inherited(), []);
    tcp.set_number(TCP, libc::TCP_NODELAY, 1);
    tcp.set_number(TCP, libc::TCP_KEEPIDLE, 30);
    tcp.set_number(TCP, libc::TCP_NODELAY, 0);
    let (idle, nodelay) = ((TCP, libc::TCP_KEEPIDLE, 30), (TCP, libc::TCP_NODELAY, 0));
    assert_eq!(inherited(), [idle, nodelay]);
    assert!(tcp.with_stream(|stream| stream.has_set(TCP, libc::TCP_KEEPIDLE)));
    // The priority that goes with the type of service is not handed on.
    tcp.set_number(IP, libc::IP_TOS, 0x10);
    let (tos, priority) = ((IP, libc::IP_TOS, 0x10), (SOCKET, libc::SO_PRIORITY, 0));
    assert_eq!(inherited(), [idle, nodelay, tos, priority]);
}

/// setsockopt(2): an option of an int may be told by one byte.
#[test]
fn a_number_is_read_from_four_bytes_or_one() {
    let minus_two = (-2i32).to_ne_bytes();
    let nine_bytes = [&minus_two[..], &[7; 5]].concat();
    assert_eq!((int(&minus_two), int(&nine_bytes)), (-2, -2));
    assert_eq!((int(&[200]), int(&[3, 1, 1]), int(&[])), (200, 3, 0));
}

#[test]
fn timeouts_of_both_directions_are_the_kernels() {
    let tcp = Tcp::new();
    let told = || {
        let receive = tcp.with(|_, socket| socket.options.receive_timeout);
        (receive, tcp.with_stream(|stream| stream.send_timeout))
    };
    tcp.set(SOCKET, libc::SO_RCVTIMEO, seconds_and_micros(2, 500_000));
    tcp.set(SOCKET, libc::SO_SNDTIMEO, seconds_and_micros(-1, 0));
    assert_eq!(told(), (Some(2_500_000_000), Some(0)), "negative seconds are no wait at all");
    tcp.set(SOCKET, libc::SO_RCVTIMEO, seconds_and_micros(-5, 0));
    tcp.set(SOCKET, libc::SO_SNDTIMEO, seconds_and_micros(0, 0));
    assert_eq!(told(), (Some(0), None), "zero is for ever");
}

#[test]
fn linger_is_a_wait_a_reset_or_neither() {
    let tcp = Tcp::connected();
    for (on, seconds, waits, resets, told) in [
        (1, 7, Some(7), false, Some(7)),
        (1, 0, None, true, Some(0)),
        (0, 7, None, false, None),
        (0, 0, None, false, None),
    ] {
        assert_eq!(tcp.set(SOCKET, libc::SO_LINGER, two_numbers(on, seconds)), None);
        assert_eq!(
            tcp.with_stream(|stream| stream.linger.map(NonZeroU32::get)),
            waits,
            "{on} {seconds}"
        );
        assert_eq!(settings(&tcp, |it| it.reset_on_close), resets, "{on} {seconds}");
        assert_eq!(tcp.with_stream(|stream| stream.linger_seconds()), told, "{on} {seconds}");
    }
}

#[test]
fn a_buffer_that_the_program_sets_does_not_grow() {
    let tcp = Tcp::connected();
    assert!(settings(&tcp, |it| it.receive_buffer.automatic && it.send_buffer.automatic));
    tcp.set_number(SOCKET, libc::SO_RCVBUF, 40_000);
    tcp.set_number(SOCKET, libc::SO_SNDBUF, 50_000);
    let fixed = |limit| Buffer { limit, most: limit, automatic: false };
    // The kernel doubles both, and half of the receive buffer is overhead.
    assert_eq!(settings(&tcp, |it| it.receive_buffer), fixed(40_000));
    assert_eq!(settings(&tcp, |it| it.send_buffer), fixed(100_000));
}

#[test]
fn low_water_and_peek_offset_are_the_kernels_numbers() {
    let tcp = Tcp::connected();
    tcp.set_number(SOCKET, libc::SO_RCVLOWAT, 100);
    assert_eq!(tcp.with_stream(|stream| stream.low_water), 100);
    assert_eq!(settings(&tcp, |it| it.receive_low_water), 100);
    // sock_setsockopt() makes 1 of 0.
    tcp.set_number(SOCKET, libc::SO_RCVLOWAT, 0);
    assert_eq!(tcp.with_stream(|stream| stream.low_water), 1);
    // The kernel makes less of one that is larger than the buffer.
    tcp.set_number(SOCKET, libc::SO_RCVLOWAT, -1);
    let kernels = shadow::int_option(tcp.raw(), SOCKET, libc::SO_RCVLOWAT).unwrap();
    assert_eq!(tcp.with_stream(|stream| stream.low_water), kernels as u32);
    for (set, expected) in [(5, Some(5)), (0, Some(0)), (-1, None)] {
        tcp.set_number(SOCKET, libc::SO_PEEK_OFF, set);
        assert_eq!(tcp.with_stream(|stream| stream.peek_offset), expected);
    }
}

#[test]
fn options_of_tcp_reach_the_connection_in_its_units() {
    let tcp = Tcp::connected();
    let set = |name, value| assert_eq!(tcp.set_number(TCP, name, value), None, "{name}");
    set(libc::TCP_KEEPIDLE, 30);
    set(libc::TCP_KEEPINTVL, 3);
    set(libc::TCP_KEEPCNT, 4);
    set(libc::TCP_SYNCNT, 2);
    let keeping = settings(&tcp, |it| (it.keep_idle, it.keep_interval, it.keep_count));
    assert_eq!(keeping, (Millis::from_secs(30), Millis::from_secs(3), 4));
    assert_eq!(settings(&tcp, |it| it.syn_retries), 2);
    set(libc::TCP_USER_TIMEOUT, 1500);
    assert_eq!(settings(&tcp, |it| it.user_timeout), Some(Duration::from_millis(1500)));
    set(libc::TCP_USER_TIMEOUT, 0);
    assert_eq!(settings(&tcp, |it| it.user_timeout), None);
    set(libc::TCP_LINGER2, 20);
    assert_eq!(settings(&tcp, |it| it.fin_timeout), Some(Duration::from_secs(20)));
    set(libc::TCP_LINGER2, -1);
    assert_eq!(settings(&tcp, |it| it.fin_timeout), None, "FIN-WAIT-2 ends at once");
    set(libc::TCP_NOTSENT_LOWAT, 4096);
    assert_eq!(settings(&tcp, |it| it.unsent_low_water), 4096);
    set(libc::TCP_NOTSENT_LOWAT, 0);
    assert_eq!(settings(&tcp, |it| it.unsent_low_water), u32::MAX, "no limit");
    tcp.set_number(SOCKET, libc::SO_KEEPALIVE, 1);
    tcp.set_number(SOCKET, libc::SO_OOBINLINE, 1);
    assert!(settings(&tcp, |it| it.keep_alive && it.urgent_inline));
}

#[test]
fn the_window_clamp_is_taken_off_by_zero() {
    let tcp = Tcp::new();
    tcp.set_number(TCP, libc::TCP_WINDOW_CLAMP, 40_000);
    assert_eq!(settings(&tcp, |it| it.window_clamp), 40_000);
    tcp.set_number(TCP, libc::TCP_WINDOW_CLAMP, 0);
    assert_eq!(settings(&tcp, |it| it.window_clamp), u32::MAX);
}

/// What programs set around each message.
#[test]
fn only_what_changes_the_kernels_socket_is_asked_of_it() {
    let tcp = Tcp::new();
    for name in [libc::TCP_QUICKACK, libc::TCP_NODELAY, libc::TCP_CORK] {
        let is_alone = set_alone(&tcp.stack, tcp.id, name, 0);
        assert!(!is_alone, "{name}: the connection may become the kernel's");
    }
    let tcp = Tcp::connected();
    let alone = |name, on: i32| set_alone(&tcp.stack, tcp.id, name, on);
    let quick = || {
        let mut state = tcp.stack.shard.lock().unwrap();
        state.connection(tcp.id).unwrap().is_quick_ack()
    };
    for on in [true, false, true] {
        assert!(alone(libc::TCP_QUICKACK, on.into()));
        assert_eq!(quick(), on);
    }
    for name in [libc::TCP_NODELAY, libc::TCP_CORK] {
        for on in [1, 0] {
            assert!(!alone(name, on), "{name}: a connection that the kernel gets has it");
            assert!(tcp.set_number(TCP, name, on).is_none());
            assert!(alone(name, on), "{name}: it has it");
        }
    }
    assert!(!alone(libc::TCP_KEEPCNT, 3));
    // What a listener handed on, or VMA_TCP_NODELAY says, is perhaps not the kernel's socket's.
    let tcp = Tcp::connected();
    tcp.with_stream(|stream| stream.settings.nodelay = true);
    assert!(!set_alone(&tcp.stack, tcp.id, libc::TCP_NODELAY, 1));
}

/// tcp(7): TCP_CORK holds partial segments back; taking it off, and TCP_NODELAY, sends them.
#[test]
fn a_cork_holds_data_back_until_it_is_taken_off() {
    for (name, value) in [(libc::TCP_CORK, 0), (libc::TCP_NODELAY, 1)] {
        let tcp = Tcp::connected();
        tcp.set_number(TCP, libc::TCP_CORK, 1);
        tcp.send(b"held back", 0);
        let unsent = || {
            let mut state = tcp.stack.shard.lock().unwrap();
            state.connection(tcp.id).map(|connection| connection.unsent())
        };
        assert_eq!(unsent(), Some(9));
        tcp.set_number(TCP, name, value);
        assert_eq!(unsent(), Some(0), "{name}");
    }
}

#[test]
fn defer_accept_is_off_at_zero() {
    let tcp = Tcp::new();
    // The kernel rounds it up to the end of a retransmission: 1, 3, 7 seconds ...
    tcp.set_number(TCP, libc::TCP_DEFER_ACCEPT, 3);
    assert_eq!(tcp.with_stream(|stream| stream.defer_accept), Some(3));
    tcp.set_number(TCP, libc::TCP_DEFER_ACCEPT, 0);
    assert_eq!(tcp.with_stream(|stream| stream.defer_accept), None);
}

/// An option must not be applied to a UDP socket, nor to one that is gone.
#[test]
fn a_socket_without_a_stream_has_no_effect_to_take_over() {
    let udp = crate::socket::fixture::Udp::new();
    let has_none = |stack: &Stack, id| {
        let effect = after_set(stack, id, TCP, TCP_AO_ADD_KEY, &[0; 4]);
        assert!(matches!(effect, Effect::Done));
        assert!(!needs_connection(stack, id, (TCP, libc::TCP_REPAIR), &[0; 4]));
    };
    has_none(&udp.stack, udp.id);
    let tcp = Tcp::in_phase(Phase::Connected);
    crate::socket::close(&tcp.stack, tcp.id, tcp.raw());
    has_none(&tcp.stack, tcp.id);
}
