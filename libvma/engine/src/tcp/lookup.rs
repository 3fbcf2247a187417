//! From the 4-tuple of a segment to what stands for its connection, in constant time. What that is,
//! and who owns it, is the caller's business.

use crate::alloc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;
use core::net::{Ipv4Addr, SocketAddrV4};

/// The 4-tuple of a connection, seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub local: Ipv4Addr,
    pub local_port: u16,
    pub remote: Ipv4Addr,
    pub remote_port: u16,
}

impl FlowKey {
    #[inline]
    pub fn local_endpoint(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.local, self.local_port)
    }

    #[inline]
    pub fn remote_endpoint(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.remote, self.remote_port)
    }

    /// Both addresses and both ports as numbers.
    #[inline]
    pub(super) fn to_bits(self) -> (u64, u32) {
        let addresses = u64::from(self.local.to_bits()) << 32 | u64::from(self.remote.to_bits());
        (addresses, u32::from(self.local_port) << 16 | u32::from(self.remote_port))
    }

    /// A hash of every bit of it, for a choice that a peer must not make. `seed` as of
    /// [`FlowTable::new`].
    #[inline]
    pub fn keyed_hash(&self, seed: u64) -> u64 {
        mix(&keys(seed), self.packed())
    }

    #[inline]
    fn packed(&self) -> Packed {
        let (addresses, ports) = self.to_bits();
        Packed { addresses, ports }
    }
}

/// A hash table from [`FlowKey`] to `V`.
///
/// Open addressing with linear probing: a hit among 100 000 flows reads one cache line, mostly, and
/// that of the last hit. The hash is keyed, so that a peer who chooses addresses and ports cannot make
/// flows collide; removal moves later entries back instead of leaving marks, so that a table which lived
/// through millions of connections is as fast as a new one. It grows and never shrinks.
pub struct FlowTable<V> {
    /// Empty, or a power of two long and at least three eighths vacant.
    slots: Vec<Slot<V>>,
    len: usize,
    keys: [u64; 3],
    /// The slot of the flow that was found last. Segments come in runs, and with a guess that the
    /// processor can check later nothing waits for the hash: some 7 ns less for each. A wrong guess costs
    /// 2 ns, as with 50 flows in random order, and 8 ns with 100 000.
    recent: Cell<usize>,
}

impl<V: Copy> FlowTable<V> {
    /// `seed` must come from a source a peer cannot guess. Allocates nothing yet.
    pub fn new(seed: u64) -> FlowTable<V> {
        FlowTable { slots: Vec::new(), len: 0, keys: keys(seed), recent: Cell::new(0) }
    }

    #[inline]
    pub fn get(&self, key: &FlowKey) -> Option<V> {
        let key = key.packed();
        if key == Packed::VACANT {
            return None;
        }
        if let Some(slot) = self.slots.get(self.recent.get()).filter(|slot| slot.key == key) {
            return Some(slot.value);
        }
        let index = self.find(key)?;
        self.recent.set(index);
        Some(self.slots.get(index)?.value)
    }

    /// Enters or replaces a flow and returns what stood there. The flow of nothing but zeros, which
    /// no segment can belong to, is not kept.
    pub fn insert(&mut self, key: FlowKey, value: V) -> Option<V> {
        let key = key.packed();
        if key == Packed::VACANT {
            return None;
        }
        if let Some(slot) = self.find(key).and_then(|index| self.slots.get_mut(index)) {
            return Some(core::mem::replace(&mut slot.value, value));
        }
        if self.len.saturating_add(1).saturating_mul(8) > self.slots.len().saturating_mul(5) {
            self.grow(value);
        }
        self.place(Slot { key, value });
        self.len = self.len.saturating_add(1);
        None
    }

