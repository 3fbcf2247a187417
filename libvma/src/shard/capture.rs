//! The shard's part of a capture (`VMA_PCAP`): frames as the rings bring them, with the reason if they are dropped, and
//! the bytes of streams within the host, for which segments are made up. Sent frames are the rings' to hand in.
//!
//! While nothing is captured, this costs a branch in each poll.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddrV4};
use std::sync::Arc;

use libvma_dev::ipv6_loopback::real;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ethernet::{self, EtherType, MacAddr};
use libvma_engine::wire::tcp::{Flags, HEADER_LEN, Header};
use libvma_engine::wire::{ipv4, tcp};

use super::poll::BUDGET;
use super::{RingId, SocketId, State};
use crate::capture::{Capture, Direction, Tap};
use crate::device::shm::Arrival;
use crate::device::{Received, Ring};
use crate::log::log_line;
use crate::sys::time::realtime_nanos;

/// The interface that packets within the host are told to be on: there is none.
const LOCAL: &str = "vma-local";

/// The two MAC addresses of a frame. Those of a link are the library's own business; on `lo` they are zeros.
const MACS: usize = 12;

/// Bytes of a made-up segment.
const SEGMENT: usize = 32 * 1024;

/// With the longer one of the two internet headers.
const STREAM_HEADERS: usize = ethernet::HEADER_LEN + IPV6_HEADER_LEN + HEADER_LEN;
const IPV6_HEADER_LEN: usize = 40;
const IPV6: EtherType = EtherType(0x86dd);

/// The taps of a shard's rings.
pub(super) struct Captures {
    capture: Arc<Capture>,
    /// By ring.
    taps: Vec<Tap>,
    /// The frame that is being looked at: it is given back before it is known whether it is dropped.
    bytes: Vec<u8>,
    /// Addresses of captured streams: the local one and the peer's.
    ends: HashMap<SocketId, (SocketAddrV4, SocketAddrV4)>,
}

/// Streams whose addresses are remembered.
const MOST_ENDS: usize = 4096;

impl Captures {
    pub fn new(capture: Arc<Capture>) -> Captures {
        Captures { capture, taps: Vec::new(), bytes: Vec::new(), ends: HashMap::new() }
    }

    /// The ring's packets are captured from now on. For every ring, in order.
    pub fn add(&mut self, ring: &mut Ring) {
        let tap = match ring {
            Ring::Xdp(ring) => {
                let tap = self.capture.tap(&ring.interface().name);
                ring.set_tap(tap.clone());
                tap
            }
            Ring::Shm(ring) => {
                let tap = self.capture.tap(LOCAL);
                ring.set_tap(tap.clone());
                tap
            }
        };
        self.taps.push(tap);
    }
}

impl<S> State<S> {
    #[inline]
    pub fn is_captured(&self) -> bool {
        self.captures.is_some()
    }

