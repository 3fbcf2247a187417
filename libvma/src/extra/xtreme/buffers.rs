//! The buffers that a program has of completions: `vma_buff_t` at the front of the memory, the payload behind it.
//!
//! The program names a buffer by its address. It is looked up and never followed, and what the program may have written to a
//! `vma_buff_t` is not read: an address that is not among those lent is refused.

use std::collections::HashMap;

use super::Lent;
use super::members::Serving;
use crate::extra::{Amount, Buffer};
use crate::shard::SocketId;

/// So much of the memory is for `vma_buff_t`, whose 24 bytes these are; the payload begins where a cache line's quarter does.
pub(super) const HEAD: usize = 32;

#[derive(Default)]
pub(super) struct Buffers {
    lent: HashMap<u64, Part>,
}

struct Part {
    bytes: Buffer,
    references: u32,
    /// The address of the packet's next one.
    next: Option<u64>,
    len: usize,
    /// The first one of its packet.
    is_first: bool,
    descriptor: i32,
    generation: u32,
    socket: Option<SocketId>,
}

/// A buffer after one of its references was dropped.
pub(super) struct Freed {
    /// References that are left.
    pub left: u32,
    /// Its memory, if none is left.
    pub bytes: Option<Buffer>,
    pub next: Option<u64>,
    pub descriptor: i32,
    pub generation: u32,
}

fn address(bytes: &mut Buffer) -> u64 {
    bytes.as_mut_ptr().expose_provenance() as u64
}

/// Writes the `vma_buff_t` of a buffer: next, payload, len.
fn write_head(bytes: &mut Buffer, next: Option<u64>, len: usize) {
    let payload = address(bytes) + HEAD as u64;
    let len = len.min(usize::from(u16::MAX)) as u16;
    let fields = [next.unwrap_or(0).to_ne_bytes(), payload.to_ne_bytes()];
    if let Some(head) = bytes.first_chunk_mut::<HEAD>() {
        head.fill(0);
        for (at, byte) in fields.as_flattened().iter().chain(&len.to_ne_bytes()).enumerate() {
            if let Some(to) = head.get_mut(at) {
                *to = *byte;
            }
        }
    }
}

impl Buffers {
    /// A packet of so many bytes, in one or more buffers with as many bytes each, is the program's from now on.
    pub fn lend(
        &mut self,
        parts: impl DoubleEndedIterator<Item = (Buffer, usize)>,
        len: usize,
        of: &Serving,
    ) -> Option<Lent> {
        let mut next = None;
        let mut buffers = 0;
        // The last one first: each tells where the one behind it is.
        for (mut bytes, len) in parts.rev() {
            write_head(&mut bytes, next, len);
            let at = address(&mut bytes);
            let part = Part {
                bytes,
                references: 1,
                next,
                len,
                is_first: false,
                descriptor: of.descriptor,
                generation: of.generation,
                socket: of.socket,
            };
            self.lent.insert(at, part);
            next = Some(at);
            buffers += 1;
        }
        let list = next?;
        self.lent.get_mut(&list)?.is_first = true;
        Some(Lent { list, buffers, len })
    }

    /// None: the program has no such buffer.
    pub fn refer(&mut self, at: u64) -> Option<u32> {
        let part = self.lent.get_mut(&at)?;
        part.references = part.references.saturating_add(1);
        Some(part.references)
    }

    /// None: the program has no such buffer.
    pub fn release(&mut self, at: u64) -> Option<Freed> {
        let part = self.lent.get_mut(&at)?;
        part.references = part.references.saturating_sub(1);
        let (left, next) = (part.references, part.next);
        let (descriptor, generation) = (part.descriptor, part.generation);
        let bytes = if left == 0 { self.lent.remove(&at).map(|part| part.bytes) } else { None };
        Some(Freed { left, bytes, next, descriptor, generation })
    }

    pub fn add_amounts(&self, all: &mut Amount, of_sockets: &mut HashMap<SocketId, Amount>) {
        for part in self.lent.values() {
            let amount = Amount { packets: part.is_first.into(), bytes: part.len as u64 };
            all.add(amount);
            if let Some(socket) = part.socket {
                of_sockets.entry(socket).or_default().add(amount);
            }
        }
    }
}
