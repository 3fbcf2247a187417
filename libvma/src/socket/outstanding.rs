//! How much of what a socket sent to another process of this host may still lie unread in the link,
//! which that process's other sockets share.

use crate::shard::Progress;

/// A bound from above, good to the last two times that all of it was read.
#[derive(Clone, Copy, Default)]
pub struct Outstanding {
    /// Numbers, in the lane, of the first record counted and of the last.
    first: u64,
    last: u64,
    count: u32,
    /// Sent before those, some perhaps not read yet.
    before: u32,
}

impl Outstanding {
    /// A record was sent; `progress` is the lane's after it.
    #[inline]
    pub fn note(&mut self, progress: Progress) {
        self.last = progress.sent.saturating_sub(1);
        if self.first < progress.read || self.count == 0 {
            self.first = self.last;
            self.before = self.count;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
    }

    /// At most so many are not read yet.
    pub fn most(&self, progress: Progress) -> u32 {
        if self.last < progress.read { 0 } else { self.count.saturating_add(self.before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_less_than_what_is_unread() {
        // Every third record is the socket's; the reader is up to `behind` records late.
        for behind in [1, 5, 64, 300] {
            let mut outstanding = Outstanding::default();
            let mut own = Vec::new();
            for number in 0..2000u64 {
                let progress = Progress { sent: number + 1, read: number.saturating_sub(behind) };
                if number % 3 == 0 {
                    outstanding.note(progress);
                    own.push(number);
                }
                let unread = own.iter().filter(|number| **number >= progress.read).count();
                assert!(outstanding.most(progress) as usize >= unread);
                assert!(u64::from(outstanding.most(progress)) <= 2 * (behind / 3 + 3));
            }
            let all_read = Progress { sent: 2000, read: 2000 };
            assert_eq!(outstanding.most(all_read), 0);
        }
    }
}
