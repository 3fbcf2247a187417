//! What readers of the statistics file ask for, by the block in which they write.
//!
//! The block is as trustworthy as the user whose file it is, and a reader may be in the middle of
//! writing it: what makes no sense is passed over.

use libvma_dev::stats::Control;

use crate::log::Level;

/// The block as it was when it was looked at last.
pub struct Seen(Control);

/// What is new in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub level: Option<Level>,
    pub details: Option<u8>,
    pub dump: Option<Dump>,
    /// The sockets whose counters are to be zero; none: everything.
    pub zero: Option<Vec<i32>>,
    /// The number to answer.
    pub snapshot: Option<u32>,
}

/// Lines about a descriptor, or for 0 about all, at this level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dump {
    pub descriptor: i32,
    pub level: Level,
}

impl Asked {
    pub fn is_nothing(&self) -> bool {
        *self == Asked::default()
    }
}

impl Seen {
    pub fn new(first: Control) -> Seen {
        Seen(first)
    }

    /// Compares with what is there now.
    pub fn look(&mut self, now: Control) -> Asked {
        let before = core::mem::replace(&mut self.0, now);
        let mut asked = Asked::default();
        if now.log_level != before.log_level {
            asked.level = Level::from_number(now.log_level);
        }
        if now.log_details != before.log_details {
            asked.details = u8::try_from(now.log_details).ok().filter(|details| *details <= 3);
        }
        if now.dumps != before.dumps {
            let level = Level::from_number(now.dump_level);
            asked.dump = level.map(|level| Dump { descriptor: now.dump_descriptor, level });
        }
        if now.zeroings != before.zeroings {
            let list = now.zero_list.get(..now.zero_count as usize);
            asked.zero = list.map(<[i32]>::to_vec);
        }
        if now.requests != before.requests {
            asked.snapshot = Some(now.requests);
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: STAT-16, STAT-17
    #[test]
    fn a_change_is_told_once() {
        let first = Control { log_level: 3, ..Control::default() };
        let mut seen = Seen::new(first);
        assert!(seen.look(first).is_nothing());
        let now = Control { log_level: 5, log_details: 2, requests: 1, ..first };
        let asked = seen.look(now);
        assert_eq!((asked.level, asked.details), (Some(Level::Debug), Some(2)));
        assert_eq!((asked.snapshot, asked.dump, asked.zero), (Some(1), None, None));
        assert!(seen.look(now).is_nothing());
    }

    #[test]
    fn what_is_asked_for_comes_with_its_words() {
        let mut seen = Seen::new(Control::default());
        let mut now = Control { dumps: 1, dump_descriptor: 7, dump_level: 3, ..Control::default() };
        now.zeroings = 1;
        now.zero_count = 2;
        (now.zero_list[0], now.zero_list[1]) = (4, 9);
        let asked = seen.look(now);
        assert_eq!(asked.dump, Some(Dump { descriptor: 7, level: Level::Info }));
        assert_eq!(asked.zero, Some(vec![4, 9]));
        now.zeroings = 2;
        now.zero_count = 0;
        assert_eq!(seen.look(now).zero, Some(Vec::new()));
    }

    #[test]
    fn nonsense_is_passed_over() {
        let mut seen = Seen::new(Control::default());
        let nonsense = Control {
            log_level: 99,
            log_details: -7,
            dumps: 1,
            dump_level: i32::MIN,
            zeroings: 1,
            zero_count: u32::MAX,
            ..Control::default()
        };
        assert!(seen.look(nonsense).is_nothing());
    }
}
