//! The program's epoll instances, as far as they have to do with sockets of ours.

use core::ffi::c_int;
use std::sync::Arc;

use super::waits::{KernelWait, call_back, strip};
use super::{Events, steer, table_size};
use crate::fd::Object;
use crate::mux;
use crate::mux::epoll::{self, Change, Epoll, Event};
use crate::preload::{Found, convert, errno, find, fork, real};
use crate::process::{self, Process, inherit};
use crate::socket::{WhyOs, attach, clock};
use crate::sys::fd::internal;
use crate::sys::wait::Waker;

/// An epoll instance is waited for in a way that we do not see through.
pub fn nest(fd: c_int) {
    if let Some(process) = process::current()
        && let Some(Object::Epoll(id)) = process.fds.get(fd)
        && let Some(instance) = process.epolls.get(id)
    {
        nest_instance(process, &instance);
    }
}

fn nest_instance(process: &'static Process, instance: &Epoll) {
    for id in epoll::nest(&process.stack, instance) {
        process.release_stream(id, WhyOs::NestedEpoll);
    }
}

/// What we know of an epoll instance; made when the first socket of ours is added to it.
pub fn instance(process: &'static Process, epfd: c_int) -> Option<Arc<Epoll>> {
    if let Some(Object::Epoll(id)) = process.fds.get(epfd) {
        return process.epolls.get(id);
    }
    // One at a time: a second instance would hide what the first one watches.
    let one = process.epolls.making.lock().ok()?;
    if let Some(Object::Epoll(id)) = process.fds.get(epfd) {
        return process.epolls.get(id);
    }
    let numbers = numbers(process, epfd);
    let (id, instance) = process.epolls.add(&process.stack, numbers.clone())?;
    for number in &numbers {
        process.fds.set(*number, Object::Epoll(id));
    }
    drop(one);
    if !numbers.into_iter().all(call_back) {
        // A thread sees the kernel's readiness only.
        nest_instance(process, &instance);
    }
    Some(instance)
}

/// All numbers of an epoll instance. Some programs wait by one and register by another (mio), and
/// made the copy before there was any socket; the kernel tells only by what is registered.
#[cold]
fn numbers(process: &'static Process, epfd: c_int) -> Vec<c_int> {
    const MOST: usize = 1 << 16;
    let mut numbers = vec![epfd];
    let Ok(probe) = Waker::new() else { return numbers };
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut control = |epfd: c_int, operation: c_int| {
        // SAFETY: `event` is an event that outlives the call.
        unsafe { real::epoll_ctl(epfd, operation, probe.raw(), &mut event) }
    };
    if control(epfd, libc::EPOLL_CTL_ADD) != 0 {
        return numbers;
    }
    let others = (0..table_size().min(MOST) as c_int)
        .filter(|fd| *fd != epfd && process.fds.get(*fd).is_none() && !internal::contains(*fd));
    for other in others {
        if control(other, libc::EPOLL_CTL_ADD) == 0 {
            control(other, libc::EPOLL_CTL_DEL);
        } else if errno::get() == libc::EEXIST {
            numbers.push(other);
        }
    }
    control(epfd, libc::EPOLL_CTL_DEL);
    numbers
}

/// epoll_ctl on a stream of which the kernel has nothing to say. None: it is the kernel's turn.
///
/// # Safety
/// As epoll_ctl(2).
pub unsafe fn control_alone(
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: Events,
) -> Option<Result<(), i32>> {
    let Found::Stream(process, id) = find(fd) else { return None };
    if fork::is_noted_vfork_child(process) {
        return None;
    }
    let read = |event: Events| {
        if operation == libc::EPOLL_CTL_DEL {
            return Some(None);
        }
        // SAFETY: an event, by the contract of the call.
        convert::can_read(event, size_of::<Event>()).then(|| Some(unsafe { *event }))
    };
    // What programs do with every request.
    if let Some(Object::Epoll(number)) = process.fds.get(epfd)
        && let Some(event) = read(event)
        && let Some(instance) = process.epolls.get(number)
        && !instance.is_nested()
    {
        let change = Change { operation, descriptor: fd, id, event };
        if let Some(result) = epoll::control_alone(&process.stack, &instance, &change) {
            return Some(result);
        }
    }
    if mux::unsteered(&process.stack, [id]).is_some() {
        steer(process, id);
    }
    if !epoll::is_alone(&process.stack, id) {
        return None;
    }
    let Some(event) = read(event) else { return Some(Err(libc::EFAULT)) };
    if !matches!(process.fds.get(epfd), Some(Object::Epoll(_))) {
        // Is it an epoll instance at all? The kernel does not have the socket in it.
        // SAFETY: this operation reads no event.
        let known =
            unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) } == 0;
        let error = errno::get();
        if !known && error != libc::ENOENT {
            return Some(Err(error));
        }
    }
    let instance = instance(process, epfd)?;
    if instance.is_nested() && process.release_stream(id, WhyOs::NestedEpoll) {
        return None;
    }
    let change = Change { operation, descriptor: fd, id, event };
    epoll::control_alone(&process.stack, &instance, &change)
}

