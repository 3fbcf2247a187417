//! Connections that nobody has accepted, taken apart for the kernel's listener: what both ends agreed upon, and the
//! peer's segments as they would come now.

use core::net::SocketAddrV4;

use libvma_engine::tcp::State as TcpState;
use libvma_engine::tcp::listen::{HANDED_SEGMENT, first_window};
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::wire::checksum::Sum;
use libvma_engine::wire::ethernet::{self, EtherType, MacAddr};
use libvma_engine::wire::ipv4::{self, protocol};
use libvma_engine::wire::tcp::{Flags, Header, Options, Timestamps};

use super::transplant::Cutting;
use super::{Accepted, Orphan, five_tuple};
use crate::device::Flow;
pub use crate::device::xdp::Establisher;
use crate::device::xdp::{Handshake, LOOPBACK_MAC};
use crate::shard::{SocketId, State};

/// Data bytes of a segment: with its headers it fits into what the kernel takes back at once.
const PIECE: usize = HANDED_SEGMENT as usize;

/// A connection that waits for accept(), as the kernel's listener can take it.
pub struct Waiting {
    pub handshake: Handshake,
    /// The end of the handshake, a segment of the peer's with its Ethernet header.
    pub opening: Vec<u8>,
    /// Those that came after it, in order.
    pub segments: Vec<Segment>,
    /// The sequence numbers in them: bytes, and one for the end.
    pub sent: u64,
    key: FlowKey,
    /// Of its segments, without a sequence number.
    header: Header,
}

/// A segment with data, or with the peer's end.
pub struct Segment {
    /// Sequence numbers up to its end.
    pub end: u64,
    /// With the Ethernet header.
    pub frame: Vec<u8>,
}

impl Waiting {
    pub fn flow(&self) -> Flow {
        five_tuple(&self.key)
    }

    /// The own end and the peer's.
    pub fn ends(&self) -> (SocketAddrV4, SocketAddrV4) {
        (self.key.local_endpoint(), self.key.remote_endpoint())
    }

    /// A reset by the peer, of whom so many sequence numbers have come.
    pub fn reset(&self, received: u64) -> Option<Vec<u8>> {
        self.frame(received as u32, Flags::RST.with(Flags::ACK), &[])
    }

    fn frame(&self, at: u32, flags: Flags, data: &[u8]) -> Option<Vec<u8>> {
        let seq = self.handshake.first.wrapping_add(at);
        let header = Header { seq, flags, ..self.header };
        let (source, destination) = (self.key.remote, self.key.local);
        let len = header.header_len() + data.len();
        let ip = ipv4::Header::new(source, destination, protocol::TCP, len)?;
        let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + len];
        let (link, packet) = frame.split_first_chunk_mut()?;
        let loopback = MacAddr(LOOPBACK_MAC);
        ethernet::Header { dst: loopback, src: loopback, ethertype: EtherType::IPV4 }.emit(link);
        let (network, segment) = packet.split_first_chunk_mut()?;
        ip.emit(network);
        let header_len =
            header.emit_checksummed(source, destination, Sum::of(data), data.len(), segment);
        segment.get_mut(header_len..)?.copy_from_slice(data);
        Some(frame)
    }
}

impl<S> State<S> {
    /// Are handshakes under way with a listener?
    pub fn has_handshakes(&mut self, id: SocketId) -> bool {
        let listener = self.socket(id).and_then(|(endpoint, _)| endpoint.listener);
        let Some((tcp, _)) = self.tcp() else { return false };
        listener
            .and_then(|listener| tcp.listener(listener))
            .is_some_and(|listening| !listening.engine.is_empty())
    }

    /// The interfaces that connections may have come by.
    pub fn served_interfaces(&self) -> Vec<u32> {
        let rings = self.rings.iter().filter(|ring| !ring.is_local());
        rings.map(|ring| ring.interface().index).collect()
    }

    /// Calls `give` with the interface of a connection off the accept queue, and with the connection. If that says true
    /// it is forgotten here. False also if the kernel cannot be told of its state, or has no room for what was sent, but
    /// for so many bytes.
    pub fn take_apart(
        &mut self,
        accepted: &Accepted,
        room: usize,
        give: impl FnOnce(u32, &Waiting) -> bool,
    ) -> bool {
        let Some(interface) = self.interface_of(accepted) else { return false };
        self.transplant_orphan(Orphan::of(accepted), |cutting| {
            waiting(cutting, room).is_some_and(|waiting| give(interface, &waiting))
        })
    }

    fn interface_of(&mut self, accepted: &Accepted) -> Option<u32> {
        let ring = self.tcp()?.0.block(accepted.index)?.way.ring()?;
        Some(self.ring(ring).filter(|ring| !ring.is_local())?.interface().index)
    }
}

/// None: more has happened than that the peer has sent something, or it has sent too much.
fn waiting(cutting: &Cutting<'_>, room: usize) -> Option<Waiting> {
    let connection = cutting.connection;
    let parts = connection.transplant(cutting.now);
    let is_closed = match connection.state() {
        TcpState::Established => false,
        TcpState::CloseWait => true,
        _ => return None,
    };
    // The byte of an urgent mark is not among the others.
    if connection.bytes_to_mark().is_some() {
        return None;
    }
    let data = cutting.unread;
    // The peer has our acknowledgment, and would not send again what the kernel finds no room for.
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let peer_mss = u16::try_from(parts.peer_mss).unwrap_or(u16::MAX);
    let unread = u32::try_from(data.len()).unwrap_or(u32::MAX);
    if unread > first_window(room, peer_mss) {
        return None;
    }
    let first = parts.rcv_nxt.raw().wrapping_sub(unread).wrapping_sub(is_closed.into());
    let handshake = Handshake {
        mss: peer_mss,
        window_scales: parts.scales,
        sack: parts.sack,
        timestamps: parts.timestamp.map(|own| (own, parts.recent_timestamp)),
        first,
    };
    let scale = parts.scales.map_or(0, |(peers, _)| peers);
    let timestamps = handshake.timestamps.map(|(echo, value)| Timestamps { value, echo });
    let header = Header {
        src_port: cutting.key.remote_port,
        dst_port: cutting.key.local_port,
        ack: parts.snd_una.raw(),
        window: u16::try_from(parts.snd_wnd >> scale).unwrap_or(u16::MAX),
        options: Options { timestamps, ..Options::default() },
        ..Header::default()
    };
    let sent = u64::from(unread) + u64::from(is_closed);
    let key = cutting.key;
    let (opening, segments) = Default::default();
    let mut waiting = Waiting { handshake, opening, segments, sent, key, header };
    waiting.opening = waiting.frame(0, Flags::ACK, &[])?;
    let (mut segments, mut end) = (Vec::new(), 0);
    for piece in data.chunks(PIECE) {
        let frame = waiting.frame(end, Flags::ACK.with(Flags::PSH), piece)?;
        end += piece.len() as u32;
        segments.push(Segment { end: end.into(), frame });
    }
    if is_closed {
        let frame = waiting.frame(unread, Flags::ACK.with(Flags::FIN), &[])?;
        segments.push(Segment { end: sent, frame });
    }
    waiting.segments = segments;
    Some(waiting)
}
