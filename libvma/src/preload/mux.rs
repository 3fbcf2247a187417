//! poll, select, epoll and their variants.

use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use super::convert::{self, millis};
use super::{errno, export, fork, fresh, ours, real};
use crate::fd::Object;
use crate::mux::poll::Member;
use crate::mux::{self, epoll, select as sets};
use crate::process::{self, Process, inherit};
use crate::socket::clock;
use crate::sys::wait::PollFd;

type Events = *mut libc::epoll_event;
type FdSet = *mut libc::fd_set;

/// Our sockets among the descriptors. Up to this many need no allocation.
const INLINE: usize = 64;

/// Calls `with` with our sockets among `fds`; None if there are none.
fn members<T>(fds: &[PollFd], with: impl FnOnce(&'static Process, &[Member]) -> T) -> Option<T> {
    if inherit::is_child() {
        fds.iter().for_each(|entry| inherit::touch(entry.fd));
    }
    let process = process::current()?;
    let mut found =
        fds.iter().enumerate().filter_map(|(at, entry)| match process.fds.get(entry.fd)? {
            Object::Socket(id) => Some(Member { at, id }),
            Object::Epoll(_) => {
                nest(entry.fd);
                None
            }
        });
    let first = found.next()?;
    let mut inline = [first; INLINE];
    let mut count = 1;
    for member in found.by_ref() {
        let Some(slot) = inline.get_mut(count) else {
            let mut all = inline.to_vec();
            all.push(member);
            all.extend(found);
            return Some(with(process, &all));
        };
        *slot = member;
        count += 1;
    }
    Some(with(process, inline.get(..count)?))
}

/// poll on a list that may hold sockets of ours; None if it does not.
fn poll_ours(
    fds: &mut [PollFd],
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<Result<usize, i32>> {
    // The list is lent twice: to find our sockets, then to fill it in.
    let mut found: Option<(&'static Process, Vec<Member>)> = None;
    let mut inline: Option<(&'static Process, [Member; INLINE], usize)> = None;
    members(fds, |process, list| {
        let mut copy = [list[0]; INLINE];
        if list.len() <= INLINE {
            copy[..list.len()].copy_from_slice(list);
            inline = Some((process, copy, list.len()));
        } else {
            found = Some((process, list.to_vec()));
        }
    })?;
    let (process, list) = match (&inline, &found) {
        (Some((process, list, count)), _) => (*process, list.get(..*count).unwrap_or_default()),
        (None, Some((process, list))) => (*process, list.as_slice()),
        (None, None) => return None,
    };
    Some(mux::poll::poll(&process.stack, &process.poll_turn, fds, list, timeout, mask))
}

/// # Safety
/// `fds` is null or points to `count` pollfds.
unsafe fn list<'a>(fds: *mut libc::pollfd, count: libc::nfds_t) -> &'a mut [PollFd] {
    let nobodys = process::current().is_none() && !inherit::is_child();
    let len = (count as usize).saturating_mul(size_of::<PollFd>());
    if nobodys || count > 1 << 20 || !convert::is_plausible(fds, len) {
        return &mut [];
    }
    // SAFETY: as promised.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
}

export! {
    /// poll(2).
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the program's array, by the contract of the call.
        match poll_ours(unsafe { list(fds, count) }, millis(timeout), None) {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => unsafe { real::poll(fds, count, timeout) },
        }
    }

    /// ppoll(2).
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: null or a timespec, by the contract of the call.
        let Ok(limit) = (unsafe { convert::timespec(timeout) }) else {
            errno::set(libc::EINVAL);
            return -1;
        };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = unsafe { mask.as_ref() };
        // SAFETY: the program's array, by the contract of the call.
        match poll_ours(unsafe { list(fds, count) }, limit, set) {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => unsafe { real::ppoll(fds, count, timeout, mask) },
        }
    }

    /// poll with a check of the array's size, by which _FORTIFY_SOURCE replaces it.
    fn __poll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, len: usize) -> c_int {
        if len / size_of::<libc::pollfd>() < count as usize {
            // SAFETY: passed on; it ends the process.
            return unsafe { real::__poll_chk(fds, count, timeout, len) };
        }
        // SAFETY: passed on.
        unsafe { poll(fds, count, timeout) }
    }

    /// As `__poll_chk`, for ppoll.
    fn __ppoll_chk(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
        len: usize,
    ) -> c_int {
        if len / size_of::<libc::pollfd>() < count as usize {
            // SAFETY: passed on; it ends the process.
            return unsafe { real::__ppoll_chk(fds, count, timeout, mask, len) };
        }
        // SAFETY: passed on.
        unsafe { ppoll(fds, count, timeout, mask) }
    }

    /// select(2). The time left is written back, as Linux does.
    fn select(
        count: c_int,
        read: FdSet,
        write: FdSet,
        except: FdSet,
        timeout: *mut libc::timeval,
    ) -> c_int {
        // SAFETY: null or a timeval, by the contract of the call.
        let limit = match unsafe { timeout.as_ref() } {
            None => None,
            Some(limit) if limit.tv_sec < 0 || limit.tv_usec < 0 => {
                errno::set(libc::EINVAL);
                return -1;
            }
            Some(limit) => Some(
                (limit.tv_sec as u64)
                    .saturating_mul(1_000_000_000)
                    .saturating_add((limit.tv_usec as u64).saturating_mul(1000)),
            ),
        };
        let since = clock::now();
        // SAFETY: the program's sets, by the contract of the call.
        let result = match unsafe { select_ours(count, [read, write, except], limit, None) } {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => return unsafe { real::select(count, read, write, except, timeout) },
        };
        // SAFETY: as above.
        if let (Some(limit), Some(out)) = (limit, unsafe { timeout.as_mut() }) {
            let spent = clock::now().saturating_duration_since(since).as_nanos();
            let left = limit.saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX));
            out.tv_sec = (left / 1_000_000_000) as libc::time_t;
            out.tv_usec = (left % 1_000_000_000 / 1000) as libc::suseconds_t;
        }
        result
    }

    /// pselect(2).
    fn pselect(
        count: c_int,
        read: FdSet,
        write: FdSet,
        except: FdSet,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: null or a timespec, by the contract of the call.
        let Ok(limit) = (unsafe { convert::timespec(timeout) }) else {
            errno::set(libc::EINVAL);
            return -1;
        };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = unsafe { mask.as_ref() };
        // SAFETY: the program's sets, by the contract of the call.
        match unsafe { select_ours(count, [read, write, except], limit, set) } {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => unsafe { real::pselect(count, read, write, except, timeout, mask) },
        }
    }

    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: passed on.
        fresh(unsafe { real::epoll_create(size) })
    }

    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: passed on.
        fresh(unsafe { real::epoll_create1(flags) })
    }

    /// epoll_ctl(2): the kernel first, which knows every error; then ours.
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: Events) -> c_int {
        // SAFETY: passed on.
        let result = unsafe { real::epoll_ctl(epfd, operation, fd, event) };
        if result == 0 && operation == libc::EPOLL_CTL_ADD {
            nest(fd);
        }
        if result == 0
            && let Some((process, id)) = ours(fd)
            && !fork::is_vfork_child(process)
        {
            let before = errno::get();
            // SAFETY: the kernel has accepted the pointer: null (for DEL) or an event.
            let event = unsafe { event.as_ref() }.copied();
            if let Some(instance) = instance(process, epfd) {
                epoll::control(&process.stack, &instance, operation, fd, id, event);
            }
            errno::set(before);
        }
        result
    }

    /// epoll_wait(2).
    fn epoll_wait(epfd: c_int, events: Events, max: c_int, timeout: c_int) -> c_int {
        // SAFETY: the program's array, by the contract of the call.
        match unsafe { wait_ours(epfd, events, max, millis(timeout), None) } {
            Some(count) => count,
            None => {
                let _waits = KernelWait::on(epfd);
                // SAFETY: passed on.
                unsafe { real::epoll_wait(epfd, events, max, timeout) }
            }
        }
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        epfd: c_int,
        events: Events,
        max: c_int,
        timeout: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: null or a signal set, by the contract of the call.
        let set = unsafe { mask.as_ref() };
        // SAFETY: the program's array, by the contract of the call.
        match unsafe { wait_ours(epfd, events, max, millis(timeout), set) } {
            Some(count) => count,
            None => {
                let _waits = KernelWait::on(epfd);
                // SAFETY: passed on.
                unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) }
            }
        }
    }

    /// epoll_pwait2(2).
    fn epoll_pwait2(
        epfd: c_int,
        events: Events,
        max: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: null or a timespec, by the contract of the call.
        let Ok(limit) = (unsafe { convert::timespec(timeout) }) else {
            errno::set(libc::EINVAL);
            return -1;
        };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = unsafe { mask.as_ref() };
        // SAFETY: the program's array, by the contract of the call.
        match unsafe { wait_ours(epfd, events, max, limit, set) } {
            Some(count) => count,
            None => {
                let _waits = KernelWait::on(epfd);
                // SAFETY: passed on.
                unsafe { real::epoll_pwait2(epfd, events, max, timeout, mask) }
            }
        }
    }
}

