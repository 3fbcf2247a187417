//! Which datagrams go to a ring: flows, and the sockets that have them. Only bookkeeping: `Tables` are what the programs read.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use libvma_dev::grant::Request;
use rustix::io::Errno;

use super::Refused;

/// An address and a port.
pub type End = (IpAddr, u16);
/// The destination, and the peer if the flow has only one.
pub type Key = (End, Option<End>);

/// struct socket_key: own address and port, the peer's; the own port in the order of the host, in 32 bits.
pub type SocketKey = [u8; 16];

/// The tables of the programs.
pub trait Tables {
    /// # Errors
    /// In words.
    fn lead(&mut self, flow: &Key) -> anyhow::Result<()>;
    fn leave(&mut self, flow: &Key);
    /// May this stand as a frame's source? `None`: no longer. Some flow of it is led, or was until now.
    ///
    /// # Errors
    /// In words.
    fn let_send(&mut self, source: &End, place: Option<u32>) -> anyhow::Result<()>;
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
    /// Of the socket that was shown for the flow: SO_COOKIE.
    cookie: u64,
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
    /// The kernel's number of the socket (SO_COOKIE).
    pub cookie: u64,
    /// False: one of AF_INET6 that takes IPv6 only.
    pub takes_ipv4: bool,
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
        // A socket that is open keeps its mark, also without its port. The same one may be marked again, another one not.
        tables.mark(&socket.key, place, is_same)?;
        self.free.retain(|free| *free != place);
        let shared =
            self.sockets.entry(socket.key).or_insert(Shared { cookie: 0, place, flows: 0 });
        shared.cookie = socket.cookie;
        shared.flows += 1;
        let entry = Flow { socket: socket.key, cookie: socket.cookie, rests: true };
        self.flows.insert(flow, entry);
        self.remove_former(socket, tables);
        let installed = tables.lead(&flow).and_then(|()| tables.let_send(&flow.0, Some(place)));
        if let Err(error) = installed {
            self.remove(&flow, tables);
            return Err(Refused::new(
                Errno::NOSPC,
                format!("the flow cannot be installed: {error:#}"),
            ));
        }
        self.flows.get_mut(&flow).into_iter().for_each(|flow| flow.rests = false);
        Ok(())
    }

    /// Of the flows that were installed for the key of a socket, those that the socket does not have go. Another socket had the key before, and
    /// is closed; or the socket takes IPv6 only, which it may since it gave its port back (connect() to AF_UNSPEC) and bound it again. Until it
    /// is shown again the flows are there, and nothing is sent by them: the program behind the TAP asks the kernel.
    fn remove_former(&mut self, socket: &Socket, tables: &mut impl Tables) {
        let is_former = |(own, _): &Key, flow: &Flow| {
            let takes = own.0.is_ipv6() || socket.takes_ipv4;
            flow.socket == socket.key && (flow.cookie != socket.cookie || !takes)
        };
        let former: Vec<Key> = self
            .flows
            .iter()
            .filter(|(key, flow)| is_former(key, flow))
            .map(|(key, _)| *key)
            .collect();
        former.iter().for_each(|key| _ = self.remove(key, tables));
    }

    /// The programs have the flows, but for those that are to rest.
    ///
    /// # Errors
    /// In words, the first one: what is left undone is tried again the next time.
    pub fn let_rest(
        &mut self,
        is_to: impl Fn(&Key) -> bool,
        tables: &mut impl Tables,
    ) -> anyhow::Result<()> {
        let mut done = Ok(());
        // Whatever fails, what is not to be sent any more goes, and before others come.
        for (key, flow) in self.flows.iter_mut().filter(|(key, flow)| is_to(key) && !flow.rests) {
            match tables.let_send(&key.0, None) {
                Ok(()) => {
                    tables.leave(key);
                    flow.rests = true;
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
        for (key, flow) in self.flows.iter_mut().filter(|(key, flow)| !is_to(key) && flow.rests) {
            let place = self.sockets.get(&flow.socket).map(|shared| shared.place);
            match tables.lead(key).and_then(|()| tables.let_send(&key.0, place)) {
                Ok(()) => flow.rests = false,
                Err(error) => {
                    tables.leave(key);
                    done = done.and(Err(error));
                }
            }
        }
        done
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
    (flow.local(), flow.peer())
}

/// As the programs read it of the kernel's socket.
pub fn socket_key(own: SocketAddr, peer: Option<SocketAddr>) -> SocketKey {
    let mut key = [0; 16];
    let port = u32::from(own.port()) | if own.is_ipv6() { OF_IPV6 } else { 0 };
    key[..4].copy_from_slice(&short(own.ip()));
    key[4..8].copy_from_slice(&port.to_ne_bytes());
    if let Some(peer) = peer {
        key[8..12].copy_from_slice(&short(peer.ip()));
        key[12..14].copy_from_slice(&peer.port().to_be_bytes());
    }
    key
}

/// Beside the port of a socket of AF_INET6.
const OF_IPV6: u32 = 1 << 16;

fn short(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [a, b, c, d] = [96, 64, 32, 0].map(|by| (u128::from(address) >> by) as u32);
            fold([a, b, c, d]).to_ne_bytes()
        }
    }
}

/// As `fold` of shown.bpf.h.
fn fold(words: [u32; 4]) -> u32 {
    words.iter().fold(0, |sum: u32, word| sum.wrapping_mul(0x9e37_79b1).wrapping_add(*word))
}

#[cfg(test)]
mod tests;
