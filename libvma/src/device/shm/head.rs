//! The received packets that somebody holds: a private copy of what stood in the slot, and which
//! chunks the rest lies in. A frame is the number of its head.

use libvma_engine::frame::{Extent, Frame, Pool};

use super::lane::{INLINE, Inline, NEAR};

/// Records that may be held at a time, over all links of a ring.
const HEADS: u32 = 4096;

/// With fewer than this many left, whoever queues packets must copy them out.
const FEW: usize = HEADS as usize / 4;

#[repr(align(64))]
#[derive(Clone, Copy)]
pub struct Head {
    pub bytes: Inline,
    /// Bytes in the record, without a message's header.
    pub len: u32,
    /// Index of the link that it came by.
    pub link: u16,
    /// Payload in `bytes`: from here ...
    pub start: u8,
    /// ... to here. With chunks behind it never more than [`NEAR`].
    pub end: u8,
}

const _: () = assert!(size_of::<Head>() == 128);

impl Head {
    const EMPTY: Head = Head { bytes: [0; INLINE], len: 0, link: 0, start: 0, end: 0 };

    /// The payload that stood in the slot.
    #[inline]
    pub fn inline(&self) -> &[u8] {
        self.bytes.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }

    /// Bytes in chunks.
    #[inline]
    pub fn rest(&self) -> usize {
        (self.len as usize).saturating_sub(usize::from(self.end.saturating_sub(self.start)))
    }

    /// Number of the chunk at `place`.
    #[inline]
    pub fn chunk(&self, place: usize) -> u16 {
        chunk_at(&self.bytes, place)
    }
}

/// Number of the chunk that a slot names at `place`.
#[inline]
pub fn chunk_at(bytes: &Inline, place: usize) -> u16 {
    match bytes.get(NEAR + place * 2..NEAR + place * 2 + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => u16::MAX,
    }
}

#[inline]
pub fn set_chunk_at(bytes: &mut Inline, place: usize, chunk: u16) {
    if let Some(at) = bytes.get_mut(NEAR + place * 2..NEAR + place * 2 + 2) {
        at.copy_from_slice(&chunk.to_le_bytes());
    }
}

/// All heads of a ring, and the one frame that is under construction for sending.
pub struct Heads {
    pool: Pool,
    heads: Vec<Head>,
    /// Number of the frame for sending; the pool never has it.
    outgoing: u32,
}

impl Heads {
    pub fn new() -> Heads {
        let mut pool = Pool::new(HEADS + 1);
        let outgoing = pool.allocate().map_or(0, Pool::surrender);
        Heads { pool, heads: vec![Head::EMPTY; HEADS as usize + 1], outgoing }
    }

    #[inline(always)]
    pub fn are_few(&self) -> bool {
        self.pool.available() < FEW
    }

    pub fn free(&self) -> u32 {
        self.pool.available() as u32
    }

    /// A head to fill.
    #[inline(always)]
    pub fn allocate(&mut self) -> Option<(Frame, &mut Head)> {
        let frame = self.pool.allocate()?;
        match self.heads.get_mut(frame.index() as usize) {
            Some(head) => Some((frame, head)),
            None => None,
        }
    }

    #[inline]
    pub fn get(&self, frame: &Frame) -> &Head {
        self.heads.get(frame.index() as usize).unwrap_or(&Head::EMPTY)
    }

    #[inline]
    pub fn release(&mut self, frame: Frame) {
        self.pool.release(frame);
    }

    /// The handle of the frame under construction. The caller sees to it that there is one only.
    #[inline]
    pub fn outgoing(&mut self) -> Option<Frame> {
        self.pool.reclaim(self.outgoing, Extent::default())
    }

    #[inline]
    pub fn is_outgoing(&self, frame: &Frame) -> bool {
        frame.index() == self.outgoing
    }
}