    /// As `poll_rings`, with every packet handed in. Written out a second time because `poll_rings` is the hottest loop
    /// of the library: one loop with a parameter would void what the compiler's profile says of it.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_captured(&mut self) -> usize {
        let mut packets = 0;
        for index in 0..self.rings.len() {
            let before = packets;
            let id = RingId(index as u16);
            for _ in 0..BUDGET {
                match self.rings.get_mut(index) {
                    Some(Ring::Xdp(ring)) => {
                        let Some(received) = ring.receive() else { break };
                        log_line!(Finer, "ring {index}: a frame of {} bytes came", received.len);
                        self.input_captured(id, received, State::input);
                    }
                    Some(Ring::Shm(ring)) => match ring.receive() {
                        Some(Arrival::Packet(received)) => {
                            self.input_captured(id, received, State::input_packet);
                        }
                        Some(arrival) => {
                            log_line!(Finer, "ring {index}: {arrival:?} came");
                            self.input_local(id, arrival);
                        }
                        None => break,
                    },
                    None => break,
                }
                packets += 1;
            }
            if packets > before {
                if let Some(Ring::Xdp(ring)) = self.rings.get_mut(index) {
                    ring.note_read();
                }
                self.note_drained(index, packets - before);
            }
        }
        packets
    }

    fn input_captured(
        &mut self,
        id: RingId,
        received: Received,
        input: impl FnOnce(&mut Self, RingId, Received),
    ) {
        let time = realtime_nanos();
        let len = received.len as usize;
        self.keep_bytes(id, &received);
        let before = self.drops;
        let tap =
            self.captures.as_ref().and_then(|captures| captures.taps.get(id.index())).cloned();
        if let Some(tap) = &tap {
            tap.begin_input();
        }
        input(self, id, received);
        let dropped = DropReason::ALL.iter().zip(self.drops.iter().zip(before));
        let reason = dropped.filter(|(_, (now, before))| *now != before).map(|(reason, _)| reason);
        let comment = reason.map(|reason| format!("dropped: {}", reason.name())).next();
        if let Some(captures) = &self.captures
            && let Some(tap) = tap
        {
            let bytes = core::iter::once(&captures.bytes[..]);
            tap.packet(Direction::In, time, len, bytes, comment.as_deref());
            tap.end_input();
        }
    }

    /// Copies as much of a frame as is kept of it.
    fn keep_bytes(&mut self, id: RingId, received: &Received) {
        let (Some(captures), Some(ring)) = (&mut self.captures, self.rings.get(id.index())) else {
            return;
        };
        let Captures { taps, bytes, .. } = &mut **captures;
        let Some(most) = taps.get(id.index()).map(Tap::snap_len) else { return };
        bytes.clear();
        for piece in ring.pieces(&received.frame) {
            let left = most - bytes.len();
            bytes.extend_from_slice(piece.get(..left).unwrap_or(piece));
        }
        if ring.is_local()
            && let Some(macs) = bytes.get_mut(..MACS)
        {
            macs.fill(0);
        }
    }

    /// The program has read, or sent, the first `count` bytes of these by a pipe, just now: the pieces behind
    /// the first `skip` bytes. `ask` tells the local address and the peer's.
    #[cold]
    #[inline(never)]
    pub fn capture_stream<'a>(
        &mut self,
        id: SocketId,
        direction: Direction,
        ask: impl FnOnce() -> Option<(SocketAddrV4, SocketAddrV4)>,
        pieces: impl Iterator<Item = &'a [u8]>,
        skip: usize,
        count: usize,
    ) {
        let Some((read, sent)) = self.pipe(id).map(|pipe| pipe.positions()) else { return };
        let Some(ring) = self.local.ring else { return };
        let Some(Captures { taps, ends, .. }) = self.captures.as_deref_mut() else { return };
        let Some(tap) = taps.get(ring.index()) else { return };
        let known = ends.get(&id).copied();
        let Some((local, peer)) = known.or_else(ask) else { return };
        if known.is_none() {
            if ends.len() >= MOST_ENDS {
                ends.clear();
            }
            ends.insert(id, (local, peer));
        }
        let bytes: Vec<u8> = pieces.flatten().copied().skip(skip).take(count).collect();
        let count = bytes.len() as u64;
        let (source, destination, begin, acknowledged) = match direction {
            Direction::In => (peer, local, read.wrapping_sub(count), sent),
            Direction::Out => (local, peer, sent.wrapping_sub(count), read),
        };
        let time = realtime_nanos();
        let mut seq = begin as u32;
        for payload in bytes.chunks(SEGMENT) {
            let ends = (source, destination);
            let Some(headers) = stream_headers(ends, seq, acknowledged as u32, payload) else {
                return;
            };
            let len = headers.len() + payload.len();
            tap.packet(direction, time, len, [headers.as_slice(), payload].into_iter(), None);
            seq = seq.wrapping_add(payload.len() as u32);
        }
    }
}

struct StreamHeaders {
    bytes: [u8; STREAM_HEADERS],
    len: usize,
}

