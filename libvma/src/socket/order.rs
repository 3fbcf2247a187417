//! Whose turn it is: a datagram socket has two queues, ours and that of its shadow in the kernel, and the
//! program has to find what came to either in one order, with nothing left behind in one of them.
//!
//! [`Order`] is told what happens to the two ([`Order::note_readable`], [`Order::took_ours`] ...) and
//! answers with a [`Turn`]. It holds no lock, no descriptor and no clock, so that its rules can be tried
//! against a model. Reading the queues, and asking the kernel, is `socket::receive`.
//!
//! The rules, the first that applies:
//!
//! 1. The program was told of a datagram (MSG_PEEK, FIONREAD): that one is next.
//! 2. What was queued when a flow became the kernel's is older than what the shadow has.
//! 3. A datagram says how many before it went by the kernel: those first.
//! 4. What came by a link before the shadow told of something is older than that; what comes by a link later
//!    is newer.
//! 5. Of a wire, the kernel gets what is in some way odd, and what came before a flow was ours: that comes
//!    first, but for one of ours now and then.
//!    (A link's datagrams are not left behind by a guess: the shadow is looked at, and what comes by the
//!    link meanwhile counted, before the kernel's are taken.)
//! 6. With nothing of ours, the kernel is asked if it has said something, if others of this host
//!    may have sent through it, or every so many polls (`VMA_RX_UDP_POLL_OS_RATIO`).
//!
//! Limits, where a process of this host sends by the kernel and by a link in turns: the word of rule 3 counts
//! datagrams that were read before it came, too, so that a later one by the kernel may come early; and so may
//! one that is sent while the kernel is asked with nothing of ours queued, which may give sixteen to one recvmmsg().

/// What is known of the two queues; of a stream socket, whether the shadow has something to tell.
#[derive(Debug)]
pub struct Order {
    readable: Readable,
    /// The shadow may have an error to report.
    failed: bool,
    /// The shadow has something, and it is its turn after so many datagrams, which were queued when
    /// that was seen.
    due: Option<u16>,
    /// So many datagrams were queued when a flow became the kernel's.
    before_kernel: u32,
    announced: Option<Origin>,
    last: Last,
    /// Polls since the shadow was looked at.
    polls: u32,
    /// Datagrams of the kernel's in a row, while the shadow was not found empty.
    run: u8,
}

/// May the shadow have something to read?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readable {
    No,
    /// It had something a moment ago, which was taken; there may be more.
    Perhaps,
    /// By the kernel's word.
    Told,
}

/// Where a datagram waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Queue,
    Shadow,
}

/// What of a delivered datagram is left at the front of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// It was the first one of a train.
    Rest,
    /// MSG_PEEK.
    All,
}

/// Where the last datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// From the kernel: so may the next one. Or there was none.
    Kernels,
    /// From our queue, and the shadow was not looked at since.
    Ours,
    /// From our queue, and the shadow had nothing then.
    OursAndLooked,
}

/// The datagram at the front of our queue.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// By a link of this host, whose datagrams say what was sent before them.
    pub by_link: bool,
    /// So many were sent before it through the kernel; u16::MAX is any number.
    pub after_kernel: u16,
}

/// What the caller sees, under the lock.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub front: Option<Front>,
    /// Datagrams in our queue.
    pub queued: usize,
    /// The socket has become the kernel's: what is left in our queue is older.
    pub is_kernels: bool,
    /// Packets of ours cannot come, or others may that no link tells of: only the kernel knows.
    pub doubtful: bool,
    /// Processes of this host may send to it, by a link or by the kernel.
    pub has_local_peers: bool,
    /// This call has just found the shadow empty, or looked at it.
    pub just_asked: bool,
    /// The kernel is asked after so many polls; 0 is never for that reason.
    pub ratio: u64,
}

/// What a receive call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    TakeOurs,
    AskKernel,
    /// Find out whether the shadow has something, without taking it: what it would give now may be newer
    /// than the front of our queue. See [`Order::begin_to_look`].
    LookAtShadow,
    Wait,
}

/// So many of the kernel's in a row; then ours and the kernel's alternate.
const LONGEST_RUN: u8 = 16;

impl Default for Order {
    fn default() -> Order {
        Order {
            readable: Readable::No,
            failed: false,
            due: None,
            before_kernel: 0,
            announced: None,
            last: Last::Kernels,
            polls: 0,
            run: 0,
        }
    }
}

impl Order {
    /// The kernel's word: the shadow has something to read, or may have.
    #[inline]
    pub fn note_readable(&mut self) {
        self.readable = Readable::Told;
    }

    /// The kernel's word: the shadow has an error to report.
    pub fn note_error(&mut self) {
        self.failed = true;
    }

    /// May the shadow have something to read?
    #[inline]
    pub fn may_be_readable(&self) -> bool {
        self.readable != Readable::No
    }

    /// May the shadow have an error to report?
    #[inline]
    pub fn may_have_error(&self) -> bool {
        self.failed
    }

    /// As [`Order::may_have_error`]; the caller has the kernel report it.
    pub fn take_error(&mut self) -> bool {
        core::mem::take(&mut self.failed)
    }

    /// The shadow has nothing to read now.
    #[inline]
    pub fn note_empty(&mut self) {
        self.readable = Readable::No;
    }

    /// As [`Order::may_be_readable`]; the caller looks.
    #[inline]
    pub fn take_readable(&mut self) -> bool {
        core::mem::replace(&mut self.readable, Readable::No) != Readable::No
    }

