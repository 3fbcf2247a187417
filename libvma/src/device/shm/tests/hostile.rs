//! A peer that breaks the layout: it is cut off, and nothing else happens. It writes to the memfd,
//! so that no test needs the mapping.

use super::super::lane::{INLINE, NEAR};
use super::super::record;
use super::super::segment::{CHUNKS, FIRST_SLOT, LANE, PAGE, POSITION, RETURNS, SIZE, SLOT};
use super::*;
use rustix::fd::AsFd;

/// The victim is the taker: it receives by lane 0 and sends by lane 1.
const TO_VICTIM: usize = PAGE;
const FROM_VICTIM: usize = PAGE + LANE;

struct Attack {
    peer: Ring,
    to_victim: LinkId,
    victim: Ring,
    to_peer: LinkId,
    memory: Fd,
    /// What wakes the victim, and what it wakes the peer by.
    bell: Fd,
    bell_of_peer: Fd,
}

impl Attack {
    fn new() -> Attack {
        let mut peer = Ring::open().expect("a ring");
        let mut victim = Ring::open().expect("a ring");
        let made = Segment::create().expect("a segment");
        let memory = duplicate(made.fd());
        let taken = Segment::take(duplicate(made.fd())).expect("the same segment");
        let (bell_of_peer, bell) = (duplicate(made.bell()), duplicate(taken.bell()));
        let to_victim = peer.link(made, Side::Maker, duplicate(bell.as_fd())).expect("a link");
        let to_peer = victim.link(taken, Side::Taker, duplicate(bell_of_peer.as_fd()));
        let to_peer = to_peer.expect("a link");
        Attack { peer, to_victim, victim, to_peer, memory, bell, bell_of_peer }
    }

    fn scribble(&self, offset: usize, bytes: &[u8]) {
        let written = rustix::io::pwrite(&self.memory, bytes, offset as u64);
        assert_eq!(written, Ok(bytes.len()));
    }

    fn set_word(&self, offset: usize, lap: u32, value: u32) {
        self.scribble(offset, &(u64::from(lap) << 32 | u64::from(value)).to_le_bytes());
    }

    /// Writes the record of slot 0 as its first lap has it.
    fn send(&self, kind: u8, len: usize, chunks: &[u16]) {
        let mut bytes = [0; INLINE];
        for (to, chunk) in bytes[NEAR..].chunks_exact_mut(2).zip(chunks) {
            to.copy_from_slice(&chunk.to_le_bytes());
        }
        self.scribble(TO_VICTIM + FIRST_SLOT + 8, &bytes);
        self.set_word(TO_VICTIM + FIRST_SLOT, 1, record::encode(kind, len));
    }

    /// The victim notices, says so once, and is none the worse for it.
    #[track_caller]
    fn must_be_noticed(mut self) {
        match self.victim.receive() {
            Some(Arrival::Broken(link)) => assert_eq!(link, self.to_peer),
            other => panic!("a broken link, not {other:?}"),
        }
        assert!(self.victim.receive().is_none());
        assert!(!self.victim.has_links());
        assert_eq!(send_message(&mut self.victim, self.to_peer, 0, 0), Err(Full));
        assert!(self.victim.allocate(self.to_peer, 60).is_none());
        self.victim.settle();
        assert!(!is_rung(&self.victim));
        self.victim.unlink(self.to_peer);
        let mut friend = Ring::open().expect("a ring");
        let (to_victim, to_friend) = connect(&mut friend, &mut self.victim);
        assert!(send_packet(&mut friend, to_victim, 5, 9000));
        let received = receive_packet(&mut self.victim);
        check_packet(&self.victim, to_friend, &received, 5);
        self.victim.release(received.frame);
        assert!(!self.victim.is_short_of_frames());
    }
}

#[test]
fn a_record_of_another_lap_is_noticed() {
    for lap in [2, 3, u32::MAX, 1 << 31] {
        let attack = Attack::new();
        attack.set_word(TO_VICTIM + FIRST_SLOT, lap, record::encode(0, 60));
        attack.must_be_noticed();
    }
}

#[test]
fn a_length_that_no_record_has_is_noticed() {
    for (kind, len) in
        [(0, 0), (0, 13), (0, MOST_PACKET + 1), (7, MOST_PAYLOAD + 1), (7, 0xff_ffff)]
    {
        let attack = Attack::new();
        attack.send(kind, len, &[]);
        attack.must_be_noticed();
    }
}

