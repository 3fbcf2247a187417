//! Datagrams that wait in a socket's queue, to the kernel's socket: another process is about to read
//! there, and the kernel would have queued them for both.
//!
//! What came by an interface comes by it once more, as a frame that the kernel is given at its ingress. It
//! carries IP options that mean nothing, which the steering programs leave to the kernel: so this works
//! while the flows stand, and what arrives meanwhile stays behind it. What came by a link is sent once
//! more, from here if the sender is gone, else by the sender.

mod ipv6;

use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::IoSliceMut;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ethernet::{self, EtherType, MacAddr};
use libvma_engine::wire::{ipv4, udp};

use super::datagram::Datagram;
use super::receive::partial;
use super::transmit::group_mac;
use super::{RingId, SocketId, State};
use crate::device::Received;
use crate::device::xdp::Injector;
use crate::log::log_line;
use crate::sys::shadow;

/// Three times "no operation", then the end of the list (RFC 791 section 3.1).
const OPTIONS: [u8; 4] = [1, 1, 1, 0];
const IP_HEADER_LEN: usize = ipv4::HEADER_LEN + OPTIONS.len();
/// IP payload of a frame; a multiple of 8. The kernel takes a page, headroom included.
const PIECE: usize = 1472;
/// The source address of frames, at which nobody looks.
const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// Whose queue it is.
#[derive(Clone, Copy)]
pub struct Queue {
    pub socket: SocketId,
    /// Where it is bound.
    pub port: u16,
    /// Its flows stand: what is to reach the kernel must pass them.
    pub steered: bool,
    /// The ring of datagrams that do not tell theirs.
    pub ring: Option<RingId>,
    /// Other sockets of the process get the same groups: each has its own copy, and the kernel would
    /// deliver every one of them to all.
    pub shares_groups: bool,
}

impl<S> State<S> {
    /// Leaves in the queue what cannot be handed over. True if anything was.
    #[cold]
    pub fn hand_over_queue(&mut self, queue: Queue) -> bool {
        let mut injector = None;
        let (mut kept, mut any) = (Vec::new(), false);
        while let Some(mut datagram) = self.pop(queue.socket) {
            let segment = datagram.train.segment;
            let longest =
                if segment == 0 { datagram.len } else { datagram.len.min(segment.into()) };
            if queue.steered && !has_room_for_options(longest as usize) {
                kept.push(datagram);
                break;
            }
            match self.hand_over(&mut injector, &datagram, queue) {
                Some(all) if all == datagram.len => {
                    any = true;
                    self.release(datagram);
                }
                Some(part) => {
                    any = true;
                    datagram.pass(part);
                    kept.push(datagram);
                }
                None => kept.push(datagram),
            }
        }
        for datagram in kept.into_iter().rev() {
            self.put_back(queue.socket, datagram);
        }
        any
    }

    /// Returns how many bytes the kernel has now: of a train perhaps not all. None: it is still ours.
    fn hand_over(
        &mut self,
        injector: &mut Option<Injector>,
        datagram: &Datagram,
        queue: Queue,
    ) -> Option<u32> {
        if ipv6_stand_ins::is_multicast(datagram.destination) && queue.shares_groups {
            return None;
        }
        let mut payload = vec![0; datagram.len as usize];
        self.copy_out(datagram, &mut [IoSliceMut::new(&mut payload)]);
        let segment = datagram.train.segment;
        if datagram.by_link {
            let destination = SocketAddrV4::new(datagram.destination, queue.port);
            if !shadow::send_as(datagram.source, &payload, segment, destination) {
                self.return_to_sender(datagram.source, destination, segment, &payload);
            }
            return Some(datagram.len);
        }
        if self.is_own(*datagram.source.ip()) {
            // To a group, by a socket of this process: the kernel takes no such packet from outside.
            return None;
        }
        let (interface, mac) = self.way_in(datagram, queue.ring)?;
        if injector.is_none() {
            *injector = Injector::new().ok();
        }
        let injector = injector.as_mut()?;
        let size = if segment == 0 { payload.len().max(1) } else { segment.into() };
        // Nothing is a datagram, too.
        let empty = payload.is_empty().then_some(&[][..]);
        let mut done = None;
        for data in payload.chunks(size).chain(empty) {
            let inject = |frame: Vec<u8>| injector.inject_as_it_is(interface, &frame).is_ok();
            let is_in = match ipv6::Packet::of(datagram, queue.port, data) {
                Some(packet) => packet.frames(mac).is_some_and(|mut frames| frames.all(inject)),
                None => Packet::new(datagram, queue.port, data)
                    .is_some_and(|packet| packet.frames(mac).all(inject)),
            };
            if !is_in {
                break;
            }
            done = Some(done.unwrap_or(0) + data.len() as u32);
        }
        done
    }

