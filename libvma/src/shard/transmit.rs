//! Datagrams out: headers, checksum and payload into frames of a ring, in one copy.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use libvma_dev::ipv6_stand_ins;
use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::ip::fragment::{Fragment, fragments};
use libvma_engine::udp::lookup::Tuple;
use libvma_engine::wire::checksum::{Sum, copy_and_sum};
use libvma_engine::wire::ethernet::{self, EtherType, MacAddr};
use libvma_engine::wire::ipv6::FRAGMENT_HEADER_LEN;
use libvma_engine::wire::{ipv4, udp};

use super::local::{mark_switch, mark_train};
use super::{RingId, State};
use crate::device::Ring;
use crate::log::log_line;
use crate::sys::{errand, user};

pub(super) const HEADERS: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;

/// The MAC address that carries a group of either family; `None`: the address is no group's.
pub fn group_mac(address: Ipv4Addr) -> Option<MacAddr> {
    match ipv6_stand_ins::is_group(address) {
        true => ipv6_stand_ins::real(address).map(MacAddr::multicast_for_ipv6),
        false => address.is_multicast().then(|| MacAddr::multicast_for(address)),
    }
}

/// Where a destination is reached: a ring, and what goes into the Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct NextHop {
    pub ring: RingId,
    pub interface: u32,
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
    /// Of the path: the interface's, or less if the kernel learned so.
    pub mtu: u32,
}

/// One datagram to send, or a train of them.
#[derive(Clone, Copy)]
pub struct Egress<'a> {
    pub hop: &'a NextHop,
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
    pub ttl: u8,
    pub tos: u8,
    /// DF, if it fits the MTU (IP_MTU_DISCOVER other than DONT).
    pub dont_fragment: bool,
    /// Refuse what does not fit the MTU (IP_PMTUDISC_DO).
    pub never_fragment: bool,
    /// Off with SO_NO_CHECK.
    pub checksum: bool,
    /// Deliver to members of the group in this process, too.
    pub loop_back: bool,
    /// By a link, after so many others by the kernel (u16::MAX: any number).
    pub after_kernel: u16,
    pub payload: &'a [IoSlice<'a>],
    /// Bytes of the payload before those that are sent.
    pub skip: usize,
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No frame is free: the ring is full.
    NoFrame,
    /// The daemon's ring takes no fragments, which only the kernel may send for this process.
    Fragments,
    /// The receiving process of this host has no room on its link.
    ReceiverFull,
    /// EMSGSIZE.
    TooBig,
    /// The ring is gone.
    NoRing,
    /// The payload is in memory that is not there.
    Fault,
}

impl<S> State<S> {
    /// Queues a datagram on its ring; [`State::kick`] sends what is queued.
    #[inline]
    pub fn send(&mut self, egress: &Egress<'_>) -> Result<(), SendError> {
        self.send_marked(egress, 0)
    }

    /// As [`State::send`]; by a link also a train with `segment` bytes in each datagram, unless that is 0.
    #[inline]
    pub(super) fn send_marked(
        &mut self,
        egress: &Egress<'_>,
        segment: u16,
    ) -> Result<(), SendError> {
        let ip_payload = egress.len + udp::HEADER_LEN;
        let (Some(udp), Some(mut ip)) = (
            udp::Header::new(egress.source.port(), egress.destination.port(), egress.len),
            ipv4::Header::new(
                *egress.source.ip(),
                *egress.destination.ip(),
                ipv4::protocol::UDP,
                ip_payload,
            ),
        ) else {
            return Err(SendError::TooBig);
        };
        self.ident = self.ident.wrapping_add(1);
        ip.ttl = egress.ttl;
        ip.tos = egress.tos;
        ip.ident = self.ident;
        let ring = self.rings.get_mut(usize::from(egress.hop.ring.0)).ok_or(SendError::NoRing)?;

        ring.aim(flow_number(egress.source.port(), egress.destination.port()));

        let fits = ip_payload + ipv4::HEADER_LEN <= egress.hop.mtu as usize;
        if !fits && egress.never_fragment {
            return Err(SendError::TooBig);
        }
        if !user::all_give(egress.payload, egress.skip, egress.len) {
            return Err(SendError::Fault);
        }
        if fits {
            send_whole(ring, egress, segment, ip, udp)?;
        } else {
            send_fragments(ring, egress, ip, udp)?;
        }
        if egress.loop_back {
            self.loop_back_sent(egress);
        }
        Ok(())
    }

    /// Sends what is queued on a ring. True if something began to wait, which the internal thread then has to
    /// know.
    #[inline]
    pub fn kick(&mut self, ring: RingId) -> bool {
        let Some(ring) = self.rings.get_mut(usize::from(ring.0)) else { return false };
        ring.kick();
        ring.has_left_over() && !core::mem::replace(&mut self.unsent, true)
    }

