//! Frames in: from the rings to the queues of sockets.

use std::io::IoSliceMut;
use std::net::SocketAddrV4;
use std::sync::Arc;

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::udp::lookup::Tuple;
use libvma_engine::wire::udp::PartialChecksum;
use libvma_engine::wire::{ethernet, ipv4, udp};

use super::datagram::{Body, Datagram, Train, charge};
use super::local::{PLAIN, after_kernel, member, segment};
use super::tcp::way_back;
use super::{RingId, SocketId, State, clock};
use crate::device::Received;
use crate::device::Ring;
use crate::sys::time::realtime_nanos;
use crate::sys::user;

/// The bytes of the longest train that is received whole: the kernel's loopback cuts packets that have 65536
/// bytes with their headers (GSO_LEGACY_MAX_SIZE of Linux 6.18).
const MOST_WHOLE: usize = 65_535 - PLAIN;

/// A datagram's headers, judged good.
pub(super) struct Parsed {
    pub ip: ipv4::Header,
    pub udp: udp::Header,
    /// By a link, after so many others by the kernel.
    pub after_kernel: u16,
    pub by_link: bool,
    /// By a link: the member of a group with SO_REUSEPORT that it is for; else 0.
    pub member: u8,
    /// Of a train: bytes of each datagram; else 0.
    pub segment: u16,
}

impl<S> State<S> {
    /// Gives up datagrams whose fragments did not all come. For the internal thread.
    pub fn expire_fragments(&mut self) {
        for reassembler in &mut self.reassemblers {
            let expired = reassembler.expire(clock::now());
            let evicted = reassembler.take_evicted();
            for (reason, count) in
                [(DropReason::FragmentTimeout, expired), (DropReason::FragmentMemory, evicted)]
            {
                if let Some(total) = self.drops.get_mut(reason.index()) {
                    *total += count as u64;
                }
            }
        }
    }

    #[inline]
    pub(super) fn input(&mut self, id: RingId, received: Received) {
        let Some(ring) = self.rings.get(usize::from(id.0)) else { return };
        let outcome = match parse_ip(ring, &received) {
            Ok(ip) if ring.is_local() => {
                match (self.check_local(&ip), parse_udp(ring, &received, ip)) {
                    // The peer may know an address of the host that is news to this process.
                    (Err(DropReason::BadSourceAddress), Ok(parsed)) => {
                        let offset = ethernet::HEADER_LEN + ip.header_len() + udp::HEADER_LEN;
                        return self.give_back_to_sender(id, received, &parsed, offset);
                    }
                    (checked, parsed) => checked.and(parsed),
                }
            }
            Ok(ip) if self.own_addresses.iter().any(|(own, _)| *own == ip.src) => match ip {
                // Linux refuses the host's own address as a source of IPv4 only (fib_validate_source()).
                ip if !is_datagram_of_ipv6(&ip) => Err(DropReason::BadSourceAddress),
                ip if ip.is_fragment() => return self.input_fragment(id, received, ip),
                ip => parse_udp(ring, &received, ip),
            },
            Err(DropReason::NotIpv4) => return self.input_ipv6(id, received),
            Err(reason) => Err(reason),
            Ok(ip) if ip.is_fragment() => return self.input_fragment(id, received, ip),
            Ok(ip) if ip.protocol == ipv4::protocol::TCP => {
                return self.input_tcp(id, received, ip);
            }
            Ok(ip) => parse_udp(ring, &received, ip),
        };
        match outcome {
            Ok(parsed) => self.deliver(id, received, &parsed),
            Err(reason) => self.refuse(id, received, reason),
        }
    }

    #[inline(never)]
    fn input_ipv6(&mut self, id: RingId, mut received: Received) {
        let Some(ring) = self.rings.get_mut(id.index()) else { return };
        match ring.translate(&mut received) {
            Ok(()) => self.input(id, received),
            Err(DropReason::KernelsConnection) => self.leave_stranger_to_kernel(id, received),
            Err(reason) => self.refuse(id, received, reason),
        }
    }

