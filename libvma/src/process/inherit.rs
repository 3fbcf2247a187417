//! Sockets that a forked child inherits.
//!
//! The child gets the kernel's sockets, but the packets still come to the parent's rings. Most
//! children never use them (they exec, or only close them), so nothing happens at fork. A child
//! that does use one asks the parent for it: it writes the socket's name to a page that both share
//! and wakes the parent's internal thread, which gives the socket to the kernel; from then on both
//! share it as they would without the library. A parent that is gone took its flows along. A listener
//! that the parent never waited on and that no other child has is the child's to offload; of one that others have, too, the
//! child takes over the connections that it accepts, once they live.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::Process;
use crate::agent::wards::Wards;
use crate::fd::Object;
use crate::shard::SocketId;
use crate::socket::WhyOs;
use crate::socket::report::kernels;
use crate::socket::report::traffic::KernelsId;
use crate::socket::stream::inherited;
use crate::sys::fork_cell::LeakedRef;
use crate::sys::shared_page::SharedPage;
use crate::sys::wait::is_open;
use crate::sys::{fd, repair, shadow, thread};

const REQUESTS: usize = 62;
type Words = [AtomicU64; REQUESTS + 2];

/// Requests of children: the name of a socket, 0 when served. Of the last two words one says whether
/// anybody serves them, the other counts the forks of the process and of its children.
pub struct RequestTable(SharedPage<Words>);

impl RequestTable {
    pub fn new() -> Option<RequestTable> {
        SharedPage::of_words().ok().map(RequestTable)
    }

