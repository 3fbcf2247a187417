//! A hostile peer that scribbles over the memory it shares with us while we receive, send and
//! release: it breaks its own link at worst. The other end is an ordinary ring, so that there is
//! something sensible to spoil.
#![no_main]

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use vma::device::Received;
use vma::device::shm::{Arrival, LinkId, Rank, Ring, Segment, Side};
use vma::sys::Fd;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Eight bytes anywhere.
    Scribble {
        word: u32,
        value: u64,
    },
    /// The words that everything hangs on: control words, positions, returned chunks.
    Aim {
        lane: bool,
        target: Target,
        lap: u8,
        value: u32,
    },
    PeerPacket {
        len: u16,
        fill: u8,
    },
    PeerMessage {
        len: u16,
        kind: u8,
    },
    PeerReceives,
    Packet {
        len: u16,
    },
    Message {
        len: u32,
        kind: u8,
        rank: u8,
    },
    Receive,
    Release {
        which: u8,
    },
    Settle,
    Kick,
    Room,
}

#[derive(Arbitrary, Debug)]
enum Target {
    Shared { word: u8 },
    Slot { number: u16, word: u8 },
    Return { number: u16 },
}

/// The layout, as device/shm/segment.rs has it. Were it another one, only the aim would be worse.
const PAGE: u64 = 4096;
const RETURNS: u64 = PAGE + 1024 * 128;
const LANE: u64 = RETURNS + 1024 * 8 + 1024 * 4096;

fuzz_target!(|steps: Vec<Step>| {
    let mut peer = Ring::open().expect("a ring");
    let mut ours = Ring::open().expect("a ring");
    let made = Segment::create().expect("a segment");
    let taken = Segment::take(duplicate(made.fd())).expect("the same segment");
    let memory = File::from(made.fd().try_clone_to_owned().expect("dup"));
    let size = memory.metadata().expect("fstat").len();
    let (our_bell, bell_of_peer) = (duplicate(taken.bell()), duplicate(made.bell()));
    let to_us = peer.link(made, Side::Maker, our_bell).expect("a link");
    let to_peer = ours.link(taken, Side::Taker, bell_of_peer).expect("a link");

    let mut held: Vec<Received> = Vec::new();
    let mut is_broken = false;
    for step in &steps {
        match *step {
            Step::Scribble { word, value } => {
                let offset = u64::from(word) % (size / 8) * 8;
                memory.write_all_at(&value.to_le_bytes(), offset).expect("pwrite");
            }
            Step::Aim { lane, ref target, lap, value } => {
                let word = u64::from(lap) << 32 | u64::from(value);
                let offset = PAGE + u64::from(lane) * LANE + offset(target);
                memory.write_all_at(&word.to_le_bytes(), offset).expect("pwrite");
            }
            Step::PeerPacket { len, fill } => send_packet(&mut peer, to_us, len.into(), fill),
            Step::PeerMessage { len, kind } => {
                let _ = peer.send_message(to_us, kind, [7; 3], len.into(), Rank::Urgent, |piece| {
                    piece.fill(kind);
                });
            }
            Step::PeerReceives => {
                while let Some(arrival) = peer.receive() {
                    if let Some(received) = carried(arrival) {
                        peer.release(received.frame);
                    }
                }
            }
            Step::Packet { len } => send_packet(&mut ours, to_peer, len.into(), 1),
            Step::Message { len, kind, rank } => {
                let len = len as usize % 140_000;
                let mut filled = 0;
                let rank = [Rank::Usual, Rank::Promised, Rank::Urgent][usize::from(rank) % 3];
                let sent = ours.send_message(to_peer, kind, [1; 3], len, rank, |piece| {
                    piece.fill(2);
                    filled += piece.len();
                });
                assert!(sent.is_err() || (filled == len && !is_broken));
            }
            Step::Receive => match ours.receive() {
                Some(Arrival::Broken(link)) => {
                    assert!(link == to_peer && !is_broken);
                    is_broken = true;
                }
                Some(arrival) => {
                    assert!(!is_broken);
                    held.extend(carried(arrival));
                }
                None => {}
            },
            Step::Release { which } if !held.is_empty() => {
                let received = held.swap_remove(usize::from(which) % held.len());
                let len: usize = ours.pieces(&received.frame).map(read).sum();
                assert_eq!(len, received.len as usize);
                ours.release(received.frame);
            }
            Step::Release { .. } => {}
            Step::Settle => ours.settle(),
            Step::Kick => ours.kick(),
            Step::Room => assert!(ours.room(to_peer) <= 131_072),
        }
    }
    ours.unlink(to_peer);
    assert!(ours.receive().is_none() && !ours.has_links());
    for received in held {
        ours.release(received.frame);
    }
    assert!(!ours.is_short_of_frames());
});

fn offset(target: &Target) -> u64 {
    match *target {
        Target::Shared { word } => u64::from(word) % 3 * 128,
        Target::Slot { number, word } => {
            PAGE + u64::from(number) % 1024 * 128 + u64::from(word) % 16 * 8
        }
        Target::Return { number } => RETURNS + u64::from(number) % 1024 * 8,
    }
}

fn send_packet(ring: &mut Ring, link: LinkId, len: usize, fill: u8) {
    if let Some(frame) = ring.allocate(link, len) {
        ring.write(&frame, |_, piece| piece.fill(fill));
        ring.transmit(frame);
    }
}

fn carried(arrival: Arrival) -> Option<Received> {
    match arrival {
        Arrival::Packet(received) => Some(received),
        Arrival::Message { payload, .. } => payload,
        Arrival::Relief(_) | Arrival::Broken(_) => None,
    }
}

/// Touches every byte, for the sanitizer.
fn read(piece: &[u8]) -> usize {
    std::hint::black_box(piece.iter().fold(0, |sum: u8, byte| sum ^ byte));
    piece.len()
}

fn duplicate(fd: BorrowedFd<'_>) -> Fd {
    Fd::adopt(fd.try_clone_to_owned().expect("dup")).expect("a high number")
}
