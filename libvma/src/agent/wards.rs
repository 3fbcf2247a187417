//! Connections of forked children, in memory that they share with their parent.
//!
//! A connection of the kernel's ends for the peer when the process is killed; one of the library's does not, unless
//! somebody tells the peer. Where no `vmad` runs that is the parent, if it has the library and an internal thread: a
//! child asks it once ([`Wards::ask`]), and writes down which connections it has ([`Ward`]). What the parent does
//! about a dead child is `process::guardian`'s.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use libvma_dev::agent::{State, TcpState};

use super::{MILLISECOND, Source};
use crate::log::log_line;
use crate::sys::shared_page::SharedPage;
use crate::sys::time::monotonic_nanos;
use crate::sys::{machine, thread};

/// Children of one parent that are cared for; the connections of others stay the kernel's where it matters.
const CHILDREN: usize = 64;
/// Connections of all of them. A child's further ones are not known to the parent.
const CONNECTIONS: usize = 8192;
/// Of a connection's addresses, two for each.
const HALVES: usize = 4;
const WORDS: usize = CHILDREN + CONNECTIONS + HALVES * CONNECTIONS;

/// The high half of a child's word, above its process id.
const ASKED: u64 = 1;
const GRANTED: u64 = 2;
const REFUSED: u64 = 3;

/// Changes of so long are written together, as those for the daemon are.
const GATHER: u64 = 2 * MILLISECOND;

/// A connection by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// The memory: a word for each child, one for each connection, and then four for each connection's addresses, those of
/// IPv4 as IPv4-mapped ones. A connection's word has the child's process id and both ports. It is 0 while the place is free,
/// and has no ports while the child writes the addresses. So the addresses of a word with ports are whole, also those
/// of a child that was killed while it wrote.
pub struct Wards {
    words: SharedPage<[AtomicU64; WORDS]>,
    parent: i32,
    /// The parent's PID namespace: in another one its children's numbers mean nothing.
    namespace: u64,
}

impl Wards {
    pub fn new() -> Option<Wards> {
        let (parent, namespace) = (thread::process_id(), machine::pid_namespace()?);
        SharedPage::of_words().ok().map(|words| Wards { words, parent, namespace })
    }