    /// After a send that stands alone: kicks the ring, unless the program is blasting. True if
    /// datagrams began to wait, which the internal thread then has to know.
    #[inline]
    pub fn kick_or_wait(&mut self, ring: RingId) -> bool {
        let Some(ring) = self.rings.get_mut(usize::from(ring.0)) else { return false };
        if ring.is_local() {
            // No system call, unless the receiver sleeps.
            ring.kick();
            return false;
        }
        if self.burst.may_wait(ring.unsent()) {
            return !core::mem::replace(&mut self.unsent, true);
        }
        ring.kick_soon();
        self.kicks = self.kicks.wrapping_add(1);
        ring.has_left_over() && !core::mem::replace(&mut self.unsent, true)
    }

    /// Sends whatever waits on any ring; the blast is over.
    #[cold]
    pub fn kick_all(&mut self) {
        self.burst.end();
        self.rings.iter_mut().for_each(|ring| ring.kick());
        // What a busy device did not take is tried again by the next call or the internal thread.
        self.unsent = self.rings.iter_mut().any(Ring::is_stuck);
    }

    /// Do datagrams wait for a kick?
    pub fn has_unsent(&self) -> bool {
        self.unsent
    }

    /// For the internal thread: sends what waits if no kick was made since the last look. True
    /// while it has to look again.
    pub fn finish_blast(&mut self, seen: &mut u64) -> bool {
        self.unsent |= errand::take_left_over();
        if self.unsent && self.kicks == core::mem::replace(seen, self.kicks) {
            self.kick_all();
        }
        self.unsent
    }

    #[cold]
    fn loop_back_sent(&mut self, egress: &Egress<'_>) {
        let tuple = Tuple {
            is_ipv6: ipv6_stand_ins::is_group(*egress.destination.ip()),
            member: 0,
            source: *egress.source.ip(),
            source_port: egress.source.port(),
            destination: *egress.destination.ip(),
            port: egress.destination.port(),
            interface: egress.hop.interface,
        };
        // Nothing comes back from an interface on which nobody of the host is a member.
        if self.has_members(&tuple) && self.lookup.is_joined(tuple.destination, tuple.interface) {
            let mut payload = vec![0; egress.len];
            Gather::new(egress).copy_plainly_to(&mut payload);
            self.loop_back(&tuple, egress.ttl, egress.tos, &Arc::from(payload));
        }
    }
}

/// What the packets of a flow have in common, and few others.
pub(super) fn flow_number(local_port: u16, remote_port: u16) -> u32 {
    u32::from(local_port) << 16 | u32::from(remote_port)
}

#[inline]
fn send_whole(
    ring: &mut Ring,
    egress: &Egress<'_>,
    segment: u16,
    mut ip: ipv4::Header,
    udp: udp::Header,
) -> Result<(), SendError> {
    let local = ring.is_local();
    let full = if local { SendError::ReceiverFull } else { SendError::NoFrame };
    let frame = ring.allocate(egress.hop.destination_mac.0, HEADERS + egress.len).ok_or(full)?;
    ip.dont_fragment = egress.dont_fragment;
    let mut gather = Gather::new(egress);
    let mut sum = Sum::ZERO;
    // The payload first: the checksum in the headers before it comes from that copy.
    ring.write(&frame, |offset, bytes| {
        let data = if offset == 0 { bytes.get_mut(HEADERS..) } else { Some(bytes) };
        match data {
            // Between processes of one host nothing can spoil it.
            Some(data) if local => gather.copy_plainly_to(data),
            Some(data) => sum = sum.then(gather.copy_to(data)),
            None => {}
        }
    });
    let udp = if egress.checksum && !local {
        udp.checksummed(*egress.source.ip(), *egress.destination.ip(), sum)
    } else {
        udp
    };
    ring.write(&frame, |offset, bytes| {
        if offset == 0 {
            emit_link_and_ip(egress.hop, &ip, bytes);
            if egress.after_kernel > 0 {
                mark_switch(bytes, egress.after_kernel);
            }
            if segment != 0 {
                mark_train(bytes, segment);
            }
            let at = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
            if let Some(out) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                udp.emit(out);
            }
        }
    });
    ring.transmit(frame);
    log_line!(Finer, "{} bytes leave for {}", egress.len, egress.destination);
    Ok(())
}

