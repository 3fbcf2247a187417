//! One end of a pipe: where each direction stands.
//!
//! `state` has the states of both directions and of the whole, `agree` is how it begins, `transfer` moves bytes, `overflow` is what goes by the kernel while the link is
//! full, `finish` every way to its end, `half` what an ending process leaves to its peer, `input` what follows from a message.

mod agree;
mod fault;
mod finish;
mod half;
mod input;
mod overflow;
mod promise;
mod state;
mod transfer;

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use self::overflow::{Allowance, Part};
use self::state::{Bond, Fault, Receiving, Sending, Writing};
use super::message::{Name, Parting};
use super::queue::Queue;
use super::{Leftover, SocketId};
use crate::device::shm::LinkId;

/// What a pipe holds unread at most, unless the program sets its buffers.
/// Half of what the link holds.
pub const LARGEST_WINDOW: u64 = 2 << 20;
/// No window is smaller.
const SMALLEST_WINDOW: u64 = 2048;
/// Bytes of one message; while the peer copies one out, the next is written.
const PORTION: usize = 32 * 1024;

/// Where the next byte to read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In the kernel's socket; at most so many come from there now.
    Kernel { most: u64 },
    /// In the pipe.
    Pipe,
    /// There is none: the peer has sent its last.
    End,
}

/// Where the next byte to send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Kernel,
    Pipe,
    /// Nowhere now: the pipe is being given up.
    Nowhere,
    /// Nowhere any more: writing was shut down.
    Shut,
}

/// The user of a pipe's end.
enum Holder {
    Socket(SocketId),
    /// The socket is closed. The peer is to be told, when the link has room.
    Closing,
    /// The peer knows, or there is none.
    Closed,
    /// The socket is closed while the peer has not read everything. This is the kernel's half.
    Leftover(Box<dyn Leftover>),
}

/// What the peer sends.
struct Incoming {
    state: Receiving,
    /// Bytes of the kernel's that come before the queue, as far as the peer has said.
    kernel: u64,
    /// All bytes that were taken from the kernel.
    kernel_taken: u64,
    /// So many bytes in all go by the kernel, as far as is known.
    kernel_told: u64,
    queue: Queue,
    /// What comes after the queue if bytes went by the kernel in between.
    later: VecDeque<Part>,
    /// Bytes of the pipe in `later`.
    later_len: usize,
    /// Bytes of the queue that came by the kernel.
    prefetched: u64,
    /// Messages with bytes.
    messages: u64,
    /// Bytes that the program read.
    read: u64,
    credited: u64,
    /// The link had no room for CREDIT.
    credit_due: bool,
    limit: u64,
    /// The limit that the peer knows.
    told_limit: u64,
    largest_limit: u64,
    /// The program has shut down reading, too.
    unwanted: bool,
}

/// What the program sends.
struct Outgoing {
    state: Sending,
    writing: Writing,
    /// Bytes that went by the kernel, and how many of them the peer knows of.
    kernel: u64,
    kernel_told: u64,
    /// What may go by the kernel while the link is full.
    allowance: Allowance,
    messages: u64,
    sent: u64,
    read_by_peer: u64,
    window: u64,
    /// Bytes that came back, which go by the kernel first.
    backlog: Vec<u8>,
    /// What of the backlog has gone.
    gone: usize,
    /// Bytes that the program sent while the backlog was still to come (`promise`).
    behind: Vec<u8>,
}

impl Outgoing {
    /// The bytes that came back, if they are all that will.
    fn ready(&self) -> &[u8] {
        let ready = self.state == Sending::Reverted;
        self.backlog.get(self.gone..).filter(|_| ready).unwrap_or_default()
    }
}

