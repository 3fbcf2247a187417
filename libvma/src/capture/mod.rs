//! Captures (`VMA_PCAP`): what is served, as a pcapng file that tcpdump and Wireshark read.
//!
//! [`Tap`] is where packets of one interface are handed in: they are copied into a queue of bounded
//! size, as the blocks of the file (`block`). [`Writer`] takes the queue and writes files
//! (`writer`); the data path never waits for a file. Nothing here knows a socket, a ring or a protocol, but `ipv6`.

mod block;
mod ipv6;
mod writer;

pub use block::Direction;
pub use writer::{Progress, Target, Writer};

use std::sync::Arc;

use self::block::About;
use crate::sys::lock::Lock;
use crate::sys::wait::Waker;

/// Bytes that may wait to be written.
const MOST_WAITING: usize = 8 << 20;

/// Where captured packets wait.
pub struct Capture {
    queue: Lock<Queue>,
    snap_len: u32,
    /// Wakes the writer when much waits.
    pub waker: Waker,
}

#[derive(Default)]
struct Queue {
    /// Packet blocks.
    bytes: Vec<u8>,
    /// Those of answers to a packet that is not in `bytes` yet, while there is one.
    answers: Option<Vec<u8>>,
    interfaces: Vec<Interface>,
    /// The writer has given up: nothing is taken any more.
    ended: bool,
}

/// An interface, and what came by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Interface {
    name: String,
    received: u64,
    /// Packets that found no room.
    dropped: u64,
}

impl Capture {
    pub fn new(snap_len: u32) -> rustix::io::Result<Arc<Capture>> {
        let queue = Lock::new(Queue::default());
        Ok(Arc::new(Capture { queue, snap_len, waker: Waker::new()? }))
    }

    /// The way in for the packets of an interface.
    pub fn tap(self: &Arc<Self>, name: &str) -> Tap {
        let interface = match self.queue.lock() {
            Ok(mut queue) => queue.interface(name),
            Err(_) => 0,
        };
        Tap { interface, capture: self.clone() }
    }

    /// Takes what waits, in exchange for an empty buffer, and tells of all interfaces.
    fn take(&self, bytes: &mut Vec<u8>, interfaces: &mut Vec<Interface>) {
        bytes.clear();
        let Ok(mut queue) = self.queue.lock() else { return };
        core::mem::swap(&mut queue.bytes, bytes);
        interfaces.clone_from(&queue.interfaces);
    }

