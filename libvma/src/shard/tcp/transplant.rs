//! Handing a connection to the kernel: lending all that makes it up, then forgetting it.
//!
//! From then on its 5-tuple is an exception from every flow of ours. What the rings still hold of
//! it is dropped without an answer, as if the wire had lost it.

use std::collections::HashSet;

use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{Connection, State as TcpState};
use libvma_engine::time::Instant;

use super::{Accepted, Io, Owner, Tcp, body, five_tuple};
use crate::shard::tcp::Body;
use crate::shard::{Flow, NextHop, SocketId, State};

/// A waiting call looks again long before so many sockets have gone. One may be noted twice.
const REMEMBERED: usize = 2048;

/// A connection that nobody owns any more, at exit.
#[derive(Clone, Copy, Debug)]
pub struct Orphan(u32);

impl Orphan {
    /// One that is in no accept queue any more, and that nobody has accepted.
    pub(super) fn of(accepted: &Accepted) -> Orphan {
        Orphan(accepted.index)
    }
}

/// A connection as it stands, to be installed elsewhere.
pub struct Cutting<'a> {
    pub key: FlowKey,
    pub connection: &'a Connection<Body>,
    /// Bytes received in order and not read by the program.
    pub unread: &'a [u8],
    /// A program has the descriptor.
    pub is_held: bool,
    pub now: Instant,
}

impl<S> State<S> {
    /// The next [`State::run_tcp`] acknowledges all data received on the connection, because its next holder takes them for
    /// acknowledged.
    #[cold]
    #[inline(never)]
    pub fn acknowledge(&mut self, id: SocketId) {
        let Some(index) = self.connection_of(id) else { return };
        let Some(tcp) = self.tcp.as_deref_mut() else { return };
        let Some(block) = tcp.block(index) else { return };
        block.connection.acknowledge();
        tcp.touch(index);
    }