    pub fn remove(&mut self, key: &FlowKey) -> Option<V> {
        let key = key.packed();
        if key == Packed::VACANT {
            return None;
        }
        let mut hole = self.find(key)?;
        let removed = self.slots.get(hole)?.value;
        // Each entry of the run behind the hole moves into it unless that would put it before its
        // home, where no search would begin.
        let mut index = self.after(hole);
        while let Some(&slot) = self.slots.get(index) {
            if slot.key == Packed::VACANT {
                break;
            }
            if self.distance(self.home(slot.key), index) >= self.distance(hole, index) {
                *self.slots.get_mut(hole)? = slot;
                hole = index;
            }
            index = self.after(index);
        }
        self.slots.get_mut(hole)?.key = Packed::VACANT;
        self.len = self.len.saturating_sub(1);
        Some(removed)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every flow, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, V)> {
        let taken = self.slots.iter().filter(|slot| slot.key != Packed::VACANT);
        taken.map(|slot| (slot.key.unpacked(), slot.value))
    }

    #[inline]
    fn find(&self, key: Packed) -> Option<usize> {
        let mut index = self.home(key);
        loop {
            // Ends at a vacant slot at the latest; an empty table has none at all.
            let slot = self.slots.get(index)?;
            if slot.key == key {
                return Some(index);
            }
            if slot.key == Packed::VACANT {
                return None;
            }
            index = self.after(index);
        }
    }

    /// Puts an entry whose key is not there yet into the first vacant slot from its home on.
    fn place(&mut self, entry: Slot<V>) {
        let mut index = self.home(entry.key);
        while let Some(slot) = self.slots.get_mut(index) {
            if slot.key == Packed::VACANT {
                *slot = entry;
                return;
            }
            index = self.after(index);
        }
    }

    /// Doubles the table; vacant slots hold `filler`.
    fn grow(&mut self, filler: V) {
        let size = self.slots.len().saturating_mul(2).max(SMALLEST);
        let vacant = Slot { key: Packed::VACANT, value: filler };
        let old = core::mem::replace(&mut self.slots, vec![vacant; size]);
        for slot in old {
            if slot.key != Packed::VACANT {
                self.place(slot);
            }
        }
    }

    /// Where the search for `key` begins.
    #[inline]
    fn home(&self, key: Packed) -> usize {
        mix(&self.keys, key) as usize & self.mask()
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        index.wrapping_add(1) & self.mask()
    }

    /// How many steps lead from one slot to the other, around the end.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.mask()
    }

    /// All ones for the empty table, in which every index is out of range.
    #[inline]
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }
}

/// 16 bytes for a `V` of 4, so that none lies across two cache lines.
#[derive(Clone, Copy)]
struct Slot<V> {
    key: Packed,
    value: V,
}

/// A [`FlowKey`] in two registers. `packed(4)` keeps the pair at 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, packed(4))]
struct Packed {
    addresses: u64,
    ports: u32,
}

impl Packed {
    /// No connection has the local port 0.
    const VACANT: Packed = Packed { addresses: 0, ports: 0 };

    fn unpacked(self) -> FlowKey {
        FlowKey {
            local: Ipv4Addr::from_bits((self.addresses >> 32) as u32),
            local_port: (self.ports >> 16) as u16,
            remote: Ipv4Addr::from_bits(self.addresses as u32),
            remote_port: self.ports as u16,
        }
    }
}

/// The size of the first table.
const SMALLEST: usize = 16;

/// 2^64 divided by the golden ratio, whose bits look like chance.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of the product, so that every bit of both factors reaches every bit of the result.
#[inline]
fn multiply_and_fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    product as u64 ^ (product >> 64) as u64
}

/// The keyed hash of a flow.
#[inline]
fn mix([k0, k1, k2]: &[u64; 3], key: Packed) -> u64 {
    // Both factors depend on the key; the second multiplication spreads what the first one
    // leaves of a tuple that differs in few bits.
    let mixed = multiply_and_fold(key.addresses ^ k0, u64::from(key.ports) ^ k1);
    multiply_and_fold(mixed ^ k2, ODD)
}

fn keys(seed: u64) -> [u64; 3] {
    [spread(seed, 1), spread(seed, 2), spread(seed, 3)]
}

/// The `number`th key made from `seed`.
fn spread(seed: u64, number: u64) -> u64 {
    let step = seed.wrapping_add(number.wrapping_mul(ODD));
    multiply_and_fold(multiply_and_fold(step, ODD) ^ step, 0xd6e8_feb8_6659_fd93) ^ step
}

#[cfg(test)]
mod tests;