    fn deliver(&mut self, id: RingId, received: Received, parsed: &Parsed) {
        let Some(ring) = self.rings.get(id.index()) else { return };
        let interface = ring.interface().index;
        let local = ring.is_local();
        let mut tuple = tuple(parsed, interface);
        let offset = ethernet::HEADER_LEN + parsed.ip.header_len() + udp::HEADER_LEN;
        if !ipv6_stand_ins::is_multicast(tuple.destination) {
            let Some(index) = self.lookup.unicast(&tuple) else {
                if local {
                    return self.give_back_to_sender(id, received, parsed, offset);
                }
                return self.refuse(id, received, DropReason::NoSocket);
            };
            if local {
                tuple.interface = self.interface_told(tuple.destination, interface);
            }
            return self.deliver_in_place(index, id, received, parsed, &tuple, offset);
        }
        let targets = self.multicast_targets(&tuple);
        match *targets.as_slice() {
            [] => self.refuse(id, received, DropReason::NotMember),
            [index] => self.deliver_in_place(index, id, received, parsed, &tuple, offset),
            _ => {
                let payload = self.copy_payload(id, &received, offset, parsed.udp.data_len());
                for index in &targets {
                    self.deliver_copy(*index, payload.clone(), parsed, &tuple);
                }
                self.give_back(id, received);
            }
        }
        self.matches = targets;
    }

    /// The sockets a multicast datagram is for, in a vector that is used again and again: put it
    /// back into `self.matches`.
    fn multicast_targets(&mut self, tuple: &Tuple) -> Vec<u32> {
        let mut targets = core::mem::take(&mut self.matches);
        targets.clear();
        self.lookup.multicast(tuple, |index| targets.push(index));
        targets
    }

    /// A datagram sent to a group is also received here, if a socket of ours joined it
    /// (IP_MULTICAST_LOOP).
    pub(super) fn loop_back(&mut self, tuple: &Tuple, ttl: u8, tos: u8, payload: &Arc<[u8]>) {
        let targets = self.multicast_targets(tuple);
        for index in &targets {
            self.enqueue(*index, payload.len(), 0, |len, train, stamp, drops| Datagram {
                body: Body::Heap(payload.clone()),
                len,
                skip: 0,
                train,
                source: SocketAddrV4::new(tuple.source, tuple.source_port),
                destination: tuple.destination,
                interface: tuple.interface,
                ttl,
                tos,
                after_kernel: 0,
                by_link: false,
                stamp,
                drops_before: drops,
            });
        }
        self.matches = targets;
    }

    /// Does any socket of ours want this multicast datagram?
    pub(super) fn has_members(&self, tuple: &Tuple) -> bool {
        let mut any = false;
        self.lookup.multicast(tuple, |_| any = true);
        any
    }

    #[inline]
    pub(super) fn deliver_in_place(
        &mut self,
        index: u32,
        ring: RingId,
        received: Received,
        parsed: &Parsed,
        tuple: &Tuple,
        offset: usize,
    ) {
        if self.ring(ring).is_some_and(Ring::is_short_of_frames) {
            let payload = self.copy_payload(ring, &received, offset, parsed.udp.data_len());
            self.give_back(ring, received);
            return self.deliver_copy(index, payload, parsed, tuple);
        }
        let Received { frame, .. } = received;
        let body = Body::Frames { ring, frame, offset: offset as u16 };
        let mut body = Some(body);
        let (len, segment) = (parsed.udp.data_len(), parsed.segment);
        let queued = self.enqueue(index, len, segment, |len, train, stamp, drops| Datagram {
            // `enqueue` calls this at most once.
            body: body.take().unwrap_or_else(|| Body::Heap(Arc::new([]))),
            len,
            skip: 0,
            train,
            source: SocketAddrV4::new(tuple.source, tuple.source_port),
            destination: tuple.destination,
            interface: tuple.interface,
            ttl: parsed.ip.ttl,
            tos: parsed.ip.tos,
            after_kernel: parsed.after_kernel,
            by_link: parsed.by_link,
            stamp,
            drops_before: drops,
        });
        if !queued {
            self.keep_mark(index, parsed);
        }
        if !queued && let Some(Body::Frames { ring, frame, .. }) = body {
            self.release_frame(ring, frame);
        }
    }

    fn deliver_copy(&mut self, index: u32, payload: Arc<[u8]>, parsed: &Parsed, tuple: &Tuple) {
        let (len, segment) = (payload.len(), parsed.segment);
        let queued = self.enqueue(index, len, segment, |len, train, stamp, drops| Datagram {
            body: Body::Heap(payload),
            len,
            skip: 0,
            train,
            source: SocketAddrV4::new(tuple.source, tuple.source_port),
            destination: tuple.destination,
            interface: tuple.interface,
            ttl: parsed.ip.ttl,
            tos: parsed.ip.tos,
            after_kernel: parsed.after_kernel,
            by_link: parsed.by_link,
            stamp,
            drops_before: drops,
        });
        if !queued {
            self.keep_mark(index, parsed);
        }
    }

