//! recv, recvfrom, recvmsg, read ...: one datagram to the caller, copied once.

use std::io::IoSliceMut;
use std::net::SocketAddrV4;
use std::sync::atomic::Ordering;

use super::message::ControlWriter;
use super::wait::{Next, Patience, Shift, Wait};
use super::{NOT_DUE, Origin, Outcome, Socket, Stack, State, WhyOs};
use crate::shard::{self, Direct, SocketId, clock};
use crate::sys::thread;
use crate::sys::wait::PollSet;

/// A receive call as the program made it.
pub struct Request<'a, 'b> {
    pub buffers: &'a mut [IoSliceMut<'b>],
    /// MSG_* of the call.
    pub flags: i32,
    /// Room for control messages; None if the call has none.
    pub control: Option<&'a mut [u8]>,
    /// Does the call on the kernel's socket, without blocking: its result or errno.
    pub os: &'a mut dyn FnMut() -> Result<isize, i32>,
}

/// What a receive call delivered.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A datagram of ours.
    Datagram {
        /// The return value.
        len: usize,
        source: SocketAddrV4,
        /// `msg_flags`.
        flags: i32,
        /// Bytes of control messages written.
        control: usize,
    },
    /// The kernel's socket had it: everything is in place, this is the return value.
    FromOs(isize),
}

/// Flags that change nothing in what a receive call delivers.
const SIMPLE_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// Flags that only the kernel can serve.
const OS_FLAGS: i32 = libc::MSG_ERRQUEUE | libc::MSG_OOB;

type Guard<'a> = crate::sys::lock::Guard<'a, shard::State<Socket>>;

