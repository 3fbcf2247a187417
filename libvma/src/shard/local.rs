//! Other processes of this host: what their rings bring, and who is behind which link.
//!
//! Datagrams come as frames like any others; the link's number stands in the MAC addresses. Bytes of
//! TCP connections come as messages, which are `pipe`'s. A peer is of our user and may claim to be any
//! socket of this host, but what it says is checked as if it came from a cable.
//!
//! The kernel decides who gets a datagram. One that finds no socket here, because that became the
//! kernel's or was closed meanwhile, goes back to its sender, which sends it again through the
//! kernel: so nothing is lost, and errors are the kernel's own.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_loopback::is_stand_in;
use libvma_dev::ipv6_stand_ins;
use libvma_engine::bulk_copy::bulk_copy;
use libvma_engine::drop_reason::DropReason;
use libvma_engine::udp::lookup::Tuple;
use libvma_engine::wire::ethernet::{self, MacAddr};
use libvma_engine::wire::{ipv4, udp};

use super::receive::{Parsed, tuple};
use super::{NextHop, RingId, State};
use crate::device::shm::{self, Arrival, LinkId, Rank};
use crate::device::{Received, Ring};
use crate::log::log_line;
use crate::sys::shadow;
use crate::sys::thread::current_cpu;

/// A message: nobody here has the port that a datagram of yours was for; this was in it. Kinds
/// below are `pipe`'s.
const RETURNED: u8 = 0x80;

/// In the destination's MAC address: the sender's last datagrams to there went by the kernel, as many
/// as its last two bytes say.
const AFTER_KERNEL: u8 = 4;

/// In the destination's MAC address: the packet is a train of datagrams with so many bytes each, as its third
/// and fourth bytes say.
const TRAIN: u8 = 8;

/// Destinations that are remembered; what comes back from others is lost.
const MOST_REACHED: usize = 4096;
/// Addresses that turned out to be nobody's, between two looks of who keeps answers.
const MOST_VACANT: usize = 64;

#[derive(Default)]
pub(super) struct Local {
    pub ring: Option<RingId>,
    /// The same, if datagrams may go from it straight to who receives: not if they are captured.
    pub direct: Option<RingId>,
    /// By which link datagrams went to whom: only from there may they come back.
    reached: HashMap<SocketAddrV4, LinkId>,
    /// Addresses that peers said nobody has any more.
    vacant: Vec<SocketAddrV4>,
}

impl<S> State<S> {
    /// The ring that is shared with other processes, if there is one.
    #[inline]
    pub fn local_ring(&mut self) -> Option<&mut shm::Ring> {
        match self.rings.get_mut(self.local.ring?.index())? {
            Ring::Shm(ring) => Some(ring),
            Ring::Xdp(_) => None,
        }
    }

    #[inline]
    pub fn local_ring_id(&self) -> Option<RingId> {
        self.local.ring
    }

    pub fn has_links(&mut self) -> bool {
        self.local_ring().is_some_and(|ring| ring.has_links())
    }

    /// Has a thread been found to lack a bell of its own since this was asked last?
    pub fn lacks_bells(&mut self) -> bool {
        self.local_ring().is_some_and(|ring| ring.wants_bells())
    }

    /// Does a peer that is awake run on the CPU of this thread? Polling would keep it from sending.
    pub fn shares_cpu(&mut self) -> bool {
        self.local_ring().is_some_and(|ring| ring.has_links() && ring.shares_cpu(current_cpu()))
    }

    /// How datagrams to this address go to the other end of a link.
    /// `member` is the [`member_number`] of the socket there.
    pub fn hop_by(
        &mut self,
        link: LinkId,
        member: u8,
        destination: SocketAddrV4,
    ) -> Option<NextHop> {
        let id = self.local.ring?;
        let ring = self.local_ring()?;
        let interface = ring.interface();
        let hop = NextHop {
            ring: id,
            interface: interface.index,
            source_mac: MacAddr(interface.mac),
            destination_mac: MacAddr(link.mac_of_member(member)),
            mtu: interface.mtu,
        };
        if self.local.reached.len() >= MOST_REACHED {
            self.local.reached.clear();
        }
        self.local.reached.insert(destination, link);
        Some(hop)
    }

    /// Lets all peers know that a socket is not to be reached by a link any more.
    pub fn withdraw(&mut self) {
        if let Some(ring) = self.local_ring() {
            ring.withdraw();
        }
    }

