//! Which sockets are shown: lists and ranges of descriptors.

use std::ops::RangeInclusive;

use super::Refusal;

/// Descriptors; all if none is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<RangeInclusive<i32>>);

impl Selection {
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, descriptor: i32) -> bool {
        self.is_all() || self.0.iter().any(|range| range.contains(&descriptor))
    }

    /// Those of a list such as `4-16,19`.
    pub fn add(&mut self, list: &str) -> Result<(), Refusal> {
        for item in list.split(',') {
            let refuse = || Refusal::Value(format!("Invalid fd val: {item}"));
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) =
                (number(first).ok_or_else(refuse)?, number(last).ok_or_else(refuse)?);
            if first > last {
                return Err(refuse());
            }
            self.0.push(first..=last);
        }
        Ok(())
    }
}

/// A number that a descriptor can have.
fn number(word: &str) -> Option<i32> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let number = word.trim().parse().ok().filter(|number: &i32| *number >= 0)?;
    (limit.is_none_or(|limit| (number as u64) < limit)).then_some(number)
}