pub struct Pipe {
    /// [`LinkId::NONE`] until there is one.
    pub(in crate::shard) link: LinkId,
    holder: Holder,
    own: Name,
    bond: Bond,
    incoming: Incoming,
    outgoing: Outgoing,
    fault: Fault,
    /// The kernel ends the connection by RST if nobody sends the backlog (the process is killed).
    armed: bool,
    /// The kernel's half of the peer, which has ended, until all that came by the pipe is read.
    peers_half: Option<Box<dyn Leftover>>,
    /// The peer has got the kernel's half of this end, and gives nothing back any more.
    half_left: bool,
    /// The way in which the socket was closed.
    parting: Parting,
    /// The link had no room for what the window would have allowed.
    crowded: bool,
    /// A writer waits for room.
    wants_room: bool,
    /// The program was told that it may send, and has not sent since.
    promised: bool,
    /// A call has waited for bytes that were given back, in vain.
    waited_in_vain: bool,
    /// The server: the client knows that this process uses the connection.
    used: bool,
    established: bool,
    /// When it was offered, or withdrawn, in nanoseconds.
    pub since: u64,
    /// The client: where it connects to.
    pub destination: Option<SocketAddrV4>,
}

impl Pipe {
    pub(in crate::shard::pipe) fn new(owner: SocketId, own: Name, limit: u64, now: u64) -> Pipe {
        let limit = clamped(limit);
        Pipe {
            link: LinkId::NONE,
            holder: Holder::Socket(owner),
            own,
            bond: Bond::Apart,
            incoming: Incoming {
                state: Receiving::Early,
                kernel: 0,
                kernel_taken: 0,
                kernel_told: 0,
                queue: Queue::default(),
                later: VecDeque::new(),
                later_len: 0,
                prefetched: 0,
                messages: 0,
                read: 0,
                credited: 0,
                credit_due: false,
                limit,
                told_limit: limit,
                largest_limit: limit,
                unwanted: false,
            },
            outgoing: Outgoing {
                state: Sending::Early { due: false },
                writing: Writing::Open,
                kernel: 0,
                kernel_told: 0,
                allowance: Allowance::default(),
                messages: 0,
                sent: 0,
                read_by_peer: 0,
                window: 0,
                backlog: Vec::new(),
                gone: 0,
                behind: Vec::new(),
            },
            fault: Fault::None,
            armed: false,
            peers_half: None,
            half_left: false,
            parting: Parting::Whole,
            crowded: false,
            wants_room: false,
            promised: false,
            waited_in_vain: false,
            used: true,
            established: false,
            since: now,
            destination: None,
        }
    }

    /// The link that the pipe is on; none while it is apart.
    pub fn link(&self) -> LinkId {
        self.link
    }

    #[inline]
    pub fn turn(&self) -> Turn {
        let incoming = &self.incoming;
        match incoming.state {
            Receiving::Early => Turn::Kernel { most: u64::MAX },
            _ if incoming.kernel > 0 => Turn::Kernel { most: incoming.kernel },
            state if !incoming.queue.is_empty() && !state.is_returned() => Turn::Pipe,
            _ if self.fault.is_dead() => self.turn_of_the_dead(),
            Receiving::Pipe | Receiving::Stopped => Turn::Pipe,
            // An end that the pipe has told holds, though the kernel's FIN may come a moment later.
            Receiving::Ended => Turn::End,
            Receiving::Returning { .. } | Receiving::Returned { .. } | Receiving::Severed => {
                Turn::Kernel { most: u64::MAX }
            }
        }
    }

    #[inline]
    pub fn way(&self) -> Way {
        let outgoing = &self.outgoing;
        match outgoing.state {
            _ if outgoing.writing != Writing::Open || self.fault.is_dead() => Way::Shut,
            Sending::Pipe { .. } => Way::Pipe,
            Sending::Stopped { by_pipe: true, .. } => Way::Nowhere,
            Sending::Reverted if !outgoing.backlog.is_empty() => Way::Nowhere,
            Sending::Early { .. } | Sending::Stopped { by_pipe: false, .. } | Sending::Reverted => {
                Way::Kernel
            }
        }
    }

