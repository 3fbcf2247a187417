//! What all kinds of rings have in common; the shard knows no more of them than this.
//!
//! A ring of the XDP device is an interface's, with flows that the kernel steers; one of the shm
//! device is shared with other processes of the host, and the destination's MAC address says with
//! which of them.

use core::net::Ipv6Addr;
use std::collections::HashSet;
use std::sync::OnceLock;

use libvma_dev::stats;
use libvma_engine::frame::Frame;
use libvma_engine::translation::DropReason;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::shm::LinkId;
use super::{Flow, Interface, OpenError, Received, Tally, shm, xdp};

/// A shard's endpoint on one interface.
pub enum Ring {
    Xdp(xdp::Ring),
    Shm(shm::Ring),
}

impl Ring {
    pub fn interface(&self) -> &Interface {
        match self {
            Ring::Xdp(ring) => ring.interface(),
            Ring::Shm(ring) => ring.interface(),
        }
    }

    /// Do its packets come from processes of this host? Then nothing on the way could spoil them.
    #[inline]
    pub fn is_local(&self) -> bool {
        matches!(self, Ring::Shm(_))
    }

    /// May packets come?
    pub fn is_live(&self) -> bool {
        match self {
            Ring::Xdp(_) => true,
            Ring::Shm(ring) => ring.has_links(),
        }
    }

    /// How the packets are got, for the log.
    pub fn mode(&self) -> Option<xdp::Mode> {
        match self {
            Ring::Xdp(ring) => Some(ring.mode()),
            Ring::Shm(_) => None,
        }
    }

