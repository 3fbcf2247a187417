//! A packet in memory of the library.

use core::ffi::{c_int, c_void};
use std::borrow::Cow;
use std::fmt;

use super::Free;
use crate::extra;

/// A packet that the program has, by [`super::Vma::receive`] or [`super::Arrival::hold`]. Dropping it gives the memory back.
///
/// It outlives its socket, and any thread may have it. A program that keeps many takes memory of its own process only.
pub struct Packet {
    free: Free,
    /// By this number of its socket it is given back.
    socket: c_int,
    id: *mut c_void,
    parts: Parts,
}

/// Nearly all packets are in one piece.
enum Parts {
    One(Part),
    Several(Box<[Part]>),
}

#[derive(Clone, Copy)]
struct Part {
    at: *const u8,
    len: usize,
}

// SAFETY: the memory is the program's alone and read only; the library takes packets back from every thread.
unsafe impl Send for Packet {}
// SAFETY: as above; a shared packet can only be read.
unsafe impl Sync for Packet {}

impl Packet {
    /// # Safety
    /// The library gave the packet `id` of the socket to the program, which nobody else gives back by `free`; what the
    /// fragments point to is there until then, and nobody writes to it.
    pub(super) unsafe fn new(
        free: Free,
        socket: c_int,
        id: *mut c_void,
        fragments: impl ExactSizeIterator<Item = extra::IoVec>,
    ) -> Packet {
        let mut parts = fragments.map(|part| Part { at: part.base.cast::<u8>(), len: part.len });
        let parts = match parts.len() {
            0 => Parts::Several(Box::default()),
            1 => parts.next().map_or_else(|| Parts::Several(Box::default()), Parts::One),
            _ => Parts::Several(parts.collect()),
        };
        Packet { free, socket, id, parts }
    }

    /// Its fragments, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let parts = match &self.parts {
            Parts::One(part) => core::slice::from_ref(part),
            Parts::Several(parts) => parts,
        };
        // SAFETY: memory that is the program's until the packet is dropped, as `new` was promised.
        parts.iter().map(|part| unsafe { bytes(part.at, part.len) })
    }

    /// Its payload: a copy only if it has several fragments.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        whole(self.parts())
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// Has it no payload?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        let mut record = extra::Packet { id: self.id, fragments: 0 };
        // SAFETY: one record, of a packet that is the program's. Should it not be known there is nothing to be done.
        unsafe { (self.free)(self.socket, &raw mut record, 1) };
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Packet").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// # Safety
/// So many bytes are there as long as the result is used, and nobody writes to them.
pub(super) unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: as promised.
        _ => unsafe { core::slice::from_raw_parts(at, len) },
    }
}

pub(super) fn whole<'a>(mut parts: impl Iterator<Item = &'a [u8]>) -> Cow<'a, [u8]> {
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let mut all = [first, second].concat();
            parts.for_each(|part| all.extend_from_slice(part));
            Cow::Owned(all)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static FREED: Cell<(c_int, usize, usize)> = const { Cell::new((0, 0, 0)) };
    }

    unsafe extern "C" fn free(socket: c_int, packet: *mut extra::Packet, count: usize) -> c_int {
        // SAFETY: the record of the packet that is dropped.
        let packet = unsafe { packet.read_unaligned() };
        let (_, id, times) = FREED.get();
        assert_eq!(count, 1);
        FREED.set((socket, id + packet.id.addr(), times + 1));
        0
    }

    fn packet(parts: &[&'static [u8]]) -> Packet {
        let part = |part: &&'static [u8]| extra::IoVec {
            base: part.as_ptr().cast_mut().cast(),
            len: part.len(),
        };
        let id = core::ptr::without_provenance_mut(0x50);
        // SAFETY: constants; `free` gives nothing back.
        unsafe { Packet::new(free, 7, id, parts.iter().map(part)) }
    }

    #[test]
    fn a_packet_is_its_fragments_in_order() {
        for (parts, whole) in [
            (&[][..], ""),
            (&[&b"one"[..]], "one"),
            (&[b"one", b"two"], "onetwo"),
            (&[b"one", b"", b"two", b"3"], "onetwo3"),
        ] {
            let packet = packet(parts);
            assert_eq!(packet.bytes(), whole.as_bytes());
            assert_eq!((packet.len(), packet.is_empty()), (whole.len(), whole.is_empty()));
            assert_eq!(packet.parts().count(), parts.len());
            assert_eq!(matches!(packet.bytes(), Cow::Borrowed(_)), parts.len() < 2);
        }
    }

    #[test]
    fn a_dropped_packet_is_given_back_once_by_the_number_of_its_socket() {
        let one = packet(&[b"one"]);
        let moved = Box::new(one);
        assert_eq!(FREED.get(), (0, 0, 0));
        drop(moved);
        assert_eq!(FREED.get(), (7, 0x50, 1));
    }
}