pub fn receive(stack: &Stack, id: SocketId, mut request: Request<'_, '_>) -> Outcome<Received> {
    if request.flags & OS_FLAGS != 0 {
        return Outcome::Os(WhyOs::Arguments);
    }
    let mut shift = Shift::new(stack);
    let mut wait: Option<Wait> = None;
    let ratio = stack.config.rx_udp_poll_os_ratio;
    // The shadow was asked in this round and has nothing.
    let mut asked = false;
    loop {
        let Ok(mut state) = stack.shard.lock() else { return reentered(&mut request) };
        let Some((endpoint, socket)) = state.socket(id) else {
            // Closed by another thread while this one waited: its number may be another file's
            // by now, which is not ours to read from.
            return match wait {
                Some(_) => Outcome::Errno(libc::EBADF),
                None => Outcome::Os(WhyOs::NotOurs),
            };
        };
        if !endpoint.is_readable() {
            let os_ready = socket.os_ready;
            let simple = request.control.is_none()
                && request.flags & !SIMPLE_FLAGS == 0
                && socket.state == State::Offloaded
                && socket.pending_error == 0
                && socket.announced.is_none()
                && (ratio == 0 || u64::from(socket.polls_since_os) < ratio)
                && !(socket.os_ready || socket.os_error || endpoint.wants_stamp);
            let direct = match (simple, wait.is_some()) {
                (true, true) => state.poll_patiently_for(id, request.buffers),
                (true, false) => state.take_from_links(id, request.buffers),
                (false, true) => {
                    state.poll_patiently();
                    None
                }
                (false, false) => None,
            };
            if let Some(direct) = direct {
                return Outcome::Ours(taken(&mut state, id, direct));
            }
            if os_ready || wait.is_none() {
                state.poll_well();
            }
        } else if stack.config.rx_drain_nanos != 0 {
            drain(stack, &mut state);
        }
        let live = stack.shard.is_live();
        let Some((endpoint, socket)) = state.socket(id) else {
            return Outcome::Os(WhyOs::NotOurs);
        };
        if socket.pending_error != 0 {
            endpoint.counters.rx_errors += 1;
            return Outcome::Errno(core::mem::take(&mut socket.pending_error));
        }
        socket.polls_since_os = socket.polls_since_os.saturating_add(1);
        // Where others of this host send through the kernel, too, a look at our rings is not all.
        let local = stack.config.local && (socket.named || socket.starts_locally);
        let local = local && (socket.kernel_led || socket.look_beside);
        let beside =
            local || socket.sharing.as_ref().is_some_and(|sharing| !sharing.withheld.is_empty());
        let doubtful = !live || wait.is_none() && beside;
        // What came by a link is older than what the kernel's socket has, unless it says otherwise;
        // what comes later is not. Of a wire, the kernel gets what is in some way odd: that comes first.
        if socket.os_ready && socket.os_due == NOT_DUE {
            socket.os_due = endpoint.waiting().0.min(u64::from(NOT_DUE - 1)) as u16;
        }
        let os_turn = match endpoint.front() {
            // Nor does another come in between once the program knows of one.
            Some(_) if socket.announced == Some(Origin::Queue) => false,
            _ if socket.announced == Some(Origin::Shadow) => true,
            Some(_) if socket.before_shadow > 0 => false,
            Some(next) => {
                let due = if next.by_link { socket.os_due == 0 } else { socket.os_ready };
                due || next.after_kernel > 0
                    || socket.os_error
                    || ratio != 0 && u64::from(socket.polls_since_os) >= ratio
            }
            None => {
                socket.os_ready
                    || socket.os_error
                    || doubtful
                    || ratio != 0 && u64::from(socket.polls_since_os) >= ratio
            }
        };
        // And always, if it is the kernel's by now.
        let older = endpoint.is_readable() && matches!(socket.state, State::Os(_));
        let just_asked = core::mem::take(&mut asked);
        let os_turn = os_turn && !older && !just_asked;
        let nonblocking = socket.nonblocking || request.flags & libc::MSG_DONTWAIT != 0;
        if endpoint.is_readable() && !os_turn {
            endpoint.counters.rx_poll_hits += 1;
            if endpoint.rx_thread == 0 {
                endpoint.rx_thread = thread::cached_id();
            }
            socket.kernel_led = false;
            socket.look_beside = true;
            return Outcome::Ours(take(&mut state, id, &mut request));
        }
        match socket.state {
            State::Os(why) if !endpoint.is_readable() => return Outcome::Os(why),
            // Nothing can have arrived. A blocking call waits here all the same: another thread may
            // bind or connect the socket meanwhile.
            State::Undecided if nonblocking => return Outcome::Os(WhyOs::Unbound),
            _ => {}
        }
        if os_turn {
            socket.polls_since_os = 0;
            socket.look_beside = false;
            if let Some(outcome) = ask_os(stack, state, id, &mut request) {
                return outcome;
            }
            if let Ok(mut state) = stack.shard.lock()
                && let Some((_, socket)) = state.socket(id)
            {
                socket.announced = None;
            }
            asked = true;
            continue;
        }
        if wait.is_none() {
            endpoint.rx_thread = thread::cached_id();
        }
        if nonblocking {
            endpoint.counters.rx_poll_misses += 1;
            return would_block(stack, state, id, &mut request);
        }
        let timeout = socket.options.receive_timeout;
        let flowless = socket.flows.is_empty();
        let wait = wait.get_or_insert_with(|| {
            // Polling pays where packets of ours may come.
            let polls = !flowless || state.has_links();
            let loops = if polls { stack.config.rx_poll } else { stack.config.rx_poll_init };
            // signal(7): a receive call with SO_RCVTIMEO is not restarted.
            Wait::new(Patience::loops(loops), timeout, timeout.is_none())
                .yielding(stack.config.rx_poll_yield)
        });
        match wait.after_miss(&stack.load, || state.shares_cpu()) {
            Next::PollAgain => {
                drop(state);
                wait.settle(&stack.load);
            }
            Next::TimedOut => return eagain(state, id),
            Next::Interrupted => return Outcome::Errno(libc::EINTR),
            Next::Sleep => match sleep_after_polling(&mut shift, state, id, wait) {
                Next::TimedOut => match stack.shard.lock() {
                    Ok(state) => return eagain(state, id),
                    Err(_) => return Outcome::Errno(libc::EAGAIN),
                },
                Next::Interrupted => return Outcome::Errno(libc::EINTR),
                Next::PollAgain | Next::Sleep => {}
            },
        }
    }
}

/// VMA_RX_CQ_DRAIN_RATE_NSEC: takes what has arrived, though the call could do without, if that was
/// not done for so long.
fn drain(stack: &Stack, state: &mut Guard<'_>) {
    let now = clock::now().as_nanos();
    if now.saturating_sub(stack.drained.load(Ordering::Relaxed)) >= stack.config.rx_drain_nanos {
        stack.drained.store(now, Ordering::Relaxed);
        state.poll();
    }
}

/// An error that the next call on the socket reports.
pub fn keep_error(stack: &Stack, id: SocketId, errno: i32) {
    if errno != libc::EAGAIN
        && let Ok(mut state) = stack.shard.lock()
        && let Some((_, socket)) = state.socket(id)
    {
        socket.pending_error = errno;
    }
}

