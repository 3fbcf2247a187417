//! The Internet checksum (RFC 1071) over bytes, over bytes being copied and over pieces. No header
//! layout but the pseudo header is known here.

use core::net::Ipv4Addr;

/// The ones-complement sum of the bytes seen so far, and whether their number was odd.
///
/// Sums of consecutive pieces of one packet compose in order with [`Sum::then`], whatever the
/// pieces' lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Of 16-bit words in the machine's byte order: RFC 1071 2(B), the order matters only when the
    /// sum is read. Always folded, so that two of them and a carry fit in 32 bits.
    words: u16,
    odd: bool,
}

impl Sum {
    pub const ZERO: Sum = Sum { words: 0, odd: false };

    /// The sum of `bytes`, as if they began at an even offset.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let (chunks, rest) = bytes.as_chunks::<8>();
        let mut total = 0;
        for chunk in chunks {
            total = add_chunk(total, *chunk);
        }
        Self::new(total, rest, bytes.len())
    }

    /// The sum of the pieces as one run of bytes.
    #[inline]
    pub fn of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        pieces.into_iter().fold(Self::ZERO, |sum, piece| sum.then(Self::of(piece)))
    }

    /// The sum of the bytes of `self` followed by those of `next`.
    #[inline]
    #[must_use]
    pub fn then(self, next: Sum) -> Self {
        // A byte at an odd offset is the other half of its word: RFC 1071 2(B), byte swapping the
        // whole sum.
        let next_words = if self.odd { next.words.swap_bytes() } else { next.words };
        let (words, carry) = self.words.overflowing_add(next_words);
        Self { words: words.wrapping_add(u16::from(carry)), odd: self.odd != next.odd }
    }

    /// The sum followed by a 16-bit field in network order.
    #[inline]
    #[must_use]
    pub fn then_u16(self, field: u16) -> Self {
        self.then(Self { words: field.to_be(), odd: false })
    }

    /// The 16-bit ones-complement sum as a number. 0xffff when what was summed includes its own
    /// correct checksum; 0 only if every byte was zero.
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(self.words)
    }

    /// What goes into a checksum field (which counted as zero in this sum).
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// `total` of the whole chunks before `rest`, which is shorter than a chunk.
    #[inline]
    fn new(total: u64, rest: &[u8], len: usize) -> Self {
        // Halving steps in registers; gathering the bytes in a buffer cost a store-forwarding stall
        // (7 of 9 ns for a 20-byte header).
        let (fours, rest) = rest.as_chunks::<4>();
        let (twos, rest) = rest.as_chunks::<2>();
        let fours = fours.iter().map(|four| u64::from(u32::from_ne_bytes(*four)));
        let twos = twos.iter().map(|two| u64::from(u16::from_ne_bytes(*two)));
        let ones = rest.iter().map(|one| u64::from(u16::from_ne_bytes([*one, 0])));
        let total = fours.chain(twos).chain(ones).fold(total, u64::wrapping_add);
        Self { words: fold_u64(total), odd: !len.is_multiple_of(2) }
    }
}

/// Copies `src` to `dst` and sums it on the way, so that the bytes are read once. Copies (and sums)
/// only what fits if the lengths differ.
#[inline]
pub fn copy_and_sum(dst: &mut [u8], src: &[u8]) -> Sum {
    let len = dst.len().min(src.len());
    let (Some(dst), Some(src)) = (dst.get_mut(..len), src.get(..len)) else {
        return Sum::ZERO;
    };
    let (to_chunks, to_rest) = dst.as_chunks_mut::<8>();
    let (from_chunks, from_rest) = src.as_chunks::<8>();
    let mut total = 0;
    for (to, from) in to_chunks.iter_mut().zip(from_chunks) {
        *to = *from;
        total = add_chunk(total, *from);
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
    Sum::new(total, from_rest, len)
}

/// The sum of the pseudo header that UDP (RFC 768) and TCP (RFC 9293 3.1) put before theirs; `len`
/// counts the transport header and its data.
#[inline]
pub fn pseudo_header(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    let [s0, s1, s2, s3] = src.octets();
    let [d0, d1, d2, d3] = dst.octets();
    let addresses = add_chunk(0, [s0, s1, s2, s3, d0, d1, d2, d3]);
    Sum { words: fold_u64(addresses), odd: false }.then_u16(u16::from(protocol)).then_u16(len)
}

/// Adds the two halves of a chunk. Two 32-bit numbers per step leave 31 bits of room, so `total`
/// cannot overflow below 16 GiB, and without carries to chase LLVM turns the loop into vector
/// additions.
#[inline]
fn add_chunk(total: u64, chunk: [u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(chunk);
    total.wrapping_add(word & 0xffff_ffff).wrapping_add(word >> 32)
}

/// Adds the four 16-bit words of `total` with end-around carry.
#[inline]
fn fold_u64(total: u64) -> u16 {
    let total = (total & 0xffff_ffff).wrapping_add(total >> 32); // at most 33 bits
    let total = (total & 0xffff).wrapping_add((total >> 16) & 0xffff).wrapping_add(total >> 32); // at most 18 bits
    let total = (total & 0xffff).wrapping_add(total >> 16); // at most 0x10001
    (total & 0xffff).wrapping_add(total >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut total: u32 = 0;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).fold(), 0xddf2);
        assert_eq!(Sum::of(&bytes).checksum(), 0x220d);
    }

    #[test]
    fn largest_inputs_do_not_lose_carries() {
        for len in [0, 1, 2, 7, 8, 9, 65535, 1 << 20] {
            let bytes = vec![0xff; len];
            assert_eq!(Sum::of(&bytes).fold(), naive(&bytes), "{len}");
        }
    }

    #[test]
    fn zero_bytes_sum_to_zero() {
        assert_eq!(Sum::of(&[0; 33]).fold(), 0);
        assert_eq!(Sum::ZERO.fold(), 0);
    }

    #[test]
    fn copy_stops_at_the_shorter_side() {
        let mut short = [0; 3];
        assert_eq!(copy_and_sum(&mut short, &[1, 2, 3, 4, 5]).fold(), naive(&[1, 2, 3]));
        assert_eq!(short, [1, 2, 3]);
        let mut long = [9; 12];
        assert_eq!(copy_and_sum(&mut long, &[1; 10]).fold(), naive(&[1; 10]));
        assert_eq!(long, [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 9]);
    }

    proptest! {
        #[test]
        fn sum_equals_the_naive_one(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::of(&bytes).fold(), naive(&bytes));
        }

        #[test]
        fn pieces_sum_as_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
        ) {
            let sum = Sum::of_pieces(pieces.iter().map(Vec::as_slice));
            let whole = pieces.concat();
            prop_assert_eq!(sum.fold(), naive(&whole));
            prop_assert_eq!(sum, Sum::of(&whole));
        }

        #[test]
        fn copying_sums_what_it_copies(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut copy = vec![0; bytes.len()];
            prop_assert_eq!(copy_and_sum(&mut copy, &bytes), Sum::of(&bytes));
            prop_assert_eq!(copy, bytes);
        }

        #[test]
        fn pseudo_header_equals_its_bytes(src: u32, dst: u32, protocol: u8, len: u16) {
            let mut bytes = [src.to_be_bytes(), dst.to_be_bytes()].concat();
            bytes.extend([0, protocol]);
            bytes.extend(len.to_be_bytes());
            let sum = pseudo_header(src.into(), dst.into(), protocol, len);
            prop_assert_eq!(sum.fold(), naive(&bytes));
        }
    }
}
