//! Tools with which tests play the peer of a connection, in this layer and above.

use libvma_engine::tcp::State as TcpState;
use libvma_engine::tcp::connection::Resumed;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::seq::Seq;
use libvma_engine::wire::ethernet::MacAddr;
use libvma_engine::wire::tcp::Header;

use super::receive::Arrival;
use super::{Body, Owner, Resumption};
use crate::shard::{NextHop, RingId, SocketId, State};

/// The sequence numbers that a connection of [`resumed`] begins with: the first byte that is sent, and that arrives.
pub const SEND_START: u32 = 1000;
pub const RECEIVE_START: u32 = 5000;

/// A connection in this state, with nothing under way.
pub fn resumed(state: TcpState) -> Resumed<'static> {
    Resumed {
        state,
        snd_una: Seq::new(SEND_START),
        rcv_nxt: Seq::new(RECEIVE_START),
        snd_wnd: 50_000,
        snd_wl1: Seq::new(RECEIVE_START - 10),
        max_snd_wnd: 60_000,
        rcv_wnd: 30_000,
        peer_mss: 1460,
        scales: None,
        sack: true,
        timestamp: None,
        recent_timestamp: 0,
        ecn: false,
        owes_acknowledgment: false,
        srtt: None,
        rttvar: Default::default(),
        min_rtt: None,
        cwnd: None,
        ssthresh: None,
        counters: Default::default(),
        unacknowledged: [b"", b""],
        unsent: [b"", b""],
    }
}

impl NextHop {
    /// By a ring that is not there: what goes this way has left, and is lost.
    pub fn nowhere() -> NextHop {
        let (source_mac, destination_mac) = (MacAddr([2; 6]), MacAddr([4; 6]));
        NextHop { ring: RingId::nowhere(), interface: 1, source_mac, destination_mac, mtu: 1500 }
    }
}

impl RingId {
    pub fn nowhere() -> RingId {
        RingId(u16::MAX)
    }
}

impl<S> State<S> {
    /// A segment of a connection's peer, as a ring would bring it.
    pub fn arrive(&mut self, key: FlowKey, header: &Header, payload: &[u8]) {
        let (hop, payload_len) = (NextHop::nowhere(), payload.len() as u32);
        let arrival = Arrival { key, header, payload_len, tos: 0, hop };
        let (tcp, mut io) = self.tcp().expect("it was enabled");
        tcp.input(&mut io, &arrival, Body::Heap(payload.to_vec())).expect("it is for a socket");
    }

    /// A client of the listener waits for accept(), with this connection.
    pub fn put_client(&mut self, listener: SocketId, stand_in: S, resumption: Resumption<'_>) {
        let key = resumption.key;
        let number = self.socket(listener).and_then(|(endpoint, _)| endpoint.listener);
        let number = number.expect("it listens");
        let id = self.attach(stand_in, 0);
        self.take_over_connection(id, resumption).expect("there is no other");
        let (tcp, _) = self.tcp().expect("it was enabled");
        let index = tcp.table.get(&key).expect("it was taken over");
        let listening = tcp.listener(number).expect("it listens");
        let inherited_state = listening.inherited_state.clone();
        listening.engine.push_accepted(index);
        let block = tcp.block(index).expect("it was taken over");
        block.owner = Owner::Backlog(number);
        block.inherited_state = Some(Box::new(inherited_state));
        self.detach(id);
    }
}