#[cold]
fn send_fragments(
    ring: &mut Ring,
    egress: &Egress<'_>,
    ip: ipv4::Header,
    udp: udp::Header,
) -> Result<(), SendError> {
    if ring.grant().is_some() {
        return Err(SendError::Fragments);
    }
    let total = egress.len + udp::HEADER_LEN;
    // The longer header has room by the hop's MTU (`ipv6_stand_ins::room`), that of a fragment has not.
    let of_ipv6 = ipv6_stand_ins::is_one(*egress.destination.ip());
    let room = egress.hop.mtu as usize;
    let room = if of_ipv6 { room.saturating_sub(FRAGMENT_HEADER_LEN) } else { room };
    let pieces = fragments(total, room, ipv4::HEADER_LEN).ok_or(SendError::TooBig)?;
    let lead = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
    // All or none: of a datagram that is sent again, a part has not left before.
    if !ring.has_room(pieces.clone().map(|piece| lead + piece.len)) {
        return Err(SendError::NoFrame);
    }
    // The checksum stands in the first fragment, so the payload is summed before it is copied.
    let udp = if egress.checksum {
        let mut gather = Gather::new(egress);
        let sum = Sum::of_pieces(core::iter::from_fn(|| gather.next_piece()));
        udp.checksummed(*egress.source.ip(), *egress.destination.ip(), sum)
    } else {
        udp
    };
    let mut header = [0u8; udp::HEADER_LEN];
    udp.emit(&mut header);
    let mut gather = Gather::new(egress);

    for Fragment { offset, len, more } in pieces {
        let ip = ip.for_fragment(offset, len, more).ok_or(SendError::TooBig)?;
        let frame =
            ring.allocate(egress.hop.destination_mac.0, lead + len).ok_or(SendError::NoFrame)?;
        ring.write(&frame, |at, bytes| {
            if at != 0 {
                gather.copy_to(bytes);
                return;
            }
            emit_link_and_ip(egress.hop, &ip, bytes);
            let mut data = bytes.get_mut(lead..).unwrap_or_default();
            if offset == 0 {
                let (out, rest) = data.split_at_mut_checked(header.len()).unwrap_or_default();
                if let Some(out) = out.first_chunk_mut() {
                    *out = header;
                }
                data = rest;
            }
            gather.copy_to(data);
        });
        ring.transmit(frame);
    }
    Ok(())
}

#[inline]
pub(super) fn emit_link_and_ip(hop: &NextHop, ip: &ipv4::Header, out: &mut [u8]) {
    let ethernet = ethernet::Header {
        dst: hop.destination_mac,
        src: hop.source_mac,
        ethertype: EtherType::IPV4,
    };
    if let Some((first, rest)) = out.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>() {
        ethernet.emit(first);
        if let Some(second) = rest.first_chunk_mut() {
            ip.emit(second);
        }
    }
}

/// Reads a list of buffers as one stream.
pub(super) struct Gather<'a> {
    pieces: &'a [IoSlice<'a>],
    /// Bytes of the first piece already read.
    done: usize,
}

impl<'a> Gather<'a> {
    fn new(egress: &Egress<'a>) -> Self {
        Gather::behind(egress.payload, egress.skip)
    }

    /// Of what is behind the first `skip` bytes.
    pub(super) fn behind(mut pieces: &'a [IoSlice<'a>], mut skip: usize) -> Self {
        while let Some((first, rest)) = pieces.split_first()
            && skip >= first.len()
        {
            skip -= first.len();
            pieces = rest;
        }
        Gather { pieces, done: skip }
    }

    /// The rest of the first piece that has any.
    pub(super) fn next_piece(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.pieces.split_first()?;
        let piece = first.get(self.done..).unwrap_or_default();
        (self.pieces, self.done) = (rest, 0);
        Some(piece)
    }

    /// Fills `out` as far as there is data; returns the sum of what was copied.
    #[inline]
    fn copy_to(&mut self, out: &mut [u8]) -> Sum {
        let mut sum = Sum::ZERO;
        self.each(out, |target, source| sum = sum.then(copy_and_sum(target, source)));
        sum
    }

    /// As [`Gather::copy_to`], without the sum.
    #[inline]
    fn copy_plainly_to(&mut self, out: &mut [u8]) {
        self.each(out, bulk_copy);
    }

    /// Calls `copy` with pieces of equal length.
    #[inline]
    fn each(&mut self, mut out: &mut [u8], mut copy: impl FnMut(&mut [u8], &[u8])) {
        while let Some((first, rest)) = self.pieces.split_first() {
            if out.is_empty() {
                break;
            }
            let source = first.get(self.done..).unwrap_or_default();
            let count = source.len().min(out.len());
            let (target, left) = out.split_at_mut(count);
            if let Some(source) = source.get(..count) {
                copy(target, source);
            }
            out = left;
            self.done += count;
            if self.done == first.len() {
                self.pieces = rest;
                self.done = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_reads_across_buffers_and_sums_as_one() {
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh")];
        let mut gather = Gather::behind(&pieces, 0);
        let (mut first, mut second) = ([0u8; 4], [0u8; 4]);
        let sum = gather.copy_to(&mut first).then(gather.copy_to(&mut second));
        assert_eq!((&first, &second), (b"abcd", b"efgh"));
        assert_eq!(sum.fold(), Sum::of(b"abcdefgh").fold());
        for skip in 0..=8 {
            let mut rest = vec![0; 8 - skip];
            Gather::behind(&pieces, skip).copy_plainly_to(&mut rest);
            assert_eq!(rest, b"abcdefgh"[skip..]);
            let mut gather = Gather::behind(&pieces, skip);
            let pieces: Vec<_> = core::iter::from_fn(|| gather.next_piece()).collect();
            assert_eq!(pieces.concat(), b"abcdefgh"[skip..]);
        }
    }
}
