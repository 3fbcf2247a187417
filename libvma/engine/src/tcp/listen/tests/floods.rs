//! More half-open requests than there is room for: SYN cookies, and clients that come together.

use super::*;

/// A listener whose SYN queue is full.
fn flooded(settings: ListenSettings) -> Host {
    let mut host = Host::new(16, ListenSettings { least_requests: 8, ..settings });
    for port in 1..=16 {
        host.open(0, port, syn());
    }
    host
}

#[test]
fn a_full_syn_queue_without_cookies_drops() {
    let mut host = flooded(ListenSettings { syn_cookies: false, ..ListenSettings::default() });
    host.is_dropped(1, 40_000, syn(), DropReason::RequestQueueFull);
    host.listener.set_backlog(17);
    host.open(2, 40_000, syn());
}

#[test]
fn a_small_backlog_leaves_room_for_some_handshakes() {
    let mut host = Host::new(0, ListenSettings { syn_cookies: false, ..ListenSettings::default() });
    for port in 1..=1024 {
        host.open(0, port, syn());
    }
    host.is_dropped(1, 1025, syn(), DropReason::RequestQueueFull);
}

/// So many as a server's thread finds in the ring when it comes back from its work.
#[test]
fn clients_that_come_together_beyond_the_backlog_all_get_in() {
    let mut host = Host::new(2, ListenSettings::default());
    let acks: Vec<_> = (1..=40).map(|port| ack_of(&host.open(0, port, syn()))).collect();
    let mut waiting = Vec::new();
    for (port, ack) in (1..).zip(acks) {
        match host.give(1, port, ack, 0) {
            Verdict::Established(_) => host.listener.push_accepted(u32::from(port)),
            Verdict::Drop(DropReason::ListenOverflow) => waiting.push((port, ack)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(host.listener.accepted_len(), 3);
    while host.listener.pop_accepted().is_some() {}
    // Servers that speak first: these clients send nothing but an answer to the next SYN-ACK.
    assert_eq!(host.run(2, 1000).len(), waiting.len());
    for (port, ack) in waiting {
        established(host.give(1001, port, ack, 0));
    }
}

#[test]
fn cookies_keep_the_options_where_there_are_time_stamps() {
    let mut host = flooded(ListenSettings::default());
    let asked = Header { flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR), ..syn() };
    let syn_ack = host.open(1, 40_000, asked);
    assert_eq!(host.listener.len(), 16, "nothing is kept");
    assert_eq!(syn_ack.options.window_scale, Some(7));
    assert!(syn_ack.options.sack_permitted && syn_ack.flags.contains(Flags::ECE));
    let request = established(host.give(50, 40_000, ack_of(&syn_ack), 0));
    assert_eq!((request.irs.raw(), request.iss.raw()), (IRS, syn_ack.seq));
    assert_eq!((request.peer_mss, request.window_scale), (1400, Some(9)));
    assert!(request.sack_permitted && request.timestamps && request.ecn);
    assert_eq!(request.recent_timestamp, 5010);
    assert!(request.is_from_cookie);

    let syn_ack = host.open(51, 40_001, Header { options: Options::default(), ..asked });
    assert_eq!(syn_ack.options, Options { mss: Some(OUR_MSS), ..Options::default() });
    let mut scaled = plain_syn();
    scaled.options.window_scale = Some(3);
    scaled.options.sack_permitted = true;
    let syn_ack = host.open(52, 40_002, scaled);
    assert_eq!(syn_ack.options, Options { mss: Some(OUR_MSS), ..Options::default() });
    let request = established(host.give(60, 40_002, ack_of(&syn_ack), 0));
    assert_eq!((request.peer_mss, request.window_scale), (536, None));
    assert!(!request.sack_permitted && !request.timestamps && !request.ecn);
}

#[test]
fn forged_late_and_unasked_cookies_are_not_taken() {
    let mut host = flooded(ListenSettings::default());
    let ack = ack_of(&host.open(1, 40_000, syn()));
    for forged in [
        Header { ack: ack.ack.wrapping_add(1), ..ack },
        Header { seq: ack.seq.wrapping_add(1), ..ack },
        Header { flags: Flags::ACK.with(Flags::SYN), ..ack },
    ] {
        assert!(matches!(host.give(2, 40_000, forged, 0), Verdict::NotMine));
    }
    assert!(matches!(host.give(2, 40_001, ack, 0), Verdict::NotMine));
    host.overloaded = true;
    host.is_dropped(2, 40_000, ack, DropReason::ListenOverflow);
    host.overloaded = false;
    assert!(matches!(host.give(128_001, 40_000, ack, 0), Verdict::NotMine));

    // A listener that sent no cookies takes none.
    let mut other = Host::new(16, ListenSettings::default());
    assert!(matches!(other.give(3, 40_000, ack, 0), Verdict::NotMine));
}
