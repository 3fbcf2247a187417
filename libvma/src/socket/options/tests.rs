use std::os::fd::AsRawFd;

use super::*;
use crate::shard::SocketId;
use crate::socket::fixture::{Udp, stack, stack_with};
use crate::socket::outstanding::Outstanding;
use crate::socket::{State, Via};
use crate::sys::sockaddr::{Family, SocketName};

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;

/// A route that the socket may have known before an option was set.
fn route() -> Option<Box<CachedRoute>> {
    Some(Box::new(CachedRoute {
        by_kernel: 0,
        destination: Ipv4Addr::LOCALHOST,
        source: None,
        answers: 0,
        port: None,
        epoch: 0,
        via: Via::Os(WhyOs::LocalDestination),
        outstanding: Outstanding::default(),
        envelope: None,
    }))
}

/// An IPv6 socket of a program.
fn udp6() -> Udp {
    Udp::of(stack(), Family::Ipv6)
}

fn options_of<T>(udp: &Udp, look: impl FnOnce(&Options) -> T) -> T {
    udp.with(|_, socket| look(&socket.options))
}

/// ip_dont_fragment(), ip_sk_ignore_df() and ip_sk_use_pmtu() of Linux 6.18.
#[test]
fn path_mtu_discovery_says_what_is_cut_and_whose_mtu_counts() {
    // DF; refuse what does not fit; the path's MTU does not count.
    let kinds = [
        (libc::IP_PMTUDISC_DONT, (false, false, false)),
        (libc::IP_PMTUDISC_WANT, (true, false, false)),
        (libc::IP_PMTUDISC_DO, (true, true, false)),
        (libc::IP_PMTUDISC_PROBE, (true, true, true)),
        (IP_PMTUDISC_INTERFACE, (false, true, true)),
        (IP_PMTUDISC_OMIT, (false, false, true)),
    ];
    let udp = Udp::new();
    for (kind, expected) in kinds {
        udp.with(|_, socket| socket.route = route());
        udp.set_number(IP, libc::IP_MTU_DISCOVER, kind);
        let got = options_of(&udp, |it| (it.dont_fragment, it.never_fragment, it.ignore_path_mtu));
        assert_eq!(got, expected, "{kind}");
        assert!(udp.with(|_, socket| socket.route.is_none()), "the route's MTU was another one");
    }
}

#[test]
fn the_two_kinds_of_time_stamps_exclude_each_other() {
    let udp = Udp::new();
    let stamps = || {
        let wanted = udp.with(|endpoint, _| endpoint.wants_stamp);
        options_of(&udp, |it| (it.timestamp, it.timestamp_ns, wanted))
    };
    for (name, on, expected) in [
        (libc::SO_TIMESTAMP, 1, (true, false, true)),
        (libc::SO_TIMESTAMPNS, 1, (false, true, true)),
        (libc::SO_TIMESTAMP, 1, (true, false, true)),
        (libc::SO_TIMESTAMP, 0, (false, false, false)),
    ] {
        udp.set_number(SOCKET, name, on);
        assert_eq!(stamps(), expected, "{name} {on}");
    }
}

/// The kernel makes a stamp only if it is to be made and to be told. Stamps of what is sent wait in its error queue, where no
/// packet of the library's can put one.
#[test]
fn stamps_of_software_are_served_and_those_of_sending_are_the_kernels() {
    const RX_SOFTWARE: i32 = 1 << 3;
    const SOFTWARE: i32 = 1 << 4;
    const TX_SOFTWARE: i32 = 1 << 1;
    for (flags, served) in [
        (RX_SOFTWARE, Some(false)),
        (SOFTWARE, Some(false)),
        (RX_SOFTWARE | SOFTWARE, Some(true)),
        (RX_SOFTWARE | SOFTWARE | TX_SOFTWARE, None),
    ] {
        let udp = Udp::new();
        udp.set_number(SOCKET, libc::SO_TIMESTAMPING, flags);
        match served {
            Some(on) => {
                assert_eq!(options_of(&udp, |it| it.timestamping_software), on, "{flags:#x}");
                assert_eq!(udp.with(|endpoint, _| endpoint.wants_stamp), on, "{flags:#x}");
                assert_eq!(udp.state(), State::Undecided);
            }
            None => assert!(matches!(udp.state(), State::Os(WhyOs::Option { .. }))),
        }
    }
}

#[test]
fn the_receive_buffer_is_the_kernels_number_but_not_below_the_configured_one() {
    for (least, set, expected) in [("0", 30_000, 60_000), ("100000", 30_000, 100_000)] {
        let udp = Udp::of(stack_with(&[("VMA_RX_BYTES_MIN", least)]), Family::Ipv4);
        udp.set_number(SOCKET, libc::SO_RCVBUF, set);
        assert_eq!(udp.with(|endpoint, _| endpoint.limit), expected, "the kernel doubles it");
    }
}

