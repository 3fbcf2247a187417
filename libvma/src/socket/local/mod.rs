//! Which process of this host serves an address, and the links to such processes.
//!
//! The kernel says which socket a packet would reach (sock_diag(7), by inode); the rendezvous
//! (`control::rendezvous`) says whether a process with this library has that socket, and makes a
//! link with it if so. Answers are kept until the link ends or the socket is closed, and the
//! kernel is asked again five times a second; "nobody" is kept for a second.
//!
//! Lock order: the plane's, the one here, the shard's. No function here may be called with the
//! shard locked.

mod answers;
mod host;
mod listeners;
mod mappings;
mod search;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use libvma_dev::ipv6_loopback::{self, Shown};
use libvma_dev::ipv6_stand_ins;
use libvma_engine::wire::ipv4::protocol;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

use self::answers::Waiting;
use self::host::Owner;
use self::listeners::Listeners;
use self::mappings::Mappings;
use self::search::{Expected, Search};
use super::{Plane, Stack};
use crate::config::rules::Moment;
use crate::control::netlink::Diag;
use crate::control::rendezvous::{Known, Rendezvous};
use crate::log::log_line;
use crate::shard::{Segment, member_number};
use crate::sys::above;
use crate::sys::fd;
use crate::sys::lock::{Guard, Lock};
use crate::sys::shadow;
use crate::sys::sockaddr::Family;
use crate::sys::time::monotonic_nanos;
use crate::sys::wait::{PollFd, Waker, ppoll};

pub use self::search::{expects_offers, offer_came, seek};
pub use crate::control::rendezvous::Key;
pub use crate::shard::LinkId;

/// What a process knows of the others.
pub struct Local {
    /// None until the first question or post.
    finder: Lock<Option<Box<Finder>>>,
    /// What the internal thread watches; -1 while there is nothing.
    descriptor: AtomicI32,
    /// When it has something to do, in nanoseconds of the monotonic clock.
    due: AtomicU64,
    /// The internal thread runs: callers are answered.
    served: AtomicBool,
    /// It was tried, and is not to be had.
    failed: AtomicBool,
    /// Links whose peers may be about to offer pipes of connections that are there already.
    expected: Lock<Vec<Expected>>,
    /// When an accepting thread last looked for calls that wait, in nanoseconds of the monotonic clock.
    looked: AtomicU64,
    /// Some thread lacks a bell of its own on a link.
    bells_wanted: AtomicBool,
    /// Of the threads that wait for an answer.
    waiting: Lock<Vec<Arc<Waker>>>,
}

/// Who serves an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The link, and which socket of that process it is (`shard::member_number`).
    Link(LinkId, u8),
    /// No process that we could talk to; ask again after a second.
    Nobody,
    /// Asked and not answered yet; `State::next_answers` is called when it is.
    Pending,
}

/// The process that serves the listener which a connection reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Link(LinkId),
    /// A process that has not answered yet: [`seek`] goes on.
    Late(Key),
}

/// A socket that others can find. Keep it, and give it to [`unpost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Posted(Key);

impl Posted {
    /// The number under which senders know the socket.
    pub fn member_number(self) -> u8 {
        let Posted(Key(inode)) = self;
        member_number(inode)
    }
}

/// What the lock protects.
struct Finder {
    rendezvous: Rendezvous<Segment, LinkId>,
    diag: Diag,
    mappings: Mappings,
    listeners: Listeners,
    searches: Vec<Search>,
    /// When the mappings and links were looked through.
    reviewed: u64,
}

const SECOND: u64 = 1_000_000_000;
/// How long a connect() waits for a process that is there.
const PATIENCE_NANOS: u64 = 20_000_000;
const NEVER: u64 = u64::MAX;

