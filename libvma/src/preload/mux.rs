//! poll, select, epoll and their variants.

mod instance;
mod waits;

pub use instance::{instance, nest};
pub use waits::after_fork;

use core::ffi::{c_int, c_void};

use self::instance::{Room, control_alone, control_shared};
use super::cancel::cancellable;
use super::convert::{self, millis};
use super::{errno, export, made, passed, real, take_over};
use crate::fd::Object;
use crate::mux::poll::{Member, Question, Told};
use crate::mux::{self, epoll, select as sets};
use crate::process::{self, Process, inherit};
use crate::socket::report::kernels;
use crate::socket::stream::listen;
use crate::socket::{SocketId, clock};
use crate::sys::user;
use crate::sys::wait::PollFd;

type Events = *mut libc::epoll_event;
type FdSet = *mut libc::fd_set;

/// Our sockets among the descriptors. Up to this many need no allocation.
const INLINE: usize = 64;

/// poll on a list that may hold sockets of ours; None if it does not.
fn poll_ours(
    fds: &mut [PollFd],
    told: Told,
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> Option<Result<usize, i32>> {
    if inherit::is_child() {
        fds.iter().for_each(|entry| inherit::touch(entry.fd));
    }
    let process = process::current()?;
    let mut streams = false;
    let mut found =
        fds.iter().enumerate().filter_map(|(at, entry)| match process.fds.get(entry.fd)? {
            Object::Socket(id) => Some(Member::new(at, id)),
            Object::Stream(id) => {
                streams = true;
                Some(Member::new(at, id))
            }
            Object::Kernels(_) => None,
            Object::Epoll(_) => {
                nest(entry.fd);
                None
            }
        });
    let first = found.next()?;
    let mut inline = [first; INLINE];
    let mut count = 1;
    let mut all: Vec<Member> = Vec::new();
    for member in found {
        if let Some(slot) = inline.get_mut(count) {
            *slot = member;
            count += 1;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&inline);
        }
        all.push(member);
    }
    let members = if all.is_empty() { inline.get_mut(..count)? } else { &mut all };
    if streams {
        while let Some(id) = mux::unsteered(&process.stack, members.iter().map(Member::id)) {
            steer(process, id);
        }
    }
    let question = Question { fds, members, told };
    Some(mux::poll::poll(&process.stack, &process.poll_turn, question, timeout, mask))
}

/// Connections of the kernel's among the descriptors, which stay that while they are waited for.
fn calls_on(fds: &[PollFd]) -> Vec<passed::Call> {
    if !process::current().is_some_and(|process| kernels::has_candidates(&process.stack)) {
        return Vec::new();
    }
    fds.iter().filter_map(|entry| passed::during(entry.fd)).collect()
}

/// Somebody waits for connections on a listener: they are to come to us from now on. False if they
/// cannot: then it is the kernel's.
fn steer(process: &'static Process, id: SocketId) -> bool {
    process.ensure_plane();
    let steered = listen::steer(&process.stack, id).is_ok();
    if !steered {
        process.drop_stream(id);
    }
    steered
}

/// A socket that may have been watched already listens now.
pub fn after_listen(process: &'static Process, id: SocketId) {
    if !epoll::is_watched(&process.stack, id) {
        listen::steer_ahead(&process.stack, id);
    } else if steer(process, id) {
        epoll::share(&process.stack, id);
    }
}

/// # Safety
/// `fds` is null or points to `count` pollfds.
unsafe fn list<'a>(fds: *mut libc::pollfd, count: libc::nfds_t) -> &'a mut [PollFd] {
    let nobodys = process::current().is_none() && !inherit::is_child();
    let len = (count as usize).saturating_mul(size_of::<PollFd>());
    if nobodys || count > 1 << 20 || !convert::can_read(fds, len) {
        return &mut [];
    }
    // SAFETY: as promised.
    unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
}