    /// Packets of which nothing was written.
    fn count_lost(&self, lost: &[u8]) {
        let Ok(mut queue) = self.queue.lock() else { return };
        let mut rest = lost;
        while let Some(len) = block::len_at(rest) {
            let interface = rest.get(8..12).and_then(<[u8]>::first_chunk);
            let interface = interface.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
            if let Some(interface) = queue.interfaces.get_mut(interface as usize) {
                interface.dropped += 1;
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }

    fn end(&self) {
        if let Ok(mut queue) = self.queue.lock() {
            queue.ended = true;
            queue.bytes = Vec::new();
        }
    }
}

impl Queue {
    fn interface(&mut self, name: &str) -> u32 {
        let known = self.interfaces.iter().position(|interface| interface.name == name);
        let index = known.unwrap_or_else(|| {
            self.interfaces.push(Interface { name: name.into(), ..Interface::default() });
            self.interfaces.len() - 1
        });
        index as u32
    }
}

/// Takes the packets of one interface.
#[derive(Clone)]
pub struct Tap {
    interface: u32,
    capture: Arc<Capture>,
}

impl Tap {
    /// Bytes that are kept of each packet.
    pub fn snap_len(&self) -> usize {
        self.capture.snap_len as usize
    }

    /// A packet came, and is being looked at. What is sent meanwhile stands behind it in the file.
    pub fn begin_input(&self) {
        if let Ok(mut queue) = self.capture.queue.lock() {
            queue.answers.get_or_insert_default();
        }
    }

    /// The packet was handed in.
    pub fn end_input(&self) {
        let Ok(mut queue) = self.capture.queue.lock() else { return };
        let Queue { bytes, answers, .. } = &mut *queue;
        bytes.extend_from_slice(&answers.take().unwrap_or_default());
    }

    /// Takes a packet of `len` bytes, in pieces; a comment if there is something to say of it. `time` is in
    /// nanoseconds since 1970.
    pub fn packet<'a>(
        &self,
        direction: Direction,
        time: u64,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
        comment: Option<&str>,
    ) {
        let mut pieces = pieces.peekable();
        if pieces.peek().is_some_and(|first| ipv6::stands_for_ipv6(first)) {
            let bytes: Vec<u8> = pieces.flatten().copied().collect();
            if let Some((bytes, len)) = ipv6::packet(&bytes, len) {
                self.keep(direction, time, len, core::iter::once(&bytes[..]), comment);
            }
            return;
        }
        self.keep(direction, time, len, pieces, comment);
    }

    fn keep<'a>(
        &self,
        direction: Direction,
        time: u64,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
        comment: Option<&str>,
    ) {
        let Capture { queue, snap_len, waker } = &*self.capture;
        let about = About { interface: self.interface, direction, time, len, comment };
        let Ok(mut queue) = queue.lock() else { return };
        let Queue { bytes, answers, interfaces, ended } = &mut *queue;
        if *ended {
            return;
        }
        let before = bytes.len() + answers.as_ref().map_or(0, Vec::len);
        let wanted = block::packet_len(&about, *snap_len);
        let has_room = before + wanted <= MOST_WAITING;
        if let Some(interface) = interfaces.get_mut(self.interface as usize) {
            interface.received += 1;
            interface.dropped += u64::from(!has_room);
        }
        if !has_room {
            return;
        }
        if bytes.capacity() == 0 {
            // Memory that is not written to costs nothing.
            bytes.reserve_exact(MOST_WAITING);
        }
        let is_much = before + wanted > MOST_WAITING / 4 && before <= MOST_WAITING / 4;
        match answers {
            Some(answers) if direction == Direction::Out => {
                block::packet(answers, &about, *snap_len, pieces);
            }
            _ => block::packet(bytes, &about, *snap_len, pieces),
        }
        drop(queue);
        if is_much {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_stands_behind_what_it_answers() {
        let capture = Capture::new(100).expect("a waker");
        let tap = capture.tap("a");
        tap.begin_input();
        tap.packet(Direction::Out, 2, 2, [&[2, 2][..]].into_iter(), None);
        tap.packet(Direction::In, 1, 1, [&[1][..]].into_iter(), Some("dropped"));
        tap.end_input();
        tap.packet(Direction::Out, 3, 3, [&[3, 3, 3][..]].into_iter(), None);
        let (mut bytes, mut interfaces) = (Vec::new(), Vec::new());
        capture.take(&mut bytes, &mut interfaces);
        let mut lens = Vec::new();
        let mut rest = &bytes[..];
        while let Some(len) = block::len_at(rest) {
            // The captured length of an Enhanced Packet Block.
            lens.push(rest[20]);
            rest = &rest[len..];
        }
        assert_eq!(lens, [1, 2, 3]);
    }

    #[test]
    fn an_interface_has_one_number() {
        let capture = Capture::new(100).expect("a waker");
        let numbers = ["a", "b", "a"].map(|name| capture.tap(name).interface);
        assert_eq!(numbers, [0, 1, 0]);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_stays_whole() {
        let capture = Capture::new(70_000).expect("a waker");
        let tap = capture.tap("a");
        let frame = vec![7; 60_000];
        let pieces = || [&frame[..]].into_iter();
        for _ in 0..200 {
            tap.packet(Direction::In, 1, frame.len(), pieces(), None);
        }
        let (mut bytes, mut interfaces) = (Vec::new(), Vec::new());
        capture.take(&mut bytes, &mut interfaces);
        let mut packets = 0;
        let mut rest = &bytes[..];
        while let Some(len) = block::len_at(rest) {
            packets += 1;
            rest = &rest[len..];
        }
        assert!(rest.is_empty() && packets > 100, "{packets}");
        let expected = Interface { name: "a".into(), received: 200, dropped: 200 - packets };
        assert_eq!(interfaces, [expected]);
        // There is room again.
        tap.packet(Direction::In, 1, frame.len(), pieces(), None);
        capture.take(&mut bytes, &mut interfaces);
        assert_eq!(block::len_at(&bytes), Some(bytes.len()));
    }
}
