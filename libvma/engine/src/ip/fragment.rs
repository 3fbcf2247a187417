//! The cutting of a datagram into fragments that fit the MTU (RFC 791 section 3.2). No byte is
//! copied here.

use core::iter::FusedIterator;

use crate::wire::ipv4::MAX_TOTAL_LEN;

/// One piece of an IP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where the piece begins in the payload: a multiple of 8.
    pub offset: usize,
    /// A multiple of 8, but for the last piece.
    pub len: usize,
    /// Whether pieces follow.
    pub more: bool,
}

/// Cuts an IP payload (transport header included) of `payload_len` bytes into pieces that fit `mtu`
/// behind a header of `header_len` bytes; a payload that fits whole is one piece.
///
/// As few pieces as possible, each but the last as long as possible, which is also how Linux cuts.
/// `None` if the datagram exceeds 65535 bytes or if the MTU has no room for 8 bytes of payload.
pub fn fragments(payload_len: usize, mtu: usize, header_len: usize) -> Option<Fragments> {
    let room = mtu.checked_sub(header_len)?;
    if payload_len.checked_add(header_len)? > MAX_TOTAL_LEN || payload_len > room && room < 8 {
        return None;
    }
    Some(Fragments { payload_len, room, next: Some(0) })
}

/// The pieces of one datagram, in order. See [`fragments`].
#[derive(Clone, Debug)]
pub struct Fragments {
    payload_len: usize,
    /// For payload in one packet. At least 8, unless the whole payload fits.
    room: usize,
    /// The offset of the next piece.
    next: Option<usize>,
}

impl Iterator for Fragments {
    type Item = Fragment;

    #[inline]
    fn next(&mut self) -> Option<Fragment> {
        let offset = self.next?;
        let left = self.payload_len.saturating_sub(offset);
        if left <= self.room {
            self.next = None;
            return Some(Fragment { offset, len: left, more: false });
        }
        let len = self.room & !7;
        self.next = Some(offset.saturating_add(len));
        Some(Fragment { offset, len, more: true })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let Some(offset) = self.next else {
            return (0, Some(0));
        };
        let beyond_one = self.payload_len.saturating_sub(offset).saturating_sub(self.room);
        let count = beyond_one.div_ceil((self.room & !7).max(1)).saturating_add(1);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Fragments {}
impl FusedIterator for Fragments {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(payload_len: usize, mtu: usize) -> Vec<(usize, usize, bool)> {
        fragments(payload_len, mtu, 20).unwrap().map(|f| (f.offset, f.len, f.more)).collect()
    }

    #[test]
    fn what_fits_is_one_piece() {
        assert_eq!(list(0, 1500), [(0, 0, false)]);
        assert_eq!(list(1480, 1500), [(0, 1480, false)]);
        assert_eq!(list(4, 24), [(0, 4, false)]);
    }

    #[test]
    fn pieces_are_aligned_and_the_last_may_use_the_whole_mtu() {
        assert_eq!(list(1481, 1500), [(0, 1480, true), (1480, 1, false)]);
        assert_eq!(list(3000, 1499), [(0, 1472, true), (1472, 1472, true), (2944, 56, false)]);
        // 1479 is not a multiple of 8, and need not be in the last piece.
        assert_eq!(list(1472 + 1479, 1499), [(0, 1472, true), (1472, 1479, false)]);
    }

    #[test]
    fn impossible_cuts_are_refused() {
        assert!(fragments(100, 27, 20).is_none());
        assert!(fragments(100, 28, 20).is_some());
        assert!(fragments(8, 10, 20).is_none());
        assert!(fragments(65515, 1500, 20).is_some());
        assert!(fragments(65516, 1500, 20).is_none());
        assert!(fragments(usize::MAX, 1500, 20).is_none());
    }

    proptest! {
        #[test]
        fn pieces_tile_the_payload(payload_len in 0usize..=65515, mtu in 28usize..70000) {
            let pieces = fragments(payload_len, mtu, 20).unwrap();
            let mut left = pieces.len();
            let mut end = 0;
            for piece in pieces.clone() {
                prop_assert_eq!(piece.offset, end);
                prop_assert!(piece.len + 20 <= mtu);
                prop_assert!(!piece.more || piece.len % 8 == 0 && piece.len > 0);
                end += piece.len;
                left -= 1;
                prop_assert_eq!(piece.more, left != 0);
            }
            prop_assert_eq!((end, left), (payload_len, 0));
        }

        #[test]
        fn no_arguments_panic_or_run_on(payload_len: usize, mtu: usize, header_len: usize) {
            if let Some(pieces) = fragments(payload_len, mtu, header_len) {
                prop_assert!(pieces.count() <= 8192);
            }
        }
    }
}