    /// Is the way one to another process, and has that withdrawn a socket since this was asked last?
    #[inline]
    pub fn has_withdrawn(&mut self, hop: &NextHop) -> bool {
        self.link_of(hop).is_some_and(|(ring, link)| ring.has_withdrawn(link))
    }

    /// How far the records sent on the way to another process have come.
    #[inline]
    pub fn progress(&mut self, hop: &NextHop) -> Option<shm::Progress> {
        self.link_of(hop).map(|(ring, link)| ring.progress(link))
    }

    #[inline]
    fn link_of(&mut self, hop: &NextHop) -> Option<(&mut shm::Ring, LinkId)> {
        if self.local.ring != Some(hop.ring) {
            return None;
        }
        let link = LinkId::from_mac(hop.destination_mac.0)?;
        Some((self.local_ring()?, link))
    }

    /// Addresses that turned out to be nobody's, since the last call. None: too many to name.
    pub fn take_vacant(&mut self) -> Option<Vec<SocketAddrV4>> {
        let vacant = core::mem::take(&mut self.local.vacant);
        (vacant.len() < MOST_VACANT).then_some(vacant)
    }

    /// Says in the log what went over every link, at the end of the process.
    pub fn log_links(&mut self) {
        let Some(ring) = self.local_ring() else { return };
        for link in ring.links() {
            log_line!(Debug, "a link with another process: {}", ring.counters(link));
        }
    }

    /// The other process is gone, or was cut off. What it sent before is delivered.
    pub fn link_gone(&mut self, link: LinkId) {
        if let Some(ring) = self.local_ring() {
            log_line!(Debug, "a link with another process has ended: {}", ring.counters(link));
        }
        self.local.reached.retain(|_, known| *known != link);
        self.pipe_link_gone(link);
        if let Some(ring) = self.local_ring() {
            ring.unlink(link);
        }
        self.next_epoch();
    }

    #[inline]
    pub(super) fn input_local(&mut self, id: RingId, arrival: Arrival) {
        match arrival {
            Arrival::Packet(received) => self.input_packet(id, received),
            Arrival::Message { link, kind: RETURNED, header, payload } => {
                self.take_back(id, link, header, payload);
            }
            Arrival::Message { link, kind, header, payload } => {
                self.input_message(link, kind, header, payload);
            }
            Arrival::Relief(link) => self.relief(link),
            Arrival::Broken(link) => {
                log_line!(
                    Warning,
                    "a process of this host broke the rules of shared memory and was cut off"
                );
                self.link_gone(link);
            }
        }
    }

    /// A packet by a link. Nearly all are plain datagrams to a socket of ours.
    #[inline]
    pub(super) fn input_packet(&mut self, id: RingId, received: Received) {
        let Some(plain) = self.read_plain(id, &received) else {
            return self.input(id, received);
        };
        let Plain { parsed, mut tuple, index } = plain;
        tuple.interface = self.interface_told(tuple.destination, tuple.interface);
        self.deliver_in_place(index, id, received, &parsed, &tuple, PLAIN);
    }

    /// None: the packet wants a closer look.
    #[inline]
    pub(super) fn read_plain(&self, id: RingId, received: &Received) -> Option<Plain> {
        let Some(Ring::Shm(ring)) = self.rings.get(id.index()) else { return None };
        let bytes = ring.first_bytes(&received.frame);
        let parsed = parse_plain(bytes, received.len as usize)?;
        let tuple = tuple(&parsed, ring.interface().index);
        if !self.are_own(tuple.source, tuple.destination) {
            return None;
        }
        let index = self.lookup.unicast(&tuple)?;
        Some(Plain { parsed, tuple, index })
    }

    /// The interface that IP_PKTINFO tells of a datagram by a link: the one that has the address.
    pub(super) fn interface_told(&self, destination: Ipv4Addr, lo: u32) -> u32 {
        if destination.is_loopback() {
            return lo;
        }
        let own = self.own_addresses.iter().find(|(address, _)| *address == destination);
        own.map_or(lo, |(_, interface)| *interface)
    }

    /// Nobody has the port: the datagram goes back.
    #[cold]
    pub(super) fn give_back_to_sender(
        &mut self,
        id: RingId,
        received: Received,
        parsed: &Parsed,
        offset: usize,
    ) {
        let Some(ring) = self.rings.get(id.index()) else { return };
        let link = ethernet::Header::parse(ring.first_bytes(&received.frame))
            .ok()
            .and_then(|header| LinkId::from_mac(header.src.0));
        let payload = self.copy_payload(id, &received, offset, parsed.udp.data_len());
        self.refuse(id, received, DropReason::NoSocket);
        let (sender, port) = (pack(parsed.ip.src, parsed.udp.src_port), parsed.udp.dst_port);
        let header = [sender, pack(parsed.ip.dst, port), parsed.segment.into()];
        if let Some(link) = link {
            self.send_back(link, header, &payload);
        }
    }

