//! Segments in: from a frame to the connection or listener it is for.

use core::net::Ipv4Addr;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::ip::reassembly::Reassembled;
use libvma_engine::tcp::lookup::FlowKey;
use libvma_engine::tcp::{EcnField, Link, Piece, reset_for};
use libvma_engine::wire::tcp::Header;
use libvma_engine::wire::udp::PartialChecksum;
use libvma_engine::wire::{ethernet, ipv4};

use super::way::LEAD;
use super::wire::transmit;
use super::{Body, Io, Tcp};
use crate::device::Received;
use crate::device::Ring;
use crate::shard::receive::skipping;
use crate::shard::transmit::emit_link_and_ip;
use crate::shard::{NextHop, RingId, State};

/// Of answers for which there is no socket.
const DEFAULT_TTL: u8 = 64;

/// A segment judged good, and the way back.
pub(super) struct Arrival<'a> {
    pub key: FlowKey,
    pub header: &'a Header,
    pub payload_len: u32,
    pub tos: u8,
    pub hop: NextHop,
}

impl<S> State<S> {
    /// Takes a received TCP packet.
    #[inline]
    pub(in crate::shard) fn input_tcp(&mut self, id: RingId, received: Received, ip: ipv4::Header) {
        let Some((tcp, mut io)) = self.tcp() else {
            return self.refuse(id, received, DropReason::UnknownProtocol);
        };
        let Some(ring) = io.rings.get(id.index()) else { return };
        // Parsed in place: a header of every option is too large to be handed on.
        let mut header = Header::default();
        match parse(ring, id, &received, &ip, &mut header) {
            Ok((arrival, offset)) => {
                let body = Body::Frames { ring: id, frame: received.frame, offset };
                if let Err(reason) = tcp.input(&mut io, &arrival, body) {
                    self.count_drop(reason);
                }
            }
            Err(reason) => self.refuse(id, received, reason),
        }
    }

    /// Takes a TCP packet that came in fragments.
    #[cold]
    pub(in crate::shard) fn input_tcp_whole(
        &mut self,
        hop: NextHop,
        whole: Reassembled,
        partial: PartialChecksum,
    ) {
        let Some((tcp, mut io)) = self.tcp() else { return };
        let ip = whole.header;
        let result = check(&ip, &whole.payload, partial).and_then(|(header, header_len)| {
            let payload = whole.payload.get(header_len..).unwrap_or_default().to_vec();
            let payload_len = payload.len() as u32;
            let key = key(&ip, &header);
            let arrival = Arrival { key, header: &header, payload_len, tos: ip.tos, hop };
            tcp.input(&mut io, &arrival, Body::Heap(payload))
        });
        if let Err(reason) = result {
            self.count_drop(reason);
        }
    }
}

impl Tcp {
    #[inline]
    pub(super) fn input(
        &mut self,
        io: &mut Io<'_>,
        arrival: &Arrival<'_>,
        body: Body,
    ) -> Result<(), DropReason> {
        if let Some(index) = self.table.get(&arrival.key) {
            let now = self.now();
            let (replaced, is_accepted) = self.block(index).map_or((false, false), |block| {
                let replaced = block.connection.may_be_replaced_by(arrival.header, now);
                (replaced, block.is_accepted)
            });
            // Only a listener could take the SYN, and that of an accepted connection may be the kernel's (workers
            // share theirs): without one the wait is not cut short (RFC 1337).
            if !replaced || !(is_accepted || self.is_listened_to(&arrival.key)) {
                self.feed(io, index, arrival, body);
                return Ok(());
            }
            // A new connection in the place of one in TIME-WAIT (RFC 6191), or of one that ended earlier
            // in this batch.
            self.tear_down(io, index);
        }
        self.passive_input(io, arrival, body)
    }

    /// Gives a segment to its connection; the answer is put off to the end of the batch, but for the
    /// acknowledgments of its second, fourth, eighth segment and so on.
    #[inline]
    pub(super) fn feed(&mut self, io: &mut Io<'_>, index: u32, arrival: &Arrival<'_>, body: Body) {
        let now = self.now();
        let ecn = EcnField::of(arrival.tos);
        let len = arrival.payload_len;
        let events = self.with(io, index, |connection, wire| {
            let piece = if len > 0 {
                Some(Piece { body, offset: 0, len })
            } else {
                wire.release(body);
                None
            };
            connection.input(now, arrival.header, piece, ecn, wire)
        });
        self.note(index, events.unwrap_or_default());
        let streams = self.streams;
        let Some(block) = self.block(index) else { return };
        block.batched = block.batched.wrapping_add(1);
        if !core::mem::replace(&mut block.touched, true) {
            self.touched.push(index);
            if self.touched.len() > streams {
                self.finish_one(io);
            }
            return;
        }
        // A sender with a small window, after a loss, needs more than one acknowledgment per batch:
        // its clock is made of them, and one may be lost, too. For a large batch, whose sender is
        // bound by work, the few of a doubling cost nothing.
        if block.batched.is_power_of_two() && block.connection.owes_acknowledgment() {
            self.output(io, index);
        }
    }

