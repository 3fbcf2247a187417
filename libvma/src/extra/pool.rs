//! Memory for packets that the program gets: of two sizes, used again, so that a program which gives packets back has none
//! allocated.

use crate::sys::lock::Lock;

/// A packet of an Ethernet frame.
const SMALL: usize = 2048;
/// The longest datagram, and the most that is taken of a stream at once.
pub const LARGE: usize = 65_536;
/// So many of each are kept for the next packets.
const MOST_SMALL: usize = 512;
const MOST_LARGE: usize = 16;

/// Memory for one packet: at least as long as asked for, and it does not move.
pub type Buffer = Box<[u8]>;

#[derive(Default)]
pub struct Pool {
    free: Lock<Free>,
}

#[derive(Default)]
struct Free {
    small: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl Free {
    fn of(&mut self, len: usize) -> &mut Vec<Buffer> {
        if len <= SMALL { &mut self.small } else { &mut self.large }
    }
}

fn new(len: usize) -> Buffer {
    vec![0; if len <= SMALL { SMALL } else { len.max(LARGE) }].into_boxed_slice()
}

impl Pool {
    /// Memory for so many bytes. What it holds is of a former packet.
    pub fn take(&self, len: usize) -> Buffer {
        let kept = self.free.lock().ok().and_then(|mut free| free.of(len).pop());
        kept.filter(|buffer| buffer.len() >= len).unwrap_or_else(|| new(len))
    }

    /// Memory for a packet whose length is not known yet.
    pub fn scratch(&self) -> Scratch<'_> {
        Scratch { pool: self, bytes: self.take(LARGE) }
    }

    pub fn give(&self, buffer: Buffer) {
        let Ok(mut free) = self.free.lock() else { return };
        let most = if buffer.len() <= SMALL { MOST_SMALL } else { MOST_LARGE };
        let kept = free.of(buffer.len());
        if kept.len() < most {
            kept.push(buffer);
        }
    }
}

/// Memory for the longest packet. A short one, which is the rule, is moved to a small buffer before the program is told
/// where it is, so that a program which keeps many packets has no large buffer for each.
pub struct Scratch<'a> {
    pool: &'a Pool,
    /// Empty when it was kept.
    bytes: Buffer,
}

impl Scratch<'_> {
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// So much was received: memory that begins with it.
    pub fn keep(mut self, len: usize) -> Buffer {
        if len > SMALL {
            return core::mem::take(&mut self.bytes);
        }
        let mut small = self.pool.take(len);
        if let (Some(to), Some(from)) = (small.get_mut(..len), self.bytes.get(..len)) {
            to.copy_from_slice(from);
        }
        small
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.pool.give(core::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(pool: &Pool, bytes: &[u8]) -> Buffer {
        let mut scratch = pool.scratch();
        scratch.bytes()[..bytes.len()].copy_from_slice(bytes);
        scratch.keep(bytes.len())
    }

    #[test]
    fn packets_of_every_length_are_whole() {
        let pool = Pool::default();
        for len in [0, 1, SMALL - 1, SMALL, SMALL + 1, 60_000, LARGE] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let buffer = receive(&pool, &bytes);
            assert_eq!(&buffer[..len], bytes, "{len}");
            assert_eq!(buffer.len(), if len <= SMALL { SMALL } else { LARGE });
            pool.give(buffer);
        }
    }

    #[test]
    fn memory_is_used_again_and_not_hoarded() {
        let pool = Pool::default();
        let long = vec![7; LARGE];
        for bytes in [&b"a"[..], &long] {
            let first = receive(&pool, bytes);
            let at = first.as_ptr();
            pool.give(first);
            for _ in 0..100 {
                let next = receive(&pool, bytes);
                assert_eq!(next.as_ptr(), at);
                pool.give(next);
            }
        }
        // A call that fails has none of it.
        let before = pool.free.lock().expect("free").large.len();
        drop(pool.scratch());
        assert_eq!(pool.free.lock().expect("free").large.len(), before);
        let many: Vec<Buffer> = (0..MOST_SMALL * 2).map(|_| pool.take(SMALL)).collect();
        many.into_iter().for_each(|buffer| pool.give(buffer));
        let many: Vec<Buffer> = (0..MOST_LARGE * 2).map(|_| pool.take(LARGE)).collect();
        many.into_iter().for_each(|buffer| pool.give(buffer));
        let free = pool.free.lock().expect("free");
        assert_eq!((free.small.len(), free.large.len()), (MOST_SMALL, MOST_LARGE));
    }
}