/// Can `revents` be written? The other fields are the program's, which may change them meanwhile.
#[inline]
fn can_be_told(fds: &mut [PollFd]) -> bool {
    const PAGE: usize = 4096 / size_of::<PollFd>();
    let there = |entry: &mut PollFd| user::is_writable(&raw mut entry.revents, size_of::<i16>());
    fds.iter_mut().step_by(PAGE).all(there) && fds.last_mut().is_none_or(there)
}

/// poll and ppoll; `kernel` is the same call of libc.
///
/// # Safety
/// As [`list`].
#[inline]
unsafe fn poll_all(
    (fds, count): (*mut libc::pollfd, libc::nfds_t),
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as promised.
    let list = unsafe { list(fds, count) };
    let _calls = calls_on(list);
    let result = match can_be_told(list) {
        true => poll_ours(list, Told::Unasked, timeout, mask),
        // The kernel waits before it writes.
        false => poll_ours(&mut list.to_vec(), Told::Unasked, timeout, mask)
            .map(|result| result.and(Err(libc::EFAULT))),
    };
    result.map_or_else(kernel, |result| errno::result(result) as c_int)
}

fn failed(error: i32) -> c_int {
    errno::set(error);
    -1
}

cancellable! {
    /// poll(2).
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        // SAFETY: passed on.
        let kernel = || unsafe { real::poll(fds, count, timeout) };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { poll_all((fds, count), millis(timeout), None, kernel) }
    }

    /// ppoll(2).
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: null or a timespec, by the contract of the call.
        let limit = match unsafe { convert::timespec(timeout) } {
            Ok(limit) => limit,
            Err(error) => return failed(error),
        };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = match unsafe { convert::signal_set(mask) } {
            Ok(set) => set,
            Err(error) => return failed(error),
        };
        // SAFETY: passed on.
        let kernel = || unsafe { real::ppoll(fds, count, timeout, mask) };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { poll_all((fds, count), limit, set, kernel) }
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
        if !timeout.is_null() && !convert::can_read(timeout, size_of::<libc::timeval>()) {
            return failed(libc::EFAULT);
        }
        // SAFETY: null or a timeval, by the contract of the call.
        let limit = match unsafe { timeout.as_ref() } {
            None => None,
            Some(limit) if limit.tv_sec < 0 || limit.tv_usec < 0 => return failed(libc::EINVAL),
            Some(limit) => Some(
                (limit.tv_sec as u64)
                    .saturating_mul(1_000_000_000)
                    .saturating_add((limit.tv_usec as u64).saturating_mul(1000)),
            ),
        };
        let since = clock::now();
        // SAFETY: the program's sets, by the contract of the call.
        let (result, _calls) = unsafe { select_ours(count, [read, write, except], limit, None) };
        let result = match result {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => return unsafe { real::select(count, read, write, except, timeout) },
        };
        // A timeout that cannot be written stays as it is, says the kernel.
        if let Some(limit) = limit
            && convert::can_write(timeout, size_of::<libc::timeval>())
            // SAFETY: as above.
            && let Some(out) = unsafe { timeout.as_mut() }
        {
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
        let limit = match unsafe { convert::timespec(timeout) } {
            Ok(limit) => limit,
            Err(error) => return failed(error),
        };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = match unsafe { convert::signal_set(mask) } {
            Ok(set) => set,
            Err(error) => return failed(error),
        };
        // SAFETY: the program's sets, by the contract of the call.
        let (result, _calls) = unsafe { select_ours(count, [read, write, except], limit, set) };
        match result {
            Some(result) => errno::result(result) as c_int,
            // SAFETY: passed on.
            None => unsafe { real::pselect(count, read, write, except, timeout, mask) },
        }
    }

    /// epoll_wait(2).
    fn epoll_wait(epfd: c_int, events: Events, max: c_int, timeout: c_int) -> c_int {
        let room = Room { epfd, events, max };
        // SAFETY: passed on.
        let kernel = || unsafe { real::epoll_wait(epfd, events, max, timeout) };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { instance::wait(&room, millis(timeout), None, kernel) }
    }

    /// epoll_pwait(2).
    fn epoll_pwait(
        epfd: c_int,
        events: Events,
        max: c_int,
        timeout: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int {
        let room = Room { epfd, events, max };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = match unsafe { convert::signal_set(mask) } {
            Ok(set) => set,
            Err(error) => return failed(error),
        };
        // SAFETY: passed on.
        let kernel = || unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { instance::wait(&room, millis(timeout), set, kernel) }
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
        let limit = match unsafe { convert::timespec(timeout) } {
            Ok(limit) => limit,
            Err(error) => return failed(error),
        };
        let room = Room { epfd, events, max };
        // SAFETY: null or a signal set, by the contract of the call.
        let set = match unsafe { convert::signal_set(mask) } {
            Ok(set) => set,
            Err(error) => return failed(error),
        };
        // SAFETY: passed on.
        let kernel = || unsafe { real::epoll_pwait2(epfd, events, max, timeout, mask) };
        // SAFETY: the program's array, by the contract of the call.
        unsafe { instance::wait(&room, limit, set, kernel) }
    }
}

