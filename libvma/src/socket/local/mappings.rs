//! Which socket of the host gets the datagrams from one address to another: the kernel's answers,
//! kept while they are in use and asked for again several times a second.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use libvma_engine::wire::ipv4::protocol;

use crate::control::netlink::Diag;
use crate::control::rendezvous::{Key, NEGATIVE_NANOS};
use crate::sys::unix_socket;

#[derive(Default)]
pub(super) struct Mappings(HashMap<(SocketAddrV4, SocketAddrV4), Mapping>);

struct Mapping {
    /// None: there is no such socket.
    receiver: Option<Key>,
    /// When the kernel said so.
    checked: u64,
    /// When somebody wanted to know last.
    asked: u64,
    /// See `Rendezvous::news`.
    news: u64,
}

/// Whoever uses an answer asks again at least every ten seconds (the epoch of routes).
const IN_USE_NANOS: u64 = 30_000_000_000;
/// Younger answers are not asked for again.
const FRESH_NANOS: u64 = 100_000_000;
const MOST: usize = 4096;
/// Questions to the kernel in one go, a millisecond or so.
const AT_ONCE: usize = 256;

impl Mappings {
    /// The socket that gets datagrams of this way.
    pub fn receiver(
        &mut self,
        diag: &mut Diag,
        way: (SocketAddrV4, SocketAddrV4),
        news: u64,
        now: u64,
    ) -> Option<Key> {
        if let Some(known) = self.0.get_mut(&way) {
            let fresh = now.saturating_sub(known.checked) < NEGATIVE_NANOS;
            if known.news == news && (known.receiver.is_some() || fresh) {
                known.asked = now;
                return known.receiver;
            }
        }
        let receiver = ask(diag, protocol::UDP, way.0, way.1);
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(way, Mapping { receiver, checked: now, asked: now, news });
        receiver
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody has these addresses, as far as a peer knows.
    pub fn forget(&mut self, vacant: &[SocketAddrV4]) {
        if !vacant.is_empty() {
            self.0.retain(|(_, destination), _| !vacant.contains(destination));
        }
    }

    pub fn forget_all(&mut self) {
        self.0.clear();
    }

    /// Asks the kernel again about what is in use. True if anything is different now.
    pub fn verify(&mut self, diag: &mut Diag, now: u64) -> bool {
        self.0.retain(|_, known| {
            let kept = if known.receiver.is_some() { IN_USE_NANOS } else { NEGATIVE_NANOS };
            now.saturating_sub(known.asked) < kept
        });
        let mut changed = false;
        let old = self.0.iter_mut().filter(|(_, known)| known.receiver.is_some());
        let old = old.filter(|(_, known)| now.saturating_sub(known.checked) >= FRESH_NANOS);
        for (way, known) in old.take(AT_ONCE) {
            let receiver = ask(diag, protocol::UDP, way.0, way.1);
            changed |= receiver != known.receiver;
            known.receiver = receiver;
            known.checked = now;
        }
        changed
    }
}

/// Whose socket gets a packet. Only an own user's one counts: anybody may take its name for the
/// rendezvous, so the name proves nothing about another user's.
pub(super) fn ask(
    diag: &mut Diag,
    protocol: u8,
    source: SocketAddrV4,
    destination: SocketAddrV4,
) -> Option<Key> {
    let found = diag.receiver(protocol, source, destination).ok().flatten()?;
    let is_own = || unix_socket::sole_user() == Some(found.user);
    is_own().then_some(Key(found.inode))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;
    use crate::socket::fixture::own_loopback;

    const SECOND: u64 = 1_000_000_000;

    fn socket() -> (UdpSocket, SocketAddrV4) {
        let socket = UdpSocket::bind((own_loopback(), 0)).unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { panic!("IPv4") };
        (socket, address)
    }

    /// A way whose receiver is there, and one whose receiver is not.
    fn ways() -> (UdpSocket, [(SocketAddrV4, SocketAddrV4); 2]) {
        let (receiver, to) = socket();
        let (gone, vacant) = socket();
        drop(gone);
        let from = SocketAddrV4::new(*to.ip(), 9);
        (receiver, [(from, to), (from, vacant)])
    }

    /// To ask costs two system calls.
    #[test]
    fn an_answer_is_kept_and_that_there_is_none_only_for_a_moment() {
        let (receiver, [way, vacant]) = ways();
        let (mut mappings, mut diag) = (Mappings::default(), Diag::open().unwrap());
        let found = mappings.receiver(&mut diag, way, 1, 0);
        assert!(found.is_some());
        assert_eq!(mappings.receiver(&mut diag, vacant, 1, 0), None);
        drop(receiver);
        let _late = UdpSocket::bind(vacant.1).unwrap();
        assert_eq!(mappings.receiver(&mut diag, way, 1, 20 * SECOND), found, "it is not asked");
        assert_eq!(mappings.receiver(&mut diag, vacant, 1, NEGATIVE_NANOS - 1), None);
        assert!(mappings.receiver(&mut diag, vacant, 1, NEGATIVE_NANOS).is_some());
    }

    #[test]
    fn news_of_a_peer_void_every_answer() {
        let (receiver, [way, _]) = ways();
        let (mut mappings, mut diag) = (Mappings::default(), Diag::open().unwrap());
        assert!(mappings.receiver(&mut diag, way, 1, 0).is_some());
        drop(receiver);
        assert_eq!(mappings.receiver(&mut diag, way, 2, 0), None);
    }

    #[test]
    fn what_a_peer_calls_vacant_is_forgotten_and_the_rest_is_not() {
        let ((receiver, [way, _]), (other, there)) = (ways(), socket());
        let (mut mappings, mut diag) = (Mappings::default(), Diag::open().unwrap());
        let second = (way.0, there);
        assert!(mappings.receiver(&mut diag, way, 1, 0).is_some());
        let kept = mappings.receiver(&mut diag, second, 1, 0);
        drop((receiver, other));
        mappings.forget(&[]);
        mappings.forget(&[way.1]);
        assert_eq!(mappings.receiver(&mut diag, way, 1, 0), None);
        assert_eq!(mappings.receiver(&mut diag, second, 1, 0), kept);
        mappings.forget_all();
        assert!(mappings.is_empty());
    }

    #[test]
    fn answers_in_use_are_asked_for_again_and_others_are_dropped() {
        let (receiver, [way, vacant]) = ways();
        let (mut mappings, mut diag) = (Mappings::default(), Diag::open().unwrap());
        mappings.receiver(&mut diag, way, 1, 0);
        mappings.receiver(&mut diag, vacant, 1, 0);
        assert!(!mappings.verify(&mut diag, FRESH_NANOS), "it is the same");
        drop(receiver);
        assert!(!mappings.verify(&mut diag, FRESH_NANOS + 1), "it was asked just now");
        assert!(mappings.verify(&mut diag, 3 * FRESH_NANOS));
        assert!(!mappings.verify(&mut diag, 6 * FRESH_NANOS), "nobody is asked for");
        assert!(!mappings.is_empty());
        mappings.verify(&mut diag, NEGATIVE_NANOS);
        assert!(mappings.is_empty(), "neither is in use");
    }
}