    /// Gives the kernel a datagram of a peer for whom no stand-in is left. The steering program leaves later ones to the kernel, if it
    /// could be told. A bad one is dropped, and the shadow holds fewer of them than of those that the kernel receives itself.
    #[cold]
    pub(super) fn leave_stranger_to_kernel(&mut self, id: RingId, received: Received) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let Some(ring) = self.rings.get(id.index()) else { return };
        let frame: Vec<u8> = ring.pieces(&received.frame).flatten().copied().collect();
        let (partial, segment) = (partial(ring), usize::from(received.segment));
        let (interface, mac) = (ring.interface().index, MacAddr(ring.interface().mac));
        if ring.is_closed_to_strangers() && !TOLD.swap(true, Ordering::Relaxed) {
            log_line!(
                Warning,
                "{}: datagrams have come from more IPv6 addresses than the library can remember; those of unconnected \
                 sockets are the kernel's from now on",
                ring.interface().name
            );
        }
        self.refuse(id, received, DropReason::KernelsConnection);
        let Some(packet) = ipv6::Packet::read(&frame, partial) else {
            return inject_piece(interface, &frame);
        };
        if let Some(ring) = self.rings.get_mut(id.index()) {
            ring.tell_stranger(packet.src);
        }
        let Ok(injector) = Injector::new() else { return };
        let size = if segment == 0 { packet.data.len().max(1) } else { segment };
        let empty = packet.data.is_empty().then_some(&[][..]);
        for data in packet.data.chunks(size).chain(empty) {
            let frames = ipv6::Packet { data, ..packet }.frames(mac);
            for frame in frames.into_iter().flatten() {
                let _ = injector.inject_as_it_is(interface, &frame);
            }
        }
    }

    /// The interface that it came by, and the MAC address that it was sent to.
    fn way_in(&self, datagram: &Datagram, otherwise: Option<RingId>) -> Option<(u32, MacAddr)> {
        let told = self
            .rings
            .iter()
            .find(|ring| !ring.is_local() && ring.interface().index == datagram.interface);
        let ring = match (datagram.ring(), told) {
            (Some(ring), _) => self.ring(ring)?,
            (None, Some(ring)) => ring,
            (None, None) => self.ring(otherwise?)?,
        };
        let interface = ring.interface();
        let mac = group_mac(datagram.destination).unwrap_or(MacAddr(interface.mac));
        (!ring.is_local()).then_some((interface.index, mac))
    }
}

/// Gives the kernel a fragment of a datagram of IPv6, which may have others of it. It is lost if it is longer than a page.
#[cold]
fn inject_piece(interface: u32, frame: &[u8]) {
    if let Some(piece) = ipv6::past_steering(frame)
        && let Ok(injector) = Injector::new()
    {
        let _ = injector.inject_as_it_is(interface, &piece);
    }
}

/// A datagram as IP has it.
struct Packet {
    ip: ipv4::Header,
    /// The UDP header and the data.
    payload: Vec<u8>,
}