    /// A datagram that was queued goes back: its receiver became the kernel's. Who has sent it is not
    /// kept; all others know that they have not.
    #[cold]
    pub(super) fn return_to_sender(
        &mut self,
        sender: SocketAddrV4,
        destination: SocketAddrV4,
        segment: u16,
        payload: &[u8],
    ) {
        let pack = |address: SocketAddrV4| pack(*address.ip(), address.port());
        let header = [pack(sender), pack(destination), segment.into()];
        let links: Vec<_> = self.local_ring().map_or_else(Vec::new, |ring| ring.links().collect());
        for link in links {
            self.send_back(link, header, payload);
        }
    }

    fn send_back(&mut self, link: LinkId, header: [u64; 3], payload: &[u8]) {
        let Some(ring) = self.local_ring() else { return };
        let mut rest = payload;
        let _ = ring.send_message(link, RETURNED, header, payload.len(), Rank::Urgent, |room| {
            let (now, later) = rest.split_at(room.len().min(rest.len()));
            bulk_copy(room, now);
            rest = later;
        });
        ring.kick();
    }

    /// A datagram of ours came back: the kernel shall send it.
    #[cold]
    fn take_back(
        &mut self,
        id: RingId,
        link: LinkId,
        [sender, destination, segment]: [u64; 3],
        received: Option<Received>,
    ) {
        let mut payload = Vec::new();
        if let Some(received) = received {
            if let Some(ring) = self.rings.get(id.index()) {
                ring.pieces(&received.frame).for_each(|piece| payload.extend_from_slice(piece));
            }
            self.release_frame(id, received.frame);
        }
        let (sender, destination) = (unpack(sender), unpack(destination));
        if self.local.reached.get(&destination) != Some(&link) || payload.len() > udp::MAX_DATA_LEN
        {
            return;
        }
        if self.local.vacant.len() < MOST_VACANT {
            self.local.vacant.push(destination);
            self.next_epoch();
        }
        // The socket that sent it is the one that would get the answer.
        let tuple = Tuple {
            source: *destination.ip(),
            source_port: destination.port(),
            destination: *sender.ip(),
            port: sender.port(),
            interface: 0,
            is_ipv6: is_stand_in(*sender.ip()) || ipv6_stand_ins::is_one(*sender.ip()),
            member: 0,
        };
        if let Some(index) = self.lookup.unicast(&tuple)
            && let Some(slot) = self.slots.get(index as usize)
            && let Some((endpoint, _)) = slot.content.as_ref()
        {
            shadow::send_to(endpoint.shadow, &payload, segment as u16, *sender.ip(), destination);
        }
    }

    /// What may come by a link; a peer has no business with anything else.
    #[inline]
    pub(super) fn check_local(&self, ip: &ipv4::Header) -> Result<(), DropReason> {
        if ip.is_fragment() || ip.protocol != ipv4::protocol::UDP {
            return Err(DropReason::NotForUs);
        }
        match self.are_own(ip.src, ip.dst) {
            true => Ok(()),
            false => Err(DropReason::BadSourceAddress),
        }
    }

    /// Are both addresses of this host, and of the same family?
    #[inline]
    fn are_own(&self, source: Ipv4Addr, destination: Ipv4Addr) -> bool {
        self.is_own(source)
            && self.is_own(destination)
            && is_stand_in(source) == is_stand_in(destination)
            && ipv6_stand_ins::is_one(source) == ipv6_stand_ins::is_one(destination)
    }

    #[inline]
    pub(super) fn is_own(&self, address: Ipv4Addr) -> bool {
        address.is_loopback() || self.linked_addresses.contains(&address)
    }
}

/// Marks a frame to a link as one after so many others by the kernel. The rest of the destination's
/// address means nothing to the receiver.
pub(super) fn mark_switch(frame: &mut [u8], count: u16) {
    if let Some([first, _, _, _, high, low, ..]) = frame.first_chunk_mut::<6>() {
        *first |= AFTER_KERNEL;
        [*high, *low] = count.to_be_bytes();
    }
}