    /// Sends a segment that is no connection's: a RST, or a listener's answer.
    pub(super) fn reply(&mut self, io: &mut Io<'_>, hop: &NextHop, key: FlowKey, header: &Header) {
        let Some(ring) = io.rings.get_mut(hop.ring.index()) else { return };
        let len = header.header_len();
        let Some(mut ip) = ipv4::Header::new(key.local, key.remote, ipv4::protocol::TCP, len)
        else {
            return;
        };
        *io.ident = io.ident.wrapping_add(1);
        ip.ident = *io.ident;
        ip.ttl = DEFAULT_TTL;
        ip.dont_fragment = true;
        let lead = |out: &mut [u8; LEAD]| emit_link_and_ip(hop, &ip, out);
        transmit(ring, hop.destination_mac.0, (&key, header), [&[], &[]], lead);
    }

    /// RFC 9293 section 3.10.7.1.
    pub(super) fn reset(&mut self, io: &mut Io<'_>, arrival: &Arrival<'_>) {
        if let Some(header) = reset_for(arrival.key, arrival.header, arrival.payload_len) {
            self.reply(io, &arrival.hop, arrival.key, &header);
        }
    }
}

#[inline]
fn parse<'a>(
    ring: &Ring,
    id: RingId,
    received: &Received,
    ip: &ipv4::Header,
    header: &'a mut Header,
) -> Result<(Arrival<'a>, u16), DropReason> {
    let bytes = ring.first_bytes(&received.frame);
    let skip = ethernet::HEADER_LEN + ip.header_len();
    let header_len = header.parse_from(bytes.get(skip..).unwrap_or_default(), ip.payload_len())?;
    let partial = crate::shard::receive::partial(ring);
    match bytes.get(skip..skip + ip.payload_len()) {
        Some(segment) => header.verify(ip.src, ip.dst, [segment], segment.len(), partial)?,
        None => {
            // In several chunks.
            let segment = skipping(ring.pieces(&received.frame), skip);
            header.verify(ip.src, ip.dst, segment, ip.payload_len(), partial)?;
        }
    }
    if ipv6_stand_ins::is_multicast(ip.dst) || ip.dst.is_broadcast() {
        return Err(DropReason::NotForUs);
    }
    let payload_len = ip.payload_len().saturating_sub(header_len) as u32;
    let hop = way_back(ring, id, bytes)?;
    let arrival = Arrival { key: key(ip, header), header, payload_len, tos: ip.tos, hop };
    Ok((arrival, (skip + header_len) as u16))
}

fn check(
    ip: &ipv4::Header,
    segment: &[u8],
    partial: PartialChecksum,
) -> Result<(Header, usize), DropReason> {
    let (header, header_len) = Header::parse(segment, segment.len())?;
    header.verify(ip.src, ip.dst, [segment], segment.len(), partial)?;
    Ok((header, header_len))
}

fn key(ip: &ipv4::Header, header: &Header) -> FlowKey {
    FlowKey {
        local: ip.dst,
        local_port: header.dst_port,
        remote: ip.src,
        remote_port: header.src_port,
    }
}

/// Where the source address stands in a packet.
const SOURCE: usize = ethernet::HEADER_LEN + 12;

/// The next hop by which a frame came: no route is looked up for an answer, a refresh follows.
#[inline]
pub(in crate::shard) fn way_back(
    ring: &Ring,
    id: RingId,
    frame: &[u8],
) -> Result<NextHop, DropReason> {
    let link = ethernet::Header::parse(frame)?;
    if link.dst.is_multicast() {
        // RFC 1122 section 4.2.3.10: no TCP by broadcast.
        return Err(DropReason::NotForUs);
    }
    let interface = ring.interface();
    let source = frame.get(SOURCE..).and_then(|rest| rest.first_chunk()).copied();
    let source = source.map_or(Ipv4Addr::UNSPECIFIED, <[u8; 4]>::into);
    Ok(NextHop {
        ring: id,
        interface: interface.index,
        source_mac: link.dst,
        destination_mac: link.src,
        mtu: ipv6_stand_ins::room(source, interface.mtu),
    })
}

#[cfg(test)]
mod tests;
