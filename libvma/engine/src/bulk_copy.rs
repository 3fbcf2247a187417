//! Copies that may be long, at the speed that the processor has for them.
//!
//! For more than some KiB libc's memcpy takes `rep movsb`. That is the fastest there is for bytes beyond
//! the first-level cache (measured: EPYC of family 1Ah, 64 KiB in the second level, 111 to 137 GB/s, in
//! steps of vector moves 69). But on EPYC of family 19h it copies at a fifteenth of its speed, 1.2 bytes a
//! cycle instead of 19, if the target's address is 1 to 31 bytes above the source's, modulo 4096. In a
//! ring of bytes that comes by chance, and stays.

/// The longest copy for which memcpy never takes `rep movsb`: with the narrowest registers.
const STEP: usize = 2048;

/// Up to here two steps are faster than one `rep movsb`, which takes its time to start.
const SHORT: usize = 2 * STEP;

/// Copies `source` to the beginning of `target`, or as much of it as there is room for.
#[inline]
pub fn bulk_copy(target: &mut [u8], source: &[u8]) {
    let count = target.len().min(source.len());
    let (Some(target), Some(source)) = (target.get_mut(..count), source.get(..count)) else {
        return;
    };
    if count <= STEP { target.copy_from_slice(source) } else { copy_long(target, source) }
}

#[inline(never)]
fn copy_long(target: &mut [u8], source: &[u8]) {
    if target.len() > SHORT && !is_slow(target.as_ptr(), source.as_ptr()) {
        return target.copy_from_slice(source);
    }
    for (to, from) in target.chunks_mut(STEP).zip(source.chunks(STEP)) {
        // As long as each other, as `target` and `source` are.
        if to.len() == from.len() {
            to.copy_from_slice(from);
        }
    }
}

/// Does `rep movsb` crawl from `source` to `target`? A cache line as margin.
fn is_slow(target: *const u8, source: *const u8) -> bool {
    (1..64).contains(&(target.addr().wrapping_sub(source.addr()) % 4096))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn every_byte_arrives_whatever_the_lengths() {
        for (room, count) in
            [(0, 0), (1, 1), (2047, 2047), (2048, 2048), (2049, 2049), (10_000, 10_000)]
        {
            let source: Vec<u8> = (0..count).map(|n: usize| (n % 251) as u8).collect();
            let mut target = vec![0xff; room + 5];
            bulk_copy(&mut target, &source);
            assert_eq!(target[..count], source[..]);
            assert_eq!(target[count..], vec![0xff; 5 + room - count][..]);
        }
    }

    #[test]
    fn every_byte_arrives_whatever_the_distance() {
        const HALF: usize = 4 * 4096;
        for count in [4096, 4097, 6000] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (0, 31), (0, 63), (0, 64), (4000, 4096)] {
                let mut bytes = vec![0xff; 2 * HALF];
                let (source, target) = bytes.split_at_mut(HALF);
                let source = &mut source[from..];
                for (n, byte) in source.iter_mut().enumerate() {
                    *byte = (n % 253) as u8;
                }
                bulk_copy(&mut target[to..to + count], source);
                assert_eq!(target[to..to + count], source[..count], "{count} from {from} to {to}");
                assert_eq!(target[to + count..], vec![0xff; HALF - to - count][..]);
            }
        }
    }

    #[test]
    fn only_a_little_above_the_source_is_slow() {
        let at = |address: usize| core::ptr::without_provenance::<u8>(address);
        let slow = [4097, 4096 + 31, 3 * 4096 + 5].map(|target| is_slow(at(target), at(8192)));
        let fast =
            [8192, 8192 - 1, 8192 + 64, 2 * 8192].map(|target| is_slow(at(target), at(8192)));
        assert_eq!((slow, fast), ([true; 3], [false; 4]));
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let source = vec![7; 5000];
        for room in [0, 1, 2048, 4097] {
            let mut target = vec![0; room];
            bulk_copy(&mut target, &source);
            assert_eq!(target, vec![7; room]);
        }
    }
}