    /// A flow has become the kernel's, and so many datagrams came by it before.
    pub fn note_lost_flow(&mut self, queued: usize) {
        self.before_kernel = u32::try_from(queued).unwrap_or(u32::MAX);
    }

    /// The rings were polled for this socket.
    #[inline]
    pub fn note_poll(&mut self) {
        self.polls = self.polls.saturating_add(1);
    }

    /// Must the rings be polled before [`Order::next`]? What is in them is older than what the shadow has
    /// told of.
    #[inline]
    pub fn wants_poll(&self) -> bool {
        self.readable == Readable::Told && self.due.is_none()
    }

    /// With an empty queue: is a datagram that comes now the next one, whatever the shadow has?
    #[inline]
    pub fn is_settled(&self, ratio: u64) -> bool {
        self.announced.is_none()
            && !self.is_overdue(ratio)
            && !(self.may_be_readable() || self.failed)
    }

    /// The front datagram of our queue was delivered.
    #[inline]
    pub fn took_ours(&mut self, left: Left) {
        self.last = Last::Ours;
        self.run = self.run.min(LONGEST_RUN - 1);
        self.announced = (left == Left::All).then_some(Origin::Queue);
        if left == Left::Nothing {
            self.due = self.due.map(|due| due.saturating_sub(1));
            self.before_kernel = self.before_kernel.saturating_sub(1);
        }
    }

    /// A datagram was delivered past the queue, which was empty ([`Order::is_settled`]).
    #[inline]
    pub fn took_directly(&mut self) {
        self.last = Last::Ours;
        self.note_poll();
    }

    /// The kernel is about to be asked: what it says from now on is news.
    pub fn begin_to_ask(&mut self) {
        self.begin_to_look();
        self.failed = false;
    }

    /// The caller is about to look whether the shadow has something, and calls [`Order::note_readable`] if
    /// so.
    pub fn begin_to_look(&mut self) {
        self.readable = Readable::No;
        self.due = None;
        self.polls = 0;
        if self.last == Last::Ours {
            self.last = Last::OursAndLooked;
        }
    }

    /// The look found nothing.
    pub fn looked_in_vain(&mut self) {
        self.run = 0;
    }

    /// The kernel delivered so many datagrams. There may be more.
    pub fn took_kernels(&mut self, datagrams: u32, peeked: bool) {
        self.note_kernels_error();
        self.announced = peeked.then_some(Origin::Shadow);
        if !peeked {
            self.run = self.run.saturating_add(u8::try_from(datagrams).unwrap_or(u8::MAX));
        }
    }

    /// The kernel reported an error. There may be a datagram behind it.
    pub fn note_kernels_error(&mut self) {
        if self.readable == Readable::No {
            self.readable = Readable::Perhaps;
        }
        self.last = Last::Kernels;
    }

    /// The kernel was asked, and the shadow had nothing.
    pub fn found_empty(&mut self) {
        self.announced = None;
        self.looked_in_vain();
    }

    /// The program is told of the datagram that is next.
    pub fn announce(&mut self, origin: Option<Origin>) {
        self.announced = origin;
    }

    /// What a receive call does.
    #[inline]
    pub fn next(&mut self, view: &View) -> Turn {
        if self.wants_poll() {
            self.due = Some(u16::try_from(view.queued).unwrap_or(u16::MAX));
        }
        match (view.front, view.just_asked) {
            // What is left of ours, when all that comes is the kernel's.
            (Some(_), _) if view.is_kernels => Turn::TakeOurs,
            (Some(_), true) => Turn::TakeOurs,
            (None, true) => Turn::Wait,
            (Some(front), false) => self.turn_with_ours(front, view),
            (None, false) => self.turn_without_ours(view),
        }
    }

    #[inline]
    fn turn_with_ours(&self, front: Front, view: &View) -> Turn {
        match self.announced {
            Some(Origin::Queue) => return Turn::TakeOurs,
            Some(Origin::Shadow) => return Turn::AskKernel,
            None => {}
        }
        if self.before_kernel > 0 {
            return Turn::TakeOurs;
        }
        if front.after_kernel > 0 || self.failed {
            return Turn::AskKernel;
        }
        let overdue = self.is_overdue(view.ratio);
        match (front.by_link, self.readable) {
            (true, Readable::Told) if self.due == Some(0) => Turn::AskKernel,
            (true, Readable::Perhaps) => Turn::LookAtShadow,
            (true, Readable::No) if overdue => Turn::LookAtShadow,
            (true, _) => Turn::TakeOurs,
            (false, Readable::No) if !overdue => Turn::TakeOurs,
            (false, _) if self.run >= LONGEST_RUN => Turn::TakeOurs,
            (false, _) => Turn::AskKernel,
        }
    }

    #[inline]
    fn turn_without_ours(&self, view: &View) -> Turn {
        let beside = view.has_local_peers && self.last != Last::OursAndLooked;
        let kernels = self.announced == Some(Origin::Shadow)
            || self.may_be_readable()
            || self.failed
            || view.doubtful
            || beside
            || self.is_overdue(view.ratio);
        if kernels { Turn::AskKernel } else { Turn::Wait }
    }

    fn is_overdue(&self, ratio: u64) -> bool {
        ratio != 0 && u64::from(self.polls) >= ratio
    }
}

#[cfg(test)]
mod tests;