    /// Calls `install` with the socket's connection. If that says true, the connection is somebody
    /// else's, and forgotten here. None: there is none.
    pub fn transplant(
        &mut self,
        id: SocketId,
        install: impl FnOnce(&Cutting<'_>) -> bool,
    ) -> Option<bool> {
        let index = self.socket(id)?.0.connection?;
        let key = self.tcp()?.0.block(index)?.connection.key();
        let installed = self.install_block(index, install)?;
        if installed {
            self.except(five_tuple(&key));
            self.forget_connection(id);
        }
        Some(installed)
    }

    /// As [`State::transplant`], for a connection without a socket.
    pub fn transplant_orphan(
        &mut self,
        orphan: Orphan,
        install: impl FnOnce(&Cutting<'_>) -> bool,
    ) -> bool {
        let Orphan(index) = orphan;
        let Some(key) = self.tcp().and_then(|(tcp, _)| Some(tcp.block(index)?.connection.key()))
        else {
            return false;
        };
        let installed = self.install_block(index, install).unwrap_or(false);
        if installed {
            self.except(five_tuple(&key));
            if let Some((tcp, mut io)) = self.tcp() {
                // So that its memory goes with it.
                if let Some(block) = tcp.block(index) {
                    block.owner = Owner::Orphan;
                }
                tcp.tear_down(&mut io, index);
            }
        }
        installed
    }

    pub fn has_connection(&self, key: &FlowKey) -> bool {
        self.tcp.as_deref().is_some_and(|tcp| tcp.table.get(key).is_some())
    }

    /// A 5-tuple is the kernel's from now on, whatever flows are ours or will be.
    pub fn except(&mut self, flow: Flow) {
        for ring in &mut self.rings {
            // Without room in the map: such a connection is reset, if a listener's flow covers it.
            let _ = ring.except_flow(flow);
        }
    }

    /// The 5-tuples that are the kernel's.
    pub fn exceptions(&self) -> HashSet<Flow> {
        self.rings.iter().flat_map(|ring| ring.exceptions().iter().copied()).collect()
    }

    pub fn end_exception(&mut self, flow: Flow) {
        for ring in &mut self.rings {
            ring.end_exception(flow);
        }
    }

    /// The socket of that name is the kernel's now: a call that waits goes on there.
    pub fn depart(&mut self, id: SocketId) {
        if let Some(tcp) = self.tcp.as_deref_mut() {
            if tcp.departed.len() == REMEMBERED {
                tcp.departed.pop_front();
            }
            tcp.departed.push_back(id);
        }
    }

    pub fn has_departed(&self, id: SocketId) -> bool {
        self.tcp.as_deref().is_some_and(|tcp| tcp.departed.contains(&id))
    }

    /// Connections whose program closed them while there was something left to send or to wait
    /// for. Of those in TIME-WAIT the latest whose peer may still ask: without an answer it would
    /// take a connection that has ended in order for a reset one.
    pub fn orphans(&mut self) -> Vec<Orphan> {
        const MOST_WAITING: usize = 256;
        let Some(tcp) = self.tcp.as_deref_mut() else { return Vec::new() };
        let now = tcp.now();
        let asked = |(index, serial): &(u32, u32)| {
            let block = tcp.blocks.get(*index as usize)?.as_deref()?;
            let lives = block.serial == *serial && block.connection.may_be_asked_again(now);
            lives.then_some(Orphan(*index))
        };
        let latest = tcp.waiting.iter().rev().take(MOST_WAITING);
        let waiting: Vec<Orphan> = latest.filter_map(asked).collect();
        let blocks = tcp.blocks.iter().enumerate();
        let lives = |(index, block): (usize, &Option<Box<super::Block>>)| {
            let block = block.as_ref()?;
            let over = matches!(block.connection.state(), TcpState::TimeWait | TcpState::Closed);
            (block.owner == Owner::Orphan && !over).then_some(Orphan(index as u32))
        };
        blocks.filter_map(lives).chain(waiting).collect()
    }

    /// The connection, if its program has closed it.
    pub fn orphan_of(&self, key: &FlowKey) -> Option<Orphan> {
        let tcp = self.tcp.as_deref()?;
        let index = tcp.table.get(key)?;
        let block = tcp.blocks.get(index as usize)?.as_deref()?;
        (block.owner == Owner::Orphan).then_some(Orphan(index))
    }

    /// Is there an orphan whose peer lacks something of ours?
    pub fn has_unfinished_orphans(&self) -> bool {
        use TcpState::{Closed, FinWait2, TimeWait};
        self.tcp.as_deref().is_some_and(|tcp| {
            tcp.blocks.iter().flatten().any(|block| {
                let state = block.connection.state();
                block.owner == Owner::Orphan && !matches!(state, TimeWait | Closed | FinWait2)
            })
        })
    }

    fn install_block(
        &mut self,
        index: u32,
        install: impl FnOnce(&Cutting<'_>) -> bool,
    ) -> Option<bool> {
        self.begin();
        let (tcp, io) = self.tcp()?;
        let now = tcp.now();
        let block = tcp.block(index)?;
        let mut unread = Vec::with_capacity(block.connection.queued() as usize);
        for piece in block.connection.pieces() {
            body::append(io.rings, &mut unread, piece);
        }
        // The kernel cannot be told of an urgent byte: it would read as a plain one.
        let hidden = block.connection.bytes_to_mark().map(|distance| distance as usize);
        if let Some(at) = hidden.filter(|at| *at < unread.len())
            && !block.connection.settings().urgent_inline
        {
            unread.remove(at);
        }
        let cutting = Cutting {
            key: block.connection.key(),
            connection: &block.connection,
            unread: &unread,
            is_held: !matches!(block.owner, Owner::Orphan),
            now,
        };
        Some(install(&cutting))
    }
}

impl Tcp {
    /// Is a segment for the kernel, though a ring got it?
    pub(super) fn is_excepted(io: &Io<'_>, hop: &NextHop, key: &FlowKey) -> bool {
        let ring = io.rings.get(hop.ring.index());
        ring.is_some_and(|ring| ring.exceptions().contains(&five_tuple(key)))
    }
}