#[test]
fn a_chunk_that_is_not_there_is_noticed() {
    for chunks in [[CHUNKS as u16, 0], [0, CHUNKS as u16], [u16::MAX, u16::MAX], [9, 9]] {
        for (kind, len) in [(0, 8000), (7, 8000)] {
            let attack = Attack::new();
            attack.send(kind, len, &chunks);
            attack.must_be_noticed();
        }
    }
}

#[test]
fn a_chunk_that_is_held_is_not_taken_again() {
    let mut attack = Attack::new();
    attack.send(7, 8000, &[3, 4]);
    let Some(Arrival::Message { payload: Some(held), .. }) = attack.victim.receive() else {
        panic!("a message");
    };
    attack.set_word(TO_VICTIM + FIRST_SLOT + SLOT, 1, record::encode(0, 4000));
    attack.scribble(TO_VICTIM + FIRST_SLOT + SLOT + 8 + NEAR, &4u16.to_le_bytes());
    assert!(matches!(attack.victim.receive(), Some(Arrival::Broken(_))));
    // It stays readable, and releasing it is harmless.
    assert_eq!(bytes_of(&attack.victim, &held).len(), 8000);
    attack.victim.release(held.frame);
}

#[test]
fn breaking_while_the_link_is_crowded_leaves_no_trace() {
    for held_before in [24, 25] {
        let mut attack = Attack::new();
        let mut held = Vec::new();
        for seed in 0..held_before {
            send_message(&mut attack.peer, attack.to_victim, seed, MOST_PAYLOAD).expect("room");
            match attack.victim.receive() {
                Some(Arrival::Message { payload, .. }) => held.extend(payload),
                other => panic!("a message, not {other:?}"),
            }
        }
        // 768 chunks are held and not too many; this record adds one and breaks off.
        let slot = TO_VICTIM + FIRST_SLOT + held_before * SLOT;
        attack.set_word(slot, 1, record::encode(7, 8000));
        attack.scribble(slot + 8 + NEAR, &[0xfe, 0x00, 0xff, 0xff]);
        assert!(matches!(attack.victim.receive(), Some(Arrival::Broken(_))));
        assert!(!attack.victim.is_short_of_frames());
        for received in held {
            attack.victim.release(received.frame);
        }
        assert!(!attack.victim.is_short_of_frames());
    }
}

#[test]
fn a_position_that_cannot_be_is_noticed() {
    for position in [1, u64::MAX, 1 << 40, 961] {
        let mut attack = Attack::new();
        attack.scribble(FROM_VICTIM + POSITION, &position.to_le_bytes());
        // It is looked at when the ring seems full, not before.
        let sent = (0..2000)
            .take_while(|_| send_message(&mut attack.victim, attack.to_peer, 0, 1).is_ok());
        let expected = if position == 1 { 961 } else { 960 };
        assert_eq!(sent.count(), expected);
        if position == 1 {
            attack.scribble(FROM_VICTIM + POSITION, &0u64.to_le_bytes());
            assert_eq!(send_message(&mut attack.victim, attack.to_peer, 0, 1), Err(Full));
        }
        attack.must_be_noticed();
    }
}

#[test]
fn a_chunk_that_was_not_lent_cannot_come_back() {
    for (lap, chunk) in [(1, 1), (1, CHUNKS as u32), (1, u32::MAX), (2, 0), (u32::MAX, 0)] {
        let mut attack = Attack::new();
        send_message(&mut attack.victim, attack.to_peer, 0, 4096).expect("room");
        attack.set_word(FROM_VICTIM + RETURNS, lap, chunk);
        // It is looked at when many chunks are wanted.
        assert_eq!(send_message(&mut attack.victim, attack.to_peer, 0, MOST_PAYLOAD), Err(Full));
        attack.must_be_noticed();
    }
    // Neither can one that came back already.
    let mut attack = Attack::new();
    send_message(&mut attack.victim, attack.to_peer, 0, 4096).expect("room");
    attack.set_word(FROM_VICTIM + RETURNS, 1, 0);
    attack.set_word(FROM_VICTIM + RETURNS + 8, 1, 0);
    assert_eq!(attack.victim.room(attack.to_peer), 0);
    attack.must_be_noticed();
}

#[test]
fn a_packet_under_construction_is_dropped_with_its_link() {
    let mut attack = Attack::new();
    let frame = attack.victim.allocate(attack.to_peer, 9000).expect("room");
    attack.send(0, 1, &[]);
    assert!(matches!(attack.victim.receive(), Some(Arrival::Broken(_))));
    attack.victim.write(&frame, |_, piece| piece.fill(1));
    attack.victim.transmit(frame);
    assert_eq!(attack.victim.unsent(), 0);
    assert!(attack.peer.receive().is_none());
}

