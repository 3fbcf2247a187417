//! The states of a pipe's end, and the transitions between them. No bytes, no link: those are the callers'.
//!
//! The module documentation of [`crate::shard::pipe`] has the table of states and messages.

use super::input::Violation;
use crate::shard::pipe::message::Name;

/// The agreement of the two ends to use the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// There is no link yet: the peer has not heard of the client's offer, or the server waits for it.
    Apart,
    Offered,
    /// The answer to the withdrawal is still to come. If it is a confirmation and the connection `leaves`, the
    /// pipe is given up at once.
    Withdrawn {
        leaves: bool,
    },
    /// Agreed, with this end of the peer's.
    Confirmed(Name),
    /// There is no peer any more.
    Over,
}

impl Bond {
    /// The peer's end, as long as there is one.
    #[inline]
    pub fn peer(self) -> Option<Name> {
        match self {
            Bond::Confirmed(peer) => Some(peer),
            Bond::Apart | Bond::Offered | Bond::Withdrawn { .. } | Bond::Over => None,
        }
    }

    pub fn is_confirmed(self) -> bool {
        self.peer().is_some()
    }

    pub fn is_offered(self) -> bool {
        matches!(self, Bond::Offered | Bond::Withdrawn { .. })
    }
}

/// The way of the bytes that the program sends. The states come in this order; the second and the third may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// By the kernel, until the peer uses the pipe. `due`: it does, but the link had no room for SWITCH.
    Early { due: bool },
    /// By the pipe. `fin_due`: the program has shut its end down, but the link had no room for FIN.
    Pipe { fin_due: bool },
    /// Nothing goes by the pipe any more. What went by it and is not read comes back, if anything did.
    /// `due`: the link had no room for STOP.
    Stopped { by_pipe: bool, due: bool },
    /// By the kernel for good, behind the backlog: all that is to come back has come, or the peer is gone.
    Reverted,
}

impl Sending {
    /// May SWITCH be said?
    pub fn may_switch(self) -> bool {
        matches!(self, Sending::Early { .. })
    }

    /// SWITCH was said, or found no room.
    pub fn switch(&mut self, told: bool) {
        if let Sending::Early { due } = self {
            *due = !told;
            if told {
                *self = Sending::Pipe { fin_due: false };
            }
        }
    }

    /// FIN was said, or found no room.
    pub fn end(&mut self, told: bool) {
        if let Sending::Pipe { fin_due } = self {
            *fin_due = !told;
        }
    }

    /// The pipe is given up. False if it is already.
    pub fn stop(&mut self) -> bool {
        let by_pipe = match self {
            Sending::Early { .. } => false,
            Sending::Pipe { .. } => true,
            Sending::Stopped { .. } | Sending::Reverted => return false,
        };
        // A message that was due before is not said any more: the kernel tells of an end again.
        *self = Sending::Stopped { by_pipe, due: true };
        true
    }

    /// STOP was said.
    pub fn stop_told(&mut self) {
        if let Sending::Stopped { due, .. } = self {
            *due = false;
        }
    }

    /// Does the peer return what it has not read?
    pub fn takes_back(self) -> bool {
        matches!(self, Sending::Stopped { due: false, .. })
    }

    /// The peer has returned everything (STOPPED).
    pub fn returned(&mut self) -> Result<(), Violation> {
        if !self.takes_back() {
            return Err(Violation);
        }
        *self = Sending::Reverted;
        Ok(())
    }

    /// The peer is gone.
    pub fn sever(&mut self) {
        *self = Sending::Reverted;
    }

    #[inline]
    pub fn is_by_pipe(self) -> bool {
        matches!(self, Sending::Pipe { .. })
    }

    /// Has the peer been told, or is it about to be, that nothing comes by the pipe any more?
    pub fn has_stopped(self) -> bool {
        matches!(self, Sending::Stopped { .. } | Sending::Reverted)
    }

    /// Is an end of the program's the kernel's to tell?
    pub fn is_end_the_kernels(self) -> bool {
        match self {
            Sending::Early { .. } | Sending::Stopped { by_pipe: false, .. } | Sending::Reverted => {
                true
            }
            Sending::Pipe { .. } | Sending::Stopped { by_pipe: true, .. } => false,
        }
    }
}

/// The way by which the bytes of the peer come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// From the kernel: the peer has not said how many come that way.
    Early,
    /// From the pipe, and from the kernel where the parts of the queue say so.
    Pipe,
    /// As before, and the peer has sent its last.
    Ended,
    /// The peer sends nothing by the pipe any more. What came by it can be read until it is given back.
    Stopped,
    /// The unread bytes are being given back: `given` bytes are, and have not come by the kernel yet. A connection
    /// that ends without them has lost them.
    Returning { given: u64 },
    /// All is given back, which the peer has been told.
    Returned { given: u64 },
    /// The peer is gone: from the pipe what it has left there, then from the kernel.
    Severed,
}

impl Receiving {
    /// SWITCH came. True if it is the first, which says where the kernel's bytes end; others tell of bytes that
    /// went by the kernel in between.
    pub fn switch(&mut self, shut: bool) -> Result<bool, Violation> {
        match self {
            Receiving::Early => {
                *self = if shut { Receiving::Ended } else { Receiving::Pipe };
                Ok(true)
            }
            Receiving::Pipe if !shut => Ok(false),
            _ => Err(Violation),
        }
    }

