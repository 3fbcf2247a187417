//! The bells that wake threads which sleep until frames come: the common one, and those of single threads.
//!
//! Only a ring that the steering program fills at the tc ingress hook ([`Ingress`]) has bells; on other rings
//! these calls do nothing, and a thread sleeps on the ring's own descriptors.

use core::net::{Ipv4Addr, SocketAddrV4};

use libvma_dev::ipv6_stand_ins;
use rustix::fd::BorrowedFd;

use super::Ring;
use super::ingress::{Ingress, Taker};
use super::inlet::Inlet;

impl Ring {
    /// A thread is about to sleep until its own bell of this number (1 and up) rings: the descriptor to sleep
    /// on, None if there is no such bell. The second value is false if a frame has come meanwhile.
    pub fn arm_own_bell(&mut self, number: usize) -> Option<(BorrowedFd<'_>, bool)> {
        self.ingress_mut()?.arm_own_bell(number)
    }

    /// The thread that had armed the bell sleeps no more.
    pub fn disarm_own_bell(&mut self, number: usize) {
        if let Some(ingress) = self.ingress_mut() {
            ingress.own_bells().disarm(number);
        }
    }

    /// Was the bell rung since the thread armed it?
    pub fn is_own_bell_rung(&self, number: usize) -> bool {
        self.ingress().is_some_and(|ingress| ingress.is_own_bell_rung(number))
    }

    /// The bell belongs to another thread from now on: what was said of the former one is void.
    pub fn forget_own_bell(&mut self, number: usize) {
        if let Some(ingress) = self.ingress_mut() {
            ingress.own_bells().forget(number);
        }
    }

    /// Every frame rings the common bell, until a thread arms a bell of its own.
    pub fn ignore_own_bells(&mut self) {
        if let Some(ingress) = self.ingress() {
            ingress.heed_own_bells(false);
        }
    }

    /// The threads that read the frames which this peer sends to this own address, by TCP.
    pub fn expect(&mut self, peer: SocketAddrV4, own: SocketAddrV4, taker: Taker) {
        // The program knows no stand-in of a peer whose connection is on a listener's flow.
        let is_unknown =
            ipv6_stand_ins::is_one(*peer.ip()) && !self.program.flows.knows(*peer.ip());
        let seen = if is_unknown { Ipv4Addr::UNSPECIFIED } else { *peer.ip() };
        let peer = SocketAddrV4::new(seen, peer.port());
        if let Some(ingress) = self.ingress_mut() {
            ingress.own_bells().expect(peer, own, taker);
        }
    }

    /// Was the common bell rung since a thread fell asleep on it?
    pub fn is_common_bell_rung(&self) -> bool {
        self.ingress().is_some_and(Ingress::is_rung)
    }

    /// No thread sleeps on the common bell.
    pub fn silence_common_bell(&mut self) {
        if let Some(ingress) = self.ingress() {
            ingress.silence();
        }
    }

    /// Tells the steering program how far the ring was read.
    #[inline]
    pub fn note_read(&mut self) {
        if let Some(ingress) = self.ingress() {
            ingress.note_read();
        }
    }

    /// Do frames wait to be read?
    pub fn has_waiting(&self) -> bool {
        self.queues.iter().any(|queue| queue.inlet.waiting() > 0)
    }

    #[inline]
    fn ingress(&self) -> Option<&Ingress> {
        match self.queues.first().map(|queue| &queue.inlet) {
            Some(Inlet::Ingress(ingress)) => Some(ingress),
            _ => None,
        }
    }

    fn ingress_mut(&mut self) -> Option<&mut Ingress> {
        match self.queues.first_mut().map(|queue| &mut queue.inlet) {
            Some(Inlet::Ingress(ingress)) => Some(ingress),
            _ => None,
        }
    }
}