/// The size of the next datagram (FIONREAD), if one is queued.
pub fn next_len(stack: &Stack, id: SocketId) -> Option<usize> {
    let mut state = stack.shard.lock().ok()?;
    state.poll();
    let (endpoint, socket) = state.socket(id)?;
    let local = stack.config.local && (socket.named || socket.starts_locally);
    let os_turn = match endpoint.front() {
        Some(_) if socket.announced == Some(Origin::Queue) => false,
        _ if socket.announced == Some(Origin::Shadow) => true,
        Some(_) if socket.before_shadow > 0 => false,
        Some(next) if next.by_link => next.after_kernel > 0,
        Some(next) if next.after_kernel > 0 => true,
        _ => socket.os_ready || local && socket.kernel_led,
    };
    if os_turn && crate::sys::wait::poll_now(socket.shadow(), libc::POLLIN) != 0 {
        // The next one is the kernel's.
        socket.announced = Some(Origin::Shadow);
        return None;
    }
    let len = endpoint.front().map(|datagram| datagram.len as usize);
    socket.announced = len.map(|_| Origin::Queue);
    len
}

/// A datagram is in the caller's buffer, past the queue.
#[inline]
fn taken(state: &mut Guard<'_>, id: SocketId, direct: Direct) -> Received {
    if let Some((endpoint, socket)) = state.socket(id) {
        let counters = &mut endpoint.counters;
        counters.rx_poll_hits += 1;
        counters.rx_packets += 1;
        counters.rx_bytes += direct.len as u64;
        counters.rx_ready_packets_max = counters.rx_ready_packets_max.max(1);
        counters.rx_ready_bytes_max = counters.rx_ready_bytes_max.max(direct.len as u32);
        socket.kernel_led = false;
        socket.look_beside = true;
        socket.polls_since_os = socket.polls_since_os.saturating_add(1);
    }
    let flags = if direct.copied < direct.len { libc::MSG_TRUNC } else { 0 };
    Received::Datagram { len: direct.copied, source: direct.source, flags, control: 0 }
}

/// Copies the front datagram out. MSG_PEEK leaves it, MSG_TRUNC returns its real length (recv(2)).
fn take(state: &mut Guard<'_>, id: SocketId, request: &mut Request<'_, '_>) -> Received {
    // Out of the queue, so that the shard can lend its bytes; a peeked one goes back to the front.
    let Some(datagram) = state.pop(id) else {
        return Received::FromOs(0);
    };
    let copied = state.copy_out(&datagram, request.buffers);
    let len = datagram.len as usize;
    // The kernel starts from this flag of the call.
    let mut flags = request.flags & libc::MSG_CMSG_CLOEXEC;
    if copied < len {
        flags |= libc::MSG_TRUNC;
    }
    let mut control = 0;
    let own = state.interface_address(datagram.interface);
    if let (Some(room), Some((_, socket))) = (request.control.as_deref_mut(), state.socket(id)) {
        let mut writer = ControlWriter::new(room);
        writer.describe(&datagram, socket, own);
        control = writer.written();
        if writer.is_cut() {
            flags |= libc::MSG_CTRUNC;
        }
    }
    let source = datagram.source;
    let returned = if request.flags & libc::MSG_TRUNC != 0 { len } else { copied };
    let peeks = request.flags & libc::MSG_PEEK != 0;
    if let Some((_, socket)) = state.socket(id) {
        socket.announced = peeks.then_some(Origin::Queue);
    }
    if peeks {
        state.put_back(id, datagram);
    } else {
        if let Some((endpoint, socket)) = state.socket(id) {
            endpoint.counters.rx_packets += 1;
            endpoint.counters.rx_bytes += len as u64;
            if socket.os_due != NOT_DUE {
                socket.os_due = socket.os_due.saturating_sub(1);
            }
            socket.before_shadow = socket.before_shadow.saturating_sub(1);
        }
        state.release(datagram);
    }
    Received::Datagram { len: returned, source, flags, control }
}