    /// FIN came.
    pub fn end(&mut self) -> Result<(), Violation> {
        match self {
            Receiving::Pipe | Receiving::Ended => {
                *self = Receiving::Ended;
                Ok(())
            }
            _ => Err(Violation),
        }
    }

    /// STOP came. True if bytes came by the pipe before it.
    pub fn stop(&mut self) -> Result<bool, Violation> {
        match self {
            // The pipe was not used: there is nothing to give back.
            Receiving::Early => {
                *self = Receiving::Returning { given: 0 };
                Ok(false)
            }
            // Its end, if it told of one, the kernel tells again.
            Receiving::Pipe | Receiving::Ended => {
                *self = Receiving::Stopped;
                Ok(true)
            }
            _ => Err(Violation),
        }
    }

    /// Unread bytes begin to go back.
    pub fn give_back(&mut self) {
        if *self == Receiving::Stopped {
            *self = Receiving::Returning { given: 0 };
        }
    }

    /// So many have gone back.
    pub fn gave(&mut self, count: u64) {
        if let Receiving::Returning { given } = self {
            *given += count;
        }
    }

    /// STOPPED was said.
    pub fn all_given(&mut self) {
        if let Receiving::Returning { given } = *self {
            *self = Receiving::Returned { given };
        }
    }

    /// Bytes came by the kernel behind all that was sent that way before.
    pub fn came_by_kernel(&mut self, count: u64) {
        if let Receiving::Returning { given } | Receiving::Returned { given } = self {
            *given = given.saturating_sub(count);
        }
    }

    /// The peer is gone. An end that it told of holds, and what was given back is still to come.
    pub fn sever(&mut self) {
        if let Receiving::Early | Receiving::Pipe | Receiving::Stopped = self {
            *self = Receiving::Severed;
        }
    }

    /// May a message with bytes come?
    #[inline]
    pub fn takes_bytes(self) -> bool {
        self == Receiving::Pipe
    }

    /// Does the peer still send, by the pipe or while that is full by the kernel, or has it ended so?
    pub fn is_by_pipe(self) -> bool {
        matches!(self, Receiving::Pipe | Receiving::Ended)
    }

    /// Has the peer said STOP, and not heard STOPPED?
    pub fn is_to_return(self) -> bool {
        matches!(self, Receiving::Stopped | Receiving::Returning { .. })
    }

    /// Is what is in the queue not the program's to read any more?
    #[inline]
    pub fn is_returned(self) -> bool {
        matches!(self, Receiving::Returning { .. } | Receiving::Returned { .. })
    }

    /// Bytes that were given back and have not come by the kernel yet.
    pub fn given(self) -> u64 {
        match self {
            Receiving::Returning { given } | Receiving::Returned { given } => given,
            _ => 0,
        }
    }
}

/// Whether the program has ended what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    Open,
    Shut,
    /// And the kernel's connection is shut down, too.
    ShutInKernel,
}

/// The error of the connection. `told`: the program knows, which it learns once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The kernel says that it is reset.
    Reset {
        told: bool,
    },
    /// Both directions are over: the peer broke the rules, or is gone with bytes unread. `behind`: it had ended before, or
    /// the bytes were sent behind its end. Then that is an error to send (EPIPE), and what the peer sent is read to
    /// its end.
    Dead {
        told: bool,
        behind: bool,
    },
}

impl Fault {
    #[inline]
    pub fn is_dead(self) -> bool {
        matches!(self, Fault::Dead { .. })
    }

    /// Is what the peer sent read to its end all the same?
    pub fn is_behind_the_end(self) -> bool {
        matches!(self, Fault::Dead { behind: true, .. })
    }

    /// Is the program to be told?
    pub fn is_untold(self) -> bool {
        matches!(self, Fault::Reset { told: false } | Fault::Dead { told: false, .. })
    }

    /// The connection is reset.
    pub fn reset(&mut self) {
        if *self == Fault::None {
            *self = Fault::Reset { told: false };
        }
    }

    /// Both directions are over, by bytes behind the peer's end.
    pub fn die_behind_the_end(&mut self) {
        match *self {
            Fault::None => *self = Fault::Dead { told: false, behind: true },
            Fault::Reset { .. } => self.die(),
            Fault::Dead { .. } => {}
        }
    }

    /// Both directions are over.
    pub fn die(&mut self) {
        *self = match *self {
            // That bytes to read are lost, too, is news.
            Fault::None | Fault::Dead { behind: true, .. } => {
                Fault::Dead { told: false, behind: false }
            }
            Fault::Reset { told } | Fault::Dead { told, .. } => Fault::Dead { told, behind: false },
        };
    }

    /// The program is told, or was not after all; whether it knew before.
    pub fn tell(&mut self, now: bool) -> bool {
        match self {
            Fault::None => {
                *self = Fault::Reset { told: now };
                false
            }
            Fault::Reset { told } | Fault::Dead { told, .. } => core::mem::replace(told, now),
        }
    }
}