impl Packet {
    fn new(datagram: &Datagram, port: u16, data: &[u8]) -> Option<Packet> {
        let (source, destination) = (*datagram.source.ip(), datagram.destination);
        // Without a checksum: the data was verified when it came.
        let header = udp::Header::new(datagram.source.port(), port, data.len())?;
        let mut payload = vec![0; udp::HEADER_LEN];
        header.emit(payload.first_chunk_mut()?);
        payload.extend_from_slice(data);
        let len = payload.len();
        let mut ip = ipv4::Header::new(source, destination, ipv4::protocol::UDP, len)?;
        ip.ttl = datagram.ttl;
        ip.tos = datagram.tos;
        ip.ident = ident();
        Some(Packet { ip, payload })
    }

    fn options(&self) -> &'static [u8] {
        let data = self.payload.len().saturating_sub(udp::HEADER_LEN);
        if has_room_for_options(data) { &OPTIONS } else { &[] }
    }

    /// One, or its fragments.
    fn frames(&self, destination: MacAddr) -> impl Iterator<Item = Vec<u8>> {
        let options = self.options();
        let count = self.payload.len().div_ceil(PIECE);
        self.payload.chunks(PIECE).enumerate().filter_map(move |(number, piece)| {
            let len = options.len() + piece.len();
            let ip = self.ip.for_fragment(number * PIECE, len, number + 1 < count)?;
            Some(frame(destination, &ip, options, piece))
        })
    }
}

/// The longest datagrams go without them.
fn has_room_for_options(data: usize) -> bool {
    data + udp::HEADER_LEN + IP_HEADER_LEN <= ipv4::MAX_TOTAL_LEN
}

/// `ip` counts the options as payload.
fn frame(destination: MacAddr, ip: &ipv4::Header, options: &[u8], piece: &[u8]) -> Vec<u8> {
    let mut link = [0; ethernet::HEADER_LEN];
    ethernet::Header { dst: destination, src: SOURCE, ethertype: EtherType::IPV4 }.emit(&mut link);
    let mut header = [0; ipv4::HEADER_LEN];
    ip.emit(&mut header);
    header[0] += (options.len() / 4) as u8;
    (header[10], header[11]) = (0, 0);
    let [high, low] = Sum::of(&header).then(Sum::of(options)).checksum().to_be_bytes();
    (header[10], header[11]) = (high, low);
    [&link[..], &header, options, piece].concat()
}

/// Tells the fragments of one datagram from those of another.
fn ident() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::datagram::{Body, Train};
    use core::net::Ipv4Addr;
    use std::sync::Arc;

    fn frames(len: usize) -> Vec<Vec<u8>> {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let datagram = Datagram {
            body: Body::Heap(Arc::from(&data[..])),
            len: len as u32,
            skip: 0,
            train: Train::default(),
            source: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4000),
            destination: Ipv4Addr::new(10, 0, 0, 1),
            interface: 0,
            ttl: 9,
            tos: 4,
            after_kernel: 0,
            by_link: false,
            stamp: 0,
            drops_before: 0,
        };
        let packet = Packet::new(&datagram, 7000, &data).expect("it fits");
        packet.frames(MacAddr([2, 0, 0, 0, 0, 1])).collect()
    }

    #[test]
    fn the_fragments_of_a_datagram_make_it_whole_again() {
        for len in [0, 1, 1464, 1465, 9000, 65_503, 65_504, udp::MAX_DATA_LEN] {
            let mut whole = Vec::new();
            let frames = frames(len);
            for (number, frame) in frames.iter().enumerate() {
                let packet = &frame[ethernet::HEADER_LEN..];
                let ip = ipv4::Header::parse(packet, packet.len()).expect("a good header");
                assert_eq!(ip.header_len(), if len > 65_503 { 20 } else { 24 });
                assert_eq!((ip.ttl, ip.tos, ip.fragment_offset()), (9, 4, whole.len()));
                assert_eq!(ip.more_fragments, number + 1 < frames.len());
                whole.extend_from_slice(&packet[ip.header_len()..]);
            }
            let header = udp::Header::parse(&whole, whole.len()).expect("a good header");
            assert_eq!((header.src_port, header.dst_port, header.data_len()), (4000, 7000, len));
            assert!(whole[8..].iter().enumerate().all(|(n, byte)| *byte == n as u8));
        }
    }
}
