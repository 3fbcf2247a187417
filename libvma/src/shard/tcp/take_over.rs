//! Going on with a connection that the kernel had: the inverse of `transplant`.

use libvma_engine::tcp::connection::Resumed;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{Connection, Events, Settings};

use super::watch::Watched;
use super::way::{Envelope, Way};
use super::{AddressInUse, Block, Body, NEVER, Owner, body, path};
use crate::shard::{Flow, NextHop, RingId, SocketId, State};

/// An established connection to go on with.
pub struct Resumption<'a> {
    pub key: FlowKey,
    /// None: the neighbour is being resolved.
    pub hop: Option<NextHop>,
    pub ttl: u8,
    pub tos: u8,
    pub settings: Settings,
    /// Installed already; they go with the connection.
    pub flows: Vec<(RingId, Flow)>,
    pub parts: Resumed<'a>,
    /// Bytes received in order and not read by the program.
    pub unread: &'a [u8],
    /// The kernel accepted it, for a listener that may still be the kernel's.
    pub is_accepted: bool,
}

impl<S> State<S> {
    /// Gives a socket, which has no connection, one to go on with. Segments of it find it from now on.
    ///
    /// No segment leaves and no waiting thread is told yet, so [`State::forget_connection`] can still
    /// undo it without a word to the peer; that removes the flows, too. [`State::run_tcp`] begins: it
    /// sends and tells. It is to be called before the lock is released.
    ///
    /// An error: another connection has these addresses and ports. The flows stay.
    pub fn take_over_connection(
        &mut self,
        id: SocketId,
        resumption: Resumption<'_>,
    ) -> Result<(), AddressInUse> {
        self.begin();
        let Some((tcp, mut io)) = self.tcp() else { return Err(AddressInUse) };
        let Resumption { key, hop, ttl, tos, settings, flows, parts, unread, is_accepted } =
            resumption;
        if let Some(index) = tcp.table.get(&key) {
            if !tcp.makes_room(index) {
                return Err(AddressInUse);
            }
            tcp.tear_down(&mut io, index);
        }
        let now = tcp.now();
        let path = path(io.rings, hop.as_ref());
        let connection = Connection::resume(key, &parts, path, settings, now);
        let retransmissions = connection.counters().retransmissions;
        let index = tcp.insert(Block {
            serial: 0,
            connection,
            way: Way::new(&key, hop.as_ref(), Envelope { ttl, tos }),
            owner: Owner::Socket(id),
            flows,
            inherited_state: None,
            is_accepted,
            events: Events::NONE,
            // Its output comes with the next work.
            touched: true,
            batched: 0,
            waits: false,
            known: true,
            armed: NEVER,
            retransmissions,
            watched: Watched::new(),
        });
        tcp.touched.push(index);
        tcp.with(&mut io, index, |connection, wire| {
            // Not in one piece: the memory goes round, and pieces of it are read at different times.
            for bytes in unread.chunks(body::HEAP) {
                let len = bytes.len() as u32;
                connection.resume_unread(Body::Heap(bytes.to_vec()), len, wire);
            }
        });
        tcp.note(index, Events::READABLE.union(Events::WRITABLE));
        tcp.settle(&mut io, index);
        if let Some((endpoint, _)) = self.socket(id) {
            endpoint.connection = Some(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::time::Duration;
    use std::io::IoSliceMut;

    use libvma_engine::tcp::seq::Seq;
    use libvma_engine::tcp::{Readiness, State as TcpState};

    use super::*;
    use crate::shard::Shard;
    use crate::shard::tcp::Setup;
    use crate::shard::tcp::fixture::resumed;

    const KEY: FlowKey = FlowKey {
        local: Ipv4Addr::new(10, 0, 0, 1),
        local_port: 4000,
        remote: Ipv4Addr::new(10, 0, 0, 2),
        remote_port: 80,
    };

    fn shard() -> Shard<u32> {
        let shard = Shard::<u32>::default();
        let setup = || Setup { secret: [7; 32], starts: None, seed: 7, streams: 0, pending: None };
        shard.lock().expect("nobody has it").enable_tcp(setup);
        shard
    }

    fn parts(state: TcpState) -> Resumed<'static> {
        Resumed {
            rcv_nxt: Seq::new(u32::MAX),
            snd_wl1: Seq::new(u32::MAX - 10),
            snd_wnd: 5000,
            scales: Some((7, 9)),
            timestamp: Some(77),
            srtt: Some(Duration::from_millis(3)),
            rttvar: Duration::from_millis(1),
            cwnd: Some(50_000),
            unacknowledged: [b"sent", b""],
            unsent: [b"not", b"sent"],
            ..resumed(state)
        }
    }

    fn resumption(state: TcpState, unread: &[u8]) -> Resumption<'_> {
        Resumption {
            key: KEY,
            hop: None,
            ttl: 64,
            tos: 0,
            settings: Settings::default(),
            flows: vec![],
            parts: parts(state),
            unread,
            is_accepted: false,
        }
    }

    #[test]
    fn the_socket_has_the_connection_and_what_is_unread() {
        let shard = shard();
        let mut state = shard.lock().unwrap();
        let id = state.attach(5, 0);
        let unread: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        state.take_over_connection(id, resumption(TcpState::CloseWait, &unread)).unwrap();
        assert!(state.has_connection(&KEY));
        assert_eq!(state.owner_of(&KEY), Some(id));
        state.run_tcp();
        assert!(state.tcp_deadline().is_some(), "the retransmission timer runs");
        let ready = state.readiness(id).unwrap();
        assert!(ready.contains(Readiness::IN.union(Readiness::OUT).union(Readiness::RDHUP)));
        let connection = state.connection(id).unwrap();
        assert_eq!(connection.state(), TcpState::CloseWait);
        assert_eq!(connection.queued(), 200_000);
        assert_eq!((connection.unacknowledged(), connection.unsent()), (11, 7));
        let mut got = vec![0; unread.len()];
        let len = state.stream_read(id, &mut [IoSliceMut::new(&mut got)], 0, None);
        assert_eq!(len, Some(unread.len()));
        assert!(got == unread, "the bytes differ");
    }

    #[test]
    fn it_can_be_undone() {
        let shard = shard();
        let mut state = shard.lock().unwrap();
        let id = state.attach(5, 0);
        for _ in 0..3 {
            state.take_over_connection(id, resumption(TcpState::Established, b"abc")).unwrap();
            state.forget_connection(id);
            assert!(!state.has_connection(&KEY) && state.connection(id).is_none());
            state.run_tcp();
        }
    }

    #[test]
    fn another_connection_has_the_addresses() {
        let shard = shard();
        let mut state = shard.lock().unwrap();
        let (first, second) = (state.attach(5, 0), state.attach(6, 0));
        state.take_over_connection(first, resumption(TcpState::Established, b"")).unwrap();
        let again = state.take_over_connection(second, resumption(TcpState::Established, b""));
        assert_eq!(again, Err(AddressInUse));
        assert_eq!(state.owner_of(&KEY), Some(first));
    }
}
