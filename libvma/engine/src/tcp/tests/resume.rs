//! A connection is taken out and resumed, at any moment of any conversation: nothing of it is lost,
//! doubled or taken back.

use core::time::Duration;

use super::properties::{HOUR, any_world, flip, for_seeds};
use super::sim::{End, Open, Part, Rng, World};
use crate::tcp::connection::Resumed;
use crate::tcp::seq::Seq;
use crate::tcp::{Connection, State};
use crate::time::Instant;
use crate::wire::tcp::{Flags, Header};

/// How much of what the first stack knew the second one is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Also what it has measured, and TS.Recent.
    All,
    /// What the peer can see.
    Least,
}

/// What makes up a connection, as another stack would tell it.
fn parts<'a, B>(connection: &'a Connection<B>, told: Told, now: Instant) -> Resumed<'a> {
    let (parts, info) = (connection.transplant(now), connection.info(now));
    let (unacknowledged, unsent) = connection.unacknowledged_bytes();
    let all = told == Told::All;
    Resumed {
        state: parts.state,
        snd_una: parts.snd_una,
        rcv_nxt: parts.rcv_nxt,
        snd_wnd: parts.snd_wnd,
        snd_wl1: parts.snd_wl1,
        max_snd_wnd: parts.max_snd_wnd,
        rcv_wnd: parts.rcv_wnd,
        peer_mss: parts.peer_mss,
        scales: parts.scales,
        sack: parts.sack,
        timestamp: parts.timestamp,
        recent_timestamp: if all { parts.recent_timestamp } else { 0 },
        ecn: info.ecn,
        owes_acknowledgment: true,
        srtt: info.srtt.filter(|_| all),
        rttvar: info.rttvar,
        min_rtt: info.min_rtt,
        cwnd: all.then_some(info.cwnd),
        ssthresh: (all && info.ssthresh != u32::MAX).then_some(info.ssthresh),
        counters: info.counters,
        unacknowledged,
        unsent,
    }
}

/// Takes a side's connection out and puts it in again, if it is in a state that allows that.
fn replace(world: &mut World, at: usize, told: Told) -> bool {
    let now = world.now;
    let side = &mut world.sides[at];
    let Some(old) = side.connection.take() else { return false };
    if !matches!(old.state(), State::Established | State::CloseWait) || old.has_urgent() {
        side.connection = Some(old);
        return false;
    }
    let settings = old.settings().clone();
    let parts = parts(&old, told, now);
    let (before, path) = (old.transplant(now), old.path());
    let mut new = Connection::resume(old.key(), &parts, path, settings, now);
    let after = new.transplant(now);
    assert_eq!(after.state, before.state);
    assert_eq!((after.snd_una, after.snd_nxt), (before.snd_una, before.snd_nxt));
    assert_eq!((after.snd_wnd, after.max_snd_wnd), (before.snd_wnd, before.max_snd_wnd));
    assert_eq!((after.rcv_nxt, after.rcv_wnd), (before.rcv_nxt, before.rcv_wnd));
    assert_eq!((after.scales, after.sack), (before.scales, before.sack));
    assert_eq!(after.timestamp, before.timestamp);
    assert_eq!(after.peer_closed, before.peer_closed);
    assert_eq!(new.unacknowledged_bytes().0.concat(), old.unacknowledged_bytes().0.concat());
    assert_eq!(new.unacknowledged_bytes().1.concat(), old.unacknowledged_bytes().1.concat());
    side.connection = Some(old);
    let mut unread = Vec::new();
    side.call(now, |old, _| {
        let bytes = old.pieces().map(|piece| {
            let from = piece.offset as usize;
            piece.body.bytes[from..from + piece.len as usize].to_vec()
        });
        unread = bytes.collect();
    });
    side.drop_connection();
    let bodies: Vec<_> = unread.into_iter().map(|bytes| side.body(bytes)).collect();
    side.connection = Some({
        for body in bodies {
            let len = body.bytes.len() as u32;
            side.put(&mut new, |new, port| new.resume_unread(body, len, port));
        }
        new
    });
    side.call(now, |new, port| new.output(now, port));
    world.carry();
    true
}