    /// Is the client still waiting for the other side to say that it uses the pipe?
    pub fn is_pending(&self) -> bool {
        matches!(
            self.outgoing.state,
            Sending::Early { .. } | Sending::Stopped { by_pipe: false, .. }
        )
    }

    /// Of a client's connection that ends: where it went, and whether it was too short for a pipe to be worth
    /// its while.
    pub fn brevity(&self, now: u64) -> Option<(SocketAddrV4, bool)> {
        const SHORT_NANOS: u64 = 250_000_000;
        const FEW_BYTES: u64 = 64 * 1024;
        const FEW_MESSAGES: u64 = 16;
        let (incoming, outgoing) = (&self.incoming, &self.outgoing);
        let carried = incoming.kernel_taken + incoming.read;
        let bytes = outgoing.kernel + outgoing.sent + carried;
        let was_short = now.saturating_sub(self.since) < SHORT_NANOS
            && bytes < FEW_BYTES
            && incoming.messages + outgoing.messages < FEW_MESSAGES;
        self.destination.filter(|_| self.established).map(|there| (there, was_short))
    }

    pub fn is_offered(&self) -> bool {
        self.bond.is_offered()
    }

    /// Is there no link with the peer yet, or no offer?
    pub fn is_apart(&self) -> bool {
        self.bond == Bond::Apart
    }

    /// Bytes that came by the pipe and were not read, whatever the turn is.
    pub fn unread(&self) -> usize {
        if self.incoming.state.is_returned() { 0 } else { self.incoming.held() }
    }

    /// Bytes that can be read from the pipe when it is its turn.
    #[inline]
    pub fn readable(&self) -> usize {
        if self.incoming.state.is_returned() { 0 } else { self.incoming.queue.len() }
    }

    /// Has the peer said that it sends no more?
    pub fn is_finished(&self) -> bool {
        self.incoming.state == Receiving::Ended
    }

    /// How many bytes can be read, if the kernel's socket has so many? Those of the pipe behind the kernel's cannot
    /// before these have come.
    pub fn readable_with(&self, in_kernel: impl FnOnce() -> u64) -> usize {
        let Turn::Kernel { most } = self.turn() else { return self.readable() };
        let there = in_kernel().min(most);
        let behind = if there == most { self.readable() } else { 0 };
        behind.saturating_add(usize::try_from(there).unwrap_or(usize::MAX))
    }

    /// Is its end here, with all that it sent before, if the kernel's socket has so many bytes of it? The pipe may
    /// tell of the end before bytes have come that went by the kernel.
    pub fn is_end_here(&self, in_kernel: impl FnOnce() -> u64) -> bool {
        match self.turn() {
            Turn::End => true,
            Turn::Pipe => self.is_finished(),
            Turn::Kernel { most } => self.is_finished() && in_kernel() >= most,
        }
    }

    pub fn is_shut(&self) -> bool {
        self.outgoing.writing != Writing::Open
    }

    /// From here on everything is the kernel's to say.
    pub fn is_over(&self) -> bool {
        self.bond == Bond::Over
    }

    /// The client's connection stands: its handshake has ended well.
    pub fn is_established(&self) -> bool {
        self.established
    }

    pub fn set_established(&mut self) {
        self.established = true;
    }

    /// Would an end that the kernel tells of be the peer's death? One that lives tells of its end by the
    /// pipe.
    #[inline]
    pub fn would_tell_its_end(&self) -> bool {
        let incoming = &self.incoming;
        incoming.state == Receiving::Pipe && incoming.kernel == 0
    }

    /// What was told is not known to the program after all: it is told again.
    pub fn keep_reset(&mut self) {
        self.fault.tell(false);
    }

    /// The program sends no more: does the kernel not know yet? From now on it does.
    pub fn take_untold_end(&mut self) -> bool {
        let writing = &mut self.outgoing.writing;
        let untold = *writing == Writing::Shut;
        if untold {
            *writing = Writing::ShutInKernel;
        }
        untold
    }