impl Local {
    pub const fn new() -> Local {
        Local {
            finder: Lock::new(None),
            descriptor: AtomicI32::new(-1),
            due: AtomicU64::new(NEVER),
            served: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            expected: Lock::new(Vec::new()),
            looked: AtomicU64::new(0),
            bells_wanted: AtomicBool::new(false),
            waiting: Lock::new(Vec::new()),
        }
    }

    /// The internal thread runs, or does not.
    pub fn set_served(&self, served: bool) {
        self.served.store(served, Ordering::Release);
    }

    /// Readable when [`serve`] has something to do; -1 if there is nothing to watch.
    pub fn descriptor(&self) -> i32 {
        self.descriptor.load(Ordering::Acquire)
    }

    /// Has [`serve`] to make bells?
    pub fn are_bells_wanted(&self) -> bool {
        self.bells_wanted.load(Ordering::Acquire)
    }

    /// In how many nanoseconds [`serve`] has something to do in any case.
    pub fn patience(&self) -> Option<u64> {
        let due = self.due.load(Ordering::Acquire);
        (due != NEVER).then(|| due.saturating_sub(monotonic_nanos()))
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

type Opened<'a> = Guard<'a, Option<Box<Finder>>>;

/// Lets others find a socket: `descriptor` is the shadow, bound to `address` (which may be
/// 0.0.0.0). Posting it again changes nothing. None if it cannot be posted (VMA_LOCAL=0, a rule, too
/// many posts, another process has it posted ...): then everybody reaches it by the kernel.
pub fn post(stack: &Stack, protocol: u8, descriptor: i32, address: SocketAddrV4) -> Option<Posted> {
    if is_ruled(stack, protocol, descriptor, address) {
        return None;
    }
    let mut opened = open(stack)?;
    let finder = opened.as_mut()?;
    // Without its word nobody would know whose a packet is.
    if !finder.diag.supports(protocol) {
        return None;
    }
    let key = Key(inode(descriptor)?);
    if let Err(errno) = finder.rendezvous.post(&mut Owner::new(stack), key) {
        let address = Shown(address);
        log_line!(Debug, "{address} is not posted for other processes: {errno}");
        return None;
    }
    Some(Posted(key))
}

/// Does a rule of libvma.conf leave what arrives there to the kernel? As for the rings, a listener is
/// judged by the address that it is bound to, a receiver of datagrams by every one that it has; a post
/// stands for all of them.
fn is_ruled(stack: &Stack, protocol: u8, descriptor: i32, address: SocketAddrV4) -> bool {
    let moment = if protocol == protocol::TCP { Moment::Listen } else { Moment::Bind };
    let rules = &stack.config.rules;
    let decides = |ip| rules.decide(moment, SocketAddrV4::new(ip, address.port()), None).is_some();
    let bound = *address.ip();
    let only_ipv6 = bound == ipv6_stand_ins::ANY;
    if protocol == protocol::TCP {
        let is_ipv6 = bound.is_unspecified() && shadow::family(descriptor) == Family::Ipv6;
        return rules.decide_listener(address, is_ipv6).is_some()
            || only_ipv6 && decides(ipv6_loopback::STAND_IN);
    }
    if !bound.is_unspecified() && !only_ipv6 {
        return decides(bound);
    }
    let of_plane = |plane: &Plane| {
        let mut own = plane.control.addresses().iter().map(|own| own.addr);
        own.any(|own| ipv6_stand_ins::covers(bound, own) && decides(own))
    };
    decides(bound)
        || decides(if only_ipv6 { ipv6_loopback::STAND_IN } else { Ipv4Addr::LOCALHOST })
        || stack.plane.lock().map_or(true, |plane| plane.as_ref().is_some_and(of_plane))
}

/// Nobody shall find the socket any more, and who has found it forgets it. Call it before the
/// shadow is closed.
pub fn unpost(stack: &Stack, Posted(key): Posted) {
    let Ok(mut slot) = stack.local.finder.lock() else { return };
    let Some(finder) = slot.as_mut() else { return };
    finder.rendezvous.unpost(key);
    // Who sends next looks for that message first.
    if let Ok(mut state) = stack.shard.lock() {
        state.withdraw();
    }
}

/// The program may have no more descriptors: the posts' are given up, if they count. Returns how many.
pub fn end_posts(stack: &Stack) -> usize {
    if above::is_possible() {
        return 0;
    }
    let Ok(mut slot) = stack.local.finder.lock() else { return 0 };
    let ended = slot.as_mut().map_or(0, |finder| finder.rendezvous.end_posts());
    if ended > 0
        && let Ok(mut state) = stack.shard.lock()
    {
        state.withdraw();
    }
    ended
}

/// Who would get a packet from `source` (address and port as they will stand in the packet) to
/// `destination`? Never blocks; the first question costs some system calls.
///
/// A link may be used without asking again until the shard's next epoch. To get answers by the
/// link too, post the sender's socket when this is not `Nobody`.
pub fn find(stack: &Stack, protocol: u8, source: SocketAddrV4, destination: SocketAddrV4) -> Found {
    let Some(mut opened) = open(stack) else { return Found::Nobody };
    let Some(finder) = opened.as_mut() else { return Found::Nobody };
    let (key, known) = finder.find(stack, protocol, source, destination);
    match known {
        Known::Link(link) => Found::Link(link, key.map_or(0, |Key(inode)| member_number(inode))),
        Known::Nobody { .. } => Found::Nobody,
        Known::Pending { .. } => Found::Pending,
    }
}

/// The same, and waits up to 20 ms for a process that is there and has not answered yet. None: nobody is there.
pub fn find_patiently(
    stack: &Stack,
    protocol: u8,
    source: SocketAddrV4,
    destination: SocketAddrV4,
) -> Option<Reach> {
    let mut opened = open(stack)?;
    let (key, mut known) = opened.as_mut()?.find(stack, protocol, source, destination);
    let is_pending = matches!(known, Known::Pending { .. });
    let waiting = if is_pending { Waiting::begin(&stack.local) } else { None };
    drop(opened);
    loop {
        let since = match known {
            Known::Link(link) => return Some(Reach::Link(link)),
            Known::Nobody { .. } => return None,
            Known::Pending { since } => since,
        };
        // Who did not answer an earlier call in time is not waited for again.
        let left = since.saturating_add(PATIENCE_NANOS).saturating_sub(monotonic_nanos());
        if left == 0 {
            return key.map(Reach::Late);
        }
        let waker = waiting.as_ref().map_or(-1, Waiting::raw);
        let mut descriptors = [stack.local.descriptor(), waker].map(|fd| PollFd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // A signal handler runs and the wait goes on: connect() waits, for a short time.
        if let Err(errno) = ppoll(&mut descriptors, Some(left), None)
            && errno != libc::EINTR
        {
            return None;
        }
        let mut slot = stack.local.finder.lock().ok()?;
        let finder = slot.as_mut()?;
        finder.attend(stack);
        if let Some(waiting) = &waiting {
            waiting.clear();
        }
        known = finder.ask(stack, key?);
    }
}

/// The process ends: leaves a peer the kernel's half of a connection that the peer knows by this number. EAGAIN: later.
pub fn leave_half(
    stack: &Stack,
    link: LinkId,
    connection: u64,
    descriptor: i32,
) -> Result<(), Errno> {
    let slot = stack.local.finder.lock().map_err(|_| Errno::NOTCONN)?;
    let finder = slot.as_ref().ok_or(Errno::NOTCONN)?;
    let leave = |half: BorrowedFd<'_>| finder.rendezvous.leave(link, connection, half);
    fd::with_borrowed(descriptor, leave).unwrap_or(Err(Errno::BADF))
}

/// Attends to all that peers have said so far, by links' connections: sockets that they have withdrawn, and halves of connections that
/// they have left.
#[cold]
pub fn hear_peers(stack: &Stack) {
    if let Ok(mut slot) = stack.local.finder.lock()
        && let Some(finder) = slot.as_mut()
    {
        finder.attend_by(stack, Rendezvous::serve_all);
    }
}

/// The inode of the socket that is the peer of a connection within the host, if it is one of this process's
/// user.
pub fn own_users_socket(
    stack: &Stack,
    protocol: u8,
    local: SocketAddrV4,
    peer: SocketAddrV4,
) -> Option<u32> {
    let mut opened = open(stack)?;
    let Key(inode) = mappings::ask(&mut opened.as_mut()?.diag, protocol, local, peer)?;
    u32::try_from(inode).ok()
}

/// Is a listener one of several that the kernel spreads connections over?
pub fn is_one_of_several(stack: &Stack, source: SocketAddrV4, destination: SocketAddrV4) -> bool {
    let Ok(slot) = stack.local.finder.lock() else { return false };
    slot.as_ref().is_some_and(|finder| finder.listeners.is_one_of_several(source, destination))
}

/// A thread is about to sleep and lacks a bell of its own: the internal thread makes it for the next sleep.
#[cold]
pub fn want_bells(stack: &Stack) {
    if !stack.local.bells_wanted.swap(true, Ordering::AcqRel) {
        stack.wake_internal_thread();
    }
}

/// For the internal thread: attends to callers and peers, and looks now and then whether what is
/// known still holds.
pub fn serve(stack: &Stack) {
    if stack.local.descriptor() < 0 {
        return;
    }
    let Ok(mut slot) = stack.local.finder.lock() else { return };
    let Some(finder) = slot.as_mut() else { return };
    finder.attend(stack);
    finder.give_bells(stack);
    let now = monotonic_nanos();
    if now.saturating_sub(finder.reviewed) >= finder.review_period() {
        finder.reviewed = now;
        finder.review(stack, now);
    }
    finder.note_due(stack);
}

impl Finder {
    fn open() -> Option<Finder> {
        let failed = |what: &str, error: &dyn core::fmt::Display| {
            log_line!(Debug, "other processes are reached by the kernel: {what}: {error}");
        };
        let rendezvous =
            Rendezvous::open().inspect_err(|error| failed("no rendezvous", error)).ok()?;
        let diag = Diag::open().inspect_err(|error| failed("no sock_diag", error)).ok()?;
        let (mappings, listeners, searches) = Default::default();
        Some(Finder { rendezvous, diag, mappings, listeners, searches, reviewed: 0 })
    }

    fn find(
        &mut self,
        stack: &Stack,
        protocol: u8,
        source: SocketAddrV4,
        destination: SocketAddrV4,
    ) -> (Option<Key>, Known<LinkId>) {
        let now = monotonic_nanos();
        let nobody = Known::Nobody { until: now };
        let key = if !self.diag.supports(protocol) {
            None
        } else if protocol == protocol::UDP {
            self.forget_vacant(stack);
            let news = self.rendezvous.news();
            self.mappings.receiver(&mut self.diag, (source, destination), news, now)
        } else {
            self.listeners.find(&mut self.diag, source, destination, now)
        };
        let known = key.map_or(nobody, |key| self.ask(stack, key));
        (key, known)
    }

    fn ask(&mut self, stack: &Stack, key: Key) -> Known<LinkId> {
        let known = {
            let mut owner = Owner::new(stack);
            self.rendezvous.ask(&mut owner, key, monotonic_nanos())
        };
        if matches!(known, Known::Pending { .. }) || !self.mappings.is_empty() {
            self.note_due(stack);
        }
        known
    }

    /// Callers, peers, and who was silent for too long.
    fn attend(&mut self, stack: &Stack) {
        self.attend_by(stack, |rendezvous, owner, now| {
            rendezvous.serve(owner, now);
        });
    }

    fn attend_by<'a>(
        &mut self,
        stack: &'a Stack,
        serve: fn(&mut Rendezvous<Segment, LinkId>, &mut Owner<'a>, u64),
    ) {
        let now = monotonic_nanos();
        let news = self.rendezvous.news();
        let mut owner = Owner::new(stack);
        serve(&mut self.rendezvous, &mut owner, now);
        if self.rendezvous.due().is_some_and(|due| due <= now) {
            self.rendezvous.expire(&mut owner, now);
        }
        // That a socket has lost its place to a better one is found out at the next review: with
        // every socket that a peer posts all ways would have to be found again.
        if self.rendezvous.news() != news
            && let Ok(mut state) = stack.shard.lock()
        {
            state.next_answers();
        }
        self.pursue(stack, now);
    }

    /// Threads that wait for connections get bells of their own. One that does not get through is wanted again later.
    fn give_bells(&mut self, stack: &Stack) {
        if !stack.local.bells_wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let next = || stack.shard.lock().ok()?.local_ring()?.make_bell();
        while let Some((link, number, bell)) = next() {
            if let Err(errno) = self.rendezvous.give_bell(link, number, &bell) {
                log_line!(Debug, "a thread has no bell of its own for another process: {errno}");
            }
        }
    }

    fn review(&mut self, stack: &Stack, now: u64) {
        self.forget_vacant(stack);
        let mut owner = Owner::new(stack);
        self.rendezvous.expire(&mut owner, now);
        self.rendezvous.review(&mut owner);
        if self.mappings.verify(&mut self.diag, now) {
            void_answers(stack);
        }
    }

    /// A peer said that nobody has an address any more: the kernel is asked again.
    fn forget_vacant(&mut self, stack: &Stack) {
        let Ok(vacant) = stack.shard.lock().map(|mut state| state.take_vacant()) else { return };
        match vacant {
            Some(vacant) => self.mappings.forget(&vacant),
            None => self.mappings.forget_all(),
        }
    }

    /// A process without the library, or that has no link with us, tells nobody that it takes a
    /// flow over (a connected socket beside a server's): only the kernel knows.
    fn review_period(&self) -> u64 {
        if self.rendezvous.has_links() { SECOND / 5 } else { SECOND }
    }

    /// Tells the internal thread when it is wanted.
    fn note_due(&self, stack: &Stack) {
        let reviews = !self.mappings.is_empty() || self.rendezvous.has_links();
        let review = reviews.then(|| self.reviewed.saturating_add(self.review_period()));
        let due = self.rendezvous.due().into_iter().chain(review).chain(self.search_due());
        let due = due.min().unwrap_or(NEVER);
        let before = stack.local.due.swap(due, Ordering::AcqRel);
        if due < before {
            stack.wake_internal_thread();
        }
    }
}

/// The finder; made for the first question or post.
fn open(stack: &Stack) -> Option<Opened<'_>> {
    let local = &stack.local;
    if !stack.config.local
        || !local.served.load(Ordering::Acquire)
        || local.failed.load(Ordering::Relaxed)
    {
        return None;
    }
    let mut slot = local.finder.lock().ok()?;
    if slot.is_none() {
        let Some(finder) = Finder::open() else {
            local.failed.store(true, Ordering::Relaxed);
            return None;
        };
        let watched = finder.rendezvous.descriptor().as_raw_fd();
        *slot = Some(Box::new(finder));
        local.descriptor.store(watched, Ordering::Release);
        stack.wake_internal_thread();
    }
    Some(slot)
}

fn void_answers(stack: &Stack) {
    if let Ok(mut state) = stack.shard.lock() {
        state.next_epoch();
    }
}

/// The number that fstat(2) and sock_diag(7) have for a socket.
pub fn inode(descriptor: i32) -> Option<u64> {
    let status = fd::with_borrowed(descriptor, |fd| rustix::fs::fstat(fd))?.ok()?;
    Some(status.st_ino)
}

#[cfg(test)]
mod tests;
