//! Which datagrams go to a ring: flows, and the sockets that have them. Only bookkeeping: `Tables` are what the programs read.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use libvma_dev::grant::Request;
use rustix::io::Errno;

use super::Refused;

const UDP: u8 = 17;

/// Keys as the programs put them together: addresses and ports in the order of the wire. The destination, and with the peer.
pub type Three = [u8; 8];
pub type Five = [u8; 16];
pub type Key = (Three, Option<Five>);

/// struct socket_key: own address and port, the peer's; the own port in the order of the host, in 32 bits.
pub type SocketKey = [u8; 16];

/// The tables of the programs.
pub trait Tables {
    /// # Errors
    /// In words.
    fn lead(&mut self, flow: &Key) -> anyhow::Result<()>;
    fn leave(&mut self, flow: &Key);
    /// May this stand as a frame's source? `None`: no longer.
    ///
    /// # Errors
    /// In words.
    fn let_send(&mut self, source: &Three, place: Option<u32>) -> anyhow::Result<()>;
    /// The socket that is shown has this place.
    ///
    /// # Errors
    /// EADDRINUSE: another one that is open has the place, unless `again`; EIO in words.
    fn mark(&mut self, socket: &SocketKey, place: u32, again: bool) -> Result<(), Refused>;
    fn forget(&mut self, socket: &SocketKey, place: u32);
}

/// Of one ring.
#[derive(Default)]
pub struct Flows {
    flows: HashMap<Key, Flow>,
    sockets: HashMap<SocketKey, Shared>,
    /// Places that are free below `sockets.len() + free.len()`.
    free: Vec<u32>,
}

struct Flow {
    socket: SocketKey,
    /// The programs do not have it.
    rests: bool,
}

struct Shared {
    /// The kernel's number of the socket (SO_COOKIE).
    cookie: u64,
    place: u32,
    flows: u32,
}

/// A socket that is shown.
pub struct Socket {
    pub key: SocketKey,
    pub cookie: u64,
}

impl Flows {
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.flows.keys()
    }

    /// Leads a flow to the ring.
    ///
    /// # Errors
    /// EADDRINUSE: another socket of the ring has them, too; ENOSPC in words.
    pub fn add(
        &mut self,
        flow: Key,
        socket: &Socket,
        tables: &mut impl Tables,
    ) -> Result<(), Refused> {
        let known = self.sockets.get(&socket.key);
        let is_same = known.is_some_and(|shared| shared.cookie == socket.cookie);
        let place = known.map_or_else(|| self.free_place(), |shared| shared.place);
        // The socket may have lost its mark with its port, and have the port again.
        tables.mark(&socket.key, place, is_same)?;
        self.free.retain(|free| *free != place);
        let shared =
            self.sockets.entry(socket.key).or_insert(Shared { cookie: 0, place, flows: 0 });
        // (A socket that had the key before is closed; its flows go, one by one.)
        shared.cookie = socket.cookie;
        shared.flows += 1;
        self.flows.insert(flow, Flow { socket: socket.key, rests: false });
        let installed = tables.let_send(&flow.0, Some(place)).and_then(|()| tables.lead(&flow));
        installed.map_err(|error| {
            self.remove(&flow, tables);
            Refused::new(Errno::NOSPC, format!("the flow cannot be installed: {error:#}"))
        })
    }

    /// The programs have the flows, but for those that are to rest.
    ///
    /// # Errors
    /// In words: what is left undone is tried again the next time.
    pub fn let_rest(
        &mut self,
        is_to: impl Fn(&Key) -> bool,
        tables: &mut impl Tables,
    ) -> anyhow::Result<()> {
        for (key, flow) in &mut self.flows {
            let place = self.sockets.get(&flow.socket).map(|shared| shared.place);
            match (is_to(key), flow.rests) {
                (true, false) => {
                    tables.let_send(&key.0, None)?;
                    tables.leave(key);
                }
                (false, true) => {
                    tables.let_send(&key.0, place)?;
                    tables.lead(key)?;
                }
                _ => continue,
            }
            flow.rests = !flow.rests;
        }
        Ok(())
    }

    fn free_place(&self) -> u32 {
        let next = || u32::try_from(self.sockets.len()).unwrap_or(u32::MAX);
        self.free.last().copied().unwrap_or_else(next)
    }

    /// False: there is no such flow.
    pub fn remove(&mut self, flow: &Key, tables: &mut impl Tables) -> bool {
        let Some(Flow { socket, .. }) = self.flows.remove(flow) else { return false };
        // Another socket may send from there still.
        let other = self.flows.iter().find(|(key, other)| key.0 == flow.0 && !other.rests);
        let other = other.and_then(|(_, other)| self.sockets.get(&other.socket));
        if let Err(error) = tables.let_send(&flow.0, other.map(|shared| shared.place)) {
            log::error!("a ring's program is not told who may send: {error:#}");
        }
        tables.leave(flow);
        let Some(shared) = self.sockets.get_mut(&socket) else { return true };
        shared.flows -= 1;
        if shared.flows == 0 {
            let place = shared.place;
            self.sockets.remove(&socket);
            self.free.push(place);
            tables.forget(&socket, place);
        }
        true
    }
}

/// The flow that a request names.
pub fn key(flow: &Request) -> Key {
    let [a, b, c, d] = flow.destination;
    let [p, q] = flow.port.to_bytes();
    ([a, b, c, d, p, q, UDP, 0], flow.peer().map(|_| five(flow)))
}

fn five(flow: &Request) -> Five {
    let mut key = [0; 16];
    let pieces: [&[u8]; 5] = [
        &flow.source,
        &flow.destination,
        &flow.source_port.to_bytes(),
        &flow.port.to_bytes(),
        &u32::from(UDP).to_ne_bytes(),
    ];
    for (place, byte) in key.iter_mut().zip(pieces.concat()) {
        *place = byte;
    }
    key
}

/// As the programs read it of the kernel's socket.
pub fn socket_key((address, port): (Ipv4Addr, u16), peer: Option<(Ipv4Addr, u16)>) -> SocketKey {
    let mut key = [0; 16];
    let (peer, peer_port) = peer.unwrap_or((Ipv4Addr::UNSPECIFIED, 0));
    key[..4].copy_from_slice(&address.octets());
    key[4..6].copy_from_slice(&port.to_ne_bytes());
    key[8..12].copy_from_slice(&peer.octets());
    key[12..14].copy_from_slice(&peer_port.to_be_bytes());
    key
}

#[cfg(test)]
mod tests;