#[test]
fn scribbling_at_random_breaks_the_link_at_worst() {
    for seed in 1..=200u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let Attack { mut peer, to_victim, mut victim, to_peer, memory, .. } = Attack::new();
        let mut held = Vec::new();
        let mut is_broken = false;
        for _ in 0..300 {
            match random.below(8) {
                0 => scribble_at_random(&memory, &mut random),
                1 | 2 => {
                    let len = 14 + random.below(9000);
                    send_packet(&mut peer, to_victim, 0, len);
                }
                3 => {
                    let _ = send_message(&mut peer, to_victim, 0, random.below(70_000));
                }
                4 => match victim.receive() {
                    Some(Arrival::Packet(received)) => held.push(received),
                    Some(Arrival::Message { payload, .. }) => held.extend(payload),
                    Some(Arrival::Broken(link)) => {
                        assert!(!is_broken && link == to_peer);
                        is_broken = true;
                    }
                    Some(Arrival::Relief(_)) | None => {}
                },
                5 => {
                    let len = 14 + random.below(70_000);
                    assert!(!send_packet(&mut victim, to_peer, 0, len) || !is_broken);
                }
                6 if !held.is_empty() => {
                    let received: Received = held.swap_remove(random.below(held.len()));
                    assert_eq!(bytes_of(&victim, &received).len(), received.len as usize);
                    victim.release(received.frame);
                }
                _ => {
                    victim.settle();
                    victim.kick();
                    // What the peer's own ring makes of it is no matter.
                    while let Some(arrival) = peer.receive() {
                        if let Arrival::Packet(received) = arrival {
                            peer.release(received.frame);
                        }
                    }
                }
            }
        }
        victim.unlink(to_peer);
        for received in held {
            victim.release(received.frame);
        }
        assert!(!victim.is_short_of_frames());
    }
}

/// Mostly into the words that mean something.
fn scribble_at_random(memory: &Fd, random: &mut Random) {
    let lane = PAGE + random.below(2) * LANE;
    let offset = match random.below(4) {
        0 => random.below(SIZE / 8) * 8,
        1 => lane + random.below(3) * 128,
        2 => lane + FIRST_SLOT + random.below(64) * SLOT + random.below(16) * 8,
        _ => lane + RETURNS + random.below(64) * 8,
    };
    let value = match random.below(3) {
        0 => random.next(),
        1 => random.next() & 0x0000_0003_ffff_ffff,
        _ => 1 << 32 | random.next() & 0x03ff,
    };
    let written = rustix::io::pwrite(memory, &value.to_le_bytes(), offset as u64);
    assert_eq!(written, Ok(8));
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The open file is the peer's as well: it may block, be full, be shut down. All of it in one
/// thread: a call that waited would never return.
#[test]
fn a_spoilt_bell_stops_nobody() {
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::net::{SendFlags, Shutdown, send, shutdown};
    for is_full in [false, true] {
        let Attack { mut peer, mut victim, to_peer, bell, bell_of_peer, .. } = Attack::new();
        peer.settle();
        let mut friend = Ring::open().expect("a ring");
        let (to_victim, to_friend) = connect(&mut friend, &mut victim);
        for end in [&bell, &bell_of_peer] {
            fcntl_setfl(end, OFlags::empty()).expect("fcntl");
            while is_full && send(end, &[7; 999], SendFlags::DONTWAIT).is_ok() {}
            shutdown(end, Shutdown::Both).expect("shutdown");
        }
        // A full one rings for a while, and it is the only one that does.
        for _ in 0..1000 {
            victim.settle();
        }
        assert!(!is_rung(&victim));
        send_message(&mut victim, to_peer, 1, 8).expect("room");
        victim.kick();
        assert_eq!(victim.counters(to_peer).bells, 1);
        // And a friend still wakes it.
        assert!(send_packet(&mut friend, to_victim, 5, 60));
        friend.kick();
        assert!(is_rung(&victim));
        let received = receive_packet(&mut victim);
        check_packet(&victim, to_friend, &received, 5);
        victim.release(received.frame);
    }
}

#[test]
fn a_link_that_broke_is_not_heard_any_more() {
    let mut attack = Attack::new();
    attack.victim.settle();
    attack.send(0, 1, &[]);
    assert!(matches!(attack.victim.receive(), Some(Arrival::Broken(_))));
    attack.victim.settle();
    crate::sys::unix_socket::ring(&attack.bell);
    assert!(!is_rung(&attack.victim));
}
