//! Segments of one batch: what comes later finds what came before.

use core::net::Ipv4Addr;
use std::sync::Arc;

use libvma_engine::tcp::listen::ListenSettings;
use libvma_engine::tcp::{Settings, State as TcpState};
use libvma_engine::wire::ethernet::MacAddr;
use libvma_engine::wire::tcp::Flags;

use super::*;
use crate::shard::tcp::fixture::resumed;
use crate::shard::tcp::{ListenSpec, Opening, Resumption, Setup};
use crate::shard::{Shard, SocketId};

const KEY: FlowKey = FlowKey {
    local: Ipv4Addr::new(10, 0, 0, 1),
    local_port: 80,
    remote: Ipv4Addr::new(10, 0, 0, 2),
    remote_port: 4000,
};

/// A listener, and a connection that it may have accepted. There are no rings: answers get lost.
fn listener_and_connection(state: &mut State<u32>, of: TcpState) -> (SocketId, SocketId) {
    let setup = || Setup { secret: [7; 32], starts: None, seed: 7, streams: 8, pending: None };
    state.enable_tcp(setup);
    let (listener, accepted) = (state.attach(5, 0), state.attach(6, 0));
    let spec = ListenSpec {
        local: KEY.local_endpoint(),
        backlog: 8,
        listen: ListenSettings::default(),
        settings: Settings::default(),
        inherited_state: Arc::new(()),
        takes_ipv6: false,
        envelopes: [(64, 0); 2],
    };
    state.listen(listener, spec);
    let resumption = Resumption {
        key: KEY,
        hop: None,
        ttl: 64,
        tos: 0,
        settings: Settings::default(),
        flows: vec![],
        parts: resumed(of),
        unread: b"unread",
        is_accepted: true,
    };
    state.take_over_connection(accepted, resumption).expect("there is no other");
    state.run_tcp();
    (listener, accepted)
}

/// A segment of the peer's; the batch goes on.
fn arrive(state: &mut State<u32>, flags: Flags, seq: u32, ack: u32) {
    let (src_port, dst_port) = (KEY.remote_port, KEY.local_port);
    let header =
        Header { src_port, dst_port, seq, ack, flags, window: 50_000, ..Header::default() };
    let hop = NextHop {
        ring: RingId(0),
        interface: 1,
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        mtu: 1500,
    };
    let arrival = Arrival { key: KEY, header: &header, payload_len: 0, tos: 0, hop };
    let (tcp, mut io) = state.tcp().expect("it was enabled");
    let _ = tcp.input(&mut io, &arrival, Body::Heap(Vec::new()));
}

fn half_open(state: &mut State<u32>, listener: SocketId) -> usize {
    let index = state.socket(listener).and_then(|(endpoint, _)| endpoint.listener);
    let (tcp, _) = state.tcp().expect("it was enabled");
    index.and_then(|index| tcp.listener(index)).map_or(0, |it| it.engine.len())
}

// covers: NET-04
#[test]
fn a_syn_in_the_batch_that_ends_its_predecessor_is_the_listeners() {
    for before in [TcpState::Established, TcpState::CloseWait] {
        let shard = Shard::<u32>::default();
        let mut state = shard.lock().unwrap();
        let (listener, accepted) = listener_and_connection(&mut state, before);
        arrive(&mut state, Flags::SYN, 90_000, 0);
        assert_eq!(half_open(&mut state, listener), 0, "{before:?} has not ended");
        arrive(&mut state, Flags::RST, 5000, 0);
        arrive(&mut state, Flags::SYN, 90_000, 0);
        assert_eq!(half_open(&mut state, listener), 1, "{before:?}");
        let connection = state.connection(accepted).expect("its program has not closed it");
        assert_eq!((connection.state(), connection.queued()), (TcpState::Closed, 6));
        state.run_tcp();
        assert_eq!(half_open(&mut state, listener), 1, "{before:?}");
        // The end of the predecessor takes nothing along.
        state.abort_connection(accepted);
        assert_eq!(half_open(&mut state, listener), 1, "{before:?}");
    }
}

// covers: NET-04
#[test]
fn a_connection_may_begin_before_the_batch_that_ended_its_predecessor_is_done() {
    let shard = Shard::<u32>::default();
    let mut state = shard.lock().unwrap();
    listener_and_connection(&mut state, TcpState::Established);
    assert!(!state.has_room_for_connection(&KEY));
    arrive(&mut state, Flags::RST, 5000, 0);
    assert!(state.has_room_for_connection(&KEY));
    let opening = Opening {
        key: KEY,
        hop: None,
        ttl: 64,
        tos: 0,
        settings: Settings::default(),
        flows: vec![],
        start: None,
    };
    let id = state.attach(7, 0);
    assert_eq!(state.open_connection(id, opening), Ok(()));
    state.run_tcp();
    assert_eq!(state.owner_of(&KEY), Some(id));
}
