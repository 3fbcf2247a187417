//! From a descriptor number to what the library keeps for it. Read on every call, without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mux::EpollId;
use crate::shard::SocketId;
use crate::socket::report::traffic::KernelsId;

/// What a number of the program stands for, if it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A UDP socket.
    Socket(SocketId),
    /// A TCP socket.
    Stream(SocketId),
    /// An epoll instance that watches at least one of our sockets.
    Epoll(EpollId),
    /// A socket that is the kernel's, of which only the traffic is counted.
    Kernels(KernelsId),
}

const PER_PAGE: usize = 1024;
/// Enough for the largest RLIMIT_NOFILE that Linux allows by default (fs.nr_open, 1048576).
const PAGES: usize = 1024;
const EPOLL: u64 = 1 << 63;
/// Generations of sockets are 30 bits long. Together with the other one: a socket of the kernel's.
const STREAM: u64 = 1 << 62;

type Page = [AtomicU64; PER_PAGE];

pub struct Table {
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Default for Table {
    fn default() -> Table {
        Table { pages: (0..PAGES).map(|_| OnceLock::new()).collect() }
    }
}

impl Table {
    #[inline]
    pub fn get(&self, fd: i32) -> Option<Object> {
        decode(self.word(fd)?.load(Ordering::Acquire))
    }

    /// Makes a number ours. What it stood for before is returned: a stale entry, if the program
    /// closed the number in a way that nobody saw.
    pub fn set(&self, fd: i32, object: Object) -> Option<Object> {
        let index = usize::try_from(fd).ok()?;
        let page = self.pages.get(index / PER_PAGE)?;
        let page = page.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PER_PAGE]));
        decode(page.get(index % PER_PAGE)?.swap(encode(object), Ordering::AcqRel))
    }

    /// Takes a number out if it still stands for this object.
    pub fn take_if(&self, fd: i32, object: Object) -> bool {
        self.exchange(fd, encode(object), 0)
    }

    /// Gives a number another meaning if it still stands for this object.
    pub fn replace(&self, fd: i32, object: Object, by: Object) -> bool {
        self.exchange(fd, encode(object), encode(by))
    }

    fn exchange(&self, fd: i32, known: u64, new: u64) -> bool {
        self.word(fd).is_some_and(|word| {
            word.compare_exchange(known, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a number out.
    pub fn take(&self, fd: i32) -> Option<Object> {
        decode(self.word(fd)?.swap(0, Ordering::AcqRel))
    }

    /// The numbers from `first` to `last` that are ours.
    pub fn within(&self, first: u32, last: u32) -> Vec<i32> {
        let mut found = Vec::new();
        for (number, page) in self.pages.iter().enumerate() {
            let Some(page) = page.get() else { continue };
            for (offset, word) in page.iter().enumerate() {
                let fd = number * PER_PAGE + offset;
                let inside = fd >= first as usize && fd <= last as usize;
                if inside && word.load(Ordering::Acquire) != 0 {
                    found.push(fd as i32);
                }
            }
        }
        found
    }

    #[inline]
    fn word(&self, fd: i32) -> Option<&AtomicU64> {
        let index = usize::try_from(fd).ok()?;
        self.pages.get(index / PER_PAGE)?.get()?.get(index % PER_PAGE)
    }
}

fn encode(object: Object) -> u64 {
    match object {
        Object::Socket(id) => id.to_bits(),
        Object::Stream(id) => STREAM | id.to_bits(),
        Object::Epoll(id) => EPOLL | u64::from(id.0),
        Object::Kernels(id) => EPOLL | STREAM | id.to_bits(),
    }
}

#[inline]
fn decode(bits: u64) -> Option<Object> {
    if bits & EPOLL != 0 {
        if bits & STREAM != 0 {
            return Some(Object::Kernels(KernelsId::from_bits(bits)));
        }
        return Some(Object::Epoll(EpollId((bits & !EPOLL) as u32)));
    }
    if bits & STREAM != 0 {
        return SocketId::from_bits(bits & !STREAM).map(Object::Stream);
    }
    SocketId::from_bits(bits).map(Object::Socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_set_taken_and_listed() {
        let table = Table::default();
        let epoll = Object::Epoll(EpollId(0));
        assert_eq!(table.get(3), None);
        assert_eq!(table.set(3, epoll), None);
        assert_eq!(table.set(5000, epoll), None);
        assert_eq!(table.get(3), Some(epoll));
        assert_eq!(table.within(0, u32::MAX), [3, 5000]);
        assert_eq!(table.within(4, 4999), []);
        assert_eq!(table.take(3), Some(epoll));
        assert_eq!(table.take(3), None);
    }

    #[test]
    fn a_number_keeps_what_it_stands_for() {
        let table = Table::default();
        let id = SocketId::from_bits(5 << 32 | 7).unwrap();
        let kernels = Object::Kernels(KernelsId::from_bits(9 << 32 | 1 << 31 | 3));
        for object in
            [Object::Socket(id), Object::Stream(id), Object::Epoll(EpollId(u32::MAX)), kernels]
        {
            table.set(3, object);
            assert_eq!(table.get(3), Some(object));
        }
        assert!(!table.replace(3, Object::Socket(id), Object::Epoll(EpollId(1))));
        assert!(table.replace(3, kernels, Object::Socket(id)));
        assert_eq!(table.get(3), Some(Object::Socket(id)));
        assert!(!table.take_if(3, kernels) && table.take_if(3, Object::Socket(id)));
    }

    #[test]
    fn numbers_out_of_range_are_not_ours() {
        let table = Table::default();
        assert_eq!(table.get(-1), None);
        assert_eq!(table.set(i32::MAX, Object::Epoll(EpollId(1))), None);
        assert_eq!(table.get(i32::MAX), None);
    }
}
