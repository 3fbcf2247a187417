//! Two rings at the ends of a cable of the test's own. Needs root, as those of `super_frame`.

use std::time::{Duration, Instant};

use super::*;
use crate::device::xdp::outlet::Outlet;
use crate::device::xdp::super_frame::tests::{PEERS, headers, open, with_pair};
use crate::device::{Flow, xdp};
use crate::sys::lock::Lock;

/// Between the headers and the byte that tells the frames apart.
const HEADERS: usize = 14 + 20 + 32;

/// Where this thread's kicks have to wait until it is given back, as the shard's lock does where threads meet.
static LOCK: Lock<()> = Lock::new(());

fn queue(ring: &mut xdp::Ring, flow: u32, number: u8) {
    let packet = [headers(true, 1), vec![number]].concat();
    ring.aim(flow);
    let frame = ring.allocate(packet.len()).expect("a frame is free");
    ring.write(&frame, |offset, bytes| bytes.copy_from_slice(&packet[offset..][..bytes.len()]));
    ring.transmit(frame);
}

fn rings(ring: &xdp::Ring) -> &TxRings {
    let Outlet::Rings { tx, .. } = &ring.queues[0].outlet else { panic!("it has no rings") };
    tx
}

/// Frames that went to the rings so far were another thread's.
fn disown(ring: &mut xdp::Ring) {
    let Outlet::Rings { tx, .. } = &mut ring.queues[0].outlet else { panic!("it has no rings") };
    tx.own.user = 0;
    tx.beside.iter_mut().for_each(|(ring, _)| ring.user = 0);
}

/// Flows whose marks differ.
fn flows<const N: usize>() -> [u32; N] {
    let mut seen = 0;
    let mut others = (1..).filter(|flow| {
        let is_new = seen & mark(*flow) == 0;
        seen |= mark(*flow);
        is_new
    });
    [(); N].map(|()| others.next().expect("there are 64"))
}

fn receiver() -> xdp::Ring {
    let mut receiver = open("v1", true);
    let flow = Flow::ThreeTuple { protocol: 6, destination: PEERS, port: 5001 };
    receiver.add_flow(flow).unwrap();
    receiver.settle();
    receiver
}

fn received(ring: &mut xdp::Ring, wanted: usize) -> Vec<u8> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut numbers = Vec::new();
    while numbers.len() < wanted {
        assert!(Instant::now() < deadline, "only {numbers:?} came");
        if let Some(received) = ring.receive() {
            numbers.push(ring.first_bytes(&received.frame)[HEADERS]);
            ring.release(received.frame);
        }
    }
    numbers
}

#[test]
fn who_meets_nobody_has_one_ring() {
    with_pair(|| {
        let (mut sender, mut receiver) = (open("v0", true), receiver());
        for (flow, number) in flows::<8>().into_iter().zip(0..) {
            queue(&mut sender, flow, number);
            assert!(!sender.kick_soon());
        }
        assert_eq!(received(&mut receiver, 8), (0..8).collect::<Vec<u8>>());
        assert_eq!(rings(&sender).beside.len(), 0);
    });
}

#[test]
fn a_flow_goes_round_a_ring_at_work_but_not_round_its_own_frames() {
    with_pair(|| {
        let (mut sender, mut receiver) = (open("v0", true), receiver());
        let [a, b, c] = flows();
        errand::note_contention();
        let guard = LOCK.lock().unwrap();
        queue(&mut sender, a, 0);
        assert!(!sender.kick_soon());
        // Whose frames wait in the only ring is not known: the next one's may not overtake them.
        queue(&mut sender, b, 1);
        assert!(!sender.kick_soon());
        assert_eq!((rings(&sender).beside.len(), rings(&sender).aim), (1, 0));
        drop(guard);
        assert_eq!(received(&mut receiver, 2), [0, 1]);

        let guard = LOCK.lock().unwrap();
        let mut aims = Vec::new();
        for (flow, number) in [a, b, a, b, c, a].into_iter().zip(0..) {
            queue(&mut sender, flow, number);
            aims.push(rings(&sender).aim);
            assert!(!sender.kick_soon());
            disown(&mut sender);
        }
        assert_eq!(aims, [0, 1, 0, 1, 2, 0]);
        drop(guard);
        let numbers = received(&mut receiver, 6);
        for of_one in [[0, 2, 5].as_slice(), &[1, 3], &[4]] {
            let came: Vec<u8> = numbers.iter().copied().filter(|it| of_one.contains(it)).collect();
            assert_eq!(came, of_one);
        }
        // All have left.
        queue(&mut sender, c, 6);
        assert_eq!(rings(&sender).aim, 0);
        sender.kick();
        assert_eq!(received(&mut receiver, 1), [6]);
        assert!(!sender.is_stuck());
    });
}

#[test]
fn a_thread_stays_with_its_ring() {
    with_pair(|| {
        let (mut sender, mut receiver) = (open("v0", true), receiver());
        let [a, b, c, d] = flows();
        errand::note_contention();
        let guard = LOCK.lock().unwrap();
        for number in 0..2 {
            queue(&mut sender, a, number);
            assert!(!sender.kick_soon());
        }
        drop(guard);
        assert_eq!(received(&mut receiver, 2), [0, 1]);
        let guard = LOCK.lock().unwrap();
        let mut aims = Vec::new();
        for (flow, number) in [a, b, c, d].into_iter().zip(0..) {
            queue(&mut sender, flow, number);
            aims.push(rings(&sender).aim);
            assert!(!sender.kick_soon());
            if flow == a {
                disown(&mut sender);
            }
        }
        // Another thread's frames are in the first.
        assert_eq!(aims, [0, 1, 1, 1]);
        drop(guard);
        received(&mut receiver, 4);
        // The first is free, too.
        queue(&mut sender, a, 4);
        assert_eq!(rings(&sender).aim, 1);
        sender.kick();
        assert_eq!(received(&mut receiver, 1), [4]);
    });
}

#[test]
fn frames_behind_each_other_share_a_ring_until_it_is_kicked() {
    with_pair(|| {
        let (mut sender, mut receiver) = (open("v0", true), receiver());
        let [a, b, c] = flows();
        errand::note_contention();
        let guard = LOCK.lock().unwrap();
        for number in 0..2 {
            queue(&mut sender, a, number);
            assert!(!sender.kick_soon());
        }
        drop(guard);
        assert_eq!(received(&mut receiver, 2), [0, 1]);
        for (flow, number) in [a, b, c].into_iter().zip(0..) {
            queue(&mut sender, flow, number);
            assert_eq!(rings(&sender).aim, 0);
        }
        assert_eq!(sender.unsent(), 3);
        sender.take_back();
        sender.kick();
        assert_eq!((sender.unsent(), received(&mut receiver, 2)), (0, vec![0, 1]));
    });
}

#[test]
fn there_are_so_many_and_more_flows_share_them() {
    with_pair(|| {
        let (mut sender, mut receiver) = (open("v0", true), receiver());
        errand::note_contention();
        for round in 0..2 {
            let guard = LOCK.lock().unwrap();
            for (flow, number) in flows::<24>().into_iter().zip(0..) {
                queue(&mut sender, flow, number);
                sender.kick_soon();
                disown(&mut sender);
            }
            assert_eq!(rings(&sender).beside.len(), [1, MOST - 1][round]);
            drop(guard);
            let mut numbers = received(&mut receiver, 24);
            numbers.sort_unstable();
            assert_eq!(numbers, (0..24).collect::<Vec<u8>>());
            assert!(!sender.is_stuck());
        }
    });
}
