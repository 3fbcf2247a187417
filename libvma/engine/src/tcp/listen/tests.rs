mod floods;

use super::*;
use crate::alloc;
use crate::wire::tcp::{Options, Timestamps};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use proptest::prelude::*;

const START: u64 = 1_000_000_000_000;
const IRS: u32 = 0xffff_ff00;
const OUR_MSS: u16 = 1460;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(START + millis * 1_000_000)
}

fn key(port: u16) -> FlowKey {
    FlowKey {
        local: Ipv4Addr::new(10, 0, 0, 1),
        local_port: 80,
        remote: Ipv4Addr::new(10, 0, 0, 2),
        remote_port: port,
    }
}

/// A listener, its secret, and the peer's side of the conversation.
struct Host {
    listener: Listener,
    secret: Secret,
    overloaded: bool,
}

impl Host {
    fn new(backlog: u32, settings: ListenSettings) -> Host {
        let listener = Listener::new(settings, backlog, 42, at(0));
        Host { listener, secret: Secret::new([3; 32]), overloaded: false }
    }

    fn give(&mut self, millis: u64, port: u16, header: Header, payload_len: u32) -> Verdict {
        let context = Context {
            secret: &self.secret,
            our_mss: OUR_MSS,
            ecn: EcnField::NotCapable,
            accept_queue_full: self.overloaded,
        };
        self.listener.on_segment(at(millis), key(port), &header, payload_len, &context)
    }

    /// Gives a SYN and returns the SYN-ACK.
    fn open(&mut self, millis: u64, port: u16, syn: Header) -> Header {
        reply(self.give(millis, port, syn, 0))
    }

    /// Lets time pass up to and including `millis`, in steps that a poll loop would take; returns
    /// when a segment was sent, and which.
    fn run(&mut self, from: u64, millis: u64) -> Vec<(u64, Header)> {
        let mut sent = Vec::new();
        for now in from..=millis {
            self.listener.on_timer(at(now), |_, header| sent.push((now, header)));
        }
        sent
    }

    fn is_dropped(&mut self, millis: u64, port: u16, header: Header, reason: DropReason) {
        match self.give(millis, port, header, 0) {
            Verdict::Drop(dropped) => assert_eq!(dropped, reason),
            other => panic!("{other:?}"),
        }
    }
}

fn reply(verdict: Verdict) -> Header {
    match verdict {
        Verdict::Reply(header) => header,
        other => panic!("{other:?}"),
    }
}

fn established(verdict: Verdict) -> Request {
    match verdict {
        Verdict::Established(request) => request,
        other => panic!("{other:?}"),
    }
}

fn segment(flags: Flags, seq: u32) -> Header {
    Header { src_port: 40_000, dst_port: 80, seq, flags, window: 64_240, ..Header::default() }
}

fn plain_syn() -> Header {
    segment(Flags::SYN, IRS)
}

/// The window that a SYN-ACK announces for a buffer of 64 KiB: the buffer less one segment, here the kernel's, which is the longer one.
const WINDOW: u16 = 65_535 - HANDED_SEGMENT;

fn syn() -> Header {
    let options = Options {
        mss: Some(1400),
        window_scale: Some(9),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 5000, echo: 0 }),
        ..Options::default()
    };
    Header { options, ..plain_syn() }
}

/// The third segment of the handshake.
fn ack_of(syn_ack: &Header) -> Header {
    let timestamps = syn_ack
        .options
        .timestamps
        .map(|stamp| Timestamps { value: stamp.echo.wrapping_add(10), echo: stamp.value });
    Header {
        ack: syn_ack.seq.wrapping_add(1),
        options: Options { timestamps, ..Options::default() },
        ..segment(Flags::ACK, syn_ack.ack)
    }
}