    /// Do TCP segments arrive that were put together on the way?
    pub fn takes_streams(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.takes_streams(),
            Ring::Shm(_) => true,
        }
    }

    /// May a checksum field hold the pseudo-header's sum alone? A local peer leaves the rest to a device
    /// that is not on the way; what the kernel has put together from several segments
    /// carries no more, either.
    #[inline]
    pub fn has_unfinished_checksums(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.interface().has_local_peers || ring.mode() == xdp::Mode::Tc,
            Ring::Shm(_) => true,
        }
    }

    /// Are datagrams of IPv6 the kernel's but for those of connected sockets, as there were too many peers to remember?
    pub fn is_closed_to_strangers(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.is_closed_to_strangers(),
            Ring::Shm(_) => false,
        }
    }

    /// As [`xdp::Ring::tell_stranger`].
    #[cold]
    pub fn tell_stranger(&mut self, peer: Ipv6Addr) {
        if let Ring::Xdp(ring) = self {
            ring.tell_stranger(peer);
        }
    }

    /// Something about the interface changed.
    pub fn update_interface(&mut self, now: Interface) -> Result<(), OpenError> {
        match self {
            Ring::Xdp(ring) => ring.update_interface(now),
            Ring::Shm(_) => Ok(()),
        }
    }

    /// Is any flow steered here?
    pub fn has_flows(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.has_flows(),
            Ring::Shm(ring) => ring.has_links(),
        }
    }

    /// As [`xdp::Ring::grant`].
    pub fn grant(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Ring::Xdp(ring) => ring.grant(),
            Ring::Shm(_) => None,
        }
    }

    /// As [`xdp::Ring::is_lost`].
    pub fn is_lost(&self) -> bool {
        matches!(self, Ring::Xdp(ring) if ring.is_lost())
    }

    /// Gives the interface free, for another process or a later ring. Frames that are still queued
    /// stay readable.
    pub fn shut(&mut self) {
        match self {
            Ring::Xdp(ring) => ring.shut(),
            Ring::Shm(_) => {}
        }
    }

    /// The process ends, and all of its rings are left: what is left of them takes long to close. One that refuses goes
    /// on steering until the process has ended; the others are left all the same, and the error is told.
    pub fn leave_all(rings: &[Ring]) -> (Vec<BorrowedFd<'_>>, Result<(), Errno>) {
        let (mut links, mut result) = (Vec::new(), Ok(()));
        for ring in rings {
            match ring.leave() {
                Ok(link) => links.extend(link),
                Err(errno) => result = Err(errno),
            }
        }
        (links, result)
    }

    /// As [`xdp::Ring::leave`]; nothing of other kinds takes long to close.
    fn leave(&self) -> Result<Option<BorrowedFd<'_>>, Errno> {
        match self {
            Ring::Xdp(ring) => ring.leave(),
            Ring::Shm(_) => Ok(None),
        }
    }

    /// Packets of this flow come to us from now on (or still, if another socket has it already).
    /// What other processes send here needs no steering.
    pub fn add_flow(&mut self, flow: Flow) -> Result<(), Errno> {
        match self {
            Ring::Xdp(ring) => ring.add_flow(flow),
            Ring::Shm(_) => Ok(()),
        }
    }

    /// As [`xdp::Ring::add_flow_of`].
    pub fn add_flow_of(&mut self, shown: i32, flow: Flow) -> Result<(), Errno> {
        match self {
            Ring::Xdp(ring) => ring.add_flow_of(shown, flow),
            Ring::Shm(_) => Ok(()),
        }
    }

    pub fn remove_flow(&mut self, flow: Flow) {
        self.remove_flows(core::iter::once(flow));
    }

    /// The same of some, which costs hardly more than one of them.
    pub fn remove_flows(&mut self, flows: impl Iterator<Item = Flow>) {
        if let Ring::Xdp(ring) = self {
            ring.remove_flows(flows);
        }
    }

    /// Packets of this 5-tuple go to the kernel from now on, also if a 3-tuple of ours covers it.
    pub fn except_flow(&mut self, flow: Flow) -> Result<(), Errno> {
        match self {
            Ring::Xdp(ring) => ring.except_flow(flow),
            Ring::Shm(_) => Ok(()),
        }
    }

    pub fn end_exception(&mut self, flow: Flow) {
        if let Ring::Xdp(ring) = self {
            ring.end_exception(flow);
        }
    }

    pub fn exceptions(&self) -> &HashSet<Flow> {
        static NONE: OnceLock<HashSet<Flow>> = OnceLock::new();
        match self {
            Ring::Xdp(ring) => ring.exceptions(),
            Ring::Shm(_) => NONE.get_or_init(HashSet::new),
        }
    }

    /// Calls `each` with the descriptors that become readable when a packet comes.
    pub fn descriptors(&self, mut each: impl FnMut(BorrowedFd<'_>)) {
        match self {
            Ring::Xdp(ring) => ring.descriptors().for_each(each),
            Ring::Shm(ring) => each(ring.bell()),
        }
    }

    /// Before a sleep on the descriptors.
    pub fn settle(&mut self) {
        match self {
            Ring::Xdp(ring) => ring.settle(),
            Ring::Shm(ring) => ring.settle(),
        }
    }

    /// The first piece of a received packet: all its headers are in it.
    #[inline]
    pub fn first_bytes(&self, frame: &Frame) -> &[u8] {
        match self {
            Ring::Xdp(ring) => ring.first_bytes(frame),
            Ring::Shm(ring) => ring.first_bytes(frame),
        }
    }

    /// Makes a received packet of IPv6 one of IPv4, between stand-ins.
    pub fn translate(&mut self, received: &mut Received) -> Result<(), DropReason> {
        match self {
            Ring::Xdp(ring) => ring.translate(received),
            Ring::Shm(_) => Err(DropReason::NotIpv4),
        }
    }

    /// All pieces of a received packet.
    #[inline]
    pub fn pieces(&self, frame: &Frame) -> impl Iterator<Item = &[u8]> {
        match self {
            Ring::Xdp(ring) => Pieces::Xdp(ring.pieces(frame)),
            Ring::Shm(ring) => Pieces::Shm(ring.pieces(frame)),
        }
    }

    /// Gives a received packet back.
    #[inline]
    pub fn release(&mut self, frame: Frame) {
        match self {
            Ring::Xdp(ring) => ring.release(frame),
            Ring::Shm(ring) => ring.release(frame),
        }
    }

    /// Whoever queues packets must copy them out, or the ring runs dry because one application is
    /// slow.
    #[inline]
    pub fn is_short_of_frames(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.is_short_of_frames(),
            Ring::Shm(ring) => ring.is_short_of_frames(),
        }
    }

    /// Frames for a packet of `len` bytes to this MAC address, as a chain; None when all are under
    /// way.
    #[inline]
    pub fn allocate(&mut self, destination: [u8; 6], len: usize) -> Option<Frame> {
        match self {
            Ring::Xdp(ring) => ring.allocate(len),
            Ring::Shm(ring) => ring.allocate(LinkId::from_mac(destination)?, len),
        }
    }

    /// As [`xdp::Ring::has_room`]. By a link no datagram leaves in fragments.
    #[cold]
    pub fn has_room(&mut self, packets: impl Iterator<Item = usize>) -> bool {
        match self {
            Ring::Xdp(ring) => ring.has_room(packets),
            Ring::Shm(_) => true,
        }
    }

    /// Hands the pieces of an allocated chain, in order, to `write` with their offset in the
    /// packet. The first piece has room for all headers.
    #[inline]
    pub fn write(&mut self, frame: &Frame, write: impl FnMut(usize, &mut [u8])) {
        match self {
            Ring::Xdp(ring) => ring.write(frame, write),
            Ring::Shm(ring) => ring.write(frame, write),
        }
    }

    /// The packets that come next are of this flow: they leave in order, whatever threads send them.
    #[inline]
    pub fn aim(&mut self, flow: u32) {
        if let Ring::Xdp(ring) = self {
            ring.aim(flow);
        }
    }

    /// Queues a written packet for sending; it leaves with the next [`Ring::kick`].
    #[inline]
    pub fn transmit(&mut self, frame: Frame) {
        match self {
            Ring::Xdp(ring) => ring.transmit(frame),
            Ring::Shm(ring) => ring.transmit(frame),
        }
    }

    /// Packets that wait for a kick.
    #[inline]
    pub fn unsent(&self) -> u32 {
        match self {
            Ring::Xdp(ring) => ring.unsent(),
            Ring::Shm(ring) => ring.unsent(),
        }
    }

    /// Did a kick leave something behind (device busy, no memory)?
    pub fn is_stuck(&mut self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.is_stuck(),
            Ring::Shm(_) => false,
        }
    }

    /// Has a kick left something behind that leaves with another kick only?
    #[inline]
    pub fn has_left_over(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.has_left_over(),
            Ring::Shm(_) => false,
        }
    }

    /// Sends what is queued.
    #[inline]
    pub fn kick(&mut self) {
        match self {
            Ring::Xdp(ring) => ring.kick(),
            Ring::Shm(ring) => ring.kick(),
        }
    }

    /// What it has counted. Asks the kernel for what that counted.
    pub fn statistics(&self) -> stats::Ring {
        match self {
            Ring::Xdp(ring) => ring.statistics(),
            Ring::Shm(ring) => ring.statistics(),
        }
    }

    /// Its frames, for receiving and for sending.
    pub fn pools(&self) -> [stats::Pool; 2] {
        match self {
            Ring::Xdp(ring) => ring.pools(),
            Ring::Shm(ring) => ring.pools(),
        }
    }

    /// See [`xdp::Ring::kick_soon`].
    #[inline]
    pub fn kick_soon(&mut self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.kick_soon(),
            Ring::Shm(ring) => {
                ring.kick();
                false
            }
        }
    }

    /// Counts from here on.
    pub fn zero_statistics(&mut self) {
        match self {
            Ring::Xdp(ring) => ring.zero_statistics(),
            Ring::Shm(ring) => ring.zero_statistics(),
        }
    }

    pub fn tally(&mut self) -> &mut Tally {
        match self {
            Ring::Xdp(ring) => ring.tally(),
            Ring::Shm(ring) => ring.tally(),
        }
    }

    /// The largest TCP payload that [`Ring::transmit_segmented`] takes; 0 without segmentation
    /// offload.
    #[inline]
    pub fn segmentation_limit(&self) -> usize {
        match self {
            Ring::Xdp(ring) => ring.segmentation_limit(),
            Ring::Shm(_) => 0,
        }
    }

    /// See [`xdp::Ring::carries_trains`].
    #[inline]
    pub fn carries_trains(&self) -> bool {
        match self {
            Ring::Xdp(ring) => ring.carries_trains(),
            Ring::Shm(_) => false,
        }
    }

    /// See [`xdp::Ring::transmit_segmented`].
    #[inline]
    pub fn transmit_segmented(
        &mut self,
        headers: &[u8],
        payload: [&[u8]; 2],
        segment_size: u16,
    ) -> bool {
        match self {
            Ring::Xdp(ring) => ring.transmit_segmented(headers, payload, segment_size),
            Ring::Shm(_) => false,
        }
    }
}

/// The pieces of a packet of either kind.
enum Pieces<X, S> {
    Xdp(X),
    Shm(S),
}

impl<'a, X: Iterator<Item = &'a [u8]>, S: Iterator<Item = &'a [u8]>> Iterator for Pieces<X, S> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            Pieces::Xdp(pieces) => pieces.next(),
            Pieces::Shm(pieces) => pieces.next(),
        }
    }
}