/// The windows that a side announces never move back, but by what rounding takes (RFC 7323 section
/// 2.4), and its time stamps never do.
fn check_announcements(world: &World, side: usize) {
    let (mut scale, mut edge, mut stamp) = (0, None::<Seq>, None::<u32>);
    let scales = world.sides.iter().all(|side| side.settings.window_scaling);
    for (_, from, bytes) in world.transcript.iter().flatten() {
        let Ok((header, _)) = Header::parse(bytes, bytes.len()) else { continue };
        if *from != side || header.flags.contains(Flags::RST) {
            continue;
        }
        let is_syn = header.flags.contains(Flags::SYN);
        if is_syn {
            scale = header.options.window_scale.filter(|_| scales).unwrap_or(0);
        }
        if let Some(stamps) = header.options.timestamps {
            assert!(stamp.is_none_or(|before| stamps.value.wrapping_sub(before) as i32 >= 0));
            stamp = Some(stamps.value);
        }
        if header.flags.contains(Flags::ACK) {
            let scale = if is_syn { 0 } else { u32::from(scale) };
            let now = Seq::new(header.ack).plus(u32::from(header.window) << scale);
            let least = edge.map_or(now, |before| before.minus((1 << scale) - 1));
            assert!(now >= least, "the window of side {side} shrinks by {}", least.since(now));
            edge = Some(edge.map_or(now, |before| before.max(now)));
        }
    }
}

fn converse(seed: u64, times: u64, told: Told) -> u64 {
    let (open, mut parts, mut rng) = any_world(seed);
    for part in &mut parts {
        part.plan.urgent = 0;
    }
    let mut world = World::new(seed, open, parts);
    world.transcript = Some(Vec::new());
    let refusals = if rng.chance(200_000) { 200_000 } else { 0 };
    world.sides.iter_mut().for_each(|side| side.refusals = refusals);
    let end = world.now.saturating_add(4 * HOUR);
    let every = 1 + rng.below(200);
    let (mut steps, mut replaced) = (0u64, 0u64);
    while !world.is_over() {
        steps += 1;
        if steps.is_multiple_of(every) && replaced < times {
            let side = rng.below(2) as usize;
            replaced += u64::from(replace(&mut world, side, told));
        }
        let more = world.step();
        if !more || world.now > end {
            world.dump();
            panic!("not over, and {}", if more { "busy" } else { "nothing to do" });
        }
    }
    world.check_delivered();
    check_announcements(&world, 0);
    check_announcements(&world, 1);
    replaced
}

#[test]
fn a_resumed_conversation_loses_nothing() {
    let replaced = core::cell::Cell::new(0);
    for_seeds(60, |seed| {
        let told = if seed % 2 == 0 { Told::All } else { Told::Least };
        replaced.set(replaced.get() + converse(seed, 1 + seed % 7, told));
    });
    assert!(replaced.get() > 50, "{} connections were resumed", replaced.get());
}

/// A transfer over a lossless path goes on at its rate: nothing that was in flight is sent again.
#[test]
fn nothing_is_sent_again_without_a_loss() {
    for_seeds(20, |seed| {
        let mut rng = Rng::new(seed);
        let delay = Duration::from_micros(50 + rng.below(20_000));
        let mut parts = [Part::bulk(3_000_000, delay), Part::bulk(0, delay)];
        // The sender's program is not done yet, nor is the reader's.
        parts[0].settings.send_buffer.automatic = false;
        parts[1].plan.end = End::CloseAfterPeer;
        let mut world = World::new(seed, Open::Passive, parts);
        let at = 100_000 + rng.below(2_000_000);
        world.run_until(HOUR, |world| world.sides[1].program.read > at);
        let in_order = world.sides[1].connection.as_ref();
        assert_eq!(in_order.map(|it| it.counters().out_of_order), Some(0));
        let side = usize::from(flip(&mut rng));
        assert!(replace(&mut world, side, Told::All));
        world.run(HOUR);
        let sender = world.sides[0].connection.as_ref();
        assert_eq!(sender.map_or(0, |it| it.counters().retransmissions), 0);
        world.check_delivered();
    });
}

/// Everything that was out is lost: the retransmission timer brings it back.
#[test]
fn what_was_in_flight_is_sent_again_if_it_was_lost() {
    for_seeds(20, |seed| {
        let delay = Duration::from_millis(5);
        let mut parts = [Part::bulk(400_000, delay), Part::bulk(0, delay)];
        parts[0].settings.send_buffer.automatic = false;
        let mut world = World::new(seed, Open::Passive, parts);
        world.run_until(HOUR, |world| world.sides[1].program.read > 100_000);
        while world.wires[0].receive(Instant::from_nanos(u64::MAX)).is_some() {}
        assert!(replace(&mut world, 0, if seed % 2 == 0 { Told::All } else { Told::Least }));
        world.run(Duration::from_secs(30));
        world.check_delivered();
    });
}