#[test]
fn a_handshake_makes_a_request_with_what_was_agreed() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, syn());
    assert_eq!((syn_ack.src_port, syn_ack.dst_port), (80, 40_000));
    assert_eq!(syn_ack.flags, Flags::SYN.with(Flags::ACK));
    assert_eq!(syn_ack.ack, IRS.wrapping_add(1));
    assert_eq!(syn_ack.window, WINDOW);
    assert_eq!((syn_ack.options.mss, syn_ack.options.window_scale), (Some(OUR_MSS), Some(7)));
    assert!(syn_ack.options.sack_permitted);
    assert_eq!(syn_ack.options.timestamps.map(|stamp| stamp.echo), Some(5000));
    assert_eq!(host.listener.len(), 1);

    let request = established(host.give(30, 40_000, ack_of(&syn_ack), 100));
    assert_eq!((request.irs.raw(), request.iss.raw()), (IRS, syn_ack.seq));
    assert_eq!((request.peer_mss, request.our_mss), (1400, OUR_MSS));
    assert_eq!((request.window, request.announced_window), (64_240, WINDOW.into()));
    assert_eq!((request.window_scale, request.our_window_scale), (Some(9), 7));
    assert!(request.sack_permitted && request.timestamps && !request.ecn);
    assert_eq!(request.recent_timestamp, 5010);
    let value = syn_ack.options.timestamps.unwrap().value;
    assert_eq!(value, request.timestamp_offset.wrapping_add(timestamp_clock(at(0))));
    assert_eq!((request.created, request.retransmissions), (at(0), 0));
    assert!(host.listener.is_empty() && host.listener.deadline().is_none());
}

#[test]
fn nothing_is_offered_that_was_not_asked_for_or_is_switched_off() {
    let off = ListenSettings {
        sack: false,
        timestamps: false,
        window_scaling: false,
        ecn: false,
        ..ListenSettings::default()
    };
    let ecn_syn =
        |header: Header| Header { flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR), ..header };
    for (settings, asked) in [(ListenSettings::default(), plain_syn()), (off, ecn_syn(syn()))] {
        let mut host = Host::new(4, settings);
        let syn_ack = host.open(0, 40_000, asked);
        assert_eq!(syn_ack.options, Options { mss: Some(OUR_MSS), ..Options::default() });
        assert_eq!(syn_ack.flags, Flags::SYN.with(Flags::ACK));
        let request = established(host.give(1, 40_000, ack_of(&syn_ack), 0));
        assert!(request.window_scale.is_none() && !request.timestamps);
        assert!(!request.sack_permitted && !request.ecn);
        assert_eq!(request.peer_mss, asked.options.mss.unwrap_or(536));
    }
    // RFC 3168 section 6.1.1: ECE and CWR ask, ECE answers; ECE alone does not ask.
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, ecn_syn(plain_syn()));
    assert_eq!(syn_ack.flags, Flags::SYN.with(Flags::ACK).with(Flags::ECE));
    assert!(established(host.give(1, 40_000, ack_of(&syn_ack), 0)).ecn);
    let syn_ack = host.open(0, 40_001, segment(Flags::SYN.with(Flags::ECE), IRS));
    assert_eq!(syn_ack.flags, Flags::SYN.with(Flags::ACK));
}

#[test]
fn listen_answers_only_syns_and_leaves_acks_to_the_caller() {
    let mut host = Host::new(4, ListenSettings::default());
    let (syn, ack, rst) = (Flags::SYN, Flags::ACK, Flags::RST);
    for flags in [rst, rst.with(ack), rst.with(syn)] {
        host.is_dropped(0, 1, segment(flags, 7), DropReason::StrayReset);
    }
    for flags in [ack, ack.with(syn), ack.with(Flags::FIN)] {
        assert!(matches!(host.give(0, 1, segment(flags, 7), 0), Verdict::NotMine));
    }
    for flags in [Flags::NONE, Flags::FIN, Flags::PSH, syn.with(Flags::FIN)] {
        host.is_dropped(0, 1, segment(flags, 7), DropReason::BadTcpFlags);
    }
    assert!(host.listener.is_empty());
}