/// Another thread makes the stream the kernel's, and may not have moved its registrations yet, without which the kernel
/// would find none to change: this thread moves them.
pub fn settle(fd: c_int) {
    if let Found::Stream(process, id) = find(fd)
        && !fork::is_noted_vfork_child(process)
        && epoll::is_kernels(&process.stack, id)
    {
        process.drop_stream(id);
    }
}

/// The kernel has accepted a change; it may be of a shadow.
pub fn control_shared(epfd: c_int, operation: c_int, fd: c_int, event: Option<libc::epoll_event>) {
    let (Found::Datagram(process, id) | Found::Stream(process, id)) = find(fd) else { return };
    if fork::is_vfork_child(process) {
        return;
    }
    let Some(instance) = instance(process, epfd) else { return };
    let change = Change { operation, descriptor: fd, id, event };
    if let Err(why) = epoll::control_shared(&process.stack, &instance, &change) {
        match find(fd) {
            Found::Datagram(..) => attach::un_offload(&process.stack, id, why),
            Found::Stream(..) => {
                process.release_stream(id, why);
            }
            Found::Kernel | Found::Counted => {}
        }
    }
}

/// Where a wait puts its events.
pub struct Room {
    pub epfd: c_int,
    pub events: Events,
    pub max: c_int,
}

impl Room {
    /// The kernel knows what is wrong if it is not: of the memory it looks at the range only, until it has an event.
    fn is_valid(&self) -> bool {
        let len = (self.max.max(0) as usize).saturating_mul(size_of::<libc::epoll_event>());
        self.max > 0 && convert::is_in_range(self.events, len)
    }
}

/// epoll_wait and its kin; `kernel` is the same call of libc.
///
/// # Safety
/// As epoll_wait(2).
pub unsafe fn wait(
    room: &Room,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
    kernel: impl Fn() -> c_int,
) -> c_int {
    if !room.is_valid() {
        return kernel();
    }
    // SAFETY: as promised.
    if let Some(count) = unsafe { wait_ours(room, timeout, mask) } {
        return count;
    }
    if timeout == Some(0) {
        return kernel();
    }
    let process = process::current();
    let since = process.and(timeout).map(|_| clock::now());
    let count = {
        let _waits = KernelWait::on(room.epfd);
        if is_ours(room.epfd) { 0 } else { kernel() }
    };
    if count < 0 || !is_ours(room.epfd) {
        return count;
    }
    // The instance has got a socket of ours meanwhile.
    // SAFETY: the program's array, of which the kernel has written so many events.
    let events = unsafe { core::slice::from_raw_parts_mut(room.events, count as usize) };
    match strip(events) {
        Some(rest) if rest > 0 => return rest as c_int,
        None if count > 0 => return count,
        _ => {}
    }
    let spent = since.map_or(0, |since| {
        u64::try_from(clock::now().saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX)
    });
    let left = timeout.map(|timeout| timeout.saturating_sub(spent));
    // SAFETY: as promised.
    unsafe { wait_ours(room, left, mask) }.unwrap_or(0)
}

fn is_ours(epfd: c_int) -> bool {
    process::current()
        .is_some_and(|process| matches!(process.fds.get(epfd), Some(Object::Epoll(_))))
}

/// epoll_wait on an instance that watches sockets of ours; None if it does not.
///
/// # Safety
/// `events` points to `max` events, which is more than 0.
unsafe fn wait_ours(
    room: &Room,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<c_int> {
    let Room { epfd, events, max } = *room;
    inherit::touch(epfd);
    let process = process::current()?;
    let Object::Epoll(id) = process.fds.get(epfd)? else { return None };
    let instance = process.epolls.get(id)?;
    // A null pointer makes no slice; nothing is at this address either.
    let events = if events.is_null() { core::ptr::without_provenance_mut(1) } else { events };
    // SAFETY: as promised; what is not there is seen before it is written.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    let mut kernel = |room: &mut [epoll::Event]| {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: `room` is a slice of events of that length.
        match unsafe { real::epoll_wait(epfd, room.as_mut_ptr(), most, 0) } {
            -1 => Err(errno::get()),
            found => {
                let found = found as usize;
                // A call for threads that came too late for it may still be there.
                Ok(room.get_mut(..found).and_then(strip).unwrap_or(found))
            }
        }
    };
    let mut disarm = |fd: c_int| {
        let mut none = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `none` is an event that outlives the call.
        unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut none) };
    };
    let call = epoll::Call { epfd, timeout, mask, kernel: &mut kernel, disarm: &mut disarm };
    let result = epoll::wait(&process.stack, &instance, out, call);
    Some(errno::result(result) as c_int)
}
