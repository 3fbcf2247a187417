//! Readiness over offloaded and other descriptors at once: poll, select, epoll.
//!
//! All three poll first and sleep then, by `socket::wait`. The kernel is asked about its own
//! descriptors (the shadows among them) every so many polls, and always before and by the sleep.

pub mod epoll;
pub mod poll;
pub mod select;

pub use epoll::EpollId;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::socket::Stack;
use crate::socket::wait::Patience;
use crate::sys::thread::mask_differs;

/// How long to poll, and the mask to sleep with. A mask of the call that differs from the thread's
/// counts for the whole wait, which only the kernel can do: then there is one look and no polling.
fn patience<'a>(
    stack: &Stack,
    mask: Option<&'a libc::sigset_t>,
) -> (Patience, Option<&'a libc::sigset_t>) {
    match mask.filter(|mask| mask_differs(mask)) {
        Some(mask) => (Patience::Loops(0), Some(mask)),
        None => (Patience::micros(stack.config.select_poll), None),
    }
}

/// When the kernel's descriptors get their look.
#[derive(Default)]
pub struct OsTurn(AtomicU64);

impl OsTurn {
    /// Counts a poll; true if the kernel is to be asked now (`VMA_SELECT_POLL_OS_RATIO`).
    fn is_now(&self, ratio: u64) -> bool {
        ratio != 0 && self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(ratio)
    }
}