#[test]
fn a_repeated_syn_gets_the_same_answer_again() {
    let mut host = Host::new(4, ListenSettings::default());
    let first = host.open(0, 40_000, syn());
    let mut again = syn();
    again.options.timestamps = Some(Timestamps { value: 5900, echo: 0 });
    let second = host.open(900, 40_000, again);
    assert_eq!((second.seq, second.ack, second.flags), (first.seq, first.ack, first.flags));
    // RFC 7323 section 4.3: the later TSval is echoed, so that the peer measures this round trip.
    assert_eq!(second.options.timestamps.map(|stamp| stamp.echo), Some(5900));
    host.is_dropped(950, 40_000, again, DropReason::AckRateLimit);
    assert_eq!(host.listener.len(), 1);
    // The timer starts again with the answer.
    let sent = host.run(950, 1901);
    assert_eq!(sent.iter().map(|(now, _)| *now).collect::<Vec<_>>(), [1900]);
    let request = established(host.give(1950, 40_000, ack_of(&second), 0));
    assert_eq!(request.retransmissions, 2);
}

#[test]
fn syn_acks_are_sent_again_with_doubled_pauses_and_then_given_up() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, syn());
    assert!(host.listener.deadline().unwrap() <= at(1000));
    let sent = host.run(0, 62_999);
    let times: Vec<_> = sent.iter().map(|(now, _)| *now).collect();
    assert_eq!(times, [1000, 3000, 7000, 15_000, 31_000]);
    for (now, header) in &sent {
        assert_eq!(
            (header.seq, header.ack, header.flags),
            (syn_ack.seq, syn_ack.ack, syn_ack.flags)
        );
        let elapsed =
            header.options.timestamps.unwrap().value - syn_ack.options.timestamps.unwrap().value;
        assert_eq!(u64::from(elapsed), *now);
    }
    assert_eq!(host.listener.len(), 1);
    assert!(host.run(63_000, 63_000).is_empty());
    assert!(host.listener.is_empty());
    assert!(matches!(host.give(63_001, 40_000, ack_of(&syn_ack), 0), Verdict::NotMine));
}

#[test]
fn only_the_exact_reset_ends_a_request() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, syn());
    let next = syn_ack.ack;
    for seq in [next.wrapping_sub(1), next.wrapping_add(WINDOW.into())] {
        host.is_dropped(1, 40_000, segment(Flags::RST, seq), DropReason::StrayReset);
    }
    let challenge = reply(host.give(2, 40_000, segment(Flags::RST, next.wrapping_add(1)), 0));
    assert_eq!((challenge.flags, challenge.seq), (Flags::ACK, syn_ack.seq.wrapping_add(1)));
    assert_eq!((challenge.ack, challenge.window), (next, WINDOW >> 7));
    let guess = segment(Flags::RST, next.wrapping_add(1));
    host.is_dropped(3, 40_000, guess, DropReason::AckRateLimit);
    assert_eq!(host.listener.len(), 1);
    host.is_dropped(4, 40_000, segment(Flags::RST, next), DropReason::RequestReset);
    assert!(host.listener.is_empty());
}

#[test]
fn another_syn_is_challenged_outside_the_window_and_ends_the_request_inside() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, plain_syn());
    let far = segment(Flags::SYN, IRS.wrapping_add(1 << 30));
    let challenge = reply(host.give(1, 40_000, far, 0));
    assert_eq!((challenge.flags, challenge.ack), (Flags::ACK, syn_ack.ack));
    assert_eq!(challenge.window, WINDOW);
    let near = segment(Flags::SYN, IRS.wrapping_add(100));
    host.is_dropped(2, 40_000, near, DropReason::RequestReset);
    assert_eq!(host.open(3, 40_000, near).ack, IRS.wrapping_add(101));
}