/// Epoll descriptors that threads wait for in the kernel right now, -1 where free.
static KERNEL_WAITS: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];
/// Threads that found no place in the list.
static UNLISTED_WAITS: AtomicI32 = AtomicI32::new(0);

/// A wait in the kernel on an epoll instance that has no socket of ours so far.
struct KernelWait(Option<&'static AtomicI32>);

impl KernelWait {
    fn on(epfd: c_int) -> KernelWait {
        let place = KERNEL_WAITS.iter().find(|place| {
            place.compare_exchange(-1, epfd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if place.is_none() {
            UNLISTED_WAITS.fetch_add(1, Ordering::AcqRel);
        }
        KernelWait(place)
    }
}

impl Drop for KernelWait {
    fn drop(&mut self) {
        match self.0 {
            Some(place) => place.store(-1, Ordering::Release),
            None => {
                UNLISTED_WAITS.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

fn waiting_in_kernel(epfd: c_int) -> bool {
    UNLISTED_WAITS.load(Ordering::Acquire) > 0
        || KERNEL_WAITS.iter().any(|place| place.load(Ordering::Acquire) == epfd)
}

/// An epoll instance is waited for in a way that we do not see through.
pub fn nest(fd: c_int) {
    if let Some(process) = process::current()
        && let Some(Object::Epoll(id)) = process.fds.get(fd)
        && let Some(instance) = process.epolls.get(id)
    {
        epoll::nest(&process.stack, &instance);
    }
}

/// An epoll instance got another number: whichever the program uses, its sockets are the kernel's.
pub fn duplicate(process: &'static Process, old: c_int, new: c_int) {
    if instance(process, new).is_some() {
        nest(new);
    }
    nest(old);
}

/// What we know of an epoll instance; made when the first socket of ours is added to it.
fn instance(process: &'static Process, epfd: c_int) -> Option<std::sync::Arc<epoll::Epoll>> {
    if let Some(Object::Epoll(id)) = process.fds.get(epfd) {
        return process.epolls.get(id);
    }
    // One at a time: a second instance would hide what the first one watches.
    let _one = process.epolls.making.lock().ok()?;
    if let Some(Object::Epoll(id)) = process.fds.get(epfd) {
        return process.epolls.get(id);
    }
    let (id, instance) = process.epolls.add(&process.stack)?;
    process.fds.set(epfd, Object::Epoll(id));
    if waiting_in_kernel(epfd) {
        // That thread sees the kernel's readiness only.
        epoll::nest(&process.stack, &instance);
    }
    Some(instance)
}

/// epoll_wait on an instance that watches sockets of ours; None if it does not.
///
/// # Safety
/// `events` points to `max` events, or the call is to fail.
unsafe fn wait_ours(
    epfd: c_int,
    events: Events,
    max: c_int,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<c_int> {
    inherit::touch(epfd);
    let process = process::current()?;
    let Object::Epoll(id) = process.fds.get(epfd)? else { return None };
    let instance = process.epolls.get(id)?;
    let count = usize::try_from(max).ok().filter(|count| *count > 0)?;
    if !convert::is_plausible(events, count.saturating_mul(size_of::<libc::epoll_event>())) {
        return None;
    }
    // SAFETY: as promised.
    let out = unsafe { core::slice::from_raw_parts_mut(events, count) };
    let mut kernel = |room: &mut [epoll::Event]| {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: `room` is a slice of events of that length.
        match unsafe { real::epoll_wait(epfd, room.as_mut_ptr(), most, 0) } {
            -1 => Err(errno::get()),
            found => Ok(found as usize),
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

/// select on sets that hold sockets of ours; None if they do not.
///
/// # Safety
/// Each set is null or has room for `count` bits.
unsafe fn select_ours(
    count: c_int,
    sets: [FdSet; 3],
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<Result<usize, i32>> {
    if process::current().is_none() && !inherit::is_child() {
        return None;
    }
    let nfds = usize::try_from(count).ok()?;
    // Beyond what an fd_set holds the kernel looks only as far as its descriptor table goes:
    // select(getdtablesize(), ...) is an old habit, and the sets are not that large.
    let nfds = if nfds > libc::FD_SETSIZE { nfds.min(table_size()) } else { nfds };
    let bytes = sets::words(nfds) * size_of::<usize>();
    if sets.iter().any(|set| !set.is_null() && !convert::is_plausible(*set, bytes)) {
        return None;
    }
    // SAFETY: as promised.
    let mut sets = sets.map(|set| unsafe { words(set.cast(), nfds) });
    let mut list = sets::to_list(nfds, &sets);
    match poll_ours(&mut list, timeout, mask)? {
        Err(errno) => Some(Err(errno)),
        Ok(0) => {
            sets::clear_all(nfds, &mut sets);
            Some(Ok(0))
        }
        Ok(_) => Some(sets::from_list(nfds, &list, &mut sets)),
    }
}

/// How many descriptors the kernel's table has room for now (FDSize of proc_pid_status(5)).
#[cold]
fn table_size() -> usize {
    let status = crate::sys::fd::read_file("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or(libc::FD_SETSIZE)
}

/// # Safety
/// `set` is null or has room for `nfds` bits, in whole words.
unsafe fn words<'a>(set: *mut c_void, nfds: usize) -> sets::Set<'a> {
    if set.is_null() {
        return None;
    }
    // SAFETY: as promised; an fd_set is an array of words.
    Some(unsafe { core::slice::from_raw_parts_mut(set.cast(), sets::words(nfds)) })
}