/// Looks at the shadow. None: it has nothing.
fn ask_os(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    request: &mut Request<'_, '_>,
) -> Option<Outcome<Received>> {
    if let Some((_, socket)) = state.socket(id) {
        // Before the call: an event that comes during it must count.
        socket.os_ready = false;
        socket.os_due = NOT_DUE;
        socket.os_error = false;
    }
    drop(state);
    let result = (request.os)();
    if matches!(result, Err(libc::EAGAIN)) {
        return None;
    }
    let mut state = stack.shard.lock().ok()?;
    if let Some((endpoint, socket)) = state.socket(id) {
        // There may be more; only EAGAIN says that there is not.
        socket.os_ready = true;
        socket.kernel_led = true;
        endpoint.rx_thread = thread::cached_id();
        endpoint.counters.rx_os_poll_hits += u64::from(result.is_ok());
        endpoint.counters.rx_os_errors += u32::from(result.is_err());
        let peeks = request.flags & libc::MSG_PEEK != 0;
        if result.is_ok() {
            socket.announced = peeks.then_some(Origin::Shadow);
        }
        if let Ok(len) = result
            && !peeks
        {
            endpoint.note_kernels();
            endpoint.counters.rx_os_packets += 1;
            endpoint.counters.rx_os_bytes += len as u64;
        }
    }
    Some(match result {
        Ok(len) => Outcome::Ours(Received::FromOs(len)),
        Err(errno) => Outcome::Errno(errno),
    })
}

/// The kernel has done a receive call on the shadow that was none of ours.
pub fn after_os(stack: &Stack, id: SocketId, outcome: Result<usize, i32>) {
    let Ok(mut state) = stack.shard.lock() else { return };
    let Some((endpoint, socket)) = state.socket(id) else { return };
    let counters = &mut endpoint.counters;
    match outcome {
        // The end of a stream.
        Ok(0) if socket.stream.is_some() => {}
        Ok(len) => {
            counters.rx_os_packets += 1;
            counters.rx_os_bytes += len as u64;
        }
        Err(libc::EAGAIN) => counters.rx_os_eagain += 1,
        Err(libc::EINTR) => {}
        Err(_) => counters.rx_os_errors += 1,
    }
}

/// A non-blocking call found nothing of ours. If an epoll or poll call reported the descriptor on
/// the kernel's word, the kernel's socket must be asked before the answer is EAGAIN.
fn would_block(
    stack: &Stack,
    mut state: Guard<'_>,
    id: SocketId,
    request: &mut Request<'_, '_>,
) -> Outcome<Received> {
    let watched = state.socket(id).is_some_and(|(endpoint, _)| endpoint.is_watched());
    if watched && state.take_os_doubt(id) {
        if let Some(outcome) = ask_os(stack, state, id, request) {
            return outcome;
        }
        let Ok(mut state) = stack.shard.lock() else { return Outcome::Errno(libc::EAGAIN) };
        if let Some((endpoint, _)) = state.socket(id) {
            endpoint.counters.rx_os_eagain += 1;
        }
        return eagain(state, id);
    }
    eagain(state, id)
}

fn eagain(mut state: Guard<'_>, id: SocketId) -> Outcome<Received> {
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.rx_eagain += 1;
    }
    Outcome::Errno(libc::EAGAIN)
}

/// Below our own lock: only the kernel's socket can be asked.
fn reentered(request: &mut Request<'_, '_>) -> Outcome<Received> {
    match (request.os)() {
        Ok(len) => Outcome::Ours(Received::FromOs(len)),
        Err(errno) => Outcome::Errno(errno),
    }
}

/// It polled in vain: the call is a miss, for it blocks its thread.
fn sleep_after_polling(
    shift: &mut Shift<'_>,
    mut state: Guard<'_>,
    id: SocketId,
    wait: &mut Wait,
) -> Next {
    if let Some((endpoint, _)) = state.socket(id) {
        endpoint.counters.rx_poll_misses += 1;
    }
    sleep(shift, state, id, wait)
}

fn sleep(shift: &mut Shift<'_>, mut state: Guard<'_>, id: SocketId, wait: &mut Wait) -> Next {
    let Some((sleeper, waker)) = state.new_sleeper() else {
        // No descriptor for a waker: poll on, gently.
        drop(state);
        thread::nap_millis(1);
        return Next::PollAgain;
    };
    let stack = shift.begin();
    state.sleep_on(id, sleeper);
    let shadow = state.socket(id).map_or(-1, |(_, socket)| socket.shadow());
    let mut fds = PollSet::default();
    fds.add_readable(shadow);
    fds.add_waker(waker);
    // What came between the last poll and now is in the rings, so their descriptors are readable.
    let bound = state.guard_rings(sleeper, |fd| fds.add_readable(fd));
    drop(state);
    let next = wait.sleep(&mut fds, None, bound);
    let shadow_fired = fds.as_mut_slice().first().is_some_and(|entry| entry.revents != 0);
    if let Ok(mut state) = stack.shard.lock() {
        state.leave(id, sleeper);
        state.end_sleeper(sleeper);
        state.run_tcp();
        if shadow_fired && let Some((_, socket)) = state.socket(id) {
            socket.os_ready = true;
        }
    }
    next
}

#[cfg(test)]
mod tests;
