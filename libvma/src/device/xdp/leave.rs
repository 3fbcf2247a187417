//! The end of the process, as a ring sees it.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

use super::Ring;

impl Ring {
    /// The process ends. What is left of the ring takes the kernel long to close: the link of the steering program, by
    /// which no frames come from now on. None for a ring that the daemon has granted: its program steers until the
    /// daemon sees the end of the connection, and so does one that refuses, until the process has ended.
    pub fn leave(&self) -> Result<Option<BorrowedFd<'_>>, Errno> {
        self.program.leave().map(|link| link.map(AsFd::as_fd))
    }
}

#[cfg(test)]
mod tests {
    use crate::device;
    use crate::device::xdp::program::Rival;
    use crate::device::xdp::super_frame::tests::{open_in, with_pair};
    use crate::device::xdp::{Mode, bpf};

    /// The program of the first is at a hook that the next process would wait for. Needs root.
    #[test]
    fn a_ring_that_cannot_be_left_keeps_no_other() {
        with_pair(|| {
            let rings = [(Mode::Native, "v0"), (Mode::Tc, "v1")]
                .map(|(mode, name)| device::Ring::Xdp(open_in(mode, name, true)));
            let (links, left) = device::Ring::leave_all(&rings);
            assert_eq!((links.len(), left.is_err()), (1, true));
            let there = bpf::programs_at_ingress(rings[1].interface().index).unwrap();
            assert_eq!((there.all, there.ours, there.left), (1, Some(0), 1));
        });
    }

    /// A process that has ended counts as one whose queue comes free. Needs root.
    #[test]
    fn what_has_been_left_is_waited_for() {
        with_pair(|| {
            let before = open_in(Mode::Tc, "v0", true);
            before.leave().unwrap();
            let after = open_in(Mode::Tc, "v0", true);
            assert_eq!(after.program.rival(), Rival::Leaving);
            drop(before);
            assert_eq!(after.program.rival(), Rival::None);
        });
    }
}
