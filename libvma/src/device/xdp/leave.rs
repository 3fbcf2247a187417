//! The end of the process, as a ring sees it.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::Ring;

impl Ring {
    /// The process ends: no frames come from now on. What is left takes the kernel long to close: the link of the
    /// steering program, None if there is none or the ring leaves it to the end of the process.
    pub fn leave(&self) -> Result<Option<BorrowedFd<'_>>, Errno> {
        self.program.leave().map(|link| link.map(AsFd::as_fd))
    }
}
