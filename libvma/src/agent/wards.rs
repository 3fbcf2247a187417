//! Connections of forked children, in memory that they share with their parent.
//!
//! A connection of the kernel's ends for the peer when the process is killed; one of the library's does not, unless
//! somebody tells the peer. Where no `vmad` runs that is the parent, if it has the library and an internal thread: a
//! child asks it once ([`Wards::ask`]), and writes down which connections it has ([`Ward`]). What the parent does
//! about a dead child is `process::guardian`'s.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
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
const WORDS: usize = CHILDREN + 2 * CONNECTIONS;

/// The high half of a child's word, above its process id.
const ASKED: u64 = 1;
const GRANTED: u64 = 2;
const REFUSED: u64 = 3;

/// Changes of so long are written together, as those for the daemon are.
const GATHER: u64 = 2 * MILLISECOND;

/// A connection by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub local: SocketAddrV4,
    pub peer: SocketAddrV4,
}

/// The memory: a word for each child, then two for each connection. The first of these is the local address and
/// the child's process id, 0 while the place is free; the second one the peer's address and both ports. A reader
/// may find the second one of a former connection, which does no harm: a peer that is told of a living connection
/// answers, and that is all.
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

    fn connections(&self) -> &'static [[AtomicU64; 2]] {
        self.words.get().split_at(CHILDREN).1.as_chunks().0
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
        for [first, second] in self.connections() {
            let word = first.load(Ordering::Acquire);
            if word as u32 == child as u32 && word != 0 {
                left.push(ends(word, second.load(Ordering::Acquire)));
                first.store(0, Ordering::Release);
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
        let mine = first_word(child, ends);
        let at = self.connections().iter().position(|[first, _]| {
            first.load(Ordering::Relaxed) == 0
                && first.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let [_, second] = self.connections().get(at)?;
        second.store(second_word(ends), Ordering::Release);
        Some(at)
    }

    fn leave(&self, at: usize) {
        if let Some([first, _]) = self.connections().get(at) {
            first.store(0, Ordering::Release);
        }
    }
}

fn child_word(child: i32, says: u64) -> u64 {
    says << 32 | u64::from(child as u32)
}

fn first_word(child: i32, ends: &Ends) -> u64 {
    u64::from(ends.local.ip().to_bits()) << 32 | u64::from(child as u32)
}

fn second_word(ends: &Ends) -> u64 {
    let ports = u64::from(ends.local.port()) << 16 | u64::from(ends.peer.port());
    u64::from(ends.peer.ip().to_bits()) << 32 | ports
}

fn ends(first: u64, second: u64) -> Ends {
    let address = |word: u64| Ipv4Addr::from_bits((word >> 32) as u32);
    Ends {
        local: SocketAddrV4::new(address(first), (second >> 16) as u16),
        peer: SocketAddrV4::new(address(second), second as u16),
    }
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
            local: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 8080),
            peer: SocketAddrV4::new(Ipv4Addr::new(192, 168, 200, 254), port),
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
    fn a_full_table_takes_no_more() {
        let wards = Wards::new().unwrap();
        for port in 0..CONNECTIONS as u16 {
            assert!(wards.enter(7, &ends_of(port)).is_some());
        }
        assert!(wards.enter(7, &ends_of(1)).is_none());
        assert_eq!(wards.bury(7).len(), CONNECTIONS);
    }
}