#[test]
fn an_ack_of_something_else_is_reset_and_the_request_stays() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, plain_syn());
    for wrong in [syn_ack.seq, syn_ack.seq.wrapping_add(2)] {
        let ack = Header { ack: wrong, ..ack_of(&syn_ack) };
        match host.give(1, 40_000, ack, 10) {
            Verdict::Reset(reset) => {
                assert_eq!((reset.flags, reset.seq), (Flags::RST, wrong));
                assert_eq!((reset.src_port, reset.dst_port), (80, 40_000));
            }
            other => panic!("{other:?}"),
        }
    }
    established(host.give(2, 40_000, ack_of(&syn_ack), 0));
}

#[test]
fn unacceptable_segments_are_acknowledged() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, plain_syn());
    let ack = ack_of(&syn_ack);
    let beyond = Header { seq: ack.seq.wrapping_add(WINDOW.into()), ..ack };
    // Text is answered each time, bare ACKs now and then.
    assert_eq!(reply(host.give(1, 40_000, beyond, 10)).ack, syn_ack.ack);
    assert_eq!(reply(host.give(2, 40_000, beyond, 10)).ack, syn_ack.ack);
    assert_eq!(reply(host.give(3, 40_000, beyond, 0)).ack, syn_ack.ack);
    host.is_dropped(4, 40_000, beyond, DropReason::AckRateLimit);
    assert_eq!(reply(host.give(504, 40_000, beyond, 0)).ack, syn_ack.ack);
    // Text that begins before the window and reaches into it is acceptable, and so is text ahead.
    let overlapping = Header { seq: IRS.wrapping_sub(3), ..ack };
    established(host.give(505, 40_000, overlapping, 5));
    let syn_ack = host.open(600, 40_001, plain_syn());
    let ahead = Header { seq: syn_ack.ack.wrapping_add(1400), ..ack_of(&syn_ack) };
    established(host.give(601, 40_001, ahead, 100));
}

#[test]
fn a_segment_without_ack_is_dropped() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, plain_syn());
    host.is_dropped(1, 40_000, segment(Flags::PSH, syn_ack.ack), DropReason::BadTcpFlags);
    let both = segment(Flags::SYN.with(Flags::FIN), IRS);
    host.is_dropped(1, 40_000, both, DropReason::BadTcpFlags);
}

#[test]
fn old_time_stamps_are_refused_except_with_resets() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, syn());
    let mut old = ack_of(&syn_ack);
    old.options.timestamps = Some(Timestamps { value: 4999, echo: 0 });
    assert_eq!(reply(host.give(1, 40_000, old, 0)).ack, syn_ack.ack);
    let rst = Header { flags: Flags::RST, ..old };
    host.is_dropped(2, 40_000, rst, DropReason::RequestReset);
}

#[test]
fn the_accept_queue_holds_one_more_than_the_backlog() {
    let mut host = Host::new(1, ListenSettings::default());
    let acks: Vec<_> = (1..=3).map(|port| ack_of(&host.open(0, port, syn()))).collect();
    for (port, ack) in (1..=2).zip(&acks) {
        established(host.give(1, port, *ack, 0));
        host.listener.push_accepted(u32::from(port));
    }
    assert!(host.listener.is_readable());
    // The third handshake does not end, and no fourth begins.
    host.is_dropped(2, 3, acks[2], DropReason::ListenOverflow);
    host.is_dropped(2, 4, syn(), DropReason::ListenOverflow);
    assert_eq!(host.listener.len(), 1);
    // The SYN-ACK is sent again, and the peer's answer to it succeeds when there is room.
    assert_eq!(host.run(2, 1000).len(), 1);
    assert_eq!(host.listener.pop_accepted(), Some(1));
    let request = established(host.give(1001, 3, acks[2], 0));
    assert_eq!(request.retransmissions, 1);
    host.listener.push_accepted(3);
    assert!(host.listener.remove_accepted(2) && !host.listener.remove_accepted(2));
    assert_eq!(host.listener.pop_accepted(), Some(3));
    assert!(!host.listener.is_readable());
    assert_eq!(host.listener.pop_accepted(), None);
}