/// Marks a frame to a link as a train of datagrams with so many bytes each.
pub(super) fn mark_train(frame: &mut [u8], segment: u16) {
    if let Some([first, _, high, low, ..]) = frame.first_chunk_mut::<4>() {
        *first |= TRAIN;
        [*high, *low] = segment.to_be_bytes();
    }
}

/// Bytes of headers of a plain datagram.
pub(super) const PLAIN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + udp::HEADER_LEN;

/// A plain datagram, and the socket that it is for.
pub(super) struct Plain {
    pub parsed: Parsed,
    tuple: Tuple,
    pub index: u32,
}

/// The headers of a datagram without IP options, fragments and checksum of UDP. What stands in them is
/// checked as ever, but for the header's checksum: nothing on the way could spoil it.
#[inline]
fn parse_plain(bytes: &[u8], len: usize) -> Option<Parsed> {
    let headers: &[u8; PLAIN] = bytes.first_chunk()?;
    let [_, _, _, _, _, _, _, _, _, _, _, _, t0, t1, rest @ ..] = headers;
    let [first, tos, l0, l1, _, _, f0, f1, ttl, protocol, _, _, rest @ ..] = rest;
    let [s0, s1, s2, s3, d0, d1, d2, d3, rest @ ..] = rest;
    let [p0, p1, q0, q1, u0, u1, c0, c1] = rest;
    let flags = u16::from_be_bytes([*f0, *f1]) & !DONT_FRAGMENT;
    let plain = [*t0, *t1, *first, *protocol] == [8, 0, 0x45, ipv4::protocol::UDP];
    if !plain || flags != 0 || [*c0, *c1] != [0, 0] || [*q0, *q1] == [0, 0] {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([*l0, *l1]));
    let payload = total.checked_sub(ipv4::HEADER_LEN)?;
    let data = usize::from(u16::from_be_bytes([*u0, *u1])).checked_sub(udp::HEADER_LEN)?;
    if data + udp::HEADER_LEN > payload || total + ethernet::HEADER_LEN > len {
        return None;
    }
    let src = Ipv4Addr::new(*s0, *s1, *s2, *s3);
    let dst = Ipv4Addr::new(*d0, *d1, *d2, *d3);
    let mut ip = ipv4::Header::new(src, dst, ipv4::protocol::UDP, payload)?;
    ip.ttl = *ttl;
    ip.tos = *tos;
    let ports = (u16::from_be_bytes([*p0, *p1]), u16::from_be_bytes([*q0, *q1]));
    let udp = udp::Header::new(ports.0, ports.1, data)?;
    let (after_kernel, segment) = (after_kernel(headers), segment(headers));
    let member = member(headers);
    Some(Parsed { ip, udp, after_kernel, by_link: true, member, segment })
}

/// DF, in the word of IPv4's flags.
const DONT_FRAGMENT: u16 = 0x4000;

/// How many others by the kernel come before a frame by a link, as it says.
#[inline]
pub(super) fn after_kernel(frame: &[u8]) -> u16 {
    match frame.first_chunk::<6>() {
        Some([first, _, _, _, high, low]) if first & AFTER_KERNEL != 0 => {
            u16::from_be_bytes([*high, *low])
        }
        _ => 0,
    }
}

/// The number of a socket with this inode, for the second byte of the destination's MAC address: senders ask the kernel which
/// member of a group with SO_REUSEPORT gets a flow, and the receiving process finds the member by it. Never 0.
pub fn member_number(inode: u64) -> u8 {
    // The sockets of a group are made one after the other, as a rule: then their numbers differ.
    (inode % 255) as u8 + 1
}

/// The member of a group that a frame by a link is for; 0 if its sender does not know one.
#[inline]
pub(super) fn member(frame: &[u8]) -> u8 {
    frame.get(1).copied().unwrap_or(0)
}

/// The bytes of each datagram of a train by a link; 0 if it is a single one.
#[inline]
pub(super) fn segment(frame: &[u8]) -> u16 {
    match frame.first_chunk::<4>() {
        Some([first, _, high, low]) if first & TRAIN != 0 => u16::from_be_bytes([*high, *low]),
        _ => 0,
    }
}

fn pack(address: Ipv4Addr, port: u16) -> u64 {
    u64::from(address.to_bits()) << 16 | u64::from(port)
}

fn unpack(bits: u64) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits((bits >> 16) as u32), bits as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_fits_a_word() {
        let address = SocketAddrV4::new(Ipv4Addr::new(127, 255, 1, 254), 65_535);
        assert_eq!(unpack(pack(*address.ip(), address.port())), address);
    }
}
