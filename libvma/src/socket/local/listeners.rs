//! Which listeners of the host get connections: the kernel's answers, kept for a moment, because programs
//! connect to one address many times in a row.
//!
//! An answer that is out of date does no harm: the listener that is offered the connection never accepts it,
//! and the kernel serves it.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use libvma_engine::wire::ipv4::protocol;

use super::mappings;
use crate::control::netlink::Diag;
use crate::control::rendezvous::Key;

#[derive(Default)]
pub(super) struct Listeners(HashMap<(SocketAddrV4, SocketAddrV4), Listener>);

struct Listener {
    key: Key,
    /// Connections from other ports go to other listeners (SO_REUSEPORT).
    one_of_several: bool,
    /// When the kernel said so.
    checked: u64,
}

const FRESH_NANOS: u64 = 100_000_000;
const MOST: usize = 1024;
/// How many ports more are asked about, to find out whether there are several listeners: so many of two
/// seem to be one once in 4096 times, for a tenth of a second.
const SAMPLES: u16 = 12;

impl Listeners {
    /// The listener that a connection from `source` reaches; port 0 is any port.
    pub fn find(
        &mut self,
        diag: &mut Diag,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        now: u64,
    ) -> Option<Key> {
        if source.port() != 0 {
            return mappings::ask(diag, protocol::TCP, source, destination);
        }
        let way = (source, destination);
        if let Some(known) = self.0.get(&way)
            && now.saturating_sub(known.checked) < FRESH_NANOS
        {
            return Some(known.key);
        }
        // That there is none is not kept: it may come at any moment.
        self.0.remove(&way);
        let key = mappings::ask(diag, protocol::TCP, source, destination)?;
        let elsewhere = |port| {
            let source = SocketAddrV4::new(*source.ip(), port);
            mappings::ask(diag, protocol::TCP, source, destination) != Some(key)
        };
        // Ports that no connection has, as a rule.
        let one_of_several = (1..=SAMPLES).any(elsewhere);
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(way, Listener { key, one_of_several, checked: now });
        Some(key)
    }

    pub fn is_one_of_several(&self, source: SocketAddrV4, destination: SocketAddrV4) -> bool {
        self.0.get(&(source, destination)).is_some_and(|known| known.one_of_several)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketType, bind, listen, sockopt};

    use super::*;
    use crate::socket::fixture::own_loopback;

    /// A listener that lets others have its port, too.
    fn sharing(address: SocketAddrV4) -> (OwnedFd, SocketAddrV4) {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        bind(&socket, &address).unwrap();
        listen(&socket, 8).unwrap();
        let name = rustix::net::getsockname(&socket).unwrap();
        let name = SocketAddr::try_from(name).unwrap();
        let SocketAddr::V4(address) = name else { panic!("IPv4") };
        (socket, address)
    }

    fn any_port() -> SocketAddrV4 {
        SocketAddrV4::new(own_loopback(), 0)
    }

    #[test]
    fn listeners_that_share_a_port_are_told_from_a_single_one() {
        let from = any_port();
        let (first, to) = sharing(from);
        let (mut listeners, mut diag) = (Listeners::default(), Diag::open().unwrap());
        let found = listeners.find(&mut diag, from, to, 0);
        assert!(found.is_some() && !listeners.is_one_of_several(from, to));
        let _second = sharing(to);
        assert!(!listeners.is_one_of_several(from, to), "the answer is kept");
        listeners.find(&mut diag, from, to, FRESH_NANOS);
        assert!(listeners.is_one_of_several(from, to));
        drop(first);
    }

    /// A server may start at any moment: that there is none is not kept.
    #[test]
    fn an_answer_is_kept_for_a_moment_and_the_lack_of_one_is_not() {
        let any_port = any_port();
        let listener = TcpListener::bind(any_port).unwrap();
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let (mut listeners, mut diag) = (Listeners::default(), Diag::open().unwrap());
        let found = listeners.find(&mut diag, any_port, to, 0);
        assert!(found.is_some());
        drop(listener);
        assert_eq!(listeners.find(&mut diag, any_port, to, FRESH_NANOS - 1), found);
        // A port is a question of its own.
        let from = SocketAddrV4::new(*to.ip(), 9);
        assert_eq!(listeners.find(&mut diag, from, to, 0), None);
        assert_eq!(listeners.find(&mut diag, any_port, to, FRESH_NANOS), None);
        let _again = TcpListener::bind(to).unwrap();
        assert!(listeners.find(&mut diag, any_port, to, FRESH_NANOS).is_some());
    }
}
