//! Flows of connections that are over. To take one out of the steering program's map is a system call, and voids what
//! the program remembers of all others, so some are taken out together.
//!
//! Until then the connection's port is kept from others: no socket of the host misses the packets, and a peer that still
//! sends is reset, as it would be by the kernel. A peer that connects anew is handed to the kernel, which may have a listener there.

use libvma_engine::time::Instant;

use super::{Attachment, Io, Tcp};
use crate::shard::{Flow, RingId, State};

/// So many are taken out by one call.
const MOST: usize = 16;
/// How long a port is kept from others at most, if somebody drives TCP.
const DELAY_NANOS: u64 = 5_000_000;

#[derive(Default)]
pub(super) struct Retired {
    flows: Vec<(RingId, Flow)>,
    /// The descriptors that keep the ports of these flows.
    kept: Vec<Attachment>,
    due: Option<Instant>,
}

impl Retired {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

impl Tcp {
    /// These flows have ceased to be a connection's; `kept` keeps its port from others.
    pub(super) fn retire(&mut self, io: &mut Io<'_>, flows: Vec<(RingId, Flow)>, kept: Attachment) {
        let now = self.now();
        let retired = &mut self.retired;
        retired.flows.extend(flows);
        retired.kept.push(kept);
        retired.due.get_or_insert(now.plus_nanos(DELAY_NANOS));
        if retired.flows.len() >= MOST {
            self.end_retired(io);
        }
    }

    /// The flows go, then their ports are free. Returns how many ports that were.
    pub(super) fn end_retired(&mut self, io: &mut Io<'_>) -> usize {
        let Retired { flows, kept, due } = &mut self.retired;
        for (number, ring) in io.rings.iter_mut().enumerate() {
            let here = flows.iter().filter(|(ring, _)| ring.index() == number);
            ring.remove_flows(here.map(|(_, flow)| *flow));
        }
        *due = None;
        flows.clear();
        let ports = kept.len();
        kept.clear();
        ports
    }
}

impl<S> State<S> {
    /// Frees the ports of connections that are over at once: the program is about to bind a socket.
    pub fn free_ports(&mut self) {
        if let Some((tcp, mut io)) = self.tcp()
            && !tcp.retired.is_empty()
        {
            tcp.end_retired(&mut io);
        }
    }
}