#[test]
fn a_receive_timeout_is_for_ever_at_zero_and_no_wait_below() {
    let udp = Udp::new();
    for (seconds, micros, expected) in [
        (1, 500_000, Some(1_500_000_000)),
        (0, 0, None),
        (-1, 0, Some(0)),
        // The kernel counts in jiffies, at most 1000 a second.
        (0, 20_000, Some(20_000_000)),
    ] {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&i64::to_ne_bytes(seconds));
        value[8..].copy_from_slice(&i64::to_ne_bytes(micros));
        assert_eq!(udp.set(SOCKET, libc::SO_RCVTIMEO, value), Ok(()));
        assert_eq!(options_of(&udp, |it| it.receive_timeout), expected, "{seconds} {micros}");
    }
}

#[test]
fn an_unknown_option_makes_the_socket_the_kernels_or_is_refused() {
    const SO_MAX_PACING_RATE: i32 = 47;
    let option = WhyOs::Option { level: SOCKET, name: SO_MAX_PACING_RATE };
    for (handling, result, state) in [
        ("0", Ok(()), State::Os(option)),
        ("1", Ok(()), State::Os(option)),
        ("2", Err(libc::EINVAL), State::Undecided),
    ] {
        let udp = Udp::of(stack_with(&[("VMA_EXCEPTION_HANDLING", handling)]), Family::Ipv4);
        assert_eq!(udp.set(SOCKET, SO_MAX_PACING_RATE, 1_000_000u32.to_ne_bytes()), result);
        assert_eq!(udp.state(), state, "{handling}");
    }
}

/// A socket that an option is set on must not be lost to the kernel by mistake, nor a level be taken for another.
#[test]
fn options_without_meaning_for_the_data_path_leave_the_socket_served() {
    let levels: [(i32, &[i32]); 6] = [
        (SOCKET, HARMLESS_SOCKET),
        (IP, HARMLESS_IP),
        (IPV6, HARMLESS_IPV6),
        // Some by name: the lists themselves may be wrong.
        (SOCKET, &[libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_SNDBUF, libc::SO_PRIORITY]),
        (IP, &[libc::IP_RECVERR, libc::IP_FREEBIND]),
        (IPV6, &[libc::IPV6_RECVERR, libc::IPV6_MTU_DISCOVER]),
    ];
    for (level, names) in levels {
        let udp = udp6();
        for name in names {
            let done = after_set(&udp.stack, udp.id, level, *name, &1i32.to_ne_bytes());
            assert_eq!((done, udp.state()), (Ok(()), State::Undecided), "{level} {name}");
        }
    }
    for (level, name) in [(SOCKET, libc::SO_ATTACH_FILTER), (IP, libc::IP_OPTIONS)] {
        let udp = udp6();
        let done = after_set(&udp.stack, udp.id, level, name, &[0; 4]);
        let kernels = State::Os(WhyOs::Option { level, name });
        assert_eq!((done, udp.state()), (Ok(()), kernels));
    }
    let udp = udp6();
    let unknown = after_set(&udp.stack, udp.id, libc::SOL_TCP, libc::SO_BROADCAST, &[]);
    assert_eq!(unknown, Ok(()));
    assert!(matches!(udp.state(), State::Os(WhyOs::Option { level: libc::SOL_TCP, .. })));
}

