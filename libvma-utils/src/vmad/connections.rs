//! The TCP connections of one process, as it has told them: a table by descriptor, bounded, and which
//! of them a dead process leaves somebody waiting on.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use libvma_dev::agent::{State, TcpState};

/// Local and peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    tuple: Tuple,
    state: TcpState,
}

/// What became of a STATE message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Stored,
    Removed,
    /// So many are kept of one process.
    Full,
    /// No connection has such addresses.
    Impossible(&'static str),
}

pub struct Connections {
    by_descriptor: HashMap<u32, Connection>,
    limit: usize,
}

impl Connections {
    pub fn new(limit: u32) -> Connections {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Connections { by_descriptor: HashMap::new(), limit }
    }

    pub fn apply(&mut self, state: &State) -> Update {
        if state.state == TcpState::Closed {
            self.by_descriptor.remove(&state.fd);
            return Update::Removed;
        }
        let tuple = Tuple { local: state.local, peer: state.peer };
        let possible = if waits(state.state) { tuple.check() } else { Ok(()) };
        if possible.is_err() || !waits(state.state) {
            // What the descriptor was before is not true any more. Nobody has to be told of what it is
            // now, so it takes no place.
            self.by_descriptor.remove(&state.fd);
            return possible.map_or_else(Update::Impossible, |()| Update::Stored);
        }
        let full = self.by_descriptor.len() >= self.limit;
        if full && !self.by_descriptor.contains_key(&state.fd) {
            return Update::Full;
        }
        self.by_descriptor.insert(state.fd, Connection { tuple, state: state.state });
        Update::Stored
    }

    /// Forgets a descriptor.
    pub fn forget(&mut self, descriptor: u32) {
        self.by_descriptor.remove(&descriptor);
    }

    /// What is known of a descriptor's connection.
    pub fn tuple(&self, descriptor: u32) -> Option<Tuple> {
        self.by_descriptor.get(&descriptor).map(|connection| connection.tuple)
    }

    pub fn len(&self) -> usize {
        self.by_descriptor.len()
    }

    /// All connections whose peer may wait for this process.
    pub fn waited_for(&self) -> impl Iterator<Item = (Tuple, TcpState)> + '_ {
        self.by_descriptor.values().map(|connection| (connection.tuple, connection.state))
    }
}

impl Tuple {
    /// Whether two hosts can talk so.
    fn check(&self) -> Result<(), &'static str> {
        let no_host = |address: IpAddr| match address {
            IpAddr::V4(address) => matches!(address.octets()[0], 0 | 224..),
            // An IPv4-mapped address is IPv4's to tell, and a link-local one is incomplete without its interface.
            IpAddr::V6(address) => {
                address.is_unspecified()
                    || address.is_multicast()
                    || address.is_unicast_link_local()
                    || address.to_ipv4_mapped().is_some()
            }
        };
        if self.local.port() == 0 || self.peer.port() == 0 {
            return Err("a port is 0");
        }
        if no_host(self.local.ip()) {
            return Err("the local address is that of no host");
        }
        if no_host(self.peer.ip()) {
            return Err("the peer's address is that of no host");
        }
        Ok(())
    }
}

impl std::fmt::Display for Tuple {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} -> {}", self.local, self.peer)
    }
}

/// Whether the peer of a connection in this state may wait for something that never comes once our
/// process is dead: data, or our FIN, which may have been lost. In the other states it either does not
/// know of the connection (SYN_SENT) or has our FIN and waits for nothing (FIN_WAIT_2, TIME_WAIT): the
/// kernel answers with a reset if it says anything more.
pub fn waits(state: TcpState) -> bool {
    match state {
        TcpState::SynReceived
        | TcpState::Established
        | TcpState::FinWait1
        | TcpState::CloseWait
        | TcpState::Closing
        | TcpState::LastAck => true,
        TcpState::Closed
        | TcpState::Listen
        | TcpState::SynSent
        | TcpState::FinWait2
        | TcpState::TimeWait => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(fd: u32, state: TcpState) -> State {
        let local = "10.0.0.1:80".parse().expect("an address");
        State { pid: 1, fd, local, peer: "10.0.0.2:4000".parse().expect("an address"), state }
    }

    #[test]
    fn a_connection_is_kept_as_long_as_its_peer_may_wait() {
        let mut connections = Connections::new(8);
        assert_eq!(connections.apply(&state(3, TcpState::SynSent)), Update::Stored);
        assert_eq!(connections.len(), 0);
        for kept in [TcpState::Established, TcpState::CloseWait, TcpState::LastAck] {
            assert_eq!(connections.apply(&state(3, kept)), Update::Stored);
            let all: Vec<_> = connections.waited_for().map(|(_, state)| state).collect();
            assert_eq!(all, [kept]);
        }
        assert_eq!(connections.apply(&state(3, TcpState::Closed)), Update::Removed);
        assert_eq!(connections.len(), 0);
        connections.apply(&state(3, TcpState::Established));
        connections.apply(&state(3, TcpState::FinWait2));
        assert_eq!(connections.len(), 0, "the peer has our FIN");
    }

    #[test]
    fn more_than_the_limit_is_refused_but_known_ones_change() {
        let mut connections = Connections::new(2);
        connections.apply(&state(3, TcpState::Established));
        connections.apply(&state(4, TcpState::Established));
        assert_eq!(connections.apply(&state(5, TcpState::Established)), Update::Full);
        assert_eq!(connections.apply(&state(4, TcpState::FinWait1)), Update::Stored);
        connections.apply(&state(3, TcpState::Closed));
        assert_eq!(connections.apply(&state(5, TcpState::Established)), Update::Stored);
    }

    #[test]
    fn addresses_that_no_connection_has_are_refused_once_there_is_one() {
        let with = |local: &str, peer: &str, told| State {
            local: local.parse().expect("an address"),
            peer: peer.parse().expect("an address"),
            ..state(3, told)
        };
        let mut connections = Connections::new(8);
        let early = with("0.0.0.0:0", "0.0.0.0:0", TcpState::SynSent);
        assert_eq!(connections.apply(&early), Update::Stored, "not known yet");
        for (local, peer) in [
            ("10.0.0.1:0", "10.0.0.2:1"),
            ("10.0.0.1:1", "10.0.0.2:0"),
            ("0.0.0.0:1", "10.0.0.2:1"),
            ("224.0.0.1:1", "10.0.0.2:1"),
            ("10.0.0.1:1", "255.255.255.255:1"),
            ("[fd00::1]:0", "[fd00::2]:1"),
            ("[fd00::1]:1", "[::]:1"),
            ("[ff02::1]:1", "[fd00::2]:1"),
            ("[fd00::1]:1", "[fe80::2]:1"),
            ("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:1"),
            ("[fd00::1]:1", "[::ffff:10.0.0.2]:1"),
        ] {
            let update = connections.apply(&with(local, peer, TcpState::Established));
            assert!(matches!(update, Update::Impossible(_)), "{local} {peer}: {update:?}");
        }
        assert_eq!(connections.len(), 0);
        let six = with("[fd00::1]:80", "[2001:db8::2]:4000", TcpState::Established);
        assert_eq!(connections.apply(&six), Update::Stored);
        assert_eq!(connections.tuple(3), Some(Tuple { local: six.local, peer: six.peer }));
    }
}
