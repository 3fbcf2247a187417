//! Over a veth pair in a network namespace of the test's own.

use core::time::Duration;
use std::io::IoSlice;
use std::net::SocketAddrV4;
use std::time::Instant;

use libvma_engine::wire::ethernet::MacAddr;

use crate::device::xdp::super_frame::tests::{
    LIMITS, MODES, OURS, PEERS, end_of_pair, ip, with_pair,
};
use crate::shard::{Egress, NextHop, SendError, Shard, State};

/// In fragments over an MTU of 1500.
const LEN: usize = 20_000;
const FRAGMENTS: u64 = 14;

fn send(state: &mut State<()>, hop: &NextHop) -> Result<(), SendError> {
    state.send(&Egress {
        hop,
        source: SocketAddrV4::new(OURS, 4000),
        destination: SocketAddrV4::new(PEERS, 5000),
        ttl: 64,
        tos: 0,
        dont_fragment: false,
        never_fragment: false,
        checksum: true,
        loop_back: false,
        after_kernel: 0,
        payload: &[IoSlice::new(&[7; LEN])],
        skip: 0,
        len: LEN,
    })
}

// covers: NET-20
#[test]
fn a_datagram_leaves_with_all_of_its_fragments_or_none() {
    for mode in MODES {
        with_pair(move || {
            let shard = Shard::<()>::default();
            let interface = end_of_pair("v0", true);
            let hop = NextHop {
                interface: interface.index,
                source_mac: MacAddr(interface.mac),
                destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                mtu: interface.mtu,
                ring: shard.open_ring(interface, mode, LIMITS, |_, _| {}).unwrap(),
            };
            let mut state = shard.lock().unwrap();
            // Packets that were queued before stay queued.
            ip("link set v0 down
");
            let mut whole = 0;
            let error = loop {
                match send(&mut state, &hop) {
                    Ok(()) => whole += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!((error, whole), (SendError::NoFrame, LIMITS.tx_frames as u64 / FRAGMENTS));
            let Some(crate::device::Ring::Xdp(ring)) = state.ring(hop.ring) else {
                panic!("a ring of an interface")
            };
            assert_eq!(ring.traffic.tx_packets, whole * FRAGMENTS, "{mode:?}");
            ip("link set v0 up
");
            let deadline = Instant::now() + Duration::from_secs(5);
            while send(&mut state, &hop).is_err() {
                assert!(Instant::now() < deadline, "{mode:?}: frames come back");
            }
        });
    }
}