impl StreamHeaders {
    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Of a segment that was never sent.
fn stream_headers(
    (source, destination): (SocketAddrV4, SocketAddrV4),
    seq: u32,
    ack: u32,
    payload: &[u8],
) -> Option<StreamHeaders> {
    let (src, dst) = (*source.ip(), *destination.ip());
    let len = HEADER_LEN + payload.len();
    let mut bytes = [0; STREAM_HEADERS];
    let (link, rest) = bytes.split_first_chunk_mut()?;
    let none = MacAddr([0; 6]);
    let ipv6 = real(source).zip(real(destination)).map(|(from, to)| [*from.ip(), *to.ip()]);
    let ethertype = if ipv6.is_some() { IPV6 } else { EtherType::IPV4 };
    ethernet::Header { dst: none, src: none, ethertype }.emit(link);
    let flags = Flags::from_bits(Flags::ACK.bits() | Flags::PSH.bits());
    let (src_port, dst_port) = (source.port(), destination.port());
    let tcp =
        Header { src_port, dst_port, seq, ack, flags, window: u16::MAX, ..tcp::Header::default() };
    let ip_len = if let Some(addresses) = ipv6 {
        let (ip, rest) = rest.split_first_chunk_mut()?;
        let pseudo_header = emit_ipv6(ip, addresses, len)?;
        tcp.emit(rest);
        let segment = Sum::of(rest).then(Sum::of(payload));
        let checksum = pseudo_header.then(segment).checksum();
        Header { checksum, ..tcp }.emit(rest);
        IPV6_HEADER_LEN
    } else {
        let (ip, rest) = rest.split_first_chunk_mut()?;
        let mut header = ipv4::Header::new(src, dst, ipv4::protocol::TCP, len)?;
        header.ttl = 64;
        header.dont_fragment = true;
        header.emit(ip);
        tcp.emit_checksummed(src, dst, Sum::of(payload), payload.len(), rest);
        ipv4::HEADER_LEN
    };
    Some(StreamHeaders { bytes, len: ethernet::HEADER_LEN + ip_len + HEADER_LEN })
}

/// The header (RFC 8200 section 3) of a packet from the first address to the second. Returns the sum of the pseudo header (section 8.1).
fn emit_ipv6(
    header: &mut [u8; IPV6_HEADER_LEN],
    addresses: [Ipv6Addr; 2],
    len: usize,
) -> Option<Sum> {
    const HOP_LIMIT: u8 = 64;
    let len = u16::try_from(len).ok()?;
    let [high, low] = len.to_be_bytes();
    let [from, to] = addresses.map(|address| address.octets());
    let fixed = [6 << 4, 0, 0, 0, high, low, ipv4::protocol::TCP, HOP_LIMIT];
    let all = fixed.iter().chain(&from).chain(&to);
    header.iter_mut().zip(all).for_each(|(place, byte)| *place = *byte);
    let addresses = Sum::of(&from).then(Sum::of(&to));
    Some(addresses.then_u16(len).then_u16(u16::from(ipv4::protocol::TCP)))
}

#[cfg(test)]
mod tests {
    use libvma_engine::wire::udp::PartialChecksum;

    use super::*;

    #[test]
    fn a_made_up_segment_is_a_good_one() {
        let ends = ("127.0.0.1:1000".parse().unwrap(), "127.0.0.2:2000".parse().unwrap());
        let payload = b"hello";
        let headers = stream_headers(ends, 7, 9, payload).expect("they fit");
        let packet = [&headers.as_slice()[ethernet::HEADER_LEN..], payload].concat();
        let ip = ipv4::Header::parse(&packet, packet.len()).expect("a header");
        assert_eq!(
            (ip.src.to_string(), ip.dst.to_string()),
            ("127.0.0.1".into(), "127.0.0.2".into())
        );
        let segment = &packet[ip.header_len()..];
        let (header, len) = Header::parse(segment, segment.len()).expect("a header");
        header
            .verify(ip.src, ip.dst, [segment], segment.len(), PartialChecksum::Reject)
            .expect("a good checksum");
        assert_eq!((header.src_port, header.dst_port, header.seq, header.ack), (1000, 2000, 7, 9));
        assert_eq!(&segment[len..], payload);
    }

    #[test]
    fn a_made_up_segment_of_ipv6_is_a_good_one() {
        let ends = (1000, 2000);
        let ends = (libvma_dev::ipv6_loopback::end(ends.0), libvma_dev::ipv6_loopback::end(ends.1));
        let payload = b"hello";
        let headers = stream_headers(ends, 7, 9, payload).expect("they fit");
        let packet = [headers.as_slice(), payload].concat();
        assert_eq!(packet[12..14], [0x86, 0xdd]);
        let (ip, segment) = packet[ethernet::HEADER_LEN..].split_at(IPV6_HEADER_LEN);
        assert_eq!(ip[..8], [0x60, 0, 0, 0, 0, 25, 6, 64]);
        for address in [&ip[8..24], &ip[24..]] {
            assert_eq!(address, Ipv6Addr::LOCALHOST.octets());
        }
        let (header, len) = Header::parse(segment, segment.len()).expect("a header");
        assert_eq!((header.src_port, header.dst_port, header.seq, header.ack), (1000, 2000, 7, 9));
        assert_eq!(&segment[len..], payload);
        // All of the pseudo header and the segment.
        let pseudo_header = [&ip[8..], &[0, 0, 0, 25, 0, 0, 0, 6]].concat();
        let sum = Sum::of(&pseudo_header).then(Sum::of(segment));
        assert_eq!(sum.fold(), u16::MAX);
    }
}
