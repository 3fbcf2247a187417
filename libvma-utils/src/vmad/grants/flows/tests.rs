use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// As the programs would see them, with a kernel that knows which sockets are open.
#[derive(Default)]
struct Seen {
    flows: HashSet<Key>,
    sources: HashMap<End, u32>,
    marked: HashMap<u32, SocketKey>,
    is_full: bool,
    /// Nothing more may be sent.
    is_closed: bool,
}

impl Tables for Seen {
    fn lead(&mut self, flow: &Key) -> anyhow::Result<()> {
        anyhow::ensure!(!self.is_full, "no room");
        self.flows.insert(*flow);
        Ok(())
    }

    fn leave(&mut self, flow: &Key) {
        self.flows.remove(flow);
    }

    fn let_send(&mut self, source: &End, place: Option<u32>) -> anyhow::Result<()> {
        anyhow::ensure!(place.is_none() || !self.is_closed, "no room");
        match place {
            Some(place) => self.sources.insert(*source, place),
            None => self.sources.remove(source),
        };
        Ok(())
    }

    fn mark(&mut self, socket: &SocketKey, place: u32, again: bool) -> Result<(), Refused> {
        if !again && self.marked.contains_key(&place) {
            return Err(Refused::new(Errno::ADDRINUSE, "it is there"));
        }
        self.marked.insert(place, *socket);
        Ok(())
    }

    fn forget(&mut self, _: &SocketKey, place: u32) {
        self.marked.remove(&place);
    }
}

struct Host {
    flows: Flows,
    seen: Seen,
}

const A: End = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 5000);
const B: End = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 5000);
const C: End = (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 5000);
const WILD: SocketKey = [0; 16];
const CONNECTED: SocketKey = [1; 16];
const PEER: Option<End> = Some((IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)), 7));

impl Host {
    fn new() -> Host {
        Host { flows: Flows::default(), seen: Seen::default() }
    }

    fn add(&mut self, flow: Key, key: SocketKey, cookie: u64) -> Result<(), Errno> {
        self.show(flow, Socket { key, cookie, takes_ipv4: true })
    }

    fn show(&mut self, flow: Key, socket: Socket) -> Result<(), Errno> {
        self.flows.add(flow, &socket, &mut self.seen).map_err(|refused| refused.errno)
    }

    fn remove(&mut self, flow: Key) -> bool {
        self.flows.remove(&flow, &mut self.seen)
    }

    fn is_empty(&self) -> bool {
        let Seen { flows, sources, marked, .. } = &self.seen;
        self.flows.len() == 0 && flows.is_empty() && sources.is_empty() && marked.is_empty()
    }
}

#[test]
fn a_socket_is_marked_as_long_as_one_flow_is_its() {
    let mut host = Host::new();
    assert_eq!(host.add((A, None), WILD, 1), Ok(()));
    assert_eq!(host.add((B, None), WILD, 1), Ok(()));
    assert_eq!(host.seen.sources, HashMap::from([(A, 0), (B, 0)]));
    assert!(host.remove((A, None)));
    assert!(!host.remove((A, None)));
    assert_eq!(host.seen.marked, HashMap::from([(0, WILD)]));
    assert!(host.remove((B, None)));
    assert!(host.is_empty());
}

#[test]
fn a_port_may_be_sent_from_as_long_as_one_of_its_sockets_is_there() {
    let mut host = Host::new();
    assert_eq!(host.add((A, None), WILD, 1), Ok(()));
    assert_eq!(host.add((A, PEER), CONNECTED, 2), Ok(()));
    assert!(host.remove((A, PEER)));
    assert_eq!(host.seen.sources, HashMap::from([(A, 0)]));
    assert_eq!(host.add((A, PEER), CONNECTED, 2), Ok(()));
    assert!(host.remove((A, None)));
    assert_eq!(host.seen.sources, HashMap::from([(A, 1)]));
    assert!(host.remove((A, PEER)));
    assert!(host.is_empty());
}

#[test]
fn of_two_open_sockets_with_one_address_and_port_one_has_the_ring() {
    let mut host = Host::new();
    assert_eq!(host.add((A, None), WILD, 1), Ok(()));
    assert_eq!(host.add((B, None), WILD, 2), Err(Errno::ADDRINUSE));
    assert_eq!(host.seen.marked, HashMap::from([(0, WILD)]));
    // Closed, the kernel has it no more; its flow goes with it.
    host.seen.marked.clear();
    assert_eq!(host.add((B, None), WILD, 2), Ok(()));
    assert_eq!(host.seen.sources, HashMap::from([(B, 0)]));
    assert!(!host.remove((A, None)));
    assert_eq!(host.seen.marked, HashMap::from([(0, WILD)]));
    assert!(host.remove((B, None)));
    assert!(host.is_empty());
}

