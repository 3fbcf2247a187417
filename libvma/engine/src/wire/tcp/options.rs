//! The options of the TCP header (RFC 9293 section 3.2, RFC 7323, RFC 2018): parse, length and
//! layout. What they mean is for connections to say.

use super::{HEADER_LEN, MAX_HEADER_LEN};

/// The largest window scale (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// How many bytes the timestamps take in every segment of a connection that uses them.
pub const TIMESTAMPS_LEN: usize = 12;

/// The options this engine knows.
///
/// `mss`, `window_scale` and `sack_permitted` mean something only in a segment with SYN; whoever
/// reads them looks at that flag first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<Timestamps>,
    pub sack: SackBlocks,
}

impl Options {
    /// The SACK blocks, the most recent one first (RFC 2018 section 4).
    #[inline]
    pub fn sack(&self) -> &[SackBlock] {
        self.sack.as_slice()
    }

    /// Appends a SACK block. `false` if there is no room for it among the 40 bytes of options.
    #[inline]
    pub fn push_sack(&mut self, block: SackBlock) -> bool {
        self.sack.as_slice().len() < self.sack_capacity() && self.sack.push(block)
    }

    /// The length of the options on the wire, padding to a multiple of 4 included.
    #[inline]
    pub fn len_on_wire(&self) -> usize {
        if self.only_timestamps().is_some() {
            return TIMESTAMPS_LEN;
        }
        if self.is_empty() { 0 } else { self.len_of_any() }
    }

    /// The same of any options: apart, as few segments have others than time stamps.
    #[inline(never)]
    fn len_of_any(&self) -> usize {
        let len = self.len_without_sack();
        match self.sack_on_wire().len() {
            0 => len,
            count => len.saturating_add(4).saturating_add(count.saturating_mul(8)),
        }
    }