    /// What is dropped may have said that others come first by the kernel: the next one says so.
    #[cold]
    fn keep_mark(&mut self, index: u32, parsed: &Parsed) {
        if parsed.after_kernel > 0
            && let Some(slot) = self.slots.get_mut(index as usize)
            && let Some((endpoint, _)) = slot.content.as_mut()
        {
            endpoint.marked = endpoint.marked.saturating_add(parsed.after_kernel);
        }
    }

    /// Queues a datagram on a socket, or a train of them, if its receive buffer has room.
    fn enqueue(
        &mut self,
        index: u32,
        len: usize,
        segment: u16,
        make: impl FnOnce(u32, Train, u64, u32) -> Datagram,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let id = SocketId { index, generation: slot.generation };
        let Some((endpoint, _)) = slot.content.as_mut() else { return false };
        let train = Train { segment, whole: endpoint.takes_trains && len <= MOST_WHOLE };
        let room = match segment {
            0 => endpoint.has_room(charge(len)).then_some(len),
            _ => endpoint.room_for(train, len),
        };
        // Of those before it, not of its own.
        let drops = endpoint.drops;
        if room != Some(len) {
            let count = endpoint.count_lost(train, len - room.unwrap_or(0));
            if let Some(total) = self.drops.get_mut(DropReason::SocketBufferFull.index()) {
                *total += u64::from(count);
            }
        }
        let Some(len) = room else { return false };
        let stamp = if endpoint.wants_stamp { realtime_nanos() } else { 0 };
        let mut datagram = make(len as u32, train, stamp, drops);
        // Linux tells the interface of a datagram of IPv6 also to a program that asks for it later.
        if !endpoint.wants_interface && !ipv6_stand_ins::is_one(datagram.destination) {
            datagram.interface = 0;
        }
        let marked = core::mem::take(&mut endpoint.marked);
        datagram.after_kernel = datagram.after_kernel.saturating_add(marked);
        if endpoint.is_filtered {
            self.withhold(id, datagram);
            return true;
        }
        endpoint.push(datagram);
        self.announce(id);
        true
    }

    #[cold]
    fn input_fragment(&mut self, id: RingId, received: Received, ip: ipv4::Header) {
        let Some(ring) = self.rings.get(usize::from(id.0)) else { return };
        let skip = ethernet::HEADER_LEN + ip.header_len();
        let payload = skipping(ring.pieces(&received.frame), skip);
        let [of_ipv4, of_ipv6] = &mut self.reassemblers;
        let packet = ring.first_bytes(&received.frame).get(ethernet::HEADER_LEN..);
        let whole = match packet.and_then(ipv4::long_ident) {
            Some(ident) if ipv6_stand_ins::is_one(ip.src) => {
                of_ipv6.push_identified(clock::now(), &ip, ident, payload)
            }
            _ => of_ipv4.push(clock::now(), &ip, payload),
        };
        let interface = ring.interface().index;
        let partial = partial(ring);
        let way = way_back(ring, id, ring.first_bytes(&received.frame));
        self.give_back(id, received);
        match (whole, way) {
            (Ok(None), _) => {}
            (Err(reason), _) => self.count_drop(reason),
            (Ok(Some(whole)), Ok(way)) if whole.header.protocol == ipv4::protocol::TCP => {
                self.input_tcp_whole(way, whole, partial);
            }
            (Ok(Some(whole)), _) => match check_udp(whole.header, &whole.payload, partial) {
                Err(reason) => self.count_drop(reason),
                Ok(parsed) => {
                    let tuple = tuple(&parsed, interface);
                    let data = whole.payload.get(udp::HEADER_LEN..).unwrap_or_default();
                    let data = data.get(..parsed.udp.data_len()).unwrap_or(data);
                    self.deliver_whole(Arc::from(data), &parsed, &tuple);
                }
            },
        }
    }

    fn deliver_whole(&mut self, payload: Arc<[u8]>, parsed: &Parsed, tuple: &Tuple) {
        if ipv6_stand_ins::is_multicast(tuple.destination) {
            let targets = self.multicast_targets(tuple);
            for index in &targets {
                self.deliver_copy(*index, payload.clone(), parsed, tuple);
            }
            self.matches = targets;
        } else if let Some(index) = self.lookup.unicast(tuple) {
            self.deliver_copy(index, payload, parsed, tuple);
        } else {
            self.count_drop(DropReason::NoSocket);
        }
    }

    pub(super) fn copy_payload(
        &self,
        id: RingId,
        received: &Received,
        skip: usize,
        len: usize,
    ) -> Arc<[u8]> {
        let mut payload = Vec::with_capacity(len);
        if let Some(ring) = self.ring(id) {
            for piece in skipping(ring.pieces(&received.frame), skip) {
                let left = len - payload.len();
                payload.extend_from_slice(piece.get(..left).unwrap_or(piece));
            }
        }
        payload.into()
    }

