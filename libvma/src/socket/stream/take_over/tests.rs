use std::os::fd::AsRawFd;
use std::time::Duration;

use super::*;
use crate::socket::fixture::{ANY_PORT, KEY, Tcp, stack};
use crate::socket::report::kernels::Before;
use crate::sys::repair::{Timestamps, WindowScale};

#[test]
fn an_attempt_is_repeated_only_if_its_obstacle_may_pass() {
    let kernel = |errno| Refusal::Kernel(repair::Error { call: "TCP_INFO", errno });
    for (refusal, is_final) in [
        (Refusal::Later("now"), false),
        (Refusal::Never(WhyOs::Passed), true),
        (kernel(libc::EAGAIN), false),
        (kernel(libc::ENOTCONN), false),
        (kernel(libc::EOPNOTSUPP), true),
        (kernel(libc::EPERM), true),
        (WhyOs::Attaching.into(), false),
        (WhyOs::NoInterface.into(), false),
        (WhyOs::FlowRefused.into(), true),
        (WhyOs::Ipv6.into(), true),
    ] {
        assert_eq!(refusal.is_final(), is_final, "{refusal}");
    }
}

fn taken() -> Taken {
    Taken {
        local: KEY.local_endpoint(),
        remote: KEY.remote_endpoint(),
        state: repair::State::Established,
        send_unacknowledged: 1000,
        outgoing: b"sentunsent".to_vec(),
        sent: 4,
        send_window: 5000,
        largest_send_window: 6000,
        window_update: 4990,
        receive_next: 5000,
        acknowledged: 5000,
        receive_window: 3000,
        unread: Vec::new(),
        reading_ended: false,
        segment_size: 1460,
        window_scale: Some(WindowScale { send: 7, receive: 9 }),
        sack: true,
        timestamps: Some(Timestamps { value: 77, recent: 0 }),
        ecn: true,
        path_mtu: 1500,
        measured: Measured {
            smoothed_rtt: Some(Duration::from_millis(3)),
            congestion_window: 14_600,
            ..Measured::default()
        },
        counted: Counted { bytes_acked: 11, out_of_order: 2, ..Counted::default() },
        is_incomplete: false,
    }
}

#[test]
fn the_engine_goes_on_where_the_kernel_stopped() {
    let all = taken();
    let went_on = parts(&all, true);
    assert_eq!(went_on.state, TcpState::Established);
    assert_eq!(went_on.unacknowledged.concat(), b"sent");
    assert_eq!(went_on.unsent.concat(), b"unsent");
    assert_eq!(went_on.scales, Some((7, 9)), "sending, then receiving");
    assert_eq!((went_on.snd_wnd, went_on.max_snd_wnd, went_on.rcv_wnd), (5000, 6000, 3000));
    assert_eq!((went_on.timestamp, went_on.cwnd), (Some(77), Some(14_600)));
    assert!(went_on.ecn && !went_on.owes_acknowledgment);
    assert_eq!((went_on.counters.bytes_acked, went_on.counters.out_of_order), (11, 2));

    let state = repair::State::CloseWait;
    let other = Taken { state, acknowledged: 4000, window_scale: None, ..taken() };
    let went_on = parts(&other, false);
    assert_eq!((went_on.state, went_on.scales), (TcpState::CloseWait, None));
    assert!(went_on.owes_acknowledgment, "the peer has not been told of all");
    assert!(!went_on.ecn, "the kernel's is Accurate ECN, which the engine does not speak");
}

/// The kernel's numbers are not trusted to agree with each other.
#[test]
fn no_more_bytes_count_as_sent_than_there_are() {
    let all = Taken { sent: 99, ..taken() };
    let went_on = parts(&all, true);
    assert_eq!(went_on.unacknowledged.concat(), b"sentunsent");
    assert!(went_on.unsent.concat().is_empty());
}

