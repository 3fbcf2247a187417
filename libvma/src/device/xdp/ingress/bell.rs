//! Wakes a thread that sleeps until a frame comes.
//!
//! When a thread sleeps, the program at the tc ingress hook lets the frame go on to the kernel, with a mark
//! and addressed as if to another host, so that only a packet socket of ours takes it. The socket's data
//! are not used: the frame lies in the ring already.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::packets::Packets;
use crate::sys::{Fd, random};

/// More than there are bells.
const MARKS: u32 = 32;

pub struct Bell {
    /// Rung by the program.
    packets: Packets,
    mark: u32,
    /// Rung by ourselves when something came while we fell asleep.
    own: Fd,
    is_rung: bool,
}

impl Bell {
    pub fn open(interface: u32) -> Result<Bell, Errno> {
        // Never 0, which frames have that nobody has marked. What others guess wakes us in vain, no more. The
        // marks that follow are those of own bells.
        let [a, b, c, d, ..] = random::bytes().unwrap_or_default();
        let mark = u32::from_ne_bytes([a, b, c, d]) & !(MARKS - 1) | MARKS;
        let packets = Packets::listen(interface, mark)?;
        let own = Fd::adopt(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
        Ok(Bell { packets, mark, own, is_rung: false })
    }

    /// The mark (skb->mark) by which the packet socket knows a frame.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.packets.as_fd(), self.own.as_fd()]
    }

    pub fn hush(&mut self) {
        self.packets.hush();
        if core::mem::take(&mut self.is_rung) {
            let _ = rustix::io::read(&self.own, &mut [0u8; 8]);
        }
    }

    pub fn ring(&mut self) {
        if !core::mem::replace(&mut self.is_rung, true) {
            let _ = rustix::io::write(&self.own, &1u64.to_ne_bytes());
        }
    }

    /// Makes it the first member of a new fanout group: the number of the group.
    pub(super) fn found_group(&self) -> Result<u16, Errno> {
        self.packets.found_group(self.mark)
    }
}