#[test]
fn a_connection_that_is_put_back_is_the_next_one() {
    let mut host = Host::new(2, ListenSettings::default());
    host.listener.push_accepted(1);
    host.listener.push_accepted(2);
    assert_eq!(host.listener.pop_accepted(), Some(1));
    host.listener.put_back_accepted(1);
    assert_eq!(host.listener.pop_accepted(), Some(1));
    assert_eq!(host.listener.pop_accepted(), Some(2));
}

#[test]
fn the_caller_can_refuse_connections_too() {
    let mut host = Host::new(1, ListenSettings::default());
    let ack = ack_of(&host.open(0, 1, syn()));
    host.overloaded = true;
    host.is_dropped(1, 1, ack, DropReason::ListenOverflow);
    host.is_dropped(1, 2, syn(), DropReason::ListenOverflow);
}

#[test]
fn deferred_accept_waits_for_data() {
    let settings =
        ListenSettings { defer_accept: Some(Duration::from_secs(3)), ..ListenSettings::default() };
    let mut host = Host::new(4, settings);
    let ack = ack_of(&host.open(0, 40_000, syn()));
    host.is_dropped(1, 40_000, ack, DropReason::DeferAccept);
    established(host.give(2, 40_000, ack, 1));
    // FIN counts as something to read.
    let ack = ack_of(&host.open(2, 40_001, syn()));
    let fin = Header { flags: Flags::ACK.with(Flags::FIN), ..ack };
    established(host.give(3, 40_001, fin, 0));
}

#[test]
fn deferred_accept_ends_with_a_last_chance() {
    let settings =
        ListenSettings { defer_accept: Some(Duration::from_secs(3)), ..ListenSettings::default() };
    let mut host = Host::new(4, settings);
    let ack = ack_of(&host.open(0, 40_000, syn()));
    host.is_dropped(1, 40_000, ack, DropReason::DeferAccept);
    // 3 s are two timeouts: the first is silent, at the second the peer is asked again.
    let sent = host.run(1, 3000);
    assert_eq!(sent.iter().map(|(now, _)| *now).collect::<Vec<_>>(), [3000]);
    established(host.give(3001, 40_000, ack, 0));

    // A peer that says nothing at all is asked from the start.
    host.open(4000, 40_001, syn());
    assert_eq!(host.run(4000, 7000).len(), 2);
}

#[test]
fn deferral_counts_timeouts_as_linux_does() {
    let mut host = Host::new(1, ListenSettings::default());
    for (seconds, timeouts) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4)] {
        host.listener.settings_mut().defer_accept = Some(Duration::from_secs(seconds));
        assert_eq!(host.listener.deferral(), Some(timeouts), "{seconds} s");
    }
    host.listener.settings_mut().defer_accept = Some(Duration::MAX);
    assert_eq!(host.listener.deferral(), Some(255));
}

// covers: NET-39
#[test]
fn syns_beyond_the_rate_are_dropped_until_the_second_is_over() {
    let settings = ListenSettings { max_syn_rate: 3, ..ListenSettings::default() };
    let mut host = Host::new(100, settings);
    for port in 1..=3 {
        host.open(10, port, syn());
    }
    host.is_dropped(999, 4, syn(), DropReason::SynRate);
    // What belongs to a handshake under way is not counted.
    host.open(999, 1, syn());
    host.open(1000, 4, syn());
}

#[test]
fn an_icmp_error_counts_only_with_the_right_number() {
    let mut host = Host::new(4, ListenSettings::default());
    let iss = Seq::new(host.open(0, 40_000, syn()).seq);
    assert!(!host.listener.on_unreachable(&key(40_000), iss.plus(1)));
    assert!(!host.listener.on_unreachable(&key(40_001), iss));
    assert!(host.listener.on_unreachable(&key(40_000), iss));
    assert!(host.listener.is_empty());
}

