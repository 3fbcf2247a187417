//! Packets out: frames for them, and the descriptors of what was written.

use libvma_engine::frame::{Extent, Frame, Pool};

use super::ipv6::{self, HEADROOM};
use super::ring::{CONTINUED, Descriptor};
use super::umem::CHUNK;
use super::{Ring, capture};

/// The number of frames that a packet of `len` bytes takes.
fn frames(len: usize) -> usize {
    (len + HEADROOM).div_ceil(CHUNK as usize)
}

impl Ring {
    /// Frames for a packet of `len` bytes, as a chain; None when all are under way.
    pub fn allocate(&mut self, len: usize) -> Option<Frame> {
        let wanted = frames(len);
        if !self.has_free(wanted) {
            return None;
        }
        let head = self.tx.allocate()?;
        let mut last = head.index();
        let mut left = len;
        self.place(last, HEADROOM, &mut left);
        for _ in 1..wanted {
            let Some(frame) = self.tx.allocate() else { break };
            let index = frame.index();
            last = self.tx.append(last, frame);
            self.place(index, 0, &mut left);
        }
        Some(head)
    }

    /// Are frames free for all of these packets, whose lengths are given? If they need more than there are at all, for as many as there are.
    #[cold]
    pub fn has_room(&mut self, packets: impl Iterator<Item = usize>) -> bool {
        let wanted = packets.map(frames).sum::<usize>().min(self.tx.capacity());
        self.has_free(wanted)
    }

    #[inline]
    fn has_free(&mut self, wanted: usize) -> bool {
        if self.tx.available() < wanted {
            self.reclaim_sent();
            if self.tx.available() < wanted {
                self.kick();
                self.reclaim_sent();
            }
        }
        if self.tx.available() < wanted || self.queues.is_empty() {
            self.traffic.tx_none += 1;
            return false;
        }
        true
    }

    /// Behind the first `skip` bytes of a chunk.
    fn place(&mut self, index: u32, skip: usize, left: &mut usize) {
        let len = (*left).min(CHUNK as usize - skip);
        *left -= len;
        let offset = u64::from(self.tx_base + index) * u64::from(CHUNK) + skip as u64;
        self.tx.set_extent_at(index, Extent { offset, len: len as u32 });
    }

    /// Hands the pieces of an allocated chain, in order, to `write` with their offset in the
    /// packet.
    #[inline]
    pub fn write(&mut self, frame: &Frame, mut write: impl FnMut(usize, &mut [u8])) {
        let mut offset = 0;
        for extent in self.tx.extents(frame) {
            let bytes = self.umem.bytes_mut(extent);
            write(offset, bytes);
            offset += bytes.len();
        }
    }

    /// The packets that come next are of this flow: they leave in order, whatever threads send them.
    #[inline]
    pub fn aim(&mut self, flow: u32) {
        self.queues.first_mut().into_iter().for_each(|queue| queue.aim(flow));
    }

    /// Queues a written packet for sending; it leaves with the next [`Ring::kick`].
    pub fn transmit(&mut self, frame: Frame) {
        let extent = self.tx.extent(&frame);
        if ipv6::is_ipv6(self.umem.bytes(extent)) {
            self.translate_sent(&frame, extent);
        }
        self.capture(&frame);
        self.traffic.tx_packets += 1;
        let mut next = Some(frame);
        while let Some(frame) = next {
            let extent = self.tx.extent(&frame);
            let (frame, rest) = self.tx.split(frame);
            let Some(queue) = self.queues.first_mut() else { return };
            let options = if rest.is_some() { CONTINUED } else { 0 };
            // The TX ring has a slot for every TX frame, so there is always room.
            queue.outlet.produce(Descriptor { address: extent.offset, len: extent.len, options });
            self.in_flight += 1;
            self.traffic.tx_bytes += u64::from(extent.len);
            let _surrendered = Pool::surrender(frame);
            next = rest;
        }
    }