/// A socket may lose its port, be made one that takes IPv6 only, and have the port again.
#[test]
fn who_takes_ipv6_only_sends_from_no_address_of_ipv4() {
    let mut host = Host::new();
    let socket = |takes_ipv4| Socket { key: WILD, cookie: 1, takes_ipv4 };
    assert_eq!(host.show((A, None), socket(true)), Ok(()));
    assert_eq!(host.show((C, None), socket(true)), Ok(()));
    assert_eq!(host.seen.sources, HashMap::from([(A, 0), (C, 0)]));
    assert_eq!(host.show((C, PEER), socket(false)), Ok(()));
    assert_eq!(host.seen.sources, HashMap::from([(C, 0)]));
    assert_eq!(host.seen.flows, HashSet::from([(C, None), (C, PEER)]));
    assert!(host.remove((C, None)) && host.remove((C, PEER)));
    assert!(host.is_empty());
}

/// As shown.bpf.h puts keys together.
#[test]
fn sockets_of_ipv6_have_keys_of_their_own() {
    let key = |own: &str, peer: Option<&str>| {
        socket_key(own.parse().unwrap(), peer.map(|peer| peer.parse().unwrap()))
    };
    assert_eq!(key("10.0.0.1:5000", None), [10, 0, 0, 1, 0x88, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(key("[::]:5000", None), [0, 0, 0, 0, 0x88, 0x13, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_ne!(key("[::]:5000", None), key("0.0.0.0:5000", None));
    let peers: HashSet<_> = (0..=255)
        .flat_map(|n| (0..=255).map(move |m| (n, m)))
        .map(|(n, m)| key("[::1]:9", Some(&format!("[2001:db8::{n:x}:0:{m:x}]:7"))))
        .collect();
    assert_eq!(peers.len(), 65_536);
}

#[test]
fn a_flow_without_room_leaves_nothing_behind() {
    let mut host = Host::new();
    host.seen.is_full = true;
    assert_eq!(host.add((A, PEER), CONNECTED, 1), Err(Errno::NOSPC));
    assert!(host.is_empty());
}

/// Places are of an array that has no more than the flows that a ring may have.
#[test]
fn no_more_places_are_taken_than_there_are_sockets() {
    let mut host = Host::new();
    let key = |n: u8| [n; 16];
    let flow = |n: u8| ((A.0, n.into()), None);
    for n in 0..100_u8 {
        assert_eq!(host.add(flow(n), key(n), n.into()), Ok(()));
        assert_eq!(host.add(flow(n + 100), key(n + 100), n.into()), Ok(()));
        assert!(host.remove(flow(n)));
        if n >= 2 {
            assert!(host.remove(flow(n + 98)));
        }
        assert!(host.seen.marked.keys().all(|place| *place < 4), "{:?}", host.seen.marked);
    }
}

/// An address that is away for a while.
#[test]
fn flows_rest_and_come_back() {
    let mut host = Host::new();
    assert_eq!(host.add((A, None), WILD, 1), Ok(()));
    assert_eq!(host.add((B, PEER), CONNECTED, 2), Ok(()));
    host.flows.let_rest(|flow| flow.0 == A, &mut host.seen).expect("it can");
    assert_eq!(host.seen.flows, HashSet::from([(B, PEER)]));
    assert_eq!(host.seen.sources, HashMap::from([(B, 1)]));
    assert!(host.remove((B, PEER)));
    host.flows.let_rest(|_| false, &mut host.seen).expect("it can");
    assert_eq!(host.seen.flows, HashSet::from([(A, None)]));
    assert_eq!(host.seen.sources, HashMap::from([(A, 0)]));
    host.flows.let_rest(|_| true, &mut host.seen).expect("it can");
    assert!(host.remove((A, None)));
    assert!(host.is_empty());
}

/// A failure holds up nothing else: an address that the interface has lost is another host's.
#[test]
fn what_is_to_rest_rests_if_others_cannot_come_back() {
    let mut host = Host::new();
    let flow = |own: End, port| ((own.0, port), None);
    for port in 0..8_u8 {
        let key = |n| [port + n; 16];
        assert_eq!(host.add(flow(A, port.into()), key(0), port.into()), Ok(()));
        assert_eq!(host.add(flow(B, port.into()), key(100), port.into()), Ok(()));
    }
    let mut away = |address: IpAddr, seen: &mut Seen| {
        host.flows.let_rest(|flow| flow.0.0 == address, seen).is_ok()
    };
    assert!(away(A.0, &mut host.seen));
    host.seen.is_full = true;
    assert!(!away(B.0, &mut host.seen));
    assert!(host.seen.flows.is_empty() && host.seen.sources.is_empty());
    // Nor is one led that may not send.
    (host.seen.is_full, host.seen.is_closed) = (false, true);
    assert!(!away(B.0, &mut host.seen));
    assert!(host.seen.flows.is_empty());
    host.seen.is_closed = false;
    assert!(away(B.0, &mut host.seen));
    assert_eq!((host.seen.flows.len(), host.seen.sources.len()), (8, 8));
    assert!(host.seen.flows.iter().all(|flow| flow.0.0 == A.0));
}