#[test]
fn closing_resets_the_half_open_connections() {
    let mut host = Host::new(4, ListenSettings::default());
    let syn_ack = host.open(0, 40_000, syn());
    host.open(0, 40_001, syn());
    let mut resets = Vec::new();
    host.listener.close(|key, header| resets.push((key.remote_port, header)));
    assert_eq!(resets.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [40_000, 40_001]);
    let (_, reset) = &resets[0];
    assert_eq!(reset.flags, Flags::RST.with(Flags::ACK));
    assert_eq!((reset.seq, reset.ack), (syn_ack.seq.wrapping_add(1), syn_ack.ack));
    assert!(host.listener.is_empty() && host.listener.deadline().is_none());
}

#[test]
fn a_request_is_small() {
    assert!(size_of::<Option<Request>>() <= 128, "{}", size_of::<Option<Request>>());
}

proptest! {
    #[test]
    fn no_segments_break_the_bounds(
        segments in prop::collection::vec(
            (0u16..12, any::<u8>(), 0u32..4, 0u32..4, 0u32..3, 0u64..2000, any::<bool>()), 0..200,
        ),
        backlog in 0u32..12,
        defer_seconds in prop::option::of(0u64..10),
    ) {
        let defer_accept = defer_seconds.map(Duration::from_secs);
        let settings = ListenSettings { defer_accept, least_requests: 8, ..Default::default() };
        let mut host = Host::new(backlog, settings);
        let (mut now, mut iss, mut accepted) = (0, 0u32, 0);
        for (port, flags, seq, ack, payload, pause, stamped) in segments {
            now += pause;
            host.listener.on_timer(at(now), |_, _| {});
            let value = 5000 + seq;
            let timestamps = stamped.then_some(Timestamps { value, echo: 0 });
            let header = Header {
                ack: iss.wrapping_add(ack),
                options: Options { timestamps, ..Options::default() },
                // Mostly plausible flags.
                ..segment(Flags::from_bits(flags & 0x17), IRS.wrapping_add(seq))
            };
            match host.give(now, port, header, payload) {
                Verdict::Reply(reply) => {
                    prop_assert!(!reply.flags.contains(Flags::RST));
                    if reply.flags.contains(Flags::SYN) {
                        iss = reply.seq;
                    }
                }
                Verdict::Established(request) => {
                    prop_assert_eq!(request.key, key(port));
                    prop_assert_eq!(Seq::new(header.ack), request.iss.plus(1));
                    host.listener.push_accepted(accepted);
                    accepted += 1;
                }
                Verdict::Reset(reset) => prop_assert!(reset.flags.contains(Flags::RST)),
                Verdict::Drop(_) | Verdict::NotMine => {}
            }
            prop_assert!(host.listener.len() <= backlog.max(8) as usize);
            prop_assert!(accepted <= backlog + 1);
            prop_assert_eq!(host.listener.deadline().is_some(), !host.listener.is_empty());
        }
        // Whatever happened, requests do not live forever.
        for _ in 0..400 {
            now += 1000;
            host.listener.on_timer(at(now), |_, _| {});
        }
        prop_assert!(host.listener.is_empty());
    }
}

#[test]
fn a_first_window_is_the_kernels_for_each_buffer_and_segment() {
    for (buffer, peer_mss, window) in [
        (65_536, 1460, 62_735),
        (6 << 20, 1460, 62_735),
        (65_536, 8960, 65_535 - 8960),
        // Half of it at least: the kernel would not round down to nothing either.
        (65_536, 65_495, 32_767),
        (4096, 1460, 2048),
        (10_000, 536, 7200),
    ] {
        assert_eq!(first_window(buffer, peer_mss), window, "{buffer} {peer_mss}");
    }
}