    pub(super) fn refuse(&mut self, id: RingId, received: Received, reason: DropReason) {
        self.count_drop(reason);
        self.give_back(id, received);
    }

    fn give_back(&mut self, id: RingId, received: Received) {
        self.release_frame(id, received.frame);
    }

    pub(super) fn release_frame(&mut self, id: RingId, frame: libvma_engine::frame::Frame) {
        if let Some(ring) = self.rings.get_mut(usize::from(id.0)) {
            ring.release(frame);
        }
    }

    /// Takes the next datagram off a socket's queue; give it back with [`State::release`].
    #[inline]
    pub fn pop(&mut self, id: SocketId) -> Option<Datagram> {
        self.socket(id)?.0.pop()
    }

    /// Puts a datagram back to the front of the queue (MSG_PEEK).
    pub fn put_back(&mut self, id: SocketId, datagram: Datagram) {
        match self.socket(id) {
            Some((endpoint, _)) => endpoint.push_front(datagram),
            None => self.release(datagram),
        }
    }

    #[inline]
    pub fn release(&mut self, datagram: Datagram) {
        if let Body::Frames { ring, frame, .. } = datagram.body {
            self.release_frame(ring, frame);
        }
    }

    /// Copies a datagram's payload out; returns how many bytes found room. None: the buffers are no memory that can be
    /// written.
    #[inline]
    pub fn copy_out(&self, datagram: &Datagram, out: &mut [IoSliceMut<'_>]) -> Option<usize> {
        let (skip, len) = (datagram.skip as usize, datagram.len as usize);
        match &datagram.body {
            Body::Heap(payload) => {
                scatter(core::iter::once(payload.get(skip..).unwrap_or_default()), len, out)
            }
            Body::Frames { ring, frame, offset } => {
                let Some(ring) = self.ring(*ring) else { return Some(0) };
                let offset = usize::from(*offset) + skip;
                match (ring.first_bytes(frame).get(offset..offset + len), &mut *out) {
                    // Nearly always: in one piece, into one buffer.
                    (Some(payload), [buffer]) => {
                        let count = len.min(buffer.len());
                        let (target, source) = (buffer.get_mut(..count), payload.get(..count));
                        if let (Some(target), Some(source)) = (target, source) {
                            if !user::takes(target) {
                                return None;
                            }
                            bulk_copy(target, source);
                        }
                        Some(count)
                    }
                    _ => scatter(skipping(ring.pieces(frame), offset), len, out),
                }
            }
        }
    }
}

fn parse_ip(ring: &Ring, received: &Received) -> Result<ipv4::Header, DropReason> {
    let bytes = ring.first_bytes(&received.frame);
    let header = ethernet::Header::parse(bytes)?;
    if header.ethertype != ethernet::EtherType::IPV4 {
        return Err(DropReason::NotIpv4);
    }
    let packet = bytes.get(ethernet::HEADER_LEN..).unwrap_or_default();
    let available = (received.len as usize).saturating_sub(ethernet::HEADER_LEN);
    let ip = ipv4::Header::parse(packet, available)?;
    if !matches!(ip.protocol, ipv4::protocol::UDP | ipv4::protocol::TCP) {
        return Err(DropReason::UnknownProtocol);
    }
    let nobodys = ip.src.is_unspecified() || ip.src.is_broadcast();
    let strange = ip.src.is_loopback() && !ring.is_local();
    if ip.src.is_multicast() || strange || nobodys {
        return Err(DropReason::BadSourceAddress);
    }
    Ok(ip)
}

fn is_datagram_of_ipv6(ip: &ipv4::Header) -> bool {
    ip.protocol == ipv4::protocol::UDP && ipv6_stand_ins::is_one(ip.src)
}

fn parse_udp(ring: &Ring, received: &Received, ip: ipv4::Header) -> Result<Parsed, DropReason> {
    let skip = ethernet::HEADER_LEN + ip.header_len();
    let first = ring.first_bytes(&received.frame);
    let udp = udp::Header::parse(first.get(skip..).unwrap_or_default(), ip.payload_len())?;
    if udp.checksum == 0 && is_datagram_of_ipv6(&ip) {
        // RFC 8200 section 8.1.
        return Err(DropReason::BadUdpChecksum);
    }
    let start = skip + udp::HEADER_LEN;
    match first.get(start..start + udp.data_len()) {
        Some(data) => udp.verify(ip.src, ip.dst, [data], partial(ring))?,
        None => {
            // In several chunks.
            let data = skipping(ring.pieces(&received.frame), start);
            udp.verify(ip.src, ip.dst, data, partial(ring))?;
        }
    }
    let after_kernel = if ring.is_local() { after_kernel(first) } else { 0 };
    let by_link = ring.is_local();
    let segment = if by_link { segment(first) } else { received.segment };
    let member = if by_link { member(first) } else { 0 };
    nonzero_port(Parsed { ip, udp, after_kernel, by_link, member, segment })
}

fn check_udp(
    ip: ipv4::Header,
    payload: &[u8],
    partial: PartialChecksum,
) -> Result<Parsed, DropReason> {
    let udp = udp::Header::parse(payload, payload.len())?;
    if udp.checksum == 0 && is_datagram_of_ipv6(&ip) {
        return Err(DropReason::BadUdpChecksum);
    }
    let data = payload.get(udp::HEADER_LEN..).unwrap_or_default();
    udp.verify(ip.src, ip.dst, core::iter::once(data), partial)?;
    nonzero_port(Parsed { ip, udp, after_kernel: 0, by_link: false, member: 0, segment: 0 })
}

fn nonzero_port(parsed: Parsed) -> Result<Parsed, DropReason> {
    if parsed.udp.dst_port == 0 { Err(DropReason::PortZero) } else { Ok(parsed) }
}

pub(super) fn partial(ring: &Ring) -> PartialChecksum {
    if ring.has_unfinished_checksums() { PartialChecksum::Accept } else { PartialChecksum::Reject }
}

pub(super) fn tuple(parsed: &Parsed, interface: u32) -> Tuple {
    Tuple {
        // Links carry the stand-in of `::1`, interfaces those of other addresses. A packet of IPv4 with such an address is refused.
        is_ipv6: is_stand_in(parsed.ip.src) || ipv6_stand_ins::is_one(parsed.ip.src),
        member: parsed.member,
        source: parsed.ip.src,
        source_port: parsed.udp.src_port,
        destination: parsed.ip.dst,
        port: parsed.udp.dst_port,
        interface,
    }
}

/// The pieces behind the first `skip` bytes.
#[inline]
pub(super) fn skipping<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut skip: usize,
) -> impl Iterator<Item = &'a [u8]> {
    pieces.filter_map(move |piece| {
        let here = skip.min(piece.len());
        skip -= here;
        piece.get(here..).filter(|rest| !rest.is_empty())
    })
}

