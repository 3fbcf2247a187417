//! The memory shared with the kernel (UMEM), cut into frames that have one owner each: a
//! [`Frame`] in our hands, or the kernel, after the frame went into a ring.

use std::ptr::{self, NonNull};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

/// Holds a frame of an MTU of 1500 behind the kernel's headroom of 256 bytes.
pub const CHUNK: usize = 2048;

pub struct Umem {
    base: NonNull<u8>,
    /// For each chunk: is there no `Frame` of it, because the kernel has it?
    lent: Vec<bool>,
}

impl Umem {
    /// Maps `count` frames. They stay mapped until the process ends, as the kernel may write
    /// to them for as long as the socket's pool lives, which is past the socket's close.
    pub fn new(count: usize) -> Result<(Self, Vec<Frame>)> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: the kernel chooses the address (null), so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), count * CHUNK, protection, flags) }
            .context("map the UMEM")?;
        let base = NonNull::new(base.cast()).context("the UMEM is mapped at address 0")?;
        let mut umem = Self { base, lent: vec![true; count] };
        let frames =
            (0..count).filter_map(|chunk| umem.reclaim((chunk * CHUNK) as u64, 0)).collect();
        Ok((umem, frames))
    }

    /// The registration record for the kernel.
    pub fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.base.as_ptr() as u64,
            len: (self.lent.len() * CHUNK) as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// Gives a frame to the kernel: the address of its packet.
    #[inline]
    pub fn lend(&mut self, frame: Frame) -> u64 {
        self.lent[frame.chunk] = true;
        (frame.chunk * CHUNK + frame.start) as u64
    }

    /// The frame with the packet that the kernel gave back at `address`; `None` when no such
    /// frame was lent, which a sane kernel never says.
    #[inline]
    pub fn reclaim(&mut self, address: u64, length: usize) -> Option<Frame> {
        let (chunk, start) = (address as usize / CHUNK, address as usize % CHUNK);
        let lent = self.lent.get_mut(chunk)?;
        if !*lent || start + length > CHUNK {
            return None;
        }
        *lent = false;
        let memory = self.base.as_ptr().wrapping_add(chunk * CHUNK);
        // SAFETY: `chunk` is an index of `lent`, so the chunk lies in the mapping, which is
        // never unmapped. It was lent, so no other `Frame` of it exists (`lend` consumed it),
        // and the kernel, having given it back through a ring, does not touch it any more.
        let memory = unsafe { std::slice::from_raw_parts_mut(memory, CHUNK) };
        Some(Frame { memory, chunk, start, length })
    }
}

/// One chunk of the UMEM and the packet in it. Neither `Clone` nor `Copy`: who holds it owns
/// the memory.
pub struct Frame {
    memory: &'static mut [u8],
    chunk: usize,
    start: usize,
    length: usize,
}

impl Frame {
    #[inline]
    pub fn packet(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    /// An uninitialised packet of `length` bytes at the start of the chunk.
    pub fn reset(&mut self, length: usize) -> &mut [u8] {
        assert!(length <= CHUNK);
        (self.start, self.length) = (0, length);
        self.packet()
    }

    #[inline]
    pub fn length(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_once() {
        let (mut umem, mut frames) = Umem::new(2).unwrap();
        let mut frame = frames.pop().unwrap();
        frame.reset(3).copy_from_slice(b"abc");
        let address = umem.lend(frame);
        let mut frame = umem.reclaim(address, 3).unwrap();
        assert_eq!(frame.packet(), b"abc");
        assert!(umem.reclaim(address, 3).is_none(), "not lent");
        umem.lend(frame);
        assert!(umem.reclaim(address + 1, CHUNK).is_none(), "past the chunk's end");
        assert!(umem.reclaim(2 * CHUNK as u64, 1).is_none(), "past the end of the UMEM");
    }
}
