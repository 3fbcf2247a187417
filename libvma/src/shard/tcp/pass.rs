//! Segments that a ring got and that are for a connection of the kernel's: clients of a listener that was left
//! to it a moment ago, and what was under way when a connection became its own. They go on to the kernel
//! as if they had just come; lost, each would cost its sender a timeout, and a handshake a reset.

use libvma_engine::drop_reason::DropReason;
use libvma_engine::wire::checksum::{Sum, pseudo_header};
use libvma_engine::wire::ethernet;
use libvma_engine::wire::ipv4::{Header, protocol};

use super::receive::Arrival;
use super::{Body, Io, Tcp, body, five_tuple};
use crate::device::xdp::Injector;

/// What the kernel takes back: less than a page. The sender of a longer one sends it again.
const MOST: usize = 3000;

impl Tcp {
    /// The 5-tuple is the kernel's from here on, or the segment would come back.
    #[cold]
    pub(super) fn pass(
        &mut self,
        io: &mut Io<'_>,
        arrival: &Arrival<'_>,
        body: Body,
    ) -> Result<(), DropReason> {
        let flow = five_tuple(&arrival.key);
        let ring = io.rings.get_mut(arrival.hop.ring.index());
        let excepted = ring.is_some_and(|ring| ring.except_flow(flow).is_ok());
        let frame = match &body {
            Body::Frames { ring, frame, .. } if excepted => io
                .rings
                .get(ring.index())
                .map(|ring| ring.pieces(frame).flatten().copied().take(MOST + 1).collect()),
            _ => None,
        };
        body::release(io.rings, &mut self.heaps, body);
        if let Some(frame) = frame.and_then(finished) {
            if self.injector.is_none() {
                self.injector = Injector::new().ok();
            }
            if let Some(injector) = &self.injector {
                let _ = injector.inject(arrival.hop.interface, &frame);
            }
        }
        Err(DropReason::KernelsConnection)
    }
}

/// With its checksum, which a peer on this machine may have left to a device.
fn finished(mut frame: Vec<u8>) -> Option<Vec<u8>> {
    if frame.len() > MOST {
        return None;
    }
    let packet = frame.get_mut(ethernet::HEADER_LEN..)?;
    let ip = Header::parse(packet, packet.len()).ok()?;
    let segment = packet.get_mut(ip.header_len()..)?.get_mut(..ip.payload_len())?;
    let len = u16::try_from(segment.len()).ok()?;
    segment.get_mut(CHECKSUM..CHECKSUM + 2)?.fill(0);
    let sum = pseudo_header(ip.src, ip.dst, protocol::TCP, len).then(Sum::of(segment)).checksum();
    segment.get_mut(CHECKSUM..CHECKSUM + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(frame)
}

/// Where it is in the TCP header.
const CHECKSUM: usize = 16;
