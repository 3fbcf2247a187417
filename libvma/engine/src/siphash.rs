//! SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash of short inputs whose values nobody
//! predicts without the key. What is hashed and why is the callers' business.

/// A secret key.
#[derive(Clone)]
pub struct Key {
    k0: u64,
    k1: u64,
}

impl Key {
    pub fn new(bytes: [u8; 16]) -> Key {
        let both = u128::from_le_bytes(bytes);
        Key { k0: both as u64, k1: (both >> 64) as u64 }
    }

    /// The hash of the words' bytes, each word in little-endian order.
    #[inline]
    pub fn hash<const N: usize>(&self, words: [u64; N]) -> u64 {
        let mut state = State::new(self);
        for word in words {
            state.absorb(word);
        }
        // The last block holds the length in bytes modulo 256 above the bytes left over: none.
        state.absorb((N as u64).wrapping_mul(8) << 56);
        state.finish()
    }
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[inline]
    fn new(key: &Key) -> State {
        State {
            v0: key.k0 ^ 0x736f_6d65_7073_6575,
            v1: key.k1 ^ 0x646f_7261_6e64_6f6d,
            v2: key.k0 ^ 0x6c79_6765_6e65_7261,
            v3: key.k1 ^ 0x7465_6462_7974_6573,
        }
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    #[inline]
    fn finish(mut self) -> u64 {
        self.v2 ^= 0xff;
        for _ in 0..4 {
            self.round();
        }
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    #[inline]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_whole_words_are_the_published_ones() {
        // The vectors of the paper's reference implementation: key 00..0f, message 00, 01, 02, ...
        let key = Key::new(core::array::from_fn(|index| index as u8));
        let first = 0x0706_0504_0302_0100;
        let second = 0x0f0e_0d0c_0b0a_0908;
        assert_eq!(key.hash([]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash([first]), 0x93f5_f579_9a93_2462);
        assert_eq!(key.hash([first, second]), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn both_halves_of_the_key_count() {
        let mut bytes = [0; 16];
        let zero = Key::new(bytes).hash([1]);
        bytes[0] = 1;
        assert_ne!(Key::new(bytes).hash([1]), zero);
        bytes = [0; 16];
        bytes[15] = 1;
        assert_ne!(Key::new(bytes).hash([1]), zero);
    }
}