    /// Reads what lies between the fixed header and the data.
    ///
    /// As Linux does: an option of unknown kind, or of a known kind and unexpected length, is
    /// stepped over (RFC 9293 MUST-6); a length that cannot be ends the options but not the
    /// segment (RFC 9293 MUST-7); of two equal options the last one counts.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        options.parse_into(bytes);
        options
    }

    /// The same in place, into the default: nothing is copied.
    #[inline]
    pub(super) fn parse_into(&mut self, bytes: &[u8]) {
        // What every segment of an established connection carries.
        if let Ok(bytes) = <&[u8; TIMESTAMPS_LEN]>::try_from(bytes)
            && let (&[kind, value, echo], _) = bytes.as_chunks::<4>()
            && u32::from_be_bytes(kind) == NOPS_AND_TIMESTAMPS
        {
            let (value, echo) = (u32::from_be_bytes(value), u32::from_be_bytes(echo));
            self.timestamps = Some(Timestamps { value, echo });
        } else if !bytes.is_empty() {
            self.read_all(bytes);
        }
    }

    #[inline(never)]
    fn read_all(&mut self, mut bytes: &[u8]) {
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == KIND_END {
                break;
            }
            if kind == KIND_NOP {
                bytes = rest;
                continue;
            }
            let Some(&len) = rest.first() else { break };
            let (Some(value), Some(next)) =
                (bytes.get(2..usize::from(len)), bytes.get(usize::from(len)..))
            else {
                break;
            };
            self.read(kind, value);
            bytes = next;
        }
    }

    /// Takes over one option, unless its length is wrong.
    fn read(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            // Linux: an MSS of 0 says nothing.
            (KIND_MSS, &[0, 0]) => {}
            (KIND_MSS, &[m0, m1]) => self.mss = Some(u16::from_be_bytes([m0, m1])),
            // RFC 7323 section 2.3: a larger scale is used as 14.
            (KIND_WINDOW_SCALE, &[scale]) => {
                self.window_scale = Some(scale.min(MAX_WINDOW_SCALE));
            }
            (KIND_SACK_PERMITTED, &[]) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                self.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                });
            }
            (KIND_SACK, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
                self.sack = SackBlocks::default();
                for &[l0, l1, l2, l3, r0, r1, r2, r3] in blocks.as_chunks::<8>().0 {
                    let block = SackBlock {
                        left: u32::from_be_bytes([l0, l1, l2, l3]),
                        right: u32::from_be_bytes([r0, r1, r2, r3]),
                    };
                    self.sack.push(block);
                }
            }
            _ => {}
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.mss.is_none()
            && self.window_scale.is_none()
            && !self.sack_permitted
            && self.timestamps.is_none()
            && self.sack.count == 0
    }

    /// The timestamps, if there is nothing else.
    #[inline]
    pub(super) fn only_timestamps(&self) -> Option<Timestamps> {
        let others = self.mss.is_some()
            || self.window_scale.is_some()
            || self.sack_permitted
            || !self.sack.as_slice().is_empty();
        if others { None } else { self.timestamps }
    }

    #[inline]
    fn len_without_sack(&self) -> usize {
        let mut len = 0usize;
        if self.mss.is_some() {
            len = len.saturating_add(4);
        }
        if self.timestamps.is_some() {
            len = len.saturating_add(TIMESTAMPS_LEN);
        } else if self.sack_permitted {
            // With timestamps it takes the place of their padding.
            len = len.saturating_add(4);
        }
        if self.window_scale.is_some() {
            len = len.saturating_add(4);
        }
        len
    }

    /// How many SACK blocks fit beside the other options: 4, or 3 beside timestamps.
    #[inline]
    fn sack_capacity(&self) -> usize {
        let left = (MAX_HEADER_LEN - HEADER_LEN).saturating_sub(self.len_without_sack());
        (left.saturating_sub(4) / 8).min(MAX_SACK_BLOCKS)
    }

    /// The SACK blocks that are sent: fewer than there are only if other options were added later.
    #[inline]
    fn sack_on_wire(&self) -> &[SackBlock] {
        let blocks = self.sack();
        blocks.get(..self.sack_capacity()).unwrap_or(blocks)
    }

    /// The options as words in host byte order, in the layout Linux uses: everything is padded in
    /// front to whole words, and SACK-permitted saves a word by padding the timestamps.
    #[inline]
    pub(super) fn for_each_word(&self, mut word: impl FnMut(u32)) {
        if let Some(timestamps) = self.only_timestamps() {
            word(NOPS_AND_TIMESTAMPS);
            word(timestamps.value);
            word(timestamps.echo);
            return;
        }
        if let Some(mss) = self.mss {
            word(u32::from_be_bytes([KIND_MSS, 4, 0, 0]) | u32::from(mss));
        }
        if let Some(timestamps) = self.timestamps {
            word(match self.sack_permitted {
                true => u32::from_be_bytes([KIND_SACK_PERMITTED, 2, KIND_TIMESTAMPS, 10]),
                false => NOPS_AND_TIMESTAMPS,
            });
            word(timestamps.value);
            word(timestamps.echo);
        } else if self.sack_permitted {
            word(u32::from_be_bytes([KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]));
        }
        if let Some(scale) = self.window_scale {
            word(u32::from_be_bytes([KIND_NOP, KIND_WINDOW_SCALE, 3, scale]));
        }
        let blocks = self.sack_on_wire();
        if !blocks.is_empty() {
            // At most four blocks: the length fits.
            let len = blocks.len().saturating_mul(8).saturating_add(2) as u8;
            word(u32::from_be_bytes([KIND_NOP, KIND_NOP, KIND_SACK, len]));
            for block in blocks {
                word(block.left);
                word(block.right);
            }
        }
    }
}

/// TSval and TSecr (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: what the sender last received as TSval. Meaningless without `Flags::ACK`.
    pub echo: u32,
}

/// Data received out of order (RFC 2018 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first sequence number of the block.
    pub left: u32,
    /// The one behind its last.
    pub right: u32,
}

/// Up to four SACK blocks. Aligned to what the compiler clears at once, as is done for every segment: a
/// store that crosses a border between pages, wherever the stack happens to lie, is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(16))]
pub struct SackBlocks {
    blocks: [SackBlock; MAX_SACK_BLOCKS],
    count: u8,
}

impl SackBlocks {
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        self.blocks.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Appends a block; false if there are four.
    #[inline]
    fn push(&mut self, block: SackBlock) -> bool {
        let Some(place) = self.blocks.get_mut(usize::from(self.count)) else {
            return false;
        };
        *place = block;
        self.count = self.count.saturating_add(1);
        true
    }
}

/// As many as 40 bytes of options can hold.
const MAX_SACK_BLOCKS: usize = 4;

// IANA's "TCP Option Kind Numbers".
const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// The layout RFC 7323 appendix A recommends.
pub(super) const NOPS_AND_TIMESTAMPS: u32 =
    u32::from_be_bytes([KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10]);
