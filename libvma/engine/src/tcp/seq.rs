//! Sequence numbers and their modular order (RFC 9293 section 3.4).

use core::cmp::Ordering;

/// A sequence number. `a < b` holds if `b` is less than 2^31 ahead of `a`, so the order is only
/// meaningful between numbers of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(u32);

impl Seq {
    #[inline]
    pub const fn new(raw: u32) -> Seq {
        Seq(raw)
    }

    #[inline]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The number `count` ahead.
    #[inline]
    pub const fn plus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }

    /// The number `count` behind.
    #[inline]
    pub const fn minus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }

    /// How far `self` is ahead of `earlier`; a huge number if it is behind.
    #[inline]
    pub const fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// How far `self` is ahead of `earlier`; 0 if it is not.
    #[inline]
    pub const fn ahead_of(self, earlier: Seq) -> u32 {
        let distance = self.0.wrapping_sub(earlier.0);
        if (distance as i32) < 0 { 0 } else { distance }
    }

    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self < other { other } else { self }
    }

    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if other < self { other } else { self }
    }
}

impl PartialOrd for Seq {
    #[inline]
    fn partial_cmp(&self, other: &Seq) -> Option<Ordering> {
        Some((self.0.wrapping_sub(other.0) as i32).cmp(&0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_modular() {
        let before = Seq::new(u32::MAX - 1);
        let after = before.plus(5);
        assert_eq!(after.raw(), 3);
        assert!(before < after);
        assert_eq!(after.since(before), 5);
        assert_eq!(before.ahead_of(after), 0);
        assert_eq!(after.ahead_of(before), 5);
        assert_eq!((before.max(after), before.min(after)), (after, before));
        assert_eq!(after.minus(5), before);
    }
}