    fn requests(&self) -> impl Iterator<Item = &'static AtomicU64> {
        self.0.get().iter().take(REQUESTS)
    }

    fn forks(&self) -> u32 {
        self.0.get().last().map_or(0, |word| word.load(Ordering::Relaxed) as u32)
    }

    fn count_fork(&self) {
        if let Some(word) = self.0.get().last() {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn served(&self) -> Option<&'static AtomicU64> {
        self.0.get().get(REQUESTS)
    }

    /// Does the process have an internal thread, which answers?
    pub fn is_served(&self) -> bool {
        self.served().is_some_and(|word| word.load(Ordering::Acquire) != 0)
    }

    pub fn set_served(&self, served: bool) {
        if let Some(word) = self.served() {
            word.store(u64::from(served), Ordering::Release);
        }
    }

    /// In the parent: serves what children have asked for.
    pub fn serve(&self, process: &Process) {
        for word in self.requests() {
            let bits = word.load(Ordering::Acquire);
            if let Some(id) = SocketId::from_bits(bits) {
                process.release(id, WhyOs::Passed);
                // Unless the child gave up, and another one asks here for something else.
                let _ = word.compare_exchange(bits, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// In the child: asks, and waits for the answer as long as the parent can give it.
    fn ask(&self, id: SocketId, parent: i32, waker: i32) {
        let bits = id.to_bits();
        let take = |word: &&AtomicU64| {
            word.compare_exchange(0, bits, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        // A parent that ended and was not waited for still has a process id, but no children.
        let direct = thread::parent_id() == Some(parent);
        let mut slot = None;
        for _ in 0..PATIENCE_MILLIS {
            match slot {
                None => {
                    slot = self.requests().find(take);
                    if slot.is_some() {
                        fd::write_fully(waker, &1u64.to_ne_bytes());
                    }
                }
                Some(slot) if slot.load(Ordering::Acquire) != bits => return,
                Some(_) => {}
            }
            let alive = match direct {
                true => thread::parent_id() == Some(parent),
                false => thread::is_alive(parent),
            };
            if !alive || !self.is_served() {
                break;
            }
            thread::nap_millis(1);
        }
        if let Some(slot) = slot {
            let _ = slot.compare_exchange(bits, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// A parent that lives and does not answer within this time is stopped.
const PATIENCE_MILLIS: u32 = 5000;

/// This process, for the children it forks. Ordinary memory: a child gets a copy.
static SELF: LeakedRef<Process> = LeakedRef::none();
/// In a child: the process whose sockets it inherited.
static PARENT: LeakedRef<Process> = LeakedRef::none();
/// In a child: there are sockets it may have to ask for.
static INHERITED: AtomicBool = AtomicBool::new(false);
/// The parent's waker; the one descriptor of the library that a child keeps.
static PARENTS_WAKER: AtomicI32 = AtomicI32::new(-1);
/// The waker of this process, for its children.
static OWN_WAKER: AtomicI32 = AtomicI32::new(-1);

/// The process has started: its children are to find it.
pub fn remember(process: &'static Process) {
    OWN_WAKER.store(process.stack.internal_waker_descriptor(), Ordering::Release);
    SELF.set(process);
}

/// How often this process has forked.
#[inline]
pub fn forks() -> u32 {
    SELF.get().and_then(|process| process.requests.as_ref()).map_or(0, RequestTable::forks)
}

/// How often the parent has; None if there is none.
pub fn forks_of_parent() -> Option<u32> {
    parent().map(|(_, requests)| requests.forks())
}

/// Before a fork: descriptors that are open now are shared from here on.
pub fn before_fork() {
    if let Some(requests) = SELF.get().and_then(|process| process.requests.as_ref()) {
        requests.count_fork();
    }
}

/// In a fresh child.
pub fn after_fork() {
    thread::forget_alarm();
    // A grandchild of one that never opened a socket still has its grandparent's.
    if let Some(parent) = SELF.get() {
        PARENT.set(parent);
        PARENTS_WAKER.store(OWN_WAKER.load(Ordering::Acquire), Ordering::Release);
    }
    fd::internal::close_all_after_fork(PARENTS_WAKER.load(Ordering::Acquire));
    INHERITED.store(PARENT.get().is_some(), Ordering::Release);
    crate::log::set_file(2);
}

/// Is there anything to ask the parent for?
#[inline]
pub fn is_child() -> bool {
    INHERITED.load(Ordering::Relaxed)
}

/// The program uses a descriptor that is not ours: in a child it may be the parent's socket.
#[inline]
pub fn touch(fd: i32) {
    if is_child() {
        touch_inherited(fd);
    }
}

#[cold]
fn touch_inherited(fd: i32) {
    let Some((parent, requests)) = parent() else { return };
    if super::current().is_some_and(|own| own.fds.get(fd).is_some()) {
        return;
    }
    match parent.fds.get(fd) {
        Some(Object::Socket(id)) => {
            // Taken out when it is there: other threads of the child must wait for it, too.
            requests.ask(id, parent.id, PARENTS_WAKER.load(Ordering::Acquire));
            parent.fds.take(fd);
        }
        Some(Object::Stream(id)) => {
            requests.ask(id, parent.id, PARENTS_WAKER.load(Ordering::Acquire));
            if parent.fds.take(fd).is_some() {
                adopt(parent, requests, fd, id);
            }
        }
        // The epoll instance does not tell what it watches: all of them.
        Some(Object::Epoll(_)) => {
            parent.fds.take(fd);
            for fd in parent.fds.within(0, u32::MAX) {
                touch_inherited(fd);
            }
        }
        // The child has its own copy of the kernel's socket.
        Some(Object::Kernels(id)) => share_kernels(parent, fd, id),
        None => {}
    }
}

/// A listener that nobody else accepts from is this process's own from now on. Of one that others accept from
/// the connections are, once they live.
fn adopt(parent: &'static Process, requests: &RequestTable, fd: i32, id: SocketId) {
    let Some(listener) = inherited::find(&parent.stack, id) else { return };
    let forks = requests.forks();
    let is_shared = !listener.has_one_owner(forks);
    if is_shared && !may_share(fd) {
        return;
    }
    let mut numbers = listener.descriptors().to_vec();
    numbers.retain(|number| {
        let same = *number == fd || parent.fds.get(*number) == Some(Object::Stream(id));
        same && is_open(*number)
    });
    let Some(own) = super::first_socket() else { return };
    if is_shared {
        for number in &numbers {
            parent.fds.take(*number);
        }
        own.share_listener(&numbers, Arc::new(listener.model()));
    } else if let Some(id) = inherited::adopt(&own.stack, listener, numbers.clone(), forks) {
        for fd in numbers {
            parent.fds.take(fd);
            own.fds.set(fd, Object::Stream(id));
        }
    }
}

/// The same of a listener that the parent had shared already: its later children, as after a reload.
fn share_kernels(parent: &'static Process, fd: i32, id: KernelsId) {
    // Its other calls need no look at it any more.
    let object = parent.fds.take(fd);
    let Some(model) = kernels::inherited_model(&parent.stack, id).filter(|_| may_share(fd)) else {
        return;
    };
    if object == Some(Object::Kernels(id))
        && let Some(own) = super::first_socket()
    {
        own.share_listener(&[fd], model);
    }
}

/// May connections of a listener that others have, too, be taken over?
fn may_share(fd: i32) -> bool {
    let is_loopback = || shadow::local_name(fd).is_some_and(|own| own.is_loopback());
    repair::is_allowed() && wards_of_parent().is_some() && !is_loopback()
}

/// Before exec in a forked child: connections that the new program inherits must be the kernel's,
/// for it will know nothing of the parent.
pub fn before_exec() {
    if !is_child() {
        return;
    }
    let Some((parent, _)) = parent() else { return };
    for (fd, id) in parent.kept_streams() {
        // Most programs that are started so know nothing of the listeners that they get.
        if !inherited::was_listener(&parent.stack, id) {
            touch_inherited(fd);
        }
    }
}

/// In a vfork() child, on its parent's memory: has the parent's internal thread give a socket to
/// the kernel.
#[cold]
pub fn ask_own_parent(process: &Process, id: SocketId) {
    if let Some(requests) = &process.requests {
        requests.ask(id, process.id, process.stack.internal_waker_descriptor());
    }
}

/// The child closed an inherited descriptor, or its number means something new.
#[inline]
pub fn drop_inherited(fd: i32) {
    if is_child()
        && let Some((parent, _)) = parent()
    {
        // The child's copy of the table: the parent keeps its own.
        parent.fds.take(fd);
    }
}

/// The parent's memory of what its children have, if it has an internal thread.
pub fn wards_of_parent() -> Option<&'static Wards> {
    let (parent, requests) = parent().filter(|_| is_child())?;
    parent.wards.as_ref().filter(|_| requests.is_served())
}

/// Has the parent look at what its children ask.
pub fn call_parent() {
    if is_child() && wards_of_parent().is_some() {
        fd::write_fully(PARENTS_WAKER.load(Ordering::Acquire), &1u64.to_ne_bytes());
    }
}

fn parent() -> Option<(&'static Process, &'static RequestTable)> {
    let parent = PARENT.get()?;
    Some((parent, parent.requests.as_ref()?))
}