    pub fn is_reset(&self) -> bool {
        self.fault.is_untold()
    }

    /// Bytes that are to go by the kernel before all others.
    pub fn backlog(&self) -> &[u8] {
        self.outgoing.ready()
    }

    /// Did, or may, bytes come back that are not the kernel's yet? A connection that ends before has lost
    /// them.
    pub fn has_bytes_on_their_way(&self) -> bool {
        let may_come = matches!(self.outgoing.state, Sending::Stopped { .. });
        may_come && self.unread_by_peer() > 0
            || !self.outgoing.backlog.is_empty()
            || !self.outgoing.behind.is_empty()
    }

    /// The kernel does not take the backlog any more: the peer must not see an end but an error, and the
    /// program is told of one.
    pub fn lose_backlog(&mut self) {
        self.backlog_gone(usize::MAX / 2);
        self.fault.reset();
    }

    /// Are there bytes that were given back and have not come by the kernel, or that wait for room to be? If the
    /// peer is gone, or the kernel's end of the connection came before them, they are lost.
    pub fn lacks_bytes(&self) -> bool {
        let state = self.incoming.state;
        state.given() > 0 || state.is_returned() && self.incoming.held() > 0
    }

    /// May a call that must not wait, wait for them all the same?
    pub fn may_wait(&self) -> bool {
        !self.waited_in_vain
    }

    /// They have not come in time.
    pub fn note_wait_in_vain(&mut self) {
        self.waited_in_vain = true;
    }

    /// The program must not take what it has read for all there was.
    pub fn note_loss(&mut self) {
        self.incoming.state.came_by_kernel(u64::MAX);
        self.fault.die();
    }

    /// Is it time to arm the kernel's half? The peer may rely on it when it has given back what it had not
    /// read, whatever becomes of this process.
    pub fn wants_arming(&self) -> bool {
        !self.armed
            && self.bond.is_confirmed()
            && self.outgoing.state.has_stopped()
            && self.incoming.state.is_to_return()
            && self.unread_by_peer() > 0
    }

    /// From now on the kernel ends the connection by RST, or by FIN, when it is closed. True if that is
    /// different from before.
    pub fn arm(&mut self, armed: bool) -> bool {
        core::mem::replace(&mut self.armed, armed) != armed
    }

    /// The kernel took so many bytes of the backlog.
    pub fn backlog_gone(&mut self, count: usize) {
        let outgoing = &mut self.outgoing;
        outgoing.gone += count;
        if outgoing.gone >= outgoing.backlog.len() {
            outgoing.backlog = Vec::new();
            outgoing.gone = 0;
        }
    }

    /// Is the kernel's socket all there is to the connection?
    pub fn is_dissolved(&self) -> bool {
        self.bond == Bond::Over
            && !self.lacks_bytes()
            && self.unread() == 0
            && self.outgoing.backlog.is_empty()
            && !self.is_finished()
            && !self.is_dead()
            && !self.is_reset()
    }

    /// The program read bytes from the kernel.
    pub fn kernel_read(&mut self, count: u64) {
        let incoming = &mut self.incoming;
        incoming.kernel_taken += count;
        if incoming.kernel > 0 {
            incoming.kernel = incoming.kernel.saturating_sub(count);
            incoming.advance();
        } else {
            incoming.state.came_by_kernel(count);
        }
    }

    /// The program sent bytes by the kernel.
    pub fn kernel_sent(&mut self, count: u64) {
        self.outgoing.kernel += count;
        self.used = true;
        self.promised &= count == 0;
        if self.peers_half.is_some() {
            self.sent_to_nobody();
        }
    }
}

/// Both ends do this.
fn clamped(limit: u64) -> u64 {
    limit.clamp(SMALLEST_WINDOW, LARGEST_WINDOW)
}