#[test]
fn an_option_set_in_between_that_only_the_kernel_can_serve_ends_the_attempt() {
    let set = |level, name, value: i32| {
        let tcp = Tcp::connected();
        let value = value.to_ne_bytes().to_vec();
        let earlier =
            Inherited { level: libc::IPPROTO_TCP, name: libc::TCP_NODELAY, value: vec![1] };
        set_options(&tcp.stack, tcp.id, &[earlier, Inherited { level, name, value }])
    };
    assert_eq!(set(libc::IPPROTO_TCP, libc::TCP_CORK, 1), Ok(()));
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_MD5SIG);
    let refusal = Err(Refusal::Never(WhyOs::Option { level, name }));
    assert_eq!(set(level, name, 0), refusal);
    // The answer that the library would give itself is an error.
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ZEROCOPY);
    let refusal = Err(Refusal::Never(WhyOs::Option { level, name }));
    assert_eq!(set(level, name, 1), refusal);
}

struct Nobody;

impl Publisher for Nobody {
    fn publish(&mut self, _: &mut State<Socket>, _: SocketId) -> bool {
        panic!("nothing is taken over");
    }

    fn withdraw(&mut self, _: &mut State<Socket>, _: SocketId) {}
}

#[test]
fn a_socket_that_is_not_connected_or_sends_signals_stays_where_it_is() {
    let tcp = Tcp::new();
    let candidate = || tcp.with(|_, socket| Candidate::connecting(socket)).unwrap();
    let stack = stack();
    let before = Before::nothing(tcp.raw(), true, WhyOs::Attaching);
    let before = before.with(Some(Box::new(candidate())));
    let id = kernels::enter(&stack, before).unwrap();
    let plan = |descriptors| Plan { id, candidate: candidate(), descriptors };
    let attempt = |descriptors| take_over(&stack, &plan(descriptors), &mut Nobody);
    assert_eq!(attempt(vec![]), Err(Refusal::Never(WhyOs::NotOurs)));
    let expected = match repair::is_allowed() {
        true => Refusal::Later("it is not connected"),
        false => Refusal::Never(WhyOs::CannotBeGivenBack),
    };
    assert_eq!(attempt(vec![tcp.raw()]), Err(expected));
    let flags = rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC as u32);
    rustix::fs::fcntl_setfl(&tcp.shadow, flags).unwrap();
    assert_eq!(attempt(vec![tcp.raw()]), Err(Refusal::Never(WhyOs::Arguments)));
}

/// The control plane says whether an interface leads to the peer; there is none here.
#[test]
fn a_connection_without_an_interface_keeps_its_kernels_socket() {
    if !repair::is_allowed() {
        eprintln!("skipped: the process lacks CAP_NET_ADMIN");
        return;
    }
    let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (tcp, stack) = (Tcp::new(), stack());
    let candidate = tcp.with(|_, socket| Candidate::connecting(socket)).unwrap();
    let descriptors = vec![client.as_raw_fd()];
    let before = Before::nothing(client.as_raw_fd(), true, WhyOs::Attaching);
    let id = kernels::enter(&stack, before.with(Some(Box::new(candidate.clone())))).unwrap();
    let attempt = take_over(&stack, &Plan { id, candidate, descriptors }, &mut Nobody);
    assert_eq!(attempt, Err(Refusal::Never(WhyOs::NoControlPlane)));
    assert!(stack.shard.lock().unwrap().ids().is_empty(), "nothing is left of the attempt");
    // A rule keeps a client's connection with the kernel.
    let ruled = crate::socket::fixture::stack();
    assert!(ruled.config.rules.add("use os tcp_client 127.0.0.0/8:*"));
    let candidate = tcp.with(|_, socket| Candidate::connecting(socket)).unwrap();
    let plan = Plan { id, candidate, descriptors: vec![client.as_raw_fd()] };
    let attempt = take_over(&ruled, &plan, &mut Nobody);
    assert!(matches!(attempt, Err(Refusal::Never(WhyOs::Rule(_)))), "{attempt:?}");
}