    /// Makes a packet to send one of IPv6 (`ipv6`), by the room in front of it.
    #[inline(never)]
    fn translate_sent(&mut self, frame: &Frame, extent: Extent) {
        if let Some(headers) = ipv6::fragment_headers(self.umem.bytes(extent), &mut self.idents) {
            let grown = ipv6::grown(extent, ipv6::DIFFERENCE_OF_FRAGMENT);
            let bytes = self.umem.bytes_mut(grown);
            bytes.first_chunk_mut().into_iter().for_each(|place| *place = headers);
            return self.tx.set_extent_at(frame.index(), grown);
        }
        // Always there: an address of 0.0.0.0/8 comes from the table.
        let Some(headers) = ipv6::headers(self.umem.bytes(extent)) else { return };
        let grown = ipv6::grown(extent, ipv6::DIFFERENCE);
        let bytes = self.umem.bytes_mut(grown);
        bytes.first_chunk_mut().into_iter().for_each(|place| *place = headers);
        self.tx.set_extent_at(frame.index(), grown);
    }

    /// Takes back the packet that was queued last, which no kick has sent: nothing of it is left.
    #[cold]
    pub fn take_back(&mut self) {
        let Some(queue) = self.queues.first_mut() else { return };
        // Of a packet the last piece alone is without the mark.
        let mut taken = 0;
        while let Some(piece) = queue.outlet.take_back(taken > 0) {
            taken = 1;
            let index = ((piece.address / u64::from(CHUNK)) as u32).wrapping_sub(self.tx_base);
            self.tx
                .reclaim(index, Extent::default())
                .into_iter()
                .for_each(|it| self.tx.release(it));
            self.in_flight = self.in_flight.saturating_sub(1);
            self.traffic.tx_bytes = self.traffic.tx_bytes.saturating_sub(piece.len.into());
        }
        self.traffic.tx_packets = self.traffic.tx_packets.saturating_sub(taken);
    }

    /// Sends a TCP segment, or a train of UDP datagrams, that may be larger than the MTU, behind everything queued
    /// before it.
    ///
    /// `headers` are those of the whole: Ethernet, IPv4 without options (total length and checksum
    /// of the whole) and TCP with its options, or UDP, whose checksum field holds the folded sum of the
    /// pseudo-header (of the whole), not complemented. The segments that it is cut into carry
    /// `segment_size` bytes of `payload` each, the last one the rest. The bytes are copied before
    /// this returns.
    ///
    /// False if it did not leave: the kernel has no room now, or never will, if
    /// [`Ring::segmentation_limit`] has become 0, of UDP if [`Ring::carries_trains`] says so.
    #[inline]
    pub fn transmit_segmented(
        &mut self,
        headers: &[u8],
        payload: [&[u8]; 2],
        segment_size: u16,
    ) -> bool {
        if ipv6::is_ipv6(headers) {
            return self.transmit_segmented_ipv6(headers, payload, segment_size);
        }
        self.send_segmented(headers, payload, segment_size)
    }

    #[inline(never)]
    fn transmit_segmented_ipv6(
        &mut self,
        headers: &[u8],
        payload: [&[u8]; 2],
        segment_size: u16,
    ) -> bool {
        let mut room = ipv6::Room::new();
        match ipv6::longer(headers, &mut room) {
            Some(headers) => self.send_segmented(headers, payload, segment_size),
            // Lost, as on any network.
            None => true,
        }
    }

    #[inline]
    fn send_segmented(&mut self, headers: &[u8], payload: [&[u8]; 2], segment_size: u16) -> bool {
        if self.queues.first_mut().is_some_and(|queue| !queue.drain(&self.umem)) {
            return false;
        }
        let sent = self.super_frames.send(headers, payload, segment_size);
        if sent {
            let [first, second] = payload;
            self.traffic.tx_packets += 1;
            self.traffic.tx_bytes += (headers.len() + first.len() + second.len()) as u64;
            capture::hand_in(self.tap.as_deref(), &[headers, first, second]);
        }
        sent
    }
}

#[cfg(test)]
mod tests;