export! {
    /// epoll_create(2).
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: passed on.
        made(|| unsafe { real::epoll_create(size) })
    }

    /// epoll_create1(2).
    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: passed on.
        made(|| unsafe { real::epoll_create1(flags) })
    }

    /// epoll_ctl(2). What the kernel has a say in goes to it first, which knows every error.
    fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: Events) -> c_int {
        let before = errno::get();
        let _call = passed::during(fd);
        // SAFETY: the program's event, by the contract of the call.
        match unsafe { control_alone(epfd, operation, fd, event) } {
            None => {}
            Some(Ok(())) => {
                errno::set(before);
                return 0;
            }
            Some(Err(error)) => {
                errno::set(error);
                return -1;
            }
        }
        instance::settle(fd);
        // SAFETY: passed on.
        let result = unsafe { real::epoll_ctl(epfd, operation, fd, event) };
        if result == 0 {
            if operation == libc::EPOLL_CTL_ADD {
                nest(fd);
            }
            // SAFETY: the kernel has accepted the pointer: null (for DEL) or an event.
            let event = unsafe { event.as_ref() }.copied();
            control_shared(epfd, operation, fd, event);
            take_over::note_instance(epfd, fd);
            errno::set(before);
        }
        result
    }
}

/// select on sets that hold sockets of ours; None if they do not: then the calls of [`calls_on`] are to be kept
/// while the kernel selects.
///
/// # Safety
/// Each set is null or has room for `count` bits.
unsafe fn select_ours(
    count: c_int,
    sets: [FdSet; 3],
    timeout: Option<u64>,
    mask: Option<&libc::sigset_t>,
) -> (Option<Result<usize, i32>>, Vec<passed::Call>) {
    let nobodys = process::current().is_none() && !inherit::is_child();
    let Some(nfds) = usize::try_from(count).ok().filter(|_| !nobodys) else {
        return (None, Vec::new());
    };
    // Beyond what an fd_set holds the kernel looks only as far as its descriptor table goes:
    // select(getdtablesize(), ...) is an old habit, and the sets are not that large.
    let nfds = if nfds > libc::FD_SETSIZE { nfds.min(table_size()) } else { nfds };
    let bytes = sets::words(nfds) * size_of::<usize>();
    if sets.iter().any(|set| !set.is_null() && !convert::can_read(*set, bytes)) {
        return (None, Vec::new());
    }
    // All of each set is written, after the wait and but for an error: the program may change the sets until then.
    let can_be_told = || sets.iter().all(|set| set.is_null() || convert::can_write(*set, bytes));
    // SAFETY: as promised.
    let mut words = sets.map(|set| unsafe { words(set.cast(), nfds) });
    let mut list = sets::to_list(nfds, &words);
    let calls = calls_on(&list);
    let result = poll_ours(&mut list, Told::Asked, timeout, mask).map(|result| match result? {
        _ if !can_be_told() => Err(libc::EFAULT),
        0 => {
            sets::clear_all(nfds, &mut words);
            Ok(0)
        }
        _ => sets::from_list(nfds, &list, &mut words),
    });
    (result, calls)
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
