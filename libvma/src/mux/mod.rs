//! Readiness over offloaded and other descriptors at once: poll, select, epoll.
//!
//! All three poll first and sleep then, by `socket::wait`. The kernel is asked about its own
//! descriptors (the shadows among them) every so many polls, and always before and by the sleep.

pub mod epoll;
pub mod poll;
pub mod select;

pub use epoll::EpollId;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Config;

/// When the kernel's descriptors get their look.
#[derive(Default)]
pub struct OsTurn(AtomicU64);

impl OsTurn {
    /// Counts a poll; true if the kernel is to be asked now (`VMA_SELECT_POLL_OS_RATIO`).
    fn is_now(&self, config: &Config) -> bool {
        let ratio = config.select_poll_os_ratio;
        ratio != 0 && self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(ratio)
    }
}
