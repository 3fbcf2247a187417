//! How received packets come: through the rings of an AF_XDP socket, or through the ring that the
//! steering program fills itself. Both take free chunks and give descriptors.

use rustix::fd::{AsFd, BorrowedFd};

use super::ingress::Ingress;
use super::ring::{Cursor, Descriptor};
use super::umem::Umem;
use crate::sys::Fd;

pub enum Inlet {
    /// The AF_XDP socket's own.
    Rings {
        rx: Cursor<Descriptor>,
        fill: Cursor<u64>,
    },
    Ingress(Ingress),
}

impl Inlet {
    #[inline]
    pub fn consume(&mut self) -> Option<Descriptor> {
        match self {
            Inlet::Rings { rx, .. } => rx.consume(),
            Inlet::Ingress(ingress) => ingress.consume(),
        }
    }

    /// While nothing comes: starts to fetch what another processor is about to write, the next
    /// descriptor and its packet. They are then here together with the index that tells of them. The
    /// kernel takes chunks in the order of the fill ring, mostly; the other case costs time, no more.
    #[inline]
    pub fn expect_next(&self, umem: &Umem) {
        match self {
            Inlet::Rings { rx, fill } => {
                rx.prefetch_next();
                umem.prefetch_expected(Umem::packet_in(fill.glance(rx.index())));
            }
            Inlet::Ingress(ingress) => ingress.expect_next(umem),
        }
    }

    /// Descriptors that were consumed and not yet given back.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        match self {
            Inlet::Rings { rx, .. } => rx.unpublished(),
            Inlet::Ingress(ingress) => ingress.unsettled(),
        }
    }

    #[inline]
    pub fn publish(&mut self) {
        match self {
            Inlet::Rings { rx, .. } => rx.publish(),
            Inlet::Ingress(ingress) => ingress.settle(),
        }
    }

    /// Chunks that can be offered now.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        match self {
            Inlet::Rings { fill, .. } => fill.room(wanted),
            Inlet::Ingress(ingress) => ingress.room(),
        }
    }

    /// Offers a chunk to receive into, with the next [`Inlet::publish_offers`].
    #[inline]
    pub fn offer(&mut self, address: u64) {
        match self {
            Inlet::Rings { fill, .. } => fill.produce(address),
            Inlet::Ingress(ingress) => ingress.offer(address),
        }
    }

    /// True if the kernel wants a call now.
    #[inline]
    pub fn publish_offers(&mut self) -> bool {
        match self {
            Inlet::Rings { fill, .. } => {
                fill.publish();
                fill.needs_wakeup()
            }
            Inlet::Ingress(ingress) => {
                ingress.publish();
                false
            }
        }
    }

    /// Before a sleep on the descriptors, when everything consumed was given back.
    pub fn fall_asleep(&mut self) {
        match self {
            // The kernel looks at the RX ring itself.
            Inlet::Rings { .. } => {}
            Inlet::Ingress(ingress) => ingress.fall_asleep(),
        }
    }

    /// What becomes readable when a packet comes: one descriptor or two.
    pub fn descriptors<'a>(&'a self, socket: &'a Fd) -> impl Iterator<Item = BorrowedFd<'a>> {
        let (first, second) = match self {
            Inlet::Rings { .. } => (socket.as_fd(), None),
            Inlet::Ingress(ingress) => {
                let [bell, own] = ingress.descriptors();
                (bell, Some(own))
            }
        };
        core::iter::once(first).chain(second)
    }

    /// Descriptors that wait to be consumed.
    pub fn waiting(&self) -> u32 {
        match self {
            Inlet::Rings { rx, .. } => rx.waiting(),
            Inlet::Ingress(ingress) => ingress.waiting(),
        }
    }
}