    fn children(&self) -> &'static [AtomicU64] {
        self.words.get().split_at(CHILDREN).0
    }

    /// The words of connections, and their addresses.
    fn connections(&self) -> (&'static [AtomicU64], &'static [[AtomicU64; HALVES]]) {
        let (words, addresses) = self.words.get().split_at(CHILDREN).1.split_at(CONNECTIONS);
        (words, addresses.as_chunks().0)
    }

    /// In a child: has the parent care for it. False if it cannot. The parent's internal thread is to be woken.
    pub fn ask(&self) -> bool {
        let word = child_word(thread::process_id(), ASKED);
        machine::pid_namespace() == Some(self.namespace)
            && self.children().iter().any(|place| {
                place.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
    }

    /// In a child: does its living parent care for it? A parent that ended and was not waited for still has a process
    /// id, but no children.
    fn is_granted(&self, child: i32, is_direct: bool) -> bool {
        let word = child_word(child, GRANTED);
        let lives = || match is_direct {
            true => thread::parent_id() == Some(self.parent),
            false => thread::is_alive(self.parent),
        };
        self.children().iter().any(|place| place.load(Ordering::Acquire) == word) && lives()
    }

    /// In the parent: children that have asked, by their places.
    pub fn asking(&self) -> impl Iterator<Item = (usize, i32)> {
        self.children().iter().enumerate().filter_map(|(at, place)| {
            let word = place.load(Ordering::Acquire);
            (word >> 32 == ASKED).then_some((at, word as u32 as i32))
        })
    }

    /// In the parent: the answer. Refused is final.
    pub fn answer(&self, place: usize, child: i32, granted: bool) {
        if let Some(place) = self.children().get(place) {
            let answer = if granted { GRANTED } else { REFUSED };
            place.store(child_word(child, answer), Ordering::Release);
        }
    }

    /// In the parent, which is about to end or to be another program: no child is cared for any more.
    pub fn retire(&self) {
        for place in self.children() {
            let word = place.load(Ordering::Acquire);
            if word >> 32 == GRANTED {
                place.store(child_word(word as u32 as i32, REFUSED), Ordering::Release);
            }
        }
    }

    /// In the parent: the connections that a dead child had. Its places are free from here on.
    pub fn bury(&self, child: i32) -> Vec<Ends> {
        let mut left = Vec::new();
        let (words, addresses) = self.connections();
        for (word, addresses) in words.iter().zip(addresses) {
            let told = word.load(Ordering::Acquire);
            if told as u32 == child as u32 && told != 0 {
                left.extend(ends(told, addresses));
                word.store(0, Ordering::Release);
            }
        }
        for place in self.children() {
            if place.load(Ordering::Acquire) as u32 == child as u32 {
                place.store(0, Ordering::Release);
            }
        }
        left
    }

    /// In a child: writes a connection down. None if there is no room.
    fn enter(&self, child: i32, ends: &Ends) -> Option<usize> {
        let (words, addresses) = self.connections();
        let taken = u64::from(child as u32);
        let at = words.iter().position(|word| {
            word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let halves = [ends.local, ends.peer].map(|end| halves(end.ip()));
        for (place, half) in addresses.get(at)?.iter().zip(halves.as_flattened()) {
            place.store(*half, Ordering::Relaxed);
        }
        words.get(at)?.store(connection_word(child, ends), Ordering::Release);
        Some(at)
    }

    fn leave(&self, at: usize) {
        if let Some(word) = self.connections().0.get(at) {
            word.store(0, Ordering::Release);
        }
    }
}

fn child_word(child: i32, says: u64) -> u64 {
    says << 32 | u64::from(child as u32)
}

/// Both ports above the process id.
fn connection_word(child: i32, ends: &Ends) -> u64 {
    let ports = u64::from(ends.local.port()) << 16 | u64::from(ends.peer.port());
    ports << 32 | u64::from(child as u32)
}

/// `None`: the addresses are not written yet.
fn ends(word: u64, addresses: &[AtomicU64; HALVES]) -> Option<Ends> {
    let [a, b, c, d] = addresses.each_ref().map(|half| half.load(Ordering::Relaxed));
    let end = |upper: u64, lower: u64, port: u16| {
        let ip = Ipv6Addr::from(u128::from(upper) << 64 | u128::from(lower));
        SocketAddr::new(ip.to_canonical(), port)
    };
    let (local_port, peer_port) = ((word >> 48) as u16, (word >> 32) as u16);
    (word >> 32 != 0).then(|| Ends { local: end(a, b, local_port), peer: end(c, d, peer_port) })
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// A child's part: keeps the memory in line with the connections that there are.
pub struct Ward {
    wards: &'static Wards,
    process: i32,
    /// It was forked by the parent itself.
    is_direct: bool,
    listens: bool,
    /// Places by the numbers that connections are known by.
    places: HashMap<u32, usize>,
    /// When the news are to be taken.
    due: Option<u64>,
    /// It was said that there is no room.
    said: bool,
}

impl Ward {
    /// None if the parent cannot be asked.
    pub fn new(wards: &'static Wards) -> Option<Ward> {
        let process = thread::process_id();
        let is_direct = thread::parent_id() == Some(wards.parent);
        let (listens, places, due, said) = (false, HashMap::new(), None, false);
        wards.ask().then_some(Ward { wards, process, is_direct, listens, places, due, said })
    }

    pub fn is_granted(&self) -> bool {
        self.wards.is_granted(self.process, self.is_direct)
    }

    /// When there is something to do though nothing happens.
    pub fn due(&mut self, source: &impl Source) -> Option<u64> {
        let begins = !self.listens && source.has_connections();
        if !begins && !source.has_news() {
            return None;
        }
        Some(*self.due.get_or_insert_with(|| monotonic_nanos().saturating_add(GATHER)))
    }

    pub fn attend(&mut self, source: &mut impl Source) {
        if self.due.is_some_and(|due| monotonic_nanos() >= due) {
            self.settle(source);
        }
    }

    /// Writes down what there is now.
    pub fn settle(&mut self, source: &mut impl Source) {
        self.due = None;
        if !core::mem::replace(&mut self.listens, true) {
            source.listen();
        }
        source.note_news();
        let mut changes = VecDeque::new();
        loop {
            if !source.take(self.process, &mut changes) {
                self.forget();
                source.listen();
            } else if changes.is_empty() {
                return;
            }
            for change in changes.drain(..) {
                self.apply(&change);
            }
        }
    }

    fn apply(&mut self, change: &State) {
        if let Some(at) = self.places.remove(&change.fd) {
            self.wards.leave(at);
        }
        if !waits(change.state) {
            return;
        }
        let ends = Ends { local: change.local, peer: change.peer };
        match self.wards.enter(self.process, &ends) {
            Some(at) => drop(self.places.insert(change.fd, at)),
            None if !core::mem::replace(&mut self.said, true) => log_line!(
                Debug,
                "no room for more connections that the parent would end if this process were killed"
            ),
            None => {}
        }
    }

    /// The process has no connection that somebody else may end.
    pub fn end(&mut self, source: &mut impl Source) {
        self.forget();
        if core::mem::replace(&mut self.listens, false) {
            source.stop();
        }
    }

    fn forget(&mut self) {
        for at in self.places.drain().map(|(_, at)| at) {
            self.wards.leave(at);
        }
    }
}

/// May the peer of a connection in this state wait for what never comes once the process is dead?
fn waits(state: TcpState) -> bool {
    matches!(
        state,
        TcpState::SynReceived
            | TcpState::Established
            | TcpState::FinWait1
            | TcpState::CloseWait
            | TcpState::Closing
            | TcpState::LastAck
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_of(port: u16) -> Ends {
        Ends {
            local: "10.0.0.1:8080".parse().unwrap(),
            peer: SocketAddr::new("192.168.200.254".parse().unwrap(), port),
        }
    }

    fn ends_of_ipv6(port: u16) -> Ends {
        Ends {
            local: "[2001:db8:1:2:3:4:5:6]:80".parse().unwrap(),
            peer: SocketAddr::new("fd00:99::ffff:0:2".parse().unwrap(), port),
        }
    }

    #[test]
    fn a_child_is_cared_for_from_the_answer_until_the_end() {
        let wards = Wards::new().unwrap();
        let child = thread::process_id();
        assert!(wards.ask() && !wards.is_granted(child, false));
        assert_eq!(wards.asking().collect::<Vec<_>>(), [(0, child)]);
        wards.answer(0, child, true);
        assert!(wards.is_granted(child, false) && wards.asking().next().is_none());
        assert!(!wards.is_granted(child, true), "this process is not its own parent");
        wards.retire();
        assert!(!wards.is_granted(child, false));
    }

    #[test]
    fn the_dead_leave_their_own_connections_and_free_places() {
        let wards = Wards::new().unwrap();
        let kept = wards.enter(7, &ends_of(1)).unwrap();
        wards.enter(8, &ends_of(2)).unwrap();
        let over = wards.enter(7, &ends_of(3)).unwrap();
        wards.enter(7, &ends_of(65_535)).unwrap();
        wards.leave(over);
        assert_eq!(wards.bury(7), [ends_of(1), ends_of(65_535)]);
        assert!(wards.bury(7).is_empty());
        assert_eq!(wards.enter(9, &ends_of(4)), Some(kept));
        assert_eq!(wards.bury(8), [ends_of(2)]);
    }

    #[test]
    fn connections_of_both_families_are_written_down() {
        let wards = Wards::new().unwrap();
        let all = [ends_of(1), ends_of_ipv6(65_535), ends_of(2), ends_of_ipv6(3)];
        let places = all.map(|ends| wards.enter(7, &ends).unwrap());
        assert_eq!(wards.bury(7), all);
        // A place that had another family's addresses.
        assert_eq!(wards.enter(8, &ends_of_ipv6(4)), Some(places[0]));
        assert_eq!(wards.enter(8, &ends_of(5)), Some(places[1]));
        assert_eq!(wards.bury(8), [ends_of_ipv6(4), ends_of(5)]);
    }

    #[test]
    fn what_a_killed_child_had_not_written_is_no_connection() {
        let wards = Wards::new().unwrap();
        wards.connections().0[0].store(7, Ordering::Relaxed);
        assert!(wards.enter(7, &ends_of(1)).is_some_and(|at| at == 1));
        assert_eq!(wards.bury(7), [ends_of(1)]);
        assert_eq!(wards.enter(9, &ends_of(2)), Some(0), "the place is free");
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let wards = Wards::new().unwrap();
        for port in 1..=CONNECTIONS as u16 {
            assert!(wards.enter(7, &ends_of(port)).is_some());
        }
        assert!(wards.enter(7, &ends_of(1)).is_none());
        assert_eq!(wards.bury(7).len(), CONNECTIONS);
    }
}