/// A name in two lists would have the meaning of the first one only.
#[test]
fn no_option_of_ipv6_is_in_two_lists() {
    let mut all: Vec<i32> = [HARMLESS_IPV6, SENDING_IPV6, &Ipv6Told::OPTIONS].concat();
    all.extend([libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS, libc::IPV6_V6ONLY]);
    all.extend([libc::IPV6_FLOWINFO, libc::IPV6_RECVPKTINFO, libc::IPV6_ADDRFORM]);
    all.extend([libc::IPV6_DONTFRAG, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVFRAGSIZE]);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn the_interface_is_noted_while_any_message_tells_it() {
    let udp = udp6();
    let steps = [
        (IP, libc::IP_PKTINFO, 1, PacketInfo::Ip, true),
        (IPV6, libc::IPV6_RECVPKTINFO, 1, PacketInfo::Both, true),
        (IP, libc::IP_PKTINFO, 0, PacketInfo::Ipv6, true),
        (IPV6, libc::IPV6_2292PKTINFO, 1, PacketInfo::Ipv6, true),
        (IPV6, libc::IPV6_RECVPKTINFO, 0, PacketInfo::None, true),
        (IPV6, libc::IPV6_2292PKTINFO, 0, PacketInfo::None, false),
    ];
    for (level, name, on, info, wanted) in steps {
        udp.set_number(level, name, on);
        assert_eq!(options_of(&udp, |it| it.packet_info), info, "{name} {on}");
        assert_eq!(udp.with(|endpoint, _| endpoint.wants_interface), wanted, "{name} {on}");
    }
}

#[test]
fn each_message_of_ipv6_is_switched_by_itself() {
    let mut told = Ipv6Told::default();
    for name in Ipv6Told::OPTIONS {
        told.set(name, true);
        assert!(told.has(name));
    }
    for (at, name) in Ipv6Told::OPTIONS.into_iter().enumerate() {
        told.set(name, false);
        let left = Ipv6Told::OPTIONS.into_iter().filter(|name| told.has(*name)).count();
        assert_eq!(left, Ipv6Told::OPTIONS.len() - 1 - at);
    }
    told.set(libc::IPV6_V6ONLY, true);
    assert_eq!(told, Ipv6Told::default(), "it is no message");
}

#[test]
fn an_option_that_ipv6_packets_need_the_kernel_for_holds_for_good() {
    let udp = udp6();
    udp.with(|_, socket| socket.route = route());
    udp.set_number(IPV6, libc::IPV6_FLOWINFO_SEND, 1);
    assert!(options_of(&udp, |it| it.sends_ipv6_by_kernel));
    assert!(udp.with(|_, socket| socket.route.is_none()));
    udp.set_number(IPV6, libc::IPV6_FLOWINFO_SEND, 0);
    assert!(options_of(&udp, |it| it.sends_ipv6_by_kernel));
    assert_eq!(udp.state(), State::Undecided, "packets of IPv4 are served");
    assert!(!options_of(&udp, |it| it.cuts_ipv6_by_kernel));
    udp.set_number(IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
    assert!(options_of(&udp, |it| it.cuts_ipv6_by_kernel));
    for name in [libc::IPV6_FLOWINFO, libc::IPV6_RECVFRAGSIZE] {
        let udp = udp6();
        udp.set_number(IPV6, name, 0);
        assert_eq!(udp.state(), State::Undecided, "{name}");
        udp.set_number(IPV6, name, 1);
        assert!(matches!(udp.state(), State::Os(WhyOs::Option { .. })), "{name}");
    }
}

#[test]
fn hop_limit_and_traffic_class_are_apart_for_each_family() {
    let udp = udp6();
    udp.set_number(IP, libc::IP_TTL, 9);
    udp.set_number(IP, libc::IP_TOS, 0x10);
    assert_eq!(
        options_of(&udp, |it| (it.wishes(false), it.wishes(true))),
        ((Some(9), 0x10), (None, 0))
    );
    assert_eq!(options_of(&udp, |it| it.envelope(true)), (64, 0));
    udp.set_number(IPV6, libc::IPV6_UNICAST_HOPS, 7);
    udp.set_number(IPV6, libc::IPV6_TCLASS, 0x20);
    assert_eq!(
        options_of(&udp, |it| (it.envelope(false), it.envelope(true))),
        ((9, 0x10), (7, 0x20))
    );
}

/// The kernel asks for a route by the traffic class and the mark, and not by the TTL.
#[test]
fn an_option_voids_what_is_known_of_the_way_only_if_the_way_depends_on_it() {
    let udp = Udp::new();
    let keeps_route = |set: &dyn Fn()| {
        udp.with(|_, socket| socket.route = route());
        set();
        udp.with(|_, socket| socket.route.is_some())
    };
    assert!(keeps_route(&|| udp.set_number(IP, libc::IP_TTL, 9)));
    assert!(!keeps_route(&|| udp.set_number(IP, libc::IP_TOS, 8)));
    assert!(!keeps_route(&|| udp.set_privileged(SOCKET, libc::SO_MARK, 3)));
    assert!(keeps_route(&|| udp.set_number(IP, libc::IP_RECVTTL, 1)));
}

#[test]
fn trains_are_sent_and_received_as_the_kernel_was_told() {
    let udp = Udp::new();
    udp.set_number(libc::IPPROTO_UDP, libc::UDP_SEGMENT, 1200);
    udp.set_number(libc::IPPROTO_UDP, libc::UDP_GRO, 1);
    assert_eq!(options_of(&udp, |it| (it.segment, it.receive_segment)), (1200, true));
    assert!(udp.with(|endpoint, _| endpoint.takes_trains));
    udp.set_number(libc::IPPROTO_UDP, libc::UDP_GRO, 0);
    assert!(!udp.with(|endpoint, _| endpoint.takes_trains));
    // UDP_NO_CHECK6_TX, which is about packets that the library would sum.
    const UDP_NO_CHECK6_TX: i32 = 101;
    udp.set_number(libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, 1);
    assert!(matches!(udp.state(), State::Os(WhyOs::Option { .. })));
}

#[test]
fn a_checksum_is_left_out_where_the_program_says_so() {
    let udp = Udp::new();
    udp.set_number(SOCKET, libc::SO_NO_CHECK, 1);
    assert!(!options_of(&udp, |it| it.checksum));
    udp.set_number(SOCKET, libc::SO_NO_CHECK, 0);
    assert!(options_of(&udp, |it| it.checksum));
}

#[test]
fn a_port_is_shared_by_either_option() {
    for (name, level) in [(libc::SO_REUSEADDR, SOCKET), (libc::SO_REUSEPORT, SOCKET)] {
        let udp = Udp::new();
        assert!(!options_of(&udp, Options::shares_port));
        udp.set_number(level, name, 1);
        assert!(options_of(&udp, Options::shares_port), "{name}");
        udp.set_number(level, name, 0);
        assert!(!options_of(&udp, Options::shares_port), "{name}");
    }
}

/// ipv6(7): the socket was connected to an IPv4 peer. What it had joined of IPv6 is left.
#[test]
fn a_socket_that_becomes_one_of_ipv4_forgets_what_was_ipv6() {
    let udp = udp6();
    let peer = Udp::named(stack());
    let name = SocketName::new(peer.address(), Family::Ipv6);
    crate::sys::shadow::connect_as(udp.shadow.as_raw_fd(), &name).unwrap();
    udp.set_number(IP, libc::IP_PKTINFO, 1);
    udp.set_number(IPV6, libc::IPV6_RECVPKTINFO, 1);
    let of = |group| Membership {
        group,
        interface: 1,
        mode: libvma_engine::udp::lookup::SourceMode::Exclude,
        sources: vec![],
    };
    let (four, six) = (Ipv4Addr::new(239, 1, 1, 1), Ipv4Addr::new(0, 129, 1, 1));
    assert!(ipv6_stand_ins::is_group(six));
    udp.with(|_, socket| socket.options.memberships = vec![of(four), of(six)]);
    udp.set_number(IPV6, libc::IPV6_ADDRFORM, libc::AF_INET);
    assert_eq!(udp.with(|_, socket| socket.family), Family::Ipv4);
    let groups =
        options_of(&udp, |it| it.memberships.iter().map(|it| it.group).collect::<Vec<_>>());
    assert_eq!(groups, [four]);
    assert_eq!(options_of(&udp, |it| it.packet_info), PacketInfo::Ip);
}

#[test]
fn a_device_that_the_socket_is_bound_to_is_known_by_its_index() {
    let udp = Udp::new();
    assert_eq!(options_of(&udp, Options::device), None);
    let mut name = [0; 16];
    name[..2].copy_from_slice(b"lo");
    assert_eq!(udp.set(SOCKET, libc::SO_BINDTODEVICE, name), Ok(()));
    assert_eq!(options_of(&udp, Options::device), Some(1));
}

#[test]
fn the_flags_of_the_file_description_are_followed() {
    let udp = Udp::new();
    let set = |flags: rustix::fs::OFlags| {
        rustix::fs::fcntl_setfl(&udp.shadow, flags).unwrap();
        after_flags(&udp.stack, udp.id);
        (udp.with(|_, socket| socket.nonblocking), udp.state())
    };
    use rustix::fs::OFlags;
    assert_eq!(set(OFlags::empty()), (false, State::Undecided));
    assert_eq!(set(OFlags::NONBLOCK), (true, State::Undecided));
    // Only the kernel sends SIGIO.
    let signal_driven = OFlags::from_bits_retain(libc::O_ASYNC as u32);
    assert_eq!(set(signal_driven), (false, State::Os(WhyOs::Arguments)));
}

/// A signal handler, or another thread, may have closed the socket between the call and its effect.
#[test]
fn an_option_of_a_socket_that_is_gone_changes_nothing() {
    let udp = Udp::new();
    let gone = SocketId::from_bits(udp.id.to_bits() + (1 << 32)).unwrap();
    for (level, name) in [(SOCKET, libc::SO_RCVBUF), (IP, libc::IP_TTL), (SOCKET, 4711)] {
        assert_eq!(after_set(&udp.stack, gone, level, name, &[1, 0, 0, 0]), Ok(()));
    }
    assert_eq!(udp.state(), State::Undecided);
}