/// Copies at most `len` bytes of the pieces into the buffers, in order.
#[inline]
fn scatter<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    len: usize,
    out: &mut [IoSliceMut<'_>],
) -> Option<usize> {
    let mut copied = 0;
    let mut buffers = out.iter_mut();
    let mut room: &mut [u8] = &mut [];
    for piece in pieces {
        let mut piece = piece.get(..len - copied).unwrap_or(piece);
        while !piece.is_empty() {
            if room.is_empty() {
                match buffers.next() {
                    Some(buffer) => room = &mut buffer[..],
                    None => return Some(copied),
                }
                continue;
            }
            let count = piece.len().min(room.len());
            let (target, rest) = room.split_at_mut(count);
            let (source, left) = piece.split_at(count);
            if !user::takes(target) {
                return None;
            }
            bulk_copy(target, source);
            room = rest;
            piece = left;
            copied += count;
        }
    }
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_fills_buffers_in_order_and_stops_at_the_length() {
        let mut a = [0u8; 3];
        let mut empty = [0u8; 0];
        let mut b = [0u8; 4];
        let mut out =
            [IoSliceMut::new(&mut a), IoSliceMut::new(&mut empty), IoSliceMut::new(&mut b)];
        let pieces = [&b"ab"[..], &b"cdef"[..], &b"ghij"[..]];
        assert_eq!(scatter(pieces.into_iter(), 6, &mut out), Some(6));
        assert_eq!((&a, &b), (b"abc", b"def\0"));
    }

    #[test]
    fn scatter_reports_what_found_room() {
        let mut a = [0u8; 2];
        let mut out = [IoSliceMut::new(&mut a)];
        assert_eq!(scatter([&b"abcd"[..]].into_iter(), 4, &mut out), Some(2));
    }

    #[test]
    fn skipping_crosses_pieces() {
        let pieces = [&b"ab"[..], &b"cd"[..], &b"ef"[..]];
        let rest: Vec<&[u8]> = skipping(pieces.into_iter(), 3).collect();
        assert_eq!(rest, [&b"d"[..], &b"ef"[..]]);
    }
}
