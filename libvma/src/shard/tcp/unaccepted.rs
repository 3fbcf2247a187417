//! Connections that nobody has accepted, taken apart for the kernel's listener: what both ends agreed upon, and the
//! peer's segments as they would come now.

use libvma_engine::tcp::State as TcpState;
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

/// Data bytes of a segment: with its headers it fits into the frames of every interface.
const PIECE: usize = 1200;

/// A connection that is not ours any more.
pub struct TakenApart {
    pub interface: u32,
    /// The peer's segments, with Ethernet headers, in order.
    pub frames: Vec<Vec<u8>>,
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

    /// The connection is the kernel's from now on: `expect` has it wait for the segments, before the first one of the
    /// peer's can reach it. None: it stays as it is, because `expect` said false, or because the kernel could not be told
    /// of its state.
    pub fn take_apart(
        &mut self,
        accepted: &Accepted,
        expect: impl FnOnce(u32, Flow, &Handshake) -> bool,
    ) -> Option<TakenApart> {
        let ring = self.tcp()?.0.block(accepted.index)?.way.ring()?;
        let interface = self.ring(ring).filter(|ring| !ring.is_local())?.interface().index;
        let mut frames = Vec::new();
        let is_gone = self.transplant_orphan(Orphan::of(accepted), |cutting| {
            let Some((handshake, segments)) = segments(cutting) else { return false };
            frames = segments;
            expect(interface, five_tuple(&cutting.key), &handshake)
        });
        is_gone.then_some(TakenApart { interface, frames })
    }
}

/// None: more has happened than that the peer has sent something.
fn segments(cutting: &Cutting<'_>) -> Option<(Handshake, Vec<Vec<u8>>)> {
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
    let unread = cutting.unread;
    let first =
        parts.rcv_nxt.raw().wrapping_sub(unread.len() as u32).wrapping_sub(is_closed.into());
    let handshake = Handshake {
        mss: u16::try_from(parts.peer_mss).unwrap_or(u16::MAX),
        window_scales: parts.scales,
        sack: parts.sack,
        timestamps: parts.timestamp.map(|own| (own, parts.recent_timestamp)),
        first,
    };
    let scale = parts.scales.map_or(0, |(peers, _)| peers);
    let timestamps = handshake.timestamps.map(|(echo, value)| Timestamps { value, echo });
    let options = Options { timestamps, ..Options::default() };
    let header = Header {
        src_port: cutting.key.remote_port,
        dst_port: cutting.key.local_port,
        ack: parts.snd_una.raw(),
        window: u16::try_from(parts.snd_wnd >> scale).unwrap_or(u16::MAX),
        options,
        ..Header::default()
    };
    let mut frames = Vec::new();
    let mut add = |at: usize, flags: Flags, data: &[u8]| {
        let header = Header { seq: first.wrapping_add(at as u32), flags, ..header };
        frames.extend(frame(cutting, header, data));
    };
    if unread.is_empty() {
        add(0, Flags::ACK, &[]);
    }
    for (number, piece) in unread.chunks(PIECE).enumerate() {
        add(number * PIECE, Flags::ACK.with(Flags::PSH), piece);
    }
    if is_closed {
        add(unread.len(), Flags::ACK.with(Flags::FIN), &[]);
    }
    Some((handshake, frames))
}

fn frame(cutting: &Cutting<'_>, header: Header, data: &[u8]) -> Option<Vec<u8>> {
    let (source, destination) = (cutting.key.remote, cutting.key.local);
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
