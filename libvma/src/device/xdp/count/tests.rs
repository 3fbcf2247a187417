//! Two rings at the ends of a cable of the test's own. Needs root, as those of `super_frame`.

use std::time::{Duration, Instant};

use super::*;
use crate::device::xdp::Mode;
use crate::device::xdp::super_frame::tests::{
    MODES, PEERS, headers, open, open_in, payload, send, with_pair,
};
use crate::device::{Flow, xdp};

const LEN: usize = 100;
const FRAME: u64 = (14 + 20 + 32 + LEN) as u64;

fn send_frame(ring: &mut xdp::Ring) -> bool {
    let packet = [headers(true, LEN), payload(LEN, 0)].concat();
    let Some(frame) = ring.allocate(packet.len()) else { return false };
    ring.write(&frame, |offset, bytes| bytes.copy_from_slice(&packet[offset..][..bytes.len()]));
    ring.transmit(frame);
    ring.kick();
    true
}

fn receive(ring: &mut xdp::Ring, wanted: usize) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut count = 0;
    while count < wanted {
        assert!(Instant::now() < deadline, "{count} of {wanted} packets came");
        if let Some(received) = ring.receive() {
            ring.release(received.frame);
            count += 1;
        }
    }
}

// covers: STAT-36, STAT-38
#[test]
fn frames_sleeps_and_losses_are_counted() {
    MODES.into_iter().for_each(|mode| with_pair(move || all_are_counted(mode)));
}

fn all_are_counted(mode: Mode) {
    let (mut sender, mut receiver) = (open("v0", true), open_in(mode, "v1", true));
    let flow = Flow::ThreeTuple { protocol: 6, destination: PEERS, port: 5001 };
    receiver.add_flow(flow).unwrap();
    let [free_before, _] = receiver.pools();
    receiver.settle();
    (0..3).for_each(|_| assert!(send_frame(&mut sender)));
    receive(&mut receiver, 3);
    let (sent, received) = (sender.statistics(), receiver.statistics());
    assert_eq!((sent.tx_packets, sent.tx_bytes), (3, 3 * FRAME));
    assert!(sent.kicks >= 3, "{} kicks", sent.kicks);
    assert_eq!((received.rx_packets, received.rx_bytes), (3, 3 * FRAME));
    assert_eq!((received.interrupts_requested, received.interrupts_received), (1, 1));
    // Asleep again, and nothing came.
    receiver.settle();
    let again = receiver.statistics();
    assert_eq!((again.interrupts_requested, again.interrupts_received), (2, 1));
    assert_eq!((again.kind, stats::read_text(&again.name)), (stats::RING_XDP, "v1"));
    let [free, _] = receiver.pools();
    assert_eq!(again.buffers + free.free, received.buffers + free_before.free + 3);

    // A super-frame is one packet.
    assert!(send(&mut sender, true, &payload(3000, 0)));
    let after = sender.statistics();
    assert_eq!((after.tx_packets, after.tx_bytes), (4, 4 * FRAME + 2900));
    receive(&mut receiver, 1);

    // More than the ring holds, while nobody takes them.
    receiver.zero_statistics();
    assert_eq!((receiver.statistics().rx_packets, receiver.statistics().rx_dropped), (0, 0));
    let mut offered = 0;
    while receiver.statistics().rx_dropped < 10 {
        assert!(offered < 20_000, "nothing is lost");
        offered += u64::from(send_frame(&mut sender));
    }
    let told = receiver.statistics();
    assert_eq!(u64::from(told.queued) + told.rx_dropped, offered);
    let waiting = told.queued as usize;
    receive(&mut receiver, waiting);
    receiver.zero_statistics();
    assert_eq!(receiver.statistics().rx_dropped, 0);
}
